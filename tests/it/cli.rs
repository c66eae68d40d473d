//! Commands that need no cluster: `estimate`, `replay`, `policy test`, through the binaries as a shell sees them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use crate::plugin::golden;
use crate::support::Folder;

/// Standard output, standard error and exit code. The program runs in the repository, and names files as from there.
fn sh(program: &str, line: &[&str]) -> (String, String, i32) {
    let output = Command::new(program).args(line).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code().unwrap())
}

fn gpumem(line: &[&str]) -> (String, String, i32) {
    sh(env!("CARGO_BIN_EXE_gpumem"), line)
}

/// A leak beside a flat neighbour on a device of 24 GiB, an hour long.
fn recording(folder: &Path) -> String {
    let mut text = "t_s,container,used_mib,capacity_mib\n".to_owned();
    for t_s in (0..3600).step_by(5) {
        let _ = writeln!(text, "{t_s},train,{},24576\n{t_s},side,2000,24576", 8000 + t_s * 44 / 10);
    }
    let path = folder.join("leak.csv");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// A text without its numbers, which every new fit of the forecast changes.
pub fn shape(text: &str) -> String {
    let mut shape = String::new();
    for line in text.lines() {
        let words: Vec<String> = line
            .split_whitespace()
            .map(|word| word.split(|c: char| c.is_ascii_digit()).collect::<Vec<_>>().join("N"))
            .collect();
        shape += &words.join(" ");
        shape.push('\n');
    }
    while shape.contains("NN") || shape.contains("N.N") {
        shape = shape.replace("N.N", "N").replace("NN", "N");
    }
    shape
}

#[test]
fn env_merge_says_what_each_container_gains_and_why_not() {
    let (text, notes, code) = gpumem(&["env-merge", "-f", "tests/data/cli/env.yaml", "--hook", "/hook"]);
    assert_eq!(code, 0, "{notes}");
    for line in [
        "Job train, init container convert\n  add     PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n",
        "  extend  PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128,expandable_segments:True   (was max_split_size_mb:128)\n",
        "  keep    TF_FORCE_GPU_ALLOW_GROWTH: the manifest sets it\n",
        "  add     PYTHONPATH=/hook\n",
        "Job train, container logs\n  keep    all: the container asks for no GPU\n",
        "  keep    PYTORCH_CUDA_ALLOC_CONF: its value comes from valueFrom",
        "  keep    PYTORCH_ALLOC_CONF: it cannot be read (expandable_segments must be True or False)",
        "  keep    XLA_PYTHON_CLIENT_PREALLOCATE: envFrom may hold it",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(notes.contains("warning: Pod odd, container broken: PYTORCH_ALLOC_CONF"), "{notes}");
    let (json, _, _) = gpumem(&["env-merge", "-f", "tests/data/cli/env.yaml", "-o", "json", "--suspendable"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["containers"].as_array().unwrap().len(), 5);
    assert_eq!(json["containers"][0]["changes"][0]["name"], "TF_FORCE_GPU_ALLOW_GROWTH");
    assert!(json["containers"][0]["kept"][0]["why"].as_str().unwrap().contains("suspended to host memory"));
    for bad in [
        &["env-merge"][..],
        &["env-merge", "-f", "no/such/file.yaml"],
        &["env-merge", "-f", "deploy/examples/known-peak.yaml"],
        &["env-merge", "-f", "tests/data/cli/env.yaml", "--fraction", "1.5"],
        &["env-merge", "-f", "tests/data/cli/env.yaml", "--torch", "new"],
        &["env-merge", "-f", "tests/data/cli/env.yaml", "--hook", "opt/hook"],
        &["env-merge", "-f", "tests/data/cli/env.yaml", "--hook", "/a:/b"],
    ] {
        let (text, notes, code) = gpumem(bad);
        assert!(code == 2 && text.is_empty() && !notes.is_empty(), "{bad:?}: {code} {text}");
    }
}

#[test]
fn a_hook_that_is_no_whole_path_is_refused_by_the_name_of_its_flag() {
    for bad in ["opt/hook", "./hook", "", "/", "/with blank", "/a:/b"] {
        let (_, error, code) = gpumem(&["env-merge", "-f", "tests/data/cli/env.yaml", "--hook", bad]);
        assert!(code == 2 && error.contains("--hook") && error.contains("whole path"), "{bad}: {code} {error}");
    }
}

#[test]
fn no_line_is_longer_than_a_page_where_output_is_no_terminal() {
    let folder = Folder::new();
    let file = recording(&folder.0);
    let enforce = "deploy/examples/enforce-training.yaml";
    let known = [
        &["estimate", "llama3.1-8b", "--method", "lora", "--sequence", "4096", "--batch", "4", "--gpu", "A100-40GB"][..],
        &["estimate", "llama3.1-8b", "--task", "serve", "--utilization", "0.85", "--gpu", "A100-40GB"],
        &["estimate", "resnet50", "--capacity", "2GiB"],
        &["estimate", "-f", "tests/data/cli/manifests.yaml", "--gpu", "H100-80GB"],
        &["replay", &file],
        &["replay", &file, "--summary"],
    ];
    for line in known {
        let (text, ..) = gpumem(line);
        let longest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!((40..=80).contains(&longest), "{line:?}: {longest}\n{text}");
        let whole: Vec<&str> = line.iter().copied().chain(["-o", "wide"]).collect();
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let (whole, ..) = gpumem(&whole);
        let is_whole = whole == text || whole.lines().any(|line| line.chars().count() > 80);
        assert!(is_whole, "{line:?}: wide breaks nothing\n{whole}");
        // Evaluations are clipped, a line each; all else is broken and loses nothing.
        let is_clipped = line == ["replay", &file];
        assert_eq!(words(&whole) == words(&text), !is_clipped, "{line:?}");
    }
    let (text, ..) = sh(env!("CARGO_BIN_EXE_kubectl-gpumem"), &["policy", "test", "-f", enforce, "--trace", &file]);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn a_server_takes_its_share_and_starts_on_less_and_both_are_said() {
    let (text, ..) =
        gpumem(&["estimate", "llama3.1-8b", "--task", "serve", "--utilization", "0.85", "--gpu", "A100-40GB"]);
    for part in ["total that it takes", "a card that it starts on", "Smallest card or MIG profile that it starts on: "]
    {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let (text, ..) = gpumem(&["estimate", "llama3.1-8b", "--task", "serve"]);
    assert!(
        text.split_whitespace().collect::<Vec<_>>().join(" ").contains("with room for all of the total: "),
        "{text}"
    );
    let (text, ..) =
        gpumem(&["estimate", "llama3.1-8b", "--method", "lora", "--gpu", "H100-80GB", "--sequence", "2048"]);
    assert!(text.contains("  total   ") && text.contains("that holds it: ") && !text.contains("starts on"), "{text}");
}

#[test]
fn an_estimate_ends_with_whether_it_fits() {
    let fits = ["estimate", "llama3.1-8b", "--gpu", "H100-80GB", "--method", "lora", "--sequence", "2048"];
    let (text, _, code) = gpumem(&fits);
    assert!(code == 0 && text.contains("It fits H100-80GB"), "{code} {text}");
    let (text, _, code) = gpumem(&["estimate", "llama3.1-8b", "--gpu", "A100-40GB", "--sequence", "2048"]);
    assert!(
        code == 3 && text.contains("It will not fit A100-40GB") && text.contains("Do this, in order"),
        "{code} {text}"
    );
    let (text, _, code) =
        gpumem(&["estimate", "llama3.1-8b", "--sequence", "2048", "--capacity", "24GiB", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &json["verdict"], &json["capacityBytes"]), (3, &"DoesNotFit".into(), &25_769_803_776_u64.into()));
}

#[test]
fn a_question_that_makes_no_sense_ends_with_two() {
    for line in [
        &["estimate"][..],
        &["estimate", "llama9"],
        &["estimate", "llama3.1-8b", "--batch", "0"],
        &["estimate", "llama3.1-8b", "--batch", "-1"],
        &["estimate", "llama3.1-8b", "--optimizer", "magic"],
        &["estimate", "llama3.1-8b", "--capacity", "lots"],
        &["estimate", "llama3.1-8b", "--capacity", "24"],
        &["estimate", "-f", "no/such/file.yaml"],
        &["estimate", "-f", "Cargo.toml"],
        &["estimate", "-f", "deploy/examples/known-peak.yaml"],
    ] {
        let (_, error, code) = gpumem(line);
        assert!(code == 2 && !error.is_empty(), "{line:?}: {code} {error}");
    }
}

#[test]
fn what_cannot_be_answered_names_what_could_be() {
    let plugin = env!("CARGO_BIN_EXE_kubectl-gpumem");
    let manifests = "tests/data/cli/manifests.yaml";
    let (_, error, code) = gpumem(&["estimate", "llama3.1-8b", "--gpu", "H300"]);
    assert!(code == 2 && error.contains("H100-80GB") && error.contains("L40S"), "{error}");
    assert!(error.lines().skip(1).all(|line| line.len() <= 80), "{error}");
    let (_, error, code) = gpumem(&["estimate", "llama9"]);
    assert!(code == 2 && error.contains("llama3.1-8b") && error.contains("resnet50"), "{error}");
    let (_, error, code) = gpumem(&["estimate", "-f", manifests, "--container", "typo"]);
    assert!(code == 2 && error.contains("no container is named typo"), "{error}");
    let (_, error, code) = sh(plugin, &["explain", "deploy/trainer"]);
    assert!(code == 2 && error.contains("only pods are explained, not deploy"), "{error}");
    let (text, error, code) = sh(plugin, &["version", "--kubeconfig", "/no/such/file"]);
    assert!(code == 1 && text.starts_with("plugin ") && error.contains("no way to a cluster"), "{text}{error}");
}

#[test]
fn manifests_of_any_kind_are_read_and_what_was_not_is_listed() {
    let (text, _, code) = gpumem(&["estimate", "-f", "tests/data/cli/manifests.yaml", "--gpu", "H100-80GB"]);
    assert_eq!(code, 3);
    for part in ["Deployment llm, container vllm (vLLM)", "PyTorchJob sft Worker, container pytorch (torchrun)"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("proxy"), "a container without a GPU is none of ours\n{text}");
    let only =
        ["estimate", "-f", "tests/data/cli/manifests.yaml", "--container", "vllm", "--gpu", "H100-80GB", "-o", "json"];
    let (text, _, code) = gpumem(&only);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, json["containers"].as_array().unwrap().len()), (0, 1));
}

#[test]
fn a_replay_is_printed_in_each_form() {
    let folder = Folder::new();
    let file = recording(&folder.0);
    let (text, notes, code) = gpumem(&["replay", &file, "--summary"]);
    assert_eq!((notes.as_str(), code), ("", 0));
    golden("replay-summary", &shape(&text));
    let (table, ..) = gpumem(&["replay", &file]);
    assert!(table.lines().count() > 400 && table.contains("CONTAINER"), "{table}");
    let (lines, ..) = gpumem(&["replay", &file, "-o", "json"]);
    let newest: serde_json::Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    for key in ["t_s", "container", "level", "class", "regime", "reason", "probability", "seconds_to_oom"] {
        assert!(newest.get(key).is_some(), "{key}: {newest}");
    }
    assert_eq!(newest["level"], "High");
}

#[test]
fn flags_of_a_replay_go_before_the_policy_and_the_policy_before_defaults() {
    let folder = Folder::new();
    let file = recording(&folder.0);
    let raised = |line: &[&str]| {
        let all: Vec<&str> =
            ["replay", &file, "--summary", "-o", "json"].into_iter().chain(line.iter().copied()).collect();
        let (text, error, code) = gpumem(&all);
        assert_eq!((error.as_str(), code), ("", 0));
        let first = text.lines().next().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        first.map(|first| first["raised_s"].as_f64().unwrap())
    };
    let plain = raised(&[]).unwrap();
    assert!(raised(&["--horizon", "30m"]).unwrap() < plain);
    assert!(raised(&["--capacity", "20GiB"]).unwrap() < plain);
    assert_eq!(raised(&["--declared", "23GiB", "--capacity", "40GiB"]), None);
    // The policy keeps 2 GiB free.
    let policy = ["--policy", "deploy/examples/enforce-training.yaml"];
    let under_policy = raised(&policy).unwrap();
    assert!(under_policy < plain);
    assert!(raised(&[policy[0], policy[1], "--horizon", "30m"]).unwrap() < under_policy);
}

#[test]
fn a_recording_that_is_none_is_refused_with_its_line() {
    let folder = Folder::new();
    let path = folder.0.join("bad.csv");
    let file = path.display().to_string();
    for (text, says) in [
        ("", "line 1: the file is empty"),
        ("t_s,container\n", "line 1: column `used_mib` is missing"),
        ("t_s,container,used_mib\n1,a,x\n", "line 2: `used_mib` is not a number: `x`"),
        ("t_s,container,used_mib\n1,a,1\n0,a,1\n", "line 3: time of container `a` goes back"),
        ("t_s,container,used_mib\n1,a,-1\n", "line 2: `used_mib` is negative"),
    ] {
        std::fs::write(&path, text).unwrap();
        let (_, error, code) = gpumem(&["replay", &file]);
        assert!(code == 2 && error.contains(says), "{text:?}: {code} {error}");
    }
    std::fs::write(&path, "t_s,container,used_mib\n1,a,1\n").unwrap();
    for flags in [&["--horizon", "0s"][..], &["--act-for", "20m"], &["--horizon", "15"], &["--policy", "Cargo.toml"]] {
        let line: Vec<&str> = ["replay", file.as_str()].into_iter().chain(flags.iter().copied()).collect();
        let (_, error, code) = gpumem(&line);
        assert!(code == 2 && !error.is_empty(), "{flags:?}: {code} {error}");
    }
    let (_, error, code) = gpumem(&["replay", &file]);
    assert!(code == 0 && error.contains("no capacity is known"), "{code} {error}");
    let (text, error, code) = gpumem(&["replay", "--summary", &file]);
    assert_eq!((text.as_str(), code), ("nothing was judged\n", 1), "no alarm would be taken for all is well");
    assert!(error.contains("no capacity is known"), "{error}");
}

#[test]
fn what_was_never_judged_is_said_with_why_and_is_no_all_is_well() {
    let folder = Folder::new();
    let path = folder.0.join("short.csv");
    let (file, head) = (path.display().to_string(), "t_s,container,used_mib,capacity_mib\n");
    let plugin = env!("CARGO_BIN_EXE_kubectl-gpumem");
    let rows = |from: u32, until: u32, name: &str| -> String {
        let row = |t_s: u32| format!("{t_s},{name},{},24576\n", (t_s * 58).min(24_576));
        (from..=until).step_by(5).map(row).collect::<Vec<_>>().concat()
    };
    for (text, says) in [
        (
            rows(0, 420, "train"),
            "container train was never judged: warming up the whole time (it needs 10m, the recording has 7m)",
        ),
        (rows(0, 0, "train"), "container train was never judged: 1 sample so far"),
        (String::new(), "the recording has no sample"),
    ] {
        std::fs::write(&path, format!("{head}{text}")).unwrap();
        let (text, error, code) = gpumem(&["replay", "--summary", &file]);
        assert_eq!((text.as_str(), code), ("nothing was judged\n", 1), "{error}");
        assert!(error.contains(says), "{says}: {error}");
        for verb in ["test", "simulate"] {
            let line = ["policy", verb, "-f", "deploy/examples/enforce-training.yaml", "--trace", &file];
            let (text, error, code) = sh(plugin, &line);
            assert!(code == 1 && error.contains("judged: "), "{verb}: {code} {text}{error}");
        }
    }
    let flat: Vec<String> = (0..3600).step_by(5).map(|t_s| format!("{t_s},side,900,24576\n")).collect();
    std::fs::write(&path, format!("{head}{}{}", flat.concat(), rows(3600, 3900, "late"))).unwrap();
    let (text, error, code) = gpumem(&["replay", "--summary", &file]);
    assert_eq!((text.as_str(), code), ("no alarm would have been raised of what was judged\n", 0), "{error}");
    assert!(error.contains("container late was never judged"), "{error}");
}

#[test]
fn a_policy_is_tested_on_a_recording() {
    let folder = Folder::new();
    let file = recording(&folder.0);
    let plugin = env!("CARGO_BIN_EXE_kubectl-gpumem");
    let line = ["policy", "test", "-f", "deploy/examples/enforce-training.yaml", "--trace", &file];
    let (text, _, code) = sh(plugin, &line);
    assert_eq!(code, 0);
    golden("policy-test", &shape(&text));
    let json: Vec<&str> = line.iter().copied().chain(["-o", "json"]).collect();
    let answer: serde_json::Value = serde_json::from_str(&sh(plugin, &json).0).unwrap();
    assert_eq!(answer["items"][0]["cameTrue"], 1);
    assert_eq!(answer["items"][0]["alarms"][0]["would"], "Evict");
}

#[test]
fn a_policy_that_the_server_would_refuse_is_not_tested() {
    let folder = Folder::new();
    let file = recording(&folder.0);
    let path = folder.0.join("policy.yaml");
    for (spec, says) in [
        ("{mode: Enforce, target: {podSelector: {}}}", "needs one that selects something"),
        ("{target: {podSelector: {}}, predictions: {}}", "spec.predictions: there is no such field"),
    ] {
        let text =
            format!("kind: GpuMemoryPolicy\napiVersion: gpumem.dev/v1alpha1\nmetadata: {{name: p}}\nspec: {spec}\n");
        std::fs::write(&path, text).unwrap();
        let line = ["policy", "test", "-f", path.to_str().unwrap(), "--trace", &file];
        let (_, error, code) = sh(env!("CARGO_BIN_EXE_kubectl-gpumem"), &line);
        assert!(code == 2 && error.contains(says), "{spec}: {code} {error}");
    }
}

#[test]
fn completion_scripts_name_the_commands() {
    for (program, shell) in [(env!("CARGO_BIN_EXE_gpumem"), "bash"), (env!("CARGO_BIN_EXE_kubectl-gpumem"), "zsh")] {
        let (script, _, code) = sh(program, &["completion", shell]);
        assert!(code == 0 && script.contains("estimate") && script.contains("replay"), "{program}");
    }
}

#[test]
fn a_demo_needs_no_cluster_and_says_the_same_each_time() {
    let plugin = env!("CARGO_BIN_EXE_kubectl-gpumem");
    let (text, notes, code) = sh(plugin, &["demo", "--kubeconfig", "/no/such/file"]);
    assert_eq!((notes.as_str(), code), ("", 0));
    golden("demo", &text);
    assert_eq!(sh(plugin, &["demo", "--plain", "--seed", "1", "--speed", "3600"]).0, text);
    assert_ne!(sh(plugin, &["demo", "--seed", "2"]).0, text);
    let (json, notes, code) = sh(plugin, &["demo", "-o", "json"]);
    assert_eq!((notes.as_str(), code), ("", 0));
    golden("demo.json", &json);
    let answer: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (answer["apiVersion"].as_str(), answer["kind"].as_str()),
        (Some("cli.gpumem.dev/v1"), Some("DemoStory"))
    );
    assert!(answer["notSeen"][0].as_str().unwrap().contains("made up"), "{answer}");
    let (csv, ..) = sh(plugin, &["demo", "-o", "csv"]);
    assert_eq!(csv.lines().count(), 1 + answer["items"].as_array().unwrap().len());
}

#[test]
fn a_demo_is_coloured_where_it_is_wanted_and_refuses_a_speed_that_is_none() {
    let plugin = env!("CARGO_BIN_EXE_kubectl-gpumem");
    assert!(sh(plugin, &["demo", "--color", "always"]).0.contains("\u{1b}[31mHigh"));
    assert!(!sh(plugin, &["demo", "--color", "never"]).0.contains('\u{1b}'));
    let (_, error, code) = sh(plugin, &["demo", "--seed", "x"]);
    assert!(code == 2 && error.contains("give a whole number"), "{error}");
    for speed in ["0", "-3", "fast", "1e9", "NaN"] {
        let (text, error, code) = sh(plugin, &["demo", "--speed", speed]);
        assert!(code == 2 && text.is_empty() && !error.is_empty(), "{speed}: {code} {error}");
    }
}

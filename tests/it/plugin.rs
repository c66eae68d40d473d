//! `kubectl gpumem` over a Kubernetes API in the process: every output against a golden file, and every way in which
//! something cannot be seen. `GPUMEM_GOLDEN=write cargo test --test it plugin` writes the files anew.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::path::PathBuf;

use clap::Parser as _;
use gpumem::cli::Shown;
use gpumem::cli::page::{PAGE, hanging, seen};
use gpumem::plugin::cluster::Error;
use gpumem::plugin::table::Style;
use gpumem::plugin::{Cli, run};

use gpumem::api::view::{AbilityView, Advice, DeclaredView, Level, Range};

use crate::plugin_api::{THEIRS, World, containers, ledger_path, list, loops, nodes, untouched};

/// Compares with `tests/data/golden/<name>`.
pub fn golden(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden").join(name);
    if std::env::var_os("GPUMEM_GOLDEN").is_some_and(|value| value == "write") {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == expected, "{name} differs; look at it and write it anew if it is right:\n{text}");
}

/// Standard output, then notes and exit code as a terminal of a page would show them.
pub fn screen(shown: &Shown) -> String {
    let notes: Vec<String> = shown.notes.iter().map(|note| hanging("gpumem", note, PAGE)).collect();
    format!("{}{}[exit {}]\n", shown.text, notes.concat(), shown.code)
}

pub async fn ask(world: &World, line: &str) -> Result<Shown, Error> {
    ask_on(world, line, None).await
}

/// The same on a terminal of so many columns.
async fn ask_on(world: &World, line: &str, width: Option<usize>) -> Result<Shown, Error> {
    let cli = Cli::try_parse_from(["kubectl-gpumem"].into_iter().chain(line.split(' '))).unwrap();
    let namespace = if cli.all_namespaces { None } else { Some(cli.namespace.as_deref().unwrap_or("team-a")) };
    let now = "2026-11-29T12:00:04Z".parse().unwrap();
    let style = Style { color: cli.color == gpumem::plugin::When::Always, width };
    run(&cli.command, &world.cluster(namespace), style, now).await
}

async fn show(world: &World, line: &str) -> String {
    screen(&ask(world, line).await.unwrap())
}

#[tokio::test]
async fn every_list_has_every_form() {
    let world = World::healthy();
    for rows in ["pods", "nodes", "gpus", "workloads"] {
        for form in ["table", "wide", "json", "yaml", "csv"] {
            golden(&format!("top-{rows}.{form}"), &show(&world, &format!("top {rows} -A -o {form}")).await);
        }
    }
}

#[tokio::test]
async fn risk_is_coloured_only_where_colour_is_wanted() {
    let world = World::healthy();
    golden("top-pods-colour", &show(&world, "top pods -A --color always").await);
    assert!(!show(&world, "top pods -A --color never").await.contains('\u{1b}'));
}

#[tokio::test]
async fn on_a_terminal_of_eighty_columns_no_line_is_longer_and_risk_is_there() {
    let world = World::healthy();
    for rows in ["pods -A", "nodes", "gpus", "workloads -A"] {
        let shown = ask_on(&world, &format!("top {rows}"), Some(80)).await.unwrap();
        let longest = shown.text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(longest <= 80, "{rows}: {longest}\n{}", shown.text);
        assert!(shown.text.contains("RISK") && shown.text.contains("OOM IN"), "{}", shown.text);
    }
    golden("top-pods-narrow", &screen(&ask_on(&world, "top pods -A", Some(80)).await.unwrap()));
    golden("top-workloads-narrow", &screen(&ask_on(&world, "top workloads -A", Some(80)).await.unwrap()));
}

#[test]
fn no_line_for_people_is_longer_than_a_page() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden");
    let mut looked_at = 0;
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        // Forms for programs, what was asked for whole, and the screen, which has its terminal's size.
        if [".json", ".yaml", ".csv", ".wide"].iter().any(|form| name.ends_with(form)) || name.starts_with("tui") {
            continue;
        }
        looked_at += 1;
        let text = std::fs::read_to_string(entry.path()).unwrap();
        // A name is never cut in a pipe, and half a page is what a column leaves for one.
        let over = text.split_whitespace().map(seen).max().unwrap_or(0).saturating_sub(PAGE / 2);
        for line in text.lines() {
            assert!(seen(line) <= PAGE + over, "{name}: {} columns\n{line}", seen(line));
        }
    }
    assert!(looked_at > 15, "{looked_at}");
}

#[tokio::test]
async fn in_a_pipe_names_stay_whole_and_columns_go_first() {
    let mut world = World::healthy();
    let mut seen = containers();
    let long = "a-name-of-a-pod-that-somebody-made-longer-than-anybody-would-like-to-read-in-a-table-0";
    seen.containers[0].pod = long.to_owned();
    world.live(&seen, &nodes());
    let piped = ask_on(&world, "top pods -A", None).await.unwrap().text;
    assert!(piped.contains(long) && !piped.contains("DEVICE"), "{piped}");
    let terminal = ask_on(&world, "top pods -A", Some(80)).await.unwrap().text;
    assert!(!terminal.contains(long) && terminal.contains("a-name-of"), "{terminal}");
    let wide = ask_on(&world, "top pods -A -o wide", Some(80)).await.unwrap().text;
    assert!(wide.contains(long) && wide.contains("DEVICE") && wide.contains("REASON"), "{wide}");
}

#[tokio::test]
async fn texts_take_the_room_of_their_terminal() {
    let world = World::healthy();
    for width in [60, 80, 100, 200] {
        for line in ["explain pod/train-6f9-x2k", "doctor", "pause"] {
            let text = ask_on(&world, line, Some(width)).await.unwrap().text;
            let longest = text.lines().map(seen).max().unwrap();
            assert!(longest <= width.min(110), "{line} on {width}: {longest}\n{text}");
        }
    }
    let whole = ask(&world, "explain pod/train-6f9-x2k -o wide").await.unwrap().text;
    assert!(whole.contains("full in about 13 min (11 min to 17 min)"), "{whole}");
}

#[tokio::test]
async fn explain_says_why_what_would_be_done_and_what_stops_it() {
    let world = World::healthy();
    golden("explain", &show(&world, "explain pod/train-6f9-x2k").await);
    golden("explain.json", &show(&world, "explain pod/train-6f9-x2k -o json").await);
    golden("explain-flat", &show(&world, "explain metrics-exporter-with-a-long-name-0").await);
}

#[tokio::test]
async fn explain_tells_when_a_container_meets_its_limit_apart_from_when_the_device_is_full() {
    let mut world = World::healthy();
    let first = "Meets its growth limit of 64 GiB in about 2m: its own allocation will fail there (policy trainer). The device: ";
    for (level, seconds, told, headline) in [
        (Level::High, Some(120.0), "at this growth it meets it in", first),
        (Level::Low, Some(120.0), "raise growthLimit.ceiling", first),
        (Level::Low, Some(0.0), "it has met it: its next allocation fails", "Has met its growth limit of 64 GiB"),
        (Level::Low, None, "it does not grow towards it", "LOW: no out-of-memory expected"),
        (Level::High, Some(50_000.0), "at this growth it meets it in", "HIGH: out of memory in about"),
    ] {
        let mut seen = containers();
        let leak = seen.containers.iter_mut().find(|view| view.pod.starts_with("train")).unwrap();
        leak.level = level;
        (leak.limit_bytes, leak.seconds_to_limit) = (Some(64 << 30), seconds);
        world.live(&seen, &nodes());
        let page = show(&world, "explain pod/train-6f9-x2k").await;
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(page.contains("held to 64 GiB") && page.contains(told) && page.contains(headline), "{page}");
        assert!(page.contains("P(OOM)"), "the device's forecast stays: {page}");
    }
}

#[tokio::test]
async fn explain_says_what_a_dead_pod_died_of_and_what_to_change() {
    let mut world = World::healthy();
    world.set("/apis/gpumem.dev/v1alpha1/namespaces/team-a/gpumemoryprofiles", &list(&[loops()]));
    golden("explain-dead", &show(&world, "explain pod/tune-2").await);
}

#[tokio::test]
async fn explain_shows_what_is_declared_and_the_peak_that_each_change_leads_to() {
    let mut world = World::healthy();
    let mut seen = containers();
    let leak = seen.containers.iter_mut().find(|view| view.pod.starts_with("train")).unwrap();
    let range =
        |low: u64, median: u64, high: u64| Some(Range { low: low << 30, median: median << 30, high: high << 30 });
    leak.declared = Some(DeclaredView { peak_bytes: range(70, 74, 81), problem: None });
    leak.advice = vec![Advice {
        what: "gradient checkpointing".into(),
        peak_bytes: range(47, 51, 57),
        price: Some("25 to 35 % slower: one more forward pass".into()),
        setting: Some("PyTorch: model.gradient_checkpointing_enable()".into()),
    }];
    world.live(&seen, &nodes());
    golden("explain-declared", &show(&world, "explain pod/train-6f9-x2k").await);
}

#[tokio::test]
async fn a_pod_that_is_not_seen_is_an_error_with_a_fix() {
    let error = ask(&World::healthy(), "explain pod/none").await.unwrap_err();
    assert_eq!(error.line(), "GPU memory of pod team-a/none: not found; check its name and the namespace (-n)");
}

#[tokio::test]
async fn a_pod_that_no_status_names_is_said_to_be_unseen_where_live_data_cannot_be_read() {
    let (mut refused, mut without) = (World::healthy(), World::healthy());
    refused.refuse(403, "/proxy/");
    without.set_pods("controller", &[]);
    for (world, why) in [(refused, "ask for the right to"), (without, "no controller of gpu-memory-operator")] {
        let error = ask(&world, "explain pod/elsewhere").await.unwrap_err();
        assert!(error.to_string().contains("GPU memory of pod team-a/elsewhere: cannot be seen"), "{error}");
        assert!(error.to_string().contains(why) && !error.line().contains("not found"), "{}", error.line());
    }
}

#[tokio::test]
async fn explain_refuses_the_form_it_does_not_have_and_names_those_it_has() {
    let error = ask(&World::healthy(), "explain pod/train-6f9-x2k -o csv").await.unwrap_err();
    assert_eq!(error.to_string(), "explain has no form csv: it takes -o table, wide, json or yaml");
    // Bad input as any other, whether a cluster is there or not.
    let plugin = std::process::Command::new(env!("CARGO_BIN_EXE_kubectl-gpumem"))
        .args(["explain", "pod/x", "-o", "csv", "--kubeconfig", "/none"])
        .output()
        .unwrap();
    let said = String::from_utf8(plugin.stderr).unwrap();
    assert!(plugin.status.code() == Some(2) && said.contains("it takes -o table, wide, json or yaml"), "{said}");
}

#[tokio::test]
async fn explain_of_a_healthy_pod_is_stopped_by_nothing() {
    let mut world = World::healthy();
    world.set("/apis/gpumem.dev/v1alpha1/namespaces/team-a/gpumemorypolicies", &list(&[untouched()]));
    let page = show(&world, "explain pod/train-6f9-x2k").await;
    assert!(page.contains("stopped by  nothing") && !page.contains("NoActions"), "{page}");
}

#[tokio::test]
async fn without_the_proxy_right_the_statuses_are_shown_and_what_is_missing_is_said() {
    let mut world = World::healthy();
    world.refuse(403, "/proxy/");
    golden("top-pods-statuses", &show(&world, "top pods").await);
    golden("explain-statuses", &show(&world, "explain pod/train-6f9-x2k").await);
    let error = ask(&world, "top gpus").await.unwrap_err();
    assert!(matches!(error, Error::Forbidden { .. }), "{error}");
    world.refuse(403, "/pods");
    golden("top-pods-tenant", &show(&world, "top pods").await);
}

#[tokio::test]
async fn who_may_see_nothing_is_told_which_right_to_ask_for() {
    let mut world = World::healthy();
    world.refuse(403, "/");
    let error = ask(&world, "top").await.unwrap_err();
    assert!(error.fix().contains("list gpumemorypolicies.gpumem.dev in namespace team-a"), "{}", error.fix());
}

#[tokio::test]
async fn explain_says_that_a_job_will_not_fit_before_it_starts() {
    use gpumem::api::view::{Advice, ContainerView, DeclaredView, Level, NOT_STARTED, Range};
    let mut world = World::healthy();
    let gib = |low: u64, median: u64, high: u64| Some(Range { low: low << 30, median: median << 30, high: high << 30 });
    let waits = ContainerView {
        node: "gpu-node-1".into(),
        namespace: "team-a".into(),
        pod: "tune-0".into(),
        container: "main".into(),
        model: "NVIDIA H100 80GB HBM3".into(),
        capacity_bytes: Some(79 << 30),
        level: Level::High,
        unknown: Some(NOT_STARTED.into()),
        reason:
            "it holds no GPU memory yet; its declared job will not fit: it needs 104 GiB at the very least, and the \
                 largest device that it can get on node gpu-node-1 has 79 GiB"
                .into(),
        declared: Some(DeclaredView { peak_bytes: gib(104, 112, 121), problem: None }),
        advice: vec![Advice {
            what: "gradient checkpointing".into(),
            peak_bytes: gib(52, 55, 60),
            price: Some("25 to 35 % slower: one more forward pass".into()),
            setting: Some("PyTorch: model.gradient_checkpointing_enable()".into()),
        }],
        ..ContainerView::default()
    };
    let list = gpumem::api::view::ContainerList { containers: Vec::new(), waiting: vec![waits], ..containers() };
    world.live(&list, &nodes());
    golden("explain-waiting", &show(&world, "explain tune-0").await);
}

#[tokio::test]
async fn without_the_operator_the_context_is_doubted() {
    let error = ask(&World::default(), "top").await.unwrap_err();
    assert!(error.line().contains("CRDs are not installed in this cluster"), "{}", error.line());
}

#[tokio::test]
async fn the_second_controller_is_asked_when_the_first_does_not_answer() {
    let mut world = World::healthy();
    world.refuse(503, "gpumem-controller-7d9:9401");
    assert!(show(&world, "top pods").await.contains("train-6f9-x2k"));
    world.refuse(503, "gpumem-controller-b42:9401");
    let error = ask(&world, "top gpus").await.unwrap_err();
    assert!(error.fix().contains("NetworkPolicy"), "{}", error.line());
}

#[tokio::test]
async fn an_empty_cluster_is_no_error() {
    let mut world = World::healthy();
    let list = gpumem::api::view::ContainerList { containers: Vec::new(), ..containers() };
    world.live(&list, &nodes());
    assert_eq!(show(&world, "top pods").await, "gpumem: nothing holds GPU memory in namespace team-a\n[exit 0]\n");
}

#[tokio::test]
async fn a_namespace_that_is_none_is_said_to_be_that() {
    let mut world = World::healthy();
    let list = gpumem::api::view::ContainerList { containers: Vec::new(), ..containers() };
    world.live(&list, &nodes());
    assert_eq!(show(&world, "top -n nosuch").await, "gpumem: there is no namespace nosuch\n[exit 0]\n");
    assert_eq!(ask(&world, "top -n nosuch --fail-on high").await.unwrap().code, 1, "a gate does not pass a slip");
    world.refuse(403, "/api/v1/namespaces/nosuch");
    let refused = show(&world, "top -n nosuch").await;
    assert_eq!(refused, "gpumem: nothing holds GPU memory in namespace nosuch\n[exit 0]\n");
}

#[tokio::test]
async fn equal_gpus_stand_by_node_and_index() {
    let mut world = World::healthy();
    let mut seen = nodes();
    seen.nodes.reverse();
    let device = seen.nodes[1].devices[0].clone();
    let more = [2, 1].map(|gpu| gpumem::api::view::DeviceView { gpu, device: format!("GPU-{gpu}"), ..device.clone() });
    seen.nodes[1].devices.extend(more);
    world.live(&gpumem::api::view::ContainerList { containers: Vec::new(), ..containers() }, &seen);
    let text = ask(&world, "top gpus -o csv").await.unwrap().text;
    let places: Vec<String> =
        text.lines().skip(1).map(|line| line.split(',').take(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(places, ["node-a 0", "node-a 1", "node-a 2", "node-b 0"]);
}

#[tokio::test]
async fn a_token_that_is_not_accepted_is_no_missing_right() {
    let mut world = World::healthy();
    world.refuse(401, "/");
    for line in ["top", "doctor", "pause", "explain pod/train-6f9-x2k"] {
        let said = ask(&world, line).await.unwrap_err().line();
        assert!(said.contains("does not accept your credentials; log in again"), "{line}: {said}");
    }
}

#[tokio::test]
async fn a_pause_over_a_pause_keeps_its_reason_unless_a_new_one_is_given() {
    let mut world = World::healthy();
    let paused = serde_json::json!({"metadata": {"name": "gpumem-ledger"}, "data": {"pause": "night shift, Ann"}});
    world.set(&ledger_path(), &paused);
    let text = show(&world, "pause").await;
    assert!(text.starts_with("paused already") && text.contains("Ann"), "{text}");
    assert!(world.written.lock().unwrap().is_empty(), "nothing is written over it");
    let text = show(&world, "pause --reason upgrade").await;
    assert!(text.contains("(reason: night shift, Ann); the reason is now: upgrade"), "{text}");
    assert_eq!(world.written.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn fail_on_gives_an_exit_code_for_ci() {
    let world = World::healthy();
    assert_eq!(ask(&world, "top pods -A --fail-on high").await.unwrap().code, 3);
    assert_eq!(ask(&world, "top pods -A --fail-on critical").await.unwrap().code, 0);
}

#[tokio::test]
async fn fail_on_does_not_pass_where_nothing_is_known_and_passes_an_empty_cluster() {
    use gpumem::api::view::{ContainerList, Level};
    let mut world = World::healthy();
    let (mut seen, mut silent) = (containers(), nodes());
    seen.containers.iter_mut().for_each(|view| view.level = Level::Unknown);
    world.live(&seen, &silent);
    let shown = ask(&world, "top -A --fail-on high -o json").await.unwrap();
    assert!(shown.code == 1 && shown.notes.concat().contains("--fail-on could not be answered"), "{:?}", shown.notes);
    assert_eq!(ask(&world, "top -A").await.unwrap().code, 0, "only a gate needs an answer");
    let none = ContainerList { containers: Vec::new(), ..containers() };
    world.live(&none, &silent);
    assert_eq!(ask(&world, "top -A --fail-on high").await.unwrap().code, 0);
    silent.nodes.iter_mut().for_each(|node| node.report_age_seconds = 240.0);
    world.live(&none, &silent);
    assert_eq!(ask(&world, "top -A --fail-on high").await.unwrap().code, 1);
}

#[tokio::test]
async fn doctor_passes_a_healthy_installation() {
    let world = World::healthy();
    golden("doctor", &show(&world, "doctor").await);
    golden("doctor.json", &show(&world, "doctor -o json").await);
}

#[tokio::test]
async fn doctor_names_what_is_broken_and_what_to_do() {
    let mut world = World::healthy();
    let mut nodes = nodes();
    nodes.nodes[0].nvml = "Down".into();
    nodes.nodes[0].nvml_detail = "driver/library version mismatch".into();
    nodes.nodes[1].report_age_seconds = 240.0;
    nodes.nodes[1].agent_version = "0.0.9".into();
    let fails = |detail: &str| Some(AbilityView { works: false, detail: detail.into() });
    nodes.nodes[1].limits = fails("driver 580.65.06 has no memory limits: they came with driver 615");
    nodes.nodes[1].suspend = fails("the agent's pod lacks SYS_PTRACE: agent.suspend.enabled gives it");
    world.live(&containers(), &nodes);
    world.set_pods("agent", &[("agent-a", "node-a", true), ("agent-b", "node-b", false), ("agent-c", "node-c", true)]);
    world.set(
        &format!("/apis/coordination.k8s.io/v1/namespaces/{THEIRS}/leases/gpumem-controller"),
        &serde_json::json!({"metadata": {"name": "gpumem-controller"}, "spec": {"holderIdentity": "gone",
            "renewTime": "2026-11-29T11:50:00.000000Z"}}),
    );
    world.set(
        &ledger_path(),
        &serde_json::json!({"metadata": {"name": "gpumem-ledger"}, "data": {"pause": "night shift"}}),
    );
    world.review(false);
    world.refuse(404, "/customresourcedefinitions/gpumemoryprofiles.gpumem.dev");
    golden("doctor-broken", &show(&world, "doctor").await);
}

#[tokio::test]
async fn doctor_does_not_say_of_limits_that_were_not_tried_that_they_hold() {
    let mut world = World::healthy();
    let mut seen = nodes();
    let detail = "nvml-cgroup (simulated), not tried: no cgroup could be made for it";
    seen.nodes[0].limits = Some(AbilityView { works: true, detail: detail.into() });
    world.live(&containers(), &seen);
    let text = show(&world, "doctor -o wide").await;
    assert!(
        text.contains("look    limits      whether memory limits hold is not known on node-a: nvml-cgroup"),
        "{text}"
    );
    assert!(!text.contains("memory limits hold on"), "{text}");
    assert!(text.ends_with("[exit 0]\n"), "{text}");
}

#[tokio::test]
async fn pause_patches_its_one_key_of_the_ledger_and_resume_takes_it_away() {
    let mut world = World::healthy();
    golden("pause", &show(&world, "pause --reason maintenance").await);
    assert_eq!(show(&world, "resume").await, format!("nothing is paused (ledger {THEIRS}/gpumem-ledger)\n[exit 0]\n"));
    world.set(
        &ledger_path(),
        &serde_json::json!({"metadata": {"name": "gpumem-ledger"}, "data": {"pause": "maintenance"}}),
    );
    golden("resume", &show(&world, "resume").await);
    let written = world.written.lock().unwrap().clone();
    let bodies: Vec<(&str, &str)> = written.iter().map(|(method, _, body)| (method.as_str(), body.as_str())).collect();
    assert_eq!(bodies, [("PATCH", r#"{"data":{"pause":"maintenance"}}"#), ("PATCH", r#"{"data":{"pause":null}}"#)]);
    assert!(written.iter().all(|(_, path, _)| *path == ledger_path()));
}

#[tokio::test]
async fn a_pause_before_the_first_action_makes_the_ledger() {
    let mut world = World::healthy();
    world.refuse(404, "/configmaps/gpumem-ledger");
    world.set(
        &format!("/api/v1/namespaces/{THEIRS}/configmaps"),
        &serde_json::json!({"metadata": {"name": "gpumem-ledger"}}),
    );
    assert!(show(&world, "pause").await.starts_with("paused:"));
    let written = world.written.lock().unwrap().clone();
    assert!(
        matches!(written.as_slice(), [(method, _, body)] if method == "POST" && body.contains("\"pause\"")),
        "{written:?}"
    );
}

#[tokio::test]
async fn version_shows_every_part() {
    golden("version", &show(&World::healthy(), "version").await);
}

#[test]
fn flags_read_as_documented() {
    for line in [
        "top gpu -o wide",
        "top wl -n x",
        "top -w",
        "explain x -c y -o yaml",
        "doctor -o json",
        "resume",
        "completion bash",
    ] {
        assert!(Cli::try_parse_from(["kubectl-gpumem"].into_iter().chain(line.split(' '))).is_ok(), "{line}");
    }
    for line in ["top -n x -A", "top disks", "top --fail-on low", "explain", "top -o xml"] {
        assert!(Cli::try_parse_from(["kubectl-gpumem"].into_iter().chain(line.split(' '))).is_err(), "{line}");
    }
    <Cli as clap::CommandFactory>::command().debug_assert();
    for line in [&["top"][..], &["explain"], &["policy", "simulate"], &["pause"], &["estimate"], &["version"]] {
        let line: Vec<&str> = ["kubectl-gpumem"].into_iter().chain(line.iter().copied()).chain(["--help"]).collect();
        let help = Cli::try_parse_from(&line).unwrap_err().to_string();
        let headings: Vec<usize> =
            ["\nConnection:\n", "\nOutput:\n"].iter().filter_map(|heading| help.find(heading)).collect();
        assert_eq!(headings.len(), 2, "{line:?}: {help}");
        let (own, common) = help.split_at(headings.into_iter().min().unwrap());
        assert!(common.contains("--context") && common.contains("--color"), "{line:?}: {help}");
        assert!(!own.contains("--kubeconfig") && !own.contains("--color"), "{line:?}: {help}");
    }
    <gpumem::cli::Cli as clap::CommandFactory>::command().debug_assert();
}

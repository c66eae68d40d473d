//! The documentation: every link leads somewhere, every command and flag that it names exists, every example is a policy, and
//! the reference is what the code says. `GPUMEM_GOLDEN=write cargo test --test it docs` writes the reference anew.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use gpumem::api::convert;
use gpumem::api::policy::{ActionType, GpuMemoryPolicy};
use gpumem_engine::policy::{Mode, PolicyKey};
use kube::ResourceExt as _;
use serde::Deserialize as _;
use serde_json::Value;

/// Pages of the summary that are written beside this: each is checked as soon as it is there.
const ON_THEIR_WAY: [&str; 6] = ["safety.md", "workloads.md", "limits.md", "hook.md", "admission.md", "profile.md"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Pages below `docs` and the README, as paths from the root.
fn pages() -> Vec<String> {
    fn walk(folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path.strip_prefix(root()).unwrap().display().to_string());
            }
        }
    }
    let mut found = vec!["README.md".to_owned()];
    walk(&root().join("docs"), &mut found);
    found.sort();
    found
}

/// Lines of a page outside of fenced blocks, or inside of them.
fn lines(page: &str, fenced: bool) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if inside == fenced {
            found.push(line.to_owned());
        }
    }
    found
}

/// Targets of a page's links and pictures.
fn links(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in lines(page, false) {
        for part in line.split("](").skip(1) {
            found.extend(part.split_once(')').map(|(target, _)| target.to_owned()));
        }
    }
    found
}

/// Anchors of a page's headings, as mdBook and GitHub make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = lines(page, false).into_iter().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        for link in links(&text(&page)) {
            if link.starts_with("http://") || link.starts_with("https://") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link.as_str(), ""));
            let target =
                if path.is_empty() { root().join(&page) } else { root().join(&page).parent().unwrap().join(path) };
            let is_coming = page == "docs/SUMMARY.md" && ON_THEIR_WAY.contains(&path);
            if !target.exists() {
                if !is_coming {
                    broken.push(format!("{page}: {link}"));
                }
            } else if !anchor.is_empty() && !anchors(&std::fs::read_to_string(&target).unwrap()).contains(anchor) {
                broken.push(format!("{page}: {link} (no such heading)"));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn every_page_is_in_the_summary() {
    let listed: BTreeSet<String> = links(&text("docs/SUMMARY.md")).into_iter().collect();
    let pages = pages();
    let missing: Vec<&str> = pages
        .iter()
        .filter_map(|page| page.strip_prefix("docs/"))
        .filter(|page| *page != "SUMMARY.md" && !listed.contains(*page))
        .collect();
    assert!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:?}");
}

/// Commands in a page's fenced blocks and code spans: each the words from the program on.
fn commands(page: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let spans = lines(page, false).join(" ");
    let spans = spans.split('`').skip(1).step_by(2).map(str::to_owned);
    for line in lines(page, true).into_iter().chain(spans) {
        let line = line.trim_start().trim_start_matches("$ ");
        for part in line.split(['|', ';']).flat_map(|part| part.split("&&")) {
            let words: Vec<String> = part
                .split_whitespace()
                .take_while(|word| !word.starts_with('#') && !word.starts_with('>'))
                .map(|word| word.trim_matches(['`', '"', '\'']).to_owned())
                .collect();
            let is_ours = match words.first().map(String::as_str) {
                Some("gpumem") => words.len() > 1,
                Some("kubectl") => words.get(1).is_some_and(|word| word == "gpumem"),
                _ => false,
            };
            if is_ours {
                found.push(words);
            }
        }
    }
    found
}

/// What is wrong with a command line: a word that is no command, a flag that is none of its command's.
fn fault(words: &[String]) -> Option<String> {
    let (mut command, skip) =
        if words[0] == "gpumem" { (gpumem::cli::Cli::command(), 1) } else { (gpumem::plugin::Cli::command(), 2) };
    command.build();
    let mut at = &command;
    let mut flags: Vec<String> = Vec::new();
    for (place, word) in words.iter().enumerate().skip(skip) {
        if let Some(flag) = word.strip_prefix("--") {
            flags.push(flag.split('=').next().unwrap_or_default().to_owned());
        } else if word.starts_with('-') || !at.has_subcommands() {
            // A short flag, a value, a name.
        } else if let Some(next) = at.find_subcommand(word) {
            at = next;
        } else if place == skip || !words[place - 1].starts_with('-') {
            return Some(format!("{word} is no command of {}", at.get_name()));
        }
    }
    let known: BTreeSet<String> = std::iter::successors(Some(at), |_| None)
        .chain(std::iter::once(&command))
        .flat_map(clap::Command::get_arguments)
        .flat_map(|argument| {
            let mut names: Vec<String> = argument.get_long().map(str::to_owned).into_iter().collect();
            names.extend(argument.get_all_aliases().unwrap_or_default().into_iter().map(str::to_owned));
            names
        })
        .collect();
    let stranger = flags.into_iter().find(|flag| flag != "help" && flag != "version" && !known.contains(flag));
    stranger.map(|flag| format!("--{flag} is no flag of {}", at.get_name()))
}

#[test]
fn every_command_and_flag_that_is_named_exists() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for page in pages() {
        for words in commands(&text(&page)) {
            seen += 1;
            if let Some(fault) = fault(&words) {
                wrong.push(format!("{page}: {}: {fault}", words.join(" ")));
            }
        }
    }
    assert!(seen > 20, "only {seen} commands found: is the reader of pages broken?");
    assert!(wrong.is_empty(), "commands that do not exist:\n{}", wrong.join("\n"));
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    assert!(fault(&words("kubectl gpumem tops")).is_some() && fault(&words("gpumem replay x.csv --nope")).is_some());
}

#[test]
fn every_make_target_that_is_named_exists() {
    let makefile = text("Makefile");
    let mut wrong = Vec::new();
    for page in pages() {
        for line in text(&page).lines() {
            for part in line.split("make ").skip(1).filter(|_| line.contains("`make ")) {
                let target: String = part.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
                let is_code = line.contains(&format!("`make {target}"));
                if is_code && !target.is_empty() && !makefile.contains(&format!("\n{target}:")) {
                    wrong.push(format!("{page}: make {target}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Keys of `given` that `kept` has not: fields that the type does not know.
fn strangers(given: &Value, kept: &Value, at: &str, found: &mut Vec<String>) {
    match (given, kept) {
        (Value::Object(given), Value::Object(kept)) => {
            for (key, value) in given {
                match kept.get(key) {
                    Some(other) => strangers(value, other, &format!("{at}.{key}"), found),
                    // An empty map or list may be left out when it is written.
                    None if matches!(value, Value::Object(map) if map.is_empty()) => {}
                    None => found.push(format!("{at}.{key}")),
                }
            }
        }
        (Value::Array(given), Value::Array(kept)) => {
            for (place, (value, other)) in given.iter().zip(kept).enumerate() {
                strangers(value, other, &format!("{at}[{place}]"), found);
            }
        }
        _ => {}
    }
}

#[test]
fn every_example_is_a_policy_that_the_server_and_the_controller_take() {
    let mut policies = 0;
    let cookbook = text("docs/cookbook.md");
    for entry in std::fs::read_dir(root().join("deploy/examples")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let yaml = std::fs::read_to_string(&path).unwrap();
        assert!(yaml.starts_with("# "), "{name} begins with what it is for");
        assert!(cookbook.contains(&format!("examples/{name}")), "{name} is not in the cookbook");
        for document in serde_yaml::Deserializer::from_str(&yaml) {
            let value = Value::deserialize(document).unwrap_or_else(|error| panic!("{name}: {error}"));
            if value["kind"] != "GpuMemoryPolicy" {
                continue;
            }
            policies += 1;
            let object: GpuMemoryPolicy =
                serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
            let mut found = Vec::new();
            strangers(&value["spec"], &serde_json::to_value(&object.spec).unwrap(), "spec", &mut found);
            assert!(found.is_empty(), "{name}: fields that do not exist: {found:?}");
            if let Err(errors) = object.validate_cel() {
                panic!("{name}: {}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
            }
            let key = PolicyKey { namespace: object.namespace().unwrap(), name: object.name_any() };
            let policy = convert::policy(key, &object.spec, Mode::Enforce)
                .unwrap_or_else(|error| panic!("{name}: {}: {}", error.field, error.problem));
            // A move to the host is for single pods, so a policy that keeps one available never moves any.
            let restraint = policy.disruption;
            let can_move =
                restraint.min_available == 0 && (!restraint.require_budget || yaml.contains("PodDisruptionBudget"));
            let moves = object.spec.actions.iter().any(|action| action.action == ActionType::SuspendToHost);
            assert!(!moves || can_move, "{name}: nothing would ever be moved");
        }
    }
    assert!(policies >= 10, "{policies}");
}

/// Compares with a page of the reference, or writes it.
fn reference(name: &str, made: &str) {
    let path = root().join("docs/reference").join(name);
    if std::env::var_os("GPUMEM_GOLDEN").is_some_and(|value| value == "write") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == made, "docs/reference/{name} is not what the code says: run `make generate`");
}

/// Text as one cell of a table.
fn cell(text: &str) -> String {
    code(text).replace('<', "&lt;")
}

/// The same inside of a code span, where only the bar means something.
fn code(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[test]
fn the_reference_of_metrics_is_that_of_the_code() {
    // Help texts as an agent and a controller print them; what only a living cluster has comes from the names' own words.
    let metrics = gpumem::controller::metrics::Metrics::new().unwrap();
    metrics.failed("part", "kind");
    metrics.decision_blocked("reason");
    let mut helps = std::collections::BTreeMap::new();
    for family in metrics.registry().gather() {
        helps.insert(family.name().to_owned(), family.help().to_owned());
    }
    for line in text("tests/it/support/agent_metrics.txt").lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            helps.insert(name.to_owned(), help.to_owned());
        }
    }
    let source = text("src/api/names.rs");
    let mut doc = String::new();
    for line in source.lines().map(str::trim) {
        if let Some(words) = line.strip_prefix("/// ") {
            doc = format!("{doc} {words}");
        } else if let Some((_, name)) = line.split_once(": &str = \"gpumem_") {
            let name = format!("gpumem_{}", name.trim_end_matches("\";"));
            helps.entry(name).or_insert_with(|| std::mem::take(&mut doc));
            doc.clear();
        } else {
            doc.clear();
        }
    }
    let part = |name: &str| match name.split('_').nth(1) {
        Some("device") => "Devices",
        Some("container" | "workload") => "Containers and workloads",
        Some("policy" | "predictions" | "prediction" | "decisions") => "Policies and predictions",
        Some("agent") => "The agent itself",
        _ => "The controller itself",
    };
    let mut out =
        "# Metrics\n\nMade from the code. Base units; missing is never 0; a series ends with its pod. Agents export \
        what they measure, the controller that leads what it foresees.\n"
            .to_owned();
    for title in
        ["Devices", "Containers and workloads", "Policies and predictions", "The agent itself", "The controller itself"]
    {
        let _ = write!(out, "\n## {title}\n\n| metric | what it says |\n|---|---|\n");
        for (name, help) in helps.iter().filter(|(name, _)| part(name) == title) {
            let _ = writeln!(out, "| `{name}` | {} |", cell(help));
        }
    }
    reference("metrics.md", &out);
}

/// One object of a schema as a table, and the objects in it after it.
fn schema(out: &mut String, path: &str, object: &Value, depth: usize) {
    let Some(fields) = object["properties"].as_object() else { return };
    let required: Vec<&str> = object["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let _ = write!(out, "\n{} {path}\n\n", "#".repeat((depth + 2).min(4)));
    if let Some(words) = object["description"].as_str() {
        let _ = writeln!(out, "{}\n", cell(words));
    }
    out.push_str("| field | type | default | what it is |\n|---|---|---|---|\n");
    for (name, field) in fields {
        let kind = field["enum"].as_array().map_or_else(
            || match (field["type"].as_str(), field["items"]["type"].as_str()) {
                (Some("array"), Some(of)) => format!("list of {of}"),
                (Some(kind), _) => kind.to_owned(),
                _ => "any".to_owned(),
            },
            |words| words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
        );
        let range = match (&field["minimum"], &field["maximum"]) {
            (Value::Number(min), Value::Number(max)) => {
                format!(", {} to {}", min.as_f64().unwrap_or_default(), max.as_f64().unwrap_or_default())
            }
            _ => String::new(),
        };
        let default = if required.contains(&name.as_str()) {
            "required".to_owned()
        } else if field["default"].is_null() {
            String::new()
        } else {
            format!("`{}`", code(&field["default"].to_string()))
        };
        let words = cell(field["description"].as_str().unwrap_or_default());
        let _ = writeln!(out, "| `{name}` | {kind}{range} | {default} | {words} |");
    }
    for rule in object["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let _ = writeln!(out, "\n- {}", cell(rule["message"].as_str().unwrap_or_default()));
    }
    for (name, field) in fields {
        let (inner, mark) = if field["type"] == "array" { (&field["items"], "[]") } else { (field, "") };
        schema(out, &format!("{path}.{name}{mark}"), inner, depth + 1);
    }
}

#[test]
fn the_reference_of_the_kinds_is_that_of_the_code() {
    let mut out =
        "# Custom resources\n\nMade from the code; `kubectl explain gmp.spec` says the same in a cluster. Below a \
        table stand the rules by which the server refuses an object.\n"
            .to_owned();
    for (_, definition) in gpumem::api::crd::all() {
        let value = serde_json::to_value(&definition).unwrap();
        let kind = value["spec"]["names"]["kind"].as_str().unwrap();
        let version = &value["spec"]["versions"][0];
        let _ = write!(out, "\n## {kind}\n");
        for part in ["spec", "status"] {
            schema(&mut out, &format!("{kind} {part}"), &version["schema"]["openAPIV3Schema"]["properties"][part], 1);
        }
    }
    reference("resources.md", &out);
}

#[test]
fn the_reference_of_alerts_is_that_of_the_rules() {
    let rules: Value = serde_yaml::from_str(&text("deploy/alerts/gpu-memory-operator.rules.yaml")).unwrap();
    let mut out = "# Alert rules\n\nMade from `deploy/alerts`, which is the chart's rules with its defaults. \
        [Alerts](../alerts.md) says how to switch and route them.\n\n| alert | severity | for | expression |\n|---|---|---|---|\n"
        .to_owned();
    let mut recorded = String::new();
    for rule in rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap()) {
        let expression = code(rule["expr"].as_str().unwrap());
        if let Some(alert) = rule["alert"].as_str() {
            let hold = rule["for"].as_str().filter(|hold| *hold != "0m").unwrap_or("at once");
            let severity = &rule["labels"]["severity"];
            let severity = severity.as_str().unwrap_or_default();
            let _ = writeln!(out, "| [{alert}](../runbooks/{alert}.md) | {severity} | {hold} | `{expression}` |");
        } else if let Some(record) = rule["record"].as_str() {
            let _ = writeln!(recorded, "| `{record}` | `{expression}` |");
        }
    }
    let _ = write!(out, "\n## Recorded series\n\n| series | expression |\n|---|---|\n{recorded}");
    reference("alerts.md", &out);
}

#[test]
fn the_table_of_rights_is_that_of_the_chart() {
    let mut out =
        "# Rights\n\nMade from `deploy/gpu-memory-operator.yaml`, which is the chart with its defaults: nothing in it \
        can change a workload. What more is granted where `controller.maxMode` and other values ask for it stands in \
        [Install](../install.md#let-it-act).\n\n| role | resources | verbs | only |\n|---|---|---|---|\n"
            .to_owned();
    let words = |value: &Value| -> String {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
    };
    for document in serde_yaml::Deserializer::from_str(&text("deploy/gpu-memory-operator.yaml")) {
        let value = Value::deserialize(document).unwrap();
        let kind = value["kind"].as_str().unwrap_or_default();
        if !matches!(kind, "ClusterRole" | "Role") {
            continue;
        }
        for rule in value["rules"].as_array().into_iter().flatten() {
            let groups: Vec<&str> =
                rule["apiGroups"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let group =
                groups.iter().find(|group| !group.is_empty()).map_or(String::new(), |group| format!(" ({group})"));
            let _ = writeln!(
                out,
                "| {kind} `{}` | {}{group} | {} | {} |",
                value["metadata"]["name"].as_str().unwrap_or_default(),
                words(&rule["resources"]),
                words(&rule["verbs"]),
                words(&rule["resourceNames"])
            );
        }
    }
    reference("rights.md", &out);
}

/// Help of a command and of those below it.
fn help(out: &mut String, command: &clap::Command, path: &str, depth: usize) {
    if !path.is_empty() && command.get_name() != "help" {
        let mut shown = command.clone().disable_help_subcommand(true).term_width(110);
        shown = shown.mut_args(|argument| argument.hide_env_values(true));
        let text = shown.render_long_help().to_string();
        let text = text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
        let _ = write!(out, "\n{} {path}\n\n```text\n{}\n```\n", "#".repeat(depth.min(4)), text.trim());
    }
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        help(out, inner, &format!("{path} {}", inner.get_name()), depth + 1);
    }
}

#[test]
fn the_reference_of_commands_is_their_help() {
    let mut out =
        "# Commands\n\nThe help of every command, made from the code. [The command line](../cli.md) explains them.\n"
            .to_owned();
    let mut plugin = gpumem::plugin::Cli::command();
    plugin.build();
    for inner in plugin.get_subcommands().filter(|inner| inner.get_name() != "help") {
        help(&mut out, inner, &format!("kubectl gpumem {}", inner.get_name()), 2);
    }
    reference("commands.md", &out);
}

/// The last table of docs/limits.md names a test for each case: each of them is there.
#[test]
fn every_test_that_the_cases_of_limits_name_exists() {
    fn sources(folder: &Path, found: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "py") {
                found.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut code = String::new();
    for folder in ["src", "tests/it", "tests/cluster", "tests/hook"] {
        sources(&root().join(folder), &mut code);
    }
    let page = text("docs/limits.md");
    let table = page.split("## Cases and where they are tested").nth(1).expect("the cases");
    let is_name = |word: &&str| {
        word.matches('_').count() > 2 && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let names: BTreeSet<&str> = table.split('`').filter(is_name).collect();
    let is_missing =
        |name: &&&str| !code.contains(&format!("fn {name}(")) && !code.contains(&format!("def test_{name}("));
    let missing: Vec<_> = names.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "docs/limits.md names tests that are not there: {missing:#?}");
    let cases: BTreeSet<u32> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .flat_map(|numbers| {
            let (low, high) = numbers.split_once('–').unwrap_or((numbers, numbers));
            let bound =
                |text: &str| text.split(", ").filter_map(|number| number.parse::<u32>().ok()).collect::<Vec<_>>();
            let (low, high) = (bound(low), bound(high));
            let range = low.first().zip(high.last()).map(|(low, high)| *low..=*high);
            range.into_iter().flatten().collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(cases, (1..=34).collect(), "each case has a row");
}

//! Every label value that rules, boards and their test data spell out is one that the code gives. A rule that asks for a
//! value nobody writes is valid, passes its own tests, and never fires.

use std::collections::BTreeSet;

use gpumem::api::names::metric;
use gpumem::api::policy::{ActionType, PolicyMode};
use gpumem::controller::intent::Outcome;
use gpumem::controller::pull;
use serde::de::DeserializeOwned;

use crate::boards::{boards, queries, read};

/// What an expression asks of a label: `metric{label="value"}`, one for each alternative of `=~`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    metric: String,
    label: String,
    value: String,
}

/// Every selector of ours in a text. A label without a name before it, as in YAML or Rust, is none.
fn asked(text: &str) -> BTreeSet<Asked> {
    let mut found = BTreeSet::new();
    // In the text of an alert PromQL stands within a quoted string.
    let text = text.replace("\\\"", "\"");
    for (open, _) in text.match_indices('{') {
        let name = text[..open].rsplit(|c: char| !(c.is_ascii_alphanumeric() || "_:".contains(c))).next().unwrap_or("");
        if !(name.starts_with("gpumem_") || name.contains(":gpumem_")) {
            continue;
        }
        let mut rest = &text[open + 1..];
        while let Some((label, after)) = rest.split_once('"') {
            if label.contains('}') {
                break;
            }
            let Some((value, after)) = after.split_once('"') else { break };
            let label = label.trim_start_matches([',', ' ']).trim_end_matches(['=', '~', '!']);
            found.extend(value.split('|').map(|value| Asked {
                metric: name.to_owned(),
                label: label.to_owned(),
                value: value.to_owned(),
            }));
            rest = after;
        }
    }
    found
}

fn reads_as<T: DeserializeOwned>(value: &str) -> bool {
    serde_json::from_value::<T>(serde_json::json!(value)).is_ok()
}

/// Whether one of the files holds `value` as a literal, outside of what they test.
fn written(files: &[&str], value: &str) -> bool {
    files.iter().any(|file| {
        let text = read(file);
        text.split("#[cfg(test)]").next().unwrap_or_default().contains(&format!("\"{value}\""))
    })
}

/// Whether the code gives that label this value; `None` for a label whose values are the user's.
fn is_given(Asked { metric: name, label, value }: &Asked) -> Option<bool> {
    const USERS: [&str; 17] = [
        "cluster",
        "job",
        "instance",
        "endpoint",
        "node",
        "gpu",
        "uuid",
        "gpu_instance_id",
        "namespace",
        "pod",
        "container",
        "workload",
        "workload_kind",
        "owner_kind",
        "owner_name",
        "policy",
        "model",
    ];
    const HOLDS: [&str; 2] = ["src/engine/decision/hold.rs", "src/engine/pacing.rs"];
    const CONDITIONS: &str = "src/controller/report/condition.rs";
    const DRIVER: [&str; 4] =
        ["src/agent/sampler.rs", "src/agent/nvml.rs", "src/agent/exporter.rs", "src/engine/sample.rs"];
    if USERS.contains(&label.as_str()) || value.starts_with(['$', '@', '%']) {
        return None;
    }
    Some(match (name.as_str(), label.as_str()) {
        (metric::POLICY_ACTIONS, "outcome") => Outcome::NAMES.contains(&value.as_str()),
        (metric::POLICY_ACTIONS, "action") => reads_as::<ActionType>(value),
        (metric::POLICY_ACTIONS, "mode") => reads_as::<PolicyMode>(value),
        (metric::CONTROLLER_PULLS, "outcome") => value == "ok" || pull::Error::KINDS.contains(&value.as_str()),
        (metric::PREDICTIONS, "outcome") => {
            let names = read("src/api/names.rs");
            let before = names.split(metric::PREDICTIONS).next().unwrap_or_default();
            let documented = before.rsplit("pub const").nth(1).unwrap_or_default();
            documented.contains(&format!("`{value}`"))
        }
        (metric::POLICY_CONDITION, "condition") => written(&[CONDITIONS], value),
        (metric::POLICY_CONDITION, "reason") => written(&[CONDITIONS], value) || written(&HOLDS, value),
        (metric::DECISIONS_BLOCKED, "reason") => written(&HOLDS, value),
        (metric::AGENT_NVML_UP | metric::DEVICE_ATTRIBUTION, "reason") => value.is_empty() || written(&DRIVER, value),
        (metric::CONTROLLER_HELD, "what") | (_, "quantile") => {
            written(&["src/controller/metrics/exposition.rs"], value)
        }
        (_, "horizon") => {
            let source = read("src/engine/forecast/device.rs");
            let horizons = source.lines().find(|line| line.starts_with("const HORIZONS")).unwrap_or_default();
            horizons.split(['[', ']', ',', ' ']).any(|word| word == value)
        }
        (_, "version" | "driver") => return None,
        _ => false,
    })
}

fn check(source: &str, asked: impl IntoIterator<Item = Asked>) {
    let wrong: Vec<_> = asked.into_iter().filter(|one| is_given(one) == Some(false)).collect();
    assert!(wrong.is_empty(), "{source} asks for values that the code never gives: {wrong:#?}");
}

#[test]
fn every_label_value_that_rules_and_boards_ask_for_is_one_that_the_code_gives() {
    let rules = asked(&read("charts/gpu-memory-operator/files/alerts.yaml"));
    assert!(rules.iter().any(|one| one.label == "outcome" && one.value == "NotPermitted"), "selectors are found");
    check("alerts.yaml", rules);
    for path in ["deploy/autoscaling/keda.yaml", "deploy/autoscaling/prometheus-adapter.yaml", "docs/autoscaling.md"] {
        check(path, asked(&read(path)));
    }
    for (name, board) in boards() {
        check(&name, asked(&queries(&board).join("\n")));
    }
}

#[test]
fn the_data_that_rules_and_boards_are_tested_with_could_have_come_from_the_code() {
    check("rules_test.yaml", asked(&read("tests/alerts/rules_test.yaml")));
    // The made-up day is a program: its calls for actions and conditions name the values in a fixed order.
    for line in read("tests/dashboards/data.mjs").lines() {
        for call in line.split("; ") {
            let (name, labels): (_, &[&str]) = match call.trim_start() {
                call if call.starts_with("act(") => (metric::POLICY_ACTIONS, &["", "", "action", "outcome", "mode"]),
                call if call.starts_with("condition(namespace") => (metric::POLICY_CONDITION, &["condition", "reason"]),
                call if call.starts_with("condition(\"") => {
                    (metric::POLICY_CONDITION, &["", "", "condition", "reason"])
                }
                _ => continue,
            };
            let values = call.split('"').skip(1).step_by(2);
            check(
                "data.mjs",
                labels.iter().zip(values).filter(|(label, _)| !label.is_empty()).map(|(label, value)| Asked {
                    metric: name.to_owned(),
                    label: (*label).to_owned(),
                    value: value.to_owned(),
                }),
            );
        }
    }
}

#[test]
fn a_value_that_nobody_gives_is_found() {
    let one = asked(r#"sum(gpumem_policy_actions_total{mode="Enforce",outcome=~"Succeeded|Failed"}) / up{mode="x"}"#);
    let wrong: Vec<_> = one.iter().filter(|one| is_given(one) == Some(false)).map(|one| one.value.as_str()).collect();
    assert_eq!(wrong, ["Failed"]);
    assert_eq!(one.len(), 3);
}

//! The six boards. A query names metrics by the word between `@` that [`promql`] knows, so that a metric which is renamed or
//! dropped does not compile here instead of leaving a panel empty.

use gpumem::api::names::metric;
use serde_json::json;

use super::panel::{CALM, CRITICAL, ELEVATED, GREY, HIGH, LOW, Panel};

#[path = "actions.rs"]
mod actions;
#[path = "node.rs"]
mod node;
#[path = "operator.rs"]
mod operator;
#[path = "overview.rs"]
mod overview;
#[path = "sizing.rs"]
mod sizing;
#[path = "workload.rs"]
mod workload;

/// File names and contents of all boards.
pub fn all() -> Vec<(String, String)> {
    [overview::board(), node::board(), workload::board(), actions::board(), sizing::board(), operator::board()]
        .iter()
        .map(|board| (format!("{}.json", board.uid), format!("{:#}\n", board.json())))
        .collect()
}

/// Puts names in the place of words between `@`.
fn promql(text: &str) -> String {
    let words = [
        ("total", metric::DEVICE_TOTAL),
        ("device_used", metric::DEVICE_USED),
        ("free", metric::DEVICE_FREE),
        ("reserved", metric::DEVICE_RESERVED),
        ("unattributed", metric::DEVICE_UNATTRIBUTED),
        ("device_info", metric::DEVICE_INFO),
        ("device_up", metric::DEVICE_UP),
        ("attribution", metric::DEVICE_ATTRIBUTION),
        ("raw_used", metric::CONTAINER_USED),
        ("raw_peak", metric::CONTAINER_PEAK),
        ("raw_limit", metric::CONTAINER_LIMIT),
        ("allocated", metric::CONTAINER_ALLOCATED),
        ("cached", metric::CONTAINER_CACHED),
        ("ooms_total", metric::CONTAINER_OOMS),
        ("recommended", metric::WORKLOAD_RECOMMENDED),
        ("policy_actions", metric::POLICY_ACTIONS),
        ("condition", metric::POLICY_CONDITION),
        ("predictions", metric::PREDICTIONS),
        ("lead", metric::PREDICTION_LEAD),
        ("blocked", metric::DECISIONS_BLOCKED),
        ("nvml_up", metric::AGENT_NVML_UP),
        ("age", metric::AGENT_SAMPLE_AGE),
        ("cycle", metric::AGENT_SAMPLE_DURATION),
        ("query_failures", metric::AGENT_QUERY_FAILURES),
        ("proc_failures", metric::AGENT_PROC_FAILURES),
        ("dropped", metric::AGENT_DROPPED_INPUTS),
        ("watch", metric::AGENT_POD_WATCH_UP),
        ("agent_build", metric::AGENT_BUILD_INFO),
        ("leader", metric::CONTROLLER_LEADER),
        ("agents", metric::CONTROLLER_AGENTS),
        ("pull", metric::CONTROLLER_PULL_SECONDS),
        ("pulls", metric::CONTROLLER_PULLS),
        ("held", metric::CONTROLLER_HELD),
        ("oldest", metric::CONTROLLER_OLDEST_REPORT),
        ("controller_dropped", metric::CONTROLLER_DROPPED),
        ("errors", metric::CONTROLLER_ERRORS),
        ("expiry", metric::CONTROLLER_CERTIFICATE_EXPIRY),
        ("controller_build", metric::CONTROLLER_BUILD_INFO),
        ("simulated", metric::SIMULATED),
        // Recorded by the rules of the chart.
        ("used", "container:gpumem_memory_used_bytes:max"),
        ("ceiling", "container:gpumem_memory_ceiling_bytes:min"),
        ("growth", "container:gpumem_memory_growth_bytes_per_second:max"),
        ("time", "container:gpumem_time_to_oom_seconds:min"),
        ("probability", "container:gpumem_oom_probability_ratio:max"),
        ("risk", "container:gpumem_risk_level:max"),
        ("info", "namespace_pod:gpumem_workload_info:max"),
        ("workload_time", "workload:gpumem_time_to_oom_seconds:min"),
        ("workload_risk", "workload:gpumem_risk_level:max"),
        ("workload_used", "workload:gpumem_memory_used_bytes:sum"),
        ("workload_peak", "workload:gpumem_memory_peak_bytes:max1d"),
        ("workload_aside", "workload:gpumem_memory_set_aside_bytes:sum"),
        ("ooms", "workload:gpumem_oom_events:increase15m"),
        ("node_used", "node:gpumem_device_memory_used_per_total:ratio"),
        ("all", "cluster:gpumem_device_memory_total_bytes:sum"),
        ("idle", "cluster:gpumem_device_memory_idle_bytes:sum"),
        // Labels.
        ("C", r#"cluster=~"$cluster""#),
        ("N", r#"cluster=~"$cluster",namespace=~"$namespace""#),
        ("W", r#"cluster=~"$cluster",namespace=~"$namespace",workload=~"$workload""#),
        ("P", r#"cluster=~"$cluster",namespace=~"$namespace",workload=~"$workload",pod=~"$pod""#),
        ("D", r#"cluster=~"$cluster",node=~"$node",gpu=~"$gpu""#),
        ("device", "cluster, node, gpu, uuid, gpu_instance_id"),
        ("container", "cluster, namespace, pod, container, node, gpu, uuid, gpu_instance_id"),
        ("row", "cluster, namespace, workload, pod, container, node, gpu, gpu_instance_id"),
    ];
    let mut text = text.to_owned();
    for (word, name) in words {
        text = text.replace(&format!("@{word}@"), name);
    }
    text
}

const LEVELS: [(&str, &str, &str); 4] =
    [("0", "low", LOW), ("1", "elevated", ELEVATED), ("2", "high", HIGH), ("3", "critical", CRITICAL)];
/// Seconds would get ticks such as 33.3 minutes.
const MINUTES: &str = "suffix:min";
const TIME_STEPS: [(&str, Option<f64>); 4] =
    [(CRITICAL, None), (HIGH, Some(300.0)), (ELEVATED, Some(1800.0)), (LOW, Some(14400.0))];
const RATIO_STEPS: [(&str, Option<f64>); 2] = [(CALM, None), (ELEVATED, Some(0.95))];
const GOOD_IF_ZERO: [(&str, Option<f64>); 2] = [(LOW, None), (HIGH, Some(1.0))];

fn new_ooms() -> (&'static str, &'static str, String, &'static str) {
    let expr = promql("@ooms@{@N@} > 0 unless @ooms@{@N@} <= @ooms@{@N@} offset 1m");
    ("Out of memory", CRITICAL, expr, "{{workload_kind}} {{namespace}}/{{workload}} ran out of GPU memory")
}

fn new_actions() -> (&'static str, &'static str, String, &'static str) {
    let expr = promql(
        "sum by (namespace, policy, action, outcome, mode) (increase(@policy_actions@{@N@,action!=\"Notify\"}[1m])) > 0",
    );
    ("Actions", CALM, expr, "{{mode}}: {{action}} by {{namespace}}/{{policy}}: {{outcome}}")
}

/// Says whether the GPUs are real; `at` is the moment to ask for, where that is not the end of the time range.
fn simulated(at: &str) -> Panel {
    Panel::figure(
        "Driver",
        "none",
        "Whether the GPUs are real. Where the driver is simulated, no figure says anything about real devices.",
    )
    .instant("", promql(&format!("max(@simulated@{{@C@}} {at})")))
    .size(3, 4)
    .words(&[("0", "real GPUs", LOW), ("1", "SIMULATED", HIGH)])
    .empty("no agent")
}

/// A line for what there is in all, not stacked on the rest.
fn reference_line() -> Vec<(&'static str, serde_json::Value)> {
    vec![
        ("color", json!({"mode": "fixed", "fixedColor": GREY})),
        ("custom.stacking", json!({"mode": "none", "group": "B"})),
        ("custom.fillOpacity", json!(0)),
        ("custom.lineWidth", json!(2)),
        ("custom.lineStyle", json!({"fill": "dash", "dash": [10, 6]})),
    ]
}

fn steps_json(steps: &[(&str, Option<f64>)]) -> serde_json::Value {
    let steps: Vec<_> = steps.iter().map(|(color, value)| json!({"color": color, "value": value})).collect();
    json!({"mode": "absolute", "steps": steps})
}

/// Adds what an empty cell means to a column's words.
fn with_empty(mut mappings: serde_json::Value, text: &str) -> serde_json::Value {
    if let Some(list) = mappings.as_array_mut() {
        list.push(json!({"type": "special", "options": {"match": "null+nan", "result": {"text": text, "color": GREY, "index": 9}}}));
    }
    mappings
}

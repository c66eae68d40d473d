//! Who runs out, when, and where the memory is.

use serde_json::json;

use super::super::panel::{Board, CALM, Panel, Row, mappings, variable};
use super::{
    GOOD_IF_ZERO, LEVELS, MINUTES, RATIO_STEPS, TIME_STEPS, new_actions, new_ooms, promql, reference_line, simulated,
    steps_json, with_empty,
};

pub(super) fn board() -> Board {
    // The containers worth a row: by risk, then by how full they are.
    let top = "and on (@container@) topk(50, (@risk@{@N@} or on (@container@) 0 * @used@{@N@}) + @used@{@N@} / @ceiling@{@N@})";
    let row = |expr: &str| promql(&format!("max by (@row@) ({expr} {top})"));
    Board {
        uid: "gpumem-overview",
        title: "GPU memory / Overview",
        description: "Which containers will run out of GPU memory, when, and how the cluster's GPU memory is used.",
        from: "now-6h",
        to: "now",
        variables: vec![variable("namespace", "Namespace", &promql("label_values(@raw_used@{@C@}, namespace)"))],
        annotations: vec![new_ooms(), new_actions()],
        parts: vec![
            Panel::figure("At risk", "short", "Containers whose risk is high or critical. Empty while nothing is known, which is not 0.")
                .size(3, 4)
                .instant("", promql("count(@risk@{@N@} >= 2) or 0 * count(@risk@{@N@})"))
                .steps(&GOOD_IF_ZERO)
                .empty("no forecast")
                .into(),
            Panel::figure("Next OOM in", "s", "Median time until the first container runs out of memory. No value means that none is expected to.")
                .size(3, 4)
                .default("decimals", json!(1))
                .instant("", promql("min(@workload_time@{@N@,quantile=\"0.5\"})"))
                .steps(&TIME_STEPS)
                .empty("none expected")
                .into(),
            Panel::figure("OOMs in 24 h", "short", "Containers that ran out of GPU memory within a day.")
                .size(3, 4)
                .instant("", promql("sum(sum_over_time(@ooms@{@N@}[24h:15m])) or 0 * count(@used@{@N@})"))
                .steps(&GOOD_IF_ZERO)
                .empty("nothing seen")
                .into(),
            Panel::figure(
                "Foreseen in 7 d",
                "percentunit",
                "Share of OOMs of a week that were warned of before, the avoided ones included. GPU memory / Actions and accuracy has more.",
            )
            .size(3, 4)
            .instant(
                "",
                promql(
                    "sum(increase(@predictions@{@C@,outcome=~\"Hit|Avoided\"}[7d])) / sum(increase(@predictions@{@C@,outcome=~\"Hit|Avoided|Missed\"}[7d]))",
                ),
            )
            .default("decimals", json!(0))
            .empty("none to judge")
            .into(),
            Panel::figure("Used", "percentunit", "Share of all GPU memory that is allocated.")
                .size(3, 4)
                .instant("", promql("sum(max by (@device@) (@device_used@{@C@})) / sum(max by (@device@) (@total@{@C@}))"))
                .default("decimals", json!(0))
                .into(),
            Panel::figure("Idle", "bytes", "Memory of GPUs that no container uses at all.")
                .size(3, 4)
                .instant("", promql("sum(@idle@{@C@})"))
                .empty("none")
                .into(),
            Panel::figure("GPUs", "short", "GPUs and MIG slices that are watched.")
                .size(3, 4)
                .instant("", promql("count(max by (@device@) (@device_up@{@C@}))"))
                .into(),
            simulated("").into(),
            Row("Who runs out, and when").into(),
            Panel::table("Containers by risk", "The 50 containers most at risk. An empty time to OOM means that no OOM is expected; an empty risk that it is not known.")
                .size(24, 10)
                .instant("", row("@risk@{@N@}"))
                .instant("", row("@time@{@N@,quantile=\"0.5\"}"))
                .instant(
                    "",
                    row("(max by (@container@) (@probability@{@N@,horizon=\"900\"}) * on (cluster, namespace, pod) group_left (workload) @info@)"),
                )
                .instant("", row("@used@{@N@}"))
                .instant("", row("(@used@{@N@} / @ceiling@{@N@})"))
                .instant("", row("(3600 * @growth@{@N@})"))
                .columns(&[
                    ("namespace", "Namespace"),
                    ("workload", "Workload"),
                    ("pod", "Pod"),
                    ("container", "Container"),
                    ("node", "Node"),
                    ("gpu", "GPU"),
                    ("gpu_instance_id", "MIG"),
                    ("Value #A", "Risk"),
                    ("Value #B", "Time to OOM"),
                    ("Value #C", "P(OOM in 15 min)"),
                    ("Value #D", "Used"),
                    ("Value #E", "Of what it can have"),
                    ("Value #F", "Growth per hour"),
                ])
                .sorted("Risk", true)
                .field("Risk", &[
                    ("mappings", with_empty(mappings(&LEVELS), "not known")),
                    ("custom.cellOptions", json!({"type": "color-text"})),
                    ("custom.width", json!(100)),
                ])
                .field("Time to OOM", &[
                    ("unit", json!("s")),
                    ("decimals", json!(1)),
                    ("mappings", with_empty(json!([]), "none expected")),
                    ("custom.width", json!(130)),
                    ("thresholds", steps_json(&TIME_STEPS)),
                    ("color", json!({"mode": "thresholds"})),
                    ("custom.cellOptions", json!({"type": "color-text"})),
                ])
                .field("P\\(OOM in 15 min\\)", &[
                    ("unit", json!("percentunit")),
                    ("decimals", json!(0)),
                    ("mappings", with_empty(json!([]), "not known")),
                    ("custom.width", json!(140)),
                ])
                .field("Used", &[("unit", json!("bytes")), ("custom.width", json!(100))])
                .field("Namespace|Container|Node", &[("custom.width", json!(100))])
                .field("Pod", &[("custom.width", json!(210))])
                .field("Of what it can have", &[
                    ("unit", json!("percentunit")),
                    ("decimals", json!(0)),
                    ("min", json!(0)),
                    ("max", json!(1)),
                    ("color", json!({"mode": "fixed", "fixedColor": CALM})),
                    ("custom.cellOptions", json!({"type": "gauge", "mode": "basic"})),
                ])
                .field("Growth per hour", &[
                    ("unit", json!("bytes")),
                    ("mappings", with_empty(json!([]), "none")),
                    ("custom.width", json!(140)),
                ])
                .field("GPU|MIG", &[("custom.width", json!(55))])
                .field("Workload", &[(
                    "links",
                    json!([{"title": "Forecast of this workload", "url": "/d/gpumem-workload/?var-namespace=${__data.fields.Namespace}&var-workload=${__data.fields.Workload}&${datasource:queryparam}"}]),
                )])
                .into(),
            Panel::lines("Time to OOM", MINUTES, "Median time to OOM of workloads that are expected to run out within four hours. A line that falls steadily is a leak; one that jumps is not sure of itself.")
                .query("{{namespace}}/{{workload}}", promql("@workload_time@{@N@,quantile=\"0.5\"} / 60 < 240"))
                .empty("no OOM expected within four hours")
                .into(),
            Panel::lines("Risk", "none", "Highest risk of each workload, where it is above low. The operator's own hysteresis keeps it from flapping.")
                .query("{{namespace}}/{{workload}}", promql("@workload_risk@{@N@} > 0"))
                .custom("fillOpacity", json!(0))
                .custom("lineInterpolation", json!("stepAfter"))
                .default("min", json!(0))
                .default("max", json!(3))
                .default("decimals", json!(0))
                .words(&LEVELS)
                .empty("all low, or nothing known")
                .into(),
            Row("Where the memory is").into(),
            Panel::stacked("Used by namespace", "bytes", "Memory of containers by namespace, under the line of all GPU memory.")
                .size(16, 9)
                .every("2m")
                .query("{{namespace}}", promql("sum by (namespace) (@used@{@N@})"))
                .query("all GPU memory", promql("sum(@all@{@C@})"))
                .field("all GPU memory", &reference_line())
                .into(),
            Panel::gauge_bars("Used by node", "percentunit", "Share of each node's GPU memory that is allocated. High is not bad: pools are full by design.")
                .size(8, 9)
                .instant("{{node}}", promql("sort_desc(@node_used@{@C@})"))
                .default("min", json!(0))
                .default("max", json!(1))
                .default("decimals", json!(0))
                .steps(&RATIO_STEPS)
                .into(),
        ],
    }
}

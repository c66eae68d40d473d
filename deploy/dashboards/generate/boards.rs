//! The five boards. A query names metrics by the word between `@` that [`promql`] knows, so that a metric which is renamed or
//! dropped does not compile here instead of leaving a panel empty.

use gpumem::api::names::metric;
use serde_json::json;

use super::panel::{Board, CALM, CRITICAL, ELEVATED, GREY, HIGH, LOW, Panel, Row, choice, mappings, variable};

/// File names and contents of all boards.
pub fn all() -> Vec<(String, String)> {
    [overview(), node(), workload(), actions(), operator()]
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
        ("ooms", "workload:gpumem_oom_events:increase15m"),
        ("node_used", "node:gpumem_device_memory_used_per_total:ratio"),
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
const TIME_STEPS: [(&str, Option<f64>); 4] =
    [(CRITICAL, None), (HIGH, Some(300.0)), (ELEVATED, Some(1800.0)), (LOW, Some(14400.0))];
const RATIO_STEPS: [(&str, Option<f64>); 2] = [(CALM, None), (ELEVATED, Some(0.95))];
const GOOD_IF_ZERO: [(&str, Option<f64>); 2] = [(LOW, None), (HIGH, Some(1.0))];

fn new_ooms() -> (&'static str, &'static str, String, &'static str) {
    let expr = promql("@ooms@{@N@} - (@ooms@{@N@} offset 1m) > 0 or @ooms@{@N@} > 0 unless @ooms@{@N@} offset 1m");
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

fn overview() -> Board {
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
            Panel::lines("Time to OOM", "s", "Median time to OOM of workloads that are expected to run out within four hours. A line that falls steadily is a leak; one that jumps is not sure of itself.")
                .query("{{namespace}}/{{workload}}", promql("@workload_time@{@N@,quantile=\"0.5\"} < 14400"))
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
                .query("all GPU memory", promql("sum(max by (@device@) (@total@{@C@}))"))
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
            Row("What workloads need").into(),
            Panel::table("Right-sizing", "The most that a workload's container took within a day, beside the GPU it took it from. A small share over many days may fit a smaller GPU or a MIG slice.")
                .size(24, 8)
                .instant("", promql("max by (cluster, namespace, workload_kind, workload) (@workload_peak@{@N@})"))
                .instant("", promql("count by (cluster, namespace, workload_kind, workload) (@used@{@N@})"))
                .instant("", promql("sum by (cluster, namespace, workload_kind, workload) (@workload_used@{@N@})"))
                .instant(
                    "",
                    promql(
                        "max by (cluster, namespace, workload_kind, workload) (@used@{@N@} * 0 + on (@device@) group_left () max by (@device@) (@total@))",
                    ),
                )
                .instant(
                    "",
                    promql(
                        "max by (cluster, namespace, workload_kind, workload) (@workload_peak@{@N@}) / max by (cluster, namespace, workload_kind, workload) (@used@{@N@} * 0 + on (@device@) group_left () max by (@device@) (@total@))",
                    ),
                )
                .columns(&[
                    ("namespace", "Namespace"),
                    ("workload_kind", "Kind"),
                    ("workload", "Workload"),
                    ("Value #B", "Containers on GPUs"),
                    ("Value #C", "Used now, together"),
                    ("Value #A", "Peak of one, 24 h"),
                    ("Value #D", "Largest GPU"),
                    ("Value #E", "Peak of GPU"),
                ])
                .sorted("Peak of GPU", false)
                .field("Peak of one, 24 h|Used now, together|Largest GPU", &[("unit", json!("bytes"))])
                .field("Peak of GPU", &[
                    ("unit", json!("percentunit")),
                    ("decimals", json!(0)),
                    ("min", json!(0)),
                    ("max", json!(1)),
                    ("color", json!({"mode": "fixed", "fixedColor": CALM})),
                    ("custom.cellOptions", json!({"type": "gauge", "mode": "basic"})),
                ])
                .into(),
        ],
    }
}

fn node() -> Board {
    // Chosen before anything else is done with them: at every step that is one comparison for each container.
    let largest = "on (@container@) topk(30, max by (@container@) (@raw_used@{@D@} @ end()))";
    Board {
        uid: "gpumem-node",
        title: "GPU memory / Nodes and GPUs",
        description: "Whose memory it is on every GPU, and whether the values can be trusted.",
        from: "now-6h",
        to: "now",
        variables: vec![
            variable("node", "Node", &promql("label_values(@device_up@{@C@}, node)")),
            variable("gpu", "GPU", &promql("label_values(@device_up@{@C@,node=~\"$node\"}, gpu)")),
        ],
        annotations: Vec::new(),
        parts: vec![
            Panel::figure("GPUs that answer", "short", "GPUs and MIG slices whose driver answers. Compare with GPUs.")
                .instant("", promql("sum(max by (@device@) (@device_up@{@D@}))"))
                .into(),
            Panel::figure("GPUs", "short", "GPUs and MIG slices that are known.")
                .instant("", promql("count(max by (@device@) (@device_up@{@D@}))"))
                .into(),
            Panel::figure("Used", "percentunit", "Share of the memory that is allocated.")
                .instant("", promql("sum(max by (@device@) (@device_used@{@D@})) / sum(max by (@device@) (@total@{@D@}))"))
                .default("decimals", json!(0))
                .into(),
            Panel::figure("Free", "bytes", "Memory that is not allocated.").instant("", promql("sum(max by (@device@) (@free@{@D@}))")).into(),
            Panel::figure("Nobody's", "percentunit", "Share of the used memory that belongs to no container: processes of the host, leftovers of dead ones.")
                .instant("", promql("sum(max by (@device@) (@unattributed@{@D@})) / sum(max by (@device@) (@device_used@{@D@}))"))
                .default("decimals", json!(1))
                .steps(&[(CALM, None), (ELEVATED, Some(0.2))])
                .into(),
            simulated("").size(4, 4).into(),
            Row("Whose memory it is").into(),
            Panel::stacked("Memory by container", "bytes", "Every byte of the chosen GPUs: the 30 largest containers, the others as one, what belongs to nobody, and above them all that there is.")
                .size(24, 11)
                .every("5m")
                .query(
                    "{{namespace}}/{{pod}} {{container}} on {{node}} GPU {{gpu}}",
                    promql(&format!("sum by (namespace, pod, container, node, gpu, gpu_instance_id) (max by (@container@) (@raw_used@{{@D@}} and {largest}))")),
                )
                .query("others", promql(&format!("sum(max by (@container@) (@raw_used@{{@D@}} unless {largest}))")))
                .query("nobody's", promql("sum(max by (@device@) (@unattributed@{@D@}))"))
                .query("all", promql("sum(max by (@device@) (@total@{@D@}))"))
                .field("nobody's", &[("color", json!({"mode": "fixed", "fixedColor": GREY}))])
                .field("all", &reference_line())
                .option("legend", json!({"displayMode": "list", "placement": "right", "showLegend": true, "calcs": []}))
                .into(),
            Panel::lines("Free by GPU", "bytes", "What is left on each GPU, the 20 fullest. An allocation larger than this fails.")
                .every("2m")
                .query(
                    "{{node}} GPU {{gpu}} {{gpu_instance_id}}",
                    promql("max by (@device@) (@free@{@D@} and on (@device@) bottomk(20, max by (@device@) (@free@{@D@} @ end())))"),
                )
                .into(),
            Panel::lines("Nobody's memory by GPU", "bytes", "Memory of no container, the 20 GPUs with most. A step that stays after a pod has ended is a leftover: see the runbook of GpuMemOrphanedMemory.")
                .every("2m")
                .query(
                    "{{node}} GPU {{gpu}} {{gpu_instance_id}}",
                    promql(
                        "max by (@device@) (@unattributed@{@D@} and on (@device@) topk(20, max by (@device@) (@unattributed@{@D@} @ end())))",
                    ),
                )
                .into(),
            Panel::table("GPUs", "All GPUs and MIG slices. Split says whether every byte can be given to a container; at no, the reason is in the metric's label.")
                .size(24, 9)
                .instant("", promql("max by (@device@, model, driver) (@device_info@{@D@})"))
                .instant("", promql("max by (@device@) (@total@{@D@})"))
                .instant("", promql("max by (@device@) (@device_used@{@D@})"))
                .instant("", promql("max by (@device@) (@free@{@D@})"))
                .instant("", promql("max by (@device@) (@unattributed@{@D@})"))
                .instant("", promql("max by (@device@) (@attribution@{@D@})"))
                .instant("", promql("count by (@device@) (max by (@container@) (@raw_used@{@D@}))"))
                .columns(&[
                    ("node", "Node"),
                    ("gpu", "GPU"),
                    ("gpu_instance_id", "MIG slice"),
                    ("model", "Model"),
                    ("driver", "Driver"),
                    ("Value #B", "Memory"),
                    ("Value #C", "Used"),
                    ("Value #D", "Free"),
                    ("Value #E", "Nobody's"),
                    ("Value #G", "Containers"),
                    ("Value #F", "Split"),
                    ("uuid", "UUID"),
                    ("Value #A", ""),
                ])
                .sorted("Free", false)
                .field("Memory|Used|Free|Nobody's", &[("unit", json!("bytes")), ("custom.width", json!(95))])
                .field("Model", &[("custom.width", json!(300))])
                .field("Driver|Containers", &[("custom.width", json!(100))])
                .field("Split", &[
                    ("mappings", mappings(&[("0", "no", HIGH), ("1", "yes", LOW)])),
                    ("custom.cellOptions", json!({"type": "color-text"})),
                    ("custom.width", json!(70)),
                ])
                .field("GPU", &[("custom.width", json!(60))])
                .field("MIG slice|Node", &[("custom.width", json!(90))])
                .field("Containers", &[("noValue", json!("0"))])
                .into(),
            Row("Can the values be trusted?").into(),
            Panel::lines("Age of the newest values", "s", "Seconds since the driver was last asked with success. Above a few seconds a call hangs; beyond the policy's limit forecasts stop.")
                .every("1m")
                .query("{{node}}", promql("max by (cluster, node) (@age@{@C@,node=~\"$node\"})"))
                .into(),
            Panel::lines("Failed driver queries", "cps", "Driver queries that failed, by kind. A failed query shows as no value, never as 0.")
                .query("{{node}} {{query}} {{kind}}", promql("sum by (cluster, node, query, kind) (rate(@query_failures@{@C@,node=~\"$node\"}[$__rate_interval])) > 0"))
                .empty("none failed")
                .into(),
        ],
    }
}

fn workload() -> Board {
    // The board's time range ends in the future, by $ahead: that is where the forecast is drawn. So "now" is `@ end() offset $ahead`.
    let now = "@ end() offset $ahead";
    let time = |quantile: &str| format!("@time@{{@P@,quantile=\"{quantile}\"}} {now}");
    let used = format!("@used@{{@P@}} {now}");
    let ceiling = format!("@ceiling@{{@P@}} {now}");
    let worst = format!("(bottomk(1, {}) or on () topk(1, {used} / {ceiling}))", time("0.5"));
    let of_worst = |expr: &str| format!("({expr} and on (@container@) {worst})");
    // What does not change over the range is asked once if the choice of the worst is within it; outside, every step would ask
    // for thousands of containers to keep one.
    let (used, ceilings, ceiling) = (of_worst(&used), ceiling.clone(), of_worst(&ceiling));
    // Seconds since "now" for every container, nothing before. `timestamp()` of a selector with `@` would be the obvious way, but
    // Prometheus answers the end of the range there.
    let moment = format!("scalar(max_over_time(vector(time())[10s:1s] {now}))");
    let later = format!("({used} * 0 + time() - {moment} >= 0)");
    let until_now = format!("and on () vector(time()) <= {moment}");
    // From the last value straight to the ceiling, which it meets at that quantile of the time to OOM.
    let passage = |quantile: &str| {
        format!(
            "{used} + ({ceilings} - {used}) * clamp_max({later} / ignoring (quantile) {}, 1)",
            of_worst(&time(quantile))
        )
    };
    let steady = format!("({used} + {later} * {})", of_worst(&format!("@growth@{{@P@}} {now}")));
    let figure = |title, unit, description, expr: &str| {
        Panel::figure(title, unit, description).size(3, 4).instant("", promql(&format!("{expr} {now})")))
    };
    Board {
        uid: "gpumem-workload",
        title: "GPU memory / Workload",
        description: "One workload: how its GPU memory will go on, how sure that is, and what it is made of. The time range ends in the future.",
        from: "now-3h",
        to: "now+1h",
        variables: vec![
            variable("namespace", "Namespace", &promql("label_values(@used@{@C@}, namespace)")),
            variable("workload", "Workload", &promql("label_values(@used@{@N@}, workload)")),
            variable("pod", "Pod", &promql("label_values(@used@{@W@}, pod)")),
            choice("ahead", "Forecast over", &["1h", "15m", "30m", "3h", "6h"]),
        ],
        annotations: vec![new_ooms(), new_actions()],
        parts: vec![
            figure("Risk", "none", "Highest risk of the chosen pods, as the policy's thresholds see it. Empty means not known, which is not low.", "max(@risk@{@P@}")
                .steps(&[(LOW, None)])
                .words(&LEVELS)
                .empty("not known")
                .into(),
            figure("Time to OOM", "s", "Median time until the first of the chosen pods runs out. No value means that no OOM is expected.", "min(@time@{@P@,quantile=\"0.5\"}")
                .steps(&TIME_STEPS)
                .empty("no OOM expected")
                .into(),
            figure("As early as", "s", "One in ten such courses has run out by then.", "min(@time@{@P@,quantile=\"0.1\"}").steps(&TIME_STEPS).empty("no OOM expected").into(),
            figure("Growth per hour", "bytes", "Lasting growth of the fastest of the chosen pods.", "3600 * max(@growth@{@P@}").empty("none").into(),
            figure("Used", "bytes", "Memory of the largest of the chosen containers on one GPU.", "max(@used@{@P@}").into(),
            figure("Can have", "bytes", "What the tightest of the chosen containers can grow to: its own memory plus what is free, or its limit.", "min(@ceiling@{@P@}").into(),
            figure(
                "P(OOM in 15 min)",
                "percentunit",
                "Probability that the worst of the chosen pods runs out within a quarter of an hour.",
                "max(@probability@{@P@,horizon=\"900\"}",
            )
            .default("decimals", json!(0))
            .empty("not known")
            .into(),
            simulated(now).into(),
            Panel::lines(
                "Forecast of the container that runs out first",
                "bytes",
                "Its memory until now, and then how it goes on: dashed the median, the band from one in ten to nine in ten courses. Where no OOM is expected, its lasting growth. The forecast starts $ahead before the right edge: choose a time range that ends in the past to see what was forecast then, beside what came.",
            )
            .size(24, 12)
            .every("1m")
            .query("used: {{pod}} on {{node}} GPU {{gpu}}", promql(&format!("{} {until_now}", of_worst("@used@{@P@}"))))
            .query("can have", promql(&format!("{} {until_now} or {ceiling}", of_worst("@ceiling@{@P@}"))))
            .query("forecast", promql(&format!("{} or {steady}", passage("0.5"))))
            .query("early, 1 in 10", promql(&passage("0.1")))
            .query("late, 9 in 10", promql(&passage("0.9")))
            .field("used: .*", &[("color", json!({"mode": "fixed", "fixedColor": CALM})), ("custom.fillOpacity", json!(15))])
            .field("can have", &[
                ("color", json!({"mode": "fixed", "fixedColor": CRITICAL})),
                ("custom.fillOpacity", json!(0)),
                ("custom.lineWidth", json!(1)),
            ])
            .field("forecast", &[
                ("color", json!({"mode": "fixed", "fixedColor": HIGH})),
                ("custom.fillOpacity", json!(0)),
                ("custom.lineStyle", json!({"fill": "dash", "dash": [10, 6]})),
            ])
            .field("early, 1 in 10", &[
                ("color", json!({"mode": "fixed", "fixedColor": HIGH})),
                ("custom.lineWidth", json!(1)),
                ("custom.fillOpacity", json!(20)),
                ("custom.fillBelowTo", json!("late, 9 in 10")),
            ])
            .field("late, 9 in 10", &[
                ("color", json!({"mode": "fixed", "fixedColor": HIGH})),
                ("custom.lineWidth", json!(1)),
                ("custom.fillOpacity", json!(0)),
            ])
            .empty("no pod is chosen, or it has no value")
            .into(),
            Row("How sure is that?").into(),
            Panel::lines("Time to OOM over time", "s", "Median and the early and late tenth, worst pod. It should fall by a minute a minute; where it does not, the forecast changed its mind.")
                .every("1m")
                .query("median", promql("min(@time@{@P@,quantile=\"0.5\"})"))
                .query("early, 1 in 10", promql("min(@time@{@P@,quantile=\"0.1\"})"))
                .query("late, 9 in 10", promql("min(@time@{@P@,quantile=\"0.9\"})"))
                .field("median", &[("color", json!({"mode": "fixed", "fixedColor": HIGH})), ("custom.fillOpacity", json!(0))])
                .field("early, 1 in 10", &[
                    ("color", json!({"mode": "fixed", "fixedColor": GREY})),
                    ("custom.lineWidth", json!(1)),
                    ("custom.fillOpacity", json!(0)),
                ])
                .field("late, 9 in 10", &[
                    ("color", json!({"mode": "fixed", "fixedColor": GREY})),
                    ("custom.lineWidth", json!(1)),
                    ("custom.fillOpacity", json!(15)),
                    ("custom.fillBelowTo", json!("early, 1 in 10")),
                ])
                .empty("no OOM expected")
                .into(),
            Panel::lines("Probability of OOM", "percentunit", "Probability that the worst pod runs out within 5, 15 and 60 minutes.")
                .every("2m")
                .query(
                    "within {{horizon}} s",
                    promql("max by (horizon) (@probability@{@P@})"),
                )
                .default("min", json!(0))
                .default("max", json!(1))
                .custom("fillOpacity", json!(0))
                .empty("not known")
                .into(),
            Row("Pods").into(),
            Panel::lines("Memory by pod", "bytes", "Memory of each container on each GPU, the 20 largest.")
                .every("1m")
                .query("{{pod}} {{container}} GPU {{gpu}}", promql("@used@{@P@} and on (@container@) topk(20, @used@{@P@} @ end() offset $ahead)"))
                .into(),
            Panel::lines("Share of what it can have", "percentunit", "Memory of the same 20 by what each can have. A flat line near the top is a pool and no danger.")
                .every("1m")
                .query(
                    "{{pod}} {{container}} GPU {{gpu}}",
                    promql("(@used@{@P@} and on (@container@) topk(20, @used@{@P@} @ end() offset $ahead)) / @ceiling@{@P@}"),
                )
                .default("max", json!(1))
                .into(),
            Panel::lines("Allocator", "bytes", "For those of the 20 whose allocator reports it: what is live, and what the allocator holds. A growing gap is fragmentation, and no leak.")
                .every("1m")
                .query(
                    "live: {{pod}} GPU {{gpu}}",
                    promql("max by (@container@) (@allocated@{@N@,pod=~\"$pod\"} and on (@container@) topk(20, @used@{@P@} @ end() offset $ahead))"),
                )
                .query(
                    "held: {{pod}} GPU {{gpu}}",
                    promql("max by (@container@) (@cached@{@N@,pod=~\"$pod\"} and on (@container@) topk(20, @used@{@P@} @ end() offset $ahead))"),
                )
                .empty("no pod reports its allocator")
                .into(),
            Panel::lines("Risk by pod", "none", "Risk of each pod, the 20 highest; a gap means that it is not known.")
                .every("1m")
                .query("{{pod}}", promql("max by (pod) (@risk@{@P@} and on (@container@) topk(20, @risk@{@P@} @ end() offset $ahead))"))
                .custom("fillOpacity", json!(0))
                .custom("lineInterpolation", json!("stepAfter"))
                .default("min", json!(0))
                .default("max", json!(3))
                .default("decimals", json!(0))
                .words(&LEVELS)
                .empty("not known")
                .into(),
        ],
    }
}

fn actions() -> Board {
    let outcome =
        |outcome: &str| promql(&format!("sum(increase(@predictions@{{@C@,outcome=\"{outcome}\"}}[$__range]))"));
    let share = |of: &str, among: &str| {
        promql(&format!(
            "sum(increase(@predictions@{{@C@,outcome=\"{of}\"}}[$__range])) / sum(increase(@predictions@{{@C@,outcome=~\"{among}\"}}[$__range]))"
        ))
    };
    let colored = |panel: Panel| {
        [("Hit", LOW), ("Avoided", CALM), ("FalseAlarm", ELEVATED), ("Missed", CRITICAL)]
            .into_iter()
            .fold(panel, |panel, (name, color)| {
                panel.field(name, &[("color", json!({"mode": "fixed", "fixedColor": color}))])
            })
    };
    Board {
        uid: "gpumem-actions",
        title: "GPU memory / Actions and accuracy",
        description: "What policies did or would have done, and how good the warnings were. Look here before a policy may act.",
        from: "now-24h",
        to: "now",
        variables: vec![variable("namespace", "Namespace", &promql("label_values(@condition@{@C@}, namespace)"))],
        annotations: vec![new_ooms(), new_actions()],
        parts: vec![
            Panel::figure("Came true", "short", "OOMs that came after a warning, in the chosen time.").instant("", outcome("Hit")).size(3, 4).default("decimals", json!(0)).into(),
            Panel::figure("Avoided", "short", "Warnings after which somebody acted, so that nobody knows whether the OOM would have come.")
                .instant("", outcome("Avoided")).size(3, 4)
                .default("decimals", json!(0))
                .into(),
            Panel::figure("False alarms", "short", "Warnings after which nothing happened although nobody acted.")
                .instant("", outcome("FalseAlarm")).size(3, 4)
                .default("decimals", json!(0))
                .steps(&[(LOW, None), (ELEVATED, Some(1.0))])
                .into(),
            Panel::figure("Missed", "short", "OOMs that nobody was warned of.")
                .instant("", outcome("Missed")).size(3, 4)
                .default("decimals", json!(0))
                .steps(&GOOD_IF_ZERO)
                .into(),
            Panel::figure("Share true", "percentunit", "Hits among warnings that could be judged. Below 70 % for a day raises GpuMemPredictionUnreliable.")
                .instant("", share("Hit", "Hit|FalseAlarm")).size(3, 4)
                .default("decimals", json!(0))
                .steps(&[(HIGH, None), (LOW, Some(0.7))])
                .empty("none to judge")
                .into(),
            Panel::figure("Median lead", "s", "Half of the hits were warned of at least this long before.")
                .instant("", promql("histogram_quantile(0.5, sum by (le) (increase(@lead@_bucket{@C@}[$__range])))")).size(3, 4)
                .empty("no hit yet")
                .into(),
            Panel::figure("Held back", "short", "Decisions to act that something held back, in the chosen time.")
                .instant("", promql("sum(increase(@blocked@{@C@}[$__range]))")).size(3, 4)
                .default("decimals", json!(0))
                .empty("none")
                .into(),
            simulated("").into(),
            Row("How good were the warnings?").into(),
            colored(
                Panel::bars("Judged warnings by hour", "short", "What became of warnings, and OOMs that came without one.")
                .every("1h")
                    .query("{{outcome}}", promql("sum by (outcome) (increase(@predictions@{@C@}[1h]))"))
                    .default("decimals", json!(0)),
            )
            .into(),
            Panel::lines("Warning time of hits", "s", "How long before the OOM the warning came: half of them, and nine of ten, had at least this long.")
                .query("half", promql("histogram_quantile(0.5, sum by (le) (increase(@lead@_bucket{@C@}[6h]))) >= 0"))
                .query("nine of ten", promql("histogram_quantile(0.1, sum by (le) (increase(@lead@_bucket{@C@}[6h]))) >= 0"))
                .empty("no hit yet")
                .into(),
            Panel::lines("What was said a quarter of an hour ago", "bytes", "Used memory of the workloads that grow fastest, and dashed what their growth foretold 15 minutes earlier. The closer, the better.")
                .size(24, 9)
                .every("5m")
                .query("{{namespace}}/{{pod}} is", promql("@used@{@N@} and on (@container@) topk(3, abs(@growth@{@N@} @ end()))"))
                .query(
                    "{{namespace}}/{{pod}} foretold",
                    promql("(@used@{@N@} offset 15m + 900 * @growth@{@N@} offset 15m) and on (@container@) topk(3, abs(@growth@{@N@} @ end()))"),
                )
                .field(".* foretold", &[("custom.lineStyle", json!({"fill": "dash", "dash": [10, 6]})), ("custom.fillOpacity", json!(0))])
                .field(".* is", &[("custom.fillOpacity", json!(0))])
                .into(),
            Row("What was done").into(),
            Panel::bars("Actions by hour", "short", "Actions of policies. DryRun changed nothing in the cluster.")
                .every("1h")
                .query("{{mode}}: {{action}} {{outcome}}", promql("sum by (mode, action, outcome) (increase(@policy_actions@{@N@}[1h])) > 0"))
                .default("decimals", json!(0))
                .empty("no action")
                .into(),
            Panel::bars("Held back, by reason", "short", "Decisions to act that something held back: mode, budget, cool-down, stale data. The policy's condition ActionAllowed names the pod.")
                .every("1h")
                .query("{{reason}}", promql("sum by (reason) (increase(@blocked@{@C@}[1h])) > 0"))
                .default("decimals", json!(0))
                .empty("nothing was held back")
                .into(),
            Panel::table("Actions", "Actions of the chosen time by policy.")
                .size(12, 8)
                .instant("", promql("sum by (cluster, namespace, policy, action, outcome, mode) (increase(@policy_actions@{@N@}[$__range])) > 0"))
                .columns(&[
                    ("namespace", "Namespace"),
                    ("policy", "Policy"),
                    ("mode", "Mode"),
                    ("action", "Action"),
                    ("outcome", "Outcome"),
                    ("Value", "Times"),
                ])
                .sorted("Times", true)
                .field("Namespace|Policy|Action|Outcome", &[("custom.width", json!(135))])
                .field("Mode|Times", &[("custom.width", json!(100))])
                .default("decimals", json!(0))
                .empty("no action")
                .into(),
            Panel::table("Policies", "Conditions of every policy. `kubectl describe gmp` says more.")
                .size(12, 8)
                .instant("", promql("max by (cluster, namespace, policy) (@condition@{@N@,condition=\"Ready\"})"))
                .instant("", promql("max by (cluster, namespace, policy) (@condition@{@N@,condition=\"TargetsResolved\"})"))
                .instant("", promql("max by (cluster, namespace, policy) (@condition@{@N@,condition=\"DataFresh\"})"))
                .instant("", promql("max by (cluster, namespace, policy) (@condition@{@N@,condition=\"AtRisk\"})"))
                .columns(&[
                    ("namespace", "Namespace"),
                    ("policy", "Policy"),
                    ("Value #A", "In force"),
                    ("Value #B", "Finds pods"),
                    ("Value #C", "Data fresh"),
                    ("Value #D", "At risk"),
                ])
                .sorted("At risk", true)
                .field("Namespace|Policy", &[("custom.width", json!(150))])
                .field("In force|Finds pods|Data fresh|At risk", &[("custom.width", json!(105))])
                .field("In force|Finds pods|Data fresh", &[
                    ("mappings", mappings(&[("0", "no", HIGH), ("1", "yes", LOW)])),
                    ("custom.cellOptions", json!({"type": "color-text"})),
                ])
                .field("At risk", &[
                    ("mappings", mappings(&[("0", "no", LOW), ("1", "yes", HIGH)])),
                    ("custom.cellOptions", json!({"type": "color-text"})),
                ])
                .empty("no policy")
                .into(),
        ],
    }
}

fn operator() -> Board {
    Board {
        uid: "gpumem-operator",
        title: "GPU memory / Operator",
        description: "The operator's own health: agents, controllers, and what they cost.",
        from: "now-6h",
        to: "now",
        variables: vec![variable("node", "Node", &promql("label_values(@nvml_up@{@C@}, node)"))],
        annotations: Vec::new(),
        parts: vec![
            Panel::figure("Agents that answer", "short", "Agents that Prometheus reaches.").instant("", promql("count(@nvml_up@{@C@})")).into(),
            Panel::figure("Agents with a driver", "short", "Agents that reach a GPU driver. On nodes without a GPU there is none.").instant("", promql("sum(@nvml_up@{@C@})")).into(),
            Panel::figure("Agents that are silent", "short", "Agents of the last day that still exist and do not answer.")
                .instant(
                    "",
                    promql("count(max by (cluster, node) (max_over_time(@nvml_up@{@C@}[1d]) and on (cluster, job, instance) up == 0)) or 0 * count(@nvml_up@{@C@})"),
                )
                .steps(&GOOD_IF_ZERO)
                .into(),
            Panel::figure("Leaders", "short", "Controllers that lead. It must be one.")
                .instant("", promql("sum(@leader@{@C@})"))
                .steps(&[(CRITICAL, None), (LOW, Some(1.0)), (CRITICAL, Some(1.5))])
                .empty("no controller")
                .into(),
            Panel::figure("Certificate ends in", "s", "Time until the certificate between controller and agents ends. It is renewed long before.")
                .instant("", promql("min(@expiry@{@C@} > 0) - time()"))
                .steps(&[(CRITICAL, None), (LOW, Some(604_800.0))])
                .empty("not known")
                .into(),
            simulated("").size(4, 4).into(),
            Row("Agents").into(),
            Panel::lines("Age of the newest values", "s", "Seconds since the driver was last asked with success.")
                .every("1m")
                .query("{{node}}", promql("max by (cluster, node) (@age@{@C@,node=~\"$node\"})"))
                .into(),
            Panel::lines("Length of a cycle", "s", "Nine of ten cycles of driver, /proc and attribution take at most this long. Above the interval the driver is too slow.")
                .every("5m")
                .query("{{node}}", promql("histogram_quantile(0.9, sum by (cluster, node, instance, le) (rate(@cycle@_bucket{@C@}[$__rate_interval])))"))
                .into(),
            Panel::lines("What went wrong", "cps", "Failed driver queries, failed reads of /proc, and input that was not believed.")
                .query("driver: {{query}} {{kind}}", promql("sum by (query, kind) (rate(@query_failures@{@C@}[$__rate_interval])) > 0"))
                .query("/proc: {{file}} {{reason}}", promql("sum by (file, reason) (rate(@proc_failures@{@C@}[$__rate_interval])) > 0"))
                .query("not believed: {{input}} {{reason}}", promql("sum by (input, reason) (rate(@dropped@{@C@}[$__rate_interval])) > 0"))
                .empty("nothing")
                .into(),
            Panel::table("Agents", "Version and state of every agent.")
                .size(12, 8)
                .instant("", promql("max by (cluster, node, version) (@agent_build@{@C@,node=~\"$node\"})"))
                .instant("", promql("max by (cluster, node) (@nvml_up@{@C@,node=~\"$node\"})"))
                .instant("", promql("max by (cluster, node) (@watch@{@C@,node=~\"$node\"})"))
                .instant("", promql("max by (cluster, node) (@age@{@C@,node=~\"$node\"})"))
                .columns(&[
                    ("node", "Node"),
                    ("version", "Version"),
                    ("Value #B", "Driver"),
                    ("Value #C", "Pod names"),
                    ("Value #D", "Age of values"),
                    ("Value #A", ""),
                ])
                .sorted("Driver", false)
                .field("Driver|Pod names", &[
                    ("mappings", mappings(&[("0", "no", HIGH), ("1", "yes", LOW)])),
                    ("custom.cellOptions", json!({"type": "color-text"})),
                ])
                .field("Age of values", &[("unit", json!("s"))])
                .into(),
            Row("Controllers").into(),
            Panel::lines("Agents and nodes", "short", "Agents that the controllers pull, and nodes that they have reports of. Fewer nodes than agents: some cannot be pulled.")
                .query("agents", promql("max(@agents@{@C@})"))
                .query("nodes: {{instance}}", promql("max by (cluster, instance) (@held@{@C@,what=\"nodes\"})"))
                .default("decimals", json!(0))
                .custom("fillOpacity", json!(0))
                .into(),
            Panel::lines("Who leads", "none", "1 on the replica that acts. A change is a restart, or an API server that is slow.")
                .query("{{instance}}", promql("max by (cluster, instance) (@leader@{@C@})"))
                .custom("lineInterpolation", json!("stepAfter"))
                .default("min", json!(0))
                .default("max", json!(1))
                .default("decimals", json!(0))
                .words(&[("0", "stands by", GREY), ("1", "leads", LOW)])
                .into(),
            Panel::lines("Length of a pull", "s", "Half and 99 of 100 pulls of an agent take at most this long.")
                .query("half", promql("histogram_quantile(0.5, sum by (le) (rate(@pull@_bucket{@C@}[$__rate_interval])))"))
                .query("99 of 100", promql("histogram_quantile(0.99, sum by (le) (rate(@pull@_bucket{@C@}[$__rate_interval])))"))
                .into(),
            Panel::lines("Failed pulls", "cps", "Pulls of agents that failed, by reason. connect and deadline: agent or network; tls: certificates that do not fit.")
                .query("{{outcome}}", promql("sum by (outcome) (rate(@pulls@{@C@,outcome!=\"ok\"}[$__rate_interval])) > 0"))
                .empty("none failed")
                .into(),
            Panel::lines("Oldest report", "s", "Age of the report of the node that was heard least recently. Beyond the policies' limit its containers become unknown.")
                .query("{{instance}}", promql("max by (cluster, instance) (@oldest@{@C@})"))
                .into(),
            Panel::lines("What went wrong in controllers", "cps", "Errors of the controller's own parts, and parts of reports that were not believed.")
                .query("{{part}}: {{kind}}", promql("sum by (part, kind) (rate(@errors@{@C@}[$__rate_interval])) > 0"))
                .query("not believed: {{kind}}", promql("sum by (kind) (rate(@controller_dropped@{@C@}[$__rate_interval])) > 0"))
                .empty("nothing")
                .into(),
            Panel::lines("Series in memory", "short", "Series that each controller keeps: one for each container and GPU.")
                .query("{{instance}}", promql("max by (cluster, instance) (@held@{@C@,what=\"series\"})"))
                .into(),
            Panel::lines("Series that we cost", "short", "What Prometheus takes from us at each scrape, by agents and controllers.")
                .query("agents", promql("sum(scrape_samples_post_metric_relabeling{@C@} and on (cluster, job, instance) @nvml_up@{@C@})"))
                .query("controllers", promql("sum(scrape_samples_post_metric_relabeling{@C@} and on (cluster, job, instance) @leader@{@C@})"))
                .into(),
            Panel::table("Controllers", "Version of every controller, and which one leads.")
                .size(24, 5)
                .instant("", promql("max by (cluster, instance, version) (@controller_build@{@C@} and on (cluster, job, instance) @leader@)"))
                .instant("", promql("max by (cluster, instance) (@leader@{@C@})"))
                .instant("", promql("max by (cluster, instance) (@held@{@C@,what=\"series\"})"))
                .columns(&[
                    ("instance", "Replica"),
                    ("version", "Version"),
                    ("Value #B", "Leads"),
                    ("Value #C", "Series"),
                    ("Value #A", ""),
                ])
                .sorted("Leads", true)
                .field("Leads", &[
                    ("mappings", mappings(&[("0", "no", GREY), ("1", "yes", LOW)])),
                    ("custom.cellOptions", json!({"type": "color-text"})),
                ])
                .empty("no controller")
                .into(),
        ],
    }
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

//! The operator's own health.

use serde_json::json;

use super::super::panel::{Board, CRITICAL, GREY, HIGH, LOW, Panel, Row, mappings, variable};
use super::{GOOD_IF_ZERO, promql, simulated};

pub(super) fn board() -> Board {
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
                .query("{{node}}", promql("histogram_quantile(0.9, sum by (cluster, node, instance, le) (rate(@cycle@_bucket{@C@,node=~\"$node\"}[$__rate_interval])))"))
                .into(),
            Panel::lines("What went wrong, times a minute", "short", "Failed driver queries, failed reads of /proc, and input that was not believed.")
                .query("driver: {{query}} {{kind}}", promql("60 * sum by (query, kind) (rate(@query_failures@{@C@}[$__rate_interval])) > 0"))
                .query("/proc: {{file}} {{reason}}", promql("60 * sum by (file, reason) (rate(@proc_failures@{@C@}[$__rate_interval])) > 0"))
                .query("not believed: {{input}} {{reason}}", promql("60 * sum by (input, reason) (rate(@dropped@{@C@}[$__rate_interval])) > 0"))
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
            Panel::lines("Failed pulls a minute", "short", "Pulls of agents that failed, by reason. connect and deadline: agent or network; tls: certificates that do not fit.")
                .query("{{outcome}}", promql("60 * sum by (outcome) (rate(@pulls@{@C@,outcome!=\"ok\"}[$__rate_interval])) > 0"))
                .empty("none failed")
                .into(),
            Panel::lines("Oldest report", "s", "Age of the report of the node that was heard least recently. Beyond the policies' limit its containers become unknown.")
                .query("{{instance}}", promql("max by (cluster, instance) (@oldest@{@C@})"))
                .into(),
            Panel::lines("What went wrong in controllers, times a minute", "short", "Errors of the controller's own parts, and parts of reports that were not believed.")
                .query("{{part}}: {{kind}}", promql("60 * sum by (part, kind) (rate(@errors@{@C@}[$__rate_interval])) > 0"))
                .query("not believed: {{kind}}", promql("60 * sum by (kind) (rate(@controller_dropped@{@C@}[$__rate_interval])) > 0"))
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

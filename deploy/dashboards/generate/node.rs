//! Whose memory it is on every GPU, and whether the values can be trusted.

use serde_json::json;

use super::super::panel::{Board, CALM, ELEVATED, GREY, HIGH, LOW, Panel, Row, mappings, variable};
use super::{promql, reference_line, simulated};

pub(super) fn board() -> Board {
    // Chosen before anything else is done with them: at every step that is one comparison for each container.
    let largest = "on (@container@) topk(30, max by (@container@) (@raw_used@{@D@} @ end()))";
    // What a legend says of a slice.
    // `MIG 1`, where it is one. Without $1 in a replacement, which Grafana could take for a variable.
    let slice = |expr: &str| {
        let word = format!("label_replace({expr}, \"mig\", \"MIG\", \"gpu_instance_id\", \".+\")");
        promql(&format!("label_join({word}, \"mig\", \" \", \"mig\", \"gpu_instance_id\")"))
    };
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
                    "{{namespace}}/{{pod}} {{container}} on {{node}} GPU {{gpu}} {{mig}}",
                    slice(&format!("sum by (namespace, pod, container, node, gpu, gpu_instance_id) (max by (@container@) (@raw_used@{{@D@}} and {largest}))")),
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
                    "{{node}} GPU {{gpu}} {{mig}}",
                    slice("max by (@device@) (@free@{@D@} and on (@device@) bottomk(20, max by (@device@) (@free@{@D@} @ end())))"),
                )
                .into(),
            Panel::lines("Nobody's memory by GPU", "bytes", "Memory of no container, the 20 GPUs with most. A step that stays after a pod has ended is a leftover: see the runbook of GpuMemOrphanedMemory.")
                .every("2m")
                .query(
                    "{{node}} GPU {{gpu}} {{mig}}",
                    slice(
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
            Panel::lines("Failed driver queries a minute", "short", "Driver queries that failed, by kind. A failed query shows as no value, never as 0.")
                .query("{{node}} {{query}} {{kind}}", promql("60 * sum by (cluster, node, query, kind) (rate(@query_failures@{@C@,node=~\"$node\"}[$__rate_interval])) > 0"))
                .empty("none failed")
                .into(),
        ],
    }
}

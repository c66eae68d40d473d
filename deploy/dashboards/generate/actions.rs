//! What policies did, and how good the warnings were.

use serde_json::json;

use super::super::panel::{Board, CALM, CRITICAL, ELEVATED, HIGH, LOW, Panel, Row, mappings, variable};
use super::{GOOD_IF_ZERO, MINUTES, new_actions, new_ooms, promql, simulated};

pub(super) fn board() -> Board {
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
            Panel::lines("Warning time of hits", MINUTES, "How long before the OOM the warning came: half of them, and nine of ten, had at least this long.")
                .query("half", promql("histogram_quantile(0.5, sum by (le) (increase(@lead@_bucket{@C@}[6h]))) / 60 >= 0"))
                .query("nine of ten", promql("histogram_quantile(0.1, sum by (le) (increase(@lead@_bucket{@C@}[6h]))) / 60 >= 0"))
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
                .field("Namespace|Policy|Action", &[("custom.width", json!(135))])
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
                .field("Namespace", &[("custom.width", json!(150))])
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

//! One workload, and its forecast.

use serde_json::json;

use super::super::panel::{Board, CALM, CRITICAL, ELEVATED, GREY, HIGH, LOW, Panel, Row, choice, variable};
use super::{LEVELS, MINUTES, TIME_STEPS, new_actions, new_ooms, promql, simulated};

pub(super) fn board() -> Board {
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
    // Without this the last values would go on for five minutes into the future.
    let past = |expr: &str| promql(&format!("({expr}) {until_now}"));
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
                .default("decimals", json!(1))
                .empty("no OOM expected")
                .into(),
            figure("As early as", "s", "One in ten such courses has run out by then.", "min(@time@{@P@,quantile=\"0.1\"}").steps(&TIME_STEPS).default("decimals", json!(1)).empty("no OOM expected").into(),
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
            Panel::lines("Time to OOM over time", MINUTES, "Median and the early and late tenth, worst pod. It should fall by a minute a minute; where it does not, the forecast changed its mind.")
                .every("1m")
                .query("median", past("min(@time@{@P@,quantile=\"0.5\"}) / 60"))
                .query("early, 1 in 10", past("min(@time@{@P@,quantile=\"0.1\"}) / 60"))
                .query("late, 9 in 10", past("min(@time@{@P@,quantile=\"0.9\"}) / 60"))
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
                .query("within 5 min", past("max(@probability@{@P@,horizon=\"300\"})"))
                .query("within 15 min", past("max(@probability@{@P@,horizon=\"900\"})"))
                .query("within 1 h", past("max(@probability@{@P@,horizon=\"3600\"})"))
                .field("within 5 min", &[("color", json!({"mode": "fixed", "fixedColor": CRITICAL}))])
                .field("within 15 min", &[("color", json!({"mode": "fixed", "fixedColor": HIGH}))])
                .field("within 1 h", &[("color", json!({"mode": "fixed", "fixedColor": ELEVATED}))])
                .default("min", json!(0))
                .default("max", json!(1))
                .custom("fillOpacity", json!(0))
                .empty("not known")
                .into(),
            Row("Pods").into(),
            Panel::lines("Memory by pod", "bytes", "Memory of each container on each GPU, the 20 largest.")
                .every("1m")
                .query("{{pod}} {{container}} GPU {{gpu}}", past("@used@{@P@} and on (@container@) topk(20, @used@{@P@} @ end() offset $ahead)"))
                .into(),
            Panel::lines("Share of what it can have", "percentunit", "Memory of the same 20 by what each can have. A flat line near the top is a pool and no danger.")
                .every("1m")
                .query(
                    "{{pod}} {{container}} GPU {{gpu}}",
                    past("(@used@{@P@} and on (@container@) topk(20, @used@{@P@} @ end() offset $ahead)) / @ceiling@{@P@}"),
                )
                .default("max", json!(1))
                .into(),
            Panel::lines("Allocator", "bytes", "For those of the 20 whose allocator reports it: what is live, and what the allocator holds. A growing gap is fragmentation, and no leak.")
                .every("1m")
                .query(
                    "live: {{pod}} GPU {{gpu}}",
                    past("max by (@container@) (@allocated@{@N@,pod=~\"$pod\"} and on (@container@) topk(20, @used@{@P@} @ end() offset $ahead))"),
                )
                .query(
                    "held: {{pod}} GPU {{gpu}}",
                    past("max by (@container@) (@cached@{@N@,pod=~\"$pod\"} and on (@container@) topk(20, @used@{@P@} @ end() offset $ahead))"),
                )
                .empty("no pod reports its allocator")
                .into(),
            Panel::lines("Risk by pod", "none", "Risk of each pod, the 20 highest; a gap means that it is not known.")
                .every("1m")
                .query("{{pod}}", past("max by (pod) (@risk@{@P@} and on (@container@) topk(20, @risk@{@P@} @ end() offset $ahead))"))
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

//! The board on right-sizing and cost: what workloads have, what they need, and what OOMs cost.

use gpumem_engine::estimate::cards::CARDS;
use serde_json::{Value, json};

use super::super::panel::{Board, CALM, ELEVATED, GREY, HIGH, LOW, Panel, Row, number, variable};
use super::{new_ooms, promql, simulated, with_empty};

/// Labels of a row: a workload.
const BY: &str = "cluster, namespace, workload_kind, workload";
/// The most that one container of a workload took in the chosen time.
const PEAK: &str = "max by (@B@) (max_over_time(@workload_peak@{@N@}[$__range]))";
/// What all containers of a workload have for themselves.
const ASIDE: &str = "max by (@B@) (@workload_aside@{@N@})";
/// Memory that none of a workload's containers took, even if all of them peak at once.
const WASTED: &str = "clamp_min(@ASIDE@ - @PEAK@ * on (@B@) count by (@B@) (@used@{@N@}), 0)";
/// What its profile recommends; else a tenth more than the peak, where its GPU has that.
const NEEDS: &str = "max by (@B@) (@recommended@{@N@}) and @PEAK@ or (1.1 * @PEAK@ <= @CARD@ or @PEAK@)";
/// The largest GPU that it runs on.
const CARD: &str = "max by (@B@) (@used@{@N@} * 0 + on (@device@) group_left () max by (@device@) (@total@{@C@}))";
/// Of no country: the user knows which it is.
const MONEY: &str = "currency:¤";
/// Hours that containers which ran out had had their GPUs.
const LOST: &str = "(count_over_time(@used@{@N@}[$__range:5m]) / 12 \
    and on (cluster, namespace, pod, container) max by (cluster, namespace, pod, container) (max_over_time(@ooms_total@{@N@}[$__range])) > 0)";
/// Memory of the average GPU: what one is worth, where prices are by GPU.
const GPU: &str = "scalar(avg(max by (@device@) (@total@{@C@})))";

fn query(text: &str) -> String {
    let text = text.replace("@WASTED@", WASTED).replace("@LOST@", LOST).replace("@GPU@", GPU).replace("@CARD@", CARD);
    promql(&text.replace("@ASIDE@", ASIDE).replace("@PEAK@", PEAK).replace("@B@", BY))
}

/// Names of the smallest GPUs, or MIG slices, that hold so many bytes, by size as sold: every name of a line holds them. Cards of
/// workstations are left out.
fn holders(is_mig: bool) -> Value {
    let mut classes: Vec<(f64, f64, Vec<&str>)> = Vec::new();
    for card in CARDS.iter().filter(|card| card.is_mig == is_mig && !card.name.starts_with("RTX")) {
        // A size says more than the card that it is cut from, and stands before the name anyway.
        let name = card.name.split_once(" MIG ").map(|(_, profile)| profile);
        let name = name.or_else(|| card.name.split('-').next()).unwrap_or(card.name);
        match classes.iter_mut().find(|(sold, ..)| (*sold - card.sold_gib).abs() < 0.1) {
            Some((_, usable, names)) => {
                *usable = usable.min(card.usable());
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            None => classes.push((card.sold_gib, card.usable(), vec![name])),
        }
    }
    classes.sort_by(|(one, ..), (other, ..)| one.total_cmp(other));
    let mut from = 0.0;
    let mut ranges = Vec::new();
    for (place, (sold, usable, names)) in classes.iter().enumerate() {
        let text = if is_mig { names.join(", ") } else { format!("{sold} GB: {}", names.join(", ")) };
        ranges.push(
            json!({"type": "range", "options": {"from": from, "to": usable, "result": {"text": text, "index": place}}}),
        );
        from = *usable;
    }
    let result = json!({"text": "none", "color": GREY, "index": ranges.len()});
    ranges.push(json!({"type": "range", "options": {"from": from, "to": null, "result": result}}));
    json!(ranges)
}

pub(super) fn board() -> Board {
    let share = [(LOW, None), (ELEVATED, Some(0.3)), (HIGH, Some(0.6))];
    let money = |hours: &str| query(&format!("({hours}) * $price"));
    Board {
        uid: "gpumem-sizing",
        title: "GPU memory / Right-sizing and cost",
        description: "What workloads have, what they need, which smaller GPU or MIG slice would do, and what OOMs cost. Choose a time in which they did their usual work.",
        from: "now-24h",
        to: "now",
        variables: vec![
            variable("namespace", "Namespace", &promql("label_values(@used@{@C@}, namespace)")),
            number("price", "Price of a GPU-hour", "2"),
        ],
        annotations: vec![new_ooms()],
        parts: vec![
            Panel::figure("Set aside", "bytes", "Memory that containers have for themselves now: their limit where one is enforced, else the whole GPU, or an even part of what is left of it where several share it.")
                .size(3, 4)
                .instant("", query("sum(@workload_aside@{@N@})"))
                .empty("none")
                .into(),
            Panel::figure("Wasted", "bytes", "Of that, what no container took in the chosen time even if all of them peak at once.")
                .size(3, 4)
                .instant("", query("sum(@WASTED@)"))
                .empty("none")
                .into(),
            Panel::figure("Share wasted", "percentunit", "Wasted by set aside. Servers that fill their GPU with a cache on purpose waste nothing here.")
                .size(3, 4)
                .instant("", query("sum(@WASTED@) / sum(@workload_aside@{@N@})"))
                .default("decimals", json!(0))
                .steps(&share)
                .empty("none")
                .into(),
            Panel::figure("Wasted a day", MONEY, "The wasted memory as a part of the average GPU, at the price above: what 24 hours of it cost.")
                .size(3, 4)
                .instant("", money("sum(@WASTED@) / @GPU@ * 24"))
                .default("decimals", json!(0))
                .empty("none")
                .into(),
            Panel::figure("GPUs of nobody", "short", "GPUs and MIG slices that no container uses now.")
                .size(3, 4)
                .instant("", query("count(max by (@device@) (@total@{@C@}) unless on (@device@) @raw_used@{@C@}) or 0 * count(@total@{@C@})"))
                .steps(&[(LOW, None), (ELEVATED, Some(1.0))])
                .into(),
            Panel::figure("GPU-hours lost", "short", "By OOMs: GPU-hours that containers had had, in the chosen time, which ran out of memory in it. What they saved before is not lost: it is the most that can have been.")
                .size(3, 4)
                .instant("", query("sum(@LOST@) or 0 * count(@used@{@N@})"))
                .default("decimals", json!(1))
                .steps(&[(LOW, None), (HIGH, Some(0.1))])
                .into(),
            Panel::figure("GPU-hours saved", "short", "A guess: warnings after which somebody acted, times the share of warnings that come true, times what an OOM has cost here.")
                .size(3, 4)
                .instant(
                    "",
                    query(
                        "sum(increase(@predictions@{@C@,outcome=\"Avoided\"}[$__range])) \
                         * sum(increase(@predictions@{@C@,outcome=~\"Hit|Early\"}[$__range])) / sum(increase(@predictions@{@C@,outcome=~\"Hit|Early|FalseAlarm\"}[$__range])) \
                         * sum(@LOST@) / count(group by (cluster, namespace, pod, container) (@LOST@))",
                    ),
                )
                .default("decimals", json!(1))
                .empty("nothing to judge")
                .into(),
            simulated("").into(),
            Row("What would do?").into(),
            Panel::table("Workloads", "Peak: the most of one container on one GPU in the chosen time. Needs: what its profile recommends, else a tenth more than the peak. The smallest GPU and MIG slice hold that; they may be slower. Look at a time with its usual work before you move anything.")
                .size(24, 10)
                .instant("", query("@WASTED@"))
                .instant("", query("count by (@B@) (@used@{@N@})"))
                .instant("", query(PEAK))
                .instant("", query(NEEDS))
                .instant("", query(CARD))
                .instant("", query("min by (@B@) (@used@{@N@} * 0 + on (@container@) group_left () max by (@container@) (@raw_limit@{@N@}))"))
                .instant("", query("@PEAK@ * on (@B@) count by (@B@) (@used@{@N@}) / @ASIDE@"))
                .instant("", query(NEEDS))
                .instant("", query(NEEDS))
                .instant("", money("@WASTED@ / @GPU@ * 24"))
                .columns(&[
                    ("namespace", "Namespace"),
                    ("workload_kind", "Kind"),
                    ("workload", "Workload"),
                    ("Value #B", "Containers"),
                    ("Value #E", "GPU"),
                    ("Value #F", "Limit"),
                    ("Value #C", "Peak of one"),
                    ("Value #D", "Needs"),
                    ("Value #H", "Smallest GPU"),
                    ("Value #I", "Smallest MIG slice"),
                    ("Value #G", "Peak of set aside"),
                    ("Value #A", "Wasted"),
                    ("Value #J", "Wasted a day"),
                ])
                .sorted("Wasted", true)
                .field("GPU|Limit|Peak of one|Needs|Wasted", &[("unit", json!("bytes")), ("custom.width", json!(100))])
                .field("Limit", &[("mappings", with_empty(json!([]), "none"))])
                .field("Containers|Namespace", &[("custom.width", json!(100))])
                .field("Kind", &[("custom.width", json!(110))])
                .field("Smallest GPU", &[
                    ("mappings", holders(false)),
                    ("custom.align", json!("left")),
                    ("custom.width", json!(150)),
                ])
                .field("Smallest MIG slice", &[
                    ("mappings", holders(true)),
                    ("custom.align", json!("left")),
                    ("custom.width", json!(210)),
                ])
                .field("Peak of set aside", &[
                    ("unit", json!("percentunit")),
                    ("decimals", json!(0)),
                    ("min", json!(0)),
                    ("max", json!(1)),
                    ("color", json!({"mode": "fixed", "fixedColor": CALM})),
                    ("custom.cellOptions", json!({"type": "gauge", "mode": "basic"})),
                ])
                .field("Wasted a day", &[("unit", json!(MONEY)), ("decimals", json!(2)), ("custom.width", json!(110))])
                .field("Workload", &[(
                    "links",
                    json!([{"title": "Memory of this workload", "url": "/d/gpumem-workload/?var-namespace=${__data.fields.Namespace}&var-workload=${__data.fields.Workload}&${datasource:queryparam}"}]),
                )])
                .into(),
            Row("Over time").into(),
            Panel::lines("Set aside and used", "bytes", "All memory that containers have for themselves, and what they use of it. The gap is what sharing, smaller GPUs or MIG could give back.")
                .every("10m")
                .query("all GPU memory", promql("sum(@all@{@C@})"))
                .query("set aside", promql("sum(@workload_aside@{@N@})"))
                .query("used", promql("sum(@workload_used@{@N@})"))
                .field("all GPU memory", &[
                    ("color", json!({"mode": "fixed", "fixedColor": GREY})),
                    ("custom.fillOpacity", json!(0)),
                    ("custom.lineStyle", json!({"fill": "dash", "dash": [10, 6]})),
                ])
                .field("set aside", &[("color", json!({"mode": "fixed", "fixedColor": ELEVATED})), ("custom.fillOpacity", json!(0))])
                .field("used", &[("color", json!({"mode": "fixed", "fixedColor": CALM})), ("custom.fillOpacity", json!(20))])
                .into(),
            Panel::stacked("Set aside and not used, by namespace", "bytes", "The gap at each moment, the ten namespaces with most of it. A namespace that has it all day has GPUs that are too large.")
                .every("10m")
                .query(
                    "{{namespace}}",
                    query(
                        "sum by (namespace) (@workload_aside@{@N@} - @workload_used@{@N@}) \
                         and topk(10, sum by (namespace) (@workload_aside@{@N@} @ end() - @workload_used@{@N@} @ end()))",
                    ),
                )
                .empty("none")
                .into(),
            Row("What OOMs cost").into(),
            Panel::gauge_bars("GPU-hours lost, by workload", "short", "The ten workloads whose containers had had most GPU-hours when they ran out of memory. A checkpoint now and then makes the loss smaller, a warning in time makes it none.")
                .size(12, 8)
                .instant("{{namespace}}/{{workload}}", query("topk(10, sum by (namespace, workload) (@LOST@))"))
                .default("decimals", json!(1))
                .default("min", json!(0))
                .steps(&[(HIGH, None)])
                .empty("nothing was lost")
                .into(),
            Panel::table("By namespace", "Over the chosen time: GPU-hours of memory that was set aside and not used (a whole GPU's memory for an hour is one), and GPU-hours that OOMs cost at the most.")
                .size(12, 8)
                .instant("", query("sum by (cluster, namespace) (avg_over_time(@workload_aside@{@N@}[$__range]) - avg_over_time(@workload_used@{@N@}[$__range])) / @GPU@ * $__range_s / 3600"))
                .instant("", query("sum by (cluster, namespace) (@LOST@)"))
                .instant("", query("sum by (cluster, namespace) (sum_over_time(@ooms@{@N@}[$__range:15m]))"))
                .instant("", money("sum by (cluster, namespace) (avg_over_time(@workload_aside@{@N@}[$__range]) - avg_over_time(@workload_used@{@N@}[$__range])) / @GPU@ * $__range_s / 3600"))
                .columns(&[
                    ("namespace", "Namespace"),
                    ("Value #A", "GPU-hours not used"),
                    ("Value #D", "What that cost"),
                    ("Value #C", "OOMs"),
                    ("Value #B", "GPU-hours lost"),
                ])
                .sorted("GPU-hours not used", true)
                .default("decimals", json!(1))
                .field("OOMs", &[("decimals", json!(0))])
                .field("What that cost", &[("unit", json!(MONEY)), ("decimals", json!(2))])
                .into(),
        ],
    }
}

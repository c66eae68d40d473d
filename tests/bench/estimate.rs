//! How far off the memory estimator is, over every committed point, beside the rules that people use.
//!
//! `cargo bench -p gpumem-engine --bench estimate` prints a table by kind and closes with `figure NAME VALUE UNIT` lines.
//! `-- points` prints every point. Points: `tests/data/estimator_points*.json`, each with its source.

#![expect(clippy::expect_used, reason = "a bench stops where its committed data is broken")]

mod points {
    include!("estimate_points.rs");
}

use std::collections::BTreeMap;

use gpumem_engine::estimate::fit::{self, Verdict};
use gpumem_engine::estimate::run::Offload;
use gpumem_engine::estimate::{Interval, cards, states};
use points::Point;

fn main() {
    let all = points::load();
    let wants_points = std::env::args().any(|argument| argument == "points");
    let only: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if wants_points {
        print_points(&all, &only);
    }
    println!(
        "\n{:<34} {:>4} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "kind", "n", "median", "within", "inside", "width", "above"
    );
    println!("{:<34} {:>4} {:>8} {:>8} {:>8} {:>8} {:>8}", "", "", "error %", "15 % %", "bounds %", "± %", "high %");
    let mut kinds: BTreeMap<&str, Vec<&Point>> = BTreeMap::new();
    for point in &all {
        kinds.entry(point.set).or_default().push(point);
        kinds.entry(point.kind).or_default().push(point);
    }
    for (kind, points) in &kinds {
        let row = Row::of(points);
        println!(
            "{kind:<34} {:>4} {:>8.1} {:>8.0} {:>8.0} {:>8.1} {:>8.1}",
            points.len(),
            row.error,
            row.near,
            row.inside,
            row.width,
            row.above
        );
    }
    rules(&all);
    leave_out(&all);
    effects(&all);
    verdicts(&all);
    for (set, predicted, measured) in points::ASIDE {
        aside(set, &points::aside(predicted, measured));
    }
    for (kind, points) in kinds.iter().filter(|(kind, _)| kind.starts_with("set")) {
        let (row, name) = (Row::of(points), kind.replace("set ", "").replace([' ', ','], "_"));
        println!("figure estimate_{name}_median_error {:.2} percent", row.error);
        println!("figure estimate_{name}_within_15_percent {:.1} percent", row.near);
        println!("figure estimate_{name}_inside_interval {:.1} percent", row.inside);
        println!("figure estimate_{name}_median_half_width {:.2} percent", row.width);
        println!("figure estimate_{name}_above_high {:.2} percent", row.above);
    }
}

/// What is said about a set of points, in percent.
struct Row {
    error: f64,
    near: f64,
    inside: f64,
    width: f64,
    above: f64,
}

impl Row {
    fn of(points: &[&Point]) -> Self {
        let share = |test: &dyn Fn(&Point) -> bool| {
            100.0 * points.iter().filter(|point| test(point)).count() as f64 / points.len().max(1) as f64
        };
        Self {
            error: 100.0 * median(points.iter().map(|point| point.error(point.estimate.median))),
            near: share(&|point| point.error(point.estimate.median) <= 0.15),
            inside: share(&|point| point.estimate.holds(point.actual)),
            width: 100.0 * median(points.iter().map(|point| half_width(&point.estimate))),
            above: share(&|point| point.actual > point.estimate.high),
        }
    }
}

fn half_width(interval: &Interval) -> f64 {
    (interval.high - interval.low) / 2.0 / interval.median.max(1.0)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn print_points(all: &[Point], only: &[String]) {
    let gib = |bytes: f64| bytes / 1_073_741_824.0;
    for point in all {
        if only
            .iter()
            .any(|word| word != "points" && !point.label.contains(word.as_str()) && !point.set.contains(word.as_str()))
        {
            continue;
        }
        println!(
            "{:>7.2} est {:>7.2} [{:>6.2} {:>6.2}] {:>+6.1} % {} alloc {:>+6.1} %  {}",
            gib(point.actual),
            gib(point.estimate.median),
            gib(point.estimate.low),
            gib(point.estimate.high),
            100.0 * (point.estimate.median / point.actual - 1.0),
            if point.estimate.holds(point.actual) { "in " } else { "OUT" },
            point.allocated.map_or(0.0, |(estimate, actual)| 100.0 * (estimate / actual - 1.0)),
            point.label
        );
    }
}

/// The rules people use, on the same points.
fn rules(all: &[Point]) {
    println!("\nmedian absolute error of rules of thumb, in percent, beside ours on the same points");
    println!("{:<34} {:>8} {:>8} {:>10} {:>10}", "", "ours", "16P", "accelerate", "DeepSpeed");
    for kind in ["full training", "LoRA", "inference"] {
        let points: Vec<&Point> = all.iter().filter(|point| point.kind == kind && point.params > 0.0).collect();
        let of = |rule: &dyn Fn(&Point) -> f64| 100.0 * median(points.iter().map(|point| point.error(rule(point))));
        let trains = kind != "inference";
        let ours = of(&|point| point.estimate.median);
        let sixteen = of(&|point| if trains { states::sixteen_bytes_rule(point.params) } else { f64::NAN });
        let accelerate = of(&|point| {
            if trains {
                states::accelerate_rule(point.params, point.weight_width)
            } else {
                1.2 * point.params * point.weight_width
            }
        });
        let deepspeed = of(&|point| {
            if !trains {
                return f64::NAN;
            }
            match point.zero {
                3 => states::deepspeed_zero3(point.params, 0.0, point.shards, Offload::default()),
                _ => states::deepspeed_zero2(point.params, point.shards, false),
            }
        });
        println!("{kind:<34} {ours:>8.1} {sixteen:>8.1} {accelerate:>10.1} {deepspeed:>10.1}");
        for (name, value) in [("ours", ours), ("16p", sixteen), ("accelerate", accelerate), ("deepspeed", deepspeed)] {
            if value.is_finite() {
                println!("figure estimate_rule_{name}_{} {value:.1} percent", kind.replace(' ', "_"));
            }
        }
    }
}

/// Does a constant found without a model hold for it? One factor is fitted on all other models' points.
fn leave_out(all: &[Point]) {
    println!("\nleave one model out (one factor fitted on the others), H200 points");
    let own: Vec<&Point> = all.iter().filter(|point| point.set.starts_with("set h200")).collect();
    let mut models: Vec<&str> = own.iter().map(|point| point.model.as_str()).collect();
    models.sort_unstable();
    models.dedup();
    let mut errors = Vec::new();
    for model in models {
        let (out, rest): (Vec<&Point>, Vec<&Point>) = own.iter().partition(|point| point.model == model);
        let factor = median(rest.iter().map(|point| point.actual / point.estimate.median));
        let found: Vec<f64> = out.iter().map(|point| point.error(point.estimate.median * factor)).collect();
        println!(
            "  {model:<22} {:>3} points  factor {factor:.4}  median error {:>5.1} %",
            out.len(),
            100.0 * median(found.iter().copied())
        );
        errors.extend(found);
    }
    println!("figure estimate_leave_model_out_median_error {:.2} percent", 100.0 * median(errors.into_iter()));
}

/// How often a card was said to hold a job that would not have fitted it: over every point and every card of the table.
fn verdicts(all: &[Point]) {
    let is_wrong = |point: &&Point| {
        let said = |card: &&cards::Card| fit::verdict(&point.estimate, card.usable()) == Verdict::Fits;
        cards::CARDS.iter().filter(said).any(|card| point.actual > card.usable())
    };
    let wrong: Vec<&Point> = all.iter().filter(is_wrong).collect();
    println!("\njobs called a fit on some card of the table that they would have overrun:");
    for point in &wrong {
        println!("  {}", point.label);
    }
    println!("figure estimate_called_a_fit_wrongly {:.2} percent", 100.0 * wrong.len() as f64 / all.len() as f64);
}

/// What was said of a job, then or now.
type Said = fn(&points::Aside) -> &Interval;

/// Jobs that were predicted, and the prediction committed, before anybody measured them: what was said then, and what would
/// be said now that they were looked at.
fn aside(set: &str, found: &[points::Aside]) {
    println!("\n{set}: predicted before they were measured (then), and since they were looked at (now)");
    println!("{:<30} {:>8} {:>8} {:>8} {:>8} {:>8}", "", "GiB", "then %", "inside", "now %", "inside");
    let gib = |bytes: f64| bytes / 1_073_741_824.0;
    for point in found {
        let of = |interval: &Interval| 100.0 * (interval.median / point.actual - 1.0);
        let inside = |interval: &Interval| if interval.holds(point.actual) { "in" } else { "OUT" };
        println!(
            "{:<30} {:>8.2} {:>+8.1} {:>8} {:>+8.1} {:>8}",
            point.name,
            gib(point.actual),
            of(&point.then),
            inside(&point.then),
            of(&point.now),
            inside(&point.now)
        );
    }
    let when: [(&str, Said); 2] = [("then", |point| &point.then), ("now", |point| &point.now)];
    for (when, said) in when {
        let error = |point: &points::Aside| (said(point).median / point.actual - 1.0).abs();
        let count = found.len().max(1) as f64;
        let share = |test: &dyn Fn(&points::Aside) -> bool| {
            100.0 * found.iter().filter(|point| test(point)).count() as f64 / count
        };
        println!("figure estimate_{set}_{when}_median_error {:.2} percent", 100.0 * median(found.iter().map(error)));
        println!("figure estimate_{set}_{when}_within_15_percent {:.1} percent", share(&|point| error(point) <= 0.15));
        println!(
            "figure estimate_{set}_{when}_inside_interval {:.1} percent",
            share(&|point| said(point).holds(point.actual))
        );
        println!(
            "figure estimate_{set}_{when}_above_high {:.1} percent",
            share(&|point| point.actual > said(point).high)
        );
        println!(
            "figure estimate_{set}_{when}_median_half_width {:.2} percent",
            100.0 * median(found.iter().map(|point| half_width(said(point))))
        );
        // What the driver counts has the context and the allocator's slack in it; live tensors are what formulas say.
        let live = found.iter().map(|point| {
            let said = if when == "then" { point.live.0 } else { point.live.1 };
            (said / point.live.2 - 1.0).abs()
        });
        println!("figure estimate_{set}_{when}_live_tensors_median_error {:.2} percent", 100.0 * median(live));
        let wrong = |point: &points::Aside| {
            cards::CARDS
                .iter()
                .any(|card| fit::verdict(said(point), card.usable()) == Verdict::Fits && point.actual > card.usable())
        };
        println!("figure estimate_{set}_{when}_called_a_fit_wrongly {:.1} percent", share(&wrong));
    }
}

/// What a change saves, predicted and measured, over pairs of points that differ in nothing else.
fn effects(all: &[Point]) {
    println!("\nsavings predicted and measured, pairs that differ in one setting");
    for (name, with, without) in points::PAIRS {
        let mut gaps = Vec::new();
        for one in all.iter().filter(|point| point.setting(with.0) == with.1) {
            let is_pair = |other: &&Point| other.setting(with.0) == *without && one.differs_only_in(other, with.0);
            for other in all.iter().filter(is_pair) {
                let predicted = 100.0 * (1.0 - one.estimate.median / other.estimate.median);
                let measured = 100.0 * (1.0 - one.actual / other.actual);
                gaps.push((predicted - measured).abs());
                println!("  {name:<24} {predicted:>6.1} % {measured:>6.1} %  {}", other.label);
            }
        }
        if !gaps.is_empty() {
            println!("figure estimate_effect_{name}_median_gap {:.2} points", median(gaps.into_iter()));
        }
    }
}

//! The parts of the benchmark on the synthetic corpus, H = 60 min.

use gpumem_engine::forecast::calibration::{Calibration, FITTED, IDENTITY, Pieces};

use crate::baselines;
use crate::corpus::families::{ALL, GRADUAL};
use crate::corpus::{self, Family};
use crate::feed::{Faults, Feed};
use crate::judge::{self, Outcome, Setting};
use crate::report::Report;
use crate::{Options, subject};

/// Figures the issue asks for: family, lead in seconds.
const RECALLS: &[(&str, f64)] = &[
    ("linear", 2820.0),
    ("step", 2820.0),
    ("leak_spikes", 2820.0),
    ("superlinear", 2820.0),
    ("irregular", 2820.0),
    ("linear_hour", 1800.0),
    ("step_hour", 1800.0),
    ("leak_spikes_hour", 1800.0),
];

/// Families in which no alarm, or few, may be raised.
const QUIET: &[&str] = &["plateau", "pool", "eval", "one_step", "saturating", "stop_ramp"];

fn feed(family: &Family, seed: u64, interval: usize, faults: Faults) -> Feed {
    Feed::of(&corpus::run(family, seed), interval, faults, seed)
}

fn outcomes(family: &Family, options: &Options, runs: u64, interval: usize, faults: Faults) -> Vec<Outcome> {
    with(family, options, runs, interval, faults, &FITTED)
}

fn with(
    family: &Family,
    options: &Options,
    runs: u64,
    interval: usize,
    faults: Faults,
    calibration: &Calibration,
) -> Vec<Outcome> {
    let setting = Setting::of(3600.0);
    options
        .seeds(runs)
        .map(|seed| {
            let feed = feed(family, seed, interval, faults);
            judge::judge(&subject::evals_with(&feed, &setting, None, calibration), &feed, &setting)
        })
        .collect()
}

fn by_name(name: &str) -> &'static Family {
    ALL.iter().find(|family| family.name == name).unwrap()
}

/// Base rates of the gradual families on the training seeds.
fn rates() -> [f64; 3] {
    let setting = Setting::of(3600.0);
    let known: Vec<Outcome> = GRADUAL
        .iter()
        .flat_map(|name| corpus::TRAIN.take(40).map(|seed| feed(by_name(name), seed, 60, Faults::default())))
        .map(|feed| judge::judge(&baselines::evals(&baselines::ALL[0], &feed, &setting, [0.0; 3]), &feed, &setting))
        .collect();
    let known: Vec<&Outcome> = known.iter().collect();
    [0, 1, 2].map(|place| judge::rate(&known, place))
}

fn trace(family: &Family, options: &Options) {
    for seed in options.seeds(options.runs) {
        if options.trace.as_deref() == Some(&format!("{}:{seed}", family.name)) {
            let feed = feed(family, seed, options.interval, Faults::default());
            subject::walk(&feed, &Setting::of(3600.0), |at, _, answers| {
                let left = feed.ooms.first().map_or(f64::NAN, |oom| (oom - at) / 60.0);
                let answer = &answers[feed.culprit];
                println!("  {at:6.0} {left:4.0} {:.3} {}", subject::risk(answer).unwrap_or(-1.0), answer.reason);
            });
        }
    }
}

/// Every family, and the figures.
pub fn families(options: &Options, report: &mut Report) {
    let wanted: Vec<&Family> = ALL.iter().filter(|family| options.wants(family.name)).collect();
    if wanted.is_empty() {
        return;
    }
    println!(
        "family                 ooms  recall@1 @30   @47   lead | false-runs false/h | skill5 15    60    | cover  abstain"
    );
    let mut gradual = Vec::new();
    for family in wanted {
        trace(family, options);
        let outcomes = outcomes(family, options, options.runs, options.interval, Faults::default());
        let all: Vec<&Outcome> = outcomes.iter().collect();
        let silent = all.iter().fold((0, 0), |sum, run| (sum.0 + run.silent.0, sum.1 + run.silent.1));
        let ooms: usize = all.iter().map(|run| run.leads.len()).sum();
        println!(
            "{:22} {ooms:4}  {:.2}     {:.2}  {:.2}  {:4.0} | {:.3}      {:.4}  | {:5.2} {:5.2} {:5.2} | {:.2}   {:.2}",
            family.name,
            judge::recall(&all, 60.0),
            judge::recall(&all, 1800.0),
            judge::recall(&all, 2820.0),
            judge::median_lead(&all) / 60.0,
            judge::runs_with_false(&all),
            judge::false_per_hour(&all),
            judge::skill(&all, 0, judge::rate(&all, 0)),
            judge::skill(&all, 1, judge::rate(&all, 1)),
            judge::skill(&all, 2, judge::rate(&all, 2)),
            judge::coverage(&all),
            silent.0 as f64 / f64::max(silent.1 as f64, 1.0),
        );
        if options.verbose {
            for (seed, run) in options.seeds(options.runs).zip(&outcomes) {
                if !run.false_alarms.is_empty() || run.leads.iter().any(|lead| lead.is_none_or(|lead| lead < 2820.0)) {
                    let wrong: Vec<_> = run
                        .false_alarms
                        .iter()
                        .map(|episode| (episode.tenant, episode.raised, episode.cleared))
                        .collect();
                    println!("  seed {seed} leads {:?} false {wrong:?}", run.leads);
                }
            }
        }
        for (_, lead) in RECALLS.iter().filter(|(name, _)| *name == family.name) {
            let figure = judge::bootstrap(&outcomes, |runs| judge::recall(runs, *lead));
            report.add_with(&format!("recall{:.0}_{}", lead / 60.0, family.name), figure, "ratio");
        }
        if QUIET.contains(&family.name) {
            let figure = judge::bootstrap(&outcomes, judge::runs_with_false);
            report.add_with(&format!("false_runs_{}", family.name), figure, "ratio");
        }
        if GRADUAL.contains(&family.name) {
            gradual.extend(outcomes);
        }
    }
    if options.wants("stop_ramp") {
        let setting = Setting::of(3600.0);
        let declared: Vec<Outcome> = options
            .seeds(options.runs)
            .map(|seed| {
                let feed = feed(by_name("stop_ramp"), seed, options.interval, Faults::default());
                judge::judge(&subject::evals_with(&feed, &setting, feed.declared, &FITTED), &feed, &setting)
            })
            .collect();
        report.add_with("false_runs_stop_ramp_declared", judge::bootstrap(&declared, judge::runs_with_false), "ratio");
    }
    if gradual.is_empty() {
        return;
    }
    let rates = rates();
    let two_hours: Vec<Outcome> = gradual.iter().filter(|run| run.hours > 1.9).cloned().collect();
    report.add_with("recall47_gradual", judge::bootstrap(&two_hours, |runs| judge::recall(runs, 2820.0)), "ratio");
    report.add_with("median_lead_gradual", judge::bootstrap(&two_hours, |runs| judge::median_lead(runs) / 60.0), "min");
    for (place, name) in [(0, "5"), (1, "15"), (2, "60")] {
        let skill = judge::bootstrap(&gradual, |runs| judge::skill(runs, place, rates[place]));
        report.add_with(&format!("brier_skill_{name}_gradual"), skill, "ratio");
    }
    let all: Vec<&Outcome> = gradual.iter().collect();
    report.add_with("coverage80_gradual", judge::bootstrap(&gradual, judge::coverage), "ratio");
    report.add("calibration_error_60_gradual", judge::calibration_error(&all, 2), "ratio");
    report.add("log_loss_60_gradual", judge::log_loss(&all, 2), "nats");
    let errors: Vec<f64> = all.iter().flat_map(|run| run.errors.iter().map(|error| error.abs())).collect();
    report.add("median_log2_error_gradual", judge::median(errors), "log2");
}

/// A line of the key figures: what sampling, faults and ablations may change.
struct Key {
    recalls: Vec<f64>,
    wrong: f64,
    skill: f64,
}

const KEY: &[&str] = &["linear", "step", "leak_spikes", "superlinear", "irregular"];

fn key(name: &str, options: &Options, interval: usize, faults: Faults, calibration: &Calibration) -> Key {
    let runs = options.runs.min(80);
    let mut recalls = Vec::new();
    let mut gradual = Vec::new();
    for family in KEY {
        let outcomes = with(by_name(family), options, runs, interval, faults, calibration);
        recalls.push(judge::recall(&outcomes.iter().collect::<Vec<_>>(), 2820.0));
        gradual.extend(outcomes);
    }
    let quiet: Vec<Outcome> =
        QUIET.iter().flat_map(|family| with(by_name(family), options, runs, interval, faults, calibration)).collect();
    let wrong = judge::runs_with_false(&quiet.iter().collect::<Vec<_>>());
    let all: Vec<&Outcome> = gradual.iter().collect();
    let skill = judge::skill(&all, 2, judge::rate(&all, 2));
    let shown: Vec<String> = recalls.iter().map(|recall| format!("{recall:.2}")).collect();
    println!("{name:24} recall@47 {} | false runs of the quiet {wrong:.3} | skill60 {skill:.2}", shown.join(" "));
    Key { recalls, wrong, skill }
}

/// The same runs at other intervals.
pub fn sampling(options: &Options, report: &mut Report) {
    println!("\nrecall@47 of {}", KEY.join(", "));
    let base = key("15 s", options, 15, Faults::default(), &FITTED);
    for interval in [1, 60] {
        let other = key(&format!("{interval} s"), options, interval, Faults::default(), &FITTED);
        report.add(&format!("worst_loss_at_{interval}s"), worst(&base, &other), "ratio");
    }
}

/// Largest relative loss of a recall or of the skill.
fn worst(base: &Key, other: &Key) -> f64 {
    let pairs = base.recalls.iter().zip(&other.recalls).chain([(&base.skill, &other.skill)]);
    pairs.map(|(before, after)| 1.0 - after / before.max(1e-9)).fold(0.0, f64::max)
}

/// The same runs with what goes wrong in the field.
pub fn robustness(options: &Options, report: &mut Report) {
    println!();
    let base = key("as they are", options, 15, Faults::default(), &FITTED);
    let faults = [
        ("lost_10", Faults { lost: 0.1, ..Faults::default() }, 15),
        ("lost_30", Faults { lost: 0.3, ..Faults::default() }, 15),
        ("coarser_5x", Faults::default(), 75),
        ("jitter", Faults { jitter: 1.0, ..Faults::default() }, 15),
        ("duplicates", Faults { twice: 0.1, ..Faults::default() }, 15),
        ("late", Faults { late: 0.05, ..Faults::default() }, 15),
    ];
    for (name, faults, interval) in faults {
        let other = key(name, options, interval, faults, &FITTED);
        report.add(&format!("worst_loss_{name}"), worst(&base, &other), "ratio");
    }
}

/// What each piece earns: the same runs without it.
pub fn ablation(options: &Options) {
    println!();
    let all = FITTED.pieces;
    key("all pieces", options, 15, Faults::default(), &FITTED);
    let variants: [(&str, Pieces); 5] = [
        ("without stairs", Pieces { stairs: false, ..all }),
        ("without damping", Pieces { damping: false, ..all }),
        ("without acceleration", Pieces { acceleration: false, ..all }),
        ("without excursions", Pieces { excursions: false, ..all }),
        ("without unrest", Pieces { unrest: false, ..all }),
    ];
    for (name, pieces) in variants {
        key(name, options, 15, Faults::default(), &Calibration { pieces, ..FITTED });
    }
    key("without calibration", options, 15, Faults::default(), &IDENTITY);
}

/// What people run today, on the same runs.
pub fn baselines(options: &Options) {
    println!();
    let runs = options.runs.min(60);
    let (setting, rates) = (Setting::of(3600.0), rates());
    for baseline in baselines::ALL {
        let judged = |family: &str| -> Vec<Outcome> {
            options
                .seeds(runs)
                .map(|seed| {
                    let feed = feed(by_name(family), seed, 15, Faults::default());
                    let evals = baselines::evals(baseline, &feed, &setting.held(baseline.hold), rates);
                    judge::judge(&evals, &feed, &setting.held(baseline.hold))
                })
                .collect()
        };
        let mut gradual = Vec::new();
        let recalls: Vec<String> = KEY
            .iter()
            .map(|family| {
                let outcomes = judged(family);
                let recall = judge::recall(&outcomes.iter().collect::<Vec<_>>(), 2820.0);
                gradual.extend(outcomes);
                format!("{recall:.2}")
            })
            .collect();
        let wrong: Vec<String> = QUIET
            .iter()
            .map(|family| format!("{:.2}", judge::runs_with_false(&judged(family).iter().collect::<Vec<_>>())))
            .collect();
        let all: Vec<&Outcome> = gradual.iter().collect();
        let skill = judge::skill(&all, 2, rates[2]);
        println!(
            "{:20} recall@47 {} | false runs {} | skill60 {skill:.2}",
            baseline.name,
            recalls.join(" "),
            wrong.join(" ")
        );
    }
    println!("(recall of {}; false runs of {})", KEY.join(", "), QUIET.join(", "));
}

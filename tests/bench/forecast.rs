//! The public benchmark of the forecast. `cargo bench -p gpumem-engine --bench forecast -- [options]`
//!
//! `--runs N` runs per family, `--train` on the training seeds, `--only a,b` some families, `--gentd26 FILE` serving pods.
#![allow(clippy::unwrap_used, clippy::disallowed_types, clippy::disallowed_methods, missing_docs, dead_code)]

mod corpus;
mod feed;
mod judge;
mod recorded;
mod subject;

use std::path::PathBuf;

use corpus::Kind;
use corpus::families::ALL;
use feed::{Faults, Feed};
use judge::{Outcome, Setting};

pub struct Options {
    pub runs: u64,
    pub train: bool,
    pub only: Vec<String>,
    pub gentd26: Option<PathBuf>,
    pub intervals: Vec<usize>,
    pub verbose: bool,
    pub trace: Option<String>,
}

fn options() -> Options {
    let mut options = Options {
        runs: 200,
        train: false,
        only: vec![],
        gentd26: None,
        intervals: vec![15],
        verbose: false,
        trace: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_default();
        match word.as_str() {
            "--runs" => options.runs = value().parse().unwrap(),
            "--train" => options.train = true,
            "--only" => options.only = value().split(',').map(str::to_owned).collect(),
            "--gentd26" => options.gentd26 = Some(value().into()),
            "--intervals" => options.intervals = value().split(',').map(|word| word.parse().unwrap()).collect(),
            "--trace" => options.trace = Some(value()),
            "--verbose" => options.verbose = true,
            _ => {}
        }
    }
    options
}

pub fn data() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data"))
}

fn main() {
    let options = options();
    for &interval in &options.intervals {
        synthetic(&options, interval);
    }
    if options.only.is_empty() || options.only.iter().any(|only| only == "h200") {
        for hooked in [true, false] {
            h200(hooked, &options);
        }
    }
    if options.only.is_empty() || options.only.iter().any(|only| only == "cases") {
        cases(options.trace.as_deref());
    }
    if let Some(path) = &options.gentd26 {
        let text = recorded::read(path).unwrap();
        for capacity in [48.0, 44.0, 40.0, 32.0] {
            let feeds = recorded::serving(&text, capacity * 1024.0);
            let half = feeds.iter().enumerate().filter(|(place, _)| (place % 2 == 0) == options.train);
            let setting = Setting::of(3600.0);
            let outcomes: Vec<Outcome> = half
                .map(|(_, feed)| {
                    let outcome = judge::judge(&subject::evals(feed, &setting, None), feed, &setting);
                    if options.verbose
                        && (!outcome.false_alarms.is_empty() || outcome.leads.iter().any(|lead| lead.is_some()))
                    {
                        println!("  {} {:?} {:?} oom {:?}", feed.name, outcome.false_alarms, outcome.leads, feed.ooms);
                    }
                    outcome
                })
                .collect();
            let all: Vec<&Outcome> = outcomes.iter().collect();
            println!(
                "serving {capacity} GiB: pods {} hours {:.0} fa/h {:.4} crossings {} named {:.3} skill15 {:.3} skill60 {:.3}",
                all.len(),
                all.iter().map(|outcome| outcome.hours).sum::<f64>(),
                judge::false_per_hour(&all),
                all.iter().map(|outcome| outcome.leads.len()).sum::<usize>(),
                judge::recall(&all, 60.0),
                judge::skill(&all, 1, judge::rate(&all, 1)),
                judge::skill(&all, 2, judge::rate(&all, 2)),
            );
        }
    }
}

fn synthetic(options: &Options, interval: usize) {
    let setting = Setting::of(3600.0);
    println!(
        "interval {interval} s\nfamily                 recall1 re30  re47  lead | false-runs fa/h | bss5 bss15 bss60 cover err silent"
    );
    let mut gradual = Vec::new();
    for family in ALL {
        if !options.only.is_empty() && !options.only.iter().any(|only| only == family.name) {
            continue;
        }
        let seeds = if options.train { corpus::TRAIN } else { corpus::TEST };
        let outcomes: Vec<Outcome> = seeds
            .take(options.runs as usize)
            .map(|seed| {
                let feed = Feed::of(&corpus::run(family, seed), interval, Faults::default(), seed);
                let outcome = judge::judge(&subject::evals(&feed, &setting, None), &feed, &setting);
                if options.verbose
                    && (!outcome.false_alarms.is_empty()
                        || outcome.leads.iter().any(|lead| lead.is_none_or(|lead| lead < 2820.0)))
                {
                    let last =
                        |at: f64| feed.rows.iter().rfind(|row| row.at <= at).map(|row| row.used / feed.capacity_at(at));
                    println!(
                        "  seed {seed} leads {:?} oom {:?} false {:?}",
                        outcome.leads,
                        feed.ooms,
                        outcome
                            .false_alarms
                            .iter()
                            .map(|episode| (episode.tenant, episode.raised, episode.cleared, last(episode.raised)))
                            .collect::<Vec<_>>()
                    );
                }
                if options.trace.as_deref() == Some(&format!("{}:{seed}", family.name)) {
                    subject::walk(&feed, &setting, |at, _, answers| {
                        let left = feed.ooms.first().map_or(f64::NAN, |oom| (oom - at) / 60.0);
                        println!(
                            "  {at:6.0} {left:4.0} {:.3} {}",
                            subject::risk(&answers[feed.culprit]).unwrap_or(-1.0),
                            answers[feed.culprit].reason
                        );
                    });
                }
                outcome
            })
            .collect();
        let all: Vec<&Outcome> = outcomes.iter().collect();
        let silent = all.iter().fold((0, 0), |sum, run| (sum.0 + run.silent.0, sum.1 + run.silent.1));
        println!(
            "{:22} {:.2}   {:.2}  {:.2}  {:3.0}  | {:.3} {:.4} | {:6.2} {:5.2} {:5.2} {:.2} {:.2} {:.2}",
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
            judge::median(all.iter().flat_map(|run| run.errors.iter().copied()).collect()),
            silent.0 as f64 / f64::max(silent.1 as f64, 1.0),
        );
        if options.verbose {
            let mut early: Vec<f64> = all.iter().flat_map(|run| run.early.iter().copied()).collect();
            early.sort_by(f64::total_cmp);
            let at = |share: f64| early.get((share * early.len() as f64) as usize).copied().unwrap_or(f64::NAN);
            println!("    early log2 error q10 {:.2} q50 {:.2} q90 {:.2} n {}", at(0.1), at(0.5), at(0.9), early.len());
        }
        if corpus::families::GRADUAL.contains(&family.name) {
            gradual.extend(outcomes);
        }
    }
    let all: Vec<&Outcome> = gradual.iter().collect();
    println!(
        "gradual: recall47 {:.3} bss {:.3} {:.3} {:.3} cover {:.3} ece60 {:.3}",
        judge::recall(&all, 2820.0),
        judge::skill(&all, 0, judge::rate(&all, 0)),
        judge::skill(&all, 1, judge::rate(&all, 1)),
        judge::skill(&all, 2, judge::rate(&all, 2)),
        judge::coverage(&all),
        judge::calibration_error(&all, 2),
    );
}

fn h200(hooked: bool, options: &Options) {
    let setting = Setting::of(300.0);
    let (mut named, mut gradual, mut abrupt, mut wrong, mut hours) = (0, 0, 0, 0, 0.0);
    for feed in recorded::h200(&data(), hooked) {
        if options.trace.as_deref() == Some(&feed.name) {
            subject::walk(&feed, &setting, |at, _, answers| {
                println!("  {at:6.0} {:.3} {}", subject::risk(&answers[0]).unwrap_or(-1.0), answers[0].reason);
            });
        }
        let outcome = judge::judge(&subject::evals(&feed, &setting, None), &feed, &setting);
        let right = outcome.leads.iter().flatten().any(|lead| *lead >= 15.0);
        named += usize::from(feed.kind == Kind::Gradual && right);
        gradual += usize::from(feed.kind == Kind::Gradual);
        abrupt += usize::from(feed.kind == Kind::Abrupt && right);
        wrong += outcome.false_alarms.len();
        hours += outcome.hours;
        if options.verbose || !outcome.false_alarms.is_empty() || (feed.kind == Kind::Gradual && !right) {
            println!(
                "  {:26} {:?} oom {:?} leads {:?} false {:?} censored {}",
                feed.name, feed.kind, feed.ooms, outcome.leads, outcome.false_alarms, outcome.censored
            );
        }
    }
    println!("h200 hooked {hooked}: gradual {named}/{gradual} abrupt {abrupt} false {wrong} in {hours:.2} h");
}

fn cases(trace: Option<&str>) {
    for case in recorded::cases(&data().join("cases"), 5.0) {
        let long = case.feed.end > 3.0 * 3600.0;
        let setting = Setting::of(if long { 3600.0 } else { 900.0 });
        let episodes = judge::episodes(&subject::evals(&case.feed, &setting, None), &case.feed, &setting);
        if trace.is_some_and(|name| name == case.feed.name) {
            subject::walk(&case.feed, &setting, |at, _, answers| {
                for (name, answer) in case.names.iter().zip(answers) {
                    println!("  {at:6.0} {name:14} {:?} {}", subject::risk(answer), answer.reason);
                }
            });
        }
        let named: Vec<_> = episodes
            .iter()
            .map(|episode| (case.names[episode.tenant].as_str(), episode.raised, episode.cleared))
            .collect();
        let verdict = match case.verdict.as_str() {
            "silent" | "hang" | "orphan" | "not-predictable" => {
                if named.is_empty() {
                    "ok"
                } else {
                    "WRONG"
                }
            }
            "alarm" => {
                let right = named.iter().any(|(name, raised, _)| {
                    Some((*name).to_owned()) == case.culprit && *raised <= case.before && *raised >= case.not_before
                });
                let harmed =
                    named.iter().any(|(name, _, _)| case.must_not_evict.iter().any(|innocent| innocent == name));
                if right && !harmed { "ok" } else { "WRONG" }
            }
            _ => "-",
        };
        println!(
            "case {:40} {:16} {verdict} {named:?} between {} and {}",
            case.feed.name, case.verdict, case.not_before, case.before
        );
    }
}

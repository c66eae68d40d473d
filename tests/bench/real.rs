//! The parts of the benchmark on recorded and reported data.

use std::path::{Path, PathBuf};

use crate::baselines;
use crate::corpus::Kind;
use crate::feed::Feed;
use crate::judge::{self, Eval, Outcome, Setting};
use crate::recorded;
use crate::report::Report;
use crate::{Options, subject};

fn data() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data"))
}

fn trace(feed: &Feed, setting: &Setting, options: &Options) {
    if options.trace.as_deref() == Some(feed.name.as_str()) {
        subject::walk(feed, setting, |at, _, answers| {
            for (tenant, answer) in answers.iter().enumerate() {
                println!("  {at:7.0} {tenant} {:.3} {}", subject::risk(answer).unwrap_or(-1.0), answer.reason);
            }
        });
    }
}

/// Recorded jobs, H = 300 s: with the allocator's figures and without.
pub fn h200(options: &Options, report: &mut Report) {
    let setting = Setting::of(300.0);
    for (hooked, name) in [(true, "h200_allocator"), (false, "h200_nvml")] {
        let feeds = recorded::h200(&data(), hooked);
        let row = |who: &str, outcomes: &[(Kind, Outcome)]| {
            let named = |kind: Kind| {
                let of_kind = || outcomes.iter().filter(|(own, _)| *own == kind);
                let right = of_kind().filter(|(_, run)| run.leads.iter().flatten().any(|lead| *lead >= 15.0)).count();
                (right, of_kind().count())
            };
            let wrong: usize = outcomes.iter().map(|(_, run)| run.false_alarms.len()).sum();
            let hours: f64 = outcomes.iter().map(|(_, run)| run.hours).sum();
            let ((right, all), (abrupt, abrupts)) = (named(Kind::Gradual), named(Kind::Abrupt));
            println!(
                "{name:15} {who:20} gradual {right:2}/{all} abrupt {abrupt}/{abrupts} false {wrong:3} in {hours:.2} h"
            );
            (right as f64 / all as f64, wrong as f64 * 2.0 / hours)
        };
        let judged = |evals: &dyn Fn(&Feed) -> Vec<Eval>| -> Vec<(Kind, Outcome)> {
            feeds.iter().map(|feed| (feed.kind, judge::judge(&evals(feed), feed, &setting))).collect()
        };
        for feed in &feeds {
            trace(feed, &setting, options);
        }
        let (recall, wrong) = row("forecast", &judged(&|feed| subject::evals(feed, &setting, None)));
        report.add(&format!("{name}_recall15s"), recall, "ratio");
        report.add(&format!("{name}_false_per_2h"), wrong, "episodes");
        if options.verbose {
            for feed in &feeds {
                let run = judge::judge(&subject::evals(feed, &setting, None), feed, &setting);
                println!("  {:26} {:?} {:?} false {:?}", feed.name, feed.kind, run.leads, run.false_alarms);
            }
        }
        for baseline in baselines::ALL {
            row(
                baseline.name,
                &judged(&|feed| baselines::evals(baseline, feed, &setting.held(baseline.hold), [0.0; 3])),
            );
        }
    }
}

/// The field cases, H = 15 min, or an hour where the story takes longer than three.
pub fn cases(options: &Options, report: &mut Report) {
    let (mut silent, mut silents, mut alarm, mut alarms) = (0_u32, 0_u32, 0_u32, 0_u32);
    for case in recorded::cases(&data().join("cases"), 5.0) {
        let long = case.feed.end > 3.0 * 3600.0;
        let setting = Setting::of(if long { 3600.0 } else { 900.0 });
        trace(&case.feed, &setting, options);
        let episodes = judge::episodes(&subject::evals(&case.feed, &setting, None), &case.feed, &setting);
        let named: Vec<(&str, f64)> =
            episodes.iter().map(|episode| (case.names[episode.tenant].as_str(), episode.raised)).collect();
        let harmed = named.iter().any(|(name, _)| case.must_not_evict.iter().any(|innocent| innocent == name));
        let (ok, counted) = match case.verdict.as_str() {
            "silent" => {
                silents += 1;
                silent += u32::from(named.is_empty());
                (named.is_empty(), true)
            }
            "alarm" => {
                let in_time = |raised: f64| (case.not_before..=case.before).contains(&raised);
                let right =
                    named.iter().any(|(name, raised)| case.culprit.as_deref() == Some(name) && in_time(*raised));
                alarms += 1;
                alarm += u32::from(right && !harmed);
                (right && !harmed, true)
            }
            _ => (!harmed, false),
        };
        let exception =
            if !ok && recorded::EXCEPTIONS.contains(&case.feed.name.as_str()) { " (known exception)" } else { "" };
        println!(
            "case {:38} {:15} {}{exception} {named:?}",
            case.feed.name,
            case.verdict,
            if !ok {
                "WRONG"
            } else if counted {
                "ok"
            } else {
                "-"
            }
        );
    }
    report.add("cases_silent", f64::from(silent) / f64::from(silents), "ratio");
    report.add("cases_alarm", f64::from(alarm) / f64::from(alarms), "ratio");
}

/// Serving pods at a capacity nobody reached and at three they did. The other half of the pods gives the base rates.
pub fn serving(path: &Path, options: &Options, report: &mut Report) {
    let text = recorded::read(path).unwrap();
    let setting = Setting::of(3600.0);
    for capacity in [48_u32, 44, 40, 32] {
        let feeds = recorded::serving(&text, f64::from(capacity) * 1024.0);
        let half = |train: bool| {
            feeds.iter().enumerate().filter(move |(place, _)| (place % 2 == 0) == train).map(|(_, feed)| feed)
        };
        let never = baselines::ALL[0];
        let known: Vec<Outcome> = half(!options.train)
            .map(|feed| judge::judge(&baselines::evals(&never, feed, &setting, [0.0; 3]), feed, &setting))
            .collect();
        let known: Vec<&Outcome> = known.iter().collect();
        let rates = [0, 1, 2].map(|place| judge::rate(&known, place));
        let mut row = |who: &str, evals: &dyn Fn(&Feed) -> Vec<Eval>| {
            let outcomes: Vec<Outcome> =
                half(options.train).map(|feed| judge::judge(&evals(feed), feed, &setting)).collect();
            let all: Vec<&Outcome> = outcomes.iter().collect();
            let crossings: usize = all.iter().map(|run| run.leads.len()).sum();
            let wrong = judge::bootstrap(&outcomes, judge::false_per_hour);
            let (named, skill) =
                (judge::recall(&all, 60.0), [1, 2].map(|place| judge::skill(&all, place, rates[place])));
            println!(
                "serving {capacity} GiB {who:20} false/h {:.4} [{:.4}, {:.4}] crossings {crossings} named {named:.2} skill15 {:.3} skill60 {:.3}",
                wrong.value, wrong.low, wrong.high, skill[0], skill[1]
            );
            if who == "forecast" {
                report.add_with(&format!("serving{capacity}_false"), wrong, "per_pod_hour");
                if crossings > 0 {
                    report.add(&format!("serving{capacity}_named"), named, "ratio");
                    report.add(&format!("serving{capacity}_skill60"), skill[1], "ratio");
                }
            }
        };
        row("forecast", &|feed| subject::evals(feed, &setting, None));
        for baseline in baselines::ALL {
            row(baseline.name, &|feed| baselines::evals(baseline, feed, &setting.held(baseline.hold), rates));
        }
    }
}

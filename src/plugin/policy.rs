//! `policy test`: what a policy would have done on recorded data. Flows in: a policy and a recording. Flows out: each alarm,
//! what the policy would have made of it, and what the recording shows came next.
//!
//! The recording knows no budgets, owners or replacements: what only a cluster knows is not played, and the output says so.

use std::fmt::Write as _;
use std::path::PathBuf;

use gpumem_engine::policy::{Mode, Policy, Rung};
use gpumem_engine::quantity::Bytes;
use gpumem_engine::replay::{self, Episode, Options, Row};
use serde::Serialize;
use serde_json::json;

use super::ladder;
use super::table::{Cell, Output, Style, csv, document, envelope, table};
use super::text::{percent, time, wrap};
use crate::cli::{Shown, units};

/// A device this full is out of memory for a job that grows: the next step or a fragment does the rest.
const FULL: f64 = 0.97;

/// Test a policy on recorded data.
#[derive(Clone, Debug, clap::Args)]
pub struct TestArgs {
    /// The policy; every GpuMemoryPolicy of the file is tested.
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    pub filename: PathBuf,
    /// The recording, in the form that `replay` takes.
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// What each device may hold, e.g. 24GiB; goes before the file's capacity_mib.
    #[arg(long, value_parser = units::size)]
    pub capacity: Option<Bytes>,
}

/// One alarm and what would have followed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Alarm {
    pub raised_s: f64,
    pub cleared_s: Option<f64>,
    pub container: String,
    pub gpu: String,
    /// What the policy would have done.
    pub would: String,
    #[serde(skip)]
    pub did: Did,
    /// Highest share of the capacity that all containers of the device reached from the alarm until a horizon and a half later.
    pub highest_afterwards: Option<f64>,
    /// Seconds from the alarm until the device was full; absent where it never was.
    pub full_after_s: Option<f64>,
    pub reason: String,
}

/// What an alarm would have come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Did {
    /// People are told, or nothing is done.
    Tell,
    /// A rung that acts is taken.
    Act,
    /// Restraint holds it back.
    Held,
}

/// Runs the command.
pub fn test(args: &TestArgs, output: Output, style: Style) -> Result<Shown, crate::cli::replay::Error> {
    let mut shown = Shown::default();
    let mut items = Vec::new();
    for policy in crate::cli::replay::policies(&args.filename)? {
        let (rows, options) = crate::cli::replay::prepare(&args.trace, args.capacity, Some(&policy))?;
        let evaluations = replay::evaluate(&rows, &options);
        let alarms = judge(&policy, &rows, &options, replay::episodes(&evaluations));
        let missed = crossings(&rows, &options).into_iter().filter(|(gpu, at)| {
            !alarms.iter().any(|alarm| alarm.gpu == *gpu && alarm.raised_s <= *at && alarm.full_after_s.is_some())
        });
        let missed = missed.count();
        shown.notes.extend(crate::cli::replay::no_capacity(&rows, &options));
        let fulfilled = alarms.iter().filter(|alarm| alarm.full_after_s.is_some()).count();
        match output {
            Output::Table | Output::Wide => {
                let gap = if shown.text.is_empty() { "" } else { "\n" };
                shown.text += gap;
                shown.text += &page(&policy, &alarms, fulfilled, missed, style);
            }
            Output::Json | Output::Yaml => items.push(json!({
                "policy": policy.key.name, "namespace": policy.key.namespace, "mode": format!("{:?}", policy.mode),
                "alarms": alarms, "cameTrue": fulfilled, "didNot": alarms.len() - fulfilled, "missed": missed,
            })),
            Output::Csv => items.extend(alarms.iter().filter_map(|alarm| serde_json::to_value(alarm).ok())),
        }
    }
    match output {
        Output::Table | Output::Wide => {}
        Output::Json | Output::Yaml => shown.text = document(&envelope("PolicyTest", &items, &shown.notes), output),
        Output::Csv => {
            let columns =
                ["raisedS", "clearedS", "gpu", "container", "would", "highestAfterwards", "fullAfterS", "reason"];
            shown.text = csv(&columns, &items);
        }
    }
    Ok(shown)
}

pub(super) fn judge(policy: &Policy, rows: &[Row], options: &Options, episodes: Vec<Episode>) -> Vec<Alarm> {
    let mut acts: Vec<(f64, String)> = Vec::new();
    episodes
        .into_iter()
        .map(|episode| {
            let until = episode.raised_s + 1.5 * policy.prediction.horizon.as_secs_f64();
            let levels = levels(rows, options, &episode.gpu);
            let after: Vec<&(f64, f64)> =
                levels.iter().filter(|(t_s, _)| (episode.raised_s..=until).contains(t_s)).collect();
            let highest = after.iter().map(|(_, share)| *share).reduce(f64::max);
            let full = after.iter().find(|(_, share)| *share >= FULL).map(|(t_s, _)| t_s - episode.raised_s);
            let (would, did) = would(policy, &episode, &mut acts);
            let Episode { gpu, culprit, raised_s, cleared_s, reason } = episode;
            Alarm {
                raised_s,
                cleared_s,
                container: culprit,
                gpu,
                would,
                did,
                highest_afterwards: highest,
                full_after_s: full,
                reason,
            }
        })
        .collect()
}

/// What the policy would have made of an alarm, given what it did before. Which of several rungs helps is known only in a
/// cluster: they are all named.
fn would(policy: &Policy, episode: &Episode, acts: &mut Vec<(f64, String)>) -> (String, Did) {
    let rungs = ladder::allowed(&policy.actions);
    let acting: Vec<Rung> = rungs.iter().copied().filter(|rung| *rung != Rung::Notify).collect();
    let notify = if policy.actions.notify { "Notify" } else { "nothing" };
    if policy.mode == Mode::Observe {
        return (format!("{notify} (mode Observe)"), Did::Tell);
    }
    if acting.is_empty() {
        return (notify.to_owned(), Did::Tell);
    }
    let dry = if policy.mode == Mode::DryRun { " (dry run)" } else { "" };
    let (strong, mild): (Vec<Rung>, Vec<Rung>) = acting.iter().copied().partition(|rung| {
        ladder::disrupts(*rung) || *rung == Rung::Checkpoint && acting.iter().any(|rung| ladder::disrupts(*rung))
    });
    if strong.is_empty() {
        return (ladder::names(&mild) + dry, Did::Act);
    }
    let disruption = &policy.disruption;
    let earlier: Vec<f64> = acts.iter().filter(|(_, who)| *who == episode.culprit).map(|(at, _)| *at).collect();
    let within = |seconds: f64| acts.iter().filter(|(at, _)| episode.raised_s - at < seconds).count();
    let doublings = u32::try_from(earlier.len()).unwrap_or(u32::MAX).saturating_sub(1).min(16);
    let cooldown = (disruption.cooldown.as_secs_f64() * f64::from(1 << doublings)).min(6.0 * 3600.0);
    let today = earlier.iter().filter(|at| episode.raised_s - **at < 86_400.0).count();
    let held = if earlier.last().is_some_and(|last| episode.raised_s - last < cooldown) {
        Some("cool-down")
    } else if today >= disruption.max_attempts as usize {
        Some("maxAttempts")
    } else if within(3600.0) >= disruption.max_per_hour as usize {
        Some("maxPerHour")
    } else {
        None
    };
    match held {
        Some(why) if mild.is_empty() => (format!("{notify}, {} held by {why}", ladder::names(&strong)), Did::Held),
        Some(why) => (format!("{}{dry}; {} held by {why}", ladder::names(&mild), ladder::names(&strong)), Did::Act),
        None => {
            // Where a milder rung stands before them it is not known whether one of these would have been taken.
            if mild.is_empty() {
                acts.push((episode.raised_s, episode.culprit.clone()));
            }
            (ladder::names(&acting) + dry, Did::Act)
        }
    }
}

/// Share of its capacity that a device holds, by time: the newest reading of each of its containers, added up.
fn levels(rows: &[Row], options: &Options, gpu: &str) -> Vec<(f64, f64)> {
    let (mut newest, mut capacity) = (std::collections::BTreeMap::new(), options.capacity);
    let mut levels: Vec<(f64, f64)> = Vec::new();
    for row in rows.iter().filter(|row| row.gpu == gpu) {
        capacity = options.capacity.or(row.capacity).or(capacity);
        newest.insert(row.container.as_str(), (row.t_s, row.used));
        // Who has no rows any more is gone, as in the replay itself.
        newest.retain(|_, (t_s, _)| row.t_s - *t_s <= 60.0);
        if let Some(capacity) = capacity.filter(|capacity| *capacity > Bytes::ZERO) {
            let used: Bytes = newest.values().map(|(_, used)| *used).sum();
            levels.push((row.t_s, used.as_f64() / capacity.as_f64()));
        }
    }
    levels
}

/// Moments at which a device became full.
pub(super) fn crossings(rows: &[Row], options: &Options) -> Vec<(String, f64)> {
    let gpus: std::collections::BTreeSet<&str> = rows.iter().map(|row| row.gpu.as_str()).collect();
    let mut found = Vec::new();
    for gpu in gpus {
        let mut was_full = false;
        for (t_s, share) in levels(rows, options, gpu) {
            if share >= FULL && !was_full {
                found.push((gpu.to_owned(), t_s));
            }
            // Full until it was clearly not: a device at the edge is one crossing, not a hundred.
            was_full = share >= FULL || (was_full && share > 0.9 * FULL);
        }
    }
    found
}

fn page(policy: &Policy, alarms: &[Alarm], fulfilled: usize, missed: usize, style: Style) -> String {
    let mut out = String::new();
    let rungs = ladder::allowed(&policy.actions);
    let acting: Vec<Rung> = rungs.iter().copied().filter(|rung| *rung != Rung::Notify).collect();
    let actions: Vec<String> = [policy.actions.notify.then(|| "Notify".to_owned()), Some(ladder::names(&acting))]
        .into_iter()
        .flatten()
        .filter(|name| !name.is_empty())
        .collect();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "Policy {}: mode {:?}, actions {}, {} % within {} held for {}\n",
        policy.key.name,
        policy.mode,
        if actions.is_empty() { "none".to_owned() } else { actions.join(" and ") },
        (policy.prediction.act_probability * 100.0).round(),
        time(policy.prediction.horizon.as_secs_f64()),
        time(policy.prediction.act_for.as_secs_f64())
    );
    out += &listing(alarms, style);
    let verdict = format!(
        "{} alarm{}: {fulfilled} before the device was full, {} where it never was; full without an alarm before it: {missed}.",
        alarms.len(),
        if alarms.len() == 1 { "" } else { "s" },
        alarms.len() - fulfilled
    );
    out += &wrap(&verdict, 110, 0);
    out.push('\n');
    out += not_played(&acting);
    out
}

/// What a recording does not know of these rungs.
pub(super) fn not_played(acting: &[Rung]) -> &'static str {
    match acting {
        [] => "",
        [Rung::Evict] => {
            "Not played: PodDisruptionBudgets, minAvailable, protected kinds, and how the data would go on after an action.\n"
        }
        _ => {
            "Not played: which rung has a lever on the workload and would help, PodDisruptionBudgets, minAvailable, protected\n\
             kinds, and how the data would go on after an action.\n"
        }
    }
}

/// Alarms, a line each.
pub(super) fn listing(alarms: &[Alarm], style: Style) -> String {
    let mut out = String::new();
    let rows: Vec<Vec<Cell>> = alarms
        .iter()
        .map(|alarm| {
            let full = alarm.full_after_s.map_or("never".to_owned(), |after| format!("{} later", time(after)));
            vec![
                format!("{:.0}s", alarm.raised_s).into(),
                alarm.cleared_s.map_or("-".to_owned(), |at| format!("{at:.0}s")).into(),
                alarm.container.as_str().into(),
                alarm.would.as_str().into(),
                percent(alarm.highest_afterwards).into(),
                full.into(),
                alarm.reason.as_str().into(),
            ]
        })
        .collect();
    if !rows.is_empty() {
        let titles = [">RAISED", ">CLEARED", "CONTAINER", "WOULD", ">HIGHEST", "FULL", "REASON"];
        out += &table(&titles, &rows, style);
        out.push('\n');
    }
    out
}

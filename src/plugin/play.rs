//! A policy played over recorded data, the same for `policy test` and `policy simulate`. Flows in: a policy, rows, and which of
//! them it is asked about. Flows out: each alarm of what the policy governs, what it would have made of it, and what the
//! recording shows came next. Pure.

use std::collections::{BTreeMap, BTreeSet};

use gpumem_engine::policy::{Mode, Policy, Rung};
use gpumem_engine::quantity::Bytes;
use gpumem_engine::replay::prometheus::NOBODY;
use gpumem_engine::replay::{self, Episode, Options, Row};
use serde::Serialize;

use super::ladder;
use crate::cli::replay::{Unjudged, never_judged};

/// A device this full is out of memory for a job that grows: the next step or a fragment does the rest.
const FULL: f64 = 0.97;

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

/// What is played.
#[derive(Clone, Copy, Debug)]
pub(super) struct Data<'a> {
    /// Readings, as the policy sees them.
    pub rows: &'a [Row],
    /// How they are judged.
    pub options: &'a Options,
    /// OOMs that were counted: when, and whose.
    pub ooms: &'a [(f64, String)],
    /// Whether a container's name carries namespace and pod, as it does where it comes from Prometheus.
    pub is_named: bool,
    /// Only pods of this name.
    pub pods: Option<&'a str>,
}

/// What it came to.
#[derive(Clone, Debug, Default)]
pub(super) struct Played {
    /// Alarms of what the policy governs.
    pub alarms: Vec<Alarm>,
    /// Times memory was full with no alarm before it.
    pub missed: usize,
    /// Containers that the policy governs.
    pub containers: usize,
    /// GPUs that they are on.
    pub gpus: usize,
    /// Of those containers, what was never judged.
    pub unjudged: Unjudged,
}

impl Played {
    /// Says what was not played or not judged, which is no "all is well".
    pub fn notes(&self, policy: &Policy) -> Vec<String> {
        let name = &policy.key.name;
        if self.containers == 0 && self.unjudged.why.is_empty() {
            let why = "nothing in the recording is governed by it (its namespace, containers, or --pods)";
            return vec![format!("policy {name}: {why}")];
        }
        self.unjudged.why.iter().map(|why| format!("policy {name}: {why}")).collect()
    }
}

/// Plays `policy` over `data`.
pub(super) fn play(policy: &Policy, data: Data<'_>) -> Played {
    let Data { rows, options, ooms, is_named, pods } = data;
    let governs = |container: &str| governs(policy, pods, container, is_named);
    // Every row is judged, since neighbours fill the device too; alarms are only of what is governed.
    let evaluations = replay::evaluate(rows, options);
    let unjudged = never_judged(rows, &evaluations, options, governs);
    let mut episodes = replay::episodes(&evaluations);
    episodes.retain(|episode| governs(&episode.culprit));
    let mut alarms = judge(policy, rows, options, episodes);
    let window = 1.5 * policy.prediction.horizon.as_secs_f64();
    for alarm in &mut alarms {
        // A counted OOM is the truth, and may come before a sample saw the device full.
        let counted = ooms
            .iter()
            .find(|(at, who)| *who == alarm.container && (alarm.raised_s..=alarm.raised_s + window).contains(at));
        let after = counted.map(|(at, _)| at - alarm.raised_s);
        alarm.full_after_s = [alarm.full_after_s, after].into_iter().flatten().reduce(f64::min);
    }
    let is_seen = |gpu: Option<&str>, who: Option<&str>, at: f64| {
        alarms.iter().any(|alarm| {
            gpu.is_none_or(|gpu| gpu == alarm.gpu)
                && who.is_none_or(|who| who == alarm.container)
                && alarm.full_after_s.is_some()
                && (alarm.raised_s..=alarm.raised_s + window).contains(&at)
        })
    };
    let governed: Vec<&Row> = rows.iter().filter(|row| governs(&row.container)).collect();
    let gpus: BTreeSet<&str> = governed.iter().map(|row| row.gpu.as_str()).collect();
    let missed = if ooms.is_empty() {
        let full = crossings(rows, options).into_iter().filter(|(gpu, _)| gpus.contains(gpu.as_str()));
        full.filter(|(gpu, at)| !is_seen(Some(gpu), None, *at)).count()
    } else {
        let ooms = ooms.iter().filter(|(_, who)| governs(who));
        ooms.filter(|(at, who)| !is_seen(None, Some(who), *at)).count()
    };
    let containers: BTreeSet<&str> = governed.iter().map(|row| row.container.as_str()).collect();
    let (containers, gpus) = (containers.len(), gpus.len());
    Played { alarms, missed, containers, gpus, unjudged }
}

fn judge(policy: &Policy, rows: &[Row], options: &Options, episodes: Vec<Episode>) -> Vec<Alarm> {
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
    let (mut newest, mut capacity) = (BTreeMap::new(), options.capacity);
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
fn crossings(rows: &[Row], options: &Options) -> Vec<(String, f64)> {
    let gpus: BTreeSet<&str> = rows.iter().map(|row| row.gpu.as_str()).collect();
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

/// Whether the policy speaks of a container, as far as its name tells: namespace and pod stand in it where it comes from
/// Prometheus.
fn governs(policy: &Policy, pods: Option<&str>, name: &str, is_named: bool) -> bool {
    if name == NOBODY {
        return false;
    }
    let mut parts = name.rsplitn(3, '/');
    let container = parts.next().unwrap_or_default();
    let pod = parts.next();
    let namespace = parts.next();
    if is_named && !policy.key.namespace.is_empty() && namespace.is_some_and(|found| found != policy.key.namespace) {
        return false;
    }
    let is_container = policy.containers.is_empty() || policy.containers.iter().any(|wanted| wanted == container);
    is_container && pods.is_none_or(|pattern| matches(pattern, pod.unwrap_or(container)))
}

/// Whether `text` is what `pattern` says; a `*` stands for anything.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, text, is) in [
            ("train", "train", true),
            ("train", "trainer", false),
            ("train-*", "train-0", true),
            ("*-0", "train-0", true),
            ("a*b*c", "a-bb-c", true),
            ("a*b*c", "a-c", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, text), is, "{pattern} {text}");
        }
    }
}

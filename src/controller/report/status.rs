//! A policy's status. Pure: the same findings give the same status, so that it is written only when something changed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gpumem_engine::decision::{Decision, View};
use gpumem_engine::forecast::{Forecast, Outlook};
use gpumem_engine::pacing::{Brake, Stamp};
use gpumem_engine::risk::Level;

use super::condition::{condition, findings};
use crate::api::policy::{ActionRecord, GpuMemoryPolicyStatus, Risk, TargetCounts, WorkloadStatus};
use crate::controller::intent::Done;
use crate::controller::intent::Untold;
use crate::controller::observe::Observed;
use crate::text::shorten;

/// Workloads listed; the rest is in the metrics.
const MAX_WORKLOADS: usize = 20;
/// Actions listed.
const MAX_ACTIONS: usize = 10;

/// How two statuses differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Not at all, or only in sentences whose numbers move all the time.
    None,
    /// In counts or in how soon an OOM is expected.
    Minor,
    /// In what a person or a program would act on.
    Major,
}

/// The status that follows from a round. `previous` gives the actions so far and the moments of transition.
pub fn build(
    now: Stamp,
    one: &Observed,
    decisions: &[Decision],
    done: &[&Done],
    brake: &Brake,
    previous: &GpuMemoryPolicyStatus,
) -> GpuMemoryPolicyStatus {
    let recent_actions = recent(done, &previous.recent_actions);
    let generation = one.object.metadata.generation;
    let conditions = findings(one, decisions, done, brake, &recent_actions)
        .into_iter()
        .map(|(kind, finding)| condition(kind, finding, generation, &previous.conditions, now))
        .collect();
    GpuMemoryPolicyStatus {
        observed_generation: generation,
        conditions,
        targets: counts(&one.views),
        workloads: workloads(&one.views),
        recent_actions,
    }
}

/// A status with actions that an earlier leader had no time to add.
pub fn with<'a>(status: &GpuMemoryPolicyStatus, late: impl Iterator<Item = &'a Untold>) -> GpuMemoryPolicyStatus {
    let mut status = status.clone();
    status.recent_actions = add(late.map(Untold::record), &status.recent_actions);
    status
}

/// How `next` differs from `previous`.
pub fn difference(previous: &GpuMemoryPolicyStatus, next: &GpuMemoryPolicyStatus) -> Difference {
    let verdicts = |status: &GpuMemoryPolicyStatus| -> Vec<_> {
        let conditions = status.conditions.iter();
        conditions.map(|c| (c.type_.clone(), c.status.clone(), c.reason.clone(), c.observed_generation)).collect()
    };
    let risks = |status: &GpuMemoryPolicyStatus| -> BTreeMap<_, _> {
        status.workloads.iter().map(|workload| (workload.workload.clone(), workload.risk)).collect()
    };
    let major = |status: &GpuMemoryPolicyStatus| {
        (status.observed_generation, verdicts(status), risks(status), status.recent_actions.clone())
    };
    if major(previous) != major(next) {
        return Difference::Major;
    }
    let numbers = |status: &GpuMemoryPolicyStatus| {
        let workloads = status.workloads.iter();
        let soon: Vec<_> =
            workloads.map(|w| (w.workload.clone(), w.pod.clone(), w.container.clone(), w.seconds_to_oom)).collect();
        let messages: Vec<_> = status.conditions.iter().map(|condition| condition.message.clone()).collect();
        (status.targets, soon, messages)
    };
    if numbers(previous) == numbers(next) { Difference::None } else { Difference::Minor }
}

/// Newest first. The same thing said of the same pod again takes the place of the last time, so that a refusal that is
/// repeated does not push out everything else.
fn recent(done: &[&Done], previous: &[ActionRecord]) -> Vec<ActionRecord> {
    add(done.iter().map(|done| done.record()), previous)
}

fn add(new: impl Iterator<Item = ActionRecord>, previous: &[ActionRecord]) -> Vec<ActionRecord> {
    let mut records = previous.to_vec();
    for record in new {
        records.retain(|known| {
            let is_same =
                known.pod_uid == record.pod_uid && known.action == record.action && known.outcome == record.outcome;
            // Once it is known what became of an action, that nobody knew is no news.
            known.id != record.id && !is_same
        });
        records.insert(0, record);
    }
    records.truncate(MAX_ACTIONS);
    records
}

fn counts(views: &[View]) -> TargetCounts {
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let workloads: BTreeSet<_> = views.iter().map(|view| &view.workload.uid).collect();
    TargetCounts {
        pods: count(views.len()),
        workloads: count(workloads.len()),
        at_risk: count(views.iter().filter(|view| view.level == Level::High).count()),
    }
}

/// Each workload by its worst pod, worst first.
fn workloads(views: &[View]) -> Vec<WorkloadStatus> {
    let badness = |view: &View| {
        let soon = view.expected_in().map_or(u64::MAX, |time| time.as_secs());
        (std::cmp::Reverse(view.level), soon, view.workload.clone(), view.pod.name.clone())
    };
    let mut sorted: Vec<&View> = views.iter().collect();
    sorted.sort_by_key(|view| badness(view));
    let mut seen = BTreeSet::new();
    let worst = sorted.into_iter().filter(|view| seen.insert(view.workload.uid.clone())).take(MAX_WORKLOADS);
    worst
        .map(|view| WorkloadStatus {
            workload: (&view.workload).into(),
            risk: match view.level {
                Level::Unknown => Risk::Unknown,
                Level::Low => Risk::Low,
                Level::Elevated => Risk::Elevated,
                Level::High => Risk::High,
            },
            pod: Some(view.pod.name.clone()),
            container: Some(view.container.clone()),
            seconds_to_oom: view.expected_in().map(coarse),
            reason: shorten(&view.forecast.reason, 300),
        })
        .collect()
}

/// Seconds, rounded so that a countdown is not written each second: to 10 s within a minute or two, then to minutes, five
/// minutes and hours.
pub fn coarse(time: Duration) -> i64 {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX / 2);
    let step = match seconds {
        ..120 => 10,
        120..900 => 60,
        900..7200 => 300,
        7200..86_400 => 3600,
        _ => 86_400,
    };
    (seconds + step / 2) / step * step
}

/// When an OOM is expected, in words.
pub fn expected(time: Option<Duration>) -> String {
    match time.map(coarse) {
        None => "within the horizon, at no time that could be named".to_owned(),
        Some(seconds @ ..120) => format!("in about {seconds} s"),
        Some(seconds @ 120..7200) => format!("in about {} min", seconds / 60),
        Some(seconds @ 7200..172_800) => format!("in about {} h", seconds / 3600),
        Some(seconds) => format!("in about {} days", seconds / 86_400),
    }
}

/// Median time to the OOM of a forecast.
pub fn median(forecast: &Forecast) -> Option<Duration> {
    match forecast.outlook {
        Outlook::Known { time_to_oom, .. } => time_to_oom.map(|time| time.q50),
        Outlook::Unknown { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_countdown_of_an_hour_is_written_a_few_dozen_times() {
        let written: BTreeSet<i64> = (0..3600).map(|second| coarse(Duration::from_secs(second))).collect();
        assert!(written.len() < 40, "{}", written.len());
    }

    #[test]
    fn times_read_as_people_say_them() {
        let words = |seconds| expected(Some(Duration::from_secs(seconds)));
        assert_eq!(words(38), "in about 40 s");
        assert_eq!(words(299), "in about 5 min");
        assert_eq!(words(3700), "in about 60 min");
        assert_eq!(words(90_000), "in about 24 h");
        assert_eq!(words(u64::MAX), expected(Some(Duration::MAX)));
        assert!(expected(None).contains("within the horizon"));
    }
}

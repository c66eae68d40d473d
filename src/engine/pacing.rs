//! Restraint: how much was done lately, and whether one more may be done now.
//!
//! Flows in: explicit records of what was done, all of them read from API objects. Flows out: `Ok`, or the [`Hold`] that
//! stands in the way. Nothing here remembers anything: after a restart the same records give the same answers.

use std::collections::BTreeMap;
use std::ops::Add;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::attempts::Loop;
use crate::decision::{Hold, StepKind};
use crate::identity::{DeviceKey, PodUid};
use crate::policy::{Disruption, Policy, PolicyKey};
use crate::quantity::Bytes;

pub use breaker::{Breaker, Cause, Ended, Open};
pub use budget::{AdminBudgets, Allowance, Limit};

mod breaker;
mod budget;

/// A moment on the wall clock, in whole seconds since 1970. Records outlive every process, so a monotonic clock will not
/// do; whoever compares records makes sure that a clock set back can only delay an action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stamp(pub i64);

impl Stamp {
    /// Time passed since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_secs(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl Add<Duration> for Stamp {
    type Output = Self;
    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(later.as_secs()).unwrap_or(i64::MAX)))
    }
}

/// UID of the object that stands for a workload: the top owner, or the pod itself where it has none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkloadUid(pub String);

/// An action that is on its way, or that took a pod away and whose replacement may still be due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deed {
    /// Policy it was done for.
    pub policy: PolicyKey,
    /// Namespace of the pod.
    pub namespace: String,
    /// Workload it was done to.
    pub workload: WorkloadUid,
    /// Pod it was done to.
    pub pod: PodUid,
    /// Node of the pod. Where a whole gang stops, its other pods count for this node as well: that can only delay.
    pub node: String,
    /// Device it was to relieve.
    pub device: DeviceKey,
    /// What was done.
    pub step: StepKind,
    /// Pods that stop by it, this one included; 0 where none does.
    pub blast: u32,
    /// When.
    pub at: Stamp,
    /// Whether it was only tried, with `dryRun=All`.
    pub dry_run: bool,
    /// How far it got.
    pub state: DeedState,
}

/// How far a [`Deed`] got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeedState {
    /// Recorded; whether the call was made is not known yet.
    Open,
    /// The pod was taken away; the workload has not got it back yet.
    Recovering,
    /// The workload is whole again.
    Settled,
}

/// What is remembered of one workload, newest last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Its past actions.
    pub past: Vec<Past>,
    /// The loop of OOMs it is in.
    pub restart_loop: Option<Loop>,
}

/// One past action on a workload. What older records do not say is absent, and decides nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Past {
    /// When.
    pub at: Stamp,
    /// Whether it was only tried, with `dryRun=All`.
    pub dry_run: bool,
    /// What came of it.
    pub result: PastResult,
    /// What was done.
    pub step: Option<StepKind>,
    /// The pod it was done to.
    pub pod: Option<PodUid>,
    /// How much memory the container had then.
    pub used: Option<Bytes>,
    /// How long the container had run by then.
    pub age: Option<Duration>,
}

impl Past {
    /// One of which only this is known.
    pub const fn new(at: Stamp, dry_run: bool, result: PastResult) -> Self {
        Self { at, dry_run, result, step: None, pod: None, used: None, age: None }
    }
}

/// What came of a past action, as far as pacing cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PastResult {
    /// A pod was taken away, or would have been.
    Disrupted,
    /// It was done, and took no pod away: a request, its withdrawal, more replicas, a resumption.
    Harmless,
    /// The API refused; the next call waits, longer with each refusal in a row.
    Refused(Refusal),
    /// The pod had gone by itself, or the call was withdrawn.
    Moot,
}

/// Why the API refused: a closed set, fit for a condition or a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// A PodDisruptionBudget allows no disruption now.
    BlockedByBudget,
    /// The PodDisruptionBudget's status is behind its spec.
    BudgetNotObserved,
    /// More than one PodDisruptionBudget selects the pod.
    SeveralBudgets,
    /// The PodDisruptionBudget's own state is broken.
    BudgetInvalid,
    /// The API server sheds load.
    Throttled,
    /// We lack the right.
    NotPermitted,
    /// Any other refusal.
    Rejected,
}

impl Refusal {
    /// Whether it says that something is wrong with us or the cluster, which the breaker counts; a budget that is in the way
    /// is what budgets are for.
    pub const fn is_failure(self) -> bool {
        match self {
            Self::BlockedByBudget | Self::BudgetNotObserved | Self::SeveralBudgets | Self::BudgetInvalid => false,
            Self::Throttled | Self::NotPermitted | Self::Rejected => true,
        }
    }

    /// Name for a condition's reason or a metric label.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::BlockedByBudget => "BlockedByBudget",
            Self::BudgetNotObserved => "BudgetNotObserved",
            Self::SeveralBudgets => "SeveralBudgets",
            Self::BudgetInvalid => "BudgetInvalid",
            Self::Throttled => "Throttled",
            Self::NotPermitted => "NotPermitted",
            Self::Rejected => "Rejected",
        }
    }
}

/// Everything that was done lately, as one decision sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Deeds {
    /// When this process began to lead.
    pub leading_since: Stamp,
    /// The brake that stands above all policies.
    pub brake: Brake,
    /// Budgets that stand above all policies.
    pub admin: AdminBudgets,
    /// Deeds of all policies, newest last.
    pub deeds: Vec<Deed>,
    /// What is remembered of each workload. A workload that is not listed was never acted on.
    pub histories: BTreeMap<WorkloadUid, History>,
}

/// The brake that stands above all policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Brake {
    /// Actions may be taken.
    #[default]
    Released,
    /// Somebody paused all actions, and why.
    Paused(String),
    /// What was done before cannot be read, so nothing may be added.
    Unreadable(String),
    /// An earlier action is not settled yet, its id.
    Unsettled(String),
    /// Much seems wrong at once: only alerts until then.
    BreakerOpen {
        /// What seems wrong.
        why: String,
        /// From then on one action is let through.
        until: Stamp,
    },
    /// The breaker was open, and lets one action through.
    HalfOpen {
        /// Since when: a deed that is not older was that one.
        since: Stamp,
    },
}

/// Days to look back for attempts.
pub(crate) const DAY: Duration = Duration::from_hours(24);
/// A policy's hourly budget.
const HOUR: Duration = Duration::from_hours(1);
/// Longest rest of a workload.
const LONGEST_COOLDOWN: Duration = Duration::from_hours(6);
/// First wait after a refusal: what the API server itself asks for while a PodDisruptionBudget is not observed yet.
const FIRST_BACK_OFF: Duration = Duration::from_secs(10);
/// Longest wait after refusals in a row: a risk may be minutes away.
const LONGEST_BACK_OFF: Duration = Duration::from_mins(5);
/// While a pod that was taken off a device ends, its neighbours' forecasts are about the past.
const RELIEF: Duration = Duration::from_mins(2);
/// A replacement has to be Ready this long before the next action, unless the policy's cool-down is shorter.
const LONGEST_SETTLE: Duration = Duration::from_mins(5);

impl Disruption {
    /// How long a workload has to be whole again before it counts as recovered.
    pub fn settle(&self) -> Duration {
        self.cooldown.min(LONGEST_SETTLE)
    }
}

impl History {
    /// Actions within the 24 hours before `now` that took a pod away.
    pub fn attempts(&self, now: Stamp, dry_run: bool) -> u32 {
        let attempts = self.disrupted(dry_run).filter(|past| now.since(past.at) < DAY).count();
        u32::try_from(attempts).unwrap_or(u32::MAX)
    }

    /// When the next action may be, as far as the cool-down goes; `None` when none is due.
    pub fn cooldown_ends(&self, now: Stamp, disruption: &Disruption, dry_run: bool) -> Option<Stamp> {
        let newest = self.disrupted(dry_run).map(|past| past.at).max()?;
        let repeats = self.attempts(now, dry_run).saturating_sub(1).min(16);
        let rest = disruption.cooldown.saturating_mul(1 << repeats).min(LONGEST_COOLDOWN.max(disruption.cooldown));
        Some(newest + rest).filter(|ends| *ends > now)
    }

    /// When the next call may be, as far as refusals go, and what the last one was; `None` when none is due.
    pub fn back_off_ends(&self, now: Stamp, dry_run: bool) -> Option<(Stamp, Option<Refusal>)> {
        let same = || self.past.iter().filter(|past| past.dry_run == dry_run).rev();
        let newest = same().next()?;
        let in_a_row = same().take_while(|past| matches!(past.result, PastResult::Refused(_))).count().clamp(1, 16);
        let wait = FIRST_BACK_OFF.saturating_mul(1 << (in_a_row - 1)).min(LONGEST_BACK_OFF);
        let refusal = match newest.result {
            PastResult::Refused(refusal) => Some(refusal),
            PastResult::Moot => None,
            PastResult::Disrupted | PastResult::Harmless => return None,
        };
        Some((newest.at + wait, refusal)).filter(|(ends, _)| *ends > now)
    }

    fn disrupted(&self, dry_run: bool) -> impl Iterator<Item = &Past> {
        self.past.iter().filter(move |past| past.dry_run == dry_run && past.result == PastResult::Disrupted)
    }
}

/// What an action would be done to.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Namespace of the pod.
    pub namespace: &'a str,
    /// Its node.
    pub node: &'a str,
    /// The workload.
    pub workload: &'a WorkloadUid,
    /// The device to relieve.
    pub device: &'a DeviceKey,
    /// Pods that would stop: every budget counts these.
    pub blast: u32,
    /// The workload's pods.
    pub group: &'a Group,
    /// Whether the pod itself is Ready, and so would be missed.
    pub pod_ready: bool,
}

/// The pods of one workload, read from the API for this decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Pods it should have.
    pub desired: u32,
    /// Pods that are Ready.
    pub ready: u32,
    /// Whether a rollout is in progress.
    pub rolling_out: bool,
    /// PodDisruptionBudgets that select the pod.
    pub budgets: u32,
}

impl Group {
    /// Whether every pod is there.
    pub fn is_whole(&self) -> bool {
        self.ready >= self.desired
    }
}

impl Deeds {
    /// Whether one more action may be taken now for `policy`; otherwise the first thing in the way.
    pub fn permit(&self, now: Stamp, policy: &Policy, dry_run: bool, candidate: Candidate<'_>) -> Result<(), Hold> {
        self.workload_is_free(candidate.workload)?;
        check_group(&policy.disruption, &candidate)?;
        self.workload_is_rested(now, &policy.disruption, dry_run, candidate.workload)?;
        self.device_is_not_being_relieved(now, dry_run, candidate.device)?;
        self.policy_has_budget(now, policy, dry_run, candidate.blast)?;
        self.admin.allow(now, &self.deeds, dry_run, (candidate.namespace, candidate.node, candidate.blast))?;
        // The ledger says so as well, while it remembers the deed; the profile remembers longer.
        let touched = self.histories.get(candidate.workload).is_some_and(|history| history.attempts(now, dry_run) > 0);
        if touched && !candidate.group.is_whole() {
            return Err(Hold::ReplacementNotReady { ready: candidate.group.ready, desired: candidate.group.desired });
        }
        Ok(())
    }

    /// The same for an action that takes no pod away: budgets do not count it, and its workload is left alone all the same
    /// while it has not recovered or rests.
    pub fn permit_harmless(
        &self,
        now: Stamp,
        policy: &Policy,
        dry_run: bool,
        workload: &WorkloadUid,
        group: &Group,
    ) -> Result<(), Hold> {
        self.workload_is_free(workload)?;
        if group.rolling_out {
            return Err(Hold::RolloutInProgress);
        }
        self.workload_is_rested(now, &policy.disruption, dry_run, workload)
    }

    fn workload_is_free(&self, workload: &WorkloadUid) -> Result<(), Hold> {
        let in_flight = self.deeds.iter().any(|deed| {
            deed.workload == *workload
                && match deed.state {
                    DeedState::Open => true,
                    // A dry run took nothing away.
                    DeedState::Recovering => !deed.dry_run,
                    DeedState::Settled => false,
                }
        });
        if in_flight { Err(Hold::InFlight) } else { Ok(()) }
    }

    fn workload_is_rested(
        &self,
        now: Stamp,
        disruption: &Disruption,
        dry_run: bool,
        workload: &WorkloadUid,
    ) -> Result<(), Hold> {
        let Some(history) = self.histories.get(workload) else { return Ok(()) };
        let attempts = history.attempts(now, dry_run);
        if attempts >= disruption.max_attempts {
            return Err(Hold::AttemptsExhausted { attempts });
        }
        if let Some(until) = history.cooldown_ends(now, disruption, dry_run) {
            return Err(Hold::Cooldown { until });
        }
        let back_off = history.back_off_ends(now, dry_run);
        back_off.map_or(Ok(()), |(until, refusal)| Err(Hold::BackOff { until, refusal }))
    }

    fn device_is_not_being_relieved(&self, now: Stamp, dry_run: bool, device: &DeviceKey) -> Result<(), Hold> {
        let relieving = self.deeds.iter().any(|deed| {
            deed.device == *device
                && deed.blast > 0
                && deed.dry_run == dry_run
                && (deed.state == DeedState::Open || now.since(deed.at) < RELIEF)
        });
        if relieving { Err(Hold::DeviceBeingRelieved) } else { Ok(()) }
    }

    fn policy_has_budget(&self, now: Stamp, policy: &Policy, dry_run: bool, blast: u32) -> Result<(), Hold> {
        let Disruption { max_concurrent, max_per_hour, .. } = policy.disruption;
        let least = max_concurrent.min(max_per_hour);
        if blast > least {
            return Err(Hold::BlastExceedsBudget { stops: blast, max: least });
        }
        let own = || self.deeds.iter().filter(|deed| deed.policy == policy.key && deed.dry_run == dry_run);
        if budget::concurrent(own()).saturating_add(blast) > max_concurrent {
            return Err(Hold::ConcurrentBudget { max: max_concurrent });
        }
        if budget::hourly(now, own()).saturating_add(blast) > max_per_hour {
            return Err(Hold::HourlyBudget { max: max_per_hour });
        }
        Ok(())
    }
}

fn check_group(disruption: &Disruption, candidate: &Candidate<'_>) -> Result<(), Hold> {
    let group = candidate.group;
    if group.rolling_out {
        return Err(Hold::RolloutInProgress);
    }
    if group.budgets > 1 {
        return Err(Hold::SeveralBudgets { budgets: group.budgets });
    }
    if disruption.require_budget && group.budgets == 0 {
        return Err(Hold::NoBudget);
    }
    // Of a gang nobody knows which are Ready; of a single pod it is known.
    let missed = if candidate.blast <= 1 { u32::from(candidate.pod_ready) } else { candidate.blast };
    let remaining = group.ready.saturating_sub(missed);
    if remaining < disruption.min_available {
        return Err(Hold::MinAvailable { remaining, min: disruption.min_available });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disruption() -> Disruption {
        Disruption { protect: Vec::new(), ..Disruption::default() }
    }

    fn past(at: i64, result: PastResult) -> Past {
        Past::new(Stamp(at), false, result)
    }

    #[test]
    fn the_cool_down_doubles_with_each_attempt_up_to_six_hours() {
        let mut history = History::default();
        assert_eq!(history.cooldown_ends(Stamp(0), &disruption(), false), None);
        for (attempt, rest) in [900, 1800, 3600, 7200, 14_400, 21_600, 21_600].into_iter().enumerate() {
            let at = i64::try_from(attempt).unwrap() * 100;
            history.past.push(past(at, PastResult::Disrupted));
            assert_eq!(history.cooldown_ends(Stamp(at), &disruption(), false), Some(Stamp(at + rest)));
            assert_eq!(history.cooldown_ends(Stamp(at + rest), &disruption(), false), None);
        }
    }

    #[test]
    fn refusals_in_a_row_wait_longer_and_a_success_ends_the_row() {
        let refused = |at| past(at, PastResult::Refused(Refusal::BlockedByBudget));
        let ends = |history: &History, now| history.back_off_ends(Stamp(now), false).map(|(until, _)| until.0);
        let mut history = History { past: vec![refused(0)], ..History::default() };
        let blocked = Some((Stamp(10), Some(Refusal::BlockedByBudget)));
        assert_eq!(history.back_off_ends(Stamp(0), false), blocked);
        history.past.push(refused(10));
        assert_eq!(ends(&history, 10), Some(30));
        for second in 31..60 {
            history.past.push(refused(second));
        }
        assert_eq!(ends(&history, 59), Some(59 + 300));
        history.past.push(past(60, PastResult::Disrupted));
        assert_eq!(ends(&history, 60), None);
        history.past.push(past(61, PastResult::Moot));
        assert_eq!(ends(&history, 61), Some(71));
    }

    #[test]
    fn attempts_are_forgotten_after_a_day_and_dry_runs_count_apart() {
        let mut history = History {
            past: vec![past(0, PastResult::Disrupted), past(100, PastResult::Disrupted)],
            ..History::default()
        };
        history.past.push(Past { dry_run: true, ..past(200, PastResult::Disrupted) });
        assert_eq!(history.attempts(Stamp(86_399), false), 2);
        assert_eq!(history.attempts(Stamp(86_400), false), 1);
        assert_eq!(history.attempts(Stamp(86_400), true), 1);
    }

    #[test]
    fn a_clock_set_back_delays_and_never_hastens() {
        let history = History { past: vec![past(10_000, PastResult::Disrupted)], ..History::default() };
        assert_eq!(history.attempts(Stamp(5_000), false), 1);
        assert_eq!(history.attempts(Stamp(-200_000), false), 1, "set back by days");
        assert_eq!(history.cooldown_ends(Stamp(5_000), &disruption(), false), Some(Stamp(10_900)));
    }

    #[test]
    fn what_remains_after_the_action_counts_and_not_what_is_there_now() {
        let (workload, device) = (WorkloadUid("w".into()), DeviceKey::whole("g"));
        let check = |ready, pod_ready, blast| {
            let group = &Group { desired: 2, ready, rolling_out: false, budgets: 1 };
            let (workload, device) = (&workload, &device);
            let candidate = Candidate { namespace: "ml", node: "n", workload, device, blast, group, pod_ready };
            check_group(&disruption(), &candidate)
        };
        assert_eq!(check(1, true, 1), Err(Hold::MinAvailable { remaining: 0, min: 1 }));
        assert_eq!(check(2, true, 1), Ok(()));
        assert_eq!(check(1, false, 1), Ok(()), "a pod that is not Ready is not missed");
        assert_eq!(check(2, true, 2), Err(Hold::MinAvailable { remaining: 0, min: 1 }), "a gang is missed whole");
    }
}

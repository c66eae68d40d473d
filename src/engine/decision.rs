//! What is to be done about the pods of one policy: the mildest thing that helps, to the fewest pods, or the reason why not.
//!
//! Flows in: the policy, a [`View`] of each pod it governs, and the [`Deeds`] so far. Flows out: [`Decision`]s, most urgent
//! first. Pure and total: the same input gives the same decisions, and a "no" always has its one reason.

use std::cmp::Reverse;
use std::time::Duration;

use crate::identity::DeviceKey;
use crate::pacing::{Brake, Deed, DeedState, Deeds, Stamp};
use crate::policy::{Mode, Policy, Rung};
use crate::risk::Level;

pub use hold::{Hold, Protected};
pub use resume::{Suspended, resumptions};
pub use step::{Step, StepKind};
pub use view::{Blast, CheckpointState, Levers, LimitState, PodRef, Standing, View, Workload};

mod checkpoint;
mod differ;
mod hold;
mod ladder;
mod resume;
mod step;
mod view;

/// What to do about one pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Tell people.
    Notify(Notify),
    /// Take one step.
    Act(Act),
    /// The policy wants an action, and it is not taken.
    Hold {
        /// The pod.
        pod: PodRef,
        /// Its workload.
        workload: Workload,
        /// What stands in the way.
        why: Hold,
    },
}

/// See [`Decision::Notify`].
#[derive(Clone, Debug, PartialEq)]
pub struct Notify {
    /// The pod.
    pub pod: PodRef,
    /// Its workload.
    pub workload: Workload,
    /// The container at risk.
    pub container: String,
    /// Median time to the OOM.
    pub expected_in: Option<Duration>,
    /// What is expected and why, in one sentence.
    pub reason: String,
}

/// See [`Decision::Act`].
#[derive(Clone, Debug, PartialEq)]
pub struct Act {
    /// What is to be done.
    pub step: Step,
    /// The pod.
    pub pod: PodRef,
    /// Its workload.
    pub workload: Workload,
    /// The container at risk.
    pub container: String,
    /// The device it is on.
    pub device: DeviceKey,
    /// Median time to the OOM.
    pub expected_in: Option<Duration>,
    /// What is expected and why, in one sentence.
    pub reason: String,
    /// Whether to call with `dryRun=All`.
    pub dry_run: bool,
    /// After this the samples are too old to act on.
    pub fresh_until: Stamp,
    /// Pods that stop by it, this one included; 0 where none does.
    pub blast: u32,
    /// Milder rungs that the policy allows and that were passed over, with why; `reason` says it as well.
    pub passed: Vec<(Rung, Hold)>,
}

/// A risk that lasts is told again after this long: Events live for an hour by default.
const REMIND: Duration = Duration::from_mins(15);

/// Decides about every pod at High risk, most urgent first, and about requests for checkpoints that nobody needs any more.
/// `views` holds each pod once.
///
/// For each pod the rungs that the policy lists are tried in order, see `ladder`; a rung that is not listed is never taken.
/// The decisions are sufficient together: of the pods on one device at most one is stopped at a time, because its memory
/// may be all that the others lack, and every budget counts the pods that stop by decisions earlier in the list.
pub fn decide(now: Stamp, policy: &Policy, views: &[View], deeds: &Deeds) -> Vec<Decision> {
    let mut decisions: Vec<Decision> =
        views.iter().filter_map(|view| checkpoint::withdraw(now, policy, view, deeds)).collect();
    let mut at_risk: Vec<&View> = views.iter().filter(|view| view.level == Level::High).collect();
    at_risk.sort_by(|a, b| urgency(a).cmp(&urgency(b)));
    let mut deeds = deeds.clone();
    for view in at_risk {
        if policy.actions.notify && view.notified.is_none_or(|at| now.since(at) >= REMIND) {
            decisions.push(Decision::Notify(notify(view)));
        }
        if !policy.actions.act() {
            continue;
        }
        decisions.push(match consider(now, policy, view, views, &deeds) {
            Ok(act) => {
                deeds.deeds.push(deed(now, policy, view, &act));
                Decision::Act(act)
            }
            Err(why) => Decision::Hold { pod: view.pod.clone(), workload: view.workload.clone(), why },
        });
    }
    decisions
}

/// Soonest OOM first, then the most probable; names break ties, so that the order never depends on the input's.
fn urgency(view: &View) -> (Duration, Reverse<u64>, &PodRef) {
    let probability = view.probability().unwrap_or(0.0);
    (view.expected_in().unwrap_or(Duration::MAX), Reverse((probability * 1e6) as u64), &view.pod)
}

/// What is done about one pod, or why nothing is.
fn consider(now: Stamp, policy: &Policy, view: &View, views: &[View], deeds: &Deeds) -> Result<Act, Hold> {
    let dry_run = match policy.mode {
        Mode::Observe => return Err(Hold::ModeObserve),
        Mode::DryRun => true,
        Mode::Enforce => false,
    };
    let standing = view.standing.as_ref().map_err(Clone::clone)?;
    brake_allows(now, policy, deeds)?;
    check_evidence(policy, view)?;
    ladder::Climb { now, policy, view, views, deeds, standing, dry_run }.climb()
}

/// Whether anything at all may be done now.
fn brake_allows(now: Stamp, policy: &Policy, deeds: &Deeds) -> Result<(), Hold> {
    match &deeds.brake {
        Brake::Released => {}
        Brake::Paused(why) => return Err(Hold::BrakePaused { why: why.clone() }),
        Brake::Unreadable(why) => return Err(Hold::LedgerUnreadable { why: why.clone() }),
        Brake::Unsettled(id) => return Err(Hold::Unsettled { id: id.clone() }),
        Brake::BreakerOpen { why, until } => return Err(Hold::BreakerOpen { why: why.clone(), until: *until }),
        Brake::HalfOpen { since } => {
            if deeds.deeds.iter().any(|deed| !deed.dry_run && deed.at >= *since) {
                return Err(Hold::BreakerProbing);
            }
        }
    }
    if let Some(why) = policy.paused.first() {
        return Err(Hold::PolicyPaused { why: why.clone() });
    }
    // As long as a risk takes to clear: the old leader's deeds may only now show in the data.
    let settled = deeds.leading_since + policy.prediction.clear_for;
    if now < settled {
        return Err(Hold::JustStarted { until: settled });
    }
    Ok(())
}

/// High outlives the moment that raised it. An act needs the risk now, on data of now.
fn check_evidence(policy: &Policy, view: &View) -> Result<(), Hold> {
    if view.sample_age > policy.prediction.max_sample_age {
        return Err(Hold::StaleData { age: view.sample_age });
    }
    let over = view.probability().is_some_and(|probability| probability >= policy.prediction.act_probability);
    if over { Ok(()) } else { Err(Hold::RiskEasing) }
}

fn notify(view: &View) -> Notify {
    Notify {
        pod: view.pod.clone(),
        workload: view.workload.clone(),
        container: view.container.clone(),
        expected_in: view.expected_in(),
        reason: view.forecast.reason.clone(),
    }
}

fn deed(now: Stamp, policy: &Policy, view: &View, act: &Act) -> Deed {
    Deed {
        policy: policy.key.clone(),
        namespace: view.pod.namespace.clone(),
        workload: view.workload.uid.clone(),
        pod: view.pod.uid.clone(),
        node: view.pod.node.clone(),
        device: view.device.clone(),
        step: act.step.kind(),
        blast: act.blast,
        at: now,
        dry_run: act.dry_run,
        state: DeedState::Open,
    }
}

#[cfg(test)]
mod tests;

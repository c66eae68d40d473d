//! What is to be done about the pods of one policy: the mildest thing that helps, to the fewest pods, or the reason why not.
//!
//! Flows in: the policy, a [`View`] of each pod it governs, and the [`Deeds`] so far. Flows out: [`Decision`]s, most urgent
//! first. Pure and total: the same input gives the same decisions, and a "no" always has its one reason.

use std::cmp::Reverse;
use std::time::Duration;

use crate::forecast::{Forecast, Outlook};
use crate::identity::{DeviceKey, PodUid};
use crate::pacing::{Brake, Candidate, Deed, DeedState, Deeds, Group, Stamp, WorkloadUid};
use crate::policy::{Mode, Policy, Rung};
use crate::quantity::Bytes;
use crate::risk::Level;

pub use hold::{Hold, Protected};
pub use resume::{Suspended, resumptions};
pub use step::{Step, StepKind};

mod hold;
mod resume;
mod step;

/// A pod, named so that it cannot be mistaken for its successor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID: a StatefulSet's new pod has the old name and another UID.
    pub uid: PodUid,
    /// Node it runs on.
    pub node: String,
}

/// What a pod belongs to: its top owner, or the pod itself where it has none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Workload {
    /// API version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: WorkloadUid,
}

/// One pod under one policy: its worst container on its worst device.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// The pod.
    pub pod: PodRef,
    /// Its workload.
    pub workload: Workload,
    /// Worst container.
    pub container: String,
    /// That container's worst device.
    pub device: DeviceKey,
    /// Memory of that container on that device.
    pub used: Bytes,
    /// Level of risk.
    pub level: Level,
    /// What `level` follows from.
    pub forecast: Forecast,
    /// Age of the newest sample.
    pub sample_age: Duration,
    /// Whether the pod may be acted on at all; otherwise why not.
    pub standing: Result<Standing, Hold>,
    /// Where the pod stands with a checkpoint; read wherever we asked for one, whatever `standing` says, so that a request is
    /// taken back.
    pub checkpoint: CheckpointState,
    /// When an Event about this risk was last written.
    pub notified: Option<Stamp>,
    /// How long the container has run.
    pub age: Option<Duration>,
    /// Since when the level has been High without a break, as far as this process saw it: a restart can only delay.
    pub high_since: Option<Stamp>,
    /// Whether containers of other pods use the device.
    pub shared: bool,
    /// What the container may fill: the device less what others hold.
    pub room: Option<Bytes>,
    /// Where its limit stands.
    pub limit: LimitState,
}

/// Where the limit of a container on its device stands, as the agent read it back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LimitState {
    /// Nobody asked for one.
    #[default]
    NotSet,
    /// It was asked for, and the agent has not confirmed it yet.
    Pending {
        /// Since when.
        since: Stamp,
    },
    /// It holds.
    Holds {
        /// So much and no more.
        bytes: Bytes,
    },
    /// It cannot hold there.
    Unsupported {
        /// Why.
        why: String,
    },
}

impl View {
    /// Median time to the OOM, when one is expected.
    pub fn expected_in(&self) -> Option<Duration> {
        match self.forecast.outlook {
            Outlook::Known { time_to_oom, .. } => time_to_oom.map(|time| time.q50),
            Outlook::Unknown { .. } => None,
        }
    }

    /// Probability of the OOM within the policy's horizon, when it is known.
    pub fn probability(&self) -> Option<f64> {
        match self.forecast.outlook {
            Outlook::Known { probability, .. } => Some(probability),
            Outlook::Unknown { .. } => None,
        }
    }
}

/// A pod that may be acted on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The workload's pods.
    pub group: Group,
    /// Whether this pod is Ready.
    pub ready: bool,
    /// What its workload lets be done.
    pub levers: Levers,
    /// How long its processes have between SIGTERM and SIGKILL.
    pub grace: Duration,
}

/// What a workload lets be done; each lever that is missing says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Levers {
    /// Evicting this pod.
    pub evict: Result<Blast, Hold>,
    /// Suspending the workload.
    pub suspend: Result<Blast, Hold>,
    /// Changing its replicas: how many it has by its spec.
    pub scale: Result<u32, Hold>,
    /// Moving the container's GPU memory to host memory.
    pub suspend_to_host: Result<(), Hold>,
}

impl Levers {
    /// Of a workload whose pods can only be evicted, one at a time.
    pub fn eviction_only(kind: &str) -> Self {
        let no = |lever: &'static str| Err(Hold::NoLever { lever, kind: kind.to_owned() });
        Self {
            evict: Ok(Blast(1)),
            suspend: no("suspend").map(|()| Blast(0)),
            scale: no("scale").map(|()| 0),
            suspend_to_host: no("suspend to host"),
        }
    }
}

/// Pods that stop when one lever is pulled: budgets count these, not actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Blast(pub u32);

/// Where a pod stands with a checkpoint, as its annotations say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CheckpointState {
    /// Nobody asked.
    #[default]
    NotRequested,
    /// We asked, nobody has answered.
    Requested {
        /// Id of the request.
        id: String,
        /// UID of the pod it was made to: where it is another's, annotations were copied and nothing counts.
        pod: PodUid,
        /// Until when it waits.
        deadline: Stamp,
    },
    /// The application answered our request.
    Done {
        /// Id of the request.
        id: String,
        /// UID of the pod it was made to.
        pod: PodUid,
    },
}

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

/// Decides about every pod at High risk, most urgent first. `views` holds each pod once.
///
/// The decisions are sufficient together: of the pods on one device at most one is evicted at a time, because its memory
/// may be all that the others lack, and every budget counts the evictions earlier in the list.
pub fn decide(now: Stamp, policy: &Policy, views: &[View], deeds: &Deeds) -> Vec<Decision> {
    let mut at_risk: Vec<&View> = views.iter().filter(|view| view.level == Level::High).collect();
    at_risk.sort_by(|a, b| urgency(a).cmp(&urgency(b)));
    let mut deeds = deeds.clone();
    let mut decisions = Vec::new();
    for view in at_risk {
        if policy.actions.notify && view.notified.is_none_or(|at| now.since(at) >= REMIND) {
            decisions.push(Decision::Notify(notify(view)));
        }
        if !policy.actions.evict {
            continue;
        }
        decisions.push(match permit(now, policy, view, &deeds) {
            Ok(dry_run) => {
                deeds.deeds.push(deed(now, policy, view, dry_run));
                Decision::Act(evict(now, policy, view, dry_run))
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

/// Whether the pod may be evicted now, and if so whether only as a dry run.
fn permit(now: Stamp, policy: &Policy, view: &View, deeds: &Deeds) -> Result<bool, Hold> {
    let dry_run = match policy.mode {
        Mode::Observe => return Err(Hold::ModeObserve),
        Mode::DryRun => true,
        Mode::Enforce => false,
    };
    let standing = view.standing.as_ref().map_err(Clone::clone)?;
    brake_allows(now, policy, deeds)?;
    check_evidence(policy, view)?;
    standing.levers.evict.clone()?;
    let candidate = Candidate {
        namespace: &view.pod.namespace,
        node: &view.pod.node,
        workload: &view.workload.uid,
        device: &view.device,
        blast: 1,
        group: &standing.group,
        pod_ready: standing.ready,
    };
    deeds.permit(now, policy, dry_run, candidate)?;
    Ok(dry_run)
}

/// Whether anything at all may be done now.
fn brake_allows(now: Stamp, policy: &Policy, deeds: &Deeds) -> Result<(), Hold> {
    match &deeds.brake {
        Brake::Released => {}
        Brake::BreakerOpen { why, until } => {
            return Err(Hold::BreakerOpen { why: why.clone(), until: *until });
        }
        Brake::HalfOpen { since } => {
            if deeds.deeds.iter().any(|deed| !deed.dry_run && deed.at >= *since) {
                return Err(Hold::BreakerProbing);
            }
        }
        Brake::Paused(why) => return Err(Hold::BrakePaused { why: why.clone() }),
        Brake::Unreadable(why) => return Err(Hold::LedgerUnreadable { why: why.clone() }),
        Brake::Unsettled(id) => return Err(Hold::Unsettled { id: id.clone() }),
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

fn evict(now: Stamp, policy: &Policy, view: &View, dry_run: bool) -> Act {
    Act {
        step: Step::Evict,
        pod: view.pod.clone(),
        workload: view.workload.clone(),
        container: view.container.clone(),
        device: view.device.clone(),
        expected_in: view.expected_in(),
        reason: view.forecast.reason.clone(),
        dry_run,
        fresh_until: now + policy.prediction.max_sample_age.saturating_sub(view.sample_age),
        blast: 1,
        passed: Vec::new(),
    }
}

fn deed(now: Stamp, policy: &Policy, view: &View, dry_run: bool) -> Deed {
    Deed {
        policy: policy.key.clone(),
        namespace: view.pod.namespace.clone(),
        workload: view.workload.uid.clone(),
        pod: view.pod.uid.clone(),
        node: view.pod.node.clone(),
        device: view.device.clone(),
        step: StepKind::Evict,
        blast: 1,
        at: now,
        dry_run,
        state: DeedState::Open,
    }
}

#[cfg(test)]
mod tests;

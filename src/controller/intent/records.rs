//! What one action leaves in the ledger: the intent before it, the deed or the request after it. Plain data.

use std::time::Duration;

use gpumem_engine::decision::{Step, StepKind, Workload};
use gpumem_engine::identity::{DeviceKey, PodUid};
use gpumem_engine::pacing::{Stamp, WorkloadUid};
use gpumem_engine::policy::{PolicyKey, Resume};
use serde::{Deserialize, Serialize};

use crate::api::policy::{ActionRecord, ActionType, WorkloadRef};
use crate::controller::now::{parse_rfc3339, rfc3339};
use crate::controller::workload::{ScaleHandle, SuspendHandle};
use crate::text::shorten;

/// An action that is about to be taken, or whose outcome is not known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Intent {
    /// Unique.
    pub id: String,
    /// Policy it is for.
    pub policy: PolicyRef,
    /// Workload of the pod.
    pub workload: WorkloadRef,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    pub pod_uid: PodUid,
    /// Its node.
    pub node: String,
    /// Container at risk.
    pub container: String,
    /// Device to relieve.
    pub device: DeviceKey,
    /// What is to be done.
    pub action: Action,
    /// The lever of its workload, where it needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lever: Option<Lever>,
    /// Pods that stop by it.
    #[serde(default = "one_pod")]
    pub blast: u32,
    /// Memory of the container when it was decided, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    /// How long the container had run by then, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<u64>,
    /// Why.
    pub reason: String,
    /// Who recorded it.
    pub holder: String,
    /// When, RFC 3339.
    pub created: String,
    /// From then on its call cannot be under way any more, RFC 3339.
    pub deadline: String,
    /// How long the workload has to be whole before it counts as recovered.
    pub settle_seconds: u64,
    /// Whether it is only tried.
    pub dry_run: bool,
}

/// A lever of a workload, as it was found for the decision: whoever settles the action, or undoes it days later, finds
/// everything here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lever {
    /// Suspending it.
    Suspend(SuspendHandle),
    /// The number of its pods.
    Scale(ScaleHandle),
}

/// See [`Intent::action`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// `/scale` from one number of replicas to another.
    Scale {
        /// Replicas when it was decided.
        from: u32,
        /// Replicas it should have.
        to: u32,
    },
    /// A request for a checkpoint.
    RequestCheckpoint {
        /// Seconds the application has.
        timeout_seconds: u64,
    },
    /// The request with this id taken back.
    WithdrawCheckpoint {
        /// Id of the request.
        id: String,
    },
    /// GPU memory moved to host memory.
    SuspendToHost,
    /// The workload suspended.
    SuspendWorkload {
        /// Whether we let it go on after its cool-down; otherwise its owner does.
        resume_after_cooldown: bool,
    },
    /// A workload that we suspended goes on.
    ResumeWorkload,
    /// The Eviction API.
    Evict,
}

impl Action {
    /// As records name it.
    pub const fn kind(&self) -> ActionType {
        match self {
            Self::Scale { .. } => ActionType::Scale,
            Self::RequestCheckpoint { .. } | Self::WithdrawCheckpoint { .. } => ActionType::Checkpoint,
            Self::SuspendToHost => ActionType::SuspendToHost,
            Self::SuspendWorkload { .. } | Self::ResumeWorkload => ActionType::SuspendWorkload,
            Self::Evict => ActionType::Evict,
        }
    }

    /// As the engine names it.
    pub const fn step(&self) -> StepKind {
        match self {
            Self::Scale { .. } => StepKind::Scale,
            Self::RequestCheckpoint { .. } => StepKind::RequestCheckpoint,
            Self::WithdrawCheckpoint { .. } => StepKind::WithdrawCheckpoint,
            Self::SuspendToHost => StepKind::SuspendToHost,
            Self::SuspendWorkload { .. } => StepKind::SuspendWorkload,
            Self::ResumeWorkload => StepKind::ResumeWorkload,
            Self::Evict => StepKind::Evict,
        }
    }

    /// What is recorded of a step.
    pub fn of(step: &Step) -> Self {
        match step {
            Step::Scale { from, to } => Self::Scale { from: *from, to: *to },
            Step::RequestCheckpoint { timeout } => Self::RequestCheckpoint { timeout_seconds: timeout.as_secs() },
            Step::WithdrawCheckpoint { id } => Self::WithdrawCheckpoint { id: id.clone() },
            Step::SuspendToHost => Self::SuspendToHost,
            Step::SuspendWorkload { resume } => {
                Self::SuspendWorkload { resume_after_cooldown: *resume == Resume::AfterCooldown }
            }
            Step::ResumeWorkload => Self::ResumeWorkload,
            Step::Evict => Self::Evict,
        }
    }
}

const fn eviction() -> Action {
    Action::Evict
}

/// Ledgers of versions that only evicted do not say it.
const fn one_pod() -> u32 {
    1
}

/// A policy by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl From<&PolicyKey> for PolicyRef {
    fn from(key: &PolicyKey) -> Self {
        Self { namespace: key.namespace.clone(), name: key.name.clone() }
    }
}

impl PolicyRef {
    /// As the engine names it.
    pub fn key(&self) -> PolicyKey {
        PolicyKey { namespace: self.namespace.clone(), name: self.name.clone() }
    }
}

impl From<&Workload> for WorkloadRef {
    fn from(workload: &Workload) -> Self {
        Self {
            api_version: workload.api_version.clone(),
            kind: workload.kind.clone(),
            name: workload.name.clone(),
            uid: workload.uid.0.clone(),
        }
    }
}

impl From<&WorkloadRef> for Workload {
    fn from(workload: &WorkloadRef) -> Self {
        Self {
            api_version: workload.api_version.clone(),
            kind: workload.kind.clone(),
            name: workload.name.clone(),
            uid: WorkloadUid(workload.uid.clone()),
        }
    }
}

/// A request for a checkpoint that we made. What a pod's annotations say of a request that is not listed here is not ours,
/// and its deadline is the one in here: the owner of a pod may write anything into its annotations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerRequest {
    /// Id of its intent, and of the request.
    pub id: String,
    /// Policy it was made for.
    pub policy: PolicyRef,
    /// Workload of the pod.
    pub workload: WorkloadRef,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    pub pod_uid: PodUid,
    /// Its node.
    pub node: String,
    /// Container at risk.
    pub container: String,
    /// Device it is on.
    pub device: DeviceKey,
    /// Until when it waits, RFC 3339.
    pub deadline: String,
}

impl LedgerRequest {
    /// Of an intent that was carried out; `None` of any other action.
    pub fn of(intent: &Intent) -> Option<Self> {
        Some(Self {
            id: intent.id.clone(),
            policy: intent.policy.clone(),
            workload: intent.workload.clone(),
            namespace: intent.namespace.clone(),
            pod: intent.pod.clone(),
            pod_uid: intent.pod_uid.clone(),
            node: intent.node.clone(),
            container: intent.container.clone(),
            device: intent.device.clone(),
            deadline: rfc3339(intent.answer_by()?),
        })
    }

    /// Until when it waits. The text was checked when it was read.
    pub fn answer_by(&self) -> Stamp {
        parse_rfc3339(&self.deadline).unwrap_or(Stamp(i64::MAX))
    }
}

impl Intent {
    /// The lever by which a workload is suspended, where this is a suspension that changes something.
    pub fn suspends(&self) -> Option<&SuspendHandle> {
        match (&self.action, &self.lever) {
            (Action::SuspendWorkload { .. }, Some(Lever::Suspend(handle))) if !self.dry_run => Some(handle),
            _ => None,
        }
    }

    /// Until when the application may answer, where this is a request for a checkpoint.
    pub fn answer_by(&self) -> Option<Stamp> {
        let Action::RequestCheckpoint { timeout_seconds } = self.action else { return None };
        Some(parse_rfc3339(&self.created)? + Duration::from_secs(timeout_seconds))
    }
}

/// An action that ended and that nobody was told of yet. It is written together with what closes the action, and goes when its
/// Events are written: a leader that dies between the two leaves them to the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Untold {
    /// What was recorded before it.
    pub intent: Intent,
    /// What came of it: see [`Outcome::name`](super::Outcome::name).
    pub outcome: String,
    /// The same for a person.
    pub said: String,
    /// When, RFC 3339.
    pub at: String,
}

impl Untold {
    /// As status and profile keep it.
    pub fn record(&self) -> ActionRecord {
        let Intent { id, container, device, reason, used, age_seconds, .. } = &self.intent;
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        ActionRecord {
            id: id.clone(),
            action: self.intent.action.kind(),
            time: self.at.clone(),
            pod: self.intent.pod.clone(),
            pod_uid: self.intent.pod_uid.as_str().to_owned(),
            workload: format!("{}/{}", self.intent.workload.kind, self.intent.workload.name),
            outcome: self.outcome.clone(),
            message: shorten(&format!("container {container} on {device}: {reason}; {}", self.said), 500),
            dry_run: self.intent.dry_run,
            used_bytes: used.map(count),
            age_seconds: age_seconds.map(count),
        }
    }
}

/// A pod that was taken away, a workload that was changed, or would have been.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerDeed {
    /// Id of its intent.
    pub id: String,
    /// Policy it was done for.
    pub policy: PolicyRef,
    /// Workload of the pod.
    pub workload: WorkloadRef,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    pub pod_uid: PodUid,
    /// Its node.
    #[serde(default)]
    pub node: String,
    /// Container that was at risk.
    #[serde(default)]
    pub container: String,
    /// Device that was relieved.
    pub device: DeviceKey,
    /// What was done. Ledgers of versions that only evicted do not say it.
    #[serde(default = "eviction")]
    pub action: Action,
    /// The lever that was pulled, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lever: Option<Lever>,
    /// Pods that stopped by it.
    #[serde(default = "one_pod")]
    pub blast: u32,
    /// When the intent was recorded, RFC 3339.
    pub at: String,
    /// See [`Intent::settle_seconds`].
    pub settle_seconds: u64,
    /// Whether it was only tried.
    pub dry_run: bool,
    /// Since when the workload has been seen whole again, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole_since: Option<String>,
    /// Whether it has been whole for long enough.
    #[serde(default)]
    pub settled: bool,
    /// Whether a suspended workload goes on again, by us or by its owner.
    #[serde(default)]
    pub lifted: bool,
    /// The record that is still to be written into the workload's profile. Until it is, the workload counts as not
    /// recovered: without it its cool-down would be forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unrecorded: Option<ActionRecord>,
}

impl LedgerDeed {
    /// Of an intent that was carried out.
    pub fn of(intent: &Intent, unrecorded: Option<ActionRecord>) -> Self {
        Self {
            id: intent.id.clone(),
            policy: intent.policy.clone(),
            workload: intent.workload.clone(),
            namespace: intent.namespace.clone(),
            pod: intent.pod.clone(),
            pod_uid: intent.pod_uid.clone(),
            node: intent.node.clone(),
            container: intent.container.clone(),
            device: intent.device.clone(),
            action: intent.action.clone(),
            lever: intent.lever.clone(),
            blast: intent.blast,
            at: intent.created.clone(),
            settle_seconds: intent.settle_seconds,
            dry_run: intent.dry_run,
            whole_since: None,
            settled: false,
            lifted: false,
            unrecorded,
        }
    }

    /// When it was decided.
    pub fn stamp(&self) -> Stamp {
        // Texts were checked when they were read; far in the future would only delay.
        parse_rfc3339(&self.at).unwrap_or(Stamp(i64::MAX))
    }

    /// The lever that suspended the workload, where it is suspended now.
    pub fn suspension(&self) -> Option<&SuspendHandle> {
        match &self.lever {
            Some(Lever::Suspend(handle)) if self.is_suspended() => Some(handle),
            Some(Lever::Suspend(_) | Lever::Scale(_)) | None => None,
        }
    }

    /// Whether a workload is suspended by it now.
    pub fn is_suspended(&self) -> bool {
        matches!(self.action, Action::SuspendWorkload { .. }) && !self.dry_run && !self.lifted && !self.settled
    }

    /// Whether its workload still has to recover at `now`. A dry run takes nothing away: it is played through as if the
    /// replacement came at once.
    pub fn is_recovering(&self, now: Stamp) -> bool {
        let played = self.dry_run && now.since(self.stamp()) >= Duration::from_secs(self.settle_seconds);
        !self.settled && !played
    }
}

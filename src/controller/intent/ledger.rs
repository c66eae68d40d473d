//! What stands in the ledger ConfigMap. Pure: text in, [`State`] out, and back.

use std::collections::BTreeMap;
use std::time::Duration;

use gpumem_engine::decision::{Step, StepKind, Workload};
use gpumem_engine::identity::{DeviceKey, PodUid};
use gpumem_engine::pacing::{Brake, Deed, DeedState, Stamp, WorkloadUid};
use gpumem_engine::policy::{PolicyKey, Resume};
use k8s_openapi::api::core::v1::ConfigMap;
use serde::{Deserialize, Serialize};

use crate::api::policy::{ActionRecord, ActionType, WorkloadRef};
use crate::controller::now::parse_rfc3339;

/// Key of the open intents.
const INTENTS: &str = "intents";
/// Key of the deeds.
const DEEDS: &str = "deeds";
/// Key of the administrator's pause: any value but the empty one stops every action.
const PAUSE: &str = "pause";

/// Deeds older than this no longer count for anything.
const FORGET: Duration = Duration::from_hours(24);
/// Settled deeds count for an hour, for the hourly budgets.
const HOUR: Duration = Duration::from_hours(1);
/// About 400 bytes each, against the 1 MiB that an object may have. A fuller ledger takes no more intents.
const MAX_DEEDS: usize = 512;

/// The ledger as it was read.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// The object; `None` when there is none yet.
    pub object: Option<ConfigMap>,
    /// What it says.
    pub state: Result<State, Malformed>,
    /// The administrator's pause.
    pub pause: Option<String>,
}

/// What a ledger says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Open intents; never more than one unless somebody edited it.
    pub intents: Vec<Intent>,
    /// Pods that were taken away lately.
    pub deeds: Vec<LedgerDeed>,
}

/// A key whose text is not what we write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("key {key}: {problem}")]
pub struct Malformed {
    /// The key.
    pub key: &'static str,
    /// What is wrong.
    pub problem: String,
}

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
    /// Pods that stop by it.
    #[serde(default = "one_pod")]
    pub blast: u32,
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

/// Ledgers of versions that only evicted do not say it.
const fn one_pod() -> u32 {
    1
}

/// See [`one_pod`].
const fn eviction() -> Action {
    Action::Evict
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

/// A pod that was taken away, or would have been.
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
    /// Its node; older ledgers do not say it.
    #[serde(default)]
    pub node: String,
    /// Device that was relieved.
    pub device: DeviceKey,
    /// What was done.
    #[serde(default = "eviction")]
    pub action: Action,
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
            device: intent.device.clone(),
            action: intent.action.clone(),
            blast: intent.blast,
            at: intent.created.clone(),
            settle_seconds: intent.settle_seconds,
            dry_run: intent.dry_run,
            whole_since: None,
            settled: false,
            unrecorded,
        }
    }

    fn stamp(&self) -> Stamp {
        // Texts were checked when they were read; far in the future would only delay.
        parse_rfc3339(&self.at).unwrap_or(Stamp(i64::MAX))
    }

    /// Whether its workload still has to recover at `now`. A dry run takes nothing away: it is played through as if the
    /// replacement came at once.
    pub fn is_recovering(&self, now: Stamp) -> bool {
        let played = self.dry_run && now.since(self.stamp()) >= Duration::from_secs(self.settle_seconds);
        !self.settled && !played
    }
}

impl Ledger {
    /// What an object says.
    pub fn of(object: Option<ConfigMap>) -> Self {
        let data = object.as_ref().and_then(|object| object.data.as_ref());
        let pause = data.and_then(|data| data.get(PAUSE)).map(|text| text.trim()).filter(|text| !text.is_empty());
        Self { pause: pause.map(str::to_owned), state: State::load(data), object }
    }

    /// The brake that follows from it.
    pub fn brake(&self) -> Brake {
        match (&self.pause, &self.state) {
            (Some(why), _) => Brake::Paused(why.chars().take(200).collect()),
            (None, Err(error)) => Brake::Unreadable(error.to_string()),
            (None, Ok(state)) => match state.intents.first() {
                Some(open) => Brake::Unsettled(open.id.clone()),
                None => Brake::Released,
            },
        }
    }

    /// The deeds in it, as decisions see them.
    pub fn deeds(&self, now: Stamp) -> Vec<Deed> {
        let Ok(state) = &self.state else { return Vec::new() };
        let deed = |deed: LedgerDeed, state| Deed {
            policy: deed.policy.key(),
            namespace: deed.namespace.clone(),
            workload: WorkloadUid(deed.workload.uid.clone()),
            pod: deed.pod_uid.clone(),
            node: deed.node.clone(),
            device: deed.device.clone(),
            step: deed.action.step(),
            blast: deed.blast,
            at: deed.stamp(),
            dry_run: deed.dry_run,
            state,
        };
        let done = state.deeds.iter().map(|done| {
            let state = if done.is_recovering(now) { DeedState::Recovering } else { DeedState::Settled };
            deed(done.clone(), state)
        });
        done.chain(state.intents.iter().map(|open| deed(LedgerDeed::of(open, None), DeedState::Open))).collect()
    }
}

impl State {
    fn load(data: Option<&BTreeMap<String, String>>) -> Result<Self, Malformed> {
        let Some(data) = data else { return Ok(Self::default()) };
        let state = Self { intents: list(data, INTENTS)?, deeds: list(data, DEEDS)? };
        let times = state.intents.iter().flat_map(|intent| [(INTENTS, &intent.created), (INTENTS, &intent.deadline)]);
        let times = times.chain(state.deeds.iter().map(|deed| (DEEDS, &deed.at)));
        for (key, text) in times {
            if parse_rfc3339(text).is_none() {
                return Err(Malformed { key, problem: "a time is not RFC 3339".to_owned() });
            }
        }
        Ok(state)
    }

    /// Puts it into the data of a ConfigMap.
    pub fn store(&self, data: &mut BTreeMap<String, String>) {
        // Serialising plain structs to JSON cannot fail; an empty text would be read as "nothing" and is not written.
        let texts = [(INTENTS, serde_json::to_string(&self.intents)), (DEEDS, serde_json::to_string(&self.deeds))];
        for (key, text) in texts {
            if let Ok(text) = text {
                data.insert(key.to_owned(), text);
            }
        }
    }

    /// Drops deeds that count for nothing any more.
    pub fn trim(&mut self, now: Stamp) {
        self.deeds.retain(|deed| {
            let age = now.since(deed.stamp());
            age < if deed.is_recovering(now) { FORGET } else { HOUR }
        });
    }

    /// Whether there is room for another deed.
    pub fn is_full(&self) -> bool {
        self.deeds.len() >= MAX_DEEDS
    }
}

fn list<T: for<'de> Deserialize<'de>>(data: &BTreeMap<String, String>, key: &'static str) -> Result<Vec<T>, Malformed> {
    let Some(text) = data.get(key).filter(|text| !text.trim().is_empty()) else { return Ok(Vec::new()) };
    serde_json::from_str(text).map_err(|error| Malformed { key, problem: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(data: &[(&str, &str)]) -> Ledger {
        let data = data.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
        Ledger::of(Some(ConfigMap { data: Some(data), ..ConfigMap::default() }))
    }

    #[test]
    fn an_empty_ledger_and_none_at_all_release_the_brake() {
        for ledger in [Ledger::of(None), ledger(&[]), ledger(&[("intents", ""), ("deeds", "[]"), ("pause", " ")])] {
            assert_eq!(ledger.brake(), Brake::Released);
        }
    }

    #[test]
    fn garbage_in_any_key_stops_all_actions() {
        for (key, text) in
            [("intents", "{"), ("intents", "[{}]"), ("deeds", "null"), ("deeds", "[1]"), ("deeds", "\u{1}")]
        {
            assert!(matches!(ledger(&[(key, text)]).brake(), Brake::Unreadable(why) if why.contains(key)), "{text}");
        }
    }

    #[test]
    fn a_pause_is_read_with_its_reason_even_beside_garbage() {
        assert_eq!(ledger(&[("pause", "night shift"), ("deeds", "{")]).brake(), Brake::Paused("night shift".into()));
    }
}

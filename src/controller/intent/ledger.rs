//! What stands in the ledger ConfigMap. Pure: text in, [`State`] out, and back.

use std::collections::BTreeMap;
use std::time::Duration;

use gpumem_engine::identity::PodUid;
use gpumem_engine::pacing::{Brake, Breaker, Deed, DeedState, Stamp, WorkloadUid};
use k8s_openapi::api::core::v1::ConfigMap;
use serde::Deserialize;

use super::{Intent, LedgerDeed, LedgerRequest, Untold};
use crate::controller::now::parse_rfc3339;

/// Key of the open intents.
const INTENTS: &str = "intents";
/// Key of the deeds.
const DEEDS: &str = "deeds";
/// Key of the requests for a checkpoint that were made and not taken back.
const REQUESTS: &str = "requests";
/// Key of the actions that ended and that nobody was told of yet.
const UNTOLD: &str = "untold";
/// Key of the breaker's state.
const BREAKER: &str = "breaker";
/// Key of the administrator's pause: any value but the empty one stops every action.
const PAUSE: &str = "pause";

/// Deeds older than this no longer count for anything.
const FORGET: Duration = Duration::from_hours(24);
/// Settled deeds count for an hour, for the hourly budgets.
const HOUR: Duration = Duration::from_hours(1);
/// About 400 bytes each, against the 1 MiB that an object may have. A fuller ledger takes no more intents.
const MAX_DEEDS: usize = 512;
/// Of more than these people hear no more: telling must never be what fills the ledger.
const MAX_UNTOLD: usize = 64;
/// The same for open requests for a checkpoint.
const MAX_REQUESTS: usize = 512;

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
    /// What was done to workloads lately, and what still holds of it.
    pub deeds: Vec<LedgerDeed>,
    /// Requests for a checkpoint that stand.
    pub requests: Vec<LedgerRequest>,
    /// Actions that ended and that nobody was told of yet, oldest first.
    pub untold: Vec<Untold>,
    /// The breaker above all policies.
    pub breaker: Breaker,
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
        let state = Self {
            intents: read(data, INTENTS)?,
            deeds: read(data, DEEDS)?,
            requests: read(data, REQUESTS)?,
            // It decides nothing: what cannot be read is not told, and stops nothing.
            untold: read(data, UNTOLD).unwrap_or_default(),
            breaker: read(data, BREAKER)?,
        };
        let times = state.intents.iter().flat_map(|intent| [(INTENTS, &intent.created), (INTENTS, &intent.deadline)]);
        let times = times.chain(state.deeds.iter().map(|deed| (DEEDS, &deed.at)));
        let times = times.chain(state.requests.iter().map(|request| (REQUESTS, &request.deadline)));
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
        let texts = [
            (INTENTS, serde_json::to_string(&self.intents)),
            (DEEDS, serde_json::to_string(&self.deeds)),
            (REQUESTS, serde_json::to_string(&self.requests)),
            (UNTOLD, serde_json::to_string(&self.untold)),
            (BREAKER, serde_json::to_string(&self.breaker)),
        ];
        for (key, text) in texts {
            if let Ok(text) = text {
                data.insert(key.to_owned(), text);
            }
        }
    }

    /// Adds an action that people are to be told of.
    pub fn to_tell(&mut self, untold: Untold) {
        self.untold.retain(|known| known.intent.id != untold.intent.id);
        self.untold.push(untold);
        let excess = self.untold.len().saturating_sub(MAX_UNTOLD);
        self.untold.drain(..excess);
    }

    /// Drops deeds that count for nothing any more.
    pub fn trim(&mut self, now: Stamp) {
        self.deeds.retain(|deed| {
            let age = now.since(deed.stamp());
            // A suspension lasts until somebody lifts it, however long that takes.
            deed.is_suspended() || age < if deed.is_recovering(now) { FORGET } else { HOUR }
        });
    }

    /// Our request that a pod stands with, if any.
    pub fn request(&self, pod: &PodUid) -> Option<&LedgerRequest> {
        self.requests.iter().rev().find(|request| request.pod_uid == *pod)
    }

    /// Whether there is no room for another deed or request.
    pub fn is_full(&self) -> bool {
        self.deeds.len() >= MAX_DEEDS || self.requests.len() >= MAX_REQUESTS
    }
}

fn read<T: Default + for<'de> Deserialize<'de>>(
    data: &BTreeMap<String, String>,
    key: &'static str,
) -> Result<T, Malformed> {
    let Some(text) = data.get(key).filter(|text| !text.trim().is_empty()) else { return Ok(T::default()) };
    // serde takes a list of values for a struct as well.
    if key == BREAKER && !text.trim_start().starts_with('{') {
        return Err(Malformed { key, problem: "it is no object".to_owned() });
    }
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
        for (key, text) in [
            ("breaker", "[]"),
            ("requests", "[{}]"),
            ("intents", "{"),
            ("intents", "[{}]"),
            ("deeds", "null"),
            ("deeds", "[1]"),
            ("deeds", "\u{1}"),
        ] {
            assert!(matches!(ledger(&[(key, text)]).brake(), Brake::Unreadable(why) if why.contains(key)), "{text}");
        }
    }

    #[test]
    fn a_pause_is_read_with_its_reason_even_beside_garbage() {
        assert_eq!(ledger(&[("pause", "night shift"), ("deeds", "{")]).brake(), Brake::Paused("night shift".into()));
    }
}

//! The memory of one workload: a `GpuMemoryProfile` beside it, with what was done to it and when the next may be.
//!
//! Flows in: actions that ended, OOMs, warnings and peaks. Flows out: the [`History`] that pacing reads. The object has no
//! owner reference, because it must outlive the workload's pods, and a new object of the same name and another UID is
//! another workload. Profiles go some days after their workload ([`expiry`]) and with the chart's clean-up; deleting one
//! makes the controller forget.

use std::time::Duration;

use gpumem_engine::decision::Workload;
use gpumem_engine::identity::PodUid;
use gpumem_engine::pacing::{History, Past, PastResult, Stamp, WorkloadUid};
use gpumem_engine::policy::Disruption;
use gpumem_engine::quantity::Bytes;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::intent::Outcome;
use super::now::{parse_rfc3339, rfc3339};
use crate::api::names::{FIELD_MANAGER, GROUP, VERSION};
use crate::api::policy::{ActionRecord, WorkloadRef};
use crate::api::profile::{GpuMemoryProfile, GpuMemoryProfileStatus, OomRecord};

pub mod expiry;

mod memory;

pub use memory::{Learned, Lesson, Seen, Window, learn, loop_of, open_alarms, pass, peak};

/// Records kept; more attempts than this a policy cannot allow.
const MAX_RECORDS: usize = 20;
/// Of these, records of calls that disrupted nothing: they must not push out the ones that count.
const MAX_REFUSALS: usize = 6;
/// Conflicts in a row that are somebody's loop rather than a race.
const WRITE_TRIES: u32 = 5;

/// What can go wrong with a profile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be read.
    #[error("reading GpuMemoryProfile {name}")]
    Read {
        /// Its name.
        name: String,
        /// Why.
        source: kube::Error,
    },
    /// It could not be written.
    #[error("writing GpuMemoryProfile {name}")]
    Write {
        /// Its name.
        name: String,
        /// Why.
        source: kube::Error,
    },
    /// Others kept writing it.
    #[error("GpuMemoryProfile {name} changed again and again while it was written")]
    Conflict {
        /// Its name.
        name: String,
    },
}

impl Error {
    /// Name for a metric label.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Read { .. } => "profile_read",
            Self::Write { .. } => "profile_write",
            Self::Conflict { .. } => "profile_conflict",
        }
    }
}

/// Reads the history of a workload; one without a profile has none.
pub async fn read(client: &kube::Client, namespace: &str, workload: &Workload, now: Stamp) -> Result<History, Error> {
    let name = name(workload);
    let found = api(client, namespace).get_opt(&name).await.map_err(|source| Error::Read { name, source })?;
    Ok(found.and_then(|profile| profile.status).map(|status| history(&status, now)).unwrap_or_default())
}

/// What the workload's profile says, where it holds an OOM like this, with that OOM. What cannot be read counts as unknown:
/// whoever adds it looks again.
pub async fn knows(
    client: &kube::Client,
    namespace: &str,
    workload: &Workload,
    is_it: impl Fn(&OomRecord) -> bool,
) -> Option<(OomRecord, GpuMemoryProfileStatus)> {
    let found = api(client, namespace).get_opt(&name(workload)).await.ok().flatten();
    let status = found.and_then(|profile| profile.status)?;
    let record = status.ooms.iter().find(|record| is_it(record))?.clone();
    Some((record, status))
}

/// Adds a record and what follows from it. Recording the same id again changes nothing, so that whoever settles an action
/// a second time does not count it twice.
pub async fn record(
    client: &kube::Client,
    namespace: &str,
    workload: &Workload,
    record: &ActionRecord,
    disruption: Option<&Disruption>,
    now: Stamp,
) -> Result<(), Error> {
    let change = |status: &mut GpuMemoryProfileStatus| {
        if status.actions.iter().any(|known| known.id == record.id) {
            return None;
        }
        add(status, record.clone(), disruption, now);
        Some(())
    };
    update(client, namespace, workload, change).await.map(|_| ())
}

/// Changes what is remembered of a workload: a profile is made where there is none, and `change` is called anew on what
/// others wrote meanwhile. Where it gives `None` nothing is written, nor is a profile made.
pub async fn update<T>(
    client: &kube::Client,
    namespace: &str,
    workload: &Workload,
    mut change: impl FnMut(&mut GpuMemoryProfileStatus) -> Option<T>,
) -> Result<Option<T>, Error> {
    let (api, name) = (api(client, namespace), name(workload));
    let failed = |source| Error::Write { name: name.clone(), source };
    let params = PatchParams::apply(FIELD_MANAGER);
    for _ in 0..WRITE_TRIES {
        let found = api.get_opt(&name).await.map_err(|source| Error::Read { name: name.clone(), source })?;
        let (mut status, mut version) = (GpuMemoryProfileStatus::default(), None);
        let is_new = found.is_none();
        if let Some(profile) = found {
            (status, version) = (profile.status.unwrap_or_default(), profile.metadata.resource_version);
        }
        let Some(changed) = change(&mut status) else { return Ok(None) };
        if is_new {
            let fresh = json!({
                "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "GpuMemoryProfile",
                "metadata": {"name": name},
                "spec": {"workload": WorkloadRef::from(workload)}
            });
            let made = api.patch(&name, &params, &Patch::Apply(&fresh)).await.map_err(failed)?;
            if made.status.is_some() {
                // Somebody else was faster: what they wrote is read first.
                continue;
            }
            version = made.metadata.resource_version;
        }
        // The version makes it a compare-and-swap: an apply alone would drop a record that somebody else added meanwhile.
        let patch = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "GpuMemoryProfile",
            "metadata": {"name": name, "resourceVersion": version},
            "status": status
        });
        match api.patch_status(&name, &params, &Patch::Apply(&patch)).await {
            Ok(_) => return Ok(Some(changed)),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(source) => return Err(failed(source)),
        }
    }
    Err(Error::Conflict { name })
}

fn add(status: &mut GpuMemoryProfileStatus, record: ActionRecord, disruption: Option<&Disruption>, now: Stamp) {
    status.actions.insert(0, record);
    let mut refusals = 0;
    status.actions.retain(|record| {
        refusals += usize::from(result(record) != PastResult::Disrupted);
        result(record) == PastResult::Disrupted || refusals <= MAX_REFUSALS
    });
    status.actions.truncate(MAX_RECORDS);
    let history = history(status, now);
    status.attempts = i32::try_from(history.attempts(now, false)).unwrap_or(i32::MAX);
    if let Some(disruption) = disruption {
        let rests = history.cooldown_ends(now, disruption, false);
        let waits = history.back_off_ends(now, false).map(|(until, _)| until);
        status.next_allowed_time = rests.max(waits).map(rfc3339);
    }
}

/// Attempts and rests are computed from the records at each decision, not from `nextAllowedTime`, which is for people: a
/// policy edited since then counts with its new numbers.
fn history(status: &GpuMemoryProfileStatus, now: Stamp) -> History {
    let mut past: Vec<Past> = status
        .actions
        .iter()
        .map(|record| {
            // A time that cannot be read counts as now and for ever: it can only delay.
            let at = parse_rfc3339(&record.time).unwrap_or(Stamp(i64::MAX / 2));
            let pod = Some(PodUid::from(record.pod_uid.clone()));
            let step = Outcome::past_step(record.action, &record.outcome);
            let used = record.used_bytes.and_then(|used| u64::try_from(used).ok()).map(Bytes);
            let age = record.age_seconds.and_then(|age| u64::try_from(age).ok()).map(Duration::from_secs);
            Past { pod, step, used, age, ..Past::new(at, record.dry_run, result(record)) }
        })
        .collect();
    past.reverse();
    History { past, restart_loop: loop_of(status, now) }
}

fn result(record: &ActionRecord) -> PastResult {
    Outcome::past_result(record.action, &record.outcome)
}

/// Name of a workload's profile: readable, unique by UID, the same for every controller.
pub fn name(workload: &Workload) -> String {
    let Workload { kind, name, uid: WorkloadUid(uid), .. } = workload;
    let readable = |text: &str, length: usize| -> String {
        let plain = text.to_ascii_lowercase();
        let kept: String = plain.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(length).collect();
        kept.trim_matches('-').to_owned()
    };
    // The UID is in the spec for certainty.
    format!("{}-{}-{:016x}", readable(kind, 30), readable(name, 180), hash(uid))
}

/// For names that every controller gives alike. FNV-1a: stable across versions of Rust, unlike the standard hasher.
pub fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

fn api(client: &kube::Client, namespace: &str) -> Api<GpuMemoryProfile> {
    Api::namespaced(client.clone(), namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::policy::ActionType;

    fn record(id: usize, outcome: &str) -> ActionRecord {
        ActionRecord {
            id: id.to_string(),
            action: ActionType::Evict,
            time: rfc3339(Stamp(1_000_000 + i64::try_from(id).unwrap())),
            pod: "a".into(),
            pod_uid: "u".into(),
            workload: "Deployment/t".into(),
            outcome: outcome.into(),
            message: String::new(),
            dry_run: false,
            used_bytes: None,
            age_seconds: None,
        }
    }

    #[test]
    fn refusals_never_push_out_the_attempts_that_count() {
        let mut status = GpuMemoryProfileStatus::default();
        add(&mut status, record(0, "Succeeded"), None, Stamp(1_000_100));
        for id in 1..60 {
            add(&mut status, record(id, "BlockedByBudget"), None, Stamp(1_000_100));
        }
        assert_eq!(status.attempts, 1);
        assert_eq!(status.actions.len(), 1 + MAX_REFUSALS);
        assert_eq!(status.actions[0].id, "59", "newest first");
        for id in 60..100 {
            add(&mut status, record(id, "Succeeded"), None, Stamp(1_000_100));
        }
        assert_eq!((status.actions.len(), status.attempts), (20, 20));
    }

    #[test]
    fn the_name_is_readable_and_differs_by_uid() {
        let workload = |uid: &str| Workload {
            api_version: "apps/v1".into(),
            kind: "Deployment".into(),
            name: "llm.train".into(),
            uid: WorkloadUid(uid.into()),
        };
        assert_eq!(name(&workload("u1")), name(&workload("u1")));
        assert_ne!(name(&workload("u1")), name(&workload("u2")));
        assert!(name(&workload("u1")).starts_with("deployment-llmtrain-"));
    }
}

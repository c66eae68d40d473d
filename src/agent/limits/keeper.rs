//! Keeps what should hold: sets, reads back, repairs, clears. What is reported as applied is what was read back.
//!
//! Flows in: the order, and what containers use. Flows out: a report for each entry. A limit of a cgroup that is not in
//! the ledger is somebody else's: it is left alone, neither raised nor lowered nor cleared. An entry gets into the ledger
//! before anything is set, and only while its cgroup has no limit.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use gpumem_engine::growth::{ratchet, slack};
use gpumem_engine::identity::{ContainerId, DeviceKey, DeviceUuid, PodUid};
use gpumem_engine::quantity::Bytes;
use tracing::{info, warn};

use super::backend::{Backend, Failure, Held};
use super::leaf::{Leaves, Version};
use super::{Holding, Order};
use crate::api::node::{LimitEntry, LimitPhase, LimitStatus, device_of};
use crate::api::usage::{Ability, LimitReport};

/// A set that was not taken is tried again after this long, doubled each time.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_mins(1);
/// A device that failed its probe is probed again after this long.
const PROBE_AGAIN: Duration = Duration::from_mins(1);
/// The limit that a probe sets and reads back.
const PROBE: Bytes = Bytes::gib(1);
const MIG: &str = "MIG: a slice takes no memory limit, it is one";
/// Name of the cgroup that is made for a probe and removed.
const SCRATCH: &str = "gpumem-probe";

/// Container and device of an entry.
type Key = (String, String);

/// See the module.
#[derive(Debug)]
pub struct Keeper {
    leaves: Leaves,
    /// Why the driver has no limits; `None` while it has.
    pub unsupported: Option<String>,
    /// What this process set last, by entry.
    set: HashMap<Key, Option<Bytes>>,
    retries: HashMap<Key, (Instant, Duration)>,
    probes: BTreeMap<DeviceUuid, Probe>,
    probed_at: Option<Instant>,
}

/// What a round found.
#[derive(Debug, Default)]
pub struct Found {
    /// One for each entry, and for what is still to be cleared.
    pub reports: Vec<LimitReport>,
    /// The driver must be opened again.
    pub driver_gone: bool,
}

/// Whether a device holds a cgroup to a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Probe {
    /// It set and read back a limit of a cgroup made for that.
    Works,
    /// No cgroup could be made for it; each limit's own read-back has to do.
    NotTried,
    /// It does not.
    Fails(String),
}

/// What an entry's report says beside its name.
struct Standing {
    applied: Option<Bytes>,
    state: LimitPhase,
    reason: String,
    cgroup: String,
}

impl Standing {
    fn new(state: LimitPhase, applied: Option<Bytes>, reason: impl Into<String>) -> Self {
        Self { applied, state, reason: reason.into(), cgroup: String::new() }
    }

    fn on(mut self, cgroup: &str) -> Self {
        cgroup.clone_into(&mut self.cgroup);
        self
    }
}

// === impl Keeper ===

impl Keeper {
    /// Nothing set yet by this process.
    pub fn new(leaves: Leaves) -> Self {
        let (set, retries, probes) = (HashMap::new(), HashMap::new(), BTreeMap::new());
        Self { leaves, unsupported: None, set, retries, probes, probed_at: None }
    }

    /// Whether limits hold on these devices: each is tried once on a cgroup made for that, whether or not one is asked for.
    pub fn ability(&mut self, backend: Option<&mut dyn Backend>, devices: &[DeviceKey]) -> Ability {
        let fails = |reason: String| Ability::Fails { reason };
        let Some(backend) = backend else {
            return fails(self.unsupported.clone().unwrap_or_else(|| Failure::Gone.to_string()));
        };
        if let Some(why) = self.cannot(&*backend) {
            return fails(why);
        }
        let whole: Vec<&DeviceKey> = devices.iter().filter(|device| device.mig.is_none()).collect();
        let mut failing = Vec::new();
        let mut untried = 0;
        for device in &whole {
            match self.probe(backend, &device.gpu) {
                Probe::Works => {}
                Probe::NotTried => untried += 1,
                Probe::Fails(why) => failing.push((*device, why)),
            }
        }
        let able = whole.len() - failing.len();
        match (failing.first(), able) {
            (None, 0) if devices.is_empty() => fails("no device has been read yet".to_owned()),
            (None, 0) => fails(MIG.to_owned()),
            (Some((_, why)), 0) => fails(why.clone()),
            (Some((device, why)), able) => {
                let by = format!("{} on {able} of {} GPUs; not on {device}: {why}", backend.name(), whole.len());
                Ability::Works { by }
            }
            (None, _) if untried > 0 => {
                Ability::Works { by: format!("{}, not tried: no cgroup could be made for it", backend.name()) }
            }
            (None, _) => Ability::Works { by: backend.name() },
        }
    }

    /// One round.
    pub fn keep(&mut self, mut backend: Option<&mut dyn Backend>, order: &Order, holdings: &[Holding]) -> Found {
        let mut found = Found::default();
        let name = backend.as_ref().map_or_else(|| "none".to_owned(), |backend| backend.name());
        let wanted: BTreeSet<_> = order.wanted.iter().map(LimitEntry::key).collect();
        for entry in &order.wanted {
            let recorded = order.ledger.iter().find(|recorded| recorded.key() == entry.key());
            let standing = match &mut backend {
                Some(backend) => self.hold(*backend, entry, recorded, holdings),
                None => Err(Failure::Gone),
            };
            let standing = standing.unwrap_or_else(|failure| {
                found.driver_gone |= backend.is_some() && failure == Failure::Gone;
                let why = self.unsupported.clone().unwrap_or_else(|| failure.to_string());
                // What was recorded stays recorded: it may still hold.
                let cgroup = recorded.map_or("", |recorded| recorded.cgroup.as_str());
                Standing::new(LimitPhase::Unsupported, None, why).on(cgroup)
            });
            let desired = Some(Bytes(entry.bytes.unwrap_or(0).max(0).cast_unsigned()));
            found.reports.push(report(entry.pod_uid.as_str(), entry.key(), desired, &name, standing));
        }
        for recorded in order.ledger.iter().filter(|recorded| !wanted.contains(&recorded.key())) {
            let standing = match &mut backend {
                Some(backend) => self.clear(*backend, recorded),
                None => Err(Failure::Gone),
            };
            let standing = standing.unwrap_or_else(|failure| {
                found.driver_gone |= backend.is_some() && failure == Failure::Gone;
                let applied = recorded.applied.and_then(|bytes| u64::try_from(bytes).ok()).map(Bytes);
                Standing::new(LimitPhase::Pending, applied, format!("not cleared yet: {failure}")).on(&recorded.cgroup)
            });
            if standing.state == LimitPhase::Cleared {
                self.set.remove(&owned(recorded.key()));
            }
            found.reports.push(report(recorded.pod_uid.as_str(), recorded.key(), None, &name, standing));
        }
        let alive = |key: &Key| {
            let key = (key.0.as_str(), key.1.as_str());
            wanted.contains(&key) || order.ledger.iter().any(|recorded| recorded.key() == key)
        };
        self.set.retain(|key, _| alive(key));
        self.retries.retain(|key, _| alive(key));
        self.leaves.retain(|container| wanted.iter().any(|(wanted, _)| *wanted == container.as_str()));
        found
    }

    fn hold(
        &mut self,
        backend: &mut dyn Backend,
        entry: &LimitEntry,
        recorded: Option<&LimitStatus>,
        holdings: &[Holding],
    ) -> Result<Standing, Failure> {
        let no = |why: String| Ok(Standing::new(LimitPhase::Unsupported, None, why));
        let Some(target) = entry.bytes.and_then(|bytes| u64::try_from(bytes).ok()).map(Bytes) else {
            return no("the entry gives no size".to_owned());
        };
        let Some(device) = device_of(&entry.device) else {
            return no(format!("`{}` is no device", entry.device));
        };
        if device.mig.is_some() {
            return no(MIG.to_owned());
        }
        if let Some(why) = self.cannot(&*backend) {
            return no(why);
        }
        if let Probe::Fails(why) = self.probe(backend, &device.gpu) {
            return no(why);
        }
        let container = ContainerId::from(entry.container_id.clone());
        let Some(leaf) = self.leaves.find(&container) else {
            let why = "the container's cgroup is not there: it has ended, or not begun";
            let cgroup = recorded.map_or("", |recorded| recorded.cgroup.as_str());
            return Ok(Standing::new(LimitPhase::Pending, None, why).on(cgroup));
        };
        let cgroup = self.leaves.recorded(&leaf);
        let held = match backend.get(&device.gpu, &leaf) {
            Ok(held) => held,
            // The driver's own accounting cannot read a limit that was never set.
            Err(Failure::NotSupported) => Held { limit: None, used: used(holdings, &container, &device) },
            Err(failure) => return self.failed(failure, None, &cgroup),
        };
        if recorded.is_none_or(|recorded| recorded.cgroup != cgroup) {
            return Ok(match held.limit {
                Some(other) => Standing::new(
                    LimitPhase::Refused,
                    Some(other),
                    format!("a limit of {other} that is not ours holds already and is left alone"),
                ),
                None => Standing::new(LimitPhase::Pending, None, "recorded first, set next").on(&cgroup),
            });
        }
        let key = owned(entry.key());
        // The device's size is not known here; by the limit's own the slack is never more, and at least the least.
        let value = ratchet(target, held.used, held.limit, slack(target));
        if held.limit != Some(value) {
            if let Some(waiting) = self.waits(&key, held, value) {
                return Ok(waiting.on(&cgroup));
            }
            if self.set.get(&key).is_some_and(|set| *set != held.limit) {
                warn!(container = entry.container_id, device = entry.device, "a limit was changed by somebody else");
            }
            if let Err(failure) = backend.set(&device.gpu, &leaf, Some(value)) {
                return self.failed(failure, held.limit, &cgroup);
            }
            self.set.insert(key.clone(), Some(value));
        }
        let read_back = match backend.get(&device.gpu, &leaf) {
            Ok(held) => held.limit,
            Err(failure) => return self.failed(failure, None, &cgroup),
        };
        Ok(self.judge(&key, target, value, read_back, held.used).on(&cgroup))
    }

    /// What the read-back says of what was set.
    fn judge(&mut self, key: &Key, target: Bytes, value: Bytes, read_back: Option<Bytes>, used: Bytes) -> Standing {
        if read_back != Some(value) {
            let (_, pause) = self.retries.get(key).copied().unwrap_or((Instant::now(), FIRST_RETRY / 2));
            let pause = (pause * 2).min(MAX_RETRY);
            self.retries.insert(key.clone(), (Instant::now() + pause, pause));
            return Self::drift(value, read_back);
        }
        self.retries.remove(key);
        if value > target {
            let why = format!("{used} are in use: the limit comes down from {value} to {target} as use falls");
            Standing::new(LimitPhase::Pending, read_back, why)
        } else {
            Standing::new(LimitPhase::Applied, read_back, "read back")
        }
    }

    fn drift(value: Bytes, read_back: Option<Bytes>) -> Standing {
        let holds = read_back.map_or_else(|| "no limit".to_owned(), |limit| limit.to_string());
        let why = format!("the driver took {value} without an error, and {holds} is what it holds to; trying again");
        Standing::new(LimitPhase::Drift, read_back, why)
    }

    /// A set that was not taken is not repeated at once.
    fn waits(&self, key: &Key, held: Held, value: Bytes) -> Option<Standing> {
        let (until, _) = self.retries.get(key)?;
        (*until > Instant::now()).then(|| Self::drift(value, held.limit))
    }

    fn failed(&self, failure: Failure, applied: Option<Bytes>, cgroup: &str) -> Result<Standing, Failure> {
        match failure {
            Failure::Gone => Err(failure),
            Failure::NotFound if self.leaves.of_record(cgroup).is_none() => {
                let why = "the container's cgroup went away meanwhile: it has ended";
                Ok(Standing::new(LimitPhase::Pending, None, why).on(cgroup))
            }
            Failure::NotFound | Failure::NotSupported | Failure::NoPermission | Failure::Other(_) => {
                Ok(Standing::new(LimitPhase::Unsupported, applied, failure.to_string()).on(cgroup))
            }
        }
    }

    /// Clears what stands in the ledger and is not wanted any more.
    fn clear(&mut self, backend: &mut dyn Backend, recorded: &LimitStatus) -> Result<Standing, Failure> {
        let done = |why: &str| Ok(Standing::new(LimitPhase::Cleared, None, why).on(&recorded.cgroup));
        let Some(device) = device_of(&recorded.device) else { return done("it names no device") };
        let Some(leaf) = self.leaves.of_record(&recorded.cgroup) else { return done("the container has ended") };
        let held = match backend.get(&device.gpu, &leaf) {
            Ok(held) => held,
            Err(Failure::NotFound | Failure::NotSupported) => return done("nothing holds"),
            Err(failure) => return Err(failure),
        };
        let Some(limit) = held.limit else { return done("cleared") };
        let ours = self.set.get(&owned(recorded.key()));
        if ours.is_some_and(|set| *set != Some(limit)) {
            return done("somebody else has changed it, and it is left alone");
        }
        backend.set(&device.gpu, &leaf, None)?;
        match backend.get(&device.gpu, &leaf) {
            Ok(Held { limit: Some(limit), .. }) => {
                let why = "the driver took the clearing without an error, and the limit is still there; trying again";
                Ok(Standing::new(LimitPhase::Drift, Some(limit), why).on(&recorded.cgroup))
            }
            Ok(_) | Err(Failure::NotFound | Failure::NotSupported) => {
                info!(container = recorded.container_id, device = recorded.device, "limit cleared");
                done("cleared")
            }
            Err(failure) => Err(failure),
        }
    }

    /// Why this node's cgroups take no limit. The simulated driver takes those of cgroup v1 through the same code.
    fn cannot(&self, backend: &dyn Backend) -> Option<String> {
        match self.leaves.version() {
            Version::V2 => None,
            Version::V1 if backend.is_simulated() => None,
            Version::V1 => Some("cgroup v1: the driver limits cgroups of version 2 only".to_owned()),
            Version::Absent => Some("no cgroups are mounted at --cgroup-root".to_owned()),
        }
    }

    /// Sets and reads back a limit of a cgroup made for that.
    fn probe(&mut self, backend: &mut dyn Backend, device: &DeviceUuid) -> Probe {
        if self.probed_at.is_none_or(|at| at.elapsed() > PROBE_AGAIN) {
            self.probes.retain(|_, probe| *probe == Probe::Works);
            self.probed_at = Some(Instant::now());
        }
        if let Some(known) = self.probes.get(device) {
            return known.clone();
        }
        let scratch = self.leaves.top().join(SCRATCH);
        let probe = match std::fs::create_dir(&scratch) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Probe::NotTried,
            _ => try_out(backend, device, &scratch),
        };
        // In a tree of cgroups this removes an empty one; elsewhere it is an empty folder.
        let _ = std::fs::remove_dir(&scratch);
        if let Probe::Fails(why) = &probe {
            warn!(%device, why, "this device takes no memory limits");
        }
        self.probes.insert(device.clone(), probe.clone());
        probe
    }
}

fn try_out(backend: &mut dyn Backend, device: &DeviceUuid, scratch: &Path) -> Probe {
    if let Err(failure) = backend.set(device, scratch, Some(PROBE)) {
        return Probe::Fails(match failure {
            Failure::NotSupported => {
                "the driver has no memory limits for this device (MIG, or driver below 615)".to_owned()
            }
            other => format!("the driver took no limit for a cgroup made to try it: {other}"),
        });
    }
    let read_back = backend.get(device, scratch).map(|held| held.limit);
    let _ = backend.set(device, scratch, None);
    match read_back {
        Ok(Some(PROBE)) => Probe::Works,
        _ => Probe::Fails("the driver takes limits without an error and does not hold to them".to_owned()),
    }
}

fn used(holdings: &[Holding], container: &ContainerId, device: &DeviceKey) -> Bytes {
    let own = |holding: &&Holding| holding.container.container == *container && holding.device == *device;
    holdings.iter().filter(own).filter_map(|holding| holding.used).sum()
}

fn owned((container, device): (&str, &str)) -> Key {
    (container.to_owned(), device.to_owned())
}

fn report(pod: &str, key: (&str, &str), desired: Option<Bytes>, backend: &str, standing: Standing) -> LimitReport {
    LimitReport {
        pod: PodUid::from(pod.to_owned()),
        container_id: ContainerId::from(key.0),
        device: key.1.to_owned(),
        desired,
        applied: standing.applied,
        backend: backend.to_owned(),
        state: standing.state,
        reason: standing.reason,
        cgroup: standing.cgroup,
    }
}

#[cfg(test)]
mod tests;

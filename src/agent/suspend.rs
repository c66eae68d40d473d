//! Suspend to host memory: a container's processes are locked, their GPU memory is moved to host memory, and back.
//!
//! Flows in: the freezes of the node's object. Flows out: a report for each. By CUDA's checkpoint calls (driver 570 and
//! later), which need uid 0 with SYS_PTRACE and DAC_OVERRIDE. Whatever is locked and cannot be finished is unlocked; what is
//! frozen is resumed when it is not wanted any more, at its moment of expiry, and when the agent ends. As with limits,
//! nothing is begun before the ledger shows it, so the next agent finds what this one left.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use gpumem_engine::identity::{ContainerId, PodUid};
use gpumem_engine::quantity::Bytes;
use tracing::{error, info, warn};

use self::cuda::{Checkpoints, Cuda, State};
use crate::agent::limits::leaf::{Leaves, processes};
use crate::agent::limits::{Order, Part, Settings, Shared};
use crate::api::node::{ALL_DEVICES, FreezeSpec, LimitEntry, LimitPhase, LimitStatus};
use crate::api::usage::LimitReport;

pub mod cuda;
pub mod preflight;

#[cfg(test)]
mod tests;

/// The name every driver installs.
const LIBRARY: &str = "libcuda.so.1";
/// A driver that is not there is looked for again after this long: it may come after the agent.
const REOPEN: Duration = Duration::from_mins(1);
/// A freeze that failed is tried again after this long.
const RETRY: Duration = Duration::from_mins(1);
/// NVML shows that the memory is gone within a sample or two.
const VERIFY: Duration = Duration::from_secs(15);
/// A container that may go on waits this long for its memory to be free; then it is tried all the same.
const WAIT_FOR_ROOM: Duration = Duration::from_secs(30);
/// A restore that failed is tried again after this long.
const RESTORE_AGAIN: Duration = Duration::from_secs(5);

/// Paths that CUDA's library is looked for, in order: beside NVML's.
pub fn search_list(first: Option<&Path>) -> Vec<PathBuf> {
    let beside = crate::agent::nvml::search_list(None).into_iter().map(|path| path.with_file_name(LIBRARY));
    first.map(PathBuf::from).into_iter().chain(beside).collect()
}

/// Freezes and resumes until the sender of `stop` is dropped; then resumes all.
pub fn run(shared: &Shared, settings: &Settings, stop: &Receiver<()>) {
    let cuda = Cuda::open(&settings.cuda);
    if let Err(why) = &cuda {
        warn!(why, "this node's driver cannot suspend processes");
    }
    shared.able(Part::Freezes, cuda::ability(&cuda));
    let mut freezer = Freezer::new(Leaves::new(&settings.cgroup_root), cuda);
    loop {
        if freezer.reopen(Instant::now(), || Cuda::open(&settings.cuda)) {
            info!("this node's driver can suspend processes now");
            shared.able(Part::Freezes, cuda::ability(&freezer.cuda));
        }
        let order = shared.orders(Part::Freezes, &settings.boot, jiff::Timestamp::now());
        shared.report(Part::Freezes, freezer.keep(&order, shared));
        if !matches!(stop.recv_timeout(settings.pause()), Err(RecvTimeoutError::Timeout)) {
            break;
        }
    }
    let order = shared.orders(Part::Freezes, &settings.boot, jiff::Timestamp::now());
    shared.report(Part::Freezes, freezer.keep(&Order { wanted: Vec::new(), ..order }, shared));
}

/// See the module.
#[derive(Debug)]
pub struct Freezer<C> {
    leaves: Leaves,
    cuda: Result<C, String>,
    /// When the driver was looked for last.
    opened: Instant,
    frozen: HashMap<ContainerId, Frozen>,
    failed: HashMap<ContainerId, (Instant, String)>,
}

/// A container that this process froze.
#[derive(Debug)]
struct Frozen {
    pids: Vec<u32>,
    bytes: Bytes,
    since: Instant,
    verified: bool,
    /// Since when it may go on.
    thawing: Option<Instant>,
    tried: Option<Instant>,
}

/// What a report says beside its name.
type Standing = (LimitPhase, Option<Bytes>, String, String);

// === impl Freezer ===

impl<C: Checkpoints> Freezer<C> {
    /// Nothing frozen yet.
    pub fn new(leaves: Leaves, cuda: Result<C, String>) -> Self {
        Self { leaves, cuda, opened: Instant::now(), frozen: HashMap::new(), failed: HashMap::new() }
    }

    /// Looks again for a driver that was not there, now and then; true where it is found.
    pub fn reopen(&mut self, now: Instant, open: impl FnOnce() -> Result<C, String>) -> bool {
        if self.cuda.is_ok() || now.saturating_duration_since(self.opened) < REOPEN {
            return false;
        }
        self.opened = now;
        self.cuda = open();
        self.cuda.is_ok()
    }

    /// One round.
    pub fn keep(&mut self, order: &Order, shared: &Shared) -> Vec<LimitReport> {
        let name = match &self.cuda {
            Ok(cuda) => cuda.name(),
            Err(_) => "none".to_owned(),
        };
        let mut reports = Vec::new();
        for entry in &order.wanted {
            let recorded = order.ledger.iter().find(|recorded| recorded.key() == entry.key());
            let standing = self.freeze(entry, recorded, shared);
            reports.push(report(&entry.pod_uid, &entry.container_id, &name, standing));
        }
        let is_wanted = |container: &str| order.wanted.iter().any(|entry| entry.container_id == container);
        for recorded in order.ledger.iter().filter(|recorded| !is_wanted(&recorded.container_id)) {
            let standing = self.thaw(&recorded.container_id, &recorded.cgroup, recorded.applied, shared);
            reports.push(report(&recorded.pod_uid, &recorded.container_id, &name, standing));
        }
        // The object is gone altogether: nothing is left to say that these should be frozen.
        let is_listed =
            |container: &str| is_wanted(container) || order.ledger.iter().any(|one| one.container_id == container);
        let lost: Vec<ContainerId> =
            self.frozen.keys().filter(|container| !is_listed(container.as_str())).cloned().collect();
        for container in lost {
            let standing = self.thaw(container.as_str(), "", None, shared);
            reports.push(report("", container.as_str(), &name, standing));
        }
        self.failed.retain(|container, _| is_wanted(container.as_str()));
        reports
    }

    fn freeze(&mut self, entry: &LimitEntry, recorded: Option<&LimitStatus>, shared: &Shared) -> Standing {
        let cuda = match &self.cuda {
            Ok(cuda) => cuda,
            // What was recorded stays recorded: an agent before this one may have frozen it.
            Err(why) => {
                let cgroup = recorded.map_or_else(String::new, |recorded| recorded.cgroup.clone());
                return (LimitPhase::Unsupported, None, why.clone(), cgroup);
            }
        };
        let container = ContainerId::from(entry.container_id.clone());
        let Some(leaf) = self.leaves.find(&container) else {
            let why = "the container's cgroup is not there: it has ended, or not begun".to_owned();
            let cgroup = recorded.map_or_else(String::new, |recorded| recorded.cgroup.clone());
            return (LimitPhase::Pending, None, why, cgroup);
        };
        let cgroup = self.leaves.recorded(&leaf);
        if recorded.is_none_or(|recorded| recorded.cgroup != cgroup) {
            return (LimitPhase::Pending, None, "recorded first, frozen next".to_owned(), cgroup);
        }
        if let Some(frozen) = self.frozen.get_mut(&container) {
            frozen.thawing = None;
            return self.verify(&container, &cgroup, shared);
        }
        if let Some((at, why)) = self.failed.get(&container)
            && at.elapsed() < RETRY
        {
            return (LimitPhase::Refused, None, why.clone(), cgroup);
        }
        let states: BTreeMap<u32, State> =
            processes(&leaf).into_iter().filter_map(|pid| Some((pid, cuda.state(pid).ok()?))).collect();
        let pids: Vec<u32> = states.keys().copied().collect();
        let bytes = recorded.and_then(|recorded| u64::try_from(recorded.applied?).ok()).map(Bytes);
        if !pids.is_empty() && states.values().all(|state| *state == State::Checkpointed) {
            // An agent before this one froze it.
            self.remember(container.clone(), pids, bytes.unwrap_or_default());
            return self.verify(&container, &cgroup, shared);
        }
        let spec = entry.freeze.unwrap_or_default();
        let done = match preflight::check(&container, &leaf, &states, &spec, shared) {
            Ok(bytes) => suspend(cuda, &pids, &spec).map(|()| bytes),
            Err(why) => Err(why),
        };
        match done {
            Ok(bytes) => {
                info!(container = container.as_str(), %bytes, "frozen");
                self.remember(container, pids, bytes);
                (
                    LimitPhase::Pending,
                    Some(bytes),
                    "frozen; NVML has not shown yet that the memory is free".to_owned(),
                    cgroup,
                )
            }
            Err(why) => {
                warn!(container = container.as_str(), why, "not frozen");
                self.failed.insert(container, (Instant::now(), why.clone()));
                (LimitPhase::Refused, None, why, cgroup)
            }
        }
    }

    fn remember(&mut self, container: ContainerId, pids: Vec<u32>, bytes: Bytes) {
        let frozen = Frozen { pids, bytes, since: Instant::now(), verified: false, thawing: None, tried: None };
        self.frozen.insert(container, frozen);
    }

    /// A freeze counts once the driver's own list shows no memory of the container.
    fn verify(&mut self, container: &ContainerId, cgroup: &str, shared: &Shared) -> Standing {
        let is_listed = shared.holdings().iter().any(|holding| holding.container.container == *container);
        let Some(frozen) = self.frozen.get_mut(container) else {
            return (LimitPhase::Pending, None, String::new(), cgroup.to_owned());
        };
        frozen.verified |= !is_listed;
        let bytes = Some(frozen.bytes);
        if frozen.verified {
            return (LimitPhase::Frozen, bytes, format!("{} are in host memory", frozen.bytes), cgroup.to_owned());
        }
        if frozen.since.elapsed() < VERIFY {
            let why = "frozen; NVML has not shown yet that the memory is free".to_owned();
            return (LimitPhase::Pending, bytes, why, cgroup.to_owned());
        }
        let why = "the checkpoint succeeded and NVML still shows the container's memory: it is resumed".to_owned();
        let (pids, cuda) = (frozen.pids.clone(), self.cuda.as_ref());
        if let Ok(cuda) = cuda {
            resume(cuda, &pids);
        }
        self.frozen.remove(container);
        self.failed.insert(container.clone(), (Instant::now(), why.clone()));
        (LimitPhase::Refused, None, why, cgroup.to_owned())
    }

    /// Lets a container go on.
    fn thaw(&mut self, container: &str, cgroup: &str, bytes: Option<i64>, shared: &Shared) -> Standing {
        let cleared = |why: &str| (LimitPhase::Cleared, None, why.to_owned(), cgroup.to_owned());
        let id = ContainerId::from(container.to_owned());
        let left = self.leaves.of_record(cgroup).map(|leaf| processes(&leaf));
        let bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok()).map(Bytes).unwrap_or_default();
        let cuda = match (&self.cuda, &left) {
            (Ok(cuda), _) => cuda,
            (Err(_), None) => return cleared("the container has ended"),
            // An agent before this one may have frozen it, and only the driver can say.
            (Err(why), Some(_)) => {
                return (LimitPhase::Pending, Some(bytes), format!("not resumed yet: {why}"), cgroup.to_owned());
            }
        };
        let left = left.unwrap_or_default();
        let now = Instant::now();
        let frozen = self.frozen.entry(id.clone()).or_insert(Frozen {
            pids: Vec::new(),
            bytes,
            since: now,
            verified: false,
            thawing: None,
            tried: None,
        });
        let mut pids = frozen.pids.clone();
        pids.extend(left);
        pids.sort_unstable();
        pids.dedup();
        let states: Vec<(u32, State)> = pids.into_iter().filter_map(|pid| Some((pid, cuda.state(pid).ok()?))).collect();
        let suspended: Vec<u32> =
            states.iter().filter(|(_, state)| *state != State::Running).map(|(pid, _)| *pid).collect();
        if suspended.is_empty() {
            self.frozen.remove(&id);
            return cleared("it runs, or has ended");
        }
        let since = *frozen.thawing.get_or_insert(now);
        let (needs, room) = (frozen.bytes, shared.most_free());
        let has_room = room.is_none_or(|room| room >= needs) || since.elapsed() >= WAIT_FOR_ROOM;
        let is_due = frozen.tried.is_none_or(|tried| tried.elapsed() >= RESTORE_AGAIN);
        if has_room && is_due {
            frozen.tried = Some(now);
            if resume(cuda, &suspended) {
                info!(container, "resumed");
                self.frozen.remove(&id);
                return cleared("resumed");
            }
        }
        let has_failed = states.iter().any(|(_, state)| *state == State::Failed);
        let why = if has_failed {
            "the driver lost it while it was restored: only its end frees it".to_owned()
        } else {
            let room = room.map_or_else(String::new, |room| format!(", and a device has {room} free at most"));
            format!("it cannot go on yet: it needs {needs}{room}")
        };
        let phase = if has_failed { LimitPhase::Refused } else { LimitPhase::Pending };
        (phase, Some(needs), why, cgroup.to_owned())
    }
}

/// Locks all, then checkpoints all; undoes everything where one fails.
fn suspend(cuda: &impl Checkpoints, pids: &[u32], spec: &FreezeSpec) -> Result<(), String> {
    let timeout = Duration::from_secs(u64::try_from(spec.lock_seconds.clamp(1, 120)).unwrap_or(10));
    let undo = |why: String| {
        resume(cuda, pids);
        Err(why)
    };
    for pid in pids {
        if let Err(code) = cuda.lock(*pid, timeout) {
            return undo(format!(
                "its work on the GPU did not end within {} s, or the driver refuses (CUDA error {code}); it runs on",
                timeout.as_secs()
            ));
        }
    }
    for pid in pids {
        if let Err(code) = cuda.checkpoint(*pid) {
            return undo(format!(
                "the driver could not move its memory (CUDA error {code}; managed memory and exported handles are not \
                 supported); it runs on"
            ));
        }
    }
    Ok(())
}

/// Restores and unlocks every process that is not running; true where all run afterwards.
fn resume(cuda: &impl Checkpoints, pids: &[u32]) -> bool {
    let mut all = true;
    for pid in pids {
        // One that has ended answers no question, and nothing is left to do about it.
        let Ok(state) = cuda.state(*pid) else { continue };
        let done = match state {
            State::Running => Ok(()),
            State::Locked => cuda.unlock(*pid),
            State::Checkpointed => cuda.restore(*pid).and_then(|()| cuda.unlock(*pid)),
            State::Failed => Err(0),
        };
        if let Err(code) = done {
            all = false;
            error!(pid, code, ?state, "a suspended process does not go on");
        }
    }
    all
}

fn report(pod: &str, container: &str, backend: &str, (state, applied, reason, cgroup): Standing) -> LimitReport {
    LimitReport {
        pod: PodUid::from(pod.to_owned()),
        container_id: ContainerId::from(container.to_owned()),
        device: ALL_DEVICES.to_owned(),
        desired: None,
        applied,
        backend: backend.to_owned(),
        state,
        reason,
        cgroup,
    }
}

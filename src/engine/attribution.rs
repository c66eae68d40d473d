//! From processes to containers: one node's sample and its processes' owners give memory by container.
//!
//! Flows in: a [`RawSample`] and, for each process, its [`Owner`]. Flows out: a [`Usage`] in which every device keeps
//! `used = sum(containers) + unattributed`. A byte is never counted twice and never dropped, and a container is given a
//! value only where the driver really gave one: a failed query, a cut list or an invisible process never reads as zero.

use std::collections::BTreeMap;

use crate::identity::{ContainerKey, Pid, StartTime};
use crate::quantity::Bytes;
use crate::sample::{DeviceMemory, DeviceSample, ProcessMemory, RawSample, Reading};
use crate::usage::{Attribution, AttributionGap, ContainerUsage, DeviceUsage, Owner, Usage};

#[cfg(test)]
mod tests;

/// Memory that may be in use on a device nobody uses. An H200 shows 0, one of its MIG slices up to 22 MiB; a single CUDA
/// context takes more than this.
pub const IDLE: Bytes = Bytes::mib(64);

/// The same where the driver counts its own share as used (NVML v1 only): an idle A100 shows 912 MiB.
pub const IDLE_WITH_RESERVED: Bytes = Bytes::gib(1);

/// The processes may claim more than the device by up to the total divided by this. Device and processes are read some
/// milliseconds apart, and 1 % of an H200 is what a fast loader allocates in that time.
pub const SKEW_DIVISOR: u64 = 100;

/// NVML's "not available" (all ones) where it reaches us as if it were a number.
const WITHHELD: Bytes = Bytes(u64::MAX);

/// Splits the memory of every device of `sample` among the containers that use it.
///
/// `owner_of` answers for a process what `/proc` said of it ([`Owners::get`] is meant for that); `None` is a process that
/// cannot be named, and its memory stays unattributed. A container without a process on a device is not listed there,
/// which means "uses nothing" only while the device's [`Attribution`] is `Complete`: else an unnamed process may be its.
///
/// The answer does not depend on the order of processes. When device and processes disagree by no more than
/// [`SKEW_DIVISOR`] allows, the containers are scaled down in proportion until they fit, an error below 1 % of the
/// device; beyond that no split can be believed and the device is `Inconsistent`: a gap of one sample does less harm than
/// a wrong blame.
///
/// The devices are independent: one that is lost changes nothing for the others. A MIG GPU instance is one device of the
/// sample however many compute instances it has, as they share its memory.
///
/// Costs O(n log n) in the processes. For 8 GPUs with 64 processes each that is some 50 µs with four processes to a
/// container and some 100 µs with one: most of it goes into copying the containers' keys.
pub fn attribute<'o>(sample: &RawSample, owner_of: impl Fn(Pid) -> Option<&'o Owner>) -> Usage {
    Usage { at: sample.at, devices: sample.devices.iter().map(|device| attribute_device(device, &owner_of)).collect() }
}

fn attribute_device<'o>(sample: &DeviceSample, owner_of: &impl Fn(Pid) -> Option<&'o Owner>) -> DeviceUsage {
    let DeviceSample { device, index, model, memory, processes } = sample;
    let (containers, attribution) = match split(memory, processes, owner_of) {
        Ok(split) => split,
        Err(gap) => (Vec::new(), Attribution::Unavailable(gap)),
    };
    let memory = memory.value().copied();
    DeviceUsage {
        device: device.clone(),
        index: *index,
        model: model.clone(),
        memory,
        unattributed: memory.map(|memory| memory.used - known(&containers)),
        containers,
        attribution,
    }
}

/// The containers of one device, which never exceed its `used`, or why none may be given a value.
fn split<'o>(
    memory: &Reading<DeviceMemory>,
    processes: &Reading<Vec<ProcessMemory>>,
    owner_of: &impl Fn(Pid) -> Option<&'o Owner>,
) -> Result<(Vec<ContainerUsage>, Attribution), AttributionGap> {
    let memory = match memory {
        Reading::Value(memory) => Some(memory),
        // GPUs that share the host's memory have no counters of their own; the processes' sums are real all the same.
        Reading::NotSupported => None,
        // The list was read within the same moment from the same broken device.
        Reading::Failed(failure) => return Err(AttributionGap::Query(*failure)),
    };
    let processes = match processes {
        Reading::Value(processes) => distinct(processes),
        Reading::NotSupported => return Err(AttributionGap::NotSupported),
        Reading::Failed(failure) => return Err(AttributionGap::Query(*failure)),
    };
    if let Some(memory) = memory {
        if processes.is_empty() && memory.used > idle(memory) {
            return Err(AttributionGap::NoProcessVisible);
        }
        let claimed: u128 = processes.iter().filter_map(|process| process.used).map(wide).sum();
        if claimed > wide(memory.used) + wide(memory.total) / u128::from(SKEW_DIVISOR) {
            return Err(AttributionGap::Inconsistent);
        }
    }
    let (mut containers, attribution) = group(&processes, owner_of);
    if let Some(memory) = memory {
        fit(&mut containers, memory.used);
    }
    Ok((containers, attribution))
}

/// Every process once, ordered. The lists overlap (compute, graphics, MPS): the largest value of a process stands.
fn distinct(processes: &[ProcessMemory]) -> Vec<ProcessMemory> {
    let mut distinct = processes.to_vec();
    for process in &mut distinct {
        process.used = process.used.filter(|used| *used != WITHHELD);
    }
    distinct.sort_unstable_by(|a, b| a.pid.cmp(&b.pid).then(b.used.cmp(&a.used)));
    distinct.dedup_by_key(|process| process.pid);
    distinct
}

fn idle(memory: &DeviceMemory) -> Bytes {
    if memory.reserved.is_some() { IDLE } else { IDLE_WITH_RESERVED }
}

fn group<'o>(
    processes: &[ProcessMemory],
    owner_of: &impl Fn(Pid) -> Option<&'o Owner>,
) -> (Vec<ContainerUsage>, Attribution) {
    let mut attribution = Attribution::Complete;
    let mut named: Vec<(&ContainerKey, ProcessMemory, StartTime)> = Vec::with_capacity(processes.len());
    for process in processes {
        match owner_of(process.pid) {
            None => attribution = Attribution::Partial,
            // The host's own: its memory is unattributed by right, whatever its value.
            Some(Owner { started: _, container: None }) => {}
            Some(Owner { started, container: Some(container) }) => {
                if process.used.is_none() {
                    attribution = Attribution::Partial;
                }
                named.push((container, *process, *started));
            }
        }
    }
    // Sorted and cut rather than collected in a map: half the time, and all of it is comparing keys.
    named.sort_by_key(|(container, ..)| *container);
    let containers = named.chunk_by(|(a, ..), (b, ..)| a == b).map(|processes| ContainerUsage {
        container: processes[0].0.clone(),
        used: processes.iter().map(|(_, process, _)| process.used).sum(),
        processes: processes.iter().map(|(_, process, started)| (process.pid, *started)).collect(),
    });
    (containers.collect(), attribution)
}

/// Scales the containers down in proportion where together they exceed `used`. Rounding leaves less, never more.
fn fit(containers: &mut [ContainerUsage], used: Bytes) {
    let sum: u128 = containers.iter().filter_map(|container| container.used).map(wide).sum();
    if sum <= wide(used) {
        return;
    }
    for value in containers.iter_mut().filter_map(|container| container.used.as_mut()) {
        let scaled = wide(*value) * wide(used) / sum;
        *value = u64::try_from(scaled).map_or(*value, Bytes);
    }
}

fn known(containers: &[ContainerUsage]) -> Bytes {
    containers.iter().filter_map(|container| container.used).sum()
}

/// Sums and products of readings overflow 64 bits when the driver talks nonsense.
fn wide(bytes: Bytes) -> u128 {
    u128::from(bytes.0)
}

/// The owners of the processes seen on the node's devices, so that `/proc/<pid>/cgroup` is read once in a process's life.
///
/// A PID alone names nobody: it may be reused at any time. An owner is therefore handed out only in the cycle in which
/// its process was found alive with the same start time. One cycle of the caller is: list the processes, read each one's
/// start time, [`refresh`](Self::refresh), [`insert`](Self::insert) the owners asked for, [`attribute`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    by_pid: BTreeMap<Pid, Owner>,
}

// === impl Owners ===

impl Owners {
    /// Takes the listed processes that `/proc` still has, with their start times; forgets all others; returns those whose
    /// owner must be looked up.
    ///
    /// `listed_at` is when the driver was asked, in the ticks of [`StartTime`]. A process that started in that tick or
    /// later is not the one the driver listed, but a successor under its PID, and stays unnamed: a process needs far
    /// longer than a tick to get its first memory on a GPU.
    pub fn refresh(&mut self, alive: &[(Pid, StartTime)], listed_at: StartTime) -> Vec<(Pid, StartTime)> {
        let mut known = std::mem::take(&mut self.by_pid);
        let mut unknown = Vec::new();
        for &(pid, started) in alive.iter().filter(|(_, started)| *started < listed_at) {
            match known.remove(&pid) {
                Some(owner) if owner.started == started => {
                    self.by_pid.insert(pid, owner);
                }
                _ if self.by_pid.contains_key(&pid) => {} // listed on several devices
                _ => unknown.push((pid, started)),
            }
        }
        unknown.sort_unstable();
        unknown.dedup();
        unknown
    }

    /// Records the owner of a process that [`refresh`](Self::refresh) asked for. The caller reads the start time again
    /// after the cgroup and inserts only if it is the same: otherwise the two may be of different processes.
    pub fn insert(&mut self, pid: Pid, owner: Owner) {
        self.by_pid.insert(pid, owner);
    }

    /// The owner of a process that was alive at the last [`refresh`](Self::refresh).
    pub fn get(&self, pid: Pid) -> Option<&Owner> {
        self.by_pid.get(&pid)
    }
}

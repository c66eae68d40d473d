//! What hooked processes say of their allocators, read from the names of their threads.
//!
//! Flows in: which processes hold memory on which device, and their `/proc` directories. Flows out: figures for each
//! container and device. The kernel shows every user a thread's name, lets nobody but the process itself write it, and keeps
//! it below 16 bytes: so this needs no capability, no mount and no socket, follows no link, and reads nothing that is large.
//! A container can lie about itself only; what it says is shown and never decides how much it uses.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpumem_engine::identity::{ContainerId, ContainerKey, DeviceKey, Pid, StartTime};
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::usage::{DeviceUsage, Usage};
use rustix::fs::{Dir, Mode, OFlags, openat};

use crate::agent::metrics::SelfMetrics;
use crate::agent::owners::Processes;
use crate::agent::pods::{Pod, Pods};

pub mod beacon;

use beacon::Beacon;

/// A process whose hook was not found yet is looked through again after this long.
const SEARCH_EVERY_MS: u64 = 5_000;
/// And one whose hook was found, for devices that it began to use later.
const SEARCH_AGAIN_MS: u64 = 30_000;
/// A hook that has not counted on for this long says nothing any more.
const SILENT_AFTER_MS: u64 = 10_000;
/// Threads of a process that are looked at; training processes have hundreds.
const MAX_THREADS: usize = 4096;
/// Threads looked at in one cycle, over all processes: the rest waits for the next.
const MAX_LOOKS: usize = 16_384;
/// Devices of one process.
const MAX_BEACONS: usize = 16;

/// What a container's hooked processes say of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Live memory; `None` while one of the processes does not say.
    pub allocated: Option<Bytes>,
    /// Live and cached memory; `None` while one of the processes does not say.
    pub reserved: Option<Bytes>,
    /// Out-of-memory failures in the life of the processes that run now.
    pub ooms: u32,
    /// Processes that speak.
    pub hooked: u32,
    /// Processes of the container on the device.
    pub processes: u32,
}

/// What a hooked container says of its allocator on a device.
#[derive(Clone, Debug)]
pub struct HookView {
    /// Which device.
    pub device: DeviceKey,
    /// NVML's index of the GPU.
    pub index: u32,
    /// The pod.
    pub pod: Arc<Pod>,
    /// Name of the container.
    pub container: Arc<str>,
    /// Its current instance.
    pub container_id: ContainerId,
    /// What it says.
    pub figures: Figures,
}

/// Where each process's hook is.
#[derive(Debug, Default)]
pub struct Hooks {
    known: HashMap<Pid, Told>,
}

#[derive(Debug)]
struct Told {
    started: StartTime,
    search_at: Moment,
    threads: Vec<Thread>,
}

#[derive(Debug)]
struct Thread {
    id: u32,
    said: Beacon,
    /// When its beat changed last.
    heard: Moment,
}

// === impl Hooks ===

impl Hooks {
    /// The figures of a cycle. A process that says nothing has none, and its container's `hooked` is below `processes`.
    pub fn read(
        &mut self,
        usage: &Usage,
        processes: &Processes,
        metrics: &SelfMetrics,
    ) -> BTreeMap<(ContainerKey, DeviceKey), Figures> {
        let now = usage.at;
        let on_devices = devices_of(usage);
        self.known.retain(|pid, told| on_devices.get(pid).is_some_and(|(started, _)| *started == told.started));
        let mut looks = MAX_LOOKS;
        let mut figures: BTreeMap<(ContainerKey, DeviceKey), Figures> = BTreeMap::new();
        let mut said: HashMap<(Pid, &DeviceKey), Beacon> = HashMap::new();
        for (pid, (started, devices)) in &on_devices {
            let Some(directory) = processes.directory(*pid) else { continue };
            let fresh = || Told { started: *started, search_at: now, threads: Vec::new() };
            let told = self.known.entry(*pid).or_insert_with(fresh);
            told.listen(directory, now, &mut looks, metrics);
            for thread in told.threads.iter().filter(|thread| now.0.saturating_sub(thread.heard.0) <= SILENT_AFTER_MS) {
                match place(&thread.said, devices) {
                    // Of two threads that claim one device the first counts: a thread's children bear its name at first.
                    Some(device) => _ = said.entry((*pid, device)).or_insert(thread.said),
                    None => metrics.dropped("hook", "device"),
                }
            }
        }
        for device in &usage.devices {
            for container in &device.containers {
                let beacons: Vec<_> =
                    container.processes.iter().map(|(pid, _)| said.get(&(*pid, &device.device))).collect();
                let summed = sum(&beacons);
                if summed.hooked == 0 {
                    continue;
                }
                if is_absurd(&summed, device) {
                    metrics.dropped("hook", "too_large");
                    continue;
                }
                figures.insert((container.container.clone(), device.device.clone()), summed);
            }
        }
        figures
    }
}

/// The figures with the names that the API gave; what has none yet is left out for a moment.
pub fn named(figures: BTreeMap<(ContainerKey, DeviceKey), Figures>, usage: &Usage, pods: &Pods) -> Vec<HookView> {
    let index = |key: &DeviceKey| usage.devices.iter().find(|device| device.device == *key).map(|device| device.index);
    let named = figures.into_iter().filter_map(|((key, device), figures)| {
        let found = pods.find(&key)?;
        Some(HookView {
            index: index(&device)?,
            device,
            pod: found.pod,
            container: found.container?,
            container_id: key.container,
            figures,
        })
    });
    named.collect()
}

/// Every process that holds memory, with its devices in their order.
fn devices_of(usage: &Usage) -> HashMap<Pid, (StartTime, Vec<&DeviceKey>)> {
    let mut found: HashMap<Pid, (StartTime, Vec<&DeviceKey>)> = HashMap::new();
    for device in &usage.devices {
        for (pid, started) in device.containers.iter().flat_map(|container| &container.processes) {
            found.entry(*pid).or_insert_with(|| (*started, Vec::new())).1.push(&device.device);
        }
    }
    found
}

/// Which of its process's devices a name speaks of; `None` where that cannot be told.
fn place<'d>(beacon: &Beacon, devices: &[&'d DeviceKey]) -> Option<&'d DeviceKey> {
    let matches = |device: &&&'d DeviceKey| {
        let digits = device.gpu.as_str().strip_prefix("GPU-").and_then(|digits| digits.get(..4));
        beacon.uuid.is_some() && digits.and_then(|digits| u16::from_str_radix(digits, 16).ok()) == beacon.uuid
    };
    let mut found = devices.iter().filter(matches);
    match (found.next(), found.next(), devices) {
        (Some(device), None, _) => Some(device),
        // No UUID, or that of a MIG slice, which is not the GPU's.
        (None, None, [only]) if beacon.uuid.is_none() || only.mig.is_some() => Some(only),
        _ => None,
    }
}

fn sum(beacons: &[Option<&Beacon>]) -> Figures {
    let all = |bytes: fn(&Beacon) -> Option<Bytes>| {
        let spoken = beacons.iter().flatten();
        spoken
            .map(|beacon| bytes(beacon))
            .try_fold(Bytes::ZERO, |sum, bytes| Some(Bytes(sum.0.saturating_add(bytes?.0))))
    };
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Figures {
        allocated: all(|beacon| beacon.allocated),
        reserved: all(|beacon| beacon.reserved),
        ooms: beacons.iter().flatten().map(|beacon| u32::from(beacon.ooms)).sum(),
        hooked: count(beacons.iter().flatten().count()),
        processes: count(beacons.len()),
    }
}

/// More than the device has: the container is making it up.
fn is_absurd(figures: &Figures, device: &DeviceUsage) -> bool {
    let Some(memory) = device.memory else { return false };
    figures.allocated.max(figures.reserved).is_some_and(|most| most > memory.total)
}

// === impl Told ===

impl Told {
    /// Brings what its threads say up to date, and searches for them where that is due.
    fn listen(&mut self, directory: &OwnedFd, now: Moment, looks: &mut usize, metrics: &SelfMetrics) {
        let before = self.threads.len();
        self.threads.retain_mut(|thread| match read_name(directory, thread.id) {
            Some(said) => {
                if said.beat != thread.said.beat {
                    thread.heard = now;
                }
                thread.said = said;
                true
            }
            None => false,
        });
        if self.threads.len() < before || now >= self.search_at {
            self.search(directory, now, looks, metrics);
        }
    }

    fn search(&mut self, directory: &OwnedFd, now: Moment, looks: &mut usize, metrics: &SelfMetrics) {
        let mut ids = threads(directory).unwrap_or_default();
        if ids.len() > MAX_THREADS {
            metrics.dropped("hook", "too_many_threads");
            ids.truncate(MAX_THREADS);
        }
        if ids.len() > *looks {
            return; // in the next cycle
        }
        *looks -= ids.len();
        for id in ids {
            if self.threads.len() >= MAX_BEACONS || self.threads.iter().any(|thread| thread.id == id) {
                continue;
            }
            if let Some(said) = read_name(directory, id) {
                self.threads.push(Thread { id, said, heard: now });
            }
        }
        self.threads.sort_unstable_by_key(|thread| thread.id);
        let pause = if self.threads.is_empty() { SEARCH_EVERY_MS } else { SEARCH_AGAIN_MS };
        self.search_at = Moment(now.0.saturating_add(pause));
    }
}

/// Ids of a process's threads, one more than the bound at most, lowest first.
fn threads(directory: &OwnedFd) -> rustix::io::Result<Vec<u32>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let entries = Dir::new(openat(directory, "task", flags, Mode::empty())?)?;
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str().ok()?.parse().ok());
    let mut ids: Vec<u32> = ids.take(MAX_THREADS + 1).collect();
    ids.sort_unstable();
    Ok(ids)
}

/// One read of a few bytes; whatever is longer is not a thread's name.
fn read_name(directory: &OwnedFd, id: u32) -> Option<Beacon> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(directory, format!("task/{id}/comm"), flags, Mode::empty()).ok()?;
    let mut name = [0; 32];
    let length = rustix::io::read(&file, &mut name).ok()?;
    beacon::read(name.get(..length)?)
}

#[cfg(test)]
mod tests;

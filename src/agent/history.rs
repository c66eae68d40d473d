//! Every container's series on this node, and the cursors that say what a reader already has.
//!
//! Flows in: one [`Usage`] a cycle. Flows out: the views of the snapshot, and the changes since a cursor. A series belongs to a
//! pod and a container *name* on a device: a restarted container goes on in its series as a new segment, a re-created pod
//! starts another. While the API gave no name, the series belongs to the container's id, and moves when the name comes.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use gpumem_engine::identity::{ContainerId, DeviceKey, PodUid, StartTime};
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::sample::{RawSample, Reading};
use gpumem_engine::series::{AllocatorPoint, Point, RAW_POINTS, Segment, Series};
use gpumem_engine::usage::{ContainerUsage, DeviceUsage, Usage};

use crate::agent::hook::Figures;
use crate::agent::hook::HookView;
use crate::agent::pods::{Named, Pod, Pods};
use crate::agent::snapshot::{ContainerView, DeviceView};
use crate::api::usage::Cursor;

/// A series whose pod is gone is kept this long, for a controller that was away when it ended.
const ENDED_KEPT_SECS: f64 = 300.0;
/// A series whose container holds no memory is kept this long: a crash loop is seen as one.
const IDLE_KEPT_SECS: f64 = 6.0 * 3600.0;
/// Series kept at once: 8 GPUs with 500 containers each. Beyond it new ones are not recorded, and counted.
const MAX_SERIES: usize = 4096;
/// Cycles between two looks for series to drop.
const EXPIRE_EVERY: u64 = 30;
/// Digits of a container's id shown while its name is unknown.
const SHORT_ID: usize = 12;

/// The series of the node.
#[derive(Debug)]
pub struct History {
    epoch: u64,
    seq: u64,
    /// Moments of the newest cycles, the last of them `seq`; no more than the raw points of a series.
    cycles: VecDeque<Moment>,
    devices: Vec<DeviceHistory>,
    refused: u64,
}

#[derive(Debug)]
struct DeviceHistory {
    key: DeviceKey,
    entries: Vec<Entry>,
    by_instance: HashMap<ContainerId, usize>,
}

/// One container on one device.
#[derive(Debug)]
pub struct Entry {
    /// The pod: the API's UID once it is known.
    pub pod: PodUid,
    /// What the API says of the pod.
    pub record: Option<Arc<Pod>>,
    /// The cycle in which `record` changed last.
    record_seq: u64,
    /// The container's name.
    pub name: Option<Arc<str>>,
    /// Its newest instance.
    pub instance: ContainerId,
    /// Its memory over time.
    pub series: Series,
    /// The cycle since which readers are told of it.
    visible_from: u64,
    last_seen: Moment,
    now: Option<Now>,
}

/// What the entry's instances hold in this cycle.
#[derive(Debug)]
struct Now {
    used: Option<Bytes>,
    started: StartTime,
    labels: Labels,
}

#[derive(Clone, Debug)]
struct Labels {
    namespace: Arc<str>,
    pod: Arc<str>,
    container: Arc<str>,
}

/// What a hook tells, where it speaks for every process of the container and the driver's figure bears it out: a caching
/// allocator cannot hold more than the driver counts.
fn believed(hook: &HookView, used: Bytes) -> Option<AllocatorPoint> {
    let Figures { allocated, reserved, ooms: _, hooked, processes } = hook.figures;
    let (allocated, reserved) = allocated.zip(reserved)?;
    (hooked == processes && allocated <= reserved && reserved <= used).then_some(AllocatorPoint { allocated, reserved })
}

/// What a reader gets of one series.
#[derive(Debug)]
pub enum Change<'h> {
    /// The points it has not seen.
    Points(Segment, Vec<Point>),
    /// Everything.
    State(&'h Series),
}

// === impl History ===

impl History {
    /// Nothing recorded yet; the epoch is drawn at random, so that no cursor of an earlier run is taken for one of this.
    pub fn new() -> Self {
        // Numbers up to 2^53 survive every JSON reader.
        let epoch = RandomState::new().build_hasher().finish() >> 11;
        Self { epoch, seq: 0, cycles: VecDeque::with_capacity(RAW_POINTS), devices: Vec::new(), refused: 0 }
    }

    /// Where a reader stands that has everything.
    pub fn cursor(&self) -> Cursor {
        Cursor { epoch: self.epoch, seq: self.seq }
    }

    /// Containers that were not recorded because there are too many.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Takes a cycle and gives its devices as they are shown.
    pub fn record(&mut self, sample: &RawSample, usage: Usage, pods: &Pods, hooks: &[HookView]) -> Vec<DeviceView> {
        self.seq += 1;
        if self.cycles.len() == RAW_POINTS {
            self.cycles.pop_front();
        }
        self.cycles.push_back(usage.at);
        let at = usage.at;
        let views = sample
            .devices
            .iter()
            .zip(usage.devices)
            .map(|(raw, device)| {
                let failure = match (&raw.memory, &raw.processes) {
                    (Reading::Failed(failure), _) | (_, Reading::Failed(failure)) => Some(*failure),
                    _ => None,
                };
                let containers = self.record_device(&device, at, pods, hooks);
                let DeviceUsage { device: key, index, model, memory, containers: _, unattributed, attribution } =
                    device;
                DeviceView { key, index, model, at, failure, memory, unattributed, attribution, containers }
            })
            .collect();
        self.follow(pods);
        if self.seq.is_multiple_of(EXPIRE_EVERY) {
            self.expire(at, pods);
        }
        views
    }

    /// Notes what changed of pods whose containers hold nothing now: that is how an end becomes known.
    fn follow(&mut self, pods: &Pods) {
        for entry in self.devices.iter_mut().flat_map(|device| &mut device.entries) {
            if let Some(pod) = pods.pod(&entry.pod).filter(|_| entry.record.is_some()) {
                entry.know(pod, self.seq);
            }
        }
    }

    fn record_device(
        &mut self,
        usage: &DeviceUsage,
        at: Moment,
        pods: &Pods,
        hooks: &[HookView],
    ) -> Vec<ContainerView> {
        if usage.containers.is_empty() {
            return Vec::new();
        }
        let total: usize = self.devices.iter().map(|device| device.entries.len()).sum();
        let mut room = MAX_SERIES.saturating_sub(total);
        let place = self.devices.iter().position(|device| device.key == usage.device);
        let place = place.unwrap_or_else(|| {
            let key = usage.device.clone();
            self.devices.push(DeviceHistory { key, entries: Vec::new(), by_instance: HashMap::new() });
            self.devices.len() - 1
        });
        let Some(device) = self.devices.get_mut(place) else { return Vec::new() };
        for container in &usage.containers {
            match device.place(container, pods.find(&container.container), self.seq, &mut room) {
                Some((entry, labels)) => entry.merge(container, labels),
                None => self.refused += 1,
            }
        }
        let told = |instance: &ContainerId| {
            hooks.iter().find(|hook| hook.device == usage.device && hook.container_id == *instance)
        };
        device.entries.iter_mut().filter_map(|entry| entry.settle(at, &usage.model, told)).collect()
    }

    /// Drops the series that nobody will continue.
    fn expire(&mut self, now: Moment, pods: &Pods) {
        for device in &mut self.devices {
            let before = device.entries.len();
            device.entries.retain(|entry| {
                let idle = now.secs_since(entry.last_seen);
                let is_ended = entry.name.is_none() || pods.pod(&entry.pod).is_none();
                idle <= if is_ended { ENDED_KEPT_SECS } else { IDLE_KEPT_SECS }
            });
            if device.entries.len() != before {
                device.index();
            }
        }
        self.devices.retain(|device| !device.entries.is_empty());
    }

    /// What a reader at `since` has not seen: named series only, as no other reader can do anything with the rest. `None`
    /// and cursors of another run, or of cycles that the raw rings no longer hold, get every series whole.
    pub fn changes(&self, since: Option<Cursor>) -> impl Iterator<Item = (&DeviceKey, &Entry, Change<'_>)> {
        let since = since.and_then(|cursor| Some((cursor.seq, self.moment_of(cursor)?)));
        self.devices.iter().flat_map(move |device| {
            device.entries.iter().filter(|entry| entry.name.is_some()).filter_map(move |entry| {
                let change = entry.change(since)?;
                Some((&device.key, entry, change))
            })
        })
    }

    /// The pods of named series of which the API said something new since the cursor, whether or not they hold memory.
    pub fn changed_pods(&self, since: Option<Cursor>) -> impl Iterator<Item = &Arc<Pod>> {
        let since = since.filter(|cursor| self.moment_of(*cursor).is_some()).map(|cursor| cursor.seq);
        let entries = self.devices.iter().flat_map(|device| &device.entries);
        let news = entries.filter(move |entry| since.is_none_or(|since| entry.record_seq > since));
        news.filter(|entry| entry.name.is_some()).filter_map(|entry| entry.record.as_ref())
    }

    /// Is there a series of this pod, whatever it holds now?
    pub fn has(&self, pod: &PodUid) -> bool {
        self.devices.iter().flat_map(|device| &device.entries).any(|entry| entry.name.is_some() && entry.pod == *pod)
    }

    fn moment_of(&self, cursor: Cursor) -> Option<Moment> {
        let behind = self.seq.checked_sub(cursor.seq).filter(|_| cursor.epoch == self.epoch)?;
        let place = self.cycles.len().checked_sub(1)?.checked_sub(usize::try_from(behind).ok()?)?;
        self.cycles.get(place).copied()
    }
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}

// === impl DeviceHistory ===

impl DeviceHistory {
    /// The entry of a container, made or renamed as needed, and the labels it is shown with.
    fn place(
        &mut self,
        usage: &ContainerUsage,
        named: Option<Named>,
        seq: u64,
        room: &mut usize,
    ) -> Option<(&mut Entry, Labels)> {
        let key = &usage.container;
        let labels = Labels::of(named.as_ref(), key.pod.as_str(), key.container.as_str());
        let (record, name) = match named {
            Some(Named { pod, container: Some(name) }) => (Some(pod), Some(name)),
            _ => (None, None),
        };
        let known = self.by_instance.get(&key.container).copied();
        let owner = record.as_ref().zip(name.as_ref()).and_then(|(record, name)| {
            let is_it = |entry: &Entry| entry.pod == record.report.uid && entry.name.as_ref() == Some(name);
            // The usual case without a search: the instance's entry has its name already.
            known
                .filter(|place| self.entries.get(*place).is_some_and(is_it))
                .or_else(|| self.entries.iter().position(is_it))
        });
        let place = match (owner, known) {
            (Some(owner), Some(known)) if owner != known => self.join(known, owner, &key.container, seq),
            (Some(place), _) | (None, Some(place)) => place,
            (None, None) => {
                *room = room.checked_sub(1)?;
                self.entries.push(Entry::new(key.pod.clone(), key.container.clone()));
                self.entries.len() - 1
            }
        };
        if known.is_none() {
            self.by_instance.insert(key.container.clone(), place);
        }
        let entry = self.entries.get_mut(place)?;
        if let Some((record, name)) = record.zip(name) {
            entry.pod.clone_from(&record.report.uid);
            entry.know(&record, seq);
            if entry.name.is_none() {
                entry.visible_from = seq;
            }
            entry.name = Some(name);
        }
        Some((entry, labels))
    }

    /// A container got the name of an earlier instance: its points of the nameless time go on in that series.
    fn join(&mut self, nameless: usize, named: usize, instance: &ContainerId, seq: u64) -> usize {
        if self.entries.get(nameless).is_none_or(|entry| entry.name.is_some()) {
            // An instance id never changes its name; believe the newer answer and leave the old series as it is.
            self.by_instance.insert(instance.clone(), named);
            return named;
        }
        let moved = self.entries.swap_remove(nameless);
        let named = if named == self.entries.len() { nameless } else { named };
        if let (Some(entry), Some(segment)) = (self.entries.get_mut(named), moved.series.segment()) {
            for point in moved.series.points_since(None) {
                entry.series.push(segment, point);
            }
            entry.instance = moved.instance;
            // Its points of the nameless time are older than cursors handed out meanwhile: readers get it whole.
            entry.visible_from = seq;
            entry.now = moved.now;
        }
        self.index();
        self.by_instance.insert(instance.clone(), named);
        named
    }

    fn index(&mut self) {
        let instances = self.entries.iter().enumerate().map(|(place, entry)| (entry.instance.clone(), place));
        self.by_instance = instances.collect();
    }
}

// === impl Entry ===

impl Entry {
    fn new(pod: PodUid, instance: ContainerId) -> Self {
        Self {
            pod,
            record: None,
            record_seq: 0,
            name: None,
            instance,
            series: Series::default(),
            visible_from: 0,
            last_seen: Moment::default(),
            now: None,
        }
    }

    /// Takes what the API says of the pod in this cycle.
    fn know(&mut self, record: &Arc<Pod>, seq: u64) {
        if self.record.as_ref().is_none_or(|known| !Arc::ptr_eq(known, record)) {
            self.record = Some(Arc::clone(record));
            self.record_seq = seq;
        }
    }

    /// Adds one instance's memory. Two of one name live at once while a container restarts; the younger one is current.
    fn merge(&mut self, usage: &ContainerUsage, labels: Labels) {
        let started = usage.processes.iter().map(|(_, started)| *started).min().unwrap_or(StartTime(0));
        match &mut self.now {
            None => {
                self.instance.clone_from(&usage.container.container);
                self.now = Some(Now { used: usage.used, started, labels });
            }
            Some(now) => {
                now.used = now.used.zip(usage.used).map(|(one, other)| one + other);
                if started >= now.started {
                    now.started = started;
                    now.labels = labels;
                    self.instance.clone_from(&usage.container.container);
                }
            }
        }
    }

    /// Ends the cycle: pushes the point and gives what is shown; nothing where the driver withheld the value.
    fn settle<'h>(
        &mut self,
        at: Moment,
        model: &str,
        told: impl Fn(&ContainerId) -> Option<&'h HookView>,
    ) -> Option<ContainerView> {
        let Now { used, started: _, labels } = self.now.take()?;
        self.last_seen = at;
        let used = used?;
        let allocator = told(&self.instance).and_then(|hook| believed(hook, used));
        self.series.push(segment(&self.instance, model), Point { at, used, allocator });
        let Labels { namespace, pod, container } = labels;
        Some(ContainerView { namespace, pod, container, used, peak: self.series.peak().max(used) })
    }

    fn change(&self, since: Option<(u64, Moment)>) -> Option<Change<'_>> {
        let Some((seq, since)) = since else { return Some(Change::State(&self.series)) };
        let segment = self.series.segment()?;
        if self.last_seen <= since {
            return None;
        }
        let is_whole_in_ring = self.series.raw_from() == self.series.started();
        if self.visible_from > seq && !is_whole_in_ring {
            return Some(Change::State(&self.series));
        }
        let since = (self.visible_from <= seq).then_some(since);
        Some(Change::Points(segment, self.series.points_since(since).collect()))
    }
}

// === impl Labels ===

impl Labels {
    fn of(named: Option<&Named>, pod: &str, id: &str) -> Self {
        let short = || Arc::from(id.get(..SHORT_ID).unwrap_or(id));
        match named {
            Some(Named { pod, container }) => Self {
                namespace: Arc::clone(&pod.namespace),
                pod: Arc::clone(&pod.name),
                container: container.clone().unwrap_or_else(short),
            },
            None => Self { namespace: "".into(), pod: pod.into(), container: short() },
        }
    }
}

/// The same for the same run on the same kind of device, in every run and version of the agent (FNV-1a): a MIG slice that
/// is cut anew under the same id is another device.
fn segment(instance: &ContainerId, model: &str) -> Segment {
    let bytes = instance.as_str().bytes().chain([0]).chain(model.bytes());
    Segment(bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)))
}

#[cfg(test)]
mod tests;

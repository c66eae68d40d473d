//! One node: its clock, devices, pods and series, and how a report changes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpumem_engine::identity::{ContainerId, DeviceKey, PodUid};
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::series::{Pushed, Segment, Series};
use gpumem_engine::usage::Attribution;

use super::declared::Declaration;
use super::held::Held;
use super::observe::Answers;
use super::refusals::Refusals;
use super::{Cursor, DeviceReport, FORGET, Merged, PodReport, SeriesData, SeriesReport, UsageReport};
use crate::api::names::ANNOTATION_WORKLOAD;
use crate::api::usage::{Abilities, AskReport, EndReport, FORMAT, LimitReport, NvmlState, WaitingReport};

/// No agent samples less often; a longer interval in a report is not believed.
const MAX_INTERVAL_MS: u64 = 60_000;

/// One node as its agent last described it.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) boot_id: String,
    pub(super) cursor: Cursor,
    /// The node's clock in the newest report, and ours when that arrived.
    pub(super) now: Moment,
    pub(super) received: Instant,
    pub(super) simulated: bool,
    pub(super) devices: BTreeMap<DeviceKey, Device>,
    pub(super) pods: BTreeMap<PodUid, Arc<PodReport>>,
    pub(super) agent_version: String,
    interval_ms: u64,
    pub(super) nvml: NvmlState,
    pub(super) limits: Vec<LimitReport>,
    pub(super) abilities: Abilities,
    /// Containers that were forgotten as tenants lately: how they ended may still be told.
    past: BTreeMap<TenantKey, (Moment, Remains)>,
    /// Allocations that containers' own allocators refused.
    refusals: Refusals,
    /// Growth limits that held containers until lately.
    held: Held,
    /// What pods declare of themselves, read once for each text.
    pub(super) declared: BTreeMap<PodUid, Arc<Declaration>>,
    /// Pods that will hold GPU memory and do not yet.
    pub(super) waiting: BTreeMap<PodUid, Waiting>,
}

/// A pod that will hold GPU memory and does not yet.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) pod: Arc<PodReport>,
    pub(super) asks: Vec<AskReport>,
}

/// What is left of a container that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remains {
    /// The device on which it held most.
    pub(super) device: DeviceKey,
    /// What may be filled there.
    pub(super) capacity: Option<Bytes>,
    /// Highest memory there of the run that ended; `None` where that run was not seen.
    pub(super) peak: Option<Bytes>,
    /// Allocations that its own allocator refused by then, where the last was just before.
    pub(super) refused: Option<u32>,
    /// The growth limit that held it there until just before.
    pub(super) limit: Option<Bytes>,
}

/// Containers remembered after their end, for each node.
const MAX_PAST: usize = 512;

/// Pods that a report brought, and pods of which nothing is held any more. A pod may be in both.
#[derive(Debug, Default)]
pub(super) struct Moved {
    pub(super) new: Vec<PodUid>,
    pub(super) gone: Vec<PodUid>,
    /// Every end that the pods tell of, those told before included.
    pub(super) ended: Vec<(Arc<PodReport>, EndReport, Remains)>,
}

/// One device and the containers on it.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) report: DeviceReport,
    pub(super) tenants: BTreeMap<TenantKey, Tenant>,
    /// Forecasts already made from this data.
    pub(super) answers: Answers,
    /// The newest report lists it.
    pub(super) reported: bool,
}

/// A container by its name in the spec: a restart in place continues the series in a new segment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TenantKey {
    pub(super) pod: PodUid,
    pub(super) container: String,
}

/// One container on one device.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) container_id: ContainerId,
    pub(super) series: Series,
    /// It holds nothing on this device: it is no tenant any more, but its past counts if it comes back.
    pub(super) gone: bool,
}

impl Node {
    pub(super) fn new(report: &UsageReport, received: Instant) -> Self {
        Self {
            boot_id: report.boot_id.clone(),
            cursor: report.cursor,
            now: report.now,
            received,
            simulated: report.simulated,
            devices: BTreeMap::new(),
            pods: BTreeMap::new(),
            agent_version: String::new(),
            interval_ms: report.interval_ms,
            nvml: report.nvml.clone(),
            limits: Vec::new(),
            abilities: Abilities::default(),
            past: BTreeMap::new(),
            refusals: Refusals::default(),
            held: Held::default(),
            declared: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// What the node's clock shows at `now` of ours.
    pub(super) fn clock(&self, now: Instant) -> Moment {
        self.now + now.saturating_duration_since(self.received)
    }

    /// Takes a report that was checked.
    pub(super) fn merge(&mut self, report: UsageReport, received: Instant, merged: &mut Merged) -> Moved {
        let UsageReport {
            format: _,
            agent_version,
            node: _,
            boot_id,
            cursor,
            now,
            interval_ms,
            simulated,
            nvml,
            devices,
            pods,
            series,
            limits,
            abilities,
            hooks,
            waiting,
        } = report;
        let mut moved = Moved::default();
        if boot_id != self.boot_id {
            // Moments of another boot do not compare with ours, and no process survived it.
            merged.rebooted = true;
            self.devices.clear();
            self.past.clear();
            (self.refusals, self.held) = (Refusals::default(), Held::default());
            moved.gone.extend(std::mem::take(&mut self.pods).into_keys());
            self.boot_id = boot_id;
        } else if cursor.epoch != self.cursor.epoch {
            merged.restarted = true;
        }
        (self.limits, self.abilities) = (limits, abilities);
        (self.cursor, self.now, self.received) = (cursor, now, received);
        (self.agent_version, self.interval_ms, self.simulated, self.nvml) =
            (agent_version, interval_ms, simulated, nvml);
        for pod in pods {
            match self.pods.get_mut(&pod.uid) {
                Some(known) if **known == pod => {}
                Some(known) => *known = Arc::new(pod),
                None => {
                    moved.new.push(pod.uid.clone());
                    self.pods.insert(pod.uid.clone(), Arc::new(pod));
                }
            }
        }
        let entry =
            |WaitingReport { pod, asks }: WaitingReport| (pod.uid.clone(), Waiting { pod: Arc::new(pod), asks });
        self.waiting = waiting.into_iter().map(entry).collect();
        self.read_declarations();
        for device in self.devices.values_mut() {
            device.reported = false;
        }
        for report in devices {
            match self.devices.get_mut(&report.device) {
                Some(device) => (device.report, device.reported) = (report, true),
                None => drop(self.devices.insert(report.device.clone(), Device::new(report))),
            }
        }
        for entry in series {
            let SeriesReport { device: key, pod, container, container_id, data } = entry;
            let Some(device) = self.devices.get_mut(&key) else { continue };
            merged.points += device.take(TenantKey { pod, container }, container_id, data);
        }
        self.refusals.take(&hooks, now);
        self.held.take(&self.limits, now);
        moved.ended = self.ended();
        self.let_go(&mut moved);
        moved
    }

    /// Ends of containers that held GPU memory, as the pods tell them.
    fn ended(&self) -> Vec<(Arc<PodReport>, EndReport, Remains)> {
        let pods = self.pods.values().filter(|pod| !pod.ends.is_empty());
        let ends = pods.flat_map(|pod| pod.ends.iter().map(move |end| (pod, end)));
        ends.filter_map(|(pod, end)| Some((Arc::clone(pod), end.clone(), self.remains(&pod.uid, end)?))).collect()
    }

    fn remains(&self, pod: &PodUid, end: &EndReport) -> Option<Remains> {
        let key = TenantKey { pod: pod.clone(), container: end.container.clone() };
        let living = self.devices.iter().filter_map(|(device, held)| {
            let tenant = held.tenants.get(&key)?;
            Some(Remains::of(device, &held.report, tenant, Some(&end.container_id)))
        });
        let held = living.max_by_key(|remains| remains.peak).or_else(|| Some(self.past.get(&key)?.1.clone()))?;
        let limit = self.held.just_before(&end.container_id, &held.device);
        Some(Remains { refused: self.refusals.just_before(&key, &end.container_id, self.now), limit, ..held })
    }

    /// Reads what the pods declare, where that is new.
    fn read_declarations(&mut self) {
        let Self { pods, declared, waiting, .. } = self;
        declared.retain(|uid, _| pods.contains_key(uid) || waiting.contains_key(uid));
        let waiting = waiting.iter().filter(|(uid, _)| !pods.contains_key(*uid)).map(|(uid, entry)| (uid, &*entry.pod));
        for (uid, pod) in pods.iter().map(|(uid, pod)| (uid, &**pod)).chain(waiting) {
            match pod.annotations.get(ANNOTATION_WORKLOAD) {
                Some(text) if declared.get(uid).is_some_and(|known| known.text == *text) => {}
                Some(text) => drop(declared.insert(uid.clone(), Arc::new(Declaration::read(text)))),
                None => drop(declared.remove(uid)),
            }
        }
    }

    /// Notes who holds nothing any more, and forgets what has been silent for too long.
    fn let_go(&mut self, moved: &mut Moved) {
        let Self { now, devices, pods, nvml, interval_ms, past, .. } = self;
        let now = *now;
        past.retain(|_, (at, _)| now.since(*at) <= FORGET);
        let rounding = Duration::from_millis(2 * (*interval_ms).min(MAX_INTERVAL_MS));
        devices.retain(|_, device| now.since(device.report.at) <= FORGET);
        for (device_key, device) in devices {
            device.answers.clear();
            // A device that was read well gives every container that holds memory a point, so one without holds nothing.
            // A failed or partial reading proves nothing: it must not look like a container that went away.
            let proves = matches!(nvml, NvmlState::Up { .. })
                && device.reported
                && device.report.memory.is_some()
                && device.report.attribution == Attribution::Complete;
            let read_at = device.report.at;
            let report = &device.report;
            device.tenants.retain(|key, tenant| {
                let Some(latest) = tenant.series.latest() else { return false };
                if proves {
                    tenant.gone = latest.at + rounding < read_at;
                }
                let ends = tenant.gone && pods.get(&key.pod).is_none_or(|pod| pod.terminating);
                let stays = !ends && now.since(latest.at) <= FORGET;
                if !stays && (past.len() < MAX_PAST || past.contains_key(key)) {
                    let remains = Remains::of(device_key, report, tenant, None);
                    let known = past.entry(key.clone()).or_insert_with(|| (now, remains.clone()));
                    if known.1.peak < remains.peak {
                        *known = (now, remains);
                    }
                }
                stays
            });
        }
        let alive: BTreeSet<&PodUid> =
            self.devices.values().flat_map(|device| device.tenants.keys()).map(|key| &key.pod).collect();
        self.pods.retain(|uid, _| {
            let stays = alive.contains(uid);
            if !stays {
                moved.gone.push(uid.clone());
            }
            stays
        });
        let Self { pods, past, refusals, .. } = self;
        refusals.retain(|key| pods.contains_key(&key.pod) || past.contains_key(key));
    }

    /// The node as a report with whole series: what a peer takes over.
    pub(super) fn export(&self, name: &str, now: Instant) -> UsageReport {
        UsageReport {
            format: FORMAT,
            limits: self.limits.clone(),
            abilities: self.abilities.clone(),
            agent_version: self.agent_version.clone(),
            node: name.to_owned(),
            boot_id: self.boot_id.clone(),
            cursor: self.cursor,
            now: self.clock(now),
            interval_ms: self.interval_ms,
            simulated: self.simulated,
            nvml: self.nvml.clone(),
            devices: self.devices.values().map(|device| device.report.clone()).collect(),
            pods: self.pods.values().map(|pod| PodReport::clone(pod)).collect(),
            series: self
                .devices
                .iter()
                .flat_map(|(key, device)| {
                    device.tenants.iter().map(|(tenant_key, tenant)| SeriesReport {
                        device: key.clone(),
                        pod: tenant_key.pod.clone(),
                        container: tenant_key.container.clone(),
                        container_id: tenant.container_id.clone(),
                        data: SeriesData::State(Box::new(tenant.series.clone())),
                    })
                })
                .collect(),
            hooks: Vec::new(),
            // A peer hears of them from the agent itself: nothing of the past depends on it.
            waiting: Vec::new(),
        }
    }
}

// === impl Remains ===

impl Remains {
    /// Of a tenant whose instance `ended`; of its current run where none is named.
    fn of(device: &DeviceKey, report: &DeviceReport, tenant: &Tenant, ended: Option<&str>) -> Self {
        let is_current = ended.is_none_or(|id| id.is_empty() || tenant.container_id.as_str() == id);
        let current = tenant.series.latest().map(|_| tenant.series.peak());
        let earlier = tenant.series.attempts().last().map(|attempt| attempt.peak);
        Self {
            device: device.clone(),
            capacity: report.memory.map(|memory| memory.usable()),
            peak: if is_current { current } else { earlier },
            refused: None,
            limit: None,
        }
    }
}

// === impl Device ===

impl Device {
    fn new(report: DeviceReport) -> Self {
        Self { report, tenants: BTreeMap::new(), answers: Answers::default(), reported: true }
    }

    /// Takes a container's news; gives how many points were new.
    fn take(&mut self, key: TenantKey, container_id: ContainerId, data: SeriesData) -> u64 {
        let empty = || Tenant { container_id: container_id.clone(), series: Series::default(), gone: false };
        self.tenants.entry(key).or_insert_with(empty).take(container_id.clone(), data)
    }
}

// === impl Tenant ===

impl Tenant {
    fn take(&mut self, container_id: ContainerId, data: SeriesData) -> u64 {
        let same = self.container_id == container_id;
        self.container_id = container_id;
        match data {
            SeriesData::Samples { segment, points } => self.push(self.segment(segment, same), points),
            SeriesData::State(state) => self.take_state(*state, same),
        }
    }

    /// The agent's whole series: taken as it is where it reaches back as far as ours, else only what is newer than ours.
    /// So an agent that restarted continues its series here with a gap, and one that we lost sight of fills it.
    fn take_state(&mut self, state: Series, same: bool) -> u64 {
        let Some(latest) = self.series.latest() else {
            self.series = state;
            return self.series.samples();
        };
        let Some(wire) = state.segment().filter(|_| state.latest().is_some_and(|newest| newest.at > latest.at)) else {
            return 0;
        };
        let reaches_back = if same {
            state.started() <= self.series.started()
        } else {
            // Another run of the container: pushing its points keeps our memory of earlier attempts, so it is done
            // wherever the raw ring still holds the whole run.
            state.raw_from() > state.started() || !state.attempts().is_empty()
        };
        if reaches_back {
            let before = if same { self.series.samples() } else { 0 };
            self.series = state;
            self.series.samples().saturating_sub(before)
        } else {
            let newer: Vec<_> = state.points_since(Some(latest.at)).collect();
            self.push(self.segment(wire, same), newer)
        }
    }

    /// The segment to push into. It is ours while the container's instance is the same, whatever the agent calls it: an
    /// agent that restarted numbers its segments anew.
    fn segment(&self, wire: Segment, same: bool) -> Segment {
        match self.series.segment() {
            Some(ours) if same => ours,
            Some(ours) if ours == wire => Segment(wire.0.wrapping_add(1)),
            _ => wire,
        }
    }

    fn push(&mut self, segment: Segment, points: Vec<gpumem_engine::series::Point>) -> u64 {
        let taken = |pushed| matches!(pushed, Pushed::Appended | Pushed::NewSegment);
        points.into_iter().filter(|point| taken(self.series.push(segment, *point))).count() as u64
    }
}

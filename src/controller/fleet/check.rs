//! Judges a report before anything of it is kept: a compromised or broken agent costs its own node's data and no more.
//!
//! Flows in: a report that parsed. Flows out: the same without what is absurd, each drop counted by kind. Bounds are those
//! of Kubernetes and of any hardware there is, with room to spare.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use gpumem_engine::identity::{DeviceKey, PodUid};
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::sample::DeviceMemory;
use gpumem_engine::series::{Point, SCALES, Series};

use super::Merged;
use super::node::Node;
use crate::api::names::ANNOTATION_WORKLOAD;
use crate::api::usage::{
    Ability, DeviceReport, EndReport, FORMAT, LimitReport, MAX_END_MESSAGE, MAX_WAITING, MAX_WORKLOAD, NvmlState,
    PodReport, SeriesData, SeriesReport, UsageReport, WaitingReport,
};

/// Why something was dropped: a closed set, fit for a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The report has another format than ours.
    WrongFormat,
    /// The report names another node than the one its agent runs on.
    WrongNode,
    /// A moment in the future, or a clock that ran backwards within a boot.
    BadMoment,
    /// A text is longer than Kubernetes or NVML allow, or empty where it must not be.
    BadText,
    /// More entries than any node can have.
    TooMany,
    /// The same device, pod or series twice; the first is kept.
    Duplicate,
    /// More memory used than there is.
    Overfull,
    /// A series of a pod or device that the report does not list.
    Unlisted,
    /// A pod that the API places on another node.
    ForeignPod,
}

impl Fault {
    /// Every kind, so that counters start at zero.
    pub const ALL: [Self; 9] = [
        Self::WrongFormat,
        Self::WrongNode,
        Self::BadMoment,
        Self::BadText,
        Self::TooMany,
        Self::Duplicate,
        Self::Overfull,
        Self::Unlisted,
        Self::ForeignPod,
    ];

    /// Name for a metric label.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::WrongFormat => "wrong_format",
            Self::WrongNode => "wrong_node",
            Self::BadMoment => "bad_moment",
            Self::BadText => "bad_text",
            Self::TooMany => "too_many",
            Self::Duplicate => "duplicate",
            Self::Overfull => "overfull",
            Self::Unlisted => "unlisted",
            Self::ForeignPod => "foreign_pod",
        }
    }
}

/// 16 GPUs of 7 slices each, eight times over.
const MAX_DEVICES: usize = 1024;
/// The kubelet's own limit is 110 by default; the largest in use are near 500.
const MAX_PODS: usize = 2048;
/// A container of each pod on each of eight GPUs, and more.
const MAX_SERIES: usize = 8192;
/// An agent's raw ring is far shorter.
const MAX_POINTS: usize = 4096;
/// Two for each container of the largest pod.
const MAX_ENDS: usize = 512;
/// Labels and annotations of one pod.
const MAX_LABELS: usize = 256;
/// Longest DNS subdomain: names of nodes, pods, namespaces, containers; also UIDs, ids, UUIDs and models.
const MAX_NAME: usize = 253;
/// Longest label key, prefix and slash included.
const MAX_LABEL_KEY: usize = 317;
/// Longest label value is 63; our own annotations are sentences at most, but for the one that declares a job.
const MAX_LABEL_VALUE: usize = 1024;
/// Errors of the driver.
const MAX_REASON: usize = 4096;
/// Longest path of a cgroup; the kernel's own limit is higher.
const MAX_PATH: usize = 1024;
/// Limits of one node: a node object has no more, and what is still to be cleared beside it.
const MAX_LIMITS: usize = 512;
/// A sample is taken before the answer is written, so none is later; this much is forgiven to rounding.
const SLACK: Duration = Duration::from_secs(1);
/// No node was up for a hundred years.
const MAX_MOMENT: Moment = Moment::from_secs(100 * 365 * 86_400);
/// 4 TiB: no device comes near.
const MAX_MEMORY: Bytes = Bytes::gib(4096);

/// Judges what stands or falls with the whole report.
pub(super) fn report(report: &UsageReport, node: &str, known: Option<&Node>) -> Result<(), Fault> {
    if report.format != FORMAT {
        return Err(Fault::WrongFormat);
    }
    if report.node != node {
        return Err(Fault::WrongNode);
    }
    let reason = match &report.nvml {
        NvmlState::Up { driver: text } | NvmlState::Absent { reason: text } | NvmlState::Down { reason: text } => text,
    };
    if !is_name(&report.boot_id) || report.agent_version.len() > MAX_NAME || reason.len() > MAX_REASON {
        return Err(Fault::BadText);
    }
    if [&report.abilities.limits, &report.abilities.suspend].into_iter().any(|ability| text(ability).len() > MAX_REASON)
    {
        return Err(Fault::BadText);
    }
    let went_back = known.is_some_and(|known| known.boot_id == report.boot_id && report.now + SLACK < known.now);
    if report.now > MAX_MOMENT || went_back {
        return Err(Fault::BadMoment);
    }
    if report.devices.len() > MAX_DEVICES
        || report.pods.len() > MAX_PODS
        || report.series.len() > MAX_SERIES
        || report.limits.len() > MAX_LIMITS
        || report.waiting.len() > MAX_WAITING
    {
        return Err(Fault::TooMany);
    }
    Ok(())
}

fn text(ability: &Ability) -> &str {
    match ability {
        Ability::Off => "",
        Ability::Works { by: text } | Ability::Fails { reason: text } => text,
    }
}

/// Leaves out the entries that are absurd.
pub(super) fn entries(mut report: UsageReport, merged: &mut Merged) -> UsageReport {
    let latest = report.now + SLACK;
    let mut totals: HashMap<&DeviceKey, Bytes> = HashMap::new();
    let devices = judged(&report.devices, merged, |entry| {
        let total = device(entry, latest)?;
        if totals.contains_key(&entry.device) {
            return Err(Fault::Duplicate);
        }
        totals.insert(&entry.device, total);
        Ok(())
    });
    let mut pods: HashSet<&PodUid> = HashSet::new();
    let kept_pods = judged(&report.pods, merged, |entry| {
        pod(entry)?;
        if pods.insert(&entry.uid) { Ok(()) } else { Err(Fault::Duplicate) }
    });
    let mut seen: HashSet<(&DeviceKey, &PodUid, &str)> = HashSet::new();
    let kept_series = judged(&report.series, merged, |entry| {
        let Some(total) = totals.get(&entry.device).filter(|_| pods.contains(&entry.pod)) else {
            return Err(Fault::Unlisted);
        };
        series(entry, latest, *total)?;
        if seen.insert((&entry.device, &entry.pod, &entry.container)) { Ok(()) } else { Err(Fault::Duplicate) }
    });
    let mut held: HashSet<(&str, &str)> = HashSet::new();
    let kept_limits = judged(&report.limits, merged, |entry| {
        limit(entry)?;
        let key = (entry.container_id.as_str(), entry.device.as_str());
        if held.insert(key) { Ok(()) } else { Err(Fault::Duplicate) }
    });
    let mut waits: HashSet<&PodUid> = HashSet::new();
    let kept_waiting = judged(&report.waiting, merged, |entry| {
        waiting(entry)?;
        if waits.insert(&entry.pod.uid) { Ok(()) } else { Err(Fault::Duplicate) }
    });
    retain(&mut report.waiting, kept_waiting);
    retain(&mut report.limits, kept_limits);
    retain(&mut report.devices, devices);
    retain(&mut report.pods, kept_pods);
    retain(&mut report.series, kept_series);
    for device in &mut report.devices {
        if is_overfull(device) {
            // The device stays, without numbers: its containers are then Unknown rather than gone.
            (device.memory, device.unattributed) = (None, None);
            merged.drop(Fault::Overfull);
        }
    }
    for entry in &mut report.series {
        if let SeriesData::State(state) = &mut entry.data {
            **state = std::mem::take(&mut **state).bounded();
        }
    }
    report
}

/// Whether each entry stays. Judging borrows what is seen already, so nothing is copied; dropping comes after.
fn judged<'a, T>(
    entries: &'a [T],
    merged: &mut Merged,
    mut judge: impl FnMut(&'a T) -> Result<(), Fault>,
) -> Vec<bool> {
    entries.iter().map(|entry| judge(entry).map_err(|fault| merged.drop(fault)).is_ok()).collect()
}

fn retain<T>(entries: &mut Vec<T>, stays: Vec<bool>) {
    let mut stays = stays.into_iter();
    entries.retain(|_| stays.next().unwrap_or(false));
}

/// Whether a limit's report can be believed: it reaches the API as it stands.
fn limit(entry: &LimitReport) -> Result<(), Fault> {
    let names = [entry.container_id.as_str(), &entry.device, &entry.backend];
    let is_named = names.iter().all(|name| is_name(name)) && entry.pod.as_str().len() <= MAX_NAME;
    if !is_named || entry.reason.len() > MAX_REASON || entry.cgroup.len() > MAX_PATH {
        return Err(Fault::BadText);
    }
    let is_sane = [entry.desired, entry.applied].into_iter().flatten().all(|bytes| bytes <= MAX_MEMORY);
    if is_sane { Ok(()) } else { Err(Fault::Overfull) }
}

/// The memory there is, for a device that can be believed.
fn device(entry: &DeviceReport, latest: Moment) -> Result<Bytes, Fault> {
    if !is_name(entry.device.gpu.as_str()) || entry.model.len() > MAX_NAME {
        return Err(Fault::BadText);
    }
    if entry.at > latest {
        return Err(Fault::BadMoment);
    }
    // Where the device's own numbers are impossible they say nothing about its containers' either.
    let believed = entry.memory.filter(|_| !is_overfull(entry));
    Ok(believed.map_or(MAX_MEMORY, |memory| memory.total))
}

fn is_overfull(entry: &DeviceReport) -> bool {
    entry.memory.is_some_and(|DeviceMemory { total, used, free, reserved }| {
        total > MAX_MEMORY
            || used > total
            || free > total
            || reserved.is_some_and(|reserved| reserved > total)
            || entry.unattributed.is_some_and(|unattributed| unattributed > used)
    })
}

fn waiting(entry: &WaitingReport) -> Result<(), Fault> {
    let WaitingReport { pod: of, asks } = entry;
    if asks.len() > MAX_LABELS {
        return Err(Fault::TooMany);
    }
    let is_named = asks.iter().all(|ask| is_name(&ask.container) && is_name(&ask.resource));
    if is_named { pod(of) } else { Err(Fault::BadText) }
}

fn pod(entry: &PodReport) -> Result<(), Fault> {
    let PodReport { uid, namespace, name, labels, annotations, owner, terminating: _, ends } = entry;
    let mut names = vec![uid.as_str(), namespace, name];
    if let Some(owner) = owner {
        names.extend([owner.api_version.as_str(), &owner.kind, &owner.name, &owner.uid]);
    }
    let maps = [labels, annotations];
    if maps.iter().any(|map| map.len() > MAX_LABELS) || ends.len() > MAX_ENDS {
        return Err(Fault::TooMany);
    }
    let end_fits = |end: &EndReport| {
        let EndReport { container, container_id, exit_code: _, reason, finished_at, message, is_current: _ } = end;
        is_name(container)
            && is_name(finished_at)
            && [container_id, reason].into_iter().all(|text| text.len() <= MAX_NAME)
            && message.len() <= MAX_END_MESSAGE
    };
    let texts_fit = names.into_iter().all(is_name)
        && ends.iter().all(end_fits)
        && maps
            .iter()
            .flat_map(|map| map.iter())
            .all(|(key, value)| key.len() <= MAX_LABEL_KEY && value.len() <= longest(key));
    if texts_fit { Ok(()) } else { Err(Fault::BadText) }
}

/// Longest value of a label or an annotation.
fn longest(key: &str) -> usize {
    if key == ANNOTATION_WORKLOAD { MAX_WORKLOAD } else { MAX_LABEL_VALUE }
}

fn series(entry: &SeriesReport, latest: Moment, total: Bytes) -> Result<(), Fault> {
    if !is_name(&entry.container) || !is_name(entry.container_id.as_str()) {
        return Err(Fault::BadText);
    }
    match &entry.data {
        SeriesData::Samples { points, .. } if points.len() > MAX_POINTS => Err(Fault::TooMany),
        SeriesData::Samples { points, .. } => points.iter().try_for_each(|point| judge(point, latest, total)),
        SeriesData::State(state) => {
            state.points_since(None).try_for_each(|point| judge(&point, latest, total))?;
            whole(state, latest, total)
        }
    }
}

fn judge(point: &Point, latest: Moment, total: Bytes) -> Result<(), Fault> {
    let allocator = point.allocator.map(|allocator| allocator.allocated.max(allocator.reserved));
    if point.at > latest {
        Err(Fault::BadMoment)
    } else if point.used > total || allocator.is_some_and(|allocator| allocator > MAX_MEMORY) {
        Err(Fault::Overfull)
    } else {
        Ok(())
    }
}

/// The parts of a series' state that are no points.
fn whole(state: &Series, latest: Moment, total: Bytes) -> Result<(), Fault> {
    let newest_block = |(scale, (seconds, _)): (usize, &(u32, usize))| {
        let index = state.ring(scale)?.newest()?.index;
        Some(Moment::from_secs(u64::from(index) * u64::from(*seconds)))
    };
    let in_order = state.raw_from() <= state.latest().map(|point| point.at)
        && state.started() <= state.latest().map(|point| point.at)
        && state.born() <= latest
        && state.record_at() <= latest
        && SCALES.iter().enumerate().filter_map(newest_block).all(|start| start <= latest);
    if !in_order {
        return Err(Fault::BadMoment);
    }
    let levels = [state.peak(), state.record(), state.survived(), state.record_excess()];
    if levels.into_iter().any(|level| level > total) { Err(Fault::Overfull) } else { Ok(()) }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_NAME
}

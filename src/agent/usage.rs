//! `/v1/usage`: the history since a cursor as JSON, written straight from the series without a copy.
//!
//! The borrowed structs mirror [`UsageReport`](crate::api::usage::UsageReport) field by field; a test reads what they write
//! back as that type.

use std::collections::HashMap;
use std::sync::Arc;

use gpumem_engine::identity::{ContainerId, DeviceKey, PodUid};
use gpumem_engine::quantity::Moment;
use gpumem_engine::series::{Point, Segment, Series};
use serde::Serialize;

use crate::agent::history::{Change, History};
use crate::agent::pods::Pod;
use crate::agent::snapshot::Snapshot;
use crate::api::usage::{
    Abilities, Cursor, DeviceReport, FORMAT, HookReport, LimitReport, MAX_WAITING, NvmlState, PodReport, WaitingReport,
};

/// What an answer says of the agent itself.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Name of the node.
    pub node: String,
    /// Which boot the moments belong to.
    pub boot_id: String,
    /// Sampling interval in milliseconds.
    pub interval_ms: u64,
}

#[derive(Serialize)]
struct Report<'a> {
    format: u32,
    agent_version: &'static str,
    node: &'a str,
    boot_id: &'a str,
    cursor: Cursor,
    now: Moment,
    interval_ms: u64,
    simulated: bool,
    nvml: &'a NvmlState,
    devices: Vec<DeviceReport>,
    pods: Vec<&'a PodReport>,
    series: Vec<SeriesChange<'a>>,
    limits: Vec<LimitReport>,
    abilities: Abilities,
    hooks: Vec<HookReport>,
    waiting: Vec<WaitingReport>,
}

#[derive(Serialize)]
struct SeriesChange<'a> {
    device: &'a DeviceKey,
    pod: &'a PodUid,
    container: &'a str,
    container_id: &'a ContainerId,
    data: Data<'a>,
}

#[derive(Serialize)]
enum Data<'a> {
    Samples { segment: Segment, points: Vec<Point> },
    State(&'a Series),
}

/// The answer to a reader that has everything up to `since`. `expected` are the pods that will hold GPU memory, as far as
/// they say: of those that do not yet the answer tells each time, because they are few.
pub fn answer(
    origin: &Origin,
    snapshot: &Snapshot,
    history: &History,
    since: Option<Cursor>,
    now: Moment,
    (limits, abilities): (Vec<LimitReport>, Abilities),
    expected: &[Arc<Pod>],
) -> Result<Vec<u8>, serde_json::Error> {
    let mut pods: HashMap<&PodUid, &PodReport> = HashMap::new();
    pods.extend(history.changed_pods(since).map(|pod| (&pod.report.uid, &pod.report)));
    let series = history
        .changes(since)
        .map(|(device, entry, change)| {
            if let Some(record) = &entry.record {
                pods.insert(&record.report.uid, &record.report);
            }
            let data = match change {
                Change::Points(segment, points) => Data::Samples { segment, points },
                Change::State(series) => Data::State(series),
            };
            let container = entry.name.as_deref().unwrap_or_default();
            SeriesChange { device, pod: &entry.pod, container, container_id: &entry.instance, data }
        })
        .collect();
    let devices = snapshot.devices.iter().map(|device| DeviceReport {
        device: device.key.clone(),
        index: device.index,
        model: device.model.clone(),
        at: device.at,
        memory: device.memory,
        unattributed: device.unattributed,
        attribution: device.attribution,
    });
    let hooks = snapshot.hooks.iter().map(|hook| {
        pods.insert(&hook.pod.report.uid, &hook.pod.report);
        HookReport {
            device: hook.device.clone(),
            pod: hook.pod.report.uid.clone(),
            container: hook.container.to_string(),
            container_id: hook.container_id.clone(),
            allocated: hook.figures.allocated,
            reserved: hook.figures.reserved,
            ooms: hook.figures.ooms,
            hooked: hook.figures.hooked,
            processes: hook.figures.processes,
        }
    });
    let hooks = hooks.collect();
    let waiting = expected.iter().filter(|pod| !history.has(&pod.report.uid)).map(|pod| pod.waiting());
    let report = Report {
        format: FORMAT,
        agent_version: env!("CARGO_PKG_VERSION"),
        node: &origin.node,
        boot_id: &origin.boot_id,
        cursor: history.cursor(),
        now,
        interval_ms: origin.interval_ms,
        simulated: snapshot.simulated,
        nvml: &snapshot.nvml,
        devices: devices.collect(),
        pods: pods.into_values().collect(),
        series,
        limits,
        abilities,
        hooks,
        waiting: waiting.take(MAX_WAITING).collect(),
    };
    serde_json::to_vec(&report)
}

/// The cursor in a query string; `Err` where there is one and it is malformed.
pub fn since(query: Option<&str>) -> Result<Option<Cursor>, crate::api::usage::CursorError> {
    let pairs = query.unwrap_or_default().split('&');
    let given = pairs.filter_map(|pair| pair.strip_prefix("since=")).find(|text| !text.is_empty());
    given.map(str::parse).transpose()
}

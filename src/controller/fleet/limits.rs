//! What a limit is computed from: every device of one container, its neighbours there, and what the agent read back.

use std::time::{Duration, Instant};

use gpumem_engine::growth::Room;
use gpumem_engine::identity::{ContainerId, DeviceKey, PodUid};
use gpumem_engine::quantity::{Bytes, BytesPerSecond, Moment};
use gpumem_engine::series::{SCALES, Series};

use super::node::Tenant;
use super::{Fleet, Seen};
use crate::api::node::{LimitPhase, device_of};
use crate::api::usage::{Abilities, LimitReport};

/// The rate's minute.
const MINUTE: u32 = 60;
/// A limit that is further away than this is not told: growth does not go on for so long.
const FAR: Duration = Duration::from_hours(24);
/// Neighbours need the most they used within so many minutes.
const NEED_MINUTES: usize = 10;

/// One container on one of its devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Which device.
    pub device: DeviceKey,
    /// The container's instance.
    pub container_id: ContainerId,
    /// The device and its other tenants.
    pub room: Room,
    /// Whether containers of other pods hold memory on it.
    pub shared: bool,
    /// What the container uses.
    pub used: Bytes,
    /// The least it used within the last minute.
    pub minute_floor: Bytes,
    /// How long it has been seen.
    pub age: Duration,
    /// Age of its newest sample.
    pub sample_age: Duration,
}

impl Fleet {
    /// Every device on which a container holds memory; those whose memory cannot be read are left out.
    pub fn places(&self, now: Instant, node: &str, pod: &PodUid, container: &str) -> Vec<Place> {
        let Some(node) = self.nodes.get(node) else { return Vec::new() };
        let clock = node.clock(now);
        let mut places = Vec::new();
        for (key, device) in &node.devices {
            let Some(memory) = device.report.memory else { continue };
            let own = device.tenants.iter().find(|(tenant, _)| tenant.pod == *pod && tenant.container == container);
            let Some((_, Tenant { container_id, series, gone: false })) = own else { continue };
            let Some(latest) = series.latest() else { continue };
            let others = device.tenants.iter().filter(|(tenant, other)| {
                let is_own = tenant.pod == *pod && tenant.container == container;
                !other.gone && !is_own
            });
            let holds = |tenant: &Tenant| tenant.series.latest().is_some_and(|point| point.used > Bytes::ZERO);
            let shared = others.clone().any(|(tenant, other)| tenant.pod != *pod && holds(other));
            let neighbours = others.map(|(_, other)| need(&other.series, clock)).sum();
            places.push(Place {
                device: key.clone(),
                container_id: container_id.clone(),
                room: Room {
                    total: memory.total,
                    usable: memory.usable(),
                    unattributed: device.report.unattributed.unwrap_or_default(),
                    neighbours,
                },
                shared,
                used: latest.used,
                minute_floor: minute_floor(series, clock).min(latest.used),
                age: series.started().map_or(Duration::ZERO, |started| clock.since(started)),
                sample_age: clock.since(latest.at),
            });
        }
        places
    }

    /// What the agent of a node read back, the boot it speaks of, and how old that is.
    pub fn limits(&self, node: &str, now: Instant) -> Option<(&str, &[LimitReport], Duration)> {
        let node = self.nodes.get(node)?;
        Some((&node.boot_id, &node.limits, now.saturating_duration_since(node.received)))
    }

    /// The name of the container whose instance this is, where it holds memory on the node and its pod is not ending.
    pub fn runs(&self, node: &str, container_id: &str) -> Option<String> {
        let node = self.nodes.get(node)?;
        let mut tenants = node.devices.values().flat_map(|device| &device.tenants);
        let (key, _) = tenants.find(|(key, tenant)| {
            let stays = node.pods.get(&key.pod).is_some_and(|pod| !pod.terminating);
            tenant.container_id.as_str() == container_id && !tenant.gone && stays
        })?;
        Some(key.container.clone())
    }

    /// What the agent of a node could make hold.
    pub fn abilities(&self, node: &str) -> Option<&Abilities> {
        self.nodes.get(node).map(|node| &node.abilities)
    }
}

/// The limit that holds a container on a device.
pub(super) fn held_to(reports: &[LimitReport], container: &ContainerId, device: &DeviceKey) -> Option<Bytes> {
    let own = reports.iter().find(|report| {
        report.container_id == *container && device_of(&report.device).is_some_and(|named| named == *device)
    })?;
    holding(own)
}

/// What a report says to hold its container.
pub(super) fn holding(report: &LimitReport) -> Option<Bytes> {
    report.applied.filter(|_| matches!(report.state, LimitPhase::Applied | LimitPhase::Pending | LimitPhase::Drift))
}

impl Seen<'_> {
    /// Time until the container meets the limit that holds it, at its lasting growth; its own allocation fails there, whatever
    /// the device has left. For people only: a limit that followed from this would follow from itself.
    pub fn time_to_limit(&self, growth: Option<BytesPerSecond>) -> Option<Duration> {
        let limit = self.limit?;
        if self.used >= limit {
            return Some(Duration::ZERO);
        }
        let seconds = (limit - self.used).as_f64() / growth?.0;
        (seconds > 0.0 && seconds <= FAR.as_secs_f64()).then(|| Duration::from_secs_f64(seconds))
    }
}

fn need(series: &Series, clock: Moment) -> Bytes {
    let newest = series.latest().map_or(Bytes::ZERO, |point| point.used);
    // The scale of minutes.
    let Some(((seconds, _), ring)) = SCALES.get(2).zip(series.ring(2)) else { return newest };
    let oldest = (clock.0 / 1000 / u64::from(*seconds)).saturating_sub(NEED_MINUTES as u64);
    let recent = ring.iter().filter(|block| u64::from(block.index) >= oldest);
    recent.map(|block| Bytes(u64::from(block.ceiling) << 10)).fold(newest, Bytes::max)
}

fn minute_floor(series: &Series, clock: Moment) -> Bytes {
    let Some(((seconds, _), ring)) = SCALES.first().zip(series.ring(0)) else { return Bytes(u64::MAX) };
    let oldest = (clock.0 / 1000).saturating_sub(u64::from(MINUTE)) / u64::from(*seconds);
    let recent = ring.iter().filter(|block| u64::from(block.index) >= oldest);
    recent.map(|block| Bytes(u64::from(block.floor) << 10)).min().unwrap_or(Bytes(u64::MAX))
}

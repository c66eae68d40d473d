//! `/metrics`: the newest snapshot as text, so no gauge outlives its pod, and the agent's own counters.
//!
//! A value that is not known is absent; it is never 0. Gauges are written as text line by line: the registry's model of the
//! same takes a dozen allocations for each line, and that was most of the time of a scrape.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use gpumem_engine::identity::DeviceKey;
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::usage::{Attribution, AttributionGap};
use prometheus::{Registry, TextEncoder};
use tokio::sync::watch;

use crate::agent::hook::HookView;
use crate::agent::metrics::SelfMetrics;
use crate::agent::snapshot::{ContainerView, DeviceView, Snapshot};
use crate::api::names::metric;
use crate::api::usage::NvmlState;

/// Age of the newest sample.
pub const SAMPLE_AGE: &str = "gpumem_agent_sample_age_seconds";
/// Version of the agent.
pub const BUILD_INFO: &str = "gpumem_agent_build_info";

/// Name, help and place of a gauge that is read from the snapshot.
type Declared = (&'static str, &'static str);

const GAUGES: [Declared; 17] = [
    (metric::DEVICE_TOTAL, "All memory of the device. A MIG slice is a device of its own and carries gpu_instance_id."),
    (
        metric::DEVICE_USED,
        "Memory allocated by anybody, without what driver and firmware keep where NVML tells it apart; equals the sum of gpumem_container_memory_used_bytes and gpumem_device_memory_unattributed_bytes. Absent when the query fails.",
    ),
    (metric::DEVICE_FREE, "Memory not allocated. An allocation larger than this fails with out of memory."),
    (
        metric::DEVICE_RESERVED,
        "Memory kept by driver and firmware; absent where the driver does not tell it apart and counts it as used.",
    ),
    (
        metric::DEVICE_UNATTRIBUTED,
        "Memory used by nobody we can name: processes of the host, leftovers of dead ones, managed memory. If it is large, look for host processes with nvidia-smi; if gpumem_device_attribution_complete is 0 too, its label says what to fix.",
    ),
    (metric::DEVICE_INFO, "Model and driver of the device; always 1."),
    (
        metric::DEVICE_UP,
        "1 while the device answers. At 0 it gives no other value: look for Xid errors in the node's kernel log, drain the node and reset the GPU.",
    ),
    (
        metric::DEVICE_ATTRIBUTION,
        "1 while every byte of the device can be given to a container or the host. At 0 the label says why: no_process_visible means the agent's pod lacks hostPID, partial that some processes could not be named, anything else that containers have no values at all.",
    ),
    (
        metric::CONTAINER_USED,
        "GPU memory of the container on this device, all its processes with their contexts. Where the Kubernetes API gave no name yet, pod holds the pod's UID or container the start of the container's id.",
    ),
    (
        metric::CONTAINER_PEAK,
        "Highest GPU memory of the container's current instance on this device since the agent first saw it.",
    ),
    (
        metric::CONTAINER_LIMIT,
        "GPU memory that the container may hold on this device, as it was read back from what enforces it. Its next allocation beyond it fails with out of memory. Absent where nothing limits it.",
    ),
    (
        metric::CONTAINER_ALLOCATED,
        "Live GPU memory as the container's own framework counts it, to 64 KiB; only of pods with gpumem's hook. Far below gpumem_container_allocator_reserved_bytes, memory is in pieces or cached: a trim gives it back.",
    ),
    (
        metric::CONTAINER_CACHED,
        "GPU memory the container's own framework holds, live or cached, to 64 KiB; only of pods with gpumem's hook, and absent where the framework does not say.",
    ),
    (
        metric::AGENT_NVML_UP,
        "1 while the agent can talk to the GPU driver. At 0 the label says why: absent is normal on nodes without a GPU; no_permission and unknown mean that the agent's pod may not use the device nodes, so change agent.deviceAccess in the chart; the agent's log names the value to try.",
    ),
    (metric::SIMULATED, "1 where the GPU driver is simulated: no value of this node is real."),
    (
        SAMPLE_AGE,
        "Age of the newest sample. If it grows beyond a few seconds, a call of the driver hangs and values are old; look for processes in state D and Xid errors on the node.",
    ),
    (BUILD_INFO, "Version of the agent; always 1."),
];

/// Places in [`GAUGES`].
#[derive(Clone, Copy)]
enum Place {
    Total,
    Used,
    Free,
    Reserved,
    Unattributed,
    Info,
    Up,
    Attribution,
    ContainerUsed,
    ContainerPeak,
    ContainerLimit,
    ContainerAllocated,
    ContainerCached,
    NvmlUp,
    Simulated,
    SampleAge,
    BuildInfo,
}

/// What `/metrics` is written from.
pub struct Exporter {
    registry: Registry,
    node: String,
    snapshot: watch::Receiver<Arc<Snapshot>>,
    now: fn() -> Moment,
}

impl Exporter {
    /// Registers everything in a registry of its own.
    pub fn new(
        node: String,
        snapshot: watch::Receiver<Arc<Snapshot>>,
        metrics: &SelfMetrics,
        now: fn() -> Moment,
    ) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        metrics.register(&registry)?;
        Ok(Self { registry, node, snapshot, now })
    }

    /// The text of `/metrics`, families in the order of their names.
    pub fn render(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut families = self.gauges();
        let encoder = TextEncoder::new();
        for family in self.registry.gather() {
            let mut text = String::new();
            let name = family.name().to_owned();
            encoder.encode_utf8(&[family], &mut text)?;
            families.push((name.into(), text));
        }
        families.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let mut text = Vec::with_capacity(families.iter().map(|(_, text)| text.len()).sum());
        for (_, family) in families {
            text.extend_from_slice(family.as_bytes());
        }
        Ok(text)
    }

    /// Name and text of every family that is read from the snapshot.
    fn gauges(&self) -> Vec<(Cow<'static, str>, String)> {
        let snapshot = Arc::clone(&self.snapshot.borrow());
        let mut families = Families { node: &self.node, lines: Default::default() };
        families.node(&snapshot, (self.now)());
        // In the order of the label values, as Prometheus' own libraries write.
        let mut devices: Vec<(String, &DeviceView)> =
            snapshot.devices.iter().map(|device| (device.index.to_string(), device)).collect();
        devices.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        for (_, device) in devices {
            families.device(device, &snapshot);
        }
        families.limits(&snapshot);
        let mut hooks: Vec<&HookView> = snapshot.hooks.iter().collect();
        hooks.sort_by_key(|hook| {
            let report = &hook.pod.report;
            (hook.index.to_string(), report.namespace.clone(), report.name.clone(), hook.container.clone())
        });
        for hook in hooks {
            families.hook(hook);
        }
        families.finish()
    }
}

/// The lines of each gauge, gathered while walking the snapshot.
struct Families<'a> {
    node: &'a str,
    lines: [String; GAUGES.len()],
}

/// Labels as they stand between the braces.
#[derive(Clone, Default)]
struct Labels(String);

// === impl Families ===

impl Families<'_> {
    fn node(&mut self, snapshot: &Snapshot, now: Moment) {
        let node = Labels::default().with("node", self.node);
        let is_up = matches!(snapshot.nvml, NvmlState::Up { .. });
        self.push(Place::NvmlUp, &node.clone().with("reason", snapshot.reason), f64::from(u8::from(is_up)));
        self.push(Place::BuildInfo, &node.clone().with("version", env!("CARGO_PKG_VERSION")), 1.0);
        self.push(Place::Simulated, &node, f64::from(u8::from(snapshot.simulated)));
        if let Some(at) = snapshot.at {
            self.push(Place::SampleAge, &node, now.secs_since(at));
        }
    }

    fn device(&mut self, device: &DeviceView, snapshot: &Snapshot) {
        let labels = device_labels(self.node, device.index, &device.key);
        self.push(Place::Up, &labels, f64::from(u8::from(device.failure.is_none())));
        let (is_complete, reason) = attribution(device.attribution);
        self.push(Place::Attribution, &labels.clone().with("reason", reason), f64::from(u8::from(is_complete)));
        let driver = if let NvmlState::Up { driver } = &snapshot.nvml { driver } else { "" };
        self.push(Place::Info, &labels.clone().with("model", &device.model).with("driver", driver), 1.0);
        if let Some(memory) = device.memory {
            self.push(Place::Total, &labels, memory.total.as_f64());
            self.push(Place::Used, &labels, memory.used.as_f64());
            self.push(Place::Free, &labels, memory.free.as_f64());
            self.bytes(Place::Reserved, &labels, memory.reserved);
        }
        self.bytes(Place::Unattributed, &labels, device.unattributed);
        let mut containers: Vec<&ContainerView> = device.containers.iter().collect();
        containers.sort_unstable_by_key(|view| (&view.namespace, &view.pod, &view.container));
        for container in containers {
            let labels = labels
                .clone()
                .with("namespace", &container.namespace)
                .with("pod", &container.pod)
                .with("container", &container.container);
            self.push(Place::ContainerPeak, &labels, container.peak.as_f64());
            self.push(Place::ContainerUsed, &labels, container.used.as_f64());
        }
    }

    fn limits(&mut self, snapshot: &Snapshot) {
        for limit in &snapshot.limits {
            let Some(device) = snapshot.devices.iter().find(|device| device.key == limit.device) else { continue };
            let labels = device_labels(self.node, device.index, &device.key)
                .with("namespace", &limit.namespace)
                .with("pod", &limit.pod)
                .with("container", &limit.container);
            self.push(Place::ContainerLimit, &labels, limit.limit.as_f64());
        }
    }

    fn hook(&mut self, hook: &HookView) {
        let labels = device_labels(self.node, hook.index, &hook.device)
            .with("namespace", &hook.pod.report.namespace)
            .with("pod", &hook.pod.report.name)
            .with("container", &hook.container);
        self.bytes(Place::ContainerAllocated, &labels, hook.figures.allocated);
        self.bytes(Place::ContainerCached, &labels, hook.figures.reserved);
    }

    fn bytes(&mut self, place: Place, labels: &Labels, bytes: Option<Bytes>) {
        if let Some(bytes) = bytes {
            self.push(place, labels, bytes.as_f64());
        }
    }

    fn push(&mut self, place: Place, Labels(labels): &Labels, value: f64) {
        let (name, _) = GAUGES[place as usize];
        // Writing to a String cannot fail.
        let _ = writeln!(self.lines[place as usize], "{name}{{{labels}}} {value}");
    }

    fn finish(self) -> Vec<(Cow<'static, str>, String)> {
        let filled = GAUGES.iter().zip(self.lines).filter(|(_, lines)| !lines.is_empty());
        filled
            .map(|((name, help), lines)| {
                (Cow::Borrowed(*name), format!("# HELP {name} {help}\n# TYPE {name} gauge\n{lines}"))
            })
            .collect()
    }
}

// === impl Labels ===

impl Labels {
    /// One label more, its value escaped as Prometheus' text format asks.
    fn with(mut self, name: &str, value: &str) -> Self {
        let Self(text) = &mut self;
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(name);
        text.push_str("=\"");
        for part in value.split_inclusive(['\\', '"', '\n']) {
            match part.char_indices().next_back() {
                Some((at, '\\')) => text.extend([&part[..at], "\\\\"]),
                Some((at, '"')) => text.extend([&part[..at], "\\\""]),
                Some((at, '\n')) => text.extend([&part[..at], "\\n"]),
                _ => text.push_str(part),
            }
        }
        text.push('"');
        self
    }
}

fn device_labels(node: &str, index: u32, key: &DeviceKey) -> Labels {
    let instance = key.mig.map(|mig| mig.gpu_instance.to_string()).unwrap_or_default();
    Labels::default()
        .with("node", node)
        .with("gpu", &index.to_string())
        .with("uuid", key.gpu.as_str())
        .with("gpu_instance_id", &instance)
}

fn attribution(attribution: Attribution) -> (bool, &'static str) {
    match attribution {
        Attribution::Complete => (true, ""),
        Attribution::Partial => (false, "partial"),
        Attribution::Unavailable(AttributionGap::Query(failure)) => (false, failure.kind()),
        Attribution::Unavailable(AttributionGap::NotSupported) => (false, "not_supported"),
        Attribution::Unavailable(AttributionGap::NoProcessVisible) => (false, "no_process_visible"),
        Attribution::Unavailable(AttributionGap::Inconsistent) => (false, "inconsistent"),
    }
}

//! `/metrics`: a collector over the newest snapshot, so no gauge outlives its pod, and the agent's own counters.
//!
//! A value that is not known is absent; it is never 0. Label values are escaped by the encoder.

use std::collections::HashMap;
use std::sync::Arc;

use gpumem_engine::identity::DeviceKey;
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::sample::QueryFailure;
use gpumem_engine::usage::{Attribution, AttributionGap};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder, Histogram, HistogramOpts, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};
use tokio::sync::watch;

use crate::agent::owners;
use crate::agent::snapshot::{DeviceView, HookView, Snapshot};
use crate::api::names::metric;
use crate::api::usage::NvmlState;

/// Age of the newest sample.
pub const SAMPLE_AGE: &str = "gpumem_agent_sample_age_seconds";
/// Duration of a cycle.
pub const SAMPLE_DURATION: &str = "gpumem_agent_sample_duration_seconds";
/// Failed driver queries.
pub const QUERY_FAILURES: &str = "gpumem_agent_query_failures_total";
/// Failed reads below `/proc`.
pub const PROC_FAILURES: &str = "gpumem_agent_proc_failures_total";
/// Input that was not believed.
pub const DROPPED_INPUTS: &str = "gpumem_agent_dropped_inputs_total";
/// 1 while the pod watch works.
pub const POD_WATCH_UP: &str = "gpumem_agent_pod_watch_up";
/// Version of the agent.
pub const BUILD_INFO: &str = "gpumem_agent_build_info";

/// Name, help and place of a gauge that is read from the snapshot.
type Declared = (&'static str, &'static str);

const GAUGES: [Declared; 16] = [
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
    ContainerAllocated,
    ContainerCached,
    NvmlUp,
    Simulated,
    SampleAge,
    BuildInfo,
}

/// The agent's own counters: what goes wrong here and what is left out.
#[derive(Debug)]
pub struct SelfMetrics {
    query_failures: IntCounterVec,
    proc_failures: IntCounterVec,
    dropped: IntCounterVec,
    /// 1 while the pod watch works.
    pub pod_watch_up: IntGauge,
    /// Seconds a cycle took, driver and `/proc` together.
    pub sample_duration: Histogram,
}

/// The registry behind `/metrics`.
pub struct Exporter {
    registry: Registry,
}

struct SnapshotCollector {
    node: String,
    snapshot: watch::Receiver<Arc<Snapshot>>,
    now: fn() -> Moment,
    descriptions: Vec<Desc>,
}

// === impl SelfMetrics ===

impl SelfMetrics {
    /// Fresh counters.
    pub fn new() -> Result<Self, prometheus::Error> {
        let counters = |name, help, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        Ok(Self {
            query_failures: counters(
                QUERY_FAILURES,
                "Driver queries that failed, by query and kind of failure. device_lost: reset the GPU; no_permission: see agent.deviceAccess in the chart; driver_gone: the driver was reloaded or upgraded, the agent reconnects by itself.",
                &["query", "kind"],
            )?,
            proc_failures: counters(
                PROC_FAILURES,
                "Reads below /proc that failed; the process's memory counts as unattributed. gone is normal for processes that just ended; permission means that /proc is mounted with hidepid.",
                &["file", "reason"],
            )?,
            dropped: counters(
                DROPPED_INPUTS,
                "Input that was not believed and left out. Anything but a rare single event is a fault worth reporting; the agent's log has details.",
                &["input", "reason"],
            )?,
            pod_watch_up: IntGauge::new(
                POD_WATCH_UP,
                "1 while the node's pods can be watched. At 0 new containers show by UID and id instead of names: check the API server and the agent's RBAC.",
            )?,
            sample_duration: Histogram::with_opts(
                HistogramOpts::new(
                    SAMPLE_DURATION,
                    "Duration of one cycle: driver queries, /proc and attribution. Above the sampling interval the driver is too slow; raise agent.interval.",
                )
                .buckets(vec![0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0]),
            )?,
        })
    }

    /// A driver query failed.
    pub fn query_failed(&self, query: &str, failure: QueryFailure) {
        self.query_failures.with_label_values(&[query, failure.kind()]).inc();
    }

    /// A read below `/proc` failed. What is malformed or too long counts as dropped input too.
    pub fn proc_failed(&self, file: &str, error: owners::Error) {
        self.proc_failures.with_label_values(&[file, error.kind()]).inc();
        if matches!(error, owners::Error::Malformed | owners::Error::TooLong) {
            self.dropped(file, error.kind());
        }
    }

    /// An input was left out.
    pub fn dropped(&self, input: &str, reason: &str) {
        self.dropped.with_label_values(&[input, reason]).inc();
    }
}

// === impl Exporter ===

impl Exporter {
    /// Registers everything in a registry of its own.
    pub fn new(
        node: String,
        snapshot: watch::Receiver<Arc<Snapshot>>,
        metrics: &SelfMetrics,
        now: fn() -> Moment,
    ) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        registry.register(Box::new(metrics.query_failures.clone()))?;
        registry.register(Box::new(metrics.proc_failures.clone()))?;
        registry.register(Box::new(metrics.dropped.clone()))?;
        registry.register(Box::new(metrics.pod_watch_up.clone()))?;
        registry.register(Box::new(metrics.sample_duration.clone()))?;
        let descriptions = GAUGES
            .iter()
            .map(|(name, help)| Desc::new((*name).to_owned(), (*help).to_owned(), Vec::new(), HashMap::new()))
            .collect::<Result<_, _>>()?;
        registry.register(Box::new(SnapshotCollector { node, snapshot, now, descriptions }))?;
        Ok(Self { registry })
    }

    /// The text of `/metrics`.
    pub fn render(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut text = Vec::with_capacity(16 * 1024);
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

// === impl SnapshotCollector ===

impl Collector for SnapshotCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let snapshot = Arc::clone(&self.snapshot.borrow());
        let mut families = Families { node: &self.node, metrics: Default::default() };
        families.node(&snapshot, (self.now)());
        for device in &snapshot.devices {
            families.device(device, &snapshot);
        }
        for hook in &snapshot.hooks {
            families.hook(hook);
        }
        families.finish()
    }
}

struct Families<'a> {
    node: &'a str,
    metrics: [Vec<Metric>; GAUGES.len()],
}

// === impl Families ===

impl Families<'_> {
    fn node(&mut self, snapshot: &Snapshot, now: Moment) {
        let node = vec![label("node", self.node)];
        let is_up = matches!(snapshot.nvml, NvmlState::Up { .. });
        let mut up = node.clone();
        up.push(label("reason", snapshot.reason));
        self.push(Place::NvmlUp, up, f64::from(u8::from(is_up)));
        let mut build = node.clone();
        build.push(label("version", env!("CARGO_PKG_VERSION")));
        self.push(Place::BuildInfo, build, 1.0);
        self.push(Place::Simulated, node.clone(), f64::from(u8::from(snapshot.simulated)));
        if let Some(at) = snapshot.at {
            self.push(Place::SampleAge, node, now.secs_since(at));
        }
    }

    fn device(&mut self, device: &DeviceView, snapshot: &Snapshot) {
        let labels = device_labels(self.node, device.index, &device.key);
        self.push(Place::Up, labels.clone(), f64::from(u8::from(device.failure.is_none())));
        let (is_complete, reason) = attribution(device.attribution);
        let mut attribution = labels.clone();
        attribution.push(label("reason", reason));
        self.push(Place::Attribution, attribution, f64::from(u8::from(is_complete)));
        let mut info = labels.clone();
        info.push(label("model", &device.model));
        info.push(label("driver", if let NvmlState::Up { driver } = &snapshot.nvml { driver } else { "" }));
        self.push(Place::Info, info, 1.0);
        if let Some(memory) = device.memory {
            self.push(Place::Total, labels.clone(), memory.total.as_f64());
            self.push(Place::Used, labels.clone(), memory.used.as_f64());
            self.push(Place::Free, labels.clone(), memory.free.as_f64());
            self.bytes(Place::Reserved, &labels, memory.reserved);
        }
        self.bytes(Place::Unattributed, &labels, device.unattributed);
        for container in &device.containers {
            let mut labels = labels.clone();
            labels.push(label("namespace", &container.namespace));
            labels.push(label("pod", &container.pod));
            labels.push(label("container", &container.container));
            self.push(Place::ContainerPeak, labels.clone(), container.peak.as_f64());
            self.push(Place::ContainerUsed, labels, container.used.as_f64());
        }
    }

    fn hook(&mut self, hook: &HookView) {
        let mut labels = device_labels(self.node, hook.index, &hook.device);
        labels.push(label("namespace", &hook.pod.report.namespace));
        labels.push(label("pod", &hook.pod.report.name));
        labels.push(label("container", &hook.container));
        self.bytes(Place::ContainerAllocated, &labels, hook.figures.allocated);
        self.bytes(Place::ContainerCached, &labels, hook.figures.reserved);
    }

    fn bytes(&mut self, place: Place, labels: &[LabelPair], bytes: Option<Bytes>) {
        if let Some(bytes) = bytes {
            self.push(place, labels.to_vec(), bytes.as_f64());
        }
    }

    fn push(&mut self, place: Place, labels: Vec<LabelPair>, value: f64) {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        let mut metric = Metric::from_label(labels);
        metric.set_gauge(gauge);
        if let Some(metrics) = self.metrics.get_mut(place as usize) {
            metrics.push(metric);
        }
    }

    fn finish(self) -> Vec<MetricFamily> {
        let filled = GAUGES.iter().zip(self.metrics).filter(|(_, metrics)| !metrics.is_empty());
        filled
            .map(|((name, help), metrics)| {
                let mut family = MetricFamily::default();
                family.set_name((*name).to_owned());
                family.set_help((*help).to_owned());
                family.set_field_type(MetricType::GAUGE);
                family.set_metric(metrics);
                family
            })
            .collect()
    }
}

fn device_labels(node: &str, index: u32, key: &DeviceKey) -> Vec<LabelPair> {
    let instance = key.mig.map(|mig| mig.gpu_instance.to_string()).unwrap_or_default();
    let mut labels = Vec::with_capacity(7);
    labels.push(label("node", node));
    labels.push(label("gpu", &index.to_string()));
    labels.push(label("uuid", key.gpu.as_str()));
    labels.push(label("gpu_instance_id", &instance));
    labels
}

fn label(name: &str, value: &str) -> LabelPair {
    let mut label = LabelPair::default();
    label.set_name(name.to_owned());
    label.set_value(value.to_owned());
    label
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

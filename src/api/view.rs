//! The controller's read-only API: what `kubectl gpumem` and dashboards of one's own read. Served by every replica on the
//! port of its metrics, in JSON; fields are added, never renamed or removed, while [`FORMAT`] stays.
//!
//! - `GET /api/v1/containers?namespace=&pod=&series=1`: every container that holds GPU memory, each on its worst device.
//! - `GET /api/v1/nodes`: every node that was heard of, with its devices.
//!
//! An absent field means "not known" and never zero. Amounts are bytes, times seconds, ages count from the answer.

use std::collections::BTreeMap;

use gpumem_engine::forecast::{Forecast, Outlook};
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::series::{SCALES, Series};
use serde::{Deserialize, Serialize};

/// Path of [`ContainerList`].
pub const CONTAINERS: &str = "/api/v1/containers";
/// Path of [`NodeList`].
pub const NODES: &str = "/api/v1/nodes";
/// What [`ContainerView::unknown`] says of a container of a pod that waits.
pub const NOT_STARTED: &str = "not_started";
/// Version of the format; a reader refuses a higher one.
pub const FORMAT: u32 = 1;
/// Points in a series: a sparkline of a terminal's width.
const POINTS: usize = 60;
/// Containers in one answer at most. The rest is counted in [`ContainerList::left_out`]: ask by namespace.
pub const MAX_CONTAINERS: usize = 20_000;

/// Who answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answerer {
    /// Name of the replica's pod.
    pub pod: String,
    /// Its version.
    pub version: String,
    /// Only the leader knows policies and levels under them; other replicas answer with the default question.
    pub is_leader: bool,
}

/// `GET /api/v1/containers`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerList {
    /// [`FORMAT`].
    pub format: u32,
    /// Who answers.
    pub controller: Answerer,
    /// True where a node's driver is simulated.
    pub simulated: bool,
    /// By node, namespace, pod and container.
    pub containers: Vec<ContainerView>,
    /// Pods that hold no GPU memory yet and declare their job or ask for a GPU, with the largest device that they can get in
    /// place of their own: whether they can fit is known before they start. `unknown` is `not_started`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<ContainerView>,
    /// Containers beyond [`MAX_CONTAINERS`].
    pub left_out: usize,
}

/// Level of risk of a container, mildest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Level {
    /// No OOM is expected within the horizon.
    Low,
    /// There is no forecast. Worse than Low, because nobody can say that it is low.
    #[default]
    Unknown,
    /// Between the clear and the act level.
    Elevated,
    /// Over the act level.
    High,
    /// High, and expected within a fifth of the horizon.
    Critical,
}

impl Level {
    /// As printed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "Low",
            Self::Unknown => "Unknown",
            Self::Elevated => "Elevated",
            Self::High => "High",
            Self::Critical => "Critical",
        }
    }
}

/// An amount that is not known exactly, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Range {
    /// One in twenty lies below.
    pub low: u64,
    /// As likely above as below.
    pub median: u64,
    /// One in twenty lies above.
    pub high: u64,
}

/// What a pod declares of the job it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeclaredView {
    /// The peak to expect; absent for a server that takes a share of its card, and where the annotation is not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<Range>,
    /// Why the annotation is not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// One thing to change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Advice {
    /// What to change.
    pub what: String,
    /// The peak it leads to; known where the pod declares its job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<Range>,
    /// What it costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<String>,
    /// What to write, the framework first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setting: Option<String>,
}

/// One container on its worst device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerView {
    /// Node.
    pub node: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Pod.
    pub pod: String,
    /// UID of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// Name of the container in the pod's spec.
    pub container: String,
    /// Controller of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Named>,
    /// UUID of the GPU, with `/gi<n>` for a MIG slice.
    pub device: String,
    /// NVML's index of the GPU.
    pub gpu: u32,
    /// Product name of the GPU.
    pub model: String,
    /// Memory on that device in the newest sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// What workloads may fill of that device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// What all together use of that device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_used_bytes: Option<u64>,
    /// Highest memory of this run of the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
    /// Kind of trajectory: Leak, Plateau, Pool, ….
    pub class: String,
    /// Level under its policy, or under the default question where none governs it.
    pub level: Level,
    /// Why, in one sentence with the numbers used.
    pub reason: String,
    /// Why there is no forecast: a closed set; absent when there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// P(OOM within the horizon of its policy, or of the default one).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// P(OOM) by horizon in seconds: 300, 900, 3600.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub probability_by_horizon: BTreeMap<u32, f64>,
    /// Time to OOM; absent when none is expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_to_oom: Option<Quantiles>,
    /// Lasting growth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth_bytes_per_second: Option<f64>,
    /// The limit that holds it on that device, as its agent read it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// Time until it meets that limit at its lasting growth; its own allocation fails there. `seconds_to_oom` and the
    /// probabilities speak of the device, whatever limit holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_to_limit: Option<f64>,
    /// What its pod declares in `gpumem.dev/workload`: the peak to expect, or why the annotation is not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub declared: Option<DeclaredView>,
    /// What to change, the first to try first; for containers at risk only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<Advice>,
    /// Age of the newest sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_age_seconds: Option<f64>,
    /// The policy that governs it, in the pod's namespace; known to the leader only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Recent points, oldest first; only with `series=1`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<SeriesPoint>,
}

impl ContainerView {
    /// Takes what a forecast says; the level is its policy's word.
    pub fn foretell(&mut self, forecast: &Forecast) {
        self.class = format!("{:?}", forecast.class);
        self.reason.clone_from(&forecast.reason);
        self.growth_bytes_per_second = forecast.growth.map(|growth| growth.0);
        match &forecast.outlook {
            Outlook::Unknown { why } => self.unknown = Some(why.kind().to_owned()),
            Outlook::Known { probability, by_horizon, time_to_oom } => {
                self.probability = Some(*probability);
                self.probability_by_horizon = by_horizon.iter().copied().collect();
                self.seconds_to_oom = time_to_oom.map(|time| Quantiles {
                    q10: Some(time.q10.as_secs_f64()),
                    q50: time.q50.as_secs_f64(),
                    q90: Some(time.q90.as_secs_f64()),
                });
            }
        }
    }
}

/// A kind and a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Named {
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
}

/// Quantiles in seconds, given that it comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// One in ten comes earlier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub q10: Option<f64>,
    /// The median.
    pub q50: f64,
    /// One in ten comes later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub q90: Option<f64>,
}

/// Memory over a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SeriesPoint {
    /// How long ago the stretch began.
    pub age_seconds: f64,
    /// Highest memory in it.
    pub used_bytes: u64,
}

impl SeriesPoint {
    /// The series in blocks of the finest scale that shows most of it: a container of two minutes in seconds, one of a day in
    /// tens of minutes. Ages count from `now`.
    pub fn of(series: &Series, now: Moment) -> Vec<Self> {
        let age = now.since(series.born()).as_secs();
        let fits = |(seconds, limit): &(u32, usize)| u64::from(*seconds) * (*limit as u64) >= age;
        let scale = SCALES.iter().position(fits).unwrap_or(SCALES.len() - 1);
        let (Some((seconds, _)), Some(ring)) = (SCALES.get(scale), series.ring(scale)) else { return Vec::new() };
        let now = now.0 as f64 / 1000.0;
        let blocks: Vec<_> = ring.iter().collect();
        let newest = blocks.get(blocks.len().saturating_sub(POINTS)..).unwrap_or_default();
        newest
            .iter()
            .map(|block| Self {
                age_seconds: (now - f64::from(block.index) * f64::from(*seconds)).max(0.0).round(),
                used_bytes: Bytes::kib(u64::from(block.ceiling)).0,
            })
            .collect()
    }
}

/// `GET /api/v1/nodes`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeList {
    /// [`FORMAT`].
    pub format: u32,
    /// Who answers.
    pub controller: Answerer,
    /// By name.
    pub nodes: Vec<NodeView>,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeView {
    /// Name.
    pub node: String,
    /// Version of its agent.
    pub agent_version: String,
    /// Up, Absent or Down.
    pub nvml: String,
    /// Version of the driver, or why NVML is not up.
    pub nvml_detail: String,
    /// True where its driver is simulated.
    pub simulated: bool,
    /// Age of its agent's newest report.
    pub report_age_seconds: f64,
    /// Whether its agent can hold containers to limits in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<AbilityView>,
    /// Whether its agent can move containers to host memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend: Option<AbilityView>,
    /// Its devices.
    pub devices: Vec<DeviceView>,
}

/// Something that a node's agent is asked to be able to do; absent where the chart does not ask for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AbilityView {
    /// Whether it works, as far as can be told without touching a container.
    pub works: bool,
    /// By what, or why not.
    pub detail: String,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceView {
    /// UUID of the GPU, with `/gi<n>` for a MIG slice.
    pub device: String,
    /// NVML's index of the GPU.
    pub gpu: u32,
    /// Product name.
    pub model: String,
    /// What workloads may fill.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// Allocated by anybody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// Used by nobody that could be named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unattributed_bytes: Option<u64>,
    /// Complete, Partial, or Unavailable: how far the split by container can be trusted.
    pub attribution: String,
    /// Containers that hold memory on it.
    pub containers: usize,
}

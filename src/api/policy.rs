//! `GpuMemoryPolicy`: what its owner wants watched, when a forecast counts as a risk, and how far we may go.
//!
//! The docs of fields are the only docs of these fields: they reach `kubectl explain` and the CRD as they stand.

#![allow(clippy::duplicated_attributes, reason = "columns of the CRD repeat their type")]

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod actions;
mod disruption;
mod status;

pub use actions::*;
pub use disruption::*;
pub use status::*;

/// What to watch, when a forecast counts as a risk, and what may be done about it.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "gpumem.dev",
    version = "v1alpha1",
    kind = "GpuMemoryPolicy",
    plural = "gpumemorypolicies",
    shortname = "gmp",
    category = "gpu",
    namespaced,
    cel,
    status = "GpuMemoryPolicyStatus",
    doc = "Watches the GPU memory of the selected pods, says which container will run out of it and when, and acts as far as `mode` and `actions` allow. With defaults it only observes.",
    derive = "PartialEq",
    selectable = ".spec.mode",
    printcolumn(json_path = ".spec.mode", name = "Mode", type_ = "string"),
    printcolumn(json_path = ".status.conditions[?(@.type=='Ready')].status", name = "Ready", type_ = "string"),
    printcolumn(json_path = ".status.conditions[?(@.type=='AtRisk')].status", name = "AtRisk", type_ = "string"),
    printcolumn(json_path = ".status.targets.pods", name = "Pods", type_ = "integer"),
    printcolumn(json_path = ".status.recentActions[0].outcome", name = "LastAction", type_ = "string"),
    printcolumn(json_path = ".metadata.creationTimestamp", name = "Age", type_ = "date")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    cel,
    validation = Rule::new("self.mode != 'Enforce' || !has(self.target.podSelector) || (has(self.target.podSelector.matchLabels) && size(self.target.podSelector.matchLabels) > 0) || (has(self.target.podSelector.matchExpressions) && size(self.target.podSelector.matchExpressions) > 0)")
        .message("mode Enforce needs a podSelector that selects something: an empty one would put every pod of the namespace at stake")
        .field_path(".target.podSelector"),
    validation = Rule::new("self.mode != 'Enforce' || oldSelf.mode != 'Enforce' || self.target == oldSelf.target")
        .message("target cannot change while mode is Enforce: set mode to Observe, change the target, look at status.targets, then set Enforce again")
        .field_path(".target")
)]
pub struct GpuMemoryPolicySpec {
    /// How far this policy may go. Observe forecasts and reports. DryRun decides and sends every call with dryRun=All,
    /// which changes nothing. Enforce acts. The cluster's administrator may set a lower maximum.
    #[serde(default)]
    pub mode: PolicyMode,

    /// Pauses the policy. Any entry in `reasons` stops new actions; forecasts go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,

    /// Where several policies select the same pod, the one with the highest precedence governs it, then the oldest. The
    /// others report `TargetsResolved: Overlapped`.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1000))]
    pub precedence: i32,

    /// Which pods this policy governs, in its own namespace.
    pub target: Target,

    /// What counts as full.
    #[serde(default)]
    pub memory: Memory,

    /// When a forecast counts as a risk.
    #[serde(default)]
    pub prediction: PredictionSpec,

    /// What may be done, each opt-in. The mildest that helps is taken, whatever their order here.
    #[serde(default = "default_actions")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub actions: Vec<ActionSpec>,

    /// How far a container may grow; it takes effect through action LimitGrowth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth_limit: Option<GrowthLimitSpec>,

    /// Restraint. The most restrictive of this, the cluster's budgets and PodDisruptionBudgets wins.
    #[serde(default)]
    pub disruption: DisruptionSpec,
}

/// See [`GpuMemoryPolicySpec::mode`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum PolicyMode {
    /// Forecast and report.
    #[default]
    Observe,
    /// Decide, and call with dryRun=All.
    DryRun,
    /// Act.
    Enforce,
}

/// A pause that several parties can hold without overwriting each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Paused {
    /// Who pauses and why, one entry each. Remove your own entry to end your pause.
    #[serde(default)]
    #[schemars(length(max = 16), inner(length(min = 1, max = 256)))]
    pub reasons: Vec<String>,
}

/// Which pods a policy governs.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    cel,
    validation = Rule::new("has(self.podSelector) != has(self.ownerRef)").message("give exactly one of podSelector and ownerRef")
)]
pub struct Target {
    /// Selects pods of this namespace by their labels. An empty selector selects all of them, and is refused in mode
    /// Enforce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<PodSelector>,

    /// Names one workload of this namespace: the pods it controls, directly or through other objects, are governed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_ref: Option<OwnerRef>,

    /// Names of containers to look at; leave empty for all. Sidecars share the pod, not its memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 253)))]
    pub containers: Vec<String>,
}

/// A label selector; all requirements must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodSelector {
    /// Labels with these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "label_map")]
    pub match_labels: BTreeMap<String, String>,

    /// Requirements beyond equality.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub match_expressions: Vec<Requirement>,
}

/// One requirement of a selector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Requirement {
    /// Label key.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// How the label compares to `values`.
    pub operator: SelectorOperator,
    /// Values for In and NotIn; empty for Exists and DoesNotExist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 63)))]
    pub values: Vec<String>,
}

/// See [`Requirement::operator`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SelectorOperator {
    /// The label's value is one of `values`.
    In,
    /// The label is absent or its value is none of `values`.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

/// A workload of the policy's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OwnerRef {
    /// API version, e.g. apps/v1.
    #[schemars(length(min = 1, max = 253))]
    pub api_version: String,
    /// Kind, e.g. Deployment.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// What counts as full.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    cel,
    validation = Rule::new("(self.budget == 'Declared') == has(self.declared)")
        .message("declared is needed when budget is Declared, and refused otherwise")
        .field_path(".declared")
)]
pub struct Memory {
    /// What a container may fill: the whole Device less what its neighbours hold, the Partition (MIG) it runs in, or a
    /// share that is Declared here.
    #[serde(default)]
    pub budget: MemoryBudget,

    /// The share, where budget is Declared, e.g. 40Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 20), regex(pattern = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$"))]
    pub declared: Option<String>,

    /// Never plan to fill the last of it, e.g. 512Mi.
    #[serde(default = "default_headroom")]
    #[schemars(length(max = 20), regex(pattern = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$"))]
    pub headroom: String,
}

impl Default for Memory {
    fn default() -> Self {
        Self { budget: MemoryBudget::default(), declared: None, headroom: default_headroom() }
    }
}

/// See [`Memory::budget`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MemoryBudget {
    /// The whole device.
    #[default]
    Device,
    /// The MIG partition.
    Partition,
    /// A declared share.
    Declared,
}

/// When a forecast counts as a risk.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    cel,
    validation = Rule::new("self.clear.probabilityPercent < self.act.probabilityPercent")
        .message("clear.probabilityPercent must be below act.probabilityPercent, or the risk would flap")
        .field_path(".clear.probabilityPercent"),
    validation = Rule::new("self.act.forSeconds < self.horizonSeconds")
        .message("act.forSeconds must be below horizonSeconds, or the OOM would come before the risk counts")
        .field_path(".act.forSeconds")
)]
pub struct PredictionSpec {
    /// How far ahead an OOM matters, in seconds.
    #[serde(default = "default_horizon")]
    #[schemars(range(min = 30, max = 86_400))]
    pub horizon_seconds: i32,

    /// Known end of growth, e.g. 18Gi: the forecast does not extrapolate beyond it. Use it for jobs whose peak you know;
    /// it removes the false alarm of a ramp that will stop by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 20), regex(pattern = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$"))]
    pub declared_peak: Option<String>,

    /// The risk counts when the probability of an OOM within the horizon reaches this and stays there.
    #[serde(default)]
    pub act: ActThreshold,

    /// The risk is over when the probability falls to this and stays there. For `forSeconds` after the controller has
    /// started, or taken over from another, no action is taken either.
    #[serde(default)]
    pub clear: ClearThreshold,

    /// No forecast from fewer samples.
    #[serde(default = "default_min_samples")]
    #[schemars(range(min = 3, max = 10_000))]
    pub min_samples: i32,

    /// No forecast, and no action, when the newest sample is older, in seconds.
    #[serde(default = "default_max_sample_age")]
    #[schemars(range(min = 2, max = 600))]
    pub max_sample_age_seconds: i32,

    /// No forecast for a container that started its GPU use more recently, in seconds: loading a model grows fast, once. No pod
    /// is stopped before its container has run for three times as long: a cache that fills for the first time looks like a leak.
    #[serde(default = "default_warm_up")]
    #[schemars(range(min = 0, max = 86_400))]
    pub warm_up_seconds: i32,
}

impl Default for PredictionSpec {
    fn default() -> Self {
        Self {
            horizon_seconds: default_horizon(),
            declared_peak: None,
            act: ActThreshold::default(),
            clear: ClearThreshold::default(),
            min_samples: default_min_samples(),
            max_sample_age_seconds: default_max_sample_age(),
            warm_up_seconds: default_warm_up(),
        }
    }
}

/// When the risk counts: a probability that has to hold for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ActThreshold {
    /// Probability of an OOM within the horizon, in percent.
    #[schemars(range(min = 1, max = 100))]
    pub probability_percent: i32,
    /// How long it has to hold, in seconds.
    #[schemars(range(min = 0, max = 3600))]
    pub for_seconds: i32,
}

impl Default for ActThreshold {
    fn default() -> Self {
        Self { probability_percent: 80, for_seconds: 120 }
    }
}

/// When the risk is over: a probability that has to hold for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClearThreshold {
    /// Probability of an OOM within the horizon, in percent.
    #[schemars(range(min = 1, max = 100))]
    pub probability_percent: i32,
    /// How long it has to hold, in seconds.
    #[schemars(range(min = 0, max = 3600))]
    pub for_seconds: i32,
}

impl Default for ClearThreshold {
    fn default() -> Self {
        Self { probability_percent: 50, for_seconds: 300 }
    }
}

fn default_actions() -> Vec<ActionSpec> {
    vec![ActionSpec::plain(ActionType::Notify)]
}
fn default_headroom() -> String {
    "512Mi".to_owned()
}
const fn default_horizon() -> i32 {
    900
}
const fn default_min_samples() -> i32 {
    10
}
const fn default_max_sample_age() -> i32 {
    30
}
const fn default_warm_up() -> i32 {
    600
}

/// `maxLength` of keys and values keeps the cost of CEL's comparison bounded.
fn label_map(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": { "type": "string", "maxLength": 63 }
    })
}

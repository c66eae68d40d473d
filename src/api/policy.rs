//! `GpuMemoryPolicy`: what its owner wants watched, when a forecast counts as a risk, and how far we may go.
//!
//! The docs of fields are the only docs of these fields: they reach `kubectl explain` and the CRD as they stand.

#![allow(clippy::duplicated_attributes, reason = "columns of the CRD repeat their type")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    #[serde(default = "default_act")]
    pub act: Threshold,

    /// The risk is over when the probability falls to this and stays there. For `forSeconds` after the controller has
    /// started, or taken over from another, no action is taken either.
    #[serde(default = "default_clear")]
    pub clear: Threshold,

    /// No forecast from fewer samples.
    #[serde(default = "default_min_samples")]
    #[schemars(range(min = 3, max = 10_000))]
    pub min_samples: i32,

    /// No forecast, and no action, when the newest sample is older, in seconds.
    #[serde(default = "default_max_sample_age")]
    #[schemars(range(min = 2, max = 600))]
    pub max_sample_age_seconds: i32,

    /// No forecast for a container that started its GPU use more recently, in seconds: loading a model grows fast, once.
    #[serde(default = "default_warm_up")]
    #[schemars(range(min = 0, max = 86_400))]
    pub warm_up_seconds: i32,
}

impl Default for PredictionSpec {
    fn default() -> Self {
        Self {
            horizon_seconds: default_horizon(),
            declared_peak: None,
            act: default_act(),
            clear: default_clear(),
            min_samples: default_min_samples(),
            max_sample_age_seconds: default_max_sample_age(),
            warm_up_seconds: default_warm_up(),
        }
    }
}

/// A probability that has to hold for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Threshold {
    /// Probability of an OOM within the horizon, in percent.
    #[schemars(range(min = 1, max = 100))]
    pub probability_percent: i32,
    /// How long it has to hold, in seconds.
    #[schemars(range(min = 0, max = 3600))]
    pub for_seconds: i32,
}

/// One thing that may be done.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    cel,
    validation = Rule::new("self.type == 'Checkpoint' || !has(self.checkpoint)")
        .message("checkpoint belongs to type Checkpoint").field_path(".checkpoint"),
    validation = Rule::new("self.type == 'Scale' || !has(self.scale)")
        .message("scale belongs to type Scale").field_path(".scale"),
    validation = Rule::new("self.type == 'SuspendWorkload' || !has(self.suspendWorkload)")
        .message("suspendWorkload belongs to type SuspendWorkload").field_path(".suspendWorkload")
)]
pub struct ActionSpec {
    /// Notify writes an Event on the pod, its owner and the policy. LimitGrowth holds the container to `growthLimit`.
    /// Scale adds replicas, or leaves that to an autoscaler which reads our metrics. Checkpoint asks the application to
    /// save its work before SuspendWorkload or Evict. SuspendToHost freezes the container and moves its GPU memory to host
    /// memory. SuspendWorkload suspends the Job the pod belongs to. Evict asks the Eviction API to remove the pod, which
    /// respects PodDisruptionBudgets and the pod's grace period; its controller replaces it.
    #[serde(rename = "type")]
    pub action: ActionType,

    /// How a checkpoint is asked for, where type is Checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointSpec>,

    /// How replicas are changed, where type is Scale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<ScaleSpec>,

    /// How a suspended workload goes on, where type is SuspendWorkload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend_workload: Option<SuspendWorkloadSpec>,
}

impl ActionSpec {
    /// An action without parameters.
    pub const fn plain(action: ActionType) -> Self {
        Self { action, checkpoint: None, scale: None, suspend_workload: None }
    }
}

/// How a checkpoint is asked for: annotations `gpumem.dev/checkpoint-request` and `gpumem.dev/checkpoint-deadline` on the
/// pod; the application answers with `gpumem.dev/checkpoint-done: <request>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointSpec {
    /// How long the application has, in seconds.
    #[serde(default = "default_checkpoint_timeout")]
    #[schemars(range(min = 5, max = 7200))]
    pub timeout_seconds: i32,
    /// Required: nothing disruptive without an answer. BestEffort: act without one where the OOM comes too soon for it.
    #[serde(default)]
    pub need: CheckpointNeed,
    /// What follows when nobody answers in time: Skip leaves the pod alone, Proceed acts without.
    #[serde(default)]
    pub on_timeout: OnTimeout,
}

impl Default for CheckpointSpec {
    fn default() -> Self {
        Self {
            timeout_seconds: default_checkpoint_timeout(),
            need: CheckpointNeed::default(),
            on_timeout: OnTimeout::default(),
        }
    }
}

/// See [`CheckpointSpec::need`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CheckpointNeed {
    /// Nothing disruptive without it.
    #[default]
    Required,
    /// Without it where the OOM comes too soon.
    BestEffort,
}

/// See [`CheckpointSpec::on_timeout`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnTimeout {
    /// Leave the pod alone.
    #[default]
    Skip,
    /// Act without it.
    Proceed,
}

/// How replicas are changed.
#[derive(KubeSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    cel,
    validation = Rule::new("self.via != 'Replicas' || has(self.maxReplicas)")
        .message("via Replicas needs maxReplicas").field_path(".maxReplicas")
)]
pub struct ScaleSpec {
    /// Metrics: an HPA or KEDA reads our metrics, and we write nothing. Replicas: we apply `/scale`, without force, and only
    /// where no autoscaler and no other manager owns the replicas.
    #[serde(default)]
    pub via: ScaleVia,
    /// Replicas to add each time.
    #[serde(default = "default_one")]
    #[schemars(range(min = 1, max = 100))]
    pub step: i32,
    /// Never more replicas than this; needed with via Replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub max_replicas: Option<i32>,
}

impl Default for ScaleSpec {
    fn default() -> Self {
        Self { via: ScaleVia::default(), step: default_one(), max_replicas: None }
    }
}

/// See [`ScaleSpec::via`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ScaleVia {
    /// By an autoscaler that reads our metrics.
    #[default]
    Metrics,
    /// By us.
    Replicas,
}

/// How a suspended workload goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SuspendWorkloadSpec {
    /// AfterCooldown: we let it go on when its cool-down ends. Manual: its owner does.
    #[serde(default)]
    pub resume: ResumeWhen,
}

/// See [`SuspendWorkloadSpec::resume`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ResumeWhen {
    /// By us, when its cool-down ends.
    #[default]
    AfterCooldown,
    /// By its owner.
    Manual,
}

/// How far a container may grow. It takes effect through action LimitGrowth.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    cel,
    validation = Rule::new("has(self.ceiling) || has(self.maxPerMinute)")
        .message("give ceiling, maxPerMinute or both")
)]
pub struct GrowthLimitSpec {
    /// Never beyond this: a size such as 40Gi, or a share of the device such as 50%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 20), regex(pattern = r"^([0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?|[1-9][0-9]?%|100%)$"))]
    pub ceiling: Option<String>,
    /// Never faster than this much a minute, e.g. 512Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 20), regex(pattern = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$"))]
    pub max_per_minute: Option<String>,
    /// Advise says where the limit would be. Cooperative asks the hook in the process. Kernel has the driver refuse
    /// allocations beyond it (NVIDIA driver 615 or later).
    #[serde(default)]
    pub enforcement: Enforcement,
}

/// See [`GrowthLimitSpec::enforcement`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Enforcement {
    /// Say where the limit would be.
    #[default]
    Advise,
    /// The hook in the process obeys.
    Cooperative,
    /// The driver enforces.
    Kernel,
}

/// See [`ActionSpec::action`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum ActionType {
    /// Events on pod, owner and policy.
    Notify,
    /// A limit to growth.
    LimitGrowth,
    /// More replicas.
    Scale,
    /// A request to save work.
    Checkpoint,
    /// GPU memory moved to host memory.
    SuspendToHost,
    /// The Job suspended.
    SuspendWorkload,
    /// The Eviction API.
    Evict,
}

/// Restraint of one policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DisruptionSpec {
    /// Pods this policy may have in disruption at once, until their replacements are Ready.
    #[serde(default = "default_one")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_concurrent: i32,

    /// Pods this policy may disrupt within any hour.
    #[serde(default = "default_two")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_per_hour: i32,

    /// Ready pods of the workload that must remain after an action, besides any PodDisruptionBudget. A workload with one
    /// replica is acted on only where this is 0.
    #[serde(default = "default_one")]
    #[schemars(range(min = 0, max = 1000))]
    pub min_available: i32,

    /// Act only on pods that exactly one PodDisruptionBudget covers.
    #[serde(default = "default_true")]
    pub require_budget: bool,

    /// Rest for a workload after an action, in seconds. It doubles with each further action within 24 hours, up to six
    /// hours.
    #[serde(default = "default_cooldown")]
    #[schemars(range(min = 10, max = 21_600))]
    pub cooldown_seconds: i32,

    /// Actions on one workload within 24 hours; then the policy stops and reports ActionsEffective: False.
    #[serde(default = "default_three")]
    #[schemars(range(min = 1, max = 20))]
    pub max_attempts: i32,

    /// Kinds of pods never acted on. Removing an entry is a decision: what DaemonSets or the kubelet own, and pods without
    /// a controller, stay protected whatever stands here.
    #[serde(default = "default_protect")]
    #[schemars(length(max = 8))]
    pub protect: Vec<ProtectedKind>,
}

impl Default for DisruptionSpec {
    fn default() -> Self {
        Self {
            max_concurrent: default_one(),
            max_per_hour: default_two(),
            min_available: default_one(),
            require_budget: default_true(),
            cooldown_seconds: default_cooldown(),
            max_attempts: default_three(),
            protect: default_protect(),
        }
    }
}

/// See [`DisruptionSpec::protect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum ProtectedKind {
    /// Pods of system priority classes, and all of kube-system.
    SystemCritical,
    /// Pods of a DaemonSet.
    DaemonSet,
    /// Pods without a controller.
    BarePod,
    /// The head of a RayCluster.
    RayHead,
    /// Pods of a Job whose podFailurePolicy does not ignore disruptions.
    JobWithoutDisruptionPolicy,
}

/// What the controller found and did. Bounded: details are in metrics and Events.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuMemoryPolicyStatus {
    /// Generation of the spec this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Ready, TargetsResolved, DataFresh, AtRisk, ActionAllowed, ActionsEffective. Each reason says why something happened
    /// or did not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,

    /// What the policy governs now.
    #[serde(default)]
    pub targets: TargetCounts,

    /// The 20 workloads most at risk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub workloads: Vec<WorkloadStatus>,

    /// The ten newest actions, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub recent_actions: Vec<ActionRecord>,
}

/// What a policy governs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetCounts {
    /// Pods with GPU memory.
    pub pods: i32,
    /// Workloads they belong to.
    pub workloads: i32,
    /// Pods at or over the act level.
    pub at_risk: i32,
}

/// One workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadStatus {
    /// Which workload.
    #[serde(rename = "ref")]
    pub workload: WorkloadRef,
    /// Its worst container.
    pub risk: Risk,
    /// Pod of that container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Name of that container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Median time to its OOM in seconds, rounded; absent when none is expected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_to_oom: Option<i64>,
    /// Why, in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// A workload, or a pod without one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadRef {
    /// API version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

/// Level of risk of a container under this policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Risk {
    /// No forecast; the reason says why.
    Unknown,
    /// No OOM expected within the horizon.
    Low,
    /// Between the clear and the act level, or over it for too short a time.
    Elevated,
    /// Over the act level for long enough.
    High,
}

/// One action and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActionRecord {
    /// Id of the intent it was recorded under before the call.
    pub id: String,
    /// What was done.
    #[serde(rename = "type")]
    pub action: ActionType,
    /// When, RFC 3339.
    pub time: String,
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// Workload of the pod.
    pub workload: String,
    /// Succeeded, DryRun (it would be done), Resumed (a suspended workload goes on), TakenBack (a request for a checkpoint),
    /// ReplicasOwnedByOther, BlockedByBudget, BudgetNotObserved, SeveralBudgets, BudgetInvalid,
    /// Throttled, NotPermitted, Rejected, Replaced, Gone, Unclear, Withdrawn (something changed before the call), FoundDone
    /// (the answer was lost, the pod is gone) or Abandoned (recorded, never carried out).
    pub outcome: String,
    /// What was seen, what was done, and why it came out so.
    pub message: String,
    /// True where the call was made with dryRun=All.
    pub dry_run: bool,
    /// Memory of the container when it was decided, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<i64>,
    /// How long the container had run by then, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<i64>,
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
const fn default_act() -> Threshold {
    Threshold { probability_percent: 80, for_seconds: 120 }
}
const fn default_clear() -> Threshold {
    Threshold { probability_percent: 50, for_seconds: 300 }
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
const fn default_checkpoint_timeout() -> i32 {
    600
}
const fn default_one() -> i32 {
    1
}
const fn default_two() -> i32 {
    2
}
const fn default_three() -> i32 {
    3
}
const fn default_true() -> bool {
    true
}
const fn default_cooldown() -> i32 {
    900
}
fn default_protect() -> Vec<ProtectedKind> {
    use ProtectedKind::{BarePod, DaemonSet, JobWithoutDisruptionPolicy, RayHead, SystemCritical};
    vec![SystemCritical, DaemonSet, BarePod, RayHead, JobWithoutDisruptionPolicy]
}

/// `maxLength` of keys and values keeps the cost of CEL's comparison bounded.
fn label_map(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": { "type": "string", "maxLength": 63 }
    })
}

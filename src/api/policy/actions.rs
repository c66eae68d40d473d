//! What may be done, and how.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// Advise says where the limit would be. Kernel has the driver refuse allocations beyond it (NVIDIA driver 615 or
    /// later).
    #[serde(default)]
    pub enforcement: Enforcement,
}

/// See [`GrowthLimitSpec::enforcement`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Enforcement {
    /// Say where the limit would be.
    #[default]
    Advise,
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

const fn default_checkpoint_timeout() -> i32 {
    600
}
const fn default_one() -> i32 {
    1
}

//! What the controller writes into a policy.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ActionType;

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

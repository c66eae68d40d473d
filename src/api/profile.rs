//! `GpuMemoryProfile`: what the controller remembers of one workload, so that a new pod, a new leader or a new attempt
//! starts with knowledge. Written by the controller, read by people. docs/profile.md says how to read one.

#![allow(clippy::duplicated_attributes, reason = "columns of the CRD repeat their type")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::policy::{ActionRecord, WorkloadRef};

/// Condition: the workload dies of OOM at the same peak again and again.
pub const RESTART_LOOP: &str = "RestartLoop";
/// OOMs kept.
pub const MAX_OOMS: usize = 20;
/// Containers whose peaks are kept.
pub const MAX_PEAKS: usize = 20;
/// Lines of advice kept.
pub const MAX_ADVICE: usize = 3;

/// Which workload this is the memory of.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "gpumem.dev",
    version = "v1alpha1",
    kind = "GpuMemoryProfile",
    plural = "gpumemoryprofiles",
    shortname = "gmprofile",
    category = "gpu",
    namespaced,
    status = "GpuMemoryProfileStatus",
    doc = "What the controller remembers of one workload: peaks, out-of-memory deaths, actions and when the next may be. Written by the controller; deleting it makes the controller forget.",
    derive = "PartialEq",
    printcolumn(json_path = ".spec.workload.kind", name = "Kind", type_ = "string"),
    printcolumn(json_path = ".spec.workload.name", name = "Workload", type_ = "string"),
    printcolumn(json_path = ".status.oomCount", name = "OOMs", type_ = "integer"),
    printcolumn(json_path = ".status.conditions[?(@.type=='RestartLoop')].status", name = "Loop", type_ = "string"),
    printcolumn(json_path = ".status.attempts", name = "Attempts", type_ = "integer"),
    printcolumn(json_path = ".status.nextAllowedTime", name = "Next", type_ = "string"),
    printcolumn(json_path = ".metadata.creationTimestamp", name = "Age", type_ = "date")
)]
#[serde(rename_all = "camelCase")]
pub struct GpuMemoryProfileSpec {
    /// The workload.
    pub workload: WorkloadRef,
}

/// What is remembered.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuMemoryProfileStatus {
    /// Actions within the last 24 hours that disrupted a pod.
    #[serde(default)]
    pub attempts: i32,
    /// No action on this workload before this moment, RFC 3339; absent when none is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_allowed_time: Option<String>,
    /// Highest memory one container of it was seen to use, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<i64>,
    /// The 20 newest actions, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub actions: Vec<ActionRecord>,
    /// What each container usually reaches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub peaks: Vec<PeakRecord>,
    /// GPU out-of-memory deaths of all its pods so far.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub oom_count: i64,
    /// The 20 newest of them, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub ooms: Vec<OomRecord>,
    /// RestartLoop: whether it dies at the same peak again and again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
    /// How much memory its hungriest container should be given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recommendation: Option<Recommendation>,
    /// What to change, the first to try first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3))]
    pub advice: Vec<String>,
    /// Warnings that are not judged yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub warnings: Vec<WarningRecord>,
    /// Warnings that were judged, by outcome: Hit, Early, FalseAlarm, Missed, Avoided, Unknown.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub judged: BTreeMap<String, i32>,
    /// Since when nobody has found the workload, RFC 3339; absent while it is there. The profile goes some days later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone_since: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(count: &i64) -> bool {
    *count == 0
}

/// What one container usually reaches on one device, over all pods of the workload. An hour gives one value, which weighs
/// half as much a week later.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PeakRecord {
    /// The container.
    pub container: String,
    /// Half of the hours stayed at or below this, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_bytes: Option<i64>,
    /// 95 % of the hours stayed at or below this, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p95_bytes: Option<i64>,
    /// The highest of all, in bytes.
    pub max_bytes: i64,
    /// When that was seen, RFC 3339.
    pub max_time: String,
    /// The moment that the weights refer to, RFC 3339.
    pub reference_time: String,
    /// The histogram: weight by bucket, in thousandths. Bucket n ends at 64 MiB times 1.05 to the n.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, i64>,
}

/// One GPU out-of-memory death.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OomRecord {
    /// When the container ended, as the kubelet wrote it, RFC 3339.
    pub time: String,
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// The container.
    pub container: String,
    /// What it held on its fullest device, in bytes; absent where nobody saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<i64>,
    /// What could be filled there, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<i64>,
    /// What it asked for in vain, in bytes; absent where its message does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_bytes: Option<i64>,
    /// The policy's growth limit that it ran into, in bytes; absent where the device was what it ran out of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<i64>,
    /// Who printed the message, e.g. PyTorch.
    pub framework: String,
    /// Which known message it is.
    pub shape: String,
    /// DeviceFull, SelfImposedLimit, StartupDoesNotFit or Probable.
    pub kind: String,
    /// The line that tells of it.
    pub evidence: String,
}

/// A size to ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Recommendation {
    /// The container it is for.
    pub container: String,
    /// Memory on one device, in bytes.
    pub bytes: i64,
    /// What it follows from.
    pub basis: String,
}

/// A warning that is not judged yet: it must survive a restart of the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WarningRecord {
    /// UID of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// The container.
    pub container: String,
    /// When its risk became High, RFC 3339.
    pub since: String,
    /// Horizon of the policy that raised it.
    pub horizon_seconds: i64,
    /// When the risk cleared, RFC 3339; absent while it is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleared_time: Option<String>,
    /// Whether something was done about the pod since.
    #[serde(default)]
    pub acted: bool,
}

//! `GpuMemoryProfile`: what the controller remembers of one workload, so that a new pod, a new leader or a new attempt
//! starts with knowledge. Written by the controller, read by people.

#![allow(clippy::duplicated_attributes, reason = "columns of the CRD repeat their type")]

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::policy::{ActionRecord, WorkloadRef};

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
    doc = "What the controller remembers of one workload: peaks, actions and when the next may be. Written by the controller; deleting it makes the controller forget.",
    derive = "PartialEq",
    printcolumn(json_path = ".spec.workload.kind", name = "Kind", type_ = "string"),
    printcolumn(json_path = ".spec.workload.name", name = "Workload", type_ = "string"),
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
}

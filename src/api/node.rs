//! `GpuMemoryNode`: what should hold on one node, and what its agent read back. Written by the controller; the agent reads
//! it, applies it and reports, and never writes. It is the ledger too: only what stands here, with cgroup and boot, is ever
//! cleared.

#![allow(clippy::duplicated_attributes, reason = "columns of the CRD repeat their type")]

use gpumem_engine::identity::{DeviceKey, DeviceUuid, MigInstance};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most entries of one node: eight GPUs with thirty-two containers each.
pub const MAX_ENTRIES: usize = 256;
/// In `device` of a freeze: a process is frozen with all of its devices.
pub const ALL_DEVICES: &str = "all";

/// What should hold on the node that this object bears the name of.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "gpumem.dev",
    version = "v1alpha1",
    kind = "GpuMemoryNode",
    plural = "gpumemorynodes",
    shortname = "gmnode",
    category = "gpu",
    status = "GpuMemoryNodeStatus",
    doc = "Limits and freezes that should hold on one node, and what its agent read back. Written by the controller; exists only where something is to hold.",
    derive = "PartialEq",
    printcolumn(json_path = ".status.desired", name = "Desired", type_ = "integer"),
    printcolumn(json_path = ".status.applied", name = "Applied", type_ = "integer"),
    printcolumn(
        json_path = ".status.conditions[?(@.type=='LimitPending')].status",
        name = "Pending",
        type_ = "string"
    ),
    printcolumn(
        json_path = ".status.conditions[?(@.type=='LimitUnsupported')].status",
        name = "Unsupported",
        type_ = "string"
    ),
    printcolumn(json_path = ".metadata.creationTimestamp", name = "Age", type_ = "date")
)]
#[serde(rename_all = "camelCase")]
pub struct GpuMemoryNodeSpec {
    /// true: the agent clears all limits of ours and resumes all it froze, whatever is listed. Set by the uninstallation;
    /// an administrator may set it as a brake for one node, and removes it again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub release: bool,

    /// What should hold, by container and device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["containerID".to_owned(), "device".to_owned()]))]
    pub limits: Vec<LimitEntry>,

    /// When the controller wrote it last, RFC 3339. It is there so that a spec without limits is still one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub written: Option<String>,
}

/// One container on one device: a limit in bytes, or a freeze.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    cel,
    validation = Rule::new("has(self.bytes) != has(self.freeze)").message("give bytes or freeze")
)]
pub struct LimitEntry {
    /// UID of the pod.
    #[serde(rename = "podUID")]
    #[schemars(length(min = 1, max = 64))]
    pub pod_uid: String,
    /// Namespace of the pod, for people.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// Name of the pod, for people.
    #[schemars(length(max = 253))]
    pub pod: String,
    /// The runtime's id of the container's instance: a restarted container is another one.
    #[serde(rename = "containerID")]
    #[schemars(length(min = 1, max = 128))]
    pub container_id: String,
    /// UUID of the device, `GPU-…` or `GPU-…/gi<n>` for a MIG slice; `all` for a freeze.
    #[schemars(length(min = 1, max = 128))]
    pub device: String,
    /// The container may hold this much there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub bytes: Option<i64>,
    /// Its processes are frozen and their GPU memory is moved to host memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freeze: Option<FreezeSpec>,
    /// The policy that asks for it, `namespace/name`.
    #[schemars(length(max = 320))]
    pub policy: String,
    /// Why, in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub reason: String,
    /// The agent clears it at this moment unless it was renewed, RFC 3339.
    #[schemars(length(max = 40))]
    pub expires: String,
}

/// How a container is frozen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FreezeSpec {
    /// How long the driver may wait for the container's work on the GPU to end, in seconds.
    #[serde(default = "default_lock")]
    #[schemars(range(min = 1, max = 120))]
    pub lock_seconds: i32,
    /// Free host memory that its pod has, in bytes, as the controller knows it; the agent looks at the cgroup itself too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub host_bytes: Option<i64>,
}

const fn default_lock() -> i32 {
    10
}

/// What the agent read back.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuMemoryNodeStatus {
    /// Entries that should hold.
    #[serde(default)]
    pub desired: i32,
    /// Entries that do.
    #[serde(default)]
    pub applied: i32,
    /// LimitApplied, LimitPending, LimitUnsupported, LimitDrift; and CanLimit and CanSuspend: what the node's agent is able to
    /// do, where the chart asks for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
    /// One entry for each of the spec, and for what is still to be cleared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["containerID".to_owned(), "device".to_owned()]))]
    pub limits: Vec<LimitStatus>,
}

/// What holds of one entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LimitStatus {
    /// UID of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// The container's instance.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The device, as in the spec.
    pub device: String,
    /// What should hold, in bytes; absent for a freeze and for what is to be cleared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<i64>,
    /// What was read back, in bytes; absent where nothing holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<i64>,
    /// What holds it: `nvml-cgroup`, `cuda-checkpoint`, either with ` (simulated)`, or `none`.
    #[schemars(length(max = 64))]
    pub backend: String,
    /// How it stands.
    pub state: LimitPhase,
    /// Why, in one sentence.
    #[schemars(length(max = 512))]
    pub reason: String,
    /// The cgroup it was set on, below the mount point.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub cgroup: String,
    /// The boot it was set in.
    #[serde(default, rename = "bootId", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub boot_id: String,
}

/// How one entry stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum LimitPhase {
    /// It was read back as asked for.
    Applied,
    /// On its way: a limit that comes down as use falls, a freeze under way.
    Pending,
    /// It cannot hold here; the reason says why.
    Unsupported,
    /// What was read back is not what was set.
    Drift,
    /// The container is frozen, its GPU memory in host memory.
    Frozen,
    /// The agent refuses or gave up; the reason says why.
    Refused,
    /// It is cleared.
    Cleared,
}

impl LimitEntry {
    /// True once its time is over. One whose moment cannot be read is over too: nothing holds by a mistake.
    pub fn is_expired(&self, now: jiff::Timestamp) -> bool {
        self.expires.parse::<jiff::Timestamp>().is_ok_and(|expires| expires <= now)
            || self.expires.parse::<jiff::Timestamp>().is_err()
    }

    /// What tells it from all others.
    pub fn key(&self) -> (&str, &str) {
        (&self.container_id, &self.device)
    }
}

impl LimitStatus {
    /// What tells it from all others.
    pub fn key(&self) -> (&str, &str) {
        (&self.container_id, &self.device)
    }
}

/// A device as it is written in an entry, read back; `None` for `all` and for nonsense.
pub fn device_of(text: &str) -> Option<DeviceKey> {
    let (gpu, mig) = match text.split_once("/gi") {
        Some((gpu, instance)) => (gpu, Some(MigInstance { gpu_instance: instance.parse().ok()? })),
        None => (text, None),
    };
    (!gpu.is_empty() && text != ALL_DEVICES).then(|| DeviceKey { gpu: DeviceUuid::from(gpu.to_owned()), mig })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(expires: &str) -> LimitEntry {
        serde_json::from_value(serde_json::json!({
            "podUID": "u", "namespace": "n", "pod": "p", "containerID": "c", "device": "GPU-1", "bytes": 1,
            "policy": "n/p", "expires": expires,
        }))
        .expect("an entry")
    }

    #[test]
    fn a_device_reads_back_as_it_is_written() {
        for text in ["GPU-1234", "GPU-1234/gi3"] {
            assert_eq!(device_of(text).map(|device| device.to_string()).as_deref(), Some(text));
        }
        for nonsense in ["", "all", "/gi3", "GPU-1/gi", "GPU-1/gix"] {
            assert_eq!(device_of(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn an_entry_ends_at_its_moment_and_one_without_a_moment_at_once() {
        let now: jiff::Timestamp = "2026-11-29T12:00:00Z".parse().expect("a moment");
        assert!(!entry("2026-11-29T12:00:01Z").is_expired(now));
        assert!(entry("2026-11-29T12:00:00Z").is_expired(now));
        assert!(entry("soon").is_expired(now) && entry("").is_expired(now));
    }
}

//! `GET /v1/usage?since=<epoch>.<seq>`: what an agent tells the controller.
//!
//! An answer holds, for every container on every device of the node, the samples later than the cursor, or the whole state
//! of the series when the agent does not know the cursor (its restart, or a gap longer than its raw ring). All moments are
//! on the node's monotonic clock; the answer carries that clock's `now`, so a reader computes ages without any wall clock.
//! After an agent's restart the moments go on (same boot), so a reader's series continues with a gap; a reboot shows in
//! `boot_id`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use gpumem_engine::identity::{ContainerId, DeviceKey, PodUid};
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::sample::DeviceMemory;
use gpumem_engine::series::{Point, Segment, Series};
use gpumem_engine::usage::Attribution;
use serde::{Deserialize, Serialize};

use super::node::LimitPhase;

/// Path of the answer.
pub const PATH: &str = "/v1/usage";
/// Version of the wire format; a reader refuses others.
pub const FORMAT: u32 = 1;

/// Where a reader stands: the agent's run and the last sample it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Drawn at random when the agent starts.
    pub epoch: u64,
    /// Number of the last sample cycle included.
    pub seq: u64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.seq)
    }
}

impl FromStr for Cursor {
    type Err = CursorError;
    fn from_str(text: &str) -> Result<Self, CursorError> {
        let (epoch, seq) = text.split_once('.').ok_or(CursorError)?;
        Ok(Self { epoch: epoch.parse().map_err(|_| CursorError)?, seq: seq.parse().map_err(|_| CursorError)? })
    }
}

/// A cursor that is not `<epoch>.<seq>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a cursor is written <epoch>.<seq>, two decimal numbers")]
pub struct CursorError;

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UsageReport {
    /// [`FORMAT`].
    pub format: u32,
    /// Version of the agent, for people.
    pub agent_version: String,
    /// Name of the node, as the agent was told by the downward API.
    pub node: String,
    /// `/proc/sys/kernel/random/boot_id`: moments of different boots do not compare.
    pub boot_id: String,
    /// Give this back as `since`.
    pub cursor: Cursor,
    /// The monotonic clock when the answer was written.
    pub now: Moment,
    /// Sampling interval in milliseconds.
    pub interval_ms: u64,
    /// True where the driver is simulated.
    pub simulated: bool,
    /// State of NVML on the node.
    pub nvml: NvmlState,
    /// Every device of the newest sample.
    pub devices: Vec<DeviceReport>,
    /// Every pod that has a series in `series`, and those of which the API said something new since the cursor.
    pub pods: Vec<PodReport>,
    /// One entry for each container on each device that holds memory, or held some after the cursor.
    pub series: Vec<SeriesReport>,
    /// What the agent was asked to hold, as it read it back; empty where it may hold nothing.
    #[serde(default)]
    pub limits: Vec<LimitReport>,
    /// What the agent could hold, whether or not it is asked to.
    #[serde(default)]
    pub abilities: Abilities,
    /// What hooked containers say of their own allocators now; empty from agents that do not read hooks.
    #[serde(default)]
    pub hooks: Vec<HookReport>,
    /// Every pod that is bound to the node, holds no GPU memory yet, and declares its job or asks for a GPU; at most
    /// [`MAX_WAITING`]. Empty from agents that do not tell.
    #[serde(default)]
    pub waiting: Vec<WaitingReport>,
}

/// Most pods that wait on one node: far more than its GPUs can take.
pub const MAX_WAITING: usize = 64;
/// Longest text of the annotation that declares a job, in bytes: a `config.json` is one to three thousand.
pub const MAX_WORKLOAD: usize = 8192;

/// A pod before its containers hold any GPU memory: its image is pulled, its init containers run, or it loads from disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingReport {
    /// The pod.
    pub pod: PodReport,
    /// The GPUs it asks for; empty for one that only declares a job (DRA claims are not read).
    #[serde(default)]
    pub asks: Vec<AskReport>,
}

/// A container's request for a GPU or a part of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskReport {
    /// Name of the container in the pod's spec.
    pub container: String,
    /// The extended resource, e.g. `nvidia.com/gpu` or `nvidia.com/mig-3g.40gb`.
    pub resource: String,
}

impl AskReport {
    /// The most memory that one unit of the resource can have, where its name says so: `mig-3g.40gb` is at most 40 GiB.
    pub fn at_most(&self) -> Option<Bytes> {
        let (_, profile) = self.resource.split_once("/mig-")?;
        let (_, size) = profile.split_once('.')?;
        let digits = size.split_once("gb")?.0;
        digits.parse().ok().filter(|gib| *gib <= 4096).map(Bytes::gib)
    }
}

/// State of NVML on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state")]
pub enum NvmlState {
    /// It answers.
    Up {
        /// Version of the driver.
        driver: String,
    },
    /// There is none on this node; proven, not guessed.
    Absent {
        /// What was tried.
        reason: String,
    },
    /// It should be there and fails; the agent keeps trying.
    Down {
        /// The last error.
        reason: String,
    },
}

/// What an agent could make hold on its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abilities {
    /// Limits in bytes, for policies with LimitGrowth and enforcement Kernel.
    pub limits: Ability,
    /// Moving a container to host memory, for policies with SuspendToHost.
    pub suspend: Ability,
}

/// Whether one of them works. Found out when the agent starts, and again each minute where it does not work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state")]
pub enum Ability {
    /// The chart does not ask for it, or the agent is older than this field.
    #[default]
    Off,
    /// It was tried where that is possible without touching a container, and works.
    Works {
        /// By what, and on which devices where not on all.
        by: String,
    },
    /// It was tried and does not work.
    Fails {
        /// Why.
        reason: String,
    },
}

/// A device in its newest sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Which device.
    pub device: DeviceKey,
    /// NVML's index of the GPU.
    pub index: u32,
    /// Product name.
    pub model: String,
    /// When it was read.
    pub at: Moment,
    /// Its memory; `None` when the query failed or is not supported.
    pub memory: Option<DeviceMemory>,
    /// Used by nobody we can name; `None` while `memory` is.
    pub unattributed: Option<Bytes>,
    /// How far the split can be trusted.
    pub attribution: Attribution,
}

/// A pod as the agent's own watch shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodReport {
    /// UID.
    pub uid: PodUid,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations of our own group only.
    pub annotations: BTreeMap<String, String>,
    /// The owner reference with `controller: true`.
    pub owner: Option<OwnerReport>,
    /// True once a deletion timestamp is set.
    pub terminating: bool,
    /// How its containers ended last, as the kubelet wrote it down; two for each container at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ends: Vec<EndReport>,
}

/// The end of one run of a container, from the pod's status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndReport {
    /// Name of the container in the pod's spec.
    pub container: String,
    /// The instance that ended; empty where the kubelet does not say.
    #[serde(default)]
    pub container_id: String,
    /// Exit code; 128 and the signal's number for a signal.
    pub exit_code: i32,
    /// The kubelet's word for it: `Error`, `Completed`, `OOMKilled` (host memory), ….
    #[serde(default)]
    pub reason: String,
    /// When, RFC 3339 by the node's wall clock. With pod and container it names this end among all others.
    pub finished_at: String,
    /// The end of the termination message, at most [`MAX_END_MESSAGE`] bytes. The kubelet fills it with the log's last
    /// lines where `terminationMessagePolicy` is `FallbackToLogsOnError`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// False where the container runs again, or is about to.
    #[serde(default)]
    pub is_current: bool,
}

/// Longest [`EndReport::message`], in bytes.
pub const MAX_END_MESSAGE: usize = 2048;

/// Controller of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerReport {
    /// API version, e.g. `apps/v1`.
    pub api_version: String,
    /// Kind, e.g. `ReplicaSet`.
    pub kind: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

/// One container on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeriesReport {
    /// Which device.
    pub device: DeviceKey,
    /// Which pod.
    pub pod: PodUid,
    /// Name of the container in the pod's spec.
    pub container: String,
    /// Its current instance.
    pub container_id: ContainerId,
    /// The news.
    pub data: SeriesData,
}

/// A limit or a freeze of one container, as the agent read it back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitReport {
    /// Which pod.
    pub pod: PodUid,
    /// Which instance of which container.
    pub container_id: ContainerId,
    /// The device as the entry names it.
    pub device: String,
    /// What should hold; `None` for a freeze, and for what is to be cleared.
    pub desired: Option<Bytes>,
    /// What was read back; `None` where nothing holds.
    pub applied: Option<Bytes>,
    /// What holds it, e.g. `nvml-cgroup`.
    pub backend: String,
    /// How it stands.
    pub state: LimitPhase,
    /// Why, in one sentence.
    pub reason: String,
    /// The cgroup it was set on, below the mount point.
    #[serde(default)]
    pub cgroup: String,
}

/// What the hook in a container says of its framework's allocator on a device: the container's own word, to 64 KiB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookReport {
    /// Which device.
    pub device: DeviceKey,
    /// Which pod.
    pub pod: PodUid,
    /// Name of the container in the pod's spec.
    pub container: String,
    /// Its current instance.
    pub container_id: ContainerId,
    /// Live memory; `None` while one of its processes does not say.
    pub allocated: Option<Bytes>,
    /// Live and cached memory; `None` while one of its processes does not say.
    pub reserved: Option<Bytes>,
    /// Out-of-memory failures of the processes that run now, also those they survived; 31 and more of one process count as 31.
    pub ooms: u32,
    /// Processes whose hook speaks.
    pub hooked: u32,
    /// Processes of the container that hold memory on the device.
    pub processes: u32,
}

impl HookReport {
    /// Share of what the allocator holds that is not live: cached, or in pieces too small to use. `None` while unknown.
    pub fn fragmentation(&self) -> Option<f64> {
        let (allocated, reserved) = (self.allocated?, self.reserved?);
        (reserved > Bytes::ZERO && allocated <= reserved).then(|| 1.0 - allocated.as_f64() / reserved.as_f64())
    }
}

/// Samples since the cursor, or everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SeriesData {
    /// The samples later than the cursor, oldest first; empty when there was none.
    Samples {
        /// Their segment.
        segment: Segment,
        /// The samples.
        points: Vec<Point>,
    },
    /// The whole series.
    State(Box<Series>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragmentation_is_the_share_that_is_not_live_and_unknown_stays_unknown() {
        let mut hook = HookReport {
            device: DeviceKey::whole("GPU-1"),
            pod: "uid".into(),
            container: "main".into(),
            container_id: "id".into(),
            allocated: Some(Bytes::gib(3)),
            reserved: Some(Bytes::gib(4)),
            ooms: 0,
            hooked: 1,
            processes: 1,
        };
        assert_eq!(hook.fragmentation(), Some(0.25));
        (hook.allocated, hook.reserved) = (Some(Bytes::ZERO), Some(Bytes::ZERO));
        assert_eq!(hook.fragmentation(), None);
        hook.reserved = None;
        assert_eq!(hook.fragmentation(), None);
    }

    #[test]
    fn a_slice_of_a_gpu_is_at_most_as_large_as_its_name_says() {
        let most = |resource: &str| AskReport { container: "main".into(), resource: resource.into() }.at_most();
        assert_eq!(most("nvidia.com/mig-3g.40gb"), Some(Bytes::gib(40)));
        assert_eq!(most("nvidia.com/mig-1g.10gb.me"), Some(Bytes::gib(10)));
        for whole in ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-", "nvidia.com/mig-1g.gb", ""] {
            assert_eq!(most(whole), None, "{whole}");
        }
    }

    #[test]
    fn a_cursor_reads_back_as_written() {
        let cursor = Cursor { epoch: u64::MAX, seq: 17 };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for bad in ["", "1", "1.", ".2", "a.b", "1.2.3", "-1.2"] {
            assert_eq!(bad.parse::<Cursor>(), Err(CursorError), "{bad}");
        }
    }
}

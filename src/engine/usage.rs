//! Memory by container at one moment: the arrow from [`crate::attribution`] to the series.

use serde::{Deserialize, Serialize};

use crate::identity::{ContainerKey, DeviceKey, Pid, StartTime};
use crate::quantity::{Bytes, Moment};
use crate::sample::{DeviceMemory, QueryFailure};

/// What is known about a process beside its memory, read from `/proc` by the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The process, PID reuse excluded.
    pub started: StartTime,
    /// The container it runs in; `None` for a process of the host.
    pub container: Option<ContainerKey>,
}

/// One node's memory by container at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// When the sample was taken.
    pub at: Moment,
    /// One entry for each device of the sample, in its order.
    pub devices: Vec<DeviceUsage>,
}

/// One device's memory by container. While `memory` is known, `memory.used = sum(containers) + unattributed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceUsage {
    /// Which device.
    pub device: DeviceKey,
    /// NVML's index of the GPU.
    pub index: u32,
    /// Product name.
    pub model: String,
    /// The device's counters; `None` when the query failed or is not supported.
    pub memory: Option<DeviceMemory>,
    /// Containers with at least one process on the device, ordered by key. Empty when `attribution` is `Unavailable`.
    pub containers: Vec<ContainerUsage>,
    /// Used, but by nobody we can name: host processes, orphans, driver overhead, managed memory. `None` while `memory`
    /// is unknown.
    pub unattributed: Option<Bytes>,
    /// How far the names can be trusted.
    pub attribution: Attribution,
}

/// How far the split of a device's memory can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Attribution {
    /// Every process listed by the driver has a value and an owner, or is known to be the host's.
    Complete,
    /// Containers are right; some bytes could not be named (a process exited meanwhile, a value was withheld).
    Partial,
    /// No container may be given a value: the list failed, was cut, or is empty while memory is in use (no hostPID).
    Unavailable(AttributionGap),
}

/// Why no container was given a value: a closed set, fit for a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AttributionGap {
    /// The device or its process list could not be read.
    Query(QueryFailure),
    /// This device has no process list.
    NotSupported,
    /// The list is empty although the device is in use: the agent lacks hostPID.
    NoProcessVisible,
    /// The processes claim more than the device says is used, beyond what reading them one after the other explains.
    Inconsistent,
}

/// One container's memory on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerUsage {
    /// Which container instance.
    pub container: ContainerKey,
    /// Memory of all its processes; `None` when the driver withheld the value of one of them.
    pub used: Option<Bytes>,
    /// Its processes on this device, ordered.
    pub processes: Vec<(Pid, StartTime)>,
}

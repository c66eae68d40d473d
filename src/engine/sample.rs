//! What one node saw at one moment, before anybody is named: the arrow from NVML to [`crate::attribution`].
//!
//! A query that failed is data ([`Reading::Failed`]), never a zero: a failed query must not look like an idle GPU.

use serde::{Deserialize, Serialize};

use crate::identity::{DeviceKey, Pid};
use crate::quantity::{Bytes, Moment};

/// The answer to one driver query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reading<T> {
    /// The driver answered.
    Value(T),
    /// This device or driver cannot answer, and never will (NVML NOT_SUPPORTED).
    NotSupported,
    /// The query failed this time.
    Failed(QueryFailure),
}

impl<T> Reading<T> {
    /// The value, if the driver gave one.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::NotSupported | Self::Failed(_) => None,
        }
    }
}

/// Why a driver query failed: a closed set, fit for a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum QueryFailure {
    /// The GPU has fallen off the bus or needs a reset.
    DeviceLost,
    /// The driver refuses: device nodes or MIG rights are missing.
    NoPermission,
    /// The driver does not answer within the deadline.
    Hung,
    /// The driver was reloaded, or library and kernel module differ; NVML must be initialised anew.
    DriverGone,
    /// The process list was longer than the largest buffer: its remainder is unknown.
    Truncated,
    /// Any other error code.
    Unknown,
}

impl QueryFailure {
    /// Name for a metric label.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::DeviceLost => "device_lost",
            Self::NoPermission => "no_permission",
            Self::Hung => "hung",
            Self::DriverGone => "driver_gone",
            Self::Truncated => "truncated",
            Self::Unknown => "unknown",
        }
    }
}

/// Memory of a device. `used + free + reserved = total` when `reserved` is known (NVML v2); with NVML v1 alone `reserved`
/// is `None` and `used` includes what the driver keeps for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// All memory of the device.
    pub total: Bytes,
    /// Allocated by anybody.
    pub used: Bytes,
    /// Not allocated.
    pub free: Bytes,
    /// Kept by driver and firmware; `None` where only NVML's first version answers.
    pub reserved: Option<Bytes>,
}

impl DeviceMemory {
    /// What workloads can fill: total less the driver's own share.
    pub fn usable(&self) -> Bytes {
        self.total - self.reserved.unwrap_or_default()
    }
}

/// One line of NVML's process lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMemory {
    /// The process as the host numbers it.
    pub pid: Pid,
    /// Memory of this process on this device; `None` where the driver says "not available".
    pub used: Option<Bytes>,
}

/// One device at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSample {
    /// Which device.
    pub device: DeviceKey,
    /// NVML's index of the GPU, for people; it may change at a reboot.
    pub index: u32,
    /// Product name, and the profile of a MIG slice, e.g. `NVIDIA H200` or `NVIDIA H200 MIG 3g.71gb`.
    pub model: String,
    /// The device's own counters.
    pub memory: Reading<DeviceMemory>,
    /// All process lists of the device joined (compute, graphics, MPS), duplicates included.
    pub processes: Reading<Vec<ProcessMemory>>,
}

/// One node at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawSample {
    /// When the reading began.
    pub at: Moment,
    /// Every device found, lost ones included.
    pub devices: Vec<DeviceSample>,
}

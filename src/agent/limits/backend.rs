//! What can hold a container to a limit. One way exists today, the driver's limits by cgroup; the tests have another.

use std::path::Path;

use gpumem_engine::identity::DeviceUuid;
use gpumem_engine::quantity::Bytes;

/// Why a call failed: a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The driver, the device or the accounting has no limits, or (in the driver's own accounting) none was ever set.
    #[error("not supported")]
    NotSupported,
    /// The cgroup is gone, or its parent does not enable the controller that accounts device memory.
    #[error("the cgroup is gone, or the dmem controller is not enabled for it")]
    NotFound,
    /// Only root may.
    #[error("no permission: the agent needs uid 0")]
    NoPermission,
    /// The device or the driver is gone; it has to be opened again.
    #[error("the driver is gone")]
    Gone,
    /// Any other code of NVML.
    #[error("NVML error {0}")]
    Other(u32),
}

/// What a cgroup has on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its hard limit; `None` for none.
    pub limit: Option<Bytes>,
    /// What its processes hold.
    pub used: Bytes,
}

/// Something that holds cgroups to limits. Calls block.
pub trait Backend {
    /// Its name in reports.
    fn name(&self) -> String;
    /// True where the driver is simulated.
    fn is_simulated(&self) -> bool;
    /// What holds.
    fn get(&mut self, device: &DeviceUuid, cgroup: &Path) -> Result<Held, Failure>;
    /// Sets the hard limit, or clears it. Success says nothing: read it back.
    fn set(&mut self, device: &DeviceUuid, cgroup: &Path, limit: Option<Bytes>) -> Result<(), Failure>;
}

//! What the rest of the agent sees: the newest sample with names, immutable and shared.
//!
//! Flows in: one [`Snapshot`] a cycle from the sampler, or from the watchdog when a driver call hangs. Flows out: metrics,
//! `/v1/usage`, health. Readers never wait for the driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use gpumem_engine::identity::DeviceKey;
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::sample::{DeviceMemory, QueryFailure};
use gpumem_engine::usage::Attribution;

use crate::agent::hook::HookView;
use crate::api::usage::NvmlState;

/// A node at its newest sample.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Counts the cycles; 0 before the first.
    pub seq: u64,
    /// When the newest sample was taken; `None` before the first.
    pub at: Option<Moment>,
    /// The driver.
    pub nvml: NvmlState,
    /// Why it is not up, from a closed set; empty while it is.
    pub reason: &'static str,
    /// True where the driver is simulated.
    pub simulated: bool,
    /// Every device.
    pub devices: Vec<DeviceView>,
    /// Limits that hold, as they were read back.
    pub limits: Vec<LimitView>,
    /// What hooked containers say of their allocators.
    pub hooks: Vec<HookView>,
}

/// A limit of a container on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitView {
    /// Which device.
    pub device: DeviceKey,
    /// Namespace of the pod.
    pub namespace: Arc<str>,
    /// Name of the pod.
    pub pod: Arc<str>,
    /// Name of the container.
    pub container: Arc<str>,
    /// How much it may hold.
    pub limit: Bytes,
}

/// A device at its newest sample.
#[derive(Clone, Debug)]
pub struct DeviceView {
    /// Which device.
    pub key: DeviceKey,
    /// NVML's index of the GPU.
    pub index: u32,
    /// Product name.
    pub model: String,
    /// When it was read.
    pub at: Moment,
    /// Why it does not answer; `None` while it does.
    pub failure: Option<QueryFailure>,
    /// Its memory.
    pub memory: Option<DeviceMemory>,
    /// Used by nobody that can be named.
    pub unattributed: Option<Bytes>,
    /// How far the split can be trusted.
    pub attribution: Attribution,
    /// Its containers.
    pub containers: Vec<ContainerView>,
}

/// A container on a device at the newest sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerView {
    /// Namespace; empty while the pod is unknown.
    pub namespace: Arc<str>,
    /// Name of the pod; its UID while the pod is unknown.
    pub pod: Arc<str>,
    /// Name of the container; the first digits of its id while that is unknown.
    pub container: Arc<str>,
    /// Its memory.
    pub used: Bytes,
    /// The most it had, as far as the agent saw.
    pub peak: Bytes,
}

/// Whether the sampler is inside the driver, and since when. Written by its thread, read by all.
#[derive(Debug, Default)]
pub struct Pulse {
    /// Milliseconds of the moment a call began; 0 while there is none.
    began: AtomicU64,
    /// Index of the GPU asked about plus one; 0 while no GPU in particular.
    device: AtomicU32,
}

// === impl Snapshot ===

impl Snapshot {
    /// Before anything is known.
    pub fn starting() -> Self {
        Self {
            seq: 0,
            at: None,
            nvml: NvmlState::Down { reason: "no sample was taken yet".to_owned() },
            reason: "starting",
            simulated: false,
            devices: Vec::new(),
            limits: Vec::new(),
            hooks: Vec::new(),
        }
    }

    /// The same moment seen while a call of the driver hangs: `device` (or all, for `None`) gives no values any more.
    pub fn hung(&self, device: Option<u32>, since: Duration) -> Self {
        let mut hung = self.clone();
        for view in hung.devices.iter_mut().filter(|view| device.is_none_or(|device| view.index == device)) {
            view.fail(QueryFailure::Hung);
        }
        // They are read after the driver answered: as old as its answer.
        hung.hooks.retain(|hook| device.is_some_and(|device| hook.index != device));
        hung.reason = QueryFailure::Hung.kind();
        hung.nvml = NvmlState::Down {
            reason: match device {
                Some(device) => format!("a call about GPU {device} has not returned for {} s", since.as_secs()),
                None => format!("the driver has not answered for {} s", since.as_secs()),
            },
        };
        hung
    }

    /// Ready, or what it waits for. A node without NVML is ready once that is proven.
    pub fn readiness(&self) -> Result<(), &str> {
        match &self.nvml {
            NvmlState::Up { .. } | NvmlState::Absent { .. } => Ok(()),
            NvmlState::Down { reason } => Err(reason),
        }
    }
}

impl DeviceView {
    /// Takes every value away.
    fn fail(&mut self, failure: QueryFailure) {
        self.failure = Some(failure);
        self.memory = None;
        self.unattributed = None;
        self.attribution = Attribution::Unavailable(gpumem_engine::usage::AttributionGap::Query(failure));
        self.containers.clear();
    }
}

// === impl Pulse ===

impl Pulse {
    /// Calls begin.
    pub fn begin(&self, now: Moment) {
        self.device.store(0, Ordering::Relaxed);
        self.began.store(now.0.max(1), Ordering::Release);
    }

    /// The next calls ask about this GPU.
    pub fn device(&self, index: u32) {
        self.device.store(index.saturating_add(1), Ordering::Relaxed);
    }

    /// Calls are over.
    pub fn end(&self) {
        self.began.store(0, Ordering::Release);
    }

    /// Since when the driver has been asked, and about which GPU.
    pub fn busy(&self) -> Option<(Moment, Option<u32>)> {
        let began = self.began.load(Ordering::Acquire);
        (began != 0).then(|| (Moment(began), self.device.load(Ordering::Relaxed).checked_sub(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(index: u32) -> DeviceView {
        DeviceView {
            key: DeviceKey::whole(format!("GPU-{index}").as_str()),
            index,
            model: "model".to_owned(),
            at: Moment(1),
            failure: None,
            memory: None,
            unattributed: Some(Bytes(1)),
            attribution: Attribution::Complete,
            containers: vec![ContainerView {
                namespace: "n".into(),
                pod: "p".into(),
                container: "c".into(),
                used: Bytes(1),
                peak: Bytes(1),
            }],
        }
    }

    #[test]
    fn a_hung_device_loses_its_values_and_the_others_keep_theirs() {
        let snapshot = Snapshot { devices: vec![device(0), device(1)], ..Snapshot::starting() };
        let hung = snapshot.hung(Some(1), Duration::from_secs(7));
        assert_eq!(hung.devices[0].containers.len(), 1);
        assert_eq!(hung.devices[1].containers.len(), 0);
        assert_eq!(hung.devices[1].failure, Some(QueryFailure::Hung));
        assert_eq!(hung.readiness(), Err("a call about GPU 1 has not returned for 7 s"));
        assert!(snapshot.hung(None, Duration::ZERO).devices.iter().all(|device| device.failure.is_some()));
    }

    #[test]
    fn the_pulse_tells_since_when_and_about_which_gpu() {
        let pulse = Pulse::default();
        assert_eq!(pulse.busy(), None);
        pulse.begin(Moment(5));
        assert_eq!(pulse.busy(), Some((Moment(5), None)));
        pulse.device(0);
        assert_eq!(pulse.busy(), Some((Moment(5), Some(0))));
        pulse.end();
        assert_eq!(pulse.busy(), None);
    }
}

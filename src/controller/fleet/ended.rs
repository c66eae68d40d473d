//! How containers with GPU memory ended, kept for an hour: a controller that begins to lead hears of what happened while
//! nobody did. Flows in: the ends in merged reports. Flows out: those of pods whose node is believed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpumem_engine::identity::{DeviceKey, PodUid};
use gpumem_engine::quantity::Bytes;

use super::node::Remains;
use crate::api::usage::{EndReport, PodReport};

/// An end is kept for so long after it was heard of first.
const KEPT: Duration = Duration::from_hours(1);
/// Ends kept at once; beyond it new ones are left out until old ones go.
const MAX: usize = 4096;

/// Names an end among all others: pod, container, and when the kubelet says it ended.
pub type EndKey = (PodUid, String, String);

/// How a container with GPU memory ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Node whose agent reported it.
    pub node: Arc<str>,
    /// Its pod.
    pub pod: Arc<PodReport>,
    /// The end.
    pub end: EndReport,
    /// The device on which it held most.
    pub device: DeviceKey,
    /// What may be filled there; `None` while the device does not tell.
    pub capacity: Option<Bytes>,
    /// Highest memory there of the run that ended; `None` where that run was not seen.
    pub peak: Option<Bytes>,
    /// Allocations that its own allocator refused, where the last came just before: gpumem's hook in it counted.
    pub refused: Option<u32>,
    /// The growth limit that held it there until just before.
    pub limit: Option<Bytes>,
}

impl Ended {
    /// See [`EndKey`].
    pub fn key(&self) -> EndKey {
        (self.pod.uid.clone(), self.end.container.clone(), self.end.finished_at.clone())
    }
}

/// The ends of the last hour.
#[derive(Debug, Default)]
pub(super) struct Ends(BTreeMap<EndKey, (Instant, Ended)>);

impl Ends {
    pub(super) fn take(
        &mut self,
        node: &Arc<str>,
        ended: Vec<(Arc<PodReport>, EndReport, Remains)>,
        received: Instant,
    ) {
        self.0.retain(|_, (at, _)| received.saturating_duration_since(*at) < KEPT);
        for (pod, end, Remains { device, capacity, peak, refused, limit }) in ended {
            let ended = Ended { node: Arc::clone(node), pod, end, device, capacity, peak, refused, limit };
            if self.0.len() < MAX {
                // What is known stays: later reports may have lost what the container held.
                self.0.entry(ended.key()).or_insert((received, ended));
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Ended> {
        self.0.values().map(|(_, ended)| ended)
    }
}

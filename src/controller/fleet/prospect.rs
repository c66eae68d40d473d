//! Pods that say what they will need, and the most they can get: compared before anything runs out. Flows in: nodes, with the
//! pods that hold memory there and those that wait. Flows out: [`Prospect`]s.

use std::sync::Arc;

use gpumem_engine::quantity::Bytes;

use super::declared::Declaration;
use super::node::{Node, Waiting};
use crate::api::usage::{AskReport, DeviceReport, NvmlState, PodReport};

/// A pod that declares its job or waits for its start, and what it can get.
#[derive(Clone, Debug, PartialEq)]
pub struct Prospect {
    /// Node whose agent reported it.
    pub node: Arc<str>,
    /// The pod.
    pub pod: Arc<PodReport>,
    /// What it declares, if it does.
    pub declaration: Option<Arc<Declaration>>,
    /// The GPUs that it asks for; empty for one that holds memory.
    pub asks: Vec<AskReport>,
    /// What it can get.
    pub room: Room,
}

/// What a pod can get on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Room {
    /// It holds memory: what may be filled of the smallest device on which it does.
    Of(Bytes),
    /// It waits: what may be filled of the largest device of its node of the kind that it asks for.
    AtMost {
        /// How much.
        usable: Bytes,
        /// NVML's index of that GPU.
        index: u32,
        /// Its product name.
        model: String,
    },
}

impl Room {
    /// The amount.
    pub const fn usable(&self) -> Bytes {
        match self {
            Self::Of(usable) | Self::AtMost { usable, .. } => *usable,
        }
    }

    /// Does it not hold any memory yet?
    pub const fn is_waiting(&self) -> bool {
        matches!(self, Self::AtMost { .. })
    }
}

/// The prospects of one node.
pub(super) fn of<'n>(name: &'n Arc<str>, node: &'n Node) -> impl Iterator<Item = Prospect> + 'n {
    let held = node.declared.iter().filter_map(move |(uid, declaration)| {
        let holds = |device: &&super::node::Device| device.tenants.keys().any(|key| key.pod == *uid);
        let usable =
            node.devices.values().filter(holds).filter_map(|device| Some(device.report.memory?.usable())).min();
        Some(Prospect {
            node: Arc::clone(name),
            pod: Arc::clone(node.pods.get(uid)?),
            declaration: Some(Arc::clone(declaration)),
            asks: Vec::new(),
            room: Room::Of(usable?),
        })
    });
    let waiting = node.waiting.iter().filter(|(uid, _)| !node.pods.contains_key(*uid));
    let waiting = waiting.filter_map(move |(uid, Waiting { pod, asks })| {
        let (usable, largest) = at_most(node, asks)?;
        Some(Prospect {
            node: Arc::clone(name),
            pod: Arc::clone(pod),
            declaration: node.declared.get(uid).cloned(),
            asks: asks.clone(),
            room: Room::AtMost { usable, index: largest.index, model: largest.model.clone() },
        })
    });
    held.chain(waiting)
}

/// What may be filled of the largest device, and which that is. `None` while any device does not tell: it might be larger.
fn at_most<'n>(node: &'n Node, asks: &[AskReport]) -> Option<(Bytes, &'n DeviceReport)> {
    if !matches!(node.nvml, NvmlState::Up { .. }) {
        return None;
    }
    let devices = node.devices.values().filter(|device| device.reported).map(|device| &device.report);
    let sizes: Option<Vec<_>> = devices.map(|report| Some((report.memory?.usable(), report))).collect();
    let (usable, report) = sizes?.into_iter().max_by_key(|(usable, _)| *usable)?;
    // A part of a GPU is no larger than its name says; a whole GPU beside it may be.
    let named: Option<Vec<Bytes>> = asks.iter().map(AskReport::at_most).collect();
    let part = named.and_then(|named| named.into_iter().max());
    Some((part.map_or(usable, |part| part.min(usable)), report))
}

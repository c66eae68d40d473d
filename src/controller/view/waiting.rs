//! Pods before they hold any GPU memory: whether what they declare can fit, and what to change. Flows in: a prospect. Flows
//! out: its view.

use gpumem_engine::estimate::declared::Declared;
use gpumem_engine::estimate::fit::{Verdict, verdict};
use gpumem_engine::quantity::Bytes;

use super::{advice, declared_view};
use crate::api::view::{ContainerView, Level, NOT_STARTED, Named};
use crate::controller::fleet::{Prospect, Room};

/// A pod that waits; `None` for one that holds memory.
pub(super) fn container(prospect: &Prospect) -> Option<ContainerView> {
    let Prospect { node, pod, declaration, asks, room } = prospect;
    let Room::AtMost { usable, index, model } = room else { return None };
    let declared = declaration.as_ref().and_then(|declaration| declaration.read.as_ref().ok());
    let asked = asks.first().map(|ask| format!("asks for {}; ", ask.resource)).unwrap_or_default();
    let place = format!("the largest device that it can get on node {node} has {usable}");
    let found = declared.map(|declared| (declared, verdict(&declared.needs, usable.as_f64())));
    let reason = match found {
        None => format!("it holds no GPU memory yet; {asked}{place}"),
        Some((declared, verdict)) => format!("it holds no GPU memory yet; {}, and {place}", words(declared, verdict)),
    };
    let cannot = found.is_some_and(|(_, verdict)| verdict == Verdict::DoesNotFit);
    let is_sure = found.is_some_and(|(_, verdict)| verdict == Verdict::Fits);
    Some(ContainerView {
        node: node.to_string(),
        namespace: pod.namespace.clone(),
        pod: pod.name.clone(),
        pod_uid: pod.uid.to_string(),
        container: asks.first().map(|ask| ask.container.clone()).unwrap_or_default(),
        owner: pod.owner.as_ref().map(|owner| Named { kind: owner.kind.clone(), name: owner.name.clone() }),
        gpu: *index,
        model: model.clone(),
        capacity_bytes: Some(usable.0),
        level: if cannot { Level::High } else { Level::Unknown },
        reason,
        unknown: Some(NOT_STARTED.to_owned()),
        declared: declaration.as_ref().map(|declaration| declared_view(declaration)),
        advice: if declared.is_some() && !is_sure { advice(declaration.as_deref(), Some(*usable)) } else { Vec::new() },
        ..ContainerView::default()
    })
}

fn words(declared: &Declared, verdict: Verdict) -> String {
    let [low, high] = [declared.needs.low, declared.needs.high].map(Bytes::from_f64);
    match verdict {
        Verdict::Fits => format!("its declared job fits: it needs {high} at most"),
        Verdict::Unsure => format!("its declared job may not fit: it needs {low} to {high}"),
        Verdict::DoesNotFit => format!("its declared job will not fit: it needs {low} at the very least"),
    }
}

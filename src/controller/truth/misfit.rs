//! Declared jobs that cannot fit. Flows in: what pods declare, or a policy for them, and the device they are on or the largest
//! they can get. Flows out: one Event for each pod that a policy governs, before it starts where that is known by then.

use std::sync::Arc;

use gpumem_engine::pacing::Stamp;
use gpumem_engine::quantity::Bytes;
use kube::runtime::events::Recorder;

use super::{RETRY, WRITES, governed, workload_of};
use crate::controller::context::Context;
use crate::controller::fleet::{FORGET, Prospect};
use crate::controller::now::Now;
use crate::controller::observe::{Memory, Observed};
use crate::controller::report::event::{self, Misfit, Whom};

/// A policy's declared peak may be this much too high before it is held against a device; the forecast uses the same.
const TOLERANCE: f64 = 1.05;

/// Warns once of each pod whose declared job cannot fit its device, or any of its node's.
pub(super) async fn warn(
    ctx: &Context,
    memory: &mut Memory,
    recorder: &Recorder,
    observed: &[Observed],
    now: &Now,
    until: Stamp,
) {
    let prospects = ctx.fleet().prospects();
    for prospect in &prospects {
        if let Some(seen) = memory.truth.misfits.get_mut(&prospect.pod.uid) {
            *seen = now.stamp;
        }
    }
    // An agent that restarts knows no pods for a moment.
    memory.truth.misfits.retain(|_, seen| now.stamp.since(*seen) <= FORGET);
    let cannot: Vec<Prospect> = prospects
        .into_iter()
        .filter(|prospect| {
            observed.iter().any(|one| governed::may(one, &prospect.pod) && misfit(prospect, one).is_some())
                && !memory.truth.misfits.contains_key(&prospect.pod.uid)
        })
        .take(WRITES)
        .collect();
    for prospect in cannot {
        if now.later() >= until {
            return;
        }
        let Prospect { node, pod, room, .. } = &prospect;
        if memory.confirmed(ctx, now, node, pod, RETRY).await.is_err() {
            continue;
        }
        let policy = governed::by(ctx, memory, observed, pod, now).await;
        let governing = policy.as_ref().and_then(|policy| observed.iter().find(|one| Arc::ptr_eq(&one.object, policy)));
        if let Some((one, found)) = governing.and_then(|one| Some((one, misfit(&prospect, one)?))) {
            let Some(workload) = workload_of(ctx, memory, pod, true, now).await else { continue };
            let whom = Whom { pod, node, workload: &workload, policy: Some(&*one.object) };
            event::does_not_fit(recorder, &whom, &found, room).await;
        }
        memory.truth.misfits.insert(pod.uid.clone(), now.stamp);
    }
}

/// What of a pod cannot fit: its own declaration at its lowest, or, before it starts, the peak that a policy declares for it.
fn misfit<'p>(prospect: &'p Prospect, one: &Observed) -> Option<Misfit<'p>> {
    let usable = prospect.room.usable();
    let declared = prospect.declaration.as_ref().and_then(|declaration| declaration.read.as_ref().ok());
    if let Some(declared) = declared.filter(|declared| declared.cannot_fit(usable)) {
        return Some(Misfit::Declared(declared));
    }
    let is_asked = prospect.room.is_waiting() && (declared.is_some() || !prospect.asks.is_empty());
    let peak = one.policy.as_ref().ok()?.prediction.declared_peak.filter(|_| is_asked)?;
    let least = Bytes::from_f64(peak.as_f64() / TOLERANCE);
    (least > usable).then_some(Misfit::Policy(peak))
}

//! Declared jobs that cannot fit. Flows in: what pods declare, and the device they are on. Flows out: one Event for each pod
//! that a policy governs.

use gpumem_engine::pacing::Stamp;
use kube::runtime::events::Recorder;

use super::{RETRY, WRITES, governed, workload_of};
use crate::controller::context::Context;
use crate::controller::now::Now;
use crate::controller::observe::{Memory, Observed};
use crate::controller::report::event::{self, Whom};

/// Warns once of each pod whose declared job cannot fit its device.
pub(super) async fn warn(
    ctx: &Context,
    memory: &mut Memory,
    recorder: &Recorder,
    observed: &[Observed],
    now: &Now,
    until: Stamp,
) {
    let declarations = ctx.fleet().declarations();
    memory.truth.misfits.retain(|uid| declarations.iter().any(|(pod, ..)| pod.uid == *uid));
    let cannot: Vec<_> = declarations
        .into_iter()
        .filter(|(pod, declaration, usable)| {
            observed.iter().any(|one| governed::may(one, pod))
                && declaration.read.as_ref().is_ok_and(|declared| declared.cannot_fit(*usable))
                && !memory.truth.misfits.contains(&pod.uid)
        })
        .take(WRITES)
        .collect();
    for (pod, declaration, usable) in cannot {
        if now.later() >= until {
            return;
        }
        let Some(node) = ctx.fleet().node_of(&pod.uid) else { continue };
        if memory.confirmed(ctx, now, &node, &pod, RETRY).await.is_err() {
            continue;
        }
        let Some(policy) = governed::by(ctx, memory, observed, &pod, now).await else {
            memory.truth.misfits.insert(pod.uid.clone());
            continue;
        };
        let Some(workload) = workload_of(ctx, memory, &pod, true, now).await else { continue };
        let whom = Whom { pod: &pod, node: &node, workload: &workload, policy: Some(&*policy) };
        if let Ok(declared) = &declaration.read {
            event::does_not_fit(recorder, &whom, declared, usable).await;
        }
        memory.truth.misfits.insert(pod.uid.clone());
    }
}

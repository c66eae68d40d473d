//! Declared jobs that cannot fit. Flows in: what pods declare, and the device they are on. Flows out: one Event for each pod.

use gpumem_engine::pacing::Stamp;
use kube::runtime::events::Recorder;

use super::{RETRY, WRITES, object, workload_of};
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
            declaration.read.as_ref().is_ok_and(|declared| declared.cannot_fit(*usable))
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
        let Some(workload) = workload_of(ctx, memory, &pod, true, now).await else { continue };
        let governed = memory.truth.governed.iter().find(|((uid, _), _)| *uid == pod.uid);
        let policy = governed.and_then(|(_, governed)| object(observed, &governed.policy));
        let whom = Whom { pod: &pod, node: &node, workload: &workload, policy };
        if let Ok(declared) = &declaration.read {
            event::does_not_fit(recorder, &whom, declared, usable).await;
        }
        memory.truth.misfits.insert(pod.uid.clone());
    }
}

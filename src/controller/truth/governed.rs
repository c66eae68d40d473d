//! Whether anybody asked for anything to be written about a pod.

use std::sync::Arc;

use gpumem_engine::oom::Death;
use gpumem_engine::pacing::Stamp;
use tracing::info;

use super::{NEWS, death};
use crate::api::policy::GpuMemoryPolicy;
use crate::api::usage::PodReport;
use crate::controller::context::Context;
use crate::controller::fleet::Ended;
use crate::controller::now::Now;
use crate::controller::observe::{Memory, Observed, Selection};

/// The policy that governs a pod, or that selects one which holds nothing any more.
pub(super) async fn by(
    ctx: &Context,
    memory: &mut Memory,
    observed: &[Observed],
    pod: &PodReport,
    now: &Now,
) -> Option<Arc<GpuMemoryPolicy>> {
    let mut known = memory.truth.governed.iter().filter(|((uid, _), _)| *uid == pod.uid);
    let known = known.find_map(|(_, governed)| observed.iter().find(|one| one.key == governed.policy));
    if let Some(one) = known {
        return Some(Arc::clone(&one.object));
    }
    for one in observed.iter().filter(|one| may(one, pod)) {
        let Ok(selection) = Selection::of(&one.object.spec.target) else { continue };
        if selection.selects(ctx, memory, now, pod).await {
            return Some(Arc::clone(&one.object));
        }
    }
    None
}

/// Whether a policy may govern a pod, as far as the pod's report tells.
pub(super) fn may(one: &Observed, pod: &PodReport) -> bool {
    one.policy.is_ok()
        && one.key.namespace == pod.namespace
        && Selection::of(&one.object.spec.target).is_ok_and(|selection| selection.may_select(pod))
}

/// Counts the OOM of a container that no policy governs. Without a profile nothing tells what an earlier leader counted, so
/// that only what ended in this term counts.
pub(super) async fn only_count(ctx: &Context, ended: &Ended, at: Stamp, now: &Now) {
    let leads_for = now.instant.saturating_duration_since(ctx.leadership.borrow().since);
    let (pod, container) = (&ended.pod, &ended.end.container);
    if at + leads_for < now.stamp || now.stamp.since(at) >= NEWS {
        return;
    }
    let found = death::of(ctx, ended).await;
    if let Some(why) = found.unread {
        ctx.metrics.failed("truth", why);
    }
    if matches!(found.death, Death::GpuOom(_)) {
        ctx.metrics.oom(&pod.uid, &pod.namespace, &pod.name, container, now.instant);
        info!(
            namespace = pod.namespace,
            pod = pod.name,
            container,
            "GPU out-of-memory counted, and not recorded: no policy governs the pod"
        );
    }
}

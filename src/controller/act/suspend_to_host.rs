//! Freezes a container and moves its GPU memory to host memory, through the `GpuMemoryNode` of its node.
//!
//! The freeze has an expiry, the policy's cool-down or an hour: then the agent lets the container go on, without anybody
//! asking for it.

use gpumem_engine::pacing;

use super::{Context, Intent, Now, Outcome, Seen, changed};
use crate::controller::limits::{FreezeRequest, Refusal, may_freeze, request_freeze};

/// Asks the node's agent for the freeze.
pub async fn send(ctx: &Context, intent: &Intent, seen: &Seen, now: &Now) -> Outcome {
    let places = ctx.fleet().places(now.instant, &intent.node, &intent.pod_uid, &intent.container);
    let Some(place) = places.into_iter().next() else {
        return Outcome::Withdrawn(changed("its node's agent does not report the container any more"));
    };
    let request = FreezeRequest {
        node: intent.node.clone(),
        namespace: intent.namespace.clone(),
        pod: intent.pod.clone(),
        pod_uid: intent.pod_uid.clone(),
        container: intent.container.clone(),
        container_id: place.container_id,
        policy: intent.policy.key(),
        reason: intent.reason.clone(),
        // The lever is offered to workloads of one pod only.
        group_pods: 1,
        until: now.stamp + seen.rest(),
    };
    let call = async {
        if intent.dry_run {
            may_freeze(ctx, &request).await.map(|()| Outcome::WouldSucceed)
        } else {
            request_freeze(ctx, &request, now).await.map(|()| Outcome::Succeeded)
        }
    };
    match tokio::time::timeout(ctx.patience.call, call).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(refusal)) => refused(&refusal),
        Err(_) => Outcome::Unclear { why: "the API server did not answer in time".to_owned() },
    }
}

fn refused(refusal: &Refusal) -> Outcome {
    let said = refusal.to_string();
    match refusal {
        Refusal::Off => Outcome::Refused { why: pacing::Refusal::NotPermitted, said },
        // The answer may have been lost: what the object says decides.
        Refusal::NotWritten => Outcome::Unclear { why: said },
        Refusal::SeveralPods(_) | Refusal::LivenessProbe(_) | Refusal::PodChanged => Outcome::Withdrawn(changed(&said)),
    }
}

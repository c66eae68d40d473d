//! Where a pod stands with the checkpoint it was asked for.
//!
//! That we asked, and until when, is the ledger's word; that the application is done is the pod's. Whoever may write the pod
//! may write any annotation into it: an answer to another request than ours, or one that was copied from another pod, counts
//! as none.

use gpumem_engine::decision::CheckpointState;
use tracing::info;

use super::{Context, DECIDE_AGE, Memory, Now, Observation};
use crate::controller::intent::LedgerRequest;

/// How the pod answered our request, if it did.
pub async fn state(
    ctx: &Context,
    memory: &mut Memory,
    now: &Now,
    request: &LedgerRequest,
    seen: &Observation,
) -> CheckpointState {
    // What cannot be read is no answer.
    let facts = memory.confirmed(ctx, now, &seen.node, &seen.pod, DECIDE_AGE).await.ok();
    answered(request, facts.and_then(|facts| facts.checkpoint_done).as_deref())
}

fn answered(request: &LedgerRequest, done: Option<&str>) -> CheckpointState {
    let (id, pod) = (request.id.clone(), request.pod_uid.clone());
    match done {
        Some(done) if done == id => CheckpointState::Done { id, pod },
        done => {
            if let Some(done) = done {
                let done: String = done.chars().take(63).collect();
                info!(pod = request.pod, ours = id, done, "an answer to another request is ignored");
            }
            CheckpointState::Requested { id, pod, deadline: request.answer_by() }
        }
    }
}

//! Settling what an earlier leader, or a lost answer, left open: each action has its own way of showing that it was done.

use gpumem_engine::decision::Hold;
use gpumem_engine::pacing::Stamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;

use super::suspend::{Holder, annotation, holder};
use super::{Action, Context, Intent, Lever, Now, read_target};
use crate::api::names::ANNOTATION_CHECKPOINT_REQUEST;
use crate::controller::intent::{Ledger, State};
use crate::controller::limits;
use crate::controller::now::parse_rfc3339;
use crate::controller::workload::Error;

/// What became of an open intent.
#[derive(Clone, Debug, PartialEq)]
pub enum Settled {
    /// Its effect is there: it counts as carried out.
    Done(Intent),
    /// Its effect is not there and no call can be under way any more: it was never carried out.
    Abandoned(Intent),
}

/// Looks for the effect of every open intent. Intents whose call may still be under way are left out: they stay open, and
/// keep the brake on.
pub async fn settle(ctx: &Context, ledger: &Ledger, now: &Now) -> Result<Vec<Settled>, Hold> {
    let Ok(state) = &ledger.state else { return Ok(Vec::new()) };
    let mut settled = Vec::new();
    for intent in &state.intents {
        // A dry run changes nothing, whatever became of its call.
        if intent.dry_run {
            settled.push(Settled::Abandoned(intent.clone()));
        } else if is_done(ctx, state, intent, now).await? {
            settled.push(Settled::Done(intent.clone()));
        } else if parse_rfc3339(&intent.deadline).unwrap_or(Stamp(i64::MAX)) <= now.later() {
            settled.push(Settled::Abandoned(intent.clone()));
        }
    }
    Ok(settled)
}

async fn is_done(ctx: &Context, state: &State, intent: &Intent, now: &Now) -> Result<bool, Hold> {
    match (&intent.action, &intent.lever) {
        // Gone or going: whoever did it, the pod is not evicted twice.
        (Action::Evict, _) => Ok(pod(ctx, intent).await?.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())),
        (Action::RequestCheckpoint { .. }, _) => Ok(request(pod(ctx, intent).await?).as_deref() == Some(&intent.id)),
        (Action::WithdrawCheckpoint { id }, _) => Ok(request(pod(ctx, intent).await?).as_ref() != Some(id)),
        (Action::SuspendWorkload { .. }, Some(Lever::Suspend(handle))) => {
            // The annotation is written with the lever: it is there even where somebody let the workload go on since.
            let object = read_target(ctx, &handle.target).await?;
            Ok(object.is_some_and(|object| handle.target.is(&object) && annotation(&object) == Some(&intent.id)))
        }
        (Action::ResumeWorkload, Some(Lever::Suspend(handle))) => {
            let Some(deed) = state.deeds.iter().find(|deed| deed.suspension() == Some(handle)) else { return Ok(true) };
            let object = read_target(ctx, &handle.target).await?;
            Ok(holder(handle, object.as_ref(), &deed.id) != Holder::Ours)
        }
        (Action::Scale { to, .. }, Some(Lever::Scale(handle))) => {
            let object = read_target(ctx, &handle.target).await?;
            Ok(object.is_some_and(|object| handle.replicas_of(&object) == Some(*to)))
        }
        (Action::SuspendToHost, _) => {
            let found = limits::is_asked_for(ctx, &intent.node, &intent.pod_uid, now).await;
            found.map_err(|_| Hold::Changed { what: "the node's GpuMemoryNode could not be read".to_owned() })
        }
        // Nothing was ever called for these.
        (Action::SuspendWorkload { .. } | Action::ResumeWorkload | Action::Scale { .. }, _) => Ok(false),
    }
}

/// The pod of the intent, if it is still there.
async fn pod(ctx: &Context, intent: &Intent) -> Result<Option<Pod>, Hold> {
    let Intent { namespace, pod: name, .. } = intent;
    let api: Api<Pod> = Api::namespaced(ctx.read.clone(), namespace);
    let failed = |source| Error::Pod { namespace: namespace.clone(), name: name.clone(), source }.into_hold();
    let found = api.get_opt(name).await.map_err(failed)?;
    Ok(found.filter(|pod| pod.metadata.uid.as_deref() == Some(intent.pod_uid.as_str())))
}

/// Id of the request that its annotations hold.
fn request(pod: Option<Pod>) -> Option<String> {
    pod?.metadata.annotations?.remove(ANNOTATION_CHECKPOINT_REQUEST)
}

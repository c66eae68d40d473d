//! Changes the number of a workload's pods, where nobody else owns that number.
//!
//! Whoever owns the number by the object's own record (an autoscaler, a GitOps tool, a person) keeps it: that is looked at just
//! before the call, and the patch carries the version that was looked at. A Job has no `/scale`; its `parallelism` is patched.

use gpumem_engine::decision::Hold;
use kube::api::{DynamicObject, Patch, PatchParams};

use super::{Context, Intent, Outcome, Seen, answer, changed, done, or_changed};
use crate::api::names::FIELD_MANAGER;
use crate::controller::workload::ScaleHandle;

/// Writes the number.
pub async fn send(ctx: &Context, intent: &Intent, handle: &ScaleHandle, to: u32, seen: &Seen) -> Outcome {
    let api = handle.target.api(ctx.act.clone());
    let params = PatchParams {
        dry_run: intent.dry_run,
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patch = handle.patch(to, seen.version().unwrap_or_default());
    let name = &handle.target.name;
    let outcome = if handle.subresource().is_some() {
        answer(ctx, api.patch_scale(name, &params, &Patch::Merge(&patch)), done(intent)).await
    } else {
        answer(ctx, api.patch(name, &params, &Patch::Merge(&patch)), done(intent)).await
    };
    or_changed(outcome)
}

/// What a look at the object means for scaling it.
pub fn may_scale(handle: &ScaleHandle, object: Option<&DynamicObject>, from: u32) -> Result<(), Hold> {
    if let Some(by) = object.and_then(|object| handle.owned_by(object)) {
        return Err(Hold::ReplicasOwnedByOther { by });
    }
    match object.map(|object| handle.replicas_of(object)) {
        None => Err(changed("the workload is gone")),
        Some(None) => Err(changed("another workload took its name")),
        Some(Some(replicas)) if replicas != from => {
            Err(changed(&format!("somebody set the number of its pods to {replicas}")))
        }
        Some(Some(_)) => Ok(()),
    }
}

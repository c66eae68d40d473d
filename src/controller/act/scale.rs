//! Changes the number of a workload's pods, where nobody else owns that number.
//!
//! `/scale` is patched in the version of the object in which nobody else was found to own the number: where an autoscaler, a
//! GitOps tool or a person owns it, they keep it, and whatever was written since is answered with a conflict. A Job has no
//! `/scale`; its `parallelism` is patched in the same way.

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
    let Some(version) = seen.version() else { return Outcome::Withdrawn(changed("its version is not known")) };
    let patch = handle.patch(to, version);
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
    match object.map(|object| handle.replicas_of(object)) {
        None => Err(changed("the workload is gone")),
        Some(None) => Err(changed("another workload took its name")),
        Some(Some(replicas)) if replicas != from => {
            Err(changed(&format!("somebody set the number of its pods to {replicas}")))
        }
        Some(Some(_)) => Ok(()),
    }
}

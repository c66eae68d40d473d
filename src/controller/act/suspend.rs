//! Suspends the workload of a pod by the lever of its kind, and lets go on what we suspended.
//!
//! The annotation `gpumem.dev/suspended` on the object says that the suspension is ours, and by which action. Nothing else
//! is ever lifted: where it is missing or names another action, where somebody else wrote the field since, or where the
//! workload runs already, its owner has decided, and the owner wins. Each patch carries the object's version.

use gpumem_engine::decision::Hold;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use super::{Context, Intent, Outcome, Seen, answer, changed, done, or_changed};
use crate::api::names::{ANNOTATION_SUSPENDED, FIELD_MANAGER};
use crate::controller::workload::{SuspendHandle, SuspendState};

/// Who decides about the suspension that the action with this id made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// It is suspended, and it is our suspension.
    Ours,
    /// It runs: somebody let it go on.
    Lifted,
    /// It is suspended, and somebody took that over.
    TakenOver,
    /// The object is gone, or another has its name.
    Gone,
}

/// Reads from the live object who decides about the suspension made by the action `id`.
pub fn holder(handle: &SuspendHandle, object: Option<&DynamicObject>, id: &str) -> Holder {
    let Some(object) = object else { return Holder::Gone };
    match handle.state(object) {
        SuspendState::Replaced => Holder::Gone,
        SuspendState::Running => Holder::Lifted,
        SuspendState::Suspended if annotation(object) == Some(id) && !is_anothers(handle, object) => Holder::Ours,
        SuspendState::Suspended => Holder::TakenOver,
    }
}

/// Id of the action that the object says it was suspended by.
pub fn annotation(object: &DynamicObject) -> Option<&str> {
    object.metadata.annotations.as_ref()?.get(ANNOTATION_SUSPENDED).map(String::as_str)
}

/// Whether another manager wrote the lever after us: the server then lists it with the field, and no longer us.
fn is_anothers(handle: &SuspendHandle, object: &DynamicObject) -> bool {
    let Some(managers) = &object.metadata.managed_fields else { return false };
    let mut owners = managers.iter().filter(|entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        let found = handle.field.iter().try_fold(fields, |at, key| at?.get(format!("f:{key}")).map(Some));
        found.flatten().is_some()
    });
    let mut any = false;
    let ours = owners.any(|entry| {
        any = true;
        entry.manager.as_deref() == Some(FIELD_MANAGER)
    });
    any && !ours
}

/// Suspends.
pub async fn suspend(ctx: &Context, intent: &Intent, handle: &SuspendHandle, seen: &Seen) -> Outcome {
    let mut patch = handle.suspend_patch();
    patch["metadata"]["annotations"] = json!({ANNOTATION_SUSPENDED: intent.id});
    or_changed(write(ctx, intent, handle, seen, patch, done(intent)).await)
}

/// Lets it go on.
pub async fn resume(ctx: &Context, intent: &Intent, handle: &SuspendHandle, seen: &Seen) -> Outcome {
    if seen.nothing_to_do() {
        return Outcome::Resumed;
    }
    let mut patch = handle.resume_patch();
    patch["metadata"]["annotations"] = json!({ANNOTATION_SUSPENDED: null});
    or_changed(write(ctx, intent, handle, seen, patch, Outcome::Resumed).await)
}

async fn write(
    ctx: &Context,
    intent: &Intent,
    handle: &SuspendHandle,
    seen: &Seen,
    mut patch: Value,
    done: Outcome,
) -> Outcome {
    patch["metadata"]["resourceVersion"] = json!(seen.version());
    let params = PatchParams {
        dry_run: intent.dry_run,
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let api = handle.target.api(ctx.act.clone());
    answer(ctx, api.patch(&handle.target.name, &params, &Patch::Merge(&patch)), done).await
}

/// What a look at the object means for suspending it.
pub fn may_suspend(handle: &SuspendHandle, object: Option<&DynamicObject>) -> Result<(), Hold> {
    match object.map(|object| handle.state(object)) {
        None => Err(changed("the workload is gone")),
        Some(SuspendState::Replaced) => Err(changed("another workload took its name")),
        Some(SuspendState::Suspended) => Err(changed("somebody suspended the workload")),
        Some(SuspendState::Running) => Ok(()),
    }
}

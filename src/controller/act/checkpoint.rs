//! Asks an application to save its work, by annotations on its pod, and takes the request back.
//!
//! The application reads them from a downward-API volume or through the API, saves, and answers with an annotation of its
//! own. The patch carries the version of the pod that was read: a version belongs to one object, so no successor of the
//! name is annotated, and whoever wrote the pod meanwhile is looked at first.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{Context, Intent, Outcome, Seen, answer, done, or_changed};
use crate::api::names::{ANNOTATION_CHECKPOINT_DEADLINE, ANNOTATION_CHECKPOINT_REQUEST, FIELD_MANAGER};
use crate::controller::now::rfc3339;

/// Writes the request.
pub async fn request(ctx: &Context, intent: &Intent, seen: &Seen) -> Outcome {
    // An intent that is no request has no time to answer, and does not come here.
    let deadline = intent.answer_by().map(rfc3339);
    let annotations = json!({ANNOTATION_CHECKPOINT_REQUEST: intent.id, ANNOTATION_CHECKPOINT_DEADLINE: deadline});
    or_changed(patch(ctx, intent, seen, &annotations, done(intent)).await)
}

/// Removes the request. What the application answered is its own, and stays.
pub async fn take_back(ctx: &Context, intent: &Intent, seen: &Seen) -> Outcome {
    // Removed by somebody: there is nothing left to remove.
    if seen.nothing_to_do() {
        return Outcome::TakenBack;
    }
    let annotations = json!({ANNOTATION_CHECKPOINT_REQUEST: null, ANNOTATION_CHECKPOINT_DEADLINE: null});
    match patch(ctx, intent, seen, &annotations, Outcome::TakenBack).await {
        // With the pod its annotations are gone.
        Outcome::Gone => Outcome::TakenBack,
        other => or_changed(other),
    }
}

async fn patch(ctx: &Context, intent: &Intent, seen: &Seen, annotations: &Value, done: Outcome) -> Outcome {
    let pods: Api<Pod> = Api::namespaced(ctx.act.clone(), &intent.namespace);
    let params = PatchParams {
        dry_run: intent.dry_run,
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patch = json!({
        "metadata": {"uid": intent.pod_uid, "resourceVersion": seen.version(), "annotations": annotations}
    });
    answer(ctx, pods.patch_metadata(&intent.pod, &params, &Patch::Merge(&patch)), done).await
}

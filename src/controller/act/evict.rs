//! Asks the Eviction API to remove a pod, which respects its PodDisruptionBudget and its grace period.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::Api;
use kube::api::PostParams;
use kube::core::response::Status;

use super::{Context, Intent, Outcome, answer, done};

/// Evicts the pod of the intent.
pub async fn send(ctx: &Context, intent: &Intent) -> Outcome {
    let pods: Api<Pod> = Api::namespaced(ctx.act.clone(), &intent.namespace);
    let params = PostParams { dry_run: intent.dry_run, ..PostParams::default() };
    let body = body(intent);
    answer(ctx, pods.create_subresource::<Eviction, Status>("eviction", &intent.pod, &params, &body), done(intent))
        .await
}

/// Our own body: kube's `Api::evict` writes `delete_options`, which the server drops, and with it the UID precondition.
fn body(intent: &Intent) -> Eviction {
    Eviction {
        metadata: ObjectMeta {
            name: Some(intent.pod.clone()),
            namespace: Some(intent.namespace.clone()),
            ..ObjectMeta::default()
        },
        delete_options: Some(DeleteOptions {
            preconditions: Some(Preconditions {
                uid: Some(intent.pod_uid.as_str().to_owned()),
                ..Preconditions::default()
            }),
            ..DeleteOptions::default()
        }),
    }
}

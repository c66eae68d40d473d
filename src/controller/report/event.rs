//! Events on pod and policy, in words for the person on call.

use gpumem_engine::decision::{Notify, PodRef};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource as _;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tracing::warn;

use super::shorten;
use super::status::expected;
use crate::api::names::REPORTER;
use crate::api::policy::GpuMemoryPolicy;
use crate::controller::act::Outcome;
use crate::controller::context::Context;
use crate::controller::intent::Action;
use crate::controller::reconcile::Done;

/// The API's limit is 1 kB; characters may take several bytes.
const MAX_NOTE: usize = 500;

/// The one recorder of a process: it remembers what it wrote, and counts repetitions instead of writing them again.
pub fn recorder(ctx: &Context) -> Recorder {
    Recorder::new(ctx.act.clone(), Reporter { controller: REPORTER.to_owned(), instance: Some(ctx.identity.clone()) })
}

/// Tells of a risk, on the pod and on the policy.
pub async fn notify(recorder: &Recorder, policy: &GpuMemoryPolicy, notify: &Notify) {
    let Notify { pod, container, expected_in, reason, .. } = notify;
    let note = format!(
        "Container {container} of pod {} is expected to run out of GPU memory {}: {reason}. Save its work, or give it a \
         larger device or a smaller batch.",
        pod.name,
        expected(*expected_in)
    );
    let say = |secondary| Event {
        type_: EventType::Warning,
        reason: "GpuMemoryRisk".to_owned(),
        note: Some(shorten(&note, MAX_NOTE)),
        action: "Forecast".to_owned(),
        secondary: Some(secondary),
    };
    both(recorder, policy, &of_pod(pod), say).await;
}

/// Tells what came of an action, on the pod and on the policy.
pub async fn tell(recorder: &Recorder, policy: &GpuMemoryPolicy, done: &Done) {
    let (type_, happened) = match &done.outcome {
        Outcome::Succeeded | Outcome::FoundDone => (EventType::Warning, ""),
        Outcome::Resumed | Outcome::TakenBack => (EventType::Normal, ""),
        Outcome::WouldSucceed => (EventType::Normal, "DryRun"),
        Outcome::Refused { .. } | Outcome::OwnedByOther { .. } => (EventType::Warning, "Blocked"),
        Outcome::Unclear { .. } => (EventType::Warning, "Unclear"),
        Outcome::Replaced | Outcome::Gone | Outcome::Withdrawn(_) | Outcome::Abandoned => {
            (EventType::Normal, "Withdrawn")
        }
    };
    let what = match done.intent.action {
        Action::Evict => "Eviction",
        Action::RequestCheckpoint { .. } => "Checkpoint",
        Action::WithdrawCheckpoint { .. } => "CheckpointTakenBack",
        Action::SuspendToHost => "SuspendToHost",
        Action::SuspendWorkload { .. } => "Suspension",
        Action::ResumeWorkload => "Resumption",
        Action::Scale { .. } => "Scale",
    };
    let reason = format!("GpuMemory{what}{happened}");
    let intent = &done.intent;
    let note = format!(
        "Pod {} (container {}): {}. Why: {}.",
        intent.pod,
        intent.container,
        done.outcome.explain(&intent.action),
        intent.reason
    );
    let say = |secondary| Event {
        type_,
        reason: reason.clone(),
        note: Some(shorten(&note, MAX_NOTE)),
        action: intent.action.step().name().to_owned(),
        secondary: Some(secondary),
    };
    let pod = PodRef {
        namespace: intent.namespace.clone(),
        name: intent.pod.clone(),
        uid: intent.pod_uid.clone(),
        node: intent.node.clone(),
    };
    both(recorder, policy, &of_pod(&pod), say).await;
}

async fn both(
    recorder: &Recorder,
    policy: &GpuMemoryPolicy,
    pod: &ObjectReference,
    say: impl Fn(ObjectReference) -> Event,
) {
    let policy = policy.object_ref(&());
    for (regarding, secondary) in [(pod, &policy), (&policy, pod)] {
        if let Err(error) = recorder.publish(&say(secondary.clone()), regarding).await {
            warn!(object = regarding.name, %error, "event not written");
        }
    }
}

fn of_pod(pod: &PodRef) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.as_str().to_owned()),
        ..ObjectReference::default()
    }
}

//! Events on pod, workload and policy, in words for the person on call: what was seen, what was done, what happens next.

use gpumem_engine::attempts::Loop;
use gpumem_engine::decision::{Notify, PodRef, Workload};
use gpumem_engine::estimate::advice;
use gpumem_engine::estimate::declared::Declared;
use gpumem_engine::quantity::Bytes;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource as _;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tracing::warn;

use super::once;
use super::status::expected;
use crate::api::names::{ANNOTATION_WORKLOAD, REPORTER};
use crate::api::policy::GpuMemoryPolicy;
use crate::api::usage::{EndReport, PodReport};
use crate::controller::context::Context;
use crate::controller::fleet::Room;
use crate::controller::intent::{Action, Untold};
use crate::controller::profile::{Learned, Lesson};
use crate::text::shorten;

/// The API's limit is 1 kB; characters may take several bytes.
const MAX_NOTE: usize = 500;

/// The one recorder of a process: it remembers what it wrote, and counts repetitions instead of writing them again.
pub fn recorder(ctx: &Context) -> Recorder {
    Recorder::new(ctx.act.clone(), Reporter { controller: REPORTER.to_owned(), instance: Some(ctx.identity.clone()) })
}

/// Tells of a risk, on the pod, on its workload and on the policy.
pub async fn notify(recorder: &Recorder, policy: &GpuMemoryPolicy, notify: &Notify) {
    let Notify { pod, workload, container, expected_in, reason, .. } = notify;
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
    everywhere(recorder, &of_pod(pod), &of_workload(workload, &pod.namespace), Some(policy), say).await;
}

/// Tells what came of an action, on the pod, on its workload and on the policy.
///
/// False where it has to be told again. The record of it makes the name, so that it is told once, whoever does it.
pub async fn tell(ctx: &Context, policy: Option<&GpuMemoryPolicy>, untold: &Untold) -> bool {
    let (type_, happened) = match untold.outcome.as_str() {
        "Succeeded" | "FoundDone" => (EventType::Warning, ""),
        "Resumed" | "TakenBack" => (EventType::Normal, ""),
        "DryRun" => (EventType::Normal, "DryRun"),
        "Unclear" => (EventType::Warning, "Unclear"),
        "Replaced" | "Gone" | "Withdrawn" | "Abandoned" => (EventType::Normal, "Withdrawn"),
        // Each of the server's refusals has a name of its own.
        _ => (EventType::Warning, "Blocked"),
    };
    let what = match untold.intent.action {
        Action::Evict => "Eviction",
        Action::RequestCheckpoint { .. } => "Checkpoint",
        Action::WithdrawCheckpoint { .. } => "CheckpointTakenBack",
        Action::SuspendToHost => "SuspendToHost",
        Action::SuspendWorkload { .. } => "Suspension",
        Action::ResumeWorkload => "Resumption",
        Action::Scale { .. } => "Scale",
    };
    let reason = format!("GpuMemory{what}{happened}");
    let intent = &untold.intent;
    let note = format!("Pod {} (container {}): {}. Why: {}.", intent.pod, intent.container, untold.said, intent.reason);
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
    let workload = of_workload(&Workload::from(&intent.workload), &intent.namespace);
    once_everywhere(ctx, &intent.id, &of_pod(&pod), &workload, policy, say).await
}

/// Whom an Event is about.
#[derive(Clone, Copy, Debug)]
pub struct Whom<'a> {
    /// The pod.
    pub pod: &'a PodReport,
    /// Its node.
    pub node: &'a str,
    /// Its workload; the pod itself where it has none.
    pub workload: &'a Workload,
    /// The policy that governs it.
    pub policy: Option<&'a GpuMemoryPolicy>,
}

impl Whom<'_> {
    async fn tell_once(&self, ctx: &Context, key: &str, reason: &str, note: &str) {
        let pod = self.pod();
        let workload = of_workload(self.workload, &self.pod.namespace);
        let say = |secondary| observed(EventType::Warning, reason, note, secondary);
        once_everywhere(ctx, key, &of_pod(&pod), &workload, self.policy, say).await;
    }

    fn pod(&self) -> PodRef {
        PodRef {
            namespace: self.pod.namespace.clone(),
            name: self.pod.name.clone(),
            uid: self.pod.uid.clone(),
            node: self.node.to_owned(),
        }
    }

    async fn tell(&self, recorder: &Recorder, type_: EventType, reason: &str, note: &str) {
        let pod = self.pod();
        let say = |secondary| observed(type_, reason, note, secondary);
        let workload = of_workload(self.workload, &self.pod.namespace);
        everywhere(recorder, &of_pod(&pod), &workload, self.policy, say).await;
    }
}

fn observed(type_: EventType, reason: &str, note: &str, secondary: ObjectReference) -> Event {
    Event {
        type_,
        reason: reason.to_owned(),
        note: Some(shorten(note, MAX_NOTE)),
        action: "Observe".to_owned(),
        secondary: Some(secondary),
    }
}

/// Tells of an out-of-memory, and of the loop that it belongs to: once, however often it is called for the same record.
pub async fn out_of_memory(ctx: &Context, whom: &Whom<'_>, lesson: &Lesson, learned: &Learned) {
    let record = &lesson.record;
    let key = format!("{}\n{}\n{}", record.pod_uid, record.container, record.time);
    let bytes = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok()).map(Bytes);
    let held = match (bytes(record.peak_bytes), bytes(record.capacity_bytes)) {
        (Some(peak), Some(capacity)) => format!(", holding {peak} of {capacity}"),
        (Some(peak), None) => format!(", holding {peak}"),
        (None, _) => String::new(),
    };
    // Advice first: the message is in the log anyway.
    let advice = lesson.advice.first().map(|line| format!(" {}", sentence(line))).unwrap_or_default();
    let policy = whom.policy.and_then(|policy| policy.metadata.name.as_deref()).unwrap_or("unknown");
    let limit = bytes(record.limit_bytes);
    let by_limit = limit.map(|limit| {
        format!(" It was held to {limit} by the growth limit of policy {policy}: that was full, not the device.")
    });
    let by_limit = by_limit.unwrap_or_default();
    let note = format!(
        "Container {} of pod {} died of GPU out-of-memory ({}){held}.{by_limit}{advice} It said: {}",
        record.container, record.pod, record.framework, record.evidence
    );
    whom.tell_once(ctx, &key, "GpuMemoryOutOfMemory", &note).await;
    if let Some(Loop { container, count, peak, since: _ }) = &learned.restart_loop {
        let note = format!(
            "Container {container} of {} {} ran out of GPU memory {count} times in a row at about {peak}: the next attempt \
             ends the same way, and an eviction helps nobody.{by_limit}{advice}{}",
            whom.workload.kind,
            whom.workload.name,
            // It has not filled the one that it has.
            if limit.is_some() { "" } else { " Or give it a larger device." }
        );
        whom.tell_once(ctx, &key, "GpuMemoryRestartLoop", &note).await;
    }
}

/// Tells that a container with GPU memory was killed for host memory: more GPU memory would not have helped.
pub async fn host_out_of_memory(ctx: &Context, whom: &Whom<'_>, end: &EndReport) {
    let container = &end.container;
    let note = format!(
        "Container {container} of pod {} was killed for host memory (OOMKilled), not for GPU memory: raise its memory limit. \
         A larger GPU would not help.",
        whom.pod.name
    );
    let key = format!("{}\n{container}\n{}", whom.pod.uid, end.finished_at);
    whom.tell_once(ctx, &key, "HostMemoryOutOfMemory", &note).await;
}

/// What there is to tell of a growth limit.
pub struct OfLimit<'a> {
    /// Names what happened: the same is told once.
    pub key: &'a str,
    /// Whose container.
    pub pod: &'a PodRef,
    /// The policy that asks for it; `None` once it is gone.
    pub policy: Option<&'a GpuMemoryPolicy>,
    /// Whether something is to be done about it.
    pub type_: EventType,
    /// What happened, in one word.
    pub reason: &'a str,
    /// What happened, in a sentence or two.
    pub note: String,
}

/// Tells of a growth limit, on the pod and on the policy. False where it has to be told again.
pub async fn limit(ctx: &Context, of: &OfLimit<'_>) -> bool {
    let pod = of_pod(of.pod);
    let say = |secondary| Event {
        type_: of.type_,
        reason: of.reason.to_owned(),
        note: Some(shorten(&of.note, MAX_NOTE)),
        action: "LimitGrowth".to_owned(),
        secondary: Some(secondary),
    };
    // Not on the workload: a limit is of one container, and a workload may have hundreds.
    once_everywhere(ctx, of.key, &pod, &pod, of.policy, say).await
}

/// What cannot fit.
#[derive(Clone, Copy, Debug)]
pub enum Misfit<'a> {
    /// The job that the pod declares, even if everything turns out at its lowest.
    Declared(&'a Declared),
    /// The peak that its policy declares.
    Policy(Bytes),
}

/// Tells that a pod cannot fit its device, or, before it starts, any that it can get.
pub async fn does_not_fit(recorder: &Recorder, whom: &Whom<'_>, misfit: &Misfit<'_>, room: &Room) {
    let pod = &whom.pod.name;
    let usable = room.usable();
    let has = match room {
        Room::Of(usable) => format!("its device has {usable}"),
        Room::AtMost { usable, .. } => {
            format!("it starts on node {}, where no device that it can get has more than {usable}", whom.node)
        }
    };
    let note = match misfit {
        Misfit::Declared(declared) => {
            let least = Bytes::from_f64(declared.needs.low);
            let remedies = declared.remedies(usable);
            let advice = remedies.first().map(|remedy| format!(" {}", sentence(&advice::sentence(remedy, None))));
            format!(
                "Pod {pod} declares a job ({ANNOTATION_WORKLOAD}) that needs {least} of GPU memory at the very least; {has}. \
                 It will run out of memory.{}",
                advice.unwrap_or_default()
            )
        }
        Misfit::Policy(peak) => format!(
            "The policy of pod {pod} declares a peak of {peak} (spec.prediction.declaredPeak); {has}. It will run out of \
             memory. Give it a larger device, or correct declaredPeak."
        ),
    };
    whom.tell(recorder, EventType::Warning, "GpuMemoryDoesNotFit", &note).await;
}

/// With a capital letter and a full stop.
fn sentence(text: &str) -> String {
    let mut characters = text.chars();
    let first: String = characters.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    let stop = if text.ends_with('.') { "" } else { "." };
    format!("{first}{}{stop}", characters.as_str())
}

async fn everywhere(
    recorder: &Recorder,
    pod: &ObjectReference,
    workload: &ObjectReference,
    policy: Option<&GpuMemoryPolicy>,
    say: impl Fn(ObjectReference) -> Event,
) {
    for (regarding, secondary) in places(pod, workload, policy) {
        if let Err(error) = recorder.publish(&say(secondary), &regarding).await {
            warn!(object = regarding.name, %error, "event not written");
        }
    }
}

/// The same under names that follow from `key`. False where some of it has to be tried again.
async fn once_everywhere(
    ctx: &Context,
    key: &str,
    pod: &ObjectReference,
    workload: &ObjectReference,
    policy: Option<&GpuMemoryPolicy>,
    say: impl Fn(ObjectReference) -> Event,
) -> bool {
    let mut is_told = true;
    for (regarding, secondary) in places(pod, workload, policy) {
        is_told &= once::publish(ctx, key, &say(secondary), &regarding).await;
    }
    is_told
}

/// What an Event is about, each with what is related to it.
fn places(
    pod: &ObjectReference,
    workload: &ObjectReference,
    policy: Option<&GpuMemoryPolicy>,
) -> Vec<(ObjectReference, ObjectReference)> {
    let policy = policy.map(|policy| policy.object_ref(&()));
    let mut about = vec![(pod.clone(), policy.clone().unwrap_or_else(|| workload.clone()))];
    // A pod without an owner is its own workload.
    if workload.uid != pod.uid {
        about.push((workload.clone(), pod.clone()));
    }
    about.extend(policy.map(|policy| (policy, pod.clone())));
    about
}

fn of_workload(workload: &Workload, namespace: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(workload.api_version.clone()),
        kind: Some(workload.kind.clone()),
        namespace: Some(namespace.to_owned()),
        name: Some(workload.name.clone()),
        uid: Some(workload.uid.0.clone()),
        ..ObjectReference::default()
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

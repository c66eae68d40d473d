//! Freezes: asked for by an action, refused where one would do harm, and ended by their expiry or by whoever asked.

use std::collections::BTreeSet;
use std::time::Duration;

use gpumem_engine::identity::{ContainerId, PodUid};
use gpumem_engine::pacing::Stamp;
use gpumem_engine::policy::{Mode, PolicyKey};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;

use super::{BETWEEN_LOOKS, LimitState, Limits, node};
use crate::api::node::{ALL_DEVICES, FreezeSpec, GpuMemoryNode, LimitEntry};
use crate::controller::at_once::{AT_ONCE, all};
use crate::controller::context::Context;
use crate::controller::now::{Now, parse_rfc3339, rfc3339};
use crate::controller::observe::Observed;
use crate::controller::workload::{PodFacts, read_pod};

/// Nothing stays frozen for longer, whoever asks.
pub const LONGEST: Duration = Duration::from_hours(1);

/// What is to be frozen.
#[derive(Clone, Debug)]
pub struct FreezeRequest {
    /// Node of the pod.
    pub node: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    pub pod_uid: PodUid,
    /// Name of the container.
    pub container: String,
    /// Its instance.
    pub container_id: ContainerId,
    /// The policy that asks.
    pub policy: PolicyKey,
    /// Why, in one sentence.
    pub reason: String,
    /// Pods of its workload, this one included.
    pub group_pods: u32,
    /// When it ends.
    pub until: Stamp,
}

/// Why a container is not frozen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The chart does not ask for it.
    #[error("suspending is off: set agent.suspend.enabled in the chart")]
    Off,
    /// A job of several pods waits for each of them, and ends when one does not answer.
    #[error("the workload has {0} pods, which would wait for the frozen one and end")]
    SeveralPods(u32),
    /// The kubelet would kill it.
    #[error("container {0} has a liveness probe that runs a command in it: frozen, it may not answer and be killed")]
    LivenessProbe(String),
    /// The pod is not what it was.
    #[error("the pod could not be read, or is another one now")]
    PodChanged,
    /// The object could not be written.
    #[error("the node's object could not be written")]
    NotWritten,
}

impl Refusal {
    /// Name for a metric label, from a closed set.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::SeveralPods(_) => "several_pods",
            Self::LivenessProbe(_) => "liveness_probe",
            Self::PodChanged => "pod_changed",
            Self::NotWritten => "not_written",
        }
    }
}

/// Whether a container may be frozen, as far as its pod shows.
pub async fn may_freeze(ctx: &Context, request: &FreezeRequest) -> Result<(), Refusal> {
    if request.group_pods > 1 {
        return Err(Refusal::SeveralPods(request.group_pods));
    }
    let pods: Api<Pod> = Api::namespaced(ctx.read.clone(), &request.namespace);
    let pod = pods.get_opt(&request.pod).await.ok().flatten().ok_or(Refusal::PodChanged)?;
    if pod.metadata.uid.as_deref() != Some(request.pod_uid.as_str()) {
        return Err(Refusal::PodChanged);
    }
    if has_exec_probe(&pod, &request.container) {
        return Err(Refusal::LivenessProbe(request.container.clone()));
    }
    Ok(())
}

/// Asks the node's agent to freeze a container. Success means that it is asked for: [`freeze_state`] says what became of it.
pub async fn request_freeze(ctx: &Context, request: &FreezeRequest, now: &Now) -> Result<(), Refusal> {
    may_freeze(ctx, request).await?;
    super::begin_term(ctx);
    if !node::list(ctx, now).await || ctx.limits.state().unusable.is_some() {
        return Err(Refusal::Off);
    }
    let until = request.until.min(now.stamp + LONGEST);
    let entry = LimitEntry {
        pod_uid: request.pod_uid.as_str().to_owned(),
        namespace: request.namespace.clone(),
        pod: request.pod.clone(),
        container_id: request.container_id.as_str().to_owned(),
        device: ALL_DEVICES.to_owned(),
        bytes: None,
        freeze: Some(FreezeSpec { lock_seconds: 10, host_bytes: None }),
        policy: format!("{}/{}", request.policy.namespace, request.policy.name),
        reason: crate::text::shorten(&request.reason, 500),
        expires: rfc3339(until),
    };
    {
        let mut state = ctx.limits.state();
        let known = state.nodes.entry(request.node.clone()).or_default();
        known.freezes.retain(|known| known.key() != entry.key());
        known.freezes.push(entry.clone());
    }
    write(ctx, &request.node, now).await;
    let key = (entry.container_id, entry.device);
    if node::entry(ctx, &request.node, &key).is_some() {
        return Ok(());
    }
    // No later round may ask for what nobody decides on any more.
    if let Some(known) = ctx.limits.state().nodes.get_mut(&request.node) {
        known.freezes.retain(|known| known.key() != (key.0.as_str(), key.1.as_str()));
    }
    Err(Refusal::NotWritten)
}

/// Whether the node's object asks for a freeze of this pod now, read anew.
pub async fn is_asked_for(ctx: &Context, node: &str, pod: &PodUid, now: &Now) -> kube::Result<bool> {
    let api: Api<GpuMemoryNode> = Api::all(ctx.read.clone());
    let object = match api.get_opt(node).await {
        Ok(object) => object,
        Err(kube::Error::Api(status)) if status.code == 403 || status.code == 404 => None,
        Err(error) => return Err(error),
    };
    let stands = |entry: &LimitEntry| {
        let expires = parse_rfc3339(&entry.expires);
        entry.freeze.is_some() && entry.pod_uid == pod.as_str() && expires.is_some_and(|expires| expires > now.stamp)
    };
    Ok(object.is_some_and(|object| object.spec.limits.iter().any(stands)))
}

/// Takes back the freezes of policies that are gone, or no longer in Enforce. Of one that is not valid now nothing is known.
pub(super) fn release_orphans(ctx: &Context, observed: &[Observed]) {
    let stands = |entry: &LimitEntry| {
        let is_it = |one: &&Observed| format!("{}/{}", one.key.namespace, one.key.name) == entry.policy;
        let policy = observed.iter().find(is_it).map(|one| &one.policy);
        policy.is_some_and(|policy| policy.as_ref().map_or(true, |policy| policy.mode == Mode::Enforce))
    };
    for known in ctx.limits.state().nodes.values_mut() {
        known.freezes.retain(&stands);
    }
}

/// Takes back the freezes of pods that are gone or over, or whose name another has: after a drain the node's object is not to
/// show for the rest of the cool-down what waits for nobody. What cannot be read stays as it is.
pub(super) async fn release_ended(ctx: &Context, now: &Now) {
    let asked: Vec<LimitEntry> = {
        let mut state = ctx.limits.state();
        if state.looked.is_some_and(|at| now.stamp.since(at) < BETWEEN_LOOKS) {
            return;
        }
        state.looked = Some(now.stamp);
        state.nodes.values().flat_map(|known| known.freezes.iter().cloned()).collect()
    };
    let reads: Vec<_> = asked.iter().map(|entry| read_pod(&ctx.read, &entry.namespace, &entry.pod)).collect();
    let read = asked.iter().zip(all(AT_ONCE, reads).await);
    // By UID: what was asked for meanwhile is of a pod that was there.
    let ended: BTreeSet<&str> = read
        .filter(|(entry, pod)| pod.as_ref().is_ok_and(|pod| !lives(pod.as_ref(), &entry.pod_uid)))
        .map(|(entry, _)| entry.pod_uid.as_str())
        .collect();
    for known in ctx.limits.state().nodes.values_mut() {
        known.freezes.retain(|entry| !ended.contains(entry.pod_uid.as_str()));
    }
}

/// Whether what is there under a pod's name is that pod, and may still run.
fn lives(found: Option<&PodFacts>, uid: &str) -> bool {
    found.is_some_and(|facts| facts.pod.uid.as_str() == uid && !matches!(facts.phase.as_str(), "Succeeded" | "Failed"))
}

/// Takes a freeze back: the agent resumes the container as soon as its memory is free.
pub async fn release_freeze(ctx: &Context, node: &str, container: &ContainerId, now: &Now) {
    if let Some(known) = ctx.limits.state().nodes.get_mut(node) {
        known.freezes.retain(|entry| entry.container_id != container.as_str());
    }
    write(ctx, node, now).await;
}

/// How a freeze stands, as the agent read it back.
pub fn freeze_state(ctx: &Context, node: &str, container: &ContainerId, now: &Now) -> Option<LimitState> {
    Limits::of(ctx, node, container, now.instant).into_iter().find(|state| state.device == ALL_DEVICES)
}

/// Writes the node's object with its limits as they are.
async fn write(ctx: &Context, name: &str, now: &Now) {
    let limits: Vec<LimitEntry> = {
        let state = ctx.limits.state();
        let object = state.nodes.get(name).and_then(|known| known.object.as_ref());
        let entries = object.into_iter().flat_map(|object| &object.spec.limits);
        entries.filter(|entry| entry.freeze.is_none()).cloned().collect()
    };
    node::settle(ctx, name, limits, now).await;
}

fn has_exec_probe(pod: &Pod, container: &str) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut own = containers.filter(|own| own.name == container);
    own.any(|own| own.liveness_probe.as_ref().is_some_and(|probe| probe.exec.is_some()))
}

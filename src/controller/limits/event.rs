//! Events of limits: one when a limit of a container was first read back as applied, one when it cannot be applied, one when it
//! is let go. Flows in: what is wanted, what holds by the agents' word. Flows out: Events on pod and policy, not one for
//! each round or each step of a limit on its way down.

use gpumem_engine::decision::PodRef;
use gpumem_engine::quantity::Bytes;
use kube::runtime::events::EventType;

use super::{LimitState, Limits, Wanted, node};
use crate::api::node::{LimitEntry, LimitPhase};
use crate::controller::context::Context;
use crate::controller::now::Now;
use crate::controller::observe::Observed;
use crate::controller::report::event::{self, OfLimit};

/// Told in one round at most: an API server that hangs must not hold the round up. The rest waits for the next one; of more
/// limits than this that are let go at once the rest is not told.
const MAX: usize = 20;

/// How a limit stands, as far as people are told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Told {
    /// It holds.
    Holds,
    /// It cannot hold.
    Unsupported,
}

/// Tells what is new of limits. Before the nodes' objects are written: what they have no more, nobody knows afterwards.
pub async fn tell(ctx: &Context, observed: &[Observed], wanted: &[Wanted], now: &Now) {
    let mut left = MAX;
    for Wanted { node, entry } in wanted.iter().filter(|wanted| wanted.entry.bytes.is_some()) {
        let Some(state) = state(ctx, node, entry, now) else { continue };
        let told = match (state.phase, state.applied) {
            (LimitPhase::Applied, Some(_)) => Told::Holds,
            (LimitPhase::Unsupported | LimitPhase::Refused, _) => Told::Unsupported,
            _ => continue,
        };
        let key = (entry.container_id.clone(), entry.device.clone());
        let is_known = ctx.limits.state().told.get(&key) == Some(&told);
        if is_known || left == 0 {
            continue;
        }
        left -= 1;
        if say(ctx, observed, node, entry, &What::Now(told, &state)).await {
            ctx.limits.state().told.insert(key, told);
        }
    }
    let gone: Vec<(String, LimitEntry)> = ctx.limits.state().let_go(wanted);
    for (node, entry) in gone.into_iter().take(left) {
        let state = state(ctx, &node, &entry, now);
        let Some(held) = state.and_then(|state| state.applied) else { continue };
        // What ended with its container is no news.
        if ctx.fleet().runs(&node, &entry.container_id).is_some() {
            say(ctx, observed, &node, &entry, &What::LetGo(held)).await;
        }
        ctx.limits.state().told.remove(&(entry.container_id, entry.device));
    }
}

fn state(ctx: &Context, node: &str, entry: &LimitEntry, now: &Now) -> Option<LimitState> {
    let states = Limits::of(ctx, node, &entry.container_id.as_str().into(), now.instant);
    states.into_iter().find(|state| state.device == entry.device)
}

enum What<'a> {
    Now(Told, &'a LimitState),
    LetGo(Bytes),
}

/// False where it has to be told again.
async fn say(ctx: &Context, observed: &[Observed], node: &str, entry: &LimitEntry, what: &What<'_>) -> bool {
    let policy = observed.iter().find(|one| format!("{}/{}", one.key.namespace, one.key.name) == entry.policy);
    let name = entry.policy.rsplit('/').next().unwrap_or_default();
    let container = ctx.fleet().runs(node, &entry.container_id).unwrap_or_default();
    let place = format!("Container {container} of pod {}", entry.pod);
    let (type_, reason, note) = match what {
        What::Now(Told::Holds, state) => (
            EventType::Normal,
            "GpuMemoryLimited",
            format!(
                "{place} is held to {} of GPU memory by policy {name}, because {}. What it allocates beyond that fails, whatever \
                 the device has left. To allow more, raise growthLimit.ceiling; to end it, take LimitGrowth out of the policy's \
                 actions.",
                state.applied.unwrap_or_default(),
                entry.reason
            ),
        ),
        What::Now(Told::Unsupported, state) => (
            EventType::Warning,
            "GpuMemoryLimitNotApplied",
            format!(
                "{place} is not held to {} of GPU memory, as policy {name} asks: {}. Nothing keeps it from the memory of its \
                 neighbours; `kubectl gpumem doctor` says what its node can do.",
                state.desired.unwrap_or_default(),
                state.reason
            ),
        ),
        What::LetGo(held) => (
            EventType::Normal,
            "GpuMemoryLimitLetGo",
            format!(
                "{place} is no longer to be held to {held} of GPU memory: policy {name} {}.",
                if policy.is_some() { "does not ask for it any more" } else { "is gone" }
            ),
        ),
    };
    let pod = PodRef {
        namespace: entry.namespace.clone(),
        name: entry.pod.clone(),
        uid: entry.pod_uid.as_str().into(),
        node: node.to_owned(),
    };
    // A limit that comes back after its policy or the node's object changed is another one.
    let object = node::uid(ctx, node);
    let generation = policy.and_then(|one| one.object.metadata.generation).unwrap_or_default();
    let key = format!("{}\n{}\n{object}\n{generation}", entry.container_id, entry.device);
    event::limit(ctx, &OfLimit { key: &key, pod: &pod, policy: policy.map(|one| &*one.object), type_, reason, note })
        .await
}

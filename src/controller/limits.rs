//! Growth limits and freezes: what should hold on each node, written into its `GpuMemoryNode`, and what its agent read back.
//!
//! Flows in: what the policies with action LimitGrowth govern. Flows out: one object for each node where something is to
//! hold, with an expiry that is renewed, so that everything ends by itself once nobody renews it. Nothing is forced: a field
//! that somebody else owns stays theirs. Missing data changes nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gpumem_engine::decision::{self, Hold};
use gpumem_engine::growth::{self, Bound, Claim, Desired, Style, Subject};
use gpumem_engine::identity::{ContainerId, DeviceKey, PodUid};
use gpumem_engine::pacing::{Brake, Stamp};
use gpumem_engine::policy::{Enforcement, Mode, Policy, PolicyKey};
use gpumem_engine::quantity::Bytes;
use gpumem_engine::risk::Level;
use tracing::warn;

use super::context::Context;
use super::fleet::{Observation, Place};
use super::now::{Now, rfc3339};
use super::observe::{Memory, Observed};
use super::workload::check_namespace;
use crate::api::node::{GpuMemoryNode, LimitEntry, LimitPhase};

mod bounds;
mod event;
mod freeze;
mod node;
mod release;
mod tell;

pub use freeze::{FreezeRequest, Refusal, freeze_state, is_asked_for, may_freeze, release_freeze, request_freeze};
pub use node::status;
pub use release::{delete_all, release};
pub use tell::tell;

/// An entry that nobody renews ends after this long.
const LIFE: Duration = Duration::from_mins(10);
/// Entries are renewed when less than this is left of them.
const RENEW: Duration = Duration::from_mins(5);
/// What was read about a pod or namespace for a new limit is at most this old.
const CONFIRM_AGE: Duration = Duration::from_secs(10);
/// The objects are read again after this long, for what others did to them.
const RELIST: Duration = Duration::from_mins(1);
/// Whether the pods of freezes are still there is asked this often.
const BETWEEN_LOOKS: Duration = Duration::from_secs(10);

/// What is known about the node objects. All of it can be read from the API again.
#[derive(Debug, Default)]
pub struct Limits(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Since when this process leads: what it knew of an earlier term is old.
    term: Option<Instant>,
    nodes: BTreeMap<String, Known>,
    listed: Option<Stamp>,
    /// When it was last asked whether the pods of freezes are still there.
    looked: Option<Stamp>,
    /// Why node objects cannot be used here.
    unusable: Option<String>,
    /// Where each policy's limits are, or would be.
    lines: BTreeMap<PolicyKey, Vec<Line>>,
    /// Targets and since when they are in force.
    targets: HashMap<(String, String), (Bytes, Stamp)>,
    namespaces: HashMap<String, (Stamp, Result<(), Hold>)>,
    /// What people were told of limits, by container and device.
    told: HashMap<(String, String), event::Told>,
    /// What a container's spec says of its GPU memory.
    pairs: HashMap<(PodUid, String), Vec<(String, String)>>,
}

/// One node's object.
#[derive(Clone, Debug, Default)]
struct Known {
    object: Option<GpuMemoryNode>,
    /// Freezes that were asked for and not taken back.
    freezes: Vec<LimitEntry>,
}

/// One container on one device under one policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name of the pod.
    pub pod: String,
    /// Name of the container.
    pub container: String,
    /// Which device.
    pub device: String,
    /// Where the limit should be.
    pub desired: Desired,
    /// Whether it is asked for, or only said.
    pub asked: bool,
    /// How it stands, where it is asked for.
    pub state: Option<LimitState>,
}

/// How one container stands on one device, as the agent read it back: for whoever decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitState {
    /// The device as the entry names it.
    pub device: String,
    /// What should hold.
    pub desired: Option<Bytes>,
    /// What was read back.
    pub applied: Option<Bytes>,
    /// How it stands.
    pub phase: LimitPhase,
    /// Why.
    pub reason: String,
}

impl State {
    /// Limits that the nodes' objects have and nobody wants any more, each with its node.
    fn let_go(&self, wanted: &[Wanted]) -> Vec<(String, LimitEntry)> {
        let wanted: BTreeSet<(&str, &str)> = wanted.iter().map(|wanted| wanted.entry.key()).collect();
        let entries = self.nodes.iter().flat_map(|(node, known)| {
            known.object.iter().flat_map(|object| &object.spec.limits).map(move |entry| (node, entry))
        });
        let gone = entries.filter(|(_, entry)| entry.freeze.is_none() && !wanted.contains(&entry.key()));
        gone.map(|(node, entry)| (node.clone(), entry.clone())).collect()
    }
}

impl Limits {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How a container's limits and freezes stand, by the newest report of its node.
    pub fn of(ctx: &Context, node: &str, container: &ContainerId, now: Instant) -> Vec<LimitState> {
        let fleet = ctx.fleet();
        let Some((_, reports, _)) = fleet.limits(node, now) else { return Vec::new() };
        let own = reports.iter().filter(|report| report.container_id == *container);
        own.map(|report| LimitState {
            device: report.device.clone(),
            desired: report.desired,
            applied: report.applied,
            phase: report.state,
            reason: report.reason.clone(),
        })
        .collect()
    }
}

/// Where the limit of a container on a device stands, for whoever decides.
pub fn standing(
    ctx: &Context,
    node: &str,
    container: &ContainerId,
    device: &DeviceKey,
    now: &Now,
) -> decision::LimitState {
    use decision::LimitState as Known;
    let device = device.to_string();
    let key = (container.as_str().to_owned(), device.clone());
    let read_back = Limits::of(ctx, node, container, now.instant).into_iter().find(|state| state.device == device);
    // Since when nobody knows: that is no reason to wait for it.
    let since = || ctx.limits.state().targets.get(&key).map_or(Stamp(0), |(_, since)| *since);
    match read_back {
        Some(LimitState { phase: LimitPhase::Applied, applied: Some(bytes), .. }) => Known::Holds { bytes },
        Some(LimitState { phase: LimitPhase::Pending, .. }) => Known::Pending { since: since() },
        Some(LimitState {
            phase: LimitPhase::Unsupported | LimitPhase::Refused | LimitPhase::Drift, reason, ..
        }) => Known::Unsupported { why: reason },
        None if node::entry(ctx, node, &key).is_some() => Known::Pending { since: since() },
        // What is read back as frozen or without a size is no limit.
        Some(LimitState { phase: LimitPhase::Applied | LimitPhase::Frozen | LimitPhase::Cleared, .. }) | None => {
            Known::NotSet
        }
    }
}

/// A limit that the policies ask for.
struct Wanted {
    node: String,
    entry: LimitEntry,
}

/// Makes what holds follow from what was observed. Only the leader calls it, once a round.
pub async fn hold(ctx: &Context, memory: &mut Memory, observed: &[Observed], brake: &Brake, now: &Now) {
    begin_term(ctx);
    let is_asked = observed.iter().any(|one| one.policy.as_ref().is_ok_and(asks));
    if !is_asked && ctx.limits.state().nodes.is_empty() && ctx.limits.state().listed.is_some() {
        ctx.limits.state().lines.clear();
        return;
    }
    if !node::list(ctx, now).await {
        return;
    }
    freeze::release_orphans(ctx, observed);
    freeze::release_ended(ctx, now).await;
    let mut lines = BTreeMap::new();
    let mut wanted = Vec::new();
    for one in observed {
        let Ok(policy) = &one.policy else { continue };
        if asks(policy) {
            let found = limits_of(ctx, memory, policy, &one.containers, brake, now, &mut wanted).await;
            lines.insert(one.key.clone(), found);
        }
    }
    ctx.limits.state().lines = lines;
    event::tell(ctx, observed, &wanted, now).await;
    let mut nodes: BTreeSet<String> = ctx.limits.state().nodes.keys().cloned().collect();
    nodes.extend(wanted.iter().map(|wanted| wanted.node.clone()));
    for name in nodes {
        let own: Vec<LimitEntry> =
            wanted.iter().filter(|wanted| wanted.node == name).map(|wanted| wanted.entry.clone()).collect();
        node::settle(ctx, &name, own, now).await;
    }
    let mut state = ctx.limits.state();
    let alive: BTreeSet<(String, String)> =
        wanted.iter().map(|wanted| (wanted.entry.container_id.clone(), wanted.entry.device.clone())).collect();
    state.targets.retain(|key, _| alive.contains(key));
    // A node that is not heard of yet has nothing that is wanted, and its object still says what holds there.
    let State { nodes, told, .. } = &mut *state;
    let written: BTreeSet<(&str, &str)> = nodes
        .values()
        .flat_map(|known| &known.object)
        .flat_map(|object| &object.spec.limits)
        .map(LimitEntry::key)
        .collect();
    told.retain(|key, _| alive.contains(key) || written.contains(&(&*key.0, &*key.1)));
    state.namespaces.retain(|_, (at, _)| now.stamp.since(*at) < LIFE);
}

/// Forgets what was known before this process began to lead: somebody else may have written since.
fn begin_term(ctx: &Context) {
    let since = ctx.leadership.borrow().since;
    let mut state = ctx.limits.state();
    if state.term != Some(since) {
        *state = State { term: Some(since), ..State::default() };
    }
}

fn asks(policy: &Policy) -> bool {
    policy.actions.limit_growth && policy.growth.is_some()
}

/// The limits of one policy's containers; those that are to be enforced are added to `wanted`.
async fn limits_of(
    ctx: &Context,
    memory: &mut Memory,
    policy: &Policy,
    containers: &[(Observation, Level)],
    brake: &Brake,
    now: &Now,
    wanted: &mut Vec<Wanted>,
) -> Vec<Line> {
    let Some(limit) = policy.growth else { return Vec::new() };
    let is_enforced = policy.mode == Mode::Enforce && limit.enforcement == Enforcement::Kernel;
    // A pause stops what is new and leaves what holds.
    let is_paused = !policy.paused.is_empty() || *brake != Brake::Released;
    let mut lines = Vec::new();
    for (observation, level) in containers {
        let pod = &observation.pod;
        let places = ctx.fleet().places(now.instant, &observation.node, &pod.uid, &observation.container);
        for place in places {
            let key = (place.container_id.as_str().to_owned(), place.device.to_string());
            let present = node::entry(ctx, &observation.node, &key);
            let is_stale = place.sample_age > policy.prediction.max_sample_age;
            if is_stale || is_paused {
                // As it stands; what is stale for long ends by not being renewed.
                if let Some(entry) = present.filter(|_| is_enforced) {
                    wanted.push(Wanted { node: observation.node.clone(), entry: node::kept(entry, !is_stale, now) });
                }
                continue;
            }
            let state = Limits::of(ctx, &observation.node, &place.container_id, now.instant)
                .into_iter()
                .find(|state| state.device == key.1);
            let Some(bounds) = bounds::of(ctx, observation, &place).await else { continue };
            let found = desire(ctx, policy, &limit, observation, *level, &place, state.as_ref(), bounds, now);
            let Some(desired) = found else {
                continue;
            };
            let is_managed = matches!(desired.cause, growth::Cause::ManagedBy(_));
            let mut asked = is_enforced && !is_managed;
            if asked && present.is_none() {
                asked = may_begin(ctx, memory, policy, observation, now).await.is_ok();
            }
            if asked {
                remember_target(ctx, &key, desired.target, now);
                let entry = LimitEntry {
                    pod_uid: pod.uid.as_str().to_owned(),
                    namespace: pod.namespace.clone(),
                    pod: pod.name.clone(),
                    container_id: key.0,
                    device: key.1.clone(),
                    bytes: i64::try_from(desired.target.0).ok(),
                    freeze: None,
                    policy: format!("{}/{}", policy.key.namespace, policy.key.name),
                    reason: crate::text::shorten(&desired.reason, 500),
                    expires: rfc3339(now.stamp + LIFE),
                };
                wanted.push(Wanted { node: observation.node.clone(), entry });
            }
            lines.push(Line {
                pod: pod.name.clone(),
                container: observation.container.clone(),
                device: key.1,
                desired,
                asked,
                state: state.filter(|_| asked),
            });
        }
    }
    lines
}

#[allow(clippy::too_many_arguments, reason = "one for each thing a limit follows from")]
fn desire(
    ctx: &Context,
    policy: &Policy,
    limit: &gpumem_engine::policy::GrowthLimit,
    observation: &Observation,
    level: Level,
    place: &Place,
    state: Option<&LimitState>,
    bounds: Vec<Bound>,
    now: &Now,
) -> Option<Desired> {
    let is_young = place.age < policy.prediction.warm_up;
    let key = (place.container_id.as_str().to_owned(), place.device.to_string());
    let previous = ctx.limits.state().targets.get(&key).copied();
    let subject = Subject {
        used: place.used,
        minute_floor: (!is_young).then_some(place.minute_floor),
        pressure: level == Level::High && observation.device == place.device,
        newcomer: is_young,
        applied: state.and_then(|state| state.applied),
        bounds,
        previous: previous.map(|(bytes, since)| (bytes, now.stamp.since(since))),
    };
    let claim = Claim { policy: policy.key.clone(), limit: *limit, headroom: policy.headroom };
    growth::desire(&place.room, &subject, &[claim], Style::Contain)
}

/// Before the first limit of a container the API has to confirm the pod, and nobody may have opted out.
async fn may_begin(
    ctx: &Context,
    memory: &mut Memory,
    policy: &Policy,
    observation: &Observation,
    now: &Now,
) -> Result<(), Hold> {
    let facts = memory.confirmed(ctx, now, &observation.node, &observation.pod, CONFIRM_AGE).await?;
    facts.check(&policy.disruption.protect)?;
    let namespace = &observation.pod.namespace;
    let known = ctx.limits.state().namespaces.get(namespace).cloned();
    if let Some((_, answer)) = known.filter(|(at, _)| now.stamp.since(*at) < CONFIRM_AGE) {
        return answer;
    }
    let answer = check_namespace(&ctx.read, namespace).await;
    if let Err(why) = &answer {
        warn!(namespace, %why, "no limit is begun in this namespace");
    }
    ctx.limits.state().namespaces.insert(namespace.clone(), (now.stamp, answer.clone()));
    answer
}

fn remember_target(ctx: &Context, key: &(String, String), target: Bytes, now: &Now) {
    let mut state = ctx.limits.state();
    if state.targets.get(key).is_none_or(|(known, _)| *known != target) {
        state.targets.insert(key.clone(), (target, now.stamp));
    }
}

/// The lines of one policy, for its status.
fn lines(ctx: &Context, policy: &PolicyKey) -> Vec<Line> {
    ctx.limits.state().lines.get(policy).cloned().unwrap_or_default()
}

//! From policies and the fleet's reports to [`View`]s: which pods each policy governs, and how they fare under it.
//!
//! Flows in: policies, and for each the containers that agents reported in its namespace. Flows out: one [`Observed`] per
//! policy. A pod that looks at risk is believed only after the API confirmed its UID, node, labels and owner; there is no
//! watch on pods. Where several policies select a pod, one governs it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use gpumem_engine::decision::{CheckpointState, Hold, PodRef, View, Workload};
use gpumem_engine::forecast::{Outlook, Unknown};
use gpumem_engine::identity::PodUid;
use gpumem_engine::pacing::{History, WorkloadUid};
use gpumem_engine::policy::{Mode, Policy, PolicyKey};
use gpumem_engine::risk::Level;

use super::context::Context;
use super::fleet::Observation;
use super::limits;
use super::now::Now;
use super::stock::Stock;
use super::workload::{Chain, Resolution};
use crate::api::convert::{self, Rejection};
use crate::api::policy::GpuMemoryPolicy;
use crate::api::usage::PodReport;

pub mod ahead;
mod checkpoint;
mod memory;
mod target;

pub use memory::{Looked, Memory};
pub(super) use target::Selection;

/// One policy, and the pods it governs.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The object.
    pub object: Arc<GpuMemoryPolicy>,
    /// Its name.
    pub key: PolicyKey,
    /// What it says, or the field that is wrong.
    pub policy: Result<Policy, Rejection>,
    /// The pods it governs.
    pub views: Vec<View>,
    /// Every container behind `views`, with its level.
    pub containers: Vec<(Observation, Level)>,
    /// Names of policies that govern pods this one selects too, with how many.
    pub lost_to: BTreeMap<String, usize>,
    /// Containers whose newest sample is too old.
    pub stale: usize,
    /// What is remembered of the workloads that a decision is due about.
    pub histories: HashMap<WorkloadUid, History>,
    /// The levers of the pods that a decision is due about.
    pub levers: HashMap<PodUid, Resolution>,
    /// Why nothing is done for this policy at all, whatever its pods are like.
    pub barred: Result<(), Hold>,
}

/// A pod at risk is read again when the last read is older: long enough to spare the API server, short beside any dwell.
const CONFIRM_AGE: Duration = Duration::from_secs(10);
/// What a decision rests on is at most this old; the act reads all of it again.
const DECIDE_AGE: Duration = Duration::from_secs(3);

/// Observes every policy. `fetch` gives the containers of a policy's namespace that its closure picks, under the policy's
/// question.
pub async fn observe(
    ctx: &Context,
    memory: &mut Memory,
    policies: &[Arc<GpuMemoryPolicy>],
    stock: &Stock,
    now: &Now,
    mut fetch: impl FnMut(&Policy, &dyn Fn(&PodReport) -> bool) -> Vec<Observation>,
) -> Vec<Observed> {
    let mut observed = Vec::new();
    let mut claims = target::Claims::default();
    for object in policies {
        let mut one = accept(ctx, stock, object);
        if let Ok(policy) = &one.policy {
            let selected = match Selection::of(&object.spec.target) {
                Ok(selection) => {
                    let found = fetch(policy, &|pod| selection.may_select(pod));
                    selection.narrow(ctx, memory, now, found).await
                }
                Err(rejection) => {
                    one.policy = Err(rejection);
                    Vec::new()
                }
            };
            claims.add(object, selected);
        } else {
            claims.add(object, Vec::new());
        }
        observed.push(one);
    }
    let settled = claims.settle(policies);
    let mut found = Vec::new();
    for (place, (one, governed)) in observed.iter_mut().zip(settled).enumerate() {
        one.lost_to = governed.lost_to;
        let Ok(policy) = one.policy.clone() else { continue };
        for (pod, containers) in by_pod(governed.containers) {
            let tied = governed.tied.get(&pod).cloned();
            found.extend(Seen::of(memory, now, &policy, place, containers, tied));
        }
    }
    learn(ctx, memory, stock, now, &observed, &found).await;
    for seen in found.into_iter().filter(|seen| !seen.is_terminating) {
        let one = &mut observed[seen.place];
        let Ok(policy) = one.policy.clone() else { continue };
        view(ctx, memory, stock, now, &policy, one, seen).await;
    }
    let keys: Vec<PolicyKey> = observed.iter().map(|one| one.key.clone()).collect();
    memory.forget_gone(now, &keys);
    observed
}

fn accept(ctx: &Context, stock: &Stock, object: &Arc<GpuMemoryPolicy>) -> Observed {
    let key = key_of(object);
    let policy = convert::policy(key.clone(), &object.spec, ctx.max_mode);
    let barred = match (&policy, &stock.limits) {
        (Ok(policy), _) if !policy.actions.act() || policy.mode == Mode::Observe => Ok(()),
        (Ok(policy), Ok(limits)) => limits.allow(&key.namespace).and_then(|()| ctx.granted.check(&policy.actions)),
        // Where the limits cannot be read, the brake says so.
        (Ok(policy), Err(_)) => ctx.granted.check(&policy.actions),
        (Err(_), _) => Ok(()),
    };
    Observed {
        policy,
        barred,
        object: Arc::clone(object),
        key,
        views: Vec::new(),
        containers: Vec::new(),
        lost_to: BTreeMap::new(),
        stale: 0,
        histories: HashMap::new(),
        levers: HashMap::new(),
    }
}

/// Namespace and name of a policy.
pub fn key_of(object: &GpuMemoryPolicy) -> PolicyKey {
    PolicyKey {
        namespace: object.metadata.namespace.clone().unwrap_or_default(),
        name: object.metadata.name.clone().unwrap_or_default(),
    }
}

fn by_pod(containers: Vec<Observation>) -> BTreeMap<PodUid, Vec<Observation>> {
    let mut pods = BTreeMap::<PodUid, Vec<Observation>>::new();
    for observation in containers {
        pods.entry(observation.pod.uid.clone()).or_default().push(observation);
    }
    pods
}

/// A pod as its agent reports it: its worst container stands for it.
struct Seen {
    /// Which of the policies governs it.
    place: usize,
    levels: Vec<(Observation, Level)>,
    worst: Observation,
    level: Level,
    /// Another policy of the same rank.
    tied: Option<String>,
    /// It ends by itself; what it held is on its way back.
    is_terminating: bool,
}

impl Seen {
    fn of(
        memory: &mut Memory,
        now: &Now,
        policy: &Policy,
        place: usize,
        containers: Vec<Observation>,
        tied: Option<String>,
    ) -> Option<Self> {
        let levels: Vec<(Observation, Level)> = containers
            .into_iter()
            .map(|observation| {
                let level = memory.level(now, policy, &observation, &observation.forecast);
                (observation, level)
            })
            .collect();
        let is_terminating = levels.iter().any(|(observation, _)| observation.pod.terminating);
        let worst = levels.iter().max_by(|(a, a_level), (b, b_level)| {
            (*a_level, probability(a)).partial_cmp(&(*b_level, probability(b))).unwrap_or(std::cmp::Ordering::Equal)
        });
        let (worst, level) = worst.cloned()?;
        Some(Self { place, levels, worst, level, tied, is_terminating })
    }

    /// Whether something is to be done about it, if it may be.
    fn wants_action(&self, policy: &Policy) -> bool {
        self.level == Level::High && policy.actions.act() && policy.mode > Mode::Observe
    }

    /// Why nothing is done about it, whatever the API says of it.
    fn barred(&self, one: &Observed) -> Result<(), Hold> {
        one.barred.clone()?;
        self.tied.clone().map_or(Ok(()), |with| Err(Hold::Tied { with }))
    }
}

/// Reads what views of these pods rest on, as far as it is not known.
async fn learn(ctx: &Context, memory: &mut Memory, stock: &Stock, now: &Now, observed: &[Observed], found: &[Seen]) {
    ahead::chains(ctx, memory, now, found.iter().filter(|seen| !seen.is_terminating).map(|seen| &*seen.worst.pod))
        .await;
    let is_due = |memory: &Memory, seen: &Seen| {
        let one = &observed[seen.place];
        let wants = one.policy.as_ref().is_ok_and(|policy| seen.wants_action(policy));
        wants && seen.barred(one).is_ok() && memory.candidate(now, &one.key, &seen.worst.pod.uid).is_none()
    };
    let conflicts: HashSet<PodUid> = ctx.fleet().conflicts().into_iter().map(|(pod, _)| pod).collect();
    let age = |seen: &Seen| {
        let uid = &seen.worst.pod.uid;
        if !seen.is_terminating && (is_due(memory, seen) || stock.request(uid).is_some()) {
            return Some(DECIDE_AGE);
        }
        // Where several nodes claim it, what the API says settles it, for the next round.
        let is_doubtful = conflicts.contains(uid) || (!seen.is_terminating && seen.level >= Level::Elevated);
        is_doubtful.then_some(CONFIRM_AGE)
    };
    let pods: Vec<_> = found.iter().filter_map(|seen| Some((&*seen.worst.pod, age(seen)?))).collect();
    ahead::pods(ctx, memory, now, &pods).await;
    let candidates: Vec<&Seen> = found.iter().filter(|seen| !seen.is_terminating && is_due(memory, seen)).collect();
    let mut due = Vec::new();
    for seen in candidates {
        if memory.confirmed(ctx, now, &seen.worst.node, &seen.worst.pod, CONFIRM_AGE).await.is_ok() {
            let chain = memory.chain(ctx, now, &seen.worst.pod).await;
            due.push(ahead::Due { place: seen.place, worst: seen.worst.clone(), chain });
        }
    }
    ahead::looks(ctx, memory, now, observed, &due).await;
}

/// Adds the view of one pod. Everything it rests on was read before.
async fn view(
    ctx: &Context,
    memory: &mut Memory,
    stock: &Stock,
    now: &Now,
    policy: &Policy,
    one: &mut Observed,
    seen: Seen,
) {
    one.stale += seen.levels.iter().filter(|(observation, _)| is_stale(policy, observation)).count();
    let chain = memory.chain(ctx, now, &seen.worst.pod).await;
    let workload = chain.top().cloned().unwrap_or_else(|| pod_as_workload(&seen.worst.pod));
    let mut standing = Err(Hold::ModeObserve);
    let mut started = None;
    let mut seen = seen;
    if seen.level >= Level::Elevated {
        if let Err(why) = memory.confirmed(ctx, now, &seen.worst.node, &seen.worst.pod, CONFIRM_AGE).await {
            // What the API does not confirm is no knowledge: neither a risk nor its absence.
            seen.level = Level::Unknown;
            seen.worst.forecast.outlook = Outlook::Unknown { why: Unknown::NoData };
            seen.worst.forecast.reason = why.to_string();
            for (_, level) in &mut seen.levels {
                *level = Level::Unknown;
            }
        }
        if seen.wants_action(policy) {
            standing = match seen.barred(one) {
                Err(why) => Err(why),
                Ok(()) => stand(memory, now, one, &seen.worst, &chain).map(|looked| {
                    started = looked.started;
                    looked.standing
                }),
            };
        }
    }
    let Seen { levels, worst, level, .. } = seen;
    let uid = worst.pod.uid.clone();
    let checkpoint = match stock.request(&uid) {
        Some(request) => checkpoint::state(ctx, memory, now, request, &worst).await,
        None => CheckpointState::NotRequested,
    };
    let high_since = memory.high_since(now, &policy.key, &uid, level);
    let places = ctx.fleet().places(now.instant, &worst.node, &uid, &worst.container);
    let place = places.into_iter().find(|place| place.device == worst.device);
    one.views.push(View {
        pod: PodRef {
            namespace: worst.pod.namespace.clone(),
            name: worst.pod.name.clone(),
            uid: uid.clone(),
            node: worst.node.clone(),
        },
        workload,
        container: worst.container.clone(),
        device: worst.device.clone(),
        used: worst.used,
        level,
        forecast: worst.forecast.clone(),
        sample_age: worst.sample_age,
        standing,
        checkpoint,
        notified: memory.notified.get(&(policy.key.clone(), uid)).copied(),
        age: started.map(|started| now.stamp.since(started)),
        high_since,
        shared: place.as_ref().is_some_and(|place| place.shared),
        room: place.map(|place| place.room.usable - place.room.unattributed - place.room.neighbours),
        limit: limits::standing(ctx, &worst.node, &worst.container_id, &worst.device, now),
    });
    one.containers.extend(levels);
}

/// Whether a pod may be acted on, as it was read at most [`DECIDE_AGE`] ago.
fn stand(memory: &Memory, now: &Now, one: &mut Observed, worst: &Observation, chain: &Chain) -> Result<Looked, Hold> {
    let unread = || Hold::PodUnverified { why: "it was not read".to_owned() };
    let looked = memory.candidate(now, &one.key, &worst.pod.uid).cloned().ok_or_else(unread)??;
    if let Some(top) = chain.top() {
        one.histories.insert(top.uid.clone(), looked.history.clone());
    }
    one.levers.insert(worst.pod.uid.clone(), looked.levers.clone());
    Ok(looked)
}

fn is_stale(policy: &Policy, observation: &Observation) -> bool {
    observation.sample_age > policy.prediction.max_sample_age
        || matches!(observation.forecast.outlook, Outlook::Unknown { why: Unknown::Stale | Unknown::NoData })
}

fn probability(observation: &Observation) -> f64 {
    match observation.forecast.outlook {
        Outlook::Known { probability, .. } => probability,
        Outlook::Unknown { .. } => -1.0,
    }
}

/// A pod without an owner stands for itself.
pub fn pod_as_workload(pod: &PodReport) -> Workload {
    Workload {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.name.clone(),
        uid: WorkloadUid(pod.uid.as_str().to_owned()),
    }
}

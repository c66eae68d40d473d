//! What a round needs to know from the API, read many at a time before anything is made of it.
//!
//! Flows in: the pods that policies govern. Flows out: what was read, into [`Memory`]; everything after it is in order and
//! waits for nobody. One by one, a hundred pods at risk take as many times as long as the API server takes for one, and by the
//! end the first of the answers are old. What pods of one workload or namespace share is read once a round.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use gpumem_engine::decision::{Hold, Standing, Workload};
use gpumem_engine::identity::PodUid;
use gpumem_engine::pacing::{Group, History, Stamp, WorkloadUid};
use gpumem_engine::policy::Policy;

use super::memory::{Candidate, read_reported};
use super::{DECIDE_AGE, Looked, Memory, Observation, Observed};
use crate::api::usage::PodReport;
use crate::controller::at_once::{AT_ONCE, all};
use crate::controller::context::Context;
use crate::controller::now::Now;
use crate::controller::profile;
use crate::controller::workload::{Budgets, Chain, PodFacts, check_namespace, read_group, resolve};

/// The owners of these pods, as far as they are not known.
pub async fn chains<'a>(ctx: &Context, memory: &mut Memory, now: &Now, pods: impl Iterator<Item = &'a PodReport>) {
    let missing: BTreeMap<&PodUid, &PodReport> =
        pods.filter(|pod| memory.known_chain(now, &pod.uid).is_none()).map(|pod| (&pod.uid, pod)).collect();
    let reads: Vec<_> = missing.into_values().map(|pod| climb(ctx, memory, pod)).collect();
    let climbed = all(AT_ONCE, reads).await;
    for (pod, chain) in climbed {
        memory.learn_chain(now, pod, chain);
    }
}

async fn climb(ctx: &Context, memory: &Memory, pod: &PodReport) -> (PodUid, Chain) {
    (pod.uid.clone(), memory.hops.climb(&ctx.read, &pod.namespace, pod.owner.as_ref()).await)
}

/// What the API says of these pods, where it was read longer ago than the age that goes with each.
pub async fn pods(ctx: &Context, memory: &mut Memory, now: &Now, pods: &[(&PodReport, Duration)]) {
    let is_due = |pod: &PodReport, age: Duration| !memory.knows_pod(now, &pod.uid, age);
    let due: BTreeMap<&PodUid, &PodReport> =
        pods.iter().filter(|(pod, age)| is_due(pod, *age)).map(|(pod, _)| (&pod.uid, *pod)).collect();
    let reads: Vec<_> = due.into_values().map(|pod| read(ctx, pod)).collect();
    let facts = all(AT_ONCE, reads).await;
    for (pod, facts) in facts {
        let _ = memory.learn_pod(ctx, now, pod, facts);
    }
}

async fn read<'a>(ctx: &Context, pod: &'a PodReport) -> (&'a PodReport, Result<Option<PodFacts>, Hold>) {
    (pod, read_reported(ctx, pod).await)
}

/// A pod that something may be done about.
#[derive(Clone, Debug)]
pub struct Due {
    /// Which of the policies governs it.
    pub place: usize,
    /// The container at risk.
    pub worst: Observation,
    /// Its owners.
    pub chain: Chain,
}

/// One that may be acted on as far as its own facts go, and its top owner.
struct Open<'a> {
    due: &'a Due,
    policy: &'a Policy,
    facts: PodFacts,
    top: &'a Workload,
}

/// Where these pods stand, into [`Memory::candidates`].
pub async fn looks(ctx: &Context, memory: &mut Memory, now: &Now, observed: &[Observed], due: &[Due]) {
    let mut found: Vec<(&Due, Candidate)> = Vec::new();
    let mut open = Vec::new();
    for due in due {
        let Ok(policy) = &observed[due.place].policy else { continue };
        match first(ctx, memory, now, due, policy).await {
            Ok(one) => open.push(one),
            Err(why) => found.push((due, Err(why))),
        }
    }
    let namespaces = namespaces(ctx, &open).await;
    let mut left = Vec::new();
    for one in open {
        match namespaces.get(&one.due.worst.pod.namespace) {
            Some(Err(why)) => found.push((one.due, Err(why.clone()))),
            Some(Ok(())) | None => left.push(one),
        }
    }
    let (budgets, groups) = (budgets(ctx, &left).await, groups(ctx, &left, now.stamp).await);
    let reads: Vec<_> = left.iter().map(|one| stands(ctx, memory, now, one, &budgets, &groups)).collect();
    let looked = all(AT_ONCE, reads).await;
    found.extend(left.iter().map(|one| one.due).zip(looked));
    for (due, candidate) in found {
        let key = observed[due.place].key.clone();
        memory.candidates.insert((key, due.worst.pod.uid.clone()), (now.stamp, candidate));
    }
}

/// What its own facts say; they were read just before.
async fn first<'a>(
    ctx: &Context,
    memory: &mut Memory,
    now: &Now,
    due: &'a Due,
    policy: &'a Policy,
) -> Result<Open<'a>, Hold> {
    let facts = memory.confirmed(ctx, now, &due.worst.node, &due.worst.pod, DECIDE_AGE).await?;
    facts.check(&policy.disruption.protect)?;
    due.chain.standing.clone()?;
    let top = due.chain.top().ok_or_else(|| Hold::OwnerUnknown { why: "it has none".to_owned() })?;
    Ok(Open { due, policy, facts, top })
}

async fn namespaces(ctx: &Context, open: &[Open<'_>]) -> BTreeMap<String, Result<(), Hold>> {
    let names: BTreeSet<&str> = open.iter().map(|one| one.due.worst.pod.namespace.as_str()).collect();
    let reads = names.iter().map(|name| check_namespace(&ctx.read, name));
    let checked = all(AT_ONCE, reads.collect::<Vec<_>>()).await;
    names.into_iter().map(str::to_owned).zip(checked).collect()
}

/// By namespace.
async fn budgets(ctx: &Context, open: &[Open<'_>]) -> BTreeMap<String, Result<Budgets, Hold>> {
    let names: BTreeSet<&str> = open.iter().map(|one| one.due.worst.pod.namespace.as_str()).collect();
    let reads = names.iter().map(|name| list_budgets(ctx, name));
    let listed = all(AT_ONCE, reads.collect::<Vec<_>>()).await;
    names.into_iter().map(str::to_owned).zip(listed).collect()
}

async fn list_budgets(ctx: &Context, namespace: &str) -> Result<Budgets, Hold> {
    Budgets::list(&ctx.read, namespace).await.map_err(crate::controller::workload::Error::into_hold)
}

/// A workload's group, and what is remembered of it.
type Known = (Result<Group, Hold>, Result<History, Hold>);

async fn groups(ctx: &Context, open: &[Open<'_>], now: Stamp) -> HashMap<WorkloadUid, Known> {
    let workloads: BTreeMap<&WorkloadUid, (&str, &Workload)> =
        open.iter().map(|one| (&one.top.uid, (one.due.worst.pod.namespace.as_str(), one.top))).collect();
    let reads = workloads.values().map(|(namespace, workload)| group(ctx, namespace, workload, now));
    // Each of them is two requests at once.
    let read = all(AT_ONCE / 2, reads.collect::<Vec<_>>()).await;
    workloads.into_keys().cloned().zip(read).collect()
}

async fn group(ctx: &Context, namespace: &str, workload: &Workload, now: Stamp) -> Known {
    let (group, history) =
        tokio::join!(read_group(&ctx.read, namespace, workload), profile::read(&ctx.read, namespace, workload, now));
    let gone = || Hold::OwnerUnknown { why: format!("{} {} is gone", workload.kind, workload.name) };
    let history = history.map_err(|error| Hold::LedgerUnreadable { why: error.to_string() });
    (group.and_then(|group| group.ok_or_else(gone)), history)
}

async fn stands(
    ctx: &Context,
    memory: &Memory,
    now: &Now,
    one: &Open<'_>,
    budgets: &BTreeMap<String, Result<Budgets, Hold>>,
    groups: &HashMap<WorkloadUid, Known>,
) -> Candidate {
    let Open { due, policy, facts, top } = one;
    // Each of them was read for all that are here.
    let unread = || Hold::OwnerUnknown { why: "it was not read".to_owned() };
    let (group, history) = groups.get(&top.uid).cloned().ok_or_else(unread)?;
    let budgets = budgets.get(&due.worst.pod.namespace).ok_or_else(unread)?.as_ref().map_err(Clone::clone)?;
    let mut group = group?;
    group.budgets = budgets.selecting(&facts.labels);
    let history = history?;
    let levers = resolve(&ctx.read, &ctx.workload_kinds, &memory.hops, now.stamp, policy, &due.chain, facts).await;
    let standing = Standing { group, ready: facts.ready, levers: levers.levers(), grace: facts.grace };
    Ok(Looked { standing, history, levers, started: facts.started.get(&due.worst.container).copied() })
}

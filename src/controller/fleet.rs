//! What every agent reported, merged: the series of every container, and what is known of its node and pod.
//!
//! Flows in: [`UsageReport`](crate::api::usage::UsageReport)s with the node the API says their agent runs on, and when they
//! arrived. Flows out: [`Observation`]s. Pure: no I/O, `now` is an argument.
//!
//! Time: a report carries its node's monotonic clock. What that clock shows later is computed from how long ago, on our
//! own monotonic clock, the report arrived. No wall clock takes part, so a node with a wrong one is forecast as well as any.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpumem_engine::forecast::Forecast;
use gpumem_engine::identity::{ContainerId, DeviceKey, PodUid};
use gpumem_engine::policy::Policy;
use gpumem_engine::quantity::Bytes;

use crate::api::usage::{Abilities, Cursor, DeviceReport, NvmlState, PodReport, SeriesData, SeriesReport, UsageReport};

mod check;

pub mod declared;
mod held;
mod limits;

mod ended;

mod node;

mod observe;
mod refusals;

pub mod shared;

mod prospect;

pub use check::Fault;
pub use ended::{EndKey, Ended};
pub use limits::Place;
pub use observe::Seen;
pub use prospect::{Prospect, Room};

use declared::Declaration;
use node::Node;
use observe::Ask;

/// One container that holds GPU memory, with the forecast of its worst device under one policy's question.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Node whose agent reported it: the API's name of the node, not the report's.
    pub node: String,
    /// Its pod as the agent's watch shows it; believed only after the API confirmed UID and node. Shared with the fleet:
    /// copies of labels would be most of what an evaluation costs.
    pub pod: Arc<PodReport>,
    /// Name in the pod's spec.
    pub container: String,
    /// Current instance.
    pub container_id: ContainerId,
    /// Its worst device: the one `forecast` speaks of.
    pub device: DeviceKey,
    /// Memory on that device in the newest sample.
    pub used: Bytes,
    /// The forecast; `Unknown` when data is old, missing or doubtful.
    pub forecast: Forecast,
    /// Age of the newest sample now.
    pub sample_age: Duration,
    /// Highest memory of this run on that device.
    pub peak: Bytes,
}

/// Nothing is heard of a node, a device or a container for so long: it is forgotten. Longer than the kubelet's longest
/// back-off between restarts (5 min), so that a crash loop keeps its earlier attempts.
pub const FORGET: Duration = Duration::from_mins(15);

/// What became of one report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// False where the report was refused as a whole.
    pub accepted: bool,
    /// New points taken.
    pub points: u64,
    /// What was dropped, by kind.
    pub faults: BTreeMap<Fault, u32>,
    /// The agent had restarted since the last report of this boot.
    pub restarted: bool,
    /// The node had rebooted since the last report.
    pub rebooted: bool,
}

impl Merged {
    fn refused(fault: Fault) -> Self {
        Self { faults: BTreeMap::from([(fault, 1)]), ..Self::default() }
    }

    fn drop(&mut self, fault: Fault) {
        *self.faults.entry(fault).or_default() += 1;
    }
}

/// How much the fleet holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Nodes heard of.
    pub nodes: usize,
    /// Their devices.
    pub devices: usize,
    /// Pods with a series.
    pub pods: usize,
    /// Series, those of containers that hold nothing now included.
    pub series: usize,
    /// Pods claimed by several nodes and not settled.
    pub conflicts: usize,
}

/// Everything the agents reported.
#[derive(Debug, Default)]
pub struct Fleet {
    nodes: BTreeMap<Arc<str>, Node>,
    /// Which nodes claim a pod. More than one means that an agent lies or errs.
    claims: HashMap<PodUid, BTreeSet<Arc<str>>>,
    /// The API's word on where a pod runs, for pods still claimed by somebody.
    settled: HashMap<PodUid, Option<String>>,
    ends: ended::Ends,
}

impl Fleet {
    /// Takes a report that the agent on `node` (the API's word) gave at `received`. Whatever is wrong with it is left out
    /// and counted; nothing in it can do more harm than that.
    pub fn merge(&mut self, node: &str, report: UsageReport, received: Instant) -> Merged {
        let known = self.nodes.get(node);
        if let Err(fault) = check::report(&report, node, known) {
            return Merged::refused(fault);
        }
        let mut merged = Merged { accepted: true, ..Merged::default() };
        let report = check::entries(report, &mut merged);
        let name: Arc<str> = self.nodes.get_key_value(node).map_or_else(|| node.into(), |(name, _)| Arc::clone(name));
        let kept = self.nodes.entry(Arc::clone(&name)).or_insert_with(|| Node::new(&report, received));
        let mut moved = kept.merge(report, received, &mut merged);
        self.ends.take(&name, std::mem::take(&mut moved.ended), received);
        for pod in &moved.gone {
            unclaim(&mut self.claims, &mut self.settled, pod, &name);
        }
        let foreign = if self.settled.is_empty() {
            0
        } else {
            kept.pods.keys().filter(|pod| is_foreign(&self.settled, pod, &name)).count()
        };
        for _ in 0..foreign {
            merged.drop(Fault::ForeignPod);
        }
        // Of a pod without a single series nothing was kept, so there is nothing to claim.
        for pod in moved.new.into_iter().filter(|pod| kept.pods.contains_key(pod)) {
            self.claims.entry(pod).or_default().insert(Arc::clone(&name));
        }
        merged
    }

    /// Takes a node's state from a peer, unless the agent itself was heard already.
    pub fn adopt(&mut self, report: UsageReport, received: Instant) -> Merged {
        if self.nodes.contains_key(report.node.as_str()) {
            return Merged::default();
        }
        let node = report.node.clone();
        self.merge(&node, report, received)
    }

    /// The state of the first node after `after` in the order of names, for a peer; `None` at the end.
    pub fn export(&self, after: &str, now: Instant) -> Option<UsageReport> {
        let range = (Bound::Excluded(after), Bound::Unbounded);
        let (name, node) = self.nodes.range::<str, _>(range).next()?;
        Some(node.export(name, now))
    }

    /// The cursor to give the agent of this node.
    pub fn cursor(&self, node: &str) -> Option<Cursor> {
        self.nodes.get(node).map(|node| node.cursor)
    }

    /// Forgets nodes without an agent (`agents` lists the nodes that have one) that were silent for [`FORGET`]. The delay
    /// carries a node over a rolling update of the agents.
    pub fn forget(&mut self, now: Instant, agents: &BTreeSet<String>) {
        let gone: Vec<Arc<str>> = self
            .nodes
            .iter()
            .filter(|(name, node)| !agents.contains(&***name) && now.saturating_duration_since(node.received) > FORGET)
            .map(|(name, _)| Arc::clone(name))
            .collect();
        for name in gone {
            if let Some(node) = self.nodes.remove(&name) {
                for pod in node.pods.keys() {
                    unclaim(&mut self.claims, &mut self.settled, pod, &name);
                }
            }
        }
    }

    /// Observes every container that holds GPU memory in `namespace`, of the pods that `select` picks, under the policy's
    /// question. Containers the policy does not look at are left out.
    pub fn observe(
        &mut self,
        now: Instant,
        namespace: &str,
        select: impl Fn(&PodReport) -> bool,
        policy: &Policy,
    ) -> Vec<Observation> {
        let mut observations = Vec::new();
        self.observe_after("", usize::MAX, now, namespace, select, policy, &mut observations);
        observations
    }

    /// The same for at most `count` nodes after `after` in the order of names, added to `observations`; gives the last of
    /// them, `None` when there is no more. For observing a large fleet without holding its lock all the time.
    #[allow(clippy::too_many_arguments, reason = "`observe` and where to go on")]
    pub fn observe_after(
        &mut self,
        after: &str,
        count: usize,
        now: Instant,
        namespace: &str,
        select: impl Fn(&PodReport) -> bool,
        policy: &Policy,
        observations: &mut Vec<Observation>,
    ) -> Option<Arc<str>> {
        let ask = Ask::of(policy);
        let Self { nodes, claims, settled, .. } = self;
        let range = (Bound::Excluded(after), Bound::Unbounded);
        let mut last = None;
        for (name, node) in nodes.range_mut::<str, _>(range).take(count) {
            let chosen = |pod: &PodReport| pod.namespace == namespace && select(pod);
            let standing = |pod: &PodUid| standing(claims, settled, pod, name);
            node.observe(now, &ask, chosen, standing, |seen| {
                if policy.containers.is_empty() || policy.containers.iter().any(|wanted| wanted == seen.container) {
                    observations.push(seen.to_observation(name));
                }
            });
            last = Some(Arc::clone(name));
        }
        last
    }

    /// Shows every container of one node to `visit`, the first node after `after`; gives its name, `None` at the end. For
    /// walking the whole fleet without holding its lock all the time.
    pub fn visit_after(
        &mut self,
        after: &str,
        now: Instant,
        policy: &Policy,
        mut visit: impl FnMut(&str, Seen<'_>),
    ) -> Option<Arc<str>> {
        let ask = Ask::of(policy);
        let Self { nodes, claims, settled, .. } = self;
        let range = (Bound::Excluded(after), Bound::Unbounded);
        let (name, node) = nodes.range_mut::<str, _>(range).next()?;
        let standing = |pod: &PodUid| standing(claims, settled, pod, name);
        node.observe(now, &ask, |_| true, standing, |seen| visit(name, seen));
        Some(Arc::clone(name))
    }

    /// Describes every node with its devices, in the order of names.
    pub fn described(&self, now: Instant) -> impl Iterator<Item = Described<'_>> {
        self.nodes.iter().map(move |(name, node)| Described {
            name,
            agent_version: &node.agent_version,
            nvml: &node.nvml,
            simulated: node.simulated,
            abilities: &node.abilities,
            report_age: now.saturating_duration_since(node.received),
            devices: node
                .devices
                .values()
                .map(|device| (&device.report, device.tenants.values().filter(|tenant| !tenant.gone).count()))
                .collect(),
        })
    }

    /// How containers with GPU memory ended within the last hour, as nodes tell that nobody contradicts and for which `wanted`.
    pub fn ended(&self, wanted: impl Fn(&Ended) -> bool) -> Vec<Ended> {
        let believed = |ended: &&Ended| {
            let standing = standing(&self.claims, &self.settled, &ended.pod.uid, &ended.node);
            standing == Standing::Believed && wanted(ended)
        };
        self.ends.iter().filter(believed).cloned().collect()
    }

    /// What a pod declares of the job it runs.
    pub fn declared(&self, pod: &PodUid) -> Option<Arc<Declaration>> {
        self.nodes.values().find_map(|node| node.declared.get(pod).cloned())
    }

    /// A node that claims a pod.
    pub fn node_of(&self, pod: &PodUid) -> Option<Arc<str>> {
        self.claims.get(pod)?.first().cloned()
    }

    /// Every pod that declares its job or waits for its start, with what it can get on its node.
    pub fn prospects(&self) -> Vec<Prospect> {
        self.nodes.iter().flat_map(|(name, node)| prospect::of(name, node)).collect()
    }

    /// Pods that more than one node claims and the API has not spoken on, with those nodes. Their forecasts are `Unknown`
    /// until [`Fleet::settle`].
    pub fn conflicts(&self) -> Vec<(PodUid, Vec<String>)> {
        let mut conflicts: Vec<_> = self
            .claims
            .iter()
            .filter(|(pod, nodes)| nodes.len() > 1 && !self.settled.contains_key(*pod))
            .map(|(pod, nodes)| (pod.clone(), nodes.iter().map(ToString::to_string).collect()))
            .collect();
        conflicts.sort();
        conflicts
    }

    /// The API's word on a pod: it runs on `node`, or nowhere (`None`). Reports of other nodes on it are left out from now
    /// on. Call it whenever a pod was read, not only for conflicts: an agent may claim a pod that its true node is silent on.
    pub fn settle(&mut self, pod: &PodUid, node: Option<&str>) {
        if self.claims.contains_key(pod) {
            self.settled.insert(pod.clone(), node.map(str::to_owned));
        }
    }

    /// How much is held.
    pub fn counts(&self) -> Counts {
        let nodes = self.nodes.values();
        Counts {
            nodes: self.nodes.len(),
            devices: nodes.clone().map(|node| node.devices.len()).sum(),
            pods: nodes.clone().map(|node| node.pods.len()).sum(),
            series: nodes.flat_map(|node| node.devices.values()).map(|device| device.tenants.len()).sum(),
            conflicts: self
                .claims
                .iter()
                .filter(|(pod, nodes)| nodes.len() > 1 && !self.settled.contains_key(*pod))
                .count(),
        }
    }

    /// Nodes whose driver is simulated.
    pub fn simulated(&self) -> usize {
        self.nodes.values().filter(|node| node.simulated).count()
    }

    /// Age of the newest report of the node heard least recently; `None` without nodes.
    pub fn oldest_report(&self, now: Instant) -> Option<Duration> {
        self.nodes.values().map(|node| now.saturating_duration_since(node.received)).max()
    }
}

/// A node as its agent last described it.
#[derive(Clone, Debug)]
pub struct Described<'a> {
    /// The API's name of the node.
    pub name: &'a str,
    /// Version of its agent.
    pub agent_version: &'a str,
    /// State of NVML.
    pub nvml: &'a NvmlState,
    /// Whether its driver is simulated.
    pub simulated: bool,
    /// What its agent could make hold.
    pub abilities: &'a Abilities,
    /// How long ago its newest report arrived.
    pub report_age: Duration,
    /// Its devices, each with the number of containers that hold memory on it.
    pub devices: Vec<(&'a DeviceReport, usize)>,
}

/// A node claims a pod no more. The API's word is kept for as long as anybody claims the pod.
fn unclaim(
    claims: &mut HashMap<PodUid, BTreeSet<Arc<str>>>,
    settled: &mut HashMap<PodUid, Option<String>>,
    pod: &PodUid,
    node: &str,
) {
    if let Some(nodes) = claims.get_mut(pod) {
        nodes.remove(node);
        if nodes.is_empty() {
            claims.remove(pod);
            settled.remove(pod);
        }
    }
}

fn is_foreign(settled: &HashMap<PodUid, Option<String>>, pod: &PodUid, node: &str) -> bool {
    settled.get(pod).is_some_and(|word| word.as_deref() != Some(node))
}

/// What may be said of a pod on the word of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Nobody contradicts.
    Believed,
    /// Another node claims it too, and the API has not been asked.
    Doubtful,
    /// The API says that it runs elsewhere.
    Foreign,
}

fn standing(
    claims: &HashMap<PodUid, BTreeSet<Arc<str>>>,
    settled: &HashMap<PodUid, Option<String>>,
    pod: &PodUid,
    node: &str,
) -> Standing {
    match settled.get(pod) {
        Some(word) if word.as_deref() == Some(node) => Standing::Believed,
        Some(_) => Standing::Foreign,
        None if claims.get(pod).is_some_and(|nodes| nodes.len() > 1) => Standing::Doubtful,
        None => Standing::Believed,
    }
}

#[cfg(test)]
mod tests;

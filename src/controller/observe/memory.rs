//! What the rounds of one process remember. All of it may be lost at any moment: dwell times start anew, an Event is
//! written once more, reads are repeated. Nothing in here can make an action happen sooner.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use gpumem_engine::decision::{Hold, Standing};
use gpumem_engine::forecast::Forecast;
use gpumem_engine::identity::{ContainerId, PodUid};
use gpumem_engine::pacing::{History, Stamp};
use gpumem_engine::policy::{Policy, PolicyKey};
use gpumem_engine::quantity::Moment;
use gpumem_engine::risk::{Hysteresis, Level};

use super::DECIDE_AGE;
use crate::api::policy::GpuMemoryPolicyStatus;
use crate::api::usage::PodReport;
use crate::controller::context::Context;
use crate::controller::fleet::Observation;
use crate::controller::now::Now;
use crate::controller::truth::Knowledge;
use crate::controller::workload::{Chain, Error, Hops, PodFacts, Resolution, read_pod};

/// A pod that no agent has reported for this long is forgotten.
const FORGET: Duration = Duration::from_mins(10);
/// Owners never change during a pod's life; what could not be established is looked at again sooner.
const CHAIN_AGE: Duration = Duration::from_mins(10);
const BROKEN_CHAIN_AGE: Duration = Duration::from_secs(30);

/// What was read about a pod for a decision: where it stands and its workload's past, or why it may not be acted on.
pub type Candidate = Result<Looked, Hold>;

/// See [`Candidate`].
#[derive(Clone, Debug)]
pub struct Looked {
    /// Where the pod stands.
    pub standing: Standing,
    /// What is remembered of its workload.
    pub history: History,
    /// The levers of its workload, with what it takes to pull them.
    pub levers: Resolution,
    /// Since when the container at risk runs.
    pub started: Option<Stamp>,
}

/// See the module.
#[derive(Debug)]
pub struct Memory {
    origin: Instant,
    dwells: HashMap<(PolicyKey, PodUid, String, ContainerId), (Moment, Hysteresis)>,
    chains: HashMap<PodUid, (Stamp, Chain)>,
    pods: HashMap<PodUid, (Stamp, Result<PodFacts, Hold>)>,
    /// Owners that were looked at.
    pub hops: Hops,
    /// What was read for a decision about a pod under a policy, and when.
    pub candidates: HashMap<(PolicyKey, PodUid), (Stamp, Candidate)>,
    /// When the Events about a pod under a policy were last written.
    pub notified: HashMap<(PolicyKey, PodUid), Stamp>,
    /// Why a pod was last held back, to count each change once.
    pub held: HashMap<(PolicyKey, PodUid), &'static str>,
    /// The status last written for a policy, and when.
    pub written: HashMap<PolicyKey, (Stamp, GpuMemoryPolicyStatus)>,
    /// When the last call was made.
    pub last_call: Option<Stamp>,
    /// When recovering workloads were last looked at.
    pub last_recovery_look: Option<Stamp>,
    /// When the pods that were asked for a checkpoint were last looked at.
    pub last_request_look: Option<Stamp>,
    /// Since when a pod under a policy has been at High without a break.
    high: HashMap<(PolicyKey, PodUid), Stamp>,
    /// What is known of OOMs, warnings and peaks.
    pub truth: Knowledge,
}

impl Memory {
    /// Empty, of a process that began at `origin`.
    pub fn new(origin: Instant) -> Self {
        Self {
            origin,
            dwells: HashMap::new(),
            chains: HashMap::new(),
            pods: HashMap::new(),
            hops: Hops::default(),
            candidates: HashMap::new(),
            notified: HashMap::new(),
            held: HashMap::new(),
            written: HashMap::new(),
            last_call: None,
            last_recovery_look: None,
            last_request_look: None,
            high: HashMap::new(),
            truth: Knowledge::default(),
        }
    }

    /// Feeds a container's forecast and gives its level under the policy.
    pub fn level(&mut self, now: &Now, policy: &Policy, observation: &Observation, forecast: &Forecast) -> Level {
        let key = (
            policy.key.clone(),
            observation.pod.uid.clone(),
            observation.container.clone(),
            observation.container_id.clone(),
        );
        let moment = now.moment(self.origin);
        let (seen, dwell) = self.dwells.entry(key).or_default();
        *seen = moment;
        dwell.feed(moment, &policy.prediction, forecast)
    }

    /// Since when a pod has been at High under a policy without a break, as far as this process saw it.
    pub fn high_since(&mut self, now: &Now, policy: &PolicyKey, pod: &PodUid, level: Level) -> Option<Stamp> {
        let key = (policy.clone(), pod.clone());
        if level == Level::High {
            return Some(*self.high.entry(key).or_insert(now.stamp));
        }
        self.high.remove(&key);
        None
    }

    /// The owners of a reported pod.
    pub async fn chain(&mut self, ctx: &Context, now: &Now, pod: &PodReport) -> Chain {
        if let Some(chain) = self.known_chain(now, &pod.uid) {
            return chain.clone();
        }
        let chain = self.hops.climb(&ctx.read, &pod.namespace, pod.owner.as_ref()).await;
        self.learn_chain(now, pod.uid.clone(), chain.clone());
        chain
    }

    /// The owners of a pod, if they were looked at lately.
    pub fn known_chain(&self, now: &Now, pod: &PodUid) -> Option<&Chain> {
        let (at, chain) = self.chains.get(pod)?;
        let limit = if chain.is_provisional() { BROKEN_CHAIN_AGE } else { CHAIN_AGE };
        (now.stamp.since(*at) < limit).then_some(chain)
    }

    /// Remembers the owners of a pod.
    pub fn learn_chain(&mut self, now: &Now, pod: PodUid, chain: Chain) {
        self.chains.insert(pod, (now.stamp, chain));
    }

    /// Whether what the API says of a pod was read at most `age` ago.
    pub fn knows_pod(&self, now: &Now, pod: &PodUid, age: Duration) -> bool {
        self.pods.get(pod).is_some_and(|(at, _)| now.stamp.since(*at) < age)
    }

    /// What was read lately for a decision about a pod under a policy.
    pub fn candidate(&self, now: &Now, policy: &PolicyKey, pod: &PodUid) -> Option<&Candidate> {
        let (at, candidate) = self.candidates.get(&(policy.clone(), pod.clone()))?;
        (now.stamp.since(*at) < DECIDE_AGE).then_some(candidate)
    }

    /// Remembers what the API says of a reported pod.
    pub fn learn_pod(
        &mut self,
        ctx: &Context,
        now: &Now,
        pod: &PodReport,
        read: Result<Option<PodFacts>, Hold>,
    ) -> Result<PodFacts, Hold> {
        let facts = read.and_then(|facts| {
            // The fleet leaves out the reports of every other node from now on.
            let same = facts.as_ref().filter(|facts| facts.pod.uid == pod.uid);
            ctx.fleet().settle(&pod.uid, same.map(|facts| facts.pod.node.as_str()));
            facts.ok_or_else(|| Hold::PodUnverified { why: "there is no such pod".to_owned() })
        });
        self.pods.insert(pod.uid.clone(), (now.stamp, facts.clone()));
        facts
    }

    /// What the API says of a reported pod, at most `age` ago, if it confirms the report.
    pub async fn confirmed(
        &mut self,
        ctx: &Context,
        now: &Now,
        node: &str,
        pod: &PodReport,
        age: Duration,
    ) -> Result<PodFacts, Hold> {
        let known = self.pods.get(&pod.uid).filter(|(at, _)| now.stamp.since(*at) < age);
        let facts = if let Some((_, facts)) = known {
            facts.clone()
        } else {
            let facts = read_reported(ctx, pod).await;
            self.learn_pod(ctx, now, pod, facts)
        };
        let facts = facts?;
        facts.confirm(node, pod)?;
        Ok(facts)
    }

    /// Forgets what was read for decisions: after an action all of it is old.
    pub fn forget_reads(&mut self) {
        self.pods.clear();
        self.candidates.clear();
    }

    /// Forgets pods that nobody has reported for a while, and policies that are gone.
    pub fn forget_gone(&mut self, now: &Now, policies: &[PolicyKey]) {
        let moment = now.moment(self.origin);
        let policies: HashSet<&PolicyKey> = policies.iter().collect();
        self.dwells.retain(|(policy, ..), (seen, _)| policies.contains(policy) && moment.since(*seen) < FORGET);
        let alive: HashSet<&PodUid> = self.dwells.keys().map(|(_, pod, ..)| pod).collect();
        self.chains.retain(|pod, _| alive.contains(pod));
        self.pods.retain(|pod, _| alive.contains(pod));
        self.candidates.retain(|(policy, pod), _| policies.contains(policy) && alive.contains(pod));
        self.notified.retain(|(policy, pod), _| policies.contains(policy) && alive.contains(pod));
        self.high.retain(|(policy, pod), _| policies.contains(policy) && alive.contains(pod));
        self.held.retain(|(policy, pod), _| policies.contains(policy) && alive.contains(pod));
        self.written.retain(|policy, _| policies.contains(policy));
    }
}

/// Reads a reported pod; `Ok(None)` when there is none of its name.
pub async fn read_reported(ctx: &Context, pod: &PodReport) -> Result<Option<PodFacts>, Hold> {
    read_pod(&ctx.read, &pod.namespace, &pod.name).await.map_err(Error::into_hold)
}

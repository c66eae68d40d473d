//! Pulls every agent at a steady beat over mutual TLS and merges what they say into the fleet.
//!
//! Flows in: which agents there are ([`AgentSource`]), and the TLS settings of the moment. Flows out: merged reports, a
//! change of `news`, counters. A report counts for the node the API says its agent runs on, whatever it says itself; a
//! stranger on a recycled address has no certificate of ours and fails the handshake.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tracing::{debug, info, warn};

use super::fleet::shared::lock;
use super::fleet::{Fault, Fleet};
use super::health::Health;
use super::metrics::Metrics;
use crate::text::chain;

pub mod agents;

mod request;

pub use request::Error;
use request::Line;
pub(super) use request::{connect, parse};

/// One agent, as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// Name of its pod, for logs.
    pub pod: String,
    /// Node it runs on: its reports count for this node only.
    pub node: String,
    /// Where it serves.
    pub address: SocketAddr,
}

/// The agents by node. `None` until the API has been asked.
pub type AgentSource = watch::Receiver<Option<Arc<BTreeMap<String, Agent>>>>;

/// Settings of our side of the connections; `None` until there are certificates.
pub type ClientTls = watch::Receiver<Option<Arc<rustls::ClientConfig>>>;

/// Pulls under way at once. An answer takes milliseconds, so this serves thousands of agents; it bounds memory and
/// descriptors when many of them hang.
const IN_FLIGHT: usize = 64;
/// A failing agent is asked less often, down to every sixth beat: 30 s by default.
const SLOWEST: u32 = 6;
/// The supervisor looks round this often.
const TURN: Duration = Duration::from_secs(1);
/// The replica becomes Ready after one pull of every agent, or after this: dead nodes must not keep it back.
const FIRST_ROUND: Duration = Duration::from_secs(30);
/// What a turn of the supervisor may take before liveness fails: it only ever waits for its own timer.
const OVERDUE: Duration = Duration::from_mins(1);

/// Name of the readiness condition.
pub const FIRST_PULL: &str = "first pull of all agents";

/// What every pull shares.
pub struct Puller {
    /// Where reports go.
    pub fleet: Arc<Mutex<Fleet>>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Heartbeat and readiness.
    pub health: Arc<Health>,
    /// TLS settings of the moment.
    pub tls: ClientTls,
    /// Longest time between two pulls of an agent that answers.
    pub interval: Duration,
    /// Counts merges.
    pub news: watch::Sender<u64>,
}

/// Pulls until `agents` closes: one small task for each agent, all sharing a bounded number of connections.
pub async fn run(puller: Arc<Puller>, mut agents: AgentSource) {
    let mut tasks = JoinSet::new();
    let mut running: HashMap<String, (Agent, AbortHandle)> = HashMap::new();
    let slots = Arc::new(Semaphore::new(IN_FLIGHT));
    let (tried, mut first_tries) = mpsc::channel(1024);
    let mut round = FirstRound { since: None, missing: BTreeSet::new() };
    let mut turn = tokio::time::interval(TURN);
    turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            changed = agents.changed() => {
                if changed.is_err() {
                    return;
                }
                let Some(wanted) = agents.borrow_and_update().clone() else { continue };
                round.begin(&wanted);
                running.retain(|node, (agent, task)| {
                    let stays = wanted.get(node) == Some(agent);
                    if !stays {
                        task.abort();
                    }
                    stays
                });
                for (node, agent) in wanted.iter() {
                    if !running.contains_key(node) {
                        let follow = follow(Arc::clone(&puller), agent.clone(), Arc::clone(&slots), tried.clone());
                        running.insert(node.clone(), (agent.clone(), tasks.spawn(follow)));
                    }
                }
                puller.metrics.agents(running.len());
            }
            node = first_tries.recv() => {
                if let Some(node) = node {
                    round.missing.remove(&node);
                }
            }
            _ = turn.tick() => {
                puller.health.beat("pull", OVERDUE);
                let known: Option<BTreeSet<String>> =
                    agents.borrow().as_ref().map(|agents| agents.keys().cloned().collect());
                if let Some(known) = known {
                    lock(&puller.fleet).forget(Instant::now(), &known);
                }
            }
        }
        if round.is_over() {
            puller.health.done(FIRST_PULL);
        }
        while tasks.try_join_next().is_some() {}
    }
}

/// The agents known at the start that have not been tried yet.
struct FirstRound {
    since: Option<Instant>,
    missing: BTreeSet<String>,
}

impl FirstRound {
    fn begin(&mut self, agents: &BTreeMap<String, Agent>) {
        if self.since.is_none() {
            self.since = Some(Instant::now());
            self.missing = agents.keys().cloned().collect();
        }
    }

    fn is_over(&self) -> bool {
        self.since.is_some_and(|since| self.missing.is_empty() || since.elapsed() > FIRST_ROUND)
    }
}

/// Pulls one agent for ever.
async fn follow(puller: Arc<Puller>, agent: Agent, slots: Arc<Semaphore>, tried: mpsc::Sender<String>) {
    let mut line = Line::default();
    let mut failures: u32 = 0;
    let mut said = Said::default();
    let mut due = tokio::time::Instant::now() + phase(puller.interval, &agent.node);
    for turn in 0_u64.. {
        tokio::time::sleep_until(due).await;
        let outcome = {
            let Ok(_slot) = slots.acquire().await else { return };
            // Boxed, so that thousands of waiting tasks do not each hold room for a connection's state.
            Box::pin(pull(&puller, &agent, &mut line)).await
        };
        if turn == 0 {
            let _ = tried.send(agent.node.clone()).await;
        }
        failures = if outcome.is_ok() { 0 } else { failures.saturating_add(1) };
        said.note(&agent, outcome);
        let wait = beat(puller.interval, &agent.node, turn);
        let wait = wait * 2_u32.saturating_pow(failures.saturating_sub(1)).min(SLOWEST);
        // From when it was due, so that the beat holds; from now, where that has passed.
        due = (due + wait).max(tokio::time::Instant::now());
    }
}

async fn pull(puller: &Puller, agent: &Agent, line: &mut Line) -> Result<BTreeMap<Fault, u32>, Error> {
    let started = Instant::now();
    let cursor = lock(&puller.fleet).cursor(&agent.node);
    let settings = puller.tls.borrow().clone();
    let answer = line.ask(agent.address, settings, cursor).await;
    puller.metrics.pulled(answer.as_ref().map_or_else(Error::kind, |_| "ok"), started.elapsed());
    let (report, received) = answer?;
    let merged = lock(&puller.fleet).merge(&agent.node, report, received);
    puller.metrics.merged(&merged);
    puller.news.send_modify(|count| *count += 1);
    Ok(merged.faults)
}

/// What was logged of an agent last: each change is said once, not every five seconds.
#[derive(Default)]
struct Said {
    failure: Option<&'static str>,
    faults: BTreeSet<Fault>,
}

impl Said {
    fn note(&mut self, agent: &Agent, outcome: Result<BTreeMap<Fault, u32>, Error>) {
        let Agent { pod, node, address } = agent;
        match outcome {
            Ok(faults) => {
                if self.failure.take().is_some() {
                    info!(%node, %pod, "agent answers again");
                }
                let kinds: BTreeSet<Fault> = faults.keys().copied().collect();
                if kinds != self.faults {
                    if !kinds.is_empty() {
                        warn!(%node, %pod, ?faults, "parts of the agent's report were dropped");
                    }
                    self.faults = kinds;
                }
            }
            Err(error) => {
                let error_text = chain(&error);
                if self.failure == Some(error.kind()) {
                    debug!(%node, %pod, %address, error = error_text, "agent still not pulled");
                } else {
                    warn!(%node, %pod, %address, error = error_text, "agent not pulled");
                }
                self.failure = Some(error.kind());
            }
        }
    }
}

/// Where in the interval a node's pulls fall: nodes spread evenly, and the same way in every replica.
fn phase(interval: Duration, node: &str) -> Duration {
    interval.mul_f64(fraction(&(node, "phase")))
}

/// Time to the next pull: a little less than the interval, and never the same, so that no herd forms. Never more, because a
/// sample taken right after a pull waits for the next, and the act it calls for must follow within the interval and a second.
fn beat(interval: Duration, node: &str, turn: u64) -> Duration {
    interval.mul_f64(0.84 + 0.12 * fraction(&(node, turn)))
}

/// A number in [0, 1) drawn from what `seed` hashes to.
fn fraction(seed: &impl Hash) -> f64 {
    let mut hasher = DefaultHasher::new();
    seed.hash(&mut hasher);
    (hasher.finish() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pulls_of_many_nodes_spread_over_the_interval_and_keep_their_beat() {
        let interval = Duration::from_secs(5);
        let mut tenths = [0_u32; 10];
        for node in 0..1000 {
            let name = format!("node-{node}");
            tenths[(phase(interval, &name).as_secs_f64() * 2.0) as usize] += 1;
            for turn in 0..10 {
                let wait = beat(interval, &name, turn).as_secs_f64();
                assert!((4.2..=4.8).contains(&wait), "{wait}");
            }
        }
        assert!(tenths.iter().all(|count| (60..140).contains(count)), "{tenths:?}");
    }
}

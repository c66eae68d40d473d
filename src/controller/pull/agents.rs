//! Which agents there are: a watch of the agents' pods in the operator's own namespace, by label.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use tokio::sync::watch;
use tracing::warn;

use super::Agent;
use crate::controller::health::Health;
use crate::text::chain;

/// A quiet watch is listed anew after this: a dropped one is quiet too, and looks the same.
const QUIET: Duration = Duration::from_mins(4);
/// Nothing heard for so long, listings included: liveness fails.
const DEAF: Duration = Duration::from_mins(12);
/// Name of the readiness condition, and of the heartbeat.
pub const WATCH: &str = "list of agents";

/// An agent's pod, with what decides which of several on one node is asked.
#[derive(Clone, Debug, PartialEq)]
struct Candidate {
    agent: Agent,
    terminating: bool,
    created: Option<Time>,
}

/// Keeps `agents` up to date until its last receiver is gone.
pub async fn watch(
    pods: Api<Pod>,
    selector: String,
    port: u16,
    health: Arc<Health>,
    agents: watch::Sender<Option<Arc<BTreeMap<String, Agent>>>>,
) {
    let mut known: BTreeMap<String, Candidate> = BTreeMap::new();
    health.beat(WATCH, DEAF);
    while !agents.is_closed() {
        let mut events =
            std::pin::pin!(watcher(pods.clone(), watcher::Config::default().labels(&selector)).default_backoff());
        let mut listed: BTreeMap<String, Candidate> = BTreeMap::new();
        let mut listing = true;
        loop {
            let event = tokio::select! {
                event = tokio::time::timeout(QUIET, events.next()) => event,
                () = agents.closed() => return,
            };
            let Ok(Some(event)) = event else { break };
            match event {
                Ok(watcher::Event::Init) => {
                    listing = true;
                    listed.clear();
                }
                Ok(watcher::Event::InitApply(pod)) => note(&mut listed, &pod, port),
                Ok(watcher::Event::InitDone) => {
                    listing = false;
                    known = std::mem::take(&mut listed);
                }
                Ok(watcher::Event::Apply(pod)) => note(&mut known, &pod, port),
                Ok(watcher::Event::Delete(pod)) => drop(known.remove(&pod.name_any())),
                Err(error) => {
                    // The watcher repeats with a back-off by itself; what we know stays in use meanwhile.
                    warn!(error = chain(&error), "watch of agents failed");
                    continue;
                }
            }
            health.beat(WATCH, DEAF);
            if !listing {
                health.done(WATCH);
                publish(&agents, &known);
            }
        }
    }
}

fn note(known: &mut BTreeMap<String, Candidate>, pod: &Pod, port: u16) {
    match candidate(pod, port) {
        Some(candidate) => drop(known.insert(pod.name_any(), candidate)),
        None => drop(known.remove(&pod.name_any())),
    }
}

/// The agent in a pod that runs and has an address.
fn candidate(pod: &Pod, port: u16) -> Option<Candidate> {
    let status = pod.status.as_ref()?;
    let address: IpAddr = status.pod_ip.as_ref()?.parse().ok()?;
    let node = pod.spec.as_ref()?.node_name.clone().filter(|node| !node.is_empty())?;
    (status.phase.as_deref() == Some("Running")).then(|| Candidate {
        agent: Agent { pod: pod.name_any(), node, address: SocketAddr::new(address, port) },
        terminating: pod.metadata.deletion_timestamp.is_some(),
        created: pod.metadata.creation_timestamp.clone(),
    })
}

/// One agent for each node: while one replaces another, the newer that is not on its way out.
fn by_node(known: &BTreeMap<String, Candidate>) -> BTreeMap<String, Agent> {
    let mut best: BTreeMap<String, &Candidate> = BTreeMap::new();
    for candidate in known.values() {
        let rank = |candidate: &Candidate| (!candidate.terminating, candidate.created.clone().map(|time| time.0));
        let better = |other: &&Candidate| rank(candidate) > rank(other);
        if best.get(&candidate.agent.node).is_none_or(better) {
            best.insert(candidate.agent.node.clone(), candidate);
        }
    }
    best.into_iter().map(|(node, candidate)| (node, candidate.agent.clone())).collect()
}

fn publish(agents: &watch::Sender<Option<Arc<BTreeMap<String, Agent>>>>, known: &BTreeMap<String, Candidate>) {
    let now = by_node(known);
    agents.send_if_modified(|published| {
        let changed = published.as_deref() != Some(&now);
        if changed {
            *published = Some(Arc::new(now));
        }
        changed
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, node: &str, phase: &str, created: &str, terminating: bool) -> Pod {
        let deleted = terminating.then_some("2026-01-02T00:00:00Z");
        serde_json::from_value(json!({
            "metadata": {"name": name, "creationTimestamp": created, "deletionTimestamp": deleted},
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": phase, "podIP": "10.0.0.1"},
        }))
        .unwrap()
    }

    #[test]
    fn of_two_agents_on_a_node_the_newer_that_stays_is_asked() {
        let mut known = BTreeMap::new();
        for pod in [
            pod("old", "a", "Running", "2026-01-01T00:00:00Z", true),
            pod("new", "a", "Running", "2026-01-02T00:00:00Z", false),
            pod("starting", "a", "Pending", "2026-01-03T00:00:00Z", false),
            pod("other", "b", "Running", "2026-01-01T00:00:00Z", false),
        ] {
            note(&mut known, &pod, 9443);
        }
        let agents = by_node(&known);
        assert_eq!(agents["a"].pod, "new");
        assert_eq!(agents["b"].address, "10.0.0.1:9443".parse().unwrap());
    }
}

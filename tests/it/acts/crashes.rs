//! The controller dies before or after any request of any action: never one action too many, nor one lost.

use std::sync::Arc;

use serde_json::json;

use super::{CASES, Case, calls};
use crate::cluster::server::Crash;
use crate::cluster::{Cluster, Controller};

/// Does it, and dies at the crash point that was set. False if that was never reached.
async fn dies_doing(cluster: &Cluster, case: Case) -> bool {
    let controller = Controller::start(cluster, "c1");
    let crashed = Arc::clone(&cluster.api.crashed);
    tokio::select! {
        biased;
        () = crashed.notified() => true,
        _ = controller.perform(cluster, case) => false,
    }
}

async fn requests(case: Case) -> usize {
    let cluster = case.stage().await;
    Controller::start(&cluster, "c1").perform(&cluster, case).await.unwrap();
    cluster.world().log.len()
}

#[tokio::test]
async fn a_crash_at_any_request_of_any_action_neither_repeats_nor_loses_it() {
    for case in CASES {
        let requests = requests(case).await;
        assert!(requests > 8, "{case:?}: {requests}");
        for at in 0..requests {
            for crash in [Crash::Before, Crash::After] {
                let mut cluster = case.stage().await;
                cluster.world().crash_at(at, crash);
                assert!(dies_doing(&cluster, case).await, "{case:?} {at} {crash:?}");
                // Two that both think they lead take over.
                let (mut next, mut other) = (Controller::start(&cluster, "c2"), Controller::start(&cluster, "c3"));
                for _ in 0..8 {
                    cluster.advance(10);
                    let (mut a, mut b) = (cluster.shadow(), cluster.shadow());
                    tokio::join!(next.round(&mut a), other.round(&mut b));
                }
                let context = format!("{case:?} {at} {crash:?}");
                assert!(calls(&cluster, case) <= 1, "{context}: called twice");
                assert_eq!(cluster.ledger("intents"), json!([]), "{context}");
                assert_eq!(case.effect(&cluster), case.is_remembered(&cluster), "{context}");
            }
        }
    }
}

#[tokio::test]
async fn two_controllers_that_decide_the_same_do_it_once() {
    for case in CASES {
        let cluster = case.stage().await;
        let (one, two) = (Controller::start(&cluster, "c1"), Controller::start(&cluster, "c2"));
        let (a, b) = tokio::join!(one.perform(&cluster, case), two.perform(&cluster, case));
        assert_eq!(calls(&cluster, case), 1, "{case:?}");
        assert!(a.is_none() || b.is_none(), "{case:?}: only one intent can be recorded");
        assert!(case.effect(&cluster) && case.is_remembered(&cluster), "{case:?}");
    }
}

#[tokio::test]
async fn who_loses_the_lease_between_intent_and_call_does_not_call() {
    for case in CASES {
        let cluster = case.stage().await;
        let controller = Controller::start(&cluster, "c1");
        for method in [http::Method::POST, http::Method::PUT] {
            let lead = controller.lead.clone();
            cluster.world().before(method, "/configmaps", move |_| lead.send_modify(|leads| leads.is_leader = false));
        }
        let done = controller.perform(&cluster, case).await.unwrap();
        assert_eq!((done.outcome.name(), calls(&cluster, case)), ("Withdrawn", 0), "{case:?}");
    }
}

/// The answer of every attempt at an Event of an action: each was written at most once, whoever tried.
fn told(cluster: &Cluster) -> Vec<String> {
    let world = cluster.world();
    let events = world.list("events.k8s.io", "events", "");
    let of_action = events.into_iter().filter(|event| event["action"] == "Evict");
    let place = |event: &serde_json::Value| format!("{} {}", event["regarding"]["kind"], event["reason"]);
    let mut places: Vec<String> = of_action.map(place).collect();
    places.sort_unstable();
    places
}

#[tokio::test]
async fn a_crash_at_any_request_leaves_nobody_uninformed_and_tells_nobody_twice() {
    let scene = || {
        let mut cluster = Cluster::new();
        cluster.deployment("train", 2);
        cluster.policy("p", "train", |_| {});
        cluster.report("train-0", 0.95);
        cluster
    };
    let mut cluster = scene();
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 3).await;
    let (expected, requests) = (told(&cluster), cluster.world().log.len());
    assert_eq!(expected.len(), 3, "{expected:?}");
    assert_eq!(cluster.ledger("untold"), json!([]));
    for at in 0..requests {
        for crash in [Crash::Before, Crash::After] {
            let mut cluster = scene();
            cluster.world().crash_at(at, crash);
            Controller::start(&cluster, "c1").dies_within(&mut cluster, 3).await;
            // Where there were fewer requests than that, the next process is not to meet it.
            cluster.world().crash_at(1_000_000, crash);
            // Long enough for a call that was never made to be given up, and for the next.
            Controller::start(&cluster, "c2").slow_rounds(&mut cluster, 12).await;
            let context = format!("{at} {crash:?}");
            let (told, evicted) = (told(&cluster), cluster.evicted());
            assert_eq!(evicted, 1, "{context}");
            let done = |reason: &str| told.iter().filter(|place| place.ends_with(reason)).count();
            // An action that was done is told of on pod, workload and policy, once each; it may have been abandoned before.
            assert_eq!(done("\"GpuMemoryEviction\""), 3, "{context}: {told:?}");
            assert_eq!(cluster.ledger("untold"), json!([]), "{context}");
            assert!(!cluster.status("p").recent_actions.is_empty(), "{context}");
        }
    }
}

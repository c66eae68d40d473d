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

//! How long one round takes over an API server that takes its time, with many pods at risk at once. Time is made: what is
//! counted is how many answers a round waits for one after the other.

use std::time::Duration;

use serde_json::json;

use crate::cluster::server::Waits;
use crate::cluster::{Cluster, Controller};

/// What a busy API server takes for an answer.
const LATENCY: Duration = Duration::from_millis(20);

/// So many policies, each with a pod at risk that it would evict, and budgets that allow none of it.
fn at_risk(policies: usize) -> Cluster {
    let mut cluster = Cluster::new();
    for index in 0..policies {
        let name = format!("w{index:03}");
        cluster.deployment(&name, 1);
        cluster.policy(&name, &name, |spec| spec["disruption"] = json!({"requireBudget": true}));
        cluster.report(&format!("{name}-0"), 0.95);
    }
    cluster.limit(&json!({"breaker": {"enabled": false}}));
    cluster.world().waits = Some(Waits::default());
    cluster
}

/// How long a round waits, and its requests.
async fn round(cluster: &mut Cluster, controller: &mut Controller) -> (Duration, usize) {
    let before = cluster.world().log.len();
    cluster.world().waits = Some(Waits::default());
    controller.round(cluster).await;
    let waits = cluster.world().waits.unwrap();
    (LATENCY * u32::try_from(waits.in_a_row).unwrap(), cluster.world().log.len() - before)
}

#[tokio::test]
async fn with_a_hundred_pods_at_risk_a_round_takes_less_than_two_seconds() {
    let mut cluster = at_risk(100);
    let mut controller = Controller::start(&cluster, "c1");
    for number in 0..6 {
        let (took, requests) = round(&mut cluster, &mut controller).await;
        println!("round {number}: {took:?}, {requests} requests");
        assert!(took < Duration::from_secs(if number == 0 { 3 } else { 2 }), "round {number}: {took:?}");
    }
    assert_eq!(cluster.condition("w099", "ActionAllowed"), "False/NoBudget");
}

#[tokio::test]
async fn what_pods_of_one_workload_and_namespace_share_is_read_once_a_round() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 50);
    cluster.policy("p", "train", |spec| spec["disruption"] = json!({"requireBudget": true}));
    cluster.all_at_risk("train");
    cluster.limit(&json!({"breaker": {"enabled": false}}));
    let mut controller = Controller::start(&cluster, "c1");
    controller.round(&mut cluster).await;
    let reads = |part: &str| cluster.world().requests(&http::Method::GET, part).len();
    assert_eq!((reads("/namespaces/ml/poddisruptionbudgets"), reads("/pods/train-")), (1, 50));
    assert!(reads("/gpumemoryprofiles/") <= 3, "one for the decision, one before each write");
}

#[tokio::test]
async fn no_more_requests_are_under_way_at_once_than_a_server_likes() {
    let mut cluster = at_risk(60);
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 2).await;
    let most = cluster.world().waits.unwrap().most;
    assert!((8..=16).contains(&most), "{most}");
}

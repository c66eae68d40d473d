//! What lasts beyond the call: a suspension, and a request for a checkpoint.

use http::Method;
use serde_json::json;

use super::{Case, REQUEST, SUSPENDED, calls};
use crate::cluster::server::World;
use crate::cluster::{Cluster, Controller, POLICIES};

/// A Job that we suspended a moment ago, without its pods.
async fn suspended() -> (Cluster, Controller) {
    let cluster = Case::Suspend.stage().await;
    let controller = Controller::start(&cluster, "c1");
    controller.perform(&cluster, Case::Suspend).await.unwrap();
    let mut world = cluster.world();
    world.remove("", "pods", "ml", "train-0");
    world.remove("", "pods", "ml", "train-1");
    world.log.clear();
    drop(world);
    (cluster, controller)
}

fn is_suspended(world: &World) -> bool {
    world.get("batch", "jobs", "ml", "train").unwrap()["spec"]["suspend"] == true
}

#[tokio::test]
async fn a_suspended_workload_goes_on_when_its_cool_down_ends_and_counts_until_it_is_whole() {
    let (mut cluster, mut controller) = suspended().await;
    controller.slow_rounds(&mut cluster, 89).await;
    assert!(is_suspended(&cluster.world()), "15 minutes are not over");
    assert_eq!(cluster.ledger("deeds")[0]["settled"], false, "it stays in disruption");
    controller.slow_rounds(&mut cluster, 3).await;
    assert!(!is_suspended(&cluster.world()));
    assert_eq!(calls(&cluster, Case::Suspend), 1);
    let status = cluster.status("p");
    assert_eq!(status.recent_actions[0].outcome, "Resumed");
    // Its pods come back.
    cluster.job("train-again", 2);
    cluster.world().edit("batch", "jobs", "ml", "train", |job| job["spec"]["parallelism"] = json!(0));
    controller.slow_rounds(&mut cluster, 40).await;
    assert_eq!(cluster.ledger("deeds")[0]["settled"], true);
    assert_eq!(calls(&cluster, Case::Suspend), 1, "it is let go on once");
}

#[tokio::test]
async fn a_suspension_outlives_a_day_and_the_controller() {
    let (mut cluster, _) = suspended().await;
    cluster.set_ledger("pause", "holidays");
    let mut other = Controller::start(&cluster, "c2");
    for _ in 0..30 {
        cluster.advance(3600);
        other.round(&mut cluster).await;
    }
    assert!(is_suspended(&cluster.world()), "a pause holds what would undo as well");
    cluster.set_ledger("pause", "");
    Controller::start(&cluster, "c3").slow_rounds(&mut cluster, 2).await;
    assert!(!is_suspended(&cluster.world()));
}

#[tokio::test]
async fn an_owner_who_lets_it_go_on_or_takes_it_over_is_left_alone() {
    type Change = fn(&mut serde_json::Value);
    let changes: [(bool, Change); 3] = [
        (false, |job| job["spec"]["suspend"] = json!(false)),
        (true, |job| job["metadata"]["annotations"][SUSPENDED] = json!("mine")),
        (true, |job| {
            job["metadata"]["annotations"].as_object_mut().unwrap().remove(SUSPENDED);
        }),
    ];
    for (index, (stays, change)) in changes.into_iter().enumerate() {
        let (mut cluster, mut controller) = suspended().await;
        cluster.world().edit("batch", "jobs", "ml", "train", change);
        controller.slow_rounds(&mut cluster, 120).await;
        assert_eq!(calls(&cluster, Case::Suspend), 0, "{index}");
        assert_eq!(is_suspended(&cluster.world()), stays, "{index}");
        assert_eq!(cluster.ledger("deeds")[0]["lifted"], true, "{index}");
    }
}

#[tokio::test]
async fn a_policy_that_is_deleted_leaves_no_workload_suspended() {
    let (mut cluster, mut controller) = suspended().await;
    cluster.world().remove(POLICIES.0, POLICIES.1, "ml", "p");
    controller.slow_rounds(&mut cluster, 100).await;
    assert!(!is_suspended(&cluster.world()));
    assert_eq!(calls(&cluster, Case::Suspend), 1);
}

#[tokio::test]
async fn a_workload_that_is_deleted_while_suspended_is_forgotten() {
    let (mut cluster, mut controller) = suspended().await;
    cluster.world().remove("batch", "jobs", "ml", "train");
    controller.slow_rounds(&mut cluster, 2).await;
    assert_eq!(cluster.ledger("deeds")[0]["settled"], true);
    controller.slow_rounds(&mut cluster, 100).await;
    assert_eq!(calls(&cluster, Case::Suspend), 0);
}

/// A pod that we asked for a checkpoint a moment ago.
async fn asked() -> (Cluster, Controller) {
    let cluster = Case::WithdrawCheckpoint.stage().await;
    let controller = Controller::start(&cluster, "c1");
    (cluster, controller)
}

fn request(cluster: &Cluster) -> serde_json::Value {
    cluster.world().get("", "pods", "ml", "train-0").unwrap()["metadata"]["annotations"][REQUEST].clone()
}

#[tokio::test]
async fn a_request_is_taken_back_when_its_policy_leaves_enforce_or_is_deleted() {
    let changes: [fn(&Cluster); 4] = [
        |cluster| cluster.edit_policy("p", |spec| spec["mode"] = json!("Observe")),
        |cluster| cluster.edit_policy("p", |spec| spec["mode"] = json!("DryRun")),
        |cluster| cluster.edit_policy("p", |spec| spec["actions"] = json!([{"type": "Notify"}])),
        |cluster| cluster.world().remove(POLICIES.0, POLICIES.1, "ml", "p"),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let (mut cluster, mut controller) = asked().await;
        controller.slow_rounds(&mut cluster, 3).await;
        assert!(request(&cluster).is_string(), "{index}: as long as the policy stands, so does the request");
        change(&cluster);
        controller.slow_rounds(&mut cluster, 3).await;
        assert!(request(&cluster).is_null(), "{index}");
        assert_eq!((cluster.ledger("requests"), calls(&cluster, Case::WithdrawCheckpoint)), (json!([]), 1), "{index}");
    }
}

#[tokio::test]
async fn a_request_whose_annotation_somebody_replaced_is_only_forgotten() {
    let (mut cluster, mut controller) = asked().await;
    cluster.world().edit("", "pods", "ml", "train-0", |pod| {
        pod["metadata"]["annotations"][REQUEST] = json!("somebody's");
    });
    cluster.world().remove(POLICIES.0, POLICIES.1, "ml", "p");
    controller.slow_rounds(&mut cluster, 3).await;
    assert_eq!(request(&cluster), "somebody's");
    assert_eq!((cluster.ledger("requests"), calls(&cluster, Case::WithdrawCheckpoint)), (json!([]), 0));
}

#[tokio::test]
async fn a_request_to_a_pod_that_ended_is_forgotten_without_a_call() {
    let (mut cluster, mut controller) = asked().await;
    cluster.world().edit("", "pods", "ml", "train-0", |pod| pod["metadata"]["uid"] = json!("successor"));
    controller.slow_rounds(&mut cluster, 8).await;
    assert_eq!((cluster.ledger("requests"), calls(&cluster, Case::WithdrawCheckpoint)), (json!([]), 0));
    assert!(cluster.world().requests(&Method::PATCH, "/pods/").is_empty());
}

//! From a risk to its end, decided by the engine: checkpoint then eviction, a Job suspended and let go on, replicas.

use serde_json::{Value, json};

use super::{REQUEST, SUSPENDED};
use crate::cluster::{Cluster, Controller, risk};

const DONE: &str = "gpumem.dev/checkpoint-done";

/// A Deployment of two whose first pod is at risk in an hour, under a policy that asks for a checkpoint first.
fn asking(checkpoint: &Value) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.policy("p", "train", |spec| {
        spec["prediction"]["horizonSeconds"] = json!(7200);
        spec["actions"] = json!([{"type": "Checkpoint", "checkpoint": checkpoint}, {"type": "Evict"}]);
    });
    cluster.report("train-0", 0.95);
    cluster.change_report("train-0", |report| report.outlook = risk(0.95, 3600));
    cluster
}

fn annotation(cluster: &Cluster, key: &str) -> Value {
    cluster.world().get("", "pods", "ml", "train-0").unwrap()["metadata"]["annotations"][key].clone()
}

fn answer(cluster: &Cluster, id: &Value) {
    cluster.world().edit("", "pods", "ml", "train-0", |pod| pod["metadata"]["annotations"][DONE] = id.clone());
}

#[tokio::test]
async fn a_pod_is_evicted_only_after_it_answered_our_own_request() {
    let mut cluster = asking(&json!({"timeoutSeconds": 300}));
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 10).await;
    let id = annotation(&cluster, REQUEST);
    assert!(id.is_string());
    assert_eq!(
        (cluster.evicted(), cluster.condition("p", "ActionAllowed")),
        (0, "False/AwaitingCheckpoint".to_owned())
    );
    // An answer to an older request, and one that says nothing.
    for foreign in [json!("65a0-older"), json!(""), json!("true")] {
        answer(&cluster, &foreign);
        controller.rounds(&mut cluster, 10).await;
        assert_eq!(cluster.evicted(), 0, "{foreign}");
    }
    answer(&cluster, &id);
    controller.rounds(&mut cluster, 12).await;
    assert_eq!(cluster.evicted(), 1);
    let actions: Vec<String> = cluster.status("p").recent_actions.iter().map(|a| format!("{:?}", a.action)).collect();
    assert_eq!(actions, ["Evict", "Checkpoint"]);
    assert_eq!(cluster.profiles()[0].status.as_ref().unwrap().attempts, 1, "the request disrupted nobody");
}

#[tokio::test]
async fn nobody_answers_and_the_policy_decides_what_follows() {
    for (checkpoint, evicted, reason) in [
        (json!({"timeoutSeconds": 60}), 0, "False/CheckpointUnanswered"),
        (json!({"timeoutSeconds": 60, "need": "BestEffort"}), 0, "False/CheckpointUnanswered"),
        (json!({"timeoutSeconds": 60, "need": "BestEffort", "onTimeout": "Proceed"}), 1, "False/ActionInFlight"),
    ] {
        let mut cluster = asking(&checkpoint);
        Controller::start(&cluster, "c1").rounds(&mut cluster, 90).await;
        assert_eq!(cluster.evicted(), evicted, "{checkpoint}");
        if evicted == 0 {
            assert_eq!(cluster.condition("p", "ActionAllowed"), reason, "{checkpoint}");
        }
    }
}

#[tokio::test]
async fn a_request_whose_annotations_were_removed_or_copied_is_neither_repeated_nor_answered() {
    let mut cluster = asking(&json!({"timeoutSeconds": 300}));
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 10).await;
    let id = annotation(&cluster, REQUEST);
    cluster.world().edit("", "pods", "ml", "train-0", |pod| pod["metadata"]["annotations"] = json!({}));
    // The answer to it, on another pod.
    cluster.world().edit("", "pods", "ml", "train-1", |pod| pod["metadata"]["annotations"] = json!({DONE: id}));
    Controller::start(&cluster, "c2").rounds(&mut cluster, 60).await;
    assert_eq!(cluster.evicted(), 0);
    assert_eq!(cluster.world().requests(&http::Method::PATCH, "/pods/").len(), 1, "asked once");
}

#[tokio::test]
async fn a_request_is_taken_back_when_the_risk_is_over() {
    let mut cluster = asking(&json!({"timeoutSeconds": 300}));
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 10).await;
    assert!(annotation(&cluster, REQUEST).is_string());
    cluster.change_report("train-0", |report| report.outlook = risk(0.05, 3600));
    controller.rounds(&mut cluster, 30).await;
    assert!(annotation(&cluster, REQUEST).is_null());
    assert_eq!((cluster.evicted(), cluster.ledger("requests")), (0, json!([])));
    assert_eq!(cluster.status("p").recent_actions[0].outcome, "TakenBack");
}

#[tokio::test]
async fn a_dry_run_of_the_ladder_asks_and_evicts_nobody() {
    let mut cluster = asking(&json!({"timeoutSeconds": 30}));
    cluster.edit_policy("p", |spec| spec["mode"] = json!("DryRun"));
    Controller::start(&cluster, "c1").rounds(&mut cluster, 90).await;
    assert!(annotation(&cluster, REQUEST).is_null());
    let world = cluster.world();
    let touching = |path: &str| path.contains("/pods/") || path.ends_with("/eviction");
    assert!(world.log.iter().filter(|s| s.is_write() && touching(&s.path)).all(|s| s.query.contains("dryRun=All")));
    drop(world);
    let actions: Vec<_> = cluster.status("p").recent_actions.iter().map(|a| (a.action, a.dry_run)).collect();
    assert!(actions.iter().all(|(_, dry_run)| *dry_run) && actions.len() == 2, "{actions:?}");
}

/// The same, but more replicas are to help.
fn scaling(max: u32) -> Cluster {
    let cluster = asking(&json!({}));
    let served = ["deployments", "deployments/scale"].map(str::to_owned).to_vec();
    cluster.world().served.insert("apps/v1".to_owned(), served);
    cluster.edit_policy("p", |spec| {
        spec["actions"] = json!([{"type": "Scale", "scale": {"via": "Replicas", "maxReplicas": max}}]);
    });
    cluster
}

/// A Job of two whose first pod is at risk, under a policy that suspends.
fn job() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.job("train", 2);
    cluster.policy("p", "train", |spec| {
        spec["actions"] = json!([{"type": "SuspendWorkload"}]);
        spec["disruption"]["maxConcurrent"] = json!(2);
    });
    cluster.report("train-0", 0.95);
    cluster
}

fn suspended(cluster: &Cluster) -> bool {
    let world = cluster.world();
    let job = world.get("batch", "jobs", "ml", "train").unwrap();
    assert_eq!(job["metadata"]["annotations"][SUSPENDED].is_string(), job["spec"]["suspend"] == true);
    job["spec"]["suspend"] == true
}

#[tokio::test]
async fn a_job_at_risk_is_suspended_once_and_goes_on_after_its_cool_down() {
    let mut cluster = job();
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 3).await;
    assert!(suspended(&cluster));
    for pod in ["train-0", "train-1"] {
        cluster.world().remove("", "pods", "ml", pod);
    }
    cluster.reports.clear();
    controller.slow_rounds(&mut cluster, 85).await;
    assert!(suspended(&cluster));
    Controller::start(&cluster, "c2").slow_rounds(&mut cluster, 10).await;
    assert!(!suspended(&cluster));
    let outcomes: Vec<String> = cluster.status("p").recent_actions.into_iter().map(|a| a.outcome).collect();
    assert_eq!(outcomes, ["Resumed", "Succeeded"]);
}

#[tokio::test]
async fn a_gang_that_is_larger_than_the_budget_is_not_suspended() {
    let mut cluster = job();
    cluster.edit_policy("p", |spec| spec["disruption"]["maxConcurrent"] = json!(1));
    Controller::start(&cluster, "c1").rounds(&mut cluster, 10).await;
    assert!(!suspended(&cluster));
    assert_eq!(cluster.condition("p", "ActionAllowed"), "False/BlastExceedsBudget");
}

#[tokio::test]
async fn replicas_that_another_manager_owns_are_asked_for_once_and_never_forced() {
    let mut cluster = scaling(5);
    cluster.world().replicas_owner = Some("argocd-controller".to_owned());
    Controller::start(&cluster, "c1").rounds(&mut cluster, 8).await;
    assert_eq!(cluster.world().requests(&http::Method::PATCH, "/scale").len(), 1);
    assert_eq!(cluster.status("p").recent_actions[0].outcome, "ReplicasOwnedByOther");
    assert!(cluster.world().forced.is_empty());
}

#[tokio::test]
async fn more_replicas_are_asked_for_by_the_scale_subresource() {
    let mut cluster = scaling(3);
    Controller::start(&cluster, "c1").rounds(&mut cluster, 30).await;
    assert_eq!(cluster.world().get("apps", "deployments", "ml", "train").unwrap()["spec"]["replicas"], 3);
    assert_eq!(cluster.world().requests(&http::Method::PATCH, "/scale").len(), 1, "and then it is waited for");
}

//! The acting side from reports to status, over a stateful API server: what is evicted, what is not, and what people read.

use serde_json::json;

use crate::cluster::{Cluster, Controller};

#[tokio::test]
async fn a_pod_at_risk_is_evicted_once_and_its_policy_tells_the_story() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.policy("p", "train", |spec| spec["actions"] = json!([{"type": "Notify"}, {"type": "Evict"}]));
    cluster.report("train-0", 0.95);
    cluster.report("train-1", 0.05);
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 20).await;

    assert_eq!(cluster.evicted(), 1);
    let status = cluster.status("p");
    assert_eq!(status.recent_actions.len(), 1);
    let action = &status.recent_actions[0];
    assert_eq!((action.pod.as_str(), action.outcome.as_str(), action.dry_run), ("train-0", "Succeeded", false));
    assert_eq!(action.workload, "Deployment/train");
    assert_eq!(status.targets.pods, 2);
    assert_eq!(cluster.condition("p", "Ready"), "True/Accepted");
    assert_eq!(cluster.condition("p", "TargetsResolved"), "True/Resolved");
    assert_eq!(cluster.condition("p", "DataFresh"), "True/Fresh");
    assert_eq!(cluster.events("Pod"), ["GpuMemoryRisk", "GpuMemoryEviction"]);
    assert_eq!(cluster.events("GpuMemoryPolicy"), ["GpuMemoryRisk", "GpuMemoryEviction"]);
    let profiles = cluster.profiles();
    assert_eq!(profiles.len(), 1);
    assert_eq!(profiles[0].status.as_ref().unwrap().attempts, 1);
    assert!(profiles[0].status.as_ref().unwrap().next_allowed_time.is_some());
    assert_eq!(cluster.ledger("intents"), json!([]));
    assert_eq!(cluster.ledger("deeds").as_array().unwrap().len(), 1);
}

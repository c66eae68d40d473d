//! What the profile of a workload remembers of it: loops of OOMs, peaks, a recommended size, and when it is forgotten.

use gpumem::api::profile::GpuMemoryProfile;
use gpumem::controller::now::rfc3339;
use gpumem::controller::profile::expiry::{Swept, show, sweep};
use gpumem_engine::pacing::Stamp;
use serde_json::{Value, json};

use super::{MESSAGE, attempt_of_job, end, ended, metrics, reported, status, value, with_job};
use crate::cluster::{Cluster, Controller};

#[tokio::test]
async fn the_third_oom_of_a_job_at_one_peak_is_told_before_the_fourth() {
    let mut cluster = with_job();
    cluster.policy("p", "tune", |spec| spec["mode"] = json!("Observe"));
    let mut controller = Controller::start(&cluster, "c1");
    for attempt in 0..3 {
        let name = format!("tune-{attempt}");
        let (pod, end) = attempt_of_job(&mut cluster, &name, MESSAGE);
        ended(&cluster, &controller, &pod, &end);
        cluster.reports.clear();
        controller.rounds(&mut cluster, 60).await;
    }
    assert_eq!(status(&cluster).oom_count, 3);
    let condition = status(&cluster).conditions[0].clone();
    assert_eq!((condition.type_.as_str(), condition.status.as_str()), ("RestartLoop", "True"));
    assert!(condition.message.contains("3 times at about 75"), "{}", condition.message);
    let mut told = cluster.events("Job");
    told.sort();
    assert_eq!(told, ["GpuMemoryOutOfMemory", "GpuMemoryOutOfMemory", "GpuMemoryOutOfMemory", "GpuMemoryRestartLoop"]);
}

#[tokio::test]
async fn a_workload_in_a_restart_loop_is_not_evicted_and_its_policy_says_why() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 4);
    cluster.policy("p", "train", |spec| spec["prediction"]["warmUpSeconds"] = json!(60));
    let mut controller = Controller::start(&cluster, "c1");
    for attempt in 0..3 {
        let pod = reported(&mut cluster, &format!("train-{attempt}"));
        ended(&cluster, &controller, &pod, &end(&cluster, 1, "Error", MESSAGE));
        cluster.reports.clear();
        controller.rounds(&mut cluster, 60).await;
    }
    // Old enough to be stopped at all, and not so old that a restart would buy time.
    let started = rfc3339(Stamp(cluster.stamp - 25 * 60));
    cluster.world().edit("", "pods", "ml", "train-3", |pod| {
        pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] = json!(started);
    });
    cluster.report("train-3", 0.95);
    controller.rounds(&mut cluster, 20).await;
    assert_eq!((cluster.calls().len(), cluster.condition("p", "ActionAllowed")), (0, "False/RestartLoop".to_owned()));
}

#[tokio::test]
async fn what_a_profile_recommends_is_a_metric_of_the_leader_until_its_workload_is_gone() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 1);
    cluster.policy("p", "train", |_| {});
    let pod = reported(&mut cluster, "train-0");
    let mut controller = Controller::start(&cluster, "c1");
    ended(&cluster, &controller, &pod, &end(&cluster, 1, "Error", MESSAGE));
    controller.rounds(&mut cluster, 3).await;
    let series = "gpumem_workload_memory_recommended_bytes\
                  {namespace=\"ml\",workload_kind=\"Deployment\",workload=\"train\",container=\"main\"}";
    assert_eq!(value(&metrics(&cluster, &controller.ctx), series), None);
    show(&controller.ctx).await.unwrap();
    let recommended = status(&cluster).recommendation.unwrap().bytes;
    assert_eq!(value(&metrics(&cluster, &controller.ctx), series), Some(recommended as f64));
    cluster.world().remove("apps", "deployments", "ml", "train");
    sweep(&controller.ctx, &cluster.now(), true).await.unwrap();
    sweep(&controller.ctx, &cluster.now(), false).await.unwrap();
    assert_eq!(value(&metrics(&cluster, &controller.ctx), series), None);
}

#[tokio::test]
async fn a_profile_goes_some_days_after_its_workload_and_not_before() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 1);
    cluster.policy("p", "train", |_| {});
    let pod = reported(&mut cluster, "train-0");
    let mut controller = Controller::start(&cluster, "c1");
    ended(&cluster, &controller, &pod, &end(&cluster, 1, "Error", MESSAGE));
    controller.rounds(&mut cluster, 3).await;
    let gone = |cluster: &Cluster| status(cluster).gone_since;
    let day = 86_400;
    assert_eq!(sweep(&controller.ctx, &cluster.now(), true).await.unwrap(), Swept { profiles: 1, ..Swept::default() });
    assert_eq!(gone(&cluster), None);
    // Made anew under its old name it is another workload.
    cluster.world().edit("apps", "deployments", "ml", "train", |object| object["metadata"]["uid"] = json!("another"));
    sweep(&controller.ctx, &cluster.now(), true).await.unwrap();
    assert!(gone(&cluster).is_some());
    // Back again, as after a restore.
    cluster.world().edit("apps", "deployments", "ml", "train", |o| o["metadata"]["uid"] = json!("deployment-train"));
    sweep(&controller.ctx, &cluster.now(), true).await.unwrap();
    assert_eq!(gone(&cluster), None);
    cluster.world().remove("apps", "deployments", "ml", "train");
    for (days, left) in [(0, 1), (13, 1), (2, 0)] {
        cluster.advance(days * day);
        sweep(&controller.ctx, &cluster.now(), true).await.unwrap();
        assert_eq!(cluster.profiles().len(), left, "{days}");
    }
    // Where nobody can say, it stays.
    let mut cluster = Cluster::new();
    cluster.deployment("train", 1);
    cluster.policy("p", "train", |_| {});
    let pod = reported(&mut cluster, "train-0");
    let mut controller = Controller::start(&cluster, "c1");
    ended(&cluster, &controller, &pod, &end(&cluster, 1, "Error", MESSAGE));
    controller.rounds(&mut cluster, 3).await;
    cluster.world().forbidden = Some("/deployments".into());
    sweep(&controller.ctx, &cluster.now(), true).await.unwrap();
    assert_eq!(gone(&cluster), None);
}

#[tokio::test]
async fn peaks_are_written_once_in_a_while_and_not_every_round() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.policy("p", "train", |spec| spec["mode"] = json!("Observe"));
    for pod in ["train-0", "train-1"] {
        cluster.report(pod, 0.05);
    }
    let mut controller = Controller::start(&cluster, "c1");
    controller.slow_rounds(&mut cluster, 370).await;
    let writes: Vec<Value> = {
        let world = cluster.world();
        let writes = world.requests(&http::Method::PATCH, "/gpumemoryprofiles");
        writes.into_iter().map(|seen| seen.body).collect()
    };
    // One profile and its status for the first sight, and one for the hour.
    assert_eq!(writes.len(), 3, "{writes:?}");
    let record = &status(&cluster).peaks[0];
    assert_eq!((record.container.as_str(), record.max_bytes), ("main", 70 << 30));
    assert!(record.p95_bytes > Some(66 << 30));
}

#[tokio::test]
async fn every_condition_of_every_policy_is_a_series_until_the_policy_is_gone() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 1);
    cluster.policy("p", "train", |_| {});
    cluster.policy("bad", "train", |spec| spec["memory"] = json!({"headroom": "much"}));
    let mut controller = Controller::start(&cluster, "c1");
    controller.round(&mut cluster).await;
    let series = |policy: &str, condition: &str, reason: &str| {
        format!(
            "gpumem_policy_condition{{namespace=\"ml\",policy=\"{policy}\",condition=\"{condition}\",reason=\"{reason}\"}}"
        )
    };
    let text = metrics(&cluster, &controller.ctx);
    assert_eq!(value(&text, &series("p", "Ready", "Accepted")), Some(1.0));
    assert_eq!(value(&text, &series("bad", "Ready", "InvalidSpec")), Some(0.0));
    cluster.world().remove("gpumem.dev", "gpumemorypolicies", "ml", "bad");
    controller.round(&mut cluster).await;
    assert!(!metrics(&cluster, &controller.ctx).contains("policy=\"bad\""));
    controller.loses_the_lease();
    assert!(!metrics(&cluster, &controller.ctx).contains("gpumem_policy_condition{"));
}

/// A profile of an earlier version has none of the new fields.
#[test]
fn a_profile_of_an_earlier_version_is_read() {
    let old = json!({
        "apiVersion": "gpumem.dev/v1alpha1", "kind": "GpuMemoryProfile", "metadata": {"name": "x"},
        "spec": {"workload": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "t", "uid": "u"}},
        "status": {"attempts": 2, "peakBytes": 5}
    });
    let profile: GpuMemoryProfile = serde_json::from_value(old).unwrap();
    assert_eq!(profile.status.unwrap().oom_count, 0);
}

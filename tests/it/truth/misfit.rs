//! Declared jobs that cannot fit: told once, before they start where that is known by then.

use gpumem::api::usage::{AskReport, DeviceReport, UsageReport, WaitingReport};
use gpumem_engine::identity::DeviceKey;
use serde_json::json;

use super::{Agent, reported};
use crate::cluster::{Cluster, Controller, NODE};

#[tokio::test]
async fn a_declared_job_that_cannot_fit_is_warned_of_once() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 1);
    cluster.policy("p", "train", |spec| spec["mode"] = json!("Observe"));
    let mut pod = reported(&mut cluster, "train-0");
    pod.annotations.insert("gpumem.dev/workload".into(), "model=llama3.1-70b batch=8 seq=8192".into());
    let mut controller = Controller::start(&cluster, "c1");
    let report = Agent::new(&cluster).report(&pod, Some(20));
    assert!(controller.ctx.fleet().merge(NODE, report, cluster.now().instant).accepted);
    controller.rounds(&mut cluster, 40).await;
    assert_eq!(cluster.events("Pod"), ["GpuMemoryDoesNotFit"]);
    assert_eq!(cluster.events("Deployment"), ["GpuMemoryDoesNotFit"]);
}

/// A pod that waits on a node with one GPU of 80 GiB: its image is pulled, or its init containers run.
fn waiting(cluster: &mut Cluster, name: &str, declares: Option<&str>, asks: &str) -> WaitingReport {
    let mut pod = reported(cluster, name);
    pod.annotations.extend(declares.map(|job| ("gpumem.dev/workload".to_owned(), job.to_owned())));
    WaitingReport { pod, asks: vec![AskReport { container: "main".into(), resource: asks.into() }] }
}

#[tokio::test]
async fn a_declared_job_that_cannot_fit_its_node_is_warned_of_before_it_starts() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 1);
    cluster.policy("p", "train", |spec| spec["mode"] = json!("Observe"));
    let job = "model=llama3.1-8b batch=8 seq=8192";
    let waits = waiting(&mut cluster, "train-0", Some(job), "nvidia.com/gpu");
    cluster.reports.clear();
    let mut controller = Controller::start(&cluster, "c1");
    let mut agent = Agent::new(&cluster);
    let before = UsageReport { pods: Vec::new(), waiting: vec![waits.clone()], ..agent.report(&waits.pod, None) };
    assert!(controller.ctx.fleet().merge(NODE, before, cluster.now().instant).faults.is_empty());
    controller.rounds(&mut cluster, 2).await;
    assert_eq!(cluster.events("Pod"), ["GpuMemoryDoesNotFit"]);
    assert_eq!(cluster.events("Deployment"), ["GpuMemoryDoesNotFit"]);
    let note = cluster.world().list("events.k8s.io", "events", "")[0]["note"].as_str().unwrap().to_owned();
    assert!(
        note.contains("at the very least; it starts on node") && note.contains("no device that it can get"),
        "{note}"
    );
    assert!(!note.contains("  "), "{note}");
    // Nor is it told again when it starts, or when the agent forgot it for a moment.
    for report in [agent.report(&waits.pod, None), agent.report(&waits.pod, Some(20))] {
        assert!(controller.ctx.fleet().merge(NODE, report, cluster.now().instant).accepted);
        controller.rounds(&mut cluster, 20).await;
    }
    assert_eq!(cluster.events("Pod"), ["GpuMemoryDoesNotFit"]);
}

#[tokio::test]
async fn a_slice_is_no_larger_than_its_name_and_a_policy_speaks_for_pods_that_declare_nothing() {
    for (declared_peak, declares, asks, is_warned) in [
        (None, Some("model=llama3.2-1b batch=8 seq=2048"), "nvidia.com/gpu", false),
        (None, Some("model=llama3.2-1b batch=8 seq=2048"), "nvidia.com/mig-1g.10gb", true),
        (None, None, "nvidia.com/gpu", false),
        (Some("82Gi"), None, "nvidia.com/gpu", false), // within what a round number may be off by
        (Some("100Gi"), None, "nvidia.com/gpu", true),
    ] {
        let mut cluster = Cluster::new();
        cluster.deployment("train", 1);
        cluster.policy("p", "train", |spec| {
            spec["mode"] = json!("Observe");
            if let Some(peak) = declared_peak {
                spec["prediction"]["declaredPeak"] = json!(peak);
            }
        });
        let waits = waiting(&mut cluster, "train-0", declares, asks);
        cluster.reports.clear();
        let mut controller = Controller::start(&cluster, "c1");
        let report = Agent::new(&cluster).report(&waits.pod, None);
        let report = UsageReport { pods: Vec::new(), waiting: vec![waits], ..report };
        assert!(controller.ctx.fleet().merge(NODE, report, cluster.now().instant).accepted);
        controller.rounds(&mut cluster, 3).await;
        let expected: &[&str] = if is_warned { &["GpuMemoryDoesNotFit"] } else { &[] };
        assert_eq!(cluster.events("Pod"), expected, "{declared_peak:?} {declares:?} {asks}");
    }
}

#[tokio::test]
async fn a_device_that_does_not_tell_its_size_may_be_large_enough() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 1);
    cluster.policy("p", "train", |spec| spec["mode"] = json!("Observe"));
    let waits = waiting(&mut cluster, "train-0", Some("model=llama3.1-70b batch=8 seq=8192"), "nvidia.com/gpu");
    cluster.reports.clear();
    let mut controller = Controller::start(&cluster, "c1");
    let mut report = Agent::new(&cluster).report(&waits.pod, None);
    let silent = DeviceReport {
        device: DeviceKey::whole("GPU-2"),
        memory: None,
        unattributed: None,
        ..report.devices[0].clone()
    };
    report.devices.push(silent);
    let report = UsageReport { pods: Vec::new(), waiting: vec![waits], ..report };
    assert!(controller.ctx.fleet().merge(NODE, report, cluster.now().instant).accepted);
    controller.rounds(&mut cluster, 3).await;
    assert_eq!(cluster.events("Pod"), [""; 0]);
}

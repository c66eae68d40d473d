//! From a policy's growth limit to the node's object and back into statuses, over a stateful API server.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use gpumem::api::node::LimitPhase;
use gpumem::api::usage::{Cursor, DeviceReport, FORMAT, LimitReport, NvmlState, SeriesData, SeriesReport, UsageReport};
use gpumem::controller::limits::{self, FreezeRequest, Refusal};
use gpumem_engine::identity::ContainerId;
use gpumem_engine::pacing::Stamp;
use gpumem_engine::policy::{Mode, PolicyKey};
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::sample::DeviceMemory;
use gpumem_engine::series::{Point, Segment};
use gpumem_engine::usage::Attribution;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Controller, NODE};

const NODES: (&str, &str) = ("gpumem.dev", "gpumemorynodes");
const GPU: &str = "train-0";

/// A pod `train-0` that uses 10 GiB of 80, and a policy with this growth limit.
fn cluster(limit: &Value) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 1);
    cluster.world().put("", "nodes", json!({"metadata": {"name": NODE, "uid": "node-uid"}}));
    cluster.policy("p", "train", |spec| {
        spec["actions"] = json!([{"type": "LimitGrowth"}]);
        spec["growthLimit"] = limit.clone();
        spec["prediction"]["warmUpSeconds"] = json!(0);
    });
    cluster.report("train-0", 0.05);
    cluster
}

fn kernel(ceiling: &str) -> Value {
    json!({"ceiling": ceiling, "enforcement": "Kernel"})
}

/// The agent's report that goes with it, and what it read back.
fn agent(cluster: &Cluster, limits: Vec<LimitReport>) -> UsageReport {
    let report = &cluster.reports[0];
    let now = Moment::from_secs(u64::try_from(cluster.stamp).unwrap() - 1_799_990_000);
    UsageReport {
        format: FORMAT,
        limits,
        abilities: gpumem::api::usage::Abilities::default(),
        hooks: Vec::new(),
        waiting: Vec::new(),
        agent_version: "0.1.0".into(),
        node: NODE.into(),
        boot_id: "boot-1".into(),
        cursor: Cursor { epoch: 1, seq: now.0 },
        now,
        interval_ms: 1000,
        simulated: true,
        nvml: NvmlState::Up { driver: "sim".into() },
        devices: vec![DeviceReport {
            device: report.device.clone(),
            index: 0,
            model: "NVIDIA H100".into(),
            at: now,
            memory: Some(DeviceMemory {
                total: Bytes::gib(80),
                used: Bytes::gib(10),
                free: Bytes::gib(70),
                reserved: Some(Bytes::ZERO),
            }),
            unattributed: Some(Bytes::ZERO),
            attribution: Attribution::Complete,
        }],
        pods: vec![report.pod.clone()],
        series: vec![SeriesReport {
            device: report.device.clone(),
            pod: report.pod.uid.clone(),
            container: "main".into(),
            container_id: "c1".into(),
            data: SeriesData::Samples {
                segment: Segment(1),
                points: vec![Point { at: now, used: Bytes::gib(10), allocator: None }],
            },
        }],
    }
}

/// The agent is heard, then the controller plays a round.
async fn round(cluster: &mut Cluster, controller: &mut Controller, limits: Vec<LimitReport>) {
    let report = agent(cluster, limits);
    let received = cluster.now().instant;
    let merged = controller.ctx.fleet().merge(NODE, report, received);
    assert!(merged.accepted && merged.faults.is_empty(), "{merged:?}");
    controller.round(cluster).await;
}

fn object(cluster: &Cluster) -> Option<Value> {
    cluster.world().get(NODES.0, NODES.1, "", NODE).cloned()
}

fn entries(cluster: &Cluster) -> Vec<Value> {
    object(cluster).and_then(|object| object["spec"]["limits"].as_array().cloned()).unwrap_or_default()
}

fn condition(object: &Value, kind: &str) -> String {
    let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = all.iter().find(|condition| condition["type"] == kind);
    found.map_or_else(String::new, |found| format!("{}/{}", found["status"], found["reason"]).replace('"', ""))
}

fn read_back(state: LimitPhase, desired: Option<u64>, applied: Option<u64>) -> LimitReport {
    LimitReport {
        pod: "u".into(),
        container_id: "c1".into(),
        device: GPU.into(),
        desired: desired.map(Bytes::gib),
        applied: applied.map(Bytes::gib),
        backend: "nvml-cgroup (simulated)".into(),
        state,
        reason: "a reason".into(),
        cgroup: "memory/kubepods/podx/c1".into(),
    }
}

#[tokio::test]
async fn a_limit_is_written_for_the_node_reported_back_and_removed_with_its_policy() {
    let mut cluster = cluster(&kernel("40Gi"));
    let mut controller = Controller::start(&cluster, "c1");
    round(&mut cluster, &mut controller, Vec::new()).await;
    let written = object(&cluster).expect("the node's object");
    let [entry] = entries(&cluster).try_into().expect("one entry");
    assert_eq!(
        (&entry["bytes"], &entry["containerID"], &entry["device"]),
        (&json!(40_u64 << 30), &json!("c1"), &json!(GPU))
    );
    assert_eq!(entry["policy"], "ml/p");
    assert_eq!(written["metadata"]["ownerReferences"][0]["kind"], "Node", "it goes with its node");
    assert_eq!(cluster.condition("p", "GrowthLimited"), "False/LimitPending");

    round(&mut cluster, &mut controller, vec![read_back(LimitPhase::Pending, Some(40), None)]).await;
    let recorded = object(&cluster).unwrap();
    assert_eq!(recorded["status"]["limits"][0]["bootId"], "boot-1", "the ledger, before anything is set");
    assert_eq!(condition(&recorded, "LimitPending"), "True/Ratcheting");

    round(&mut cluster, &mut controller, vec![read_back(LimitPhase::Applied, Some(40), Some(40))]).await;
    let applied = object(&cluster).unwrap();
    assert_eq!(condition(&applied, "LimitApplied"), "True/ReadBack");
    assert_eq!((&applied["status"]["applied"], &applied["status"]["desired"]), (&json!(1), &json!(1)));
    assert_eq!(cluster.condition("p", "GrowthLimited"), "True/LimitApplied");
    let states = limits::Limits::of(&controller.ctx, NODE, &ContainerId::from("c1"), cluster.now().instant);
    assert_eq!((states[0].phase, states[0].applied), (LimitPhase::Applied, Some(Bytes::gib(40))));

    cluster.world().remove("gpumem.dev", "gpumemorypolicies", "ml", "p");
    round(&mut cluster, &mut controller, vec![read_back(LimitPhase::Applied, Some(40), Some(40))]).await;
    assert!(entries(&cluster).is_empty() && object(&cluster).is_some(), "kept until the agent has cleared it");
    // A real API server refuses an object whose spec went with its last entry.
    assert!(object(&cluster).unwrap()["spec"]["written"].is_string());
    round(&mut cluster, &mut controller, vec![read_back(LimitPhase::Cleared, None, None)]).await;
    assert_eq!(object(&cluster), None);
}

/// Reason and note of every Event about an object of a kind, in the order of their reasons.
fn told(cluster: &Cluster, kind: &str) -> Vec<(String, String)> {
    let world = cluster.world();
    let events = world.list("events.k8s.io", "events", "");
    let own = events.iter().filter(|event| event["regarding"]["kind"] == kind);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut told: Vec<_> = own.map(|event| (text(&event["reason"]), text(&event["note"]))).collect();
    told.sort();
    told
}

#[tokio::test]
async fn a_limit_is_told_once_when_it_holds_and_once_when_it_is_let_go_whoever_leads() {
    let mut cluster = cluster(&kernel("40Gi"));
    let mut controller = Controller::start(&cluster, "c1");
    round(&mut cluster, &mut controller, Vec::new()).await;
    round(&mut cluster, &mut controller, vec![read_back(LimitPhase::Pending, Some(40), None)]).await;
    assert!(told(&cluster, "Pod").is_empty(), "nothing holds yet");
    // A limit that comes down in steps is on its way and there, again and again.
    for applied in [44, 42, 40] {
        round(&mut cluster, &mut controller, vec![read_back(LimitPhase::Applied, Some(applied), Some(applied))]).await;
        round(&mut cluster, &mut controller, vec![read_back(LimitPhase::Pending, Some(40), Some(applied))]).await;
    }
    let mut next = Controller::start(&cluster, "c2");
    round(&mut cluster, &mut next, vec![read_back(LimitPhase::Applied, Some(40), Some(40))]).await;
    for kind in ["Pod", "GpuMemoryPolicy"] {
        let [(reason, note)] = told(&cluster, kind).try_into().expect("one Event");
        assert_eq!(reason, "GpuMemoryLimited");
        let start = "Container main of pod train-0 is held to 44 GiB of GPU memory by policy p, because ";
        assert!(note.starts_with(start) && note.contains("to end it, take LimitGrowth out"), "{note}");
    }
    assert_eq!(cluster.events("Deployment"), Vec::<String>::new());

    cluster.world().remove("gpumem.dev", "gpumemorypolicies", "ml", "p");
    for _ in 0..3 {
        round(&mut cluster, &mut next, vec![read_back(LimitPhase::Applied, Some(40), Some(40))]).await;
    }
    let [(reason, note), _] = told(&cluster, "Pod").try_into().expect("one more Event");
    assert_eq!(reason, "GpuMemoryLimitLetGo");
    assert!(note.contains("no longer to be held to 40 GiB of GPU memory: policy p is gone"), "{note}");
}

#[tokio::test]
async fn a_limit_that_cannot_be_applied_is_told_once_with_the_agents_reason() {
    let mut cluster = cluster(&kernel("40Gi"));
    let mut controller = Controller::start(&cluster, "c1");
    for _ in 0..4 {
        round(&mut cluster, &mut controller, vec![read_back(LimitPhase::Unsupported, Some(40), None)]).await;
    }
    for kind in ["Pod", "GpuMemoryPolicy"] {
        let [(reason, note)] = told(&cluster, kind).try_into().expect("one Event");
        assert_eq!(reason, "GpuMemoryLimitNotApplied");
        assert!(note.contains("is not held to 40 GiB of GPU memory, as policy p asks: a reason"), "{note}");
    }
}

#[tokio::test]
async fn what_is_only_advised_is_said_and_nothing_is_written() {
    for (limit, mode) in
        [(json!({"ceiling": "50%"}), Mode::Enforce), (kernel("50%"), Mode::DryRun), (kernel("50%"), Mode::Observe)]
    {
        let mut cluster = cluster(&limit);
        let mut controller = Controller::start_with(&cluster, "c1", mode);
        round(&mut cluster, &mut controller, Vec::new()).await;
        assert_eq!(object(&cluster), None);
        assert_eq!(cluster.condition("p", "GrowthLimited"), "False/Advised");
        let status = cluster.status("p");
        let told = status.conditions.iter().find(|condition| condition.type_ == "GrowthLimited").unwrap();
        assert!(told.message.contains("train-0/main on train-0 would be held to 40.0 GiB"), "{}", told.message);
    }
}

#[tokio::test]
async fn another_enforcers_limit_is_not_fought() {
    let mut cluster = cluster(&kernel("40Gi"));
    cluster.world().edit("", "pods", "ml", "train-0", |pod| {
        pod["spec"]["containers"] =
            json!([{"name": "main", "env": [{"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "16g"}]}]);
    });
    let mut controller = Controller::start(&cluster, "c1");
    round(&mut cluster, &mut controller, Vec::new()).await;
    assert_eq!(object(&cluster), None);
    assert_eq!(cluster.condition("p", "GrowthLimited"), "False/ManagedBy");
}

#[tokio::test]
async fn no_limit_is_begun_for_a_pod_that_opted_out_or_while_paused_and_a_pause_keeps_what_holds() {
    let mut cluster = cluster(&kernel("40Gi"));
    cluster.world().edit("", "pods", "ml", "train-0", |pod| {
        pod["metadata"]["annotations"] = json!({"gpumem.dev/actions": "Disabled"});
    });
    let mut controller = Controller::start(&cluster, "c1");
    round(&mut cluster, &mut controller, Vec::new()).await;
    assert_eq!(object(&cluster), None);
    cluster.world().edit("", "pods", "ml", "train-0", |pod| pod["metadata"]["annotations"] = json!({}));
    cluster.advance(60);
    round(&mut cluster, &mut controller, Vec::new()).await;
    assert_eq!(entries(&cluster).len(), 1);
    cluster.edit_policy("p", |spec| {
        spec["paused"] = json!({"reasons": ["maintenance"]});
        spec["growthLimit"]["ceiling"] = json!("20Gi");
    });
    round(&mut cluster, &mut controller, Vec::new()).await;
    assert_eq!(entries(&cluster)[0]["bytes"], json!(40_u64 << 30), "as it was");
    cluster.edit_policy("p", |spec| spec["paused"] = Value::Null);
    round(&mut cluster, &mut controller, Vec::new()).await;
    assert_eq!(entries(&cluster)[0]["bytes"], json!(20_u64 << 30));
}

#[tokio::test]
async fn stale_data_changes_nothing_and_a_new_leader_takes_over_what_it_finds() {
    let mut cluster = cluster(&kernel("40Gi"));
    let mut first = Controller::start(&cluster, "c1");
    round(&mut cluster, &mut first, Vec::new()).await;
    let before = entries(&cluster);
    cluster.edit_policy("p", |spec| spec["growthLimit"]["ceiling"] = json!("20Gi"));
    cluster.advance(120);
    first.round(&mut cluster).await;
    assert_eq!(entries(&cluster), before, "the newest sample is two minutes old: neither lowered nor renewed");
    let mut second = Controller::start(&cluster, "c2");
    second.round(&mut cluster).await;
    assert_eq!(entries(&cluster), before, "it has not heard of the node yet");
    round(&mut cluster, &mut second, Vec::new()).await;
    assert_eq!(entries(&cluster)[0]["bytes"], json!(20_u64 << 30));
}

#[tokio::test]
async fn what_an_agent_says_of_limits_nobody_asked_for_is_not_believed() {
    let mut cluster = cluster(&kernel("40Gi"));
    let mut controller = Controller::start(&cluster, "c1");
    round(&mut cluster, &mut controller, Vec::new()).await;
    let mut other = read_back(LimitPhase::Applied, Some(1), Some(1));
    other.container_id = "stranger".into();
    round(&mut cluster, &mut controller, vec![other]).await;
    let object = object(&cluster).unwrap();
    assert!(object["status"]["limits"].as_array().is_none_or(Vec::is_empty), "{object}");
}

#[tokio::test]
async fn without_rights_or_definition_the_policy_says_that_limits_are_off() {
    let mut cluster = cluster(&kernel("40Gi"));
    cluster.world().forbidden = Some("gpumemorynodes".to_owned());
    let mut controller = Controller::start(&cluster, "c1");
    round(&mut cluster, &mut controller, Vec::new()).await;
    assert_eq!(cluster.condition("p", "GrowthLimited"), "False/Off");
    assert_eq!(object(&cluster), None);
}

#[tokio::test]
async fn a_freeze_is_asked_for_refused_where_it_would_do_harm_and_taken_back() {
    let mut cluster = cluster(&kernel("40Gi"));
    let mut controller = Controller::start(&cluster, "c1");
    round(&mut cluster, &mut controller, Vec::new()).await;
    let pod = cluster.reports[0].pod.clone();
    let request = FreezeRequest {
        node: NODE.to_owned(),
        namespace: "ml".to_owned(),
        pod: "train-0".to_owned(),
        pod_uid: pod.uid.clone(),
        container: "main".to_owned(),
        container_id: "c1".into(),
        policy: PolicyKey { namespace: "ml".to_owned(), name: "p".to_owned() },
        reason: "an OOM is near".to_owned(),
        group_pods: 1,
        until: Stamp(cluster.stamp) + Duration::from_mins(5),
    };
    let now = cluster.now();
    let refused =
        limits::request_freeze(&controller.ctx, &FreezeRequest { group_pods: 4, ..request.clone() }, &now).await;
    assert_eq!(refused, Err(Refusal::SeveralPods(4)), "case 29");
    cluster.world().edit("", "pods", "ml", "train-0", |pod| {
        pod["spec"]["containers"] = json!([{"name": "main", "livenessProbe": {"exec": {"command": ["nvidia-smi"]}}}]);
    });
    let refused = limits::request_freeze(&controller.ctx, &request, &now).await;
    assert_eq!(refused, Err(Refusal::LivenessProbe("main".to_owned())));
    cluster.world().edit("", "pods", "ml", "train-0", |pod| pod["spec"]["containers"] = json!([]));
    assert_eq!(limits::request_freeze(&controller.ctx, &request, &now).await, Ok(()));
    assert_eq!(entries(&cluster).len(), 2, "the limit stays beside it");
    round(&mut cluster, &mut controller, Vec::new()).await;
    assert_eq!(entries(&cluster).len(), 2, "and rounds keep it");
    let now = cluster.now();
    limits::release_freeze(&controller.ctx, NODE, &"c1".into(), &now).await;
    assert_eq!(entries(&cluster).len(), 1);
}

/// The agent reports both pods of `train` on one device, or the first alone.
fn neighbours(cluster: &Cluster, is_shared: bool, limits: Vec<LimitReport>) -> UsageReport {
    let mut report = agent(cluster, limits);
    report.series[0].container_id = cluster.reports[0].pod.uid.as_str().into();
    if is_shared {
        let other = cluster.reports[1].pod.clone();
        let series = report.series[0].clone();
        report.series.push(SeriesReport { pod: other.uid.clone(), container_id: other.uid.as_str().into(), ..series });
        report.pods.push(other);
        report.devices[0].memory.as_mut().unwrap().used = Bytes::gib(20);
        report.devices[0].memory.as_mut().unwrap().free = Bytes::gib(60);
    }
    report
}

#[tokio::test]
async fn a_limit_that_holds_beside_a_neighbour_is_enough_and_alone_on_the_device_it_is_not() {
    for is_shared in [true, false] {
        let mut cluster = Cluster::new();
        cluster.deployment("train", 2);
        cluster.world().put("", "nodes", json!({"metadata": {"name": NODE, "uid": "node-uid"}}));
        cluster.policy("p", "train", |spec| {
            spec["actions"] = json!([{"type": "LimitGrowth"}, {"type": "Evict"}]);
            spec["growthLimit"] = kernel("40Gi");
            spec["prediction"]["warmUpSeconds"] = json!(0);
        });
        cluster.report("train-0", 0.05);
        cluster.report("train-1", 0.05);
        let mut controller = Controller::start(&cluster, "c1");
        let uid = cluster.reports[0].pod.uid.clone();
        let applied = LimitReport {
            pod: uid.clone(),
            container_id: uid.as_str().into(),
            ..read_back(LimitPhase::Applied, Some(40), Some(40))
        };
        for probability in [0.05, 0.05, 0.95, 0.95, 0.95] {
            cluster.change_report("train-0", |report| report.outlook = crate::cluster::risk(probability, 600));
            let report = neighbours(&cluster, is_shared, vec![applied.clone()]);
            let merged = controller.ctx.fleet().merge(NODE, report, cluster.now().instant);
            assert!(merged.accepted && merged.faults.is_empty(), "{merged:?}");
            controller.round(&mut cluster).await;
        }
        if is_shared {
            assert_eq!(cluster.condition("p", "ActionAllowed"), "False/LimitHolds");
        }
        assert_eq!(cluster.calls().len(), usize::from(!is_shared), "{is_shared}");
    }
}

/// A Deployment of one pod at risk, under a policy that lists SuspendToHost before Evict.
fn freezable(mode: &str, replicas: u32) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.deployment("train", replicas);
    cluster.world().put("", "nodes", json!({"metadata": {"name": NODE, "uid": "node-uid"}}));
    cluster.policy("p", "train", |spec| {
        spec["mode"] = json!(mode);
        spec["actions"] = json!([{"type": "SuspendToHost"}, {"type": "Evict"}]);
    });
    cluster.report("train-0", 0.95);
    cluster
}

#[tokio::test]
async fn a_single_pod_at_risk_is_frozen_once_and_goes_on_when_its_cool_down_ends_or_its_policy_goes() {
    for is_deleted in [true, false] {
        let mut cluster = freezable("Enforce", 1);
        let mut controller = Controller::start(&cluster, "c1");
        for _ in 0..8 {
            round(&mut cluster, &mut controller, Vec::new()).await;
        }
        let [entry] = entries(&cluster).try_into().expect("one entry");
        assert_eq!((&entry["containerID"], &entry["policy"]), (&json!("c1"), &json!("ml/p")));
        assert!(entry["freeze"].is_object() && entry["bytes"].is_null(), "{entry}");
        let actions = cluster.status("p").recent_actions;
        assert_eq!((actions.len(), actions[0].outcome.as_str()), (1, "Succeeded"), "{actions:?}");
        assert_eq!(cluster.calls().len(), 0, "nobody is evicted beside it");
        if is_deleted {
            cluster.world().remove("gpumem.dev", "gpumemorypolicies", "ml", "p");
        } else {
            cluster.change_report("train-0", |report| report.outlook = crate::cluster::risk(0.05, 600));
            cluster.advance(870);
            round(&mut cluster, &mut controller, Vec::new()).await;
            assert_eq!(entries(&cluster).len(), 1, "until the cool-down ends");
            cluster.advance(60);
        }
        round(&mut cluster, &mut controller, Vec::new()).await;
        assert_eq!(entries(&cluster), Vec::<Value>::new(), "{is_deleted}");
    }
}

/// What happens to a pod.
type End = fn(&Cluster);

#[tokio::test]
async fn a_freeze_is_taken_back_when_its_pod_is_gone_or_over_or_another_has_its_name() {
    let ends: [(&str, End); 3] = [
        ("gone", |cluster| cluster.world().remove("", "pods", "ml", "train-0")),
        ("over", |cluster| {
            cluster.world().edit("", "pods", "ml", "train-0", |pod| pod["status"]["phase"] = json!("Failed"));
        }),
        ("another", |cluster| {
            cluster.world().edit("", "pods", "ml", "train-0", |pod| pod["metadata"]["uid"] = json!("another"));
        }),
    ];
    for (what, end) in ends {
        for is_restarted in [false, true] {
            let mut cluster = freezable("Enforce", 1);
            let mut controller = Controller::start(&cluster, "c1");
            for _ in 0..8 {
                round(&mut cluster, &mut controller, Vec::new()).await;
            }
            assert_eq!(entries(&cluster).len(), 1);
            cluster.advance(20);
            round(&mut cluster, &mut controller, Vec::new()).await;
            assert_eq!(entries(&cluster).len(), 1, "as long as its pod is there");
            end(&cluster);
            cluster.world().broken = Some("/pods/train-0".to_owned());
            cluster.advance(20);
            round(&mut cluster, &mut controller, Vec::new()).await;
            assert_eq!(entries(&cluster).len(), 1, "nobody knows whether it is {what}");
            cluster.world().broken = None;
            if is_restarted {
                controller = Controller::start(&cluster, "c2");
            }
            cluster.advance(20);
            round(&mut cluster, &mut controller, Vec::new()).await;
            assert_eq!(entries(&cluster), Vec::<Value>::new(), "{what}, restarted: {is_restarted}");
        }
    }
}

#[tokio::test]
async fn all_freezes_of_a_pod_that_is_gone_are_taken_back_and_those_of_another_stay() {
    let mut cluster = cluster(&kernel("40Gi"));
    cluster.deployment("serve", 1);
    let mut controller = Controller::start(&cluster, "c1");
    round(&mut cluster, &mut controller, Vec::new()).await;
    for (pod, container) in [("train-0", "main"), ("train-0", "side"), ("serve-0", "main")] {
        let uid = cluster.world().get("", "pods", "ml", pod).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
        let request = FreezeRequest {
            node: NODE.to_owned(),
            namespace: "ml".to_owned(),
            pod: pod.to_owned(),
            pod_uid: uid.into(),
            container: container.to_owned(),
            container_id: format!("{pod}-{container}").into(),
            policy: PolicyKey { namespace: "ml".to_owned(), name: "p".to_owned() },
            reason: "an OOM is near".to_owned(),
            group_pods: 1,
            until: Stamp(cluster.stamp) + Duration::from_mins(5),
        };
        assert_eq!(limits::request_freeze(&controller.ctx, &request, &cluster.now()).await, Ok(()));
    }
    let frozen = |cluster: &Cluster| {
        let freezes = entries(cluster).into_iter().filter(|entry| entry["freeze"].is_object());
        freezes.map(|entry| entry["containerID"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(frozen(&cluster), ["serve-0-main", "train-0-main", "train-0-side"]);
    cluster.world().remove("", "pods", "ml", "train-0");
    cluster.advance(20);
    round(&mut cluster, &mut controller, Vec::new()).await;
    assert_eq!(frozen(&cluster), ["serve-0-main"]);
}

#[tokio::test]
async fn several_pods_a_probe_and_a_dry_run_are_not_frozen() {
    let mut cluster = freezable("Enforce", 2);
    let mut controller = Controller::start(&cluster, "c1");
    round(&mut cluster, &mut controller, Vec::new()).await;
    let action = &cluster.status("p").recent_actions[0];
    assert_eq!((object(&cluster), cluster.calls().len()), (None, 1), "the next action follows");
    assert!(action.message.contains("workload of several pods has no lever to suspend to host"), "{}", action.message);

    let mut cluster = freezable("Enforce", 1);
    cluster.world().edit("", "pods", "ml", "train-0", |pod| {
        pod["spec"]["containers"] = json!([{"name": "main", "livenessProbe": {"exec": {"command": ["nvidia-smi"]}}}]);
    });
    let mut controller = Controller::start(&cluster, "c1");
    round(&mut cluster, &mut controller, Vec::new()).await;
    assert_eq!((object(&cluster), cluster.calls().len()), (None, 1), "the kubelet would kill it");

    let mut cluster = freezable("DryRun", 1);
    let mut controller = Controller::start(&cluster, "c1");
    round(&mut cluster, &mut controller, Vec::new()).await;
    assert_eq!((object(&cluster), cluster.status("p").recent_actions[0].outcome.as_str()), (None, "DryRun"));
}

#[tokio::test]
async fn a_crash_around_a_freeze_neither_loses_nor_repeats_it() {
    use crate::cluster::server::Crash;
    for (crash, request) in (1..30).step_by(2).flat_map(|request| [(Crash::Before, request), (Crash::After, request)]) {
        let mut cluster = freezable("Enforce", 1);
        let controller = Controller::start(&cluster, "c1");
        let (report, received) = (agent(&cluster, Vec::new()), cluster.now().instant);
        assert!(controller.ctx.fleet().merge(NODE, report, received).accepted);
        cluster.world().crash_at(request, crash);
        controller.dies_within(&mut cluster, 1).await;
        cluster.world().crash_at(1_000_000, crash);
        let mut next = Controller::start(&cluster, "c2");
        for _ in 0..60 {
            round(&mut cluster, &mut next, Vec::new()).await;
        }
        assert_eq!((entries(&cluster).len(), cluster.calls().len()), (1, 0), "{crash:?} {request}");
        let done = cluster.profiles()[0].status.clone().unwrap_or_default().actions;
        let done = done.iter().filter(|action| matches!(action.outcome.as_str(), "Succeeded" | "FoundDone"));
        assert_eq!(done.count(), 1, "{crash:?} {request}");
    }
}

#[tokio::test]
async fn the_uninstallation_tells_every_node_to_release_and_waits_for_it() {
    let mut cluster = cluster(&kernel("40Gi"));
    let mut controller = Controller::start(&cluster, "c1");
    round(&mut cluster, &mut controller, Vec::new()).await;
    round(&mut cluster, &mut controller, vec![read_back(LimitPhase::Applied, Some(40), Some(40))]).await;
    let client = cluster.api.client();
    let left = limits::release(&client, Duration::ZERO).await.unwrap();
    assert_eq!(left, [NODE], "told, and not waited for any longer");
    assert_eq!(object(&cluster).unwrap()["spec"]["release"], true);
    assert_eq!(entries(&cluster).len(), 1, "the controller's entries are the controller's");
    round(&mut cluster, &mut controller, vec![read_back(LimitPhase::Cleared, None, None)]).await;
    assert_eq!(limits::release(&client, Duration::ZERO).await.unwrap(), [] as [String; 0]);
    limits::delete_all(&client).await.unwrap();
    assert_eq!(object(&cluster), None);
}

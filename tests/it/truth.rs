//! What really happened, from the kubelet's words to profile, metric and Events: once each, whatever restarts in between.

use std::sync::Arc;

use gpumem::api::convert;
use gpumem::api::node::LimitPhase;
use gpumem::api::profile::GpuMemoryProfileStatus;
use gpumem::api::usage::{
    Cursor, DeviceReport, EndReport, FORMAT, HookReport, LimitReport, NvmlState, PodReport, SeriesData, SeriesReport,
    UsageReport,
};
use gpumem::controller::context::Context;
use gpumem::controller::metrics::Exposition;
use gpumem::controller::now::rfc3339;
use gpumem::controller::profile::expiry::sweep;
use gpumem_engine::identity::DeviceKey;
use gpumem_engine::oom::{Death, from_exit};
use gpumem_engine::pacing::Stamp;
use gpumem_engine::policy::{Mode, PolicyKey};
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::sample::DeviceMemory;
use gpumem_engine::series::{Point, Segment};
use gpumem_engine::usage::Attribution;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Controller, NODE, owner};

mod limited;
mod misfit;
mod profile;
mod refusals;

const MESSAGE: &str = "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate \
    2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free. Of the allocated memory 74.00 GiB is \
    allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.";

/// The agent of the node, played by hand.
struct Agent {
    now: u64,
    epoch: u64,
    /// Allocations that the container's own allocator refused, where its hook counts them.
    refused: Option<u32>,
    /// What a growth limit holds the container to, as the agent reads it back while the container runs.
    limit: Option<u64>,
}

impl Agent {
    /// One that just started, on a node whose clock runs on.
    fn new(cluster: &Cluster) -> Self {
        let epoch = u64::try_from(cluster.stamp).unwrap();
        Self { now: 100 + 100 * (epoch - 1_800_000_000), epoch, refused: None, limit: None }
    }

    /// Ten seconds in which the pod's container holds this much, unless it ended.
    fn report(&mut self, pod: &PodReport, gib: Option<u64>) -> UsageReport {
        let device = DeviceKey::whole("GPU-1");
        let used = Bytes::gib(gib.unwrap_or(0));
        let points =
            (self.now..self.now + 10).map(|second| Point { at: Moment::from_secs(second), used, allocator: None });
        let points: Vec<Point> = points.collect();
        self.now += 10;
        let now = Moment::from_secs(self.now);
        let memory =
            DeviceMemory { total: Bytes::gib(80), used, free: Bytes::gib(80) - used, reserved: Some(Bytes::ZERO) };
        let series = SeriesReport {
            device: device.clone(),
            pod: pod.uid.clone(),
            container: "main".into(),
            container_id: "c1".into(),
            data: SeriesData::Samples { segment: Segment(1), points },
        };
        UsageReport {
            format: FORMAT,
            limits: self.limit.filter(|_| gib.is_some()).map(read_back).into_iter().collect(),
            agent_version: "0.1.0".into(),
            node: NODE.into(),
            boot_id: "boot".into(),
            cursor: Cursor { epoch: self.epoch, seq: self.now },
            now,
            interval_ms: 1000,
            simulated: true,
            nvml: NvmlState::Up { driver: "580".into() },
            hooks: self.refused.filter(|_| gib.is_some()).map(|ooms| hook(pod, ooms)).into_iter().collect(),
            waiting: Vec::new(),
            abilities: gpumem::api::usage::Abilities::default(),
            devices: vec![DeviceReport {
                device,
                index: 0,
                model: "NVIDIA H100".into(),
                at: now,
                memory: Some(memory),
                unattributed: Some(Bytes::ZERO),
                attribution: Attribution::Complete,
            }],
            pods: vec![pod.clone()],
            series: gib.map(|_| series).into_iter().collect(),
        }
    }
}

fn read_back(gib: u64) -> LimitReport {
    LimitReport {
        pod: "u".into(),
        container_id: "c1".into(),
        device: "GPU-1".into(),
        desired: Some(Bytes::gib(gib)),
        applied: Some(Bytes::gib(gib)),
        backend: "nvml-cgroup (simulated)".into(),
        state: LimitPhase::Applied,
        reason: "as asked for".into(),
        cgroup: "memory/kubepods/podx/c1".into(),
    }
}

fn hook(pod: &PodReport, ooms: u32) -> HookReport {
    HookReport {
        device: DeviceKey::whole("GPU-1"),
        pod: pod.uid.clone(),
        container: "main".into(),
        container_id: "c1".into(),
        allocated: Some(Bytes::gib(70)),
        reserved: Some(Bytes::gib(74)),
        ooms,
        hooked: 1,
        processes: 1,
    }
}

/// A pod of the cluster as its agent reports it.
fn reported(cluster: &mut Cluster, name: &str) -> PodReport {
    cluster.report(name, 0.05);
    cluster.reports.iter().find(|report| report.pod.name == name).unwrap().pod.clone()
}

/// A cluster with the Job `tune`.
fn with_job() -> Cluster {
    let cluster = Cluster::new();
    cluster.world().put(
        "batch",
        "jobs",
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"namespace": "ml", "name": "tune", "uid": "job-tune"},
            "spec": {"template": {}}}),
    );
    cluster
}

/// A pod of the Job, and how it ended.
fn attempt_of_job(cluster: &mut Cluster, name: &str, message: &str) -> (PodReport, EndReport) {
    cluster.pod(name, "tune", owner("batch/v1", "Job", "tune", "job-tune"), 0);
    let pod = reported(cluster, name);
    (pod, EndReport { is_current: true, ..end(cluster, 1, "Error", message) })
}

fn end(cluster: &Cluster, exit_code: i32, reason: &str, message: &str) -> EndReport {
    EndReport {
        container: "main".into(),
        container_id: "c1".into(),
        exit_code,
        reason: reason.into(),
        finished_at: rfc3339(Stamp(cluster.stamp - 2)),
        message: message.into(),
        is_current: false,
    }
}

/// The container ran at 75 GiB and ended so.
fn ended(cluster: &Cluster, controller: &Controller, pod: &PodReport, end: &EndReport) {
    let mut agent = Agent::new(cluster);
    let instant = cluster.now().instant;
    let (before, after) = (agent.report(pod, Some(75)), PodReport { ends: vec![end.clone()], ..pod.clone() });
    let mut fleet = controller.ctx.fleet();
    assert!(fleet.merge(NODE, before, instant).accepted);
    assert_eq!(fleet.merge(NODE, agent.report(&after, None), instant).faults.len(), 0);
}

fn metrics(cluster: &Cluster, ctx: &Context) -> String {
    let spec = serde_json::from_value(json!({"target": {"podSelector": {}}})).unwrap();
    let key = PolicyKey { namespace: String::new(), name: String::new() };
    let exposition = Exposition {
        metrics: Arc::clone(&ctx.metrics),
        fleet: Arc::clone(&ctx.fleet),
        leadership: ctx.leadership.clone(),
        default: Arc::new(convert::policy(key, &spec, Mode::Observe).unwrap()),
    };
    exposition.text(cluster.now().instant)
}

fn value(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
}

fn status(cluster: &Cluster) -> GpuMemoryProfileStatus {
    let profiles = cluster.profiles();
    assert_eq!(profiles.len(), 1, "{profiles:?}");
    profiles[0].status.clone().unwrap_or_default()
}

fn reading_logs(mut controller: Controller) -> Controller {
    Arc::get_mut(&mut controller.ctx).expect("not shared yet").read_pod_logs = true;
    controller
}

const OOMS: &str = "gpumem_container_oom_events_total{namespace=\"ml\",pod=\"train-0\",container=\"main\"}";

#[tokio::test]
async fn an_oom_is_counted_told_and_remembered_once_whatever_restarts() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 1);
    cluster.policy("p", "train", |spec| spec["mode"] = json!("Observe"));
    let pod = reported(&mut cluster, "train-0");
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 2).await;
    let end = end(&cluster, 1, "Error", MESSAGE);
    ended(&cluster, &controller, &pod, &end);
    controller.rounds(&mut cluster, 3).await;
    assert_eq!(value(&metrics(&cluster, &controller.ctx), OOMS), Some(1.0), "a series begins at 1");
    // The agent restarts and tells it again, then the controller does, then another replica leads.
    ended(&cluster, &controller, &pod, &end);
    controller.rounds(&mut cluster, 3).await;
    assert_eq!(value(&metrics(&cluster, &controller.ctx), OOMS), Some(1.0));
    for name in ["c1", "c2"] {
        let mut next = Controller::start(&cluster, name);
        ended(&cluster, &next, &pod, &end);
        next.rounds(&mut cluster, 3).await;
        assert_eq!(value(&metrics(&cluster, &next.ctx), OOMS), None, "{name}");
    }
    let status = status(&cluster);
    assert_eq!((status.oom_count, status.ooms.len(), status.judged["Missed"]), (1, 1, 1));
    let record = &status.ooms[0];
    assert_eq!((record.framework.as_str(), record.peak_bytes), ("PyTorch", Some(75 << 30)));
    assert_eq!(record.requested_bytes, Some(2 << 30));
    assert!(!status.advice.is_empty() && status.recommendation.is_some());
    for kind in ["Pod", "Deployment", "GpuMemoryPolicy"] {
        assert_eq!(cluster.events(kind), ["GpuMemoryOutOfMemory"], "{kind}");
    }
    let world = cluster.world();
    let note = world.list("events.k8s.io", "events", "")[0]["note"].as_str().unwrap().to_owned();
    assert!(
        note.starts_with("Container main of pod train-0 died of GPU out-of-memory (PyTorch), holding 75"),
        "{note}"
    );
}

#[tokio::test]
async fn without_a_policy_nothing_is_written_and_an_oom_is_counted_once() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 1);
    // Another workload's policy, and one of another namespace, change nothing about it.
    cluster.policy("other", "serve", |_| {});
    let mut pod = reported(&mut cluster, "train-0");
    pod.annotations.insert("gpumem.dev/workload".into(), "model=llama3.1-70b batch=8 seq=8192".into());
    let written = |cluster: &Cluster| -> Vec<Value> {
        let world = cluster.world();
        let events = world.list("events.k8s.io", "events", "");
        let profiles = world.list("gpumem.dev", "gpumemoryprofiles", "");
        [events, profiles].concat().into_iter().filter(|o| o.to_string().contains("train")).cloned().collect()
    };
    let mut controller = Controller::start(&cluster, "c1");
    let oom = end(&cluster, 1, "Error", MESSAGE);
    for _ in 0..2 {
        ended(&cluster, &controller, &pod, &oom);
        controller.rounds(&mut cluster, 40).await;
        assert_eq!(value(&metrics(&cluster, &controller.ctx), OOMS), Some(1.0));
    }
    let killed = end(&cluster, 137, "OOMKilled", MESSAGE);
    ended(&cluster, &controller, &pod, &killed);
    controller.rounds(&mut cluster, 3).await;
    // Another replica leads: what ended before is not its to count, what ends from now on is.
    cluster.advance(10);
    let mut next = Controller::start(&cluster, "c2").leads_since_now(&cluster);
    ended(&cluster, &next, &pod, &oom);
    next.rounds(&mut cluster, 3).await;
    assert_eq!(value(&metrics(&cluster, &next.ctx), OOMS), None);
    next.rounds(&mut cluster, 10).await;
    ended(&cluster, &next, &pod, &end(&cluster, 1, "Error", MESSAGE));
    next.rounds(&mut cluster, 3).await;
    assert_eq!(value(&metrics(&cluster, &next.ctx), OOMS), Some(1.0));
    assert_eq!(written(&cluster), Vec::<Value>::new());
}

#[test]
fn the_simulated_workloads_last_words_are_those_of_an_oom() {
    let refusal = refusal_of_the_driver();
    let text = format!("step 12\n{}\n", gpumem_sim::oom::message(&refusal));
    let Death::GpuOom(report) = from_exit(1, Some("Error"), Some(&text)) else { panic!("{text}") };
    assert_eq!((report.framework, report.numbers.requested), ("PyTorch", Some(Bytes::mib(38))));
}

fn refusal_of_the_driver() -> gpumem_sim::protocol::OutOfMemory {
    gpumem_sim::protocol::OutOfMemory {
        device: 0,
        requested: 38 << 20,
        total: 24 << 30,
        free: 1 << 20,
        pid: 7,
        context: 512 << 20,
        held: 23 << 30,
        processes: vec![(7, 24 << 30)],
    }
}

#[tokio::test]
async fn a_crash_before_the_answer_is_known_neither_loses_nor_doubles_an_oom() {
    use crate::cluster::server::Crash;
    for (crash, request) in (1..24).flat_map(|request| [(Crash::Before, request), (Crash::After, request)]) {
        let mut cluster = Cluster::new();
        cluster.deployment("train", 1);
        cluster.policy("p", "train", |spec| spec["mode"] = json!("Observe"));
        let pod = reported(&mut cluster, "train-0");
        let controller = Controller::start(&cluster, "c1");
        let end = end(&cluster, 1, "Error", MESSAGE);
        ended(&cluster, &controller, &pod, &end);
        cluster.world().crash_at(request, crash);
        controller.dies_within(&mut cluster, 3).await;
        // Where there were fewer requests than that, the next process is not to meet it.
        cluster.world().crash_at(1_000_000, crash);
        let mut next = Controller::start(&cluster, "c2");
        ended(&cluster, &next, &pod, &end);
        next.rounds(&mut cluster, 3).await;
        assert_eq!(status(&cluster).oom_count, 1, "{crash:?} {request}");
        for kind in ["Pod", "Deployment", "GpuMemoryPolicy"] {
            assert_eq!(cluster.events(kind), ["GpuMemoryOutOfMemory"], "{crash:?} {request}: {kind}");
        }
    }
}

#[tokio::test]
async fn a_kill_for_host_memory_is_no_gpu_oom_and_is_told_as_what_it_is() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 1);
    cluster.policy("p", "train", |spec| spec["mode"] = json!("Observe"));
    let pod = reported(&mut cluster, "train-0");
    let mut controller = Controller::start(&cluster, "c1");
    ended(&cluster, &controller, &pod, &end(&cluster, 137, "OOMKilled", MESSAGE));
    controller.rounds(&mut cluster, 3).await;
    assert_eq!(value(&metrics(&cluster, &controller.ctx), OOMS), None);
    assert_eq!(cluster.events("Pod"), ["HostMemoryOutOfMemory"]);
    assert_eq!(cluster.profiles(), []);
}

#[tokio::test]
async fn what_only_looks_like_an_oom_leaves_no_trace() {
    for (exit, message) in
        [(0, MESSAGE), (1, "KeyError: 'x'"), (1, "java.lang.OutOfMemoryError: Java heap space"), (137, "")]
    {
        let mut cluster = Cluster::new();
        cluster.deployment("train", 1);
        cluster.policy("p", "train", |spec| spec["mode"] = json!("Observe"));
        let pod = reported(&mut cluster, "train-0");
        let mut controller = Controller::start(&cluster, "c1");
        ended(&cluster, &controller, &pod, &end(&cluster, exit, "Error", message));
        controller.rounds(&mut cluster, 3).await;
        assert_eq!((cluster.profiles().len(), cluster.events("Pod").len()), (0, 0), "{exit} {message}");
    }
}

#[tokio::test]
async fn a_log_is_read_once_and_only_where_that_is_allowed() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 1);
    cluster.policy("p", "train", |spec| spec["mode"] = json!("Observe"));
    let pod = reported(&mut cluster, "train-0");
    cluster.world().logs.insert("train-0".into(), MESSAGE.into());
    let silent = end(&cluster, 1, "Error", "");
    let logs = |cluster: &Cluster| cluster.world().requests(&http::Method::GET, "/log");

    let mut controller = Controller::start(&cluster, "c1");
    ended(&cluster, &controller, &pod, &silent);
    controller.rounds(&mut cluster, 3).await;
    assert_eq!((logs(&cluster).len(), cluster.profiles().len()), (0, 0), "off by default");

    let mut controller = reading_logs(Controller::start(&cluster, "c2"));
    ended(&cluster, &controller, &pod, &silent);
    controller.rounds(&mut cluster, 40).await;
    assert_eq!(value(&metrics(&cluster, &controller.ctx), OOMS), Some(1.0));
    let read = logs(&cluster);
    assert_eq!(read.len(), 1);
    for part in ["previous=true", "container=main", "tailLines=", "limitBytes="] {
        assert!(read[0].query.contains(part), "{}", read[0].query);
    }
    // A restart knows the end already.
    let mut next = reading_logs(Controller::start(&cluster, "c3"));
    ended(&cluster, &next, &pod, &silent);
    next.rounds(&mut cluster, 3).await;
    assert_eq!((logs(&cluster).len(), status(&cluster).oom_count), (1, 1));
}

#[tokio::test]
async fn a_log_that_may_not_be_read_is_said_by_its_reason_and_not_asked_for_again() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 1);
    cluster.policy("p", "train", |spec| spec["mode"] = json!("Observe"));
    let pod = reported(&mut cluster, "train-0");
    cluster.world().forbidden = Some("/log".into());
    let mut controller = reading_logs(Controller::start(&cluster, "c1"));
    ended(&cluster, &controller, &pod, &end(&cluster, 1, "Error", ""));
    controller.rounds(&mut cluster, 60).await;
    let text = metrics(&cluster, &controller.ctx);
    assert_eq!(value(&text, "gpumem_controller_errors_total{kind=\"logs_forbidden\",part=\"truth\"}"), Some(1.0));
    assert_eq!(cluster.world().requests(&http::Method::GET, "/log").len(), 1);
}

#[tokio::test]
async fn an_agents_word_about_a_pod_that_the_api_does_not_know_writes_nothing() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 1);
    cluster.policy("p", "train", |spec| spec["mode"] = json!("Observe"));
    let pod = reported(&mut cluster, "train-0");
    let mut controller = Controller::start(&cluster, "c1");
    cluster.reports.clear();
    let invented = PodReport { uid: "invented".into(), ..pod };
    ended(&cluster, &controller, &invented, &end(&cluster, 1, "Error", MESSAGE));
    controller.slow_rounds(&mut cluster, 70).await;
    assert_eq!((cluster.profiles().len(), cluster.events("Pod").len()), (0, 0));
}

#[tokio::test]
async fn a_warning_is_judged_by_a_controller_that_did_not_raise_it() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 1);
    cluster.policy("p", "train", |spec| spec["mode"] = json!("Observe"));
    cluster.report("train-0", 0.95);
    let pod = cluster.reports[0].pod.clone();
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 3).await;
    assert_eq!(status(&cluster).warnings.len(), 1);
    let raised = cluster.stamp;
    drop(controller);

    let mut next = Controller::start(&cluster, "c2");
    cluster.advance(600);
    next.rounds(&mut cluster, 2).await;
    ended(&cluster, &next, &pod, &end(&cluster, 1, "Error", MESSAGE));
    cluster.reports.clear();
    next.rounds(&mut cluster, 2).await;
    let text = metrics(&cluster, &next.ctx);
    assert_eq!(value(&text, "gpumem_predictions_total{outcome=\"Hit\"}"), Some(1.0));
    let lead = value(&text, "gpumem_prediction_lead_seconds_sum").unwrap();
    assert!((lead - (cluster.stamp - raised) as f64).abs() < 10.0, "{lead}");
    assert_eq!((status(&cluster).warnings.len(), status(&cluster).judged["Hit"]), (0, 1));
}

#[tokio::test]
async fn an_eviction_makes_a_warning_averted_and_a_risk_that_clears_a_false_alarm() {
    for (mode, outcome) in [("Enforce", "Avoided"), ("Observe", "FalseAlarm")] {
        let mut cluster = Cluster::new();
        cluster.deployment("train", 2);
        cluster.policy("p", "train", |spec| spec["mode"] = json!(mode));
        cluster.report("train-0", 0.95);
        let mut controller = Controller::start(&cluster, "c1");
        controller.rounds(&mut cluster, 3).await;
        assert_eq!(status(&cluster).warnings.len(), 1, "{mode}");
        cluster.change_report("train-0", |report| report.outlook = crate::cluster::risk(0.05, 0));
        controller.rounds(&mut cluster, 3).await;
        let later = |cluster: &mut Cluster, seconds| {
            cluster.advance(seconds);
            cluster.now()
        };
        assert_eq!(sweep(&controller.ctx, &later(&mut cluster, 600), false).await.unwrap().judged, 0);
        // Nobody reports it any more.
        assert_eq!(sweep(&controller.ctx, &later(&mut cluster, 3600), false).await.unwrap().judged, 1);
        assert_eq!(status(&cluster).judged, [(outcome.to_owned(), 1)].into(), "{mode}");
    }
}

#[tokio::test]
async fn a_suspension_averts_the_ooms_of_all_pods_of_its_workload() {
    let mut cluster = Cluster::new();
    cluster.job("tune", 2);
    cluster.policy("p", "tune", |spec| {
        spec["actions"] = json!([{"type": "SuspendWorkload"}]);
        spec["disruption"]["maxConcurrent"] = json!(2);
    });
    cluster.all_at_risk("tune");
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 3).await;
    let acted: Vec<bool> = status(&cluster).warnings.iter().map(|warning| warning.acted).collect();
    assert_eq!(acted, [true, true]);
}

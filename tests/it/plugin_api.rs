//! A Kubernetes API in the process for the plugin: answers by path, refuses what it is told to, and remembers what was
//! written.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use gpumem::api::view::{
    AbilityView, Answerer, ContainerList, ContainerView, DeviceView, Level, Named, NodeList, NodeView, Quantiles,
    SeriesPoint,
};
use gpumem::plugin::cluster::Cluster;
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;
/// The operator's namespace.
pub const THEIRS: &str = "gpumem-system";
const CONTROLLER: &str = "gpumem-controller-7d9";
const REPLICA: &str = "gpumem-controller-b42";

/// The API's answers.
#[derive(Clone, Default)]
pub struct World {
    answers: BTreeMap<String, (u16, String)>,
    /// What was written: method, path, body.
    pub written: Arc<Mutex<Vec<(String, String, String)>>>,
}

impl World {
    /// A healthy installation with a leak, a server, and something that nobody knows about.
    pub fn healthy() -> Self {
        let mut world = Self::default();
        world.set(
            "/version",
            &json!({"major": "1", "minor": "37", "gitVersion": "v1.37.0", "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}),
        );
        for (_, mut definition) in gpumem::api::crd::all() {
            let name = definition.metadata.name.clone().unwrap();
            let status = json!({"conditions": [{"type": "Established", "status": "True", "reason": "", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}], "acceptedNames": {"kind": "", "plural": ""}, "storedVersions": []});
            definition.status = serde_json::from_value(status).unwrap();
            let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
            world.set(&path, &serde_json::to_value(&definition).unwrap());
        }
        world.set("/api/v1/namespaces/team-a", &json!({"metadata": {"name": "team-a"}}));
        world.review(true);
        world.set_pods("controller", &[(CONTROLLER, "", true), (REPLICA, "", true)]);
        world.set_pods("agent", &[("agent-a", "node-a", true), ("agent-b", "node-b", true)]);
        world.set(
            &format!("/apis/coordination.k8s.io/v1/namespaces/{THEIRS}/leases/gpumem-controller"),
            &json!({"metadata": {"name": "gpumem-controller"}, "spec": {"holderIdentity": CONTROLLER,
                "renewTime": "2026-11-29T12:00:00.000000Z"}}),
        );
        world.set(&ledger_path(), &json!({"metadata": {"name": "gpumem-ledger"}, "data": {"intents": "[]"}}));
        world.live(&containers(), &nodes());
        world.set("/apis/gpumem.dev/v1alpha1/namespaces/team-a/gpumemorypolicies", &list(&[policy()]));
        world.set("/apis/gpumem.dev/v1alpha1/gpumemorypolicies", &list(&[policy()]));
        world.set("/apis/gpumem.dev/v1alpha1/namespaces/team-a/gpumemoryprofiles", &list(&[profile()]));
        world.set("/apis/gpumem.dev/v1alpha1/gpumemoryprofiles", &list(&[profile()]));
        world
    }

    pub fn set(&mut self, path: &str, answer: &Value) {
        self.answers.insert(path.to_owned(), (200, answer.to_string()));
    }

    /// The answer to a path.
    pub fn get(&self, path: &str) -> Value {
        serde_json::from_str(&self.answers[path].1).unwrap()
    }

    /// Notes on the policies when their statuses were written, as an API server does.
    pub fn status_written(&mut self, time: &str) {
        for path in ["namespaces/team-a/gpumemorypolicies", "gpumemorypolicies"] {
            let path = format!("/apis/gpumem.dev/v1alpha1/{path}");
            let mut list = self.get(&path);
            list["items"][0]["metadata"]["managedFields"] = json!([
                {"manager": "kubectl", "operation": "Apply", "time": "2026-11-29T12:00:00Z"},
                {"manager": "gpumem", "operation": "Apply", "subresource": "status", "time": time},
            ]);
            self.set(&path, &list);
        }
    }

    /// Refuses every path with this in it.
    pub fn refuse(&mut self, code: u16, part: &str) {
        let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": match code { 404 => "NotFound", 403 => "Forbidden", _ => "InternalError" },
            "code": code});
        self.answers.insert(format!("!{part}"), (code, body.to_string()));
    }

    pub fn live(&mut self, containers: &ContainerList, nodes: &NodeList) {
        for pod in [CONTROLLER, REPLICA] {
            let proxy = format!("/api/v1/namespaces/{THEIRS}/pods/{pod}:9401/proxy/api/v1");
            self.set(&format!("{proxy}/containers"), &serde_json::to_value(containers).unwrap());
            self.set(&format!("{proxy}/nodes"), &serde_json::to_value(nodes).unwrap());
        }
    }

    pub fn review(&mut self, allowed: bool) {
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        self.set(path, &json!({"metadata": {}, "spec": {}, "status": {"allowed": allowed}}));
    }

    /// The operator's pods of a component: name, node, whether Ready.
    pub fn set_pods(&mut self, component: &str, pods: &[(&str, &str, bool)]) {
        let items: Vec<Value> = pods
            .iter()
            .map(|(name, node, ready)| {
                json!({
                    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": THEIRS},
                    "spec": {"nodeName": node, "containers": [{"name": component, "args": [component, "--ledger",
                        "gpumem-ledger", "--lease", "gpumem-controller", "--max-mode", "Enforce"],
                        "ports": [{"name": "metrics", "containerPort": 9401}]}]},
                    "status": {"conditions": [{"type": "Ready", "status": if *ready { "True" } else { "False" }}]},
                })
            })
            .collect();
        self.answers.insert(format!("pods:{component}"), (200, list(&items).to_string()));
    }

    /// The cluster as the plugin has it, looking into a namespace, or into all.
    pub fn cluster(&self, namespace: Option<&str>) -> Cluster {
        let world = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let world = world.clone();
            async move { Ok::<_, Infallible>(world.answer(request).await) }
        });
        let client = kube::Client::new(service, "team-a");
        let clock = || "2026-11-29T12:00:04Z".parse().unwrap();
        Cluster { client, namespace: namespace.map(str::to_owned), operator: None, clock, server: "a test".to_owned() }
    }

    async fn answer(&self, request: http::Request<Body>) -> http::Response<Body> {
        let (parts, body) = request.into_parts();
        let (path, query) = (parts.uri.path().to_owned(), parts.uri.query().unwrap_or_default().to_owned());
        if parts.method != http::Method::GET {
            let body = body.collect().await.unwrap().to_bytes();
            let body = String::from_utf8(body.to_vec()).unwrap();
            self.written.lock().unwrap().push((parts.method.to_string(), path.clone(), body));
        }
        let refused =
            self.answers.iter().find(|(part, _)| part.strip_prefix('!').is_some_and(|part| path.contains(part)));
        let component = ["controller", "agent"]
            .into_iter()
            .find(|component| query.ends_with(component) || query.contains(&format!("component%3D{component}")));
        let found = match (refused, component) {
            (Some((_, answer)), _) => Some(answer),
            (None, Some(component)) if path.ends_with("/pods") => self.answers.get(&format!("pods:{component}")),
            _ => self.answers.get(&path),
        };
        let missing = (
            404,
            json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "message": "not found", "code": 404})
                .to_string(),
        );
        let (code, text) = found.cloned().unwrap_or(missing);
        http::Response::builder().status(code).body(Body::from(text.into_bytes())).unwrap()
    }
}

/// Path of the ledger.
pub fn ledger_path() -> String {
    format!("/api/v1/namespaces/{THEIRS}/configmaps/gpumem-ledger")
}

pub fn list(items: &[impl serde::Serialize]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": items})
}

fn answerer() -> Answerer {
    Answerer { pod: CONTROLLER.to_owned(), version: "0.1.0".to_owned(), is_leader: true }
}

pub fn containers() -> ContainerList {
    let device = "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f".to_owned();
    let leak = ContainerView {
        node: "node-a".into(),
        namespace: "team-a".into(),
        pod: "train-6f9-x2k".into(),
        pod_uid: "uid-train".into(),
        container: "train".into(),
        owner: Some(Named { kind: "ReplicaSet".into(), name: "train-6f9".into() }),
        device: device.clone(),
        gpu: 0,
        model: "NVIDIA H100 80GB HBM3".into(),
        used_bytes: Some(61 * GIB),
        capacity_bytes: Some(79 * GIB),
        device_used_bytes: Some(63 * GIB),
        peak_bytes: Some(61 * GIB),
        class: "Leak".into(),
        level: Level::High,
        reason:
            "grows 20 MiB/s over the last 12 min with 15.5 GiB of 79 GiB left: full in about 13 min (11 min to 17 min)"
                .into(),
        probability: Some(0.93),
        probability_by_horizon: [(300, 0.02), (900, 0.93), (3600, 0.999)].into(),
        seconds_to_oom: Some(Quantiles { q10: Some(660.0), q50: 790.0, q90: Some(1020.0) }),
        growth_bytes_per_second: Some(20.0 * 1_048_576.0),
        sample_age_seconds: Some(1.4),
        policy: Some("trainer".into()),
        series: (0..48)
            .map(|step| SeriesPoint {
                age_seconds: f64::from(48 - step) * 15.0,
                used_bytes: 47 * GIB + step_bytes(step),
            })
            .collect(),
        ..ContainerView::default()
    };
    let flat = ContainerView {
        pod: "metrics-exporter-with-a-long-name-0".into(),
        pod_uid: "uid-side".into(),
        container: "side".into(),
        owner: Some(Named { kind: "StatefulSet".into(), name: "metrics-exporter-with-a-long-name".into() }),
        used_bytes: Some(2 * GIB),
        peak_bytes: Some(2 * GIB),
        class: "Plateau".into(),
        level: Level::Low,
        reason: "flat; peak 2 GiB, 15.5 GiB left, P 1 % within 15 min".into(),
        probability: Some(0.004),
        probability_by_horizon: [(300, 0.001), (900, 0.004), (3600, 0.02)].into(),
        seconds_to_oom: None,
        growth_bytes_per_second: None,
        policy: None,
        series: Vec::new(),
        ..leak.clone()
    };
    let unknown = ContainerView {
        node: "node-b".into(),
        namespace: "team-b".into(),
        pod: "notebook-0".into(),
        pod_uid: "uid-note".into(),
        container: "notebook".into(),
        owner: None,
        device: "GPU-9f2/gi3".into(),
        used_bytes: Some(9 * GIB),
        capacity_bytes: Some(20 * GIB),
        device_used_bytes: None,
        peak_bytes: Some(9 * GIB),
        class: "Unknown".into(),
        level: Level::Unknown,
        reason: "the newest sample is 94 s old".into(),
        unknown: Some("stale".into()),
        probability: None,
        probability_by_horizon: BTreeMap::new(),
        sample_age_seconds: Some(94.0),
        ..flat.clone()
    };
    ContainerList {
        format: 1,
        controller: answerer(),
        simulated: false,
        containers: vec![flat, leak, unknown],
        waiting: Vec::new(),
        left_out: 0,
    }
}

fn step_bytes(step: i32) -> u64 {
    u64::from(step.unsigned_abs()) * 300 * (1 << 20)
}

pub fn nodes() -> NodeList {
    let whole = DeviceView {
        device: "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f".into(),
        gpu: 0,
        model: "NVIDIA H100 80GB HBM3".into(),
        capacity_bytes: Some(79 * GIB),
        used_bytes: Some(64 * GIB),
        unattributed_bytes: Some(GIB),
        attribution: "Complete".into(),
        containers: 2,
    };
    let slice = DeviceView {
        device: "GPU-9f2/gi3".into(),
        capacity_bytes: Some(20 * GIB),
        used_bytes: None,
        unattributed_bytes: None,
        attribution: "Partial".into(),
        containers: 1,
        ..whole.clone()
    };
    let node = |node: &str, age, devices| NodeView {
        node: node.into(),
        agent_version: "0.1.0".into(),
        nvml: "Up".into(),
        nvml_detail: "580.65.06".into(),
        simulated: false,
        report_age_seconds: age,
        limits: Some(AbilityView { works: true, detail: "nvml-cgroup".into() }),
        suspend: None,
        devices,
    };
    NodeList {
        format: 1,
        controller: answerer(),
        nodes: vec![node("node-a", 1.4, vec![whole]), node("node-b", 4.0, vec![slice])],
    }
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-11-29T11:50:00Z"})
}

/// The policy before it did anything.
pub fn untouched() -> Value {
    let mut policy = policy();
    policy["status"]["conditions"] = json!([
        condition("Ready", "True", "Accepted", "the policy is in force"),
        condition(
            "ActionAllowed",
            "True",
            "Allowed",
            "nothing stands in the way of an action, should a pod be at risk"
        ),
        condition("ActionsEffective", "Unknown", "NoActions", "no action was taken yet"),
    ]);
    policy
}

fn policy() -> Value {
    json!({
        "apiVersion": "gpumem.dev/v1alpha1", "kind": "GpuMemoryPolicy",
        "metadata": {"name": "trainer", "namespace": "team-a", "generation": 3},
        "spec": {"mode": "Enforce", "target": {"podSelector": {"matchLabels": {"app": "train"}}},
            "actions": [{"type": "Notify"}, {"type": "Evict"}]},
        "status": {
            "observedGeneration": 3,
            "conditions": [
                condition("Ready", "True", "Accepted", "the policy is in force"),
                condition("AtRisk", "True", "OutOfMemoryExpected", "container train of pod train-6f9-x2k: out of memory in about 13 min"),
                condition("ActionAllowed", "False", "NoBudget", "no PodDisruptionBudget selects the pod: add one, or set spec.disruption.requireBudget to false"),
            ],
            "targets": {"pods": 1, "workloads": 1, "atRisk": 1},
            "workloads": [{"ref": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "train", "uid": "uid-deploy"},
                "risk": "High", "pod": "train-6f9-x2k", "container": "train", "secondsToOom": 780,
                "reason": "grows 20 MiB/s over the last 12 min"}],
            "recentActions": [{"id": "1-a", "type": "Evict", "time": "2026-11-29T11:55:00Z", "pod": "train-6f9-x2k",
                "podUID": "uid-train", "workload": "Deployment/train", "outcome": "Blocked",
                "message": "the PodDisruptionBudget allows no disruption", "dryRun": false}],
        },
    })
}

/// The profile of a Job whose pods died of it three times.
pub fn loops() -> Value {
    let oom = |pod: &str, time: &str| {
        json!({"time": time, "pod": pod, "podUID": pod, "container": "main", "peakBytes": 80_530_636_800_u64,
            "capacityBytes": 84_825_604_096_u64, "requestedBytes": 2_147_483_648_u64, "framework": "PyTorch",
            "shape": "pt-25-process-list", "kind": "DeviceFull",
            "evidence": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."})
    };
    json!({
        "apiVersion": "gpumem.dev/v1alpha1", "kind": "GpuMemoryProfile",
        "metadata": {"name": "job-tune", "namespace": "team-a"},
        "spec": {"workload": {"apiVersion": "batch/v1", "kind": "Job", "name": "tune", "uid": "uid-job"}},
        "status": {"attempts": 0, "peakBytes": 80_530_636_800_u64, "oomCount": 3,
            "ooms": [oom("tune-3", "2026-11-29T11:30:00Z"), oom("tune-2", "2026-11-29T11:00:00Z"), oom("tune-1", "2026-11-29T10:30:00Z")],
            "conditions": [condition("RestartLoop", "True", "SamePeak",
                "container main ran out of GPU memory 3 times at about 75 GiB since 2026-11-29T10:30:00Z: a restart or an eviction meets the same end")],
            "recommendation": {"container": "main", "bytes": 90_945_932_493_u64, "basis": "ran out of memory 3 times, wanting 77 GiB at most"},
            "advice": ["gradient checkpointing: then 51 GiB (47 GiB to 57 GiB), fits; 25 to 35 % slower; PyTorch: model.gradient_checkpointing_enable()",
                "8-bit optimizer: then 66 GiB (61 GiB to 72 GiB), fits; 0 to 5 % slower"]},
    })
}

fn profile() -> Value {
    json!({
        "apiVersion": "gpumem.dev/v1alpha1", "kind": "GpuMemoryProfile",
        "metadata": {"name": "deployment-train", "namespace": "team-a"},
        "spec": {"workload": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "train", "uid": "uid-deploy"}},
        "status": {"attempts": 1, "peakBytes": 83_751_862_272_u64, "nextAllowedTime": "2026-11-29T12:20:00Z"},
    })
}

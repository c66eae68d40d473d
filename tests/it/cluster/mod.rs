//! A small language for the tests of the acting side: a stateful API server in the process, workloads and reports made by
//! hand, time made by hand, and controllers that play rounds over them.

pub mod server;

mod evictions;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpumem::api::policy::{GpuMemoryPolicy, GpuMemoryPolicyStatus};
use gpumem::api::profile::GpuMemoryProfile;
use gpumem::api::usage::{OwnerReport, PodReport};
use gpumem::controller::act::Patience;
use gpumem::controller::context::Context;
use gpumem::controller::fleet::{Fleet, Observation};
use gpumem::controller::granted::Granted;
use gpumem::controller::health::Health;
use gpumem::controller::leader::Leadership;
use gpumem::controller::metrics::Metrics;
use gpumem::controller::now::{Now, rfc3339};
use gpumem::controller::observe::Memory;
use gpumem::controller::workload::Switches;
use gpumem::controller::{reconcile, report};
use gpumem_engine::forecast::{Class, Forecast, Outlook, TimeToOom, Unknown};
use gpumem_engine::identity::DeviceKey;
use gpumem_engine::pacing::Stamp;
use gpumem_engine::policy::Mode;
use gpumem_engine::quantity::Bytes;
use http::Method;
use kube::runtime::events::Recorder;
use serde_json::{Value, json};
use tokio::sync::watch;

use server::{Api, Seen, World};

pub const POLICIES: (&str, &str) = ("gpumem.dev", "gpumemorypolicies");
pub const NODE: &str = "node-a";
const START: i64 = 1_800_000_000;

/// API server, agents' reports and the time.
pub struct Cluster {
    pub api: Api,
    pub reports: Vec<Report>,
    pub stamp: i64,
    /// Name of the ConfigMap with the administrator's limits, where controllers are to have any.
    pub limits: Option<String>,
    origin: Instant,
}

/// What an agent says of one container.
#[derive(Clone)]
pub struct Report {
    pub node: String,
    pub pod: PodReport,
    pub device: DeviceKey,
    pub age: Duration,
    pub outlook: Outlook,
}

impl Cluster {
    pub fn new() -> Self {
        let cluster = Self { api: Api::new(), reports: Vec::new(), stamp: START, limits: None, origin: Instant::now() };
        for name in ["ml", "gpumem"] {
            cluster.world().put("", "namespaces", json!({"metadata": {"name": name}}));
        }
        cluster
    }

    /// The same cluster as another process sees it.
    pub fn shadow(&self) -> Self {
        Self {
            api: self.api.clone(),
            reports: self.reports.clone(),
            stamp: self.stamp - 1,
            limits: self.limits.clone(),
            origin: self.origin,
        }
    }

    pub fn world(&self) -> std::sync::MutexGuard<'_, World> {
        self.api.world()
    }

    /// A Deployment with this many Ready pods, `NAME-0` and so on.
    pub fn deployment(&self, name: &str, replicas: u32) {
        let mut world = self.world();
        world.put(
            "apps",
            "deployments",
            json!({
                "apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"namespace": "ml", "name": name, "uid": format!("deployment-{name}"), "generation": 1},
                "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": {}},
                "status": {"observedGeneration": 1, "replicas": replicas, "updatedReplicas": replicas}
            }),
        );
        world.put(
            "apps",
            "replicasets",
            json!({
                "apiVersion": "apps/v1", "kind": "ReplicaSet",
                "metadata": {"namespace": "ml", "name": format!("{name}-rs"), "uid": format!("rs-{name}"),
                    "ownerReferences": [owner("apps/v1", "Deployment", name, &format!("deployment-{name}"))]},
                "spec": {"selector": {}}
            }),
        );
        drop(world);
        for index in 0..replicas {
            self.pod(
                &format!("{name}-{index}"),
                name,
                owner("apps/v1", "ReplicaSet", &format!("{name}-rs"), &format!("rs-{name}")),
                10_000,
            );
        }
    }

    /// A StatefulSet with this many Ready pods.
    pub fn stateful_set(&self, name: &str, replicas: u32) {
        self.world().put("apps", "statefulsets", json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": {"namespace": "ml", "name": name, "uid": format!("sts-{name}"), "generation": 1},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": {}, "serviceName": name},
            "status": {"observedGeneration": 1, "replicas": replicas}
        }));
        for index in 0..replicas {
            self.pod(
                &format!("{name}-{index}"),
                name,
                owner("apps/v1", "StatefulSet", name, &format!("sts-{name}")),
                10_000,
            );
        }
    }

    /// A Job with this many Ready pods, whose evictions do not count as failures.
    pub fn job(&self, name: &str, parallelism: u32) {
        self.world().put(
            "batch",
            "jobs",
            json!({
                "apiVersion": "batch/v1", "kind": "Job",
                "metadata": {"namespace": "ml", "name": name, "uid": format!("job-{name}"), "generation": 1},
                "spec": {
                    "parallelism": parallelism, "completions": parallelism, "suspend": false,
                    "selector": {"matchLabels": {"app": name}}, "template": {},
                    "podFailurePolicy": {"rules": [
                        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
                    ]}
                },
                "status": {"active": parallelism}
            }),
        );
        for index in 0..parallelism {
            let owner = owner("batch/v1", "Job", name, &format!("job-{name}"));
            self.pod(&format!("{name}-{index}"), name, owner, 10_000);
        }
    }

    /// Generation of a policy.
    pub fn policy_generation(&self, name: &str) -> i64 {
        let world = self.world();
        let policy = world.get(POLICIES.0, POLICIES.1, "ml", name);
        policy.and_then(|policy| policy["metadata"]["generation"].as_i64()).unwrap_or_default()
    }

    /// A pod that has run for eight hours and been Ready for `ready_for` seconds.
    pub fn pod(&self, name: &str, app: &str, owner: Value, ready_for: i64) {
        let owners = if owner.is_null() { json!([]) } else { json!([owner]) };
        self.world().put(
            "",
            "pods",
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"namespace": "ml", "name": name, "labels": {"app": app}, "ownerReferences": owners},
                "spec": {"nodeName": NODE, "containers": []},
                "status": {
                    "phase": "Running",
                    "conditions": [
                        {"type": "Ready", "status": "True", "lastTransitionTime": rfc3339(Stamp(self.stamp - ready_for))}
                    ],
                    "containerStatuses": [{
                        "name": "main", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                        "state": {"running": {"startedAt": rfc3339(Stamp(self.stamp - 8 * 3600))}}
                    }]
                }
            }),
        );
    }

    /// A PodDisruptionBudget over the pods of `app`.
    pub fn budget(&self, name: &str, app: &str, min_available: u32) {
        self.world().put(
            "policy",
            "poddisruptionbudgets",
            json!({
                "metadata": {"namespace": "ml", "name": name},
                "spec": {"minAvailable": min_available, "selector": {"matchLabels": {"app": app}}}
            }),
        );
    }

    /// A policy over the pods of `app` that acts at the first sight of a risk; `change` edits its spec.
    pub fn policy(&self, name: &str, app: &str, change: impl FnOnce(&mut Value)) {
        let mut spec = json!({
            "mode": "Enforce",
            "target": {"podSelector": {"matchLabels": {"app": app}}},
            "prediction": {
                "act": {"probabilityPercent": 80, "forSeconds": 0},
                "clear": {"probabilityPercent": 50, "forSeconds": 0}
            },
            "actions": [{"type": "Evict"}],
            "disruption": {"requireBudget": false, "minAvailable": 0, "maxPerHour": 10}
        });
        change(&mut spec);
        self.world().put(
            POLICIES.0,
            POLICIES.1,
            json!({
                "apiVersion": "gpumem.dev/v1alpha1", "kind": "GpuMemoryPolicy",
                "metadata": {"namespace": "ml", "name": name, "uid": format!("policy-{name}"),
                    "creationTimestamp": rfc3339(Stamp(START - 100_000))},
                "spec": spec
            }),
        );
    }

    pub fn edit_policy(&self, name: &str, change: impl FnOnce(&mut Value)) {
        self.world().edit(POLICIES.0, POLICIES.1, "ml", name, |policy| change(&mut policy["spec"]));
    }

    /// The agent reports this pod with this probability, on a device of its own, with an OOM in five minutes.
    pub fn report(&mut self, pod: &str, probability: f64) {
        let object = self.world().get("", "pods", "ml", pod).expect("the pod is there").clone();
        self.report_object(&object, probability);
    }

    pub fn report_object(&mut self, pod: &Value, probability: f64) {
        let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let owner = &pod["metadata"]["ownerReferences"][0];
        let report = PodReport {
            uid: text("/metadata/uid").as_str().into(),
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name"),
            labels: serde_json::from_value(pod["metadata"]["labels"].clone()).unwrap_or_default(),
            annotations: std::collections::BTreeMap::new(),
            owner: serde_json::from_value::<OwnerReport>(json!({
                "api_version": owner["apiVersion"], "kind": owner["kind"], "name": owner["name"], "uid": owner["uid"]
            }))
            .ok(),
            terminating: false,
            ends: Vec::new(),
        };
        self.reports.retain(|known| known.pod.uid != report.uid);
        let device = DeviceKey::whole(report.name.as_str());
        let outlook = risk(probability, 300);
        self.reports.push(Report { node: NODE.to_owned(), pod: report, device, age: Duration::from_secs(1), outlook });
    }

    /// Every pod of `app` is reported at risk.
    pub fn all_at_risk(&mut self, app: &str) {
        let pods: Vec<Value> = self.pods(app);
        for pod in pods {
            self.report_object(&pod, 0.95);
        }
    }

    pub fn change_report(&mut self, pod: &str, change: impl FnOnce(&mut Report)) {
        change(self.reports.iter_mut().find(|report| report.pod.name == pod).expect("the pod is reported"));
    }

    pub fn pods(&self, app: &str) -> Vec<Value> {
        let world = self.world();
        world
            .list("", "pods", "ml")
            .into_iter()
            .filter(|pod| pod["metadata"]["labels"]["app"] == app)
            .cloned()
            .collect()
    }

    /// Terminating pods end, and each gets a replacement that is Ready now. Gives the names of the new ones.
    pub fn replace_terminating(&mut self, app: &str) -> Vec<String> {
        let mut fresh = Vec::new();
        for pod in self.pods(app) {
            if pod["metadata"]["deletionTimestamp"].is_null() {
                continue;
            }
            let old = pod["metadata"]["name"].as_str().unwrap().to_owned();
            let reference = pod["metadata"]["ownerReferences"][0].clone();
            let is_stateful = reference["kind"] == "StatefulSet";
            let name = if is_stateful { old.clone() } else { format!("{old}x") };
            self.world().remove("", "pods", "ml", &old);
            self.reports.retain(|report| report.pod.uid.as_str() != pod["metadata"]["uid"]);
            self.pod(&name, app, reference, 0);
            fresh.push(name);
        }
        fresh
    }

    pub fn advance(&mut self, seconds: i64) {
        self.stamp += seconds;
    }

    pub fn now(&self) -> Now {
        let passed = Duration::from_secs(u64::try_from(self.stamp - START).unwrap());
        // Long after the origin, so that a leader can have led for long.
        Now::at(Stamp(self.stamp), self.origin + Duration::from_hours(10) + passed)
    }

    pub fn status(&self, policy: &str) -> GpuMemoryPolicyStatus {
        let world = self.world();
        let object = world.get(POLICIES.0, POLICIES.1, "ml", policy).expect("the policy is there");
        serde_json::from_value(object["status"].clone()).unwrap_or_default()
    }

    /// `status/reason` of a condition.
    pub fn condition(&self, policy: &str, kind: &str) -> String {
        let status = self.status(policy);
        let condition = status.conditions.iter().find(|condition| condition.type_ == kind);
        condition.map_or_else(|| "absent".to_owned(), |condition| format!("{}/{}", condition.status, condition.reason))
    }

    pub fn evicted(&self) -> usize {
        self.world().evicted.len()
    }

    /// Every call of the Eviction API.
    pub fn calls(&self) -> Vec<Seen> {
        self.world().requests(&Method::POST, "/eviction")
    }

    pub fn profiles(&self) -> Vec<GpuMemoryProfile> {
        let world = self.world();
        let profiles = world.list("gpumem.dev", "gpumemoryprofiles", "ml");
        profiles.into_iter().map(|profile| serde_json::from_value(profile.clone()).unwrap()).collect()
    }

    /// A key of the ledger as JSON.
    pub fn ledger(&self, key: &str) -> Value {
        let world = self.world();
        let text = world.get("", "configmaps", "gpumem", "ledger").and_then(|object| object["data"][key].as_str());
        text.map_or(json!([]), |text| serde_json::from_str(text).unwrap())
    }

    pub fn set_ledger(&self, key: &str, value: &str) {
        let mut world = self.world();
        let known = world.get("", "configmaps", "gpumem", "ledger").cloned();
        let mut object = known.unwrap_or_else(|| json!({"metadata": {"namespace": "gpumem", "name": "ledger"}}));
        object["data"][key] = json!(value);
        world.put("", "configmaps", object);
    }

    /// The administrator's limits, as the chart would write them.
    pub fn limit(&mut self, limits: &Value) {
        self.limits = Some("limits".to_owned());
        let object = json!({
            "metadata": {"namespace": "gpumem", "name": "limits"}, "data": {"limits.json": limits.to_string()}
        });
        self.world().put("", "configmaps", object);
    }

    /// Reasons of the Events on objects of this kind.
    pub fn events(&self, kind: &str) -> Vec<String> {
        let world = self.world();
        let events = world.list("events.k8s.io", "events", "");
        let of_kind = events.into_iter().filter(|event| event["regarding"]["kind"] == kind);
        of_kind.map(|event| event["reason"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

pub fn owner(api_version: &str, kind: &str, name: &str, uid: &str) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true})
}

pub fn risk(probability: f64, seconds: u64) -> Outlook {
    let time = Duration::from_secs(seconds);
    Outlook::Known {
        probability,
        by_horizon: [(300, probability), (900, probability), (3600, probability)],
        time_to_oom: (probability > 0.5).then_some(TimeToOom { q10: time / 2, q50: time, q90: time * 2 }),
    }
}

pub fn unknown(why: Unknown) -> Outlook {
    Outlook::Unknown { why }
}

/// One controller process.
pub struct Controller {
    pub ctx: Arc<Context>,
    pub lead: watch::Sender<Leadership>,
    pub news: watch::Sender<u64>,
    memory: Memory,
    recorder: Recorder,
}

impl Controller {
    /// A process that has led for hours.
    pub fn start(cluster: &Cluster, identity: &str) -> Self {
        Self::start_with(cluster, identity, Mode::Enforce)
    }

    pub fn start_with(cluster: &Cluster, identity: &str, max_mode: Mode) -> Self {
        let leads = Leadership { is_leader: true, identity: identity.to_owned(), since: cluster.origin };
        let (lead, leadership) = watch::channel(leads);
        let (news, heard) = watch::channel(0);
        let ctx = Arc::new(Context {
            read: cluster.api.client(),
            watch: cluster.api.client(),
            act: cluster.api.client(),
            namespace: "gpumem".to_owned(),
            identity: identity.to_owned(),
            fleet: Arc::new(Mutex::new(Fleet::default())),
            leadership,
            metrics: Arc::new(Metrics::new().unwrap()),
            health: Arc::new(Health::default()),
            max_mode,
            patience: Patience::default(),
            granted: Granted::all(),
            admin: cluster.limits.clone(),
            workload_kinds: Switches::everything(),
            ledger: "ledger".to_owned(),
            limits: gpumem::controller::limits::Limits::default(),
            read_pod_logs: false,
            profile_ttl: Duration::from_hours(14 * 24),
            news: heard,
        });
        let recorder = report::recorder(&ctx);
        Self { ctx, lead, news, memory: Memory::new(cluster.origin), recorder }
    }

    /// Leads since now, as after a restart or a failover.
    pub fn leads_since_now(self, cluster: &Cluster) -> Self {
        self.lead.send_modify(|leads| leads.since = cluster.now().instant);
        self
    }

    pub fn loses_the_lease(&self) {
        self.lead.send_modify(|leads| leads.is_leader = false);
    }

    /// One round, one second later.
    pub async fn round(&mut self, cluster: &mut Cluster) {
        cluster.advance(1);
        self.round_now(cluster).await;
    }

    pub async fn rounds(&mut self, cluster: &mut Cluster, count: usize) {
        for _ in 0..count {
            self.round(cluster).await;
        }
    }

    /// Rounds ten seconds apart.
    pub async fn slow_rounds(&mut self, cluster: &mut Cluster, count: usize) {
        for _ in 0..count {
            cluster.advance(9);
            self.round(cluster).await;
        }
    }

    async fn round_now(&mut self, cluster: &Cluster) {
        let policies: Vec<Arc<GpuMemoryPolicy>> = {
            let world = cluster.world();
            let policies = world.list(POLICIES.0, POLICIES.1, "");
            policies.into_iter().map(|policy| Arc::new(serde_json::from_value(policy.clone()).unwrap())).collect()
        };
        let reports = &cluster.reports;
        let fetch = |policy: &gpumem_engine::policy::Policy, select: &dyn Fn(&PodReport) -> bool| {
            let wanted = reports.iter().filter(|r| r.pod.namespace == policy.key.namespace && select(&r.pod));
            wanted.map(observation).collect()
        };
        let now = cluster.now();
        reconcile::round(&self.ctx, &mut self.memory, &self.recorder, &policies, &now, fetch).await;
    }

    /// Plays rounds until the crash point that was set is reached; the process is then dead. False if it never was.
    pub async fn dies_within(mut self, cluster: &mut Cluster, rounds: usize) -> bool {
        for _ in 0..rounds {
            cluster.advance(1);
            let crashed = Arc::clone(&cluster.api.crashed);
            tokio::select! {
                biased;
                () = crashed.notified() => return true,
                () = self.round_now(cluster) => {}
            }
        }
        false
    }
}

fn observation(report: &Report) -> Observation {
    Observation {
        node: report.node.clone(),
        pod: report.pod.clone().into(),
        container: "main".to_owned(),
        container_id: report.pod.uid.as_str().into(),
        device: report.device.clone(),
        used: Bytes::gib(70),
        forecast: Forecast {
            class: Class::Leak,
            growth: None,
            outlook: report.outlook.clone(),
            gave_back: Bytes::ZERO,
            reason: "70 GiB used of 80 GiB, growing 34 MiB/s".to_owned(),
        },
        sample_age: report.age,
        peak: Bytes::gib(70),
    }
}

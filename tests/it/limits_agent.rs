//! Limits and freezes on a node: the agent against the simulated driver, with the controller's own bookkeeping between
//! them. Numbers of cases are those of docs/limits.md.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use gpumem::api::names::AGENT_TLS_NAME;
use gpumem::api::node::{GpuMemoryNode, LimitPhase};
use gpumem::api::usage::{Abilities, Ability, LimitReport, UsageReport};
use gpumem::controller::limits::status;
use gpumem::controller::now::Now;
use gpumem::tls;
use gpumem_engine::quantity::Bytes;
use gpumem_sim::client::Client;
use gpumem_sim::protocol::{Answer, Fault, Request};
use serde_json::{Value, json};

use crate::support::http::Connection;
use crate::support::tls::Authority;
use crate::support::{Agent, GIB, NODE, Node, Process, api::pod, container_id, eventually, uid};

const LIMIT: &str = "gpumem_container_memory_limit_bytes";
const LATER: &str = "2999-01-01T00:00:00Z";

/// A node with one pod `train`, whose container `main` has a cgroup.
struct Scene {
    node: Node,
    settings: Arc<rustls::ClientConfig>,
}

impl Scene {
    async fn with(devices: &str) -> Self {
        let node = Node::with(devices).await;
        node.api.apply(pod("train", &["main"]));
        let authority = Authority::new();
        authority.install(&node.folder.0.join("tls"));
        let scene = Self { node, settings: tls::client(&authority.controller()).unwrap() };
        std::fs::create_dir_all(scene.leaf()).unwrap();
        scene
    }

    /// The cgroup of v1 that the simulated driver takes.
    fn leaf(&self) -> std::path::PathBuf {
        self.node.folder.0.join("cgroup/memory").join(cgroup())
    }

    fn process(&self, bytes: u64) -> Process {
        self.node.process("0", bytes, &format!("0::/{}\n", cgroup()))
    }

    async fn agent(&self) -> Agent {
        let agent = self.node.agent().flag("--limits").flag("--suspend");
        let agent = agent.arg("--cgroup-root", self.node.folder.0.join("cgroup"));
        // The simulator answers CUDA's calls from the same library.
        let agent = agent.arg("--cuda-library", self.node.library());
        agent.arg("--tls-dir", self.node.folder.0.join("tls")).start().await
    }

    fn gpu(&self) -> String {
        self.driver(&Request::State).map_state()
    }

    fn driver(&self, request: &Request) -> Answer {
        Client::connect(&self.node.socket()).unwrap().ask(request).unwrap()
    }

    /// The limit that the driver holds the container to.
    fn held(&self) -> Option<u64> {
        match self.driver(&Request::GetLimit { device: 0, cgroup: format!("/{}", cgroup()) }) {
            Answer::Limit { hard, .. } => (hard != u64::MAX).then_some(hard),
            other => panic!("{other:?}"),
        }
    }

    fn used(&self) -> u64 {
        match self.driver(&Request::State) {
            Answer::State(state) => state.devices[0].memory.used,
            other => panic!("{other:?}"),
        }
    }

    /// What should hold, the status kept as it is.
    fn order(&self, entries: &[Value]) {
        let status = self.node.api.node(NODE).map_or(Value::Null, |object| object["status"].clone());
        let mut object = json!({
            "apiVersion": "gpumem.dev/v1alpha1", "kind": "GpuMemoryNode", "metadata": {"name": NODE, "uid": "n1"},
            "spec": {"limits": entries},
        });
        if !status.is_null() {
            object["status"] = status;
        }
        self.node.api.apply_node(object);
    }

    fn limit(&self, bytes: u64) -> Value {
        entry(&self.gpu(), &json!({"bytes": bytes}), LATER)
    }

    async fn reports(&self, agent: &Agent) -> UsageReport {
        let address = agent.usage_address().await;
        let connect = async || Connection::tls(address, Arc::clone(&self.settings), AGENT_TLS_NAME).await.ok();
        let mut connection = eventually("a connection", connect).await;
        let (code, body) = connection.get("/v1/usage").await.unwrap();
        assert_eq!(code, 200);
        serde_json::from_slice(&body).unwrap()
    }

    /// One pull of the controller: the read-back goes into the status.
    async fn pull(&self, agent: &Agent) -> Vec<LimitReport> {
        let report = self.reports(agent).await;
        if let Some(object) = self.node.api.node(NODE) {
            let parsed: GpuMemoryNode = serde_json::from_value(object.clone()).unwrap();
            let previous = parsed.status.clone().unwrap_or_default();
            let next = status(&parsed, &previous, &report.boot_id, (&report.limits, &report.abilities), &Now::read());
            if next != previous {
                let mut object = object;
                object["status"] = serde_json::to_value(next).unwrap();
                self.node.api.apply_node(object);
            }
        }
        report.limits
    }

    /// Pulls until the one report is as wanted.
    async fn until(&self, agent: &Agent, phase: LimitPhase) -> LimitReport {
        let what = format!("{phase:?}");
        eventually(&what, async || {
            let limits = self.pull(agent).await;
            limits.into_iter().find(|report| report.state == phase)
        })
        .await
    }

    async fn until_free(&self, agent: &Agent) {
        eventually("no limit", async || {
            self.pull(agent).await;
            self.held().is_none().then_some(())
        })
        .await;
    }
}

trait MapState {
    fn map_state(self) -> String;
}

impl MapState for Answer {
    fn map_state(self) -> String {
        match self {
            Self::State(state) => state.devices[0].uuid.clone(),
            other => panic!("{other:?}"),
        }
    }
}

fn cgroup() -> String {
    format!("kubepods/burstable/pod{}/{}", uid("train"), container_id("train/main"))
}

fn entry(device: &str, what: &Value, expires: &str) -> Value {
    let mut entry = json!({
        "podUID": uid("train"), "namespace": "team", "pod": "train", "containerID": container_id("train/main"),
        "device": device, "policy": "team/p", "reason": "a test", "expires": expires,
    });
    entry.as_object_mut().unwrap().extend(what.as_object().unwrap().clone());
    entry
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_is_recorded_set_read_back_shown_and_cleared_when_its_policy_is_gone() {
    let scene = Scene::with("H200:1").await;
    let _process = scene.process(4 * GIB);
    let agent = scene.agent().await;
    scene.order(&[scene.limit(6 * GIB)]);
    let first = eventually("a report", async || scene.reports(&agent).await.limits.pop()).await;
    assert_eq!(first.state, LimitPhase::Pending);
    assert_eq!(scene.held(), None, "nothing is set before it is recorded: {}", first.reason);

    let applied = scene.until(&agent, LimitPhase::Applied).await;
    assert_eq!((applied.desired, applied.applied), (Some(Bytes::gib(6)), Some(Bytes::gib(6))));
    assert_eq!(applied.backend, "nvml-cgroup (simulated)");
    assert_eq!(scene.held(), Some(6 * GIB));
    let metrics = agent.metrics_when("shown", |metrics| !metrics.values(LIMIT, &[]).is_empty()).await;
    let labels = ["namespace=\"team\"", "pod=\"train\"", "container=\"main\"", "gpu=\"0\""];
    assert_eq!(metrics.value(LIMIT, &labels), Some((6 * GIB) as f64));

    // Raised at once.
    scene.order(&[scene.limit(9 * GIB)]);
    eventually("raised", async || (scene.held() == Some(9 * GIB)).then_some(())).await;
    // Case 26.
    scene.order(&[]);
    scene.until_free(&agent).await;
    agent.metrics_when("absent again", |metrics| metrics.values(LIMIT, &[]).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_20_a_limit_below_use_is_pending_until_use_has_fallen() {
    let scene = Scene::with("H200:1").await;
    let (_small, large) = (scene.process(2 * GIB), scene.process(6 * GIB));
    let agent = scene.agent().await;
    agent.metrics_when("8 GiB", |metrics| metrics.0.contains(&format!(" {}\n", 8 * GIB))).await;
    scene.order(&[scene.limit(4 * GIB)]);
    let pending = eventually("set above use", async || {
        let limits = scene.pull(&agent).await;
        limits.into_iter().find(|report| report.applied.is_some())
    })
    .await;
    assert_eq!(pending.state, LimitPhase::Pending, "never reported as applied early");
    assert_eq!(pending.applied, Some(Bytes::gib(8) + Bytes::mib(64)));
    drop(large);
    let applied = scene.until(&agent, LimitPhase::Applied).await;
    assert_eq!(applied.applied, Some(Bytes::gib(4)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_21_a_driver_that_takes_a_limit_and_ignores_it_is_found_out() {
    let scene = Scene::with("H200:1").await;
    let _process = scene.process(GIB);
    let agent = scene.agent().await;
    scene.order(&[scene.limit(6 * GIB)]);
    scene.until(&agent, LimitPhase::Applied).await;
    scene.node.fault(None, Fault::LimitIgnored);
    scene.order(&[scene.limit(3 * GIB)]);
    let drift = scene.until(&agent, LimitPhase::Drift).await;
    assert_eq!((drift.desired, drift.applied), (Some(Bytes::gib(3)), Some(Bytes::gib(6))));
    scene.node.clear_faults();
    assert_eq!(scene.until(&agent, LimitPhase::Applied).await.applied, Some(Bytes::gib(3)));
    // Somebody else changes it: it is repaired.
    scene.driver(&Request::SetLimit { device: 0, cgroup: format!("/{}", cgroup()), soft: 0, hard: 40 * GIB });
    eventually("repaired", async || (scene.held() == Some(3 * GIB)).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_23_mig_and_nonsense_are_unsupported_and_say_why() {
    let scene = Scene::with("H200:1").await;
    let _process = scene.process(GIB);
    let agent = scene.agent().await;
    let gpu = scene.gpu();
    for (device, what, reason) in [
        (format!("{gpu}/gi1"), json!({"bytes": GIB}), "MIG"),
        ("all of them".to_owned(), json!({"bytes": GIB}), "not supported"),
        (gpu, json!({"bytes": -5}), "gives no size"),
    ] {
        scene.order(&[entry(&device, &what, LATER)]);
        let report = eventually(reason, async || {
            let limits = scene.pull(&agent).await;
            limits.into_iter().find(|report| report.device == device && report.state == LimitPhase::Unsupported)
        })
        .await;
        assert!(report.reason.contains(reason) || report.reason.contains("cgroup is gone"), "{}", report.reason);
    }
    assert_eq!(scene.held(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_23_a_driver_without_limits_says_so_once_the_probe_failed() {
    let scene = Scene::with("H200:1").await;
    scene.node.fault(None, Fault::LimitsNotSupported);
    let _process = scene.process(GIB);
    let agent = scene.agent().await;
    scene.order(&[scene.limit(2 * GIB)]);
    let report = scene.until(&agent, LimitPhase::Unsupported).await;
    assert!(report.reason.contains("driver below 615"), "{}", report.reason);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_says_what_it_could_hold_before_anybody_asks_for_it() {
    let scene = Scene::with("H200:2").await;
    let agent = scene.agent().await;
    let works = |by: &str| Ability::Works { by: by.to_owned() };
    let told = eventually("both tried", async || {
        let abilities = scene.reports(&agent).await.abilities;
        matches!(abilities.limits, Ability::Works { .. }).then_some(abilities)
    });
    let told = told.await;
    assert_eq!(told.limits, works("nvml-cgroup (simulated)"));
    assert_eq!(told.suspend, works("cuda-checkpoint (simulated)"));
    assert_eq!(scene.held(), None, "the trial leaves nothing");
    assert!(!scene.node.folder.0.join("cgroup/memory/gpumem-probe").exists());

    // An agent that is not asked for them says so, and not that they fail.
    let plain = scene.node.agent().arg("--tls-dir", scene.node.folder.0.join("tls")).start().await;
    assert_eq!(scene.reports(&plain).await.abilities, Abilities::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_whose_driver_takes_no_limits_says_so_before_anybody_asks_for_one() {
    let scene = Scene::with("H200:1").await;
    scene.node.fault(None, Fault::LimitsNotSupported);
    let agent = scene.agent().await;
    let why = eventually("the trial", async || match scene.reports(&agent).await.abilities.limits {
        Ability::Fails { reason } if reason.contains("615") => Some(reason),
        _ => None,
    });
    assert!(why.await.starts_with("the driver has no memory limits for this device"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_killed_at_any_moment_leaves_nothing_that_the_next_one_does_not_find() {
    let scene = Scene::with("H200:1").await;
    let _process = scene.process(GIB);
    let agent = scene.agent().await;
    scene.order(&[scene.limit(6 * GIB)]);
    scene.until(&agent, LimitPhase::Applied).await;
    drop(agent); // SIGKILL
    assert_eq!(scene.held(), Some(6 * GIB), "the kernel holds it without us");
    scene.order(&[]);
    let next = scene.agent().await;
    scene.until_free(&next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_ends_at_its_moment_even_when_controller_and_api_are_gone() {
    let mut scene = Scene::with("H200:1").await;
    let _process = scene.process(GIB);
    let agent = scene.agent().await;
    let soon = (jiff::Timestamp::now() + jiff::SignedDuration::from_secs(10)).to_string();
    scene.order(&[entry(&scene.gpu(), &json!({"bytes": 6 * GIB}), &soon)]);
    scene.until(&agent, LimitPhase::Applied).await;
    scene.node.api.stop().await;
    eventually("expired", async || scene.held().is_none().then_some(())).await;
    drop(agent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_clears_whatever_is_listed_and_a_limit_of_others_is_left_alone() {
    let scene = Scene::with("H200:1").await;
    let _process = scene.process(GIB);
    let agent = scene.agent().await;
    scene.order(&[scene.limit(6 * GIB)]);
    scene.until(&agent, LimitPhase::Applied).await;
    let mut object = scene.node.api.node(NODE).unwrap();
    object["spec"]["release"] = json!(true);
    scene.node.api.apply_node(object);
    scene.until_free(&agent).await;
    eventually("the ledger is empty", async || {
        scene.pull(&agent).await;
        let status = scene.node.api.node(NODE).unwrap()["status"]["limits"].clone();
        (status.is_null() || status == json!([])).then_some(())
    })
    .await;
    // Case 26: an administrator's own limit.
    scene.driver(&Request::SetLimit { device: 0, cgroup: format!("/{}", cgroup()), soft: 0, hard: 5 * GIB });
    scene.order(&[scene.limit(2 * GIB)]);
    let refused = scene.until(&agent, LimitPhase::Refused).await;
    assert!(refused.reason.contains("not ours"), "{}", refused.reason);
    scene.order(&[]);
    eventually("gone", async || scene.pull(&agent).await.is_empty().then_some(())).await;
    assert_eq!(scene.held(), Some(5 * GIB));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_22_a_container_that_ends_takes_its_limit_along_and_a_new_instance_gets_its_own() {
    let scene = Scene::with("H200:1").await;
    let process = scene.process(GIB);
    let agent = scene.agent().await;
    scene.order(&[scene.limit(6 * GIB)]);
    scene.until(&agent, LimitPhase::Applied).await;
    drop(process);
    std::fs::remove_dir_all(scene.leaf()).unwrap();
    let report = scene.until(&agent, LimitPhase::Pending).await;
    assert!(report.reason.contains("has ended") && report.applied.is_none(), "{report:?}");
    std::fs::create_dir_all(scene.leaf()).unwrap();
    scene.until(&agent, LimitPhase::Applied).await;
}

impl Scene {
    /// The process's PID where a container's are listed.
    fn lists(&self, process: &Process) {
        std::fs::write(self.leaf().join("cgroup.procs"), format!("{}\n", process.pid())).unwrap();
    }

    fn freeze(&self) {
        self.order(&[entry("all", &json!({"freeze": {"lockSeconds": 1}}), LATER)]);
    }

    async fn frozen(&self, agent: &Agent) {
        agent.metrics_when("seen", |metrics| metrics.0.contains(&format!(" {}\n", GIB / 8))).await;
        self.freeze();
        self.until(agent, LimitPhase::Frozen).await;
        assert_eq!(self.used(), 0, "its memory is off the device");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_is_frozen_verified_and_resumed_when_it_is_not_wanted_any_more() {
    let scene = Scene::with("H200:1").await;
    let process = scene.process(GIB / 8);
    scene.lists(&process);
    let agent = scene.agent().await;
    scene.frozen(&agent).await;
    scene.order(&[]);
    eventually("it is back", async || {
        scene.pull(&agent).await;
        (scene.used() == GIB / 8).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_ends_resumes_what_it_froze() {
    let scene = Scene::with("H200:1").await;
    let process = scene.process(GIB / 8);
    scene.lists(&process);
    let agent = scene.agent().await;
    scene.frozen(&agent).await;
    let (status, _) = agent.terminate();
    assert!(status.success());
    assert_eq!(scene.used(), GIB / 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_30_what_a_killed_agent_left_frozen_is_resumed_by_the_next_one() {
    let scene = Scene::with("H200:1").await;
    let process = scene.process(GIB / 8);
    scene.lists(&process);
    let agent = scene.agent().await;
    scene.frozen(&agent).await;
    drop(agent); // SIGKILL
    assert_eq!(scene.used(), 0);
    scene.order(&[]);
    let next = scene.agent().await;
    eventually("it is back", async || {
        scene.pull(&next).await;
        (scene.used() == GIB / 8).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_28_a_lock_that_times_out_leaves_the_container_running() {
    let scene = Scene::with("H200:1").await;
    let process = scene.process(GIB / 8);
    scene.lists(&process);
    scene.node.fault(None, Fault::LockTimesOut);
    let agent = scene.agent().await;
    agent.metrics_when("seen", |metrics| metrics.0.contains(&format!(" {}\n", GIB / 8))).await;
    scene.freeze();
    let refused = scene.until(&agent, LimitPhase::Refused).await;
    assert!(refused.reason.contains("it runs on"), "{}", refused.reason);
    assert_eq!(scene.used(), GIB / 8);
}

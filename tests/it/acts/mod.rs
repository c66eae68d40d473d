//! Every action of the ladder, its one call and what becomes of it, whatever the API server answers and whenever the
//! controller dies. Decisions are made by hand here: what is decided is the engine's, and tested there.

mod answers;
mod crashes;
mod ladder;
mod lasting;
mod limits;

use std::time::Duration;

use gpumem::controller::intent::{Done, Lever, Outcome};
use gpumem::controller::reconcile::{Task, perform};
use gpumem::controller::stock::Stock;
use gpumem::controller::workload::{ScaleHandle, ScaleWrite, SuspendHandle, Target};
use gpumem_engine::decision::{Act, PodRef, Step, Workload};
use gpumem_engine::identity::DeviceKey;
use gpumem_engine::pacing::{Stamp, WorkloadUid};
use gpumem_engine::policy::{Mode, PolicyKey, Resume};
use http::Method;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Controller, NODE};

/// An action, in a cluster where it makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Evict,
    RequestCheckpoint,
    WithdrawCheckpoint,
    Suspend,
    Resume,
    Scale,
    Parallelism,
}

const CASES: [Case; 7] = [
    Case::Evict,
    Case::RequestCheckpoint,
    Case::WithdrawCheckpoint,
    Case::Suspend,
    Case::Resume,
    Case::Scale,
    Case::Parallelism,
];

const REQUEST: &str = "gpumem.dev/checkpoint-request";
const SUSPENDED: &str = "gpumem.dev/suspended";

impl Case {
    /// The cluster in which it is to be done; what has to be done before it is done.
    async fn stage(self) -> Cluster {
        let mut cluster = Cluster::new();
        cluster.job("train", 2);
        cluster.deployment("serve", 2);
        cluster.policy("p", "none", |spec| {
            spec["actions"] = json!([
                {"type": "Checkpoint", "checkpoint": {"timeoutSeconds": 600}},
                {"type": "SuspendWorkload"}, {"type": "Scale", "scale": {"via": "Replicas", "maxReplicas": 9}},
                {"type": "Evict"}
            ]);
        });
        let before = match self {
            Self::WithdrawCheckpoint => Some(Self::RequestCheckpoint),
            Self::Resume => Some(Self::Suspend),
            Self::Evict | Self::RequestCheckpoint | Self::Suspend | Self::Scale | Self::Parallelism => None,
        };
        if let Some(before) = before {
            let done = Controller::start(&cluster, "earlier").perform(&cluster, before).await.unwrap();
            assert_eq!(done.outcome, Outcome::Succeeded);
            cluster.advance(20);
            cluster.world().log.clear();
        }
        cluster
    }

    /// Method of its call and how its path ends.
    fn call(self) -> (Method, &'static str) {
        match self {
            Self::Evict => (Method::POST, "/pods/train-0/eviction"),
            Self::RequestCheckpoint | Self::WithdrawCheckpoint => (Method::PATCH, "/pods/train-0"),
            Self::Suspend | Self::Resume | Self::Parallelism => (Method::PATCH, "/jobs/train"),
            Self::Scale => (Method::PATCH, "/deployments/serve/scale"),
        }
    }

    /// What is said of it when it is done.
    fn done(self) -> Outcome {
        match self {
            Self::WithdrawCheckpoint => Outcome::TakenBack,
            Self::Resume => Outcome::Resumed,
            Self::Evict | Self::RequestCheckpoint | Self::Suspend | Self::Scale | Self::Parallelism => {
                Outcome::Succeeded
            }
        }
    }

    /// Whether its effect is there.
    fn effect(self, cluster: &Cluster) -> bool {
        let world = cluster.world();
        let job = || world.get("batch", "jobs", "ml", "train").expect("the Job is there");
        let request = || world.get("", "pods", "ml", "train-0").map(|pod| &pod["metadata"]["annotations"][REQUEST]);
        match self {
            Self::Evict => !world.evicted.is_empty(),
            Self::RequestCheckpoint => request().is_some_and(Value::is_string),
            Self::WithdrawCheckpoint => request().is_none_or(Value::is_null),
            Self::Suspend => job()["spec"]["suspend"] == true,
            Self::Resume => job()["spec"]["suspend"] == false && job()["metadata"]["annotations"][SUSPENDED].is_null(),
            Self::Scale => world.get("apps", "deployments", "ml", "serve").unwrap()["spec"]["replicas"] == 3,
            Self::Parallelism => job()["spec"]["parallelism"] == 3,
        }
    }

    /// Whether the ledger says that it was done.
    fn is_remembered(self, cluster: &Cluster) -> bool {
        let deeds = cluster.ledger("deeds");
        let is = |kind: &str| {
            deeds.as_array().unwrap().iter().any(|deed| deed["action"] == kind || deed["action"][kind].is_object())
        };
        match self {
            Self::Evict => is("Evict"),
            Self::RequestCheckpoint => cluster.ledger("requests") != json!([]),
            Self::WithdrawCheckpoint => cluster.ledger("requests") == json!([]),
            Self::Suspend => is("SuspendWorkload"),
            // Settled soon after; what counts is that it is no longer suspended.
            Self::Resume => deeds.as_array().unwrap().iter().all(|deed| deed["lifted"] == true),
            Self::Scale | Self::Parallelism => is("Scale"),
        }
    }

    fn act(self, cluster: &Cluster) -> (Act, Option<Lever>) {
        let (pod, owner) = match self {
            Self::Scale => ("serve-0", ("apps/v1", "Deployment", "serve", "deployment-serve")),
            _ => ("train-0", ("batch/v1", "Job", "train", "job-train")),
        };
        let request = cluster.ledger("requests")[0]["id"].as_str().unwrap_or_default().to_owned();
        let (step, blast) = match self {
            Self::Evict => (Step::Evict, 1),
            Self::RequestCheckpoint => (Step::RequestCheckpoint { timeout: Duration::from_mins(10) }, 0),
            Self::WithdrawCheckpoint => (Step::WithdrawCheckpoint { id: request }, 0),
            Self::Suspend => (Step::SuspendWorkload { resume: Resume::AfterCooldown }, 2),
            Self::Resume => (Step::ResumeWorkload, 0),
            Self::Scale | Self::Parallelism => (Step::Scale { from: 2, to: 3 }, 0),
        };
        let lever = match self {
            Self::Suspend | Self::Resume => Some(Lever::Suspend(suspend_handle())),
            Self::Scale => Some(Lever::Scale(scale_handle())),
            Self::Parallelism => Some(Lever::Scale(ScaleHandle {
                target: suspend_handle().target,
                write: ScaleWrite::Parallelism,
                replicas: 2,
            })),
            Self::Evict | Self::RequestCheckpoint | Self::WithdrawCheckpoint => None,
        };
        let uid = cluster.world().get("", "pods", "ml", pod).map(|pod| pod["metadata"]["uid"].clone());
        let (api_version, kind, name, owner_uid) = owner;
        let act = Act {
            step,
            pod: PodRef {
                namespace: "ml".into(),
                name: pod.into(),
                uid: uid.as_ref().and_then(Value::as_str).unwrap_or("gone").into(),
                node: NODE.into(),
            },
            workload: Workload {
                api_version: api_version.into(),
                kind: kind.into(),
                name: name.into(),
                uid: WorkloadUid(owner_uid.into()),
            },
            container: "main".into(),
            device: DeviceKey::whole("gpu-0"),
            expected_in: Some(Duration::from_mins(5)),
            reason: "70 GiB used of 80 GiB".into(),
            dry_run: false,
            fresh_until: Stamp(cluster.stamp + 30),
            blast,
            passed: Vec::new(),
        };
        (act, lever)
    }
}

fn suspend_handle() -> SuspendHandle {
    SuspendHandle {
        target: target("batch/v1", "Job", "train"),
        field: vec!["spec".into(), "suspend".into()],
        suspended: true,
        blast: 2,
    }
}

fn scale_handle() -> ScaleHandle {
    ScaleHandle { target: target("apps/v1", "Deployment", "serve"), write: ScaleWrite::Subresource, replicas: 2 }
}

fn target(api_version: &str, kind: &str, name: &str) -> Target {
    let lower = kind.to_lowercase();
    Target {
        api_version: api_version.into(),
        kind: kind.into(),
        plural: format!("{lower}s"),
        namespace: "ml".into(),
        name: name.into(),
        uid: format!("{lower}-{name}"),
    }
}

impl Controller {
    /// Does what was decided by hand.
    async fn perform(&self, cluster: &Cluster, case: Case) -> Option<Done> {
        self.perform_as(cluster, case, |_| {}).await
    }

    /// The same, with another decision.
    async fn perform_as(&self, cluster: &Cluster, case: Case, change: impl FnOnce(&mut Act)) -> Option<Done> {
        let now = cluster.now();
        let stock = Stock::read(&self.ctx).await;
        let (mut act, lever) = case.act(cluster);
        change(&mut act);
        let task = Task {
            policy: PolicyKey { namespace: "ml".into(), name: "p".into() },
            generation: cluster.policy_generation("p"),
            mode: Mode::Enforce,
            disruption: None,
            act: &act,
            lever,
            used: None,
            age: None,
        };
        perform(&self.ctx, stock.ledger.ok()?, stock.limits.unwrap_or_default(), task, &now).await
    }
}

/// Calls of the case that reached the server.
fn calls(cluster: &Cluster, case: Case) -> usize {
    let (method, end) = case.call();
    cluster.world().log.iter().filter(|seen| seen.is(&method, end)).count()
}

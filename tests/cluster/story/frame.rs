//! One look at the cluster: pods and Events from the API server, memory from the agents, forecasts from the controller.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};

use gpumem::api::names::{ANNOTATION_CHECKPOINT_DONE, ANNOTATION_CHECKPOINT_REQUEST, ANNOTATION_SUSPENDED, metric};
use gpumem::api::node::{GpuMemoryNode, LimitPhase};
use gpumem::api::policy::{ActionType, GpuMemoryPolicy};
use gpumem::api::view::{CONTAINERS, ContainerList};

use super::plan::{Plan, Role};
use super::scrape::{Sample, get, metrics};

/// Namespace of the release.
pub const RELEASE_NAMESPACE: &str = "gpumem-system";

/// What one look saw.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// Time since the curtain rose.
    pub at: Duration,
    /// Pods of the cast, newest last.
    pub pods: Vec<PodView>,
    /// Used and total bytes by GPU index.
    pub gpus: BTreeMap<String, (f64, f64)>,
    /// Our Events in the cast's namespace: (object, reason, note).
    pub events: Vec<(String, String, String)>,
    /// UIDs of the pods that the policy's status says were evicted. A pod can be gone between two looks.
    pub evicted: Vec<String>,
    /// What the policies say of acting: (policy, reason, message).
    pub allowed: Vec<(String, String, String)>,
    /// Jobs of the cast that are suspended.
    pub suspended: Vec<SuspendedJob>,
    /// What `kubectl gpumem explain` advises the trainer that declares its job.
    pub advised: Option<Advised>,
}

/// The first advice to a pod that will not fit.
#[derive(Clone, Debug)]
pub struct Advised {
    /// Name of the pod.
    pub pod: String,
    /// Why it needs any.
    pub reason: String,
    /// What to change.
    pub what: String,
    /// The peak to expect then, in bytes.
    pub peak: u64,
    /// It held no GPU memory yet.
    pub is_early: bool,
}

/// A Job that is suspended.
#[derive(Clone, Debug)]
pub struct SuspendedJob {
    /// Whose.
    pub role: Role,
    /// It says that the suspension is ours.
    pub is_ours: bool,
    /// Failures it counts.
    pub failed: i32,
    /// It ended for good.
    pub is_over: bool,
}

/// A pod of the cast.
#[derive(Clone, Debug)]
pub struct PodView {
    /// Whose.
    pub role: Role,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Pending, Running, Terminating, ….
    pub state: String,
    /// Restarts of its container.
    pub restarts: i32,
    /// Exit code of the last run that ended.
    pub exit_code: Option<i32>,
    /// Type and reason of a DisruptionTarget condition.
    pub disrupted: Option<String>,
    /// What the last run that ended said last.
    pub last_words: String,
    /// It is asked to save its work.
    pub is_asked: bool,
    /// It answered that its work is saved.
    pub is_saved: bool,
    /// What the driver holds it to, in bytes, as the agent read it back.
    pub limit: Option<i64>,
    /// Memory in bytes; `None` when the agent says nothing.
    pub used: Option<f64>,
    /// Lasting growth in bytes per second.
    pub growth: Option<f64>,
    /// P(OOM within 300 s).
    pub probability: Option<f64>,
    /// Median time to OOM in seconds.
    pub seconds_to_oom: Option<f64>,
    /// 0 low to 3 critical.
    pub risk: Option<f64>,
}

/// Looks at the cluster.
pub struct Observer {
    client: kube::Client,
    namespace: String,
    roles: Vec<Role>,
}

impl Observer {
    /// An observer of this plan's cast.
    pub fn new(client: kube::Client, plan: &Plan) -> Self {
        Self { client, namespace: plan.namespace.clone(), roles: plan.order.clone() }
    }

    /// One look. A source that does not answer this time leaves its part out: missing is never zero.
    pub async fn look(&self, at: Duration) -> Result<Frame> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let (agents, controllers) = tokio::join!(self.scrape("agent", 9400), self.scrape("controller", 9401));
        let samples: Vec<Sample> = agents.into_iter().chain(controllers).collect();
        let mut frame = Frame { at, ..Frame::default() };
        for pod in pods.list(&ListParams::default()).await?.items {
            if let Some(view) = self.view(&pod, &samples) {
                frame.pods.push(view);
            }
        }
        for (uid, bytes) in self.limits().await? {
            if let Some(pod) = frame.pods.iter_mut().find(|pod| pod.uid == uid) {
                pod.limit = Some(bytes);
            }
        }
        frame.suspended = self.suspended().await?;
        frame.pods.sort_by_key(|pod| (pod.role, pod.name.clone()));
        for sample in &samples {
            let gpu = sample.label("gpu").to_owned();
            if sample.name == metric::DEVICE_USED {
                frame.gpus.entry(gpu).or_default().0 = sample.value;
            } else if sample.name == metric::DEVICE_TOTAL {
                frame.gpus.entry(gpu).or_default().1 = sample.value;
            }
        }
        frame.advised = self.advised().await;
        frame.events = self.events().await?;
        let policies: Api<GpuMemoryPolicy> = Api::namespaced(self.client.clone(), &self.namespace);
        let policies = policies.list(&ListParams::default()).await?.items;
        frame.evicted = evicted(&policies);
        frame.allowed = allowed(&policies);
        Ok(frame)
    }

    async fn scrape(&self, component: &str, port: u16) -> Vec<Sample> {
        let mut samples = Vec::new();
        for host in self.hosts(component, port).await {
            samples.extend(metrics(&host).await.unwrap_or_default());
        }
        samples
    }

    async fn hosts(&self, component: &str, port: u16) -> Vec<String> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), RELEASE_NAMESPACE);
        let selector = ListParams::default().labels(&format!("app.kubernetes.io/component={component}"));
        let Ok(found) = pods.list(&selector).await else { return Vec::new() };
        let addresses = found.items.into_iter().filter_map(|pod| pod.status?.pod_ip);
        addresses.map(|ip| format!("{ip}:{port}")).collect()
    }

    /// What `kubectl gpumem explain` shows of the trainer that declares its job, from where it reads it.
    async fn advised(&self) -> Option<Advised> {
        if !self.roles.contains(&Role::Declared) {
            return None;
        }
        let path = format!("{CONTAINERS}?namespace={}", self.namespace);
        for host in self.hosts("controller", 9401).await {
            let Ok(body) = get(&host, &path).await else { continue };
            let Ok(list) = serde_json::from_str::<ContainerList>(&body) else { continue };
            let waiting = list.waiting.into_iter().map(|view| (view, true));
            let holding = list.containers.into_iter().map(|view| (view, false));
            let own = waiting.chain(holding).filter(|(view, _)| view.pod.starts_with(Role::Declared.name()));
            let mut advised = own.filter_map(|(view, is_early)| {
                let first = view.advice.first()?;
                let peak = first.peak_bytes?.median;
                Some(Advised {
                    pod: view.pod.clone(),
                    reason: view.reason.clone(),
                    what: first.what.clone(),
                    peak,
                    is_early,
                })
            });
            if let Some(advised) = advised.next() {
                return Some(advised);
            }
        }
        None
    }

    fn view(&self, pod: &Pod, samples: &[Sample]) -> Option<PodView> {
        let app = pod.metadata.labels.as_ref()?.get("app")?;
        let role = *self.roles.iter().find(|role| role.name() == app)?;
        let name = pod.metadata.name.clone()?;
        let status = pod.status.as_ref();
        let container = status.and_then(|status| status.container_statuses.as_ref()?.first());
        let ended = container.and_then(|container| {
            let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
            last.or_else(|| container.state.as_ref().and_then(|state| state.terminated.as_ref()))
        });
        let value = |metric: &str, label: (&str, &str)| {
            samples
                .iter()
                .filter(|sample| {
                    sample.name == metric && sample.label("pod") == name && sample.label("namespace") == self.namespace
                })
                .find(|sample| label.0.is_empty() || sample.label(label.0) == label.1)
                .map(|sample| sample.value)
        };
        let noted = |name: &str| pod.metadata.annotations.as_ref().and_then(|all| all.get(name));
        let asked = noted(ANNOTATION_CHECKPOINT_REQUEST);
        let phase = status.and_then(|status| status.phase.clone()).unwrap_or_default();
        Some(PodView {
            role,
            uid: pod.metadata.uid.clone()?,
            state: if pod.metadata.deletion_timestamp.is_some() { "Terminating".to_owned() } else { phase },
            restarts: container.map_or(0, |container| container.restart_count),
            exit_code: ended.map(|ended| ended.exit_code),
            last_words: ended.and_then(|ended| ended.message.clone()).unwrap_or_default(),
            is_asked: asked.is_some(),
            is_saved: asked.is_some() && noted(ANNOTATION_CHECKPOINT_DONE) == asked,
            limit: None,
            disrupted: status.and_then(|status| {
                let conditions = status.conditions.as_ref()?;
                conditions.iter().find(|condition| condition.type_ == "DisruptionTarget")?.reason.clone()
            }),
            used: value(metric::CONTAINER_USED, ("", "")),
            growth: value(metric::CONTAINER_GROWTH, ("", "")),
            probability: value(metric::CONTAINER_OOM_PROBABILITY, ("horizon", "300")),
            seconds_to_oom: value(metric::CONTAINER_TIME_TO_OOM, ("quantile", "0.5")),
            risk: value(metric::CONTAINER_RISK, ("", "")),
            name,
        })
    }

    async fn limits(&self) -> Result<Vec<(String, i64)>> {
        let nodes: Api<GpuMemoryNode> = Api::all(self.client.clone());
        let listed = nodes.list(&ListParams::default()).await?.items;
        let entries = listed.into_iter().filter_map(|node| node.status).flat_map(|status| status.limits);
        Ok(entries
            .filter(|entry| entry.state == LimitPhase::Applied)
            .filter_map(|entry| Some((entry.pod_uid.clone(), entry.applied?)))
            .collect())
    }

    async fn suspended(&self) -> Result<Vec<SuspendedJob>> {
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut found = Vec::new();
        for job in jobs.list(&ListParams::default()).await?.items {
            let role = self.roles.iter().find(|role| Some(role.name()) == job.metadata.name.as_deref());
            let Some(role) = role.filter(|_| job.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true))) else {
                continue;
            };
            let status = job.status.unwrap_or_default();
            let over = |kind: &str| kind == "Complete" || kind == "Failed";
            found.push(SuspendedJob {
                role: *role,
                is_ours: job.metadata.annotations.is_some_and(|noted| noted.contains_key(ANNOTATION_SUSPENDED)),
                failed: status.failed.unwrap_or(0),
                is_over: status.conditions.iter().flatten().any(|one| over(&one.type_) && one.status == "True"),
            });
        }
        Ok(found)
    }

    async fn events(&self) -> Result<Vec<(String, String, String)>> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut ours: Vec<_> = events
            .list(&ListParams::default())
            .await?
            .items
            .into_iter()
            .filter(|event| event.reporting_controller.as_deref().is_some_and(|name| name.contains("gpumem")))
            .collect();
        ours.sort_by_key(|event| event.event_time.as_ref().map(|time| time.0));
        Ok(ours
            .into_iter()
            .map(|event| {
                let object = event
                    .regarding
                    .map(|object| {
                        format!(
                            "{}/{}",
                            object.kind.unwrap_or_default().to_lowercase(),
                            object.name.unwrap_or_default()
                        )
                    })
                    .unwrap_or_default();
                (object, event.reason.unwrap_or_default(), event.note.unwrap_or_default())
            })
            .collect())
    }
}

fn evicted(policies: &[GpuMemoryPolicy]) -> Vec<String> {
    let actions = policies.iter().filter_map(|policy| policy.status.as_ref()).flat_map(|status| &status.recent_actions);
    actions
        .filter(|action| action.action == ActionType::Evict && !action.dry_run && action.outcome == "Succeeded")
        .map(|action| action.pod_uid.clone())
        .collect()
}

fn allowed(policies: &[GpuMemoryPolicy]) -> Vec<(String, String, String)> {
    let told = policies.iter().filter_map(|policy| {
        let conditions = &policy.status.as_ref()?.conditions;
        let told = conditions.iter().find(|condition| condition.type_ == "ActionAllowed")?;
        Some((policy.metadata.name.clone()?, told.reason.clone(), told.message.clone()))
    });
    told.collect()
}

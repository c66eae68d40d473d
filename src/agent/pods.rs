//! The pods of this node, watched by `spec.nodeName` and kept as the little that naming a container needs.
//!
//! Flows in: watch events. Flows out: container id → pod and container name, and the [`PodReport`]s of `/v1/usage`. The
//! watch reads of the spec only which containers ask for GPUs: environment, volumes and templates never enter the agent's
//! memory. Of the status it reads the phase, the containers' ids and how they ended, an out-of-memory among them. While the API
//! is away the last table stays, and containers nobody named are still counted by their id.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::TryStreamExt;
use gpumem_engine::identity::{ContainerId, ContainerKey, PodUid};
use kube::api::{Api, ApiResource, Object};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use crate::agent::client;
use crate::agent::metrics::SelfMetrics;
use crate::api::names::{ANNOTATION_WORKLOAD, GROUP};
use crate::api::usage::{AskReport, EndReport, MAX_END_MESSAGE, MAX_WORKLOAD, OwnerReport, PodReport, WaitingReport};

/// Annotation of a static pod's mirror: the UID its cgroups carry.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// Pods asked for at once: a page of full pods is parsed in memory, so it is kept small.
const PAGE: u32 = 25;
/// Names and namespaces the API allows; anything longer is not from a Kubernetes API.
const MAX_NAME: usize = 253;
/// Longest label or annotation key or value carried on, and how many of them.
const MAX_TEXT: usize = 512;
const MAX_PAIRS: usize = 128;
/// More containers than any pod has.
const MAX_CONTAINERS: usize = 256;
/// Extended resources that are GPUs or parts of them.
const GPU_RESOURCES: &str = "nvidia.com/";

/// What the watch keeps of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// What `/v1/usage` says of it.
    pub report: PodReport,
    /// Its namespace, shared with the metrics' labels.
    pub namespace: Arc<str>,
    /// Its name, shared likewise.
    pub name: Arc<str>,
    /// UID in its cgroups, where that is not the API's (static pods).
    pub config_hash: Option<PodUid>,
    /// Its current container instances.
    pub containers: Vec<(ContainerId, Arc<str>)>,
    /// The GPUs that its containers ask for.
    pub asks: Vec<AskReport>,
    /// It succeeded or failed for good.
    pub is_over: bool,
}

impl Pod {
    /// Will it hold GPU memory, as far as it says?
    fn is_expected(&self) -> bool {
        let declares = self.report.annotations.contains_key(ANNOTATION_WORKLOAD);
        !self.is_over && !self.report.terminating && (declares || !self.asks.is_empty())
    }

    /// What is told of it before it holds any.
    pub fn waiting(&self) -> WaitingReport {
        WaitingReport { pod: self.report.clone(), asks: self.asks.clone() }
    }
}

/// Who a container is.
#[derive(Clone, Debug)]
pub struct Named {
    /// Its pod.
    pub pod: Arc<Pod>,
    /// Its name in the pod's spec; `None` while the pod's status does not list it yet.
    pub container: Option<Arc<str>>,
}

/// The pods of the node.
#[derive(Debug, Default)]
pub struct Pods {
    by_uid: HashMap<PodUid, Arc<Pod>>,
    by_config_hash: HashMap<PodUid, PodUid>,
    by_container: HashMap<ContainerId, (PodUid, Arc<str>)>,
    is_synced: bool,
}

/// The table shared by the watch, which writes, and the sampler, which reads once a cycle.
#[derive(Clone, Debug, Default)]
pub struct SharedPods(Arc<Mutex<Pods>>);

// === impl SharedPods ===

impl SharedPods {
    /// The table; held for lookups only, never across I/O.
    pub fn lock(&self) -> MutexGuard<'_, Pods> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Pods ===

impl Pods {
    /// Takes a new or changed pod.
    pub fn apply(&mut self, pod: Pod) {
        self.remove(&pod.report.uid.clone());
        let uid = pod.report.uid.clone();
        for (id, name) in &pod.containers {
            self.by_container.insert(id.clone(), (uid.clone(), Arc::clone(name)));
        }
        if let Some(hash) = &pod.config_hash {
            self.by_config_hash.insert(hash.clone(), uid.clone());
        }
        self.by_uid.insert(uid, Arc::new(pod));
    }

    /// Forgets a pod.
    pub fn remove(&mut self, uid: &PodUid) {
        let Some(pod) = self.by_uid.remove(uid) else { return };
        for (id, _) in &pod.containers {
            self.by_container.remove(id);
        }
        if let Some(hash) = &pod.config_hash {
            self.by_config_hash.remove(hash);
        }
    }

    /// Keeps these pods only, after a complete list.
    fn retain(&mut self, listed: &HashSet<PodUid>) {
        let gone: Vec<PodUid> = self.by_uid.keys().filter(|uid| !listed.contains(*uid)).cloned().collect();
        for uid in gone {
            self.remove(&uid);
        }
        self.is_synced = true;
    }

    /// True once the API gave the whole list.
    pub fn is_synced(&self) -> bool {
        self.is_synced
    }

    /// The pod a cgroup's UID names: the API's UID, or the config hash of a static pod.
    pub fn pod(&self, uid: &PodUid) -> Option<&Arc<Pod>> {
        self.by_uid.get(uid).or_else(|| self.by_uid.get(self.by_config_hash.get(uid)?))
    }

    /// The pods that will hold GPU memory, as far as they say, in the order of their UIDs. Whether they do is not known here.
    pub fn expected(&self) -> Vec<Arc<Pod>> {
        let mut expected: Vec<_> = self.by_uid.values().filter(|pod| pod.is_expected()).cloned().collect();
        expected.sort_by(|one, other| one.report.uid.cmp(&other.report.uid));
        expected
    }

    /// Who a container is. The id alone does not name it: cgroup and API must agree on the pod.
    pub fn find(&self, key: &ContainerKey) -> Option<Named> {
        let pod = self.pod(&key.pod)?;
        let listed = self.by_container.get(&key.container).filter(|(uid, _)| *uid == pod.report.uid);
        Some(Named { pod: Arc::clone(pod), container: listed.map(|(_, name)| Arc::clone(name)) })
    }
}

/// A pod as it is read from the API: of the spec which containers ask for what, of the status their ids and ends.
type WatchedPod = Object<Spec, Status>;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Spec {
    containers: Option<Vec<Asking>>,
    #[serde(rename = "initContainers")]
    init: Option<Vec<Asking>>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Asking {
    name: String,
    resources: Option<Resources>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Resources {
    /// Extended resources always have a limit; a request without one is refused by the API server.
    limits: Option<BTreeMap<String, serde_json::Value>>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Status {
    phase: Option<String>,
    #[serde(rename = "containerStatuses")]
    main: Option<Vec<ContainerStatus>>,
    #[serde(rename = "initContainerStatuses")]
    init: Option<Vec<ContainerStatus>>,
    #[serde(rename = "ephemeralContainerStatuses")]
    ephemeral: Option<Vec<ContainerStatus>>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ContainerStatus {
    name: String,
    #[serde(rename = "containerID")]
    container_id: Option<String>,
    state: Option<State>,
    #[serde(rename = "lastState")]
    last_state: Option<State>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct State {
    terminated: Option<Terminated>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Terminated {
    exit_code: i32,
    reason: Option<String>,
    message: Option<String>,
    finished_at: Option<String>,
    #[serde(rename = "containerID")]
    container_id: Option<String>,
}

/// Watches the node's pods for ever. Failures are logged once each time they begin and tried again.
pub async fn watch(node: String, pods: SharedPods, metrics: Arc<SelfMetrics>) {
    let client = client::of_the_cluster().await;
    let resource = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
    let api: Api<WatchedPod> = Api::all_with(client, &resource);
    let settings = watcher::Config::default().fields(&format!("spec.nodeName={node}")).page_size(PAGE);
    let mut events = std::pin::pin!(watcher::watcher(api, settings).default_backoff());
    let mut listed = HashSet::new();
    let mut failing = false;
    loop {
        match events.try_next().await {
            Ok(Some(event)) => {
                if std::mem::take(&mut failing) {
                    info!("pod watch works again");
                }
                metrics.pod_watch_up.set(1);
                take(event, &pods, &mut listed, &metrics);
            }
            // The watcher's stream has no end; should it end, the agent goes on without names.
            Ok(None) => return std::future::pending().await,
            Err(error) => {
                metrics.pod_watch_up.set(0);
                if !std::mem::replace(&mut failing, true) {
                    warn!(
                        error = &error as &dyn std::error::Error,
                        "pod watch fails; new containers have no name until it works"
                    );
                }
            }
        }
    }
}

fn take(event: Event<WatchedPod>, pods: &SharedPods, listed: &mut HashSet<PodUid>, metrics: &SelfMetrics) {
    let mut table = pods.lock();
    match event {
        Event::Init => listed.clear(),
        Event::InitApply(pod) => {
            if let Some(pod) = accepted(pod, metrics) {
                listed.insert(pod.report.uid.clone());
                table.apply(pod);
            }
        }
        Event::InitDone => {
            table.retain(listed);
            listed.clear();
            listed.shrink_to_fit();
        }
        Event::Apply(pod) => {
            if let Some(pod) = accepted(pod, metrics) {
                table.apply(pod);
            }
        }
        Event::Delete(pod) => {
            if let Some(uid) = pod.metadata.uid {
                table.remove(&PodUid::from(uid));
            }
        }
    }
}

/// The pod as it is kept, or a count of what was wrong with it.
fn accepted(pod: WatchedPod, metrics: &SelfMetrics) -> Option<Pod> {
    let kept = keep(pod);
    if let Err(reason) = kept {
        metrics.dropped("pod", reason);
        warn!(reason, "pod dropped");
    }
    kept.ok()
}

fn keep(pod: WatchedPod) -> Result<Pod, &'static str> {
    let metadata = pod.metadata;
    let text = |text: Option<String>| text.filter(|text| !text.is_empty() && text.len() <= MAX_NAME).ok_or("bad_name");
    let (uid, name, namespace) = (text(metadata.uid)?, text(metadata.name)?, text(metadata.namespace)?);
    let mut annotations = metadata.annotations.unwrap_or_default();
    let config_hash =
        annotations.get(CONFIG_HASH).filter(|hash| hash.len() <= MAX_NAME).map(|hash| hash.as_str().into());
    annotations.retain(|key, _| key.split_once('/').is_some_and(|(group, _)| group == GROUP));
    let owner = metadata.owner_references.into_iter().flatten().find(|owner| owner.controller == Some(true));
    let status = pod.status.unwrap_or_default();
    let statuses: Vec<ContainerStatus> = [status.main, status.init, status.ephemeral]
        .into_iter()
        .flatten()
        .flatten()
        .filter(|container| container.name.len() <= MAX_NAME)
        .take(MAX_CONTAINERS)
        .collect();
    let containers = statuses
        .iter()
        .filter_map(|container| {
            let id = instance(container.container_id.as_deref())?;
            Some((ContainerId::from(id), Arc::from(container.name.as_str())))
        })
        .collect();
    let labels = (Arc::from(namespace.as_str()), Arc::from(name.as_str()));
    let is_over = status.phase.is_some_and(|phase| phase == "Succeeded" || phase == "Failed");
    let report = PodReport {
        uid: PodUid::from(uid),
        namespace,
        name,
        labels: bounded(metadata.labels.unwrap_or_default()),
        annotations: bounded(annotations),
        owner: owner.map(|owner| OwnerReport {
            api_version: owner.api_version,
            kind: owner.kind,
            name: owner.name,
            uid: owner.uid,
        }),
        terminating: metadata.deletion_timestamp.is_some(),
        ends: statuses.into_iter().flat_map(ends).collect(),
    };
    let asks = asks(pod.spec);
    Ok(Pod { report, namespace: labels.0, name: labels.1, config_hash, containers, asks, is_over })
}

/// The GPUs that containers ask for.
fn asks(spec: Spec) -> Vec<AskReport> {
    let containers = [spec.init, spec.containers].into_iter().flatten().flatten().take(MAX_CONTAINERS);
    let asks = containers.flat_map(|Asking { name, resources }| {
        let limits = resources.and_then(|resources| resources.limits).unwrap_or_default();
        limits.into_iter().filter_map(move |(resource, count)| {
            let is_gpu = resource.starts_with(GPU_RESOURCES) && resource.len() <= MAX_NAME && name.len() <= MAX_NAME;
            let is_some = count.to_string().trim_matches('"') != "0";
            (is_gpu && is_some).then(|| AskReport { container: name.clone(), resource })
        })
    });
    asks.take(MAX_CONTAINERS).collect()
}

/// The id in `containerd://<id>`.
fn instance(id: Option<&str>) -> Option<&str> {
    let (_, id) = id?.split_once("://")?;
    (!id.is_empty() && id.len() <= MAX_NAME).then_some(id)
}

/// How a container ended: its last run but one first. An end without a time cannot be told from others and is left out.
fn ends(status: ContainerStatus) -> impl Iterator<Item = EndReport> {
    let ContainerStatus { name, container_id: _, state, last_state } = status;
    let terminated = |state: Option<State>, is_current| Some((state?.terminated?, is_current));
    [terminated(last_state, false), terminated(state, true)].into_iter().flatten().filter_map(
        move |(end, is_current)| {
            let short = |text: Option<String>| text.filter(|text| text.len() <= MAX_NAME).unwrap_or_default();
            let finished_at = short(end.finished_at);
            (!finished_at.is_empty()).then(|| EndReport {
                container: name.clone(),
                container_id: instance(end.container_id.as_deref()).unwrap_or_default().to_owned(),
                exit_code: end.exit_code,
                reason: short(end.reason),
                finished_at,
                // Nobody asks what a container said that ended well.
                message: last(&end.message.filter(|_| end.exit_code != 0).unwrap_or_default(), MAX_END_MESSAGE)
                    .to_owned(),
                is_current,
            })
        },
    )
}

/// The last `max` bytes of a text, or a little less: characters stay whole.
fn last(text: &str, max: usize) -> &str {
    let from = text.len().saturating_sub(max);
    let whole = (from..text.len()).find(|at| text.is_char_boundary(*at));
    whole.and_then(|at| text.get(at..)).unwrap_or_default()
}

fn bounded(pairs: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let longest = |key: &str| if key == ANNOTATION_WORKLOAD { MAX_WORKLOAD } else { MAX_TEXT };
    let fits = |(key, value): &(String, String)| key.len() <= MAX_TEXT && value.len() <= longest(key);
    pairs.into_iter().filter(fits).take(MAX_PAIRS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(text: serde_json::Value) -> Result<Pod, &'static str> {
        keep(serde_json::from_value(text).expect("a pod"))
    }

    fn train() -> serde_json::Value {
        serde_json::json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "uid": "u1", "name": "train-0", "namespace": "team",
                "labels": {"app": "train", "huge": "x".repeat(10_000)},
                "annotations": {"gpumem.dev/actions": "Disabled", "other.io/secret": "s"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "uid": "o", "controller": true}],
                "managedFields": [{"manager": "kubelet"}],
            },
            "spec": {"containers": [{"name": "main", "env": [{"name": "TOKEN", "value": "secret"}]}]},
            "status": {
                "containerStatuses": [{"name": "main", "containerID": "containerd://aaa"}, {"name": "waiting"}],
                "initContainerStatuses": [{"name": "setup", "containerID": "cri-o://bbb"}],
            },
        })
    }

    #[test]
    fn a_pod_is_expected_to_hold_memory_where_it_declares_a_job_or_asks_for_a_gpu() {
        let expected = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut text = train();
            change(&mut text);
            let mut pods = Pods::default();
            pods.apply(pod(text).expect("kept"));
            pods.expected().first().map(|pod| pod.waiting().asks)
        };
        assert_eq!(expected(&|_| {}), None, "nothing says so");
        let asks = |text: &mut serde_json::Value, resource: &str, count: serde_json::Value| {
            text["spec"]["containers"][0]["resources"] =
                serde_json::json!({"limits": {resource: count, "cpu": "2", "memory": "1Gi"}});
        };
        let ask = |resource: &str| vec![AskReport { container: "main".into(), resource: resource.into() }];
        assert_eq!(expected(&|text| asks(text, "nvidia.com/gpu", "1".into())), Some(ask("nvidia.com/gpu")));
        let slice = "nvidia.com/mig-3g.40gb";
        assert_eq!(expected(&|text| asks(text, slice, 1.into())), Some(ask(slice)));
        assert_eq!(expected(&|text| asks(text, "nvidia.com/gpu", "0".into())), None);
        let declares = |text: &mut serde_json::Value| {
            // A config.json makes the text long.
            let job = format!("model=llama3.1-8b {}", " ".repeat(4000));
            text["metadata"]["annotations"][ANNOTATION_WORKLOAD] = job.into();
        };
        assert_eq!(expected(&declares), Some(Vec::new()), "a claim of dynamic allocation has no such resource");
        for phase in ["Succeeded", "Failed"] {
            let over = |text: &mut serde_json::Value| {
                declares(text);
                text["status"]["phase"] = phase.into();
            };
            assert_eq!(expected(&over), None, "{phase}");
        }
    }

    fn key(pod: &str, container: &str) -> ContainerKey {
        ContainerKey { pod: pod.into(), container: container.into() }
    }

    #[test]
    fn only_what_naming_needs_is_kept() {
        let pod = pod(train()).expect("kept");
        assert_eq!(pod.report.labels.keys().collect::<Vec<_>>(), ["app"], "the label of 10,000 characters is left out");
        assert_eq!(pod.report.annotations.keys().collect::<Vec<_>>(), ["gpumem.dev/actions"]);
        assert_eq!(pod.report.owner.as_ref().map(|owner| owner.kind.as_str()), Some("StatefulSet"));
        assert_eq!(pod.containers.len(), 2, "a container without an id does not run");
        let mut nameless = train();
        nameless["metadata"]["name"] = "x".repeat(10_000).into();
        assert_eq!(self::pod(nameless), Err("bad_name"));
    }

    #[test]
    fn a_container_is_named_only_within_its_own_pod() {
        let mut pods = Pods::default();
        pods.apply(pod(train()).expect("kept"));
        let name = |key: &ContainerKey, pods: &Pods| {
            pods.find(key).and_then(|named| named.container).map(|name| name.to_string())
        };
        assert_eq!(name(&key("u1", "aaa"), &pods).as_deref(), Some("main"));
        assert_eq!(name(&key("u1", "new"), &pods), None);
        assert!(pods.find(&key("u1", "new")).is_some(), "its pod is known");
        assert!(pods.find(&key("u2", "aaa")).is_none(), "another pod's cgroup");
        pods.remove(&"u1".into());
        assert!(pods.find(&key("u1", "aaa")).is_none());
    }

    #[test]
    fn a_static_pod_is_found_by_its_config_hash() {
        let mut mirror = train();
        mirror["metadata"]["annotations"][CONFIG_HASH] = "0123456789abcdef0123456789abcdef".into();
        let mut pods = Pods::default();
        pods.apply(pod(mirror).expect("kept"));
        let named = pods.find(&key("0123456789abcdef0123456789abcdef", "aaa")).expect("found");
        assert_eq!(named.pod.report.uid.as_str(), "u1");
    }

    #[test]
    fn how_containers_ended_is_kept_with_the_end_of_their_last_words() {
        let mut crashed = train();
        let end = |exit: i32, at: &str, message: String| {
            serde_json::json!({"terminated": {"exitCode": exit, "reason": "Error", "finishedAt": at, "message": message,
                "containerID": "containerd://old"}})
        };
        crashed["status"]["containerStatuses"][0]["lastState"] =
            end(1, "2026-11-29T10:00:00Z", format!("{}äCUDA out of memory", "x".repeat(10_000)));
        crashed["status"]["containerStatuses"][1]["state"] = end(0, "2026-11-29T11:00:00Z", String::new());
        crashed["status"]["initContainerStatuses"][0]["state"] = serde_json::json!({"terminated": {"exitCode": 3}});
        let ends = pod(crashed).expect("kept").report.ends;
        assert_eq!(ends.len(), 2, "an end without a time is left out: {ends:?}");
        assert_eq!((ends[0].container.as_str(), ends[0].container_id.as_str()), ("main", "old"));
        assert_eq!((ends[0].exit_code, ends[0].is_current), (1, false));
        assert!(ends[0].message.ends_with("äCUDA out of memory") && ends[0].message.len() <= MAX_END_MESSAGE);
        assert_eq!((ends[1].container.as_str(), ends[1].exit_code, ends[1].is_current), ("waiting", 0, true));
        // Cut in the middle of a character, it loses that character.
        assert_eq!((last("aäb", 2), last("aäb", 3), last("", 3), last("ä", 1)), ("b", "äb", "", ""));
    }

    #[test]
    fn a_new_list_forgets_pods_that_are_not_in_it() {
        let mut pods = Pods::default();
        pods.apply(pod(train()).expect("kept"));
        assert!(!pods.is_synced());
        pods.retain(&HashSet::new());
        assert!(pods.is_synced() && pods.pod(&"u1".into()).is_none());
    }
}

//! Pods and what they belong to, as the API says: facts about a pod, its chain of owners by UID, and the group it is one of.
//!
//! Flows in: names and UIDs that agents reported. Flows out: facts read from the API, or a [`Hold`] that says what could
//! not be established. An owner is followed only where the live object has the UID that the reference names; a reference
//! to a successor of the same name, or a circle, ends the climb.

use std::collections::BTreeMap;
use std::time::Duration;

use gpumem_engine::decision::{Hold, PodRef, Protected, Workload};
use gpumem_engine::pacing::{Stamp, WorkloadUid};
use gpumem_engine::policy::Protection;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::api::names::{ANNOTATION_ACTIONS, ANNOTATION_CHECKPOINT_DONE};
use crate::api::usage::{OwnerReport, PodReport};

mod catalogue;
mod chain;
mod group;
mod handle;
mod job;
mod kind;
mod kueue;
mod levers;
mod number;
mod object;
mod replicas;
mod size;

pub use chain::{Chain, Hops};
pub use group::{Budgets, count_budgets, read_group};
pub use handle::{ScaleHandle, ScaleWrite, SuspendHandle, SuspendState, Target};
pub use kind::{Kind, Lever, Switches};
pub use levers::{Resolution, resolve};

/// A read that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pod.
    #[error("reading pod {namespace}/{name}")]
    Pod {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
        /// Why.
        source: kube::Error,
    },
    /// The namespace.
    #[error("reading namespace {name}")]
    Namespace {
        /// Name.
        name: String,
        /// Why.
        source: kube::Error,
    },
    /// An owner.
    #[error("reading {kind} {name}")]
    Owner {
        /// Kind.
        kind: String,
        /// Name.
        name: String,
        /// Why.
        source: kube::Error,
    },
    /// Other objects of a namespace.
    #[error("listing {what} of {namespace}")]
    Listing {
        /// Which.
        what: &'static str,
        /// Namespace.
        namespace: String,
        /// Why.
        source: kube::Error,
    },
    /// What the API server serves.
    #[error("asking the API server for {of}")]
    Discovery {
        /// Group and version, or all groups.
        of: String,
        /// Why.
        source: kube::Error,
    },
    /// The budgets of a namespace.
    #[error("listing the PodDisruptionBudgets of {namespace}")]
    Budgets {
        /// Namespace.
        namespace: String,
        /// Why.
        source: kube::Error,
    },
}

impl Error {
    /// Name for a metric label.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Pod { .. } => "pod",
            Self::Namespace { .. } => "namespace",
            Self::Owner { .. } => "owner",
            Self::Budgets { .. } => "budgets",
            Self::Listing { .. } => "listing",
            Self::Discovery { .. } => "discovery",
        }
    }

    /// Whether the API says that we may not read this at all.
    pub fn is_forbidden(&self) -> bool {
        let (Self::Pod { source, .. }
        | Self::Namespace { source, .. }
        | Self::Owner { source, .. }
        | Self::Listing { source, .. }
        | Self::Discovery { source, .. }
        | Self::Budgets { source, .. }) = self;
        matches!(source, kube::Error::Api(status) if status.code == 403)
    }

    /// As a reason to hold.
    pub fn into_hold(self) -> Hold {
        let what = if self.is_forbidden() { "the operator lacks the right" } else { "the API server did not answer" };
        Hold::PodUnverified { why: format!("{self} failed, {what}") }
    }
}

/// What the API says of a pod, as far as an action cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// Who it is, and where.
    pub pod: PodRef,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Value of the opt-out annotation.
    pub actions: Option<String>,
    /// Its controller.
    pub owner: Option<OwnerReport>,
    /// Whether it is a mirror of a static pod.
    pub is_mirror: bool,
    /// Whether it is ending.
    pub terminating: bool,
    /// Its phase.
    pub phase: String,
    /// Whether it is Ready.
    pub ready: bool,
    /// Its priority class.
    pub priority_class: Option<String>,
    /// How long its processes have between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// What the application says of a checkpoint: the id of a request. Anybody who may write the pod may write this.
    pub checkpoint_done: Option<String>,
    /// Its containers whose liveness probe runs a command in them.
    pub exec_probes: Vec<String>,
    /// Since when each container runs.
    pub started: BTreeMap<String, Stamp>,
}

/// What a pod gets that does not say.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// The kubelet's mark on the API's copy of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

impl PodFacts {
    /// Takes them from a pod. What is missing is empty: an empty UID or node matches no report.
    pub fn of(pod: &Pod) -> Self {
        let metadata = &pod.metadata;
        let annotation = |key: &str| metadata.annotations.as_ref().and_then(|all| all.get(key)).cloned();
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        Self {
            pod: PodRef {
                namespace: metadata.namespace.clone().unwrap_or_default(),
                name: metadata.name.clone().unwrap_or_default(),
                uid: metadata.uid.as_deref().unwrap_or_default().into(),
                node: spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
            },
            labels: metadata.labels.clone().unwrap_or_default(),
            actions: annotation(ANNOTATION_ACTIONS),
            owner: controller_of(metadata.owner_references.as_deref().unwrap_or_default()),
            is_mirror: annotation(MIRROR).is_some(),
            terminating: metadata.deletion_timestamp.is_some(),
            phase: status.and_then(|status| status.phase.clone()).unwrap_or_else(|| "Unknown".to_owned()),
            ready: conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            priority_class: spec.and_then(|spec| spec.priority_class_name.clone()),
            grace: spec.and_then(|spec| spec.termination_grace_period_seconds).map_or(DEFAULT_GRACE, |seconds| {
                // The kubelet gives a second where a pod asks for less than none.
                u64::try_from(seconds).map_or(Duration::from_secs(1), Duration::from_secs)
            }),
            checkpoint_done: annotation(ANNOTATION_CHECKPOINT_DONE),
            exec_probes: spec
                .map(|spec| spec.containers.as_slice())
                .unwrap_or_default()
                .iter()
                .filter(|container| container.liveness_probe.as_ref().is_some_and(|probe| probe.exec.is_some()))
                .map(|container| container.name.clone())
                .collect(),
            started: status
                .and_then(|status| status.container_statuses.as_deref())
                .unwrap_or_default()
                .iter()
                .filter_map(started)
                .collect(),
        }
    }

    /// Whether this is the pod that an agent on `node` reported: the API's word on UID, node and labels counts.
    pub fn confirm(&self, node: &str, report: &PodReport) -> Result<(), Hold> {
        let differs =
            |what: &str| Err(Hold::PodUnverified { why: format!("its {what} differs from the agent's report") });
        if self.pod.uid != report.uid {
            return differs("UID");
        }
        if self.pod.node != node {
            return differs("node");
        }
        if self.labels != report.labels {
            return differs("set of labels");
        }
        let same_owner = self.owner.as_ref().map(|owner| &owner.uid) == report.owner.as_ref().map(|owner| &owner.uid);
        if same_owner { Ok(()) } else { differs("owner") }
    }

    /// Whether its own state lets it be acted on, whatever it belongs to. `protect` are the protections in force.
    pub fn check(&self, protect: &[Protection]) -> Result<(), Hold> {
        if self.is_mirror {
            return Err(Hold::Protected(Protected::Static));
        }
        let is_system = self.pod.namespace == "kube-system"
            || self.priority_class.as_deref().is_some_and(|class| class.starts_with("system-"));
        if is_system && protect.contains(&Protection::SystemCritical) {
            return Err(Hold::Protected(Protected::System));
        }
        opted_out("pod", self.actions.as_deref())?;
        if self.terminating {
            return Err(Hold::PodTerminating);
        }
        if self.phase == "Running" { Ok(()) } else { Err(Hold::PodNotRunning { phase: self.phase.clone() }) }
    }
}

/// Name of a container that runs, and since when.
fn started(status: &ContainerStatus) -> Option<(String, Stamp)> {
    let at = status.state.as_ref()?.running.as_ref()?.started_at.as_ref()?;
    Some((status.name.clone(), Stamp(at.0.as_second())))
}

/// Whether the opt-out annotation with this value on `place` forbids actions. A value nobody knows is a wish that was
/// mistyped: it counts as a pause.
pub fn opted_out(place: &str, value: Option<&str>) -> Result<(), Hold> {
    match value {
        None | Some("Enabled") => Ok(()),
        Some(value) => {
            let value: String = value.chars().take(40).collect();
            Err(Hold::OptedOut { place: format!("the {place}'s annotation {ANNOTATION_ACTIONS} is {value}") })
        }
    }
}

/// The owner reference with `controller: true`.
pub fn controller_of(references: &[OwnerReference]) -> Option<OwnerReport> {
    references.iter().find(|reference| reference.controller == Some(true)).map(|reference| OwnerReport {
        api_version: reference.api_version.clone(),
        kind: reference.kind.clone(),
        name: reference.name.clone(),
        uid: reference.uid.clone(),
    })
}

/// An owner as a workload.
pub fn as_workload(owner: &OwnerReport) -> Workload {
    Workload {
        api_version: owner.api_version.clone(),
        kind: owner.kind.clone(),
        name: owner.name.clone(),
        uid: WorkloadUid(owner.uid.clone()),
    }
}

/// Reads a pod; `None` when there is none of that name.
pub async fn read_pod(client: &kube::Client, namespace: &str, name: &str) -> Result<Option<PodFacts>, Error> {
    let pods: kube::Api<Pod> = kube::Api::namespaced(client.clone(), namespace);
    let pod = pods.get_opt(name).await.map_err(|source| Error::Pod {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        source,
    })?;
    Ok(pod.as_ref().map(PodFacts::of))
}

/// Whether the namespace's owner lets us act in it.
pub async fn check_namespace(client: &kube::Client, name: &str) -> Result<(), Hold> {
    let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(client.clone());
    match namespaces.get_metadata(name).await {
        Ok(namespace) => opted_out(
            "namespace",
            namespace.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION_ACTIONS)).map(String::as_str),
        ),
        Err(source) => Err(Error::Namespace { name: name.to_owned(), source }.into_hold()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn facts(change: impl FnOnce(&mut serde_json::Value)) -> PodFacts {
        let mut pod = json!({
            "metadata": {"name": "a", "namespace": "ml", "uid": "u1", "labels": {"app": "t"}},
            "spec": {"nodeName": "n1", "containers": []},
            "status": {"phase": "Running"}
        });
        change(&mut pod);
        PodFacts::of(&serde_json::from_value(pod).unwrap())
    }

    type Change = fn(&mut serde_json::Value);

    #[test]
    fn protected_and_unfit_pods_say_which_they_are() {
        let all = [Protection::SystemCritical];
        let cases: [(&str, Change); 6] = [
            ("ProtectedStaticPod", |pod| pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"})),
            ("ProtectedSystemPod", |pod| pod["metadata"]["namespace"] = json!("kube-system")),
            ("ProtectedSystemPod", |pod| pod["spec"]["priorityClassName"] = json!("system-node-critical")),
            ("PodTerminating", |pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")),
            ("PodNotRunning", |pod| pod["status"]["phase"] = json!("Pending")),
            ("OptedOut", |pod| pod["metadata"]["annotations"] = json!({"gpumem.dev/actions": "Disabled"})),
        ];
        for (reason, change) in cases {
            assert_eq!(facts(change).check(&all).unwrap_err().reason(), reason);
        }
        assert_eq!(facts(|_| {}).check(&all), Ok(()));
        assert_eq!(facts(|pod| pod["metadata"]["namespace"] = json!("kube-system")).check(&[]), Ok(()));
    }

    #[test]
    fn the_grace_period_is_the_pods_own_or_the_default() {
        assert_eq!(facts(|_| {}).grace, Duration::from_secs(30));
        for (seconds, grace) in [(0, 0), (120, 120), (-5, 1)] {
            let facts = facts(|pod| pod["spec"]["terminationGracePeriodSeconds"] = json!(seconds));
            assert_eq!(facts.grace, Duration::from_secs(grace), "{seconds}");
        }
    }

    #[test]
    fn only_enabled_or_nothing_lets_us_act() {
        assert_eq!(opted_out("pod", None), Ok(()));
        assert_eq!(opted_out("pod", Some("Enabled")), Ok(()));
        for value in ["Disabled", "disabled", "enabled", "", "true"] {
            assert_eq!(opted_out("pod", Some(value)).unwrap_err().reason(), "OptedOut", "{value}");
        }
    }
}

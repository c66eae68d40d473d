//! The pods of one workload: how many there should be, how many are Ready, and which budgets cover one of them. The owner's
//! own status says it; pods are not listed, so that no right to list them is needed.

use std::collections::BTreeMap;

use gpumem_engine::decision::{Hold, Workload};
use gpumem_engine::pacing::Group;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::ListParams;
use kube::core::{DynamicObject, Selector, SelectorExt as _};

use super::Error;
use super::handle::Target;
use super::kind::Kind;
use super::object::{Located, read_child};
use super::size;

/// Jobs of one CronJob that are looked at; more of them at once are somebody's mistake.
const MAX_RUNS: usize = 8;

/// Reads the group that `workload` is; `Ok(None)` when it is gone. Its budgets are counted apart, by [`count_budgets`].
pub async fn read_group(client: &kube::Client, namespace: &str, workload: &Workload) -> Result<Option<Group>, Hold> {
    let Some(kind) = Kind::of(workload) else { return Err(Hold::UnsupportedOwner { kind: workload.kind.clone() }) };
    if matches!(kind, Kind::DaemonSet | Kind::Node | Kind::Pod | Kind::KueueWorkload) {
        return Err(Hold::UnsupportedOwner { kind: workload.kind.clone() });
    }
    let located = Located::of(kind, workload, namespace);
    let Some(object) = located.read(client).await.map_err(Error::into_hold)? else { return Ok(None) };
    if let Some(group) = size::group(kind, &object) {
        return Ok(Some(group));
    }
    let mut whole = Group { desired: 0, ready: 0, rolling_out: false, budgets: 0 };
    for (kind, child) in children(kind, &located.0, &object) {
        let child = read_child(client, &child, &workload.uid.0).await.map_err(Error::into_hold)?;
        if let Some(group) = child.as_ref().and_then(|child| size::group(kind, child)) {
            whole.desired = whole.desired.saturating_add(group.desired);
            whole.ready = whole.ready.saturating_add(group.ready);
            whole.rolling_out |= group.rolling_out;
        }
    }
    Ok(Some(whole))
}

/// The objects that know about the pods of one that does not.
fn children(kind: Kind, parent: &Target, object: &DynamicObject) -> Vec<(Kind, Target)> {
    let child = |kind: Kind, api_version: &str, name: &str| {
        let target = Target {
            api_version: api_version.to_owned(),
            kind: kind.name().unwrap_or_default().to_owned(),
            plural: kind.plural().to_owned(),
            namespace: parent.namespace.clone(),
            name: name.to_owned(),
            // Known only when it was read; its owner's is what is checked.
            uid: String::new(),
        };
        (kind, target)
    };
    let status = &object.data["status"];
    match kind {
        Kind::CronJob => {
            let runs = status["active"].as_array().into_iter().flatten().filter_map(|run| run["name"].as_str());
            runs.take(MAX_RUNS).map(|name| child(Kind::Job, "batch/v1", name)).collect()
        }
        // The trainer gives its JobSet its own name; v1alpha2 is the version it writes.
        Kind::TrainJob => vec![child(Kind::JobSet, JOB_SET, &parent.name)],
        Kind::RayJob => name_in(&status["rayClusterName"])
            .map(|name| child(Kind::RayCluster, &parent.api_version, name))
            .into_iter()
            .collect(),
        Kind::RayService => name_in(&status["activeServiceStatus"]["rayClusterName"])
            .map(|name| child(Kind::RayCluster, &parent.api_version, name))
            .into_iter()
            .collect(),
        _ => Vec::new(),
    }
}

/// The version of JobSet that Kubeflow's trainer makes.
const JOB_SET: &str = "jobset.x-k8s.io/v1alpha2";

fn name_in(value: &serde_json::Value) -> Option<&str> {
    value.as_str().filter(|name| !name.is_empty())
}

/// The PodDisruptionBudgets of a namespace.
#[derive(Clone, Debug)]
pub struct Budgets(Vec<Option<Selector>>);

impl Budgets {
    /// Lists them.
    pub async fn list(client: &kube::Client, namespace: &str) -> Result<Self, Error> {
        let api: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), namespace);
        let listed = api
            .list(&ListParams::default())
            .await
            .map_err(|source| Error::Budgets { namespace: namespace.to_owned(), source })?;
        // No selector selects nothing; an empty one selects all. One we cannot read may select any pod.
        let selectors = listed.items.into_iter().filter_map(|budget| budget.spec?.selector);
        Ok(Self(selectors.map(|selector| Selector::try_from(selector).ok()).collect()))
    }

    /// How many of them select a pod with these labels.
    pub fn selecting(&self, labels: &BTreeMap<String, String>) -> u32 {
        let selects = |selector: &&Option<Selector>| selector.as_ref().is_none_or(|selector| selector.matches(labels));
        u32::try_from(self.0.iter().filter(selects).count()).unwrap_or(u32::MAX)
    }
}

/// PodDisruptionBudgets of the namespace that select a pod with these labels.
pub async fn count_budgets(
    client: &kube::Client,
    namespace: &str,
    labels: &BTreeMap<String, String>,
) -> Result<u32, Error> {
    Ok(Budgets::list(client, namespace).await?.selecting(labels))
}

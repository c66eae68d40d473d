//! The pods of one workload: how many there should be, how many are Ready, and which budgets cover one of them.

use std::collections::BTreeMap;

use gpumem_engine::decision::{Hold, Workload};
use gpumem_engine::pacing::{Group, Stamp};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Api;
use kube::api::ListParams;
use kube::core::{Selector, SelectorExt as _};

use super::{Error, Hops, PodFacts};

/// Reads the group that `workload` is. `labels` are those of the pod to be acted on, for its budgets; without any, budgets
/// are not counted. `Ok(None)` when the workload is gone.
pub async fn read_group(
    client: &kube::Client,
    hops: &mut Hops,
    now: Stamp,
    namespace: &str,
    workload: &Workload,
    labels: Option<&BTreeMap<String, String>>,
) -> Result<Option<Group>, Hold> {
    let Some(scale) = read_scale(client, namespace, workload).await? else { return Ok(None) };
    let pods = list_pods(client, namespace, workload, &scale.selector).await.map_err(Error::into_hold)?;
    let (mut ready, mut youngest) = (0_u32, None);
    for facts in pods.iter().map(PodFacts::of).filter(|facts| !facts.terminating) {
        let Some(held) = facts.ready_for(now) else { continue };
        // The selector may match strangers; only those whose owners lead here are of the group.
        let chain = hops.climb(client, namespace, facts.owner.as_ref()).await;
        if chain.top().is_some_and(|top| top.uid == workload.uid) {
            ready += 1;
            youngest = Some(youngest.map_or(held, |other: std::time::Duration| other.min(held)));
        }
    }
    let budgets = match labels {
        Some(labels) => count_budgets(client, namespace, labels).await.map_err(Error::into_hold)?,
        None => 0,
    };
    Ok(Some(Group { desired: scale.desired, ready, ready_for: youngest, rolling_out: scale.rolling_out, budgets }))
}

/// PodDisruptionBudgets of the namespace that select a pod with these labels.
pub async fn count_budgets(
    client: &kube::Client,
    namespace: &str,
    labels: &BTreeMap<String, String>,
) -> Result<u32, Error> {
    let api: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), namespace);
    let listed = api
        .list(&ListParams::default())
        .await
        .map_err(|source| Error::Budgets { namespace: namespace.to_owned(), source })?;
    let selecting = listed.items.iter().filter(|budget| {
        // No selector selects nothing; an empty one selects all. One we cannot read may select the pod.
        let selector = budget.spec.as_ref().and_then(|spec| spec.selector.clone());
        selector.is_some_and(|selector| Selector::try_from(selector).map_or(true, |selector| selector.matches(labels)))
    });
    Ok(u32::try_from(selecting.count()).unwrap_or(u32::MAX))
}

struct Scale {
    desired: u32,
    rolling_out: bool,
    selector: LabelSelector,
}

async fn read_scale(client: &kube::Client, namespace: &str, workload: &Workload) -> Result<Option<Scale>, Hold> {
    let failed = |source| Error::Owner { kind: workload.kind.clone(), name: workload.name.clone(), source }.into_hold();
    let scale = match workload.kind.as_str() {
        "Deployment" => {
            let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
            let found = api.get_opt(&workload.name).await.map_err(failed)?;
            found.filter(|object| object.metadata.uid.as_deref() == Some(&workload.uid.0)).map(of_deployment)
        }
        "StatefulSet" => {
            let api: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
            let found = api.get_opt(&workload.name).await.map_err(failed)?;
            found.filter(|object| object.metadata.uid.as_deref() == Some(&workload.uid.0)).map(of_stateful_set)
        }
        kind => return Err(Hold::UnsupportedOwner { kind: kind.to_owned() }),
    };
    Ok(scale)
}

fn of_deployment(object: Deployment) -> Scale {
    let spec = object.spec;
    let status = object.status.unwrap_or_default();
    Scale {
        desired: u32::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0),
        // Pods of an old ReplicaSet are still there. Pods that are merely not Ready are no rollout.
        rolling_out: status.observed_generation < object.metadata.generation
            || status.replicas.unwrap_or(0) > status.updated_replicas.unwrap_or(0),
        selector: spec.selector,
    }
}

fn of_stateful_set(object: StatefulSet) -> Scale {
    let spec = object.spec;
    let status = object.status.unwrap_or_default();
    Scale {
        desired: u32::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0),
        rolling_out: status.observed_generation < object.metadata.generation
            || (status.update_revision.is_some() && status.update_revision != status.current_revision),
        selector: spec.selector,
    }
}

async fn list_pods(
    client: &kube::Client,
    namespace: &str,
    workload: &Workload,
    selector: &LabelSelector,
) -> Result<Vec<Pod>, Error> {
    // An unreadable selector matches by owner alone: more pods to look at, the same group.
    let params = Selector::try_from(selector.clone())
        .map_or_else(|_| ListParams::default(), |selector| ListParams::default().labels_from(&selector));
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let listed = api.list(&params).await.map_err(|source| Error::Pods {
        kind: workload.kind.clone(),
        name: workload.name.clone(),
        source,
    })?;
    Ok(listed.items)
}

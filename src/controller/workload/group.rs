//! The pods of one workload: how many there should be, how many are Ready, and which budgets cover one of them. The owner's
//! own status says it; pods are not listed, so that no right to list them is needed.

use std::collections::BTreeMap;

use gpumem_engine::decision::{Hold, Workload};
use gpumem_engine::pacing::Group;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::ListParams;
use kube::core::{Selector, SelectorExt as _};

use super::Error;

/// Reads the group that `workload` is; `Ok(None)` when it is gone. Its budgets are counted apart, by [`count_budgets`].
pub async fn read_group(client: &kube::Client, namespace: &str, workload: &Workload) -> Result<Option<Group>, Hold> {
    let failed = |source| Error::Owner { kind: workload.kind.clone(), name: workload.name.clone(), source }.into_hold();
    match workload.kind.as_str() {
        "Deployment" => {
            let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
            let found = api.get_opt(&workload.name).await.map_err(failed)?;
            Ok(found.filter(|object| object.metadata.uid.as_deref() == Some(&workload.uid.0)).map(of_deployment))
        }
        "StatefulSet" => {
            let api: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
            let found = api.get_opt(&workload.name).await.map_err(failed)?;
            Ok(found.filter(|object| object.metadata.uid.as_deref() == Some(&workload.uid.0)).map(of_stateful_set))
        }
        kind => Err(Hold::UnsupportedOwner { kind: kind.to_owned() }),
    }
}

fn of_deployment(object: Deployment) -> Group {
    let status = object.status.unwrap_or_default();
    Group {
        desired: count(object.spec.replicas.or(Some(1))),
        ready: count(status.ready_replicas),
        // Pods of an old ReplicaSet are still there. Pods that are merely not Ready are no rollout.
        rolling_out: status.observed_generation < object.metadata.generation
            || status.replicas.unwrap_or(0) > status.updated_replicas.unwrap_or(0),
        budgets: 0,
    }
}

fn of_stateful_set(object: StatefulSet) -> Group {
    let status = object.status.unwrap_or_default();
    Group {
        desired: count(object.spec.replicas.or(Some(1))),
        ready: count(status.ready_replicas),
        rolling_out: status.observed_generation < object.metadata.generation
            || (status.update_revision.is_some() && status.update_revision != status.current_revision),
        budgets: 0,
    }
}

fn count(number: Option<i32>) -> u32 {
    number.and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
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

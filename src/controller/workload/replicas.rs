//! Whose number the replicas of a workload are: an autoscaler's, whoever wrote them, or nobody's.

use gpumem_engine::decision::Workload;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::Api;
use kube::api::ListParams;
use kube::core::DynamicObject;
use serde_json::Value;

use super::Error;
use super::handle::ScaleWrite;
use crate::api::names::FIELD_MANAGER;

/// The autoscaler of the namespace that moves one of these owners, if any.
pub async fn autoscaler(client: &kube::Client, namespace: &str, owners: &[Workload]) -> Result<Option<String>, Error> {
    let api: Api<HorizontalPodAutoscaler> = Api::namespaced(client.clone(), namespace);
    let listed = api.list(&ListParams::default()).await.map_err(|source| Error::Listing {
        what: "HorizontalPodAutoscalers",
        namespace: namespace.to_owned(),
        source,
    })?;
    Ok(listed.items.iter().find(|autoscaler| owners.iter().any(|owner| moves(autoscaler, owner))).map(describe))
}

fn moves(autoscaler: &HorizontalPodAutoscaler, owner: &Workload) -> bool {
    let target = &autoscaler.spec.scale_target_ref;
    let group = |api_version: &str| api_version.rsplit_once('/').map_or("", |(group, _)| group).to_owned();
    // A reference without a version is taken as one to any group: better one refusal too many.
    let same_group = target.api_version.as_deref().is_none_or(|version| group(version) == group(&owner.api_version));
    same_group && target.kind == owner.kind && target.name == owner.name
}

fn describe(autoscaler: &HorizontalPodAutoscaler) -> String {
    let references = autoscaler.metadata.owner_references.as_deref().unwrap_or_default();
    let name = autoscaler.metadata.name.as_deref().unwrap_or_default();
    match references.iter().find(|reference| reference.kind == "ScaledObject") {
        Some(scaled) => format!("KEDA's ScaledObject {}", scaled.name),
        None => format!("HorizontalPodAutoscaler {name}"),
    }
}

/// Who else owns the field that `write` would change, by the object's managed fields. For a Job that is only who applies it
/// again and again: whoever created it had to give it a size, and is no owner for that.
pub fn manager(object: &DynamicObject, write: ScaleWrite) -> Option<String> {
    let (fields, again): (&[&str], bool) = match write {
        ScaleWrite::Subresource => (&["f:replicas"], false),
        ScaleWrite::Parallelism => (&["f:parallelism"], true),
        ScaleWrite::ParallelismAndCompletions => (&["f:parallelism", "f:completions"], true),
    };
    let annotations = object.metadata.annotations.as_ref();
    if again && annotations.is_some_and(|all| all.contains_key("kubectl.kubernetes.io/last-applied-configuration")) {
        return Some("kubectl apply".to_owned());
    }
    let entries = object.metadata.managed_fields.as_deref().unwrap_or_default();
    let owner = entries.iter().find(|entry| {
        let owned = entry.fields_v1.as_ref().map_or(&Value::Null, |fields| &fields.0["f:spec"]);
        fields.iter().any(|field| owned.get(*field).is_some())
            && entry.manager.as_deref() != Some(FIELD_MANAGER)
            && (!again || entry.operation.as_deref() == Some("Apply"))
    })?;
    let name = owner.manager.clone().unwrap_or_else(|| "a manager without a name".to_owned());
    Some(format!("field manager {}", name.chars().take(63).collect::<String>()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(manager: &str, operation: &str, spec: Value) -> DynamicObject {
        let fields = json!([{"manager": manager, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": spec}}]);
        serde_json::from_value(json!({"metadata": {"name": "a", "managedFields": fields}})).unwrap()
    }

    #[test]
    fn whoever_wrote_the_replicas_owns_them_but_a_jobs_size_only_who_applies_it_again() {
        let replicas = json!({"f:replicas": {}});
        let size = json!({"f:parallelism": {}});
        let named = |manager: &str| Some(format!("field manager {manager}"));
        for (object, write, owner) in [
            (object("helm", "Update", replicas.clone()), ScaleWrite::Subresource, named("helm")),
            (
                object("argocd-controller", "Apply", replicas.clone()),
                ScaleWrite::Subresource,
                named("argocd-controller"),
            ),
            (object(FIELD_MANAGER, "Apply", replicas), ScaleWrite::Subresource, None),
            (object("helm", "Update", json!({"f:template": {}})), ScaleWrite::Subresource, None),
            (object("kubectl-create", "Update", size.clone()), ScaleWrite::Parallelism, None),
            (object("argocd-controller", "Apply", size.clone()), ScaleWrite::Parallelism, named("argocd-controller")),
            (object("x", "Apply", json!({"f:completions": {}})), ScaleWrite::ParallelismAndCompletions, named("x")),
            (object("x", "Apply", json!("nonsense")), ScaleWrite::Subresource, None),
        ] {
            assert_eq!(manager(&object, write), owner, "{object:?}");
        }
    }

    #[test]
    fn an_autoscaler_is_recognised_by_group_kind_and_name() {
        let owner = super::super::as_workload(&crate::api::usage::OwnerReport {
            api_version: "apps/v1".into(),
            kind: "Deployment".into(),
            name: "web".into(),
            uid: "u".into(),
        });
        for (target, hit) in [
            (json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}), true),
            (json!({"kind": "Deployment", "name": "web"}), true),
            (json!({"apiVersion": "apps/v1beta1", "kind": "Deployment", "name": "web"}), true),
            (json!({"apiVersion": "argoproj.io/v1alpha1", "kind": "Deployment", "name": "web"}), false),
            (json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web2"}), false),
        ] {
            let object = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 2, "scaleTargetRef": target}});
            let autoscaler: HorizontalPodAutoscaler = serde_json::from_value(object).unwrap();
            assert_eq!(moves(&autoscaler, &owner), hit, "{target}");
        }
    }
}

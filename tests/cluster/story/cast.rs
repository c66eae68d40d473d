//! The objects of the story, created as a user would create them: a namespace, one policy, four Deployments.

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use gpumem::api::policy::GpuMemoryPolicy;

use super::plan::{Plan, Role};

const MANAGER: &str = "story";

/// The one policy: documented fields only, with times short enough to watch.
pub fn policy(plan: &Plan) -> Value {
    json!({
        "apiVersion": "gpumem.dev/v1alpha1",
        "kind": "GpuMemoryPolicy",
        "metadata": {"name": "guarded", "namespace": plan.namespace},
        "spec": {
            "mode": "Enforce",
            "target": {"podSelector": {"matchLabels": {"app": Role::Guarded.name()}}},
            "memory": {"headroom": "256Mi"},
            "prediction": {
                "horizonSeconds": 90,
                "act": {"probabilityPercent": 80, "forSeconds": 5},
                "clear": {"probabilityPercent": 40, "forSeconds": 20},
                "minSamples": 10,
                "maxSampleAgeSeconds": 15,
                "warmUpSeconds": 15
            },
            "actions": [{"type": "Notify"}, {"type": "Evict"}],
            "disruption": {
                "maxConcurrent": 1,
                "maxPerHour": 4,
                "minAvailable": 0,
                "requireBudget": false,
                "cooldownSeconds": 600,
                "maxAttempts": 3
            }
        }
    })
}

/// A Deployment of the cast.
pub fn deployment(plan: &Plan, role: Role) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": role.name(), "namespace": plan.namespace},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": role.name()}},
            "template": {
                "metadata": {"labels": {"app": role.name()}},
                "spec": {
                    "terminationGracePeriodSeconds": 5,
                    "containers": [{
                        "name": "main",
                        "image": plan.image,
                        "imagePullPolicy": "IfNotPresent",
                        "terminationMessagePolicy": "FallbackToLogsOnError",
                        "args": [
                            "sim", "workload", "--device", plan.gpu(role).to_string(), "--shape", plan.shape(role)
                        ],
                        "env": [{"name": "GPUMEM_SIM_SOCKET", "value": "/run/gpumem-sim/driver.sock"}],
                        "volumeMounts": [{"name": "driver", "mountPath": "/run/gpumem-sim"}]
                    }],
                    "volumes": [{"name": "driver", "hostPath": {"path": driver_folder(), "type": "Directory"}}]
                }
            }
        }
    })
}

/// Folder on the node with the simulated driver's socket: where a real node has device files.
pub fn driver_folder() -> String {
    std::env::var("GPUMEM_SIM_DIR").unwrap_or_else(|_| "/run/gpumem-sim".to_owned())
}

/// Creates everything, or brings it to this plan.
pub async fn enter(client: &kube::Client, plan: &Plan) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    apply(&namespaces, &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": plan.namespace}})).await?;
    let policies: Api<GpuMemoryPolicy> = Api::namespaced(client.clone(), &plan.namespace);
    apply(&policies, &policy(plan)).await?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &plan.namespace);
    for role in &plan.order {
        apply(&deployments, &deployment(plan, *role)).await?;
    }
    Ok(())
}

/// Removes the namespace and all in it, and waits until it is gone.
pub async fn leave(client: &kube::Client, plan: &Plan) -> Result<()> {
    let namespace = plan.namespace.as_str();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    if let Err(kube::Error::Api(status)) = namespaces.delete(namespace, &kube::api::DeleteParams::default()).await
        && status.code != 404
    {
        anyhow::bail!("deleting namespace {namespace}: {status:?}");
    }
    for _ in 0..120 {
        if namespaces.get_opt(namespace).await?.is_none() {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    anyhow::bail!("namespace {namespace} is still there after a minute")
}

async fn apply<K>(api: &Api<K>, object: &Value) -> Result<()>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    api.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(object))
        .await
        .with_context(|| format!("applying {} {name}", object["kind"]))?;
    Ok(())
}

//! One namespace with its workloads and policies.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use gpumem::api::policy::{ActionRecord, GpuMemoryPolicy};

use super::world::World;
use super::{gpus, until};
use crate::story::cast::driver_folder;

/// A leak that fills the 22 GiB it has left in two minutes and a third, and begins ten seconds after the start. In the last fifth
/// of its life it may be stopped, and many may be at the same time, one call each five seconds.
pub const LEAK: &str = "leak:from=58GiB,rate=160MiB/s,start=10s";

/// From the start of a [`LEAK`] to its eviction: start, warm-up, detection, dwell, and what a busy machine adds.
pub const EVICTION: Duration = Duration::from_secs(160);

/// A namespace of its own.
pub struct Scene<'a> {
    /// The cluster.
    pub world: &'a World,
    /// Name of the namespace.
    pub namespace: String,
}

impl<'a> Scene<'a> {
    /// An empty namespace of this name.
    pub async fn open(world: &'a World, namespace: &str) -> Result<Self> {
        let scene = Self { world, namespace: namespace.to_owned() };
        let namespaces: Api<Namespace> = Api::all(world.client.clone());
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        namespaces.patch(namespace, &PatchParams::apply("test"), &Patch::Apply(&object)).await?;
        until("the default service account", Duration::from_mins(2), || async {
            let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = scene.api();
            Ok(accounts.get_opt("default").await?)
        })
        .await?;
        Ok(scene)
    }

    /// Deletes the namespace without waiting for it.
    pub async fn close(self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.world.client.clone());
        namespaces.delete(&self.namespace, &DeleteParams::background()).await?;
        Ok(())
    }

    /// An API of this namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.world.client.clone(), &self.namespace)
    }

    /// Applies any object of this namespace.
    pub async fn apply(&self, object: &Value) -> Result<DynamicObject> {
        let (group, version) = match object["apiVersion"].as_str().unwrap_or_default().split_once('/') {
            Some((group, version)) => (group, version),
            None => ("", object["apiVersion"].as_str().unwrap_or_default()),
        };
        let kind = object["kind"].as_str().unwrap_or_default();
        let resource = match kind {
            "GpuMemoryPolicy" => {
                ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), "gpumemorypolicies")
            }
            _ => ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(self.world.client.clone(), &self.namespace, &resource);
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        api.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(object))
            .await
            .with_context(|| format!("applying {kind} {name}"))
    }

    /// A Deployment of one pod with this shape on this GPU.
    pub async fn deploy(&self, name: &str, gpu: u32, shape: &str) -> Result<()> {
        self.apply(&self.workload("apps/v1", "Deployment", name, gpu, shape)).await.map(|_| ())
    }

    /// A workload of one pod.
    pub fn workload(&self, api_version: &str, kind: &str, name: &str, gpu: u32, shape: &str) -> Value {
        gpus::take(gpu, &self.namespace);
        let mut object = json!({
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {"name": name},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {
                        "terminationGracePeriodSeconds": 2,
                        "containers": [{
                            "name": "main",
                            "image": self.world.image,
                            "imagePullPolicy": "IfNotPresent",
                            "args": ["sim", "workload", "--device", gpu.to_string(), "--shape", shape],
                            "env": [{"name": "GPUMEM_SIM_SOCKET", "value": "/run/gpumem-sim/driver.sock"}],
                            "volumeMounts": [{"name": "driver", "mountPath": "/run/gpumem-sim"}]
                        }],
                        "volumes": [{"name": "driver", "hostPath": {"path": driver_folder(), "type": "Directory"}}]
                    }
                }
            }
        });
        if kind == "StatefulSet" {
            object["spec"]["serviceName"] = json!(name);
        }
        object
    }

    /// A policy in Enforce for the workload `app`, quick enough for a test; `change` edits its spec.
    pub async fn enforce(&self, name: &str, app: &str, change: impl FnOnce(&mut Value)) -> Result<()> {
        let mut spec = json!({
            "mode": "Enforce",
            "target": {"podSelector": {"matchLabels": {"app": app}}},
            "memory": {"headroom": "256Mi"},
            "prediction": {
                "horizonSeconds": 60,
                "act": {"probabilityPercent": 80, "forSeconds": 4},
                "clear": {"probabilityPercent": 40, "forSeconds": 10},
                "minSamples": 5,
                "maxSampleAgeSeconds": 15,
                "warmUpSeconds": 8
            },
            "actions": [{"type": "Notify"}, {"type": "Evict"}],
            "disruption": {
                "maxConcurrent": 1, "maxPerHour": 10, "minAvailable": 0, "requireBudget": false,
                "cooldownSeconds": 900, "maxAttempts": 3
            }
        });
        change(&mut spec);
        self.apply(&json!({
            "apiVersion": "gpumem.dev/v1alpha1",
            "kind": "GpuMemoryPolicy",
            "metadata": {"name": name},
            "spec": spec
        }))
        .await
        .map(|_| ())
    }

    /// Pods of the workload `app`, oldest first.
    pub async fn pods(&self, app: &str) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = self.api();
        let mut found = pods.list(&ListParams::default().labels(&format!("app={app}"))).await?.items;
        found.sort_by_key(|pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0));
        Ok(found)
    }

    /// UID of the one running pod of `app`, as soon as it runs.
    pub async fn running(&self, app: &str) -> Result<String> {
        until(&format!("a running pod of {app}"), Duration::from_mins(1), || async {
            let pods = self.pods(app).await?;
            Ok(pods.iter().find_map(|pod| {
                let runs = pod.metadata.deletion_timestamp.is_none()
                    && pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"));
                pod.metadata.uid.clone().filter(|_| runs)
            }))
        })
        .await
    }

    /// Restarts of the containers of `app`: deaths by OOM.
    pub async fn restarts(&self, app: &str) -> Result<i32> {
        let pods = self.pods(app).await?;
        let statuses = pods.iter().filter_map(|pod| pod.status.as_ref()?.container_statuses.as_ref());
        Ok(statuses.flatten().map(|status| status.restart_count).sum())
    }

    /// The policy as it is now.
    pub async fn policy(&self, name: &str) -> Result<GpuMemoryPolicy> {
        Ok(self.api::<GpuMemoryPolicy>().get(name).await?)
    }

    /// Actions the policy's status tells of, newest first.
    pub async fn actions(&self, name: &str) -> Result<Vec<ActionRecord>> {
        Ok(self.policy(name).await?.status.map(|status| status.recent_actions).unwrap_or_default())
    }

    /// `(status, reason)` of a condition of the policy.
    pub async fn condition(&self, policy: &str, kind: &str) -> Result<Option<(String, String)>> {
        let status = self.policy(policy).await?.status.unwrap_or_default();
        let found = status.conditions.into_iter().find(|condition| condition.type_ == kind);
        Ok(found.map(|condition| (condition.status, condition.reason)))
    }

    /// Waits until the policy has evicted the pod with this UID, and gives the record.
    pub async fn evicted(&self, policy: &str, uid: &str, limit: Duration) -> Result<ActionRecord> {
        let seen = until(&format!("the eviction of pod {uid} by policy {policy}"), limit, || async {
            Ok(self
                .actions(policy)
                .await?
                .into_iter()
                .find(|action| action.pod_uid == uid && action.outcome == "Succeeded"))
        })
        .await;
        match seen {
            Ok(action) => Ok(action),
            Err(error) => Err(error.context(self.story(policy).await)),
        }
    }

    /// What a person would look at: the policy's status and the namespace's last Events.
    pub async fn story(&self, policy: &str) -> String {
        let status =
            self.policy(policy).await.ok().and_then(|policy| serde_json::to_string_pretty(&policy.status).ok());
        let events: Api<k8s_openapi::api::events::v1::Event> = self.api();
        let events: Vec<String> = events
            .list(&ListParams::default())
            .await
            .map(|list| list.items)
            .unwrap_or_default()
            .into_iter()
            .map(|event| format!("{}: {}", event.reason.unwrap_or_default(), event.note.unwrap_or_default()))
            .collect();
        format!("status of {policy}: {}\nevents:\n{}", status.unwrap_or_default(), events.join("\n"))
    }
}

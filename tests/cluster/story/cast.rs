//! The objects of the story, created as a user would create them: a namespace, policies, Deployments and a Job.

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1 as rbac;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use gpumem::api::names::ANNOTATION_WORKLOAD;
use gpumem::api::policy::GpuMemoryPolicy;

use super::frame::Advised;
use super::plan::{DECLARED, Plan, Role, advised};

const MANAGER: &str = "story";

/// The policy of the main story: documented fields only, with times short enough to watch.
pub fn policy(plan: &Plan) -> Value {
    governing(plan, "guarded", Role::Guarded, json!([{"type": "Notify"}, {"type": "Evict"}]))
}

/// Every policy of the cast on stage.
pub fn policies(plan: &Plan) -> Vec<Value> {
    plan.order.iter().filter_map(|role| policy_of(plan, *role)).collect()
}

fn policy_of(plan: &Plan, role: Role) -> Option<Value> {
    match role {
        Role::Guarded => Some(policy(plan)),
        Role::Saving => {
            let checkpoint = json!({"timeoutSeconds": 20, "need": "Required"});
            let actions = json!([
                {"type": "Notify"}, {"type": "Checkpoint", "checkpoint": checkpoint}, {"type": "Evict"}
            ]);
            let mut policy = governing(plan, "saving", role, actions);
            // Time for the save, and for the pod to end.
            policy["spec"]["prediction"]["horizonSeconds"] = json!(180);
            Some(policy)
        }
        Role::Job => {
            let suspend = json!({"type": "SuspendWorkload", "suspendWorkload": {"resume": "Manual"}});
            Some(governing(plan, "suspending", role, json!([{"type": "Notify"}, suspend])))
        }
        Role::Limited => {
            let mut policy = governing(plan, "limiting", role, json!([{"type": "LimitGrowth"}]));
            policy["spec"]["growthLimit"] = json!({"ceiling": "20Gi", "enforcement": "Kernel"});
            Some(policy)
        }
        Role::Declared => Some(governing(plan, "telling", role, json!([{"type": "Notify"}]))),
        Role::Unguarded | Role::Plateau | Role::Pool | Role::Neighbour => None,
    }
}

fn governing(plan: &Plan, name: &str, role: Role, actions: Value) -> Value {
    json!({
        "apiVersion": "gpumem.dev/v1alpha1",
        "kind": "GpuMemoryPolicy",
        "metadata": {"name": name, "namespace": plan.namespace},
        "spec": {
            "mode": "Enforce",
            "target": {"podSelector": {"matchLabels": {"app": role.name()}}},
            "memory": {"headroom": "256Mi"},
            "prediction": {
                "horizonSeconds": 90,
                "act": {"probabilityPercent": 80, "forSeconds": 5},
                "clear": {"probabilityPercent": 40, "forSeconds": 20},
                "minSamples": 10,
                "maxSampleAgeSeconds": 15,
                "warmUpSeconds": 15
            },
            "actions": actions,
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

/// A member of the cast: a Deployment, or a Job.
pub fn workload(plan: &Plan, role: Role) -> Value {
    let mut template = json!({
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
    });
    let metadata = json!({"name": role.name(), "namespace": plan.namespace});
    if role == Role::Job {
        template["spec"]["restartPolicy"] = json!("Never");
        // As a program that does not handle SIGTERM: one that ends with 0 would count as done.
        push(&mut template["spec"]["containers"][0]["args"], json!("--exit-on-signal=143"));
        let ignored = json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]});
        return json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": metadata,
            "spec": {"backoffLimit": 0, "podFailurePolicy": {"rules": [ignored]}, "template": template}
        });
    }
    if role == Role::Saving {
        answers(plan, &mut template["spec"]);
    }
    let mut deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": role.name()}}, "template": template}
    });
    if role == Role::Declared {
        declares(&mut deployment, DECLARED);
        // Libraries and data come first: time in which it can be told.
        push(&mut deployment["spec"]["template"]["spec"]["containers"][0]["args"], json!("--delay=20s"));
        deployment["spec"]["strategy"] = json!({"type": "Recreate"});
    }
    deployment
}

fn declares(deployment: &mut Value, job: &str) {
    deployment["spec"]["template"]["metadata"]["annotations"] = json!({ANNOTATION_WORKLOAD: job});
}

/// Applies what was advised to the trainer that declares its job: to its declaration, and to what it does. Gives the job.
pub async fn take_advice(client: &kube::Client, plan: &Plan, advice: &Advised) -> Result<String> {
    let job = advised(DECLARED, &advice.what).with_context(|| format!("nobody here can apply `{}`", advice.what))?;
    let mut deployment = workload(plan, Role::Declared);
    declares(&mut deployment, &job);
    let shape = format!("load:to={}MiB,over=6s", advice.peak >> 20);
    deployment["spec"]["template"]["spec"]["containers"][0]["args"] =
        json!(["sim", "workload", "--device", plan.gpu(Role::Declared).to_string(), "--shape", shape]);
    apply(&Api::<Deployment>::namespaced(client.clone(), &plan.namespace), &deployment).await?;
    Ok(job)
}

/// Adds the sidecar that answers requests to save. What it saves with has to exit with 0, and take a moment.
fn answers(plan: &Plan, spec: &mut Value) {
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    spec["serviceAccountName"] = json!(ANSWERER);
    spec["initContainers"] = json!([{
        "name": "checkpoint",
        "restartPolicy": "Always",
        "image": plan.image,
        "imagePullPolicy": "IfNotPresent",
        "args": [
            "checkpoint", "answer", "--annotations", "/podinfo/annotations",
            "--exec", "gpumem", "sim", "state"
        ],
        "env": [
            field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace"),
            {"name": "GPUMEM_SIM_SOCKET", "value": "/run/gpumem-sim/driver.sock"}
        ],
        "volumeMounts": [
            {"name": "podinfo", "mountPath": "/podinfo"}, {"name": "driver", "mountPath": "/run/gpumem-sim"}
        ]
    }]);
    let items = json!([{"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}]);
    push(&mut spec["volumes"], json!({"name": "podinfo", "downwardAPI": {"items": items}}));
}

fn push(list: &mut Value, item: Value) {
    if let Some(list) = list.as_array_mut() {
        list.push(item);
    }
}

/// Account of the pods that answer requests to save, and its rights.
const ANSWERER: &str = "answers-checkpoints";

async fn rights(client: &kube::Client, namespace: &str) -> Result<()> {
    let metadata = json!({"name": ANSWERER, "namespace": namespace});
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata});
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata,
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ANSWERER},
        "subjects": [{"kind": "ServiceAccount", "name": ANSWERER, "namespace": namespace}]
    });
    apply(&Api::<ServiceAccount>::namespaced(client.clone(), namespace), &account).await?;
    apply(&Api::<rbac::Role>::namespaced(client.clone(), namespace), &role).await?;
    apply(&Api::<rbac::RoleBinding>::namespaced(client.clone(), namespace), &binding).await
}

/// Folder on the node with the simulated driver's socket: where a real node has device files.
pub fn driver_folder() -> String {
    std::env::var("GPUMEM_SIM_DIR").unwrap_or_else(|_| "/run/gpumem-sim".to_owned())
}

/// Creates everything, or brings it to this plan.
pub async fn enter(client: &kube::Client, plan: &Plan) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    apply(&namespaces, &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": plan.namespace}})).await?;
    if plan.order.contains(&Role::Saving) {
        rights(client, &plan.namespace).await?;
    }
    let governing: Api<GpuMemoryPolicy> = Api::namespaced(client.clone(), &plan.namespace);
    for policy in policies(plan) {
        apply(&governing, &policy).await?;
    }
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &plan.namespace);
    let jobs: Api<Job> = Api::namespaced(client.clone(), &plan.namespace);
    for role in &plan.order {
        let object = workload(plan, *role);
        if *role == Role::Job { apply(&jobs, &object).await? } else { apply(&deployments, &object).await? }
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

//! Workloads of every kind on a real API server, with the rights that the chart gives the controller. Kubernetes' own kinds
//! are run by their own controllers; of the others only the definitions are there, so what is tested of them is that they
//! are found, read and understood, and that the server takes what would be written.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gpumem::api::convert;
use gpumem::controller::workload::{Hops, Resolution, SuspendState, Switches, read_pod, resolve};
use gpumem_engine::decision::Blast;
use gpumem_engine::pacing::Stamp;
use gpumem_engine::policy::{Mode, Policy, PolicyKey};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};

use crate::support::scene::{EVICTION, LEAK, Scene};
use crate::support::world::World;
use crate::support::{throughout, until};

/// Where the definitions are.
const DEFINITIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/crds");
/// The namespace that the chart is installed in.
const OPERATOR: &str = "gpumem-system";

/// A client with the controller's own rights, and no others.
async fn controller(world: &World) -> Result<kube::Client> {
    let accounts: Api<ServiceAccount> = Api::namespaced(world.client.clone(), OPERATOR);
    let listed = accounts.list(&ListParams::default().labels("app.kubernetes.io/component=controller")).await?;
    let account = listed.items.first().and_then(|account| account.metadata.name.clone()).context("no account")?;
    let mut config = kube::Config::infer().await?;
    config.auth_info.impersonate = Some(format!("system:serviceaccount:{OPERATOR}:{account}"));
    Ok(kube::Client::try_from(config)?)
}

/// Makes the server serve every definition.
async fn define(world: &World) -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(world.client.clone());
    for file in std::fs::read_dir(DEFINITIONS)? {
        let text = std::fs::read_to_string(file?.path())?;
        for document in serde_yaml::Deserializer::from_str(&text) {
            let object = <Value as serde::Deserialize>::deserialize(document)?;
            let name = object["metadata"]["name"].as_str().context("a name")?.to_owned();
            api.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(&object)).await?;
            until(&format!("{name} to be served"), Duration::from_secs(30), || async {
                let conditions = api.get(&name).await?.status.and_then(|status| status.conditions).unwrap_or_default();
                let served = |kind: &str| conditions.iter().any(|one| one.type_ == kind && one.status == "True");
                Ok(served("Established").then_some(()))
            })
            .await?;
        }
    }
    Ok(())
}

fn policy() -> Result<Policy> {
    let spec = json!({
        "mode": "Enforce",
        "target": {"podSelector": {"matchLabels": {"app": "x"}}},
        "actions": [
            {"type": "Scale", "scale": {"via": "Replicas", "maxReplicas": 9}},
            {"type": "SuspendWorkload"}, {"type": "Evict"}
        ]
    });
    let key = PolicyKey { namespace: "x".to_owned(), name: "x".to_owned() };
    convert::policy(key, &serde_json::from_value(spec)?, Mode::Enforce).map_err(|wrong| anyhow::anyhow!("{wrong}"))
}

/// Creates an object of any kind below `owner`, and gives what the next one refers to.
async fn create(scene: &Scene<'_>, plural: &str, mut object: Value, owner: Option<&Value>) -> Result<Value> {
    if let Some(owner) = owner {
        object["metadata"]["ownerReferences"] = json!([owner]);
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", &api_version));
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, &kind), plural);
    let api: Api<DynamicObject> = Api::namespaced_with(scene.world.client.clone(), &scene.namespace, &resource);
    // Whoever creates a Deployment owns its replicas, even if only the server's default wrote them; whoever applies it
    // owns what the manifest names. Pods and Jobs are created, as most people do.
    let created = if matches!(kind.as_str(), "Deployment" | "StatefulSet") {
        let name = text(&object["metadata"]["name"]);
        api.patch(&name, &PatchParams::apply("test"), &Patch::Apply(&object)).await
    } else {
        api.create(&PostParams::default(), &serde_json::from_value(object)?).await
    };
    let created = created.with_context(|| format!("creating a {kind} of {api_version}"))?;
    let (name, uid) = (created.metadata.name.unwrap_or_default(), created.metadata.uid.unwrap_or_default());
    Ok(json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true}))
}

/// A pod that is never scheduled: its owners are all that matters.
fn gated(app: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": app}},
        "spec": {
            "schedulingGates": [{"name": "example.com/never"}], "restartPolicy": "Always",
            "containers": [{"name": "main", "image": "example.com/none"}]
        }
    })
}

fn set(api_version: &str, kind: &str, name: &str) -> Value {
    let mut object = json!({
        "apiVersion": api_version, "kind": kind, "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": gated(name)}
    });
    if kind == "StatefulSet" {
        object["spec"]["serviceName"] = json!(name);
    }
    object
}

fn job(name: &str, spec: &Value) -> Value {
    let mut object = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec});
    object["spec"]["template"] = gated(name);
    object["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
    object
}

fn ignoring() -> Value {
    json!({"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]})
}

fn other(api_version: &str, kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn bare(name: &str) -> Value {
    let mut pod = gated(name);
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!(name);
    pod
}

/// Name of the first pod of `app`, as soon as its controller made it.
async fn pod_of(scene: &Scene<'_>, app: &str) -> Result<Value> {
    until(&format!("a pod of {app}"), Duration::from_mins(1), || async {
        let pod = scene.pods(app).await?.into_iter().next();
        Ok(pod.map(|pod| {
            let (name, uid) = (pod.metadata.name.unwrap_or_default(), pod.metadata.uid.unwrap_or_default());
            json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": true})
        }))
    })
    .await
}

/// What the controller would find out about the workload of this pod.
async fn look(scene: &Scene<'_>, client: &kube::Client, app: &str) -> Result<(usize, Resolution)> {
    let pod = pod_of(scene, app).await?;
    let facts =
        read_pod(client, &scene.namespace, pod["name"].as_str().unwrap_or_default()).await?.context("no pod")?;
    let hops = Hops::default();
    let chain = hops.climb(client, &scene.namespace, facts.owner.as_ref()).await;
    let found = resolve(client, &Switches::everything(), &hops, Stamp(0), &policy()?, &chain, &facts).await;
    Ok((chain.owners.len(), found))
}

/// A pod's label, its owners from the top with their plurals, and what is found: evict, suspend, scale.
type Stack = (&'static str, Vec<(&'static str, Value)>, (&'static str, &'static str, &'static str));

fn says(found: &Resolution) -> (String, String, String) {
    (
        found.evict.as_ref().map_or_else(|why| why.reason().to_owned(), |Blast(pods)| pods.to_string()),
        found
            .suspend
            .as_ref()
            .map_or_else(|why| why.reason().to_owned(), |handle| format!("{} {}", handle.target.kind, handle.blast)),
        found
            .scale
            .as_ref()
            .map_or_else(|why| why.reason().to_owned(), |handle| format!("{} {}", handle.target.kind, handle.replicas)),
    )
}

#[tokio::test]
async fn workloads_of_every_kind_are_found_with_the_controllers_own_rights() -> Result<()> {
    let world = World::find().await?;
    define(&world).await?;
    let client = controller(&world).await?;
    let scene = Scene::open(&world, "calm-kinds").await?;
    let gang = json!({"completionMode": "Indexed", "parallelism": 2, "completions": 2, "podFailurePolicy": ignoring()});
    let jobs = json!({"replicatedJobs": [{"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 2, "completions": 2}}}]});
    let ray = json!({"workerGroupSpecs": [{"replicas": 3}]});

    // Pods made by Kubernetes' own controllers, below owners of every sort; the top is made first.
    let stacks: Vec<Stack> = vec![
        (
            "deployment",
            vec![("deployments", set("apps/v1", "Deployment", "deployment"))],
            ("1", "NoLever", "Deployment 1"),
        ),
        (
            "statefulset",
            vec![("statefulsets", set("apps/v1", "StatefulSet", "statefulset"))],
            ("1", "NoLever", "StatefulSet 1"),
        ),
        (
            "rollout",
            vec![
                ("rollouts", other("argoproj.io/v1alpha1", "Rollout", "rollout", json!({"replicas": 4}))),
                ("replicasets", set("apps/v1", "ReplicaSet", "rollout")),
            ],
            // Whoever created the Rollout wrote its replicas.
            ("1", "NoLever", "ReplicasOwnedByOther"),
        ),
        ("job", vec![("jobs", job("job", &json!({"podFailurePolicy": ignoring()})))], ("1", "Job 1", "Job 1")),
        ("plain", vec![("jobs", job("plain", &json!({})))], ("JobWithoutDisruptionPolicy", "Job 1", "Job 1")),
        ("gang", vec![("jobs", job("gang", &gang))], ("2", "Job 2", "Job 2")),
        (
            "jobset",
            vec![
                ("jobsets", other("jobset.x-k8s.io/v1alpha2", "JobSet", "jobset", jobs.clone())),
                ("jobs", job("jobset", &gang)),
            ],
            ("4", "JobSet 4", "NoLever"),
        ),
        (
            "trainjob",
            vec![
                ("trainjobs", other("trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjob", json!({}))),
                ("jobsets", other("jobset.x-k8s.io/v1alpha2", "JobSet", "trainjob", jobs)),
                ("jobs", job("trainjob", &gang)),
            ],
            ("4", "TrainJob 4", "NoLever"),
        ),
        (
            "torch",
            vec![
                (
                    "pytorchjobs",
                    other(
                        "kubeflow.org/v1",
                        "PyTorchJob",
                        "torch",
                        json!({"pytorchReplicaSpecs": {"Worker": {"replicas": 3}}}),
                    ),
                ),
                ("pods", bare("torch")),
            ],
            ("3", "PyTorchJob 3", "NoLever"),
        ),
        (
            "ray",
            vec![("rayclusters", other("ray.io/v1", "RayCluster", "ray", ray.clone())), ("pods", bare("ray"))],
            ("1", "NoLever", "NoLever"),
        ),
        (
            "rayjob",
            vec![
                ("rayjobs", other("ray.io/v1", "RayJob", "rayjob", json!({}))),
                ("rayclusters", other("ray.io/v1", "RayCluster", "rayjob", ray)),
                ("pods", bare("rayjob")),
            ],
            ("1", "NoLever", "NoLever"),
        ),
        (
            "rayservice",
            vec![
                ("rayservices", other("ray.io/v1", "RayService", "rayservice", json!({}))),
                (
                    "rayclusters",
                    other("ray.io/v1", "RayCluster", "rayservice", json!({"enableInTreeAutoscaling": true})),
                ),
                ("pods", bare("rayservice")),
            ],
            ("1", "NoLever", "NoLever"),
        ),
        (
            "volcano",
            vec![
                ("jobs", other("batch.volcano.sh/v1alpha1", "Job", "volcano", json!({"tasks": [{"replicas": 5}]}))),
                ("pods", bare("volcano")),
            ],
            ("5", "NoLever", "NoLever"),
        ),
    ];
    for (app, objects, expected) in stacks {
        let mut above = None;
        for (plural, object) in objects {
            above = Some(create(&scene, plural, object, above.as_ref()).await?);
        }
        let (_, found) = look(&scene, &client, app).await?;
        assert_eq!(says(&found), (expected.0.into(), expected.1.into(), expected.2.into()), "{app}: {found:?}");
    }

    // A CronJob's run, as the CronJob would make it.
    let cron = json!({"schedule": "0 0 1 1 *", "jobTemplate": {"spec": job("x", &json!({}))["spec"]}});
    let cron = create(&scene, "cronjobs", other("batch/v1", "CronJob", "cron", cron), None).await?;
    create(&scene, "jobs", job("cron", &json!({"podFailurePolicy": ignoring()})), Some(&cron)).await?;
    let (depth, found) = look(&scene, &client, "cron").await?;
    assert_eq!((depth, says(&found)), (2, ("1".into(), "Job 1".into(), "Job 1".into())));

    // A worker's StatefulSet belongs to its leader, which is a pod.
    let template = json!({"replicas": 2, "leaderWorkerTemplate": {"size": 3}});
    let top = create(
        &scene,
        "leaderworkersets",
        other("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "lws", template),
        None,
    )
    .await?;
    create(&scene, "statefulsets", set("apps/v1", "StatefulSet", "leader"), Some(&top)).await?;
    let leader = pod_of(&scene, "leader").await?;
    create(&scene, "statefulsets", set("apps/v1", "StatefulSet", "worker"), Some(&leader)).await?;
    let (depth, found) = look(&scene, &client, "worker").await?;
    assert_eq!((depth, says(&found)), (4, ("3".into(), "NoLever".into(), "ReplicasOwnedByOther".into())));

    // A Deployment that was created and not applied: its creator owns the replicas that it never named.
    let deployments: Api<k8s_openapi::api::apps::v1::Deployment> = scene.api();
    let object = serde_json::from_value(set("apps/v1", "Deployment", "created"))?;
    deployments.create(&PostParams::default(), &object).await?;
    let (_, found) = look(&scene, &client, "created").await?;
    assert_eq!(says(&found), ("1".into(), "NoLever".into(), "ReplicasOwnedByOther".into()));

    // Kueue's Workload belongs to the Job that it admits.
    let owner = create(&scene, "jobs", job("queued", &json!({"podFailurePolicy": ignoring()})), None).await?;
    let mut admits = other("kueue.x-k8s.io/v1beta2", "Workload", "queued", json!({"active": true}));
    admits["metadata"]["labels"] = json!({"kueue.x-k8s.io/job-uid": owner["uid"]});
    create(&scene, "workloads", admits, Some(&owner)).await?;
    let (_, found) = look(&scene, &client, "queued").await?;
    assert_eq!(says(&found), ("NoLever".into(), "Workload 1".into(), "ReplicasOwnedByOther".into()));

    // An autoscaler takes the replicas.
    scene
        .apply(&json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
            "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "deployment"}}
        }))
        .await?;
    let (_, found) = look(&scene, &client, "deployment").await?;
    assert_eq!(says(&found), ("1".into(), "NoLever".into(), "ReplicasOwnedByOther".into()));
    scene.close().await
}

#[tokio::test]
async fn the_server_takes_what_a_handle_writes_and_refuses_it_for_a_successor() -> Result<()> {
    let world = World::find().await?;
    define(&world).await?;
    let client = controller(&world).await?;
    let scene = Scene::open(&world, "calm-handles").await?;
    let ours = PatchParams { field_manager: Some("gpumem-controller".to_owned()), ..PatchParams::default() };
    let gang = json!({"completionMode": "Indexed", "parallelism": 2, "completions": 2});
    create(&scene, "jobs", job("gang", &gang), None).await?;
    let set_of_jobs = other("jobset.x-k8s.io/v1alpha2", "JobSet", "set", json!({}));
    let above = create(&scene, "jobsets", set_of_jobs, None).await?;
    create(&scene, "jobs", job("set", &json!({})), Some(&above)).await?;
    create(&scene, "deployments", set("apps/v1", "Deployment", "web"), None).await?;

    for app in ["gang", "set"] {
        let handle = look(&scene, &client, app).await?.1.suspend.map_err(|why| anyhow::anyhow!("{why}"))?;
        let api = handle.target.api(world.client.clone());
        let mut stranger = handle.clone();
        "another".clone_into(&mut stranger.target.uid);
        let refused =
            api.patch(&handle.target.name, &PatchParams::default(), &Patch::Merge(stranger.suspend_patch())).await;
        let Err(kube::Error::Api(status)) = refused else { anyhow::bail!("{app}: a patch for another UID was taken") };
        ensure!(status.code == 409 || status.code == 422, "{app}: {status:?}");
        eprintln!("{app}: a patch for another UID is answered {} {}", status.code, status.reason);
        let patched =
            api.patch(&handle.target.name, &PatchParams::default(), &Patch::Merge(handle.suspend_patch())).await?;
        assert_eq!(handle.state(&patched), SuspendState::Suspended, "{app}");
        let patched =
            api.patch(&handle.target.name, &PatchParams::default(), &Patch::Merge(handle.resume_patch())).await?;
        assert_eq!(handle.state(&patched), SuspendState::Running, "{app}");
    }
    // An elastic Job changes both numbers at once; the server refuses one of them alone.
    let handle = look(&scene, &client, "gang").await?.1.scale.map_err(|why| anyhow::anyhow!("{why}"))?;
    let jobs = handle.target.api(world.client.clone());
    let alone = json!({"spec": {"completions": 3}});
    ensure!(jobs.patch("gang", &PatchParams::default(), &Patch::Merge(alone)).await.is_err(), "completions alone");
    let version = version_of(&jobs.get("gang").await?);
    let grown = jobs.patch("gang", &PatchParams::default(), &Patch::Merge(handle.patch(3, &version))).await?;
    assert_eq!(handle.replicas_of(&grown), Some(3));

    // Replicas that nobody wrote are taken; what was written since, or to another object of the name, is a conflict.
    let handle = look(&scene, &client, "web").await?.1.scale.map_err(|why| anyhow::anyhow!("{why}"))?;
    let deployments = handle.target.api(world.client.clone());
    let subresource = handle.subresource().context("a subresource")?;
    let write = |patch: Value| {
        let (deployments, ours) = (deployments.clone(), ours.clone());
        async move {
            match deployments.patch_subresource(subresource, "web", &ours, &Patch::Merge(patch)).await {
                Ok(_) => Ok(200),
                Err(kube::Error::Api(status)) => Ok(status.code),
                Err(error) => Err(error),
            }
        }
    };
    let old = version_of(&deployments.get("web").await?);
    let mut stranger = handle.clone();
    "another".clone_into(&mut stranger.target.uid);
    assert_eq!(write(stranger.patch(2, &old)).await?, 409, "for another UID");
    until("a write between two changes of its status", Duration::from_mins(1), || async {
        let version = version_of(&deployments.get("web").await?);
        Ok((write(handle.patch(2, &version)).await? == 200).then_some(()))
    })
    .await?;
    assert_eq!(write(handle.patch(4, &old)).await?, 409, "for an older version");
    assert_eq!(handle.replicas_of(&deployments.get("web").await?), Some(2));
    ensure!(look(&scene, &client, "web").await?.1.scale.is_ok(), "what we wrote ourselves is ours to write");
    let theirs =
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "web"}, "spec": {"replicas": 3}});
    deployments
        .patch_subresource("scale", "web", &PatchParams::apply("somebody").force(), &Patch::Apply(theirs))
        .await?;
    assert_eq!(says(&look(&scene, &client, "web").await?.1).2, "ReplicasOwnedByOther");
    scene.close().await
}

fn leaking(scene: &Scene<'_>, name: &str, gpu: u32, policy: Option<Value>) -> Value {
    let mut object = scene.workload("batch/v1", "Job", name, gpu, LEAK);
    let template = object["spec"]["template"].clone();
    object["spec"] = json!({"backoffLimit": 0, "template": template});
    object["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
    if let Some(policy) = policy {
        object["spec"]["podFailurePolicy"] = policy;
    }
    object
}

fn version_of(object: &DynamicObject) -> String {
    object.metadata.resource_version.clone().unwrap_or_default()
}

/// Adds a container that does not hear SIGTERM, so that the pod fails when it is told to end: the simulated trainer alone
/// ends well.
fn that_dies(mut job: Value) -> Value {
    let image = job["spec"]["template"]["spec"]["containers"][0]["image"].clone();
    let deaf = json!({
        "name": "deaf", "image": image, "imagePullPolicy": "IfNotPresent", "args": ["replay", "-"], "stdin": true
    });
    if let Some(containers) = job["spec"]["template"]["spec"]["containers"].as_array_mut() {
        containers.push(deaf);
    }
    job
}

#[tokio::test]
async fn the_pod_of_a_job_that_ignores_disruptions_is_evicted_and_the_job_counts_no_failure() -> Result<()> {
    let world = World::find().await?;
    let scene = Scene::open(&world, "calm-job").await?;
    scene.enforce("p", "train", |_| {}).await?;
    scene.enforce("q", "polite", |_| {}).await?;
    scene.apply(&that_dies(leaking(&scene, "train", 10, Some(ignoring())))).await?;
    scene.apply(&leaking(&scene, "polite", 13, Some(ignoring()))).await?;
    let (uid, polite) = (scene.running("train").await?, scene.running("polite").await?);
    scene.evicted("p", &uid, EVICTION).await?;
    scene.evicted("q", &polite, EVICTION).await?;
    let jobs: Api<Job> = scene.api();
    let replaced = until("a new pod of the Job", Duration::from_mins(1), || async {
        let pods = scene.pods("train").await?;
        Ok(pods.into_iter().filter_map(|pod| pod.metadata.uid).find(|found| *found != uid))
    })
    .await;
    let status = jobs.get("train").await?.status.unwrap_or_default();
    replaced.with_context(|| format!("{status:?}"))?;
    assert_eq!(status.failed.unwrap_or(0), 0, "with backoffLimit 0 one failure would have ended it: {status:?}");
    // What ends with 0 when it is told to end has done its work, as far as Kubernetes knows: docs/workloads.md warns of it.
    until("the other Job to be complete", Duration::from_mins(1), || async {
        let status = jobs.get("polite").await?.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        Ok(conditions.iter().any(|one| one.type_ == "Complete" && one.status == "True").then_some(()))
    })
    .await?;
    scene.close().await
}

#[tokio::test]
async fn the_pod_of_a_job_that_would_count_it_and_of_a_kind_that_is_off_is_left_alone_with_the_reason() -> Result<()> {
    let world = World::find().await?;
    define(&world).await?;
    let scene = Scene::open(&world, "calm-job-plain").await?;
    scene.enforce("p", "train", |_| {}).await?;
    scene.enforce("q", "member", |_| {}).await?;
    scene.apply(&leaking(&scene, "train", 11, None)).await?;
    let set_of_jobs = other("jobset.x-k8s.io/v1alpha2", "JobSet", "set", json!({}));
    let above = create(&scene, "jobsets", set_of_jobs, None).await?;
    create(&scene, "jobs", leaking(&scene, "member", 12, Some(ignoring())), Some(&above)).await?;
    for (policy, app, reason, names) in [
        ("p", "train", "JobWithoutDisruptionPolicy", "podFailurePolicy"),
        ("q", "member", "UnsupportedOwner", "JobSet"),
    ] {
        let uid = scene.running(app).await?;
        until(&format!("the reason {reason}"), EVICTION, || async {
            Ok(scene.condition(policy, "ActionAllowed").await?.filter(|(_, why)| why == reason))
        })
        .await?;
        let status = scene.policy(policy).await?.status.unwrap_or_default();
        let text: Vec<_> = status.conditions.iter().filter(|one| one.type_ == "ActionAllowed").collect();
        ensure!(text.iter().any(|one| one.message.contains(names)), "the message names {names}: {text:?}");
        throughout("the pod is left alone", Duration::from_secs(5), || async {
            let pods = scene.pods(app).await?;
            Ok(pods
                .iter()
                .any(|pod| pod.metadata.uid.as_ref() == Some(&uid) && pod.metadata.deletion_timestamp.is_none()))
        })
        .await?;
        ensure!(scene.actions(policy).await?.is_empty());
    }
    scene.close().await
}

#[tokio::test]
async fn a_suspended_job_loses_its_pods_and_gets_them_back() -> Result<()> {
    let world = World::find().await?;
    let client = controller(&world).await?;
    let scene = Scene::open(&world, "calm-suspend").await?;
    create(&scene, "jobs", job("train", &json!({"parallelism": 2})), None).await?;
    let handle = look(&scene, &client, "train").await?.1.suspend.map_err(|why| anyhow::anyhow!("{why}"))?;
    let jobs = handle.target.api(world.client.clone());
    let alive = |pods: Vec<Pod>| pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).count();
    for (patch, count) in [(handle.suspend_patch(), 0), (handle.resume_patch(), 2)] {
        jobs.patch("train", &PatchParams::default(), &Patch::Merge(patch)).await?;
        until(&format!("{count} pods"), Duration::from_mins(1), || async {
            Ok((alive(scene.pods("train").await?) == count).then_some(()))
        })
        .await?;
    }
    let status = scene.api::<Job>().get("train").await?.status.unwrap_or_default();
    assert_eq!(status.failed.unwrap_or(0), 0, "a suspension is no failure");
    scene.close().await
}

//! What admission adds to pods that opted in, on a real API server: the same as the pure rules say, and nothing elsewhere.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gpumem::api::names::{HOOK_CONFIG_MAP, LABEL_DEFAULTS, LABEL_HOOK};
use gpumem_engine::env_merge::{Container, Given, Wanted, applied, merge};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::support::scene::Scene;
use crate::support::until;
use crate::support::world::World;

/// Where the chart mounts the hook by default.
const FOLDER: &str = "/opt/gpumem-hook";

/// What the chart's defaults ask for.
fn wanted(hook: bool) -> Wanted {
    Wanted {
        expandable_segments: true,
        tensorflow_growth: true,
        jax_growth: true,
        fraction: None,
        torch: None,
        hook: hook.then(|| FOLDER.to_owned()),
        may_be_suspended: false,
    }
}

fn container(env: &[(&str, &str)]) -> Container {
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), Given::Literal((*value).to_owned()))).collect();
    Container { sees_gpu: true, env, ..Container::default() }
}

/// The containers that matter: every rule, and what must be left alone.
fn containers() -> Vec<Container> {
    let torch = |value| container(&[("OWN", "1"), ("PYTORCH_CUDA_ALLOC_CONF", value)]);
    let mut all = vec![
        container(&[]),
        torch("max_split_size_mb:128"),
        torch("expandable_segments:False"),
        torch("roundup_power2_divisions:[256:1,512:2,>:4]"),
        torch(" garbage_collection_threshold : 0.8 , max_split_size_mb:64 "),
        torch("backend:cudaMallocAsync"),
        torch("max_split_size_mb:128,"),
        torch("expandable_segments:true"),
        torch("a:[1,b:2"),
        torch("nonsense"),
        torch(""),
        torch("$(OWN),max_split_size_mb:64"),
        container(&[("PYTORCH_ALLOC_CONF", "max_split_size_mb:64"), ("PYTORCH_CUDA_ALLOC_CONF", "backend:native")]),
        container(&[("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")]),
        container(&[("TF_FORCE_GPU_ALLOW_GROWTH", "false"), ("XLA_PYTHON_CLIENT_PREALLOCATE", "true")]),
        container(&[("PYTHONPATH", "/app:/lib")]),
        container(&[("PYTHONPATH", ""), ("GPUMEM_HOOK", "1")]),
        container(&[("PYTHONPATH", "/opt/gpumem-hook:/app")]),
        container(&[("GPUMEM_HOOK", "0"), ("PYTHONPATH", "/app")]),
        Container { has_env_from: true, ..container(&[("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")]) },
        Container { words: vec!["vllm".to_owned(), "--enable-sleep-mode".to_owned()], ..container(&[]) },
        Container { sees_gpu: false, ..torch("max_split_size_mb:128") },
    ];
    let mut from = container(&[]);
    for name in ["PYTORCH_CUDA_ALLOC_CONF", "PYTHONPATH", "TF_FORCE_GPU_ALLOW_GROWTH"] {
        from.env.push((name.to_owned(), Given::ValueFrom));
    }
    all.push(from);
    all
}

fn manifest(container: &Container, name: &str) -> Value {
    let env: Vec<Value> = container
        .env
        .iter()
        .map(|(name, given)| match given {
            Given::Literal(value) => json!({"name": name, "value": value}),
            Given::ValueFrom => json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
        })
        .collect();
    let mut manifest = json!({"name": name, "image": "docker.io/local/none", "env": env, "args": container.words});
    if container.has_env_from {
        manifest["envFrom"] = json!([{"configMapRef": {"name": "settings", "optional": true}}]);
    }
    if container.sees_gpu {
        manifest["resources"] = json!({"limits": {"nvidia.com/gpu": "1"}});
    }
    manifest
}

/// A pod of these containers; each is an init container too, in the same order.
fn pod(containers: &[Container], labels: &Value) -> Value {
    let list = |prefix: &str| {
        let all = containers.iter().enumerate();
        all.map(|(number, container)| manifest(container, &format!("{prefix}{number}"))).collect::<Vec<_>>()
    };
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tried", "labels": labels},
        "spec": {"containers": list("c"), "initContainers": list("i")}
    })
}

/// What the API server would make of a pod.
async fn admitted(scene: &Scene<'_>, pod: &Value) -> Result<Pod> {
    let pods: Api<Pod> = scene.api();
    let params = PostParams { dry_run: true, field_manager: None };
    pods.create(&params, &serde_json::from_value(pod.clone())?).await.context("creating the pod")
}

async fn label(scene: &Scene<'_>, labels: Value) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(scene.world.client.clone());
    let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
    namespaces.patch(&scene.namespace, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Names and values of a container, in their order; what comes from elsewhere as `None`.
fn env(container: &k8s_openapi::api::core::v1::Container) -> Vec<(String, Option<String>)> {
    let entries = container.env.iter().flatten();
    entries
        .map(|entry| {
            let value = entry.value.clone().unwrap_or_default();
            (entry.name.clone(), entry.value_from.is_none().then_some(value))
        })
        .collect()
}

fn is_mounted(container: &k8s_openapi::api::core::v1::Container) -> bool {
    container.volume_mounts.iter().flatten().any(|mount| mount.mount_path == FOLDER)
}

/// Compares a pod with what the rules say of its containers.
fn follows_the_rules(pod: &Pod, containers: &[Container], wanted: &Wanted) -> Result<()> {
    let spec = pod.spec.as_ref().context("a pod has a spec")?;
    for (list, found) in [("c", Some(&spec.containers)), ("i", spec.init_containers.as_ref())] {
        for (number, (own, found)) in containers.iter().zip(found.into_iter().flatten()).enumerate() {
            let expected: BTreeMap<String, Option<String>> = applied(own, &merge(own, wanted))
                .env
                .into_iter()
                .map(|(name, given)| match given {
                    Given::Literal(value) => (name, Some(value)),
                    Given::ValueFrom => (name, None),
                })
                .collect();
            let found = env(found);
            let by_name: BTreeMap<_, _> = found.iter().cloned().collect();
            ensure!(by_name == expected, "{list}{number} {own:?}:\nadmitted {found:?}\nthe rules {expected:?}");
            let order: Vec<_> =
                found.iter().map(|(name, _)| name).filter(|name| own.env.iter().any(|(own, _)| own == *name)).collect();
            ensure!(order == own.env.iter().map(|(name, _)| name).collect::<Vec<_>>(), "the user's order: {found:?}");
        }
    }
    Ok(())
}

/// The API server takes new policies and labels into account after a moment.
async fn in_force(scene: &Scene<'_>, labels: &Value, name: &str) -> Result<()> {
    until("admission to be in force", Duration::from_mins(1), || async {
        let pod = admitted(scene, &pod(&[container(&[])], labels)).await?;
        let spec = pod.spec.unwrap_or_default();
        Ok(spec.containers.iter().any(|found| env(found).iter().any(|(found, _)| found == name)).then_some(()))
    })
    .await
}

#[tokio::test]
async fn an_opted_in_namespace_gets_the_defaults_as_the_rules_say() -> Result<()> {
    let world = World::find().await?;
    let scene = Scene::open(&world, "admission-namespace").await?;
    label(&scene, json!({LABEL_DEFAULTS: "Enabled"})).await?;
    in_force(&scene, &json!({}), "TF_FORCE_GPU_ALLOW_GROWTH").await?;
    let containers = containers();
    let once = admitted(&scene, &pod(&containers, &json!({}))).await?;
    follows_the_rules(&once, &containers, &wanted(false))?;
    // A pod made again from what was admitted: a second time changes nothing.
    let mut again = serde_json::to_value(&once)?;
    again["metadata"] = json!({"name": "tried"});
    let twice = admitted(&scene, &again).await?;
    ensure!(twice.spec == once.spec, "admitting a pod twice is admitting it once");
    // Two entries of one name cannot be told apart in an apply: both stay, and the others are added all the same.
    let doubled =
        [("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64"), ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:32")];
    let found = admitted(&scene, &pod(&[container(&doubled)], &json!({}))).await?.spec.context("a pod has a spec")?;
    let found = found.containers.first().map(env).unwrap_or_default();
    for (found, (name, value)) in found.iter().zip(doubled) {
        ensure!((found.0.as_str(), found.1.as_deref()) == (name, Some(value)), "{found:?}");
    }
    ensure!(found.len() == 4, "{found:?}");
    let refused = admitted(&scene, &pod(&containers, &json!({LABEL_DEFAULTS: "Disabled"}))).await?;
    follows_the_rules(
        &refused,
        &containers,
        &Wanted { expandable_segments: false, tensorflow_growth: false, jax_growth: false, ..wanted(false) },
    )
    .context("a pod says no")?;
    scene.close().await
}

#[tokio::test]
async fn a_pod_opts_in_by_itself_and_its_neighbour_is_untouched() -> Result<()> {
    let world = World::find().await?;
    let scene = Scene::open(&world, "admission-pod").await?;
    let opted = json!({LABEL_DEFAULTS: "Enabled"});
    in_force(&scene, &opted, "TF_FORCE_GPU_ALLOW_GROWTH").await?;
    let containers = containers();
    follows_the_rules(&admitted(&scene, &pod(&containers, &opted)).await?, &containers, &wanted(false))?;
    let none = Wanted { expandable_segments: false, tensorflow_growth: false, jax_growth: false, ..wanted(false) };
    let neighbour = admitted(&scene, &pod(&containers, &json!({}))).await?;
    follows_the_rules(&neighbour, &containers, &none).context("not opted in")?;
    // A pod cannot ask for the hook: its files are in namespaces that opted in only.
    let alone = admitted(&scene, &pod(&containers, &json!({LABEL_HOOK: "Enabled"}))).await?;
    follows_the_rules(&alone, &containers, &none).context("the hook is the namespace's choice")?;
    scene.close().await
}

#[tokio::test]
async fn the_hook_comes_with_its_files_and_pods_start_with_and_without_them() -> Result<()> {
    let world = World::find().await?;
    let scene = Scene::open(&world, "admission-hook").await?;
    label(&scene, json!({LABEL_HOOK: "Enabled"})).await?;
    in_force(&scene, &json!({}), "GPUMEM_HOOK").await?;
    let containers = containers();
    let hooked = admitted(&scene, &pod(&containers, &json!({}))).await?;
    let defaults_off =
        Wanted { expandable_segments: false, tensorflow_growth: false, jax_growth: false, ..wanted(true) };
    follows_the_rules(&hooked, &containers, &defaults_off)?;
    let spec = hooked.spec.context("a pod has a spec")?;
    for (own, found) in containers.iter().zip(&spec.containers) {
        let is_hooked = env(found).iter().any(|(name, value)| name == "GPUMEM_HOOK" && value.as_deref() == Some("1"));
        ensure!(is_mounted(found) == is_hooked, "the folder is where the hook is: {own:?}");
    }
    let maps: Api<ConfigMap> = scene.api();
    let map = until("the hook's files", Duration::from_mins(1), || async { Ok(maps.get_opt(HOOK_CONFIG_MAP).await?) })
        .await?;
    let keys: Vec<_> = map.data.unwrap_or_default().into_keys().collect();
    ensure!(keys.len() == gpumem::controller::hook::FILES.len(), "{keys:?}");
    let workload = |name: &str| {
        let mut workload = scene.workload("apps/v1", "Deployment", name, 0, "plateau:at=64MiB");
        let shown = json!({"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"});
        let env = workload.pointer_mut("/spec/template/spec/containers/0/env").and_then(Value::as_array_mut);
        if let Some(env) = env {
            env.push(shown.clone());
        }
        workload
    };
    scene.apply(&workload("with")).await?;
    scene.running("with").await?;
    let pods = scene.pods("with").await?;
    let started = pods.first().and_then(|pod| pod.spec.as_ref()).context("a running pod")?;
    ensure!(started.containers.iter().all(is_mounted), "a real kubelet mounted the hook");
    // Opting out takes the files away; a pod whose template still names them starts all the same.
    label(&scene, json!({LABEL_HOOK: null})).await?;
    until("the files to be gone", Duration::from_mins(1), || async {
        Ok(maps.get_opt(HOOK_CONFIG_MAP).await?.is_none().then_some(()))
    })
    .await?;
    let mut kept = workload("without");
    kept["spec"]["template"]["spec"]["volumes"].as_array_mut().context("volumes")?.extend(
        spec.volumes.iter().flatten().filter(|volume| volume.name == HOOK_CONFIG_MAP).map(|volume| json!(volume)),
    );
    kept["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
        .as_array_mut()
        .context("mounts")?
        .push(json!({"name": HOOK_CONFIG_MAP, "mountPath": FOLDER, "readOnly": true}));
    scene.apply(&kept).await?;
    scene.running("without").await?;
    scene.close().await
}

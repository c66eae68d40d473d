//! Who stands in the way of an action on a real cluster, and is left in peace: an autoscaler, budgets that overlap, a rollout.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, EvictParams, Patch, PatchParams};
use serde_json::json;

use crate::support::scene::{EVICTION, LEAK, Scene};
use crate::support::world::World;
use crate::support::{throughout, until};

/// A leak that leaves time to be held back for a while and to be evicted still.
const SLOW: &str = "leak:from=50GiB,rate=150MiB/s,start=10s";

/// Waits until the policy names `reason` as what stands in its way, and checks that its message says all of `words`.
async fn held(scene: &Scene<'_>, policy: &str, reason: &str, words: &[&str]) -> Result<()> {
    let seen = until(&format!("the reason {reason}"), 2 * EVICTION, || async {
        Ok(scene.condition(policy, "ActionAllowed").await?.filter(|(status, why)| status == "False" && why == reason))
    })
    .await;
    if let Err(error) = seen {
        return Err(error.context(scene.story(policy).await));
    }
    let status = scene.policy(policy).await?.status.unwrap_or_default();
    let told = status.conditions.into_iter().find(|condition| condition.type_ == "ActionAllowed");
    let message = told.map(|condition| condition.message).unwrap_or_default();
    for word in words {
        ensure!(message.contains(word), "the message says {word}: {message}");
    }
    Ok(())
}

/// The pod with this UID runs, and no other took its place.
async fn is_left_alone(scene: &Scene<'_>, app: &str, uid: &str) -> Result<()> {
    throughout(&format!("{app} is left alone"), Duration::from_secs(6), || async {
        let pods = scene.pods(app).await?;
        Ok(pods.iter().any(|pod| pod.metadata.uid.as_deref() == Some(uid) && pod.metadata.deletion_timestamp.is_none()))
    })
    .await
}

#[tokio::test]
async fn the_replicas_of_a_deployment_with_an_autoscaler_are_left_to_it_and_the_policy_names_it() -> Result<()> {
    let world = World::find().await?;
    let scene = Scene::open(&world, "gentle-hpa").await?;
    scene
        .apply(&json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"},
            "spec": {
                "minReplicas": 1, "maxReplicas": 5,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "leaker"}
            }
        }))
        .await?;
    scene
        .enforce("p", "leaker", |spec| {
            spec["actions"] = json!([{"type": "Scale", "scale": {"via": "Replicas", "maxReplicas": 4}}]);
        })
        .await?;
    scene.deploy("leaker", 20, LEAK).await?;
    let uid = scene.running("leaker").await?;
    held(&scene, "p", "ReplicasOwnedByOther", &["HorizontalPodAutoscaler web"]).await?;
    is_left_alone(&scene, "leaker", &uid).await?;
    let deployments: Api<Deployment> = scene.api();
    let replicas = deployments.get("leaker").await?.spec.replicas;
    ensure!(replicas == Some(1), "nobody but its autoscaler scales it: {replicas:?}");
    ensure!(scene.actions("p").await?.is_empty(), "nothing was done: {:?}", scene.actions("p").await?);
    scene.close().await
}

#[tokio::test]
async fn a_pod_of_two_budgets_is_named_and_left_alone_until_one_of_them_goes() -> Result<()> {
    let world = World::find().await?;
    let scene = Scene::open(&world, "gentle-budgets").await?;
    for name in ["one", "two"] {
        scene
            .apply(&json!({
                "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name},
                "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "leaker"}}}
            }))
            .await?;
    }
    scene.enforce("p", "leaker", |spec| spec["disruption"]["requireBudget"] = json!(true)).await?;
    scene.deploy("leaker", 21, SLOW).await?;
    let uid = scene.running("leaker").await?;
    // What we spare the server: it answers 500 to such an eviction, whoever asks.
    let pods: Api<Pod> = scene.api();
    let name = scene.pods("leaker").await?.into_iter().find_map(|pod| pod.metadata.name).unwrap_or_default();
    match pods.evict(&name, &EvictParams::default()).await {
        Err(kube::Error::Api(status)) => ensure!(status.code == 500, "{status:?}"),
        other => anyhow::bail!("the server evicts a pod of two budgets: {other:?}"),
    }
    held(&scene, "p", "SeveralBudgets", &["2 PodDisruptionBudgets", "leave one"]).await?;
    is_left_alone(&scene, "leaker", &uid).await?;
    ensure!(scene.actions("p").await?.is_empty(), "nothing was tried: {:?}", scene.actions("p").await?);
    scene.api::<PodDisruptionBudget>().delete("two", &DeleteParams::default()).await?;
    scene.evicted("p", &uid, EVICTION).await?;
    ensure!(scene.restarts("leaker").await? == 0, "no OOM came first");
    scene.close().await
}

#[tokio::test]
async fn a_pod_is_left_alone_while_its_deployment_rolls_out_and_evicted_after_that() -> Result<()> {
    let world = World::find().await?;
    let scene = Scene::open(&world, "gentle-rollout").await?;
    scene.enforce("p", "leaker", |_| {}).await?;
    scene.deploy("leaker", 22, SLOW).await?;
    let uid = scene.running("leaker").await?;
    // A new version that no node takes: the rollout hangs, and the old pod goes on.
    let deployments: Api<Deployment> = scene.api();
    let version = |node: serde_json::Value| {
        json!({"spec": {
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"spec": {"nodeSelector": {"gentle": node}}}
        }})
    };
    deployments.patch("leaker", &PatchParams::default(), &Patch::Merge(version(json!("nowhere")))).await?;
    held(&scene, "p", "RolloutInProgress", &["rollout"]).await?;
    is_left_alone(&scene, "leaker", &uid).await?;
    ensure!(scene.actions("p").await?.is_empty(), "nothing was done: {:?}", scene.actions("p").await?);
    deployments.patch("leaker", &PatchParams::default(), &Patch::Merge(version(json!(null)))).await?;
    scene.evicted("p", &uid, EVICTION).await?;
    ensure!(scene.restarts("leaker").await? == 0, "no OOM came first");
    scene.close().await
}

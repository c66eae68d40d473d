//! KEDA's own operator and metrics server scale a Deployment by the shipped ScaledObject, from what a real Prometheus recorded
//! of the product: up with the forecast, and never down for data that is missing.

use anyhow::{Context, Result};
use kube::api::{Api, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};

use crate::support::embedder::{Embedder, SCALED, at_once};
use crate::support::prometheus::Monitoring;
use crate::support::scene::Scene;
use crate::support::until;
use crate::support::world::World;

const EXAMPLE: &str = include_str!("../../deploy/autoscaling/keda.yaml");

/// The shipped ScaledObject, with the address of this Prometheus.
fn example(monitoring: &Monitoring) -> Result<Value> {
    let mut object: Value = serde_yaml::from_str(EXAMPLE)?;
    object["spec"]["triggers"][0]["metadata"]["serverAddress"] = json!(format!("http://{}", monitoring.address));
    Ok(object)
}

fn scaled_objects(scene: &Scene<'_>) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("keda.sh", "v1alpha1", "ScaledObject"));
    Api::namespaced_with(scene.world.client.clone(), &scene.namespace, &kind)
}

async fn change(scene: &Scene<'_>, spec: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": spec}));
    scaled_objects(scene).patch("embedder", &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn falls_back(scene: &Scene<'_>) -> Result<bool> {
    let object = scaled_objects(scene).get("embedder").await?;
    let conditions = object.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
    Ok(conditions.iter().any(|one| one["type"] == "Fallback" && one["status"] == "True"))
}

#[tokio::test]
async fn replicas_follow_the_forecast_up_and_never_go_down_for_data_that_is_missing() -> Result<()> {
    let world = World::find().await?;
    let monitoring = Embedder::monitoring(&world, "keda").await?;
    let scene = Scene::open(&world, "search").await?;
    let object = example(&monitoring)?;
    let query = object["spec"]["triggers"][0]["metadata"]["query"].as_str().context("a query")?.to_owned();
    let embedder = Embedder::deploy(&scene, monitoring, query, "keda-hpa-embedder").await?;
    scene.apply(&object).await?;
    let told = follow(&embedder).await;
    embedder.agents(true).await?;
    if let Err(error) = told {
        let status = scaled_objects(&scene).get("embedder").await.map(|found| found.data["status"].clone());
        return Err(error.context(format!("{status:#?}\n{}", embedder.story().await)));
    }
    scene.close().await
}

async fn follow(embedder: &Embedder<'_>) -> Result<()> {
    let scene = embedder.scene;
    embedder.grows("KEDA's ScaledObject embedder").await?;

    change(scene, json!({"advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": at_once()}}}}))
        .await?;
    embedder.loses_the_series().await?;
    embedder.stays("without an agent").await?;
    until("KEDA to fall back", SCALED, || async { Ok(falls_back(scene).await?.then_some(())) }).await?;
    embedder.stays("in the fallback").await?;

    embedder.monitoring.hang(true)?;
    embedder.stays("without Prometheus").await?;
    embedder.monitoring.hang(false)?;

    // The proof that something held them: with KEDA's defaults the same silence counts as 0.
    let mut trigger = example(&embedder.monitoring)?["spec"]["triggers"][0].clone();
    trigger["metadata"].as_object_mut().context("metadata")?.remove("ignoreNullValues");
    change(scene, json!({"fallback": null, "triggers": [trigger]})).await?;
    embedder.shrinks("KEDA's defaults to scale down").await
}

//! KEDA's own operator and metrics server scale a Deployment by the shipped ScaledObject, from what a real Prometheus recorded
//! of the product: up with the forecast, and never down for data that is missing.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};

use crate::story::frame::RELEASE_NAMESPACE;
use crate::support::monitor::Kind;
use crate::support::prometheus::Monitoring;
use crate::support::scene::Scene;
use crate::support::world::World;
use crate::support::{throughout, until};

const EXAMPLE: &str = include_str!("../../deploy/autoscaling/keda.yaml");
/// Steady for a while; then two of it would fill the GPU in 12 minutes. It ends before three of it run out.
const LOAD: &str = "leak:from=14GiB,rate=35MiB/s,start=100s,stop=24GiB";
/// An autoscaler looks each 15 seconds, KEDA each 30; a busy machine adds to it.
const SCALED: Duration = Duration::from_mins(4);
/// Several looks of both.
const LOOKS: Duration = Duration::from_secs(75);

/// The shipped ScaledObject, with the address of this Prometheus.
fn example(monitoring: &Monitoring) -> Result<Value> {
    let mut object: Value = serde_yaml::from_str(EXAMPLE)?;
    object["spec"]["triggers"][0]["metadata"]["serverAddress"] = json!(format!("http://{}", monitoring.address));
    Ok(object)
}

/// What the example names, and what is looked at again and again.
struct Embedder<'a> {
    scene: &'a Scene<'a>,
    monitoring: &'a Monitoring,
    query: String,
}

impl Embedder<'_> {
    async fn replicas(&self) -> Result<i32> {
        Ok(self.scene.api::<Deployment>().get("embedder").await?.spec.replicas.unwrap_or_default())
    }

    /// What the example's own query says now.
    async fn urgency(&self) -> Result<Option<f64>> {
        let answer = self.monitoring.ask(&self.query).await?;
        Ok(answer.first().and_then(|one| one["value"][1].as_str()?.parse().ok()))
    }

    fn scaled_objects(&self) -> Api<DynamicObject> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("keda.sh", "v1alpha1", "ScaledObject"));
        Api::namespaced_with(self.scene.world.client.clone(), &self.scene.namespace, &kind)
    }

    async fn change(&self, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.scaled_objects().patch("embedder", &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// The HorizontalPodAutoscaler that KEDA made of it.
    async fn autoscaler(&self) -> Result<Option<HorizontalPodAutoscaler>> {
        Ok(self.scene.api::<HorizontalPodAutoscaler>().get_opt("keda-hpa-embedder").await?)
    }

    async fn reads_a_value(&self) -> Result<bool> {
        let status = self.autoscaler().await?.and_then(|found| found.status).unwrap_or_default();
        let mut conditions = status.conditions.into_iter().flatten();
        Ok(conditions.any(|one| one.type_ == "ScalingActive" && one.status == "True"))
    }

    async fn falls_back(&self) -> Result<bool> {
        let object = self.scaled_objects().get("embedder").await?;
        let conditions = object.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Ok(conditions.iter().any(|one| one["type"] == "Fallback" && one["status"] == "True"))
    }

    /// What a person would look at.
    async fn story(&self) -> String {
        let object = self.scaled_objects().get("embedder").await.map(|found| found.data["status"].clone());
        let autoscaler = self.autoscaler().await.map(|found| found.map(|found| (found.spec, found.status)));
        let policy = self.scene.story("watch").await;
        format!("urgency {:?}\n{object:#?}\n{autoscaler:#?}\n{policy}", self.urgency().await)
    }
}

/// Takes every agent away, or lets them come back.
async fn agents(world: &World, on: bool) -> Result<()> {
    let api: Api<DaemonSet> = Api::namespaced(world.client.clone(), RELEASE_NAMESPACE);
    let agents = api.list(&ListParams::default().labels("app.kubernetes.io/component=agent")).await?;
    let name = agents.items.first().and_then(|found| found.metadata.name.clone()).context("no agents")?;
    let nowhere = if on { Value::Null } else { json!("nowhere") };
    let patch = json!({"spec": {"template": {"spec": {"nodeSelector": {"example.com/agents": nowhere}}}}});
    api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

#[tokio::test]
async fn replicas_follow_the_forecast_up_and_never_go_down_for_data_that_is_missing() -> Result<()> {
    let world = World::find().await?;
    let monitoring = Monitoring::start(&world, "keda", Kind::PodMonitor, &[], None).await?;
    let scene = Scene::open(&world, "search").await?;
    let object = example(&monitoring)?;
    let query = object["spec"]["triggers"][0]["metadata"]["query"].as_str().context("a query")?.to_owned();
    let embedder = Embedder { scene: &scene, monitoring: &monitoring, query };
    // It would write the replicas itself, were they not KEDA's.
    scene
        .enforce("watch", "embedder", |spec| {
            spec["prediction"]["horizonSeconds"] = json!(900);
            spec["actions"] = json!([
                {"type": "Notify"}, {"type": "Scale", "scale": {"via": "Replicas", "maxReplicas": 8}}
            ]);
        })
        .await?;
    scene.deploy("embedder", 17, LOAD).await?;
    scene.apply(&object).await?;
    let told = follow(&world, &embedder).await;
    agents(&world, true).await?;
    match told {
        Ok(()) => scene.close().await,
        Err(error) => Err(error.context(embedder.story().await)),
    }
}

async fn follow(world: &World, embedder: &Embedder<'_>) -> Result<()> {
    until("two replicas, and KEDA reads that no OOM is expected", SCALED, || async {
        let calm = embedder.urgency().await?.is_some_and(|value| value < 0.1);
        Ok((calm && embedder.replicas().await? == 2 && embedder.reads_a_value().await?).then_some(()))
    })
    .await?;
    until("a third replica", SCALED, || async { Ok((embedder.replicas().await? > 2).then_some(())) }).await?;
    let recorded = embedder.monitoring.ask(&format!("max_over_time(({})[5m:1s])", embedder.query)).await?;
    let before = recorded.first().and_then(|one| one["value"][1].as_str()).context("no urgency was recorded")?;
    let before: f64 = before.parse()?;
    ensure!(before > 1.0, "scaled up at an urgency of {before}");
    ensure!(embedder.replicas().await? == 3, "one at a time, as the example says");
    eprintln!("a third replica at an urgency of {before:.2}");

    until("the operator to say whose the replicas are", SCALED, || async {
        let status = embedder.scene.policy("watch").await?.status.unwrap_or_default();
        let mut allowed = status.conditions.iter().filter(|one| one.type_ == "ActionAllowed");
        Ok(allowed.any(|one| one.message.contains("KEDA's ScaledObject embedder owns the replicas")).then_some(()))
    })
    .await?;

    // The example never scales down. That alone would hold everything below, so it is taken away.
    let at_once = json!({"stabilizationWindowSeconds": 0, "selectPolicy": "Max",
        "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]});
    embedder
        .change(json!({"advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": at_once}}}}))
        .await?;
    let floor = embedder.replicas().await?;
    let stay = |what: &'static str| throughout(what, LOOKS, async || Ok(embedder.replicas().await? >= floor));

    agents(world, false).await?;
    until("the series to be absent, not 0", SCALED, || async {
        let value = embedder.urgency().await?;
        ensure!(value.is_none_or(|value| value > 0.5), "an urgency of {value:?} that nobody measured");
        ensure!(embedder.replicas().await? >= floor, "fewer replicas while the series goes");
        Ok(value.is_none().then_some(()))
    })
    .await?;
    stay("as many replicas without an agent").await?;
    until("KEDA to fall back", SCALED, || async { Ok(embedder.falls_back().await?.then_some(())) }).await?;
    stay("as many replicas in the fallback").await?;

    embedder.monitoring.hang(true)?;
    stay("as many replicas without Prometheus").await?;
    embedder.monitoring.hang(false)?;

    // The proof that something held them: with KEDA's defaults the same silence counts as 0.
    let mut trigger = example(embedder.monitoring)?["spec"]["triggers"][0].clone();
    trigger["metadata"].as_object_mut().context("metadata")?.remove("ignoreNullValues");
    embedder.change(json!({"fallback": null, "triggers": [trigger]})).await?;
    until("KEDA's defaults to scale down", SCALED, || async { Ok((embedder.replicas().await? == 2).then_some(())) })
        .await
}

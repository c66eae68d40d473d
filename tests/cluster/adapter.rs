//! prometheus-adapter with the shipped rules, and Kubernetes' own autoscaler with the shipped HorizontalPodAutoscaler, scale a
//! Deployment from what a real Prometheus recorded of the product: up with the forecast, and never down for data that is missing.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::embedder::{Embedder, SCALED, at_once};
use crate::support::scene::Scene;
use crate::support::until;
use crate::support::world::World;

const VALUES: &str = include_str!("../../deploy/autoscaling/prometheus-adapter.yaml");
const AUTOSCALER: &str = include_str!("../../deploy/autoscaling/prometheus-adapter-hpa.yaml");
/// Where its own manifests put it.
const NAMESPACE: &str = "monitoring";

/// The adapter as its own manifests install it; it runs once it has a Prometheus.
struct Adapter<'a> {
    world: &'a World,
}

impl Adapter<'_> {
    /// With the shipped rules, which its chart would write into this ConfigMap in the same way.
    async fn start(&self, rules: &Value, prometheus: &str) -> Result<()> {
        let config = json!({"externalRules": rules}).to_string();
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "adapter-config"},
            "data": {"config.yaml": config, "prometheus": prometheus}
        });
        let api: Api<ConfigMap> = Api::namespaced(self.world.client.clone(), NAMESPACE);
        api.patch("adapter-config", &PatchParams::apply("test"), &Patch::Apply(&object)).await?;
        self.runs(true).await
    }

    async fn runs(&self, on: bool) -> Result<()> {
        let replicas = i32::from(on);
        let api: Api<Deployment> = Api::namespaced(self.world.client.clone(), NAMESPACE);
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        api.patch("prometheus-adapter", &PatchParams::default(), &patch).await?;
        until("the adapter to start or stop", SCALED, || async {
            let status = api.get("prometheus-adapter").await?.status.unwrap_or_default();
            let ready = status.ready_replicas.unwrap_or_default() == replicas;
            Ok((ready && status.replicas.unwrap_or_default() == replicas).then_some(()))
        })
        .await
    }
}

/// What the adapter asks for this autoscaler by this rule.
fn query(rule: &Value, autoscaler: &Value) -> Result<String> {
    let metric = &autoscaler["spec"]["metrics"][0]["external"]["metric"];
    ensure!(
        metric["name"] == rule["name"]["as"],
        "the autoscaler reads {}, the rule makes {}",
        metric["name"],
        rule["name"]["as"]
    );
    let series = rule["seriesQuery"].as_str().and_then(|series| series.split('{').next()).context("a series")?;
    let selector = metric["selector"]["matchLabels"].as_object().context("a selector")?;
    let mut matchers = vec![format!("namespace={}", autoscaler["metadata"]["namespace"])];
    matchers.extend(selector.iter().map(|(label, value)| format!("{label}={value}")));
    let query = rule["metricsQuery"].as_str().context("a query")?;
    Ok(query.replace("<<.Series>>", series).replace("<<.LabelMatchers>>", &matchers.join(",")))
}

#[tokio::test]
async fn replicas_follow_the_forecast_up_and_never_go_down_for_data_that_is_missing() -> Result<()> {
    let world = World::find().await?;
    let monitoring = Embedder::monitoring(&world, "adapter").await?;
    let scene = Scene::open(&world, "search").await?;
    let values: Value = serde_yaml::from_str(VALUES)?;
    let autoscaler: Value = serde_yaml::from_str(AUTOSCALER)?;
    let rules = &values["rules"]["external"];
    let query = query(&rules[0], &autoscaler)?;
    let adapter = Adapter { world: &world };
    adapter.start(rules, &format!("http://{}", monitoring.address)).await?;
    let mut embedder = Embedder::deploy(&scene, monitoring, query, "embedder").await?;
    scene.apply(&autoscaler).await?;
    let told = follow(&adapter, &mut embedder).await;
    embedder.agents(true).await?;
    if let Err(error) = told {
        return Err(error.context(embedder.story().await));
    }
    scene.close().await
}

/// Waits until the autoscaler says that it has no value, and why.
async fn says(embedder: &Embedder<'_>, why: &str) -> Result<()> {
    let message = until(&format!("the autoscaler to say: {why}"), SCALED, || async {
        let told = embedder.inactive().await?;
        let (reason, message) = told.context("the autoscaler reads a value")?;
        ensure!(reason == "FailedGetExternalMetric", "{reason}: {message}");
        ensure!(message.contains(why), "{reason}: {message}");
        Ok(Some(message))
    })
    .await?;
    eprintln!("FailedGetExternalMetric: {message}");
    Ok(())
}

async fn follow(adapter: &Adapter<'_>, embedder: &mut Embedder<'_>) -> Result<()> {
    embedder.grows("HorizontalPodAutoscaler embedder").await?;

    let patch = Patch::Merge(json!({"spec": {"behavior": {"scaleDown": at_once()}}}));
    let autoscalers = embedder.scene.api::<HorizontalPodAutoscaler>();
    autoscalers.patch("embedder", &PatchParams::default(), &patch).await?;

    // While the series is there: an adapter that has forgotten the metric would not ask Prometheus at all.
    embedder.monitoring.hang(true)?;
    says(embedder, "unable to return a response in the time allotted").await?;
    embedder.stays("while Prometheus hangs").await?;
    embedder.monitoring.kill()?;
    says(embedder, "Internal error occurred: unable to fetch metrics").await?;
    // What they would measure by the time Prometheus is back is for the end.
    embedder.agents(false).await?;
    embedder.stays("without Prometheus").await?;
    embedder.monitoring.again().await?;

    embedder.loses_the_series().await?;
    says(embedder, "no metrics returned").await?;
    // The adapter lists each minute what there is, and forgets what is not.
    says(embedder, "could not find").await?;
    embedder.stays("without an agent").await?;

    adapter.runs(false).await?;
    says(embedder, "unable to handle the request").await?;
    embedder.stays("without the adapter").await?;
    adapter.runs(true).await?;

    // The proof that something held them: a value that was measured brings them down.
    embedder.agents(true).await?;
    embedder.shrinks("two replicas, as the agents say that no OOM is expected").await
}

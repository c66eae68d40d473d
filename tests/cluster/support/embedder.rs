//! The Deployment that the shipped examples of autoscaling name: its memory grows, and an autoscaler reads from a real Prometheus
//! what the product forecasts of it.

use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::monitor::Kind;
use super::prometheus::Monitoring;
use super::scene::Scene;
use super::world::World;
use super::{throughout, until};
use crate::story::frame::RELEASE_NAMESPACE;

/// Steady for a while; then two of it would fill the GPU in 12 minutes. It ends before three of it run out.
const LOAD: &str = "leak:from=14GiB,rate=35MiB/s,start=100s,stop=24GiB";
/// An autoscaler looks each 15 seconds, KEDA each 30; a busy machine adds to it.
pub const SCALED: Duration = Duration::from_mins(4);
/// Several looks of both.
const LOOKS: Duration = Duration::from_secs(75);

/// What the examples name, and what is looked at again and again.
pub struct Embedder<'a> {
    /// Its namespace.
    pub scene: &'a Scene<'a>,
    /// What the autoscaler reads.
    pub monitoring: Monitoring,
    /// What is asked of it.
    query: String,
    /// Name of its HorizontalPodAutoscaler.
    autoscaler: &'static str,
    /// The most replicas that were seen.
    most: AtomicI32,
}

impl<'a> Embedder<'a> {
    /// Deploys it, with a policy that would write the replicas itself, were they not the autoscaler's.
    pub async fn deploy(
        scene: &'a Scene<'a>,
        monitoring: Monitoring,
        query: String,
        autoscaler: &'static str,
    ) -> Result<Self> {
        scene
            .enforce("watch", "embedder", |spec| {
                spec["prediction"]["horizonSeconds"] = json!(900);
                spec["actions"] = json!([
                    {"type": "Notify"}, {"type": "Scale", "scale": {"via": "Replicas", "maxReplicas": 8}}
                ]);
            })
            .await?;
        scene.deploy("embedder", 17, LOAD).await?;
        Ok(Self { scene, monitoring, query, autoscaler, most: AtomicI32::new(0) })
    }

    /// What a real Prometheus records of the product.
    pub async fn monitoring(world: &World, name: &str) -> Result<Monitoring> {
        Monitoring::start(world, name, Kind::PodMonitor, &[], None).await
    }

    async fn replicas(&self) -> Result<i32> {
        Ok(self.scene.api::<Deployment>().get("embedder").await?.spec.replicas.unwrap_or_default())
    }

    /// There are as many replicas as there ever were.
    async fn keeps_all(&self) -> Result<bool> {
        let now = self.replicas().await?;
        Ok(now >= self.most.fetch_max(now, Ordering::Relaxed))
    }

    /// What the example's own query says now.
    async fn urgency(&self) -> Result<Option<f64>> {
        let answer = self.monitoring.ask(&self.query).await?;
        Ok(answer.first().and_then(|one| one["value"][1].as_str()?.parse().ok()))
    }

    async fn autoscaler(&self) -> Result<Option<HorizontalPodAutoscaler>> {
        Ok(self.scene.api::<HorizontalPodAutoscaler>().get_opt(self.autoscaler).await?)
    }

    /// Reason and message for which the autoscaler does not scale; none while it reads a value.
    pub async fn inactive(&self) -> Result<Option<(String, String)>> {
        let status = self.autoscaler().await?.and_then(|found| found.status).unwrap_or_default();
        let found = status.conditions.into_iter().flatten().find(|one| one.type_ == "ScalingActive");
        let found = found.context("the autoscaler has not looked yet")?;
        Ok((found.status != "True").then(|| (found.reason.unwrap_or_default(), found.message.unwrap_or_default())))
    }

    /// From two replicas to a third by the forecast, and no further; the operator says that they are `owner`'s.
    pub async fn grows(&self, owner: &str) -> Result<()> {
        until("two replicas, and the autoscaler reads that no OOM is expected", SCALED, || async {
            let calm = self.urgency().await?.is_some_and(|value| value < 0.1);
            Ok((calm && self.replicas().await? == 2 && self.inactive().await?.is_none()).then_some(()))
        })
        .await?;
        until("a third replica", SCALED, || async { Ok((self.replicas().await? > 2).then_some(())) }).await?;
        let recorded = self.monitoring.ask(&format!("max_over_time(({})[5m:1s])", self.query)).await?;
        let before = recorded.first().and_then(|one| one["value"][1].as_str()).context("no urgency was recorded")?;
        let before: f64 = before.parse()?;
        ensure!(before > 1.0, "scaled up at an urgency of {before}");
        ensure!(self.keeps_all().await? && self.replicas().await? == 3, "one at a time, as the example says");
        eprintln!("a third replica at an urgency of {before:.2}");
        until("the operator to say whose the replicas are", SCALED, || async {
            let status = self.scene.policy("watch").await?.status.unwrap_or_default();
            let mut allowed = status.conditions.iter().filter(|one| one.type_ == "ActionAllowed");
            Ok(allowed.any(|one| one.message.contains(&format!("{owner} owns the replicas"))).then_some(()))
        })
        .await
    }

    /// Takes all agents away, and waits until nothing is recorded any more. No replica goes meanwhile.
    pub async fn loses_the_series(&self) -> Result<()> {
        self.agents(false).await?;
        until("the series to be absent, not 0", SCALED, || async {
            let value = self.urgency().await?;
            ensure!(value.is_none_or(|value| value > 0.5), "an urgency of {value:?} that nobody measured");
            ensure!(self.keeps_all().await?, "fewer replicas while the series goes");
            Ok(value.is_none().then_some(()))
        })
        .await
    }

    /// For several looks of the autoscaler no replica goes.
    pub async fn stays(&self, what: &str) -> Result<()> {
        throughout(&format!("as many replicas {what}"), LOOKS, || self.keeps_all()).await
    }

    /// Down to the minimum, which is two.
    pub async fn shrinks(&self, what: &str) -> Result<()> {
        until(what, SCALED, || async { Ok((self.replicas().await? == 2).then_some(())) }).await
    }

    /// Takes every agent away, or lets them come back.
    pub async fn agents(&self, on: bool) -> Result<()> {
        let api: Api<DaemonSet> = Api::namespaced(self.scene.world.client.clone(), RELEASE_NAMESPACE);
        let agents = api.list(&ListParams::default().labels("app.kubernetes.io/component=agent")).await?;
        let name = agents.items.first().and_then(|found| found.metadata.name.clone()).context("no agents")?;
        let nowhere = if on { Value::Null } else { json!("nowhere") };
        let patch = json!({"spec": {"template": {"spec": {"nodeSelector": {"example.com/agents": nowhere}}}}});
        api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// What a person would look at.
    pub async fn story(&self) -> String {
        let autoscaler = self.autoscaler().await.map(|found| found.map(|found| (found.spec, found.status)));
        let policy = self.scene.story("watch").await;
        format!("urgency {:?}\n{autoscaler:#?}\n{policy}", self.urgency().await)
    }
}

/// `scaleDown` that allows everything at once. The examples never scale down: that alone would hold the replicas, whatever is
/// missing.
pub fn at_once() -> Value {
    json!({
        "stabilizationWindowSeconds": 0, "selectPolicy": "Max",
        "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]
    })
}

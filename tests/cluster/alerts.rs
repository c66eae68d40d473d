//! From a leak to a message: a real Prometheus scrapes what the chart's monitors select and evaluates the chart's rules, a real
//! Alertmanager routes by the shipped example, and somebody is told once, and once more when it is over.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use crate::story::frame::RELEASE_NAMESPACE;
use crate::support::monitor::{self, Kind};
use crate::support::prometheus::Monitoring;
use crate::support::receiver::{Message, Receiver, Told};
use crate::support::scene::Scene;
use crate::support::world::World;
use crate::support::{throughout, until};

/// From the start of the leak to the message: start, warm-up, detection, and what a busy machine adds.
const WARNING: Duration = Duration::from_mins(4);
/// Full in ten minutes: within the half hour that GpuMemOomRiskHigh warns of, and never within the five minutes of
/// GpuMemOomImminent while the test lasts.
const LEAK: &str = "leak:from=30GiB,rate=80MiB/s,start=5s";
/// The example sends this prefix of namespaces to a webhook, by day and by night.
const NAMESPACE: &str = "search-leak";

fn told(status: &str) -> Told {
    Told { status: status.to_owned(), alert: "GpuMemOomRiskHigh".to_owned(), workload: "trainer".to_owned() }
}

#[tokio::test]
async fn a_leaking_trainer_is_told_of_once_and_once_more_when_it_is_over_and_steady_neighbours_never() -> Result<()> {
    let world = World::find().await?;
    let receiver = Receiver::start()?;
    let short = "monitoring.prometheusRule.alerts.GpuMemOomRiskHigh";
    let values = [format!("{short}.for=3s"), format!("{short}.keepFiringFor=10s")];
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let monitoring = Monitoring::start(&world, "alerts", Kind::PodMonitor, &values, Some(&receiver)).await?;
    let scene = Scene::open(&world, NAMESPACE).await?;
    // An honest default: watched, and nothing done. The times are short enough for a test.
    scene
        .enforce("watch", "trainer", |spec| {
            spec["mode"] = json!("Observe");
            spec["prediction"]["horizonSeconds"] = json!(900);
        })
        .await?;
    scene.deploy("server-pool", 15, "pool:at=72GiB").await?;
    scene.deploy("trainer-plateau", 16, "load:to=71GiB,over=8s").await?;
    scene.deploy("trainer", 14, LEAK).await?;

    let first =
        until("a message about the trainer", WARNING, || async { Ok(receiver.naming(NAMESPACE).into_iter().next()) })
            .await;
    let first = match first {
        Ok(message) => message,
        Err(error) => {
            let seen = monitoring.ask(&format!("{{namespace=\"{NAMESPACE}\"}}")).await?;
            return Err(error.context(format!("{}\n{seen:#?}\n{}", monitoring.log(), scene.story("watch").await)));
        }
    };
    assert_eq!(first.path, "/tickets.search/alerts", "the team of the namespace");
    assert_eq!(first.told(), [told("firing")]);
    let notes = &first.body["alerts"][0]["annotations"];
    let (summary, description) = (notes["summary"].to_string(), notes["description"].to_string());
    assert!(
        summary.contains("Deployment search-leak/trainer is likely to run out of GPU memory in about"),
        "{summary}"
    );
    assert!(
        description.contains("container main of pod trainer-") && description.contains("on GPU 14"),
        "{description}"
    );

    // The owner stops it.
    let mut stopped = scene.workload("apps/v1", "Deployment", "trainer", 14, LEAK);
    stopped["spec"]["replicas"] = json!(0);
    scene.apply(&stopped).await?;
    until("the message that it is over", WARNING, || async {
        Ok((receiver.naming(NAMESPACE).len() > 1).then_some(()))
    })
    .await?;
    throughout("nobody is told anything more", Duration::from_secs(15), || async {
        Ok(receiver.naming(NAMESPACE).len() == 2)
    })
    .await?;
    let all: Vec<Told> = receiver.naming(NAMESPACE).iter().flat_map(Message::told).collect();
    assert_eq!(
        all,
        [told("firing"), told("resolved")],
        "one warning and its end, and no word of the steady neighbours"
    );

    let broken = monitoring.broken_rules().await?;
    ensure!(broken.is_empty(), "rules that fail on real data: {broken:#?}");
    let up = monitoring.ask("count by (job) (up == 1)").await?;
    ensure!(up.len() == 2, "agents and controllers are scraped: {up:#?}");
    let renamed = monitoring.ask("{exported_namespace!=\"\"}").await?;
    ensure!(renamed.is_empty(), "the workload's own labels win: {renamed:#?}");
    scene.close().await
}

#[tokio::test]
async fn service_monitors_scrape_every_agent_and_controller_too() -> Result<()> {
    let world = World::find().await?;
    let services: kube::Api<Service> = kube::Api::namespaced(world.client.clone(), RELEASE_NAMESPACE);
    let objects = Kind::ServiceMonitor.rendered(&world)?;
    let made: Vec<_> = objects.iter().filter(|object| object["kind"] == "Service").collect();
    ensure!(made.len() == 2 && objects.len() == 4, "a Service beside each monitor: {objects:#?}");
    let name = |object: &serde_json::Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    for service in &made {
        services.patch(&name(service), &PatchParams::apply("test").force(), &Patch::Apply(service)).await?;
    }
    let monitoring = Monitoring::start(&world, "services", Kind::ServiceMonitor, &[], None).await?;
    let pods: kube::Api<Pod> = kube::Api::namespaced(world.client.clone(), RELEASE_NAMESPACE);
    let running =
        pods.list(&ListParams::default().labels("app.kubernetes.io/component in (agent, controller)")).await?;
    let scraped = until("every pod to be scraped", Duration::from_mins(1), || async {
        let up = monitoring.ask("up == 1").await?;
        Ok((up.len() == running.items.len()).then_some(up))
    })
    .await;
    for service in &made {
        services.delete(&name(service), &kube::api::DeleteParams::default()).await?;
    }
    let scraped = match scraped {
        Ok(scraped) => scraped,
        Err(error) => return Err(error.context(monitoring.log())),
    };
    let jobs: BTreeSet<_> = scraped.iter().map(|up| up["metric"]["job"].to_string()).collect();
    ensure!(jobs.len() == 2, "one job for agents, one for controllers: {scraped:#?}");
    let renamed = monitoring.ask("{exported_namespace!=\"\"}").await?;
    ensure!(renamed.is_empty(), "the workload's own labels win: {renamed:#?}");
    Ok(())
}

#[tokio::test]
async fn the_chart_selects_its_own_pods_and_no_others() -> Result<()> {
    let world = World::find().await?;
    let monitors = monitor::rendered(&world, "templates/monitoring.yaml", &["monitoring.podMonitor.enabled=true"])?;
    for monitor in &monitors {
        let labels = monitor["spec"]["selector"]["matchLabels"].as_object().cloned().unwrap_or_default();
        let labels: Vec<_> =
            labels.iter().map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
        let pods: kube::Api<Pod> = kube::Api::all(world.client.clone());
        let found = pods.list(&ListParams::default().labels(&labels.join(","))).await?.items;
        ensure!(!found.is_empty(), "{} selects nothing", monitor["metadata"]["name"]);
        for pod in found {
            let has_port = pod
                .spec
                .iter()
                .flat_map(|spec| &spec.containers)
                .flat_map(|container| container.ports.iter().flatten());
            ensure!(
                has_port.into_iter().any(|port| port.name.as_deref() == Some("metrics")),
                "{:?} has no port metrics",
                pod.metadata.name
            );
        }
    }
    ensure!(monitors.len() == 2, "agents and controllers: {monitors:#?}");
    Ok(())
}

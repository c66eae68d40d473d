//! The leading controller stops for a while with an action in the making.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use serde_json::json;

use gpumem::api::policy::{ActionType, Risk};

use super::ready;
use crate::story::frame::RELEASE_NAMESPACE;
use crate::support::scene::Scene;
use crate::support::world::World;
use crate::support::{throughout, until};

/// From the death of a leader until another one leads and has seen enough.
const TAKEOVER: Duration = Duration::from_secs(60);

/// Name and UID of the pod that holds the Lease.
async fn leader(world: &World) -> Result<(String, String)> {
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), RELEASE_NAMESPACE);
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), RELEASE_NAMESPACE);
    until("a leader", TAKEOVER, || async {
        let leases = leases.list(&ListParams::default()).await?.items;
        let holder = leases.into_iter().find_map(|lease| lease.spec?.holder_identity).filter(|name| !name.is_empty());
        let Some(holder) = holder else { return Ok(None) };
        let uid = pods.get_opt(&holder).await?.and_then(|pod| pod.metadata.uid);
        Ok(uid.map(|uid| (holder, uid)))
    })
    .await
}

/// Sends a signal to the process that leads, and says which pod that was.
async fn signal_leader(world: &World, signal: &str) -> Result<(String, String)> {
    until("a leader that runs", TAKEOVER, || async {
        let (name, uid) = leader(world).await?;
        Ok((world.signal("controller", Some(&uid), signal)? > 0).then_some((name, uid)))
    })
    .await
}

/// How often the policy says that it did this and it came to pass.
async fn done(scene: &Scene<'_>, policy: &str, action: ActionType) -> Result<usize> {
    let actions = scene.actions(policy).await?.into_iter();
    Ok(actions.filter(|done| done.action == action && done.outcome == "Succeeded").count())
}

#[tokio::test]
async fn storm_5_a_leader_that_sleeps_through_its_lease_leaves_the_work_to_the_next_and_wakes_up_idle() -> Result<()> {
    let world = World::find().await?;
    let scene = Scene::open(&world, "storm-sleep").await?;
    scene
        .enforce("p", "leaker", |spec| {
            spec["prediction"]["act"]["forSeconds"] = json!(10);
            spec["prediction"]["horizonSeconds"] = json!(120);
        })
        .await?;
    scene.deploy("leaker", 23, "leak:from=50GiB,rate=220MiB/s,start=5s").await?;
    let uid = scene.running("leaker").await?;
    until("a risk", Duration::from_mins(2), || async {
        let status = scene.policy("p").await?.status.unwrap_or_default();
        Ok(status.workloads.iter().any(|one| one.risk >= Risk::Elevated).then_some(()))
    })
    .await?;
    // Stopped with a decision in the making, and woken when another one has the Lease and did the work.
    let asleep = signal_leader(&world, "-STOP").await?;
    let slept = async {
        until("another leader", TAKEOVER, || async {
            Ok(Some(leader(&world).await?.0).filter(|name| *name != asleep.0))
        })
        .await?;
        scene.evicted("p", &uid, 2 * TAKEOVER).await
    }
    .await;
    world.signal("controller", Some(&asleep.1), "-CONT")?;
    slept?;
    let second = scene.running("leaker").await?;
    throughout("who woke up does not evict again", Duration::from_secs(20), || async {
        let pods = scene.pods("leaker").await?;
        Ok(pods
            .iter()
            .any(|pod| pod.metadata.uid.as_deref() == Some(&second) && pod.metadata.deletion_timestamp.is_none()))
    })
    .await?;
    let count = done(&scene, "p", ActionType::Evict).await?;
    ensure!(count == 1, "one eviction and not {count}: {}", scene.story("p").await);
    ready(&world, "controller", 2).await?;
    scene.close().await
}

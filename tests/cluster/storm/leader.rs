//! The leading controller stops for a while with an action in the making.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use gpumem::api::policy::{ActionType, Risk};

use super::ready;
use crate::support::leader::{TAKEOVER, done, leader, signal_leader};
use crate::support::scene::Scene;
use crate::support::world::World;
use crate::support::{throughout, until};

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

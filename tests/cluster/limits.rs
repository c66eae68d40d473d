//! What holds on a node, through what happens to nodes: its agent is killed, a policy goes, the node is drained, the product
//! is uninstalled; each while one pod is limited and one is frozen. In one scene, for a container is old enough to be frozen
//! after minutes only, and the rest hurts whoever counts on the agent or the node.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt as _;
use gpumem::api::names::metric;
use gpumem::api::node::{GpuMemoryNode, LimitPhase, LimitStatus};
use gpumem::api::policy::GpuMemoryPolicy;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, LogParams, WatchEvent, WatchParams};
use serde_json::json;

use crate::story::frame::RELEASE_NAMESPACE;
use crate::story::scrape::metrics;
use crate::support::scene::Scene;
use crate::support::world::World;
use crate::support::{throughout, until};

/// From a pod's start to its freeze: after more there would be no time to move it.
const FREEZE: Duration = Duration::from_mins(6);
/// From an order to its read-back in the API.
const READ_BACK: Duration = Duration::from_secs(45);
/// For an uninstallation, which waits for two minutes at most for what holds.
const UNINSTALL: Duration = Duration::from_mins(4);

/// Grows for six and a half minutes towards what its policy declares, its context of half a GiB included. No container is
/// stopped before it is three times as old as the late end of what is left to it, which is after five; then there are three
/// quarters of a minute in which a move, which takes half of one, still comes in time. One leader freezes three pods one after
/// the other, seconds apart. The simulated driver moves them at once, and this machine's memory has to take them.
const GROWER: &str = "leak:from=512MiB,rate=2.5MiB/s,start=5s";

/// A workload `name` that its policy freezes.
async fn freezes(scene: &Scene<'_>, name: &str, gpu: u32) -> Result<String> {
    scene
        .enforce(name, name, |spec| {
            spec["memory"] = json!({"budget": "Declared", "declared": "2Gi", "headroom": "64Mi"});
            spec["prediction"]["horizonSeconds"] = json!(120);
            spec["actions"] = json!([{"type": "SuspendToHost"}]);
        })
        .await?;
    scene.deploy(name, gpu, GROWER).await?;
    scene.running(name).await
}

/// A workload `name` that its policy holds to 4 GiB.
async fn held(scene: &Scene<'_>, name: &str, gpu: u32) -> Result<String> {
    scene
        .enforce(name, name, |spec| {
            spec["actions"] = json!([{"type": "LimitGrowth"}]);
            spec["growthLimit"] = json!({"ceiling": "4Gi", "enforcement": "Kernel"});
        })
        .await?;
    scene.deploy(name, gpu, "plateau:at=2GiB").await?;
    scene.running(name).await
}

/// What the node's object says of a pod.
async fn standing(world: &World, uid: &str) -> Result<Option<LimitStatus>> {
    let nodes: Api<GpuMemoryNode> = Api::all(world.client.clone());
    let found = nodes.list(&ListParams::default()).await?.items.into_iter();
    let mut entries = found.flat_map(|node| node.status.map(|status| status.limits).unwrap_or_default());
    Ok(entries.find(|entry| entry.pod_uid == uid))
}

/// Waits until a pod stands so; says what its policy, of the same name, tells of it where that never comes.
async fn stands(scene: &Scene<'_>, name: &str, uid: &str, phase: LimitPhase, limit: Duration) -> Result<()> {
    let seen = until(&format!("{phase:?} of {name}, pod {uid}"), limit, || async {
        Ok(standing(scene.world, uid).await?.filter(|entry| entry.state == phase).map(|_| ()))
    })
    .await;
    match seen {
        Ok(()) => Ok(()),
        Err(error) => {
            let stands = standing(scene.world, uid).await;
            Err(error.context(format!("it stands so: {stands:#?}")).context(scene.story(name).await))
        }
    }
}

/// Whether one pod is limited and another frozen.
async fn both_stand(world: &World, limited: &str, frozen: &str) -> Result<bool> {
    let phase = async |uid| Ok::<_, anyhow::Error>(standing(world, uid).await?.map(|entry| entry.state));
    Ok(phase(limited).await? == Some(LimitPhase::Applied) && phase(frozen).await? == Some(LimitPhase::Frozen))
}

fn agents(client: &kube::Client) -> (Api<Pod>, &'static str) {
    (Api::namespaced(client.clone(), RELEASE_NAMESPACE), "app.kubernetes.io/component=agent")
}

/// Bytes that the agent exports of a pod's containers under a name; `None` where it exports nothing.
async fn exported(world: &World, scene: &Scene<'_>, name: &str, app: &str) -> Result<Option<f64>> {
    let (agents, selector) = agents(&world.client);
    let found = agents.list(&ListParams::default().labels(selector)).await?.items.into_iter();
    let mut present = found.filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let ip = present.find_map(|pod| pod.status?.pod_ip).context("no agent has an address")?;
    let samples = metrics(&format!("{ip}:9400")).await?;
    let own = |label: &str, of: &str| label == of || label.starts_with(&format!("{of}-"));
    Ok(samples
        .iter()
        .find(|sample| {
            sample.name == name && sample.label("namespace") == scene.namespace && own(sample.label("pod"), app)
        })
        .map(|sample| sample.value))
}

/// An agent is killed while it holds: the next one reads back the same, and nothing ends in between.
async fn outlives_a_killed_agent(world: &World, scene: &Scene<'_>, limited: &str, frozen: &str) -> Result<()> {
    ensure!(world.kill("agent")? > 0, "no agent was found to kill");
    until("the next agent to read the limit back", READ_BACK, || async {
        Ok(exported(world, scene, metric::CONTAINER_LIMIT, "held").await.ok().flatten())
    })
    .await?;
    throughout("both stand under the next agent", Duration::from_secs(8), || async {
        let moved = exported(world, scene, metric::CONTAINER_USED, "frozen").await?.is_none();
        Ok(moved && both_stand(world, limited, frozen).await?)
    })
    .await
}

/// The policy goes: the container goes on, and was never restarted.
async fn ends_with_its_policy(world: &World, scene: &Scene<'_>, frozen: &str) -> Result<()> {
    scene.api::<GpuMemoryPolicy>().delete("frozen", &DeleteParams::default()).await?;
    until("the container to hold its memory again", READ_BACK, || async {
        exported(world, scene, metric::CONTAINER_USED, "frozen").await
    })
    .await?;
    until("no entry of it", READ_BACK, || async { Ok(standing(world, frozen).await?.is_none().then_some(())) }).await?;
    ensure!(scene.restarts("frozen").await? == 0, "the frozen container was restarted");
    Ok(())
}

/// The node is drained: both pods leave in their grace period, what held goes along, and the pod in the place of the one is
/// held under its own name, for its policy stands; its UID.
async fn ends_with_its_pod(world: &World, scene: &Scene<'_>, limited: &str, drained: &str) -> Result<String> {
    ensure!(both_stand(world, limited, drained).await?, "one is limited and one frozen when the drain begins");
    let node = scene.pods("held").await?.into_iter().find_map(|pod| pod.spec?.node_name).context("no node")?;
    let both = "--pod-selector=app in (held, drained)";
    let patience = "--timeout=40s";
    world.cluster(&["kubectl", "drain", &node, both, "--ignore-daemonsets", "--delete-emptydir-data", patience])?;
    world.cluster(&["kubectl", "uncordon", &node])?;
    until("nothing left of the drained pods", READ_BACK, || async {
        Ok((standing(world, drained).await?.is_none() && standing(world, limited).await?.is_none()).then_some(()))
    })
    .await?;
    let next = scene.running("held").await?;
    ensure!(next != limited, "it is another pod");
    stands(scene, "held", &next, LimitPhase::Applied, READ_BACK).await?;
    Ok(next)
}

/// The product is uninstalled: the nodes are told to let go while one pod is limited and one frozen, and no agent is ended
/// before it has read back that nothing holds.
async fn ends_with_the_release(world: &World, scene: &Scene<'_>, limited: &str, frozen: &str) -> Result<()> {
    ensure!(both_stand(world, limited, frozen).await?, "one is limited and one frozen when the uninstallation begins");
    let (agents, selector) = agents(&world.client);
    let from = agents.list_metadata(&ListParams::default().labels(selector)).await?.metadata.resource_version;
    let watching = tokio::spawn(lets_go(world.client.clone(), from.context("a list without a version")?));
    let began = jiff::Timestamp::now();
    world.cluster(&["uninstall"])?;
    let seen = tokio::time::timeout(UNINSTALL, watching).await;
    let pod = scene.pods("last").await?.pop().context("no pod")?.name_any();
    let said = scene.api::<Pod>().logs(&pod, &LogParams { since_time: Some(began), ..LogParams::default() }).await?;
    let restarts = scene.restarts("last").await?;
    world.cluster(&["install"])?;
    let (told, read_back, ended) =
        seen.context("it was never seen that the nodes were told, that nothing held, and that an agent ended")???;
    let held = |uid: &str, phase| told.iter().any(|entry| entry.pod_uid == uid && entry.state == phase);
    ensure!(
        held(limited, LimitPhase::Applied) && held(frozen, LimitPhase::Frozen),
        "one was limited and one frozen when the nodes were told to let go: {told:#?}"
    );
    ensure!(read_back < ended, "an agent ended (version {ended}) before nothing held any more (version {read_back})");
    // The release's own driver goes with it, and its end would free anybody: the frozen one has to say something before.
    ensure!(said.starts_with("t="), "it did not go on before its driver was gone, but said: {said}");
    ensure!(restarts == 0, "the container that was frozen till then was restarted");
    Ok(())
}

/// What held when the node's object was told to release, the version at which nothing did any more, and the version at which
/// the first agent was to end. Versions count the writes of all objects, so they say what came first however short the moment
/// was, and a watch from a version on misses none.
async fn lets_go(client: kube::Client, from: String) -> Result<(Vec<LimitStatus>, u64, u64)> {
    let (agents, selector) = agents(&client);
    let nodes: Api<GpuMemoryNode> = Api::all(client);
    let released = async {
        let mut changes = nodes.watch(&WatchParams::default(), &from).await?.boxed();
        let mut told = None;
        while let Some(change) = changes.next().await {
            let object = match change? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) if object.spec.release => object,
                WatchEvent::Deleted(_) => bail!("the node's object went before nothing held"),
                WatchEvent::Error(error) => bail!("the watch of the nodes' objects ended: {error:?}"),
                _ => continue,
            };
            let version = object.resource_version().context("an object without a version")?.parse()?;
            let holding = object.status.map(|status| status.limits).unwrap_or_default();
            let is_over = holding.is_empty();
            let first = told.get_or_insert(holding);
            if is_over {
                return Ok((std::mem::take(first), version));
            }
        }
        bail!("the watch of the nodes' objects ended before nothing held")
    };
    let ended = async {
        let mut changes = agents.watch(&WatchParams::default().labels(selector), &from).await?.boxed();
        while let Some(change) = changes.next().await {
            match change? {
                WatchEvent::Modified(pod) if pod.metadata.deletion_timestamp.is_none() => {}
                WatchEvent::Modified(pod) | WatchEvent::Deleted(pod) => {
                    return Ok(pod.resource_version().context("a pod without a version")?.parse()?);
                }
                WatchEvent::Error(error) => bail!("the watch of the agents ended: {error:?}"),
                WatchEvent::Added(_) | WatchEvent::Bookmark(_) => {}
            }
        }
        bail!("the watch of the agents ended before one of them did")
    };
    let ((told, read_back), ended) = tokio::try_join!(released, ended)?;
    Ok((told, read_back, ended))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_holds_outlives_a_killed_agent_and_ends_with_its_policy_its_pod_and_the_release() -> Result<()> {
    let world = World::find().await?;
    let scene = Scene::open(&world, "limits").await?;
    let limited = held(&scene, "held", 16).await?;
    let frozen = freezes(&scene, "frozen", 17).await?;
    let drained = freezes(&scene, "drained", 18).await?;
    let last = freezes(&scene, "last", 19).await?;
    // An agent that was there before the driver tries it again after a minute.
    stands(&scene, "held", &limited, LimitPhase::Applied, Duration::from_mins(1) + READ_BACK).await?;
    for (name, uid) in [("frozen", &frozen), ("drained", &drained), ("last", &last)] {
        stands(&scene, name, uid, LimitPhase::Frozen, FREEZE).await?;
    }
    outlives_a_killed_agent(&world, &scene, &limited, &frozen).await.context("an agent was killed")?;
    ends_with_its_policy(&world, &scene, &frozen).await.context("a policy was deleted")?;
    let next = ends_with_its_pod(&world, &scene, &limited, &drained).await.context("a node was drained")?;
    ends_with_the_release(&world, &scene, &next, &last).await.context("the product was uninstalled")?;
    scene.close().await
}

//! The leading controller dies at the instants of an action at which that could hurt, again and again.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gpumem::api::names::ANNOTATION_CHECKPOINT_REQUEST;
use gpumem::api::policy::{ActionType, Risk, WorkloadStatus};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

use crate::story::frame::RELEASE_NAMESPACE;
use crate::support::leader::{TAKEOVER, done, signal_leader};
use crate::support::scene::Scene;
use crate::support::until;
use crate::support::world::World;

/// From the start until any one of the three is acted on: a container is stopped when it is three times as old as what is left
/// to it.
const ACTED: Duration = Duration::from_mins(6);

/// Entries of a key of the ledger, as it stands.
async fn ledger(world: &World, key: &str) -> Result<Vec<Value>> {
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), RELEASE_NAMESPACE);
    let maps = maps.list(&ListParams::default()).await?.items;
    let text = maps.into_iter().find_map(|map| map.data?.remove(key));
    Ok(text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default())
}

async fn suspended(scene: &Scene<'_>, job: &str) -> Result<bool> {
    Ok(scene.api::<Job>().get(job).await?.spec.and_then(|spec| spec.suspend).unwrap_or(false))
}

/// Id of the request that the pod with this UID stands with.
async fn request(scene: &Scene<'_>, app: &str, uid: &str) -> Result<Option<String>> {
    let pods = scene.pods(app).await?.into_iter();
    let mut same = pods.filter(|pod| pod.metadata.uid.as_deref() == Some(uid));
    let annotations = same.next().and_then(|pod| pod.metadata.annotations);
    Ok(annotations.and_then(|mut all| all.remove(ANNOTATION_CHECKPOINT_REQUEST)))
}

/// How often people were told this of a pod.
async fn told(scene: &Scene<'_>, reason: &str) -> Result<usize> {
    let events = scene.api::<Event>().list(&ListParams::default()).await?.items;
    let is_it = |event: &&Event| {
        let regarding = event.regarding.as_ref().and_then(|of| of.kind.as_deref());
        event.reason.as_deref() == Some(reason) && regarding == Some("Pod")
    };
    Ok(events.iter().filter(is_it).count())
}

/// What the policy says became of its newest eviction, where that is known.
async fn became(scene: &Scene<'_>, policy: &str) -> Result<Option<String>> {
    let ends = ["Succeeded", "FoundDone", "Abandoned"];
    let mut actions = scene.actions(policy).await?.into_iter();
    let known = actions.find(|done| done.action == ActionType::Evict && ends.contains(&done.outcome.as_str()));
    Ok(known.map(|done| done.outcome))
}

/// A Job that is suspended, a pod that is asked to save its work, and one that is evicted.
async fn stage(scene: &Scene<'_>) -> Result<()> {
    scene
        .enforce("suspends", "job", |spec| {
            spec["actions"] = json!([{"type": "SuspendWorkload"}]);
            spec["disruption"]["cooldownSeconds"] = json!(45);
            spec["disruption"]["maxAttempts"] = json!(1);
        })
        .await?;
    scene
        .enforce("asks", "asked", |spec| {
            spec["actions"] = json!([
                {"type": "Checkpoint", "checkpoint": {"timeoutSeconds": 20, "need": "Required"}}, {"type": "Evict"}
            ]);
            spec["prediction"]["horizonSeconds"] = json!(120);
        })
        .await?;
    scene
        .enforce("evicts", "leaker", |spec| {
            spec["prediction"]["act"]["forSeconds"] = json!(8);
            spec["prediction"]["horizonSeconds"] = json!(120);
        })
        .await?;
    let mut job = scene.workload("batch/v1", "Job", "job", 8, "leak:from=58GiB,rate=220MiB/s,start=5s");
    let template = job["spec"]["template"].clone();
    job["spec"] = json!({"backoffLimit": 0, "template": template});
    job["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
    job["spec"]["template"]["spec"]["containers"][0]["args"]
        .as_array_mut()
        .context("arguments")?
        .push(json!("--exit-on-signal=143"));
    scene.apply(&job).await?;
    // It ends to grow before it dies, so that a restarted container does not grow again.
    scene.deploy("asked", 9, "leak:from=20GiB,rate=290MiB/s,start=2s,stop=74GiB").await?;
    scene.deploy("leaker", 24, "leak:from=50GiB,rate=90MiB/s,start=5s").await
}

/// The leader is killed when a Job is suspended, when a checkpoint is asked for, at a risk that no intent stands for yet, and
/// as soon as an intent stands; `storm_1` kills it after its call. `tests/it/acts/crashes.rs` does it before and after every
/// single request.
#[tokio::test]
async fn a_leader_that_dies_at_any_instant_of_an_action_does_none_twice_and_leaves_none_untold() -> Result<()> {
    let world = World::find().await?;
    let scene = Scene::open(&world, "crashes").await?;
    stage(&scene).await?;
    scene.running("job").await?;
    let asked = scene.running("asked").await?;
    let leaker = scene.running("leaker").await?;

    // A suspended Job waits for its resume.
    let seen = until("the Job to be suspended", ACTED, || async { Ok(suspended(&scene, "job").await?.then_some(())) });
    if let Err(error) = seen.await {
        return Err(error.context(scene.story("suspends").await));
    }
    signal_leader(&world, "-9").await?;

    // A checkpoint is asked for.
    let id = match until("a request to save", ACTED, || request(&scene, "asked", &asked)).await {
        Ok(id) => id,
        Err(error) => return Err(error.context(scene.story("asks").await)),
    };
    signal_leader(&world, "-9").await?;

    // At risk, and no intent yet.
    let seen = until("a risk", ACTED, || async {
        let status = scene.policy("evicts").await?.status.unwrap_or_default();
        let is_at_risk = |workload: &WorkloadStatus| workload.risk >= Risk::Elevated;
        Ok(status.workloads.iter().any(is_at_risk).then_some(()))
    });
    if let Err(error) = seen.await {
        return Err(error.context(scene.story("evicts").await));
    }
    signal_leader(&world, "-9").await?;

    // As soon as the intent stands: before or right after its call.
    let mut left = 20 * ACTED.as_secs();
    let of_leaker = |intents: &[Value]| intents.iter().any(|intent| intent.to_string().contains(&leaker));
    while !of_leaker(&ledger(&world, "intents").await?) && done(&scene, "evicts", ActionType::Evict).await? == 0 {
        left -= 1;
        ensure!(left > 0, "no intent: {}", scene.story("evicts").await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    signal_leader(&world, "-9").await?;
    // Made or not, people hear of it: a call that was never made is given up when none can be under way any more.
    let (outcome, said) = match until("what became of the eviction", 3 * TAKEOVER, || became(&scene, "evicts")).await {
        Ok(outcome) if outcome == "Abandoned" => (outcome, "GpuMemoryEvictionWithdrawn"),
        Ok(outcome) => (outcome, "GpuMemoryEviction"),
        Err(error) => return Err(error.context(scene.story("evicts").await)),
    };
    eprintln!("the eviction whose intent stood: {outcome}");
    let stays = |pod: &Pod| pod.metadata.uid.as_deref() == Some(&leaker) && pod.metadata.deletion_timestamp.is_none();
    let is_called = !scene.pods("leaker").await?.iter().any(stays);
    ensure!(is_called == (outcome != "Abandoned"), "{outcome}, and called: {is_called}");

    until("the Job to go on", 2 * TAKEOVER, || async { Ok((!suspended(&scene, "job").await?).then_some(())) }).await?;
    let now = request(&scene, "asked", &asked).await?;
    ensure!(now.is_none_or(|now| now == id), "the request was made once");
    for key in ["intents", "untold"] {
        until(&format!("no {key} in the ledger"), 2 * TAKEOVER, || async {
            Ok(ledger(&world, key).await?.is_empty().then_some(()))
        })
        .await?;
    }
    let acts = [
        ("suspends", ActionType::SuspendWorkload, "GpuMemorySuspension", 1),
        ("asks", ActionType::Checkpoint, "GpuMemoryCheckpoint", 1),
        ("evicts", ActionType::Evict, said, usize::from(is_called)),
    ];
    for (policy, action, reason, expected) in acts {
        let (count, events) = (done(&scene, policy, action).await?, told(&scene, reason).await?);
        ensure!(
            (count, events) == (expected, 1),
            "{policy} did {action:?} {count} times and said so {events} times: {}",
            scene.story(policy).await
        );
    }
    ensure!(done(&scene, "asks", ActionType::Evict).await? == 0, "nobody answered, so nobody was evicted");
    scene.close().await
}

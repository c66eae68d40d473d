//! Kueue's own controller, installed by its own chart, admits a Job that we suspend: by Kueue's lever, for the cool-down, and
//! back by our undo.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gpumem::api::policy::ActionType;
use k8s_openapi::api::batch::v1::Job;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};

use crate::support::scene::{EVICTION, LEAK, Scene};
use crate::support::world::World;
use crate::support::{throughout, until};

const GROUP: &str = "kueue.x-k8s.io";
const VERSION: &str = "v1beta2";
const COOLDOWN: Duration = Duration::from_mins(1);

fn kind(name: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, VERSION, name))
}

/// One queue with room for both Jobs of the test.
async fn queue(world: &World, scene: &Scene<'_>) -> Result<()> {
    for (kind_name, spec) in [
        ("ResourceFlavor", json!({})),
        (
            "ClusterQueue",
            json!({"namespaceSelector": {}, "resourceGroups": [{
                "coveredResources": ["cpu"],
                "flavors": [{"name": "night", "resources": [{"name": "cpu", "nominalQuota": "1"}]}]
            }]}),
        ),
    ] {
        let api: Api<DynamicObject> = Api::all_with(world.client.clone(), &kind(kind_name));
        let object = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": kind_name, "metadata": {"name": "night"}, "spec": spec});
        until(&format!("Kueue to take the {kind_name}"), Duration::from_mins(2), || async {
            Ok(Some(api.patch("night", &PatchParams::apply("test").force(), &Patch::Apply(&object)).await?))
        })
        .await?;
    }
    scene
        .apply(&json!({
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "LocalQueue", "metadata": {"name": "night"},
            "spec": {"clusterQueue": "night"}
        }))
        .await?;
    Ok(())
}

/// A leaking Job of this queue that does not end well when it is told to end.
fn queued(scene: &Scene<'_>, name: &str, gpu: u32) -> Value {
    let mut job = scene.workload("batch/v1", "Job", name, gpu, LEAK);
    let mut template = job["spec"]["template"].clone();
    template["spec"]["restartPolicy"] = json!("Never");
    template["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "100m"}});
    if let Some(args) = template["spec"]["containers"][0]["args"].as_array_mut() {
        args.push(json!("--exit-on-signal=143"));
    }
    let ignored = json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]});
    job["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "night"});
    job["spec"] = json!({"backoffLimit": 0, "podFailurePolicy": {"rules": [ignored]}, "template": template});
    job
}

/// The Workload that Kueue made of the Job.
async fn workload(scene: &Scene<'_>, job: &str) -> Result<DynamicObject> {
    let uid = scene.api::<Job>().get(job).await?.metadata.uid.context("a UID")?;
    let api: Api<DynamicObject> = Api::namespaced_with(scene.world.client.clone(), &scene.namespace, &kind("Workload"));
    let found = api.list(&ListParams::default().labels(&format!("{GROUP}/job-uid={uid}"))).await?.items;
    ensure!(found.len() == 1, "{} Workloads of {job}", found.len());
    found.into_iter().next().context("a Workload")
}

fn says(workload: &DynamicObject, condition: &str) -> bool {
    let conditions = workload.data["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|one| one["type"] == condition && one["status"] == "True")
}

/// How the Job stands: whether Kueue holds it, and its pods that are not on their way out.
async fn standing(scene: &Scene<'_>, job: &str) -> Result<(bool, usize)> {
    let held = scene.api::<Job>().get(job).await?.spec.and_then(|spec| spec.suspend) == Some(true);
    let pods = scene.pods(job).await?;
    Ok((held, pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).count()))
}

async fn reason(scene: &Scene<'_>, policy: &str, reason: &str, names: &str) -> Result<()> {
    let seen = until(&format!("{reason} that names {names}"), EVICTION, || async {
        let status = scene.policy(policy).await?.status.unwrap_or_default();
        let mut allowed = status.conditions.iter().filter(|one| one.type_ == "ActionAllowed" && one.reason == reason);
        Ok(allowed.any(|one| one.message.contains(names)).then_some(()))
    })
    .await;
    match seen {
        Ok(()) => Ok(()),
        Err(error) => Err(error.context(scene.story(policy).await)),
    }
}

#[tokio::test]
async fn a_job_that_kueue_admits_is_suspended_by_kueues_lever_and_admitted_again_after_the_cool_down() -> Result<()> {
    let world = World::find().await?;
    let scene = Scene::open(&world, "night-jobs").await?;
    queue(&world, &scene).await?;
    scene.enforce("kept", "kept", |spec| spec["disruption"]["maxPerHour"] = json!(10)).await?;
    let suspending = |spec: &mut Value| {
        let suspend = json!({"type": "SuspendWorkload", "suspendWorkload": {"resume": "AfterCooldown"}});
        spec["actions"] = json!([{"type": "Notify"}, suspend]);
        spec["disruption"]["cooldownSeconds"] = json!(COOLDOWN.as_secs());
    };
    scene.enforce("off", "off", suspending).await?;
    scene.enforce("nightly", "train", suspending).await?;

    // What Kueue admits is never evicted past it, and its own lever is off until the administrator turns it on.
    scene.apply(&queued(&scene, "kept", 9)).await?;
    scene.apply(&queued(&scene, "off", 18)).await?;
    for app in ["kept", "off"] {
        scene.running(app).await?;
        ensure!(says(&workload(&scene, app).await?, "Admitted"), "{app} runs, so Kueue admitted it");
    }
    reason(&scene, "kept", "NoLever", "Kueue").await?;
    reason(&scene, "off", "UnsupportedOwner", "KueueWorkload").await?;
    world.cluster(&["upgrade", "--set-json", "controller.workloadKinds.KueueWorkload=[\"Suspend\"]"])?;

    scene.apply(&queued(&scene, "train", 17)).await?;
    let first = scene.running("train").await?;
    let told = follow(&scene, &first).await;
    match told {
        Ok(()) => scene.close().await,
        Err(error) => {
            let kueue = workload(&scene, "train").await.map(|found| found.data);
            Err(error.context(format!("{kueue:#?}\n{}", scene.story("nightly").await)))
        }
    }
}

async fn follow(scene: &Scene<'_>, first: &str) -> Result<()> {
    until(
        "the Workload to be inactive, Kueue to take its quota back, the Job held and its pod gone",
        EVICTION,
        || async {
            let now = workload(scene, "train").await?;
            let back = now.data["spec"]["active"] == false && says(&now, "Evicted") && !says(&now, "QuotaReserved");
            Ok((back && standing(scene, "train").await? == (true, 0)).then_some(()))
        },
    )
    .await?;
    let done = scene.actions("nightly").await?;
    ensure!(done.len() == 1 && done[0].action == ActionType::SuspendWorkload && done[0].pod_uid == first, "{done:#?}");
    let held = workload(scene, "train").await?;
    // Each would show a fight: a Workload written again, a Job let go, a second action.
    throughout("left alone by both for the cool-down", COOLDOWN * 2 / 3, || async {
        let now = workload(scene, "train").await?;
        Ok(now.data["spec"]["active"] == false
            && now.metadata.generation == held.metadata.generation
            && standing(scene, "train").await? == (true, 0)
            && scene.actions("nightly").await?.len() == 1)
    })
    .await?;

    let second = until("Kueue to admit it again, by our undo", 2 * COOLDOWN, || async {
        let now = workload(scene, "train").await?;
        let runs = now.data["spec"]["active"] == true && says(&now, "Admitted");
        Ok(if runs && standing(scene, "train").await? == (false, 1) {
            Some(scene.running("train").await?)
        } else {
            None
        })
    })
    .await?;
    ensure!(second != first, "another pod");
    let outcomes: Vec<String> = scene.actions("nightly").await?.into_iter().map(|one| one.outcome).collect();
    ensure!(outcomes == ["Resumed", "Succeeded"], "{outcomes:?}");
    let status = scene.api::<Job>().get("train").await?.status.unwrap_or_default();
    ensure!(status.failed.unwrap_or(0) == 0, "a suspension is no failure: {status:?}");
    Ok(())
}

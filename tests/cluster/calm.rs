//! Tests that leave the cluster itself alone: each has a namespace and GPUs of its own, and they run together.

use std::time::Duration;

use anyhow::{Result, ensure};
use gpumem::api::node::{GpuMemoryNode, LimitPhase};
use gpumem::api::policy::GpuMemoryPolicy;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, LogParams, Patch, PatchParams};
use serde_json::json;

use crate::story::plan::Plan;
use crate::story::{self, cast};
use crate::support::scene::{EVICTION, LEAK, Scene};
use crate::support::world::World;
use crate::support::{gpus, throughout, until};

mod gentle;
mod kinds;
mod milder;

async fn play(world: &World, plan: &Plan) -> Result<()> {
    for role in &plan.order {
        gpus::take(plan.gpu(*role), &plan.namespace);
    }
    let told = story::play(&world.client, plan, |_, _| {}).await?;
    let findings = told.findings();
    // Shown where the test fails, and to who asks for it.
    for finding in &findings {
        println!("{}: {}", plan.namespace, finding.text);
    }
    println!("what held: {:#?}", told.holds);
    let failed: Vec<_> = findings.into_iter().filter(|finding| !finding.holds).map(|finding| finding.text).collect();
    cast::leave(&world.client, plan).await?;
    ensure!(failed.is_empty(), "{plan}\n{}\nevents: {:#?}", failed.join("\n"), told.events);
    Ok(())
}

#[tokio::test]
async fn the_leaking_trainer_is_evicted_before_its_twin_dies_and_no_neighbour_is_touched() -> Result<()> {
    let world = World::find().await?;
    play(&world, &Plan::draw(1, &world.image).beside("story-leak", 0)).await
}

#[tokio::test]
async fn a_leak_that_stops_in_time_is_left_alone() -> Result<()> {
    let world = World::find().await?;
    play(&world, &Plan::draw(2, &world.image).stopping_in_time().beside("story-stops", 8)).await
}

#[tokio::test]
async fn a_disruption_budget_blocks_the_eviction_and_its_removal_lets_it_pass() -> Result<()> {
    let world = World::find().await?;
    let scene = Scene::open(&world, "calm-pdb").await?;
    scene
        .apply(&json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "none"},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "leaker"}}}
        }))
        .await?;
    scene.enforce("p", "leaker", |spec| spec["disruption"]["requireBudget"] = json!(true)).await?;
    // Slow enough to be refused for a while and still be evicted in time.
    scene.deploy("leaker", 2, "leak:from=50GiB,rate=150MiB/s,start=10s").await?;
    let uid = scene.running("leaker").await?;
    until("a condition that names the budget", 3 * EVICTION, || async {
        let condition = scene.condition("p", "ActionAllowed").await?;
        Ok(condition.filter(|(status, reason)| status == "False" && reason.contains("Budget")))
    })
    .await?;
    throughout("the pod is left alone", Duration::from_secs(10), || async {
        let pods = scene.pods("leaker").await?;
        Ok(pods.len() == 1 && pods[0].metadata.deletion_timestamp.is_none())
    })
    .await?;
    let budgets: Api<k8s_openapi::api::policy::v1::PodDisruptionBudget> = scene.api();
    budgets.patch("none", &PatchParams::default(), &Patch::Merge(json!({"spec": {"maxUnavailable": 1}}))).await?;
    scene.evicted("p", &uid, EVICTION).await?;
    scene.close().await
}

#[tokio::test]
async fn a_statefulset_pod_that_was_created_anew_is_not_evicted_for_its_predecessors_leak() -> Result<()> {
    let world = World::find().await?;
    let scene = Scene::open(&world, "calm-statefulset").await?;
    scene.enforce("p", "leaker", |spec| spec["prediction"]["act"]["forSeconds"] = json!(25)).await?;
    scene.apply(&scene.workload("apps/v1", "StatefulSet", "leaker", 3, LEAK)).await?;
    let first = scene.running("leaker").await?;
    until("a risk", EVICTION, || async {
        Ok(scene.condition("p", "AtRisk").await?.filter(|(status, _)| status == "True").map(|_| ()))
    })
    .await
    .or_else(|_| anyhow::Ok(()))?;
    let pods: Api<Pod> = scene.api();
    pods.delete("leaker-0", &DeleteParams::default().grace_period(0)).await?;
    // The same name comes back with another UID and a shape that does not leak.
    scene.apply(&scene.workload("apps/v1", "StatefulSet", "leaker", 3, "plateau:at=20GiB")).await?;
    let second = until("a new pod of the same name", Duration::from_mins(1), || async {
        Ok(pods.get_opt("leaker-0").await?.and_then(|pod| pod.metadata.uid).filter(|uid| *uid != first))
    })
    .await?;
    throughout("the new pod is not evicted for the old one's leak", Duration::from_secs(20), || async {
        let actions = scene.actions("p").await?;
        Ok(actions.iter().all(|action| action.pod_uid != second || action.outcome != "Succeeded"))
    })
    .await?;
    scene.close().await
}

#[tokio::test]
async fn the_pod_of_a_statefulset_is_evicted_in_time() -> Result<()> {
    let world = World::find().await?;
    let scene = Scene::open(&world, "calm-statefulset-evict").await?;
    scene.enforce("p", "leaker", |_| {}).await?;
    scene.apply(&scene.workload("apps/v1", "StatefulSet", "leaker", 4, LEAK)).await?;
    let uid = scene.running("leaker").await?;
    scene.evicted("p", &uid, EVICTION).await?;
    assert_eq!(scene.restarts("leaker").await?, 0, "no OOM came first");
    scene.close().await
}

#[tokio::test]
async fn of_two_policies_the_one_with_precedence_governs_and_the_other_says_overlapped() -> Result<()> {
    let world = World::find().await?;
    let scene = Scene::open(&world, "calm-overlap").await?;
    scene.enforce("enforce", "leaker", |_| {}).await?;
    scene
        .enforce("observe", "leaker", |spec| {
            spec["mode"] = json!("Observe");
            spec["precedence"] = json!(100);
        })
        .await?;
    scene.deploy("leaker", 5, LEAK).await?;
    scene.running("leaker").await?;
    until("the loser to say Overlapped", EVICTION, || async {
        Ok(scene.condition("enforce", "TargetsResolved").await?.filter(|(_, reason)| reason == "Overlapped"))
    })
    .await?;
    until("the trainer to die, unprotected", Duration::from_secs(200), || async {
        Ok((scene.restarts("leaker").await? > 0).then_some(()))
    })
    .await?;
    assert!(scene.actions("enforce").await?.iter().all(|action| action.outcome != "Succeeded"));
    scene.close().await
}

#[tokio::test]
async fn a_policy_switched_back_to_observe_evicts_nobody() -> Result<()> {
    let world = World::find().await?;
    let scene = Scene::open(&world, "calm-switch").await?;
    scene.enforce("p", "leaker", |spec| spec["prediction"]["act"]["forSeconds"] = json!(20)).await?;
    scene.deploy("leaker", 6, LEAK).await?;
    let uid = scene.running("leaker").await?;
    until("an elevated risk", EVICTION, || async {
        let status = scene.policy("p").await?.status.unwrap_or_default();
        Ok(status.workloads.iter().any(|workload| workload.risk >= gpumem::api::policy::Risk::Elevated).then_some(()))
    })
    .await?;
    scene
        .enforce("p", "leaker", |spec| {
            spec["mode"] = json!("Observe");
            spec["prediction"]["act"]["forSeconds"] = json!(20);
        })
        .await?;
    throughout("nobody is evicted", Duration::from_secs(40), || async {
        Ok(scene
            .pods("leaker")
            .await?
            .iter()
            .any(|pod| pod.metadata.uid.as_ref() == Some(&uid) && pod.metadata.deletion_timestamp.is_none()))
    })
    .await?;
    scene.close().await
}

#[tokio::test]
async fn a_growth_limit_makes_the_grower_fail_its_own_allocation_while_its_neighbour_lives() -> Result<()> {
    let world = World::find().await?;
    let scene = Scene::open(&world, "calm-limit").await?;
    scene
        .enforce("p", "grower", |spec| {
            spec["actions"] = json!([{"type": "LimitGrowth"}]);
            spec["growthLimit"] = json!({"ceiling": "30Gi", "enforcement": "Kernel"});
        })
        .await?;
    scene.deploy("neighbour", 19, "plateau:at=45GiB").await?;
    scene.running("neighbour").await?;
    // Enough time to be held before 30 GiB, and without a limit it would fill the device a minute later.
    scene.deploy("grower", 19, "leak:from=10GiB,rate=400MiB/s,start=15s").await?;
    let uid = scene.running("grower").await?;
    let nodes: Api<GpuMemoryNode> = Api::all(world.client.clone());
    let held = until("the limit is read back", EVICTION, || async {
        let found = nodes.list(&ListParams::default()).await?.items.into_iter();
        let mut entries = found.flat_map(|node| node.status.map(|status| status.limits).unwrap_or_default());
        Ok(entries.find(|entry| entry.pod_uid == uid && entry.state == LimitPhase::Applied))
    })
    .await?;
    assert_eq!(held.applied, Some(30 << 30), "{held:?}");
    assert!(held.backend.contains("simulated"), "{held:?}");
    until("the grower ends by its own allocation", 2 * EVICTION, || async {
        Ok((scene.restarts("grower").await? > 0).then_some(()))
    })
    .await?;
    let pod = scene.pods("grower").await?.into_iter().find_map(|pod| pod.metadata.name).unwrap_or_default();
    let previous = LogParams { previous: true, ..LogParams::default() };
    let log = scene.api::<Pod>().logs(&pod, &previous).await?;
    ensure!(log.contains("CUDA out of memory") && log.contains("total capacity of 30.00 GiB"), "{log}");
    assert_eq!(scene.restarts("neighbour").await?, 0);
    scene.api::<GpuMemoryPolicy>().delete("p", &DeleteParams::default()).await?;
    until("nothing holds any more", EVICTION, || async {
        let found = nodes.list(&ListParams::default()).await?.items.into_iter();
        let mut entries = found.flat_map(|node| node.status.map(|status| status.limits).unwrap_or_default());
        Ok(entries.all(|entry| entry.pod_uid != uid).then_some(()))
    })
    .await?;
    scene.close().await
}

#[tokio::test]
async fn dry_run_says_what_it_would_do_and_changes_nothing() -> Result<()> {
    let world = World::find().await?;
    let scene = Scene::open(&world, "calm-dry-run").await?;
    scene.enforce("p", "leaker", |spec| spec["mode"] = json!("DryRun")).await?;
    scene.deploy("leaker", 7, LEAK).await?;
    let uid = scene.running("leaker").await?;
    let action = until("a dry-run action in the status", EVICTION, || async {
        Ok(scene.actions("p").await?.into_iter().find(|action| action.dry_run))
    })
    .await?;
    assert_eq!(action.pod_uid, uid);
    let pods = scene.pods("leaker").await?;
    assert!(
        pods.iter().any(|pod| pod.metadata.uid.as_ref() == Some(&uid) && pod.metadata.deletion_timestamp.is_none())
    );
    scene.close().await
}

/// What is wrong with a policy's spec.
type Wrong = Box<dyn Fn(&mut serde_json::Value)>;

#[tokio::test]
async fn the_server_refuses_a_wrong_policy_and_names_the_field() -> Result<()> {
    let world = World::find().await?;
    let scene = Scene::open(&world, "calm-schema").await?;
    let mut wrong: Vec<(&str, Wrong)> = Vec::new();
    wrong.push(("podSelector", Box::new(|spec| spec["target"] = json!({"podSelector": {}}))));
    wrong.push(("exactly one", Box::new(|spec| spec["target"] = json!({}))));
    wrong.push(("declared", Box::new(|spec| spec["memory"] = json!({"budget": "Declared"}))));
    wrong.push(("headroom", Box::new(|spec| spec["memory"] = json!({"headroom": "lots"}))));
    wrong.push(("mode", Box::new(|spec| spec["mode"] = json!("Always"))));
    wrong.push(("probabilityPercent", Box::new(|spec| spec["prediction"]["clear"]["probabilityPercent"] = json!(95))));
    wrong.push(("forSeconds", Box::new(|spec| spec["prediction"]["act"]["forSeconds"] = json!(900))));
    wrong.push(("horizonSeconds", Box::new(|spec| spec["prediction"]["horizonSeconds"] = json!(5))));
    wrong.push(("maxPerHour", Box::new(|spec| spec["disruption"]["maxPerHour"] = json!(0))));
    for (field, change) in wrong {
        let refused = scene.enforce("p", "x", change).await.expect_err(field);
        let text = format!("{refused:#}");
        assert!(text.contains(field), "the answer names {field}: {text}");
    }
    scene.enforce("p", "x", |_| {}).await?;
    let moved = scene
        .enforce("p", "x", |spec| spec["target"]["podSelector"]["matchLabels"]["app"] = json!("y"))
        .await
        .expect_err("a target that moves under Enforce");
    assert!(format!("{moved:#}").contains("target cannot change"), "{moved:#}");
    scene.close().await
}

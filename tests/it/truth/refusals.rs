//! Deaths that no text explains, where the hook counted allocations that were refused.

use gpumem::api::usage::PodReport;
use serde_json::json;

use super::{Agent, MESSAGE, OOMS, end, metrics, reported, status, value};
use crate::cluster::{Cluster, Controller, NODE};

/// The container held `gib`, its hook counted so many refused allocations one after the other, and then it ended so.
async fn after_refusals(refused: &[u32], gib: u64, exit: i32, message: &str) -> (Cluster, Controller) {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 1);
    cluster.policy("p", "train", |spec| spec["mode"] = json!("Observe"));
    let pod = reported(&mut cluster, "train-0");
    let mut controller = Controller::start(&cluster, "c1");
    let (mut agent, instant) = (Agent::new(&cluster), cluster.now().instant);
    let end = end(&cluster, exit, "Error", message);
    for refused in refused {
        agent.refused = Some(*refused);
        assert!(controller.ctx.fleet().merge(NODE, agent.report(&pod, Some(gib)), instant).accepted);
    }
    let after = PodReport { ends: vec![end], ..pod };
    for _ in 0..3 {
        assert!(controller.ctx.fleet().merge(NODE, agent.report(&after, None), instant).accepted);
        controller.round(&mut cluster).await;
    }
    (cluster, controller)
}

#[tokio::test]
async fn a_death_that_no_text_explains_is_an_oom_where_the_hook_counted_a_refusal_just_before() {
    let (cluster, controller) = after_refusals(&[0, 1, 2], 75, 1, "").await;
    let status = status(&cluster);
    let record = &status.ooms[0];
    assert_eq!((record.shape.as_str(), record.kind.as_str(), status.oom_count), ("HookCounted", "Probable", 1));
    assert!(record.evidence.contains("counted 2 refused"), "{}", record.evidence);
    assert_eq!(value(&metrics(&cluster, &controller.ctx), OOMS), Some(1.0));
    assert_eq!(cluster.events("Pod"), ["GpuMemoryOutOfMemory"]);
}

#[tokio::test]
async fn the_containers_own_words_and_the_hooks_count_are_one_oom() {
    let (cluster, controller) = after_refusals(&[0, 1], 75, 1, MESSAGE).await;
    let status = status(&cluster);
    assert_eq!((status.ooms[0].framework.as_str(), status.oom_count), ("PyTorch", 1));
    assert_eq!(value(&metrics(&cluster, &controller.ctx), OOMS), Some(1.0));
}

#[tokio::test]
async fn a_hooks_count_alone_is_no_oom() {
    let cases: [(&str, &[u32], u64, i32); 4] = [
        ("it was there when we first looked", &[3, 3], 75, 1),
        ("the device was not full", &[0, 1], 40, 1),
        ("somebody stopped it", &[0, 1], 75, 143),
        ("it survived for minutes", &[0, 1, 1, 1, 1, 1, 1, 1, 1, 1], 75, 1),
    ];
    for (what, refused, gib, exit) in cases {
        let (cluster, _) = after_refusals(refused, gib, exit, "").await;
        assert_eq!(cluster.events("Pod").len(), 0, "{what}");
    }
}

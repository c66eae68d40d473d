//! Deaths that a growth limit of ours brought: told as that, and no word on what the job needs.

use gpumem::api::usage::PodReport;
use serde_json::json;

use super::{Agent, MESSAGE, attempt_of_job, status, with_job};
use crate::cluster::{Cluster, Controller};

/// Three attempts of a Job, each of which dies at `gib` while a growth limit holds it to `limit`.
async fn attempts(limit: Option<u64>, gib: u64, message: &str) -> Cluster {
    let mut cluster = with_job();
    cluster.policy("limiting", "tune", |spec| spec["mode"] = json!("Observe"));
    let mut controller = Controller::start(&cluster, "c1");
    for attempt in 0..3 {
        let name = format!("tune-{attempt}");
        let (pod, end) = attempt_of_job(&mut cluster, &name, message);
        let mut agent = Agent::new(&cluster);
        agent.limit = limit;
        let instant = cluster.now().instant;
        let (before, after) = (agent.report(&pod, Some(gib)), PodReport { ends: vec![end.clone()], ..pod.clone() });
        assert!(controller.ctx.fleet().merge(super::NODE, before, instant).accepted);
        assert_eq!(controller.ctx.fleet().merge(super::NODE, agent.report(&after, None), instant).faults.len(), 0);
        cluster.reports.clear();
        controller.rounds(&mut cluster, 60).await;
    }
    cluster
}

/// The first Event about the Job for a reason.
fn note(cluster: &Cluster, reason: &str) -> String {
    let world = cluster.world();
    let events = world.list("events.k8s.io", "events", "");
    let own = events.iter().find(|event| event["reason"] == reason && event["regarding"]["kind"] == "Job");
    own.and_then(|event| event["note"].as_str()).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn an_oom_at_our_own_limit_is_told_as_that_and_teaches_no_size() {
    let cluster = attempts(Some(20), 19, MESSAGE).await;
    let told = note(&cluster, "GpuMemoryOutOfMemory");
    assert!(
        told.contains(
            "holding 19 GiB of 80 GiB. It was held to 20 GiB by the growth limit of policy limiting: that was full, not \
             the device. Raise growthLimit.ceiling of policy limiting if it needs more, or mend its growth."
        ),
        "{told}"
    );
    let told = note(&cluster, "GpuMemoryRestartLoop");
    assert!(told.contains("held to 20 GiB by the growth limit of policy limiting"), "{told}");
    assert!(!told.contains("larger device"), "it has not filled its own: {told}");
    let status = status(&cluster);
    assert_eq!((status.oom_count, status.ooms[0].limit_bytes), (3, Some(20 << 30)));
    assert!(status.conditions[0].message.contains("raise growthLimit.ceiling"), "{}", status.conditions[0].message);
    let size = status.recommendation.map(|size| size.basis).unwrap_or_default();
    assert!(size.starts_with("highest peak seen 19"), "where the limit was is not what it needs: {size}");
}

#[tokio::test]
async fn an_oom_far_below_a_limit_or_without_one_is_the_devices() {
    for (limit, gib) in [(None, 75), (Some(79), 60)] {
        let cluster = attempts(limit, gib, MESSAGE).await;
        let told = note(&cluster, "GpuMemoryOutOfMemory");
        assert!(!told.is_empty() && !told.contains("growth limit"), "{told}");
        assert!(note(&cluster, "GpuMemoryRestartLoop").contains("Or give it a larger device"));
        assert_eq!(status(&cluster).ooms[0].limit_bytes, None);
    }
}

#[tokio::test]
async fn a_vague_message_counts_where_the_limit_was_full_though_the_device_was_not() {
    const VAGUE: &str = "llama_init_from_model: failed to allocate buffer for kv cache";
    let cluster = attempts(Some(20), 19, VAGUE).await;
    assert_eq!((status(&cluster).oom_count, status(&cluster).ooms[0].limit_bytes), (3, Some(20 << 30)));
    let cluster = attempts(None, 19, VAGUE).await;
    assert_eq!(note(&cluster, "GpuMemoryOutOfMemory"), "");
}

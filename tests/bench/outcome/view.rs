//! What a decision sees of one pod of these fleets.

use std::time::Duration;

use gpumem_engine::decision::{CheckpointState, Levers, LimitState, PodRef, Standing, View, Workload};
use gpumem_engine::forecast::Forecast;
use gpumem_engine::identity::DeviceKey;
use gpumem_engine::pacing::{Group, WorkloadUid};
use gpumem_engine::risk::Level;

use super::job::{Job, Live};
use super::operator::{Device, mib, stamp};

#[expect(clippy::too_many_arguments, reason = "all that a view is made of")]
pub fn view(
    now: f64,
    place: usize,
    tenant: usize,
    job: &Job,
    live: &Live,
    device: &Device,
    timeout: Duration,
    level: Level,
    forecast: Forecast,
) -> View {
    let name = if tenant == 0 { format!("job-{place}") } else { format!("neighbour-{place}") };
    let uid = if tenant == 0 { format!("{name}-{}", live.process) } else { name.clone() };
    let since = live.since.unwrap_or(now);
    let ready = tenant == 1 || live.is_ready(job, now);
    let group = Group { desired: 1, ready: u32::from(ready), rolling_out: false, budgets: 0 };
    let checkpoint = match device.asked.filter(|_| tenant == 0) {
        None => CheckpointState::NotRequested,
        Some(_) if device.answered => CheckpointState::Done { id: "r".into(), pod: uid.as_str().into() },
        Some(asked) => {
            CheckpointState::Requested { id: "r".into(), pod: uid.as_str().into(), deadline: stamp(asked) + timeout }
        }
    };
    View {
        pod: PodRef {
            namespace: "ml".into(),
            name: name.clone(),
            uid: uid.as_str().into(),
            node: format!("node-{}", place / 8),
        },
        workload: Workload {
            api_version: "batch/v1".into(),
            kind: "Job".into(),
            name: name.clone(),
            uid: WorkloadUid(name),
        },
        container: "main".into(),
        device: DeviceKey::whole(format!("gpu-{place}").as_str()),
        used: mib(if tenant == 0 { job.used(now - since) } else { job.neighbour }),
        level,
        forecast,
        sample_age: Duration::ZERO,
        standing: Ok(Standing { group, ready, levers: Levers::eviction_only("Job"), grace: Duration::from_secs(30) }),
        checkpoint,
        notified: None,
        // A neighbour was there long before.
        age: Some(Duration::from_secs_f64(if tenant == 0 { now - since } else { 86_400.0 + now })),
        high_since: None,
        shared: job.neighbour > 0.0,
        room: None,
        limit: LimitState::NotSet,
    }
}

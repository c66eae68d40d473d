//! The highest memory of each governed workload's containers, hour by hour. Flows in: what is observed each round. Flows out:
//! profiles, written when an hour is over or a record falls, and a bounded number of them a round.

use std::collections::HashMap;
use std::time::Duration;

use gpumem_engine::decision::Workload;
use gpumem_engine::pacing::{Stamp, WorkloadUid};
use gpumem_engine::peaks::WINDOW;
use gpumem_engine::quantity::Bytes;
use tracing::warn;

use super::WRITES;
use crate::controller::context::Context;
use crate::controller::fleet::Observation;
use crate::controller::now::Now;
use crate::controller::observe::Memory;
use crate::controller::profile::{self, Window};

/// A record of a peak is written at most this often.
const BETWEEN_RECORDS: Duration = Duration::from_mins(5);

/// The windows of a workload's containers.
#[derive(Clone, Debug)]
pub(super) struct Running {
    workload: Workload,
    since: Stamp,
    written: Option<Stamp>,
    levels: HashMap<String, (Bytes, Bytes)>,
}

/// Namespace and workload, with what its containers reach.
pub(super) type Windows = HashMap<(String, WorkloadUid), Running>;

/// Takes what a container holds.
pub(super) fn follow(windows: &mut Windows, observation: &Observation, workload: &Workload, now: Stamp) {
    let place = (observation.pod.namespace.clone(), workload.uid.clone());
    let fresh = || Running { workload: workload.clone(), since: now, written: None, levels: HashMap::new() };
    let running = windows.entry(place).or_insert_with(fresh);
    let (highest, ever) = running.levels.entry(observation.container.clone()).or_default();
    (*highest, *ever) = ((*highest).max(observation.used), (*ever).max(observation.peak));
}

/// Forgets workloads that hold nothing any more.
pub(super) fn forget(windows: &mut Windows, now: Stamp) {
    windows.retain(|_, running| !running.levels.is_empty() || now.since(running.since) < WINDOW);
}

/// Writes peaks: when an hour is over, and when a record falls.
pub(super) async fn write(ctx: &Context, memory: &mut Memory, now: &Now, until: Stamp) {
    let mut writes = 0;
    for ((namespace, _), running) in &mut memory.truth.windows {
        let is_over = now.stamp.since(running.since) >= WINDOW;
        let rests = running.written.is_some_and(|at| now.stamp.since(at) < BETWEEN_RECORDS);
        // The first minutes are no window yet, but where a container stands already is worth remembering.
        let is_young = running.written.is_none() && now.stamp.since(running.since) < BETWEEN_RECORDS;
        if running.levels.is_empty() || (!is_over && (rests || is_young)) || writes >= WRITES || now.later() >= until {
            continue;
        }
        writes += 1;
        let seen: Vec<(&str, Window)> = running
            .levels
            .iter()
            .map(|(container, (highest, ever))| {
                (container.as_str(), Window { highest: *highest, ever: *ever, is_over })
            })
            .collect();
        let change = |status: &mut _| profile::peak(status, &seen, now.stamp);
        match profile::update(&ctx.act, namespace, &running.workload, change).await {
            Ok(_) => running.written = Some(now.stamp),
            Err(error) => {
                ctx.metrics.failed("truth", error.kind());
                warn!(error = &error as &dyn std::error::Error, "peaks not written, trying again");
                running.written = Some(now.stamp);
                continue;
            }
        }
        if is_over {
            running.since = now.stamp;
            running.levels.clear();
        }
    }
}

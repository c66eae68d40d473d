//! Looks after what was done: whether workloads are whole again, whether what we suspended still is and by whom, and
//! whether the pods that were asked for a checkpoint are still there.

use std::time::Duration;

use gpumem_engine::decision::Workload;
use tracing::{info, warn};

use crate::controller::act::read_target;
use crate::controller::act::suspend::{Holder, holder};
use crate::controller::at_once::{AT_ONCE, all};
use crate::controller::context::Context;
use crate::controller::intent::{self, LedgerDeed, LedgerRequest};
use crate::controller::now::{Now, parse_rfc3339, rfc3339};
use crate::controller::observe::Memory;
use crate::controller::profile;
use crate::controller::stock::Stock;
use crate::controller::workload::{PodFacts, read_group, read_pod};

/// Recovering workloads are looked at this often.
const BETWEEN_LOOKS: Duration = Duration::from_secs(5);
/// Requests for a checkpoint are looked at this often: all that is missed is that a pod ended by itself.
const BETWEEN_REQUESTS: Duration = Duration::from_mins(1);

/// Looks after deeds whose workload has still to recover: writes what is missing in its profile, and sees whether it is
/// whole again. Forgets requests whose pod is gone.
pub async fn look_after(ctx: &Context, memory: &mut Memory, stock: &Stock, now: &Now) {
    let Some(state) = stock.state() else { return };
    let is_due = |deed: &&LedgerDeed| deed.is_recovering(now.stamp) && !deed.dry_run;
    let recovering: Vec<&LedgerDeed> = state.deeds.iter().filter(is_due).collect();
    let rests = |at: Option<gpumem_engine::pacing::Stamp>, rest| at.is_some_and(|at| now.stamp.since(at) < rest);
    if !recovering.is_empty() && !rests(memory.last_recovery_look, BETWEEN_LOOKS) {
        memory.last_recovery_look = Some(now.stamp);
        look_at_deeds(ctx, &recovering, now).await;
    }
    if !state.requests.is_empty() && !rests(memory.last_request_look, BETWEEN_REQUESTS) {
        memory.last_request_look = Some(now.stamp);
        look_at_requests(ctx, &state.requests, now).await;
    }
}

async fn look_at_deeds(ctx: &Context, recovering: &[&LedgerDeed], now: &Now) {
    let looks: Vec<_> = recovering.iter().map(|deed| look_at(ctx, deed, now)).collect();
    let seen = all(AT_ONCE, looks).await;
    let changed = seen.into_iter().zip(recovering).filter(|(seen, deed)| seen != **deed);
    let changed: Vec<LedgerDeed> = changed.map(|(seen, _)| seen).collect();
    if changed.is_empty() {
        return;
    }
    if let Err(error) = intent::update(ctx, &changed, now).await {
        warn!(error = &error as &dyn std::error::Error, "recovery not noted, trying again");
    }
}

/// How a deed stands now. What cannot be read leaves it as it is.
async fn look_at(ctx: &Context, deed: &LedgerDeed, now: &Now) -> LedgerDeed {
    let mut deed = deed.clone();
    if let Some(handle) = deed.suspension() {
        let Ok(object) = read_target(ctx, &handle.target).await else { return deed };
        match holder(handle, object.as_ref(), &deed.id) {
            Holder::Ours => {
                write_record(ctx, &mut deed, now).await;
                return deed;
            }
            Holder::Gone => {
                deed.settled = true;
                return deed;
            }
            who @ (Holder::Lifted | Holder::TakenOver) => {
                info!(id = deed.id, ?who, "the suspension of a workload is its owner's business now");
                deed.lifted = true;
            }
        }
    }
    let workload = Workload::from(&deed.workload);
    let group = match read_group(&ctx.read, &deed.namespace, &workload).await {
        Ok(Some(group)) => group,
        Ok(None) => {
            // Nobody is left to recover, nor to be remembered.
            deed.settled = true;
            return deed;
        }
        Err(_) => return deed,
    };
    if !write_record(ctx, &mut deed, now).await {
        return deed;
    }
    // A pod that is ending may count as Ready until it is gone. More replicas end none.
    let ended = deed.blast == 0
        || match read_pod(&ctx.read, &deed.namespace, &deed.pod).await {
            Ok(pod) => pod.is_none_or(|pod| pod.pod.uid != deed.pod_uid),
            Err(_) => return deed,
        };
    if !ended || !group.is_whole() {
        deed.whole_since = None;
        return deed;
    }
    let since = deed.whole_since.get_or_insert_with(|| rfc3339(now.stamp));
    let held = parse_rfc3339(since).map_or(Duration::ZERO, |since| now.stamp.since(since));
    deed.settled = held >= Duration::from_secs(deed.settle_seconds);
    deed
}

/// Writes what the workload's profile still lacks. False where that failed.
async fn write_record(ctx: &Context, deed: &mut LedgerDeed, now: &Now) -> bool {
    let Some(record) = &deed.unrecorded else { return true };
    let workload = Workload::from(&deed.workload);
    match profile::record(&ctx.act, &deed.namespace, &workload, record, None, now.stamp).await {
        Ok(()) => {
            deed.unrecorded = None;
            true
        }
        Err(error) => {
            warn!(error = &error as &dyn std::error::Error, "action still not in its workload's profile");
            false
        }
    }
}

async fn look_at_requests(ctx: &Context, requests: &[LedgerRequest], now: &Now) {
    let reads: Vec<_> = requests.iter().map(|request| read_pod(&ctx.read, &request.namespace, &request.pod)).collect();
    let is_gone = |request: &LedgerRequest, pod: Option<PodFacts>| pod.is_none_or(|pod| pod.pod.uid != request.pod_uid);
    let read = requests.iter().zip(all(AT_ONCE, reads).await);
    let gone = read.filter(|(request, pod)| pod.as_ref().is_ok_and(|pod| is_gone(request, pod.clone())));
    let gone: Vec<String> = gone.map(|(request, _)| request.id.clone()).collect();
    if gone.is_empty() {
        return;
    }
    if let Err(error) = intent::forget_requests(ctx, &gone, now).await {
        warn!(error = &error as &dyn std::error::Error, "requests of pods that are gone not forgotten, trying again");
    }
}

//! Settling what an earlier leader, or a lost answer, left open.

use gpumem_engine::pacing::Stamp;

use super::{Context, Intent, Ledger, Now};
use crate::controller::now::parse_rfc3339;
use crate::controller::workload::{self, read_pod};

/// What became of an open intent.
#[derive(Clone, Debug, PartialEq)]
pub enum Settled {
    /// The pod is gone or going: it counts as carried out.
    Done(Intent),
    /// The pod is there and no call can be under way any more: it was never carried out.
    Abandoned(Intent),
}

/// Looks at the pod of every open intent. Intents whose call may still be under way are left out: they stay open, and keep
/// the brake on.
pub async fn settle(ctx: &Context, ledger: &Ledger, now: &Now) -> Result<Vec<Settled>, workload::Error> {
    let Ok(state) = &ledger.state else { return Ok(Vec::new()) };
    let mut settled = Vec::new();
    for intent in &state.intents {
        // A dry run changes nothing, whatever became of its call.
        if intent.dry_run {
            settled.push(Settled::Abandoned(intent.clone()));
            continue;
        }
        let pod = read_pod(&ctx.read, &intent.namespace, &intent.pod).await?;
        let is_there = pod.is_some_and(|pod| pod.pod.uid == intent.pod_uid && !pod.terminating);
        if !is_there {
            settled.push(Settled::Done(intent.clone()));
        } else if parse_rfc3339(&intent.deadline).unwrap_or(Stamp(i64::MAX)) <= now.later() {
            settled.push(Settled::Abandoned(intent.clone()));
        }
    }
    Ok(settled)
}

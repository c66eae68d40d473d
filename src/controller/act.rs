//! Takes an action: one call to the API, of whatever the intent says.
//!
//! Flows in: a [`RecordedIntent`], which cannot be had without having stood in the ledger. Flows out: an [`Outcome`]. Just
//! before the call everything that the decision rested on is read again ([`look`]): the pod, its namespace, its policy, its
//! budgets, the lever, the ledger with the pause, and whether we still lead. The call says which object it means so that
//! no successor can be hit, is sent once, has a deadline, and every answer has its own outcome. Each action has a file.

use std::time::Duration;

use gpumem_engine::decision::Hold;

use super::context::Context;
use super::intent::{Action, Intent, Lever, Outcome, RecordedIntent};
use super::now::Now;

mod checkpoint;
mod evict;
mod look;
mod scale;
mod settle;
pub mod suspend;
mod suspend_to_host;

use look::Seen;
pub use look::read_target;
pub use settle::{Settled, settle};

/// How long an action waits for the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For all reads before the call together: beyond it the API server is in no state to be asked for more.
    pub reads: Duration,
    /// For the call. The API server may spend 10 s on conflicts of a PodDisruptionBudget; this is a little longer.
    pub call: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { reads: Duration::from_secs(10), call: Duration::from_secs(20) }
    }
}

/// Takes the action of the intent, unless anything changed since the decision.
pub async fn take(ctx: &Context, recorded: RecordedIntent, now: &Now) -> (Intent, Outcome) {
    let outcome = match tokio::time::timeout(ctx.patience.reads, look::again(ctx, &recorded, now)).await {
        Err(_) => Outcome::Withdrawn(changed("the API server was too slow")),
        Ok(Err(why)) => Outcome::Withdrawn(why),
        Ok(Ok(seen)) => match look::may_send(ctx, &recorded, now.later()) {
            Err(why) => Outcome::Withdrawn(why),
            Ok(()) => send(ctx, recorded.intent(), &seen, now).await,
        },
    };
    (recorded.spend(), outcome)
}

async fn send(ctx: &Context, intent: &Intent, seen: &Seen, now: &Now) -> Outcome {
    match (&intent.action, &intent.lever) {
        (Action::Evict, _) => evict::send(ctx, intent).await,
        (Action::RequestCheckpoint { .. }, _) => checkpoint::request(ctx, intent, seen).await,
        (Action::WithdrawCheckpoint { .. }, _) => checkpoint::take_back(ctx, intent, seen).await,
        (Action::SuspendToHost, _) => Box::pin(suspend_to_host::send(ctx, intent, seen, now)).await,
        (Action::SuspendWorkload { .. }, Some(Lever::Suspend(handle))) => {
            suspend::suspend(ctx, intent, handle, seen).await
        }
        (Action::ResumeWorkload, Some(Lever::Suspend(handle))) => suspend::resume(ctx, intent, handle, seen).await,
        (Action::Scale { to, .. }, Some(Lever::Scale(handle))) => scale::send(ctx, intent, handle, *to, seen).await,
        (Action::SuspendWorkload { .. } | Action::ResumeWorkload | Action::Scale { .. }, _) => {
            Outcome::Withdrawn(no_lever())
        }
    }
}

fn no_lever() -> Hold {
    changed("the workload's lever is not known any more")
}

/// Waits for the answer of a call that was asked for once. `done` is what a yes means.
async fn answer<T>(ctx: &Context, call: impl Future<Output = kube::Result<T>>, done: Outcome) -> Outcome {
    match tokio::time::timeout(ctx.patience.call, call).await {
        Ok(Ok(_)) => done,
        Ok(Err(kube::Error::Api(status))) => Outcome::of_refusal(&status),
        Ok(Err(error)) => Outcome::Unclear { why: unclear(&error).to_owned() },
        Err(_) => Outcome::Unclear { why: "the API server did not answer in time".to_owned() },
    }
}

/// What a yes means to an action that is not undone by another.
const fn done(intent: &Intent) -> Outcome {
    if intent.dry_run { Outcome::WouldSucceed } else { Outcome::Succeeded }
}

/// A patch names the version it was made for. Another version is no other object: whoever changed it may have changed what
/// the decision rested on.
fn or_changed(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Replaced => Outcome::Withdrawn(changed("somebody wrote the object")),
        other => other,
    }
}

fn unclear(error: &kube::Error) -> &'static str {
    match error {
        kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => "the API server's answer could not be read",
        kube::Error::BuildRequest(_) => "the call could not be made",
        _ => "the connection to the API server broke",
    }
}

fn changed(what: &str) -> Hold {
    Hold::Changed { what: what.to_owned() }
}

//! What became of an action in a person's words: what was done, what happens next, how to stop it.

use gpumem_engine::pacing::Refusal;
use gpumem_engine::quantity::counted;

use super::{Action, Outcome};
use crate::api::names::{
    ANNOTATION_ACTIONS, ANNOTATION_CHECKPOINT_DEADLINE, ANNOTATION_CHECKPOINT_DONE, ANNOTATION_CHECKPOINT_REQUEST,
    ANNOTATION_SUSPENDED,
};

/// One sentence or two that follow "pod X: ".
pub fn explain(outcome: &Outcome, action: &Action) -> String {
    let Words { not, asked, .. } = Words::of(action);
    match outcome {
        Outcome::Succeeded => succeeded(action),
        Outcome::WouldSucceed => {
            format!("would be {}; mode is DryRun, so nothing was changed", Words::of(action).done)
        }
        Outcome::Resumed => format!(
            "its workload was suspended by us and goes on now; its annotation {ANNOTATION_SUSPENDED} is removed. If it \
             grows the same way, it needs a larger device, a smaller batch, or a fix of the leak"
        ),
        Outcome::TakenBack => {
            "our request for a checkpoint is taken back: it is no longer needed. Nothing else follows from it"
                .to_owned()
        }
        Outcome::Refused { why, said } => format!("{not}, {}: {said}", refused(*why, action)),
        Outcome::OwnedByOther { by } => format!(
            "{not}: {by} owns the replicas, and they are left to it. Let it scale on our metrics, or give up its hold on \
             spec.replicas"
        ),
        Outcome::Replaced => format!("{not}: another object has taken the name by now"),
        Outcome::Gone => format!("{not}: it was gone by itself"),
        Outcome::Unclear { why } => {
            format!("asked {asked}, and {why}. Nothing else is done until its state shows what became of it")
        }
        Outcome::Withdrawn(why) => format!("{not}: {why}"),
        Outcome::FoundDone => {
            format!("was asked {asked}, the answer was lost, and its state shows that it was done: it counts")
        }
        Outcome::Abandoned => format!("{not}: it was recorded and never carried out"),
    }
}

fn succeeded(action: &Action) -> String {
    match action {
        Action::Evict => {
            "evicted; its controller replaces it. If the replacement grows the same way, it needs a larger \
                          device, a smaller batch, or a fix of the leak"
                .to_owned()
        }
        Action::RequestCheckpoint { timeout_seconds } => format!(
            "asked to save its work within {timeout_seconds} s (annotations {ANNOTATION_CHECKPOINT_REQUEST} and \
             {ANNOTATION_CHECKPOINT_DEADLINE}); it answers with {ANNOTATION_CHECKPOINT_DONE}. Then the policy's next \
             action follows. To stop it, set {ANNOTATION_ACTIONS}: Disabled on the pod"
        ),
        Action::WithdrawCheckpoint { .. } => explain(&Outcome::TakenBack, action),
        Action::SuspendToHost => "its node's agent was asked to freeze it and move its GPU memory to host memory (kubectl get \
                                   gmnode shows what came of it); it goes on when the policy's cool-down is over, after an \
                                   hour at most, or when the policy is deleted"
            .to_owned(),
        Action::SuspendWorkload { resume_after_cooldown } => {
            let next = if *resume_after_cooldown {
                "It goes on when its cool-down ends; to let it go on now, set the suspension back yourself"
            } else {
                "It goes on when you set the suspension back"
            };
            format!(
                "its workload is suspended: all its pods end, and annotation {ANNOTATION_SUSPENDED} says that we did it. \
                 {next}"
            )
        }
        Action::ResumeWorkload => explain(&Outcome::Resumed, action),
        Action::Scale { from, to } => format!(
            "its workload has {} instead of {from}. Set another number yourself and it is left to you",
            counted(*to, "replica", "replicas")
        ),
    }
}

/// How an action is spoken of.
struct Words {
    /// "would be …".
    done: &'static str,
    /// "not …".
    not: &'static str,
    /// "asked …".
    asked: &'static str,
}

impl Words {
    const fn of(action: &Action) -> Self {
        let (done, not, asked) = match action {
            Action::Evict => ("evicted", "not evicted", "for its eviction"),
            Action::RequestCheckpoint { .. } => {
                ("asked for a checkpoint", "not asked for a checkpoint", "for the annotations of a checkpoint")
            }
            Action::WithdrawCheckpoint { .. } => (
                "relieved of our request for a checkpoint",
                "our request for a checkpoint is not taken back",
                "to take back a request for a checkpoint",
            ),
            Action::SuspendToHost => ("moved to host memory", "not moved to host memory", "to move it to host memory"),
            Action::SuspendWorkload { .. } => {
                ("suspended with its workload", "its workload is not suspended", "to suspend its workload")
            }
            Action::ResumeWorkload => ("let go on", "its workload is not let go on", "to let its workload go on"),
            Action::Scale { .. } => {
                ("relieved by more replicas", "its workload is not scaled", "for more replicas of its workload")
            }
        };
        Self { done, not, asked }
    }
}

fn refused(why: Refusal, action: &Action) -> String {
    let known = match why {
        Refusal::BlockedByBudget => {
            "its PodDisruptionBudget allows no disruption now (bring the workload to full strength, or relax the budget)"
        }
        Refusal::BudgetNotObserved => "its PodDisruptionBudget is being processed (no action needed)",
        Refusal::SeveralBudgets => "several PodDisruptionBudgets select it (leave one)",
        Refusal::BudgetInvalid => {
            "its PodDisruptionBudget is in a broken state (look at its status, or create it anew)"
        }
        Refusal::Throttled => "the API server sheds load (no action needed)",
        Refusal::NotPermitted => {
            return format!("the operator may not (set the chart's {}, or grant it yourself)", value(action));
        }
        Refusal::Rejected => "the API server rejected the call",
    };
    known.to_owned()
}

/// The chart's value that grants the right to an action.
const fn value(action: &Action) -> &'static str {
    match action {
        Action::Evict => "rbac.actions.evict",
        Action::RequestCheckpoint { .. } | Action::WithdrawCheckpoint { .. } => "rbac.actions.checkpoint",
        Action::SuspendToHost => "agent.suspend.enabled",
        Action::SuspendWorkload { .. } | Action::ResumeWorkload => "rbac.actions.suspendWorkload",
        Action::Scale { .. } => "rbac.actions.scale",
    }
}

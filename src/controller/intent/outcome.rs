//! What came of an action: one variant for each answer of the API, whatever the action was.

use gpumem_engine::decision::{Hold, StepKind};
use gpumem_engine::pacing::{PastResult, Refusal};
use kube::core::response::Status;

use super::Action;
use super::words;
use crate::api::policy::ActionType;

/// What came of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was carried out.
    Succeeded,
    /// The server would carry it out; nothing was changed.
    WouldSucceed,
    /// A workload that we had suspended goes on.
    Resumed,
    /// A request of ours was taken back.
    TakenBack,
    /// The server refused.
    Refused {
        /// Why.
        why: Refusal,
        /// The server's words, shortened.
        said: String,
    },
    /// Another manager owns the field that was to be written.
    OwnedByOther {
        /// Who.
        by: String,
    },
    /// Another object has the name by now: nothing is left to do.
    Replaced,
    /// The object is gone: nothing is left to do.
    Gone,
    /// There was no answer, or none that says whether it was done. The intent stays open until that is known.
    Unclear {
        /// What happened.
        why: String,
    },
    /// Something changed between decision and call, and the call was not made or not accepted for it.
    Withdrawn(Hold),
    /// Settled later: its effect is there, so the action counts as carried out.
    FoundDone,
    /// Settled later: its effect is not there, and no call can be under way.
    Abandoned,
}

/// Cause in the server's answer when a PodDisruptionBudget is in the way.
const BUDGET_CAUSE: &str = "DisruptionBudget";
/// The server's fixed words where several PodDisruptionBudgets select the pod.
const SEVERAL: &str = "more than one PodDisruptionBudget";
/// Cause in the server's answer when another manager owns a field of an apply.
const OWNER_CAUSE: &str = "FieldManagerConflict";

impl Outcome {
    /// Every name that [`Outcome::name`] gives.
    pub const NAMES: [&'static str; 18] = [
        "Succeeded",
        "DryRun",
        "Resumed",
        "TakenBack",
        "BlockedByBudget",
        "BudgetNotObserved",
        "SeveralBudgets",
        "BudgetInvalid",
        "Throttled",
        "NotPermitted",
        "Rejected",
        "ReplicasOwnedByOther",
        "Replaced",
        "Gone",
        "Unclear",
        "Withdrawn",
        "FoundDone",
        "Abandoned",
    ];

    /// What an answer that is an error means.
    pub fn of_refusal(status: &Status) -> Self {
        let details = status.details.as_ref();
        let is_budget = details.is_some_and(|details| details.causes.iter().any(|cause| cause.reason == BUDGET_CAUSE));
        let waits = details.is_some_and(|details| details.retry_after_seconds > 0);
        let names_budget =
            details.is_some_and(|details| details.kind.to_ascii_lowercase().starts_with("poddisruptionbudget"));
        let why = match status.code {
            404 => return Self::Gone,
            409 if let Some(by) = other_owner(status) => return Self::OwnedByOther { by },
            409 => return Self::Replaced,
            429 if is_budget && waits => Refusal::BudgetNotObserved,
            429 if is_budget => Refusal::BlockedByBudget,
            429 => Refusal::Throttled,
            403 if names_budget || is_budget => Refusal::BudgetInvalid,
            403 => Refusal::NotPermitted,
            500 if status.message.contains(SEVERAL) => Refusal::SeveralBudgets,
            // The server failed in the middle of it, or in front of it: it may have been done.
            code if code >= 500 || code == 0 => {
                return Self::Unclear { why: format!("the API server answered {code}: {}", said(status)) };
            }
            _ => Refusal::Rejected,
        };
        Self::Refused { why, said: said(status) }
    }

    /// Name in status, Events and metrics: a closed set.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Succeeded => "Succeeded",
            Self::WouldSucceed => "DryRun",
            Self::Resumed => "Resumed",
            Self::TakenBack => "TakenBack",
            Self::Refused { why, .. } => why.reason(),
            Self::OwnedByOther { .. } => "ReplicasOwnedByOther",
            Self::Replaced => "Replaced",
            Self::Gone => "Gone",
            Self::Unclear { .. } => "Unclear",
            Self::Withdrawn(_) => "Withdrawn",
            Self::FoundDone => "FoundDone",
            Self::Abandoned => "Abandoned",
        }
    }

    /// Whether the action was carried out, or would have been.
    pub const fn is_done(&self) -> bool {
        match self {
            Self::Succeeded | Self::WouldSucceed | Self::Resumed | Self::TakenBack | Self::FoundDone => true,
            Self::Refused { .. }
            | Self::OwnedByOther { .. }
            | Self::Replaced
            | Self::Gone
            | Self::Unclear { .. }
            | Self::Withdrawn(_)
            | Self::Abandoned => false,
        }
    }

    /// Whether it failed for a reason that is not the workload's, which speaks against acting at all; `None` where it says
    /// nothing about that.
    pub const fn failed(&self) -> Option<bool> {
        match self {
            Self::Succeeded | Self::Resumed | Self::TakenBack | Self::FoundDone => Some(false),
            Self::Abandoned
            | Self::Refused { why: Refusal::Throttled | Refusal::NotPermitted | Refusal::Rejected, .. } => Some(true),
            Self::WouldSucceed
            | Self::Refused { .. }
            | Self::OwnedByOther { .. }
            | Self::Replaced
            | Self::Gone
            | Self::Unclear { .. }
            | Self::Withdrawn(_) => None,
        }
    }

    /// The step that a recorded action and its outcome tell of.
    pub fn past_step(action: ActionType, name: &str) -> Option<StepKind> {
        Some(match (action, name) {
            (ActionType::Scale, _) => StepKind::Scale,
            (ActionType::Checkpoint, "TakenBack") => StepKind::WithdrawCheckpoint,
            (ActionType::Checkpoint, _) => StepKind::RequestCheckpoint,
            (ActionType::SuspendToHost, _) => StepKind::SuspendToHost,
            (ActionType::SuspendWorkload, "Resumed") => StepKind::ResumeWorkload,
            (ActionType::SuspendWorkload, _) => StepKind::SuspendWorkload,
            (ActionType::Evict, _) => StepKind::Evict,
            (ActionType::Notify | ActionType::LimitGrowth, _) => return None,
        })
    }

    /// What a recorded action and its outcome mean for pacing. A name from another version counts as an attempt: it can
    /// only delay.
    pub fn past_result(action: ActionType, name: &str) -> PastResult {
        let refusals = [
            Refusal::BlockedByBudget,
            Refusal::BudgetNotObserved,
            Refusal::SeveralBudgets,
            Refusal::BudgetInvalid,
            Refusal::Throttled,
            Refusal::NotPermitted,
            Refusal::Rejected,
        ];
        if let Some(why) = refusals.into_iter().find(|why| why.reason() == name) {
            return PastResult::Refused(why);
        }
        match name {
            "Replaced" | "Gone" | "Withdrawn" | "Abandoned" => PastResult::Moot,
            "ReplicasOwnedByOther" => PastResult::Refused(Refusal::Rejected),
            // A request disrupts nobody, nor do more replicas, and letting a workload go on undoes a disruption.
            "Resumed" | "TakenBack" => PastResult::Harmless,
            _ if matches!(action, ActionType::Checkpoint | ActionType::Scale) => PastResult::Harmless,
            _ => PastResult::Disrupted,
        }
    }

    /// What happened, what follows, and what to do, for a person.
    pub fn explain(&self, action: &Action) -> String {
        words::explain(self, action)
    }
}

/// Who owns the field that an apply could not take: `kubectl-scale` out of `conflict with "kubectl-scale" using apps/v1`.
fn other_owner(status: &Status) -> Option<String> {
    let causes = &status.details.as_ref()?.causes;
    let cause = causes.iter().find(|cause| cause.reason == OWNER_CAUSE)?;
    let named = cause.message.split('"').nth(1).unwrap_or("another manager");
    Some(named.chars().take(63).collect())
}

fn said(status: &Status) -> String {
    crate::text::shorten(&status.message, 200)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(answer: serde_json::Value) -> Outcome {
        Outcome::of_refusal(&serde_json::from_value(answer).unwrap())
    }

    #[test]
    fn every_answer_of_the_eviction_api_has_its_outcome() {
        let budget = json!([{"reason": "DisruptionBudget", "message": "needs 2 healthy pods and has 2"}]);
        for (answer, name) in [
            (json!({"code": 429, "details": {"causes": budget}}), "BlockedByBudget"),
            (json!({"code": 429, "details": {"causes": budget, "retryAfterSeconds": 10}}), "BudgetNotObserved"),
            (json!({"code": 429, "details": {"retryAfterSeconds": 1}}), "Throttled"),
            (json!({"code": 429}), "Throttled"),
            (
                json!({"code": 500, "message": "This pod has more than one PodDisruptionBudget, which the eviction \
                       subresource does not support."}),
                "SeveralBudgets",
            ),
            (json!({"code": 403, "details": {"kind": "poddisruptionbudget"}}), "BudgetInvalid"),
            (json!({"code": 403, "details": {"kind": "pods"}}), "NotPermitted"),
            (json!({"code": 409}), "Replaced"),
            (
                json!({"code": 409, "details": {"causes": [{"reason": "FieldManagerConflict",
                    "message": "conflict with \"argocd\" using apps/v1", "field": ".spec.replicas"}]}}),
                "ReplicasOwnedByOther",
            ),
            (json!({"code": 404}), "Gone"),
            (json!({"code": 400}), "Rejected"),
            (json!({"code": 401}), "Rejected"),
            (json!({"code": 500, "message": "etcd"}), "Unclear"),
            (json!({"code": 504}), "Unclear"),
            (json!({}), "Unclear"),
        ] {
            assert_eq!(refusal(answer.clone()).name(), name, "{answer}");
        }
    }

    #[test]
    fn a_recorded_name_reads_back_as_what_it_meant() {
        let read = |outcome: &Outcome| Outcome::past_result(ActionType::Evict, outcome.name());
        for disrupted in [Outcome::Succeeded, Outcome::FoundDone, Outcome::WouldSucceed] {
            assert_eq!(read(&disrupted), PastResult::Disrupted);
            assert_eq!(Outcome::past_result(ActionType::Checkpoint, disrupted.name()), PastResult::Harmless);
        }
        assert_eq!(read(&Outcome::Gone), PastResult::Moot);
        assert_eq!(read(&Outcome::Resumed), PastResult::Harmless);
        assert_eq!(
            Outcome::past_result(ActionType::Checkpoint, "BlockedByBudget"),
            PastResult::Refused(Refusal::BlockedByBudget)
        );
        assert_eq!(Outcome::past_result(ActionType::Evict, "what a later version writes"), PastResult::Disrupted);
    }

    #[test]
    fn every_outcome_has_a_name_of_the_closed_set() {
        let hold = Hold::RiskEasing;
        for outcome in [
            Outcome::Succeeded,
            Outcome::WouldSucceed,
            Outcome::Resumed,
            Outcome::TakenBack,
            Outcome::OwnedByOther { by: "argocd".into() },
            Outcome::Replaced,
            Outcome::Gone,
            Outcome::Unclear { why: String::new() },
            Outcome::Withdrawn(hold),
            Outcome::FoundDone,
            Outcome::Abandoned,
        ] {
            assert!(Outcome::NAMES.contains(&outcome.name()), "{outcome:?}");
        }
    }
}

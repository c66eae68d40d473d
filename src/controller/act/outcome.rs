//! What came of an action: one variant for each answer of the Eviction API.

use gpumem_engine::decision::Hold;
use gpumem_engine::pacing::{PastResult, Refusal};
use kube::core::response::Status;

/// What came of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The pod was evicted.
    Evicted,
    /// The server would evict the pod; nothing was changed.
    WouldEvict,
    /// The server refused.
    Refused {
        /// Why.
        why: Refusal,
        /// The server's words, shortened.
        said: String,
    },
    /// Another pod has the name by now: nothing is left to do.
    Replaced,
    /// The pod is gone: nothing is left to do.
    Gone,
    /// There was no answer, or none that says whether the pod was evicted. The intent stays open until that is known.
    Unclear {
        /// What happened.
        why: String,
    },
    /// Something changed between decision and call, and the call was not made.
    Withdrawn(Hold),
    /// Settled later: the pod was gone or going, so the action counts as carried out.
    FoundDone,
    /// Settled later: the pod is still there, and no call can be under way.
    Abandoned,
}

/// Cause in the server's answer when a PodDisruptionBudget is in the way.
const BUDGET_CAUSE: &str = "DisruptionBudget";
/// The server's fixed words where several PodDisruptionBudgets select the pod.
const SEVERAL: &str = "more than one PodDisruptionBudget";

impl Outcome {
    /// Every name that [`Outcome::name`] gives.
    pub const NAMES: [&'static str; 15] = [
        "Succeeded",
        "DryRun",
        "BlockedByBudget",
        "BudgetNotObserved",
        "SeveralBudgets",
        "BudgetInvalid",
        "Throttled",
        "NotPermitted",
        "Rejected",
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
            Self::Evicted => "Succeeded",
            Self::WouldEvict => "DryRun",
            Self::Refused { why, .. } => why.reason(),
            Self::Replaced => "Replaced",
            Self::Gone => "Gone",
            Self::Unclear { .. } => "Unclear",
            Self::Withdrawn(_) => "Withdrawn",
            Self::FoundDone => "FoundDone",
            Self::Abandoned => "Abandoned",
        }
    }

    /// Whether a pod was taken away, or would have been.
    pub const fn disrupted(&self) -> bool {
        match self {
            Self::Evicted | Self::WouldEvict | Self::FoundDone => true,
            Self::Refused { .. }
            | Self::Replaced
            | Self::Gone
            | Self::Unclear { .. }
            | Self::Withdrawn(_)
            | Self::Abandoned => false,
        }
    }

    /// What a recorded name means for pacing. A name from another version counts as an attempt: it can only delay.
    pub fn past_result(name: &str) -> PastResult {
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
            _ => PastResult::Disrupted,
        }
    }

    /// What happened, why, and what to do, for a person.
    pub fn explain(&self) -> String {
        match self {
            Self::Evicted => {
                "evicted; its controller replaces it. If the replacement grows the same way, it needs a larger \
                              device, a smaller batch, or a fix of the leak"
                    .to_owned()
            }
            Self::WouldEvict => "would be evicted; mode is DryRun, so nothing was changed".to_owned(),
            Self::Refused { why, said } => format!("not evicted, {}: {said}", refused(*why)),
            Self::Replaced => "not evicted: another pod has taken its name by now".to_owned(),
            Self::Gone => "not evicted: it was gone by itself".to_owned(),
            Self::Unclear { why } => {
                format!(
                    "asked for its eviction, and {why}. Nothing else is done until the pod's state shows what became of it"
                )
            }
            Self::Withdrawn(why) => format!("not evicted: {why}"),
            Self::FoundDone => {
                "its eviction was begun, the answer was lost, and the pod is gone or ending: counted as carried out"
                    .to_owned()
            }
            Self::Abandoned => "its eviction was recorded and never carried out; the pod is untouched".to_owned(),
        }
    }
}

const fn refused(why: Refusal) -> &'static str {
    match why {
        Refusal::BlockedByBudget => {
            "its PodDisruptionBudget allows no disruption now (bring the workload to full strength, or relax the budget)"
        }
        Refusal::BudgetNotObserved => "its PodDisruptionBudget is being processed (no action needed)",
        Refusal::SeveralBudgets => "several PodDisruptionBudgets select it (leave one)",
        Refusal::BudgetInvalid => {
            "its PodDisruptionBudget is in a broken state (look at its status, or create it anew)"
        }
        Refusal::Throttled => "the API server sheds load (no action needed)",
        Refusal::NotPermitted => "the operator may not (grant its ServiceAccount create on pods/eviction)",
        Refusal::Rejected => "the API server rejected the call",
    }
}

fn said(status: &Status) -> String {
    crate::controller::report::shorten(&status.message, 200)
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
        assert_eq!(Outcome::past_result(Outcome::Evicted.name()), PastResult::Disrupted);
        assert_eq!(Outcome::past_result(Outcome::FoundDone.name()), PastResult::Disrupted);
        assert_eq!(Outcome::past_result(Outcome::WouldEvict.name()), PastResult::Disrupted);
        assert_eq!(Outcome::past_result(Outcome::Gone.name()), PastResult::Moot);
        assert_eq!(Outcome::past_result("BlockedByBudget"), PastResult::Refused(Refusal::BlockedByBudget));
        assert_eq!(Outcome::past_result("what a later version writes"), PastResult::Disrupted);
        assert!(Outcome::NAMES.contains(&Outcome::Abandoned.name()));
    }
}

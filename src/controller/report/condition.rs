//! The six conditions of a policy. Pure.

use gpumem_engine::decision::{Decision, Hold, View};
use gpumem_engine::pacing::{Brake, Stamp};
use gpumem_engine::policy::{Mode, Policy};
use gpumem_engine::quantity::counted;
use gpumem_engine::risk::Level;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::status::expected;
use crate::api::policy::{ActionRecord, Target};
use crate::controller::intent::{Done, Outcome};
use crate::controller::observe::Observed;
use crate::text::shorten;

/// Status, reason and message of one condition.
pub struct Finding(pub &'static str, pub &'static str, pub String);

/// All six, in the order they are shown.
pub fn findings(
    one: &Observed,
    decisions: &[Decision],
    done: &[&Done],
    brake: &Brake,
    recent: &[ActionRecord],
) -> [(&'static str, Finding); 6] {
    let policy = match &one.policy {
        Ok(policy) => policy,
        Err(rejection) => {
            let nothing =
                || Finding("Unknown", "InvalidSpec", "nothing is watched before the spec is valid".to_owned());
            return [
                ("Ready", Finding("False", "InvalidSpec", rejection.to_string())),
                ("TargetsResolved", nothing()),
                ("DataFresh", nothing()),
                ("AtRisk", nothing()),
                (
                    "ActionAllowed",
                    Finding("False", "InvalidSpec", "no action is taken before the spec is valid".to_owned()),
                ),
                ("ActionsEffective", nothing()),
            ];
        }
    };
    [
        ("Ready", Finding("True", "Accepted", "the policy is in force".to_owned())),
        ("TargetsResolved", targets(one)),
        ("DataFresh", data(one)),
        ("AtRisk", risk(one)),
        ("ActionAllowed", allowed(one, policy, decisions, done, brake)),
        ("ActionsEffective", effective(decisions, recent)),
    ]
}

/// As the API holds it. The moment of transition stays while the status does.
pub fn condition(
    kind: &str,
    Finding(status, reason, message): Finding,
    generation: Option<i64>,
    previous: &[Condition],
    now: Stamp,
) -> Condition {
    let same = previous.iter().find(|known| known.type_ == kind && known.status == status);
    let time = jiff::Timestamp::from_second(now.0).unwrap_or_default();
    Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: shorten(&message, 1000),
        observed_generation: generation,
        last_transition_time: same.map_or(Time(time), |known| known.last_transition_time.clone()),
    }
}

fn targets(one: &Observed) -> Finding {
    if !one.lost_to.is_empty() {
        let lost: usize = one.lost_to.values().sum();
        let winners = winners(one);
        return Finding(
            "False",
            "Overlapped",
            format!(
                "{lost} of the selected pods {} governed by {winners}, which has a higher precedence or is older: to govern them \
                 with this policy, set its spec.precedence above that of {winners}, or delete {winners} or narrow its target",
                if lost == 1 { "is" } else { "are" },
            ),
        );
    }
    if one.views.is_empty() {
        let Target { owner_ref, .. } = &one.object.spec.target;
        let message = match owner_ref {
            Some(owner) => format!(
                "no pod with GPU memory belongs to {} {} ({}) of this namespace: check that it exists, is spelled so, and \
                 that its nodes run the agent",
                owner.kind, owner.name, owner.api_version
            ),
            None => "no pod with GPU memory matches podSelector: check its labels, and that their nodes run the agent"
                .to_owned(),
        };
        return Finding("False", "NoMatch", message);
    }
    Finding("True", "Resolved", "every selected pod is governed by this policy".to_owned())
}

/// The policies that govern pods which this one selects.
fn winners(one: &Observed) -> String {
    one.lost_to.keys().take(3).map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn data(one: &Observed) -> Finding {
    match (one.stale, one.containers.len()) {
        (_, 0) => Finding("Unknown", "NoTargets", "there is no container to have data of".to_owned()),
        (0, _) => Finding("True", "Fresh", "every container has new samples".to_owned()),
        (stale, all) => Finding(
            "False",
            "SamplesStale",
            format!(
                "{stale} of {} no sample of the last maxSampleAgeSeconds, so nothing is forecast for \
                 them and nothing done: look at the agents of their nodes",
                counted(all, "container has", "containers have")
            ),
        ),
    }
}

fn risk(one: &Observed) -> Finding {
    let high: Vec<&View> = one.views.iter().filter(|view| view.level == Level::High).collect();
    if !high.is_empty() {
        let named: Vec<String> = high
            .iter()
            .take(3)
            .map(|view| {
                format!(
                    "container {} of pod {}: out of memory {}",
                    view.container,
                    view.pod.name,
                    expected(view.expected_in())
                )
            })
            .collect();
        let more = if high.len() > 3 { format!("; and {} more", high.len() - 3) } else { String::new() };
        return Finding("True", "OutOfMemoryExpected", format!("{}{more}", named.join("; ")));
    }
    let known = one.views.iter().filter(|view| view.level != Level::Unknown).count();
    if known == 0 {
        let message = one
            .views
            .first()
            .map_or("there is no pod to forecast", |_| "no pod can be forecast now: status.workloads says why of each");
        return Finding("Unknown", "NoForecast", message.to_owned());
    }
    Finding("False", "NoRisk", "no pod is expected to run out of memory within the horizon".to_owned())
}

fn allowed(one: &Observed, policy: &Policy, decisions: &[Decision], done: &[&Done], brake: &Brake) -> Finding {
    if !policy.actions.act() {
        return Finding("False", "NotifyOnly", "spec.actions lists nothing that changes a workload".to_owned());
    }
    if let Err(why) = &one.barred {
        return Finding("False", why.reason(), why.to_string());
    }
    if let Some(done) = done.last() {
        let say = |reason| {
            Finding("False", reason, format!("pod {}: {}", done.intent.pod, done.outcome.explain(&done.intent.action)))
        };
        match &done.outcome {
            Outcome::Refused { why, .. } => return say(why.reason()),
            Outcome::Withdrawn(why) => return say(why.reason()),
            Outcome::Unclear { .. } => return say("Unclear"),
            Outcome::OwnedByOther { .. } => return say("ReplicasOwnedByOther"),
            Outcome::Succeeded
            | Outcome::WouldSucceed
            | Outcome::Resumed
            | Outcome::TakenBack
            | Outcome::Replaced
            | Outcome::Gone
            | Outcome::FoundDone
            | Outcome::Abandoned => {}
        }
    }
    let mut holds = decisions.iter().filter_map(|decision| match decision {
        Decision::Hold { pod, why, .. } => Some((pod, why)),
        Decision::Notify(_) | Decision::Act(_) => None,
    });
    // A pod that is ending already is the least interesting of them.
    if let Some((pod, why)) = holds.clone().find(|(_, why)| **why != Hold::PodTerminating).or_else(|| holds.next()) {
        return Finding("False", why.reason(), format!("pod {}: {why}", pod.name));
    }
    let standing = |why: Hold| Finding("False", why.reason(), why.to_string());
    match (policy.mode, brake, policy.paused.first()) {
        (Mode::Observe, _, _) => standing(Hold::ModeObserve),
        (_, Brake::Paused(why), _) => standing(Hold::BrakePaused { why: why.clone() }),
        (_, Brake::Unreadable(why), _) => standing(Hold::LedgerUnreadable { why: why.clone() }),
        (_, Brake::BreakerOpen { why, until }, _) => standing(Hold::BreakerOpen { why: why.clone(), until: *until }),
        (_, _, Some(why)) => standing(Hold::PolicyPaused { why: why.clone() }),
        (Mode::DryRun | Mode::Enforce, Brake::Released | Brake::Unsettled(_) | Brake::HalfOpen { .. }, None) => {
            unhindered(one)
        }
    }
}

/// No rule stands in the way. What an action would need may be missing all the same: a pod to govern, and news of it.
fn unhindered(one: &Observed) -> Finding {
    if !one.lost_to.is_empty() {
        let lost: usize = one.lost_to.values().sum();
        let message =
            format!("this policy does nothing for {} governed by {}", counted(lost, "pod", "pods"), winners(one));
        return Finding("False", "Overlapped", message);
    }
    if one.views.is_empty() {
        return Finding("Unknown", "NoTargets", "there is no pod to act on".to_owned());
    }
    if one.stale > 0 {
        let all = counted(one.containers.len(), "container", "containers");
        let message = format!("nothing is done for {} of {all} without new samples: see DataFresh", one.stale);
        return Finding("False", "SamplesStale", message);
    }
    Finding("True", "Allowed", "nothing stands in the way of an action, should a pod be at risk".to_owned())
}

fn effective(decisions: &[Decision], recent: &[ActionRecord]) -> Finding {
    let exhausted = decisions.iter().find_map(|decision| match decision {
        Decision::Hold { workload, why: why @ Hold::AttemptsExhausted { .. }, .. } => Some((workload, why)),
        Decision::Hold { .. } | Decision::Notify(_) | Decision::Act(_) => None,
    });
    if let Some((workload, why)) = exhausted {
        return Finding("False", why.reason(), format!("{} {}: {why}", workload.kind, workload.name));
    }
    if recent.is_empty() {
        return Finding("Unknown", "NoActions", "no action was taken yet".to_owned());
    }
    Finding("True", "Acted", "no workload has used up its attempts".to_owned())
}

//! The sentence for each "no": what stands in the way and what would change it.

use std::fmt;

use super::{Hold, Protected};
use crate::pacing::{Refusal, Stamp};
use crate::quantity::{Bytes, counted};

impl fmt::Display for Hold {
    /// What stands in the way and what would change it. No moment that moves each second appears here, so that a status
    /// is not written each second.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ModeObserve => f.write_str(
                "mode is Observe here or by the administrator's maximum: nothing is done until it is DryRun or Enforce",
            ),
            Self::PolicyPaused { why } => {
                write!(f, "the policy is paused ({why}): remove that entry of spec.paused.reasons to go on")
            }
            Self::BrakePaused { why } => {
                write!(f, "all actions in this cluster are paused ({why}): `kubectl gpumem resume` ends it")
            }
            Self::LedgerUnreadable { why } => write!(
                f,
                "what every action is recorded in or limited by cannot be used ({why}), so none is taken: repair that ConfigMap, or delete the ledger to forget past actions"
            ),
            Self::Unsettled { id } => {
                write!(f, "action {id} was begun and its outcome is not known yet; no other is begun before that")
            }
            Self::JustStarted { .. } => f.write_str(
                "this controller began to lead a short while ago and waits clear.forSeconds before its first action",
            ),
            Self::Tied { with } => write!(
                f,
                "policy {with} selects the same pod with the same precedence and age, so neither acts: give one of them a higher precedence"
            ),
            Self::OptedOut { place } => write!(f, "its owner opted out: {place}"),
            Self::Protected(Protected::System) => f.write_str("system pods are never acted on"),
            Self::Protected(Protected::DaemonSet) => {
                f.write_str("a DaemonSet would put the same pod back on the same node")
            }
            Self::Protected(Protected::Static) => f.write_str("the kubelet owns this pod; the API cannot remove it"),
            Self::Protected(Protected::Bare) => {
                f.write_str("no controller would replace this pod: it would be lost for good")
            }
            Self::Protected(Protected::RayHead) => {
                f.write_str("this is the head of a RayCluster, and the whole cluster would end with it")
            }
            Self::Protected(Protected::Job) => f.write_str(
                "its Job would count an eviction as a failure: create it anew with restartPolicy Never and a podFailurePolicy whose first rule is Ignore on the pod condition DisruptionTarget",
            ),
            Self::UnsupportedOwner { kind } => write!(
                f,
                "nothing of this sort is done to a {kind}: its kind is not known, or the chart's controller.workloadKinds leaves it off"
            ),
            Self::OwnerUnknown { why } => write!(f, "its owner is not established ({why}), so it is observed only"),
            Self::PodUnverified { why } => write!(f, "the API does not confirm the pod that was reported: {why}"),
            Self::PodTerminating => f.write_str("the pod is ending already"),
            Self::PodNotRunning { phase } => {
                write!(f, "the pod is {phase}: the Eviction API would skip its PodDisruptionBudget")
            }
            Self::StaleData { .. } => {
                f.write_str("its newest sample is older than maxSampleAgeSeconds: look at the agent of its node")
            }
            Self::RiskEasing => f.write_str("its probability fell below the act level; nothing is done while it eases"),
            Self::RolloutInProgress => f.write_str("a rollout of the workload is in progress; this waits for its end"),
            Self::InFlight => f.write_str("the last action on this workload is not over: one at a time"),
            Self::ReplacementNotReady { ready, desired } => write!(
                f,
                "{ready} of {desired} pods are Ready since the last action; the next waits until all are, for a while"
            ),
            Self::Cooldown { until } => write!(
                f,
                "the workload rests after the last action until {} (spec.disruption.cooldownSeconds, doubled with each)",
                Utc(*until)
            ),
            Self::BackOff { until, refusal } => {
                let why = match refusal {
                    Some(Refusal::BlockedByBudget) => {
                        "the pod's PodDisruptionBudget allows no disruption now: bring its workload to full strength or relax the budget"
                    }
                    Some(Refusal::BudgetNotObserved) => "the pod's PodDisruptionBudget is being processed",
                    Some(Refusal::SeveralBudgets) => "several PodDisruptionBudgets select the pod: leave one",
                    Some(Refusal::BudgetInvalid) => {
                        "the pod's PodDisruptionBudget is in a broken state: look at its status, or create it anew"
                    }
                    Some(Refusal::Throttled) => "the API server sheds load",
                    Some(Refusal::NotPermitted) => {
                        "the operator may not evict pods here: grant its ServiceAccount create on pods/eviction"
                    }
                    Some(Refusal::Rejected) => "the API server rejected the last call: see its Event",
                    None => "the last call came to nothing, as the pod had changed",
                };
                write!(f, "{why}; the next call may be made at {}", Utc(*until))
            }
            Self::AttemptsExhausted { attempts } => write!(
                f,
                "{} within 24 hours did not help this workload; it needs a person: a smaller batch, a larger device, or a fix of the leak",
                counted(*attempts, "action", "actions")
            ),
            Self::DeviceBeingRelieved => {
                f.write_str("another pod on the same device is being removed, which may be enough")
            }
            Self::ConcurrentBudget { max } => write!(
                f,
                "spec.disruption.maxConcurrent ({max}) pods of this policy are in disruption until their replacements are Ready"
            ),
            Self::HourlyBudget { max } => write!(
                f,
                "spec.disruption.maxPerHour ({max}) is used up; the next is possible when the oldest is an hour old"
            ),
            Self::MinAvailable { remaining, min } => {
                write!(f, "{remaining} Ready pods would remain, spec.disruption.minAvailable is {min}")
            }
            Self::NoBudget => f.write_str(
                "no PodDisruptionBudget selects the pod: add one, or set spec.disruption.requireBudget to false",
            ),
            Self::SeveralBudgets { budgets } => write!(
                f,
                "{budgets} PodDisruptionBudgets select the pod and the Eviction API refuses such pods: leave one"
            ),
            Self::NoLever { lever, kind } => write!(f, "a {kind} has no lever to {lever}"),
            Self::ReplicasOwnedByOther { by } => {
                write!(f, "{by} owns the replicas of this workload; they are left to it")
            }
            Self::Changed { what } => write!(f, "just before the call: {what}"),
            Self::NamespaceNotAllowed { namespace } => write!(
                f,
                "the administrator's list of namespaces leaves out {namespace}: it is watched, and nothing is done in it (controller.allowedNamespaces)"
            ),
            Self::NotPermitted { rung, value } => write!(
                f,
                "spec.actions lists {}, which the operator has no right to here: ask the administrator to set {value} of the chart, or take it off the list",
                rung.verb()
            ),
            Self::BlastExceedsBudget { stops, max } => write!(
                f,
                "{stops} pods would stop at once and spec.disruption allows {max}: raise maxConcurrent and maxPerHour to {stops} to allow it"
            ),
            Self::NodeBudget { node, limit } => {
                write!(f, "the administrator's budget of node {node} is used up ({limit})")
            }
            Self::NamespaceBudget { namespace, limit } => {
                write!(f, "the administrator's budget of namespace {namespace} is used up ({limit})")
            }
            Self::ClusterBudget { limit } => {
                write!(f, "the administrator's budget of the cluster is used up ({limit})")
            }
            Self::BreakerOpen { why, until } => write!(
                f,
                "{why}: only alerts until {}, then one action as a probe; look at drivers, agents and the API server",
                Utc(*until)
            ),
            Self::BreakerProbing => {
                f.write_str("the breaker let one action through as a probe; nothing else is done before its end")
            }
            Self::AwaitingCheckpoint { until } => {
                write!(f, "the application was asked for a checkpoint and has until {} to answer", Utc(*until))
            }
            Self::CheckpointUnanswered => f.write_str(
                "the application was asked for a checkpoint and did not answer in time; the pod is left alone (onTimeout: Skip)",
            ),
            Self::CheckpointTaken => {
                f.write_str("the application took its checkpoint, and the policy lists no action that would follow")
            }
            Self::NoTimeForCheckpoint { needs } => write!(
                f,
                "the OOM is nearer than the {} s that a checkpoint and the end of the pod may take, so an action would only lose the work sooner",
                needs.as_secs()
            ),
            Self::NoTime { rung, needs } => write!(
                f,
                "the OOM is nearer than the {} s that {} may take",
                needs.as_secs(),
                rung.verb()
            ),
            Self::TooYoung { least } => write!(
                f,
                "its container has run for less than the {} s (three times warmUpSeconds) after which it may be stopped: growth as old as the container may be a cache that fills for the first time, and running out now costs no more than the work since its start",
                least.as_secs()
            ),
            Self::TooLittleSeen => f.write_str(
                "the forecast looks too far ahead for the little that was seen of this container: a pod is stopped only when it has run three times as long as its OOM may still take (the upper end of the interval); nothing is to be done, this ends as the OOM comes nearer or the forecast gets surer",
            ),
            Self::GivesBack { bytes } => write!(
                f,
                "it gave back {:.1} GiB by itself within the last hours and may again: what comes and goes with load is not stopped for growing; if it is a leak all the same, stop it by hand",
                bytes.as_f64() / Bytes::gib(1).as_f64()
            ),
            Self::WouldNotDiffer { used } => write!(
                f,
                "the pod before this one reached about {} GiB as quickly, alone on its device: the next would as well; it needs a person: a smaller batch, a larger device, or a fix of the leak",
                used.0 >> 30
            ),
            Self::RestartLoop { ooms, peak } => write!(
                f,
                "this workload ran out of GPU memory {ooms} times in a row at about {:.1} GiB, and the next pod would as well, so it is not evicted again: give it a smaller batch or a larger device, as the advice in its GpuMemoryProfile says",
                peak.as_f64() / Bytes::gib(1).as_f64()
            ),
            Self::DidNotHelp { rung } => write!(f, "{} was tried for this pod and the risk stayed", rung.verb()),
            Self::WouldNotHelp { rung, why } => write!(f, "{} would not help: {why}", rung.verb()),
            Self::LimitHolds { bytes } => write!(
                f,
                "a limit of {:.1} GiB holds and keeps it out of its neighbours' memory; nothing stronger is done",
                bytes.as_f64() / Bytes::gib(1).as_f64()
            ),
            Self::LimitPending => f.write_str("its limit was asked for and does not hold yet; this waits for it"),
            Self::LimitUnsupported { why } => write!(f, "no limit can hold there ({why})"),
            Self::NoLimit => f.write_str("no limit is set that would keep it within its room"),
            Self::AutoscalerExpected { until } => write!(
                f,
                "an autoscaler that reads the operator's metrics is expected to add replicas until {}",
                Utc(*until)
            ),
            Self::ScaleSettling { until } => {
                write!(f, "replicas were added, and until {} they may still be starting", Utc(*until))
            }
            Self::HostMoveSettling { until } => {
                write!(f, "it is being moved to host memory, and until {} the device may still show what it held", Utc(*until))
            }
            Self::NothingListed => f.write_str("spec.actions lists nothing that could be done"),
            Self::ScaleAtMaximum { max } => {
                write!(f, "the workload has the {} that the policy allows at most", counted(*max, "replica", "replicas"))
            }
        }
    }
}

/// A stamp as people read it, without a library: `2026-11-29T03:04Z`.
struct Utc(Stamp);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0.0.div_euclid(86_400), self.0.0.rem_euclid(86_400));
        // Days since 1970 to a date of the Gregorian calendar, counted in eras of 400 years that begin in March.
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        write!(f, "{year:04}-{month:02}-{day:02}T{:02}:{:02}Z", second / 3600, second % 3600 / 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_read_as_dates() {
        for (second, text) in [
            (0, "1970-01-01T00:00Z"),
            (951_782_399, "2000-02-28T23:59Z"),
            (951_782_400, "2000-02-29T00:00Z"),
            (1_795_978_860, "2026-11-29T19:01Z"),
            (4_107_542_399, "2100-02-28T23:59Z"),
        ] {
            assert_eq!(Utc(Stamp(second)).to_string(), text);
        }
    }
}

//! Letting go on what we suspended ourselves: nobody else's suspension is ever ended.

use super::{Act, Decision, Hold, PodRef, Step, Workload, brake_allows};
use crate::identity::DeviceKey;
use crate::pacing::{DeedState, Deeds, Stamp};
use crate::policy::{Policy, Resume};

/// A workload that we suspended and that nobody has let go on since, as records and its own spec say together.
#[derive(Clone, Debug, PartialEq)]
pub struct Suspended {
    /// The pod for whose sake it was suspended; it is gone since.
    pub pod: PodRef,
    /// The workload.
    pub workload: Workload,
    /// The container that was at risk.
    pub container: String,
    /// The device it was on.
    pub device: DeviceKey,
    /// Who lets it go on.
    pub resume: Resume,
    /// When it was suspended.
    pub at: Stamp,
}

/// What is to be done about workloads that this policy suspended: each goes on when its cool-down ends, in any mode, because
/// that gives back what was taken. A pause, an open breaker or an unreadable ledger stop it like everything else.
///
/// [`Resume::Manual`] yields nothing: the owner lets it go on.
pub fn resumptions(now: Stamp, policy: &Policy, suspended: &[Suspended], deeds: &Deeds) -> Vec<Decision> {
    let due = suspended.iter().filter(|one| one.resume == Resume::AfterCooldown);
    due.map(|one| match resumable(now, policy, one, deeds) {
        Ok(()) => Decision::Act(Act {
            step: Step::ResumeWorkload,
            pod: one.pod.clone(),
            workload: one.workload.clone(),
            container: one.container.clone(),
            device: one.device.clone(),
            expected_in: None,
            reason: "the cool-down after its suspension is over".to_owned(),
            // A dry run suspends nothing, so whatever is suspended is really so.
            dry_run: false,
            fresh_until: now + policy.prediction.max_sample_age,
            blast: 0,
            passed: Vec::new(),
        }),
        Err(why) => Decision::Hold { pod: one.pod.clone(), workload: one.workload.clone(), why },
    })
    .collect()
}

fn resumable(now: Stamp, policy: &Policy, one: &Suspended, deeds: &Deeds) -> Result<(), Hold> {
    brake_allows(now, policy, deeds)?;
    if deeds.deeds.iter().any(|deed| deed.workload == one.workload.uid && deed.state == DeedState::Open) {
        return Err(Hold::InFlight);
    }
    // The record of the suspension itself is in the history; where that is lost, the suspension says when it was.
    let history = deeds.histories.get(&one.workload.uid);
    let rested = history.and_then(|history| history.cooldown_ends(now, &policy.disruption, false));
    let until = rested.unwrap_or_default().max(one.at + policy.disruption.cooldown);
    if until > now {
        return Err(Hold::Cooldown { until });
    }
    history
        .and_then(|history| history.back_off_ends(now, false))
        .map_or(Ok(()), |(until, refusal)| Err(Hold::BackOff { until, refusal }))
}

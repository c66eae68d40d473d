//! Asking for a checkpoint before a pod is stopped: request, wait, done; withdrawn when the risk is over.
//!
//! The request stands in the pod's annotations, which its owner may edit, so the record of it counts as well: a request whose
//! annotations were removed is not made twice. A request or an answer that belongs to another pod's UID is nobody's.

use std::time::Duration;

use super::ladder::{Answer, Climb};
use super::{Act, Blast, CheckpointState, Decision, Hold, Step, StepKind, View, brake_allows};
use crate::pacing::{DeedState, Deeds, Past, PastResult, Stamp};
use crate::policy::{Checkpoint, CheckpointNeed, Mode, OnTimeout, Policy};
use crate::risk::Level;

/// Where one pod stands, from its annotations and from the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checkpointing {
    /// Nobody asked, or what was asked was taken back.
    Open,
    /// Asked, with time left until then.
    Waiting(Stamp),
    /// Asked, and no answer came in time.
    Unanswered,
    /// Answered.
    Done,
}

impl Checkpointing {
    /// `history` is the workload's, newest first.
    pub fn of<'a>(
        now: Stamp,
        timeout: Duration,
        view: &View,
        mut history: impl Iterator<Item = &'a Past>,
        dry_run: bool,
    ) -> Self {
        let waiting = |deadline| if now < deadline { Self::Waiting(deadline) } else { Self::Unanswered };
        match &view.checkpoint {
            CheckpointState::Done { pod, .. } if *pod == view.pod.uid => return Self::Done,
            CheckpointState::Requested { pod, deadline, .. } if *pod == view.pod.uid => return waiting(*deadline),
            CheckpointState::NotRequested | CheckpointState::Requested { .. } | CheckpointState::Done { .. } => {}
        }
        let recorded = history.find(|past| {
            past.pod.as_ref() == Some(&view.pod.uid)
                && past.dry_run == dry_run
                && past.result == PastResult::Harmless
                && matches!(past.step, Some(StepKind::RequestCheckpoint | StepKind::WithdrawCheckpoint))
        });
        match recorded {
            Some(past) if past.step == Some(StepKind::RequestCheckpoint) => match waiting(past.at + timeout) {
                // Nobody can answer a request that was only tried: it is played through as if the answer came in time.
                Self::Unanswered if dry_run => Self::Done,
                other => other,
            },
            _ => Self::Open,
        }
    }

    /// What the rung says.
    pub fn answer(self, climb: &Climb<'_>, how: Checkpoint) -> Answer {
        let grace = climb.standing.grace;
        let needs = how.timeout + grace;
        let too_late = match how.need {
            CheckpointNeed::Required => Answer::Wait,
            CheckpointNeed::BestEffort => Answer::Pass,
        };
        // Most answer long before the timeout, so whoever may go without an answer asks while there is time for any.
        let (least, hurried) = match how.need {
            CheckpointNeed::Required => (needs, false),
            CheckpointNeed::BestEffort => (2 * grace, climb.may_come_within(2 * grace)),
        };
        match self {
            Self::Done => Answer::Pass(Hold::CheckpointTaken),
            // The answer may still come, but what follows has to begin now to end in time.
            Self::Waiting(_) if how.need == CheckpointNeed::BestEffort && climb.may_come_within(2 * grace) => {
                Answer::Pass(Hold::NoTimeForCheckpoint { needs })
            }
            Self::Waiting(until) => Answer::Wait(Hold::AwaitingCheckpoint { until }),
            Self::Unanswered => match (how.need, how.on_timeout) {
                (CheckpointNeed::BestEffort, OnTimeout::Proceed) => Answer::Pass(Hold::CheckpointUnanswered),
                (CheckpointNeed::Required, _) | (_, OnTimeout::Skip) => Answer::Wait(Hold::CheckpointUnanswered),
            },
            Self::Open if hurried || !climb.is_later_than(least) => too_late(Hold::NoTimeForCheckpoint { needs }),
            Self::Open => match of_siblings(climb) {
                Some(until) => Answer::Wait(Hold::AwaitingCheckpoint { until }),
                None => Answer::Take(Step::RequestCheckpoint { timeout: how.timeout }, Blast(0)),
            },
        }
    }
}

/// Until when another pod of the same workload has to answer: a gang is asked once.
fn of_siblings(climb: &Climb<'_>) -> Option<Stamp> {
    let siblings = climb.views.iter().filter(|other| other.workload.uid == climb.view.workload.uid);
    let deadlines = siblings.filter_map(|other| match &other.checkpoint {
        CheckpointState::Requested { pod, deadline, .. } if *pod == other.pod.uid => Some(*deadline),
        CheckpointState::NotRequested | CheckpointState::Requested { .. } | CheckpointState::Done { .. } => None,
    });
    deadlines.filter(|deadline| climb.now < *deadline).max()
}

/// Takes a request back when the risk is over, or when the policy no longer acts: the application need not save its work
/// on our account. That is done for real in every mode, because it gives back what was taken.
pub(super) fn withdraw(now: Stamp, policy: &Policy, view: &View, deeds: &Deeds) -> Option<Decision> {
    let id = match &view.checkpoint {
        CheckpointState::Requested { id, pod, .. } | CheckpointState::Done { id, pod } if *pod == view.pod.uid => id,
        CheckpointState::NotRequested | CheckpointState::Requested { .. } | CheckpointState::Done { .. } => {
            return None;
        }
    };
    let acts = policy.mode == Mode::Enforce && policy.actions.checkpoint.is_some();
    if view.level != Level::Low && acts {
        return None;
    }
    brake_allows(now, policy, deeds).ok()?;
    let open = |deeds: &Deeds| {
        deeds.deeds.iter().any(|deed| deed.workload == view.workload.uid && deed.state == DeedState::Open)
    };
    let history = deeds.histories.get(&view.workload.uid);
    if open(deeds) || history.is_some_and(|history| history.back_off_ends(now, false).is_some()) {
        return None;
    }
    let over = if acts { "the risk is over" } else { "the policy acts no more" };
    Some(Decision::Act(Act {
        step: Step::WithdrawCheckpoint { id: id.clone() },
        pod: view.pod.clone(),
        workload: view.workload.clone(),
        container: view.container.clone(),
        device: view.device.clone(),
        expected_in: view.expected_in(),
        reason: format!("{over}, so the checkpoint is not needed any more"),
        dry_run: false,
        fresh_until: now + policy.prediction.max_sample_age,
        blast: 0,
        passed: Vec::new(),
    }))
}

//! The ladder: which rung is taken for one pod that may be acted on and is at risk now.
//!
//! The rungs that the policy lists are looked at in order, mildest first, and each gives one of three answers. *Take*: it is
//! predicted to help and ends before the OOM. *Wait*: it is at work, or something that no stronger rung may ignore stands in
//! the way (a budget, a cool-down, a checkpoint that is required). *Pass*: it has no lever here, cannot end in time, would not
//! help, or was tried on this pod and did not. Only a pass leads to the next rung, and only to one that is listed.
//!
//! When a limit helps: on a shared device one that holds within the container's room keeps it from taking its neighbours'
//! memory, so nobody else is harmed and nothing stronger is done; it will run into its limit, and that is its owner's to
//! mend. Alone on its device there is nobody to protect and a limit only brings the OOM forward, so it is passed over.

use std::time::Duration;

use super::checkpoint::Checkpointing;
use super::{Act, Blast, Hold, LimitState, Standing, Step, StepKind, View, differ};
use crate::forecast::Class;
use crate::pacing::{Candidate, Deeds, History, Past, PastResult, Stamp};
use crate::policy::{Checkpoint, Enforcement, Policy, Rung, Scale, ScaleVia};

/// From the write of a limit until the agent has read it back, at most; it applies its node's limits every few seconds.
const LIMIT_TAKES: Duration = Duration::from_mins(1);
/// From a scale-out until the new replicas take load: an autoscaler's own period, a pod's start and a model's load.
const SCALE_TAKES: Duration = Duration::from_mins(5);
/// Moving a whole device's memory to the host, at a tenth of what its bus can do.
const HOST_MOVE_TAKES: Duration = Duration::from_secs(30);
/// Until then a move that was begun may not be seen on the device: 22 GiB were shown to be gone after 14 s on an H200
/// (`docs/limits.md`), and a full one is four to seven times that.
const HOST_MOVE_SETTLES: Duration = Duration::from_mins(2);

/// The way up for one pod.
#[derive(Clone, Copy)]
pub(super) struct Climb<'a> {
    pub now: Stamp,
    pub policy: &'a Policy,
    pub view: &'a View,
    /// All pods of the policy.
    pub views: &'a [View],
    pub deeds: &'a Deeds,
    pub standing: &'a Standing,
    pub dry_run: bool,
}

/// What a rung answers.
pub(super) enum Answer {
    /// It is taken; so many pods stop by it.
    Take(Step, Blast),
    /// Nothing is done now.
    Wait(Hold),
    /// The next rung is looked at.
    Pass(Hold),
}

/// A rung that the policy lists, with its parameters.
enum Listed {
    Limit,
    Scale(Scale),
    Checkpoint(Checkpoint),
    /// One that stops the pod.
    Stop(Step),
}

impl Listed {
    const fn rung(&self) -> Rung {
        match self {
            Self::Limit => Rung::LimitGrowth,
            Self::Scale(_) => Rung::Scale,
            Self::Checkpoint(_) => Rung::Checkpoint,
            Self::Stop(step) => step.rung(),
        }
    }
}

impl Climb<'_> {
    /// The step that is taken, or why none is.
    pub fn climb(&self) -> Result<Act, Hold> {
        let mut passed = Vec::new();
        for listed in self.listed() {
            let answer = match listed {
                Listed::Limit => self.limit(),
                Listed::Scale(scale) => self.scale(scale),
                Listed::Checkpoint(how) => self.checkpoint(how),
                Listed::Stop(ref step) => self.stop(step),
            };
            match answer {
                Answer::Take(step, blast) => return Ok(self.act(step, blast, passed)),
                Answer::Wait(why) => return Err(why),
                Answer::Pass(why) => passed.push((listed.rung(), why)),
            }
        }
        // Of all that was passed over the strongest says why nothing is left.
        Err(passed.pop().map_or(Hold::NothingListed, |(_, why)| why))
    }

    /// The rungs that the policy lists, mildest first.
    fn listed(&self) -> impl Iterator<Item = Listed> + use<> {
        let actions = self.policy.actions;
        [
            actions.limit_growth.then_some(Listed::Limit),
            actions.scale.map(Listed::Scale),
            actions.checkpoint.map(Listed::Checkpoint),
            actions.suspend_to_host.then_some(Listed::Stop(Step::SuspendToHost)),
            actions.suspend_workload.map(|resume| Listed::Stop(Step::SuspendWorkload { resume })),
            actions.evict.then_some(Listed::Stop(Step::Evict)),
        ]
        .into_iter()
        .flatten()
    }

    fn limit(&self) -> Answer {
        if !self.view.shared {
            let why = "it is alone on its device and would only run into the limit instead";
            return Answer::Pass(Hold::WouldNotHelp { rung: Rung::LimitGrowth, why });
        }
        if self.policy.growth.is_none_or(|growth| growth.enforcement == Enforcement::Advise) {
            return Answer::Pass(Hold::NoLimit);
        }
        match &self.view.limit {
            LimitState::Holds { bytes } if self.view.room.is_some_and(|room| *bytes <= room) => {
                Answer::Wait(Hold::LimitHolds { bytes: *bytes })
            }
            LimitState::NotSet | LimitState::Holds { .. } => Answer::Pass(Hold::NoLimit),
            LimitState::Pending { since } if self.now < *since + LIMIT_TAKES && self.is_later_than(LIMIT_TAKES) => {
                Answer::Wait(Hold::LimitPending)
            }
            LimitState::Pending { .. } => Answer::Pass(Hold::LimitPending),
            LimitState::Unsupported { why } => Answer::Pass(Hold::LimitUnsupported { why: why.clone() }),
        }
    }

    fn scale(&self, scale: Scale) -> Answer {
        let rung = Rung::Scale;
        if self.view.forecast.class == Class::RestartLoop {
            let why = "it runs out at the same peak again and again, whatever its load";
            return Answer::Pass(Hold::WouldNotHelp { rung, why });
        }
        let (until, wait) = match scale.via {
            ScaleVia::Metrics => match &self.standing.levers.scale {
                // Whoever owns the replicas is the one who is expected to act.
                Ok(_) | Err(Hold::ReplicasOwnedByOther { .. }) => {
                    let until = self.view.high_since.unwrap_or(self.now) + SCALE_TAKES;
                    (until, Hold::AutoscalerExpected { until })
                }
                Err(why) => return Answer::Pass(why.clone()),
            },
            ScaleVia::Replicas => match self.last(StepKind::Scale) {
                Some(last) => (last.at + SCALE_TAKES, Hold::ScaleSettling { until: last.at + SCALE_TAKES }),
                None => return self.scale_out(scale),
            },
        };
        if self.now < until {
            let in_time = self.is_later_than(until.since(self.now));
            return if in_time { Answer::Wait(wait) } else { Answer::Pass(Hold::NoTime { rung, needs: SCALE_TAKES }) };
        }
        let tried_here = scale.via == ScaleVia::Metrics || self.tried(StepKind::Scale);
        if tried_here { Answer::Pass(Hold::DidNotHelp { rung }) } else { self.scale_out(scale) }
    }

    fn scale_out(&self, scale: Scale) -> Answer {
        let from = match &self.standing.levers.scale {
            Ok(from) => *from,
            Err(why) => return Answer::Pass(why.clone()),
        };
        let to = from.saturating_add(scale.step).min(scale.max_replicas);
        if to <= from {
            return Answer::Pass(Hold::ScaleAtMaximum { max: scale.max_replicas });
        }
        if !self.is_later_than(SCALE_TAKES) {
            return Answer::Pass(Hold::NoTime { rung: Rung::Scale, needs: SCALE_TAKES });
        }
        match self.permit_harmless() {
            Ok(()) => Answer::Take(Step::Scale { from, to }, Blast(0)),
            Err(why) => Answer::Wait(why),
        }
    }

    fn checkpoint(&self, how: Checkpoint) -> Answer {
        let state = Checkpointing::of(self.now, how.timeout, self.view, self.history(), self.dry_run);
        match state.answer(self, how) {
            // A request that no action may follow would only cost the application time.
            Answer::Take(step, blast) => match self.may_follow() {
                Ok(()) => Answer::Take(step, blast),
                Err(why) => Answer::Wait(why),
            },
            other => other,
        }
    }

    /// Whether the first rung that would follow a checkpoint may be taken. Where none is listed or none has a lever the
    /// checkpoint is worth having by itself.
    fn may_follow(&self) -> Result<(), Hold> {
        let mut levers = self.listed().filter_map(|listed| match listed {
            Listed::Stop(step) => self.lever(&step).ok(),
            Listed::Limit | Listed::Scale(_) | Listed::Checkpoint(_) => None,
        });
        levers.next().map_or_else(|| self.permit_harmless(), |blast| self.permit(blast))
    }

    /// A rung that stops the pod.
    fn stop(&self, step: &Step) -> Answer {
        let rung = step.rung();
        let blast = match self.lever(step) {
            Ok(blast) => blast,
            Err(why) => return Answer::Pass(why),
        };
        if self.tried(step.kind()) {
            return self.moving(step.kind()).unwrap_or(Answer::Pass(Hold::DidNotHelp { rung }));
        }
        let needs = if rung == Rung::SuspendToHost { HOST_MOVE_TAKES } else { self.standing.grace };
        if !self.is_later_than(needs) {
            return Answer::Pass(Hold::NoTime { rung, needs });
        }
        if let Some(why) = differ::would_not(self.now, self.view, self.history(), self.dry_run) {
            return Answer::Pass(why);
        }
        match self.permit(blast) {
            Ok(()) => Answer::Take(step.clone(), blast),
            Err(why) => Answer::Wait(why),
        }
    }

    /// How many pods a step stops, if the workload has a lever for it.
    fn lever(&self, step: &Step) -> Result<Blast, Hold> {
        let levers = &self.standing.levers;
        let restart_loop = self.remembered().and_then(|history| history.restart_loop.as_ref());
        if *step == Step::Evict
            && let Some(why) = differ::loops(self.view, restart_loop)
        {
            return Err(why);
        }
        let blast = match step {
            Step::SuspendToHost => levers.suspend_to_host.clone().map(|()| Blast(1)),
            Step::SuspendWorkload { .. } => levers.suspend.clone(),
            Step::Scale { .. }
            | Step::RequestCheckpoint { .. }
            | Step::WithdrawCheckpoint { .. }
            | Step::ResumeWorkload
            | Step::Evict => levers.evict.clone(),
        };
        // Whatever a lever says: this pod stops.
        blast.map(|blast| blast.max(Blast(1)))
    }

    /// Whether so many pods may be stopped now.
    fn permit(&self, Blast(blast): Blast) -> Result<(), Hold> {
        differ::is_old_enough(self.policy.prediction.warm_up, self.view)?;
        differ::gives_nothing_back(self.view)?;
        let candidate = Candidate {
            namespace: &self.view.pod.namespace,
            node: &self.view.pod.node,
            workload: &self.view.workload.uid,
            device: &self.view.device,
            blast,
            group: &self.standing.group,
            pod_ready: self.standing.ready,
        };
        self.deeds.permit(self.now, self.policy, self.dry_run, candidate)
    }

    fn permit_harmless(&self) -> Result<(), Hold> {
        let (workload, group) = (&self.view.workload.uid, &self.standing.group);
        self.deeds.permit_harmless(self.now, self.policy, self.dry_run, workload, group)
    }

    /// Whether the OOM comes later than this; where nobody can say when it comes, it is not known to come earlier.
    pub fn is_later_than(&self, needs: Duration) -> bool {
        self.view.expected_in().is_none_or(|expected| expected >= needs)
    }

    /// Whether the OOM may come before this: one in ten comes before its early decile.
    pub fn may_come_within(&self, needs: Duration) -> bool {
        self.view.earliest_in().is_some_and(|earliest| earliest < needs)
    }

    /// What was done to the workload, newest first.
    fn history(&self) -> impl Iterator<Item = &Past> + Clone {
        self.remembered().into_iter().flat_map(|history| history.past.iter().rev())
    }

    fn remembered(&self) -> Option<&History> {
        self.deeds.histories.get(&self.view.workload.uid)
    }

    /// The newest step of a kind that was carried out on the workload.
    fn last(&self, kind: StepKind) -> Option<&Past> {
        self.history().find(|past| {
            past.step == Some(kind)
                && past.dry_run == self.dry_run
                && matches!(past.result, PastResult::Disrupted | PastResult::Harmless)
        })
    }

    /// The answer while the pod is on its way to host memory. From the agent's lock on its process stands still and cannot run
    /// out, whatever its past growth foretells; before that, nothing stronger would come sooner than the lock. A move that the
    /// agent refuses leaves no lever, which is asked before this.
    fn moving(&self, kind: StepKind) -> Option<Answer> {
        let until = self.last(kind).filter(|_| kind == StepKind::SuspendToHost)?.at + HOST_MOVE_SETTLES;
        (self.now < until).then_some(Answer::Wait(Hold::HostMoveSettling { until }))
    }

    /// Whether a step of a kind was carried out on this very pod.
    fn tried(&self, kind: StepKind) -> bool {
        // A dry run leaves the pod as it was: it would be tried again and again, so its cool-down is what ends that.
        !(self.dry_run && kind != StepKind::Scale)
            && self.last(kind).is_some_and(|past| past.pod.as_ref() == Some(&self.view.pod.uid))
    }

    fn act(&self, step: Step, Blast(blast): Blast, passed: Vec<(Rung, Hold)>) -> Act {
        let mut reason = self.view.forecast.reason.clone();
        for (rung, why) in &passed {
            // Taken, not passed over; and what follows it is this very step.
            if *why == Hold::CheckpointTaken {
                reason.push_str("; the application saved its work before");
                continue;
            }
            reason.push_str("; passed over ");
            reason.push_str(rung.verb());
            reason.push_str(": ");
            reason.push_str(&why.to_string());
        }
        let fresh_for = self.policy.prediction.max_sample_age.saturating_sub(self.view.sample_age);
        Act {
            step,
            pod: self.view.pod.clone(),
            workload: self.view.workload.clone(),
            container: self.view.container.clone(),
            device: self.view.device.clone(),
            expected_in: self.view.expected_in(),
            reason,
            dry_run: self.dry_run,
            fresh_until: self.now + fresh_for,
            blast,
            passed,
        }
    }
}

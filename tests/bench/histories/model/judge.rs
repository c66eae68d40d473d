//! What really happened, kept apart from every record, and what may never happen.

use std::time::Duration;

use gpumem_engine::decision::{Act, Step, StepKind};
use gpumem_engine::pacing::{AdminBudgets, Allowance, Stamp};
use gpumem_engine::policy::{CheckpointNeed, Mode, Policy, Resume, Rung};
use gpumem_engine::risk::Level;

use super::world::World;

const HOUR: i64 = 3600;
const DAY: i64 = 86_400;

/// A call that really took effect.
#[derive(Clone, Debug)]
pub struct Real {
    pub id: String,
    pub recorded: Stamp,
    pub called: Stamp,
    pub act: Act,
    recovered: bool,
}

#[derive(Debug, Default)]
pub struct Judge {
    pub real: Vec<Real>,
}

/// A broken promise.
pub type Broken = String;

macro_rules! promise {
    ($kept:expr, $($text:tt)*) => { if !$kept { return Err(format!($($text)*)); } };
}

impl Judge {
    /// Sees who is whole again.
    pub fn look(&mut self, world: &World, settle: Duration) {
        for real in self.real.iter_mut().filter(|real| !real.recovered && real.act.blast > 0) {
            let whole = world.whole(world.owner(&real.act.workload.uid));
            real.recovered = whole && world.now.since(real.called) >= settle;
        }
    }

    fn disruptions(&self) -> impl Iterator<Item = &Real> + Clone {
        self.real.iter().filter(|real| real.act.blast > 0)
    }

    /// Of a decision at the moment it is recorded.
    pub fn decided(&self, world: &World, policy: &Policy, admin: &AdminBudgets, act: &Act) -> Result<(), Broken> {
        let (now, owner) = (world.now, world.owner(&act.workload.uid));
        if matches!(act.step, Step::WithdrawCheckpoint { .. } | Step::ResumeWorkload) {
            return Ok(());
        }
        let pod = owner.pods.iter().find(|pod| pod.uid == act.pod.uid.as_str());
        let Some(pod) = pod else { return Err("acts on a pod that is not there".into()) };
        promise!(policy.mode != Mode::Observe, "acts in Observe");
        promise!(act.dry_run == (policy.mode == Mode::DryRun), "dry run and real are mixed up");
        promise!(policy.paused.is_empty() && !owner.opted_out, "acts though paused or opted out");
        promise!(pod.level == Level::High && pod.probability >= policy.prediction.act_probability, "acts without risk");
        promise!(pod.sample_age <= policy.prediction.max_sample_age.as_secs(), "acts on old data");
        promise!(!owner.rolling_out, "acts during a rollout");
        let actions = policy.actions;
        let listed = match act.step.rung() {
            Rung::Scale => actions.scale.is_some(),
            Rung::Checkpoint => actions.checkpoint.is_some(),
            Rung::SuspendToHost => actions.suspend_to_host,
            Rung::SuspendWorkload => actions.suspend_workload.is_some(),
            Rung::Evict => actions.evict,
            Rung::Notify | Rung::LimitGrowth => false,
        };
        promise!(listed, "takes {:?}, which is not listed", act.step);
        if act.blast == 0 || act.dry_run {
            return Ok(());
        }
        let late = Duration::from_secs_f64(1.2 * pod.seconds as f64);
        promise!(now.since(pod.born) >= 3 * late, "stops a pod of which too little was seen");
        let young = now.since(pod.born) < 3 * policy.prediction.warm_up;
        promise!(!young, "stops a pod that is younger than three warm-ups");
        promise!(pod.gave_back.0 == 0, "stops a pod whose memory comes and goes");
        let checkpoint = actions.checkpoint.filter(|checkpoint| checkpoint.need == CheckpointNeed::Required);
        let answered = pod.request.as_ref().is_some_and(|request| request.done && request.pod == pod.uid);
        promise!(checkpoint.is_none() || answered, "stops a pod without the checkpoint that is required");
        let missed = if act.blast == 1 { u32::from(pod.ready_at <= now) } else { act.blast };
        let remaining = world.ready(owner).saturating_sub(missed);
        promise!(remaining >= policy.disruption.min_available, "goes below minAvailable");
        let own = || self.disruptions().filter(|real| real.act.workload == act.workload);
        promise!(own().all(|real| real.recovered), "two in flight for one workload");
        let attempts = own().filter(|real| now.0 - real.recorded.0 < DAY).count() as u32;
        promise!(attempts < policy.disruption.max_attempts, "more than maxAttempts in a day");
        if let Some(last) = own().last() {
            let rest = policy.disruption.cooldown.saturating_mul(1 << attempts.saturating_sub(1).min(16));
            let rest = rest.min(Duration::from_hours(6).max(policy.disruption.cooldown));
            promise!(now.since(last.recorded) >= rest, "ignores the cool-down of {rest:?}");
        }
        within(
            now,
            self.disruptions(),
            act.blast,
            Some(policy.disruption.max_concurrent),
            Some(policy.disruption.max_per_hour),
        )?;
        let of = |budget: Allowance| (budget.concurrent, budget.per_hour);
        let (at_once, hourly) = of(admin.cluster);
        within(now, self.disruptions(), act.blast, at_once, hourly)?;
        let (at_once, hourly) = of(admin.node);
        within(now, self.disruptions().filter(|real| real.act.pod.node == act.pod.node), act.blast, at_once, hourly)
    }

    /// Of a call just before it takes effect.
    pub fn called(&mut self, world: &World, paused: bool, id: &str, recorded: Stamp, act: &Act) -> Result<(), Broken> {
        promise!(!paused, "acts though the cluster is paused");
        promise!(self.real.iter().all(|real| real.id != id), "makes the call of {id} twice");
        let owner = world.owner(&act.workload.uid);
        match &act.step {
            Step::RequestCheckpoint { .. } => {
                let mut about = self.real.iter().filter(|real| real.act.pod == act.pod);
                let last = about.rfind(|real| real.act.step.rung() == Rung::Checkpoint);
                let again = last.is_some_and(|real| real.act.step.kind() == StepKind::RequestCheckpoint);
                promise!(!again, "asks the same pod twice");
            }
            Step::ResumeWorkload => {
                let ours = owner.suspended.as_ref().is_some_and(|(_, resume, _)| *resume == Resume::AfterCooldown);
                promise!(ours, "lets go on what is not for us to");
            }
            Step::Scale { to, .. } => promise!(owner.can_scale && *to <= 6, "scales what is not ours"),
            Step::WithdrawCheckpoint { .. } | Step::SuspendToHost | Step::SuspendWorkload { .. } | Step::Evict => {}
        }
        self.real.push(Real { id: id.to_owned(), recorded, called: world.now, act: act.clone(), recovered: false });
        Ok(())
    }
}

/// Whether so many more pods are within a budget.
fn within<'a>(
    now: Stamp,
    of: impl Iterator<Item = &'a Real> + Clone,
    blast: u32,
    at_once: Option<u32>,
    hourly: Option<u32>,
) -> Result<(), Broken> {
    let concurrent: u32 = of.clone().filter(|real| !real.recovered).map(|real| real.act.blast).sum();
    promise!(
        at_once.is_none_or(|max| concurrent + blast <= max),
        "{concurrent} and {blast} pods at once, {at_once:?} allowed"
    );
    let lately: u32 = of.filter(|real| now.0 - real.recorded.0 < HOUR).map(|real| real.act.blast).sum();
    promise!(
        hourly.is_none_or(|max| lately + blast <= max),
        "{lately} and {blast} pods in an hour, {hourly:?} allowed"
    );
    Ok(())
}

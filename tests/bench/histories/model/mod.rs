//! Histories in virtual time: a small cluster, two controllers that both may believe to lead, calls that are refused or whose
//! answer is lost, processes that die between any two steps, tenants who edit annotations, and a judge who remembers what
//! really happened. The engine decides; around it stands the controller's loop, as small as it can be.

use std::collections::BTreeMap;
use std::time::Duration;

use gpumem_engine::decision::{Act, Decision, Step, decide, resumptions};
use gpumem_engine::pacing::{
    AdminBudgets, Allowance, Brake, Breaker, Deed, DeedState, Deeds, History, Past, PastResult, Refusal, Stamp,
    WorkloadUid,
};
use gpumem_engine::policy::{
    Actions, Budget, Checkpoint, CheckpointNeed, Disruption, Mode, OnTimeout, Policy, PolicyKey, Prediction, Resume,
    Scale, ScaleVia,
};
use gpumem_engine::quantity::Bytes;
use gpumem_engine::risk::Level;

#[path = "../../corpus/dice.rs"]
#[allow(dead_code, reason = "shared with the corpus of shapes")]
mod dice;
mod judge;
mod world;

use dice::Dice;
use judge::{Broken, Judge};
use world::{Request, World};

/// What happened in a number of histories.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub rounds: u64,
    pub crashes: u64,
    pub conflicts: u64,
    pub disruptions: u64,
    pub requests: u64,
    pub resumptions: u64,
    pub dry_runs: u64,
    pub holds: u64,
}

impl Tally {
    pub fn add(&mut self, other: Self) {
        self.rounds += other.rounds;
        self.crashes += other.crashes;
        self.conflicts += other.conflicts;
        self.disruptions += other.disruptions;
        self.requests += other.requests;
        self.resumptions += other.resumptions;
        self.dry_runs += other.dry_runs;
        self.holds += other.holds;
    }
}

const SEND_WITHIN: Duration = Duration::from_secs(20);
const DEADLINE: Duration = Duration::from_mins(1);

#[derive(Clone, Debug)]
struct Intent {
    id: String,
    act: Act,
    created: Stamp,
}

#[derive(Clone, Debug, Default)]
struct Ledger {
    version: u64,
    intents: Vec<Intent>,
    deeds: Vec<(String, Deed, Option<Stamp>)>,
    pause: bool,
    breaker: Breaker,
}

#[derive(Clone, Debug)]
enum Stage {
    Idle,
    Recorded(Intent),
    Called(Intent, PastResult),
    Profiled(Intent, PastResult),
}

struct Controller {
    leading_since: Stamp,
    stage: Stage,
    /// A ledger it read some time ago.
    old: Option<Ledger>,
}

struct Run {
    dice: Dice,
    world: World,
    judge: Judge,
    policy: Policy,
    mode: Mode,
    admin: AdminBudgets,
    ledger: Ledger,
    profiles: BTreeMap<WorkloadUid, Vec<(String, Past)>>,
    ids: u64,
    tally: Tally,
}

/// Plays the history of a seed.
pub fn play(seed: u64) -> Result<Tally, Broken> {
    let mut dice = Dice::new(5, seed);
    let (world, policy, admin) = (World::new(&mut dice), policy(&mut dice), admin(&mut dice));
    let mode = policy.mode;
    let mut run = Run {
        dice,
        world,
        judge: Judge::default(),
        policy,
        mode,
        admin,
        ledger: Ledger::default(),
        profiles: BTreeMap::new(),
        ids: 0,
        tally: Tally::default(),
    };
    let young = run.world.now;
    let mut controllers = [0, 1].map(|_| Controller { leading_since: young, stage: Stage::Idle, old: None });
    let steps = 20 + (run.dice.unit() * 80.0) as usize;
    for _ in 0..steps {
        run.pass_time();
        run.happen();
        // Mostly the same one leads; at times its lease is taken over while it sleeps.
        let who = usize::from(run.dice.chance(0.15));
        run.step(&mut controllers[who], true)?;
    }
    run.calm_down(&mut controllers)?;
    Ok(run.tally)
}

fn policy(dice: &mut Dice) -> Policy {
    let mut below = |most: f64| (dice.unit() * most) as u32;
    let disruption = Disruption {
        max_concurrent: 1 + below(6.0),
        max_per_hour: 1 + below(8.0),
        min_available: below(2.0),
        require_budget: true,
        cooldown: Duration::from_secs(60 * u64::from(1 + below(30.0))),
        max_attempts: 1 + below(4.0),
        protect: Vec::new(),
    };
    let checkpoint = Checkpoint {
        timeout: Duration::from_secs(60 + u64::from(below(300.0))),
        need: if below(2.0) == 0 { CheckpointNeed::Required } else { CheckpointNeed::BestEffort },
        on_timeout: if below(2.0) == 0 { OnTimeout::Skip } else { OnTimeout::Proceed },
    };
    let resume = if below(3.0) == 0 { Resume::Manual } else { Resume::AfterCooldown };
    let scale = Scale { via: ScaleVia::Replicas, step: 1 + below(2.0), max_replicas: 6 };
    let mode = if dice.chance(0.15) { Mode::DryRun } else { Mode::Enforce };
    Policy {
        key: PolicyKey { namespace: "ml".into(), name: "p".into() },
        mode,
        paused: Vec::new(),
        precedence: 0,
        containers: Vec::new(),
        budget: Budget::Device,
        headroom: Bytes::ZERO,
        // Replacements that are a minute old may be stopped: with the default of half an hour hardly one ever would.
        prediction: Prediction {
            clear_for: Duration::from_secs(30),
            warm_up: Duration::from_secs(20),
            ..Prediction::default()
        },
        actions: Actions {
            notify: false,
            limit_growth: false,
            scale: dice.chance(0.3).then_some(scale),
            checkpoint: dice.chance(0.5).then_some(checkpoint),
            suspend_to_host: dice.chance(0.3),
            suspend_workload: dice.chance(0.4).then_some(resume),
            evict: dice.chance(0.8),
        },
        growth: None,
        disruption,
    }
}

fn admin(dice: &mut Dice) -> AdminBudgets {
    let mut one = || Allowance {
        concurrent: dice.chance(0.3).then(|| 1 + (dice.unit() * 6.0) as u32),
        per_hour: dice.chance(0.3).then(|| 1 + (dice.unit() * 8.0) as u32),
    };
    AdminBudgets { cluster: one(), node: one(), ..AdminBudgets::default() }
}

impl Run {
    fn pass_time(&mut self) {
        let seconds = match self.dice.unit() {
            u if u < 0.6 => self.dice.between(1.0, 10.0),
            u if u < 0.8 => self.dice.between(10.0, 120.0),
            u if u < 0.95 => self.dice.between(120.0, 1800.0),
            _ => self.dice.between(1800.0, 20_000.0),
        };
        self.world.now = Stamp(self.world.now.0 + seconds as i64);
        self.judge.look(&self.world, self.policy.disruption.settle());
    }

    /// What others do.
    fn happen(&mut self) {
        let (dice, now) = (&mut self.dice, self.world.now);
        // What a tenant wipes before a lost answer is settled is gone for everyone, and is asked for again.
        let settled = self.ledger.intents.is_empty();
        for owner in &mut self.world.owners {
            owner.rolling_out = dice.chance(0.05);
            // Whoever says no mostly says yes again soon, or nothing would be seen but that.
            if dice.chance(if owner.opted_out { 0.3 } else { 0.01 }) {
                owner.opted_out = !owner.opted_out;
            }
            for pod in &mut owner.pods {
                if dice.chance(0.3) {
                    pod.level = dice.pick(&[
                        Level::High,
                        Level::High,
                        Level::High,
                        Level::Low,
                        Level::Elevated,
                        Level::Unknown,
                    ]);
                    pod.probability = if pod.level == Level::High { dice.between(0.6, 1.0) } else { 0.3 };
                    pod.seconds = dice.log_between(10.0, 5000.0) as u64;
                    pod.sample_age = dice.log_between(1.0, 60.0) as u64;
                    pod.gave_back = if dice.chance(0.05) { Bytes::gib(5) } else { Bytes::ZERO };
                }
                match &mut pod.request {
                    Some(request) if now < request.deadline && dice.chance(0.4) => request.done = true,
                    // A tenant who tidies up, or copies annotations from elsewhere.
                    Some(_) if settled && dice.chance(0.03) => pod.request = None,
                    None if dice.chance(0.01) => {
                        let foreign =
                            Request { id: "x".into(), pod: "foreign".into(), deadline: now, done: dice.chance(0.5) };
                        pod.request = Some(foreign);
                    }
                    _ => {}
                }
            }
        }
        if dice.chance(if self.ledger.pause { 0.3 } else { 0.03 }) {
            self.ledger.pause = !self.ledger.pause;
            self.ledger.version += 1;
        }
        if dice.chance(if self.policy.mode == Mode::Observe { 0.3 } else { 0.02 }) {
            self.policy.mode = if self.policy.mode == Mode::Observe { self.mode } else { Mode::Observe };
        }
    }

    /// One step of one controller.
    fn step(&mut self, controller: &mut Controller, faults: bool) -> Result<(), Broken> {
        if faults && self.dice.chance(0.04) {
            // All that survives is what the API holds.
            *controller = Controller { leading_since: self.world.now, stage: Stage::Idle, old: None };
            self.tally.crashes += 1;
        }
        controller.stage = match std::mem::replace(&mut controller.stage, Stage::Idle) {
            Stage::Idle => self.round(controller, faults)?,
            Stage::Recorded(intent) => self.call(intent, faults)?,
            Stage::Called(intent, result) => {
                self.remember(&intent, result);
                Stage::Profiled(intent, result)
            }
            Stage::Profiled(intent, result) => {
                self.close(&intent, result);
                Stage::Idle
            }
        };
        Ok(())
    }

    /// Settles what is open, looks after who recovers, decides, and records the most urgent action.
    fn round(&mut self, controller: &mut Controller, faults: bool) -> Result<Stage, Broken> {
        self.tally.rounds += 1;
        let now = self.world.now;
        if let Some(intent) = self.ledger.intents.first().cloned() {
            if self.world.shows(&intent.id, &intent.act) && !intent.act.dry_run {
                return Ok(Stage::Called(intent.clone(), succeeded(&intent.act)));
            }
            if now >= intent.created + DEADLINE {
                return Ok(Stage::Called(intent, PastResult::Moot));
            }
        }
        self.look_after();
        let (high, watched) = self.at_risk();
        let mut breaker = self.ledger.breaker.clone();
        breaker.step(now, high, watched);
        if breaker != self.ledger.breaker {
            self.ledger.breaker = breaker;
            self.ledger.version += 1;
        }
        let fresh = self.ledger.clone();
        let seen = match controller.old.replace(fresh.clone()) {
            Some(old) if faults && self.dice.chance(0.2) => old,
            _ => fresh,
        };
        let deeds = self.deeds(controller, &seen);
        let views = self.world.views();
        let mut decisions = decide(now, &self.policy, &views, &deeds);
        decisions.extend(resumptions(now, &self.policy, &self.world.suspended(), &deeds));
        self.tally.holds += decisions.iter().filter(|one| matches!(one, Decision::Hold { .. })).count() as u64;
        let acts = decisions.into_iter().filter_map(|decision| match decision {
            Decision::Act(act) => Some(act),
            Decision::Notify(_) | Decision::Hold { .. } => None,
        });
        let Some(act) = acts.min_by_key(|act| act.expected_in.unwrap_or(Duration::MAX)) else { return Ok(Stage::Idle) };
        // The compare-and-swap.
        if seen.version != self.ledger.version || !self.ledger.intents.is_empty() {
            self.tally.conflicts += 1;
            return Ok(Stage::Idle);
        }
        self.judge.decided(&self.world, &self.policy, &self.admin, &act)?;
        if matches!(self.ledger.breaker.brake(now), Brake::BreakerOpen { .. }) {
            return Err("acts though the breaker is open".into());
        }
        self.ids += 1;
        let intent = Intent { id: format!("i{}", self.ids), act, created: now };
        self.ledger.intents.push(intent.clone());
        self.ledger.version += 1;
        Ok(Stage::Recorded(intent))
    }

    fn at_risk(&self) -> (u32, u32) {
        let high =
            self.world.owners.iter().filter(|owner| owner.pods.iter().any(|pod| pod.level == Level::High)).count();
        (high as u32, self.world.owners.len() as u32)
    }

    fn deeds(&self, controller: &Controller, ledger: &Ledger) -> Deeds {
        let brake = match ledger.intents.first() {
            _ if ledger.pause => Brake::Paused("night".into()),
            Some(open) => Brake::Unsettled(open.id.clone()),
            None => ledger.breaker.brake(self.world.now),
        };
        let histories = self.profiles.iter().map(|(uid, past)| {
            (uid.clone(), History { past: past.iter().map(|(_, past)| past.clone()).collect(), ..History::default() })
        });
        Deeds {
            leading_since: controller.leading_since,
            brake,
            admin: self.admin,
            deeds: ledger.deeds.iter().map(|(_, deed, _)| deed.clone()).collect(),
            histories: histories.collect(),
        }
    }

    fn look_after(&mut self) {
        let (now, settle) = (self.world.now, self.policy.disruption.settle());
        let mut changed = false;
        for (_, deed, whole_since) in &mut self.ledger.deeds {
            if deed.state == DeedState::Settled {
                continue;
            }
            let whole = deed.dry_run || self.world.whole(self.world.owner(&deed.workload));
            let since = whole.then(|| whole_since.unwrap_or(now));
            let settled = since.is_some_and(|since| now.since(since) >= settle);
            changed |= since != *whole_since || settled;
            *whole_since = since;
            if settled {
                deed.state = DeedState::Settled;
            }
        }
        if changed {
            self.ledger.version += 1;
        }
    }

    /// Reads again, and calls.
    fn call(&mut self, intent: Intent, faults: bool) -> Result<Stage, Broken> {
        let (now, act) = (self.world.now, &intent.act);
        let gives_back = matches!(act.step, Step::WithdrawCheckpoint { .. } | Step::ResumeWorkload);
        let owner = self.world.owner(&act.workload.uid);
        let same = act.step == Step::ResumeWorkload || self.world.has(act);
        let willing = gives_back || (self.policy.mode != Mode::Observe && !owner.opted_out);
        let resumable = act.step != Step::ResumeWorkload || owner.suspended.is_some();
        if now > intent.created + SEND_WITHIN || now > act.fresh_until {
            // Too late: whoever leads now settles it.
            return Ok(Stage::Idle);
        }
        if self.ledger.pause || !same || !willing || !resumable {
            return Ok(Stage::Called(intent, PastResult::Moot));
        }
        if faults && self.dice.chance(0.1) {
            let why = self.dice.pick(&[Refusal::BlockedByBudget, Refusal::Throttled, Refusal::Rejected]);
            return Ok(Stage::Called(intent, PastResult::Refused(why)));
        }
        if act.dry_run {
            self.tally.dry_runs += 1;
        } else {
            self.judge.called(&self.world, self.ledger.pause, &intent.id, intent.created, act)?;
            self.tally.disruptions += u64::from(act.blast > 0);
            self.tally.requests += u64::from(matches!(act.step, Step::RequestCheckpoint { .. }));
            self.tally.resumptions += u64::from(act.step == Step::ResumeWorkload);
            self.world.apply(&mut self.dice, &intent.id, act);
        }
        if faults && self.dice.chance(0.1) {
            // The answer is lost; the intent stays open.
            return Ok(Stage::Idle);
        }
        let result = succeeded(&intent.act);
        Ok(Stage::Called(intent, result))
    }

    fn remember(&mut self, intent: &Intent, result: PastResult) {
        let past = self.profiles.entry(intent.act.workload.uid.clone()).or_default();
        if past.iter().any(|(id, _)| *id == intent.id) {
            return;
        }
        let record = Past {
            step: Some(intent.act.step.kind()),
            pod: Some(intent.act.pod.uid.clone()),
            ..Past::new(self.world.now, intent.act.dry_run, result)
        };
        past.push((intent.id.clone(), record));
    }

    fn close(&mut self, intent: &Intent, result: PastResult) {
        let Some(open) = self.ledger.intents.iter().position(|open| open.id == intent.id) else { return };
        self.ledger.intents.remove(open);
        self.ledger.version += 1;
        let act = &intent.act;
        if !act.dry_run {
            let failed = matches!(result, PastResult::Refused(why) if why.is_failure());
            self.ledger.breaker.record(self.world.now, failed);
        }
        if result != PastResult::Disrupted {
            return;
        }
        let deed = Deed {
            policy: self.policy.key.clone(),
            namespace: act.pod.namespace.clone(),
            workload: act.workload.uid.clone(),
            pod: act.pod.uid.clone(),
            node: act.pod.node.clone(),
            device: act.device.clone(),
            step: act.step.kind(),
            blast: act.blast,
            at: intent.created,
            dry_run: act.dry_run,
            state: DeedState::Recovering,
        };
        self.ledger.deeds.push((intent.id.clone(), deed, None));
    }

    /// The trouble ends, and nothing may be left behind: no open intent, no lost record, no request, no suspension.
    fn calm_down(&mut self, controllers: &mut [Controller; 2]) -> Result<(), Broken> {
        self.ledger.pause = false;
        for owner in &mut self.world.owners {
            (owner.opted_out, owner.rolling_out) = (false, false);
        }
        for _ in 0..14 {
            for pod in self.world.owners.iter_mut().flat_map(|owner| &mut owner.pods) {
                (pod.level, pod.sample_age, pod.probability) = (Level::Low, 2, 0.1);
                pod.request = pod.request.take().filter(|request| request.pod == pod.uid);
            }
            self.world.now = Stamp(self.world.now.0 + 7200);
            self.judge.look(&self.world, self.policy.disruption.settle());
            for controller in &mut *controllers {
                self.step(controller, false)?;
                // An action begun is brought to its end.
                while !matches!(controller.stage, Stage::Idle) {
                    self.step(controller, false)?;
                }
            }
        }
        if let Some(open) = self.ledger.intents.first() {
            return Err(format!("{} was never settled", open.id));
        }
        for real in self.judge.real.iter().filter(|real| real.act.blast > 0) {
            let profile = self.profiles.get(&real.act.workload.uid);
            let known =
                profile.into_iter().flatten().any(|(id, past)| *id == real.id && past.result == PastResult::Disrupted);
            let in_ledger = self.ledger.deeds.iter().any(|(id, _, _)| *id == real.id);
            if !known || !in_ledger {
                return Err(format!("{} took effect and was forgotten", real.id));
            }
        }
        for owner in &self.world.owners {
            if matches!(owner.suspended, Some((_, Resume::AfterCooldown, _))) {
                return Err(format!("{} stays suspended", owner.name));
            }
            if owner.pods.iter().any(|pod| pod.request.is_some()) {
                return Err(format!("a request to {} stays", owner.name));
            }
        }
        Ok(())
    }
}

/// What a call that worked is recorded as.
fn succeeded(act: &Act) -> PastResult {
    if act.blast > 0 { PastResult::Disrupted } else { PastResult::Harmless }
}

//! The operator: series, forecast, risk, decision as in the controller, and a loop around them that does what was decided.

use std::collections::BTreeMap;
use std::time::Duration;

use gpumem_engine::decision::{Act, Decision, Step, View, decide};
use gpumem_engine::forecast::{Question, Tenant, forecast_device};
use gpumem_engine::pacing::{
    AdminBudgets, Breaker, Deed, DeedState, Deeds, History, Past, PastResult, Stamp, WorkloadUid,
};
use gpumem_engine::policy::Policy;
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::risk::{Hysteresis, Level};
use gpumem_engine::series::{Point, Segment, Series};

use super::SAMPLE;
use super::job::{Job, Live};
use super::view::view;

/// What is kept of one device.
#[derive(Default)]
pub struct Device {
    /// Of the job and of its neighbour.
    series: [Series; 2],
    risk: [Hysteresis; 2],
    process: u64,
    pub asked: Option<f64>,
    pub answered: bool,
}

pub struct Operator {
    policy: Policy,
    /// Whether owners declared the ends of growth that they know.
    declared: bool,
    devices: Vec<Device>,
    deeds: Vec<(Deed, Option<f64>)>,
    histories: BTreeMap<WorkloadUid, History>,
    breaker: Breaker,
    /// Neighbours that were stopped: nobody should be.
    pub neighbours_stopped: u32,
    /// Why nothing was done about each job at the last tick.
    pub last: Vec<&'static str>,
    /// Requests for checkpoints, and those to jobs that would not have run out.
    pub asked: u32,
    pub asked_in_vain: u32,
    /// What is to be told of every pod that was stopped and would not have run out.
    pub cases: Vec<String>,
    /// Why nothing was done, by reason, counted once a tick and pod.
    pub held: BTreeMap<&'static str, u32>,
}

pub fn mib(value: f64) -> Bytes {
    Bytes::from_f64(value * 1_048_576.0)
}

pub fn stamp(now: f64) -> Stamp {
    Stamp(1_000_000 + now as i64)
}

fn point(at: f64, used: f64) -> Point {
    Point { at: Moment((at * 1000.0) as u64), used: mib(used), allocator: None }
}

/// The seconds since the last sample of the loop.
fn seconds(now: f64) -> impl Iterator<Item = f64> {
    (0..SAMPLE as u32).rev().map(move |back| now - f64::from(back)).filter(|at| *at >= 0.0)
}

/// One line: what was stopped, how it went until then and would have gone on, and why it was stopped.
fn case(now: f64, view: &View, job: &Job, live: &Live) -> String {
    let second = now - live.since.unwrap_or(now);
    let top = |from: f64, to: f64| (from as u32..to as u32).map(|at| job.used(f64::from(at))).fold(0.0, f64::max);
    format!(
        "{} {}, process {}, stopped after {:.0} s at {:.3} of its room; highest before {:.3}, in the hour after {:.3}; {:?}, \
         gave back {}: {}",
        view.pod.name,
        job.family,
        live.process,
        second,
        job.used(second) / job.room,
        top(0.0, second) / job.room,
        top(second, second + 3600.0) / job.room,
        view.forecast.class,
        view.forecast.gave_back,
        view.forecast.reason
    )
}

impl Operator {
    pub fn new(devices: usize, policy: Policy, declared: bool) -> Self {
        Self {
            policy,
            declared,
            devices: (0..devices).map(|_| Device::default()).collect(),
            deeds: Vec::new(),
            histories: BTreeMap::new(),
            breaker: Breaker::default(),
            neighbours_stopped: 0,
            last: vec![""; devices],
            asked: 0,
            asked_in_vain: 0,
            cases: Vec::new(),
            held: BTreeMap::new(),
        }
    }

    /// Takes the samples of every device since the last call, one a second as the agent does unless told otherwise.
    pub fn sample(&mut self, now: f64, jobs: &[Job], live: &mut [Live]) {
        for ((device, job), live) in self.devices.iter_mut().zip(jobs).zip(live) {
            if device.process != live.process {
                (device.process, device.asked, device.answered) = (live.process, None, false);
                device.risk[0] = Hysteresis::default();
            }
            if let Some(since) = live.since {
                for at in seconds(now).filter(|at| *at >= since) {
                    device.series[0].push(Segment(live.process), point(at, job.used(at - since)));
                }
                let answer = device.asked.zip(job.answers_in).is_some_and(|(asked, answers)| now - asked >= answers);
                if answer && !device.answered && live.is_ready(job, now) {
                    device.answered = true;
                    live.save(job, now);
                }
            }
            if job.neighbour > 0.0 {
                device.series[1].push(Segment(1), point(now, job.neighbour));
            }
        }
    }

    /// Forecasts, decides, and does what was decided.
    pub fn act(&mut self, now: f64, jobs: &[Job], live: &mut [Live]) {
        let mut views = Vec::new();
        for place in 0..jobs.len() {
            self.look(now, place, &jobs[place], &live[place], &mut views);
        }
        self.recover(now, jobs, live);
        let high = views.iter().filter(|(_, view)| view.level == Level::High).count() as u32;
        self.breaker.step(stamp(now), high, views.len() as u32);
        let deeds = Deeds {
            leading_since: Stamp(0),
            brake: self.breaker.brake(stamp(now)),
            admin: AdminBudgets::default(),
            deeds: self.deeds.iter().map(|(deed, _)| deed.clone()).collect(),
            histories: self.histories.clone(),
        };
        let (places, views): (Vec<usize>, Vec<View>) = views.into_iter().unzip();
        self.last.fill("not at High");
        for decision in decide(stamp(now), &self.policy, &views, &deeds) {
            match decision {
                Decision::Act(act) => {
                    let seen = views.iter().position(|view| view.pod == act.pod).expect("it was decided on");
                    self.carry_out(now, places[seen], &views[seen], &act, jobs, live);
                }
                Decision::Hold { why, pod, .. } => {
                    *self.held.entry(why.reason()).or_default() += 1;
                    if let Some(seen) = views.iter().position(|view| view.pod == pod) {
                        self.last[places[seen]] = why.reason();
                    }
                }
                Decision::Notify(_) => {}
            }
        }
    }

    fn look(&mut self, now: f64, place: usize, job: &Job, live: &Live, views: &mut Vec<(usize, View)>) {
        let timeout = self.policy.actions.checkpoint.map_or(Duration::ZERO, |checkpoint| checkpoint.timeout);
        let device = &mut self.devices[place];
        let running = [live.since.is_some(), job.neighbour > 0.0];
        let capacity = mib(job.room + job.neighbour) - self.policy.headroom;
        let question = |tenant: usize| Question {
            horizon: self.policy.prediction.horizon,
            capacity,
            declared_peak: job.declared.filter(|_| self.declared && tenant == 0).map(mib),
            warm_up: self.policy.prediction.warm_up,
            min_samples: self.policy.prediction.min_samples,
            max_sample_age: self.policy.prediction.max_sample_age,
        };
        let who: Vec<usize> = (0..2).filter(|tenant| running[*tenant]).collect();
        let tenants: Vec<Tenant<'_>> =
            who.iter().map(|tenant| Tenant { series: &device.series[*tenant], question: question(*tenant) }).collect();
        let at = Moment((now * 1000.0) as u64);
        let answers = forecast_device(at, Some(capacity), Some(Bytes::ZERO), &tenants);
        for (tenant, forecast) in who.into_iter().zip(answers) {
            let level = device.risk[tenant].feed(at, &self.policy.prediction, &forecast);
            let view = view(now, place, tenant, job, live, device, timeout, level, forecast);
            views.push((place, view));
        }
    }

    fn carry_out(&mut self, now: f64, place: usize, view: &View, act: &Act, jobs: &[Job], live: &mut [Live]) {
        let neighbour = act.pod.name.starts_with("neighbour");
        if act.blast > 0 && (neighbour || jobs[place].runs_out.is_none()) {
            self.cases.push(case(now, view, &jobs[place], &live[place]));
        }
        let result = if act.blast > 0 { PastResult::Disrupted } else { PastResult::Harmless };
        let past = Past {
            step: Some(act.step.kind()),
            pod: Some(act.pod.uid.clone()),
            used: Some(view.used),
            age: view.age,
            ..Past::new(stamp(now), false, result)
        };
        self.histories.entry(act.workload.uid.clone()).or_default().past.push(past);
        match act.step {
            Step::RequestCheckpoint { .. } => {
                self.asked += 1;
                self.asked_in_vain += u32::from(!live[place].would_run_out(&jobs[place]));
                self.devices[place].asked = Some(now);
            }
            Step::WithdrawCheckpoint { .. } => {
                (self.devices[place].asked, self.devices[place].answered) = (None, false);
            }
            Step::Evict if neighbour => self.neighbours_stopped += 1,
            Step::Evict => live[place].stop(&jobs[place], now),
            Step::Scale { .. } | Step::SuspendToHost | Step::SuspendWorkload { .. } | Step::ResumeWorkload => {}
        }
        if act.blast > 0 {
            self.breaker.record(stamp(now), false);
            let deed = Deed {
                policy: self.policy.key.clone(),
                namespace: act.pod.namespace.clone(),
                workload: act.workload.uid.clone(),
                pod: act.pod.uid.clone(),
                node: act.pod.node.clone(),
                device: act.device.clone(),
                step: act.step.kind(),
                blast: act.blast,
                at: stamp(now),
                dry_run: false,
                state: DeedState::Recovering,
            };
            self.deeds.push((deed, None));
        }
    }

    /// A deed is settled when its job has made progress again for a while.
    fn recover(&mut self, now: f64, jobs: &[Job], live: &[Live]) {
        let settle = self.policy.disruption.settle().as_secs_f64();
        for (deed, whole_since) in self.deeds.iter_mut().filter(|(deed, _)| deed.state != DeedState::Settled) {
            let place: usize = deed.workload.0.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0);
            let whole = live[place].done || live[place].is_ready(&jobs[place], now);
            *whole_since = whole.then(|| whole_since.unwrap_or(now));
            if live[place].done || whole_since.is_some_and(|since| now - since >= settle) {
                deed.state = DeedState::Settled;
            }
        }
        self.deeds.retain(|(deed, _)| {
            deed.state != DeedState::Settled || stamp(now).since(deed.at) < Duration::from_hours(1)
        });
    }
}

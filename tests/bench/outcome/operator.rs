//! The operator: series, forecast, risk, decision as in the controller, and a loop around them that does what was decided.

use std::collections::BTreeMap;
use std::time::Duration;

use gpumem_engine::decision::{
    Act, CheckpointState, Decision, Levers, LimitState, PodRef, Standing, Step, View, Workload, decide,
};
use gpumem_engine::forecast::{Forecast, Question, Tenant, forecast_device};
use gpumem_engine::identity::DeviceKey;
use gpumem_engine::pacing::{
    AdminBudgets, Breaker, Deed, DeedState, Deeds, Group, History, Past, PastResult, Stamp, WorkloadUid,
};
use gpumem_engine::policy::{
    Actions, Budget, Checkpoint, CheckpointNeed, Disruption, Mode, OnTimeout, Policy, PolicyKey, Prediction,
};
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::risk::{Hysteresis, Level};
use gpumem_engine::series::{Point, Segment, Series};

use super::job::{Job, Live};

/// How long an application has for its checkpoint; a horizon of 15 minutes leaves no time for the default of ten.
const TIMEOUT: Duration = Duration::from_mins(5);

/// What is kept of one device.
#[derive(Default)]
struct Device {
    /// Of the job and of its neighbour.
    series: [Series; 2],
    risk: [Hysteresis; 2],
    process: u64,
    asked: Option<f64>,
    answered: bool,
}

pub struct Operator {
    policy: Policy,
    devices: Vec<Device>,
    deeds: Vec<(Deed, Option<f64>)>,
    histories: BTreeMap<WorkloadUid, History>,
    breaker: Breaker,
    /// Neighbours that were stopped: nobody should be.
    pub neighbours_stopped: u32,
    /// Why nothing was done about each job at the last tick.
    pub last: Vec<&'static str>,
    /// Requests for checkpoints.
    pub asked: u32,
    /// Why nothing was done, by reason, counted once a tick and pod.
    pub held: BTreeMap<&'static str, u32>,
}

/// The defaults of a policy, with the rungs Checkpoint and Evict and budgets for a fleet of this size.
fn policy(devices: usize) -> Policy {
    let share = |percent: usize| (devices * percent / 100).max(1) as u32;
    Policy {
        key: PolicyKey { namespace: "ml".into(), name: "fleet".into() },
        mode: Mode::Enforce,
        paused: Vec::new(),
        precedence: 0,
        containers: Vec::new(),
        budget: Budget::Device,
        headroom: Bytes::ZERO,
        prediction: Prediction::default(),
        actions: Actions {
            checkpoint: Some(Checkpoint {
                timeout: TIMEOUT,
                need: CheckpointNeed::BestEffort,
                on_timeout: OnTimeout::Proceed,
            }),
            evict: true,
            ..Actions::default()
        },
        growth: None,
        disruption: Disruption {
            max_concurrent: share(10),
            max_per_hour: share(30),
            min_available: 0,
            require_budget: false,
            cooldown: Duration::from_mins(15),
            max_attempts: 3,
            protect: Vec::new(),
        },
    }
}

fn mib(value: f64) -> Bytes {
    Bytes::from_f64(value * 1_048_576.0)
}

fn stamp(now: f64) -> Stamp {
    Stamp(1_000_000 + now as i64)
}

impl Operator {
    pub fn new(devices: usize) -> Self {
        Self {
            policy: policy(devices),
            devices: (0..devices).map(|_| Device::default()).collect(),
            deeds: Vec::new(),
            histories: BTreeMap::new(),
            breaker: Breaker::default(),
            neighbours_stopped: 0,
            last: vec![""; devices],
            asked: 0,
            held: BTreeMap::new(),
        }
    }

    /// Takes a sample of every device.
    pub fn sample(&mut self, now: f64, jobs: &[Job], live: &mut [Live]) {
        let at = Moment((now * 1000.0) as u64);
        for ((device, job), live) in self.devices.iter_mut().zip(jobs).zip(live) {
            if device.process != live.process {
                (device.process, device.asked, device.answered) = (live.process, None, false);
                device.risk[0] = Hysteresis::default();
            }
            if let Some(since) = live.since {
                let point = Point { at, used: mib(job.used(now - since)), allocator: None };
                device.series[0].push(Segment(live.process), point);
                let answer = device.asked.zip(job.answers_in).is_some_and(|(asked, answers)| now - asked >= answers);
                if answer && !device.answered && live.is_ready(job, now) {
                    device.answered = true;
                    live.save(job, now);
                }
            }
            if job.neighbour > 0.0 {
                device.series[1].push(Segment(1), Point { at, used: mib(job.neighbour), allocator: None });
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
        let device = &mut self.devices[place];
        let running = [live.since.is_some(), job.neighbour > 0.0];
        let capacity = mib(job.room + job.neighbour);
        let question = Question {
            horizon: self.policy.prediction.horizon,
            capacity,
            declared_peak: None,
            warm_up: self.policy.prediction.warm_up,
            min_samples: self.policy.prediction.min_samples,
            max_sample_age: self.policy.prediction.max_sample_age,
        };
        let who: Vec<usize> = (0..2).filter(|tenant| running[*tenant]).collect();
        let tenants: Vec<Tenant<'_>> =
            who.iter().map(|tenant| Tenant { series: &device.series[*tenant], question: question.clone() }).collect();
        let at = Moment((now * 1000.0) as u64);
        let answers = forecast_device(at, Some(capacity), Some(Bytes::ZERO), &tenants);
        for (tenant, forecast) in who.into_iter().zip(answers) {
            let level = device.risk[tenant].feed(at, &self.policy.prediction, &forecast);
            let view = view(now, place, tenant, job, live, device, level, forecast);
            views.push((place, view));
        }
    }

    fn carry_out(&mut self, now: f64, place: usize, view: &View, act: &Act, jobs: &[Job], live: &mut [Live]) {
        let neighbour = act.pod.name.starts_with("neighbour");
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

#[expect(clippy::too_many_arguments, reason = "all that a view is made of")]
fn view(
    now: f64,
    place: usize,
    tenant: usize,
    job: &Job,
    live: &Live,
    device: &Device,
    level: Level,
    forecast: Forecast,
) -> View {
    let name = if tenant == 0 { format!("job-{place}") } else { format!("neighbour-{place}") };
    let uid = if tenant == 0 { format!("{name}-{}", live.process) } else { name.clone() };
    let since = live.since.unwrap_or(now);
    let ready = tenant == 1 || live.is_ready(job, now);
    let group = Group { desired: 1, ready: u32::from(ready), rolling_out: false, budgets: 0 };
    let checkpoint = match device.asked.filter(|_| tenant == 0) {
        None => CheckpointState::NotRequested,
        Some(_) if device.answered => CheckpointState::Done { id: "r".into(), pod: uid.as_str().into() },
        Some(asked) => {
            CheckpointState::Requested { id: "r".into(), pod: uid.as_str().into(), deadline: stamp(asked) + TIMEOUT }
        }
    };
    View {
        pod: PodRef {
            namespace: "ml".into(),
            name: name.clone(),
            uid: uid.as_str().into(),
            node: format!("node-{}", place / 8),
        },
        workload: Workload {
            api_version: "batch/v1".into(),
            kind: "Job".into(),
            name: name.clone(),
            uid: WorkloadUid(name),
        },
        container: "main".into(),
        device: DeviceKey::whole(format!("gpu-{place}").as_str()),
        used: mib(if tenant == 0 { job.used(now - since) } else { job.neighbour }),
        level,
        forecast,
        sample_age: Duration::ZERO,
        standing: Ok(Standing { group, ready, levers: Levers::eviction_only("Job"), grace: Duration::from_secs(30) }),
        checkpoint,
        notified: None,
        age: (tenant == 0).then(|| Duration::from_secs_f64(now - since)),
        high_since: None,
        shared: job.neighbour > 0.0,
        room: None,
        limit: LimitState::NotSet,
    }
}

//! What guards the made-up fleet: the real engine from sample to decision, and the two policies that it is asked under. Flows
//! in: [`Tick`]s of the fleet. Flows out: forecasts, levels and decisions. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use gpumem_engine::decision::{
    Act, CheckpointState, Decision, Levers, LimitState, PodRef, Standing, StepKind, View, Workload, decide,
};
use gpumem_engine::forecast::{Forecast, Question, Tenant, forecast_device};
use gpumem_engine::identity::DeviceKey;
use gpumem_engine::pacing::{
    AdminBudgets, Brake, Deed, DeedState, Deeds, Group, History, Past, PastResult, Stamp, WorkloadUid,
};
use gpumem_engine::policy::{
    Actions, Budget, Checkpoint, CheckpointNeed, Disruption, Mode, OnTimeout, Policy, PolicyKey, Prediction,
};
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::risk::{Hysteresis, Level};
use gpumem_engine::series::{Point, Segment, Series};

use super::cast::GUARDED;
use super::fleet::{Fleet, Tick};

/// Where the story begins on the time line of the made-up nodes: what ran before has moments too.
const ORIGIN: i64 = 1_000_000;
/// How long the made-up trainers have to save their work.
const TIMEOUT: Duration = Duration::from_mins(5);
/// A pod is Ready after so many seconds.
const READY: i64 = 60;

/// What is remembered of one container.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// Its samples.
    pub series: Series,
    /// The newest forecast; none before the first of its run.
    pub forecast: Option<Forecast>,
    /// Its level under its policy; none before the first forecast.
    pub level: Option<Level>,
    risk: Hysteresis,
    notified: Option<Stamp>,
    /// When it was asked to save its work, and whether it has.
    pub asked: Option<(i64, bool)>,
}

/// The guard and its memory.
#[derive(Clone, Debug)]
pub struct Guard {
    /// The policy that acts, and the one that only watches.
    policies: [Policy; 2],
    watched: Vec<Watched>,
    deeds: Vec<(Deed, usize, Option<i64>)>,
    histories: BTreeMap<WorkloadUid, History>,
}

/// A second of the story on the nodes' time line.
pub fn moment(at: i64) -> Moment {
    Moment::from_secs((at + ORIGIN).unsigned_abs())
}

fn stamp(at: i64) -> Stamp {
    Stamp(at + ORIGIN)
}

/// Seconds, none where they are negative.
fn seconds(count: i64) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or(0))
}

/// Defaults as far as a fleet of single pods lets them act: no PodDisruptionBudget, and no Ready pod that must remain.
fn policy(namespace: &str, name: &str, mode: Mode, actions: Actions) -> Policy {
    Policy {
        key: PolicyKey { namespace: namespace.to_owned(), name: name.to_owned() },
        mode,
        paused: Vec::new(),
        precedence: 0,
        containers: Vec::new(),
        budget: Budget::Device,
        headroom: Bytes::ZERO,
        prediction: Prediction::default(),
        actions,
        growth: None,
        disruption: Disruption { min_available: 0, require_budget: false, ..Disruption::default() },
    }
}

impl Guard {
    /// A guard that has seen nothing of `containers` containers.
    pub fn new(containers: usize) -> Self {
        let checkpoint =
            Checkpoint { timeout: TIMEOUT, need: CheckpointNeed::BestEffort, on_timeout: OnTimeout::Proceed };
        let acts = Actions { notify: true, checkpoint: Some(checkpoint), evict: true, ..Actions::default() };
        let watches = Actions { notify: true, ..Actions::default() };
        let policies = [policy(GUARDED, "guard", Mode::Enforce, acts), policy("lab", "watch", Mode::Observe, watches)];
        Self { policies, watched: vec![Watched::default(); containers], deeds: Vec::new(), histories: BTreeMap::new() }
    }

    /// The policy of a namespace.
    pub fn policy(&self, namespace: &str) -> &Policy {
        let [acts, watches] = &self.policies;
        if namespace == GUARDED { acts } else { watches }
    }

    /// What is remembered of each container, in the order of the fleet.
    pub fn watched(&self) -> &[Watched] {
        &self.watched
    }

    /// Takes the samples of one second.
    pub fn take(&mut self, at: i64, tick: &Tick) {
        for &place in &tick.began {
            if let Some(watched) = self.watched.get_mut(place) {
                *watched = Watched { series: std::mem::take(&mut watched.series), ..Watched::default() };
            }
        }
        for sample in &tick.samples {
            if let Some(watched) = self.watched.get_mut(sample.place) {
                let point = Point { at: moment(at), used: sample.used, allocator: None };
                watched.series.push(Segment(sample.run), point);
            }
        }
    }

    /// Forecasts every container that runs, and says how its policy decides.
    pub fn look(&mut self, at: i64, fleet: &Fleet) -> Vec<(usize, Decision)> {
        for place in 0..self.watched.len() {
            // Those of a device are forecast together, when the first of them is come to.
            if fleet.beside(place).next() == Some(place) {
                self.forecast(at, place, fleet);
            }
        }
        self.recover(at, fleet);
        let views: Vec<(usize, View)> =
            (0..self.watched.len()).filter_map(|place| Some((place, self.view(at, place, fleet)?))).collect();
        let deeds = Deeds {
            leading_since: Stamp(0),
            brake: Brake::Released,
            admin: AdminBudgets::default(),
            deeds: self.deeds.iter().map(|(deed, ..)| deed.clone()).collect(),
            histories: self.histories.clone(),
        };
        let mut decisions = Vec::new();
        for policy in &self.policies {
            let own: Vec<&(usize, View)> =
                views.iter().filter(|(_, view)| view.pod.namespace == policy.key.namespace).collect();
            let of_policy: Vec<View> = own.iter().map(|(_, view)| view.clone()).collect();
            for decision in decide(stamp(at), policy, &of_policy, &deeds) {
                let pod = match &decision {
                    Decision::Notify(notify) => &notify.pod,
                    Decision::Act(act) => &act.pod,
                    Decision::Hold { pod, .. } => pod,
                };
                let place = own.iter().find(|(_, view)| view.pod == *pod).map(|(place, _)| *place);
                decisions.extend(place.map(|place| (place, decision)));
            }
        }
        decisions
    }

    /// Remembers that people were told of a container; says whether it was the first time in this run.
    pub fn told(&mut self, at: i64, place: usize) -> bool {
        self.watched.get_mut(place).is_some_and(|watched| watched.notified.replace(stamp(at)).is_none())
    }

    /// Remembers that a step was taken on a container.
    pub fn acted(&mut self, at: i64, place: usize, act: &Act, fleet: &Fleet) {
        let Some(watched) = self.watched.get_mut(place) else { return };
        match act.step.kind() {
            StepKind::RequestCheckpoint => watched.asked = Some((at, false)),
            StepKind::WithdrawCheckpoint => watched.asked = None,
            StepKind::Evict
            | StepKind::Scale
            | StepKind::SuspendToHost
            | StepKind::SuspendWorkload
            | StepKind::ResumeWorkload => {}
        }
        let result = if act.blast > 0 { PastResult::Disrupted } else { PastResult::Harmless };
        let past = Past {
            step: Some(act.step.kind()),
            pod: Some(act.pod.uid.clone()),
            used: fleet.used(place, at),
            age: fleet.age(place, at).map(seconds),
            ..Past::new(stamp(at), false, result)
        };
        self.histories.entry(act.workload.uid.clone()).or_default().past.push(past);
        if act.blast > 0 {
            let deed = Deed {
                policy: self.policy(&act.pod.namespace).key.clone(),
                namespace: act.pod.namespace.clone(),
                workload: act.workload.uid.clone(),
                pod: act.pod.uid.clone(),
                node: act.pod.node.clone(),
                device: act.device.clone(),
                step: act.step.kind(),
                blast: act.blast,
                at: stamp(at),
                dry_run: false,
                state: DeedState::Recovering,
            };
            self.deeds.push((deed, place, None));
        }
    }

    /// Takes the answer of an application that was asked to save its work.
    pub fn saved(&mut self, place: usize) {
        if let Some((_, is_saved)) = self.watched.get_mut(place).and_then(|watched| watched.asked.as_mut()) {
            *is_saved = true;
        }
    }

    fn forecast(&mut self, at: i64, first: usize, fleet: &Fleet) {
        let Some(part) = fleet.parts().get(first) else { return };
        let prediction = self.policy(part.namespace).prediction.clone();
        let capacity = part.device.usable;
        let runs: Vec<usize> = fleet.beside(first).filter(|place| fleet.age(*place, at).is_some()).collect();
        let question = Question {
            horizon: prediction.horizon,
            capacity,
            declared_peak: None,
            warm_up: prediction.warm_up,
            min_samples: prediction.min_samples,
            max_sample_age: prediction.max_sample_age,
        };
        let tenants: Vec<Tenant<'_>> = runs
            .iter()
            .filter_map(|place| Some(Tenant { series: &self.watched.get(*place)?.series, question: question.clone() }))
            .collect();
        let forecasts = forecast_device(moment(at), Some(capacity), Some(Bytes::ZERO), &tenants);
        for (place, forecast) in runs.into_iter().zip(forecasts) {
            if let Some(watched) = self.watched.get_mut(place) {
                watched.level = Some(watched.risk.feed(moment(at), &prediction, &forecast));
                watched.forecast = Some(forecast);
            }
        }
    }

    /// A deed is settled when its workload has been whole for a while.
    fn recover(&mut self, at: i64, fleet: &Fleet) {
        let settle = self.policies[0].disruption.settle();
        for (deed, place, whole_since) in &mut self.deeds {
            let is_whole = fleet.age(*place, at).is_some_and(|age| age >= READY);
            *whole_since = is_whole.then(|| whole_since.unwrap_or(at));
            if whole_since.is_some_and(|since| seconds(at - since) >= settle) {
                deed.state = DeedState::Settled;
            }
        }
    }

    fn view(&self, at: i64, place: usize, fleet: &Fleet) -> Option<View> {
        let (part, watched) = (fleet.parts().get(place)?, self.watched.get(place)?);
        let age = fleet.age(place, at)?;
        let (name, ready) = (fleet.pod(place), age >= READY);
        let uid = format!("{}/{name}", part.namespace);
        let group = Group { desired: 1, ready: u32::from(ready), rolling_out: false, budgets: 0 };
        let checkpoint = match watched.asked {
            None => CheckpointState::NotRequested,
            Some((_, true)) => CheckpointState::Done { id: "demo".into(), pod: uid.as_str().into() },
            Some((asked, false)) => CheckpointState::Requested {
                id: "demo".into(),
                pod: uid.as_str().into(),
                deadline: stamp(asked) + TIMEOUT,
            },
        };
        Some(View {
            pod: PodRef {
                namespace: part.namespace.to_owned(),
                name,
                uid: uid.as_str().into(),
                node: part.device.node.to_owned(),
            },
            workload: Workload {
                api_version: if part.kind == "Job" { "batch/v1" } else { "apps/v1" }.to_owned(),
                kind: part.kind.to_owned(),
                name: part.workload.to_owned(),
                uid: WorkloadUid(format!("{}/{}", part.namespace, part.workload)),
            },
            container: part.container.to_owned(),
            device: DeviceKey::whole(part.device.uuid.as_str()),
            used: fleet.used(place, at)?,
            level: watched.level?,
            forecast: watched.forecast.clone()?,
            sample_age: Duration::ZERO,
            standing: Ok(Standing {
                group,
                ready,
                levers: Levers::eviction_only(part.kind),
                grace: Duration::from_secs(30),
            }),
            checkpoint,
            notified: watched.notified,
            age: Some(seconds(age)),
            high_since: None,
            shared: fleet.beside(place).count() > 1,
            room: None,
            limit: LimitState::NotSet,
        })
    }
}

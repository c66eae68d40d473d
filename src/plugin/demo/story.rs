//! The story: the made-up fleet, guarded. Flows in: how far virtual time has come. Flows out: what can be seen then
//! ([`Seen`], as of a cluster), what happened until then, and what it came to. Pure.

use gpumem_engine::decision::{Decision, Hold, StepKind};
use gpumem_engine::policy::Mode;
use gpumem_engine::risk::Level as Risk;

use super::fleet::{Fleet, Tick};
use super::guard::{Guard, moment};
use super::happening::{Happening, Outcome, Telling, What};
use crate::api::view::{ContainerView, Level, Named, SeriesPoint};
use crate::plugin::seen::{self, Seen, Sort};
use crate::plugin::text::{bytes, time};

/// How long the story is, in seconds.
pub const LONG: i64 = 90 * 60;
/// The fleet has run for so long before the story begins, in seconds.
const BEFORE: i64 = 50 * 60;
/// Seconds between two looks of the controller at its agents.
const LOOK: i64 = 5;
/// Seconds that a made-up trainer takes to save its work.
const SAVES: i64 = 20;

/// The story as far as it has come.
#[derive(Clone, Debug)]
pub struct Story {
    at: i64,
    fleet: Fleet,
    guard: Guard,
    happenings: Vec<Happening>,
    outcomes: Vec<Outcome>,
    /// Why nothing was done about each container, as it was said last.
    held: Vec<&'static str>,
}

impl Story {
    /// The story of a seed at its beginning: what ran before is seen.
    ///
    /// # Errors
    /// Those of [`Fleet::new`].
    pub fn new(seed: u64) -> Result<Self, String> {
        let fleet = Fleet::new(seed)?;
        let count = fleet.parts().len();
        let mut story = Self {
            at: -BEFORE - 1,
            guard: Guard::new(count),
            fleet,
            happenings: Vec::new(),
            outcomes: vec![Outcome::default(); count],
            held: vec![""; count],
        };
        story.advance(0);
        Ok(story)
    }

    /// Lets time pass until a second of the story.
    pub fn advance(&mut self, until: i64) {
        while self.at < until.min(LONG) {
            self.at += 1;
            let tick = self.fleet.tick(self.at);
            self.guard.take(self.at, &tick);
            self.tell(&tick);
            if self.at % LOOK == 0 {
                self.look();
            }
        }
    }

    /// The second that it has come to.
    pub fn at(&self) -> i64 {
        self.at
    }

    /// Whether nothing more comes.
    pub fn is_over(&self) -> bool {
        self.at >= LONG
    }

    /// What happened, oldest first.
    pub fn happenings(&self) -> &[Happening] {
        &self.happenings
    }

    /// The fleet.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// The guard.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// What it came to for each container, in the order of the fleet.
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// The containers as a controller would show them, worst first.
    pub fn seen(&self) -> Seen {
        let mut containers: Vec<ContainerView> =
            (0..self.fleet.parts().len()).filter_map(|place| self.container(place)).collect();
        seen::sort(&mut containers, Sort::Risk);
        Seen { containers, waiting: Vec::new(), is_live: true, not_seen: Vec::new() }
    }

    fn container(&self, place: usize) -> Option<ContainerView> {
        let (part, watched) = (self.fleet.parts().get(place)?, self.guard.watched().get(place)?);
        let used = self.fleet.used(place, self.at)?;
        let policy = self.guard.policy(part.namespace);
        let mut view = ContainerView {
            node: part.device.node.to_owned(),
            namespace: part.namespace.to_owned(),
            pod: self.fleet.pod(place),
            pod_uid: self.pod(place),
            container: part.container.to_owned(),
            owner: Some(Named { kind: part.kind.to_owned(), name: part.workload.to_owned() }),
            device: part.device.uuid.clone(),
            gpu: part.device.gpu,
            model: part.device.model.clone(),
            used_bytes: Some(used.0),
            capacity_bytes: Some(part.device.usable.0),
            device_used_bytes: Some(self.fleet.on_device(place, self.at).0),
            peak_bytes: Some(watched.series.peak().0),
            sample_age_seconds: Some(0.0),
            policy: Some(policy.key.name.clone()),
            series: SeriesPoint::of(&watched.series, moment(self.at)),
            ..ContainerView::default()
        };
        if let Some(forecast) = &watched.forecast {
            view.foretell(forecast);
        }
        let soon = policy.prediction.horizon.as_secs_f64() / 5.0;
        view.level = match watched.level {
            None | Some(Risk::Unknown) => Level::Unknown,
            Some(Risk::Low) => Level::Low,
            Some(Risk::Elevated) => Level::Elevated,
            Some(Risk::High) if view.seconds_to_oom.is_some_and(|oom| oom.q50 <= soon) => Level::Critical,
            Some(Risk::High) => Level::High,
        };
        Some(view)
    }

    /// Namespace and pod at a place.
    fn pod(&self, place: usize) -> String {
        let namespace = self.fleet.parts().get(place).map_or("", |part| part.namespace);
        format!("{namespace}/{}", self.fleet.pod(place))
    }

    fn happen(&mut self, place: usize, what: What, seen: String, would: Option<String>) {
        let pod = self.pod(place);
        self.happenings.push(Happening { at: self.at, place, pod, what, seen, would });
    }

    fn outcome(&mut self, place: usize, change: impl FnOnce(&mut Outcome)) {
        if let Some(outcome) = self.outcomes.get_mut(place) {
            change(outcome);
        }
    }

    /// What the fleet did by itself in this second.
    fn tell(&mut self, tick: &Tick) {
        for &place in &tick.ran_out {
            let at = self.at;
            // Its series is still that of the run that ended.
            let since = self.guard.watched().get(place).and_then(|watched| watched.series.started());
            let lost = since.map_or(0, |since| moment(at).since(since).as_secs() as i64);
            self.outcome(place, |outcome| {
                outcome.ran_out.push(at);
                outcome.lost += lost;
            });
            let after = time(lost as f64);
            self.happen(place, What::RanOut, format!("CUDA out of memory after {after}, work lost"), None);
        }
        // Who runs before the story does is no news.
        let is_news = self.at > 0;
        for &place in tick.began.iter().filter(|_| is_news) {
            let used = bytes(self.fleet.used(place, self.at).map(|used| used.0));
            let does = self.fleet.parts().get(place).map_or("", |part| part.does);
            let again = self.outcomes.get(place).is_some_and(|outcome| !outcome.is_left_alone());
            let seen = if again { format!("runs again, with {used}") } else { format!("starts ({does})") };
            self.happen(place, What::Began, seen, None);
        }
        for place in 0..self.fleet.parts().len() {
            let asked = self.guard.watched().get(place).and_then(|watched| watched.asked);
            if asked.is_some_and(|(at, is_saved)| !is_saved && self.at >= at + SAVES) {
                self.guard.saved(place);
                self.happen(place, What::Saved, "its work is saved".to_owned(), None);
            }
        }
    }

    /// What the guard makes of it.
    fn look(&mut self) {
        let decisions = self.guard.look(self.at, &self.fleet);
        for (place, decision) in decisions {
            match decision {
                Decision::Notify(notify) => {
                    if self.guard.told(self.at, place) {
                        let telling = Telling { at: self.at, full: self.fleet.runs_out(place, self.at) };
                        self.outcome(place, |outcome| outcome.told.push(telling));
                        self.happen(place, What::Told, notify.reason, Some(self.telling(place)));
                    }
                }
                Decision::Hold { why, .. } => self.hold(place, &why),
                Decision::Act(act) => {
                    self.guard.acted(self.at, place, &act, &self.fleet);
                    let (at, kind) = (self.at, act.step.kind());
                    self.outcome(place, |outcome| outcome.steps.push((at, kind)));
                    let left = act
                        .expected_in
                        .map_or("at risk".to_owned(), |left| format!("full in about {}", time(left.as_secs_f64())));
                    self.happen(place, What::Acted, left, Some(words(kind).to_owned()));
                    if kind == StepKind::Evict {
                        self.fleet.stop(place, self.at);
                    }
                }
            }
        }
    }

    fn telling(&self, place: usize) -> String {
        let namespace = self.fleet.parts().get(place).map_or("", |part| part.namespace);
        let policy = self.guard.policy(namespace);
        // Short: a screen of 80 columns shows it beside the longest name.
        if policy.mode == Mode::Observe { "would only tell people (mode Observe)" } else { "would tell people" }
            .to_owned()
    }

    /// A policy that would act waits: said once for each reason.
    fn hold(&mut self, place: usize, why: &Hold) {
        let Some(held) = self.held.get_mut(place) else { return };
        let is_news = *held != why.reason();
        *held = why.reason();
        // Of a request that runs its own line says all there is.
        if is_news && !matches!(why, Hold::ModeObserve | Hold::AwaitingCheckpoint { .. }) {
            self.happen(place, What::Held, "at risk".to_owned(), Some(format!("would wait: {why}")));
        }
    }
}

/// What would be done, in words.
const fn words(kind: StepKind) -> &'static str {
    match kind {
        StepKind::RequestCheckpoint => "would ask it to save its work",
        StepKind::WithdrawCheckpoint => "would take the request to save back",
        StepKind::Evict => "would evict it; another pod starts",
        StepKind::Scale => "would add replicas",
        StepKind::SuspendToHost => "would move its GPU memory to host memory",
        StepKind::SuspendWorkload => "would suspend its Job",
        StepKind::ResumeWorkload => "would let its Job go on",
    }
}

#[cfg(test)]
mod tests;

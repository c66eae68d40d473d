//! What was seen over the whole story, and whether it is the story that was to be told.

use std::collections::BTreeMap;
use std::time::Duration;

use super::frame::{Frame, PodView};
use super::plan::{Plan, Role};

/// Level from which a risk counts as flagged: 2 is High.
const FLAGGED: f64 = 2.0;

/// Everything worth remembering of the frames so far.
#[derive(Clone, Debug)]
pub struct Story {
    plan: Plan,
    /// By pod UID.
    lives: BTreeMap<String, Life>,
    /// Our Events, once each, with the time they were first seen.
    pub events: Vec<(Duration, String, String, String)>,
    told_at: Option<Duration>,
    now: Duration,
}

/// One pod from its first frame to its last.
#[derive(Clone, Debug)]
pub struct Life {
    /// Whose.
    pub role: Role,
    /// Name.
    pub name: String,
    /// First seen.
    pub born: Duration,
    /// First seen terminating or gone.
    pub gone: Option<Duration>,
    /// A median time to OOM was first given: when, and how long.
    pub predicted: Option<(Duration, f64)>,
    /// First flagged High.
    pub flagged: Option<Duration>,
    /// Reason of a DisruptionTarget condition, and when it was first seen.
    pub disrupted: Option<(Duration, String)>,
    /// First restart seen: when, and the exit code of the run that ended.
    pub died: Option<(Duration, i32)>,
    /// Highest memory seen.
    pub peak: f64,
}

/// One sentence that holds or does not.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Did it happen?
    pub holds: bool,
    /// What.
    pub text: String,
}

impl Story {
    /// Nothing seen yet.
    pub fn new(plan: &Plan) -> Self {
        Self { plan: plan.clone(), lives: BTreeMap::new(), events: Vec::new(), told_at: None, now: Duration::ZERO }
    }

    /// Takes in a frame.
    pub fn take(&mut self, frame: &Frame) {
        self.now = frame.at;
        for pod in &frame.pods {
            self.lives.entry(pod.uid.clone()).or_insert_with(|| Life::new(frame.at, pod)).take(frame.at, pod);
        }
        for (uid, life) in &mut self.lives {
            if frame.evicted.contains(uid) {
                life.disrupted.get_or_insert_with(|| (frame.at, "Evict Succeeded".to_owned()));
            }
            if life.gone.is_none() && frame.pods.iter().all(|pod| pod.uid != *uid) {
                life.gone = Some(frame.at);
            }
        }
        for (object, reason, note) in &frame.events {
            if !self.events.iter().any(|(_, o, r, n)| (o, r, n) == (object, reason, note)) {
                self.events.push((frame.at, object.clone(), reason.clone(), note.clone()));
            }
        }
        let told = self.is_evicted() && self.is_replaced() && self.unguarded_death().is_some();
        if told && self.told_at.is_none() {
            self.told_at = Some(frame.at);
        }
    }

    /// True a little after the last thing that was to happen, so that late harm to a neighbour would be seen.
    pub fn is_told(&self) -> bool {
        self.told_at.is_some_and(|told| self.now > told + Duration::from_secs(8))
    }

    /// Lives of one role, oldest first.
    pub fn lives(&self, role: Role) -> Vec<&Life> {
        let mut lives: Vec<_> = self.lives.values().filter(|life| life.role == role).collect();
        lives.sort_by_key(|life| life.born);
        lives
    }

    fn first(&self, role: Role) -> Option<&Life> {
        self.lives(role).first().copied()
    }

    fn is_evicted(&self) -> bool {
        self.first(Role::Guarded).is_some_and(|life| life.disrupted.is_some())
    }

    fn is_replaced(&self) -> bool {
        self.lives(Role::Guarded).len() > 1
    }

    fn unguarded_death(&self) -> Option<(Duration, i32)> {
        self.first(Role::Unguarded).and_then(|life| life.died)
    }

    /// Whether the story happened, sentence by sentence.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut say = |holds: bool, text: String| findings.push(Finding { holds, text });
        if self.plan.leak_stops_after.is_none() {
            self.leak_findings(&mut say);
        } else {
            for role in [Role::Guarded, Role::Unguarded] {
                let lives = self.lives(role);
                let calm = lives.len() == 1 && lives[0].disrupted.is_none() && lives[0].died.is_none();
                say(calm, format!("{} leaked, stopped in time, and was left alone", role.name()));
            }
        }
        for role in [Role::Plateau, Role::Pool] {
            let lives = self.lives(role);
            let untouched =
                lives.len() == 1 && lives[0].gone.is_none() && lives[0].disrupted.is_none() && lives[0].died.is_none();
            say(untouched, format!("{} was never touched", role.name()));
            let flagged = lives.iter().find_map(|life| life.flagged);
            say(
                flagged.is_none(),
                flagged.map_or_else(
                    || format!("{} was never flagged", role.name()),
                    |at| format!("{} was flagged at {} s", role.name(), at.as_secs()),
                ),
            );
        }
        findings
    }

    fn leak_findings(&self, say: &mut impl FnMut(bool, String)) {
        let guarded = self.first(Role::Guarded);
        let predicted = guarded.and_then(|life| life.predicted);
        say(
            predicted.is_some(),
            predicted.map_or_else(
                || "trainer-guarded got no time to OOM".to_owned(),
                |(at, left)| {
                    format!("trainer-guarded: OOM predicted at {} s, {left:.0} s ahead (median)", at.as_secs())
                },
            ),
        );
        let evicted = guarded.and_then(|life| life.disrupted.clone());
        say(
            evicted
                .as_ref()
                .is_some_and(|(_, reason)| reason == "EvictionByEvictionAPI" || reason == "Evict Succeeded"),
            evicted.map_or_else(
                || "trainer-guarded was not evicted".to_owned(),
                |(at, reason)| format!("trainer-guarded: evicted at {} s ({reason})", at.as_secs()),
            ),
        );
        say(guarded.is_some_and(|life| life.died.is_none()), "trainer-guarded: no OOM before its eviction".to_owned());
        say(self.is_replaced(), "trainer-guarded: replaced by its Deployment".to_owned());
        let death = self.unguarded_death();
        say(
            death.is_some_and(|(_, code)| code == 1),
            death.map_or_else(
                || "trainer-unguarded did not die".to_owned(),
                |(at, code)| {
                    format!("trainer-unguarded: died of CUDA out of memory at {} s (exit {code})", at.as_secs())
                },
            ),
        );
        if let (Some((evicted, _)), Some((died, _))) = (guarded.and_then(|life| life.disrupted.clone()), death) {
            say(
                evicted < died,
                format!("the eviction came {} s before the twin's death", died.saturating_sub(evicted).as_secs()),
            );
        }
    }
}

impl Life {
    fn new(at: Duration, pod: &PodView) -> Self {
        Self {
            role: pod.role,
            name: pod.name.clone(),
            born: at,
            gone: None,
            predicted: None,
            flagged: None,
            disrupted: None,
            died: None,
            peak: 0.0,
        }
    }

    fn take(&mut self, at: Duration, pod: &PodView) {
        if pod.state == "Terminating" {
            self.gone.get_or_insert(at);
        }
        if let Some(reason) = &pod.disrupted {
            self.disrupted.get_or_insert_with(|| (at, reason.clone()));
        }
        if pod.state != "Terminating" && self.disrupted.is_none() && (pod.restarts > 0 || pod.exit_code.is_some()) {
            self.died.get_or_insert((at, pod.exit_code.unwrap_or_default()));
        }
        if let Some(left) = pod.seconds_to_oom {
            self.predicted.get_or_insert((at, left));
        }
        if pod.risk.is_some_and(|risk| risk >= FLAGGED) {
            self.flagged.get_or_insert(at);
        }
        self.peak = self.peak.max(pod.used.unwrap_or_default());
    }
}

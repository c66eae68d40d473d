//! What was seen over the whole story, and whether it is the story that was to be told.

use std::collections::BTreeMap;
use std::time::Duration;

use super::frame::{Advised, Frame, PodView, SuspendedJob};
use super::plan::{Plan, Role};

/// Level from which a risk counts as flagged: 2 is High.
const FLAGGED: f64 = 2.0;

/// Everything worth remembering of the frames so far.
#[derive(Clone, Debug)]
pub struct Story {
    plan: Plan,
    /// By pod UID.
    lives: BTreeMap<String, Life>,
    /// The Job as it was suspended: when, and how it stood last.
    suspended: Option<(Duration, SuspendedJob)>,
    /// What the trainer that declares its job was advised first.
    advised: Option<Advised>,
    /// The advice that was taken: when, what, and the job it made.
    pub taken: Option<(Duration, Advised, String)>,
    /// Our Events, once each, with the time they were first seen.
    pub events: Vec<(Duration, String, String, String)>,
    /// What each policy said of acting, whenever its reason changed: when, which, reason and message.
    pub holds: Vec<(Duration, String, String, String)>,
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
    /// What that run said last.
    pub last_words: String,
    /// First seen asked to save.
    pub asked: Option<Duration>,
    /// First seen with the answer that its work is saved.
    pub saved: Option<Duration>,
    /// First seen held to a size: when, and the size in bytes.
    pub limited: Option<(Duration, i64)>,
    /// First seen with GPU memory.
    pub holds_since: Option<Duration>,
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
        Self {
            plan: plan.clone(),
            lives: BTreeMap::new(),
            suspended: None,
            advised: None,
            taken: None,
            events: Vec::new(),
            holds: Vec::new(),
            told_at: None,
            now: Duration::ZERO,
        }
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
        for job in frame.suspended.iter().filter(|job| job.role == Role::Job) {
            let at = self.suspended.as_ref().map_or(frame.at, |(at, _)| *at);
            self.suspended = Some((at, job.clone()));
        }
        for (object, reason, note) in &frame.events {
            if !self.events.iter().any(|(_, o, r, n)| (o, r, n) == (object, reason, note)) {
                self.events.push((frame.at, object.clone(), reason.clone(), note.clone()));
            }
        }
        for (policy, reason, message) in &frame.allowed {
            let last = self.holds.iter().rfind(|(_, of, ..)| of == policy);
            if last.is_none_or(|(.., last, _)| last != reason) {
                self.holds.push((frame.at, policy.clone(), reason.clone(), message.clone()));
            }
        }
        if self.advised.is_none() {
            self.advised.clone_from(&frame.advised);
        }
        let told = self.plan.order.iter().all(|role| self.is_done(*role));
        if told && self.told_at.is_none() {
            self.told_at = Some(frame.at);
        }
    }

    /// True a little after the last thing that was to happen, so that late harm to a neighbour would be seen.
    pub fn is_told(&self) -> bool {
        self.told_at.is_some_and(|told| self.now > told + Duration::from_secs(8))
    }

    /// The advice that is to be taken now: the Event and `explain` both told of it.
    pub fn advice_to_take(&self) -> Option<Advised> {
        let advised = self.advised.as_ref().filter(|_| self.taken.is_none())?;
        self.misfit_told(&advised.pod).map(|_| advised.clone())
    }

    /// It was taken, and made this job.
    pub fn took_advice(&mut self, advice: Advised, job: String) {
        self.taken = Some((self.now, advice, job));
    }

    /// When an Event said of a pod that it does not fit.
    fn misfit_told(&self, pod: &str) -> Option<Duration> {
        let object = format!("pod/{pod}");
        let of_pod = |(_, about, reason, _): &&(Duration, String, String, String)| {
            *about == object && reason == "GpuMemoryDoesNotFit"
        };
        self.events.iter().find(of_pod).map(|(at, ..)| *at)
    }

    /// The pod that took the advice, once it holds what it was told it would.
    fn fitting(&self) -> Option<&Life> {
        let (_, advice, _) = self.taken.as_ref()?;
        let last = self.lives(Role::Declared).into_iter().rfind(|life| life.name != advice.pod)?;
        (last.peak >= 0.99 * advice.peak as f64).then_some(last)
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

    /// Whether everything that was to happen to a role has happened.
    fn is_done(&self, role: Role) -> bool {
        let first = self.first(role);
        match role {
            Role::Guarded | Role::Saving => {
                first.is_some_and(|life| life.disrupted.is_some()) && self.is_replaced(role)
            }
            Role::Unguarded | Role::Limited => first.is_some_and(|life| life.died.is_some()),
            Role::Job => self.suspended.is_some() && first.is_some_and(|life| life.gone.is_some()),
            Role::Declared => self.fitting().is_some(),
            // Nothing is to happen to them.
            Role::Plateau | Role::Pool | Role::Neighbour => true,
        }
    }

    fn is_replaced(&self, role: Role) -> bool {
        self.lives(role).len() > 1
    }

    fn unguarded_death(&self) -> Option<(Duration, i32)> {
        self.first(Role::Unguarded).and_then(|life| life.died)
    }

    /// Whether the story happened, sentence by sentence.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut say = |holds: bool, text: String| findings.push(Finding { holds, text });
        let plays = |role: &Role| self.plan.order.contains(role);
        if self.plan.leak_stops_after.is_some() {
            for role in [Role::Guarded, Role::Unguarded].into_iter().filter(plays) {
                let lives = self.lives(role);
                let calm = lives.len() == 1 && lives[0].disrupted.is_none() && lives[0].died.is_none();
                say(calm, format!("{} leaked, stopped in time, and was left alone", role.name()));
            }
        } else if plays(&Role::Guarded) && plays(&Role::Unguarded) {
            self.leak_findings(&mut say);
        }
        if plays(&Role::Saving) {
            self.saving_findings(&mut say);
        }
        if plays(&Role::Job) {
            self.job_findings(&mut say);
        }
        if plays(&Role::Limited) {
            self.limit_findings(&mut say);
        }
        if plays(&Role::Declared) {
            self.declared_findings(&mut say);
        }
        for role in [Role::Plateau, Role::Pool, Role::Neighbour].into_iter().filter(plays) {
            let lives = self.lives(role);
            let untouched =
                lives.len() == 1 && lives[0].gone.is_none() && lives[0].disrupted.is_none() && lives[0].died.is_none();
            say(untouched, format!("{} was never touched", role.name()));
            if role == Role::Neighbour {
                // The device it shares does fill, until the other one is held.
                continue;
            }
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

    fn saving_findings(&self, say: &mut dyn FnMut(bool, String)) {
        let life = self.first(Role::Saving);
        let asked = life.and_then(|life| life.asked);
        let saved = life.and_then(|life| life.saved);
        let evicted = life.and_then(|life| life.disrupted.as_ref().map(|(at, _)| *at));
        say(asked.is_some(), sentence("trainer-saving", "asked to save", asked));
        say(saved.is_some(), sentence("trainer-saving", "saved, answered by its sidecar", saved));
        say(
            evicted.is_some_and(|evicted| saved.is_some_and(|saved| saved <= evicted)),
            sentence("trainer-saving", "evicted, after its answer", evicted),
        );
        say(life.is_some_and(|life| life.died.is_none()), "trainer-saving: no OOM before its eviction".to_owned());
        say(self.is_replaced(Role::Saving), "trainer-saving: replaced by its Deployment".to_owned());
    }

    fn job_findings(&self, say: &mut dyn FnMut(bool, String)) {
        let life = self.first(Role::Job);
        let (at, job) = (self.suspended.as_ref().map(|(at, _)| *at), self.suspended.as_ref().map(|(_, job)| job));
        say(job.is_some_and(|job| job.is_ours), sentence("job-leaking", "suspended, marked as ours", at));
        let gone = life.and_then(|life| life.gone);
        say(gone.is_some(), sentence("job-leaking", "its pod gone", gone));
        say(life.is_some_and(|life| life.died.is_none()), "job-leaking: no OOM before its suspension".to_owned());
        say(
            job.is_some_and(|job| !job.is_over && job.failed == 0) && self.lives(Role::Job).len() == 1,
            match job {
                Some(job) if job.is_over => "job-leaking: the Job ended, and cannot go on".to_owned(),
                Some(job) => {
                    format!("job-leaking: waits for its owner to let it go on; failures counted: {}", job.failed)
                }
                None => "job-leaking: the Job runs on".to_owned(),
            },
        );
    }

    fn declared_findings(&self, say: &mut dyn FnMut(bool, String)) {
        let name = Role::Declared.name();
        let first = self.first(Role::Declared);
        let told = first.and_then(|life| self.misfit_told(&life.name));
        let holds_since = first.and_then(|life| life.holds_since);
        say(
            told.is_some_and(|told| holds_since.is_none_or(|since| told <= since)),
            sentence(name, "told by an Event that its job cannot fit, before it held any GPU memory,", told),
        );
        let Some((at, advice, job)) = &self.taken else {
            return say(false, format!("{name}: explain gave no advice"));
        };
        say(
            advice.is_early,
            format!("{name}: explain advised: {} (then {:.1} GiB)", advice.what, advice.peak as f64 / 1_073_741_824.0),
        );
        let fits = self.fitting();
        let is_well = fits.is_some_and(|life| life.died.is_none() && self.misfit_told(&life.name).is_none());
        let peak = fits.map_or(0.0, |life| life.peak / 1_073_741_824.0);
        say(is_well, format!("{name}: took it at {} s ({job}), and fits with {peak:.1} GiB", at.as_secs()));
        let oomed = self.lives(Role::Declared).iter().any(|life| life.died.is_some());
        say(!oomed, format!("{name}: no OOM"));
    }

    fn limit_findings(&self, say: &mut dyn FnMut(bool, String)) {
        let life = self.first(Role::Limited);
        let limited = life.and_then(|life| life.limited);
        say(
            limited.is_some_and(|(_, bytes)| bytes == 20 << 30),
            limited.map_or_else(
                || "trainer-limited: was not held".to_owned(),
                |(at, bytes)| {
                    format!("trainer-limited: held to {} GiB by the driver at {} s", bytes >> 30, at.as_secs())
                },
            ),
        );
        let died = life.and_then(|life| life.died);
        let refused = life.is_some_and(|life| life.last_words.contains("CUDA out of memory"));
        say(
            died.is_some_and(|(_, code)| code == 1) && refused,
            died.map_or_else(
                || "trainer-limited: no allocation of its own failed".to_owned(),
                |(at, code)| {
                    let words = if refused { "CUDA out of memory" } else { "not by CUDA out of memory" };
                    format!("trainer-limited: its own allocation failed at {} s (exit {code}, {words})", at.as_secs())
                },
            ),
        );
        let peak = life.map_or(0.0, |life| life.peak);
        say(
            peak > 0.0 && peak <= f64::from(20 << 10) * 1_048_576.0,
            format!("trainer-limited: never above its limit ({:.1} GiB at most)", peak / 1_073_741_824.0),
        );
    }

    fn leak_findings(&self, say: &mut dyn FnMut(bool, String)) {
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
        say(self.is_replaced(Role::Guarded), "trainer-guarded: replaced by its Deployment".to_owned());
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

fn sentence(who: &str, what: &str, at: Option<Duration>) -> String {
    at.map_or_else(|| format!("{who}: never seen {what}"), |at| format!("{who}: {what} at {} s", at.as_secs()))
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
            last_words: String::new(),
            asked: None,
            saved: None,
            limited: None,
            holds_since: None,
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
            pod.last_words.clone_into(&mut self.last_words);
        }
        if pod.is_asked {
            self.asked.get_or_insert(at);
        }
        if pod.is_saved {
            self.saved.get_or_insert(at);
        }
        if let Some(bytes) = pod.limit {
            self.limited.get_or_insert((at, bytes));
        }
        if let Some(left) = pod.seconds_to_oom {
            self.predicted.get_or_insert((at, left));
        }
        if pod.risk.is_some_and(|risk| risk >= FLAGGED) {
            self.flagged.get_or_insert(at);
        }
        if pod.used.is_some_and(|used| used > 0.0) {
            self.holds_since.get_or_insert(at);
        }
        self.peak = self.peak.max(pod.used.unwrap_or_default());
    }
}

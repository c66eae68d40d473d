//! One job on one device: its memory is a curve of the corpus that begins anew with every process, and its work is saved at
//! checkpoints.

use crate::corpus::dice::Dice;
use crate::corpus::{Family, Kind, Run, families, run};

/// Families that fill up gradually; the rest of the fleet does not.
const QUIET: &[&str] = &[
    "plateau",
    "shards",
    "varlen",
    "eval",
    "save",
    "kv_load",
    "pool",
    "jax",
    "saturating",
    "saw_near_full",
    "empty_cache",
];

/// Shapes that grow for long and end by plan: no series shows that end.
const PLANNED: &[&str] = &[
    "curriculum",
    "eval_accumulation",
    "unfreeze",
    "stop_ramp",
    "swapping",
    "fragmentation",
    "oversubscribed",
    "doubling",
    "helpers",
];

/// What a job is, the same for every column.
#[derive(Clone, Debug)]
pub struct Job {
    pub family: &'static str,
    /// MiB at each second of a process's life.
    pub curve: Vec<f64>,
    /// MiB its device leaves it.
    pub room: f64,
    /// MiB that a neighbour on the same device holds; 0 where it is alone.
    pub neighbour: f64,
    /// End of its growth in MiB, where its owner knows one.
    pub declared: Option<f64>,
    /// Second of its process's life at which it runs out.
    pub runs_out: Option<usize>,
    /// Seconds of progress until it is done.
    pub work: f64,
    /// Seconds between its own checkpoints.
    pub saves_every: f64,
    /// Seconds a new process takes until it makes progress.
    pub restart: f64,
    /// Seconds it takes to answer a request for a checkpoint; `None` where it never does.
    pub answers_in: Option<f64>,
    /// Second at which it begins.
    pub begins: f64,
}

impl Job {
    /// `planned`: whether what does not run out is of the shapes that end by plan.
    pub fn draw(dice: &mut Dice, planned: bool) -> Self {
        let gradual = dice.chance(0.4);
        let quiet = if planned { PLANNED } else { QUIET };
        let name = if gradual { dice.pick(families::GRADUAL) } else { dice.pick(quiet) };
        let family: &Family = families::ALL.iter().find(|family| family.name == name).expect("it is in the corpus");
        // A fixed range of seeds that nothing was fitted on.
        let fits = |run: &Run| {
            // One tenant whose device does not change; a leak that does fill its device.
            let plain = run.tenants.len() == 1 && run.capacity.len() == 1 && run.orphaned == 0.0;
            plain && (run.kind == Kind::Gradual) == gradual && (gradual || run.ooms.is_empty())
        };
        let run = loop {
            let run = run(family, 200_000 + dice.word() % 100_000);
            if fits(&run) {
                break run;
            }
        };
        let runs_out = run.ooms.first().copied();
        let (room, declared) = (run.capacity[0].1, run.declared);
        let mut curve = run.tenants.into_iter().next().map(|tenant| tenant.used).unwrap_or_default();
        curve.truncate(runs_out.unwrap_or(usize::MAX));
        let mut last = 0.0;
        for used in &mut curve {
            if used.is_finite() { last = *used } else { *used = last }
        }
        let work = match runs_out {
            Some(second) => second as f64 * dice.between(1.2, 2.4),
            None => curve.len() as f64 * 0.9,
        };
        // Nobody runs a job that cannot live from one of its checkpoints to the next.
        let saves_every =
            (60.0 * dice.log_between(15.0, 180.0)).min(0.5 * runs_out.map_or(f64::MAX, |second| second as f64));
        Self {
            family: name,
            room,
            neighbour: if dice.chance(0.3) { room * dice.between(0.1, 0.4) } else { 0.0 },
            curve,
            declared,
            runs_out,
            work,
            saves_every,
            restart: 60.0 * dice.log_between(2.0, 15.0),
            answers_in: dice.chance(0.9).then(|| dice.log_between(5.0, 200.0)),
            begins: dice.between(0.0, 4.0 * 3600.0),
        }
    }

    /// MiB at a second of a process's life.
    pub fn used(&self, second: f64) -> f64 {
        self.curve.get(second as usize).or(self.curve.last()).copied().unwrap_or(0.0)
    }
}

/// A job while it runs.
#[derive(Clone, Debug)]
pub struct Live {
    /// When its process began; `None` while it waits for that or is done.
    pub since: Option<f64>,
    /// Number of its process.
    pub process: u64,
    /// Seconds of progress when the process began, all of it saved.
    pub from: f64,
    /// Seconds of progress that are saved.
    pub saved: f64,
    /// When its next process begins.
    pub next: f64,
    pub done: bool,
    /// GPU seconds without progress that counts: work done again, and starts after the first.
    pub lost: f64,
    pub ooms: u32,
    pub stopped: u32,
    /// Of those that were stopped, the ones that would not have run out: their curve never does, or not before they are done.
    pub stopped_quiet: u32,
    pub stopped_before_done: u32,
    /// A neighbour was killed along with it.
    pub neighbours_killed: u32,
}

/// A job is started again this long after its process ended, at the earliest.
const GAP: f64 = 30.0;

impl Live {
    pub fn new(job: &Job) -> Self {
        Self {
            since: None,
            process: 0,
            from: 0.0,
            saved: 0.0,
            next: job.begins,
            done: false,
            lost: 0.0,
            ooms: 0,
            stopped: 0,
            stopped_quiet: 0,
            stopped_before_done: 0,
            neighbours_killed: 0,
        }
    }

    /// Seconds of progress at `now`.
    pub fn progress(&self, job: &Job, now: f64) -> f64 {
        self.since.map_or(self.saved, |since| self.from + (now - since - job.restart).max(0.0))
    }

    /// Whether the process makes progress.
    pub fn is_ready(&self, job: &Job, now: f64) -> bool {
        self.since.is_some_and(|since| now - since >= job.restart)
    }

    /// Lets time pass until `now`: the job starts, saves, runs out, or is done.
    pub fn pass(&mut self, job: &Job, now: f64, dice: &mut Dice) {
        if self.done {
            return;
        }
        if self.since.is_none() && now >= self.next {
            self.since = Some(now);
            self.process += 1;
            self.from = self.saved;
            if self.process > 1 {
                self.lost += job.restart;
            }
        }
        let Some(since) = self.since else { return };
        let progress = self.progress(job, now);
        if progress >= job.work {
            (self.done, self.since) = (true, None);
            return;
        }
        let own = (progress / job.saves_every).floor() * job.saves_every;
        self.saved = self.saved.max(own.max(self.from));
        if job.runs_out.is_some_and(|second| now - since >= second as f64) {
            self.ooms += 1;
            // Who asks for memory next is refused: mostly the one that grows.
            if job.neighbour > 0.0 && dice.chance(0.2) {
                self.neighbours_killed += 1;
            }
            self.end(job, now);
        }
    }

    /// Whether its process, left alone, runs out before the work is done.
    pub fn would_run_out(&self, job: &Job) -> bool {
        job.runs_out.is_some_and(|second| (second as f64) < job.restart + job.work - self.from)
    }

    /// Its process is stopped from outside.
    pub fn stop(&mut self, job: &Job, now: f64) {
        self.stopped += 1;
        self.stopped_quiet += u32::from(job.runs_out.is_none());
        self.stopped_before_done += u32::from(job.runs_out.is_some() && !self.would_run_out(job));
        self.end(job, now);
    }

    fn end(&mut self, job: &Job, now: f64) {
        self.lost += self.progress(job, now) - self.saved + GAP;
        (self.since, self.next) = (None, now + GAP);
    }

    /// It saves its work because it was asked to.
    pub fn save(&mut self, job: &Job, now: f64) {
        self.saved = self.progress(job, now).max(self.saved);
    }
}

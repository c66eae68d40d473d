//! What people do today, to compare with: stop whoever is over 90 %, or whose straight line is.

use std::collections::VecDeque;

use super::job::{Job, Live};

/// A rule that stops pods.
pub trait Rule {
    /// The jobs to stop at `now`.
    fn stop(&mut self, now: f64, jobs: &[Job], live: &[Live]) -> Vec<usize>;
}

/// Held for this long before it counts, and so long between two evictions of one job: what the operator does by default.
const HELD: f64 = 120.0;
const COOLDOWN: f64 = 900.0;

#[derive(Default)]
struct Held {
    since: Option<f64>,
    stopped: Option<f64>,
}

impl Held {
    fn fires(&mut self, now: f64, over: bool) -> bool {
        if !over {
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let rested = self.stopped.is_none_or(|at| now - at >= COOLDOWN);
        let fires = now - since >= HELD && rested;
        if fires {
            (self.since, self.stopped) = (None, Some(now));
        }
        fires
    }
}

/// Evicts the larger pod of a device that is over 90 % full.
#[derive(Default)]
pub struct Threshold {
    held: Vec<Held>,
}

impl Rule for Threshold {
    fn stop(&mut self, now: f64, jobs: &[Job], live: &[Live]) -> Vec<usize> {
        self.held.resize_with(jobs.len(), Held::default);
        let over = |place: &usize| {
            let (job, live) = (&jobs[*place], &live[*place]);
            live.since.is_some_and(|since| (job.used(now - since) + job.neighbour) / (job.room + job.neighbour) >= 0.9)
        };
        (0..jobs.len()).filter(|place| self.held[*place].fires(now, over(place))).collect()
    }
}

/// `predict_linear(used[10m], 900) > capacity`, then an eviction.
#[derive(Default)]
pub struct Linear {
    held: Vec<Held>,
    seen: Vec<(u64, VecDeque<(f64, f64)>)>,
}

impl Rule for Linear {
    fn stop(&mut self, now: f64, jobs: &[Job], live: &[Live]) -> Vec<usize> {
        self.held.resize_with(jobs.len(), Held::default);
        self.seen.resize_with(jobs.len(), Default::default);
        let mut fired = Vec::new();
        for (place, (job, live)) in jobs.iter().zip(live).enumerate() {
            let (process, points) = &mut self.seen[place];
            let Some(since) = live.since else {
                self.held[place].fires(now, false);
                continue;
            };
            if *process != live.process {
                (*process, *points) = (live.process, VecDeque::new());
            }
            points.push_back((now, job.used(now - since)));
            while points.front().is_some_and(|(at, _)| now - at > 600.0) {
                points.pop_front();
            }
            let enough = points.len() >= 20;
            let over = enough && line(points, now + 900.0) > job.room;
            if self.held[place].fires(now, over) {
                fired.push(place);
            }
        }
        fired
    }
}

/// Least squares, read off at `at`.
fn line(points: &VecDeque<(f64, f64)>, at: f64) -> f64 {
    let count = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), (a, b)| (x + a / count, y + b / count));
    let (xy, xx) = points.iter().fold((0.0, 0.0), |(xy, xx), (a, b)| (xy + (a - x) * (b - y), xx + (a - x) * (a - x)));
    if xx > 0.0 { y + xy / xx * (at - x) } else { y }
}

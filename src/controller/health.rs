//! Liveness by freshness: every loop of the controller beats once a turn, and `/healthz` fails when one has stopped.
//!
//! Flows in: beats. Flows out: `/healthz` and `/readyz`. An open port proves nothing: operators were seen wedged for days
//! behind a dropped watch while their port answered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::StatusCode;

use crate::http::{self, Answer};

/// Heartbeats by loop, and what still keeps the replica from being Ready.
#[derive(Debug, Default)]
pub struct Health {
    beats: Mutex<BTreeMap<&'static str, (Instant, Duration)>>,
    pending: Mutex<BTreeSet<&'static str>>,
}

impl Health {
    /// Notes a turn of loop `name`, whose next must come within `limit`. The first call registers it.
    pub fn beat(&self, name: &'static str, limit: Duration) {
        self.beat_at(name, limit, Instant::now());
    }

    /// As [`Health::beat`], at a given moment.
    pub fn beat_at(&self, name: &'static str, limit: Duration, now: Instant) {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner).insert(name, (now, limit));
    }

    /// Forgets a loop that ended as planned.
    pub fn retire(&self, name: &'static str) {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// Loops whose last beat is too old at `now`.
    pub fn overdue(&self, now: Instant) -> Vec<&'static str> {
        let beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        beats
            .iter()
            .filter(|(_, (last, limit))| now.saturating_duration_since(*last) > *limit)
            .map(|(name, _)| *name)
            .collect()
    }

    /// The replica is not Ready until `done(what)`.
    pub fn wait_for(&self, what: &'static str) {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).insert(what);
    }

    /// See [`Health::wait_for`].
    pub fn done(&self, what: &'static str) {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).remove(what);
    }

    /// `/healthz`.
    pub fn healthz(&self) -> Answer {
        verdict(&self.overdue(Instant::now()), "overdue")
    }

    /// `/readyz`.
    pub fn readyz(&self) -> Answer {
        verdict(&self.waiting(), "waiting for")
    }

    /// What the replica still waits for; Ready when empty.
    pub fn waiting(&self) -> Vec<&'static str> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

fn verdict(problems: &[&str], what: &str) -> Answer {
    if problems.is_empty() {
        http::text(StatusCode::OK, "ok\n")
    } else {
        http::text(StatusCode::SERVICE_UNAVAILABLE, format!("{what}: {}\n", problems.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_stops_beating_is_overdue_and_a_retired_one_is_not() {
        let (health, start) = (Health::default(), Instant::now());
        health.beat_at("pull", Duration::from_secs(10), start);
        health.beat_at("watch", Duration::from_mins(1), start);
        assert!(health.overdue(start + Duration::from_secs(10)).is_empty());
        assert_eq!(health.overdue(start + Duration::from_secs(11)), ["pull"]);
        health.retire("pull");
        assert!(health.overdue(start + Duration::from_secs(11)).is_empty());
    }

    #[test]
    fn a_replica_is_ready_once_everything_it_waits_for_is_done() {
        let health = Health::default();
        health.wait_for("peer");
        health.wait_for("first pull");
        health.done("peer");
        assert_eq!(health.waiting(), ["first pull"]);
        health.done("first pull");
        assert!(health.waiting().is_empty());
    }
}

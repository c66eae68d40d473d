//! The fleet as several tasks share it: pulls merge into it while rounds and scrapes read it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use gpumem_engine::policy::Policy;

use super::{Fleet, Observation};
use crate::api::usage::PodReport;

/// Nodes observed under one hold of the lock: a few milliseconds' worth.
const STEP: usize = 32;

/// [`Fleet::observe`] in steps between which reports are merged: with thousands of nodes an observation takes long enough
/// for pulls to fall behind, all of them waiting for the one lock.
pub fn observe(
    fleet: &Mutex<Fleet>,
    now: Instant,
    namespace: &str,
    select: impl Fn(&PodReport) -> bool,
    policy: &Policy,
) -> Vec<Observation> {
    let mut observations = Vec::new();
    let mut after: Arc<str> = Arc::from("");
    loop {
        let next = lock(fleet).observe_after(&after, STEP, now, namespace, &select, policy, &mut observations);
        match next {
            Some(last) => after = last,
            None => return observations,
        }
        // The lock is not fair: without this the next step would take it before whoever waits wakes up.
        std::thread::yield_now();
    }
}

/// Locks the fleet. A panic elsewhere while it was held left at worst one node's report half merged, which the next pull
/// completes; so a poisoned lock is no reason to stop watching everything else.
pub fn lock(fleet: &Mutex<Fleet>) -> MutexGuard<'_, Fleet> {
    fleet.lock().unwrap_or_else(PoisonError::into_inner)
}

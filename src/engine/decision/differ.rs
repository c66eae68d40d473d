//! What would stopping this pod buy? One that began a short while ago is not stopped, and one that grows into the same wall as
//! quickly is not restarted for ever.

use std::time::Duration;

use super::{Hold, LimitState, View};
use crate::attempts::Loop;
use crate::forecast::Class;
use crate::pacing::{DAY, Past, PastResult, Stamp};

/// A restart that buys less than this is none that helps.
const LEAST_GAIN: Duration = Duration::from_mins(30);

/// A pod is not stopped before its container is this many warm-ups old: half an hour with the default of ten minutes.
const LEAST_AGE: u32 = 3;

/// And not before it has run for this many times as long as the forecast looks ahead, up to its late decile.
const LEAST_SEEN: u32 = 3;

/// The reason not to stop a pod yet, if its container has not run for long enough.
///
/// Growth that is as old as the container has never been seen to end, nor to last: a cache that fills for the first time and
/// is emptied then looks like a leak until it is. And little is at stake: running out costs what it did since its start, and
/// a restart buys about as long as this one lasted. The same holds for a forecast that looks far ahead of little that was
/// seen: an hour of rising load looks like growth that speeds up, and the interval is wide because of it. Where nobody knows
/// since when it runs, nobody can say that it is old enough.
pub(super) fn is_old_enough(warm_up: Duration, view: &View) -> Result<(), Hold> {
    let least = LEAST_AGE * warm_up;
    match view.age {
        Some(age) if age < least => Err(Hold::TooYoung { least }),
        Some(age) if view.latest_in().is_some_and(|latest| age < LEAST_SEEN * latest) => Err(Hold::TooLittleSeen),
        Some(_) => Ok(()),
        None => Err(Hold::PodUnverified { why: "it does not say since when the container runs".to_owned() }),
    }
}

/// A floor that fell by more than this share of what is held was given back: allocators' lumps and noise are half of it.
const GIVEN_BACK: u64 = 100;

/// The reason not to stop a pod, if its memory went down by itself of late: what comes and goes with load or with a cache
/// turns before the wall more often than not, and a leak gives nothing back.
pub(super) fn gives_nothing_back(view: &View) -> Result<(), Hold> {
    let bytes = view.forecast.gave_back;
    if bytes.0 > view.used.0 / GIVEN_BACK { Err(Hold::GivesBack { bytes }) } else { Ok(()) }
}

/// The reason to leave the pod alone, if its replacement would run out just the same.
///
/// That is believed only where nothing can differ: the container is alone on its device, no limit holds, and the pod before
/// it, whom an action ended within a day, had reached the same memory (to a tenth) after a similar time (to a half), both in
/// less than [`LEAST_GAIN`]. On a shared device the replacement may find a freer one, and records that do not say how the
/// earlier pod fared prove nothing.
pub(super) fn would_not<'a>(
    now: Stamp,
    view: &View,
    mut history: impl Iterator<Item = &'a Past>,
    dry_run: bool,
) -> Option<Hold> {
    if view.shared || matches!(view.limit, LimitState::Holds { .. }) {
        return None;
    }
    let before = history.find(|past| past.dry_run == dry_run && past.result == PastResult::Disrupted)?;
    let of_another = before.pod.as_ref().is_some_and(|pod| *pod != view.pod.uid);
    let (age, aged) = (view.age?, before.age?);
    let (used, filled) = (view.used, before.used?);
    let young = age < LEAST_GAIN && aged < LEAST_GAIN;
    let as_quickly = 2 * age <= 3 * aged && 2 * aged <= 3 * age;
    let as_much = used.0.abs_diff(filled.0) <= filled.0 / 10;
    let same = of_another && now.since(before.at) < DAY && young && as_quickly && as_much;
    same.then_some(Hold::WouldNotDiffer { used: filled })
}

/// The reason not to evict a pod whose workload is in a loop of OOMs at one peak: the next pod would meet the same end.
///
/// A leak ends at the same peak as well, that of its device, and there a restart buys time: one that took longer than
/// [`LEAST_GAIN`] to come this far is not held back by it.
pub(super) fn loops(view: &View, restart_loop: Option<&Loop>) -> Option<Hold> {
    let known = restart_loop.filter(|known| known.container == view.container)?;
    let buys_time = view.forecast.class == Class::Leak && view.age.is_some_and(|age| age >= LEAST_GAIN);
    (!buys_time).then_some(Hold::RestartLoop { ooms: known.count, peak: known.peak })
}

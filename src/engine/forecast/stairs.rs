//! Equal steps at equal distances: growth whose next step is known.
//!
//! Flows in: the blocks of about a horizon. Flows out: size, distance and phase of the steps. A straight line through stairs
//! is right on average and wrong by half a step at every single moment; where steps are regular the phase repairs that, and
//! three steps are evidence enough where eight parts of a window are not filled yet.

use super::window::Signal;
use crate::series::{Ring, SCALES, Series};

/// Regular stairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stairs {
    /// Bytes per step.
    pub(super) size: f64,
    /// Seconds between steps.
    pub(super) gap: f64,
    /// Seconds since the last one.
    pub(super) since: f64,
    /// How much one gap differs from the next, relative.
    pub(super) shake: f64,
    /// Steps seen.
    pub(super) count: f64,
}

/// Steps remembered while looking: more than fit in 48 blocks with a flat block between them.
const MOST: usize = 24;

/// Mean and coefficient of variation.
fn spread(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n.max(1.0);
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    (mean, if mean > 0.0 { variance.sqrt() / mean } else { f64::INFINITY })
}

/// Stairs in the blocks since `from` seconds on the node's time line.
pub(super) fn stairs(series: &Series, signal: Signal, horizon: f64, from: f64) -> Option<Stairs> {
    let interval = series.interval();
    let (scale, seconds) = SCALES
        .iter()
        .enumerate()
        .map(|(scale, (seconds, _))| (scale, f64::from(*seconds)))
        .rfind(|(_, seconds)| *seconds <= (horizon / 40.0).max(2.0) && *seconds >= interval)?;
    let ring = series.ring(scale)?;
    // Loading ends in steps of its own, larger than those of a leak: without what came up to the largest, look again.
    let mut from = from;
    for _ in 0..3 {
        match regular(ring, signal, seconds, from) {
            Ok(stairs) => return Some(stairs),
            Err(largest_at) => from = largest_at?,
        }
    }
    None
}

/// Stairs in the blocks since `from`; otherwise where the largest step among them was.
fn regular(ring: &Ring, signal: Signal, seconds: f64, from: f64) -> Result<Stairs, Option<f64>> {
    let floors = ring.iter().filter_map(|block| {
        let start = f64::from(block.index) * seconds;
        let (samples, floor) = match signal {
            Signal::Used => (block.samples, block.floor),
            Signal::Live => (block.live_samples, block.live_floor),
        };
        (samples > 0 && start >= from).then(|| (start, f64::from(floor) * 1024.0))
    });
    let (largest, largest_at) =
        floors.clone().zip(floors.clone().skip(1)).fold((0.0_f64, from), |most, ((_, before), (start, floor))| {
            if floor - before > most.0 { (floor - before, start) } else { most }
        });
    if largest <= 0.0 {
        return Err(None);
    }
    steps(floors, seconds, largest).ok_or(Some(largest_at))
}

/// Stairs among floors whose largest rise is `largest`.
fn steps(floors: impl Iterator<Item = (f64, f64)> + Clone, seconds: f64, largest: f64) -> Option<Stairs> {
    let (mut times, mut sizes, mut count) = ([0.0; MOST], [0.0; MOST], 0_usize);
    let (mut steps, mut rest, mut stepping, mut end) = (0.0, 0.0, false, 0.0);
    for ((_, before), (start, floor)) in floors.clone().zip(floors.skip(1)) {
        let change = floor - before;
        end = start;
        if change < 0.3 * largest {
            rest += change.abs();
            stepping = false;
            continue;
        }
        steps += change;
        if stepping {
            // A step that fell into the middle of a block shows in two.
            if let Some(size) = sizes.get_mut(count.wrapping_sub(1)) {
                *size += change;
            }
            continue;
        }
        *times.get_mut(count)? = start;
        *sizes.get_mut(count)? = change;
        count += 1;
        stepping = true;
    }
    if count < 3 || rest > 0.25 * steps {
        return None;
    }
    let mut gaps = [0.0; MOST];
    for (gap, pair) in gaps.iter_mut().zip(times.get(..count)?.windows(2)) {
        *gap = pair.last()? - pair.first()?;
    }
    let (gap, shake) = spread(gaps.get(..count - 1)?);
    let (size, uneven) = spread(sizes.get(..count)?);
    let since = end + seconds - times.get(count - 1)?;
    let regular = shake < 0.35 && uneven < 0.35 && gap >= 3.0 * seconds;
    (regular && since <= 1.6 * gap + seconds).then_some(Stairs { size, gap, since, shake, count: count as f64 })
}

impl Stairs {
    /// Bytes after `seconds`: whole steps only, an overdue one at once.
    pub(super) fn rise(&self, seconds: f64) -> f64 {
        let phase = self.since.min(0.95 * self.gap);
        self.size * ((seconds + phase) / self.gap).floor().max(0.0)
    }
}

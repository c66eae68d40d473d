//! Equal steps at equal distances: growth whose next step is known.
//!
//! Flows in: the blocks of about a horizon. Flows out: size, distance and phase of the steps. A straight line through stairs
//! is right on average and wrong by half a step at every single moment; where steps are regular the phase repairs that, and
//! three steps are evidence enough where eight parts of a window are not filled yet.

use super::window::{Signal, reading};
use crate::series::{SCALES, Series};

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
    /// How much one size differs from the next, relative.
    pub(super) uneven: f64,
    /// Steps seen.
    pub(super) count: f64,
}

/// Steps remembered while looking: more than fit in 48 blocks with a flat block between them.
const MOST: usize = 24;

/// Blocks of the longest ring.
const BLOCKS: usize = 48;

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
    let mut floors = [(0.0, 0.0); BLOCKS];
    let mut count = 0;
    for block in ring.iter() {
        let (start, (samples, floor, _)) = (f64::from(block.index) * seconds, reading(block, signal));
        if samples > 0 && start >= from {
            *floors.get_mut(count)? = (start, f64::from(floor) * 1024.0);
            count += 1;
        }
    }
    let mut floors = floors.get(..count)?;
    // Loading ends in steps of its own, larger than those of a leak: without what came up to the largest, look again.
    for _ in 0..3 {
        let rises = floors.windows(2).enumerate().map(|(place, pair)| (place + 1, rise(pair)));
        let (place, largest) = rises.fold((0, 0.0), |most, rise| if rise.1 > most.1 { rise } else { most });
        if largest <= 0.0 {
            return None;
        }
        if let Some(stairs) = steps(floors, seconds, largest) {
            return Some(stairs);
        }
        floors = floors.get(place..)?;
    }
    None
}

/// From one floor to the next.
fn rise(pair: &[(f64, f64)]) -> f64 {
    match pair {
        [(_, before), (_, floor)] => floor - before,
        _ => 0.0,
    }
}

/// Stairs among floors whose largest rise is `largest`.
fn steps(floors: &[(f64, f64)], seconds: f64, largest: f64) -> Option<Stairs> {
    let (mut times, mut sizes, mut count) = ([0.0; MOST], [0.0; MOST], 0_usize);
    let (mut steps, mut rest, mut stepping, mut end) = (0.0, 0.0, false, 0.0);
    for pair in floors.windows(2) {
        let (change, start) = (rise(pair), pair.last()?.0);
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
    (regular && since <= 1.6 * gap + seconds).then_some(Stairs { size, gap, since, shake, uneven, count: count as f64 })
}

impl Stairs {
    /// Bytes after `seconds`: whole steps only, an overdue one at once.
    pub(super) fn rise(&self, seconds: f64) -> f64 {
        let phase = self.since.min(0.95 * self.gap);
        self.size * ((seconds + phase) / self.gap).floor().max(0.0)
    }
}

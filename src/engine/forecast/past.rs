//! What came before a window: levels already held, and whether they were given back.
//!
//! Flows in: the blocks before. Flows out: how much of a rise is new, and how far rises may be trusted.

use super::window::{Signal, Window, reading};
use crate::series::{Ring, SCALES, Series};

/// Falls of the floor before `until` as a share of its rises, over stretches of a sixth of the horizon.
pub(super) fn unrest(series: &Series, signal: Signal, horizon: f64, from: f64, until: f64) -> f64 {
    let stretch = horizon / 6.0;
    let coarse = SCALES.iter().rposition(|(seconds, _)| f64::from(*seconds) <= stretch.max(2.0));
    let Some(ring) = coarse.and_then(|scale| series.ring(scale)) else { return 0.0 };
    let seconds = coarse.and_then(|scale| SCALES.get(scale)).map_or(1.0, |(seconds, _)| f64::from(*seconds));
    let (mut rises, mut falls, mut top) = (0.0, 0.0, 0.0_f64);
    let (mut before, mut current) = (None::<f64>, None::<(u64, f64)>);
    for block in ring.iter() {
        let start = f64::from(block.index) * seconds;
        let (samples, floor, _) = reading(block, signal);
        if samples == 0 || start < from || start > until {
            continue;
        }
        let (place, floor) = ((start / stretch) as u64, f64::from(floor) * 1024.0);
        current = match current {
            Some((known, lowest)) if known == place => Some((place, lowest.min(floor))),
            Some((_, lowest)) => {
                if let Some(before) = before {
                    rises += (lowest - before).max(0.0);
                    falls += (before - lowest).max(0.0);
                }
                top = top.max(lowest);
                before = Some(lowest);
                Some((place, floor))
            }
            None => Some((place, floor)),
        };
    }
    if falls < 0.03 * top { 0.0 } else { falls / rises.max(falls) }
}

/// Highest floor up to each block of each ring, oldest first: every window asks, so it is found once, when asked for.
pub(super) struct Heights<'a> {
    series: &'a Series,
    signal: Signal,
    kib: [Option<[u32; LONGEST]>; SCALES.len()],
}

/// Blocks of the longest ring.
const LONGEST: usize = 48;

impl<'a> Heights<'a> {
    pub(super) fn of(series: &'a Series, signal: Signal) -> Self {
        Self { series, signal, kib: [None; SCALES.len()] }
    }

    /// Highest floor held before the window by blocks at least as long as the window's own.
    pub(super) fn before(&mut self, window: &Window) -> f64 {
        let mut highest = 0;
        for (scale, ((seconds, _), row)) in SCALES.iter().zip(&mut self.kib).enumerate() {
            let seconds = f64::from(*seconds);
            let Some(ring) = self.series.ring(scale).filter(|_| seconds * 1.001 >= window.part / 2.0) else { continue };
            let Some(last) = ring.until((window.start / seconds) as u32).checked_sub(1) else { continue };
            let row = row.get_or_insert_with(|| running(ring, self.signal));
            highest = highest.max(row.get(last).copied().unwrap_or(0));
        }
        f64::from(highest) * 1024.0
    }
}

/// Running maximum of the floors.
fn running(ring: &Ring, signal: Signal) -> [u32; LONGEST] {
    let (mut row, mut highest) = ([0; LONGEST], 0);
    for (slot, block) in row.iter_mut().zip(ring.iter()) {
        let (samples, floor, _) = reading(block, signal);
        highest = if samples > 0 { floor.max(highest) } else { highest };
        *slot = highest;
    }
    row
}

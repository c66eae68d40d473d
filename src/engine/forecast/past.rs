//! What came before a window: levels already held, and whether they were given back.
//!
//! Flows in: the blocks before. Flows out: how much of a rise is new, and how far rises may be trusted.

use super::window::{Signal, Window, reading};
use crate::series::{Ring, SCALES, Series};

/// Falls of the floor before `until` as a share of its rises, over stretches of a sixth of the horizon.
pub(super) fn unrest(series: &Series, signal: Signal, horizon: f64, from: f64, until: f64) -> f64 {
    let stretch = horizon / 6.0;
    let Some((ring, seconds)) = coarsest(series, stretch) else { return 0.0 };
    let (mut rises, mut falls, mut top) = (0.0, 0.0, 0.0_f64);
    let mut before = None::<f64>;
    floors(
        (ring, seconds),
        signal,
        stretch,
        |start, _| start >= from && start <= until,
        |lowest| {
            if let Some(before) = before {
                rises += (lowest - before).max(0.0);
                falls += (before - lowest).max(0.0);
            }
            top = top.max(lowest);
            before = Some(lowest);
        },
    );
    if falls < 0.03 * top { 0.0 } else { falls / rises.max(falls) }
}

/// Most by which the floor has fallen, over stretches of a fifth of the horizon since `from` and within four horizons.
///
/// A leak's floor never falls, and no spike shorter than a stretch moves it: what falls for as long as that was given back.
pub(super) fn gave_back(series: &Series, signal: Signal, horizon: f64, from: f64) -> f64 {
    let stretch = horizon / 5.0;
    let Some((ring, seconds)) = coarsest(series, stretch / 2.0) else { return 0.0 };
    let place = |index: u32| (f64::from(index) * seconds / stretch).floor();
    let newest = ring.newest().map_or(0.0, |block| f64::from(block.index) * seconds);
    // The oldest stretch may have lost its beginning, and with it its floor: what is left of it could be a spike.
    let oldest = ring.iter().next().map_or(0.0, |block| place(block.index));
    let since = from.max(newest - 4.0 * horizon);
    let (mut highest, mut fell) = (0.0_f64, 0.0_f64);
    let mut see = |floor: f64| {
        highest = highest.max(floor);
        fell = fell.max(highest - floor);
    };
    let wanted = |_, place: f64| place > oldest && place * stretch >= since;
    // The newest stretch is not over, but its floor can only fall further.
    if let Some(floor) = floors((ring, seconds), signal, stretch, wanted, &mut see) {
        see(floor);
    }
    fell
}

/// The coarsest blocks that are no longer than `stretch` seconds, and their length.
fn coarsest(series: &Series, stretch: f64) -> Option<(&Ring, f64)> {
    let scale = SCALES.iter().rposition(|(seconds, _)| f64::from(*seconds) <= stretch.max(2.0))?;
    Some((series.ring(scale)?, SCALES.get(scale).map_or(1.0, |(seconds, _)| f64::from(*seconds))))
}

/// Shows `see` the floor of each stretch that is over, in bytes and oldest first, of blocks that are `wanted` by their start
/// and the number of their stretch; gives the floor of the newest, which is not.
fn floors(
    (ring, seconds): (&Ring, f64),
    signal: Signal,
    stretch: f64,
    wanted: impl Fn(f64, f64) -> bool,
    mut see: impl FnMut(f64),
) -> Option<f64> {
    let mut current = None::<(f64, f64)>;
    for block in ring.iter() {
        let start = f64::from(block.index) * seconds;
        let place = (start / stretch).floor();
        let (samples, floor, _) = reading(block, signal);
        if samples == 0 || !wanted(start, place) {
            continue;
        }
        let floor = f64::from(floor) * 1024.0;
        current = match current {
            Some((known, lowest)) if known == place => Some((place, lowest.min(floor))),
            Some((_, lowest)) => {
                see(lowest);
                Some((place, floor))
            }
            None => Some((place, floor)),
        };
    }
    current.map(|(_, lowest)| lowest)
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

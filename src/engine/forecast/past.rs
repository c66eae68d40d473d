//! What came before a window: levels already held, and whether they were given back.
//!
//! Flows in: the blocks before. Flows out: how much of a rise is new, and how far rises may be trusted.

use super::window::{Signal, Window};
use crate::series::{SCALES, Series};

/// Falls of the floor before `until` as a share of its rises, over stretches of a sixth of the horizon.
pub(super) fn unrest(series: &Series, signal: Signal, horizon: f64, from: f64, until: f64) -> f64 {
    let stretch = horizon / 6.0;
    let coarse = SCALES.iter().rposition(|(seconds, _)| f64::from(*seconds) <= stretch.max(2.0));
    let Some(ring) = coarse.and_then(|scale| series.ring(scale)) else { return 0.0 };
    let seconds = coarse.and_then(|scale| SCALES.get(scale)).map_or(1.0, |(seconds, _)| f64::from(*seconds));
    let (mut rises, mut falls, mut top) = (0.0, 0.0, 0.0_f64);
    let (mut before, mut current) = (None::<f64>, None::<(f64, f64)>);
    for block in ring.iter() {
        let start = f64::from(block.index) * seconds;
        let (samples, floor) = match signal {
            Signal::Used => (block.samples, block.floor),
            Signal::Live => (block.live_samples, block.live_floor),
        };
        if samples == 0 || start < from || start > until {
            continue;
        }
        let (place, floor) = ((start / stretch).floor(), f64::from(floor) * 1024.0);
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

/// Highest floor held before the window by blocks at least as long as the window's own.
pub(super) fn explored(series: &Series, signal: Signal, window: &Window) -> f64 {
    let mut highest = 0.0_f64;
    for (scale, &(seconds, _)) in SCALES.iter().enumerate() {
        if f64::from(seconds) * 1.001 < window.part / 2.0 {
            continue;
        }
        let Some(ring) = series.ring(scale) else { continue };
        for block in ring.iter().take_while(|block| f64::from(block.index + 1) * f64::from(seconds) <= window.start) {
            let (samples, floor) = match signal {
                Signal::Used => (block.samples, block.floor),
                Signal::Live => (block.live_samples, block.live_floor),
            };
            if samples > 0 {
                highest = highest.max(f64::from(floor) * 1024.0);
            }
        }
    }
    highest
}

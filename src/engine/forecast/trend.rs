//! Lasting growth: is there any, how fast, does it slow down, and how sure is that.
//!
//! Flows in: the windows of a series. Flows out: at most one [`Trend`]. One damped envelope serves drifts, stairs,
//! saturating curves and growth under spikes alike (Gardner and McKenzie's damped trend, fitted to floors of blocks
//! instead of smoothed samples): what differs between them is how the parts rise, not what follows from it.

use super::calibration::Pieces;
use super::stairs::{Stairs, stairs};
use super::window::{PARTS, Signal, Window, windows};
use crate::series::{SCALES, Series};

/// Lasting growth as a curve into the future.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Trend {
    /// Bytes per second now.
    pub(super) slope: f64,
    /// Relative standard error of `slope`.
    pub(super) error: f64,
    /// Rise of the second half of the longest rising window over that of the first: 1 is a line, less slows down.
    pub(super) bend: f64,
    /// Bytes per second gained each second, where near and far agree that it speeds up.
    pub(super) gain: f64,
    /// Standard error of `bend`.
    pub(super) bend_error: f64,
    /// Length of that window in seconds: how much past speaks for the growth.
    pub(super) seen: f64,
    /// Length of the window the slope was taken from.
    pub(super) near: f64,
    /// Where the next excursion would reach.
    pub(super) top: f64,
    /// The same without excursions.
    pub(super) plain_top: f64,
    /// What the floor gave back before, as a share of what it rose: load comes and goes, a leak does not.
    pub(super) unrest: f64,
    /// Where growth comes in regular steps: when the next one is due.
    pub(super) stairs: Option<Stairs>,
}

/// What least squares and counting say of one window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Shape {
    slope: f64,
    slope_error: f64,
    residual: f64,
    first_half: f64,
    second_half: f64,
    rising: f64,
    rises: f64,
    falls: f64,
    largest: f64,
    ceiling_rise: f64,
}

impl Shape {
    /// `None` where too many parts are missing. `explored` is a level already held before the window: what lies below it
    /// is a return, not growth.
    fn of(window: &Window, explored: f64) -> Option<Self> {
        let present = window.sampled().count();
        let newest_missing = window.parts().last().is_none_or(|part| part.samples == 0);
        let oldest_missing = window.parts().iter().take(2).all(|part| part.samples == 0);
        if present + 3 < window.parts().len().max(8) || newest_missing || oldest_missing {
            return None;
        }
        let points = || window.sampled().map(|(place, part)| (place as f64 * window.part, part.floor.max(explored)));
        let (slope, intercept, spread) = line(points());
        let squares: f64 = points().map(|(x, y)| (y - intercept - slope * x).powi(2)).sum();
        let residual = (squares / (present as f64 - 2.0).max(1.0)).sqrt();
        let mut shape = Self {
            slope,
            residual,
            slope_error: if spread > 0.0 { residual / spread.sqrt() } else { 0.0 },
            ..Self::default()
        };
        let (mut pairs, mut rising, mut before) = (0.0, 0.0, None);
        for (_, floor) in points() {
            if let Some(before) = before {
                let change: f64 = floor - before;
                pairs += 1.0;
                rising += f64::from(u8::from(change > 0.0));
                shape.rises += change.max(0.0);
                shape.falls += (-change).max(0.0);
                shape.largest = shape.largest.max(change);
            }
            before = Some(floor);
        }
        shape.rising = rising / f64::max(pairs, 1.0);
        let half = |from: usize, to: usize| {
            let (slope, _, _) = line(
                window
                    .sampled()
                    .filter(|(place, _)| (from..=to).contains(place))
                    .map(|(place, part)| (place as f64 * window.part, part.floor.max(explored))),
            );
            slope * window.length() / 2.0
        };
        let parts = window.parts().len();
        shape.first_half = half(0, parts / 2);
        shape.second_half = half(parts / 2 - 1, parts - 1);
        // One spike more or less in either half says nothing: the lower middle of the ceilings decides.
        let usual = |from: usize, to: usize| {
            let mut ceilings = [f64::INFINITY; PARTS];
            let sampled = window.sampled().filter(|(place, _)| (from..to).contains(place));
            let mut count = 0_usize;
            for (slot, (_, part)) in ceilings.iter_mut().zip(sampled) {
                *slot = part.ceiling;
                count += 1;
            }
            ceilings.sort_unstable_by(f64::total_cmp);
            ceilings.get(count.saturating_sub(1) / 2).copied().unwrap_or(0.0)
        };
        let top = |from: usize, to: usize| {
            window.parts().iter().take(to).skip(from).fold(0.0_f64, |top, part| top.max(part.ceiling))
        };
        let half = parts / 2;
        shape.ceiling_rise = (usual(half, parts) - usual(0, half)).max(top(half, parts) - top(0, half));
        Some(shape)
    }

    /// Bytes per second gained each second, from one half to the other.
    fn gain(&self, window: &Window) -> f64 {
        let half = window.length() / 2.0;
        (self.second_half - self.first_half) / (half * half)
    }

    /// A longer window takes the place of a shorter one where it is more exact and tells the same story.
    fn improves_on(&self, kept: &Self) -> bool {
        let (own, other) = (self.slope_error / self.slope, kept.slope_error / kept.slope);
        let apart = (self.slope / kept.slope).ln().abs();
        let straight = (self.second_half / self.first_half.max(1.0)).clamp(0.01, 100.0).ln().abs() < 0.25;
        own < other && (other > 0.1 || (straight && apart < (2.0 * own.hypot(other)).max(0.1)))
    }

    /// Both envelopes rise, most parts above the one before, and no single step makes up the growth.
    fn rises(&self, long: bool) -> bool {
        let share = if long { 0.5 } else { 0.7 };
        self.slope > 0.0
            && self.rising >= share
            && self.falls <= 0.15 * self.rises
            && self.largest <= 0.6 * (self.rises - self.falls)
            && self.ceiling_rise > 0.0
            && self.second_half > 0.0
    }
}

/// Least squares: slope, intercept, and the sum of squares of x about its mean.
fn line(points: impl Iterator<Item = (f64, f64)> + Clone) -> (f64, f64, f64) {
    let (mut n, mut x_sum, mut y_sum) = (0.0, 0.0, 0.0);
    for (x, y) in points.clone() {
        n += 1.0;
        x_sum += x;
        y_sum += y;
    }
    if n < 2.0 {
        return (0.0, y_sum, 0.0);
    }
    let (x_mean, y_mean) = (x_sum / n, y_sum / n);
    let (mut xx, mut xy) = (0.0, 0.0);
    for (x, y) in points {
        xx += (x - x_mean).powi(2);
        xy += (x - x_mean) * (y - y_mean);
    }
    let slope = if xx > 0.0 { xy / xx } else { 0.0 };
    (slope, y_mean - slope * x_mean, xx)
}

/// The growth of a series as far as `horizon` cares; windows begin no earlier than `from` seconds on the node's time line.
pub(super) fn trend(series: &Series, signal: Signal, horizon: f64, from: f64) -> Option<Trend> {
    let mut near: Option<(Window, Shape)> = None;
    let mut far: Option<(Window, Shape)> = None;
    let shortest = horizon / 10.0;
    for window in windows(series, signal, shortest, 4.0 * horizon, from) {
        if !window.rose() {
            continue;
        }
        let long = window.length() >= horizon / 2.0;
        let Some(shape) = Shape::of(&window, 0.0).filter(|shape| shape.rises(long)) else { continue };
        // Most windows end here or have seen nothing as high before; only the rest is looked at again.
        let explored = explored(series, signal, &window).max(series.survived().as_f64());
        let shape = if explored > window.lowest() {
            let Some(above) = Shape::of(&window, explored).filter(|shape| shape.rises(long)) else { continue };
            above
        } else {
            shape
        };
        if near.is_none_or(|(_, kept)| shape.improves_on(&kept)) {
            near = Some((window, shape));
        }
        far = Some((window, shape));
    }
    let regular = stairs(series, signal, horizon, from);
    let (Some((near, close)), Some((far, wide))) = (near, far) else {
        return Some(Trend::of_stairs(regular?));
    };
    if stopped(series, signal, from, shortest, (&near, &close), &far) {
        return None;
    }
    // The driver shows an allocator's lumps, not what is live: bends in it are less certain.
    let noise = wide.residual * if signal == Signal::Used { 1.5 } else { 1.0 };
    let first = wide.first_half.max(1.0);
    // A flat start followed by a line looks convex from afar; half as far it is a line. What speeds up does so in both.
    let gain = middle(series, signal, from, &far)
        .map_or(0.0, |(half, shape)| shape.gain(&half).min(2.5 * wide.gain(&far)).max(0.0));
    Some(Trend {
        slope: close.slope + 0.5 * gain * near.length(),
        gain,
        error: close.slope_error / close.slope,
        bend: (wide.second_half / first).clamp(0.02, 4.0),
        bend_error: (noise / first).clamp(0.02, 1.0),
        seen: far.length(),
        near: near.length(),
        top: near.top().max(near.floor_now() + far.excursion()),
        plain_top: near.top(),
        unrest: unrest(series, signal, horizon, from, far.start),
        stairs: regular,
    })
}

/// Falls of the floor before `until` as a share of its rises, over stretches of a sixth of the horizon.
fn unrest(series: &Series, signal: Signal, horizon: f64, from: f64, until: f64) -> f64 {
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

/// The window about half as long as `far`.
fn middle(series: &Series, signal: Signal, from: f64, far: &Window) -> Option<(Window, Shape)> {
    let window = windows(series, signal, 0.3 * far.length(), 0.67 * far.length(), from).last()?;
    Some((window, Shape::of(&window, 0.0)?))
}

/// Highest floor held before the window by blocks at least as long as the window's own.
fn explored(series: &Series, signal: Signal, window: &Window) -> f64 {
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

/// Growth seen over a long window has ended if a shorter one, long enough to show at least two of its steps and more
/// than its noise, shows next to none.
fn stopped(
    series: &Series,
    signal: Signal,
    from: f64,
    shortest: f64,
    (near, close): (&Window, &Shape),
    far: &Window,
) -> bool {
    let visible = (2.2 * far.jump).max(4.0 * close.residual);
    windows(series, signal, shortest / 4.0, near.length() * 0.99, from)
        .filter(|window| close.slope * window.length() >= visible)
        .filter_map(|window| Some((Shape::of(&window, 0.0)?, window)))
        .any(|(shape, window)| shape.slope * window.length() < 0.3 * close.slope * window.length())
}

impl Trend {
    /// Too few steps to fill a window, but regular ones.
    fn of_stairs(stairs: Stairs) -> Self {
        let seen = stairs.gap * stairs.count;
        Self {
            slope: stairs.size / stairs.gap,
            error: stairs.shake / stairs.count.sqrt(),
            bend: 1.0,
            gain: 0.0,
            bend_error: 0.02,
            seen,
            near: seen,
            top: 0.0,
            plain_top: 0.0,
            unrest: 0.0,
            stairs: Some(stairs),
        }
    }

    /// As if some parts of the predictor did not exist.
    pub(super) fn with(self, pieces: Pieces) -> Option<Self> {
        let mut trend = self;
        if !pieces.stairs {
            // Without a window of its own it stands on the stairs alone.
            if trend.top <= 0.0 {
                return None;
            }
            trend.stairs = None;
        }
        if !pieces.damping {
            trend.bend = trend.bend.max(1.0);
            trend.bend_error = 0.0;
        }
        if !pieces.acceleration {
            trend.gain = 0.0;
        }
        if !pieces.excursions && trend.top > 0.0 {
            trend.top = trend.plain_top;
        }
        if !pieces.unrest {
            trend.unrest = 0.0;
        }
        Some(trend)
    }

    /// Place of its widths in the calibration: regular stairs, straight, bent.
    pub(super) fn kind(&self) -> usize {
        if self.stairs.is_some() {
            0
        } else if (0.7..=1.4).contains(&self.bend) {
            1
        } else {
            2
        }
    }

    /// Rise in bytes after `seconds`, with the bend moved by `shift` standard errors. Never falls with time.
    pub(super) fn rise(&self, seconds: f64, shift: f64) -> f64 {
        let bend = (self.bend + shift * self.bend_error).clamp(0.02, 4.0);
        let half = self.seen / 2.0;
        if let Some(stairs) = self.stairs.filter(|_| (0.7..1.4).contains(&self.bend)) {
            return stairs.rise(seconds);
        }
        if bend < 0.97 {
            let decay = half / -bend.ln();
            self.slope * decay * (1.0 - (-seconds / decay).exp())
        } else if self.gain > 0.0 {
            // Speeding up is believed for as long as it was seen, then the slope stays: a list of growing tensors is not
            // a chain reaction.
            let while_growing = seconds.min(self.seen);
            let gain = self.gain * (1.0 + 0.3 * shift);
            self.slope * seconds + gain * while_growing * (seconds - 0.5 * while_growing)
        } else {
            self.slope * seconds
        }
    }
}

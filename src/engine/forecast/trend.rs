//! Lasting growth: is there any, how fast, does it slow down, and how sure is that.
//!
//! Flows in: the windows of a series. Flows out: at most one [`Trend`]. One damped envelope serves drifts, stairs,
//! saturating curves and growth under spikes alike (Gardner and McKenzie's damped trend, fitted to floors of blocks
//! instead of smoothed samples): what differs between them is how the parts rise, not what follows from it.

use super::calibration::Pieces;
use super::past::{Heights, unrest};
use super::shape::Shape;
use super::stairs::{Stairs, stairs};
use super::window::{Signal, Window, risen, windows};
use crate::series::Series;

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

/// How much of a bend a part can make that began late, for each part of its length by which it did.
const BLUR: f64 = 0.35;

/// The growth of a series as far as `horizon` cares; windows begin no earlier than `from` seconds on the node's time line.
pub(super) fn trend(series: &Series, signal: Signal, horizon: f64, from: f64) -> Option<Trend> {
    let mut near: Option<(Window, Shape)> = None;
    let mut far: Option<(Window, Shape)> = None;
    let mut heights = Heights::of(series, signal);
    let shortest = horizon / 10.0;
    for window in risen(series, signal, shortest, 4.0 * horizon, from) {
        let long = window.length() >= horizon / 2.0;
        let Some(shape) = Shape::of(&window, 0.0).filter(|shape| shape.rises(long)) else { continue };
        // Most windows end here or have seen nothing as high before; only the rest is looked at again.
        let explored = heights.before(&window).max(series.survived().as_f64());
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
    // One part that began late moves the bend by three tenths of that: what samples that are missing may have done is no bend.
    let bent = wide.second_half / first - 1.0;
    let bend = bent - bent.clamp(-BLUR * far.blur / far.part, BLUR * far.blur / far.part);
    let gain = if bent > 0.0 { gain * bend / bent } else { gain };
    Some(Trend {
        slope: close.slope + 0.5 * gain * near.length(),
        gain,
        error: close.slope_error / close.slope,
        bend: (1.0 + bend).clamp(0.02, 4.0),
        bend_error: (noise / first).clamp(0.02, 1.0),
        seen: far.length(),
        near: near.length(),
        top: near.top().max(near.floor_now() + far.excursion()),
        plain_top: near.top(),
        unrest: unrest(series, signal, horizon, from, far.start),
        stairs: regular,
    })
}

/// The window about half as long as `far`.
fn middle(series: &Series, signal: Signal, from: f64, far: &Window) -> Option<(Window, Shape)> {
    let window = windows(series, signal, 0.3 * far.length(), 0.67 * far.length(), from).next_back()?;
    Some((window, Shape::of(&window, 0.0)?))
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
    windows(series, signal, (shortest / 4.0).max(visible / close.slope), near.length() * 0.99, from)
        .filter_map(|window| Some((Shape::of(&window, 0.0)?, window)))
        // One in which more was given back than growth would add saw the end of an excursion, not of the growth.
        .filter(|(shape, window)| shape.falls <= 0.5 * close.slope * window.length())
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

    /// Whether moving the bend changes anything: most stairs and lines stay what they are.
    pub(super) fn shifts(&self) -> bool {
        let regular = self.stairs.is_some() && (0.7..1.4).contains(&self.bend);
        !regular && (self.bend - 2.0 * self.bend_error < 0.97 || self.gain > 0.0)
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

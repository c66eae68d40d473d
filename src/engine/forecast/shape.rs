//! Whether a window rises, and how: least squares and counting over its parts.
//!
//! Flows in: a window. Flows out: numbers without a model, and the verdict that both of its envelopes rise.

use super::window::{PARTS, Window};

/// What least squares and counting say of one window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Shape {
    pub(super) slope: f64,
    pub(super) slope_error: f64,
    pub(super) residual: f64,
    pub(super) first_half: f64,
    pub(super) second_half: f64,
    pub(super) rising: f64,
    pub(super) rises: f64,
    pub(super) falls: f64,
    pub(super) largest: f64,
    pub(super) ceiling_rise: f64,
}

impl Shape {
    /// `None` where too many parts are missing. `explored` is a level already held before the window: what lies below it
    /// is a return, not growth.
    pub(super) fn of(window: &Window, explored: f64) -> Option<Self> {
        let present = window.sampled().count();
        let newest_missing = window.parts().last().is_none_or(|part| part.samples == 0);
        let oldest_missing = window.parts().iter().take(2).all(|part| part.samples == 0);
        if present + 3 < window.parts().len().max(8) || newest_missing || oldest_missing {
            return None;
        }
        let points = || window.sampled().map(|(_, part)| (part.at, part.floor.max(explored)));
        let (slope, intercept, spread) = line(points());
        let squares: f64 = points().map(|(x, y)| (y - intercept - slope * x).powi(2)).sum();
        let residual = (squares / (present as f64 - 2.0).max(1.0)).sqrt();
        let mut shape = Self {
            slope,
            residual,
            slope_error: if spread > 0.0 { residual / spread.sqrt() } else { 0.0 },
            ..Self::default()
        };
        let (mut pairs, mut rising, mut before) = (0.0, 0.0, None::<(f64, f64)>);
        for (at, floor) in points() {
            if let Some((earlier, before)) = before {
                // What rose while nobody watched rose over all that time: it counts as one part's share of it.
                let share = (window.part / (at - earlier)).min(1.0);
                let change: f64 = (floor - before) * share;
                pairs += 1.0;
                rising += f64::from(u8::from(change > 0.0));
                shape.rises += change.max(0.0);
                shape.falls += (-change).max(0.0);
                shape.largest = shape.largest.max(change);
            }
            before = Some((at, floor));
        }
        shape.rising = rising / f64::max(pairs, 1.0);
        let half = |from: usize, to: usize| {
            let (slope, _, _) = line(
                window
                    .sampled()
                    .filter(|(place, _)| (from..=to).contains(place))
                    .map(|(_, part)| (part.at, part.floor.max(explored))),
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
    pub(super) fn gain(&self, window: &Window) -> f64 {
        let half = window.length() / 2.0;
        (self.second_half - self.first_half) / (half * half)
    }

    /// A longer window takes the place of a shorter one where it is more exact and tells the same story.
    pub(super) fn improves_on(&self, kept: &Self) -> bool {
        let (own, other) = (self.slope_error / self.slope, kept.slope_error / kept.slope);
        let apart = (self.slope / kept.slope).ln().abs();
        let straight = (self.second_half / self.first_half.max(1.0)).clamp(0.01, 100.0).ln().abs() < 0.25;
        own < other && (other > 0.1 || (straight && apart < (2.0 * own.hypot(other)).max(0.1)))
    }

    /// Both envelopes rise, most parts above the one before, and no single step makes up the growth.
    pub(super) fn rises(&self, long: bool) -> bool {
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

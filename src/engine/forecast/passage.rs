//! From growth and room to the law of the time until the room is used up.
//!
//! Flows in: a rise as a function of time, and bytes left. Flows out: P(T <= h) and quantiles of T. The law is a mixture of
//! log-normals, one for each of five bends (the estimate and up to two standard errors to either side); a bend under which
//! the room is never used up carries its weight to "never" (a cure fraction, as in survival analysis).

/// The law of one passage time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Passage {
    /// Weight and logarithm of the median seconds; `None` for never.
    branches: [(f64, Option<f64>); SHIFTS.len()],
    /// Spread of ln T.
    spread: f64,
    /// P(the growth goes on as fitted).
    trust: f64,
    /// No say on what lies further ahead than this, in seconds.
    reach: f64,
}

/// Bend shifts in standard errors and their weights: the normal distribution in five steps.
const SHIFTS: [(f64, f64); 5] = [(0.0, 0.4), (-1.0, 0.25), (1.0, 0.25), (-2.0, 0.05), (2.0, 0.05)];

/// Farthest moment looked for: ten days.
const FAR: f64 = 864_000.0;

impl Passage {
    /// `rise(seconds, shift)` must not fall with time.
    pub(super) fn new(rise: impl Fn(f64, f64) -> f64, room: f64, spread: f64, trust: f64, reach: f64) -> Self {
        let branches =
            SHIFTS.map(|(shift, weight)| (weight, first_reach(|seconds| rise(seconds, shift), room).map(f64::ln)));
        Self { branches, spread: spread.max(0.02), trust: trust.clamp(0.0, 1.0), reach }
    }

    /// P(T <= h): in [0, 1] and never falling with `h`.
    pub(super) fn within(&self, seconds: f64) -> f64 {
        self.trust * self.share(seconds.min(self.reach))
    }

    /// The same, given that the growth goes on, and however far ahead.
    fn share(&self, seconds: f64) -> f64 {
        if seconds > 0.0 { self.share_at(seconds.ln()) } else { 0.0 }
    }

    fn share_at(&self, moment: f64) -> f64 {
        self.branches
            .iter()
            .filter_map(|&(weight, median)| Some((weight, median?)))
            .map(|(weight, median)| weight * normal((moment - median) / self.spread))
            .sum()
    }

    /// Seconds by which the share `quantile` of the passages that happen at all within a day has happened. `None` where most
    /// never do.
    pub(super) fn quantile(&self, quantile: f64) -> Option<f64> {
        const DAY: f64 = 86_400.0;
        let whole = self.share(DAY);
        if whole * self.trust < 0.5 {
            return None;
        }
        // Between the earliest and the latest branch, five spreads to either side; sixteen halvings leave less than a
        // thousandth of that.
        let medians = || self.branches.iter().filter_map(|(_, median)| *median);
        let mut low = medians().fold(f64::INFINITY, f64::min) - 5.0 * self.spread;
        let mut high = (medians().fold(f64::NEG_INFINITY, f64::max) + 5.0 * self.spread).min(DAY.ln()).max(low);
        for _ in 0..16 {
            let middle = 0.5 * (low + high);
            if self.share_at(middle) < quantile * whole {
                low = middle;
            } else {
                high = middle;
            }
        }
        Some(high.exp())
    }
}

/// When a never falling `rise` first reaches `room`.
fn first_reach(rise: impl Fn(f64) -> f64, room: f64) -> Option<f64> {
    if room <= 0.0 {
        return Some(1.0);
    }
    if rise(FAR) < room {
        return None;
    }
    // Doubling first: most passages are minutes away, not days.
    let mut high = 60.0_f64;
    while high < FAR && rise(high) < room {
        high *= 4.0;
    }
    let mut low = if high > 60.0 { high / 4.0 } else { 0.0 };
    for _ in 0..14 {
        let middle = 0.5 * (low + high);
        if rise(middle) < room {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(high.max(0.001))
}

/// The standard normal distribution function, after Abramowitz and Stegun 7.1.26: error below 2e-7.
pub(super) fn normal(z: f64) -> f64 {
    if z.abs() > 6.0 {
        return if z > 0.0 { 1.0 } else { 0.0 };
    }
    let x = z.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.3275911 * x);
    let series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    let tail = 0.5 * series * (-x * x).exp();
    if z >= 0.0 { 1.0 - tail } else { tail }
}

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
    /// Whether the first branch is the only one.
    single: bool,
    /// No say on what lies further ahead than this, in seconds.
    reach: f64,
}

/// Bend shifts in standard errors and their weights: the normal distribution in five steps.
const SHIFTS: [(f64, f64); 5] = [(0.0, 0.4), (-1.0, 0.25), (1.0, 0.25), (-2.0, 0.05), (2.0, 0.05)];

/// Farthest moment looked for: ten days.
const FAR: f64 = 864_000.0;

impl Passage {
    /// `rise(seconds, shift)` must not fall with time; where `shifts` is false it is the same for every shift.
    pub(super) fn new(
        rise: impl Fn(f64, f64) -> f64,
        shifts: bool,
        room: f64,
        spread: f64,
        trust: f64,
        reach: f64,
    ) -> Self {
        let at = |shift: f64| first_reach(|seconds| rise(seconds, shift), room).map(f64::ln);
        let branches = if shifts {
            SHIFTS.map(|(shift, weight)| (weight, at(shift)))
        } else {
            let mut branches = [(0.0, None); SHIFTS.len()];
            if let Some(first) = branches.first_mut() {
                *first = (1.0, at(0.0));
            }
            branches
        };
        Self { branches, spread: spread.max(0.02), trust: trust.clamp(0.0, 1.0), single: !shifts, reach }
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

    /// Seconds by which a tenth, half and nine tenths of the passages that happen at all within a day have happened. `None`
    /// where most never do.
    pub(super) fn quantiles(&self) -> Option<[f64; 3]> {
        const DAY: f64 = 86_400.0;
        let whole = self.share(DAY);
        if whole * self.trust < 0.5 {
            return None;
        }
        if let ([(_, Some(median)), ..], true) = (self.branches, self.single && whole > 0.9999) {
            return Some([-1.281_551_6, 0.0, 1.281_551_6].map(|z| (median + z * self.spread).exp()));
        }
        // Between the earliest and the latest branch, five spreads to either side; most often close to where a single
        // log-normal of the same mean and variance has it.
        let known = || self.branches.iter().filter_map(|&(weight, median)| Some((weight, median?)));
        let low = known().fold(f64::INFINITY, |low, (_, median)| low.min(median)) - 5.0 * self.spread;
        let high = known().fold(f64::NEG_INFINITY, |high, (_, median)| high.max(median)) + 5.0 * self.spread;
        let high = high.min(DAY.ln()).max(low);
        let weights = known().map(|(weight, _)| weight).sum::<f64>().max(1e-9);
        let mean = known().map(|(weight, median)| weight * median).sum::<f64>() / weights;
        let variance = known().map(|(weight, median)| weight * (median - mean).powi(2)).sum::<f64>() / weights;
        let spread = self.spread.hypot(variance.sqrt());
        Some([(0.1, -1.28), (0.5, 0.0), (0.9, 1.28)].map(|(quantile, z)| {
            let (from, to) = (mean + (z - 0.15) * spread, mean + (z + 0.15) * spread);
            let wanted = quantile * whole;
            let inside = from > low && to < high && self.share_at(from) < wanted && self.share_at(to) > wanted;
            let (low, high) = if inside { (from, to) } else { (low, high) };
            self.crossing(wanted, low, high).exp()
        }))
    }

    /// Where the share reaches `wanted`: false position after Illinois, which needs a third of what halving does.
    fn crossing(&self, wanted: f64, mut low: f64, mut high: f64) -> f64 {
        let (mut under, mut over) = (self.share_at(low) - wanted, self.share_at(high) - wanted);
        let mut side = 0;
        for _ in 0..24 {
            if high - low < 1e-4 * self.spread.max(0.1) || over <= under {
                break;
            }
            let middle = (high - over * (high - low) / (over - under)).clamp(low, high);
            let gap = self.share_at(middle) - wanted;
            if gap.abs() < 1e-5 {
                return middle;
            }
            if gap < 0.0 {
                (low, under) = (middle, gap);
                over *= if side < 0 { 0.5 } else { 1.0 };
                side = -1;
            } else {
                (high, over) = (middle, gap);
                under *= if side > 0 { 0.5 } else { 1.0 };
                side = 1;
            }
        }
        high
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
    // False position where the rise is smooth, halving where that shrinks the bracket too little: stairs jump.
    let (mut under, mut over, mut halve) = (rise(low) - room, rise(high) - room, false);
    for _ in 0..20 {
        if high - low <= 2e-4 * high {
            break;
        }
        let share = if halve { 0.5 } else { (-under / (over - under)).clamp(0.02, 0.98) };
        let (middle, width) = (low + share * (high - low), high - low);
        let gap = rise(middle) - room;
        if gap.abs() <= 1e-5 * room {
            return Some(middle.max(0.001));
        }
        if gap < 0.0 {
            (low, under) = (middle, gap);
        } else {
            (high, over) = (middle, gap);
        }
        halve = !halve && high - low > 0.5 * width;
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

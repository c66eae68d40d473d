//! What was fitted rather than reasoned: the base hazard, maps from raw to meant probabilities, and widths of intervals.
//!
//! Flows in: [`FITTED`], written by `cargo run --release -p gpumem-engine --example fit -- --gentd26 FILE` from the training
//! half of the corpus; nobody edits it by hand. Flows out: numbers that mean what they say. Maps are isotonic (Zadrozny and
//! Elkan), widths are split-conformal (Lei et al.).

mod data;

pub use data::FITTED;

/// Raw probabilities at which a map has its knots.
pub const KNOTS: [f64; 13] = [0.0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.85, 0.9, 0.94, 0.97, 1.0];

/// Shares of the question's horizon that have a map of their own.
pub const SHARES: [f64; 3] = [1.0 / 12.0, 0.25, 1.0];

/// Everything that was fitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Changes with every fit.
    pub version: u32,
    /// What it was fitted on, and the hash of it.
    pub inputs: &'static [(&'static str, &'static str)],
    /// The base hazard.
    pub hazard: HazardLaw,
    /// Meant probabilities at [`KNOTS`], for each of [`SHARES`].
    pub maps: [[f64; KNOTS.len()]; SHARES.len()],
    /// By how much the distance from the median to q10 and to q90 grows, in logarithms: for regular stairs, for straight
    /// growth, and for bent growth.
    pub widths: [(f64, f64); 3],
    /// Which parts of the predictor are in use.
    pub pieces: Pieces,
}

/// Parts of the predictor that can be left out, so that the benchmark can show what each earns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // Independent switches, not a state.
pub struct Pieces {
    /// The phase of regular stairs.
    pub stairs: bool,
    /// Growth that slows down.
    pub damping: bool,
    /// Growth that speeds up.
    pub acceleration: bool,
    /// Room left for the next excursion.
    pub excursions: bool,
    /// Less trust after falls.
    pub unrest: bool,
}

impl Pieces {
    /// Everything, as the controller uses it.
    pub const ALL: Self = Self { stairs: true, damping: true, acceleration: true, excursions: true, unrest: true };
}

/// P = most * record^power * exp(-room / (own * excess + swing * recent range + capacity * C)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HazardLaw {
    /// Highest probability.
    pub most: f64,
    /// Power of the record law.
    pub power: f64,
    /// Weight of the series' own mean excess.
    pub own: f64,
    /// Weight of the range it moved in lately.
    pub swing: f64,
    /// Weight of the capacity.
    pub capacity: f64,
}

/// Before any fit: maps that change nothing.
pub const IDENTITY: Calibration = Calibration {
    version: 0,
    inputs: &[],
    hazard: HazardLaw { most: 0.3, power: 1.0, own: 0.5, swing: 0.05, capacity: 0.01 },
    maps: [KNOTS; SHARES.len()],
    widths: [(1.0, 1.0); 3],
    pieces: Pieces::ALL,
};

impl Calibration {
    /// What a raw probability at `share` of the horizon means. Never falls with `raw`.
    pub fn meant(&self, raw: f64, share: f64) -> f64 {
        let [short, middle, long] = self.maps.each_ref().map(|map| along(map, raw));
        let position = |low: f64, high: f64| ((share / low).ln() / (high / low).ln()).clamp(0.0, 1.0);
        let [first, second, third] = SHARES;
        if share < second {
            short + (middle - short) * position(first, second)
        } else {
            middle + (long - middle) * position(second, third)
        }
    }
}

/// Piecewise linear between the knots.
fn along(map: &[f64; KNOTS.len()], raw: f64) -> f64 {
    let raw = raw.clamp(0.0, 1.0);
    let mut before = (0.0, map.first().copied().unwrap_or(0.0));
    for (knot, value) in KNOTS.into_iter().zip(map.iter().copied()) {
        if raw <= knot {
            let width = knot - before.0;
            return if width > 0.0 { before.1 + (value - before.1) * (raw - before.0) / width } else { value };
        }
        before = (knot, value);
    }
    before.1
}

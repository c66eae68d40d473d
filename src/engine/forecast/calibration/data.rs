//! Written by the `fit` example; see `forecast::calibration`. Do not edit.

use super::{Calibration, HazardLaw, Pieces};

/// The fit in use.
pub const FITTED: Calibration = Calibration {
    version: 6,
    inputs: &[("corpus", "fnv1a64:31dcb87020733538"), ("gentd26", "fnv1a64:44e4fb2734b49799")],
    hazard: HazardLaw { most: 0.45, power: 1.05, own: 0.00268, swing: 0.23625, capacity: 0.1176 },
    maps: [
        [0.0012, 0.0061, 0.0095, 0.0095, 0.0364, 0.2099, 0.3258, 0.7165, 0.7868, 0.8243, 0.8757, 0.9037, 1.0],
        [0.0012, 0.0091, 0.0354, 0.0354, 0.0354, 0.0762, 0.26, 0.692, 0.7802, 0.8182, 0.9012, 0.9341, 1.0],
        [0.0062, 0.0128, 0.0526, 0.123, 0.1938, 0.1938, 0.3586, 0.7304, 0.7914, 0.8323, 0.9268, 0.9569, 1.0],
    ],
    widths: [(1.17, 5.42), (1.39, 8.0), (2.11, 5.9)],
    pieces: Pieces::ALL,
};

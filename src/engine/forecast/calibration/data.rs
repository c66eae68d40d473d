//! Written by the `fit` example; see `forecast::calibration`. Do not edit.

use super::{Calibration, HazardLaw, Pieces};

/// The fit in use.
pub const FITTED: Calibration = Calibration {
    version: 5,
    inputs: &[("corpus", "fnv1a64:219429f525f3c1a9"), ("gentd26", "fnv1a64:44e4fb2734b49799")],
    hazard: HazardLaw { most: 0.45, power: 1.05, own: 0.00268, swing: 0.24806, capacity: 0.1176 },
    maps: [
        [0.0012, 0.006, 0.0094, 0.0094, 0.0363, 0.2099, 0.326, 0.7163, 0.7869, 0.8244, 0.8757, 0.9037, 1.0],
        [0.0011, 0.009, 0.0352, 0.0352, 0.0352, 0.0757, 0.2312, 0.6854, 0.7789, 0.8172, 0.9008, 0.9341, 1.0],
        [0.0062, 0.0127, 0.0519, 0.1231, 0.1924, 0.1924, 0.3487, 0.7259, 0.7913, 0.8322, 0.9265, 0.9568, 1.0],
    ],
    widths: [(1.17, 5.42), (1.39, 8.0), (2.11, 5.9)],
    pieces: Pieces::ALL,
};

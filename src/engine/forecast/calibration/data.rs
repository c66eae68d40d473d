//! Written by the `fit` example; see `forecast::calibration`. Do not edit.

use super::{Calibration, HazardLaw, Pieces};

/// The fit in use.
pub const FITTED: Calibration = Calibration {
    version: 7,
    inputs: &[("corpus", "fnv1a64:31dcb87020733538"), ("gentd26", "fnv1a64:44e4fb2734b49799")],
    hazard: HazardLaw { most: 0.45, power: 1.05, own: 0.00268, swing: 0.25875, capacity: 0.1176 },
    maps: [
        [0.0011, 0.0061, 0.0092, 0.0092, 0.0367, 0.2502, 0.4921, 0.6695, 0.731, 0.731, 0.731, 0.7345, 1.0],
        [0.0011, 0.009, 0.0348, 0.0348, 0.0348, 0.123, 0.4404, 0.5885, 0.616, 0.7345, 0.8494, 0.8818, 1.0],
        [0.0062, 0.0128, 0.0519, 0.1277, 0.1927, 0.1927, 0.4521, 0.8, 0.85, 0.9, 0.94, 0.97, 1.0],
    ],
    widths: [(0.79, 5.59), (1.34, 4.34), (2.2, 5.25)],
    pieces: Pieces::ALL,
};

//! Written by the `fit` example; see `forecast::calibration`. Do not edit.

use super::{Calibration, HazardLaw};

/// The fit in use.
pub const FITTED: Calibration = Calibration {
    version: 1,
    inputs: &[("corpus", "fnv1a64:219429f525f3c1a9"), ("gentd26", "fnv1a64:44e4fb2734b49799")],
    hazard: HazardLaw { most: 0.45, power: 1.05, own: 0.00268, swing: 0.24806, capacity: 0.1176 },
    maps: [
        [0.0012, 0.0058, 0.0085, 0.0085, 0.0323, 0.2058, 0.3257, 0.4364, 0.5151, 0.6423, 0.7022],
        [0.0011, 0.0089, 0.0325, 0.0325, 0.0325, 0.0667, 0.2101, 0.3457, 0.4822, 0.7547, 0.7896],
        [0.0058, 0.0126, 0.0515, 0.1151, 0.1648, 0.1648, 0.3093, 0.4626, 0.5771, 0.8445, 0.8704],
    ],
    widths: [(1.17, 5.42), (1.39, 8.0), (2.09, 5.85)],
};

//! Written by the `fit` example; see `forecast::calibration`. Do not edit.

use super::{Calibration, HazardLaw};

/// The fit in use.
pub const FITTED: Calibration = Calibration {
    version: 2,
    inputs: &[("corpus", "fnv1a64:219429f525f3c1a9"), ("gentd26", "fnv1a64:44e4fb2734b49799")],
    hazard: HazardLaw { most: 0.45, power: 1.05, own: 0.00268, swing: 0.24806, capacity: 0.1176 },
    maps: [
        [0.0012, 0.006, 0.0094, 0.0094, 0.0363, 0.21, 0.3258, 0.4364, 0.5206, 0.6875, 0.7571],
        [0.0011, 0.009, 0.0352, 0.0352, 0.0352, 0.0758, 0.2311, 0.3572, 0.5237, 0.8032, 0.8471],
        [0.0062, 0.0127, 0.0519, 0.123, 0.1924, 0.1924, 0.3512, 0.5152, 0.6263, 0.9017, 0.928],
    ],
    widths: [(1.17, 5.42), (1.39, 8.0), (2.09, 5.85)],
};

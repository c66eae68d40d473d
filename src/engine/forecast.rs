//! From a series to "will it run out, when, how sure, and why": pure, total functions of data and `now`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::quantity::{Bytes, BytesPerSecond, Moment};
use crate::series::Series;

pub mod calibration;
mod device;
#[cfg(test)]
mod gaps;
mod hazard;
mod passage;
mod past;
#[cfg(test)]
mod properties;
mod reason;
mod shape;
mod stairs;
#[cfg(test)]
mod tests;
mod trend;
mod watch;
mod window;

pub use hazard::Hazard;

/// What is asked of a series.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// How far ahead an OOM matters.
    pub horizon: Duration,
    /// What the container may fill: device or partition less what neighbours hold, or its declared share.
    pub capacity: Bytes,
    /// Known end of growth.
    pub declared_peak: Option<Bytes>,
    /// No forecast for a segment younger than this.
    pub warm_up: Duration,
    /// Fewer samples than this give no forecast.
    pub min_samples: u32,
    /// An older newest sample than this gives no forecast.
    pub max_sample_age: Duration,
}

/// The answer for one series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// What kind of trajectory this is.
    pub class: Class,
    /// Rate of lasting growth, when there is one.
    pub growth: Option<BytesPerSecond>,
    /// Will it run out?
    pub outlook: Outlook,
    /// Most by which the floor of what grows has fallen of late and stayed down for a fifth of the horizon: a leak gives
    /// nothing back. Zero where nothing grows.
    #[serde(default)]
    pub gave_back: Bytes,
    /// One sentence with the numbers used, for the person on call.
    pub reason: String,
}

/// Shape of a memory trajectory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Class {
    /// Started recently; growth means nothing yet.
    WarmUp,
    /// Flat.
    Plateau,
    /// Lasting growth of live memory.
    Leak,
    /// Growth of what the allocator holds, not of what is live.
    Fragmentation,
    /// Isolated high-water marks.
    Peak,
    /// Rises and falls with a period.
    Periodic,
    /// One jump to a preallocated pool, then constant: its inside is invisible.
    Pool,
    /// Dies of OOM at the same peak again and again.
    RestartLoop,
    /// Moves up and down with load.
    Load,
    /// Not enough is known.
    Unknown,
}

impl Class {
    /// How the forecast was made, for people who audit it.
    pub const fn regime(self) -> &'static str {
        match self {
            Self::WarmUp => "warming up",
            Self::Leak => "damped envelope",
            Self::Plateau | Self::Pool => "base hazard",
            Self::Fragmentation | Self::Peak => "record law",
            Self::Periodic => "periodic spikes",
            Self::RestartLoop => "restart loop",
            Self::Load => "mean reverting",
            Self::Unknown => "none",
        }
    }
}

/// Will it run out?
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outlook {
    /// Probabilities and time to OOM.
    Known {
        /// P(OOM within the question's horizon), in [0, 1].
        probability: f64,
        /// P(OOM) within 300, 900 and 3600 seconds, monotone.
        by_horizon: [(u32, f64); 3],
        /// Quantiles of the time to OOM; `None` when no OOM is expected.
        time_to_oom: Option<TimeToOom>,
    },
    /// No forecast, and why.
    Unknown {
        /// The reason, a closed set.
        why: Unknown,
    },
}

/// Quantiles of the time to OOM, given that it comes. `q10 <= q50 <= q90`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimeToOom {
    /// One in ten comes earlier.
    pub q10: Duration,
    /// The median.
    pub q50: Duration,
    /// One in ten comes later.
    pub q90: Duration,
}

/// Why there is no forecast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Unknown {
    /// The segment is younger than the warm-up.
    WarmingUp,
    /// Fewer samples than `min_samples`.
    TooFewSamples,
    /// The newest sample is older than `max_sample_age`.
    Stale,
    /// No sample at all.
    NoData,
    /// The device's capacity is not known.
    NoCapacity,
    /// Neighbours share the device and their share of it is not known.
    SharedUnknown,
    /// Growth is seen, but its samples do not agree enough to extrapolate.
    Inconclusive,
}

impl Unknown {
    /// Name for a metric label or a condition.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::WarmingUp => "warming_up",
            Self::TooFewSamples => "too_few_samples",
            Self::Stale => "stale",
            Self::NoData => "no_data",
            Self::NoCapacity => "no_capacity",
            Self::SharedUnknown => "shared_unknown",
            Self::Inconclusive => "inconclusive",
        }
    }
}

/// A container on a device, as [`forecast_device`] sees it.
#[derive(Clone, Debug)]
pub struct Tenant<'a> {
    /// Its series on this device.
    pub series: &'a Series,
    /// What is asked of it; `capacity` is replaced by what the device leaves it.
    pub question: Question,
}

/// Forecasts every container of one device together: neighbours' growth counts against the same capacity, the culprit is
/// named by its share of the growth, and a flat victim is never the one at risk.
///
/// `usable` is the device's memory less the driver's share, `unattributed` what is used but by nobody we know; `None` for
/// either gives `Unknown`. Answers come in the order of `tenants`.
pub fn forecast_device(
    now: Moment,
    usable: Option<Bytes>,
    unattributed: Option<Bytes>,
    tenants: &[Tenant<'_>],
) -> Vec<Forecast> {
    device::forecast(now, usable, unattributed, tenants, &calibration::FITTED)
}

/// The same with a calibration of your own: for fitting one.
pub fn forecast_device_with(
    now: Moment,
    usable: Option<Bytes>,
    unattributed: Option<Bytes>,
    tenants: &[Tenant<'_>],
    calibration: &calibration::Calibration,
) -> Vec<Forecast> {
    device::forecast(now, usable, unattributed, tenants, calibration)
}

/// What the base hazard of a series on a device of `capacity` is judged by: for fitting its law.
pub fn hazard(series: &Series, horizon: Duration, capacity: Bytes) -> Hazard {
    device::hazard(series, horizon.as_secs_f64().max(1.0), capacity.as_f64().max(1.0))
}

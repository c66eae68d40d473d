//! What may be said without a trend: the base hazard.
//!
//! Flows in: how long the series has lived and how much room is left. Flows out: P(a new record beyond the room within h).
//! For n exchangeable observations the next h set a new maximum with probability h / (n + h), whatever their distribution
//! (Rényi's record law); how far a record goes is taken as exponential. It never reaches the level at which anyone acts:
//! what a flat curve does next is not known, and saying so is the point.

use super::calibration::HazardLaw;

/// What the base hazard is judged by.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Hazard {
    /// Seconds of life observed.
    pub lived: f64,
    /// Bytes from the record to capacity less its margin; zero when inside the margin.
    pub room: f64,
    /// Mean excess of the series' own records in bytes; zero without any.
    pub excess: f64,
    /// Range it moved in lately, in bytes.
    pub swing: f64,
    /// Capacity in bytes.
    pub capacity: f64,
}

impl Hazard {
    /// P(within `seconds`): in [0, `law.most`] and never falling with time.
    pub fn within(&self, seconds: f64, law: &HazardLaw) -> f64 {
        self.sets_record(seconds, law) * self.beyond(law)
    }

    /// P(a new record within `seconds`).
    pub(super) fn sets_record(&self, seconds: f64, law: &HazardLaw) -> f64 {
        let seconds = seconds.max(0.0);
        law.most * (seconds / (self.lived + 60.0 + seconds)).powf(law.power)
    }

    /// P(a record goes beyond the room): the same for every horizon.
    pub(super) fn beyond(&self, law: &HazardLaw) -> f64 {
        let scale = law.own * self.excess + law.swing * self.swing + law.capacity * self.capacity;
        (-self.room.max(0.0) / scale.max(1.0)).exp()
    }
}

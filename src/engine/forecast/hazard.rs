//! What may be said without a trend: the base hazard.
//!
//! Flows in: how long the series has lived and how much room is left. Flows out: P(a new record beyond the room within h).
//! For n exchangeable observations the next h set a new maximum with probability h / (n + h), whatever their distribution
//! (Rényi's record law); how far a record goes is taken as exponential. It never reaches the level at which anyone acts:
//! what a flat curve does next is not known, and saying so is the point.

/// Highest probability a series without a trend is ever given.
const MOST: f64 = 0.3;

/// Mean excess of a record as a share of capacity where the series has set none.
const EXCESS: f64 = 0.03;

/// What the base hazard is judged by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Hazard {
    /// Seconds of life observed.
    pub(super) lived: f64,
    /// Bytes from the record to capacity less its margin; zero when inside the margin.
    pub(super) room: f64,
    /// Mean excess of the series' own records in bytes; zero without any.
    pub(super) excess: f64,
    /// Capacity in bytes.
    pub(super) capacity: f64,
}

impl Hazard {
    /// P(within `seconds`): in [0, [`MOST`]] and never falling with time.
    pub(super) fn within(&self, seconds: f64) -> f64 {
        let pooled = EXCESS * self.capacity;
        let excess = if self.excess > 0.0 { self.excess.clamp(0.2 * pooled, 2.0 * pooled) } else { pooled };
        let seconds = seconds.max(0.0);
        let record = seconds / (self.lived + 60.0 + seconds);
        MOST * record * (-self.room.max(0.0) / excess.max(1.0)).exp()
    }
}

//! One moment on the three clocks that a round of reconciling needs. Read once per round and passed down; nothing below
//! reads a clock, but for the time that passes while calls are made.

use std::time::{Duration, Instant};

use gpumem_engine::pacing::Stamp;
use gpumem_engine::quantity::Moment;

/// When a round began.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// On the wall clock, for records in API objects.
    pub stamp: Stamp,
    /// On this process's monotonic clock, for the fleet.
    pub instant: Instant,
    /// The same, on tokio's clock, which tests can stop.
    begun: tokio::time::Instant,
}

impl Now {
    /// Reads the clocks.
    pub fn read() -> Self {
        Self::at(Stamp(jiff::Timestamp::now().as_second()), Instant::now())
    }

    /// Made, not read.
    pub fn at(stamp: Stamp, instant: Instant) -> Self {
        Self { stamp, instant, begun: tokio::time::Instant::now() }
    }

    /// The wall clock as of this call: the round's moment and what passed since.
    pub fn later(&self) -> Stamp {
        self.stamp + self.begun.elapsed()
    }

    /// As a moment of the time line that began at `origin`.
    pub fn moment(&self, origin: Instant) -> Moment {
        Moment::default() + self.instant.saturating_duration_since(origin)
    }

    /// The wall clock when the monotonic one showed `then`, which is in the past.
    pub fn stamp_of(&self, then: Instant) -> Stamp {
        let ago: Duration = self.instant.saturating_duration_since(then);
        Stamp(self.stamp.0.saturating_sub(i64::try_from(ago.as_secs()).unwrap_or(i64::MAX)))
    }
}

/// A stamp as RFC 3339, as API objects hold it.
pub fn rfc3339(stamp: Stamp) -> String {
    jiff::Timestamp::from_second(stamp.0).unwrap_or_default().to_string()
}

/// Reads RFC 3339; `None` for anything else.
pub fn parse_rfc3339(text: &str) -> Option<Stamp> {
    text.parse::<jiff::Timestamp>().ok().map(|time| Stamp(time.as_second()))
}

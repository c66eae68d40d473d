//! What blocks cannot tell, because it reaches back to the start of a segment: lives, records, resets, earlier attempts.

use serde::{Deserialize, Serialize};

use super::{Attempt, Point};
use crate::quantity::{Bytes, Moment};

/// Earlier runs remembered.
pub(super) const ATTEMPTS: usize = 4;

/// A fall below this share of the peak is no cache given back: the process is gone.
pub(super) const NEW_LIFE: f64 = 0.02;

/// A fall below this share of the peak is a reset: afterwards only levels above the old peak are new.
pub(super) const RESET: f64 = 0.5;

/// A new maximum by less than this share of the old one is jitter, not a record.
const RECORD: f64 = 0.002;

/// What blocks cannot tell: it reaches back to the start of the segment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct State {
    /// Start of the current life within the segment.
    pub(super) born: Moment,
    /// Highest `used` of the current life.
    pub(super) peak: Bytes,
    /// Highest `used` since the last reset, and the peak before it.
    pub(super) since_reset: Bytes,
    pub(super) before_reset: Bytes,
    /// When the last record was set, how many there were, and their mean excess.
    pub(super) record_at: Moment,
    pub(super) records: u32,
    pub(super) excess: Bytes,
    /// Typical distance of samples in milliseconds; zero while unknown.
    pub(super) interval: u32,
    /// A reading of next to nothing, until the next one confirms it.
    pub(super) doubt: Option<Point>,
    /// Points that came too late or twice.
    pub(super) refused: u32,
    pub(super) attempts: Vec<Attempt>,
}

impl State {
    /// Attempts outlive the life that made them; everything else starts anew.
    pub(super) fn reborn(&self, ended: Option<Moment>, born: Moment) -> Self {
        let mut attempts = self.attempts.clone();
        if let Some(ended) = ended {
            if attempts.len() >= ATTEMPTS {
                attempts.remove(0);
            }
            let seconds = u32::try_from(ended.since(self.born).as_secs()).unwrap_or(u32::MAX);
            attempts.push(Attempt { peak: self.peak, seconds });
            attempts.shrink_to_fit();
        }
        Self { born, record_at: born, interval: self.interval, attempts, ..Self::default() }
    }

    pub(super) fn take(&mut self, point: Point) {
        if self.peak == Bytes::ZERO {
            // A life begins with its first byte: idle readings before it are no warm-up.
            self.born = point.at;
        }
        if self.peak == Bytes::ZERO || point.used.as_f64() > self.peak.as_f64() * (1.0 + RECORD) {
            let excess = (point.used - self.peak).as_f64();
            let mean = self.excess.as_f64();
            // The first reading is no record: it has nothing to exceed.
            if self.peak > Bytes::ZERO {
                self.records = self.records.saturating_add(1);
                self.excess = Bytes::from_f64(mean + (excess - mean) / f64::from(self.records.min(8)));
            }
            self.record_at = point.at;
        }
        self.peak = self.peak.max(point.used);
        if point.used.as_f64() < RESET * self.since_reset.as_f64() {
            self.before_reset = self.before_reset.max(self.since_reset);
            self.since_reset = point.used;
        }
        self.since_reset = self.since_reset.max(point.used);
    }

    /// Follows the usual distance quickly and a gap hardly at all.
    pub(super) fn measure_interval(&mut self, passed: f64) {
        let usual = f64::from(self.interval);
        let usual = if usual <= 0.0 {
            passed
        } else if passed < 3.0 * usual {
            usual + 0.1 * (passed - usual)
        } else {
            usual * 1.05
        };
        self.interval = usual.ceil() as u32;
    }
}

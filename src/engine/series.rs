//! One container's memory on one device over time, bounded in size, O(1) per sample.
//!
//! Flows in: points in time order. Flows out: the state every forecast reads. A gap stays a gap, a late point is counted
//! and left out, a new container instance starts a new segment; nothing is interpolated.
//!
//! Blocks have fixed durations, not fixed numbers of samples, so that a series sampled once a second and one sampled once
//! a minute describe the same curve by the same blocks.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::quantity::{Bytes, Moment};

mod ring;
mod state;
#[cfg(test)]
mod tests;

use state::{ATTEMPTS, NEW_LIFE, RESET, State};

pub use ring::{Block, Ring};

/// Which run of the container a point belongs to: changes with the container id, the pod or the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Segment(pub u64);

/// One sample of one container on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// When it was taken.
    pub at: Moment,
    /// Memory of all processes of the container on the device.
    pub used: Bytes,
    /// What the framework's allocator says, where the container carries the hook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocator: Option<AllocatorPoint>,
}

/// What a caching allocator says of itself: `allocated <= reserved`, and `reserved` is what the driver counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatorPoint {
    /// Live tensors.
    pub allocated: Bytes,
    /// Live tensors and cached blocks.
    pub reserved: Bytes,
}

/// What became of a pushed point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// Taken.
    Appended,
    /// Taken as the first of a new segment.
    NewSegment,
    /// Not taken: same moment as the newest.
    Duplicate,
    /// Not taken: older than the newest.
    Late,
}

/// How an earlier run of the same container on the same device ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Highest `used` it reached.
    pub peak: Bytes,
    /// How long it ran, in seconds.
    pub seconds: u32,
}

/// Points kept as they came, for `/v1/usage` deltas: forty seconds at 1 Hz, eight pulls of the controller.
pub const RAW_POINTS: usize = 40;

/// Duration in seconds and number of the blocks kept: a minute and a half in detail, a day in outline.
pub const SCALES: [(u32, usize); 5] = [(2, 48), (10, 48), (60, 48), (600, 36), (3600, 24)];

/// The bounded state of one series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    segment: Option<Segment>,
    started: Option<Moment>,
    raw: VecDeque<Point>,
    samples: u64,
    peak: Bytes,
    state: State,
    rings: [Ring; SCALES.len()],
}

impl Series {
    /// Takes a point, or says why not. A segment other than the current one starts the series anew.
    pub fn push(&mut self, segment: Segment, point: Point) -> Pushed {
        let newest = self.raw.back().copied().filter(|_| self.segment == Some(segment));
        if let Some(newest) = newest {
            if point.at <= newest.at {
                self.state.refused = self.state.refused.saturating_add(1);
                return if point.at == newest.at { Pushed::Duplicate } else { Pushed::Late };
            }
            self.state.measure_interval(point.at.since(newest.at).as_millis() as f64);
        }
        let outcome = if self.segment == Some(segment) { Pushed::Appended } else { Pushed::NewSegment };
        if outcome == Pushed::NewSegment {
            let state = self.state.reborn(self.raw.back().map(|last| last.at), point.at);
            *self = Self { segment: Some(segment), started: Some(point.at), state, ..Self::default() };
        }
        if self.raw.len() >= RAW_POINTS {
            self.raw.pop_front();
        } else if self.raw.len() == self.raw.capacity() {
            self.raw.reserve_exact(RAW_POINTS - self.raw.len());
        }
        self.raw.push_back(point);
        self.samples += 1;
        self.peak = self.peak.max(point.used);
        self.settle(point);
        outcome
    }

    /// A reading of next to nothing is believed when the next one confirms it: the process is gone then, and what comes is
    /// a new life. Alone it is a glitch of the counter, and neither blocks nor records hear of it.
    fn settle(&mut self, point: Point) {
        let doubt = self.state.doubt.take();
        let gone = point.used.as_f64() < NEW_LIFE * self.state.peak.as_f64();
        match doubt {
            None if gone => {
                self.state.doubt = Some(point);
                return;
            }
            Some(doubt) if gone || point.used.as_f64() < RESET * self.state.peak.as_f64() => {
                self.state = self.state.reborn(Some(doubt.at), point.at);
                self.rings = Default::default();
            }
            Some(_) | None => {}
        }
        self.state.take(point);
        for (ring, (seconds, limit)) in self.rings.iter_mut().zip(SCALES) {
            ring.push(seconds, limit, point);
        }
    }

    /// The newest point.
    pub fn latest(&self) -> Option<Point> {
        self.raw.back().copied()
    }

    /// The raw points later than `since`, oldest first; all of them for `None`.
    pub fn points_since(&self, since: Option<Moment>) -> impl Iterator<Item = Point> + '_ {
        self.raw.iter().copied().filter(move |point| since.is_none_or(|since| point.at > since))
    }

    /// The oldest moment the raw ring still holds.
    pub fn raw_from(&self) -> Option<Moment> {
        self.raw.front().map(|point| point.at)
    }

    /// The current segment.
    pub fn segment(&self) -> Option<Segment> {
        self.segment
    }

    /// When the current segment's first point was taken.
    pub fn started(&self) -> Option<Moment> {
        self.started
    }

    /// Points taken in the current segment.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Highest `used` of the current segment.
    pub fn peak(&self) -> Bytes {
        self.peak
    }

    /// When the current life began: the segment's start, or the last time memory fell to nearly nothing.
    pub fn born(&self) -> Moment {
        self.state.born
    }

    /// Blocks of the scale with this place in [`SCALES`].
    pub fn ring(&self, scale: usize) -> Option<&Ring> {
        self.rings.get(scale)
    }

    /// Peak before the last reset of the current life; zero without one. Levels below it were survived already.
    pub fn survived(&self) -> Bytes {
        self.state.before_reset
    }

    /// Highest `used` of the current life.
    pub fn record(&self) -> Bytes {
        self.state.peak
    }

    /// When the current life's last record was set.
    pub fn record_at(&self) -> Moment {
        self.state.record_at
    }

    /// Mean excess of a record over the one before; zero without records.
    pub fn record_excess(&self) -> Bytes {
        self.state.excess
    }

    /// Typical distance of samples in seconds; zero while fewer than two points came.
    pub fn interval(&self) -> f64 {
        f64::from(self.state.interval) / 1000.0
    }

    /// Points refused as late or duplicate in the current segment.
    pub fn refused(&self) -> u32 {
        self.state.refused
    }

    /// Earlier runs, oldest first.
    pub fn attempts(&self) -> &[Attempt] {
        &self.state.attempts
    }

    /// Bytes this series takes in memory, heap included.
    pub fn footprint(&self) -> usize {
        size_of::<Self>()
            + self.raw.capacity() * size_of::<Point>()
            + self.rings.iter().map(Ring::footprint).sum::<usize>()
            + self.state.attempts.capacity() * size_of::<Attempt>()
    }

    /// Cuts what a careless or hostile sender made too long; the receiver of a series calls it once.
    pub fn bounded(mut self) -> Self {
        while self.raw.len() > RAW_POINTS {
            self.raw.pop_front();
        }
        for (ring, (_, limit)) in self.rings.iter_mut().zip(SCALES) {
            ring.truncate_to(limit);
        }
        self.state.attempts.truncate(ATTEMPTS);
        self
    }
}

//! One container's memory on one device over time, bounded in size, O(1) per sample.
//!
//! Flows in: points in time order. Flows out: the state every forecast reads. A gap stays a gap, a late point is counted
//! and left out, a new container instance starts a new segment; nothing is interpolated.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::quantity::{Bytes, Moment};

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

/// The bounded state of one series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    segment: Option<Segment>,
    started: Option<Moment>,
    raw: VecDeque<Point>,
    samples: u64,
    peak: Bytes,
}

/// Points kept as they came, for `/v1/usage` deltas and short windows: two minutes at 1 Hz.
pub const RAW_POINTS: usize = 120;

impl Series {
    /// Takes a point, or says why not. A segment other than the current one starts the series anew.
    pub fn push(&mut self, segment: Segment, point: Point) -> Pushed {
        if let Some(newest) = self.raw.back().filter(|_| self.segment == Some(segment)) {
            if point.at == newest.at {
                return Pushed::Duplicate;
            }
            if point.at < newest.at {
                return Pushed::Late;
            }
        }
        let outcome = if self.segment == Some(segment) { Pushed::Appended } else { Pushed::NewSegment };
        if outcome == Pushed::NewSegment {
            *self = Self { segment: Some(segment), started: Some(point.at), ..Self::default() };
        }
        if self.raw.len() == RAW_POINTS {
            self.raw.pop_front();
        }
        self.raw.push_back(point);
        self.samples += 1;
        self.peak = self.peak.max(point.used);
        outcome
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
}

//! What of a series was watched: how windows step over gaps, and from when on a part of one was seen.
//!
//! Flows in: blocks, which have no moments within them. Flows out: where a window begins and its parts do. An agent that
//! restarts misses samples, the leak it watches misses nothing: without this the first floor after a gap looks like a step,
//! and the line it belongs to like one that bends.

use crate::series::{Ring, SCALES, Series};

/// So many intervals without a sample are a gap.
const GAP: f64 = 3.0;

/// A window steps over gaps of so many times its own length, and no more: two glimpses far apart are no trend.
const MOST: u32 = 2;

/// How the blocks of one scale were watched.
#[derive(Clone, Copy)]
pub(super) struct Watch<'a> {
    pub(super) series: &'a Series,
    pub(super) scale: usize,
    /// Of a block.
    pub(super) seconds: u32,
    /// Seconds between samples.
    pub(super) interval: f64,
}

/// How far a window reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reach {
    /// Number of its oldest stretch.
    pub(super) oldest: u32,
    /// So many blocks missing in a row are stepped over.
    pub(super) gap: u32,
}

/// The first block of a part that has samples.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct First {
    /// Its number.
    pub(super) block: u32,
    /// Samples in it.
    pub(super) samples: u16,
    /// Whether a gap ends in it.
    pub(super) after_gap: bool,
}

impl Watch<'_> {
    /// Where a window of so many `blocks` up to `end` begins, when it steps over gaps.
    pub(super) fn reach(&self, ring: &Ring, end: u32, blocks: u32) -> Option<Reach> {
        let plain = Reach { oldest: end.checked_sub(blocks)?, gap: u32::MAX };
        if ring.since(plain.oldest) == blocks as usize {
            return Some(plain);
        }
        let gap = ((GAP * self.interval / f64::from(self.seconds)).ceil() as u32).max(1);
        let (mut newer, mut skipped) = (end, 0);
        for block in ring.iter().rev() {
            let missing = newer - block.index - 1;
            if newer + skipped <= plain.oldest {
                break;
            }
            if missing >= gap {
                skipped += missing;
            }
            newer = block.index;
        }
        if skipped > MOST * blocks {
            return Some(plain);
        }
        Some(Reach { oldest: plain.oldest.checked_sub(skipped)?, gap })
    }

    /// From when on a part was watched that should begin with block `begins`, in seconds on the node's time line; `None`
    /// where that cannot be told. `end` is the block after the newest.
    pub(super) fn began(&self, first: First, begins: u32, end: u32) -> Option<f64> {
        let seconds = f64::from(self.seconds);
        let start = f64::from(first.block) * seconds;
        let lag = f64::from(first.block - begins) * seconds;
        let at = if lag > self.interval { start } else { start - lag };
        let newest = self.series.latest().filter(|_| first.block + 1 == end).map(|latest| latest.at.0 as f64 / 1000.0);
        let length = newest.map_or(seconds, |newest| newest - start + self.interval);
        let missed = (length - f64::from(first.samples) * self.interval).max(0.0);
        if first.after_gap {
            // The gap took the beginning of this block.
            return Some(at + missed);
        }
        if missed <= (1.5 * self.interval).max(0.1 * seconds) {
            return Some(at);
        }
        let (earliest, latest) = self.first_seen(start)?;
        Some(start + missed.clamp(earliest - start, latest - start))
    }

    /// Samples of a block of which none was missed. Zero where there are not enough to tell.
    pub(super) fn full(&self) -> u16 {
        (f64::from(self.seconds) / self.interval - 0.75).ceil() as u16
    }

    /// Between which moments the first sample at or after `start` was taken, as points and finer blocks tell it; `None` where
    /// they do not reach back.
    fn first_seen(&self, start: f64) -> Option<(f64, f64)> {
        let raw = || self.series.points_since(None).map(|point| point.at.0 as f64 / 1000.0);
        if raw().next().is_some_and(|oldest| oldest <= start) {
            // In other blocks the first sample is up to an interval late as well: only what goes beyond that counts.
            return raw().find(|at| *at >= start).map(|at| ((at - self.interval).max(start), at));
        }
        SCALES.iter().enumerate().take(self.scale).find_map(|(scale, (seconds, _))| {
            let seconds = f64::from(*seconds);
            let mut starts = self.series.ring(scale)?.iter().map(|block| f64::from(block.index) * seconds);
            let reaches = starts.clone().next()? <= start;
            if reaches { starts.find(|at| *at >= start).map(|at| (at, at + seconds)) } else { None }
        })
    }
}

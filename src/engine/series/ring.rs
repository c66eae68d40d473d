//! Blocks: what a stretch of fixed duration is remembered by, and rings of them.
//!
//! Flows in: one reading at a time. Flows out: floor, ceiling and last of each stretch that had samples. A stretch
//! without samples has no block, so a gap stays visible and nothing is interpolated.

use std::collections::VecDeque;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::Point;
use crate::quantity::{Bytes, Moment};

/// Floor, ceiling and last reading of one stretch of time, in KiB: 28 bytes, so that hours fit into a page or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Number of the stretch: its start divided by its duration.
    pub index: u32,
    /// Samples in it.
    pub samples: u16,
    /// Samples in it that carried allocator data.
    pub live_samples: u16,
    /// Lowest `used`.
    pub floor: u32,
    /// Highest `used`.
    pub ceiling: u32,
    /// Newest `used`.
    pub last: u32,
    /// Lowest `allocated`; meaningless while `live_samples` is zero.
    pub live_floor: u32,
    /// Highest `allocated`; meaningless while `live_samples` is zero.
    pub live_ceiling: u32,
}

/// KiB, saturating at 4 TiB: no device comes near.
fn kib(bytes: Bytes) -> u32 {
    u32::try_from(bytes.0 >> 10).unwrap_or(u32::MAX)
}

impl Block {
    fn first(index: u32, point: Point) -> Self {
        let used = kib(point.used);
        let live = point.allocator.map(|allocator| kib(allocator.allocated));
        Self {
            index,
            samples: 1,
            live_samples: u16::from(live.is_some()),
            floor: used,
            ceiling: used,
            last: used,
            live_floor: live.unwrap_or(0),
            live_ceiling: live.unwrap_or(0),
        }
    }

    fn add(&mut self, point: Point) {
        let used = kib(point.used);
        self.samples = self.samples.saturating_add(1);
        self.floor = self.floor.min(used);
        self.ceiling = self.ceiling.max(used);
        self.last = used;
        if let Some(allocator) = point.allocator {
            let live = kib(allocator.allocated);
            self.live_floor = if self.live_samples == 0 { live } else { self.live_floor.min(live) };
            self.live_ceiling = self.live_ceiling.max(live);
            self.live_samples = self.live_samples.saturating_add(1);
        }
    }
}

/// The newest blocks of one duration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ring {
    blocks: VecDeque<Block>,
}

impl Ring {
    /// Takes a reading into the block of its moment. Moments come in order: [`super::Series::push`] sees to it.
    pub(super) fn push(&mut self, seconds: u32, limit: usize, point: Point) {
        let index = index_of(point.at, seconds);
        if let Some(newest) = self.blocks.back_mut().filter(|newest| newest.index >= index) {
            newest.add(point);
            return;
        }
        if self.blocks.len() >= limit {
            self.blocks.pop_front();
        } else if self.blocks.len() == self.blocks.capacity() {
            // Exact, because doubling would break the promise of bytes per series.
            self.blocks.reserve_exact(limit - self.blocks.len());
        }
        self.blocks.push_back(Block::first(index, point));
    }

    /// Oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Block> + Clone + '_ {
        self.blocks.iter()
    }

    /// The newest block.
    pub fn newest(&self) -> Option<&Block> {
        self.blocks.back()
    }

    /// How many blocks end before the stretch numbered `index` begins.
    pub fn until(&self, index: u32) -> usize {
        self.blocks.partition_point(|block| block.index < index)
    }

    /// How many blocks there are from the stretch numbered `index` on.
    pub fn since(&self, index: u32) -> usize {
        self.blocks.len() - self.until(index)
    }

    pub(super) fn footprint(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>()
    }

    pub(super) fn truncate_to(&mut self, limit: usize) {
        while self.blocks.len() > limit {
            self.blocks.pop_front();
        }
    }
}

/// Number of the stretch of `seconds` that `at` falls into.
pub(super) fn index_of(at: Moment, seconds: u32) -> u32 {
    u32::try_from(at.0 / (u64::from(seconds.max(1)) * 1000)).unwrap_or(u32::MAX)
}

// On the wire a block is a short list of differences: [gap, samples, floor, ceiling - floor, last - floor] and, with
// allocator data, [.., live_samples, live_floor, live_ceiling - live_floor].
impl Serialize for Ring {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut before = 0;
        serializer.collect_seq(self.blocks.iter().map(|block| {
            let gap = block.index - before;
            before = block.index;
            let mut row = vec![
                gap,
                u32::from(block.samples),
                block.floor,
                block.ceiling - block.floor,
                block.last.saturating_sub(block.floor),
            ];
            if block.live_samples > 0 {
                row.push(u32::from(block.live_samples));
                row.push(block.live_floor);
                row.push(block.live_ceiling - block.live_floor);
            }
            row
        }))
    }
}

impl<'de> Deserialize<'de> for Ring {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let rows = Vec::<Vec<u32>>::deserialize(deserializer)?;
        let mut blocks = VecDeque::with_capacity(rows.len());
        let mut index = 0_u32;
        for (number, row) in rows.iter().enumerate() {
            let (gap, samples, floor, rise, last, live) = match row.as_slice() {
                [gap, samples, floor, rise, last] => (*gap, *samples, *floor, *rise, *last, (0, 0, 0)),
                [gap, samples, floor, rise, last, count, low, more] => {
                    (*gap, *samples, *floor, *rise, *last, (*count, *low, *more))
                }
                _ => return Err(D::Error::custom("a block has 5 or 8 numbers")),
            };
            if number > 0 && gap == 0 {
                return Err(D::Error::custom("blocks are not in order"));
            }
            index = index.checked_add(gap).ok_or_else(|| D::Error::custom("block number out of range"))?;
            blocks.push_back(Block {
                index,
                samples: u16::try_from(samples).unwrap_or(u16::MAX),
                live_samples: u16::try_from(live.0).unwrap_or(u16::MAX),
                floor,
                ceiling: floor.saturating_add(rise),
                last: floor.saturating_add(last),
                live_floor: live.1,
                live_ceiling: live.1.saturating_add(live.2),
            });
        }
        Ok(Self { blocks })
    }
}

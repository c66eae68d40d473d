//! A stretch of a series cut into equal parts, and whether it rises: the evidence every trend rests on.
//!
//! Flows in: blocks. Flows out: floors and ceilings of up to eight parts, oldest first, and what can be said of them
//! without a model. Two envelopes are kept because a spike moves only the ceiling and a cache that is given back only the
//! floor; lasting growth moves both.

use super::watch::{First, Reach, Watch};
use crate::series::{Block, Ring, SCALES, Series};

/// Most parts a window is cut into.
pub(super) const PARTS: usize = 8;

/// Parts and blocks per part: with [`SCALES`], windows from sixteen seconds to a day.
const CUTS: [(usize, u32); 5] = [(8, 1), (6, 2), (8, 2), (8, 3), (8, 6)];

/// Which reading of a block is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// What the driver says is used.
    Used,
    /// What the container's allocator says is live.
    Live,
}

/// Samples, floor and ceiling of a block in KiB, as `signal` has them.
pub(super) fn reading(block: &Block, signal: Signal) -> (u16, u32, u32) {
    match signal {
        Signal::Used => (block.samples, block.floor, block.ceiling),
        Signal::Live => (block.live_samples, block.live_floor, block.live_ceiling),
    }
}

/// One part of a window, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Part {
    /// Zero where nobody can tell from when on it was watched: its floor then says nothing.
    pub(super) samples: u32,
    /// From when on it was watched, in seconds since the window's start.
    pub(super) at: f64,
    pub(super) floor: f64,
    pub(super) ceiling: f64,
}

/// A window with all its parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Window {
    /// Where it begins, in seconds on the node's time line.
    pub(super) start: f64,
    /// Seconds per part.
    pub(super) part: f64,
    parts: [Part; PARTS],
    /// How many of them are in use.
    count: usize,
    /// Largest rise of the floor from one block to the next, in bytes.
    pub(super) jump: f64,
    /// By how many seconds parts may have begun later than they say: samples are missing.
    pub(super) blur: f64,
}

/// Which blocks make up a window.
#[derive(Clone, Copy)]
struct Span {
    scale: usize,
    seconds: u32,
    count: usize,
    width: u32,
}

/// The spans from `shortest` to `longest` seconds that are sampled well enough, shortest of each scale first.
fn spans(series: &Series, shortest: f64, longest: f64) -> impl DoubleEndedIterator<Item = Span> + use<> {
    let interval = series.interval().max(0.001);
    SCALES.iter().enumerate().flat_map(move |(scale, &(seconds, limit))| {
        CUTS.iter().filter_map(move |&(count, width)| {
            let part = f64::from(seconds) * f64::from(width);
            let length = part * count as f64;
            // Longer windows of a fine scale repeat what the next scale says with fewer blocks.
            let fits = count as u32 * width <= limit as u32;
            let sampled = part >= 2.0 * interval;
            (fits && sampled && length >= shortest && length <= longest).then_some(Span {
                scale,
                seconds,
                count,
                width,
            })
        })
    })
}

/// Every window of the series that is full, shortest first, from `shortest` to `longest` seconds.
pub(super) fn windows(
    series: &Series,
    signal: Signal,
    shortest: f64,
    longest: f64,
    from: f64,
) -> impl DoubleEndedIterator<Item = Window> + '_ {
    spans(series, shortest, longest).filter_map(move |span| Window::cut(series, signal, span, from, false))
}

/// Those that end above where they began: what does not needs no closer look, nor to be cut.
pub(super) fn risen(
    series: &Series,
    signal: Signal,
    shortest: f64,
    longest: f64,
    from: f64,
) -> impl Iterator<Item = Window> + '_ {
    spans(series, shortest, longest)
        .filter_map(move |span| Window::cut(series, signal, span, from, true))
        .filter(Window::rose)
}

/// Floor of the blocks numbered `from` and later, fewer than `width` of them; `None` where nothing was sampled.
fn floor_from(ring: &Ring, signal: Signal, from: u32, width: u32) -> Option<u32> {
    let blocks = ring.iter().skip(ring.until(from)).take_while(|block| block.index - from < width);
    blocks.map(|block| reading(block, signal)).filter(|(samples, ..)| *samples > 0).map(|(_, floor, _)| floor).min()
}

impl Window {
    /// `risen` gives up early on what surely did not rise.
    fn cut(series: &Series, signal: Signal, span: Span, from: f64, risen: bool) -> Option<Self> {
        let Span { scale, seconds, count, width } = span;
        let ring = series.ring(scale)?;
        let end = ring.newest()?.index.checked_add(1)?;
        let watch = Watch { series, scale, seconds, interval: series.interval().max(0.001) };
        let Reach { oldest, gap } = watch.reach(ring, end, width * count as u32)?;
        if f64::from(oldest) * f64::from(seconds) < from {
            return None;
        }
        if risen {
            let ends = floor_from(ring, signal, oldest, width).zip(floor_from(ring, signal, end - width, width));
            if ends.is_some_and(|(first, last)| first >= last) {
                return None;
            }
        }
        // In KiB and without a division per block: this loop is most of what an evaluation costs.
        let (mut counts, mut floors, mut ceilings) = ([0_u32; PARTS], [u32::MAX; PARTS], [0_u32; PARTS]);
        let mut firsts = [(First::default(), 0_u32); PARTS];
        let (mut jump, mut before) = (0_u32, 0_u32);
        let (mut place, mut begins) = (count.checked_sub(1)?, end - width);
        let (full, mut is_blurred) = (watch.full(), false);
        let mut newer = end;
        for block in ring.iter().rev().take_while(|block| block.index >= oldest) {
            let missing = newer - block.index - 1;
            is_blurred |= (block.samples < full && newer != end) || (missing > 0 && full > 0);
            newer = block.index;
            let (samples, floor, ceiling) = reading(block, signal);
            let is_gap = missing >= gap;
            if is_gap {
                // Nobody watched: the window goes on where somebody did.
                begins = begins.checked_sub(missing)?;
                if let Some((first, _)) = firsts.get_mut(place) {
                    first.after_gap = true;
                }
            }
            if samples == 0 {
                continue;
            }
            jump = jump.max(before.saturating_sub(floor) / if is_gap { missing + 1 } else { 1 });
            before = floor;
            while block.index < begins {
                place = place.checked_sub(1)?;
                begins -= width;
            }
            *counts.get_mut(place)? += u32::from(samples);
            let (low, high) = (floors.get_mut(place)?, ceilings.get_mut(place)?);
            *low = (*low).min(floor);
            *high = (*high).max(ceiling);
            *firsts.get_mut(place)? = (First { block: block.index, samples: block.samples, after_gap: false }, begins);
        }
        let bytes = |kib: u32| f64::from(kib) * 1024.0;
        let start = f64::from(oldest) * f64::from(seconds);
        let mut parts = [Part::default(); PARTS];
        let read = counts.into_iter().zip(firsts).zip(floors.into_iter().zip(ceilings));
        for (part, ((samples, (first, begins)), (floor, ceiling))) in parts.iter_mut().zip(read) {
            if samples > 0 {
                let at = watch.began(first, begins, end);
                let samples = if at.is_some() { samples } else { 0 };
                let at = at.unwrap_or_default() - start;
                *part = Part { samples, at, floor: bytes(floor), ceiling: bytes(ceiling) };
            }
        }
        let part = f64::from(seconds) * f64::from(width);
        let blur = if is_blurred { watch.interval } else { 0.0 };
        Some(Self { start, part, parts, count, jump: bytes(jump), blur })
    }

    /// Seconds watched, from the oldest to the newest part's end; gaps come on top.
    pub(super) fn length(&self) -> f64 {
        self.part * self.count as f64
    }

    /// Oldest first; a part nobody sampled has no samples.
    pub(super) fn parts(&self) -> &[Part] {
        self.parts.get(..self.count).unwrap_or_default()
    }

    /// Place and part of those that were sampled, oldest first.
    pub(super) fn sampled(&self) -> impl DoubleEndedIterator<Item = (usize, Part)> + Clone + '_ {
        self.parts().iter().copied().enumerate().filter(|(_, part)| part.samples > 0)
    }

    /// Highest reading of the window.
    pub(super) fn top(&self) -> f64 {
        self.parts().iter().fold(0.0, |top, part| top.max(part.ceiling))
    }

    /// Floor of the newest part.
    pub(super) fn floor_now(&self) -> f64 {
        self.sampled().last().map_or(0.0, |(_, part)| part.floor)
    }

    /// Lowest floor.
    pub(super) fn lowest(&self) -> f64 {
        self.sampled().fold(f64::INFINITY, |lowest, (_, part)| lowest.min(part.floor))
    }

    /// Whether it ends above where it began: what does not needs no closer look.
    pub(super) fn rose(&self) -> bool {
        self.sampled().next().is_some_and(|(_, part)| part.floor < self.floor_now())
    }

    /// Highest rise that was given back: a ceiling above the floor of the part that follows.
    pub(super) fn excursion(&self) -> f64 {
        let floors = self.sampled().skip(1).map(|(_, part)| part.floor);
        let returned = self.sampled().zip(floors).map(|((_, part), next)| part.ceiling - next.max(part.floor));
        returned.fold(0.0, f64::max)
    }
}

//! What a workload's memory does over time, as a pure function of the time since it started.
//!
//! Flows in: a shape, usually parsed from text such as `leak:from=2GiB,rate=200MiB/s`. Flows out: the bytes it holds at a
//! moment and when it ends. No clock is read here, so forecasts are tested on the same shapes in virtual time.
//!
//! | shape | keys (defaults) | what it does |
//! |---|---|---|
//! | `plateau` | `at` | holds one level |
//! | `leak` | `from` (0), `rate` | grows without end |
//! | `stairs` | `from` (0), `step`, `every` | one step up at each interval |
//! | `saw` | `from` (0), `to`, `period` | climbs, drops, climbs again |
//! | `pool` | `at`, `weights` (0), `load` (0s) | loads weights, then takes everything in one allocation |
//! | `load` | `from` (0), `to`, `over` | climbs once, then stays flat |
//! | `spike` | `from` (0), `to`, `every`, `for` (1s) | rests at `from`, jumps to `to` at each interval |
//! | `crash` | `from` (0), `to`, `over`, `code` (1) | climbs, then exits: in a pod, a crash loop |
//!
//! Every shape takes: `start` (0s: rest at the first level that long), `until` (the level freezes after moving that long),
//! `stop` (never hold more), `drift` (a leak under any shape), `chunk` (2MiB: the allocator's quantum), `jitter` and `seed`
//! (a new offset each second), `context` (bytes the CUDA context costs; the driver's default), `exit` and `crash` (end with
//! code 0 or 1 after that long).

mod parse;

use std::time::Duration;

pub use parse::ShapeError;

use crate::units::Rate;

/// A workload's memory over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// The course of its level.
    pub curve: Curve,
    /// What every shape may carry.
    pub options: Options,
}

/// The course of a shape's level; all sizes in bytes.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the module's table says what each key does")]
pub enum Curve {
    /// Holds one level.
    Plateau { at: u64 },
    /// Grows without end.
    Leak { from: u64, rate: Rate },
    /// One step up at each interval.
    Stairs { from: u64, step: u64, every: Duration },
    /// Climbs, drops, climbs again.
    Saw { from: u64, to: u64, period: Duration },
    /// Loads weights, then takes a whole pool in one allocation.
    Pool { at: u64, weights: u64, load: Duration },
    /// Climbs once, then stays flat.
    Load { from: u64, to: u64, over: Duration },
    /// Rests, and jumps up for a moment at each interval.
    Spike { from: u64, to: u64, every: Duration, lasting: Duration },
    /// Climbs, then exits with a code.
    Crash { from: u64, to: u64, over: Duration, code: u8 },
}

/// What every shape may carry.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Time at the first level before anything moves.
    pub start: Duration,
    /// The level freezes after moving this long.
    pub until: Option<Duration>,
    /// The level never exceeds this.
    pub stop: Option<u64>,
    /// A leak under the curve.
    pub drift: Rate,
    /// The level is a multiple of this, rounded up.
    pub chunk: u64,
    /// Largest offset, up or down, that changes each second.
    pub jitter: u64,
    /// Chooses the offsets.
    pub seed: u64,
    /// Bytes the process costs beside its level; the driver's default where absent.
    pub context: Option<u64>,
    /// Ends with code 0 after this long.
    pub exit: Option<Duration>,
    /// Ends with code 1 after this long.
    pub crash: Option<Duration>,
}

/// How and when a workload ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Time since its start.
    pub at: Duration,
    /// Exit code of the process.
    pub code: u8,
}

// === impl Shape ===

impl Shape {
    /// A shape without options.
    pub fn new(curve: Curve) -> Self {
        Self { curve, options: Options::default() }
    }

    /// Bytes held `elapsed` seconds after the start, the context not counted.
    ///
    /// The same time gives the same answer, in any order of asking. Time before the start reads as the start.
    pub fn bytes_at(&self, elapsed: f64) -> u64 {
        let options = &self.options;
        let elapsed = elapsed.max(0.0);
        let mut moving = (elapsed - options.start.as_secs_f64()).max(0.0);
        if let Some(until) = options.until {
            moving = moving.min(until.as_secs_f64());
        }
        let offset = options.jitter as f64 * noise(options.seed, elapsed as u64);
        let level = self.curve.level(moving) + options.drift.per_second() * moving + offset;
        let level = round_up(level as u64, options.chunk);
        options.stop.map_or(level, |stop| level.min(stop))
    }

    /// When the workload ends by itself; `None` if it runs until it is stopped or refused memory.
    pub fn end(&self) -> Option<End> {
        let own = match self.curve {
            Curve::Crash { over, code, .. } => Some(End { at: self.options.start.saturating_add(over), code }),
            _ => None,
        };
        let exit = self.options.exit.map(|at| End { at, code: 0 });
        let crash = self.options.crash.map(|at| End { at, code: 1 });
        [own, exit, crash].into_iter().flatten().min_by_key(|end| end.at)
    }
}

// === impl Curve ===

impl Curve {
    fn level(&self, t: f64) -> f64 {
        match *self {
            Self::Plateau { at } => at as f64,
            Self::Leak { from, rate } => from as f64 + rate.per_second() * t,
            Self::Stairs { from, step, every } => from as f64 + step as f64 * (t / every.as_secs_f64()).floor(),
            Self::Saw { from, to, period } => between(from, to, (t / period.as_secs_f64()).fract()),
            Self::Pool { at, weights, load } => {
                if t < load.as_secs_f64() {
                    between(0, weights, t / load.as_secs_f64())
                } else {
                    at as f64
                }
            }
            Self::Load { from, to, over } | Self::Crash { from, to, over, .. } => {
                if t < over.as_secs_f64() {
                    between(from, to, t / over.as_secs_f64())
                } else {
                    to as f64
                }
            }
            Self::Spike { from, to, every, lasting } => {
                let every = every.as_secs_f64();
                // The first spike comes after one whole interval of rest.
                let spiking = t >= every && t % every < lasting.as_secs_f64();
                if spiking { to as f64 } else { from as f64 }
            }
        }
    }
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self {
            start: Duration::ZERO,
            until: None,
            stop: None,
            drift: Rate::default(),
            chunk: 2 << 20,
            jitter: 0,
            seed: 0,
            context: None,
            exit: None,
            crash: None,
        }
    }
}

fn between(from: u64, to: u64, share: f64) -> f64 {
    from as f64 + (to as f64 - from as f64) * share
}

fn round_up(bytes: u64, chunk: u64) -> u64 {
    if chunk <= 1 { bytes } else { bytes.div_ceil(chunk).saturating_mul(chunk) }
}

/// A number in -1..1 that depends on nothing but its arguments (SplitMix64's finaliser).
fn noise(seed: u64, second: u64) -> f64 {
    let mut x = seed.wrapping_add(second.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 31;
    x as f64 / u64::MAX as f64 * 2.0 - 1.0
}

#[cfg(test)]
mod tests;

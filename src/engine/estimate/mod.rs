//! How much GPU memory a job will need before it runs, which card holds it, and what to change if none does.
//!
//! Flows in: a model's [`shape`] and how it [`run`]s, as plain values. Flows out: an [`Estimate`] with one low, median and
//! high per term, its assumptions and what it does not know. Never a single exact number: what is unknown widens the
//! interval. Nothing here reads a clock, a file or the environment; amounts are `f64` bytes with every input range
//! checked first, so that nothing can overflow silently.

use std::fmt;

use crate::quantity::Bytes;

// Reading order.
pub mod shape;

pub mod known;

pub mod config;

pub mod run;

pub mod states;

pub mod activations;

pub mod overhead;

pub mod serving;

pub mod vision;

mod training;

pub mod cards;

pub mod fit;

pub mod remedy;

pub mod settings;

pub mod advice;

pub mod options;

pub mod manifest;

pub mod job;

pub mod declared;

pub mod render;

use run::{Run, Task};
use shape::Shape;

pub(crate) const GIB: f64 = 1_073_741_824.0;

/// An amount of memory in bytes that is not known exactly. Always `0 <= low <= median <= high`, all finite.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// One in twenty runs is expected below this.
    pub low: f64,
    /// As likely above as below.
    pub median: f64,
    /// One in twenty runs is expected above this.
    pub high: f64,
}

impl Interval {
    /// Nothing at all.
    pub const ZERO: Self = Self { low: 0.0, median: 0.0, high: 0.0 };

    /// An amount that follows from the shape alone.
    pub fn exact(bytes: f64) -> Self {
        Self::new(bytes, bytes, bytes)
    }

    /// An amount known to a share of itself: `spread(100.0, 0.1, 0.2)` is 90, 100, 120.
    pub fn spread(median: f64, below: f64, above: f64) -> Self {
        Self::new(median * (1.0 - below), median, median * (1.0 + above))
    }

    /// From three amounts in bytes; put in order where they are not, and nothing below zero.
    pub fn new(low: f64, median: f64, high: f64) -> Self {
        let median = if median.is_finite() { median.max(0.0) } else { 0.0 };
        let low = if low.is_finite() { low.clamp(0.0, median) } else { 0.0 };
        let high = if high.is_finite() { high.max(median) } else { median };
        Self { low, median, high }
    }

    /// Times a factor that is not negative.
    pub fn times(self, factor: f64) -> Self {
        Self::new(self.low * factor, self.median * factor, self.high * factor)
    }

    /// The larger of each bound: what holds for whichever of two moments is the worse one.
    pub fn max(self, other: Self) -> Self {
        Self::new(self.low.max(other.low), self.median.max(other.median), self.high.max(other.high))
    }

    /// The sum of independent amounts: medians add, the distances from them add as squares, since errors of one term
    /// do not follow those of another.
    pub fn sum<'a>(parts: impl IntoIterator<Item = &'a Self>) -> Self {
        let (mut median, mut below, mut above) = (0.0_f64, 0.0_f64, 0.0_f64);
        for part in parts {
            median += part.median;
            below += (part.median - part.low).powi(2);
            above += (part.high - part.median).powi(2);
        }
        Self::new(median - below.sqrt(), median, median + above.sqrt())
    }

    /// The spread as a standard deviation of the logarithm, for a forecast that takes the peak for log-normal around the
    /// median; the wider of the two sides. 0 for an amount of nothing.
    pub fn log_sigma(&self) -> f64 {
        if self.low <= 0.0 {
            return if self.high > 0.0 { 1.0 } else { 0.0 };
        }
        let side = (self.high / self.median).ln().max((self.median / self.low).ln());
        // One in twenty lies beyond 1.645 standard deviations.
        side / 1.645
    }

    /// Is an amount in bytes inside?
    pub fn holds(&self, bytes: f64) -> bool {
        self.low <= bytes && bytes <= self.high
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [low, median, high] = [self.low, self.median, self.high].map(Bytes::from_f64);
        write!(f, "{median} ({low} to {high})")
    }
}

/// One part of the peak.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Term {
    /// What it is, as people name it: `weights`, `optimizer`, `activations` ….
    pub name: &'static str,
    /// How much, in bytes.
    pub bytes: Interval,
}

/// The moment of a step at which memory is highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// While the weights are put on the device.
    Load,
    /// At the loss, when everything the backward pass needs is alive and the logits are there too.
    Loss,
    /// At the end of the backward pass, when all gradients exist.
    Backward,
    /// In the optimizer's step.
    Step,
    /// While the prompt is read.
    Prefill,
    /// While tokens are written.
    Decode,
    /// A server that fills the share of the card it was given.
    Pool,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Load => "while loading the weights",
            Self::Loss => "at the loss",
            Self::Backward => "at the end of the backward pass",
            Self::Step => "in the optimizer step",
            Self::Prefill => "while reading the prompt",
            Self::Decode => "while writing tokens",
            Self::Pool => "at start, when the server takes its share of the card,",
        })
    }
}

/// What a job will need on one GPU (the fullest one, where it runs on several).
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// The parts at the peak, largest owner first as computed; their medians add up to `total.median`.
    pub terms: Vec<Term>,
    /// Live tensors at the peak: what `torch.cuda.max_memory_allocated` would say.
    pub allocated: Interval,
    /// What the allocator took from the driver: `torch.cuda.max_memory_reserved`.
    pub reserved: Interval,
    /// What the driver counts for the process, CUDA context included. Compare this one with a card.
    pub total: Interval,
    /// The least memory of a card with which the job works. The same as `total`, except for a server, which takes what
    /// it is given: there it is what weights, temporaries and one full sequence need of the whole card.
    pub needs: Interval,
    /// When the peak occurs.
    pub phase: Phase,
    /// What was taken for granted, in sentences.
    pub assumptions: Vec<String>,
    /// What is not known and made the interval wider, in sentences.
    pub unknowns: Vec<String>,
}

/// Why there is no estimate. Each names the field to change.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// A field that cannot be guessed is absent.
    #[error("{field} is missing: {hint}")]
    Missing {
        /// Which.
        field: &'static str,
        /// What to write.
        hint: &'static str,
    },
    /// A word that stands for nothing known.
    #[error("{field} \"{value}\" is not known; use one of: {known}")]
    Unknown {
        /// Which field.
        field: &'static str,
        /// What was given, shortened.
        value: String,
        /// What would be understood.
        known: &'static str,
    },
    /// A number no machine has.
    #[error("{field} {value} is out of range: from {min} to {max}")]
    Range {
        /// Which field.
        field: &'static str,
        /// What was given.
        value: f64,
        /// Smallest accepted.
        min: f64,
        /// Largest accepted.
        max: f64,
    },
    /// Two fields that exclude each other.
    #[error("{field} contradicts {other}: {why}")]
    Contradiction {
        /// The one to change.
        field: &'static str,
        /// The one it clashes with.
        other: &'static str,
        /// Why both cannot hold.
        why: &'static str,
    },
    /// A text that is not the JSON it should be.
    #[error("config.json cannot be read: {0}")]
    Json(String),
}

/// The memory that `shape` needs when it runs as `run` says, on the fullest GPU.
///
/// Fails where a field is absurd or two contradict each other; an unfamiliar model is no failure but a wide interval.
pub fn estimate(shape: &Shape, run: &Run) -> Result<Estimate, Error> {
    shape.check()?;
    run.check()?;
    match run.task {
        Task::Train => Ok(training::estimate(shape, run)),
        Task::Generate { .. } | Task::Serve { .. } => serving::estimate(shape, run),
    }
}

/// Puts the worst phase together: the terms of the one with the largest median, bounds that hold for all.
pub(crate) fn worst(phases: Vec<(Phase, Vec<Term>)>, outside: &[&str]) -> Estimate {
    let sum = |terms: &[Term], without: &[&str]| {
        Interval::sum(terms.iter().filter(|term| !without.contains(&term.name)).map(|term| &term.bytes))
    };
    let slack_too: Vec<&str> = outside.iter().copied().chain([overhead::SLACK]).collect();
    let mut all = (Interval::ZERO, Interval::ZERO, Interval::ZERO);
    let mut worst: Option<(f64, Phase, Vec<Term>)> = None;
    for (phase, terms) in phases {
        let total = sum(&terms, &[]);
        all = (all.0.max(sum(&terms, &slack_too)), all.1.max(sum(&terms, outside)), all.2.max(total));
        if worst.as_ref().is_none_or(|(most, ..)| total.median > *most) {
            worst = Some((total.median, phase, terms));
        }
    }
    let (phase, terms) = worst.map_or((Phase::Load, Vec::new()), |(_, phase, terms)| (phase, terms));
    let terms = terms.into_iter().filter(|term| term.bytes.high > 0.0).collect();
    let (allocated, reserved, total) = all;
    Estimate { terms, allocated, reserved, total, needs: total, phase, assumptions: Vec::new(), unknowns: Vec::new() }
}

/// Rejects a number outside what any machine has.
pub(crate) fn within(field: &'static str, value: f64, min: f64, max: f64) -> Result<(), Error> {
    if value.is_finite() && (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(Error::Range { field, value, min, max })
    }
}

#[cfg(test)]
mod measured;

#[cfg(test)]
mod tests;

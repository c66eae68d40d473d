//! What one container of a workload usually reaches: a histogram of peaks that forgets, as the VPA's recommender keeps one.
//!
//! Flows in: the highest memory of each window of [`WINDOW`], over all pods of the workload. Flows out: percentiles, the
//! highest of all, and a size to ask for. Bounded, and the same after it was written down and read back.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::pacing::Stamp;
use crate::quantity::Bytes;

/// A window gives one sample.
pub const WINDOW: Duration = Duration::from_hours(1);
/// A sample weighs half as much after this long: one cycle of weekly load.
pub const HALF_LIFE: Duration = Duration::from_hours(7 * 24);
/// Where the first bucket ends.
const FIRST: f64 = 64.0 * 1024.0 * 1024.0;
/// Each bucket ends this much above the one before.
const RATIO: f64 = 1.05;
/// 64 MiB times 1.05^230 is 4.7 TiB: no device comes near.
const LAST: u16 = 230;
/// Weights below this share of all are dropped.
const LEAST: f64 = 0.000_1;
/// Added to what was seen for a size to ask for.
pub const MARGIN: f64 = 0.10;

/// A histogram that forgets. Weights are as of `reference`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peaks {
    /// Weight by bucket.
    weights: BTreeMap<u16, f64>,
    reference: Stamp,
    max: Bytes,
    max_at: Stamp,
}

impl Peaks {
    /// From parts that were written down; what is absurd is left out.
    pub fn from_parts(
        weights: impl IntoIterator<Item = (u16, f64)>,
        reference: Stamp,
        max: Bytes,
        max_at: Stamp,
    ) -> Self {
        let sane =
            weights.into_iter().filter(|(bucket, weight)| *bucket <= LAST && weight.is_finite() && *weight > 0.0);
        Self { weights: sane.collect(), reference, max, max_at }
    }

    /// Weight by bucket as of [`Self::reference`], for writing down.
    pub fn weights(&self) -> impl Iterator<Item = (u16, f64)> + '_ {
        self.weights.iter().map(|(bucket, weight)| (*bucket, *weight))
    }

    /// The moment that weights refer to.
    pub fn reference(&self) -> Stamp {
        self.reference
    }

    /// The highest of all and when it was seen. It is not forgotten: it was needed once.
    pub fn max(&self) -> (Bytes, Stamp) {
        (self.max, self.max_at)
    }

    /// Takes the peak of a window that ended at `at`.
    pub fn add(&mut self, at: Stamp, peak: Bytes) {
        self.raise(at, peak);
        if at > self.reference {
            let factor = 0.5_f64.powf(at.since(self.reference).as_secs_f64() / HALF_LIFE.as_secs_f64());
            self.weights.values_mut().for_each(|weight| *weight *= factor);
            self.reference = at;
        }
        // A sample of the past weighs what it would weigh by now.
        let age = self.reference.since(at).as_secs_f64() / HALF_LIFE.as_secs_f64();
        *self.weights.entry(bucket(peak)).or_default() += 0.5_f64.powf(age);
        let total: f64 = self.weights.values().sum();
        self.weights.retain(|_, weight| *weight > LEAST * total);
    }

    /// Notes a level without counting it as a window.
    pub fn raise(&mut self, at: Stamp, level: Bytes) {
        if level > self.max {
            (self.max, self.max_at) = (level, at);
        }
    }

    /// The level that this share of windows stayed at or below, rounded up to a twentieth; `None` without a window.
    pub fn percentile(&self, share: f64) -> Option<Bytes> {
        let total: f64 = self.weights.values().sum();
        let mut sum = 0.0;
        let reached = self.weights.iter().find(|(_, weight)| {
            sum += **weight;
            sum >= share * total * (1.0 - 1e-9)
        });
        // No percentile is above what was ever seen.
        reached.map(|(bucket, _)| Bytes::from_f64(FIRST * RATIO.powi(i32::from(*bucket))).min(self.max))
    }

    /// Windows counted, older ones for less.
    pub fn windows(&self) -> f64 {
        self.weights.values().sum()
    }
}

/// Bucket 0 ends at [`FIRST`], bucket n at `FIRST * RATIO^n`.
fn bucket(level: Bytes) -> u16 {
    let place = (level.as_f64() / FIRST).max(1.0).ln() / RATIO.ln();
    // What is exactly the end of a bucket belongs to it.
    ((place - 1e-9).ceil().max(0.0) as u16).min(LAST)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: i64 = 86_400;

    #[test]
    fn old_peaks_are_forgotten_but_for_the_highest() {
        let mut peaks = Peaks::default();
        for hour in 0..24 {
            peaks.add(Stamp(hour * 3600), Bytes::gib(60));
        }
        assert!(peaks.percentile(0.5).unwrap() >= Bytes::gib(57));
        // Eight weeks of half as much.
        for hour in 24..8 * 7 * 24 {
            peaks.add(Stamp(hour * 3600), Bytes::gib(30));
        }
        assert!(peaks.percentile(0.95).unwrap() < Bytes::gib(32), "{:?}", peaks.percentile(0.95));
        assert_eq!(peaks.max().0, Bytes::gib(60));
    }

    #[test]
    fn a_sample_weighs_half_after_the_half_life_whatever_the_order() {
        let (mut one, mut other) = (Peaks::default(), Peaks::default());
        for (at, peak) in [(0, 10), (7 * DAY, 20)] {
            one.add(Stamp(at), Bytes::gib(peak));
        }
        for (at, peak) in [(7 * DAY, 20), (0, 10)] {
            other.add(Stamp(at), Bytes::gib(peak));
        }
        let weights =
            |peaks: &Peaks| peaks.weights().map(|(_, weight)| (weight * 1000.0).round() as i64).collect::<Vec<_>>();
        assert_eq!(weights(&one), [500, 1000]);
        assert_eq!((weights(&other), other.max()), (weights(&one), one.max()));
    }

    #[test]
    fn percentiles_are_in_order_and_near_what_was_seen() {
        let mut peaks = Peaks::default();
        for n in 1..=100 {
            peaks.add(Stamp(n), Bytes::gib(u64::try_from(n).unwrap()));
        }
        let near = |share: f64, gib: f64| {
            let found = peaks.percentile(share).unwrap().as_f64() / Bytes::gib(1).as_f64();
            assert!((found / gib - 1.0).abs() < 0.06, "{share}: {found}");
        };
        near(0.5, 50.0);
        near(0.95, 95.0);
        assert_eq!(peaks.percentile(1.0), Some(Bytes::gib(100)));
        assert_eq!(Peaks::default().percentile(0.5), None);
    }

    proptest! {
        #[test]
        fn it_stays_bounded_and_survives_being_written_down(
            samples in proptest::collection::vec((0_i64..100 * DAY, any::<u64>()), 0..300)
        ) {
            let mut peaks = Peaks::default();
            for (at, peak) in samples {
                peaks.add(Stamp(at), Bytes(peak));
                prop_assert!(peaks.weights().count() <= usize::from(LAST) + 1);
                prop_assert!(peaks.percentile(0.5) <= peaks.percentile(0.95));
                prop_assert!(peaks.percentile(1.0) <= Some(peaks.max().0));
            }
            let (max, max_at) = peaks.max();
            let read = Peaks::from_parts(peaks.weights(), peaks.reference(), max, max_at);
            prop_assert_eq!(read, peaks);
        }
    }
}

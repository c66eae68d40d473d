//! Leaks that nobody watched for a while: the agent was away, the leak was not.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::quantity::Moment;
use crate::series::{Point, Segment};

const DEVICE: Bytes = Bytes::gib(80);

/// A curve in MiB by the millisecond, watched once a second but in gaps.
struct Watched<Curve> {
    curve: Curve,
    /// The node's clock, in milliseconds.
    now: u64,
    start: u64,
    series: Series,
}

impl<Curve: Fn(u64) -> f64> Watched<Curve> {
    fn new(start: u64, curve: Curve) -> Self {
        Self { curve, now: start, start, series: Series::default() }
    }

    fn level(&self) -> f64 {
        (self.curve)(self.now - self.start)
    }

    fn gap(&mut self, seconds: u64) {
        self.now += seconds * 1000;
    }

    /// One sample.
    fn look(&mut self) {
        let used = Bytes::from_f64(self.level() * f64::from(1 << 20));
        self.series.push(Segment(1), Point { at: Moment(self.now), used, allocator: None });
        self.now += 1000;
    }

    fn run(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.look();
        }
    }

    fn ask(&self, horizon: u64) -> Forecast {
        let question = Question {
            horizon: Duration::from_secs(horizon),
            capacity: DEVICE,
            declared_peak: None,
            warm_up: Duration::from_secs(8),
            min_samples: 5,
            max_sample_age: Duration::from_secs(15),
        };
        let now = self.series.latest().map_or(Moment(0), |latest| latest.at);
        let asked = [Tenant { series: &self.series, question }];
        forecast_device(now, Some(DEVICE), Some(Bytes::ZERO), &asked).remove(0)
    }
}

fn median(forecast: &Forecast) -> f64 {
    match forecast.outlook {
        Outlook::Known { time_to_oom: Some(time), .. } => time.q50.as_secs_f64(),
        _ => f64::INFINITY,
    }
}

fn probability(forecast: &Forecast) -> f64 {
    match forecast.outlook {
        Outlook::Known { probability, .. } => probability,
        Outlook::Unknown { .. } => 0.0,
    }
}

/// Up to three stretches that nobody watched, each after one that was watched for long enough to tell a line.
fn stretches() -> impl Strategy<Value = Vec<(u64, u64)>> {
    proptest::collection::vec((45..200_u64, 0..=60_u64), 1..=3)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_steady_leaks_time_to_oom_within_three_horizons_moves_by_less_than_a_fifth_over_gaps_of_up_to_a_minute(
        start in 1_000_000..1_600_000_u64,
        stretches in stretches(),
        rate in 20..110_u64,
        horizon in 60..=300_u64,
    ) {
        // Until windows of a tenth of the horizon are full, there is no forecast to keep.
        let horizon = horizon.min(stretches[0].0 * 3);
        let mut leak = Watched::new(start, |milliseconds| 10_240.0 + (rate * milliseconds) as f64 / 1000.0);
        for (watched, gap) in stretches {
            leak.run(watched);
            leak.gap(gap);
            for after in 0..60 {
                leak.look();
                let used = leak.series.latest().map_or(0.0, |latest| latest.used.as_mib());
                let truth = (DEVICE.as_mib() - used) / rate as f64;
                if truth < 10.0 {
                    // Told in whole seconds, and then it is over.
                    return Ok(());
                }
                let told = leak.ask(horizon);
                let moved = (median(&told) - truth).abs() / truth;
                // A time of many horizons is nothing that an action rests on, and small bends are carried far.
                let bound = if truth < 3.0 * horizon as f64 { 0.2 } else { 1.0 };
                prop_assert!(
                    moved < bound,
                    "{after} s after {gap} s: told {:.0} s instead of {truth:.0}: {}", median(&told), told.reason
                );
            }
        }
    }

    #[test]
    fn a_step_that_nobody_saw_is_no_leak(
        start in 1_000_000..1_600_000_u64,
        watched in 45..200_u64,
        gap in 1..=60_u64,
        step in 1..60_000_u64,
        noise in 0..40_u64,
    ) {
        let happens = watched * 1000 + gap * 500;
        let mut load = Watched::new(start, |milliseconds| {
            let shake = milliseconds / 1000 * 7919 % (noise + 1);
            (10_240 + shake + if milliseconds > happens { step } else { 0 }) as f64
        });
        load.run(watched);
        load.gap(gap);
        for after in 0..60 {
            load.look();
            let told = load.ask(60);
            prop_assert!(probability(&told) < 0.5, "{after} s after {gap} s: {}", told.reason);
        }
    }

    #[test]
    fn a_leak_that_ends_while_nobody_watches_clears_as_soon_as_one_that_is_watched(
        start in 1_000_000..1_600_000_u64,
        gap in 4..=60_u64,
    ) {
        let stops = 101_000;
        let mut leak =
            Watched::new(start, |milliseconds| 67_000.0 + 100.0 * (milliseconds.min(stops) as f64 / 1000.0));
        leak.run(100);
        prop_assert!(probability(&leak.ask(60)) >= 0.8);
        leak.gap(gap);
        leak.run(25);
        for after in 25..90 {
            let told = leak.ask(60);
            prop_assert!(probability(&told) < 0.5, "{after} s after {gap} s: {}", told.reason);
            leak.look();
        }
    }
}

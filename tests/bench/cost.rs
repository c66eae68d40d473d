//! What a series costs: time per sample with evaluation, and bytes.

use std::hint::black_box;
use std::time::{Duration, Instant};

use gpumem_engine::forecast::{Question, Tenant, forecast_device};
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::series::{AllocatorPoint, Point, Segment, Series};

use crate::report::Report;

/// Time of a push alone.
fn push() -> f64 {
    let mut all: Vec<Series> = (0..200).map(|_| Series::default()).collect();
    let started = Instant::now();
    for second in 0..6000 {
        for series in &mut all {
            let used = Bytes::mib(4000 + second % 9);
            series.push(Segment(1), Point { at: Moment::from_secs(second), used, allocator: None });
        }
    }
    black_box(&all);
    started.elapsed().as_secs_f64() / (6000.0 * 200.0) * 1e6
}

/// Samples at 1 Hz, evaluated every H/60 with H = 60 min and H = 15 min: half leaks, half plateaus, hooked.
pub fn measure(report: &mut Report) {
    // The least of three: other work on the machine only ever adds.
    report.add("push_cost", (0..3).map(|_| push()).fold(f64::INFINITY, f64::min), "us");
    for (name, horizon) in [("step_cost", 3600_u64), ("step_cost_15m", 900)] {
        let (mut per_sample, mut largest) = (f64::INFINITY, 0);
        for _ in 0..3 {
            let (time, bytes) = once(horizon);
            per_sample = per_sample.min(time);
            largest = largest.max(bytes);
        }
        report.add(name, per_sample, "us");
        if horizon == 3600 {
            report.add("series_bytes", largest as f64, "bytes");
            report.add("series_per_core_at_1hz", 1e6 / per_sample, "series");
        }
    }
}

/// Microseconds per sample, and bytes of the largest series.
fn once(horizon: u64) -> (f64, usize) {
    let count = 200_u64;
    let mut all: Vec<Series> = (0..count).map(|_| Series::default()).collect();
    let seconds = 6000_u64;
    let started = Instant::now();
    for second in 0..seconds {
        for (number, series) in all.iter_mut().enumerate() {
            let grows = if number % 2 == 0 { second * 2 } else { second % 7 };
            let used = Bytes::mib(4000 + grows + number as u64);
            let allocator =
                Some(AllocatorPoint { allocated: used - Bytes::mib(900), reserved: used - Bytes::mib(700) });
            series.push(Segment(1), Point { at: Moment::from_secs(second), used, allocator });
            // Evaluations are spread over the period, as a controller's pulls are.
            if (second + number as u64).is_multiple_of(horizon / 60) {
                let question = Question {
                    horizon: Duration::from_secs(horizon),
                    capacity: Bytes::gib(40),
                    declared_peak: None,
                    warm_up: Duration::from_secs(horizon / 15),
                    min_samples: 10,
                    max_sample_age: Duration::from_secs(30),
                };
                let tenants = [Tenant { series, question }];
                let now = Moment::from_secs(second);
                black_box(forecast_device(now, Some(Bytes::gib(40)), Some(Bytes::ZERO), &tenants));
            }
        }
    }
    let per_sample = started.elapsed().as_secs_f64() / (seconds * count) as f64 * 1e6;
    (per_sample, all.iter().map(Series::footprint).max().unwrap_or(0))
}

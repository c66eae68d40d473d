//! What holds for every series, however odd.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::series::{AllocatorPoint, Point, Segment};

/// A curve of pieces in units of 64 KiB: start level, then (seconds, change per second in units, jump in units).
#[derive(Clone, Debug)]
struct Curve {
    level: u64,
    pieces: Vec<(u64, i64, i64)>,
}

fn curve() -> impl Strategy<Value = Curve> {
    let piece = (5..200_u64, -20..40_i64, -3000..3000_i64);
    (1000..40_000_u64, proptest::collection::vec(piece, 1..6)).prop_map(|(level, pieces)| Curve { level, pieces })
}

const UNIT: u64 = 64 << 10;

impl Curve {
    /// One sample a second, each value times `scale` plus `shift` units.
    fn series(&self, scale: u64, shift: u64) -> Series {
        let mut series = Series::default();
        for point in curve_points(self) {
            series.push(Segment(1), Point { used: Bytes(point.used.0 * scale + shift * UNIT), ..point });
        }
        series
    }
}

fn question(capacity: Bytes) -> Question {
    Question {
        horizon: Duration::from_mins(2),
        capacity,
        declared_peak: None,
        warm_up: Duration::from_secs(8),
        min_samples: 3,
        max_sample_age: Duration::from_secs(30),
    }
}

fn ask(series: &Series, capacity: Bytes) -> Forecast {
    let now = series.latest().map_or(Moment(0), |latest| latest.at);
    let tenants = [Tenant { series, question: question(capacity) }];
    forecast_device(now, Some(capacity), Some(Bytes::ZERO), &tenants).remove(0)
}

fn sane(forecast: &Forecast) -> Result<(), TestCaseError> {
    prop_assert!(!forecast.reason.is_empty());
    prop_assert!(forecast.growth.is_none_or(|growth| growth.0.is_finite()));
    if let Outlook::Known { probability, by_horizon, time_to_oom } = &forecast.outlook {
        prop_assert!((0.0..=1.0).contains(probability));
        prop_assert!(by_horizon.iter().all(|(_, p)| (0.0..=1.0).contains(p)));
        prop_assert!(by_horizon.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{by_horizon:?}");
        if let Some(TimeToOom { q10, q50, q90 }) = time_to_oom {
            prop_assert!(q10 <= q50 && q50 <= q90, "{time_to_oom:?}");
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn probabilities_are_in_range_and_monotone_and_quantiles_ordered(curve in curve(), gib in 1..80_u64) {
        sane(&ask(&curve.series(1, 0), Bytes::gib(gib)))?;
    }

    #[test]
    fn scaling_memory_changes_nothing_but_the_words(curve in curve(), units in 45_000..120_000_u64) {
        let small = ask(&curve.series(1, 0), Bytes(units * UNIT));
        let large = ask(&curve.series(4, 0), Bytes(units * UNIT * 4));
        prop_assert_eq!(small.class, large.class);
        match (&small.outlook, &large.outlook) {
            (Outlook::Known { probability: one, .. }, Outlook::Known { probability: other, .. }) => {
                prop_assert!((one - other).abs() < 1e-3, "{one} {other}");
            }
            (one, other) => prop_assert_eq!(one, other),
        }
    }

    #[test]
    fn shifting_level_and_capacity_together_matters_only_through_the_margin(
        curve in curve(),
        units in 60_000..120_000_u64,
        shift in 1..2000_u64,
    ) {
        // No falls: a reset is a share of the level, and shares know where zero is.
        let rising = Curve {
            level: curve.level,
            pieces: curve.pieces.iter().map(|&(length, slope, jump)| (length, slope.abs(), jump.abs())).collect(),
        };
        let low = ask(&rising.series(1, 0), Bytes(units * UNIT));
        // The margin is half a percent of capacity: the room grows by what is left of the shift.
        let high = ask(&rising.series(1, shift * 199), Bytes((units + shift * 200) * UNIT));
        if let (Some(one), Some(other)) = (low.growth, high.growth) {
            prop_assert!((one.0 - other.0).abs() <= 1e-6 * one.0.abs(), "{one:?} {other:?}");
        }
    }

    #[test]
    fn a_later_start_of_the_clock_changes_nothing(curve in curve(), units in 45_000..120_000_u64) {
        // By a multiple of every block, so that blocks fall alike.
        let series = curve.series(1, 0);
        let mut later = Series::default();
        for point in curve_points(&curve) {
            later.push(Segment(1), Point { at: point.at + Duration::from_hours(10), ..point });
        }
        let (one, other) = (ask(&series, Bytes(units * UNIT)), ask(&later, Bytes(units * UNIT)));
        prop_assert_eq!(one.outlook, other.outlook);
    }

    #[test]
    fn any_input_gets_an_answer(
        points in proptest::collection::vec((any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>()), 0..120),
        capacity in any::<u64>(),
        usable in any::<Option<u64>>(),
        unattributed in any::<Option<u64>>(),
        declared in any::<Option<u64>>(),
        horizon in any::<u32>(),
        now in any::<u64>(),
    ) {
        let mut series = [Series::default(), Series::default()];
        for (place, (step, used, allocated, reserved)) in points.into_iter().enumerate() {
            let at = series[place % 2].latest().map_or(Moment(0), |latest| latest.at) + Duration::from_millis(u64::from(step));
            let allocator = (place % 3 == 0)
                .then_some(AllocatorPoint { allocated: Bytes(allocated), reserved: Bytes(reserved) });
            series[place % 2].push(Segment(1), Point { at, used: Bytes(used), allocator });
        }
        let question = Question {
            horizon: Duration::from_secs(u64::from(horizon)),
            capacity: Bytes(capacity),
            declared_peak: declared.map(Bytes),
            warm_up: Duration::ZERO,
            min_samples: 0,
            max_sample_age: Duration::MAX,
        };
        let tenants: Vec<_> = series.iter().map(|series| Tenant { series, question: question.clone() }).collect();
        let answers = forecast_device(Moment(now), usable.map(Bytes), unattributed.map(Bytes), &tenants);
        prop_assert_eq!(answers.len(), 2);
        for answer in &answers {
            sane(answer)?;
        }
    }
}

fn curve_points(curve: &Curve) -> Vec<Point> {
    let mut points = Vec::new();
    let (mut second, mut level) = (0, curve.level as i64);
    for &(length, slope, jump) in &curve.pieces {
        level += jump;
        for _ in 0..length {
            level = (level + slope).max(500);
            points.push(Point {
                at: Moment::from_secs(50 + second),
                used: Bytes(level as u64 * UNIT),
                allocator: None,
            });
            second += 1;
        }
    }
    points
}

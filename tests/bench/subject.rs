//! The predictor under test, asked as the controller asks it.

use std::time::Duration;

use gpumem_engine::forecast::calibration::{Calibration, FITTED};
use gpumem_engine::forecast::{Forecast, Outlook, Question, Tenant, forecast_device_with};
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::series::{AllocatorPoint, Point, Segment, Series};

use crate::feed::{Feed, Row};
use crate::judge::{Eval, Setting};

pub fn mib(value: f64) -> Bytes {
    Bytes::from_f64(value * 1_048_576.0)
}

pub fn point(row: &Row) -> Point {
    let allocator =
        row.live.map(|(allocated, reserved)| AllocatorPoint { allocated: mib(allocated), reserved: mib(reserved) });
    Point { at: Moment((row.at * 1000.0) as u64), used: mib(row.used), allocator }
}

/// Walks through the feed and evaluates every `setting.every` seconds.
pub fn walk(feed: &Feed, setting: &Setting, mut see: impl FnMut(f64, &[Series], &[Forecast])) {
    walk_with(feed, setting, None, &FITTED, &mut see);
}

pub fn walk_with(
    feed: &Feed,
    setting: &Setting,
    declared: Option<f64>,
    calibration: &Calibration,
    see: &mut impl FnMut(f64, &[Series], &[Forecast]),
) {
    let mut series = vec![Series::default(); feed.tenants];
    let mut next = setting.every;
    let mut rows = feed.rows.iter().peekable();
    while let Some(row) = rows.next() {
        series[row.tenant].push(Segment(row.segment), point(row));
        // All tenants of a moment are read before anyone is judged.
        if rows.peek().is_some_and(|later| later.at <= row.at) || row.at < next {
            continue;
        }
        next = (row.at / setting.every).floor() * setting.every + setting.every;
        let now = Moment((row.at * 1000.0) as u64);
        let alive: Vec<usize> = (0..feed.tenants)
            .filter(|tenant| {
                let latest = series[*tenant].latest();
                latest
                    .is_some_and(|latest| now.secs_since(latest.at) <= 3.0 * series[*tenant].interval().max(1.0) + 1.0)
            })
            .collect();
        let tenants: Vec<Tenant<'_>> = alive
            .iter()
            .map(|tenant| Tenant {
                series: &series[*tenant],
                question: Question {
                    horizon: Duration::from_secs_f64(setting.horizon),
                    capacity: mib(feed.capacity_at(row.at)),
                    declared_peak: declared.map(mib),
                    warm_up: Duration::from_secs_f64((setting.warm_up - setting.dwell).max(0.0)),
                    min_samples: 3,
                    max_sample_age: Duration::from_secs(30),
                },
            })
            .collect();
        let capacity = Some(mib(feed.capacity_at(row.at)));
        let answers = forecast_device_with(now, capacity, Some(mib(feed.orphaned)), &tenants, calibration);
        let mut all: Vec<Forecast> = vec![
            Forecast {
                class: gpumem_engine::forecast::Class::Unknown,
                growth: None,
                outlook: Outlook::Unknown { why: gpumem_engine::forecast::Unknown::NoData },
                gave_back: Bytes::ZERO,
                reason: String::new(),
            };
            feed.tenants
        ];
        for (tenant, answer) in alive.into_iter().zip(answers) {
            all[tenant] = answer;
        }
        see(row.at, &series, &all);
    }
}

pub fn evals(feed: &Feed, setting: &Setting, declared: Option<f64>) -> Vec<Eval> {
    evals_with(feed, setting, declared, &FITTED)
}

pub fn evals_with(feed: &Feed, setting: &Setting, declared: Option<f64>, calibration: &Calibration) -> Vec<Eval> {
    let mut evals = Vec::new();
    walk_with(feed, setting, declared, calibration, &mut |at, series, answers| {
        for (tenant, answer) in answers.iter().enumerate() {
            let age = at - series[tenant].born().0 as f64 / 1000.0;
            let segment = series[tenant].segment().map_or(0, |segment| segment.0);
            let blank = Eval { at, tenant, segment, age, risk: None, within: None, time: None };
            evals.push(match &answer.outlook {
                Outlook::Known { probability, by_horizon, time_to_oom } => Eval {
                    risk: Some(*probability),
                    within: Some(by_horizon.map(|(_, p)| p)),
                    time: time_to_oom.map(|time| [time.q10, time.q50, time.q90].map(|q| q.as_secs_f64())),
                    ..blank
                },
                Outlook::Unknown { .. } => blank,
            });
        }
    });
    evals
}

pub fn risk(answer: &Forecast) -> Option<f64> {
    match answer.outlook {
        Outlook::Known { probability, .. } => Some(probability),
        Outlook::Unknown { .. } => None,
    }
}

//! The forecast over recorded data: rows in, evaluations and alarm episodes out. What `gpumem replay` prints.
//!
//! Flows in: the text of a CSV file and [`Options`]. Flows out: one [`Evaluation`] per container and moment, from the same
//! functions the controller calls, and [`Episode`]s as a policy would have raised and cleared them. No I/O: the caller reads
//! the file and prints.

use std::collections::BTreeMap;

use crate::forecast::{Forecast, Outlook, Question, Tenant, forecast_device};
use crate::policy::Prediction;
use crate::quantity::{Bytes, Moment};
use crate::series::{AllocatorPoint, Point, Segment, Series};

mod alarm;
mod csv;
mod print;
pub mod prometheus;
#[cfg(test)]
mod tests;

pub use alarm::{Alarm, Episode, Level, episodes};
pub use csv::{Error, Row, parse};
pub use print::{summary, table};

/// What is asked of the recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Thresholds, horizon, warm-up and dwell: the policy's, whose defaults are the CRD's.
    pub prediction: Prediction,
    /// What each device may hold; goes before the file's `capacity_mib`.
    pub capacity: Option<Bytes>,
}

/// One container at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// Seconds as in the file.
    pub t_s: f64,
    /// Device as in the file; empty where it names none.
    pub gpu: String,
    /// Container as in the file.
    pub container: String,
    /// What the policy would make of it.
    pub level: Level,
    /// The engine's answer.
    pub forecast: Forecast,
}

/// A container while its rows are read.
#[derive(Default)]
struct Live {
    series: Series,
    alarm: Alarm,
    life: u64,
}

/// Rows closer than this to the last evaluation are only taken in: sixty evaluations per horizon are enough.
fn pace(options: &Options) -> f64 {
    options.prediction.horizon.as_secs_f64() / 60.0
}

/// Runs the forecast over the rows of [`parse`], in their order.
pub fn evaluate(rows: &[Row], options: &Options) -> Vec<Evaluation> {
    let mut devices: BTreeMap<&str, (Option<Bytes>, BTreeMap<&str, Live>)> = BTreeMap::new();
    let mut evaluations = Vec::new();
    let mut next: BTreeMap<&str, f64> = BTreeMap::new();
    for (place, row) in rows.iter().enumerate() {
        let (capacity, containers) = devices.entry(&row.gpu).or_default();
        *capacity = options.capacity.or(row.capacity).or(*capacity);
        containers.entry(&row.container).or_default().push(row);
        // Containers of one moment are all read before any is judged.
        let more = rows.get(place + 1..).unwrap_or_default().iter().take_while(|later| later.t_s <= row.t_s);
        if more.into_iter().any(|later| later.gpu == row.gpu) || row.t_s < next.get(&*row.gpu).copied().unwrap_or(0.0) {
            continue;
        }
        let pace = pace(options);
        next.insert(&row.gpu, (row.t_s / pace).floor() * pace + pace);
        judge(row, *capacity, containers, options, &mut evaluations);
    }
    evaluations
}

fn judge(
    row: &Row,
    capacity: Option<Bytes>,
    containers: &mut BTreeMap<&str, Live>,
    options: &Options,
    evaluations: &mut Vec<Evaluation>,
) {
    let now = moment(row.t_s);
    let prediction = &options.prediction;
    // Whoever has no rows any more is gone, not stale: its memory is free again.
    containers
        .retain(|_, live| live.series.latest().is_some_and(|latest| now.secs_since(latest.at) <= live.patience()));
    let question = Question {
        horizon: prediction.horizon,
        capacity: Bytes(u64::MAX),
        declared_peak: prediction.declared_peak,
        // The dwell runs during warm-up, so that the first alarm may come when it ends.
        warm_up: prediction.warm_up.saturating_sub(prediction.act_for),
        min_samples: prediction.min_samples,
        max_sample_age: prediction.max_sample_age,
    };
    let tenants: Vec<Tenant<'_>> =
        containers.values().map(|live| Tenant { series: &live.series, question: question.clone() }).collect();
    let answers = forecast_device(now, capacity, Some(Bytes::ZERO), &tenants);
    for ((container, live), forecast) in containers.iter_mut().zip(answers) {
        let risk = match forecast.outlook {
            Outlook::Known { probability, .. } => Some(probability),
            Outlook::Unknown { .. } => None,
        };
        let age = now.since(live.series.born());
        let level = live.alarm.step(row.t_s, age, risk, prediction);
        evaluations.push(Evaluation {
            t_s: row.t_s,
            gpu: row.gpu.clone(),
            container: (*container).to_owned(),
            level,
            forecast,
        });
    }
}

/// The file's seconds on the engine's time line.
fn moment(t_s: f64) -> Moment {
    Moment((t_s * 1000.0).round() as u64)
}

impl Live {
    fn push(&mut self, row: &Row) {
        let at = moment(row.t_s);
        let allocator = row.allocated.map(|allocated| AllocatorPoint {
            allocated: allocated.max(row.step_peak.unwrap_or_default()),
            reserved: row.reserved.unwrap_or_default(),
        });
        // A file has no container ids: memory that comes back much lower after a silence is another process.
        let restarted = self.series.latest().is_some_and(|latest| {
            at.secs_since(latest.at) > 4.0 * self.series.interval().max(0.5)
                && row.used.as_f64() < 0.6 * latest.used.as_f64()
        });
        if restarted {
            self.life += 1;
            self.alarm = Alarm::default();
        }
        self.series.push(Segment(self.life), Point { at, used: row.used, allocator });
    }

    /// Seconds without a row after which the container is taken to be gone.
    fn patience(&self) -> f64 {
        3.5 * self.series.interval().max(1.0)
    }
}

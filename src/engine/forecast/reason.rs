//! One sentence per forecast, with the numbers it rests on, for whoever is on call.

use std::fmt::Write as _;

use super::trend::Trend;
use super::{Class, Question, Tenant, TimeToOom, Unknown};
use crate::quantity::{Bytes, BytesPerSecond, Moment, counted};
use crate::series::Attempt;

/// What the sentence may mention.
pub(super) struct Facts<'a> {
    pub(super) class: Class,
    pub(super) trend: Option<&'a Trend>,
    pub(super) used: Bytes,
    pub(super) room: Bytes,
    pub(super) capacity: Bytes,
    pub(super) time: Option<TimeToOom>,
    pub(super) neighbours: usize,
    pub(super) probability: f64,
    pub(super) question: &'a Question,
    pub(super) attempts: &'a [Attempt],
}

/// Why there is no forecast.
pub(super) fn unknown(why: Unknown, Tenant { series, question }: &Tenant<'_>, now: Moment) -> String {
    match why {
        Unknown::WarmingUp => format!(
            "started {} ago; no forecast before {}",
            span(now.secs_since(series.born())),
            span(question.warm_up.as_secs_f64())
        ),
        Unknown::TooFewSamples => {
            let samples = counted(series.samples(), "sample", "samples");
            format!("{samples} so far; a forecast needs {}", question.min_samples)
        }
        Unknown::Stale => {
            format!("newest sample is {} old", span(series.latest().map_or(0.0, |latest| now.secs_since(latest.at))))
        }
        Unknown::NoData => "no sample yet".to_owned(),
        Unknown::NoCapacity => "the device's capacity is not known".to_owned(),
        Unknown::SharedUnknown => "what others hold on the device is not known".to_owned(),
        Unknown::Inconclusive => "samples do not agree enough to extrapolate".to_owned(),
    }
}

/// What is expected, and why.
pub(super) fn known(facts: &Facts<'_>) -> String {
    let mut text = String::with_capacity(160);
    match facts.trend {
        Some(trend) => grows(&mut text, facts, trend),
        None => stands(&mut text, facts),
    }
    if let (Class::RestartLoop, Some(last)) = (facts.class, facts.attempts.last()) {
        let _ = write!(
            text,
            "; {} earlier runs ended at about {} after {}",
            facts.attempts.len(),
            last.peak,
            span(f64::from(last.seconds))
        );
    }
    text
}

fn grows(text: &mut String, facts: &Facts<'_>, trend: &Trend) {
    let _ = write!(text, "grows {} over the last {}", BytesPerSecond(trend.slope), span(trend.seen));
    if let Some(stairs) = trend.stairs {
        let _ = write!(text, " in steps of {} every {}", Bytes::from_f64(stairs.size), span(stairs.gap));
    }
    if trend.bend < 0.7 {
        text.push_str(", slowing down,");
    } else if trend.bend > 1.4 {
        text.push_str(", speeding up,");
    }
    let _ = write!(text, " with {} of {} left", facts.room, facts.capacity);
    match facts.neighbours {
        0 => {}
        1 => text.push_str(" and one neighbour growing too"),
        more => {
            let _ = write!(text, " and {more} neighbours growing too");
        }
    }
    match (facts.time, facts.question.declared_peak) {
        (Some(time), _) => {
            let _ = write!(
                text,
                ": full in about {} ({} to {})",
                span(time.q50.as_secs_f64()),
                span(time.q10.as_secs_f64()),
                span(time.q90.as_secs_f64())
            );
        }
        (None, Some(peak)) => {
            let _ = write!(text, ": expected to stop at the declared {peak}");
        }
        (None, None) => text.push_str(": not expected to fill it"),
    }
}

fn stands(text: &mut String, facts: &Facts<'_>) {
    let what = match facts.class {
        Class::Fragmentation => {
            "the allocator holds more and more while live memory does not grow: cache or fragmentation, not a leak"
        }
        Class::Pool => "a preallocated pool, constant: what happens inside it is not visible",
        Class::Peak => "isolated high-water marks without a trend",
        Class::Periodic => "rises now and then and comes back to the same floor",
        Class::Load => "moves up and down without a trend",
        _ => "flat",
    };
    let _ = write!(
        text,
        "{what}; peak {}, {} of {} left, P {} % within {}",
        facts.used,
        facts.room,
        facts.capacity,
        (100.0 * facts.probability).round_ties_even() as u64,
        span(facts.question.horizon.as_secs_f64())
    );
}

/// A duration as people say it: `45 s`, `12 min`, `3.5 h`. Whole numbers only: they print several times as fast.
fn span(seconds: f64) -> String {
    let whole = |value: f64| value.round_ties_even() as u64;
    if seconds < 90.0 {
        format!("{} s", whole(seconds))
    } else if seconds < 5400.0 {
        format!("{} min", whole(seconds / 60.0))
    } else {
        let tenths = whole(seconds / 360.0);
        format!("{}.{} h", tenths / 10, tenths % 10)
    }
}

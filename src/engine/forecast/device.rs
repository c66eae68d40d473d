//! One device and all who share it: who grows, into whose room, and what that means for each.
//!
//! Flows in: series and questions. Flows out: a forecast each. A neighbour that stands still is counted at what it holds; one
//! that grows takes from the room of whoever grows most. Nobody is at risk for another's growth.

use std::time::Duration;

use super::hazard::Hazard;
use super::passage::Passage;
use super::trend::{Trend, trend};
use super::window::{Signal, windows};
use super::{Class, Forecast, Outlook, Tenant, TimeToOom, Unknown, reason};
use crate::quantity::{Bytes, BytesPerSecond, Moment};
use crate::series::{Point, Series};

/// Share of the capacity nobody gets to use: allocators round up and drivers keep some.
pub(super) const MARGIN: f64 = 0.005;

/// What is known of one tenant before anyone's room is.
#[derive(Clone, Copy)]
struct View {
    /// Newest `used`, zero for a series without points.
    used: f64,
    /// Highest recent `used`.
    top: f64,
    /// Bytes the allocator may still hand out without asking the driver.
    slack: f64,
    trend: Option<Trend>,
    /// Only what the allocator holds grows, not what is live.
    cache_grows: bool,
}

impl View {
    /// What others must leave it: small excursions are its own, large ones belong to phases that take turns.
    fn held(&self, device: f64) -> f64 {
        if self.top - self.used <= 0.1 * device { self.top } else { self.used }
    }
}

/// See [`super::forecast_device`].
pub(super) fn forecast(
    now: Moment,
    usable: Option<Bytes>,
    unattributed: Option<Bytes>,
    tenants: &[Tenant<'_>],
) -> Vec<Forecast> {
    let views: Vec<View> = tenants.iter().map(view).collect();
    let culprit = culprit(tenants, &views);
    tenants
        .iter()
        .zip(&views)
        .enumerate()
        .map(|(place, (tenant, own))| {
            if let Some(why) = unknown(now, usable, unattributed, tenant) {
                let class = if why == Unknown::WarmingUp { Class::WarmUp } else { Class::Unknown };
                let reason = reason::unknown(why, tenant, now);
                return Forecast { class, growth: None, outlook: Outlook::Unknown { why }, reason };
            }
            let shared = usable.unwrap_or_default() - unattributed.unwrap_or_default();
            let others = || views.iter().enumerate().filter(|(other, _)| *other != place).map(|(_, view)| view);
            let neighbours =
                if culprit == Some(place) { others().filter_map(|view| view.trend).collect() } else { vec![] };
            let held: f64 = others().map(|view| view.held(shared.as_f64())).sum();
            answer(tenant, own, shared.as_f64() - held, &neighbours)
        })
        .collect()
}

/// Why nothing may be said, if so.
fn unknown(
    now: Moment,
    usable: Option<Bytes>,
    unattributed: Option<Bytes>,
    Tenant { series, question }: &Tenant<'_>,
) -> Option<Unknown> {
    let Some(latest) = series.latest() else { return Some(Unknown::NoData) };
    // A series sampled once a minute is not stale after thirty seconds.
    let patience = question.max_sample_age.as_secs_f64().max(3.0 * series.interval());
    if now.secs_since(latest.at) > patience {
        Some(Unknown::Stale)
    } else if series.samples() < u64::from(question.min_samples) {
        Some(Unknown::TooFewSamples)
    } else if now.since(series.born()) < question.warm_up {
        Some(Unknown::WarmingUp)
    } else if usable.is_none_or(|usable| usable == Bytes::ZERO) || question.capacity == Bytes::ZERO {
        Some(Unknown::NoCapacity)
    } else if unattributed.is_none() {
        Some(Unknown::SharedUnknown)
    } else {
        None
    }
}

fn view(Tenant { series, question }: &Tenant<'_>) -> View {
    let horizon = seconds(question.horizon);
    let from = series.born().0 as f64 / 1000.0 + 0.25 * seconds(question.warm_up);
    let latest = series.latest();
    let used = latest.map_or(0.0, |point| point.used.as_f64());
    let by_used = trend(series, Signal::Used, horizon, from);
    let hooked = latest.and_then(|point: Point| point.allocator);
    let by_live = if hooked.is_some() { trend(series, Signal::Live, horizon, from) } else { by_used };
    let top = recent_top(series, Signal::Used, horizon, from).max(used);
    let slack = hooked.map_or(0.0, |allocator| {
        let live = recent_top(series, Signal::Live, horizon, from).max(allocator.allocated.as_f64());
        // A hook that does not know what is reserved says zero: the driver's figure then stands in.
        let reserved = if allocator.reserved < allocator.allocated { used } else { allocator.reserved.as_f64() };
        (reserved - live).max(0.0)
    });
    View { used, top, slack, trend: by_live, cache_grows: by_used.is_some() && by_live.is_none() }
}

/// Highest reading of the shortest window that looks back a quarter of the horizon.
fn recent_top(series: &Series, signal: Signal, horizon: f64, from: f64) -> f64 {
    windows(series, signal, horizon / 4.0, f64::INFINITY, from).next().map_or(0.0, |window| window.top())
}

/// The tenant expected to grow most, if anyone grows.
fn culprit(tenants: &[Tenant<'_>], views: &[View]) -> Option<usize> {
    let growth = |place: usize| {
        let trend = views.get(place)?.trend?;
        Some(trend.rise(seconds(tenants.get(place)?.question.horizon), 0.0))
    };
    (0..views.len())
        .filter_map(|place| Some((place, growth(place)?)))
        .max_by(|(_, one), (_, other)| one.total_cmp(other))
        .map(|(place, _)| place)
}

/// `shared` is what the device has left for this tenant while the others stay as they are.
fn answer(Tenant { series, question }: &Tenant<'_>, own: &View, shared: f64, neighbours: &[Trend]) -> Forecast {
    let horizon = seconds(question.horizon);
    let capacity = question.capacity.as_f64().min(shared).max(1.0);
    let margin = MARGIN * capacity;
    let top = own
        .trend
        .filter(|_| own.slack == 0.0)
        .map_or(own.top, |trend| if trend.top > 0.0 { trend.top.max(own.used) } else { own.top });
    let room = capacity - margin - top;
    let hazard =
        Hazard { lived: now_lived(series), room: room.max(0.0), excess: series.record_excess().as_f64(), capacity };
    let passage = own.trend.map(|trend| {
        let total = |after: f64, shift: f64| {
            let more: f64 = neighbours.iter().map(|other| other.rise(after, shift)).sum();
            match question.declared_peak {
                Some(peak) => (trend.rise(after, shift).min((peak.as_f64() - top).max(0.0))) + more,
                None => trend.rise(after, shift) + more,
            }
        };
        // Inside the margin, half of it must still be filled: being full is not an event, filling up is.
        let room = room.max(0.25 * margin) + own.slack;
        let spread = (0.1_f64.powi(2) + trend.error.powi(2)).sqrt();
        Passage::new(total, room, spread, 0.97, 5.0 * trend.seen)
    });
    let within = |h: f64| {
        let base = hazard.within(h);
        let growing = passage.map_or(0.0, |passage| passage.within(h));
        (growing + (1.0 - growing) * base).clamp(0.0, 1.0)
    };
    let time = passage.and_then(|passage| {
        Some(TimeToOom {
            q10: Duration::from_secs_f64(passage.quantile(0.1)?),
            q50: Duration::from_secs_f64(passage.quantile(0.5)?),
            q90: Duration::from_secs_f64(passage.quantile(0.9)?),
        })
    });
    let class = class(own, series, capacity, horizon);
    let probability = within(horizon);
    let reason = reason::known(&reason::Facts {
        class,
        trend: own.trend.as_ref(),
        used: Bytes::from_f64(top),
        room: Bytes::from_f64(room.max(0.0) + own.slack),
        capacity: Bytes::from_f64(capacity),
        time,
        neighbours: neighbours.len(),
        probability,
        question,
    });
    Forecast {
        class,
        growth: own.trend.map(|trend| BytesPerSecond(trend.slope)),
        outlook: Outlook::Known {
            probability,
            by_horizon: [300_u32, 900, 3600].map(|h| (h, within(f64::from(h)))),
            time_to_oom: time,
        },
        reason,
    }
}

fn now_lived(series: &Series) -> f64 {
    series.latest().map_or(0.0, |latest| latest.at.secs_since(series.born()))
}

/// The shape in a word. A pool is told from a plateau by how much of the device it took at once.
fn class(own: &View, series: &Series, capacity: f64, horizon: f64) -> Class {
    if own.trend.is_some() {
        return Class::Leak;
    }
    if own.cache_grows {
        return Class::Fragmentation;
    }
    let lived = now_lived(series);
    let span = windows(series, Signal::Used, 0.25 * lived.min(2.0 * horizon), f64::INFINITY, 0.0).next();
    let Some(span) = span else { return Class::Plateau };
    let floor = span.sampled().fold(f64::INFINITY, |floor, (_, part)| floor.min(part.floor));
    let top = span.top();
    if top - floor <= 0.01 * capacity {
        if top >= 0.7 * capacity { Class::Pool } else { Class::Plateau }
    } else if series.record_at().0 as f64 / 1000.0 >= span.start {
        Class::Peak
    } else {
        Class::Load
    }
}

/// As seconds; a horizon of zero is taken as one second.
fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64().max(1.0)
}

//! One device and all who share it: who grows, into whose room, and what that means for each.
//!
//! Flows in: series and questions. Flows out: a forecast each. A neighbour that stands still is counted at what it holds; one
//! that grows takes from the room of whoever grows most. Nobody is at risk for another's growth.

use std::time::Duration;

use super::calibration::{Calibration, Pieces};
use super::hazard::Hazard;
use super::passage::Passage;
use super::past;
use super::trend::{Trend, trend};
use super::window::{Part, Signal, windows};
use super::{Class, Forecast, Outlook, Tenant, TimeToOom, Unknown, reason};
use crate::quantity::{Bytes, BytesPerSecond, Moment};
use crate::series::{Point, Series};

/// Least standard deviation of ln T: what is left where the fit has no error at all.
const LEAST_SPREAD: f64 = 0.05;

/// P(growth goes on as fitted), and the same where the floor fell as well as rose before.
const TRUST: f64 = 0.955;
const UNREST: f64 = 0.4;

/// How many times the length of the evidence the forecast looks ahead.
const REACH: f64 = 5.0;

/// Longest time to OOM that is told, in seconds: ten days.
const LONGEST: f64 = 864_000.0;

/// Seconds for which every forecast has a probability.
const HORIZONS: [u32; 3] = [300, 900, 3600];

/// Share of the capacity nobody gets to use: allocators ask in lumps of 2 to 20 MiB. Ten times as much would be hours of a
/// slow leak.
pub(super) const MARGIN: f64 = 0.0005;

/// By how many of its own deviations the next step of regular stairs may be larger than the usual one.
const UNEVEN: f64 = 2.0;

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
    /// Most that was given back of what grows; zero where nothing does.
    gave_back: f64,
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
    calibration: &Calibration,
) -> Vec<Forecast> {
    let views: Vec<View> = tenants.iter().map(|tenant| view(tenant, calibration.pieces)).collect();
    let culprit = culprit(tenants, &views);
    tenants
        .iter()
        .zip(&views)
        .enumerate()
        .map(|(place, (tenant, own))| {
            if let Some(why) = unknown(now, usable, unattributed, tenant) {
                let class = if why == Unknown::WarmingUp { Class::WarmUp } else { Class::Unknown };
                let reason = reason::unknown(why, tenant, now);
                let outlook = Outlook::Unknown { why };
                return Forecast { class, growth: None, outlook, gave_back: Bytes::ZERO, reason };
            }
            let shared = usable.unwrap_or_default() - unattributed.unwrap_or_default();
            let others = || views.iter().enumerate().filter(|(other, _)| *other != place).map(|(_, view)| view);
            let neighbours =
                if culprit == Some(place) { others().filter_map(|view| view.trend).collect() } else { vec![] };
            let held: f64 = others().map(|view| view.held(shared.as_f64())).sum();
            answer(tenant, own, shared.as_f64() - held, &neighbours, calibration)
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

fn view(Tenant { series, question }: &Tenant<'_>, pieces: Pieces) -> View {
    let horizon = seconds(question.horizon);
    let from = series.born().0 as f64 / 1000.0 + 0.25 * seconds(question.warm_up);
    let latest = series.latest();
    let used = latest.map_or(0.0, |point| point.used.as_f64());
    let hooked = latest.and_then(|point: Point| point.allocator);
    let by_live = hooked.and_then(|_| trend(series, Signal::Live, horizon, from));
    // Live memory that grows says all there is to say.
    let by_used = if by_live.is_none() { trend(series, Signal::Used, horizon, from) } else { None };
    let cache_grows = hooked.is_some() && by_used.is_some();
    // Load moves live memory up and down, and what it reaches at most still grows.
    let trend = match (hooked, by_live, by_used) {
        (None, _, used) => used,
        (Some(_), Some(live), _) => Some(live),
        (Some(_), None, used) => used
            .filter(|used| peaks_follow(series, used))
            .map(|used| Trend { bend_error: used.bend_error / 1.5, ..used }),
    };
    let top = recent_top(series, Signal::Used, horizon, from).max(used);
    let slack = hooked.map_or(0.0, |allocator| {
        let live = recent_top(series, Signal::Live, horizon, from).max(allocator.allocated.as_f64());
        // A hook that does not know what is reserved says zero: the driver's figure then stands in.
        let reserved = if allocator.reserved < allocator.allocated { used } else { allocator.reserved.as_f64() };
        (reserved - live).max(0.0)
    });
    let trend = trend.and_then(|trend| trend.with(pieces));
    let signal = if by_live.is_some() { Signal::Live } else { Signal::Used };
    let warm = series.born().0 as f64 / 1000.0 + seconds(question.warm_up);
    let gave_back = trend.map_or(0.0, |_| past::gave_back(series, signal, horizon, warm));
    View { used, top, slack, trend, cache_grows: cache_grows && trend.is_none(), gave_back }
}

/// Whether the peaks of live memory rise with what the allocator holds.
fn peaks_follow(series: &Series, used: &Trend) -> bool {
    let length = used.seen;
    let Some(window) = windows(series, Signal::Live, 0.99 * length, 1.01 * length, 0.0).next() else { return false };
    let half = window.parts().len() / 2;
    let top = |parts: &[Part]| parts.iter().fold(0.0_f64, |top, part| top.max(part.ceiling));
    let (first, second) = window.parts().split_at(half);
    top(second) - top(first) > 0.3 * used.slope * length / 2.0
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

/// What is needed to say "within h": everything a fit may change comes in from outside.
struct Law<'a> {
    calibration: &'a Calibration,
    hazard: Hazard,
    /// P(a record goes beyond the room).
    beyond: f64,
    passage: Option<Passage>,
    horizon: f64,
}

impl Law<'_> {
    /// P(within `seconds`), as it was found.
    fn raw(&self, seconds: f64) -> f64 {
        let base = self.hazard.sets_record(seconds, &self.calibration.hazard) * self.beyond;
        let growing = self.passage.map_or(0.0, |passage| passage.within(seconds));
        (growing + (1.0 - growing) * base).clamp(0.0, 1.0)
    }

    /// P within the horizon and within each of [`HORIZONS`], as they are meant. Maps differ from horizon to horizon, so the
    /// largest of all up to one holds for it.
    fn meant(&self) -> (f64, [f64; 3]) {
        let meant = |seconds: f64| self.calibration.meant(self.raw(seconds), seconds / self.horizon).clamp(0.0, 1.0);
        let hours = HORIZONS.map(f64::from).map(|seconds| (seconds, meant(seconds)));
        let own = (self.horizon, meant(self.horizon));
        let up_to = |end: (f64, f64)| {
            let earlier = hours.into_iter().chain([own]).filter(|(seconds, _)| *seconds < end.0);
            earlier.fold(end.1, |most, (_, p)| most.max(p))
        };
        (up_to(own), hours.map(up_to))
    }
}

/// `shared` is what the device has left for this tenant while the others stay as they are.
fn answer(
    Tenant { series, question }: &Tenant<'_>,
    own: &View,
    shared: f64,
    neighbours: &[Trend],
    calibration: &Calibration,
) -> Forecast {
    let horizon = seconds(question.horizon);
    let capacity = question.capacity.as_f64().min(shared).max(1.0);
    let margin = MARGIN * capacity;
    let top = own
        .trend
        .filter(|_| own.slack == 0.0)
        .map_or(own.top, |trend| if trend.top > 0.0 { trend.top.max(own.used) } else { own.top });
    let room = capacity - margin - top;
    let hazard = hazard(series, horizon, capacity);
    let flat = hazard.swing <= 0.01 * capacity;
    // A declaration that was exceeded says nothing any more.
    let declared = question.declared_peak.map(Bytes::as_f64).filter(|peak| top <= 1.05 * peak);
    let passage = own.trend.map(|trend| {
        let total = |after: f64, shift: f64| {
            let own = trend.rise(after, shift);
            let own = declared.map_or(own, |peak| own.min((peak - top).max(0.0)));
            own + neighbours.iter().map(|other| other.rise(after, shift)).sum::<f64>()
        };
        // Inside the margin, a part of it must still be filled: being full is not an event, filling up is.
        // Steps differ, and the next one need not be the usual.
        let uneven = trend.stairs.map_or(0.0, |stairs| UNEVEN * stairs.uneven * stairs.size);
        let room = (room - uneven).max(0.25 * margin) + own.slack;
        let spread = LEAST_SPREAD.hypot(trend.error);
        let shifts = trend.shifts() || neighbours.iter().any(Trend::shifts);
        Passage::new(total, shifts, room, spread, if trend.unrest > 0.25 { UNREST } else { TRUST }, REACH * trend.seen)
    });
    let law = Law { calibration, hazard, beyond: hazard.beyond(&calibration.hazard), passage, horizon };
    let time = passage.zip(own.trend).and_then(|(passage, trend)| {
        let (low, high) = calibration.widths.get(trend.kind()).copied().unwrap_or((1.0, 1.0));
        let [q10, q50, q90] = passage.quantiles()?;
        Some(TimeToOom {
            q10: Duration::from_secs_f64((q50 * (q10 / q50).powf(low)).min(q50)),
            q50: Duration::from_secs_f64(q50),
            q90: Duration::from_secs_f64((q50 * (q90 / q50).powf(high)).clamp(q50, LONGEST)),
        })
    });
    let class = class(own, series, flat, top >= 0.7 * capacity, horizon);
    let (probability, within) = law.meant();
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
        attempts: series.attempts(),
    });
    Forecast {
        class,
        growth: own.trend.map(|trend| BytesPerSecond(trend.slope)),
        outlook: Outlook::Known {
            probability,
            by_horizon: {
                let mut within = within.into_iter();
                HORIZONS.map(|h| (h, within.next().unwrap_or(probability)))
            },
            time_to_oom: time,
        },
        gave_back: Bytes::from_f64(own.gave_back),
        reason,
    }
}

/// See [`super::hazard()`].
pub(super) fn hazard(series: &Series, horizon: f64, capacity: f64) -> Hazard {
    let long = 0.25 * lived(series).min(8.0 * horizon);
    let swing = windows(series, Signal::Used, long, f64::INFINITY, 0.0).next().map_or(0.0, |span| {
        let floor = span.sampled().fold(f64::INFINITY, |floor, (_, part)| floor.min(part.floor));
        (span.top() - floor).max(0.0)
    });
    Hazard {
        lived: lived(series),
        room: ((1.0 - MARGIN) * capacity - series.record().as_f64()).max(0.0),
        excess: series.record_excess().as_f64(),
        swing,
        capacity,
    }
}

fn lived(series: &Series) -> f64 {
    series.latest().map_or(0.0, |latest| latest.at.secs_since(series.born()))
}

/// The shape in a word. A pool is told from a plateau by how much of the device it took at once.
fn class(own: &View, series: &Series, flat: bool, high: bool, horizon: f64) -> Class {
    if restarts(series) {
        Class::RestartLoop
    } else if own.trend.is_some() {
        Class::Leak
    } else if own.cache_grows {
        Class::Fragmentation
    } else if flat {
        if high { Class::Pool } else { Class::Plateau }
    } else if returns(series, horizon) {
        Class::Periodic
    } else if lived(series) - series.record_at().secs_since(series.born()) < 2.0 * horizon {
        Class::Peak
    } else {
        Class::Load
    }
}

/// Whether every excursion of late came back to the same floor.
fn returns(series: &Series, horizon: f64) -> bool {
    let long = 0.25 * lived(series).min(8.0 * horizon);
    windows(series, Signal::Used, long, f64::INFINITY, 0.0).next().is_some_and(|span| {
        let floors = || span.sampled().map(|(_, part)| part.floor);
        let (low, high) = (floors().fold(f64::INFINITY, f64::min), floors().fold(0.0, f64::max));
        let excursions = span.sampled().filter(|(_, part)| part.ceiling - part.floor > 0.02 * span.top()).count();
        high - low <= 0.01 * span.top() && excursions >= 2
    })
}

/// Whether the last two lives ended at the same peak.
fn restarts(series: &Series) -> bool {
    match series.attempts() {
        [.., one, other] => {
            let (low, high) = (one.peak.min(other.peak).as_f64(), one.peak.max(other.peak).as_f64());
            low > 0.98 * high && series.record().as_f64() > 0.0
        }
        _ => false,
    }
}

/// As seconds; a horizon of zero is taken as one second.
fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64().max(1.0)
}

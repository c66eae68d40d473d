use super::window::Signal;
use super::*;
use crate::quantity::Moment;
use crate::series::{Point, Segment};

const DEVICE: Bytes = Bytes::gib(24);

/// The demo's question: a minute and a half ahead, fifteen seconds of warm-up.
fn question() -> Question {
    Question {
        horizon: Duration::from_secs(90),
        capacity: DEVICE,
        declared_peak: None,
        warm_up: Duration::from_secs(15),
        min_samples: 5,
        max_sample_age: Duration::from_secs(10),
    }
}

/// One sample a second of `curve` in MiB, from second 0 to before `end`.
fn series(end: u64, curve: impl Fn(u64) -> u64) -> Series {
    let mut series = Series::default();
    for second in 0..end {
        let used = Bytes::mib(curve(second));
        series.push(Segment(1), Point { at: Moment::from_secs(1000 + second), used, allocator: None });
    }
    series
}

fn ask(series: &Series) -> Forecast {
    ask_with(series, question())
}

fn ask_with(series: &Series, question: Question) -> Forecast {
    let now = series.latest().map_or(Moment(0), |latest| latest.at);
    forecast_device(now, Some(DEVICE), Some(Bytes::ZERO), &[Tenant { series, question }]).remove(0)
}

fn probability(forecast: &Forecast) -> f64 {
    match forecast.outlook {
        Outlook::Known { probability, .. } => probability,
        Outlook::Unknown { .. } => 0.0,
    }
}

fn median(forecast: &Forecast) -> f64 {
    match forecast.outlook {
        Outlook::Known { time_to_oom: Some(time), .. } => time.q50.as_secs_f64(),
        _ => f64::INFINITY,
    }
}

fn highest(end: u64, curve: impl Fn(u64) -> u64 + Copy) -> f64 {
    (16..end).map(|end| probability(&ask(&series(end, curve)))).fold(0.0, f64::max)
}

#[test]
fn a_steady_leak_is_seen_well_before_it_fills_the_device() {
    for rate in [100, 200, 300] {
        let full = (24 * 1024 - 2000) / rate;
        let curve = |second: u64| 2000 + if second > 5 { (second - 5) * rate } else { 0 };
        let seen = (16..full).find(|&end| probability(&ask(&series(end, curve))) >= 0.8);
        assert!(seen.is_some_and(|seen| seen + 30 < full + 5), "{rate} MiB/s: seen {seen:?}, full {full}");
    }
}

#[test]
fn the_time_to_oom_of_a_steady_leak_is_right_within_a_fifth() {
    let curve = |second: u64| 2000 + 150 * second;
    for end in [40, 60, 100, 120] {
        let truth = (24.0 * 1024.0 - 2000.0) / 150.0 - end as f64;
        let told = median(&ask(&series(end, curve)));
        assert!((told - truth).abs() < 0.2 * truth, "at {end}: told {told}, truth {truth}");
    }
}

#[test]
fn a_gap_of_half_a_minute_changes_the_time_to_oom_little() {
    let curve = |second: u64| 2000 + 100 * second;
    let mut series = series(120, curve);
    let before = median(&ask(&series));
    for second in 150..160 {
        let used = Bytes::mib(curve(second));
        series.push(Segment(1), Point { at: Moment::from_secs(1000 + second), used, allocator: None });
    }
    let after = median(&ask(&series)) + 40.0;
    assert!((after - before).abs() < 0.2 * before, "before {before}, after {after}");
}

#[test]
fn what_does_not_leak_is_never_flagged_after_warm_up() {
    let pool = |second: u64| if second < 4 { 500 } else { 22_100 };
    let load = |second: u64| 600 + 1200 * second.min(12);
    let jitter = |second: u64| 9000 + second * 7919 % 60;
    assert!(highest(240, pool) < 0.5);
    assert!(highest(240, load) < 0.5);
    assert!(highest(240, jitter) < 0.5);
}

#[test]
fn a_leak_that_stops_clears() {
    let curve = |second: u64| 4000 + 200 * second.min(70);
    assert!(probability(&ask(&series(68, curve))) >= 0.8);
    let cleared = (71..140).find(|&end| probability(&ask(&series(end, curve))) < 0.5);
    assert!(cleared.is_some_and(|end| end <= 95), "cleared {cleared:?}");
    assert!((100..240).all(|end| probability(&ask(&series(end, curve))) < 0.5));
}

#[test]
fn a_flat_neighbour_of_a_leak_is_not_at_risk() {
    let leak = series(80, |second| 2000 + 100 * second);
    let flat = series(80, |_| 10_000);
    let now = Moment::from_secs(1079);
    let tenant = |series| Tenant { series, question: question() };
    let answers = forecast_device(now, Some(DEVICE), Some(Bytes::mib(500)), &[tenant(&flat), tenant(&leak)]);
    assert!(probability(&answers[0]) < 0.5, "{answers:?}");
    assert!(probability(&answers[1]) >= 0.8, "{answers:?}");
}

#[test]
fn what_is_missing_is_named() {
    let flat = series(60, |_| 10_000);
    let why = |now, usable, unattributed, series: &Series| {
        let tenants = [Tenant { series, question: question() }];
        match forecast_device(Moment::from_secs(now), usable, unattributed, &tenants).remove(0).outlook {
            Outlook::Unknown { why } => Some(why),
            Outlook::Known { .. } => None,
        }
    };
    let zero = Some(Bytes::ZERO);
    assert_eq!(why(1059, Some(DEVICE), zero, &flat), None);
    assert_eq!(why(1100, Some(DEVICE), zero, &flat), Some(Unknown::Stale));
    assert_eq!(why(1059, None, zero, &flat), Some(Unknown::NoCapacity));
    assert_eq!(why(1059, Some(DEVICE), None, &flat), Some(Unknown::SharedUnknown));
    assert_eq!(why(1009, Some(DEVICE), zero, &series(10, |_| 5)), Some(Unknown::WarmingUp));
    assert_eq!(why(1002, Some(DEVICE), zero, &series(3, |_| 5)), Some(Unknown::TooFewSamples));
    assert_eq!(why(1000, Some(DEVICE), zero, &Series::default()), Some(Unknown::NoData));
}

#[test]
fn shapes_have_names() {
    let class = |end, curve: &dyn Fn(u64) -> u64| ask(&series(end, curve)).class;
    assert_eq!(class(80, &|second| 2000 + 100 * second), Class::Leak);
    assert_eq!(class(240, &|_| 9000), Class::Plateau);
    assert_eq!(class(240, &|_| 22_100), Class::Pool);
    assert_eq!(class(240, &|second| if second % 20 < 4 { 12_000 } else { 9000 }), Class::Periodic);
    assert_eq!(class(10, &|_| 9000), Class::WarmUp);
}

#[test]
fn cache_that_grows_alone_is_no_leak() {
    let mut hooked = Series::default();
    for second in 0..80 {
        let allocator = Some(crate::series::AllocatorPoint {
            allocated: Bytes::mib(3000 + second % 5),
            reserved: Bytes::mib(4000 + 100 * second),
        });
        let used = Bytes::mib(4700 + 100 * second);
        hooked.push(Segment(1), Point { at: Moment::from_secs(1000 + second), used, allocator });
    }
    let answer = ask(&hooked);
    assert_eq!(answer.class, Class::Fragmentation, "{answer:?}");
    assert!(probability(&answer) < 0.5, "{answer:?}");
}

#[test]
fn the_reason_is_a_sentence_with_its_numbers() {
    let leak = ask(&series(80, |second| 2000 + 200 * second));
    assert!(leak.reason.starts_with("grows 200 MiB/s over the last "), "{}", leak.reason);
    let pool = ask(&series(80, |_| 22_100));
    assert!(pool.reason.starts_with("a preallocated pool"), "{}", pool.reason);
}

#[test]
fn a_leak_gives_nothing_back_whatever_its_spikes_and_load_that_fell_does() {
    let gave = |curve: &dyn Fn(u64) -> u64| past::gave_back(&series(300, curve), Signal::Used, 90.0, 1015.0);
    let leak = |second| 4000 + 10 * second;
    assert_eq!(gave(&leak), 0.0);
    assert_eq!(gave(&|second| leak(second) + if second % 60 < 10 { 2000 } else { 0 }), 0.0, "no spike is a floor");
    let fell = gave(&|second| leak(second) - if second > 240 { 1500 } else { 0 });
    assert!((1100.0..=1500.0).contains(&(fell / 1_048_576.0)), "{fell}");
    let forgotten = gave(&|second| leak(second) - if second > 100 { 500 } else { 0 });
    assert_eq!(forgotten, 0.0, "more than four horizons ago, or before the oldest block");
    let warming =
        past::gave_back(&series(60, |second| if second < 30 { 9000 } else { 5000 }), Signal::Used, 90.0, 1031.0);
    assert_eq!(warming, 0.0, "what is freed while it warms up was never held");
}

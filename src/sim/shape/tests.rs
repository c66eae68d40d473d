use std::time::Duration;

use proptest::prelude::*;

use super::{Curve, End, Options, Shape, ShapeError};
use crate::units::{Per, Rate};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

fn shape(text: &str) -> Shape {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn a_leak_grows_by_its_rate() {
    let leak = shape("leak:from=2GiB,rate=200MiB/s");
    assert_eq!(leak.bytes_at(0.0), 2 * GIB);
    assert_eq!(leak.bytes_at(10.0), 2 * GIB + 2000 * MIB);
    assert_eq!(leak.end(), None);
}

#[test]
fn a_leak_can_start_late_and_stop_in_time() {
    let leak = shape("leak:from=2GiB,rate=1GiB/s,start=30s,stop=14GiB");
    assert_eq!(leak.bytes_at(30.0), 2 * GIB);
    assert_eq!(leak.bytes_at(35.0), 7 * GIB);
    assert_eq!(leak.bytes_at(1e6), 14 * GIB);
    assert_eq!(shape("leak:rate=1GiB/s,start=30s,until=3s").bytes_at(1e6), 3 * GIB);
}

#[test]
fn stairs_go_up_at_each_interval() {
    let stairs = shape("stairs:from=1GiB,step=2GiB,every=10s");
    assert_eq!([0.0, 9.9, 10.0, 25.0].map(|t| stairs.bytes_at(t) / GIB), [1, 1, 3, 5]);
}

#[test]
fn a_saw_climbs_and_drops() {
    let saw = shape("saw:from=2GiB,to=8GiB,period=60s");
    assert_eq!([0.0, 30.0, 60.0, 90.0].map(|t| saw.bytes_at(t) / GIB), [2, 5, 2, 5]);
    assert_eq!(shape("saw:to=8GiB,period=60s,drift=1GiB/m").bytes_at(60.0), GIB);
}

#[test]
fn a_pool_is_taken_at_once_after_the_weights() {
    let pool = shape("pool:at=60GiB,weights=10GiB,load=10s");
    assert_eq!([0.0, 5.0, 10.0, 1e9].map(|t| pool.bytes_at(t) / GIB), [0, 5, 60, 60]);
}

#[test]
fn a_load_ends_flat_and_a_crash_ends() {
    assert_eq!(shape("load:to=20GiB,over=10s").bytes_at(1e9), 20 * GIB);
    let crash = shape("crash:from=1GiB,to=3GiB,over=20s,start=5s");
    assert_eq!(crash.bytes_at(15.0), 2 * GIB);
    assert_eq!(crash.end(), Some(End { at: Duration::from_secs(25), code: 1 }));
}

#[test]
fn the_earliest_end_counts() {
    let shape = shape("plateau:at=1GiB,exit=60s,crash=30s");
    assert_eq!(shape.end(), Some(End { at: Duration::from_secs(30), code: 1 }));
}

#[test]
fn spikes_come_after_each_interval_of_rest() {
    let spike = shape("spike:from=8GiB,to=20GiB,every=60s,for=5s");
    assert_eq!([0.0, 59.0, 60.0, 64.9, 65.0, 122.0].map(|t| spike.bytes_at(t) / GIB), [8, 8, 20, 20, 8, 20]);
}

#[test]
fn jitter_depends_on_seed_and_second_alone() {
    let (one, two) = (shape("plateau:at=8GiB,jitter=1GiB,seed=1"), shape("plateau:at=8GiB,jitter=1GiB,seed=2"));
    assert_eq!(one.bytes_at(7.1), one.bytes_at(7.9));
    assert_ne!(one.bytes_at(7.0), one.bytes_at(8.0));
    assert_ne!(one.bytes_at(7.0), two.bytes_at(7.0));
    assert!((0..500).all(|t| one.bytes_at(f64::from(t)).abs_diff(8 * GIB) <= GIB + 2 * MIB));
}

#[test]
fn levels_are_whole_chunks() {
    assert_eq!(shape("plateau:at=5MiB").bytes_at(0.0), 6 * MIB);
    assert_eq!(shape("plateau:at=5MiB,chunk=1B").bytes_at(0.0), 5 * MIB);
    assert_eq!(shape("plateau:at=5MiB,chunk=4MiB").bytes_at(0.0), 8 * MIB);
}

#[test]
fn errors_name_what_is_wrong() {
    let error = |text: &str| text.parse::<Shape>().err().map(|error| error.to_string()).unwrap_or_default();
    assert_eq!(error("leek:rate=1"), format!("`leek` is not a shape; known are {}", super::parse::SHAPES));
    assert_eq!(error("leak:from=1GiB"), "leak needs `rate`");
    assert!(error("leak:rate=2GiB").starts_with("`rate`: `2GiB` is not a rate"));
    assert!(error("plateau:at=1GiB,too=3").starts_with("plateau has no key `too`; known are at, start,"));
    assert_eq!(error("plateau:at=1GiB,at=2GiB"), "`at` is given twice");
    assert_eq!(error("plateau:at"), "`at` is not of the form key=value");
    assert_eq!(error("stairs:step=1GiB,every=0s"), "`every`: must be longer than zero");
    assert_eq!("plateau".parse::<Shape>(), Err(ShapeError::Missing { shape: "plateau", key: "at" }));
}

fn seconds() -> impl Strategy<Value = Duration> {
    (1_u64..10_000_000).prop_map(Duration::from_millis)
}

fn rate() -> impl Strategy<Value = Rate> {
    let per = prop_oneof![Just(Per::Second), Just(Per::Minute), Just(Per::Hour)];
    (0_u64..1 << 42, per).prop_map(|(bytes, per)| Rate { bytes, per })
}

fn curve() -> impl Strategy<Value = Curve> {
    let size = || 0_u64..1 << 42;
    prop_oneof![
        size().prop_map(|at| Curve::Plateau { at }),
        (size(), rate()).prop_map(|(from, rate)| Curve::Leak { from, rate }),
        (size(), size(), seconds()).prop_map(|(from, step, every)| Curve::Stairs { from, step, every }),
        (size(), size(), seconds()).prop_map(|(from, to, period)| Curve::Saw { from, to, period }),
        (size(), size(), seconds()).prop_map(|(at, weights, load)| Curve::Pool { at, weights, load }),
        (size(), size(), seconds()).prop_map(|(from, to, over)| Curve::Load { from, to, over }),
        (size(), size(), seconds(), seconds()).prop_map(|(from, to, every, lasting)| Curve::Spike {
            from,
            to,
            every,
            lasting
        }),
        (size(), size(), seconds(), 0_u8..).prop_map(|(from, to, over, code)| Curve::Crash { from, to, over, code }),
    ]
}

fn options() -> impl Strategy<Value = Options> {
    let size = || 0_u64..1 << 42;
    let some_time = || proptest::option::of(seconds());
    let sizes = (proptest::option::of(size()), size(), size(), proptest::option::of(size()));
    let times = (proptest::option::of(seconds()), some_time(), some_time(), some_time());
    (sizes, times, rate(), any::<u64>()).prop_map(|((stop, chunk, jitter, context), times, drift, seed)| {
        let (start, until, exit, crash) = times;
        let start = start.unwrap_or_default();
        Options { start, until, stop, drift, chunk, jitter, seed, context, exit, crash }
    })
}

proptest! {
    #[test]
    fn a_shape_written_down_reads_back_the_same(curve in curve(), options in options()) {
        let shape = Shape { curve, options };
        prop_assert_eq!(shape.to_string().parse::<Shape>(), Ok(shape));
    }

    #[test]
    fn any_time_has_one_level_below_the_stop(curve in curve(), options in options(), t: f64) {
        let shape = Shape { curve, options };
        let level = shape.bytes_at(t);
        prop_assert_eq!(level, shape.bytes_at(t));
        prop_assert!(shape.options.stop.is_none_or(|stop| level <= stop));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in ".{0,80}") {
        let _ = text.parse::<Shape>();
    }
}

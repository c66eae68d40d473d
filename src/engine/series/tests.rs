use proptest::prelude::*;

use super::*;

fn at(seconds: u64, mib: u64) -> Point {
    Point { at: Moment::from_secs(seconds), used: Bytes::mib(mib), allocator: None }
}

fn filled(points: impl Iterator<Item = Point>) -> Series {
    let mut series = Series::default();
    for point in points {
        series.push(Segment(1), point);
    }
    series
}

#[test]
fn late_and_repeated_points_are_counted_and_left_out() {
    let mut series = filled([at(10, 5), at(11, 6)].into_iter());
    assert_eq!(series.push(Segment(1), at(11, 9)), Pushed::Duplicate);
    assert_eq!(series.push(Segment(1), at(9, 9)), Pushed::Late);
    assert_eq!((series.samples(), series.refused(), series.peak()), (2, 2, Bytes::mib(6)));
}

#[test]
fn a_gap_leaves_no_blocks() {
    let series = filled((0..20).chain(300..320).map(|second| at(second, 100)));
    let tens: Vec<_> = series.ring(1).unwrap().iter().map(|block| block.index).collect();
    assert_eq!(tens, [0, 1, 30, 31]);
}

#[test]
fn the_same_curve_makes_the_same_blocks_at_any_rate() {
    let curve = |seconds: u64| at(seconds, 1000 + seconds);
    let fast = filled((0..7200).map(curve));
    let slow = filled((0..7200).step_by(15).map(curve));
    for (quick, lazy) in fast.ring(3).unwrap().iter().zip(slow.ring(3).unwrap().iter()) {
        assert_eq!((quick.index, quick.floor), (lazy.index, lazy.floor));
    }
}

#[test]
fn a_new_segment_starts_anew_and_remembers_how_the_last_one_ended() {
    let mut series = filled((0..100).map(|second| at(second, 100 + second)));
    assert_eq!(series.push(Segment(2), at(120, 7)), Pushed::NewSegment);
    assert_eq!((series.samples(), series.peak()), (1, Bytes::mib(7)));
    assert_eq!(series.attempts(), [Attempt { peak: Bytes::mib(199), seconds: 99 }]);
}

#[test]
fn one_reading_of_nothing_is_a_glitch_and_two_are_a_new_life() {
    let mut series = filled((0..60).map(|second| at(second, 1000)));
    series.push(Segment(1), at(60, 0));
    series.push(Segment(1), at(61, 1000));
    assert_eq!((series.born(), series.attempts().len()), (Moment::from_secs(0), 0));
    series.push(Segment(1), at(62, 0));
    series.push(Segment(1), at(63, 0));
    series.push(Segment(1), at(64, 300));
    assert_eq!((series.born(), series.record()), (Moment::from_secs(64), Bytes::mib(300)));
    assert_eq!(series.attempts().len(), 1);
}

#[test]
fn a_day_of_a_hooked_container_stays_within_eight_kilobytes() {
    let mut series = Series::default();
    for second in 0..90_000 {
        let allocator = Some(AllocatorPoint { allocated: Bytes::mib(second), reserved: Bytes::mib(second + 1) });
        series.push(Segment(1), Point { allocator, ..at(second, second + 2) });
    }
    assert!(series.footprint() <= 8192, "{}", series.footprint());
    let mut copy = series.clone();
    copy.push(Segment(1), at(90_001, 5));
    assert!(copy.footprint() <= 8192, "{}", copy.footprint());
}

#[test]
fn a_series_survives_its_trip_as_json() {
    let series = filled((0..5000).map(|second| at(second * 3, 1000 + second * 7 % 900)));
    let json = serde_json::to_string(&series).unwrap();
    assert!(json.len() < 8192, "{}", json.len());
    let mut back: Series = serde_json::from_str(&json).unwrap();
    assert_eq!(back, series);
    let mut series = series;
    for point in (5000..5100).map(|second| at(second * 3, 2000)) {
        assert_eq!(back.push(Segment(1), point), series.push(Segment(1), point));
    }
    assert_eq!(back, series);
}

proptest! {
    #[test]
    fn any_order_of_any_points_is_taken_without_harm(points in proptest::collection::vec((any::<u64>(), any::<u64>(), 0..3_u64), 0..200)) {
        let mut series = Series::default();
        for (moment, used, segment) in points {
            let point = Point { at: Moment(moment), used: Bytes(used), allocator: None };
            series.push(Segment(segment), point);
            prop_assert!(series.footprint() <= 8192);
            for scale in 0..SCALES.len() {
                let blocks: Vec<_> = series.ring(scale).unwrap().iter().collect();
                prop_assert!(blocks.windows(2).all(|pair| pair[0].index < pair[1].index));
            }
        }
        let json = serde_json::to_string(&series).unwrap();
        prop_assert_eq!(serde_json::from_str::<Series>(&json).unwrap().samples(), series.samples());
    }
}

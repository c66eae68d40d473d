use gpumem_engine::decision::StepKind;

use super::*;
use crate::plugin::demo::happening::What;

/// Places in the cast.
const GUARDED: usize = 0;
const TWIN: usize = 1;
const POOL: usize = 2;

fn told(seed: u64) -> Story {
    let mut story = Story::new(seed).unwrap_or_else(|error| panic!("{error}"));
    story.advance(LONG);
    story
}

#[test]
fn the_leaks_are_told_of_before_they_are_full_and_nobody_else_is_on_any_seed() {
    for seed in 1..=12 {
        let story = told(seed);
        for (place, outcome) in story.outcomes().iter().enumerate() {
            if place > TWIN {
                assert!(outcome.is_left_alone() && outcome.ran_out.is_empty(), "seed {seed}, {place}: {outcome:?}");
                continue;
            }
            assert!(!outcome.told.is_empty(), "seed {seed}, {place}: not told of");
            for told in &outcome.told {
                let ahead = told.ahead().unwrap_or(0);
                assert!((300..1800).contains(&ahead), "seed {seed}, {place}: {ahead} s before");
            }
        }
    }
}

#[test]
fn the_guarded_leak_saves_its_work_is_evicted_and_never_runs_out() {
    let story = told(1);
    let outcome = &story.outcomes()[GUARDED];
    let kinds: Vec<StepKind> = outcome.steps.iter().map(|(_, kind)| *kind).collect();
    assert_eq!(kinds, [StepKind::RequestCheckpoint, StepKind::Evict].repeat(2));
    assert_eq!((outcome.ran_out.len(), outcome.lost), (0, 0));
    let pods: Vec<&str> = story.happenings().iter().filter(|h| h.place == GUARDED).map(|h| h.pod.as_str()).collect();
    assert_ne!(pods.first(), pods.last(), "another pod has taken its place: {pods:?}");
}

#[test]
fn its_twin_that_nobody_guards_runs_out_when_it_was_said_and_loses_its_work() {
    let story = told(1);
    let outcome = &story.outcomes()[TWIN];
    assert!(outcome.steps.is_empty() && outcome.lost > 3600, "{outcome:?}");
    let foretold: Vec<i64> = outcome.told.iter().filter_map(|told| told.full).collect();
    assert_eq!(outcome.ran_out, foretold);
}

#[test]
fn the_pool_that_is_nearly_full_is_low_throughout() {
    let mut story = Story::new(1).unwrap_or_else(|error| panic!("{error}"));
    for at in (0..=LONG).step_by(60) {
        story.advance(at);
        let pool = story.container(POOL).unwrap_or_default();
        let share = pool.used_bytes.unwrap_or(0) as f64 / pool.capacity_bytes.unwrap_or(1) as f64;
        assert!(share > 0.91 && pool.level == Level::Low, "{at}: {share} {:?}", pool.level);
    }
}

#[test]
fn the_same_seed_tells_the_same_story_however_time_is_cut() {
    let mut cut = Story::new(3).unwrap_or_else(|error| panic!("{error}"));
    (0..=LONG).step_by(7).for_each(|at| cut.advance(at));
    cut.advance(LONG + 999);
    let whole = told(3);
    assert!(cut.is_over());
    assert_eq!((cut.happenings(), cut.outcomes()), (whole.happenings(), whole.outcomes()));
    assert_eq!(cut.seen().containers, whole.seen().containers);
    assert_ne!(whole.happenings(), told(4).happenings());
}

#[test]
fn nothing_happened_before_the_story_begins() {
    let story = Story::new(1).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((story.at(), story.happenings().len()), (0, 0));
    assert!(told(1).happenings().iter().all(|happening| happening.what != What::RanOut || happening.place == TWIN));
}

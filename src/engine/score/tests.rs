use proptest::prelude::*;

use super::*;

const HORIZON: Duration = Duration::from_mins(15);

/// Plays events of container `main` of pod `p`, and gives every judgement.
fn play(events: &[(i64, What)]) -> Vec<Judged> {
    let mut alarms = Vec::new();
    events.iter().flat_map(|(at, what)| take(&mut alarms, &event("p", *at, *what))).collect()
}

fn event(pod: &str, at: i64, what: What) -> Event {
    Event { pod: pod.to_owned(), container: "main".to_owned(), at: Stamp(at), what }
}

fn outcomes(events: &[(i64, What)]) -> Vec<Outcome> {
    play(events).into_iter().map(|judged| judged.outcome).collect()
}

const RAISED: What = What::Raised(HORIZON);

#[test]
fn an_oom_within_one_and_a_half_horizons_is_a_hit_with_its_lead() {
    let judged = play(&[(0, RAISED), (600, What::OutOfMemory)]);
    assert_eq!(judged, [Judged { outcome: Outcome::Hit, lead: Some(Duration::from_mins(10)) }]);
    assert_eq!(outcomes(&[(0, RAISED), (1350, What::OutOfMemory)]), [Outcome::Hit]);
    assert_eq!(outcomes(&[(0, RAISED), (1351, What::OutOfMemory)]), [Outcome::Early], "still up");
}

#[test]
fn a_warning_that_cleared_gets_its_credit_until_one_and_a_half_horizons_are_over() {
    assert_eq!(outcomes(&[(0, RAISED), (400, What::Cleared), (900, What::OutOfMemory)]), [Outcome::Hit]);
    assert_eq!(outcomes(&[(0, RAISED), (400, What::Cleared), (1300, What::Passed)]), []);
    assert_eq!(outcomes(&[(0, RAISED), (400, What::Cleared), (1400, What::Passed)]), [Outcome::FalseAlarm]);
    let late = [(0, RAISED), (400, What::Cleared), (1400, What::Passed), (1500, What::OutOfMemory)];
    assert_eq!(outcomes(&late), [Outcome::FalseAlarm, Outcome::Missed]);
    let late = [(0, RAISED), (400, What::Cleared), (1500, What::OutOfMemory)];
    assert_eq!(outcomes(&late), [Outcome::FalseAlarm, Outcome::Missed]);
}

#[test]
fn an_oom_without_a_warning_is_missed() {
    assert_eq!(outcomes(&[(0, What::OutOfMemory)]), [Outcome::Missed]);
}

#[test]
fn what_somebody_kept_away_is_no_false_alarm() {
    assert_eq!(outcomes(&[(0, RAISED), (60, What::Acted), (90, What::Stopped)]), [Outcome::Avoided]);
    assert_eq!(outcomes(&[(0, RAISED), (90, What::Stopped)]), [Outcome::Avoided], "a person stopped it");
    let cleared = [(0, RAISED), (60, What::Acted), (90, What::Cleared), (2000, What::Passed)];
    assert_eq!(outcomes(&cleared), [Outcome::Avoided]);
    assert_eq!(outcomes(&[(0, RAISED), (60, What::Acted), (90, What::OutOfMemory)]), [Outcome::Hit]);
}

#[test]
fn an_end_that_proves_nothing_is_unknown() {
    assert_eq!(outcomes(&[(0, RAISED), (60, What::Died)]), [Outcome::Unknown]);
    assert_eq!(outcomes(&[(0, RAISED), (9000, What::Gone)]), [Outcome::Unknown]);
    assert_eq!(outcomes(&[(0, RAISED), (60, What::Completed)]), [Outcome::FalseAlarm]);
}

#[test]
fn one_episode_counts_once_however_often_it_is_raised() {
    assert_eq!(
        outcomes(&[(0, RAISED), (10, RAISED), (20, What::Cleared), (30, RAISED), (90, What::OutOfMemory)]),
        [Outcome::Hit]
    );
}

#[test]
fn pods_do_not_share_warnings() {
    let mut alarms = Vec::new();
    take(&mut alarms, &event("a", 0, RAISED));
    assert_eq!(take(&mut alarms, &event("b", 60, What::OutOfMemory))[0].outcome, Outcome::Missed);
    assert_eq!(alarms.len(), 1);
    // Of the pod as a whole.
    let all = Event { container: String::new(), ..event("a", 70, What::Acted) };
    take(&mut alarms, &all);
    assert!(alarms[0].acted);
}

proptest! {
    #[test]
    fn every_warning_and_every_oom_is_judged_once(
        steps in proptest::collection::vec((0_i64..900, 0_usize..9, 0_u8..3), 1..200)
    ) {
        let (mut alarms, mut now, mut raised, mut ooms, mut judged) = (Vec::new(), 0, 0_usize, 0_usize, Vec::new());
        for (pause, what, pod) in steps {
            now += pause;
            let pod = format!("pod-{pod}");
            let what = [RAISED, What::Cleared, What::Acted, What::OutOfMemory, What::Completed, What::Stopped, What::Died,
                What::Gone, What::Passed][what];
            let before = alarms.len();
            let decided = take(&mut alarms, &event(&pod, now, what));
            // Those judged on the way are gone before a new one comes.
            if matches!(what, What::Raised(_)) && alarms.len() + decided.len() > before {
                raised += 1;
            }
            ooms += usize::from(what == What::OutOfMemory);
            judged.extend(decided);
            prop_assert!(alarms.len() <= MAX_OPEN);
        }
        let of = |wanted: &[Outcome]| judged.iter().filter(|one| wanted.contains(&one.outcome)).count();
        prop_assert!(of(&[Outcome::Hit, Outcome::Early, Outcome::Missed]) == ooms);
        prop_assert_eq!(judged.len() - of(&[Outcome::Missed]) + alarms.len(), raised);
    }
}

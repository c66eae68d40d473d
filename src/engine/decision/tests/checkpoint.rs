//! Request, wait, done, withdrawn; and suspended workloads that go on.

use super::ladder::{levered, listing, one, remembering, taken};
use super::*;
use crate::policy::{Checkpoint, CheckpointNeed, OnTimeout, Resume, Rung};

const TIMEOUT: Duration = Duration::from_mins(5);

fn asking(need: CheckpointNeed, on_timeout: OnTimeout) -> Policy {
    let checkpoint = Some(Checkpoint { timeout: TIMEOUT, need, on_timeout });
    listing(Actions { checkpoint, evict: true, ..Actions::default() })
}

fn required() -> Policy {
    asking(CheckpointNeed::Required, OnTimeout::Skip)
}

fn requested(pod: &str, left: i64) -> CheckpointState {
    CheckpointState::Requested { id: "r1".into(), pod: pod.into(), deadline: Stamp(NOW.0 + left) }
}

fn done(pod: &str) -> CheckpointState {
    CheckpointState::Done { id: "r1".into(), pod: pod.into() }
}

fn with(checkpoint: CheckpointState) -> View {
    View { checkpoint, ..levered() }
}

#[test]
fn a_checkpoint_is_asked_for_waited_for_and_then_the_pod_is_evicted() {
    let (policy, none) = (required(), Deeds::default());
    let act = one(&policy, &levered(), &none).unwrap();
    assert_eq!((act.step, act.blast), (Step::RequestCheckpoint { timeout: TIMEOUT }, 0));
    let until = Stamp(NOW.0 + 1);
    assert_eq!(taken(&policy, &with(requested("a", 1)), &none), Err(Hold::AwaitingCheckpoint { until }));
    assert_eq!(taken(&policy, &with(done("a")), &none), Ok(StepKind::Evict));
}

#[test]
fn when_nobody_answers_skip_leaves_the_pod_and_only_a_best_effort_may_proceed() {
    let none = Deeds::default();
    let late = with(requested("a", 0));
    for (need, on_timeout) in [
        (CheckpointNeed::Required, OnTimeout::Skip),
        (CheckpointNeed::Required, OnTimeout::Proceed),
        (CheckpointNeed::BestEffort, OnTimeout::Skip),
    ] {
        assert_eq!(taken(&asking(need, on_timeout), &late, &none), Err(Hold::CheckpointUnanswered));
    }
    let act = one(&asking(CheckpointNeed::BestEffort, OnTimeout::Proceed), &late, &none).unwrap();
    assert_eq!((act.step, act.passed), (Step::Evict, vec![(Rung::Checkpoint, Hold::CheckpointUnanswered)]));
}

#[test]
fn a_pod_that_has_no_time_for_its_checkpoint_is_not_evicted_to_save_it() {
    let none = Deeds::default();
    let at = |seconds| View { forecast: at_risk("a", "w", seconds).forecast, ..levered() };
    let needs = TIMEOUT + Duration::from_secs(30);
    let late = Hold::NoTimeForCheckpoint { needs };
    assert_eq!(taken(&required(), &at(60), &none), Err(late.clone()));
    assert_eq!(taken(&required(), &at(329), &none), Err(late));
    assert_eq!(taken(&required(), &at(330), &none), Ok(StepKind::RequestCheckpoint));
    let best = asking(CheckpointNeed::BestEffort, OnTimeout::Skip);
    assert_eq!(taken(&best, &at(119), &none), Ok(StepKind::Evict));
    assert_eq!(
        taken(&best, &at(120), &none),
        Ok(StepKind::RequestCheckpoint),
        "an answer may come long before the timeout"
    );
    let waiting = View { checkpoint: requested("a", 200), ..at(119) };
    assert_eq!(taken(&best, &waiting, &none), Ok(StepKind::Evict), "what follows has to begin now");
    let until = Stamp(NOW.0 + 200);
    assert_eq!(taken(&required(), &waiting, &none), Err(Hold::AwaitingCheckpoint { until }));
}

#[test]
fn a_request_and_an_answer_of_another_pod_are_nobodys() {
    let none = Deeds::default();
    for foreign in [requested("b", 100), requested("b", -100), done("b")] {
        assert_eq!(taken(&required(), &with(foreign.clone()), &none), Ok(StepKind::RequestCheckpoint));
        let calm = View { level: Level::Low, ..with(foreign) };
        assert_eq!(decide(NOW, &required(), &[calm], &none), [], "not ours to take back");
    }
}

#[test]
fn a_request_whose_annotations_were_removed_is_not_made_again() {
    let asked = |ago, pod| remembering([(ago, StepKind::RequestCheckpoint, PastResult::Harmless, pod)]);
    let until = Stamp(NOW.0 + 1);
    assert_eq!(taken(&required(), &levered(), &asked(299, "a")), Err(Hold::AwaitingCheckpoint { until }));
    assert_eq!(taken(&required(), &levered(), &asked(300, "a")), Err(Hold::CheckpointUnanswered));
    assert_eq!(taken(&required(), &levered(), &asked(300, "b")), Ok(StepKind::RequestCheckpoint), "the pod before it");
    let taken_back = remembering([
        (300, StepKind::RequestCheckpoint, PastResult::Harmless, "a"),
        (200, StepKind::WithdrawCheckpoint, PastResult::Harmless, "a"),
    ]);
    assert_eq!(taken(&required(), &levered(), &taken_back), Ok(StepKind::RequestCheckpoint));
}

#[test]
fn a_gang_is_asked_once() {
    let (mut first, mut second) = (levered(), levered());
    (second.pod.name, second.pod.uid) = ("b".into(), "b".into());
    first.checkpoint = requested("a", 100);
    let awaiting = Hold::AwaitingCheckpoint { until: Stamp(NOW.0 + 100) };
    for decision in decide(NOW, &required(), &[first, second.clone()], &Deeds::default()) {
        assert!(matches!(&decision, Decision::Hold { why, .. } if *why == awaiting), "{decision:?}");
    }
    let fresh = decide(NOW, &required(), &[levered(), second], &Deeds::default());
    assert!(matches!(fresh.as_slice(), [Decision::Act(_), Decision::Hold { why: Hold::InFlight, .. }]), "{fresh:?}");
}

#[test]
fn nobody_is_asked_while_nothing_could_follow() {
    let mut policy = required();
    policy.disruption.min_available = 3;
    assert_eq!(taken(&policy, &levered(), &Deeds::default()), Err(Hold::MinAvailable { remaining: 2, min: 3 }));
}

#[test]
fn a_checkpoint_is_worth_having_where_nothing_is_listed_after_it() {
    let mut policy = required();
    policy.actions.evict = false;
    policy.disruption.min_available = 3;
    assert_eq!(taken(&policy, &levered(), &Deeds::default()), Ok(StepKind::RequestCheckpoint));
    assert_eq!(taken(&policy, &with(done("a")), &Deeds::default()), Err(Hold::CheckpointTaken));
}

#[test]
fn what_follows_a_checkpoint_says_that_it_was_taken_and_not_that_it_was_passed_over() {
    let decisions = decide(NOW, &required(), &[with(done("a"))], &Deeds::default());
    let [Decision::Act(act)] = decisions.as_slice() else { panic!("{decisions:?}") };
    assert_eq!(act.step, Step::Evict);
    assert!(act.reason.ends_with("; the application saved its work before"), "{}", act.reason);
    assert!(!act.reason.contains("passed over"), "{}", act.reason);
}

#[test]
fn a_request_is_withdrawn_when_the_risk_is_over_and_not_before() {
    let withdrawn = |policy: &Policy, view: &View, deeds: &Deeds| {
        let all = decide(NOW, policy, std::slice::from_ref(view), deeds);
        all.iter()
            .any(|one| matches!(one, Decision::Act(Act { step: Step::WithdrawCheckpoint { id }, .. }) if id == "r1"))
    };
    let none = Deeds::default();
    for state in [requested("a", 100), requested("a", -100), done("a")] {
        for level in [Level::Unknown, Level::Elevated, Level::High] {
            assert!(!withdrawn(&required(), &View { level, ..with(state.clone()) }, &none));
        }
        let calm = View { level: Level::Low, ..with(state) };
        assert!(withdrawn(&required(), &calm, &none));
        let paused = Deeds { brake: Brake::Paused("night".into()), ..Deeds::default() };
        assert!(!withdrawn(&required(), &calm, &paused));
        let refused = remembering([(
            5,
            StepKind::WithdrawCheckpoint,
            PastResult::Refused(crate::pacing::Refusal::Throttled),
            "a",
        )]);
        assert!(!withdrawn(&required(), &calm, &refused));
    }
}

#[test]
fn a_policy_that_acts_no_more_takes_its_requests_back_and_evicts_nobody() {
    let observing = Policy { mode: Mode::Observe, ..required() };
    for view in [with(requested("a", 100)), with(done("a"))] {
        let decisions = decide(NOW, &observing, &[view], &Deeds::default());
        let [Decision::Act(act), Decision::Hold { why: Hold::ModeObserve, .. }] = decisions.as_slice() else {
            panic!("{decisions:?}")
        };
        assert_eq!((act.step.kind(), act.dry_run), (StepKind::WithdrawCheckpoint, false));
    }
}

#[test]
fn a_dry_run_walks_the_same_path_as_if_the_answer_came_in_time() {
    let policy = Policy { mode: Mode::DryRun, ..required() };
    let act = one(&policy, &levered(), &Deeds::default()).unwrap();
    assert_eq!((act.step.kind(), act.dry_run), (StepKind::RequestCheckpoint, true));
    let tried = |ago| {
        let mut deeds = remembering([(ago, StepKind::RequestCheckpoint, PastResult::Harmless, "a")]);
        deeds.histories.values_mut().flat_map(|history| &mut history.past).for_each(|past| past.dry_run = true);
        deeds
    };
    let until = Stamp(NOW.0 + 1);
    assert_eq!(taken(&policy, &levered(), &tried(299)), Err(Hold::AwaitingCheckpoint { until }));
    assert_eq!(taken(&policy, &levered(), &tried(300)), Ok(StepKind::Evict));
    assert_eq!(taken(&required(), &levered(), &tried(300)), Ok(StepKind::RequestCheckpoint), "a dry run asked nobody");
}

fn suspended(ago: i64, resume: Resume) -> Suspended {
    let View { pod, workload, container, device, .. } = levered();
    Suspended { pod, workload, container, device, resume, at: Stamp(NOW.0 - ago) }
}

#[test]
fn what_we_suspended_goes_on_when_its_cool_down_ends() {
    let suspension = |ago| remembering([(ago, StepKind::SuspendWorkload, PastResult::Disrupted, "a")]);
    let resumed = |policy: &Policy, one: &Suspended, deeds: &Deeds| match resumptions(
        NOW,
        policy,
        std::slice::from_ref(one),
        deeds,
    )
    .as_slice()
    {
        [Decision::Act(act)] => Ok((act.step.clone(), act.blast)),
        [Decision::Hold { why, .. }] => Err(why.clone()),
        other => panic!("{other:?}"),
    };
    let policy = listing(Actions { suspend_workload: Some(Resume::AfterCooldown), ..Actions::default() });
    let one = |ago| suspended(ago, Resume::AfterCooldown);
    let until = Stamp(NOW.0 + 1);
    assert_eq!(resumed(&policy, &one(899), &suspension(899)), Err(Hold::Cooldown { until }));
    assert_eq!(resumed(&policy, &one(900), &suspension(900)), Ok((Step::ResumeWorkload, 0)));
    assert_eq!(resumed(&policy, &one(899), &Deeds::default()), Err(Hold::Cooldown { until }), "its record is lost");
    let observing = Policy { mode: Mode::Observe, ..policy.clone() };
    assert_eq!(resumed(&observing, &one(900), &suspension(900)), Ok((Step::ResumeWorkload, 0)));
    let stopped = Deeds { brake: Brake::Paused("night".into()), ..suspension(900) };
    assert_eq!(resumed(&policy, &one(900), &stopped), Err(Hold::BrakePaused { why: "night".into() }));
    let manual = suspended(9000, Resume::Manual);
    assert_eq!(resumptions(NOW, &policy, &[manual], &suspension(9000)), [], "its owner lets it go on");
}

//! Which rung is taken, and why a stronger one is or is not.

use super::*;
use crate::attempts::Loop;
use crate::policy::{Checkpoint, CheckpointNeed, Enforcement, GrowthLimit, OnTimeout, Resume, Rung, Scale, ScaleVia};

pub fn scale(via: ScaleVia) -> Scale {
    Scale { via, step: 2, max_replicas: 5 }
}

/// A policy that lists `actions` in Enforce.
pub fn listing(actions: Actions) -> Policy {
    let growth = GrowthLimit { ceiling: None, per_minute: None, enforcement: Enforcement::Kernel };
    Policy { actions, growth: Some(growth), ..policy(Mode::Enforce) }
}

pub fn everything() -> Actions {
    Actions {
        notify: false,
        limit_growth: true,
        scale: Some(scale(ScaleVia::Replicas)),
        checkpoint: Some(Checkpoint {
            timeout: Duration::from_mins(5),
            need: CheckpointNeed::Required,
            on_timeout: OnTimeout::Skip,
        }),
        suspend_to_host: true,
        suspend_workload: Some(Resume::AfterCooldown),
        evict: true,
    }
}

/// A pod of a workload that has every lever, alone on its device, with an OOM in half an hour.
pub fn levered() -> View {
    let mut view = at_risk("a", "w", 1800);
    let levers = Levers { evict: Ok(Blast(1)), suspend: Ok(Blast(1)), scale: Ok(3), suspend_to_host: Ok(()) };
    view.standing = Ok(Standing { levers, ..standing(group()) });
    view.age = Some(Duration::from_hours(3));
    view
}

pub fn with_levers(change: impl FnOnce(&mut Levers)) -> View {
    let mut view = levered();
    change(&mut view.standing.as_mut().unwrap().levers);
    view
}

/// The only decision about a single view.
pub fn one(policy: &Policy, view: &View, deeds: &Deeds) -> Result<Act, Hold> {
    match decide(NOW, policy, std::slice::from_ref(view), deeds).as_slice() {
        [Decision::Act(act)] => Ok(act.clone()),
        [Decision::Hold { why, .. }] => Err(why.clone()),
        other => panic!("expected one decision, got {other:?}"),
    }
}

pub fn taken(policy: &Policy, view: &View, deeds: &Deeds) -> Result<StepKind, Hold> {
    one(policy, view, deeds).map(|act| act.step.kind())
}

/// Deeds that remember what was done to workload `w`, so many seconds ago.
pub fn remembering(past: impl IntoIterator<Item = (i64, StepKind, PastResult, &'static str)>) -> Deeds {
    let past = past.into_iter().map(|(ago, step, result, pod)| Past {
        step: Some(step),
        pod: Some(pod.into()),
        ..Past::new(Stamp(NOW.0 - ago), false, result)
    });
    let history = History { past: past.collect(), ..History::default() };
    Deeds { histories: [(WorkloadUid("w".into()), history)].into(), ..Deeds::default() }
}

fn no_lever(lever: &'static str) -> Hold {
    Hold::NoLever { lever, kind: "TrainJob".into() }
}

#[test]
fn a_rung_that_is_not_listed_is_never_taken() {
    let none = Deeds::default();
    let nothing = Actions::default();
    let all = everything();
    let alone = [
        (Actions { scale: all.scale, ..nothing }, StepKind::Scale),
        (Actions { checkpoint: all.checkpoint, ..nothing }, StepKind::RequestCheckpoint),
        (Actions { suspend_to_host: true, ..nothing }, StepKind::SuspendToHost),
        (Actions { suspend_workload: all.suspend_workload, ..nothing }, StepKind::SuspendWorkload),
        (Actions { evict: true, ..nothing }, StepKind::Evict),
    ];
    for (actions, step) in alone {
        assert_eq!(taken(&listing(actions), &levered(), &none), Ok(step));
    }
    let bare = with_levers(|levers| *levers = Levers { evict: Ok(Blast(1)), ..Levers::eviction_only("TrainJob") });
    let suspend =
        Actions { suspend_workload: all.suspend_workload, suspend_to_host: true, scale: all.scale, ..nothing };
    assert_eq!(
        taken(&listing(suspend), &bare, &none),
        Err(Hold::NoLever { lever: "suspend", kind: "TrainJob".into() }),
        "the lever of an eviction is there and eviction is not listed"
    );
    assert_eq!(decide(NOW, &listing(Actions { notify: false, ..nothing }), &[levered()], &none), []);
}

#[test]
fn the_mildest_rung_that_is_listed_is_taken() {
    let none = Deeds::default();
    let mut actions = everything();
    let mut took = Vec::new();
    // Each rung is struck off after it was taken.
    while let Ok(step) = taken(&listing(actions), &levered(), &none) {
        match step.rung() {
            Rung::Scale => actions.scale = None,
            Rung::Checkpoint => actions.checkpoint = None,
            Rung::SuspendToHost => actions.suspend_to_host = false,
            Rung::SuspendWorkload => actions.suspend_workload = None,
            Rung::Evict => actions.evict = false,
            Rung::Notify | Rung::LimitGrowth => panic!("no act"),
        }
        took.push(step.rung());
    }
    assert_eq!(took, [Rung::Scale, Rung::Checkpoint, Rung::SuspendToHost, Rung::SuspendWorkload, Rung::Evict]);
}

#[test]
fn a_rung_without_a_lever_is_passed_over_and_the_action_says_so() {
    let actions = Actions { suspend_workload: Some(Resume::Manual), evict: true, ..Actions::default() };
    let view = with_levers(|levers| levers.suspend = Err(no_lever("suspend")));
    let act = one(&listing(actions), &view, &Deeds::default()).unwrap();
    assert_eq!((act.step, act.passed), (Step::Evict, vec![(Rung::SuspendWorkload, no_lever("suspend"))]));
    assert_eq!(
        act.reason, "grows; passed over suspending the workload: a TrainJob has no lever to suspend",
        "what the person at 3 a.m. reads"
    );
}

#[test]
fn a_workload_that_cannot_be_scaled_is_not_scaled_and_nothing_else_is_done_instead() {
    let actions = Actions { scale: Some(scale(ScaleVia::Replicas)), ..Actions::default() };
    let view = with_levers(|levers| levers.scale = Err(no_lever("scale")));
    assert_eq!(taken(&listing(actions), &view, &Deeds::default()), Err(no_lever("scale")));
    let hpa = Hold::ReplicasOwnedByOther { by: "HorizontalPodAutoscaler web".into() };
    let view = with_levers(|levers| levers.scale = Err(hpa.clone()));
    assert_eq!(taken(&listing(actions), &view, &Deeds::default()), Err(hpa));
}

#[test]
fn a_budget_in_the_way_of_a_milder_rung_never_leads_to_a_stronger_one() {
    let actions = Actions { suspend_workload: Some(Resume::Manual), evict: true, ..Actions::default() };
    let view = with_levers(|levers| levers.suspend = Ok(Blast(8)));
    let mut policy = listing(actions);
    policy.disruption.min_available = 0;
    assert_eq!(
        taken(&policy, &view, &Deeds::default()),
        Err(Hold::BlastExceedsBudget { stops: 8, max: 1 }),
        "an eviction of one pod would have been within the budget"
    );
}

#[test]
fn an_action_that_would_end_after_the_oom_is_not_begun() {
    let actions = Actions { evict: true, ..Actions::default() };
    let at = |seconds| View { pod: levered().pod, standing: levered().standing, ..at_risk("a", "w", seconds) };
    let needs = Duration::from_secs(30);
    let late = Err(Hold::NoTime { rung: Rung::Evict, needs });
    assert_eq!(taken(&listing(actions), &at(29), &Deeds::default()), late);
    assert_eq!(taken(&listing(actions), &at(30), &Deeds::default()), Ok(StepKind::Evict));
    let host = Actions { suspend_to_host: true, ..Actions::default() };
    let late = Err(Hold::NoTime { rung: Rung::SuspendToHost, needs });
    assert_eq!(taken(&listing(host), &at(29), &Deeds::default()), late);
}

#[test]
fn on_a_shared_device_a_limit_that_holds_is_enough() {
    let actions = Actions { limit_growth: true, evict: true, ..Actions::default() };
    let shared = |limit| View { shared: true, room: Some(Bytes::gib(60)), limit, ..levered() };
    let none = Deeds::default();
    let holds = |gib| LimitState::Holds { bytes: Bytes::gib(gib) };
    assert_eq!(taken(&listing(actions), &shared(holds(60)), &none), Err(Hold::LimitHolds { bytes: Bytes::gib(60) }));
    assert_eq!(taken(&listing(actions), &shared(holds(61)), &none), Ok(StepKind::Evict), "beyond its room");
    let unknown = View { room: None, ..shared(holds(1)) };
    assert_eq!(taken(&listing(actions), &unknown, &none), Ok(StepKind::Evict), "nobody knows what is room");
    assert_eq!(taken(&listing(actions), &shared(LimitState::NotSet), &none), Ok(StepKind::Evict));
    let unsupported = LimitState::Unsupported { why: "R580".into() };
    assert_eq!(taken(&listing(actions), &shared(unsupported), &none), Ok(StepKind::Evict));
    let not_listed = Actions { limit_growth: false, ..actions };
    assert_eq!(taken(&listing(not_listed), &shared(holds(60)), &none), Ok(StepKind::Evict), "nobody asked for it here");
    let mut advice = listing(actions);
    advice.growth = advice.growth.map(|growth| GrowthLimit { enforcement: Enforcement::Advise, ..growth });
    assert_eq!(taken(&advice, &shared(holds(60)), &none), Ok(StepKind::Evict), "advice holds nobody back");
}

#[test]
fn alone_on_its_device_a_limit_is_no_help() {
    let actions = Actions { limit_growth: true, evict: true, ..Actions::default() };
    let limit = LimitState::Holds { bytes: Bytes::gib(60) };
    let view = View { limit, room: Some(Bytes::gib(80)), ..levered() };
    assert_eq!(taken(&listing(actions), &view, &Deeds::default()), Ok(StepKind::Evict));
    let only = Actions { limit_growth: true, ..Actions::default() };
    let held = taken(&listing(only), &view, &Deeds::default());
    assert!(matches!(held, Err(Hold::WouldNotHelp { rung: Rung::LimitGrowth, .. })), "{held:?}");
}

#[test]
fn a_limit_that_is_on_its_way_is_waited_for_and_not_for_ever() {
    let actions = Actions { limit_growth: true, evict: true, ..Actions::default() };
    let pending = |ago| View { shared: true, limit: LimitState::Pending { since: Stamp(NOW.0 - ago) }, ..levered() };
    assert_eq!(taken(&listing(actions), &pending(59), &Deeds::default()), Err(Hold::LimitPending));
    assert_eq!(taken(&listing(actions), &pending(60), &Deeds::default()), Ok(StepKind::Evict));
    let mut soon = pending(0);
    soon.forecast = at_risk("a", "w", 45).forecast;
    assert_eq!(taken(&listing(actions), &soon, &Deeds::default()), Ok(StepKind::Evict), "no time to wait");
}

#[test]
fn replicas_are_added_up_to_the_maximum_and_the_next_rung_waits_for_what_they_do() {
    let actions = Actions { scale: Some(scale(ScaleVia::Replicas)), evict: true, ..Actions::default() };
    let policy = listing(actions);
    let act = |from| one(&policy, &with_levers(|levers| levers.scale = Ok(from)), &Deeds::default()).unwrap();
    assert_eq!((act(3).step, act(3).blast), (Step::Scale { from: 3, to: 5 }, 0));
    assert_eq!(act(4).step, Step::Scale { from: 4, to: 5 });
    assert_eq!(act(5).passed, [(Rung::Scale, Hold::ScaleAtMaximum { max: 5 })]);
    let scaled = |ago, pod| remembering([(ago, StepKind::Scale, PastResult::Harmless, pod)]);
    let until = Stamp(NOW.0 + 1);
    assert_eq!(taken(&policy, &levered(), &scaled(299, "a")), Err(Hold::ScaleSettling { until }));
    assert_eq!(taken(&policy, &levered(), &scaled(299, "other")), Err(Hold::ScaleSettling { until }));
    let act = one(&policy, &levered(), &scaled(300, "a")).unwrap();
    assert_eq!((act.step, act.passed), (Step::Evict, vec![(Rung::Scale, Hold::DidNotHelp { rung: Rung::Scale })]));
    assert_eq!(taken(&policy, &levered(), &scaled(300, "other")), Ok(StepKind::Scale), "once for each pod at risk");
}

#[test]
fn scaling_out_is_no_help_in_a_restart_loop_and_none_in_the_last_minutes() {
    let policy = listing(Actions { scale: Some(scale(ScaleVia::Replicas)), evict: true, ..Actions::default() });
    let mut looping = levered();
    looping.forecast.class = Class::RestartLoop;
    assert_eq!(taken(&policy, &looping, &Deeds::default()), Ok(StepKind::Evict));
    let late = View { forecast: at_risk("a", "w", 299).forecast, ..levered() };
    assert_eq!(taken(&policy, &late, &Deeds::default()), Ok(StepKind::Evict));
}

#[test]
fn an_autoscaler_is_given_time_to_act_and_not_for_ever() {
    let policy = listing(Actions { scale: Some(scale(ScaleVia::Metrics)), evict: true, ..Actions::default() });
    let hpa = Hold::ReplicasOwnedByOther { by: "KEDA".into() };
    let high_for = |ago| {
        let view = with_levers(|levers| levers.scale = Err(hpa.clone()));
        View { high_since: Some(Stamp(NOW.0 - ago)), ..view }
    };
    let none = Deeds::default();
    let expected = Err(Hold::AutoscalerExpected { until: Stamp(NOW.0 + 1) });
    assert_eq!(taken(&policy, &high_for(299), &none), expected);
    let act = one(&policy, &high_for(300), &none).unwrap();
    assert_eq!((act.step, act.passed), (Step::Evict, vec![(Rung::Scale, Hold::DidNotHelp { rung: Rung::Scale })]));
    let unseen = View { high_since: None, ..high_for(0) };
    assert_eq!(taken(&policy, &unseen, &none), Err(Hold::AutoscalerExpected { until: Stamp(NOW.0 + 300) }));
}

#[test]
fn what_was_tried_on_this_pod_and_did_not_help_is_not_tried_again() {
    let actions = Actions { suspend_to_host: true, evict: true, ..Actions::default() };
    let moved = |pod| remembering([(2000, StepKind::SuspendToHost, PastResult::Disrupted, pod)]);
    let act = one(&listing(actions), &levered(), &moved("a")).unwrap();
    let passed = vec![(Rung::SuspendToHost, Hold::DidNotHelp { rung: Rung::SuspendToHost })];
    assert_eq!((act.step, act.passed), (Step::Evict, passed));
    assert_eq!(taken(&listing(actions), &levered(), &moved("other")), Ok(StepKind::SuspendToHost));
}

#[test]
fn a_pod_on_its_way_to_host_memory_is_waited_for_and_not_called_one_that_was_not_helped() {
    let actions = Actions { suspend_to_host: true, evict: true, ..Actions::default() };
    let moved = |ago| remembering([(ago, StepKind::SuspendToHost, PastResult::Disrupted, "a")]);
    let until = Stamp(NOW.0 + 1);
    assert_eq!(taken(&listing(actions), &levered(), &moved(119)), Err(Hold::HostMoveSettling { until }));
    let soon = View { forecast: at_risk("a", "w", 45).forecast, ..levered() };
    assert_eq!(taken(&listing(actions), &soon, &moved(119)), Err(Hold::HostMoveSettling { until }));
    assert_ne!(taken(&listing(actions), &levered(), &moved(120)), Err(Hold::HostMoveSettling { until }));
}

#[test]
fn a_pod_whose_replacement_would_run_out_as_quickly_is_left_alone() {
    let (secs, minutes) = (Duration::from_secs, Duration::from_mins);
    let mut policy = listing(Actions { evict: true, ..Actions::default() });
    policy.prediction.warm_up = minutes(5);
    let before = |used, age, pod: &str| {
        let past = Past {
            pod: Some(pod.into()),
            used: Some(used),
            age: Some(age),
            ..Past::new(Stamp(NOW.0 - 3000), false, PastResult::Disrupted)
        };
        let history = History { past: vec![past], ..History::default() };
        Deeds { histories: [(WorkloadUid("w".into()), history)].into(), ..Deeds::default() }
    };
    let view = View { age: Some(minutes(20)), forecast: at_risk("a", "w", 120).forecast, ..levered() };
    let same = before(Bytes::gib(70), minutes(20), "b");
    assert_eq!(taken(&policy, &view, &same), Err(Hold::WouldNotDiffer { used: Bytes::gib(70) }));
    let differs: [(&str, View, Deeds); 6] = [
        ("it held much less", view.clone(), before(Bytes::gib(50), minutes(20), "b")),
        ("it ran for much longer", view.clone(), before(Bytes::gib(70), minutes(29) + secs(59), "b")),
        (
            "both ran long enough",
            View { age: Some(minutes(40)), ..view.clone() },
            before(Bytes::gib(70), minutes(40), "b"),
        ),
        ("it may find a freer device", View { shared: true, ..view.clone() }, same.clone()),
        ("a limit holds", View { limit: LimitState::Holds { bytes: Bytes::gib(60) }, ..view.clone() }, same.clone()),
        ("it is the same pod", view.clone(), before(Bytes::gib(70), minutes(20), "a")),
    ];
    for (why, view, deeds) in differs {
        // A pod of 20 and one of almost 30 minutes are alike to a half.
        let expected = if why == "it ran for much longer" {
            Err(Hold::WouldNotDiffer { used: Bytes::gib(70) })
        } else {
            Ok(StepKind::Evict)
        };
        assert_eq!(taken(&policy, &view, &deeds), expected, "{why}");
    }
    let quicker = View { age: Some(minutes(16)), ..view };
    assert_eq!(taken(&policy, &quicker, &before(Bytes::gib(70), minutes(25), "b")), Ok(StepKind::Evict));
}

#[test]
fn a_container_younger_than_three_warm_ups_is_not_stopped_and_not_asked_to_save_its_work() {
    let least = Duration::from_mins(30);
    let young = |age| View { age, ..levered() };
    let checkpoint = everything().checkpoint.map(|how| Checkpoint { timeout: Duration::from_mins(1), ..how });
    for actions in [
        Actions { evict: true, ..Actions::default() },
        Actions { suspend_to_host: true, ..Actions::default() },
        Actions { suspend_workload: Some(Resume::Manual), ..Actions::default() },
        Actions { checkpoint, evict: true, ..Actions::default() },
    ] {
        let policy = listing(actions);
        let too_young = young(Some(least.saturating_sub(Duration::from_secs(1))));
        assert_eq!(taken(&policy, &too_young, &Deeds::default()), Err(Hold::TooYoung { least }));
        let unknown = taken(&policy, &young(None), &Deeds::default());
        assert!(matches!(unknown, Err(Hold::PodUnverified { .. })), "{unknown:?}");
        let old = View { forecast: at_risk("a", "w", 300).forecast, ..young(Some(least)) };
        assert!(taken(&policy, &old, &Deeds::default()).is_ok());
    }
    // A checkpoint that nothing follows harms nobody, and a shorter warm-up is the owner's word that it is over sooner.
    let save = listing(Actions { checkpoint: everything().checkpoint, ..Actions::default() });
    let minute = View { forecast: at_risk("a", "w", 10 * 60).forecast, ..young(Some(Duration::from_mins(1))) };
    assert_eq!(taken(&save, &minute, &Deeds::default()), Ok(StepKind::RequestCheckpoint));
    let mut quick = listing(Actions { evict: true, ..Actions::default() });
    quick.prediction.warm_up = Duration::from_secs(20);
    let near = View { forecast: at_risk("a", "w", 10).forecast, ..minute };
    let standing = near.standing.clone().map(|standing| Standing { grace: Duration::from_secs(1), ..standing });
    assert_eq!(taken(&quick, &View { standing, ..near }, &Deeds::default()), Ok(StepKind::Evict));
}

#[test]
fn a_forecast_that_looks_further_ahead_than_a_third_of_what_was_seen_stops_nobody() {
    let policy = listing(Actions { evict: true, ..Actions::default() });
    // One in ten OOMs comes after 24 minutes.
    let aged = |minutes| View {
        forecast: at_risk("a", "w", 12 * 60).forecast,
        age: Some(Duration::from_mins(minutes)),
        ..levered()
    };
    assert_eq!(taken(&policy, &aged(71), &Deeds::default()), Err(Hold::TooLittleSeen));
    assert_eq!(taken(&policy, &aged(72), &Deeds::default()), Ok(StepKind::Evict));
}

#[test]
fn what_gave_memory_back_by_itself_is_not_stopped_for_growing() {
    let gave = |bytes| {
        let mut view = levered();
        view.forecast.gave_back = bytes;
        view
    };
    let evict = listing(Actions { evict: true, ..Actions::default() });
    let more = Bytes(Bytes::gib(70).0 / 100 + 1);
    assert_eq!(taken(&evict, &gave(more), &Deeds::default()), Err(Hold::GivesBack { bytes: more }));
    assert_eq!(taken(&evict, &gave(Bytes::mib(700)), &Deeds::default()), Ok(StepKind::Evict), "an allocator's lumps");
    let everything = Policy { actions: Actions { limit_growth: false, scale: None, ..everything() }, ..evict };
    assert_eq!(taken(&everything, &gave(more), &Deeds::default()), Err(Hold::GivesBack { bytes: more }));
}

#[test]
fn on_a_crowded_device_attempts_go_on_with_longer_rests_until_they_are_used_up() {
    let policy = listing(Actions { evict: true, ..Actions::default() });
    let view = View { shared: true, ..levered() };
    let evictions =
        |ago: &[i64]| remembering(ago.iter().map(|ago| (*ago, StepKind::Evict, PastResult::Disrupted, "gone")));
    assert_eq!(taken(&policy, &view, &evictions(&[899])), Err(Hold::Cooldown { until: Stamp(NOW.0 + 1) }));
    assert_eq!(taken(&policy, &view, &evictions(&[900])), Ok(StepKind::Evict));
    assert_eq!(taken(&policy, &view, &evictions(&[5000, 1799])), Err(Hold::Cooldown { until: Stamp(NOW.0 + 1) }));
    assert_eq!(taken(&policy, &view, &evictions(&[5000, 1800])), Ok(StepKind::Evict));
    let exhausted = Err(Hold::AttemptsExhausted { attempts: 3 });
    assert_eq!(taken(&policy, &view, &evictions(&[86_399, 40_000, 30_000])), exhausted);
    assert_eq!(taken(&policy, &view, &evictions(&[86_400, 40_000, 30_000])), Ok(StepKind::Evict));
}

#[test]
fn nobody_at_rest_is_scaled_or_asked_either() {
    let rested = remembering([(100, StepKind::Evict, PastResult::Disrupted, "gone")]);
    let cooling = Err(Hold::Cooldown { until: Stamp(NOW.0 + 800) });
    for actions in [
        Actions { scale: Some(scale(ScaleVia::Replicas)), ..Actions::default() },
        Actions { checkpoint: everything().checkpoint, ..Actions::default() },
    ] {
        assert_eq!(taken(&listing(actions), &levered(), &rested), cooling);
    }
    let mut rolling = levered();
    rolling.standing.as_mut().unwrap().group.rolling_out = true;
    assert_eq!(taken(&listing(everything()), &rolling, &Deeds::default()), Err(Hold::RolloutInProgress));
}

#[test]
fn every_reason_is_one_word_and_every_sentence_ends_open() {
    // Reasons are labels of a metric and of conditions: CamelCase, no blanks; sentences are put after a colon.
    for hold in [
        Hold::BlastExceedsBudget { stops: 8, max: 1 },
        Hold::BreakerProbing,
        Hold::NothingListed,
        Hold::CheckpointUnanswered,
        Hold::NoTime { rung: Rung::Evict, needs: Duration::from_secs(30) },
        Hold::WouldNotDiffer { used: Bytes::gib(70) },
        Hold::TooYoung { least: Duration::from_mins(30) },
        Hold::TooLittleSeen,
        Hold::GivesBack { bytes: Bytes::gib(2) },
        Hold::AutoscalerExpected { until: NOW },
        Hold::LimitPending,
    ] {
        assert!(hold.reason().chars().all(char::is_alphanumeric), "{}", hold.reason());
        assert!(!hold.to_string().ends_with('.') && hold.to_string().len() > 20, "{hold}");
    }
}

#[test]
fn a_workload_in_a_restart_loop_is_not_evicted_again() {
    let mut evict = listing(Actions { evict: true, ..Actions::default() });
    evict.prediction.warm_up = Duration::from_mins(3);
    let known = Loop { container: "main".into(), count: 3, peak: Bytes::gib(75), since: Stamp(NOW.0 - 3600) };
    let looping = |restart_loop: Loop| {
        let history = History { restart_loop: Some(restart_loop), ..History::default() };
        Deeds { histories: [(WorkloadUid("w".into()), history)].into(), ..Deeds::default() }
    };
    let young = View { age: Some(Duration::from_mins(10)), forecast: at_risk("a", "w", 90).forecast, ..levered() };
    let hold = Hold::RestartLoop { ooms: 3, peak: Bytes::gib(75) };
    assert_eq!(taken(&evict, &young, &looping(known.clone())), Err(hold.clone()));
    assert_eq!(taken(&evict, &View { age: None, ..levered() }, &looping(known.clone())), Err(hold.clone()));
    assert!(hold.to_string().contains("3 times in a row at about 75.0 GiB"), "{hold}");
    // Another container's loop is none of its own, and what a leak takes hours for a restart buys again.
    let others = Loop { container: "sidecar".into(), ..known.clone() };
    assert_eq!(taken(&evict, &young, &looping(others)), Ok(StepKind::Evict));
    assert_eq!(taken(&evict, &levered(), &looping(known.clone())), Ok(StepKind::Evict));
    let mut steps = levered();
    steps.forecast.class = Class::Plateau;
    assert_eq!(taken(&evict, &steps, &looping(known.clone())), Err(hold));
    // Its suspension ends the loop.
    let suspend = Policy {
        actions: Actions { suspend_workload: Some(Resume::Manual), evict: true, ..Actions::default() },
        ..evict.clone()
    };
    assert_eq!(taken(&suspend, &young, &looping(known)), Ok(StepKind::SuspendWorkload));
}

//! Decisions one by one, and the invariants that hold over hours of them.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::forecast::{Class, Forecast, Outlook, TimeToOom, Unknown};
use crate::pacing::{Group, History, Past, PastResult, WorkloadUid};
use crate::policy::{Actions, Budget, Disruption, PolicyKey, Prediction};
use crate::quantity::Bytes;

mod budgets;
mod checkpoint;
#[path = "../../../tests/bench/histories/model/mod.rs"]
mod histories;
mod ladder;

const NOW: Stamp = Stamp(1_000_000);

fn standing(group: Group) -> Standing {
    Standing { group, ready: true, levers: Levers::eviction_only("Deployment"), grace: Duration::from_secs(30) }
}

fn policy(mode: Mode) -> Policy {
    Policy {
        key: PolicyKey { namespace: "ml".into(), name: "p".into() },
        mode,
        paused: Vec::new(),
        precedence: 0,
        containers: Vec::new(),
        budget: Budget::Device,
        headroom: Bytes::ZERO,
        prediction: Prediction::default(),
        actions: Actions { evict: true, ..Actions::default() },
        growth: None,
        disruption: Disruption { protect: Vec::new(), ..Disruption::default() },
    }
}

fn group() -> Group {
    Group { desired: 3, ready: 3, rolling_out: false, budgets: 1 }
}

/// A pod of workload `of` on its own device, with an OOM in `seconds`.
fn at_risk(name: &str, of: &str, seconds: u64) -> View {
    let secs = Duration::from_secs;
    View {
        pod: PodRef { namespace: "ml".into(), name: name.into(), uid: name.into(), node: "n".into() },
        workload: Workload {
            api_version: "apps/v1".into(),
            kind: "Deployment".into(),
            name: of.into(),
            uid: WorkloadUid(of.into()),
        },
        container: "main".into(),
        device: DeviceKey::whole(name),
        used: Bytes::gib(70),
        level: Level::High,
        forecast: Forecast {
            class: Class::Leak,
            growth: None,
            outlook: Outlook::Known {
                probability: 0.95,
                by_horizon: [(300, 0.9), (900, 0.95), (3600, 1.0)],
                time_to_oom: Some(TimeToOom { q10: secs(seconds / 2), q50: secs(seconds), q90: secs(seconds * 2) }),
            },
            gave_back: Bytes::ZERO,
            reason: "grows".into(),
        },
        sample_age: secs(2),
        standing: Ok(standing(group())),
        checkpoint: CheckpointState::NotRequested,
        notified: None,
        age: Some(Duration::from_hours(3)),
        high_since: None,
        shared: false,
        room: None,
        limit: LimitState::NotSet,
    }
}

fn evicted(decisions: &[Decision]) -> Vec<&str> {
    decisions
        .iter()
        .filter_map(|decision| match decision {
            Decision::Act(evict) => Some(evict.pod.name.as_str()),
            Decision::Notify(_) | Decision::Hold { .. } => None,
        })
        .collect()
}

/// The only hold of a single view.
fn held(policy: &Policy, view: View, deeds: &Deeds) -> Hold {
    match decide(NOW, policy, &[view], deeds).as_slice() {
        [Decision::Hold { why, .. }] => why.clone(),
        other => panic!("expected one hold, got {other:?}"),
    }
}

#[test]
fn the_soonest_oom_is_evicted_first_and_the_budget_holds_the_others() {
    let views = [at_risk("b", "w1", 900), at_risk("a", "w2", 60), at_risk("c", "w3", 300)];
    let decisions = decide(NOW, &policy(Mode::Enforce), &views, &Deeds::default());
    assert_eq!(evicted(&decisions), ["a"]);
    let holds: Vec<_> = decisions[1..]
        .iter()
        .map(|decision| match decision {
            Decision::Hold { pod, why, .. } => (pod.name.as_str(), why.clone()),
            other => panic!("{other:?}"),
        })
        .collect();
    let full = Hold::ConcurrentBudget { max: 1 };
    assert_eq!(holds, [("c", full.clone()), ("b", full)]);
}

#[test]
fn of_the_pods_on_one_device_only_one_is_evicted() {
    let mut wide = policy(Mode::Enforce);
    (wide.disruption.max_concurrent, wide.disruption.max_per_hour) = (10, 10);
    let mut views = [at_risk("a", "w1", 60), at_risk("b", "w2", 90), at_risk("c", "w3", 90)];
    views[1].device = views[0].device.clone();
    let decisions = decide(NOW, &wide, &views, &Deeds::default());
    assert_eq!(evicted(&decisions), ["a", "c"]);
    assert!(matches!(&decisions[1], Decision::Hold { why: Hold::DeviceBeingRelieved, .. }));
}

#[test]
fn two_pods_of_one_workload_are_never_in_flight_together() {
    let mut wide = policy(Mode::Enforce);
    (wide.disruption.max_concurrent, wide.disruption.max_per_hour) = (10, 10);
    let decisions = decide(NOW, &wide, &[at_risk("a", "w", 60), at_risk("b", "w", 90)], &Deeds::default());
    assert_eq!(evicted(&decisions), ["a"]);
    assert!(matches!(&decisions[1], Decision::Hold { why: Hold::InFlight, .. }));
}

#[test]
fn every_reason_to_hold_holds() {
    let enforce = policy(Mode::Enforce);
    let view = || at_risk("a", "w", 60);
    let with_group = |change: fn(&mut Group)| {
        let mut view = view();
        let mut group = group();
        change(&mut group);
        view.standing = Ok(standing(group));
        view
    };
    let none = Deeds::default();
    assert_eq!(held(&policy(Mode::Observe), view(), &none), Hold::ModeObserve);
    let paused = Policy { paused: vec!["release".into()], ..enforce.clone() };
    assert_eq!(held(&paused, view(), &none), Hold::PolicyPaused { why: "release".into() });
    let brake = Deeds { brake: Brake::Paused("night".into()), ..Deeds::default() };
    assert_eq!(held(&enforce, view(), &brake), Hold::BrakePaused { why: "night".into() });
    let broken = Deeds { brake: Brake::Unreadable("json".into()), ..Deeds::default() };
    assert_eq!(held(&enforce, view(), &broken), Hold::LedgerUnreadable { why: "json".into() });
    let unsettled = Deeds { brake: Brake::Unsettled("id".into()), ..Deeds::default() };
    assert_eq!(held(&enforce, view(), &unsettled), Hold::Unsettled { id: "id".into() });
    let refused =
        ladder::remembering([(9, StepKind::Evict, PastResult::Refused(crate::pacing::Refusal::BlockedByBudget), "a")]);
    let refusal = Some(crate::pacing::Refusal::BlockedByBudget);
    assert_eq!(held(&enforce, view(), &refused), Hold::BackOff { until: Stamp(NOW.0 + 1), refusal });
    let long_ago = ladder::remembering([(9000, StepKind::Evict, PastResult::Disrupted, "gone")]);
    let missing = with_group(|group| group.ready = 2);
    assert_eq!(held(&enforce, missing, &long_ago), Hold::ReplacementNotReady { ready: 2, desired: 3 });
    let young = Deeds { leading_since: Stamp(NOW.0 - 299), ..Deeds::default() };
    assert_eq!(held(&enforce, view(), &young), Hold::JustStarted { until: Stamp(NOW.0 + 1) });
    assert_eq!(held(&enforce, View { standing: Err(Hold::PodTerminating), ..view() }, &none), Hold::PodTerminating);
    let age = Duration::from_secs(31);
    assert_eq!(held(&enforce, View { sample_age: age, ..view() }, &none), Hold::StaleData { age });
    let mut easing = view();
    easing.forecast.outlook =
        Outlook::Known { probability: 0.7, by_horizon: [(300, 0.0), (900, 0.7), (3600, 1.0)], time_to_oom: None };
    assert_eq!(held(&enforce, easing.clone(), &none), Hold::RiskEasing);
    easing.forecast.outlook = Outlook::Unknown { why: Unknown::Stale };
    assert_eq!(held(&enforce, easing, &none), Hold::RiskEasing);
    assert_eq!(held(&enforce, with_group(|group| group.rolling_out = true), &none), Hold::RolloutInProgress);
    assert_eq!(held(&enforce, with_group(|group| group.budgets = 0), &none), Hold::NoBudget);
    assert_eq!(held(&enforce, with_group(|group| group.budgets = 2), &none), Hold::SeveralBudgets { budgets: 2 });
    assert_eq!(held(&enforce, with_group(|group| group.ready = 1), &none), Hold::MinAvailable { remaining: 0, min: 1 });
}

#[test]
fn a_pod_without_a_budget_is_evicted_where_the_policy_wants_none() {
    let mut lax = policy(Mode::Enforce);
    lax.disruption.require_budget = false;
    let mut view = at_risk("a", "w", 60);
    view.standing = Ok(standing(Group { budgets: 0, ..group() }));
    assert_eq!(evicted(&decide(NOW, &lax, &[view], &Deeds::default())), ["a"]);
}

#[test]
fn a_dry_run_is_decided_like_an_act_but_its_deeds_count_apart() {
    let mut deeds = Deeds::default();
    let past = Past::new(NOW, false, PastResult::Disrupted);
    deeds.histories.insert(WorkloadUid("w".into()), History { past: vec![past], ..History::default() });
    let views = [at_risk("a", "w", 60)];
    match decide(NOW, &policy(Mode::DryRun), &views, &deeds).as_slice() {
        [Decision::Act(evict)] => assert!(evict.dry_run),
        other => panic!("{other:?}"),
    }
    assert_eq!(held(&policy(Mode::Enforce), views[0].clone(), &deeds), Hold::Cooldown { until: Stamp(NOW.0 + 900) });
}

#[test]
fn a_risk_is_told_once_and_again_only_after_a_while() {
    let mut telling = policy(Mode::Observe);
    telling.actions = Actions { notify: true, ..Actions::default() };
    let told = |notified| {
        let view = View { notified, ..at_risk("a", "w", 60) };
        decide(NOW, &telling, &[view], &Deeds::default()).len()
    };
    assert_eq!(told(None), 1);
    assert_eq!(told(Some(NOW)), 0);
    assert_eq!(told(Some(Stamp(NOW.0 - 900))), 1);
}

#[test]
fn nothing_is_decided_about_pods_that_are_not_at_high_risk() {
    for level in [Level::Unknown, Level::Low, Level::Elevated] {
        let view = View { level, ..at_risk("a", "w", 60) };
        assert_eq!(decide(NOW, &policy(Mode::Enforce), &[view], &Deeds::default()), []);
    }
}

/// One second in the life of a small cluster whose workloads leak for ever.
#[derive(Clone, Debug)]
struct Second {
    pause: i64,
    at_risk: Vec<bool>,
    recovered: bool,
    restart: bool,
    ages: u64,
}

fn second() -> impl Strategy<Value = Second> {
    (1_i64..600, proptest::collection::vec(any::<bool>(), 8), any::<bool>(), proptest::bool::weighted(0.05), 0_u64..60)
        .prop_map(|(pause, at_risk, recovered, restart, ages)| Second { pause, at_risk, recovered, restart, ages })
}

proptest! {
    #[test]
    fn over_hours_and_restarts_no_budget_is_exceeded(
        max_concurrent in 1_u32..4, max_per_hour in 1_u32..5, max_attempts in 1_u32..4,
        steps in proptest::collection::vec(second(), 1..300),
    ) {
        let mut policy = policy(Mode::Enforce);
        policy.disruption.max_concurrent = max_concurrent;
        policy.disruption.max_per_hour = max_per_hour;
        policy.disruption.max_attempts = max_attempts;
        policy.prediction.clear_for = Duration::from_mins(1);
        let (mut now, mut deeds, mut evictions) = (NOW, Deeds::default(), Vec::<(Stamp, WorkloadUid)>::new());
        for step in steps {
            now = Stamp(now.0 + step.pause);
            if step.restart {
                // All that survives are the records.
                deeds = Deeds { leading_since: now, deeds: deeds.deeds, histories: deeds.histories, ..Deeds::default() };
            }
            if step.recovered {
                deeds.deeds.iter_mut().for_each(|deed| deed.state = DeedState::Settled);
            }
            // Four workloads of two pods each.
            let views: Vec<View> = (0..8_usize).filter(|pod| step.at_risk[*pod]).map(|pod| View {
                sample_age: Duration::from_secs(step.ages),
                ..at_risk(&format!("pod-{pod}-{}", now.0), &format!("w{}", pod / 2), 60 + pod as u64)
            }).collect();
            for decision in decide(now, &policy, &views, &deeds) {
                let Decision::Act(evict) = decision else { continue };
                prop_assert!(step.ages <= 30, "acted on old data");
                prop_assert!(now >= deeds.leading_since + policy.prediction.clear_for || deeds.leading_since == Stamp(0));
                prop_assert!(!evict.pod.uid.as_str().is_empty());
                prop_assert!(evict.fresh_until >= now);
                let uid = evict.workload.uid.clone();
                let unsettled: Vec<_> = deeds.deeds.iter().filter(|deed| deed.state != DeedState::Settled).collect();
                prop_assert!(unsettled.iter().all(|deed| deed.workload != uid), "two in flight on one workload");
                prop_assert!(unsettled.len() < max_concurrent as usize);
                let within = |span: i64| evictions.iter().filter(move |(at, _)| now.0 - at.0 < span);
                prop_assert!(within(3600).count() < max_per_hour as usize);
                prop_assert!(within(86_400).filter(|(_, of)| *of == uid).count() < max_attempts as usize);
                prop_assert!(within(900).all(|(_, of)| *of != uid), "cool-down ignored");
                evictions.push((now, uid.clone()));
                let view = views.iter().find(|view| view.pod.uid == evict.pod.uid).expect("it is one of them");
                deeds.deeds.push(Deed { state: DeedState::Recovering, ..deed(now, &policy, view, &evict) });
                let past = Past::new(now, false, PastResult::Disrupted);
                deeds.histories.entry(uid).or_default().past.push(past);
            }
        }
    }

    #[test]
    fn the_order_of_the_input_changes_nothing(
        seconds in proptest::collection::vec(1_u64..100, 1..8), turn in 0_usize..8
    ) {
        let mut wide = policy(Mode::Enforce);
        (wide.disruption.max_concurrent, wide.disruption.max_per_hour) = (3, 3);
        let views: Vec<View> =
            seconds.iter().enumerate().map(|(i, s)| at_risk(&format!("p{i}"), &format!("w{}", i % 3), *s)).collect();
        let mut turned = views.clone();
        turned.rotate_left(turn % views.len());
        let deeds = Deeds { histories: BTreeMap::new(), ..Deeds::default() };
        prop_assert_eq!(decide(NOW, &wide, &views, &deeds), decide(NOW, &wide, &turned, &deeds));
    }
}

#[test]
fn in_ten_thousand_histories_no_promise_is_broken() {
    let mut total = histories::Tally::default();
    for seed in 0..10_000 {
        match histories::play(seed) {
            Ok(tally) => total.add(tally),
            Err(broken) => panic!("history {seed}: {broken}"),
        }
    }
    // What never happens is not tested either.
    assert!(total.disruptions > 4_000 && total.requests > 2_000 && total.resumptions > 150, "{total:?}");
    assert!(total.crashes > 10_000 && total.conflicts > 1_000 && total.dry_runs > 1_000, "{total:?}");
}

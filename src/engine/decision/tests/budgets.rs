//! Budgets above all policies, blast radius, and the breaker, as decisions see them.

use super::ladder::{levered, listing, one, taken, with_levers};
use super::*;
use crate::pacing::{AdminBudgets, Allowance, Limit};
use crate::policy::Resume;

fn evicting() -> Policy {
    let mut policy = listing(Actions { evict: true, ..Actions::default() });
    (policy.disruption.max_concurrent, policy.disruption.max_per_hour) = (100, 100);
    policy.disruption.min_available = 0;
    policy
}

/// A deed of another policy, of `blast` pods, so many seconds ago.
fn other(blast: u32, ago: i64, namespace: &str, node: &str, state: DeedState) -> Deed {
    Deed {
        policy: PolicyKey { namespace: namespace.into(), name: "other".into() },
        namespace: namespace.into(),
        workload: WorkloadUid("elsewhere".into()),
        pod: "elsewhere".into(),
        node: node.into(),
        device: DeviceKey::whole("elsewhere"),
        step: StepKind::Evict,
        blast,
        at: Stamp(NOW.0 - ago),
        dry_run: false,
        state,
    }
}

fn with(admin: AdminBudgets, deeds: Vec<Deed>) -> Deeds {
    Deeds { admin, deeds, ..Deeds::default() }
}

fn at_once(max: u32) -> Allowance {
    Allowance { concurrent: Some(max), per_hour: None }
}

fn hourly(max: u32) -> Allowance {
    Allowance { concurrent: None, per_hour: Some(max) }
}

#[test]
fn the_administrators_budget_of_a_node_counts_the_pods_of_that_node() {
    let admin = AdminBudgets { node: at_once(2), ..AdminBudgets::default() };
    let on = |node| with(admin, vec![other(2, 100, "x", node, DeedState::Recovering)]);
    let limit = Limit::Concurrent(2);
    assert_eq!(taken(&evicting(), &levered(), &on("n")), Err(Hold::NodeBudget { node: "n".into(), limit }));
    assert_eq!(taken(&evicting(), &levered(), &on("m")), Ok(StepKind::Evict));
    let admin = AdminBudgets { node: hourly(1), ..AdminBudgets::default() };
    let settled = |ago| with(admin, vec![other(1, ago, "x", "n", DeedState::Settled)]);
    let limit = Limit::PerHour(1);
    assert_eq!(taken(&evicting(), &levered(), &settled(3599)), Err(Hold::NodeBudget { node: "n".into(), limit }));
    assert_eq!(taken(&evicting(), &levered(), &settled(3600)), Ok(StepKind::Evict));
}

#[test]
fn the_administrators_budget_of_a_namespace_counts_the_pods_of_that_namespace() {
    let admin = AdminBudgets { namespace: at_once(2), ..AdminBudgets::default() };
    let within = |namespace| with(admin, vec![other(2, 100, namespace, "m", DeedState::Recovering)]);
    let limit = Limit::Concurrent(2);
    let full = Err(Hold::NamespaceBudget { namespace: "ml".into(), limit });
    assert_eq!(taken(&evicting(), &levered(), &within("ml")), full);
    assert_eq!(taken(&evicting(), &levered(), &within("x")), Ok(StepKind::Evict));
}

#[test]
fn the_administrators_budget_of_the_cluster_counts_every_pod() {
    let admin = AdminBudgets { cluster: at_once(2), ..AdminBudgets::default() };
    let deeds = |blast| with(admin, vec![other(blast, 100, "x", "m", DeedState::Recovering)]);
    let full = |limit| Err(Hold::ClusterBudget { limit });
    assert_eq!(taken(&evicting(), &levered(), &deeds(2)), full(Limit::Concurrent(2)));
    assert_eq!(taken(&evicting(), &levered(), &deeds(1)), Ok(StepKind::Evict));
    let share = |pods| AdminBudgets { percent: Some(5), gpu_pods: pods, ..AdminBudgets::default() };
    let one = || vec![other(1, 100, "x", "m", DeedState::Recovering)];
    assert_eq!(taken(&evicting(), &levered(), &with(share(Some(39)), one())), full(Limit::Percent(5)));
    assert_eq!(taken(&evicting(), &levered(), &with(share(Some(40)), one())), Ok(StepKind::Evict));
    assert_eq!(taken(&evicting(), &levered(), &with(share(Some(3)), vec![])), Ok(StepKind::Evict), "one at least");
    assert_eq!(taken(&evicting(), &levered(), &with(share(None), vec![])), full(Limit::Percent(5)), "of how many?");
}

#[test]
fn the_most_restrictive_budget_wins() {
    let admin = AdminBudgets {
        cluster: at_once(10),
        namespace: at_once(5),
        node: hourly(10),
        percent: Some(50),
        gpu_pods: Some(100),
    };
    let deeds = with(admin, vec![other(3, 10, "x", "m", DeedState::Recovering)]);
    let gang = |blast| with_levers(|levers| levers.evict = Ok(Blast(blast)));
    assert_eq!(taken(&evicting(), &gang(5), &deeds), Ok(StepKind::Evict));
    let namespace = "ml".into();
    assert_eq!(
        taken(&evicting(), &gang(6), &deeds),
        Err(Hold::NamespaceBudget { namespace, limit: Limit::Concurrent(5) })
    );
}

#[test]
fn every_budget_counts_the_pods_that_stop_and_not_the_action() {
    let gang = |blast| with_levers(|levers| levers.suspend = Ok(Blast(blast)));
    let mut policy = evicting();
    policy.actions = Actions { suspend_workload: Some(Resume::Manual), ..Actions::default() };
    let act = one(&policy, &gang(8), &Deeds::default()).unwrap();
    assert_eq!((act.step.kind(), act.blast), (StepKind::SuspendWorkload, 8));
    let none = Deeds::default();
    let narrow = |change: fn(&mut Disruption)| {
        let mut policy = policy.clone();
        change(&mut policy.disruption);
        policy
    };
    let exceeds = Err(Hold::BlastExceedsBudget { stops: 8, max: 7 });
    assert_eq!(taken(&narrow(|budget| budget.max_concurrent = 7), &gang(8), &none), exceeds);
    assert_eq!(taken(&narrow(|budget| budget.max_per_hour = 7), &gang(8), &none), exceeds);
    let own = |state| {
        let mut deed = other(5, 100, "ml", "m", state);
        deed.policy = policy.key.clone();
        Deeds { deeds: vec![deed], ..Deeds::default() }
    };
    assert_eq!(
        taken(&narrow(|budget| budget.max_concurrent = 12), &gang(8), &own(DeedState::Recovering)),
        Err(Hold::ConcurrentBudget { max: 12 })
    );
    assert_eq!(
        taken(&narrow(|budget| budget.max_per_hour = 12), &gang(8), &own(DeedState::Settled)),
        Err(Hold::HourlyBudget { max: 12 })
    );
    let mut large = gang(8);
    large.standing.as_mut().unwrap().group = Group { desired: 9, ready: 9, ..group() };
    let kept = Err(Hold::MinAvailable { remaining: 1, min: 2 });
    assert_eq!(taken(&narrow(|budget| budget.min_available = 2), &large, &none), kept);
    let admin = AdminBudgets { cluster: at_once(7), ..AdminBudgets::default() };
    let full = Err(Hold::ClusterBudget { limit: Limit::Concurrent(7) });
    assert_eq!(taken(&policy, &gang(8), &with(admin, vec![])), full);
}

#[test]
fn a_lever_that_claims_to_stop_nobody_counts_as_one_pod() {
    let act = one(&evicting(), &with_levers(|levers| levers.evict = Ok(Blast(0))), &Deeds::default());
    assert_eq!(act.unwrap().blast, 1);
}

#[test]
fn budgets_above_policies_count_what_was_decided_earlier_in_the_same_list() {
    let admin = AdminBudgets { cluster: at_once(2), ..AdminBudgets::default() };
    let views = [at_risk("a", "w1", 60), at_risk("b", "w2", 90), at_risk("c", "w3", 120)];
    let decisions = decide(NOW, &evicting(), &views, &with(admin, vec![]));
    assert_eq!(evicted(&decisions), ["a", "b"]);
    assert!(matches!(decisions[2], Decision::Hold { why: Hold::ClusterBudget { .. }, .. }));
}

#[test]
fn dry_runs_use_up_budgets_of_their_own() {
    let admin = AdminBudgets { cluster: at_once(1), ..AdminBudgets::default() };
    let real = with(admin, vec![other(1, 100, "x", "m", DeedState::Recovering)]);
    let mut policy = evicting();
    policy.mode = Mode::DryRun;
    assert_eq!(taken(&policy, &levered(), &real), Ok(StepKind::Evict));
    assert!(taken(&evicting(), &levered(), &real).is_err());
}

#[test]
fn an_open_breaker_lets_nothing_through_and_a_half_open_one_a_single_action() {
    let why = "40 of 100 workloads".to_owned();
    let until = Stamp(NOW.0 + 1);
    let open = Deeds { brake: Brake::BreakerOpen { why: why.clone(), until }, ..Deeds::default() };
    assert_eq!(taken(&evicting(), &levered(), &open), Err(Hold::BreakerOpen { why, until }));
    let probing = Deeds { brake: Brake::HalfOpen { since: NOW }, ..Deeds::default() };
    let views = [at_risk("a", "w1", 60), at_risk("b", "w2", 90)];
    let decisions = decide(NOW, &evicting(), &views, &probing);
    assert_eq!(evicted(&decisions), ["a"]);
    assert!(matches!(decisions[1], Decision::Hold { why: Hold::BreakerProbing, .. }));
    let probed = with(AdminBudgets::default(), vec![other(1, 0, "x", "m", DeedState::Recovering)]);
    let probed = Deeds { brake: Brake::HalfOpen { since: NOW }, ..probed };
    assert_eq!(taken(&evicting(), &levered(), &probed), Err(Hold::BreakerProbing));
}

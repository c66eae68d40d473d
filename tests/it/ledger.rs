//! The memory of deeds: whatever happens to controllers, one decision leads to at most one eviction.

use http::Method;
use serde_json::json;

use crate::cluster::server::Crash;
use crate::cluster::{Cluster, Controller};

/// Two Deployments of two, all four pods at risk for ever, under one policy that may do one thing at a time.
fn leaking() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.policy("p", "train", |spec| {
        spec["disruption"]["maxConcurrent"] = json!(1);
        spec["disruption"]["maxPerHour"] = json!(1);
    });
    cluster.all_at_risk("train");
    cluster
}

/// How many requests the whole of one eviction takes.
async fn requests_of_an_eviction() -> usize {
    let mut cluster = leaking();
    Controller::start(&cluster, "c1").round(&mut cluster).await;
    assert_eq!(cluster.evicted(), 1);
    cluster.world().log.len()
}

#[tokio::test]
async fn a_crash_before_or_after_any_request_never_leads_to_a_second_eviction() {
    let requests = requests_of_an_eviction().await;
    assert!(requests > 10, "{requests}");
    for at in 0..requests {
        for crash in [Crash::Before, Crash::After] {
            let mut cluster = leaking();
            cluster.world().crash_at(at, crash);
            let died = Controller::start(&cluster, "c1").dies_within(&mut cluster, 1).await;
            assert!(died, "{at} {crash:?}");
            let before = cluster.evicted();
            assert!(before <= 1, "{at} {crash:?}");
            // The next leader meets the old pod, ending or not, and then a replacement that leaks as well.
            let mut next = Controller::start(&cluster, "c2");
            next.slow_rounds(&mut cluster, 8).await;
            cluster.replace_terminating("train");
            cluster.all_at_risk("train");
            next.slow_rounds(&mut cluster, 8).await;
            assert_eq!(cluster.evicted(), 1, "{at} {crash:?}: {before} before");
            assert_eq!(cluster.ledger("intents"), json!([]), "{at} {crash:?}");
            let attempts: Vec<i32> =
                cluster.profiles().iter().filter_map(|p| Some(p.status.as_ref()?.attempts)).collect();
            assert_eq!(attempts, [1], "{at} {crash:?}");
        }
    }
}

#[tokio::test]
async fn crashes_in_a_row_never_lead_to_a_second_eviction() {
    let requests = requests_of_an_eviction().await;
    for stride in [1, 3, 7] {
        let mut cluster = leaking();
        for (index, at) in (0..requests).step_by(stride).enumerate() {
            let crash = if index % 2 == 0 { Crash::After } else { Crash::Before };
            cluster.world().crash_at(at, crash);
            Controller::start(&cluster, &format!("c{index}")).dies_within(&mut cluster, 3).await;
        }
        cluster.world().crash_at(usize::MAX / 2, Crash::Before);
        Controller::start(&cluster, "last").slow_rounds(&mut cluster, 15).await;
        assert_eq!(cluster.evicted(), 1, "stride {stride}");
    }
}

#[tokio::test]
async fn two_controllers_that_both_think_they_lead_evict_once() {
    let mut cluster = leaking();
    let (mut one, mut two) = (Controller::start(&cluster, "c1"), Controller::start(&cluster, "c2"));
    for _ in 0..40 {
        cluster.advance(1);
        let (mut a, mut b) = (cluster.shadow(), cluster.shadow());
        tokio::join!(one.round(&mut a), two.round(&mut b));
    }
    assert_eq!(cluster.evicted(), 1);
}

#[tokio::test]
async fn an_action_whose_leader_lost_the_lease_meanwhile_is_dropped() {
    let mut cluster = leaking();
    let mut controller = Controller::start(&cluster, "c1");
    let lead = controller.lead.clone();
    cluster.world().before(Method::POST, "/configmaps", move |_| lead.send_modify(|leads| leads.is_leader = false));
    controller.rounds(&mut cluster, 3).await;
    assert_eq!(cluster.calls().len(), 0);
    Controller::start(&cluster, "c2").rounds(&mut cluster, 90).await;
    assert_eq!(cluster.evicted(), 1, "the new leader does it, once");
}

#[tokio::test]
async fn who_does_not_lead_asks_and_writes_nothing() {
    let mut cluster = leaking();
    let mut controller = Controller::start(&cluster, "c1");
    controller.loses_the_lease();
    controller.rounds(&mut cluster, 5).await;
    assert!(cluster.world().log.is_empty());
}

#[tokio::test]
async fn a_new_leader_waits_as_long_as_a_risk_takes_to_clear() {
    let mut cluster = leaking();
    cluster.edit_policy("p", |spec| spec["prediction"]["clear"]["forSeconds"] = json!(60));
    let mut controller = Controller::start(&cluster, "c1").leads_since_now(&cluster);
    controller.rounds(&mut cluster, 59).await;
    assert_eq!((cluster.evicted(), cluster.condition("p", "ActionAllowed")), (0, "False/JustStarted".to_owned()));
    controller.rounds(&mut cluster, 2).await;
    assert_eq!(cluster.evicted(), 1);
}

#[tokio::test]
async fn a_ledger_of_garbage_stops_all_actions_and_is_left_as_it_is() {
    for (key, garbage) in [("intents", "{"), ("intents", "[{\"id\":1}]"), ("deeds", "not json"), ("deeds", "[null]")] {
        let mut cluster = leaking();
        cluster.set_ledger(key, garbage);
        Controller::start(&cluster, "c1").rounds(&mut cluster, 10).await;
        assert_eq!(cluster.calls().len(), 0, "{garbage}");
        assert_eq!(cluster.condition("p", "ActionAllowed"), "False/LedgerUnreadable");
        assert_eq!(cluster.condition("p", "AtRisk"), "True/OutOfMemoryExpected", "observing goes on");
        let world = cluster.world();
        let ledger = world.get("", "configmaps", "gpumem", "ledger").unwrap();
        assert_eq!(ledger["data"], json!({key: garbage}));
    }
}

#[tokio::test]
async fn a_ledger_that_cannot_be_read_or_written_stops_all_actions() {
    let mut cluster = leaking();
    cluster.world().forbidden = Some("/configmaps".to_owned());
    Controller::start(&cluster, "c1").rounds(&mut cluster, 10).await;
    assert_eq!(cluster.calls().len(), 0);
    assert_eq!(cluster.condition("p", "ActionAllowed"), "False/LedgerUnreadable");
}

#[tokio::test]
async fn a_pause_in_the_ledger_holds_at_once_and_ends_with_the_key() {
    let mut cluster = leaking();
    cluster.set_ledger("pause", "incident 12");
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 5).await;
    assert_eq!(
        (cluster.calls().len(), cluster.condition("p", "ActionAllowed")),
        (0, "False/PausedByAdministrator".to_owned())
    );
    cluster.set_ledger("pause", "");
    controller.rounds(&mut cluster, 5).await;
    assert_eq!(cluster.evicted(), 1);
}

#[tokio::test]
async fn keys_of_others_in_the_ledger_survive_our_writes() {
    let mut cluster = leaking();
    cluster.set_ledger("note", "{\"by\":\"on call\"}");
    Controller::start(&cluster, "c1").rounds(&mut cluster, 5).await;
    assert_eq!(cluster.ledger("note"), json!({"by": "on call"}));
}

#[tokio::test]
async fn an_eviction_that_cannot_be_written_into_the_profile_is_not_forgotten() {
    let mut cluster = leaking();
    cluster.edit_policy("p", |spec| {
        spec["disruption"] = json!({"requireBudget": false, "minAvailable": 0, "maxPerHour": 10});
    });
    let mut controller = Controller::start(&cluster, "c1");
    cluster.world().before(Method::POST, "/eviction", |world| world.forbidden = Some("/gpumemoryprofiles".to_owned()));
    controller.rounds(&mut cluster, 5).await;
    cluster.replace_terminating("train");
    cluster.all_at_risk("train");
    controller.rounds(&mut cluster, 60).await;
    assert_eq!(cluster.evicted(), 1);
    assert_eq!(cluster.ledger("intents"), json!([]), "others are not kept waiting");
    assert!(cluster.ledger("deeds")[0]["unrecorded"].is_object());
    cluster.world().forbidden = None;
    controller.rounds(&mut cluster, 20).await;
    assert_eq!(cluster.profiles()[0].status.as_ref().unwrap().attempts, 1);
    assert!(cluster.ledger("deeds")[0]["unrecorded"].is_null());
    assert_eq!(cluster.evicted(), 1, "the cool-down holds");
}

#[tokio::test]
async fn nothing_is_ever_written_with_force() {
    let mut cluster = leaking();
    Controller::start(&cluster, "c1").rounds(&mut cluster, 20).await;
    assert!(cluster.world().forced.is_empty());
}

//! The call itself: what is sent, what each answer leads to, and what is looked at again just before.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::cluster::server::{World, failure};
use crate::cluster::{Cluster, Controller, POLICIES};

/// A Deployment of two whose first pod is at risk, under a policy that acts at once.
fn leaking() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.policy("p", "train", |_| {});
    cluster.report("train-0", 0.95);
    cluster
}

fn only_outcome(cluster: &Cluster) -> String {
    let actions = cluster.status("p").recent_actions;
    assert_eq!(actions.len(), 1, "{actions:?}");
    actions[0].outcome.clone()
}

#[tokio::test]
async fn the_call_carries_the_uid_where_the_server_reads_it() {
    let mut cluster = leaking();
    Controller::start(&cluster, "c1").round(&mut cluster).await;
    let calls = cluster.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].path, "/api/v1/namespaces/ml/pods/train-0/eviction");
    assert_eq!(calls[0].query, "");
    let uid = cluster.world().evicted[0].clone();
    assert_eq!(
        calls[0].body,
        json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": "train-0", "namespace": "ml"},
            "deleteOptions": {"preconditions": {"uid": uid}}
        })
    );
}

#[tokio::test]
async fn a_dry_run_sends_only_calls_that_change_nothing_and_lists_what_would_happen() {
    let mut cluster = leaking();
    cluster.edit_policy("p", |spec| spec["mode"] = json!("DryRun"));
    Controller::start(&cluster, "c1").rounds(&mut cluster, 120).await;
    assert!(cluster.calls().iter().all(|call| call.query.trim_matches('&') == "dryRun=All"));
    assert_eq!((cluster.calls().len(), cluster.evicted()), (1, 0), "the cool-down is played too");
    let action = &cluster.status("p").recent_actions[0];
    assert_eq!((action.outcome.as_str(), action.dry_run), ("DryRun", true));
    assert_eq!(cluster.condition("p", "ActionAllowed"), "False/Cooldown");
    assert_eq!(cluster.profiles()[0].status.as_ref().unwrap().attempts, 0, "nothing was disrupted");
}

#[tokio::test]
async fn a_dry_run_asks_the_budget_too() {
    let mut cluster = leaking();
    cluster.budget("b", "train", 2);
    cluster.edit_policy("p", |spec| spec["mode"] = json!("DryRun"));
    Controller::start(&cluster, "c1").round(&mut cluster).await;
    assert_eq!(only_outcome(&cluster), "BlockedByBudget");
}

fn answer(code: u16, details: Value) -> (StatusCode, Value) {
    let mut answer = failure(code, "Reason", "the server's words");
    answer.1["details"] = details;
    answer
}

#[tokio::test]
async fn every_answer_has_its_outcome_and_is_not_asked_for_again_at_once() {
    let causes = json!([{"reason": "DisruptionBudget", "message": "m"}]);
    let several = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
    for (given, outcome, allowed) in [
        (answer(429, json!({"causes": causes})), "BlockedByBudget", "False/BlockedByBudget"),
        (
            answer(429, json!({"causes": causes, "retryAfterSeconds": 10})),
            "BudgetNotObserved",
            "False/BudgetNotObserved",
        ),
        (answer(429, json!({"retryAfterSeconds": 1})), "Throttled", "False/Throttled"),
        (failure(500, "InternalError", several), "SeveralBudgets", "False/SeveralBudgets"),
        (answer(403, json!({"kind": "poddisruptionbudget"})), "BudgetInvalid", "False/BudgetInvalid"),
        (answer(403, json!({"kind": "pods"})), "NotPermitted", "False/NotPermitted"),
        (answer(400, json!({})), "Rejected", "False/Rejected"),
        (answer(409, json!({})), "Replaced", "False/BackOff"),
        (answer(404, json!({})), "Gone", "False/BackOff"),
    ] {
        let mut cluster = leaking();
        cluster.world().eviction_answers.push(given);
        let mut controller = Controller::start(&cluster, "c1");
        controller.round(&mut cluster).await;
        assert_eq!(only_outcome(&cluster), outcome);
        controller.rounds(&mut cluster, 9).await;
        assert_eq!((cluster.calls().len(), cluster.evicted()), (1, 0), "{outcome}: nothing within 10 s");
        assert_eq!(cluster.condition("p", "ActionAllowed"), allowed);
        assert_eq!(cluster.profiles()[0].status.as_ref().unwrap().attempts, 0, "{outcome} is no attempt");
        controller.rounds(&mut cluster, 3).await;
        assert_eq!((cluster.calls().len(), cluster.evicted()), (2, 1), "{outcome}: then the next");
        assert_eq!(cluster.ledger("intents"), json!([]));
    }
}

#[tokio::test]
async fn an_answer_that_does_not_say_what_happened_keeps_everybody_waiting_until_it_is_known() {
    let mut cluster = leaking();
    cluster.deployment("other", 2);
    cluster.policy("q", "other", |_| {});
    cluster.report("other-0", 0.95);
    cluster.change_report("other-0", |report| report.outlook = crate::cluster::risk(0.95, 400));
    cluster.world().eviction_answers.push(failure(504, "Timeout", "request did not complete"));
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 50).await;
    assert_eq!((only_outcome(&cluster).as_str(), cluster.calls().len()), ("Unclear", 1));
    assert_eq!(cluster.condition("q", "ActionAllowed"), "False/EarlierActionUnsettled");
    // A minute after it was recorded the call cannot be under way any more, and the pod is still there.
    controller.rounds(&mut cluster, 30).await;
    assert_eq!(cluster.status("p").recent_actions.iter().filter(|action| action.outcome == "Abandoned").count(), 1);
    assert_eq!(cluster.evicted(), 2);
}

#[tokio::test]
async fn an_eviction_whose_answer_was_lost_is_found_done() {
    let mut cluster = leaking();
    cluster.world().before(Method::POST, "/eviction", |world: &mut World| {
        world.edit("", "pods", "ml", "train-0", |pod| {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        });
    });
    cluster.world().eviction_answers.push(failure(500, "InternalError", "etcdserver: request timed out"));
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 10).await;
    assert_eq!(cluster.status("p").recent_actions[0].outcome, "FoundDone");
    assert_eq!(cluster.profiles()[0].status.as_ref().unwrap().attempts, 1, "it counts");
    assert_eq!(cluster.calls().len(), 1);
}

#[tokio::test]
async fn a_stateful_sets_new_pod_of_the_same_name_is_not_touched() {
    let mut cluster = Cluster::new();
    cluster.stateful_set("db", 2);
    cluster.policy("p", "db", |_| {});
    cluster.report("db-0", 0.95);
    // Between the last look and the call.
    cluster.world().before(Method::POST, "/eviction", |world| {
        world.edit("", "pods", "ml", "db-0", |pod| pod["metadata"]["uid"] = json!("successor"));
    });
    Controller::start(&cluster, "c1").round(&mut cluster).await;
    assert_eq!((only_outcome(&cluster).as_str(), cluster.evicted()), ("Replaced", 0));
}

type Change = fn(&mut World);

#[tokio::test]
async fn whatever_changes_after_the_decision_stops_the_call() {
    fn spec(world: &mut World, change: impl FnOnce(&mut Value)) {
        world.edit(POLICIES.0, POLICIES.1, "ml", "p", |policy| change(&mut policy["spec"]));
    }
    fn pod(world: &mut World, change: impl FnOnce(&mut Value)) {
        world.edit("", "pods", "ml", "train-0", change);
    }
    let changes: [(&str, Change); 11] = [
        ("False/OptedOut", |w| {
            pod(w, |pod| pod["metadata"]["annotations"] = json!({"gpumem.dev/actions": "Disabled"}));
        }),
        ("False/OptedOut", |w| {
            w.edit("", "namespaces", "", "ml", |n| n["metadata"]["annotations"] = json!({"gpumem.dev/actions": "off"}));
        }),
        ("False/PodTerminating", |w| {
            pod(w, |pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
        }),
        ("False/PodNotRunning", |w| pod(w, |pod| pod["status"]["phase"] = json!("Succeeded"))),
        ("False/ChangedBeforeCall", |w| pod(w, |pod| pod["metadata"]["uid"] = json!("successor"))),
        ("False/ChangedBeforeCall", |w| pod(w, |pod| pod["spec"]["nodeName"] = json!("elsewhere"))),
        ("False/ChangedBeforeCall", |w| w.remove("", "pods", "ml", "train-0")),
        ("False/ChangedBeforeCall", |w| spec(w, |spec| spec["disruption"]["maxPerHour"] = json!(9))),
        ("False/ModeObserve", |w| spec(w, |spec| spec["mode"] = json!("Observe"))),
        ("False/Paused", |w| spec(w, |spec| spec["paused"] = json!({"reasons": ["release"]}))),
        ("False/ChangedBeforeCall", |w| spec(w, |spec| spec["disruption"]["requireBudget"] = json!(true))),
    ];
    for (allowed, change) in changes {
        let mut cluster = leaking();
        // While the intent is recorded: after the decision, before the last look.
        cluster.world().before(Method::POST, "/configmaps", change);
        Controller::start(&cluster, "c1").round(&mut cluster).await;
        assert_eq!((cluster.calls().len(), cluster.evicted()), (0, 0), "{allowed}");
        assert_eq!(cluster.condition("p", "ActionAllowed"), allowed);
        assert_eq!(cluster.ledger("intents"), json!([]));
    }
}

#[tokio::test]
async fn a_ledger_that_changes_after_the_intent_was_recorded_stops_the_call() {
    let changes: [(&str, &str, &str); 3] = [
        ("False/PausedByAdministrator", "pause", "incident"),
        ("False/LedgerUnreadable", "deeds", "{"),
        // Another leader took the intent for abandoned.
        ("False/ChangedBeforeCall", "intents", "[]"),
    ];
    for (allowed, key, value) in changes {
        let mut cluster = leaking();
        cluster.world().before(Method::POST, "/configmaps", move |world| {
            world.before(Method::GET, "/configmaps/ledger", move |world| {
                world.edit("", "configmaps", "gpumem", "ledger", |ledger| ledger["data"][key] = json!(value));
            });
        });
        Controller::start(&cluster, "c1").round(&mut cluster).await;
        assert_eq!((cluster.calls().len(), cluster.evicted()), (0, 0), "{allowed}");
        assert_eq!(cluster.condition("p", "ActionAllowed"), allowed);
    }
}

#[tokio::test]
async fn a_policy_that_is_deleted_after_the_decision_acts_no_more() {
    let mut cluster = leaking();
    cluster
        .world()
        .before(Method::GET, "/gpumemorypolicies/p", |world| world.remove(POLICIES.0, POLICIES.1, "ml", "p"));
    Controller::start(&cluster, "c1").round(&mut cluster).await;
    assert_eq!(cluster.calls().len(), 0);
    assert_eq!(cluster.ledger("intents"), json!([]));
}

#[tokio::test]
async fn budgets_that_appear_after_the_decision_stop_the_call() {
    let mut cluster = leaking();
    cluster.budget("one", "train", 0);
    cluster.world().before(Method::GET, "/gpumemorypolicies/p", |world| {
        world.put(
            "policy",
            "poddisruptionbudgets",
            json!({
                "metadata": {"namespace": "ml", "name": "two"},
                "spec": {"minAvailable": 0, "selector": {"matchLabels": {"app": "train"}}}
            }),
        );
    });
    Controller::start(&cluster, "c1").round(&mut cluster).await;
    assert_eq!(cluster.calls().len(), 0);
    assert_eq!(cluster.condition("p", "ActionAllowed"), "False/SeveralBudgets");
}

#[tokio::test]
async fn an_api_server_that_fails_the_last_look_stops_the_call() {
    for part in ["/poddisruptionbudgets", "/namespaces/ml", "/gpumemorypolicies/p"] {
        let mut cluster = leaking();
        cluster.world().before(Method::POST, "/configmaps", move |world| world.broken = Some(part.to_owned()));
        Controller::start(&cluster, "c1").round(&mut cluster).await;
        assert_eq!(cluster.calls().len(), 0, "{part}");
    }
}

//! What stands above all policies: the administrator's limits, the rights that were granted, and the breaker.

use std::sync::Arc;

use gpumem::controller::context::Context;
use http::Method;
use serde_json::json;

use crate::cluster::{Cluster, Controller};

/// A Deployment of two whose first pod is at risk, under a policy that acts at once.
fn leaking() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.policy("p", "train", |_| {});
    cluster.report("train-0", 0.95);
    cluster
}

#[tokio::test]
async fn limits_hold_at_once_when_they_are_edited_and_end_with_the_next_edit() {
    for (limits, reason) in [
        (json!({"budgets": {"cluster": {"maxPerHour": 0}}}), "ClusterBudgetExhausted"),
        (json!({"budgets": {"namespace": {"maxConcurrent": 0}}}), "NamespaceBudgetExhausted"),
        (json!({"budgets": {"node": {"maxPerHour": 0}}}), "NodeBudgetExhausted"),
        (json!({"allowedNamespaces": ["other"]}), "NamespaceNotAllowed"),
        (json!({"budgets": {"clutser": {}}}), "LedgerUnreadable"),
        (json!([]), "LedgerUnreadable"),
    ] {
        let mut cluster = leaking();
        cluster.limit(&limits);
        let mut controller = Controller::start(&cluster, "c1");
        controller.rounds(&mut cluster, 5).await;
        assert_eq!(cluster.calls().len(), 0, "{limits}");
        assert_eq!(cluster.condition("p", "ActionAllowed"), format!("False/{reason}"));
        cluster.limit(&json!({"allowedNamespaces": ["ml"], "budgets": {"cluster": {"maxConcurrent": 1}}}));
        controller.rounds(&mut cluster, 5).await;
        assert_eq!(cluster.evicted(), 1, "{limits}");
    }
}

#[tokio::test]
async fn a_share_of_the_clusters_pods_limits_all_policies_together_and_is_at_least_one_pod() {
    let mut cluster = leaking();
    cluster.deployment("serve", 2);
    cluster.policy("q", "serve", |_| {});
    cluster.report("serve-0", 0.95);
    cluster.limit(&json!({"budgets": {"cluster": {"maxPercent": 5}}}));
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 30).await;
    assert_eq!(cluster.evicted(), 1);
    let held = ["p", "q"].map(|policy| cluster.condition(policy, "ActionAllowed"));
    assert!(held.contains(&"False/ClusterBudgetExhausted".to_owned()), "{held:?}");
}

#[tokio::test]
async fn limits_that_are_missing_or_cannot_be_read_stop_all_actions() {
    let mut cluster = leaking();
    cluster.limits = Some("limits".to_owned());
    Controller::start(&cluster, "c1").rounds(&mut cluster, 5).await;
    assert_eq!(
        (cluster.calls().len(), cluster.condition("p", "ActionAllowed")),
        (0, "False/LedgerUnreadable".to_owned())
    );
    cluster.limit(&json!({}));
    cluster.world().forbidden = Some("/configmaps/limits".to_owned());
    Controller::start(&cluster, "c2").rounds(&mut cluster, 5).await;
    assert_eq!(cluster.calls().len(), 0);
    assert_eq!(cluster.condition("p", "AtRisk"), "True/OutOfMemoryExpected", "observing goes on");
}

#[tokio::test]
async fn limits_that_are_edited_between_decision_and_call_stop_the_call() {
    for limits in
        [json!({"budgets": {"cluster": {"maxPerHour": 0}}}), json!({"allowedNamespaces": ["other"]}), json!(0)]
    {
        let mut cluster = leaking();
        cluster.limit(&json!({}));
        let text = limits.to_string();
        cluster.world().before(Method::POST, "/configmaps", move |world| {
            world.edit("", "configmaps", "gpumem", "limits", |object| object["data"]["limits.json"] = json!(text));
        });
        Controller::start(&cluster, "c1").round(&mut cluster).await;
        assert_eq!((cluster.calls().len(), cluster.ledger("intents")), (0, json!([])), "{limits}");
    }
}

#[tokio::test]
async fn a_policy_that_asks_for_more_than_is_granted_does_nothing_and_says_which_value_grants_it() {
    let mut cluster = leaking();
    cluster.edit_policy("p", |spec| spec["actions"] = json!([{"type": "Checkpoint"}, {"type": "Evict"}]));
    let mut controller = Controller::start(&cluster, "c1");
    let ctx: &mut Context = Arc::get_mut(&mut controller.ctx).expect("nobody else has it");
    ctx.granted = "Evict".parse().unwrap();
    controller.rounds(&mut cluster, 5).await;
    assert_eq!(cluster.calls().len(), 0, "not even what is granted: it was to come after the checkpoint");
    let status = cluster.status("p");
    let allowed = status.conditions.iter().find(|condition| condition.type_ == "ActionAllowed").unwrap();
    assert_eq!(allowed.reason, "NotPermitted");
    assert!(allowed.message.contains("rbac.actions.checkpoint"), "{}", allowed.message);
}

/// This many Deployments of one, each at risk, and as many that are well.
fn fleet(at_risk: usize, well: usize) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.policy("p", "x", |spec| {
        spec["target"] = json!({"podSelector": {"matchLabels": {"team": "a"}}});
        spec["disruption"]["maxConcurrent"] = json!(100);
    });
    for index in 0..at_risk + well {
        let (name, pod) = (format!("w{index}"), format!("w{index}-0"));
        cluster.deployment(&name, 1);
        cluster.world().edit("", "pods", "ml", &pod, |pod| pod["metadata"]["labels"]["team"] = json!("a"));
        cluster.report(&pod, if index < at_risk { 0.95 } else { 0.05 });
    }
    cluster
}

#[tokio::test]
async fn too_many_at_risk_at_once_open_the_breaker_which_outlives_the_controller() {
    let mut cluster = fleet(4, 6);
    Controller::start(&cluster, "c1").rounds(&mut cluster, 30).await;
    assert_eq!((cluster.calls().len(), cluster.condition("p", "ActionAllowed")), (0, "False/BreakerOpen".to_owned()));
    // It looks calm again, to another controller: the half hour is kept.
    for index in 1..4 {
        cluster.report(&format!("w{index}-0"), 0.05);
    }
    let mut next = Controller::start(&cluster, "c2");
    cluster.advance(1700);
    next.round(&mut cluster).await;
    assert_eq!(cluster.calls().len(), 0);
    cluster.advance(100);
    next.rounds(&mut cluster, 10).await;
    assert_eq!(cluster.evicted(), 1, "one as a probe");
    assert!(cluster.ledger("breaker")["open"].is_null(), "which went well");
}

#[tokio::test]
async fn few_at_risk_do_not_open_it_and_neither_does_a_breaker_that_is_off() {
    let mut cluster = fleet(3, 7);
    Controller::start(&cluster, "c1").rounds(&mut cluster, 12).await;
    assert!(cluster.evicted() >= 2);
    let mut cluster = fleet(5, 0);
    cluster.limit(&json!({"breaker": {"enabled": false}}));
    Controller::start(&cluster, "c1").rounds(&mut cluster, 12).await;
    assert!(cluster.evicted() >= 2);
}

#[tokio::test]
async fn actions_that_fail_for_our_own_reasons_open_it() {
    let mut cluster = fleet(3, 7);
    for _ in 0..20 {
        cluster.world().eviction_answers.push(crate::cluster::server::failure(403, "Forbidden", "not permitted"));
    }
    Controller::start(&cluster, "c1").slow_rounds(&mut cluster, 30).await;
    assert_eq!((cluster.calls().len(), cluster.condition("p", "ActionAllowed")), (4, "False/BreakerOpen".to_owned()));
}

//! The acting side from reports to status, over a stateful API server: what is evicted, what is not, and what people read.

use std::sync::Arc;
use std::time::Duration;

use gpumem::api::policy::Risk;
use gpumem::controller::observe::key_of;
use gpumem::controller::reconcile::Policies;
use gpumem_engine::forecast::Unknown;
use gpumem_engine::policy::Mode;
use http::Method;
use serde_json::json;

use crate::cluster::{Cluster, Controller, POLICIES, Report, owner, risk, unknown};

#[tokio::test]
async fn a_pod_at_risk_is_evicted_once_and_its_policy_tells_the_story() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.policy("p", "train", |spec| spec["actions"] = json!([{"type": "Notify"}, {"type": "Evict"}]));
    cluster.report("train-0", 0.95);
    cluster.report("train-1", 0.05);
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 20).await;

    assert_eq!(cluster.evicted(), 1);
    let status = cluster.status("p");
    assert_eq!(status.recent_actions.len(), 1);
    let action = &status.recent_actions[0];
    assert_eq!((action.pod.as_str(), action.outcome.as_str(), action.dry_run), ("train-0", "Succeeded", false));
    assert_eq!(action.workload, "Deployment/train");
    assert_eq!(status.targets.pods, 2);
    assert_eq!(cluster.condition("p", "Ready"), "True/Accepted");
    assert_eq!(cluster.condition("p", "TargetsResolved"), "True/Resolved");
    assert_eq!(cluster.condition("p", "DataFresh"), "True/Fresh");
    assert_eq!(cluster.events("Pod"), ["GpuMemoryRisk", "GpuMemoryEviction"]);
    assert_eq!(cluster.events("GpuMemoryPolicy"), ["GpuMemoryRisk", "GpuMemoryEviction"]);
    let profiles = cluster.profiles();
    assert_eq!(profiles.len(), 1);
    assert_eq!(profiles[0].status.as_ref().unwrap().attempts, 1);
    assert!(profiles[0].status.as_ref().unwrap().next_allowed_time.is_some());
    assert_eq!(cluster.ledger("intents"), json!([]));
    assert_eq!(cluster.ledger("deeds").as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn of_three_pods_at_risk_one_is_evicted_and_the_next_only_after_the_replacement_held() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 3);
    cluster.budget("b", "train", 2);
    cluster.policy("p", "train", |spec| spec["disruption"] = json!({"cooldownSeconds": 60, "maxPerHour": 10}));
    cluster.all_at_risk("train");
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 100).await;
    assert_eq!((cluster.evicted(), cluster.calls().len()), (1, 1));
    assert_eq!(cluster.condition("p", "ActionAllowed"), "False/ActionInFlight");
    cluster.replace_terminating("train");
    controller.rounds(&mut cluster, 55).await;
    assert_eq!(cluster.evicted(), 1, "the replacement is Ready for less than a minute");
    controller.rounds(&mut cluster, 15).await;
    assert_eq!(cluster.evicted(), 2);
}

#[tokio::test]
async fn without_a_budget_a_policy_that_wants_one_does_nothing_and_says_so() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.policy("p", "train", |spec| spec["disruption"] = json!({}));
    cluster.all_at_risk("train");
    Controller::start(&cluster, "c1").rounds(&mut cluster, 10).await;
    assert_eq!((cluster.calls().len(), cluster.condition("p", "ActionAllowed")), (0, "False/NoBudget".to_owned()));
}

#[tokio::test]
async fn a_budget_that_allows_nothing_is_asked_once_per_decision_with_growing_pauses() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.budget("b", "train", 2);
    cluster.policy("p", "train", |_| {});
    cluster.all_at_risk("train");
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 600).await;
    assert!((4..=8).contains(&cluster.calls().len()), "{}", cluster.calls().len());
    assert_eq!(cluster.condition("p", "ActionAllowed"), "False/BlockedByBudget");
    assert_eq!(cluster.status("p").recent_actions.len(), 1, "one line, not one for each call");
    // The budget is relaxed, and the next decision passes.
    cluster.budget("b", "train", 1);
    controller.rounds(&mut cluster, 310).await;
    assert_eq!(cluster.evicted(), 1);
}

#[tokio::test]
async fn a_pod_under_two_budgets_is_held_until_one_is_gone() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.budget("one", "train", 1);
    cluster.budget("two", "train", 1);
    cluster.policy("p", "train", |_| {});
    cluster.report("train-0", 0.95);
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 100).await;
    assert_eq!(
        (cluster.calls().len(), cluster.condition("p", "ActionAllowed")),
        (0, "False/SeveralBudgets".to_owned())
    );
    cluster.world().remove("policy", "poddisruptionbudgets", "ml", "two");
    controller.rounds(&mut cluster, 10).await;
    assert_eq!(cluster.evicted(), 1);
}

#[tokio::test]
async fn old_samples_are_no_knowledge_and_no_reason_to_act() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.policy("p", "train", |_| {});
    cluster.report("train-0", 0.95);
    cluster.change_report("train-0", |report| {
        report.age = Duration::from_mins(1);
        report.outlook = unknown(Unknown::Stale);
    });
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 5).await;
    assert_eq!(cluster.calls().len(), 0);
    assert_eq!(cluster.condition("p", "DataFresh"), "False/SamplesStale");
    assert_eq!(cluster.condition("p", "AtRisk"), "Unknown/NoForecast");
    assert_eq!(cluster.condition("p", "ActionAllowed"), "False/SamplesStale", "not True beside DataFresh False");
    // Even where a forecast is given, its samples' age counts.
    cluster.change_report("train-0", |report| report.outlook = risk(0.95, 300));
    controller.rounds(&mut cluster, 5).await;
    assert_eq!((cluster.calls().len(), cluster.condition("p", "ActionAllowed")), (0, "False/SamplesStale".to_owned()));
}

#[tokio::test]
async fn a_risk_that_swings_around_the_act_level_is_no_reason_to_act() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.policy("p", "train", |spec| spec["prediction"]["act"]["forSeconds"] = json!(120));
    let mut controller = Controller::start(&cluster, "c1");
    for round in 0..400 {
        cluster.report("train-0", if round % 2 == 0 { 0.79 } else { 0.81 });
        controller.round(&mut cluster).await;
    }
    assert_eq!(cluster.calls().len(), 0);
    assert_eq!(cluster.status("p").workloads[0].risk, Risk::Elevated);
}

#[tokio::test]
async fn a_leak_that_stops_before_the_call_is_left_alone() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.budget("b", "train", 2);
    cluster.policy("p", "train", |spec| spec["prediction"]["clear"]["forSeconds"] = json!(300));
    cluster.report("train-0", 0.95);
    let mut controller = Controller::start(&cluster, "c1").leads_since_now(&cluster);
    controller.rounds(&mut cluster, 100).await;
    cluster.report("train-0", 0.3);
    controller.rounds(&mut cluster, 295).await;
    assert_eq!((cluster.calls().len(), cluster.condition("p", "AtRisk")), (0, "True/OutOfMemoryExpected".to_owned()));
    controller.rounds(&mut cluster, 20).await;
    assert_eq!(cluster.condition("p", "AtRisk"), "False/NoRisk");
}

#[tokio::test]
async fn nothing_is_done_during_a_rollout() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.policy("p", "train", |_| {});
    cluster.report("train-0", 0.95);
    cluster.world().edit("apps", "deployments", "ml", "train", |d| d["status"]["observedGeneration"] = json!(0));
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 5).await;
    assert_eq!(
        (cluster.calls().len(), cluster.condition("p", "ActionAllowed")),
        (0, "False/RolloutInProgress".to_owned())
    );
    cluster.world().edit("apps", "deployments", "ml", "train", |d| d["status"]["observedGeneration"] = json!(1));
    controller.rounds(&mut cluster, 5).await;
    assert_eq!(cluster.evicted(), 1);
}

#[tokio::test]
async fn a_workload_that_leaks_again_and_again_rests_longer_and_is_given_up_after_three() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.policy("p", "train", |spec| {
        spec["disruption"]["cooldownSeconds"] = json!(60);
        spec["disruption"]["maxAttempts"] = json!(3);
    });
    let mut controller = Controller::start(&cluster, "c1");
    let mut moments = Vec::new();
    for _ in 0..1000 {
        cluster.replace_terminating("train");
        cluster.all_at_risk("train");
        let before = cluster.evicted();
        controller.round(&mut cluster).await;
        if cluster.evicted() > before {
            moments.push(cluster.stamp);
        }
    }
    let rests: Vec<i64> = moments.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(moments.len(), 3);
    assert!((60..75).contains(&rests[0]) && (120..135).contains(&rests[1]), "{rests:?}");
    assert_eq!(cluster.condition("p", "ActionsEffective"), "False/AttemptsExhausted");
    assert_eq!(cluster.condition("p", "ActionAllowed"), "False/AttemptsExhausted");
    // A day later it may be tried again.
    cluster.advance(86_400);
    cluster.all_at_risk("train");
    controller.rounds(&mut cluster, 3).await;
    assert_eq!(cluster.evicted(), 4);
}

type Change = fn(&mut serde_json::Value);

#[tokio::test]
async fn pods_that_others_answer_for_are_never_targets() {
    let mut cluster = Cluster::new();
    cluster.policy("p", "x", |_| {});
    let cases: [(&str, serde_json::Value, Change, &str); 8] = [
        ("bare", json!(null), |_| {}, "ProtectedBarePod"),
        ("daemon", owner("apps/v1", "DaemonSet", "d", "d1"), |_| {}, "ProtectedDaemonSet"),
        ("mirror", owner("v1", "Node", "node-a", "n1"), |_| {}, "ProtectedStaticPod"),
        ("job", owner("batch/v1", "Job", "gone", "j1"), |_| {}, "OwnerUnknown"),
        ("strange", owner("example.com/v1", "Robot", "r", "r1"), |_| {}, "UnsupportedOwner"),
        ("ghost", owner("apps/v1", "ReplicaSet", "gone", "g1"), |_| {}, "OwnerUnknown"),
        (
            "system",
            json!(null),
            |pod| pod["spec"]["priorityClassName"] = json!("system-node-critical"),
            "ProtectedSystemPod",
        ),
        (
            "static",
            json!(null),
            |pod| pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "1"}),
            "ProtectedStaticPod",
        ),
    ];
    for (name, owner, change, reason) in cases {
        cluster.reports.clear();
        cluster.pod(name, "x", owner, 10_000);
        cluster.world().edit("", "pods", "ml", name, change);
        cluster.report(name, 0.99);
        Controller::start(&cluster, "c1").rounds(&mut cluster, 3).await;
        assert_eq!(cluster.condition("p", "ActionAllowed"), format!("False/{reason}"), "{name}");
    }
    assert_eq!(cluster.calls().len(), 0);
}

#[tokio::test]
async fn a_chain_of_owners_is_believed_only_by_uid_and_a_circle_ends() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.policy("p", "train", |_| {});
    cluster.report("train-0", 0.95);
    // The Deployment was created anew: the ReplicaSet belongs to its predecessor.
    cluster.world().edit("apps", "deployments", "ml", "train", |d| d["metadata"]["uid"] = json!("another"));
    Controller::start(&cluster, "c1").rounds(&mut cluster, 3).await;
    assert_eq!((cluster.calls().len(), cluster.condition("p", "ActionAllowed")), (0, "False/OwnerUnknown".to_owned()));
    cluster.world().edit("apps", "deployments", "ml", "train", |d| {
        d["metadata"]["uid"] = json!("deployment-train");
        d["metadata"]["ownerReferences"] = json!([owner("apps/v1", "ReplicaSet", "train-rs", "rs-train")]);
    });
    Controller::start(&cluster, "c2").rounds(&mut cluster, 3).await;
    assert_eq!((cluster.calls().len(), cluster.condition("p", "ActionAllowed")), (0, "False/OwnerUnknown".to_owned()));
}

#[tokio::test]
async fn a_report_that_the_api_does_not_confirm_is_no_knowledge() {
    let changes: [fn(&mut Report); 4] = [
        |report| report.node = "node-b".to_owned(),
        |report| report.pod.uid = "made-up".into(),
        |report| report.pod.name = "nobody".to_owned(),
        |report| report.pod.owner.as_mut().unwrap().uid = "other".to_owned(),
    ];
    for change in changes {
        let mut cluster = Cluster::new();
        cluster.deployment("train", 2);
        cluster.policy("p", "train", |_| {});
        cluster.report("train-0", 0.95);
        cluster.change_report("train-0", change);
        Controller::start(&cluster, "c1").rounds(&mut cluster, 3).await;
        assert_eq!((cluster.calls().len(), cluster.condition("p", "AtRisk")), (0, "Unknown/NoForecast".to_owned()));
    }
}

#[tokio::test]
async fn of_two_policies_the_one_with_precedence_governs_and_the_other_says_so() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.policy("enforce", "train", |_| {});
    cluster.policy("observe", "train", |spec| {
        spec["mode"] = json!("Observe");
        spec["precedence"] = json!(100);
    });
    cluster.all_at_risk("train");
    Controller::start(&cluster, "c1").rounds(&mut cluster, 10).await;
    assert_eq!(cluster.calls().len(), 0);
    assert_eq!(cluster.condition("enforce", "TargetsResolved"), "False/Overlapped");
    assert_eq!(cluster.condition("enforce", "ActionAllowed"), "False/Overlapped", "nothing it could act on is its own");
    let status = cluster.status("enforce");
    let told = status.conditions.iter().find(|condition| condition.type_ == "TargetsResolved").unwrap();
    let way_out = "set its spec.precedence above that of observe, or delete observe or narrow its target";
    assert!(told.message.ends_with(way_out), "{}", told.message);
    assert_eq!(cluster.condition("observe", "TargetsResolved"), "True/Resolved");
    assert_eq!(cluster.condition("observe", "ActionAllowed"), "False/ModeObserve");
}

#[tokio::test]
async fn of_no_pod_nobody_says_that_an_action_is_allowed_and_of_a_healthy_one_it_is_said() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 1);
    cluster.policy("p", "train", |_| {});
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 1).await;
    assert_eq!(cluster.condition("p", "ActionAllowed"), "Unknown/NoTargets");
    cluster.report("train-0", 0.05);
    controller.rounds(&mut cluster, 1).await;
    assert_eq!(cluster.condition("p", "ActionAllowed"), "True/Allowed");
}

#[tokio::test]
async fn of_two_policies_of_equal_rank_neither_acts() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.policy("a", "train", |_| {});
    cluster.policy("b", "train", |_| {});
    cluster.all_at_risk("train");
    let mut controller = Controller::start(&cluster, "c1");
    controller.rounds(&mut cluster, 10).await;
    assert_eq!((cluster.calls().len(), cluster.condition("a", "ActionAllowed")), (0, "False/PoliciesTied".to_owned()));
    cluster.edit_policy("b", |spec| spec["precedence"] = json!(1));
    controller.rounds(&mut cluster, 10).await;
    assert_eq!(cluster.evicted(), 1);
    assert_eq!(cluster.status("b").recent_actions.len(), 1);
}

#[tokio::test]
async fn a_target_by_owner_takes_the_pods_below_it_and_no_others() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.deployment("other", 2);
    let target = |name: &str| json!({"ownerRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}});
    cluster.policy("p", "x", |spec| spec["target"] = target("train"));
    cluster.policy("q", "x", |spec| spec["target"] = target("missing"));
    cluster.all_at_risk("train");
    cluster.all_at_risk("other");
    Controller::start(&cluster, "c1").rounds(&mut cluster, 10).await;
    assert_eq!(cluster.evicted(), 1);
    assert_eq!(cluster.status("p").targets.pods, 2);
    assert_eq!(cluster.status("p").recent_actions[0].workload, "Deployment/train");
    assert_eq!(cluster.condition("q", "TargetsResolved"), "False/NoMatch");
}

#[tokio::test]
async fn a_spec_that_cannot_be_used_names_its_field_and_does_nothing() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.policy("p", "train", |spec| spec["prediction"]["horizonSeconds"] = json!(0));
    cluster.policy("q", "train", |spec| {
        spec["target"] = json!({"podSelector": {"matchExpressions": [{"key": "app", "operator": "In"}]}});
    });
    cluster.all_at_risk("train");
    Controller::start(&cluster, "c1").rounds(&mut cluster, 3).await;
    assert_eq!(cluster.calls().len(), 0);
    assert_eq!(cluster.condition("p", "Ready"), "False/InvalidSpec");
    assert_eq!(cluster.condition("q", "Ready"), "False/InvalidSpec");
    let message = |policy: &str| cluster.status(policy).conditions[0].message.clone();
    assert!(message("p").contains("spec.prediction.act.forSeconds"), "{}", message("p"));
    assert!(message("q").contains("spec.target.podSelector"), "{}", message("q"));
}

#[tokio::test]
async fn the_administrators_maximum_holds_whatever_a_policy_says() {
    for (max, calls) in [(Mode::Observe, 0), (Mode::DryRun, 1)] {
        let mut cluster = Cluster::new();
        cluster.deployment("train", 2);
        cluster.policy("p", "train", |_| {});
        cluster.report("train-0", 0.95);
        Controller::start_with(&cluster, "c1", max).rounds(&mut cluster, 10).await;
        assert_eq!((cluster.calls().len(), cluster.evicted()), (calls, 0));
    }
}

#[tokio::test]
async fn a_policy_that_observes_leaves_a_cluster_as_it_is() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.world().put(
        "gpumem.dev",
        "gpumemorypolicies",
        json!({
            "apiVersion": "gpumem.dev/v1alpha1", "kind": "GpuMemoryPolicy",
            "metadata": {"namespace": "ml", "name": "p", "uid": "p"},
            "spec": {"target": {"podSelector": {"matchLabels": {"app": "train"}}}}
        }),
    );
    cluster.all_at_risk("train");
    Controller::start(&cluster, "c1").rounds(&mut cluster, 300).await;
    let writes: Vec<String> =
        cluster.world().log.iter().filter(|seen| seen.is_write()).map(|seen| seen.path.clone()).collect();
    let is_ours = |path: &String| {
        path.ends_with("gpumemorypolicies/p/status")
            || path.contains("/gpumemoryprofiles/")
            || path.contains("events.k8s.io")
    };
    assert!(writes.iter().all(is_ours), "{writes:?}");
}

#[tokio::test]
async fn a_status_is_written_when_something_changes_and_not_each_second() {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.policy("p", "train", |spec| spec["mode"] = json!("Observe"));
    cluster.report("train-0", 0.95);
    cluster.report("train-1", 0.05);
    let mut controller = Controller::start(&cluster, "c1");
    for seconds in (600..1200).rev() {
        cluster.change_report("train-0", |report| report.outlook = risk(0.95, seconds));
        controller.round(&mut cluster).await;
    }
    let writes = cluster.world().requests(&Method::PATCH, "/status").len();
    assert!(writes <= 12, "{writes} writes in ten minutes of a countdown");
    let transitions = cluster.status("p").conditions[0].last_transition_time.clone();
    controller.rounds(&mut cluster, 10).await;
    assert_eq!(cluster.status("p").conditions[0].last_transition_time, transitions);
}

#[tokio::test]
async fn a_status_stays_small_however_many_workloads_there_are() {
    let mut cluster = Cluster::new();
    for index in 0..40 {
        let name = format!("w{index}");
        cluster.deployment(&name, 1);
        cluster
            .world()
            .edit("", "pods", "ml", &format!("{name}-0"), |pod| pod["metadata"]["labels"]["team"] = json!("a"));
        cluster.report(&format!("{name}-0"), 0.95);
    }
    cluster.policy("p", "x", |spec| {
        spec["target"] = json!({"podSelector": {"matchLabels": {"team": "a"}}});
        spec["disruption"] =
            json!({"requireBudget": false, "minAvailable": 0, "maxPerHour": 100, "maxConcurrent": 100});
    });
    // So many at once would open it.
    cluster.limit(&json!({"breaker": {"enabled": false}}));
    Controller::start(&cluster, "c1").rounds(&mut cluster, 120).await;
    let status = cluster.status("p");
    assert_eq!((status.workloads.len(), status.recent_actions.len(), status.targets.at_risk), (20, 10, 40));
    assert!((18..=26).contains(&cluster.evicted()), "one call in five seconds: {}", cluster.evicted());
}

#[tokio::test]
async fn the_loop_wakes_on_news_and_ends_when_told() {
    let cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.policy("p", "train", |_| {});
    let controller = Controller::start(&cluster, "c1");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(gpumem::controller::reconcile::run(Arc::clone(&controller.ctx), async {
        let _ = stopped.await;
    }));
    controller.news.send_modify(|news| *news += 1);
    let written = async {
        while cluster.condition("p", "Ready") == "absent" {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), written).await.expect("the status is written");
    assert_eq!(cluster.condition("p", "TargetsResolved"), "False/NoMatch");
    drop(stop);
    tokio::time::timeout(Duration::from_secs(30), running).await.expect("it ends").unwrap();
}

/// Policies as they are heard of, once there are so many.
async fn heard(policies: &mut Policies, count: usize) -> Vec<String> {
    let listening = async {
        while policies.state().len() != count {
            policies.changed().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), listening).await.expect("they are heard of");
    let mut names: Vec<String> = policies.state().iter().map(|policy| key_of(policy).name).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn a_watch_that_says_nothing_any_more_is_found_out_and_healed() {
    let cluster = Cluster::new();
    cluster.policy("a", "train", |_| {});
    let mut policies = Policies::anew_after(Duration::from_millis(20), cluster.api.client());
    assert_eq!(heard(&mut policies, 1).await, ["a"]);
    cluster.world().silent = true;
    cluster.policy("b", "train", |_| {});
    assert_eq!(heard(&mut policies, 2).await, ["a", "b"]);
    cluster.world().remove(POLICIES.0, POLICIES.1, "ml", "a");
    assert_eq!(heard(&mut policies, 1).await, ["b"], "what is gone is not kept");
    assert!(!policies.is_blind());
}

#[tokio::test]
async fn a_listing_that_is_never_answered_is_asked_for_again() {
    let cluster = Cluster::new();
    cluster.policy("a", "train", |_| {});
    cluster.world().hangs = Some((Method::GET, "/gpumemorypolicies".to_owned()));
    let mut policies = Policies::anew_after(Duration::from_millis(20), cluster.api.client());
    // That it begins to list, and then nothing for too long.
    while policies.changed().await {}
    assert_eq!(policies.state().len(), 0);
    cluster.world().hangs = None;
    assert_eq!(heard(&mut policies, 1).await, ["a"]);
}

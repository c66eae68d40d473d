//! What is sent, and what each answer to it leads to.

use std::sync::Arc;
use std::time::Duration;

use gpumem::controller::act::Patience;
use gpumem::controller::intent::Outcome;
use http::Method;
use serde_json::json;

use super::{CASES, Case, REQUEST, SUSPENDED, calls};
use crate::cluster::server::failure;
use crate::cluster::{Cluster, Controller};

#[tokio::test]
async fn every_action_is_one_call_and_says_what_it_did_what_follows_and_how_to_stop_it() {
    for (case, words) in [
        (Case::Evict, "its controller replaces it"),
        (Case::RequestCheckpoint, "gpumem.dev/actions: Disabled"),
        (Case::WithdrawCheckpoint, "taken back"),
        (Case::Suspend, "set the suspension back yourself"),
        (Case::Resume, "goes on now"),
        (Case::Scale, "3 replicas instead of 2"),
        (Case::Parallelism, "3 replicas instead of 2"),
    ] {
        let cluster = case.stage().await;
        let done = Controller::start(&cluster, "c1").perform(&cluster, case).await.unwrap();
        assert_eq!(done.outcome, case.done(), "{case:?}");
        assert!(done.record().message.contains(words), "{case:?}: {}", done.record().message);
        assert!(case.effect(&cluster) && case.is_remembered(&cluster), "{case:?}");
        assert_eq!((calls(&cluster, case), cluster.ledger("intents")), (1, json!([])), "{case:?}");
        assert!(cluster.world().forced.is_empty(), "{case:?}");
    }
}

#[tokio::test]
async fn every_patch_carries_uid_and_version_and_names_us() {
    for case in CASES.into_iter().filter(|case| *case != Case::Evict) {
        let cluster = case.stage().await;
        Controller::start(&cluster, "c1").perform(&cluster, case).await.unwrap();
        let (method, end) = case.call();
        let sent = cluster.world().log.iter().find(|seen| seen.is(&method, end)).cloned().unwrap();
        assert!(sent.body["metadata"]["uid"].is_string(), "{case:?}");
        assert!(sent.body["metadata"]["resourceVersion"].is_string(), "{case:?}");
        assert!(sent.query.contains("fieldManager=gpumem-controller"), "{case:?}: {}", sent.query);
        assert!(!sent.query.contains("force"), "{case:?}");
    }
}

#[tokio::test]
async fn a_request_says_until_when_and_a_suspension_says_whose_it_is() {
    let cluster = Case::RequestCheckpoint.stage().await;
    let done = Controller::start(&cluster, "c1").perform(&cluster, Case::RequestCheckpoint).await.unwrap();
    let annotations = cluster.world().get("", "pods", "ml", "train-0").unwrap()["metadata"]["annotations"].clone();
    assert_eq!(annotations[REQUEST], done.intent.id.as_str());
    assert_eq!(
        annotations["gpumem.dev/checkpoint-deadline"], "2027-01-15T08:10:00Z",
        "ten minutes after it was decided"
    );
    let cluster = Case::Suspend.stage().await;
    let done = Controller::start(&cluster, "c1").perform(&cluster, Case::Suspend).await.unwrap();
    let world = cluster.world();
    let job = world.get("batch", "jobs", "ml", "train").unwrap();
    assert_eq!(job["metadata"]["annotations"][SUSPENDED], done.intent.id.as_str());
}

#[tokio::test]
async fn a_dry_run_of_any_action_changes_nothing_and_is_remembered_as_one() {
    for case in [Case::Evict, Case::RequestCheckpoint, Case::Suspend, Case::Scale, Case::Parallelism] {
        let cluster = case.stage().await;
        let controller = Controller::start(&cluster, "c1");
        let done = controller.perform_as(&cluster, case, |act| act.dry_run = true).await.unwrap();
        assert_eq!(done.outcome, Outcome::WouldSucceed, "{case:?}");
        assert!(!case.effect(&cluster), "{case:?}");
        let (method, end) = case.call();
        let world = cluster.world();
        assert!(world.log.iter().filter(|seen| seen.is(&method, end)).all(|seen| seen.query.contains("dryRun=All")));
        drop(world);
        if case == Case::RequestCheckpoint {
            assert!(!case.is_remembered(&cluster), "nobody was asked");
        } else {
            assert!(case.is_remembered(&cluster) && cluster.ledger("deeds")[0]["dryRun"] == true, "{case:?}");
        }
    }
}

#[tokio::test]
async fn every_answer_to_every_call_has_its_outcome_and_is_asked_for_once() {
    for case in CASES {
        for (code, expected) in [
            (400, "Rejected"),
            (401, "Rejected"),
            (403, "NotPermitted"),
            (404, "Gone"),
            (409, "Withdrawn"),
            (422, "Rejected"),
            (429, "Throttled"),
            (500, "Unclear"),
            (503, "Unclear"),
            (504, "Unclear"),
        ] {
            let expected = match (case, code) {
                (Case::Evict, 409) => "Replaced",
                // With the pod, its request is gone.
                (Case::WithdrawCheckpoint, 404) => "TakenBack",
                _ => expected,
            };
            let mut cluster = case.stage().await;
            let (method, end) = case.call();
            cluster.world().given.push((method, end.to_owned(), failure(code, "Reason", "the server's words")));
            let controller = Controller::start(&cluster, "c1");
            let done = controller.perform(&cluster, case).await.unwrap();
            assert_eq!((done.outcome.name(), calls(&cluster, case)), (expected, 1), "{case:?} {code}");
            assert!(!case.effect(&cluster), "{case:?} {code}");
            let open = usize::from(expected == "Unclear");
            assert_eq!(cluster.ledger("intents").as_array().unwrap().len(), open, "{case:?} {code}");
            // A minute later no call can be under way, and its effect is not there.
            let mut next = Controller::start(&cluster, "c2");
            next.slow_rounds(&mut cluster, 8).await;
            assert_eq!((cluster.ledger("intents"), calls(&cluster, case)), (json!([]), 1), "{case:?} {code}");
            assert_eq!(
                case.is_remembered(&cluster),
                case == Case::WithdrawCheckpoint && code == 404,
                "{case:?} {code}"
            );
        }
    }
}

#[tokio::test]
async fn a_call_without_an_answer_is_given_up_and_keeps_everybody_waiting_until_it_is_known() {
    for case in CASES {
        let mut cluster = case.stage().await;
        let (method, end) = case.call();
        cluster.world().hangs = Some((method, end.to_owned()));
        let done = impatient(&cluster, Patience { call: Duration::from_millis(50), ..Patience::default() })
            .perform(&cluster, case)
            .await
            .unwrap();
        assert_eq!(done.outcome.name(), "Unclear", "{case:?}");
        assert_eq!(cluster.ledger("intents").as_array().unwrap().len(), 1, "{case:?}");
        cluster.world().hangs = None;
        let mut next = Controller::start(&cluster, "c2");
        cluster.advance(40);
        next.round(&mut cluster).await;
        assert_eq!(cluster.ledger("intents").as_array().unwrap().len(), 1, "{case:?}: it may still be under way");
        next.slow_rounds(&mut cluster, 3).await;
        assert_eq!((cluster.ledger("intents"), calls(&cluster, case)), (json!([]), 1), "{case:?}");
    }
}

#[tokio::test]
async fn a_last_look_that_fails_or_takes_too_long_stops_every_call() {
    for case in CASES {
        let mut parts = vec!["/configmaps/ledger", "/namespaces/ml"];
        let undoes = matches!(case, Case::WithdrawCheckpoint | Case::Resume);
        if !undoes {
            parts.push("/gpumemorypolicies/p");
            parts.push(if case == Case::Scale { "/pods/serve-0" } else { "/pods/train-0" });
        }
        match case {
            Case::Suspend | Case::Resume | Case::Parallelism => parts.push("/jobs/train"),
            Case::Scale => parts.push("/deployments/serve"),
            Case::WithdrawCheckpoint => parts.push("/pods/train-0"),
            Case::Evict | Case::RequestCheckpoint => {}
        }
        for part in parts {
            for is_slow in [false, true] {
                // Beyond the last look nobody waits for it: what is read there has deadlines of its own.
                if is_slow && part == "/configmaps/ledger" {
                    continue;
                }
                let cluster = case.stage().await;
                for method in [Method::PUT, Method::POST] {
                    cluster.world().before(method, "/configmaps", move |world| {
                        if is_slow {
                            world.hangs = Some((Method::GET, part.to_owned()));
                        } else {
                            world.broken = Some(part.to_owned());
                        }
                    });
                }
                impatient(&cluster, Patience { reads: Duration::from_millis(100), ..Patience::default() })
                    .perform(&cluster, case)
                    .await;
                assert_eq!(calls(&cluster, case), 0, "{case:?} {part} slow: {is_slow}");
            }
        }
    }
}

/// A controller that waits for no answer for long.
fn impatient(cluster: &Cluster, patience: Patience) -> Controller {
    let mut controller = Controller::start(cluster, "c1");
    let ctx = Arc::get_mut(&mut controller.ctx).expect("nobody else has it");
    ctx.patience = patience;
    controller
}

#[tokio::test]
async fn replicas_that_another_manager_owns_are_left_to_it() {
    let cluster = Case::Scale.stage().await;
    cluster.world().replicas_owner = Some("argocd-controller".to_owned());
    let done = Controller::start(&cluster, "c1").perform(&cluster, Case::Scale).await.unwrap();
    assert_eq!(done.outcome, Outcome::OwnedByOther { by: "argocd-controller".into() });
    assert!(done.record().message.contains("argocd-controller owns the replicas"), "{}", done.record().message);
    assert_eq!(calls(&cluster, Case::Scale), 1, "no retry, and never with force");
    assert!(!Case::Scale.effect(&cluster) && !Case::Scale.is_remembered(&cluster));
}

#[tokio::test]
async fn a_human_who_comes_first_wins() {
    type Change = fn(&Cluster);
    fn job(cluster: &Cluster, change: impl FnOnce(&mut serde_json::Value)) {
        cluster.world().edit("batch", "jobs", "ml", "train", change);
    }
    let changes: [(Case, Change); 8] = [
        (Case::Suspend, |c| job(c, |job| job["spec"]["suspend"] = json!(true))),
        (Case::Suspend, |c| job(c, |job| job["metadata"]["uid"] = json!("successor"))),
        (Case::Suspend, |c| c.world().remove("batch", "jobs", "ml", "train")),
        (Case::Parallelism, |c| job(c, |job| job["spec"]["parallelism"] = json!(7))),
        (Case::Parallelism, |c| job(c, |job| job["spec"]["parallelism"] = json!(-3))),
        (Case::Scale, |c| c.world().edit("apps", "deployments", "ml", "serve", |d| d["spec"]["replicas"] = json!(5))),
        // Somebody made our suspension his own: with another id, or by writing the field himself.
        (Case::Resume, |c| job(c, |job| job["metadata"]["annotations"][SUSPENDED] = json!("another"))),
        (Case::Resume, |c| {
            job(c, |job| {
                job["metadata"]["managedFields"] = json!([{
                    "manager": "kubectl-edit", "operation": "Update", "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:spec": {"f:suspend": {}}}
                }]);
            });
        }),
    ];
    for (index, (case, change)) in changes.into_iter().enumerate() {
        let cluster = case.stage().await;
        change(&cluster);
        let done = Controller::start(&cluster, "c1").perform(&cluster, case).await.unwrap();
        assert_eq!((done.outcome.name(), calls(&cluster, case)), ("Withdrawn", 0), "{index} {case:?}");
    }
}

#[tokio::test]
async fn a_pod_that_was_written_after_the_last_look_is_looked_at_first() {
    for case in [Case::RequestCheckpoint, Case::WithdrawCheckpoint] {
        let cluster = case.stage().await;
        let (method, end) = case.call();
        cluster.world().before(method, end, |world| {
            world.edit("", "pods", "ml", "train-0", |pod| {
                pod["metadata"]["annotations"]["gpumem.dev/actions"] = json!("Disabled");
            });
        });
        let done = Controller::start(&cluster, "c1").perform(&cluster, case).await.unwrap();
        assert_eq!(done.outcome.name(), "Withdrawn", "{case:?}");
        assert!(!case.effect(&cluster), "{case:?}");
    }
}

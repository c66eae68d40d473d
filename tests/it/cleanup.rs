//! What an uninstallation removes, and what it leaves.

use gpumem::controller::cleanup::{Args, clean};
use serde_json::json;

use crate::cluster::{Cluster, Controller, POLICIES};

fn args(keep_profiles: bool) -> Args {
    Args {
        namespace: "gpumem".to_owned(),
        tls_secret: "tls".to_owned(),
        ledger: "ledger".to_owned(),
        lease: "lease".to_owned(),
        controller_selector: Some("app=controller".to_owned()),
        keep_profiles,
        release_limits: false,
        hook: true,
    }
}

async fn used_cluster() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.deployment("train", 2);
    cluster.policy("p", "train", |_| {});
    cluster.report("train-0", 0.95);
    Controller::start(&cluster, "c1").rounds(&mut cluster, 3).await;
    for name in ["tls", "tls-authority", "of-somebody-else"] {
        cluster.world().put("", "secrets", json!({"metadata": {"namespace": "gpumem", "name": name}}));
    }
    cluster.world().put("coordination.k8s.io", "leases", json!({"metadata": {"namespace": "gpumem", "name": "lease"}}));
    cluster
}

#[tokio::test]
async fn cleaning_up_leaves_users_policies_and_what_belongs_to_others() {
    let cluster = used_cluster().await;
    assert_eq!(cluster.profiles().len(), 1);
    clean(&cluster.api.client(), &args(false)).await.unwrap();
    let world = cluster.world();
    let left = |group: &str, plural: &str| world.list(group, plural, "").len();
    assert_eq!(left("gpumem.dev", "gpumemoryprofiles"), 0);
    assert_eq!(left("", "configmaps"), 0);
    assert_eq!(left("coordination.k8s.io", "leases"), 0);
    assert_eq!(left("", "secrets"), 1);
    assert_eq!(left(POLICIES.0, POLICIES.1), 1);
}

#[tokio::test]
async fn profiles_can_be_kept_and_a_second_run_does_no_harm() {
    let cluster = used_cluster().await;
    for _ in 0..2 {
        clean(&cluster.api.client(), &args(true)).await.unwrap();
    }
    assert_eq!(cluster.profiles().len(), 1);
}

const SUSPENDED: &str = "gpumem.dev/suspended";

/// A cluster in which the operator suspended the Job `train`.
async fn suspended_job() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.job("train", 2);
    cluster.policy("p", "train", |spec| {
        spec["actions"] = json!([{"type": "SuspendWorkload"}]);
        spec["disruption"]["maxConcurrent"] = json!(2);
    });
    cluster.report("train-0", 0.95);
    Controller::start(&cluster, "c1").rounds(&mut cluster, 3).await;
    assert_eq!(job(&cluster)["spec"]["suspend"], true);
    cluster
}

fn job(cluster: &Cluster) -> serde_json::Value {
    cluster.world().get("batch", "jobs", "ml", "train").expect("the Job is there").clone()
}

#[tokio::test]
async fn what_the_operator_suspended_goes_on_when_it_is_uninstalled() {
    let cluster = suspended_job().await;
    for _ in 0..2 {
        clean(&cluster.api.client(), &args(false)).await.unwrap();
        let job = job(&cluster);
        assert_eq!(
            (&job["spec"]["suspend"], &job["metadata"]["annotations"][SUSPENDED]),
            (&json!(false), &json!(null))
        );
    }
}

#[tokio::test]
async fn a_suspension_that_its_owner_took_over_outlives_the_operator() {
    let cluster = suspended_job().await;
    cluster.world().edit("batch", "jobs", "ml", "train", |job| {
        job["metadata"]["annotations"][SUSPENDED] = json!("mine now");
    });
    clean(&cluster.api.client(), &args(false)).await.unwrap();
    assert_eq!(job(&cluster)["spec"]["suspend"], true);
}

#[tokio::test]
async fn somebody_who_writes_the_workload_meanwhile_and_a_missing_right_do_not_stop_an_uninstallation() {
    let cluster = suspended_job().await;
    cluster.world().before(http::Method::PATCH, "/jobs/train", |world| {
        world.edit("batch", "jobs", "ml", "train", |job| job["metadata"]["labels"] = json!({"by": "its owner"}));
    });
    clean(&cluster.api.client(), &args(false)).await.unwrap();
    assert_eq!(job(&cluster)["spec"]["suspend"], false, "looked at again, and let go on");

    let cluster = suspended_job().await;
    cluster.world().forbidden = Some("/jobs/train".to_owned());
    clean(&cluster.api.client(), &args(false)).await.unwrap();
    assert_eq!((cluster.ledger("deeds"), job(&cluster)["spec"]["suspend"].clone()), (json!([]), json!(true)));
}

#[tokio::test]
async fn with_the_server_away_the_ledger_is_kept_for_the_next_try() {
    let cluster = suspended_job().await;
    cluster.world().broken = Some("/jobs/train".to_owned());
    assert!(clean(&cluster.api.client(), &args(false)).await.is_err());
    assert_ne!(cluster.ledger("deeds"), json!([]));
    cluster.world().broken = None;
    clean(&cluster.api.client(), &args(false)).await.unwrap();
    assert_eq!(job(&cluster)["spec"]["suspend"], false);
}

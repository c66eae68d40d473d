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

//! The controller that leads: which it is, a signal for it, and what it says was done.

use std::time::Duration;

use anyhow::Result;
use gpumem::api::policy::ActionType;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};

use super::scene::Scene;
use super::until;
use super::world::World;
use crate::story::frame::RELEASE_NAMESPACE;

/// From the death of a leader until another one leads and has seen enough.
pub const TAKEOVER: Duration = Duration::from_mins(1);

/// Name and UID of the pod that holds the Lease.
pub async fn leader(world: &World) -> Result<(String, String)> {
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), RELEASE_NAMESPACE);
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), RELEASE_NAMESPACE);
    until("a leader", TAKEOVER, || async {
        let leases = leases.list(&ListParams::default()).await?.items;
        let holder = leases.into_iter().find_map(|lease| lease.spec?.holder_identity).filter(|name| !name.is_empty());
        let Some(holder) = holder else { return Ok(None) };
        let uid = pods.get_opt(&holder).await?.and_then(|pod| pod.metadata.uid);
        Ok(uid.map(|uid| (holder, uid)))
    })
    .await
}

/// Sends a signal to the process that leads, and says which pod that was.
pub async fn signal_leader(world: &World, signal: &str) -> Result<(String, String)> {
    until("a leader that runs", TAKEOVER, || async {
        let (name, uid) = leader(world).await?;
        Ok((world.signal("controller", Some(&uid), signal)? > 0).then_some((name, uid)))
    })
    .await
}

/// How often the policy says that it did this and it came to pass, whether it saw the answer or found it done.
pub async fn done(scene: &Scene<'_>, policy: &str, action: ActionType) -> Result<usize> {
    let actions = scene.actions(policy).await?.into_iter();
    Ok(actions
        .filter(|done| done.action == action && matches!(done.outcome.as_str(), "Succeeded" | "FoundDone"))
        .count())
}

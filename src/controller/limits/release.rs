//! The uninstallation's first step: nothing of ours may hold once the agents are gone.
//!
//! Flows in: the node objects. Flows out: each is told to release, and waited for until its agent has read back that nothing
//! holds. What cannot be waited for is named and left to its expiry: an uninstallation is never blocked.

use std::time::Duration;

use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;
use tracing::{info, warn};

use crate::api::names::{CLEANUP_MANAGER, GROUP, VERSION};
use crate::api::node::GpuMemoryNode;

/// Between two looks at what still holds.
const PAUSE: Duration = Duration::from_secs(1);

/// Tells every node to let go, and waits for at most `patience`; gives the nodes where something may still hold.
pub async fn release(client: &kube::Client, patience: Duration) -> Result<Vec<String>, kube::Error> {
    let api: Api<GpuMemoryNode> = Api::all(client.clone());
    let give_up = tokio::time::Instant::now() + patience;
    loop {
        let objects = match api.list(&ListParams::default()).await {
            Ok(objects) => objects.items,
            // Without the definition there is nothing to let go of.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut left = Vec::new();
        for object in objects {
            let Some(name) = object.metadata.name.clone() else { continue };
            if !object.spec.release {
                tell(&api, &name).await?;
                left.push(name);
            } else if object.status.is_some_and(|status| !status.limits.is_empty()) {
                left.push(name);
            }
        }
        if left.is_empty() {
            info!("nothing holds on any node");
            return Ok(left);
        }
        if tokio::time::Instant::now() >= give_up {
            warn!(nodes = left.join(", "), "these nodes have not reported that nothing holds; it ends by its expiry");
            return Ok(left);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn tell(api: &Api<GpuMemoryNode>, name: &str) -> Result<(), kube::Error> {
    let patch = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "GpuMemoryNode", "metadata": {"name": name},
        "spec": {"release": true},
    });
    api.patch(name, &PatchParams::apply(CLEANUP_MANAGER), &Patch::Apply(&patch)).await.map(|_| ())
}

/// Deletes every node object, after the controllers are gone.
pub async fn delete_all(client: &kube::Client) -> Result<(), kube::Error> {
    let api: Api<GpuMemoryNode> = Api::all(client.clone());
    let objects = match api.list_metadata(&ListParams::default()).await {
        Ok(objects) => objects.items,
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(error) => return Err(error),
    };
    for name in objects.into_iter().filter_map(|object| object.metadata.name) {
        match api.delete(&name, &DeleteParams::default()).await {
            Ok(_) => info!(name, "GpuMemoryNode deleted"),
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

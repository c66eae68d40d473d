//! The node's own `GpuMemoryNode`, watched by name.
//!
//! While the API is away the last object stays in force, and its entries end at their moment.

use std::sync::Arc;

use futures::TryStreamExt;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use tracing::{info, warn};

use super::Shared;
use crate::api::node::GpuMemoryNode;

/// Watches for ever. Failures are logged once each time they begin and tried again.
pub async fn watch(node: String, shared: Arc<Shared>) {
    let client = crate::agent::client::of_the_cluster().await;
    let api: Api<GpuMemoryNode> = Api::all(client);
    let settings = watcher::Config::default().fields(&format!("metadata.name={node}"));
    let mut events = std::pin::pin!(watcher::watcher(api, settings).default_backoff());
    let (mut found, mut failing) = (None, false);
    loop {
        match events.try_next().await {
            Ok(Some(event)) => {
                if std::mem::take(&mut failing) {
                    info!("watch of the node's limits works again");
                }
                match event {
                    Event::Init => found = None,
                    Event::InitApply(object) => found = Some(object).filter(|object| is_named(object, &node)).or(found),
                    Event::InitDone => shared.order(found.take()),
                    Event::Apply(object) if is_named(&object, &node) => shared.order(Some(object)),
                    Event::Delete(object) if is_named(&object, &node) => shared.order(None),
                    Event::Apply(_) | Event::Delete(_) => {}
                }
            }
            Ok(None) => return std::future::pending().await,
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    warn!(
                        error = &error as &dyn std::error::Error,
                        "watch of the node's limits fails; what holds stays until it expires"
                    );
                }
            }
        }
    }
}

/// The server filters by name; a node is never held to what was meant for another if it does not.
fn is_named(object: &GpuMemoryNode, node: &str) -> bool {
    object.metadata.name.as_deref() == Some(node)
}

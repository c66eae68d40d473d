//! Keeps the cooperative hook's files where they are wanted: one ConfigMap in every namespace that carries the label
//! `gpumem.dev/hook: Enabled`, and in no other.
//!
//! Flows in: labelled namespaces, and the ConfigMaps of that one name. Flows out: ConfigMaps made, brought up to this
//! release, and deleted. Pods mount it with `optional: true`, so its absence stops nobody. It writes and deletes only what
//! carries our own mark, reads no ConfigMap of another name, and only the leader does any of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tracing::{info, warn};

use super::health::Health;
use super::leader::Leadership;
use super::metrics::Metrics;
use crate::api::names::{FIELD_MANAGER, HOOK_CONFIG_MAP, LABEL_HOOK, LABEL_HOOK_OWNER};
use crate::text::chain;

/// Its files as they are in this release, by the names of the ConfigMap's keys.
pub const FILES: [(&str, &str); 6] = [
    ("sitecustomize.py", include_str!("../../hook/sitecustomize.py")),
    ("init.py", include_str!("../../hook/gpumem_hook/__init__.py")),
    ("commands.py", include_str!("../../hook/gpumem_hook/commands.py")),
    ("frameworks.py", include_str!("../../hook/gpumem_hook/frameworks.py")),
    ("oom.py", include_str!("../../hook/gpumem_hook/oom.py")),
    ("publish.py", include_str!("../../hook/gpumem_hook/publish.py")),
];

/// Between two looks. A namespace that is labelled has the hook within this; pods that start sooner run without.
const TURN: Duration = Duration::from_secs(15);
/// A turn is two lists and a few writes.
const OVERDUE: Duration = Duration::from_mins(15);
/// Name of the heartbeat.
const HOOK: &str = "hook";
/// Objects listed at a time.
const PAGE: u32 = 500;

/// Why the hook is not where it should be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The namespaces could not be listed.
    #[error("listing the namespaces with the label {LABEL_HOOK}")]
    Namespaces(#[source] Box<kube::Error>),
    /// The ConfigMaps could not be listed.
    #[error("listing the ConfigMaps {HOOK_CONFIG_MAP}")]
    ConfigMaps(#[source] Box<kube::Error>),
    /// One could not be written or deleted.
    #[error("{verb} ConfigMap {HOOK_CONFIG_MAP} in namespace {namespace}")]
    Write {
        /// What was tried.
        verb: &'static str,
        /// Where.
        namespace: String,
        /// Why not.
        source: Box<kube::Error>,
    },
}

impl Error {
    /// Name for a metric label.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Namespaces(_) => "namespaces",
            Self::ConfigMaps(_) => "config_maps",
            Self::Write { .. } => "write",
        }
    }
}

/// What a turn did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turned {
    /// Made, or brought up to this release.
    pub written: usize,
    /// Taken away.
    pub deleted: usize,
    /// Of our name and somebody else's: left alone.
    pub foreign: usize,
}

/// Keeps them until nobody leads any more.
pub async fn run(
    client: Client,
    owner: String,
    mut leadership: watch::Receiver<Leadership>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
) {
    loop {
        health.beat(HOOK, OVERDUE);
        if leadership.borrow().is_leader {
            match turn(&client, &owner).await {
                Ok(turned) if turned.foreign > 0 => {
                    metrics.failed(HOOK, "foreign");
                    warn!(
                        count = turned.foreign,
                        name = HOOK_CONFIG_MAP,
                        "ConfigMaps of the hook's name that are not ours are left alone"
                    );
                }
                Ok(_) => {}
                Err(error) => {
                    metrics.failed(HOOK, error.kind());
                    warn!(error = chain(&error), "the hook could not be kept in every namespace");
                }
            }
        }
        let led = leadership.borrow_and_update().is_leader;
        tokio::select! {
            () = tokio::time::sleep(TURN) => {}
            // A new leader looks at once.
            changed = leadership.wait_for(|now| now.is_leader != led) => if changed.is_err() { return },
        }
    }
}

/// One look at everything. One namespace that fails (it may be ending) does not keep the others from theirs; the first
/// failure is given back.
pub async fn turn(client: &Client, owner: &str) -> Result<Turned, Error> {
    let wanted = labelled(client).await?;
    let mut there: BTreeMap<String, ConfigMap> = BTreeMap::new();
    for map in config_maps(client).await? {
        if let Some(namespace) = map.namespace() {
            there.insert(namespace, map);
        }
    }
    let mut turned = Turned::default();
    let mut failed = None;
    for namespace in &wanted {
        match there.get(namespace) {
            Some(map) if !is_ours(map, owner) => turned.foreign += 1,
            Some(map) if map.data.as_ref() == Some(&files()) => {}
            _ => match write(client, namespace, owner).await {
                Ok(()) => turned.written += 1,
                Err(error) => failed = failed.or(Some(error)),
            },
        }
    }
    for (namespace, map) in &there {
        if !wanted.contains(namespace) && is_ours(map, owner) {
            match delete(client, namespace, map).await {
                Ok(()) => turned.deleted += 1,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
    }
    failed.map_or(Ok(turned), Err)
}

/// Takes them all away, wanted or not: the end of an installation. Gives how many there were.
pub async fn remove_all(client: &Client, owner: &str) -> Result<usize, Error> {
    let mut removed = 0;
    for map in config_maps(client).await? {
        if let Some(namespace) = map.namespace().filter(|_| is_ours(&map, owner)) {
            delete(client, &namespace, &map).await?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// The label's value for the operator in this namespace: two operators in one cluster leave each other's alone.
pub fn owner(namespace: &str) -> String {
    namespace.to_owned()
}

fn files() -> BTreeMap<String, String> {
    FILES.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect()
}

fn is_ours(map: &ConfigMap, owner: &str) -> bool {
    map.labels().get(LABEL_HOOK_OWNER).is_some_and(|label| label == owner)
}

async fn labelled(client: &Client) -> Result<BTreeSet<String>, Error> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let mut params = ListParams::default().labels(&format!("{LABEL_HOOK}=Enabled")).limit(PAGE);
    let mut found = BTreeSet::new();
    loop {
        let page = namespaces.list_metadata(&params).await.map_err(|source| Error::Namespaces(Box::new(source)))?;
        // One that is ending takes nothing new, and its ConfigMap goes with it.
        let lasting = page.items.iter().filter(|namespace| namespace.metadata.deletion_timestamp.is_none());
        found.extend(lasting.map(ResourceExt::name_any));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(found),
        }
    }
}

/// By the field selector the API server lets us list with a right to this one name.
async fn config_maps(client: &Client) -> Result<Vec<ConfigMap>, Error> {
    let all: Api<ConfigMap> = Api::all(client.clone());
    let mut params = ListParams::default().fields(&format!("metadata.name={HOOK_CONFIG_MAP}")).limit(PAGE);
    let mut found = Vec::new();
    loop {
        let page = all.list(&params).await.map_err(|source| Error::ConfigMaps(Box::new(source)))?;
        found.extend(page.items.into_iter().filter(|map| map.metadata.name.as_deref() == Some(HOOK_CONFIG_MAP)));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(found),
        }
    }
}

async fn write(client: &Client, namespace: &str, owner: &str) -> Result<(), Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": HOOK_CONFIG_MAP, "labels": {LABEL_HOOK_OWNER: owner}},
        "data": files(),
    });
    maps.patch(HOOK_CONFIG_MAP, &PatchParams::apply(FIELD_MANAGER), &Patch::Apply(&map)).await.map_err(|source| {
        Error::Write { verb: "writing", namespace: namespace.to_owned(), source: Box::new(source) }
    })?;
    info!(namespace, "the hook is there for pods that start from now on");
    Ok(())
}

async fn delete(client: &Client, namespace: &str, map: &ConfigMap) -> Result<(), Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    // The one that was looked at: a user's own may have taken its place.
    let preconditions = Preconditions { uid: map.uid(), resource_version: None };
    let params = DeleteParams::default().preconditions(preconditions);
    match maps.delete(HOOK_CONFIG_MAP, &params).await {
        Ok(_) => info!(namespace, "the hook is gone, for pods that start from now on"),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
        Err(source) => {
            return Err(Error::Write { verb: "deleting", namespace: namespace.to_owned(), source: Box::new(source) });
        }
    }
    Ok(())
}

//! Removes what the controller made at run time, which the chart therefore cannot remove: profiles, ledger, Secrets, Lease.
//!
//! Flows in: names. Flows out: deletions. Users' policies are left alone, and so is whatever bears another name. It waits
//! until no controller is left, because one that still runs would make some of it anew.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use kube::core::NamespaceResourceScope;
use serde::de::DeserializeOwned;
use tracing::info;

use super::limits;
use super::pki::AUTHORITY_SUFFIX;
use crate::api::profile::GpuMemoryProfile;

mod resume;

/// Flags of the clean-up.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Namespace of the operator.
    #[arg(long, env = "POD_NAMESPACE")]
    pub namespace: String,
    /// Name of the agents' TLS Secret; the authority's bears the same name with `-authority` after it.
    #[arg(long)]
    pub tls_secret: String,
    /// Name of the ledger ConfigMap.
    #[arg(long)]
    pub ledger: String,
    /// Name of the Lease.
    #[arg(long)]
    pub lease: String,
    /// Labels of the controller's pods: nothing is removed while one of them is there.
    #[arg(long)]
    pub controller_selector: Option<String>,
    /// Remove the cooperative hook's ConfigMaps from all namespaces too.
    #[arg(long)]
    pub hook: bool,
    /// Leave the GpuMemoryProfiles, for the next installation.
    #[arg(long)]
    pub keep_profiles: bool,
    /// Only tell the nodes to let go of every limit and freeze, and wait for it; the chart does so before it removes the
    /// agents.
    #[arg(long)]
    pub release_limits: bool,
}

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No way to the API.
    #[error("no client for the Kubernetes API")]
    Client(#[source] kube::Error),
    /// The controllers could not be listed.
    #[error("listing the controller's pods")]
    Controllers(#[source] kube::Error),
    /// The profiles could not be listed.
    #[error("listing the GpuMemoryProfiles")]
    Profiles(#[source] kube::Error),
    /// The nodes' limits could not be listed, told to be released, or deleted.
    #[error("releasing what holds on the nodes")]
    Limits(#[source] kube::Error),
    /// The ledger could not be read.
    #[error("reading the ledger")]
    Ledger(#[source] kube::Error),
    /// A workload that the operator suspended could not be let go on.
    #[error("letting {kind} {namespace}/{name} go on, which the operator suspended")]
    Resume {
        /// Its kind.
        kind: String,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Why.
        source: kube::Error,
    },
    /// The hook's ConfigMaps could not be removed.
    #[error(transparent)]
    Hook(#[from] super::hook::Error),
    /// Something could not be deleted.
    #[error("deleting {kind} {name}")]
    Delete {
        /// Its kind.
        kind: &'static str,
        /// Its name.
        name: String,
        /// Why.
        source: kube::Error,
    },
}

/// Between two looks for controllers that are still there. The chart's hook has its own deadline for the whole.
const PAUSE: Duration = Duration::from_secs(2);
/// Profiles read at a time.
const PAGE: u32 = 500;
/// A container that was frozen with much memory needs this long to go on.
const RELEASE: Duration = Duration::from_mins(2);

/// Removes it all, from the cluster that the environment names.
pub async fn run(args: Args) -> Result<(), Error> {
    let client = kube::Client::try_default().await.map_err(Error::Client)?;
    if args.release_limits {
        return limits::release(&client, RELEASE).await.map(|_| ()).map_err(Error::Limits);
    }
    clean(&client, &args).await
}

/// Removes it all. What is gone already is as good; so running it again after a failure does no harm.
pub async fn clean(client: &kube::Client, args: &Args) -> Result<(), Error> {
    wait_for_controllers(client, args).await?;
    resume::all(client, &args.namespace, &args.ledger).await?;
    limits::delete_all(client).await.map_err(Error::Limits)?;
    if !args.keep_profiles {
        delete_profiles(client).await?;
    }
    if args.hook {
        super::hook::remove_all(client, &super::hook::owner(&args.namespace)).await?;
    }
    let authority = format!("{}{AUTHORITY_SUFFIX}", args.tls_secret);
    delete::<Secret>(client, "Secret", &args.namespace, &args.tls_secret).await?;
    delete::<Secret>(client, "Secret", &args.namespace, &authority).await?;
    delete::<ConfigMap>(client, "ConfigMap", &args.namespace, &args.ledger).await?;
    delete::<Lease>(client, "Lease", &args.namespace, &args.lease).await
}

async fn wait_for_controllers(client: &kube::Client, args: &Args) -> Result<(), Error> {
    let Some(selector) = &args.controller_selector else { return Ok(()) };
    let pods: Api<Pod> = Api::namespaced(client.clone(), &args.namespace);
    let params = ListParams::default().labels(selector);
    loop {
        let left = pods.list_metadata(&params).await.map_err(Error::Controllers)?.items.len();
        if left == 0 {
            return Ok(());
        }
        info!(left, "waiting for the controller's pods to end");
        tokio::time::sleep(PAUSE).await;
    }
}

async fn delete_profiles(client: &kube::Client) -> Result<(), Error> {
    let all: Api<GpuMemoryProfile> = Api::all(client.clone());
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = match all.list_metadata(&params).await {
            Ok(page) => page,
            // The definition is gone, and the profiles with it.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            Err(error) => return Err(Error::Profiles(error)),
        };
        for profile in &page.items {
            let (namespace, name) = (profile.metadata.namespace.as_deref(), profile.metadata.name.as_deref());
            let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
            delete::<GpuMemoryProfile>(client, "GpuMemoryProfile", namespace, name).await?;
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

async fn delete<K>(client: &kube::Client, kind: &'static str, namespace: &str, name: &str) -> Result<(), Error>
where
    K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => info!(kind, namespace, name, "deleted"),
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(source) => return Err(Error::Delete { kind, name: name.to_owned(), source }),
    }
    Ok(())
}

//! The agent's certificate for `/v1/usage`, from the Secret that the controller keeps or from files, exchanged while the
//! server runs.
//!
//! Flows out: the server settings in a watch channel. Material that cannot be used is counted and left out; the last good one
//! stays. The agent reads that one Secret and nothing else, by name.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::agent::client;
use crate::agent::metrics::SelfMetrics;
use crate::api::names::{TLS_AGENT_CERT, TLS_AGENT_KEY, TLS_CA};
use crate::tls::{self, Material};

/// Files are looked at this often. The kubelet itself takes about a minute to bring a changed Secret.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Longest file read: certificates and keys are a few KiB.
const MAX_FILE: u64 = 256 * 1024;

/// Why there is no usable material.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A part is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A file cannot be read.
    #[error("{path} cannot be read")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The material is no good.
    #[error(transparent)]
    Material(#[from] tls::Error),
}

impl Error {
    /// Name for a metric label.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Missing(_) => "missing",
            Self::Read { .. } => "unreadable",
            Self::Material(_) => "unusable",
        }
    }
}

/// Which Secret: `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl FromStr for SecretName {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err("a Secret is written NAMESPACE/NAME"),
        }
    }
}

/// Where certificates go.
pub struct Sink {
    /// The server's settings.
    pub settings: watch::Sender<Option<Arc<rustls::ServerConfig>>>,
    /// Counters.
    pub metrics: Arc<SelfMetrics>,
    /// What is in use, so that a resync without news exchanges nothing.
    pub current: Option<Material>,
}

impl Sink {
    /// Takes over new material, or leaves the old in use and says why.
    fn take(&mut self, found: Result<Material, Error>) {
        let used = found.and_then(|material| {
            if self.current.as_ref().is_none_or(|current| !is_same(current, &material)) {
                self.settings.send_replace(Some(tls::server(&material)?));
                self.current = Some(material);
                info!("certificate for /v1/usage in use");
            }
            Ok(())
        });
        if let Err(error) = used {
            self.metrics.dropped("certificate", error.kind());
            warn!(error = &error as &dyn std::error::Error, "certificate left out");
        }
    }
}

fn is_same(one: &Material, other: &Material) -> bool {
    one.ca == other.ca && one.cert == other.cert && one.key == other.key
}

/// Follows the Secret for ever.
pub async fn watch_secret(secret: SecretName, mut sink: Sink) {
    let client = client::of_the_cluster().await;
    let api: Api<Secret> = Api::namespaced(client, &secret.namespace);
    let settings = watcher::Config::default().fields(&format!("metadata.name={}", secret.name));
    let mut events = std::pin::pin!(watcher::watcher(api, settings).default_backoff());
    let mut failing = false;
    loop {
        match events.try_next().await {
            Ok(Some(Event::Apply(secret) | Event::InitApply(secret))) => sink.take(from_secret(secret)),
            // A deleted Secret takes nothing away: the certificate in use stays good until it expires.
            Ok(Some(Event::Init | Event::InitDone | Event::Delete(_))) => failing = false,
            Ok(None) => return std::future::pending().await,
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    warn!(error = &error as &dyn std::error::Error, "the TLS Secret cannot be watched");
                }
            }
        }
    }
}

/// Follows files of the same names for ever.
pub async fn watch_directory(directory: PathBuf, mut sink: Sink) {
    let mut failing = false;
    loop {
        match from_files(&directory) {
            Ok(material) => {
                failing = false;
                sink.take(Ok(material));
            }
            Err(error) if !std::mem::replace(&mut failing, true) => sink.take(Err(error)),
            Err(_) => {}
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn from_secret(secret: Secret) -> Result<Material, Error> {
    let mut data = secret.data.unwrap_or_default();
    let mut part = |key: &'static str| data.remove(key).map(|bytes| bytes.0).ok_or(Error::Missing(key));
    Ok(Material { ca: part(TLS_CA)?, cert: part(TLS_AGENT_CERT)?, key: part(TLS_AGENT_KEY)? })
}

fn from_files(directory: &std::path::Path) -> Result<Material, Error> {
    let part = |key: &'static str| {
        let path = directory.join(key);
        let too_long = || std::io::Error::from(std::io::ErrorKind::FileTooLarge);
        let length =
            std::fs::metadata(&path).and_then(|meta| if meta.len() > MAX_FILE { Err(too_long()) } else { Ok(()) });
        length.and_then(|()| std::fs::read(&path)).map_err(|source| Error::Read { path, source })
    };
    Ok(Material { ca: part(TLS_CA)?, cert: part(TLS_AGENT_CERT)?, key: part(TLS_AGENT_KEY)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_named_with_its_namespace() {
        let expected = SecretName { namespace: "gpu".to_owned(), name: "tls".to_owned() };
        assert_eq!("gpu/tls".parse(), Ok(expected));
        for bad in ["", "tls", "/tls", "gpu/", "a/b/c"] {
            assert!(bad.parse::<SecretName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_secret_without_a_key_is_refused_by_the_name_of_the_key() {
        let error = from_secret(Secret::default()).expect_err("empty");
        assert_eq!(error.to_string(), "ca.crt is missing");
        assert_eq!(error.kind(), "missing");
    }
}

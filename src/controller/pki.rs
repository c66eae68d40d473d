//! The authority and certificates of the operator, made by the controller and kept in two Secrets of its namespace.
//!
//! Flows in: the Secrets. Flows out: TLS settings of the moment and when the first certificate expires. The agents mount
//! the one Secret: authority, their certificate and key. The other, `<name>-authority`, holds the authority's key and the
//! controllers' certificate, and no agent can read it. Whichever replica starts first creates them; the leader renews.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use tokio::sync::watch;
use tracing::{info, warn};

use super::health::Health;
use super::leader::Leadership;
use super::metrics::Metrics;
use crate::text::chain;
use crate::tls::{self, Material};

pub mod authority;

pub use authority::{Bundle, Seconds};

/// Why there are no certificates.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A Secret could not be read or written.
    #[error("{verb} Secret {name} failed")]
    Secret {
        /// What was tried.
        verb: &'static str,
        /// Which Secret.
        name: String,
        /// Why not.
        source: Box<kube::Error>,
    },
    /// The authority's key or certificates are unusable.
    #[error("the certificates cannot be used")]
    Authority(#[from] authority::Error),
    /// rustls refuses them.
    #[error("the TLS settings cannot be built")]
    Tls(#[from] tls::Error),
}

impl Error {
    /// Name for a metric label.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Secret { .. } => "secret",
            Self::Authority(_) => "authority",
            Self::Tls(_) => "tls",
        }
    }
}

/// Secrets are looked at this often: a renewal by the leader reaches the other replicas within it.
const TURN: Duration = Duration::from_secs(30);
/// After a failure.
const RETRY: Duration = Duration::from_secs(3);
/// A turn is two reads and at most two writes, each bounded by its client.
const OVERDUE: Duration = Duration::from_mins(15);
/// What follows the name of the agents' Secret in the name of ours; the chart's RBAC names it too.
pub const AUTHORITY_SUFFIX: &str = "-authority";
/// Name of the readiness condition, and of the heartbeat.
pub const CERTIFICATES: &str = "certificates";

/// Both sides' TLS settings of a controller.
#[derive(Clone, Debug)]
pub struct Settings {
    /// For calling agents and peers.
    pub client: Arc<rustls::ClientConfig>,
    /// For serving peers.
    pub server: Arc<rustls::ServerConfig>,
}

/// Where settings are published.
#[derive(Debug)]
pub struct Published {
    /// For calling agents and peers.
    pub client: watch::Sender<Option<Arc<rustls::ClientConfig>>>,
    /// For serving peers.
    pub server: watch::Sender<Option<Arc<rustls::ServerConfig>>>,
}

/// The two Secrets.
pub struct Keeper {
    /// Secrets of the operator's namespace.
    pub secrets: Api<Secret>,
    /// Name of the agents' Secret; ours has [`AUTHORITY_SUFFIX`] after it.
    pub name: String,
}

/// Keeps the settings current until nobody listens any more.
pub async fn run(
    keeper: Keeper,
    leadership: watch::Receiver<Leadership>,
    published: Published,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
) {
    let held: Mutex<Option<Bundle>> = Mutex::new(None);
    while !published.client.is_closed() {
        health.beat(CERTIFICATES, OVERDUE);
        let wait = match turn(&keeper, &leadership, &published, &held).await {
            Ok(expires) => {
                metrics.certificates(expires);
                health.done(CERTIFICATES);
                TURN
            }
            Err(error) => {
                warn!(error = chain(&error), "certificates could not be kept");
                metrics.failed("pki", error.kind());
                RETRY
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = published.client.closed() => return,
        }
    }
}

async fn turn(
    keeper: &Keeper,
    leadership: &watch::Receiver<Leadership>,
    published: &Published,
    held: &Mutex<Option<Bundle>>,
) -> Result<Seconds, Error> {
    let leads = leadership.borrow().is_leader;
    let bundle = keeper.keep(wall_clock(), leads).await?;
    let expires = bundle.expires()?;
    let mut held = held.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if held.as_ref() != Some(&bundle) {
        let settings = settings(&bundle)?;
        published.client.send_replace(Some(settings.client));
        published.server.send_replace(Some(settings.server));
        *held = Some(bundle);
    }
    Ok(expires)
}

/// A controller's TLS settings from what its Secret holds.
pub fn settings(bundle: &Bundle) -> Result<Settings, Error> {
    let material = Material {
        ca: bundle.trusted().into_bytes(),
        cert: bundle.controller.cert.clone().into_bytes(),
        key: bundle.controller.key.clone().into_bytes(),
    };
    Ok(Settings { client: tls::client(&material)?, server: tls::server(&material)? })
}

impl Keeper {
    /// Reads both Secrets, makes what is missing, and renews what is due if we lead.
    pub async fn keep(&self, now: Seconds, leads: bool) -> Result<Bundle, Error> {
        let ours = format!("{}{AUTHORITY_SUFFIX}", self.name);
        let secret = match self.read(&ours).await? {
            Some(secret) => secret,
            None => match self.create(&ours, Bundle::new(now)?.to_secret()).await? {
                Some(secret) => {
                    info!(secret = ours, "authority created");
                    secret
                }
                // Another replica was first; its Secret is the one that counts.
                None => return Box::pin(self.keep(now, leads)).await,
            },
        };
        let mut bundle = Bundle::from_secret(&texts(&secret))?;
        if leads && let Some((renewed, step)) = bundle.renewed(now)? {
            info!(secret = ours, ?step, "certificates renewed");
            self.replace(secret, renewed.to_secret()).await?;
            bundle = renewed;
        }
        self.give_to_agents(&bundle, leads).await?;
        Ok(bundle)
    }

    /// Brings the agents' Secret in line. Only the leader changes one that exists.
    async fn give_to_agents(&self, bundle: &Bundle, leads: bool) -> Result<(), Error> {
        let wanted = bundle.to_agents();
        match self.read(&self.name).await? {
            None => drop(self.create(&self.name, wanted).await?),
            Some(secret) if leads && texts(&secret) != wanted => self.replace(secret, wanted).await?,
            Some(_) => {}
        }
        Ok(())
    }

    async fn read(&self, name: &str) -> Result<Option<Secret>, Error> {
        self.secrets.get_opt(name).await.map_err(|source| failed("reading", name, source))
    }

    /// `None` where it exists already.
    async fn create(&self, name: &str, data: BTreeMap<String, String>) -> Result<Option<Secret>, Error> {
        let secret = Secret {
            metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
            type_: Some("Opaque".to_owned()),
            data: Some(bytes(data)),
            ..Secret::default()
        };
        match self.secrets.create(&PostParams::default(), &secret).await {
            Ok(secret) => Ok(Some(secret)),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            Err(source) => Err(failed("creating", name, source)),
        }
    }

    /// Replaces the data of the version that was read; a conflict is an error and the next turn reads again.
    async fn replace(&self, mut secret: Secret, data: BTreeMap<String, String>) -> Result<(), Error> {
        let name = secret.metadata.name.clone().unwrap_or_default();
        secret.data = Some(bytes(data));
        let replaced = self.secrets.replace(&name, &PostParams::default(), &secret).await;
        replaced.map(drop).map_err(|source| failed("replacing", &name, source))
    }
}

fn failed(verb: &'static str, name: &str, source: kube::Error) -> Error {
    Error::Secret { verb, name: name.to_owned(), source: Box::new(source) }
}

fn texts(secret: &Secret) -> BTreeMap<String, String> {
    let data = secret.data.iter().flatten();
    data.map(|(key, value)| (key.clone(), String::from_utf8_lossy(&value.0).into_owned())).collect()
}

fn bytes(data: BTreeMap<String, String>) -> BTreeMap<String, ByteString> {
    data.into_iter().map(|(key, value)| (key, ByteString(value.into_bytes()))).collect()
}

/// Certificates speak of dates, so this is the one place of the data side with a wall clock.
fn wall_clock() -> Seconds {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

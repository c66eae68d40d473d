//! What replicas give each other: a starting one takes the series of a Ready one before its first pull, so that a rolling
//! update forgets nothing that agents no longer hold (the run before an agent's restart, earlier attempts of a crash loop).
//!
//! Flows out: `GET /v1/state?after=<node>`, pages of nodes in the order of names, each a report with whole series. Flows in:
//! the same of a peer. Both ends show the controllers' certificate; an agent's does not open this.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HOST, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde::Deserialize;
use tracing::{info, warn};

use super::fleet::Fleet;
use super::fleet::shared::lock;
use super::pull::{ClientTls, connect, parse};
use crate::api::names::CONTROLLER_TLS_NAME;
use crate::api::usage::UsageReport;
use crate::http::{self, Answer};
use crate::text::chain;

/// Path of the answer.
pub const PATH: &str = "/v1/state";
/// A page ends with the node that makes it longer than this.
const PAGE: usize = 4 << 20;
/// A page is at most a [`PAGE`] and one node, which is bounded as an agent's answer is.
const MAX_PAGE: usize = PAGE + (16 << 20);
/// More pages than any fleet has; a peer that never ends is broken.
const MAX_PAGES: usize = 10_000;
/// For one page.
const PAGE_DEADLINE: Duration = Duration::from_secs(10);
/// For everything: after it the replica goes on with what it has, and pulls give it the rest.
const DEADLINE: Duration = Duration::from_mins(1);
/// For certificates to appear; without them there is no peer to ask.
const CERTIFICATE_DEADLINE: Duration = Duration::from_secs(10);
/// Name of the readiness condition.
pub const PEER: &str = "series of a peer";

/// Why a peer gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Peers could not be listed.
    #[error("listing peers failed")]
    List(#[source] Box<kube::Error>),
    /// No usable answer.
    #[error("asking {address} failed")]
    Ask {
        /// Which peer.
        address: SocketAddr,
        /// Why not.
        source: super::pull::Error,
    },
    /// Took too long.
    #[error("not done within {0:?}")]
    Deadline(Duration),
}

impl Error {
    /// Name for a metric label.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::List(_) => "list",
            Self::Ask { .. } => "ask",
            Self::Deadline(_) => "deadline",
        }
    }
}

/// One page.
#[derive(Deserialize)]
struct Page {
    reports: Vec<UsageReport>,
    next: Option<String>,
}

/// Answers a peer.
pub fn answer(fleet: &Mutex<Fleet>, request: &Request<Incoming>) -> Answer {
    if request.method() != Method::GET || request.uri().path() != PATH {
        return http::text(StatusCode::NOT_FOUND, "not found\n");
    }
    let query = request.uri().query().unwrap_or_default();
    let after = query.split('&').find_map(|pair| pair.strip_prefix("after=")).unwrap_or_default();
    match page(fleet, after) {
        Ok(body) => http::json(StatusCode::OK, body),
        Err(error) => {
            warn!(%error, "state could not be written");
            http::text(StatusCode::INTERNAL_SERVER_ERROR, "state could not be written\n")
        }
    }
}

/// Written node by node, so that neither the lock nor the memory is held for the whole fleet.
fn page(fleet: &Mutex<Fleet>, after: &str) -> serde_json::Result<Vec<u8>> {
    let mut body = br#"{"reports":["#.to_vec();
    let mut after = after.to_owned();
    let mut first = true;
    let next = loop {
        let Some(report) = lock(fleet).export(&after, Instant::now()) else { break None };
        if !first {
            body.push(b',');
        }
        first = false;
        serde_json::to_writer(&mut body, &report)?;
        after = report.node;
        if body.len() > PAGE {
            break Some(after);
        }
    };
    body.extend_from_slice(br#"],"next":"#);
    serde_json::to_writer(&mut body, &next)?;
    body.push(b'}');
    Ok(body)
}

/// Takes the state of the first peer that gives it; gives up quietly after a bounded time. Gives how many nodes were taken.
pub async fn take(
    pods: &Api<Pod>,
    selector: &str,
    own_name: &str,
    port: u16,
    mut tls: ClientTls,
    fleet: &Mutex<Fleet>,
) -> Result<usize, Error> {
    let known = tokio::time::timeout(CERTIFICATE_DEADLINE, tls.wait_for(Option::is_some)).await;
    let Ok(Ok(Some(settings))) = known.map(|known| known.map(|settings| settings.clone())) else {
        return Err(Error::Deadline(CERTIFICATE_DEADLINE));
    };
    let everything = async {
        let listed = pods.list(&ListParams::default().labels(selector)).await;
        let listed = listed.map_err(|source| Error::List(Box::new(source)))?;
        let mut last = Ok(0);
        for address in listed.iter().filter(|pod| pod.name_any() != own_name).filter_map(|pod| ready(pod, port)) {
            last = take_from(address, Arc::clone(&settings), fleet).await;
            match &last {
                Ok(nodes) => {
                    info!(%address, nodes, "took over a peer's series");
                    return last;
                }
                Err(error) => warn!(error = chain(error), "peer gave no series"),
            }
        }
        last
    };
    tokio::time::timeout(DEADLINE, everything).await.unwrap_or(Err(Error::Deadline(DEADLINE)))
}

/// Where a Ready peer serves. One that is not Ready knows no more than we do.
fn ready(pod: &Pod, port: u16) -> Option<SocketAddr> {
    let status = pod.status.as_ref()?;
    let conditions = status.conditions.iter().flatten();
    let is_ready = conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let address = status.pod_ip.as_ref()?.parse().ok()?;
    (is_ready && pod.metadata.deletion_timestamp.is_none()).then(|| SocketAddr::new(address, port))
}

/// Takes all pages of one peer.
pub async fn take_from(
    address: SocketAddr,
    settings: Arc<rustls::ClientConfig>,
    fleet: &Mutex<Fleet>,
) -> Result<usize, Error> {
    let failed = |source| Error::Ask { address, source };
    let stream = tokio::time::timeout(PAGE_DEADLINE, connect(address, settings, CONTROLLER_TLS_NAME))
        .await
        .map_err(|_| Error::Deadline(PAGE_DEADLINE))?
        .map_err(failed)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|source| failed(super::pull::Error::Request(source)))?;
    tokio::spawn(connection);
    let mut after = String::new();
    let mut nodes = 0;
    for _ in 0..MAX_PAGES {
        let ask = fetch(&mut sender, &after);
        let page = tokio::time::timeout(PAGE_DEADLINE, ask)
            .await
            .map_err(|_| Error::Deadline(PAGE_DEADLINE))?
            .map_err(failed)?;
        let received = Instant::now();
        for report in page.reports {
            nodes += usize::from(lock(fleet).adopt(report, received).accepted);
        }
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    Ok(nodes)
}

async fn fetch(
    sender: &mut hyper::client::conn::http1::SendRequest<Empty<Bytes>>,
    after: &str,
) -> Result<Page, super::pull::Error> {
    use super::pull::Error;
    let mut request = Request::new(Empty::<Bytes>::new());
    if let Ok(uri) = format!("{PATH}?after={after}").parse() {
        *request.uri_mut() = uri;
    }
    request.headers_mut().insert(HOST, HeaderValue::from_static(CONTROLLER_TLS_NAME));
    sender.ready().await.map_err(Error::Request)?;
    let answer = sender.send_request(request).await.map_err(Error::Request)?;
    if answer.status() != StatusCode::OK {
        return Err(Error::Status(answer.status()));
    }
    let body = Limited::new(answer.into_body(), MAX_PAGE).collect().await.map_err(Error::Body)?;
    parse(body.to_bytes()).await
}

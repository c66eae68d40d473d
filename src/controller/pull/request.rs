//! One request to one agent: connect, shake hands, ask, read, parse; all within a deadline and a size.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::header::{CONNECTION, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::api::names::AGENT_TLS_NAME;
use crate::api::usage::{Cursor, PATH, UsageReport};

/// News since a cursor are a few kilobytes from a node nearby; what takes longer would come too late to be useful.
const DEADLINE: Duration = Duration::from_secs(2);
/// A whole state is megabytes on a full node.
const STATE_DEADLINE: Duration = Duration::from_secs(10);
/// 8,192 series of 2 KiB, which is what a series of a day takes on the wire.
const MAX_BODY: usize = 16 << 20;
/// A larger body is parsed off the threads that serve everybody.
const LARGE_BODY: usize = 256 << 10;

/// Why an agent was not pulled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No certificates yet.
    #[error("there is no certificate yet")]
    NoCertificate,
    /// No connection.
    #[error("connecting failed")]
    Connect(#[source] std::io::Error),
    /// The other side is no agent of ours, or does not take us for its controller.
    #[error("the TLS handshake failed")]
    Handshake(#[source] std::io::Error),
    /// The exchange broke off.
    #[error("the request failed")]
    Request(#[source] hyper::Error),
    /// Another status than 200.
    #[error("the answer was {0}")]
    Status(StatusCode),
    /// The body broke off.
    #[error("reading the answer failed")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The body is longer than any honest one.
    #[error("the answer is longer than {MAX_BODY} bytes")]
    TooLong,
    /// The body is not a report.
    #[error("the answer is not a report")]
    Malformed(#[source] serde_json::Error),
    /// No whole answer within the deadline.
    #[error("no answer within {0:?}")]
    Deadline(Duration),
}

impl Error {
    /// Name for a metric label.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::NoCertificate => "no_certificate",
            Self::Connect(_) => "connect",
            Self::Handshake(_) => "tls",
            Self::Request(_) => "request",
            Self::Status(_) => "status",
            Self::Body(_) => "body",
            Self::TooLong => "too_long",
            Self::Malformed(_) => "malformed",
            Self::Deadline(_) => "deadline",
        }
    }

    /// Every kind, so that counters start at zero.
    pub const KINDS: [&str; 9] =
        ["no_certificate", "connect", "tls", "request", "status", "body", "too_long", "malformed", "deadline"];
}

/// What is kept between two requests to the same agent.
///
/// Not the connection: the agents' server gives an idle one up after seconds, and five thousand open ones would cost more
/// memory than the series. The TLS session instead, which spares both sides the signatures. Each agent has a store of its
/// own, because all agents go by the same name and a ticket of one is worth nothing to another.
#[derive(Default)]
pub(super) struct Line {
    settings: Option<(Arc<rustls::ClientConfig>, Arc<rustls::ClientConfig>)>,
}

impl Line {
    /// Asks for what is later than `cursor`. Gives the report and when it began to arrive.
    pub(super) async fn ask(
        &mut self,
        address: SocketAddr,
        settings: Option<Arc<rustls::ClientConfig>>,
        cursor: Option<Cursor>,
    ) -> Result<(UsageReport, Instant), Error> {
        let settings = self.own(settings.ok_or(Error::NoCertificate)?);
        let deadline = if cursor.is_some() { DEADLINE } else { STATE_DEADLINE };
        let (body, received) = tokio::time::timeout(deadline, exchange(address, settings, cursor))
            .await
            .map_err(|_| Error::Deadline(deadline))??;
        Ok((parse(body).await?, received))
    }

    /// The shared settings with a session store of this agent's own, made anew when certificates change.
    fn own(&mut self, shared: Arc<rustls::ClientConfig>) -> Arc<rustls::ClientConfig> {
        if let Some((from, own)) = &self.settings
            && Arc::ptr_eq(from, &shared)
        {
            return Arc::clone(own);
        }
        let mut own = rustls::ClientConfig::clone(&shared);
        own.resumption = Resumption::in_memory_sessions(1);
        let own = Arc::new(own);
        self.settings = Some((shared, Arc::clone(&own)));
        own
    }
}

async fn exchange(
    address: SocketAddr,
    settings: Arc<rustls::ClientConfig>,
    cursor: Option<Cursor>,
) -> Result<(Bytes, Instant), Error> {
    let stream = connect(address, settings, AGENT_TLS_NAME).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(Error::Request)?;
    // Ends with the sender: at the latest when the deadline drops it.
    tokio::spawn(connection);
    let path = cursor.map_or_else(|| PATH.to_owned(), |cursor| format!("{PATH}?since={cursor}"));
    let mut request = Request::new(Empty::<Bytes>::new());
    if let Ok(uri) = path.parse() {
        *request.uri_mut() = uri;
    }
    request.headers_mut().insert(HOST, hyper::header::HeaderValue::from_static(AGENT_TLS_NAME));
    request.headers_mut().insert(CONNECTION, hyper::header::HeaderValue::from_static("close"));
    let answer = sender.send_request(request).await.map_err(Error::Request)?;
    let received = Instant::now();
    if answer.status() != StatusCode::OK {
        return Err(Error::Status(answer.status()));
    }
    let body = Limited::new(answer.into_body(), MAX_BODY)
        .collect()
        .await
        .map_err(|error| if error.is::<LengthLimitError>() { Error::TooLong } else { Error::Body(error) })?;
    Ok((body.to_bytes(), received))
}

/// Reads JSON: a large body on a thread where that keeps nobody waiting.
pub(in crate::controller) async fn parse<T>(body: Bytes) -> Result<T, Error>
where
    T: serde::de::DeserializeOwned + Send + 'static,
{
    if body.len() <= LARGE_BODY {
        return serde_json::from_slice(&body).map_err(Error::Malformed);
    }
    let parsed = tokio::task::spawn_blocking(move || serde_json::from_slice(&body)).await;
    parsed.map_err(|error| Error::Body(error.into()))?.map_err(Error::Malformed)
}

/// A TLS connection to whoever serves at `address` and proves to be `name`.
pub(in crate::controller) async fn connect(
    address: SocketAddr,
    settings: Arc<rustls::ClientConfig>,
    name: &'static str,
) -> Result<TlsStream<TcpStream>, Error> {
    let stream = TcpStream::connect(address).await.map_err(Error::Connect)?;
    let _ = stream.set_nodelay(true);
    let name = ServerName::try_from(name)
        .map_err(|error| Error::Handshake(std::io::Error::new(std::io::ErrorKind::InvalidInput, error)))?;
    TlsConnector::from(settings).connect(name, stream).await.map_err(Error::Handshake)
}

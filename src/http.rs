//! A small HTTP/1.1 server for `/metrics`, `/healthz`, `/readyz` and `/v1/usage`, plain or with mutual TLS.
//!
//! It never blocks on its handlers' data: handlers answer from snapshots. Everything a client can be slow at has a deadline, and
//! connections are bounded, all together and from one address, so that a slow or hostile client costs little and keeps no
//! probe waiting.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tracing::debug;

mod taken;

use taken::Taken;

/// An answer with its whole body in memory.
pub type Answer = Response<Full<Bytes>>;

/// TLS settings that may change while the server runs; `None` while there is no certificate yet: connections are then
/// closed at once.
pub type TlsSettings = watch::Receiver<Option<Arc<rustls::ServerConfig>>>;

/// What a client may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at once; beyond it new ones wait.
    pub connections: usize,
    /// Of these, from one address; beyond it new ones are closed.
    pub from_one: usize,
    /// For a handshake, for a request's header, and between two requests.
    pub header: Duration,
    /// For some of an answer to be taken.
    pub taking: Duration,
    /// For a whole connection.
    pub connection: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            // More than any scraper, both controller replicas and the kubelet need.
            connections: 64,
            // A scraper has one or two, a person's port-forward a few; and one that takes all it may leaves others half.
            from_one: 32,
            // What takes longer comes from a client that is gone or hostile.
            header: Duration::from_secs(5),
            // A scrape's own deadline is 10 s in most places.
            taking: Duration::from_secs(15),
            // So that a rotated certificate is in use everywhere soon.
            connection: Duration::from_mins(10),
        }
    }
}

/// Serves `handler` on `listener` until `shutdown` resolves; open connections are then dropped.
pub async fn serve<Handler, Answered>(
    listener: TcpListener,
    tls: Option<TlsSettings>,
    handler: Handler,
    shutdown: impl Future<Output = ()>,
) where
    Handler: Fn(Request<Incoming>) -> Answered + Clone + Send + Sync + 'static,
    Answered: Future<Output = Answer> + Send + 'static,
{
    serve_within(Bounds::default(), listener, tls, handler, shutdown).await;
}

/// See [`serve`].
pub async fn serve_within<Handler, Answered>(
    bounds: Bounds,
    listener: TcpListener,
    tls: Option<TlsSettings>,
    handler: Handler,
    shutdown: impl Future<Output = ()>,
) where
    Handler: Fn(Request<Incoming>) -> Answered + Clone + Send + Sync + 'static,
    Answered: Future<Output = Answer> + Send + 'static,
{
    let (slots, callers) = (Arc::new(Semaphore::new(bounds.connections)), Callers::default());
    let mut connections = tokio::task::JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let (stream, caller) = tokio::select! {
            () = &mut shutdown => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => (stream, callers.come(address.ip(), bounds.from_one)),
                Err(error) => {
                    // Out of descriptors, or a client that hung up: neither is a reason to end.
                    debug!(%error, "connection not accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        while connections.try_join_next().is_some() {}
        let Some(caller) = caller else {
            debug!("connection closed: too many from one address");
            continue;
        };
        let transport = match &tls {
            None => Transport::Plain,
            Some(tls) => tls.borrow().clone().map_or(Transport::NotYet, Transport::Tls),
        };
        let handler = handler.clone();
        connections.spawn(async move {
            let (_slot, _caller) = (slot, caller);
            let spoken = connection(stream, transport, handler, &bounds);
            let _ = tokio::time::timeout(bounds.connection, spoken).await;
        });
    }
}

/// Connections by the address they come from.
#[derive(Clone, Debug, Default)]
struct Callers(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// One of them; it counts while it is held.
struct Caller(Callers, IpAddr);

impl Callers {
    /// Counts another one, if there may be another.
    fn come(&self, address: IpAddr, most: usize) -> Option<Caller> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Caller(self.clone(), address))
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let Self(Callers(counts), address) = self;
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(address);
            }
        }
    }
}

/// How one connection speaks.
enum Transport {
    Plain,
    Tls(Arc<rustls::ServerConfig>),
    /// TLS is asked for, but there is no certificate yet.
    NotYet,
}

async fn connection<Handler, Answered>(stream: TcpStream, transport: Transport, handler: Handler, bounds: &Bounds)
where
    Handler: Fn(Request<Incoming>) -> Answered + Clone + Send + Sync + 'static,
    Answered: Future<Output = Answer> + Send + 'static,
{
    let _ = stream.set_nodelay(true);
    let stream = Taken::within(bounds.taking, stream);
    match transport {
        Transport::Plain => speak(TokioIo::new(stream), handler, bounds).await,
        Transport::NotYet => debug!("connection closed: no certificate yet"),
        Transport::Tls(settings) => {
            let handshake = tokio_rustls::TlsAcceptor::from(settings).accept(stream);
            match tokio::time::timeout(bounds.header, handshake).await {
                Ok(Ok(stream)) => speak(TokioIo::new(stream), handler, bounds).await,
                Ok(Err(error)) => debug!(%error, "TLS handshake failed"),
                Err(_) => debug!("TLS handshake timed out"),
            }
        }
    }
}

async fn speak<Io, Handler, Answered>(io: Io, handler: Handler, bounds: &Bounds)
where
    Io: hyper::rt::Read + hyper::rt::Write + Unpin,
    Handler: Fn(Request<Incoming>) -> Answered + Clone,
    Answered: Future<Output = Answer>,
{
    let service = service_fn(|request| {
        let answer = handler(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.header)
        .max_buf_size(64 * 1024)
        .serve_connection(io, service)
        .await;
    if let Err(error) = served {
        debug!(%error, "connection ended early");
    }
}

/// An answer of plain text.
pub fn text(status: StatusCode, body: impl Into<String>) -> Answer {
    with_type(status, "text/plain; charset=utf-8", Bytes::from(body.into()))
}

/// An answer of JSON that is written already.
pub fn json(status: StatusCode, body: Vec<u8>) -> Answer {
    with_type(status, "application/json", Bytes::from(body))
}

/// Metrics in Prometheus' text format.
pub fn metrics(body: Vec<u8>) -> Answer {
    with_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", Bytes::from(body))
}

fn with_type(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

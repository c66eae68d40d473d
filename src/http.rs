//! A small HTTP/1.1 server for `/metrics`, `/healthz`, `/readyz` and `/v1/usage`, plain or with mutual TLS.
//!
//! It never blocks on its handlers' data: handlers answer from snapshots. Every connection has a deadline, and the number
//! of connections is bounded, so that a slow or hostile client costs little.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
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

/// An answer with its whole body in memory.
pub type Answer = Response<Full<Bytes>>;

/// TLS settings that may change while the server runs; `None` while there is no certificate yet: connections are then
/// closed at once.
pub type TlsSettings = watch::Receiver<Option<Arc<rustls::ServerConfig>>>;

/// More connections than any scraper and both controller replicas need; beyond it new ones wait.
const MAX_CONNECTIONS: usize = 64;
/// A handshake and request header that take longer come from a client that is gone or hostile.
const HEADER_DEADLINE: Duration = Duration::from_secs(5);
/// A connection lives at most this long, so that a rotated certificate is in use everywhere soon.
const CONNECTION_DEADLINE: Duration = Duration::from_mins(10);

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
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = tokio::task::JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let stream = tokio::select! {
            () = &mut shutdown => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of descriptors, or a client that hung up: neither is a reason to end.
                    debug!(%error, "connection not accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        while connections.try_join_next().is_some() {}
        let transport = match &tls {
            None => Transport::Plain,
            Some(tls) => tls.borrow().clone().map_or(Transport::NotYet, Transport::Tls),
        };
        let handler = handler.clone();
        connections.spawn(async move {
            let _slot = slot;
            let _ = tokio::time::timeout(CONNECTION_DEADLINE, connection(stream, transport, handler)).await;
        });
    }
}

/// How one connection speaks.
enum Transport {
    Plain,
    Tls(Arc<rustls::ServerConfig>),
    /// TLS is asked for, but there is no certificate yet.
    NotYet,
}

async fn connection<Handler, Answered>(stream: TcpStream, transport: Transport, handler: Handler)
where
    Handler: Fn(Request<Incoming>) -> Answered + Clone + Send + Sync + 'static,
    Answered: Future<Output = Answer> + Send + 'static,
{
    let _ = stream.set_nodelay(true);
    match transport {
        Transport::Plain => speak(TokioIo::new(stream), handler).await,
        Transport::NotYet => debug!("connection closed: no certificate yet"),
        Transport::Tls(settings) => {
            let handshake = tokio_rustls::TlsAcceptor::from(settings).accept(stream);
            match tokio::time::timeout(HEADER_DEADLINE, handshake).await {
                Ok(Ok(stream)) => speak(TokioIo::new(stream), handler).await,
                Ok(Err(error)) => debug!(%error, "TLS handshake failed"),
                Err(_) => debug!("TLS handshake timed out"),
            }
        }
    }
}

async fn speak<Io, Handler, Answered>(io: Io, handler: Handler)
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
        .header_read_timeout(HEADER_DEADLINE)
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

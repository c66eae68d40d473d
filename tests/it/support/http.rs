//! One request on a connection of its own, or many on one.

use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A connection that stays open.
pub struct Connection(SendRequest<Empty<Bytes>>);

impl Connection {
    pub async fn plain(address: SocketAddr) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Self::over(TokioIo::new(stream)).await
    }

    pub async fn tls(address: SocketAddr, settings: Arc<rustls::ClientConfig>, name: &str) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let name = rustls::pki_types::ServerName::try_from(name.to_owned())?;
        let stream = tokio_rustls::TlsConnector::from(settings).connect(name, stream).await?;
        Self::over(TokioIo::new(stream)).await
    }

    async fn over(io: impl hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static) -> Result<Self, Failure> {
        let (sender, connection) = handshake(io).await?;
        tokio::spawn(connection);
        Ok(Self(sender))
    }

    pub async fn get(&mut self, path: &str) -> Result<(u16, Bytes), Failure> {
        self.0.ready().await?;
        let request = Request::get(path).header("host", "agent").body(Empty::new())?;
        let answer = self.0.send_request(request).await?;
        let status = answer.status().as_u16();
        Ok((status, answer.into_body().collect().await?.to_bytes()))
    }
}

pub async fn get(address: SocketAddr, path: &str) -> Result<(u16, String), Failure> {
    let (status, body) = Connection::plain(address).await?.get(path).await?;
    Ok((status, String::from_utf8(body.to_vec())?))
}

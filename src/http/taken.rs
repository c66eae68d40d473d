//! A stream whose other end has to take what is written to it: one that takes nothing for too long is closed.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// See the module. Reading has deadlines elsewhere.
pub struct Taken<Stream> {
    stream: Stream,
    within: Duration,
    /// Runs while nothing is taken.
    ends: Option<Pin<Box<Sleep>>>,
}

impl<Stream> Taken<Stream> {
    /// Of a stream that may take nothing for so long.
    pub fn within(within: Duration, stream: Stream) -> Self {
        Self { stream, within, ends: None }
    }

    /// Whether what is tried has been tried for too long.
    fn watched<T>(&mut self, cx: &mut Context<'_>, tried: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if tried.is_ready() {
            self.ends = None;
            return tried;
        }
        let ends = self.ends.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.within)));
        ready!(ends.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }
}

impl<Stream: AsyncRead + Unpin> AsyncRead for Taken<Stream> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<Stream: AsyncWrite + Unpin> AsyncWrite for Taken<Stream> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let tried = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watched(cx, tried)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let tried = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.watched(cx, tried)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let tried = Pin::new(&mut self.stream).poll_flush(cx);
        self.watched(cx, tried)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let tried = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.watched(cx, tried)
    }
}

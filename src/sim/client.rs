//! One connection to the driver: a request, its answer.

use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::{Answer, DEFAULT_SOCKET, Request, SOCKET_ENV, State, receive, send};

/// The driver answers from memory; one that takes this long is stuck or gone.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to the driver.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    told: Option<Arc<State>>,
}

/// Where the environment says the driver listens.
pub fn socket_from_env() -> PathBuf {
    std::env::var_os(SOCKET_ENV).filter(|path| !path.is_empty()).map_or_else(|| DEFAULT_SOCKET.into(), PathBuf::from)
}

// === impl Client ===

impl Client {
    /// Connects to a driver that is there.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self { stream: BufReader::new(stream), told: None })
    }

    /// The same for a process whose calls may wait for as long as it is suspended.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn patient(self) -> io::Result<Self> {
        self.stream.get_ref().set_read_timeout(None)?;
        Ok(self)
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// The driver is gone or does not answer; the connection is of no use any more.
    pub fn ask(&mut self, request: &Request) -> io::Result<Answer> {
        send(self.stream.get_mut(), request)?;
        let closed = || io::Error::new(io::ErrorKind::UnexpectedEof, "the driver closed the connection");
        receive(&mut self.stream)?.ok_or_else(closed)
    }

    /// Everything the driver knows, sent only if it changed: NVML asks dozens of times for one sample, and a reader's cost
    /// is to be its own.
    pub fn news(&mut self) -> io::Result<Arc<State>> {
        let unexpected = |answer: &Answer| io::Error::new(io::ErrorKind::InvalidData, format!("not news: {answer:?}"));
        match (self.ask(&Request::News)?, &self.told) {
            (Answer::Same, Some(told)) => Ok(Arc::clone(told)),
            (Answer::State(state), _) => Ok(Arc::clone(self.told.insert(Arc::new(state)))),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Asks for everything the driver knows.
    pub fn state(&mut self) -> io::Result<State> {
        match self.ask(&Request::State)? {
            Answer::State(state) => Ok(state),
            other => Err(io::Error::new(io::ErrorKind::InvalidData, format!("not a state: {other:?}"))),
        }
    }
}

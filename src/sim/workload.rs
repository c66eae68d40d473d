//! A process that uses simulated GPU memory along a shape, like a training job or a server.
//!
//! Flows in: a shape and the wall clock. Flows out: allocations and frees on the driver's socket, a line of progress now
//! and then, and the end: PyTorch's message and exit 1 where memory is refused, what it was told on SIGTERM, or what the shape says.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::oom;
use crate::protocol::{Answer, Kind, Request};
use crate::shape::Shape;
use crate::signals::Signals;
use crate::units::{format_duration, format_size};

/// Time between two tries to reach a driver that is not there.
const RETRY: Duration = Duration::from_millis(200);

/// What a workload is started with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the driver listens.
    pub socket: PathBuf,
    /// What its memory does.
    pub shape: Shape,
    /// Device to use: `auto`, an index, `index.slot`, or a UUID.
    pub device: String,
    /// What people see in listings.
    pub name: String,
    /// In which of NVML's process lists it appears.
    pub kind: Kind,
    /// How much faster than the wall clock the shape runs.
    pub speed: f64,
    /// Time between two changes of its memory.
    pub tick: Duration,
    /// How long to try to reach the driver.
    pub patience: Duration,
    /// Time between two lines of progress.
    pub progress: Duration,
    /// Exit code when a signal ends it.
    pub exit_on_signal: u8,
}

/// How a workload ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A signal, or the shape: exit with this code.
    Ended(u8),
    /// It was refused memory; the text is PyTorch's.
    OutOfMemory(String),
    /// The driver refused it or was not there; the text says why.
    Failed(String),
}

/// Runs until the shape ends, a signal comes or the driver refuses memory.
///
/// `say` gets the lines of progress.
pub fn run(config: &Config, signals: &Signals, mut say: impl FnMut(String)) -> Outcome {
    let started = Instant::now();
    let mut next_line = Instant::now();
    let mut connection = None;
    let mut held = 0;
    loop {
        let elapsed = started.elapsed().as_secs_f64() * config.speed;
        if let Some(end) = config.shape.end().filter(|end| elapsed >= end.at.as_secs_f64()) {
            return Outcome::Ended(end.code);
        }
        let client = match &mut connection {
            Some(client) => client,
            None => match connect(config, signals) {
                Ok(Some((client, greeting))) => {
                    say(greeting);
                    held = 0;
                    connection.insert(client)
                }
                Ok(None) => return Outcome::Ended(config.exit_on_signal),
                Err(outcome) => return outcome,
            },
        };
        let wanted = config.shape.bytes_at(elapsed);
        match hold(client, held, wanted) {
            Ok(Answer::Held { bytes }) => held = bytes,
            Ok(Answer::OutOfMemory(refusal)) => return Outcome::OutOfMemory(oom::message(&refusal)),
            Ok(Answer::DeviceLost) => return Outcome::Failed("RuntimeError: CUDA error: device lost".to_owned()),
            Ok(other) => return Outcome::Failed(format!("unexpected answer of the driver: {other:?}")),
            // The driver restarted: take everything again from the new one.
            Err(error) => {
                say(format!("driver gone ({error}), connecting again"));
                connection = None;
                continue;
            }
        }
        if Instant::now() >= next_line {
            say(format!("t={:.0}s memory={}", elapsed, mebibytes(held)));
            next_line = Instant::now() + config.progress;
        }
        if signals.wait(config.tick).is_some() {
            return Outcome::Ended(config.exit_on_signal);
        }
    }
}

/// Connects and opens a context; `None` if a signal came first.
fn connect(config: &Config, signals: &Signals) -> Result<Option<(Client, String)>, Outcome> {
    let give_up = Instant::now() + config.patience;
    let open = Request::Open {
        device: config.device.clone(),
        name: config.name.clone(),
        kind: config.kind,
        context: config.shape.options.context,
    };
    loop {
        let opened = Client::connect(&config.socket)
            .and_then(Client::patient)
            .and_then(|mut client| Ok((client.ask(&open)?, client)));
        match opened {
            Ok((Answer::Opened { device, slot, total, context, pid }, client)) => {
                let slot = slot.map_or_else(String::new, |slot| format!(".{slot}"));
                let greeting = format!(
                    "simulated workload `{}` (host PID {pid}) on device {device}{slot} of {}: {}, context {}",
                    config.name,
                    mebibytes(total),
                    config.shape,
                    format_size(context)
                );
                return Ok(Some((client, greeting)));
            }
            Ok((Answer::OutOfMemory(refusal), _)) => return Err(Outcome::OutOfMemory(oom::message(&refusal))),
            Ok((Answer::Refused { why }, _)) => return Err(Outcome::Failed(why)),
            Ok((other, _)) => return Err(Outcome::Failed(format!("the driver gives no context: {other:?}"))),
            Err(error) if Instant::now() >= give_up => {
                let (socket, waited) = (config.socket.display(), format_duration(config.patience));
                return Err(Outcome::Failed(format!("no driver on {socket} for {waited}: {error}")));
            }
            Err(_) if signals.wait(RETRY).is_some() => return Ok(None),
            Err(_) => {}
        }
    }
}

/// Moves from one level to another in one request; one that asks for nothing still finds out that the driver is gone.
fn hold(client: &mut Client, held: u64, wanted: u64) -> io::Result<Answer> {
    match wanted.checked_sub(held) {
        Some(bytes) => client.ask(&Request::Alloc { bytes }),
        None => client.ask(&Request::Free { bytes: held - wanted }),
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{}MiB", bytes >> 20)
}

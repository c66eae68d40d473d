//! `gpumem checkpoint answer`: answers the controller's requests to save, for applications that do not speak to Kubernetes.
//!
//! Flows in: the pod's annotations as a downward-API file, and the exit code of the application's own save command. Flows
//! out: the annotation `gpumem.dev/checkpoint-done` on this one pod. A save that failed is never answered: with `Required`
//! nothing disruptive follows then.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::units;
use crate::api::names::{
    ANNOTATION_CHECKPOINT_DEADLINE, ANNOTATION_CHECKPOINT_DONE, ANNOTATION_CHECKPOINT_REQUEST, GROUP,
};

/// What the answering container writes under.
const MANAGER: &str = "gpumem-checkpoint";
/// All annotations of a pod may have 256 KiB; quoted they take up to four times as much.
const MAX_FILE: u64 = 1 << 20;
/// A save without a readable deadline ends at the longest that a policy may ask for.
const LONGEST: Duration = Duration::from_hours(2);
/// Saves tried for one request.
const MAX_TRIES: u32 = 3;
/// Between two tries of a save or of an answer.
const PAUSE: Duration = Duration::from_secs(5);
/// What a save command that was told to end may still take.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// A downward-API volume is there before the container starts, and kubelet replaces it in one step: a file that cannot be read
/// for this long will not come.
const WAIT: Duration = Duration::from_secs(30);
/// What one write to the API may take.
const WRITE: Duration = Duration::from_secs(10);

/// Requests to save work.
#[derive(Debug, clap::Subcommand)]
pub enum Action {
    /// Wait for requests, run the save command, and answer; runs until SIGTERM, beside the application in its pod
    Answer(Args),
}

/// Flags of `answer`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// File of a downward-API volume with fieldRef metadata.annotations
    #[arg(long, value_name = "FILE")]
    pub annotations: PathBuf,
    /// Name of this pod: fieldRef metadata.name
    #[arg(long, env = "POD_NAME")]
    pub pod: String,
    /// Namespace of this pod: fieldRef metadata.namespace
    #[arg(long, env = "POD_NAMESPACE")]
    pub namespace: String,
    /// Time between two looks at the file
    #[arg(long, default_value = "1s", value_parser = units::duration)]
    pub interval: Duration,
    /// Save command and its arguments, the last flag: exit 0 means that the work is saved. Without it every request is
    /// answered at once
    #[arg(long, num_args = 1.., allow_hyphen_values = true, value_name = "COMMAND")]
    pub exec: Vec<String>,
}

/// Why it ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No way to the API.
    #[error("no client for the Kubernetes API: does the pod mount its ServiceAccount's token? {0}")]
    Client(#[source] kube::Error),
    /// Signals cannot be heard.
    #[error("listening for SIGTERM: {0}")]
    Signal(#[source] std::io::Error),
    /// No request can be heard. To end is the loudest that a sidecar can be: the pod shows it, and is not Ready.
    #[error(
        "{} could not be read for {} s ({source}), so no request to save would be heard: mount a downwardAPI volume \
         there with fieldRef metadata.annotations, or correct --annotations",
        file.display(), WAIT.as_secs()
    )]
    Annotations {
        /// Which file.
        file: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// Name of the kind, for machines.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Client(_) => "Client",
            Self::Signal(_) => "Signal",
            Self::Annotations { .. } => "Annotations",
        }
    }
}

/// How long the file could not be read. Pure: time is an argument.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    since: Option<Duration>,
}

/// What to make of a file that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patient {
    /// It began now: say it once.
    Begins,
    /// It goes on.
    Waits,
    /// It lasted too long.
    Ends,
}

impl Patience {
    /// It was read.
    pub fn read(&mut self) {
        self.since = None;
    }

    /// It was not; `now` is of any monotonic clock.
    pub fn unread(&mut self, now: Duration) -> Patient {
        match self.since {
            None => {
                self.since = Some(now);
                Patient::Begins
            }
            Some(since) if now.saturating_sub(since) >= WAIT => Patient::Ends,
            Some(_) => Patient::Waits,
        }
    }
}

/// Why a request is not answered yet.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// The save command did not start.
    #[error("the save command does not start: {0}")]
    Start(#[source] std::io::Error),
    /// It could not be waited for.
    #[error("waiting for the save command: {0}")]
    Wait(#[source] std::io::Error),
    /// It failed.
    #[error("the save command failed ({0}); its own output says why")]
    Failed(ExitStatus),
    /// It took too long.
    #[error("the save command was not done at the deadline, and was ended")]
    Late,
    /// The API refused the answer.
    #[error("the answer could not be written: {0}. The pod's ServiceAccount needs `patch` on `pods` in its namespace")]
    Write(#[source] Box<kube::Error>),
    /// The API did not answer.
    #[error("the answer could not be written: the API server does not answer")]
    Silent,
}

/// What the file says of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// Id of the request that stands.
    pub request: Option<String>,
    /// Until when it waits.
    pub deadline: Option<Timestamp>,
    /// Id that was answered before.
    pub done: Option<String>,
}

impl Noted {
    /// Reads the lines `key="value"` that kubelet writes, each value quoted as in Go. Others' annotations are passed over.
    pub fn parse(text: &str) -> Self {
        let mut noted = Self::default();
        for line in text.lines().filter(|line| line.starts_with(GROUP)) {
            let Some((key, quoted)) = line.split_once('=') else { continue };
            // Ids and times have nothing to escape; what has is none of ours.
            let Ok(value) = serde_json::from_str::<String>(quoted) else { continue };
            if value.is_empty() || value.len() > 253 {
                continue;
            }
            match key {
                ANNOTATION_CHECKPOINT_REQUEST => noted.request = Some(value),
                ANNOTATION_CHECKPOINT_DEADLINE => noted.deadline = value.parse().ok(),
                ANNOTATION_CHECKPOINT_DONE => noted.done = Some(value),
                _ => {}
            }
        }
        noted
    }
}

/// What is to be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing is asked, or all is answered.
    Rest,
    /// Run the save command for this request, for at most this long.
    Save(String, Duration),
    /// The work is saved: write the answer.
    Answer(String),
}

/// Where this pod stands with its requests. Pure: time is an argument.
#[derive(Clone, Debug, Default)]
pub struct Answerer {
    id: String,
    saved: bool,
    answered: bool,
    tries: u32,
    not_before: Option<Timestamp>,
}

impl Answerer {
    /// What to do about what the file says at `now`.
    pub fn turn(&mut self, noted: &Noted, now: Timestamp) -> Turn {
        let Some(id) = &noted.request else { return Turn::Rest };
        if *id != self.id {
            *self = Self { id: id.clone(), ..Self::default() };
        }
        // The file lags behind what was written, and a container that was restarted remembers nothing but the file.
        if self.answered || noted.done.as_ref() == Some(id) || self.not_before.is_some_and(|until| now < until) {
            return Turn::Rest;
        }
        if self.saved {
            return Turn::Answer(id.clone());
        }
        let left =
            noted.deadline.map_or(LONGEST, |until| Duration::try_from(until.duration_since(now)).unwrap_or_default());
        if left.is_zero() || self.tries >= MAX_TRIES {
            return Turn::Rest;
        }
        Turn::Save(id.clone(), left.min(LONGEST))
    }

    /// The save of a turn ended at `now`.
    pub fn saved(&mut self, well: bool, now: Timestamp) {
        self.saved = well;
        self.tries += 1;
        self.not_before = if well { None } else { now.checked_add(PAUSE).ok() };
    }

    /// The write of a turn ended at `now`. A saved request is answered late rather than never, so this is tried without end.
    pub fn wrote(&mut self, well: bool, now: Timestamp) {
        self.answered = well;
        self.not_before = if well { None } else { now.checked_add(PAUSE).ok() };
    }
}

/// Answers until SIGTERM, or until it is clear that nothing can be heard.
pub async fn run(args: Args) -> Result<(), Error> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut end = signal(SignalKind::terminate()).map_err(Error::Signal)?;
    let client = kube::Client::try_default().await.map_err(Error::Client)?;
    let began = tokio::time::Instant::now();
    info!(pod = args.pod, file = %args.annotations.display(), "waiting for requests to save");
    let mut answerer = Answerer::default();
    let mut patience = Patience::default();
    loop {
        let noted = match read(&args.annotations) {
            Ok(text) => {
                patience.read();
                Noted::parse(&text)
            }
            Err(error) => {
                match patience.unread(began.elapsed()) {
                    Patient::Begins => {
                        warn!(file = %args.annotations.display(), %error, "the annotations cannot be read; trying on");
                    }
                    Patient::Waits => {}
                    Patient::Ends => {
                        return Err(Error::Annotations { file: args.annotations.clone(), source: error });
                    }
                }
                Noted::default()
            }
        };
        let turn = answerer.turn(&noted, Timestamp::now());
        tokio::select! {
            () = take(&client, &args, &mut answerer, turn) => {}
            _ = end.recv() => break,
        }
        tokio::select! {
            () = sleep(args.interval) => {}
            _ = end.recv() => break,
        }
    }
    info!("told to end");
    Ok(())
}

/// Does what the turn asks for.
pub async fn take(client: &kube::Client, args: &Args, answerer: &mut Answerer, turn: Turn) {
    match turn {
        Turn::Rest => {}
        Turn::Save(id, limit) => {
            info!(request = id, seconds = limit.as_secs(), "asked to save");
            let done = save(&args.exec, &id, limit).await;
            if let Err(error) = &done {
                warn!(request = id, %error, "not saved");
            }
            answerer.saved(done.is_ok(), Timestamp::now());
        }
        Turn::Answer(id) => {
            let written = answer(client, args, &id).await;
            match &written {
                Ok(()) => info!(request = id, "saved and answered"),
                Err(error) => warn!(request = id, %error, "saved, but not answered; trying again"),
            }
            answerer.wrote(written.is_ok(), Timestamp::now());
        }
    }
}

fn read(file: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(file)?.take(MAX_FILE).read_to_string(&mut text)?;
    Ok(text)
}

/// Runs the save command, with the request's id in its environment; no command has nothing to save.
pub async fn save(command: &[String], id: &str, limit: Duration) -> Result<(), Unanswered> {
    let Some((program, arguments)) = command.split_first() else { return Ok(()) };
    let mut command = Command::new(program);
    command.args(arguments).env("GPUMEM_CHECKPOINT_REQUEST", id).kill_on_drop(true);
    let mut child = command.spawn().map_err(Unanswered::Start)?;
    let Ok(ended) = timeout(limit, child.wait()).await else {
        tell_to_end(&mut child).await;
        return Err(Unanswered::Late);
    };
    let status = ended.map_err(Unanswered::Wait)?;
    if status.success() { Ok(()) } else { Err(Unanswered::Failed(status)) }
}

/// A command that hears SIGTERM can remove what it wrote by half.
async fn tell_to_end(child: &mut Child) {
    if let Some(pid) = child.id().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        if timeout(LAST_WORDS, child.wait()).await.is_ok() {
            return;
        }
    }
    let _ = child.kill().await;
}

async fn answer(client: &kube::Client, args: &Args, id: &str) -> Result<(), Unanswered> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &args.namespace);
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let patch = json!({"metadata": {"annotations": {ANNOTATION_CHECKPOINT_DONE: id}}});
    match timeout(WRITE, pods.patch_metadata(&args.pod, &params, &Patch::Merge(&patch))).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(Unanswered::Write(Box::new(error))),
        Err(_) => Err(Unanswered::Silent),
    }
}

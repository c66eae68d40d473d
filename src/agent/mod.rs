//! The node agent: GPU memory by container, once a second, on `/metrics` and `/v1/usage`.
//!
//! ```text
//! sampler thread: nvml ─RawSample─▶ attribution (owners, pods) ─Usage─▶ history ─Snapshot─▶ watch channel
//! tasks:          exporter, usage, health read the snapshot · pod watch · certificate · watchdog of the driver
//! ```
//!
//! It runs as a non-root user without a capability and writes nothing to the API. One thread talks to the driver and may
//! hang there; everything else runs on one other thread and answers from the last snapshot. One task that ends ends the
//! agent.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use gpumem_engine::identity::PodUid;
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tracing::{error, info, warn};

use crate::agent::certificates::{SecretName, Sink};
use crate::agent::exporter::Exporter;
use crate::agent::metrics::SelfMetrics;
use crate::agent::owners::Processes;
use crate::agent::sampler::{Ended, Sampler, Settings, Shared};
use crate::agent::usage::Origin;
use crate::http::{self, Answer};

// Reading order.
pub mod clock;
pub mod metrics;

pub mod snapshot;

pub mod nvml;

pub mod owners;

pub mod client;

pub mod pods;

pub mod hook;

pub mod history;

pub mod sampler;

pub mod exporter;

pub mod usage;

pub mod certificates;

pub mod footprint;

pub mod limits;

pub mod suspend;

/// The sampler gets this long to shut the driver down; a hung one is left behind.
const STOP_DEADLINE: Duration = Duration::from_secs(2);
/// Names are resolved on threads of their own, if at all: two small ones do.
const BLOCKING_THREADS: usize = 2;
const BLOCKING_STACK: usize = 256 * 1024;
/// Shortest and longest sampling interval.
const INTERVALS: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_mins(1);

/// How the agent's pod was given the GPU's device nodes; only advice in errors depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceAccess {
    /// By the NVIDIA runtime class.
    #[value(name = "RuntimeClass")]
    RuntimeClass,
    /// By the NVIDIA runtime class, asked through mounts.
    #[value(name = "VolumeMounts")]
    VolumeMounts,
    /// By the container device interface.
    #[value(name = "CDI")]
    Cdi,
    /// As a privileged container.
    #[value(name = "Privileged")]
    Privileged,
}

/// Flags of the agent.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Name of this node; its pods give containers their names.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(long, default_value = "0.0.0.0:9400")]
    pub listen: SocketAddr,
    /// Address of /v1/usage, served by mutual TLS once there is a certificate.
    #[arg(long, default_value = "0.0.0.0:9443")]
    pub usage_listen: SocketAddr,
    /// Time between two samples, e.g. 1s or 500ms.
    #[arg(long, default_value = "1s", value_parser = interval)]
    pub interval: Duration,
    /// Secret with the certificate for /v1/usage, as NAMESPACE/NAME.
    #[arg(long, conflicts_with = "tls_dir")]
    pub tls_secret: Option<SecretName>,
    /// Directory with ca.crt, agent.crt and agent.key, in place of the Secret.
    #[arg(long)]
    pub tls_dir: Option<PathBuf>,
    /// Path of libnvidia-ml.so.1, looked at before all known places.
    #[arg(long)]
    pub nvml_library: Option<PathBuf>,
    /// Where the host's processes are seen.
    #[arg(long, default_value = "/proc")]
    pub proc: PathBuf,
    /// UID of the agent's own pod: its neighbours within it show without one.
    #[arg(long, env = "POD_UID")]
    pub pod_uid: Option<String>,
    /// How this pod was given the device nodes, for better advice in errors.
    #[arg(long, value_enum, env = "GPUMEM_DEVICE_ACCESS")]
    pub device_access: Option<DeviceAccess>,
    /// Read what pods with gpumem's hook say of their allocators, from the names of their processes' threads.
    #[arg(long)]
    pub hook: bool,
    /// End with an error when a driver that worked refuses access (after `systemctl daemon-reload`, for example), so that
    /// the kubelet starts a new container with fresh device nodes.
    #[arg(long)]
    pub exit_on_refused_access: bool,
    /// What may be made to hold on this node.
    #[command(flatten)]
    pub hold: limits::Args,
}

fn interval(text: &str) -> Result<Duration, String> {
    let span: jiff::SignedDuration = text.parse().map_err(|error| format!("{error}"))?;
    let interval = Duration::try_from(span).map_err(|_| "it is negative".to_owned())?;
    if INTERVALS.contains(&interval) { Ok(interval) } else { Err("it must be between 100ms and 60s".to_owned()) }
}

/// Why the agent ends early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address is taken or not ours.
    #[error("cannot listen on {address}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// No thread, no signal handler or no `/proc`.
    #[error("cannot start {what}")]
    Start {
        /// Which part.
        what: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// A metric is declared wrongly.
    #[error("metrics cannot be declared")]
    Metrics(#[from] prometheus::Error),
    /// A task that never ends ended.
    #[error("the {0} ended unexpectedly")]
    Task(&'static str),
    /// The driver refuses and the flags ask to end then.
    #[error("the driver refuses access although it worked before; ending for a new container")]
    Refused,
}

/// Runs until a signal.
pub fn main(args: Args) -> ExitCode {
    footprint::begin_small();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_stack_size(BLOCKING_STACK)
        .thread_keep_alive(Duration::from_secs(1))
        .build();
    let ended = match runtime {
        Ok(runtime) => {
            let ended = runtime.block_on(run(args, terminated()));
            // A thread that hangs in a lookup must not hold the exit.
            runtime.shutdown_background();
            ended
        }
        Err(source) => Err(Error::Start { what: "the runtime", source }),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!(error = &error as &dyn std::error::Error, "agent ended");
            ExitCode::FAILURE
        }
    }
}

async fn terminated() {
    match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(mut term), Ok(mut int)) => tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        },
        // Without handlers the signals end the process by themselves.
        _ => std::future::pending().await,
    }
}

/// Runs until `shutdown` resolves.
pub async fn run(args: Args, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
    let metrics = Arc::new(SelfMetrics::new()?);
    let shared = Arc::new(Shared::new(Arc::clone(&metrics)));
    let exporter =
        Arc::new(Exporter::new(args.node_name.clone(), shared.snapshot.subscribe(), &metrics, clock::monotonic)?);
    let origin = Arc::new(Origin {
        node: args.node_name.clone(),
        boot_id: boot_id(),
        interval_ms: u64::try_from(args.interval.as_millis()).unwrap_or(u64::MAX),
    });
    let listener = listen(args.listen).await?;
    info!(address = %local(&listener), "metrics and health served");

    let mut tasks: JoinSet<&'static str> = JoinSet::new();
    let handler = {
        let shared = Arc::clone(&shared);
        move |request: Request<Incoming>| std::future::ready(public(&request, &shared, &exporter))
    };
    tasks.spawn(async move {
        http::serve(listener, None, handler, std::future::pending()).await;
        "metrics server"
    });
    if args.tls_secret.is_some() || args.tls_dir.is_some() {
        let usage_listener = listen(args.usage_listen).await?;
        info!(address = %local(&usage_listener), "usage served");
        let (settings, certificate) = watch::channel(None);
        let handler = {
            let shared = Arc::clone(&shared);
            move |request: Request<Incoming>| std::future::ready(private(&request, &shared, &origin))
        };
        tasks.spawn(async move {
            http::serve(usage_listener, Some(certificate), handler, std::future::pending()).await;
            "usage server"
        });
        let sink = Sink { settings, metrics: Arc::clone(&metrics), current: None };
        let (secret, directory) = (args.tls_secret.clone(), args.tls_dir.clone());
        tasks.spawn(async move {
            match (secret, directory) {
                (Some(secret), _) => certificates::watch_secret(secret, sink).await,
                (None, Some(directory)) => certificates::watch_directory(directory, sink).await,
                (None, None) => std::future::pending().await,
            }
            "certificate watch"
        });
    } else {
        info!("/v1/usage is not served: neither --tls-secret nor --tls-dir is given");
    }
    let watched = pods::watch(args.node_name.clone(), shared.pods.clone(), Arc::clone(&metrics));
    tasks.spawn(async move {
        watched.await;
        "pod watch"
    });
    let watchdog = sampler::watchdog(Arc::clone(&shared), args.interval);
    tasks.spawn(async move {
        watchdog.await;
        "watchdog"
    });
    tasks.spawn(async move {
        footprint::stay_small().await;
        "footprint"
    });
    let keepers = start_keepers(&args, &shared, &mut tasks)?;
    let (stop, mut sampler) = start_sampler(&args, Arc::clone(&shared))?;

    tokio::pin!(shutdown);
    let ended = tokio::select! {
        () = &mut shutdown => Ok(()),
        ended = &mut sampler => return Err(if ended == Ok(Ended::Refused) { Error::Refused } else { Error::Task("sampler") }),
        ended = tasks.join_next() => Err(Error::Task(ended.and_then(Result::ok).unwrap_or("panicked task"))),
    };
    info!("ending");
    tasks.abort_all();
    drop(stop);
    keepers.end().await;
    if tokio::time::timeout(STOP_DEADLINE, sampler).await.is_err() {
        warn!("the driver hangs and is left as it is");
    }
    ended
}

type Stop = std::sync::mpsc::SyncSender<()>;

fn start_sampler(args: &Args, shared: Arc<Shared>) -> Result<(Stop, oneshot::Receiver<Ended>), Error> {
    let own_pod = args.pod_uid.as_deref().map(PodUid::from);
    let start = |source| Error::Start { what: "the sampler", source };
    let processes = Processes::new(&args.proc, own_pod).map_err(start)?;
    let settings = Settings {
        interval: args.interval,
        libraries: nvml::search_list(args.nvml_library.as_deref()),
        proc: args.proc.clone(),
        device_access: args.device_access,
        reads_hooks: args.hook,
        exits_on_refusal: args.exit_on_refused_access,
    };
    let sampler = Sampler::new(settings, shared, processes);
    let (stop, stopped) = std::sync::mpsc::sync_channel(0);
    let (report, ended) = oneshot::channel();
    std::thread::Builder::new()
        .name("sampler".to_owned())
        .spawn(move || {
            let _ = report.send(sampler.run(&stopped));
        })
        .map_err(start)?;
    Ok((stop, ended))
}

/// Starts what holds containers to limits, where the flags ask for it.
fn start_keepers(
    args: &Args,
    shared: &Arc<Shared>,
    tasks: &mut JoinSet<&'static str>,
) -> Result<limits::Keepers, Error> {
    let mut keepers = limits::Keepers::default();
    if !args.hold.limits && !args.hold.suspend {
        return Ok(keepers);
    }
    let settings = limits::Settings {
        interval: args.interval,
        libraries: nvml::search_list(args.nvml_library.as_deref()),
        cuda: suspend::search_list(args.hold.cuda_library.as_deref()),
        cgroup_root: args.hold.cgroup_root.clone(),
        boot: boot_id(),
    };
    let start = |source| Error::Start { what: "the keeper of limits", source };
    if args.hold.limits {
        keepers.start("limits", &shared.limits, &settings, limits::run, STOP_DEADLINE).map_err(start)?;
    }
    if args.hold.suspend {
        keepers.start("suspend", &shared.limits, &settings, suspend::run, limits::LET_GO).map_err(start)?;
    }
    let watched = limits::watch::watch(args.node_name.clone(), Arc::clone(&shared.limits));
    tasks.spawn(async move {
        watched.await;
        "watch of the node's limits"
    });
    Ok(keepers)
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })
}

fn local(listener: &TcpListener) -> String {
    listener.local_addr().map(|address| address.to_string()).unwrap_or_default()
}

fn public(request: &Request<Incoming>, shared: &Shared, exporter: &Exporter) -> Answer {
    if request.method() != Method::GET {
        return http::text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
    }
    let snapshot = Arc::clone(&shared.snapshot.borrow());
    match request.uri().path() {
        "/metrics" => match exporter.render() {
            Ok(text) => http::metrics(text),
            Err(error) => http::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        },
        // Alive whatever the driver does: a new container would meet the same driver.
        "/healthz" => http::text(
            StatusCode::OK,
            match snapshot.readiness() {
                Ok(()) => "ok\n".to_owned(),
                Err(reason) => format!("degraded: {reason}\n"),
            },
        ),
        "/readyz" => match snapshot.readiness() {
            Ok(()) => http::text(StatusCode::OK, "ok\n"),
            Err(reason) => http::text(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
        },
        _ => http::text(StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz\n"),
    }
}

fn private(request: &Request<Incoming>, shared: &Shared, origin: &Origin) -> Answer {
    if request.method() != Method::GET || request.uri().path() != crate::api::usage::PATH {
        return http::text(StatusCode::NOT_FOUND, "there is GET /v1/usage\n");
    }
    let since = match usage::since(request.uri().query()) {
        Ok(since) => since,
        Err(error) => return http::text(StatusCode::BAD_REQUEST, format!("{error}\n")),
    };
    let snapshot = Arc::clone(&shared.snapshot.borrow());
    // Not while the history is held: the sampler takes the two in the other order.
    let expected = shared.pods.lock().expected();
    let held = shared.limits.held();
    match usage::answer(origin, &snapshot, &shared.history(), since, clock::monotonic(), held, &expected) {
        Ok(body) => http::json(StatusCode::OK, body),
        Err(error) => http::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

/// Which boot of the kernel this is; not the fake `/proc` of a test, whose processes alone are fake.
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

//! Starts the controller's tasks and waits for the first to end, or for a signal.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpumem_engine::policy::{Mode, Policy, PolicyKey};
use hyper::StatusCode;
use kube::Api;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::act::Patience;
use super::args::Args;
use super::clients::Clients;
use super::context::Context;
use super::fleet::Fleet;
use super::health::Health;
use super::hook;
use super::leader::{self, Leadership};
use super::metrics::{Exposition, Metrics};
use super::peer;
use super::pki;
use super::profile;
use super::pull::{self, Puller, agents};
use super::reconcile;
use super::view::View;
use crate::http;
use crate::text::chain;

/// Why the controller ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No runtime.
    #[error("the runtime did not start")]
    Runtime(#[source] std::io::Error),
    /// No way to the API.
    #[error("no client for the Kubernetes API")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A port is taken.
    #[error("listening on {address} failed")]
    Listen {
        /// Which.
        address: std::net::SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// Metrics could not be declared.
    #[error("declaring metrics failed")]
    Metrics(#[from] prometheus::Error),
    /// No signal handler.
    #[error("no signal can be received")]
    Signals(#[source] std::io::Error),
    /// The question for containers without a policy.
    #[error("the default policy is unusable: {0}")]
    Default(String),
    /// A task ended though nobody told it to.
    #[error("task {0} ended unexpectedly{1}")]
    Task(&'static str, String),
}

/// Tasks get this long to finish what they began; the chart lets Kubernetes kill after 10 s.
const DRAIN: Duration = Duration::from_secs(8);
/// Proof that the runtime turns.
const TURN: Duration = Duration::from_secs(5);

/// Runs until a signal.
pub async fn run(args: Args) -> Result<(), Error> {
    let mut signals = Signals::new()?;
    let Clients { read, watch: listen_with, act, lease } = Clients::infer().await.map_err(Error::Client)?;
    let health = Arc::new(Health::default());
    let metrics = Arc::new(Metrics::new()?);
    let fleet = Arc::new(Mutex::new(Fleet::default()));
    let default = Arc::new(default_policy()?);
    for condition in [pki::CERTIFICATES, agents::WATCH, peer::PEER, pull::FIRST_PULL] {
        health.wait_for(condition);
    }
    let (lead, leadership) = watch::channel(Leadership::follower(&args.pod_name, Instant::now()));
    let (client_tls, client_settings) = watch::channel(None);
    let (server_tls, server_settings) = watch::channel(None);
    let (publish_agents, agents) = watch::channel(None);
    let (news, heard) = watch::channel(0);
    let (stop, stopped) = watch::channel(false);
    let context = Arc::new(Context {
        read: read.clone(),
        watch: listen_with.clone(),
        act,
        namespace: args.namespace.clone(),
        identity: args.pod_name.clone(),
        fleet: Arc::clone(&fleet),
        leadership: leadership.clone(),
        metrics: Arc::clone(&metrics),
        health: Arc::clone(&health),
        max_mode: args.max_mode,
        patience: Patience::default(),
        granted: args.actions.clone(),
        admin: args.limits.clone(),
        workload_kinds: args.workload_kinds.clone(),
        ledger: args.ledger.clone(),
        limits: super::limits::Limits::default(),
        read_pod_logs: args.read_pod_logs,
        profile_ttl: Duration::from_secs(args.profile_ttl_days.saturating_mul(86_400)),
        news: heard,
    });
    let exposition = Exposition {
        metrics: Arc::clone(&metrics),
        fleet: Arc::clone(&fleet),
        leadership: leadership.clone(),
        default,
    };
    let listener = listen(args.listen).await?;
    let peer_listener = listen(args.peer_listen).await?;

    let mut tasks = Tasks { set: JoinSet::new(), stopped };
    let view = Arc::new(View::new(exposition.clone(), args.pod_name.clone()));
    tasks.spawn("metrics", |_| serve(listener, exposition, view, Arc::clone(&health)));
    tasks.spawn("peers", |_| serve_peers(peer_listener, server_settings, Arc::clone(&fleet)));
    let candidate = leader::Candidate {
        leases: Api::namespaced(lease, &args.namespace),
        name: args.lease.clone(),
        identity: args.pod_name.clone(),
        terms: leader::Terms::default(),
    };
    tasks.spawn("leader", |stopped| leader::run(candidate, lead, until(stopped)));
    let keeper = pki::Keeper { secrets: Api::namespaced(read.clone(), &args.namespace), name: args.tls_secret.clone() };
    let published = pki::Published { client: client_tls, server: server_tls };
    if args.hook {
        let kept = hook::run(
            read.clone(),
            hook::owner(&args.namespace),
            leadership.clone(),
            Arc::clone(&metrics),
            Arc::clone(&health),
        );
        tasks.spawn("hook", |_| kept);
    }
    tasks.spawn("pki", |_| pki::run(keeper, leadership, published, Arc::clone(&metrics), Arc::clone(&health)));
    let pods = Api::namespaced(read, &args.namespace);
    let watched = agents::watch(
        Api::namespaced(listen_with, &args.namespace),
        args.agent_selector.clone(),
        args.agent_port,
        Arc::clone(&health),
        publish_agents,
    );
    tasks.spawn("agents", |_| watched);
    let puller = Puller {
        fleet,
        metrics,
        health: Arc::clone(&health),
        tls: client_settings,
        interval: args.pull_interval,
        news,
    };
    tasks.spawn("pull", |_| take_then_pull(puller, agents, pods, args));
    let sweeper = Arc::clone(&context);
    tasks.spawn("profiles", |stopped| profile::expiry::run(sweeper, until(stopped)));
    tasks.spawn("act", |stopped| reconcile::run(context, until(stopped)));
    tasks.spawn("turn", |_| async move {
        loop {
            health.beat("turn", Duration::from_mins(1));
            tokio::time::sleep(TURN).await;
        }
    });

    let ended = tokio::select! {
        () = signals.next() => Ok(()),
        task = tasks.set.join_next() => Err(unexpected(task)),
    };
    let _ = stop.send(true);
    tokio::select! {
        () = tasks.drain() => {}
        () = signals.next() => warn!("second signal: not waiting any longer"),
        () = tokio::time::sleep(DRAIN) => warn!("tasks did not end in time"),
    }
    ended
}

/// A peer's series first, then everything the agents know.
async fn take_then_pull(
    puller: Puller,
    agents: pull::AgentSource,
    pods: Api<k8s_openapi::api::core::v1::Pod>,
    args: Args,
) {
    let took =
        peer::take(&pods, &args.controller_selector, &args.pod_name, args.peer_port, puller.tls.clone(), &puller.fleet);
    if let Err(error) = took.await {
        puller.metrics.failed("peer", error.kind());
        warn!(error = chain(&error), "starting without a peer's series");
    }
    puller.health.done(peer::PEER);
    pull::run(Arc::new(puller), agents).await;
}

async fn serve(listener: TcpListener, exposition: Exposition, view: Arc<View>, health: Arc<Health>) {
    let handler = move |request: hyper::Request<hyper::body::Incoming>| {
        let (exposition, view, health) = (exposition.clone(), Arc::clone(&view), Arc::clone(&health));
        async move {
            match request.uri().path() {
                "/healthz" => health.healthz(),
                "/readyz" => health.readyz(),
                "/metrics" => {
                    // Forecasts of ten thousand series take a moment; pulls and probes go on meanwhile.
                    let text = tokio::task::spawn_blocking(move || exposition.text(Instant::now())).await;
                    http::metrics(text.unwrap_or_default().into_bytes())
                }
                _ if view.serves(request.uri().path()) => view.answer(&request).await,
                _ => http::text(StatusCode::NOT_FOUND, "try /metrics, /healthz, /readyz or /api/v1/containers\n"),
            }
        }
    };
    http::serve(listener, None, handler, std::future::pending()).await;
}

async fn serve_peers(listener: TcpListener, settings: http::TlsSettings, fleet: Arc<Mutex<Fleet>>) {
    let handler = move |request: hyper::Request<hyper::body::Incoming>| {
        let fleet = Arc::clone(&fleet);
        async move { peer::answer(&fleet, &request) }
    };
    http::serve(listener, Some(settings), handler, std::future::pending()).await;
}

async fn listen(address: std::net::SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })
}

/// What containers without a policy are asked: a policy with every default.
pub(super) fn default_policy() -> Result<Policy, Error> {
    let spec = serde_json::from_value(serde_json::json!({"target": {"podSelector": {}}}))
        .map_err(|error| Error::Default(error.to_string()))?;
    let key = PolicyKey { namespace: String::new(), name: String::new() };
    crate::api::convert::policy(key, &spec, Mode::Observe).map_err(|rejection| Error::Default(rejection.to_string()))
}

/// Resolves when told to stop.
async fn until(mut stopped: watch::Receiver<bool>) {
    // An error means that nobody can tell any more: the process is on its way out.
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// The controller's tasks by name.
struct Tasks {
    set: JoinSet<&'static str>,
    stopped: watch::Receiver<bool>,
}

impl Tasks {
    fn spawn<Task>(&mut self, name: &'static str, start: impl FnOnce(watch::Receiver<bool>) -> Task)
    where
        Task: Future<Output = ()> + Send + 'static,
    {
        let task = start(self.stopped.clone());
        self.set.spawn(async move {
            task.await;
            name
        });
    }

    /// Waits for the tasks that hold something to finish; the others are dropped with the process.
    async fn drain(&mut self) {
        let mut waiting = vec!["leader", "act"];
        while !waiting.is_empty() {
            match self.set.join_next().await {
                Some(Ok(name)) => waiting.retain(|task| *task != name),
                Some(Err(error)) => warn!(%error, "task ended badly"),
                None => return,
            }
        }
        info!("drained");
    }
}

fn unexpected(task: Option<Result<&'static str, tokio::task::JoinError>>) -> Error {
    match task {
        Some(Ok(name)) => Error::Task(name, String::new()),
        Some(Err(error)) => Error::Task("unknown", format!(": {error}")),
        None => Error::Task("any", ": there is none".to_owned()),
    }
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Self, Error> {
        let open = |kind| signal(kind).map_err(Error::Signals);
        Ok(Self { terminate: open(SignalKind::terminate())?, interrupt: open(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => info!("SIGTERM"),
            _ = self.interrupt.recv() => info!("SIGINT"),
        }
    }
}

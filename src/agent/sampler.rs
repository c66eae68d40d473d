//! The sampler: one thread that owns the driver and takes a sample every interval, for as long as the agent lives.
//!
//! Flows in: the driver, `/proc`, the pod table. Flows out: one [`Snapshot`] a cycle, and the history. When the driver goes
//! away it is dropped and opened again with backoff; a lost GPU does not stop the others. A call that hangs stops this
//! thread only: the [`watchdog`] tells the rest.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gpumem_engine::attribution::attribute;
use gpumem_engine::identity::StartTime;
use gpumem_engine::sample::{DeviceSample, QueryFailure, RawSample, Reading};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::agent::history::History;
use crate::agent::hook::{self, Hooks};
use crate::agent::metrics::SelfMetrics;
use crate::agent::nvml::{self, Driver, Identity, Observer};
use crate::agent::owners::Processes;
use crate::agent::pods::SharedPods;
use crate::agent::snapshot::{Pulse, Snapshot};
use crate::agent::{DeviceAccess, clock, limits};
use crate::api::usage::NvmlState;

/// Opening the driver again starts with this pause and doubles it.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
/// A driver that is being installed or reloaded is found again soon.
const MAX_BACKOFF: Duration = Duration::from_secs(15);
/// A lost GPU comes back by a reset at best; each try interrupts the others for a moment.
const FIRST_LOST_BACKOFF: Duration = Duration::from_secs(10);
const MAX_LOST_BACKOFF: Duration = Duration::from_mins(5);
/// Cycles in which every device refuses before the driver is opened again.
const REFUSALS: u32 = 3;
/// After this many intervals without an answer, and never sooner than the time below, a call counts as hung.
const HUNG_INTERVALS: u32 = 3;
const HUNG_AFTER: Duration = Duration::from_secs(3);
/// How much later the other devices' values are too old to be shown as well.
const ALL_HUNG_FACTOR: u32 = 4;

/// What the sampler is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Pause between two samples.
    pub interval: Duration,
    /// Paths of the library.
    pub libraries: Vec<PathBuf>,
    /// `/proc`.
    pub proc: PathBuf,
    /// How the pod was given its devices, for advice.
    pub device_access: Option<DeviceAccess>,
    /// Read what hooked processes say of their allocators.
    pub reads_hooks: bool,
    /// End the agent when a driver that worked refuses from then on.
    pub exits_on_refusal: bool,
}

/// What the sampler shares with the rest.
#[derive(Debug)]
pub struct Shared {
    /// The newest snapshot.
    pub snapshot: watch::Sender<Arc<Snapshot>>,
    /// The series.
    history: Mutex<History>,
    /// The node's pods.
    pub pods: SharedPods,
    /// Whether a call is under way.
    pub pulse: Pulse,
    /// What should hold, and what does.
    pub limits: Arc<limits::Shared>,
    /// Counters.
    pub metrics: Arc<SelfMetrics>,
}

/// Why the sampler ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to.
    Stopped,
    /// The driver refuses although it worked before; a new container may get its devices back.
    Refused,
}

/// The thread's state.
pub struct Sampler {
    settings: Settings,
    shared: Arc<Shared>,
    processes: Processes,
    hooks: Hooks,
    known: Vec<Identity>,
    simulated: bool,
    backoff: Duration,
    lost: Option<Lost>,
    refused_before: u64,
}

struct Lost {
    retry: Instant,
    backoff: Duration,
}

/// What follows from a sample.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Every device answered, or the fault is one that opening again would not change.
    Well,
    /// At least one GPU is lost.
    Lost,
    /// Every device refuses.
    Refused,
    /// The driver as a whole is gone, or every GPU is lost: a reload of the driver looks like that too.
    Gone(QueryFailure),
}

// === impl Shared ===

impl Shared {
    /// Nothing sampled yet.
    pub fn new(metrics: Arc<SelfMetrics>) -> Self {
        Self {
            snapshot: watch::Sender::new(Arc::new(Snapshot::starting())),
            history: Mutex::new(History::new()),
            pods: SharedPods::default(),
            pulse: Pulse::default(),
            limits: Arc::default(),
            metrics,
        }
    }

    /// The series; held by the sampler for one cycle's pushes, by readers while they write their answer.
    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Told by the driver's reading.
struct Told<'a>(&'a Shared);

impl Observer for Told<'_> {
    fn device(&self, index: u32) {
        self.0.pulse.device(index);
    }

    fn failed(&self, query: &'static str, failure: QueryFailure) {
        self.0.metrics.query_failed(query, failure);
    }
}

// === impl Sampler ===

impl Sampler {
    /// Ready to run on a thread of its own.
    pub fn new(settings: Settings, shared: Arc<Shared>, processes: Processes) -> Self {
        Self {
            settings,
            shared,
            processes,
            hooks: Hooks::default(),
            known: Vec::new(),
            simulated: false,
            backoff: FIRST_BACKOFF,
            lost: None,
            refused_before: 0,
        }
    }

    /// Samples until the sender of `stop` is dropped.
    pub fn run(mut self, stop: &Receiver<()>) -> Ended {
        loop {
            let opened = self.in_driver(|sampler| Driver::open(&sampler.settings.libraries, &sampler.known));
            match opened {
                Ok(driver) if driver.identities().is_empty() && self.known.is_empty() => {
                    let reason = format!("driver {} has no GPU", driver.version());
                    self.without_driver(NvmlState::Absent { reason }, "absent");
                }
                Ok(driver) => match self.session(driver, stop) {
                    None => {}
                    Some(ended) => return ended,
                },
                Err(error) => self.failed_to_open(&error),
            }
            if is_stopped(stop, self.backoff) {
                return Ended::Stopped;
            }
            self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
        }
    }

    /// Samples until the driver has to be opened again (`None`) or the agent ends.
    fn session(&mut self, mut driver: Driver, stop: &Receiver<()>) -> Option<Ended> {
        info!(driver = driver.version(), gpus = driver.identities().len(), "driver opened");
        self.known = driver.identities();
        self.simulated = driver.is_simulated();
        let up = NvmlState::Up { driver: driver.version().to_owned() };
        let mut refusals = 0;
        let mut next = Instant::now();
        loop {
            let began = Instant::now();
            let (at, ticks) = (clock::monotonic(), clock::ticks());
            let sample = self.in_driver(|sampler| driver.read(at, &Told(&sampler.shared)));
            let verdict = judge(&sample);
            match verdict {
                Verdict::Gone(failure) => {
                    let reason = match failure {
                        QueryFailure::DeviceLost => "every GPU is lost, or the driver was reloaded",
                        _ => "the driver was unloaded or replaced",
                    };
                    warn!(reason, "opening the driver again");
                    self.publish(&sample, ticks, NvmlState::Down { reason: reason.to_owned() }, failure.kind());
                    return None;
                }
                Verdict::Refused if refusals + 1 >= REFUSALS => {
                    let reason = format!("the driver answered before and refuses now; {}", self.advice());
                    warn!(reason, "no access to the driver any more");
                    self.publish(&sample, ticks, NvmlState::Down { reason }, "no_permission");
                    return self.settings.exits_on_refusal.then_some(Ended::Refused);
                }
                _ => self.publish(&sample, ticks, up.clone(), ""),
            }
            refusals = if verdict == Verdict::Refused { refusals + 1 } else { 0 };
            if verdict == Verdict::Well {
                self.backoff = FIRST_BACKOFF;
                self.lost = None;
            }
            self.shared.metrics.sample_duration.observe(began.elapsed().as_secs_f64());
            if verdict == Verdict::Lost && self.is_lost_retry_due() {
                self.backoff = Duration::ZERO;
                return None;
            }
            next = (next + self.settings.interval).max(Instant::now());
            if is_stopped(stop, next.saturating_duration_since(Instant::now())) {
                return Some(Ended::Stopped);
            }
        }
    }

    fn in_driver<T>(&mut self, call: impl FnOnce(&mut Self) -> T) -> T {
        self.shared.pulse.begin(clock::monotonic());
        let answer = call(self);
        self.shared.pulse.end();
        answer
    }

    fn is_lost_retry_due(&mut self) -> bool {
        let now = Instant::now();
        let lost = self.lost.get_or_insert(Lost { retry: now + FIRST_LOST_BACKOFF, backoff: FIRST_LOST_BACKOFF });
        if lost.retry > now {
            return false;
        }
        lost.backoff = (lost.backoff * 2).min(MAX_LOST_BACKOFF);
        lost.retry = now + lost.backoff;
        true
    }

    fn failed_to_open(&mut self, error: &nvml::Error) {
        let is_kernel_there = self.settings.proc.join("driver/nvidia/version").exists();
        let is_proven_absent = error.is_absence() && !is_kernel_there && self.known.is_empty();
        if is_proven_absent {
            let reason = format!("{error}; and the kernel has no NVIDIA driver");
            return self.without_driver(NvmlState::Absent { reason }, "absent");
        }
        let advice = if error.is_refusal() || is_kernel_there { format!("; {}", self.advice()) } else { String::new() };
        self.without_driver(NvmlState::Down { reason: format!("{error}{advice}") }, error.kind());
    }

    /// Shows every GPU that was ever seen as failed; logs each new reason once.
    fn without_driver(&mut self, state: NvmlState, kind: &'static str) {
        if self.shared.snapshot.borrow().nvml != state {
            match &state {
                NvmlState::Absent { reason } => info!(reason, "no NVML on this node"),
                NvmlState::Down { reason } => warn!(reason, "NVML does not work"),
                NvmlState::Up { .. } => {}
            }
        }
        let sample = nvml::all_failed(&self.known, QueryFailure::DriverGone, clock::monotonic());
        self.publish(&sample, clock::ticks(), state, kind);
    }

    /// What to change in the chart, one step beyond what is set.
    fn advice(&self) -> String {
        let next = match self.settings.device_access {
            None => "RuntimeClass (the NVIDIA runtime class), CDI, or, if neither is installed, Privileged",
            Some(DeviceAccess::RuntimeClass | DeviceAccess::VolumeMounts) => {
                "CDI, or, if the node has no CDI specification, Privileged"
            }
            Some(DeviceAccess::Cdi) => "RuntimeClass, or, if the node has no NVIDIA runtime, Privileged",
            Some(DeviceAccess::Privileged) => {
                return "agent.deviceAccess is Privileged already: look at the driver itself, with nvidia-smi on the node".to_owned();
            }
        };
        format!("the agent's pod may not use the GPU's device nodes: set agent.deviceAccess to {next}")
    }

    fn publish(&mut self, sample: &RawSample, listed_at: StartTime, nvml: NvmlState, reason: &'static str) {
        let shared = Arc::clone(&self.shared);
        self.processes.refresh(sample, listed_at, &shared.pods, &shared.metrics);
        let usage = attribute(sample, |pid| self.processes.owner(pid));
        shared.limits.hold(&usage);
        let figures = if self.settings.reads_hooks {
            self.hooks.read(&usage, &self.processes, &shared.metrics)
        } else {
            BTreeMap::new()
        };
        let (hooks, devices, cursor, refused) = {
            let pods = shared.pods.lock();
            let hooks = hook::named(figures, &usage, &pods);
            let mut history = shared.history();
            let devices = history.record(sample, usage, &pods, &hooks);
            (hooks, devices, history.cursor(), history.refused())
        };
        if refused > self.refused_before {
            shared.metrics.dropped("series", "too_many");
            self.refused_before = refused;
        }
        let at = if devices.is_empty() { shared.snapshot.borrow().at } else { Some(sample.at) };
        let limits = limits::views(&shared.limits, &shared.pods);
        let snapshot =
            Snapshot { seq: cursor.seq, at, nvml, reason, simulated: self.simulated, devices, limits, hooks };
        shared.snapshot.send_replace(Arc::new(snapshot));
    }
}

fn judge(sample: &RawSample) -> Verdict {
    let failure = |device: &DeviceSample| match (&device.memory, &device.processes) {
        (Reading::Failed(failure), _) | (_, Reading::Failed(failure)) => Some(*failure),
        _ => None,
    };
    let all: Vec<_> = sample.devices.iter().map(failure).collect();
    let has = |wanted: QueryFailure| all.contains(&Some(wanted));
    let refuses =
        |failure: &Option<QueryFailure>| matches!(failure, Some(QueryFailure::NoPermission | QueryFailure::Unknown));
    if has(QueryFailure::DriverGone) {
        Verdict::Gone(QueryFailure::DriverGone)
    } else if !all.is_empty() && all.iter().all(|failure| *failure == Some(QueryFailure::DeviceLost)) {
        Verdict::Gone(QueryFailure::DeviceLost)
    } else if !all.is_empty() && all.iter().all(refuses) {
        Verdict::Refused
    } else if has(QueryFailure::DeviceLost) {
        Verdict::Lost
    } else {
        Verdict::Well
    }
}

/// Waits, and tells whether to end.
fn is_stopped(stop: &Receiver<()>, pause: Duration) -> bool {
    !matches!(stop.recv_timeout(pause), Err(RecvTimeoutError::Timeout))
}

/// Looks at the pulse once an interval and shows a hung call to the rest of the agent. Ends with the agent.
pub async fn watchdog(shared: Arc<Shared>, interval: Duration) {
    let hung_after = HUNG_AFTER.max(interval * HUNG_INTERVALS);
    let mut ticks = tokio::time::interval(interval.clamp(Duration::from_millis(100), Duration::from_secs(5)));
    let mut shown = None;
    loop {
        ticks.tick().await;
        let Some((began, device)) = shared.pulse.busy() else { continue };
        let since = clock::monotonic().since(began);
        if since < hung_after {
            continue;
        }
        let device = device.filter(|_| since < hung_after * ALL_HUNG_FACTOR);
        if shown != Some((began, device)) {
            shown = Some((began, device));
            warn!(?device, seconds = since.as_secs(), "a call of the driver hangs");
        }
        shared.snapshot.send_modify(|snapshot| {
            // The call may have returned meanwhile; then the sampler's own snapshot is the newer one.
            if shared.pulse.busy().is_some_and(|(still, _)| still == began) {
                *snapshot = Arc::new(snapshot.hung(device, since));
            }
        });
    }
}

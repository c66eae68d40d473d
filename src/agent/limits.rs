//! What should hold on this node: read from its `GpuMemoryNode`, applied through the driver, and read back.
//!
//! ```text
//! watch ─GpuMemoryNode─▶ keeper (own thread) ─set, get─▶ driver          (the same for suspend)
//!                           └─LimitReport─▶ /v1/usage, /metrics
//! ```
//!
//! Nothing is set before the object's status shows it with this boot: that status is the ledger, and only what stands there
//! is ever cleared. So an agent that was killed at any moment finds what it set. The agent writes nothing to the API.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpumem_engine::identity::{ContainerKey, DeviceKey, Pid};
use gpumem_engine::quantity::Bytes;
use gpumem_engine::usage::Usage;
use tokio::sync::oneshot;
use tracing::{info, warn};

use crate::agent::pods::SharedPods;
use crate::agent::snapshot::LimitView;
use crate::api::node::{GpuMemoryNode, LimitEntry, LimitStatus, device_of};
use crate::api::usage::{Abilities, Ability, LimitReport};

// Reading order.
pub mod watch;

pub mod leaf;

pub mod backend;

pub mod nvml;

pub mod keeper;

/// Longest pause between two looks at what holds.
const PAUSE: Duration = Duration::from_secs(1);
/// A driver without limits, or one that is gone, is tried again after this long.
const REOPEN: Duration = Duration::from_mins(1);
/// At its end the agent resumes what it froze, which takes seconds for each container: the chart lets it.
pub const LET_GO: Duration = Duration::from_mins(2);

/// Flags about limits.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Apply the memory limits that the GpuMemoryNode of this node lists. Needs root and a writable --cgroup-root.
    #[arg(long)]
    pub limits: bool,
    /// Freeze the containers that the GpuMemoryNode of this node lists, and move their GPU memory to host memory. Needs root
    /// with SYS_PTRACE and DAC_OVERRIDE.
    #[arg(long)]
    pub suspend: bool,
    /// Where the host's cgroups are mounted.
    #[arg(long, default_value = "/sys/fs/cgroup")]
    pub cgroup_root: PathBuf,
    /// Path of libcuda.so.1, looked at before all known places.
    #[arg(long)]
    pub cuda_library: Option<PathBuf>,
}

/// Memory of one container on one device in the newest sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Which container, as its cgroup names it.
    pub container: ContainerKey,
    /// Which device.
    pub device: DeviceKey,
    /// Its memory; `None` where the driver withholds it.
    pub used: Option<Bytes>,
    /// Its processes there.
    pub processes: Vec<Pid>,
}

/// What the keepers and the rest of the agent share.
#[derive(Debug, Default)]
pub struct Shared {
    order: Mutex<Option<Arc<GpuMemoryNode>>>,
    holdings: Mutex<Arc<Vec<Holding>>>,
    most_free: Mutex<Option<Bytes>>,
    devices: Mutex<Vec<DeviceKey>>,
    reports: Mutex<BTreeMap<Part, Vec<LimitReport>>>,
    abilities: Mutex<Abilities>,
}

/// Who reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Limits in bytes.
    Limits,
    /// Freezes.
    Freezes,
}

/// What the object says now, cut into what a keeper needs.
#[derive(Clone, Debug, Default)]
pub struct Order {
    /// Entries that should hold now, release and expiry taken into account.
    pub wanted: Vec<LimitEntry>,
    /// The ledger: what may have been set in this boot.
    pub ledger: Vec<LimitStatus>,
}

impl Shared {
    /// The newest object; `None` where there is none.
    pub fn order(&self, object: Option<GpuMemoryNode>) {
        *lock(&self.order) = object.map(Arc::new);
    }

    /// What one keeper has to do at `now`.
    pub fn orders(&self, part: Part, boot: &str, now: jiff::Timestamp) -> Order {
        let Some(object) = lock(&self.order).clone() else { return Order::default() };
        let is_mine = |freeze: bool| freeze == (part == Part::Freezes);
        let wanted = object
            .spec
            .limits
            .iter()
            .filter(|entry| is_mine(entry.freeze.is_some()) && !object.spec.release && !entry.is_expired(now));
        let status = object.status.as_ref();
        let ledger = status.into_iter().flat_map(|status| &status.limits).filter(|entry| {
            is_mine(entry.device == crate::api::node::ALL_DEVICES) && entry.boot_id == boot && !entry.cgroup.is_empty()
        });
        Order { wanted: wanted.cloned().collect(), ledger: ledger.cloned().collect() }
    }

    /// Takes what the newest sample shows.
    pub fn hold(&self, usage: &Usage) {
        let holdings = usage.devices.iter().flat_map(|device| {
            device.containers.iter().map(|container| Holding {
                container: container.container.clone(),
                device: device.device.clone(),
                used: container.used,
                processes: container.processes.iter().map(|(pid, _)| *pid).collect(),
            })
        });
        *lock(&self.holdings) = Arc::new(holdings.collect());
        *lock(&self.most_free) =
            usage.devices.iter().filter_map(|device| device.memory.map(|memory| memory.free)).max();
        let mut devices = lock(&self.devices);
        if !devices.iter().eq(usage.devices.iter().map(|device| &device.device)) {
            *devices = usage.devices.iter().map(|device| device.device.clone()).collect();
        }
    }

    /// The devices of the newest sample.
    pub fn devices(&self) -> Vec<DeviceKey> {
        lock(&self.devices).clone()
    }

    /// What the newest sample shows.
    pub fn holdings(&self) -> Arc<Vec<Holding>> {
        Arc::clone(&lock(&self.holdings))
    }

    /// The most that a device of the node has free; `None` where no device tells.
    pub fn most_free(&self) -> Option<Bytes> {
        *lock(&self.most_free)
    }

    /// Takes what a keeper found.
    pub fn report(&self, part: Part, reports: Vec<LimitReport>) {
        lock(&self.reports).insert(part, reports);
    }

    /// Takes what a keeper found of its own part: whether it works here.
    pub fn able(&self, part: Part, ability: Ability) {
        let mut abilities = lock(&self.abilities);
        match part {
            Part::Limits => abilities.limits = ability,
            Part::Freezes => abilities.suspend = ability,
        }
    }

    /// What holds, and what could.
    pub fn held(&self) -> (Vec<LimitReport>, Abilities) {
        (self.reports(), lock(&self.abilities).clone())
    }

    /// What all keepers found last.
    pub fn reports(&self) -> Vec<LimitReport> {
        lock(&self.reports).values().flatten().cloned().collect()
    }
}

/// The limits that hold, under the names that people know.
pub fn views(shared: &Shared, pods: &SharedPods) -> Vec<LimitView> {
    let reports = shared.reports();
    if reports.is_empty() {
        return Vec::new();
    }
    let pods = pods.lock();
    let held = reports.iter().filter_map(|report| Some((report, device_of(&report.device)?, report.applied?)));
    held.filter_map(|(report, device, limit)| {
        let key = ContainerKey { pod: report.pod.clone(), container: report.container_id.clone() };
        let named = pods.find(&key)?;
        let (namespace, pod) = (Arc::clone(&named.pod.namespace), Arc::clone(&named.pod.name));
        Some(LimitView { device, namespace, pod, container: named.container?, limit })
    })
    .collect()
}

/// A panic elsewhere leaves these whole: each is replaced in one assignment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the limits until the sender of `stop` is dropped. Limits stay when it ends: the next agent takes them over.
pub fn run(shared: &Shared, settings: &Settings, stop: &Receiver<()>) {
    let mut keeper = keeper::Keeper::new(leaf::Leaves::new(&settings.cgroup_root));
    let mut driver = None;
    let mut retry = std::time::Instant::now();
    loop {
        if driver.is_none() && retry <= std::time::Instant::now() {
            retry = std::time::Instant::now() + REOPEN;
            match nvml::Nvml::open(&settings.libraries) {
                Ok(opened) => {
                    info!(backend = backend::Backend::name(&opened), "memory limits by the driver");
                    driver = Some(opened);
                    keeper.unsupported = None;
                }
                Err(why) => {
                    if keeper.unsupported.as_ref() != Some(&why) {
                        warn!(why, "this node's driver cannot limit memory");
                    }
                    keeper.unsupported = Some(why);
                }
            }
        }
        let order = shared.orders(Part::Limits, &settings.boot, jiff::Timestamp::now());
        let backend = driver.as_mut().map(|driver| driver as &mut dyn backend::Backend);
        shared.able(Part::Limits, keeper.ability(backend, &shared.devices()));
        let backend = driver.as_mut().map(|driver| driver as &mut dyn backend::Backend);
        let found = keeper.keep(backend, &order, &shared.holdings());
        shared.report(Part::Limits, found.reports);
        if found.driver_gone {
            driver = None;
            retry = std::time::Instant::now();
        }
        if !matches!(stop.recv_timeout(settings.pause()), Err(RecvTimeoutError::Timeout)) {
            return;
        }
    }
}

/// The keepers' threads: told to end, and waited for.
#[derive(Debug, Default)]
pub struct Keepers(Vec<(std::sync::mpsc::SyncSender<()>, oneshot::Receiver<()>, Duration)>);

impl Keepers {
    /// Starts one.
    pub fn start(
        &mut self,
        name: &str,
        shared: &Arc<Shared>,
        settings: &Settings,
        run: fn(&Shared, &Settings, &Receiver<()>),
        patience: Duration,
    ) -> std::io::Result<()> {
        let (stop, stopped) = std::sync::mpsc::sync_channel(0);
        let (ending, ended) = oneshot::channel();
        let (shared, settings) = (Arc::clone(shared), settings.clone());
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            run(&shared, &settings, &stopped);
            let _ = ending.send(());
        })?;
        self.0.push((stop, ended, patience));
        Ok(())
    }

    /// Tells all to end, and waits until they have let go of what must not outlive them.
    pub async fn end(self) {
        let ends: Vec<_> = self.0.into_iter().map(|(_, ended, patience)| (ended, patience)).collect();
        for (ended, patience) in ends {
            if tokio::time::timeout(patience, ended).await.is_err() {
                warn!("a call of the driver hangs; what it holds stays until it expires");
            }
        }
    }
}

/// How the keepers run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The agent's sampling interval: nothing is looked at more often.
    pub interval: Duration,
    /// Where the driver's library is looked for.
    pub libraries: Vec<PathBuf>,
    /// Where CUDA's library is looked for.
    pub cuda: Vec<PathBuf>,
    /// Where the host's cgroups are mounted.
    pub cgroup_root: PathBuf,
    /// This boot.
    pub boot: String,
}

impl Settings {
    /// Time between two looks.
    pub fn pause(&self) -> Duration {
        self.interval.min(PAUSE)
    }
}

//! What every task of the controller shares: clients, the fleet, whether we lead, and the metrics.
//!
//! Data flows one way: pulls merge into `fleet` and signal `news`; the acting side reads `fleet`, checks `leadership` before
//! each call, and reports through `metrics`. Nothing in here decides anything.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use gpumem_engine::policy::{Mode, Policy};
use tokio::sync::watch;

use super::act::Patience;
use super::fleet::{Fleet, Observation, shared};
use super::granted::Granted;
use super::health::Health;
use super::leader::Leadership;
use super::limits::Limits;
use super::metrics::Metrics;
use super::workload::Switches;
use crate::api::usage::PodReport;

/// Shared by all tasks of one controller process.
pub struct Context {
    /// Reads; retries transient errors by itself. A server that takes a question and never answers it is given up after 20 s.
    pub read: kube::Client,
    /// Watches, which are silent for as long as nothing happens: who listens with it says what silence is too long.
    pub watch: kube::Client,
    /// Writes that act on workloads: never retried by the client (a refused eviction must surface at once), 20 s at most.
    pub act: kube::Client,
    /// Namespace of the operator: its Lease, ledger and Secrets live there.
    pub namespace: String,
    /// Name of this pod, and holder identity in the Lease and in intents.
    pub identity: String,
    /// Everything the agents reported. Lock it through [`Context::fleet`], and never across an await.
    pub fleet: Arc<Mutex<Fleet>>,
    /// Whether this replica leads now. Look at it again right before every act.
    pub leadership: watch::Receiver<Leadership>,
    /// Metrics of this process.
    pub metrics: Arc<Metrics>,
    /// Heartbeats; a task that loops beats once a turn.
    pub health: Arc<Health>,
    /// Administrator's brake: no policy goes further.
    pub max_mode: Mode,
    /// How long an action waits for the API server.
    pub patience: Patience,
    /// Actions that this installation has the right to.
    pub granted: Granted,
    /// Name of the ConfigMap with the administrator's limits, in `namespace`; `None` where there are none.
    pub admin: Option<String>,
    /// Which levers of which kinds of workloads the administrator turned on.
    pub workload_kinds: Switches,
    /// Name of the ConfigMap with open intents and budgets, in `namespace`.
    pub ledger: String,
    /// What should hold on each node, and what does.
    pub limits: Limits,
    /// Whether the last lines of a dead container's log may be read.
    pub read_pod_logs: bool,
    /// A profile goes when its workload has been gone for so long.
    pub profile_ttl: Duration,
    /// Counts merged reports: changes when there is new data. Await `changed()` instead of polling.
    pub news: watch::Receiver<u64>,
}

impl Context {
    /// The fleet, locked. Keep the guard short and never across an await.
    pub fn fleet(&self) -> MutexGuard<'_, Fleet> {
        shared::lock(&self.fleet)
    }

    /// See [`shared::observe`].
    pub fn observe(
        &self,
        now: Instant,
        namespace: &str,
        select: impl Fn(&PodReport) -> bool,
        policy: &Policy,
    ) -> Vec<Observation> {
        shared::observe(&self.fleet, now, namespace, select, policy)
    }
}

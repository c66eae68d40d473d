//! The validated policy: what a `GpuMemoryPolicy` says, with every default filled in and every contradiction refused.
//! Built only by `api::convert`; nothing in here is optional in the sense of "decided later".

use std::time::Duration;

use crate::quantity::Bytes;

/// Namespace and name of a policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyKey {
    /// Namespace of the policy; it governs pods of this namespace only.
    pub namespace: String,
    /// Name of the policy.
    pub name: String,
}

/// How far a policy may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Forecast and report, touch nothing.
    Observe,
    /// Decide and call the API with `dryRun=All`.
    DryRun,
    /// Act.
    Enforce,
}

/// A validated policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Which object it came from.
    pub key: PolicyKey,
    /// How far it may go, already lowered to the admin's maximum.
    pub mode: Mode,
    /// Reasons for a pause; any entry stops new actions.
    pub paused: Vec<String>,
    /// Higher wins where two policies select the same pod.
    pub precedence: i32,
    /// Container names it looks at; empty means all.
    pub containers: Vec<String>,
    /// What "full" means.
    pub budget: Budget,
    /// Never plan to fill the last of it.
    pub headroom: Bytes,
    /// When a forecast counts as a risk.
    pub prediction: Prediction,
    /// Rungs the policy allows.
    pub actions: Actions,
    /// Restraint.
    pub disruption: Disruption,
}

/// What a container may fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// The whole device.
    Device,
    /// The MIG or DRA partition.
    Partition,
    /// A share declared in the policy.
    Declared(Bytes),
}

/// When a forecast counts as a risk.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// How far ahead an OOM matters.
    pub horizon: Duration,
    /// Known end of growth; the forecast does not extrapolate beyond it.
    pub declared_peak: Option<Bytes>,
    /// Raise at this probability or more, held for `act_for`.
    pub act_probability: f64,
    /// See `act_probability`.
    pub act_for: Duration,
    /// Clear at this probability or less, held for `clear_for`.
    pub clear_probability: f64,
    /// See `clear_probability`.
    pub clear_for: Duration,
    /// Fewer samples than this give no forecast.
    pub min_samples: u32,
    /// Older newest samples than this give no forecast.
    pub max_sample_age: Duration,
    /// No action on a container younger than this: loaders allocate a lot, once.
    pub warm_up: Duration,
}

/// Rungs the policy allows; each is opt-in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Actions {
    /// Write Events on pod and policy.
    pub notify: bool,
    /// Evict the pod through the Eviction API.
    pub evict: bool,
}

/// Restraint of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disruption {
    /// Pods this policy may have in disruption at once.
    pub max_concurrent: u32,
    /// Pods this policy may disrupt in any hour.
    pub max_per_hour: u32,
    /// Ready pods of the workload that must remain.
    pub min_available: u32,
    /// Act only on pods covered by exactly one PodDisruptionBudget.
    pub require_budget: bool,
    /// Rest for a workload after an action; doubled with each repeat, up to six hours.
    pub cooldown: Duration,
    /// Actions on one workload in 24 hours; then the policy stops and says so.
    pub max_attempts: u32,
    /// Kinds of pods never acted on.
    pub protect: Vec<Protection>,
}

/// A kind of pod that is never acted on while it is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protection {
    /// Pods of system priority classes or in `kube-system`.
    SystemCritical,
    /// Pods of a DaemonSet.
    DaemonSet,
    /// Pods without a controller: an eviction would lose them for good.
    BarePod,
    /// The head of a RayCluster: its eviction ends the cluster.
    RayHead,
    /// Pods of a Job whose `podFailurePolicy` does not ignore disruptions.
    JobWithoutDisruptionPolicy,
}

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
    /// How far a container may grow, where the policy says.
    pub growth: Option<GrowthLimit>,
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

/// The rungs of the ladder, mildest first: the order of the variants is the order in which they are considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rung {
    /// Tell people.
    Notify,
    /// Limit how far the container may grow.
    LimitGrowth,
    /// Change the number of replicas, or export what an autoscaler needs to.
    Scale,
    /// Ask the application to save its work.
    Checkpoint,
    /// Move the container's GPU memory to host memory, its processes frozen.
    SuspendToHost,
    /// Suspend the Job the pod belongs to.
    SuspendWorkload,
    /// Evict the pod.
    Evict,
}

impl Rung {
    /// As sentences name it.
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Notify => "telling people",
            Self::LimitGrowth => "a limit",
            Self::Scale => "scaling out",
            Self::Checkpoint => "a checkpoint",
            Self::SuspendToHost => "a move to host memory",
            Self::SuspendWorkload => "suspending the workload",
            Self::Evict => "an eviction",
        }
    }
}

/// Rungs the policy allows; each is opt-in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one flag for each rung without parameters")]
pub struct Actions {
    /// Write Events on pod, owner and policy.
    pub notify: bool,
    /// Hold the container to [`Policy::growth`].
    pub limit_growth: bool,
    /// Change replicas.
    pub scale: Option<Scale>,
    /// Ask for a checkpoint before the workload is suspended or the pod is evicted.
    pub checkpoint: Option<Checkpoint>,
    /// Move GPU memory to host memory.
    pub suspend_to_host: bool,
    /// Suspend the Job.
    pub suspend_workload: Option<Resume>,
    /// Evict the pod through the Eviction API.
    pub evict: bool,
}

impl Actions {
    /// Whether anything is allowed besides telling people.
    pub const fn act(&self) -> bool {
        self.limit_growth
            || self.scale.is_some()
            || self.checkpoint.is_some()
            || self.suspend_to_host
            || self.suspend_workload.is_some()
            || self.evict
    }
}

/// How replicas are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Whether we write replicas, or leave it to an autoscaler that reads our metrics.
    pub via: ScaleVia,
    /// Replicas to add at once, each time.
    pub step: u32,
    /// Never more replicas than this.
    pub max_replicas: u32,
}

/// See [`Scale::via`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleVia {
    /// HPA or KEDA reads our metrics; we write nothing.
    Metrics,
    /// We apply `/scale`, without force, and only where nobody else owns `spec.replicas`.
    Replicas,
}

/// How a checkpoint is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// How long to wait for the acknowledgement.
    pub timeout: Duration,
    /// Whether a workload that leaves no time for it may be acted on without.
    pub need: CheckpointNeed,
    /// What follows when nobody acknowledges in time.
    pub on_timeout: OnTimeout,
}

/// See [`Checkpoint::need`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointNeed {
    /// No disruptive action without it.
    Required,
    /// Where the OOM is nearer than `timeout`, act without it.
    BestEffort,
}

/// See [`Checkpoint::on_timeout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTimeout {
    /// Leave the pod alone.
    Skip,
    /// Act without it.
    Proceed,
}

/// When a suspended workload goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// We resume it when its cool-down ends.
    AfterCooldown,
    /// Its owner does.
    Manual,
}

/// How far a container may grow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GrowthLimit {
    /// Never beyond this.
    pub ceiling: Option<Ceiling>,
    /// Never faster than this many bytes a minute.
    pub per_minute: Option<Bytes>,
    /// Who enforces it.
    pub enforcement: Enforcement,
}

/// See [`GrowthLimit::ceiling`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ceiling {
    /// A size.
    Size(Bytes),
    /// Percent of the device, 1 to 100.
    Percent(u32),
}

/// See [`GrowthLimit::enforcement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// Say where the limit would be.
    Advise,
    /// The driver refuses allocations beyond it.
    Kernel,
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

impl Default for Prediction {
    /// The CRD's defaults (a test of `api::convert` holds the two together): act at 80 % held for two minutes, clear at 50 %
    /// held for five, a quarter of an hour ahead.
    fn default() -> Self {
        Self {
            horizon: Duration::from_mins(15),
            declared_peak: None,
            act_probability: 0.8,
            act_for: Duration::from_mins(2),
            clear_probability: 0.5,
            clear_for: Duration::from_mins(5),
            min_samples: 10,
            max_sample_age: Duration::from_secs(30),
            warm_up: Duration::from_mins(10),
        }
    }
}

impl Default for Disruption {
    /// The CRD's defaults: one pod at a time, two an hour, three times a day at most, and everything protected.
    fn default() -> Self {
        use Protection::{BarePod, DaemonSet, JobWithoutDisruptionPolicy, RayHead, SystemCritical};
        Self {
            max_concurrent: 1,
            max_per_hour: 2,
            min_available: 1,
            require_budget: true,
            cooldown: Duration::from_mins(15),
            max_attempts: 3,
            protect: vec![SystemCritical, DaemonSet, BarePod, RayHead, JobWithoutDisruptionPolicy],
        }
    }
}

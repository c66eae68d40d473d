//! Restraint of one policy.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Restraint of one policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DisruptionSpec {
    /// Pods this policy may have in disruption at once, until their replacements are Ready.
    #[serde(default = "default_one")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_concurrent: i32,

    /// Pods this policy may disrupt within any hour.
    #[serde(default = "default_two")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_per_hour: i32,

    /// Ready pods of the workload that must remain after an action, besides any PodDisruptionBudget. A workload with one
    /// replica is acted on only where this is 0.
    #[serde(default = "default_one")]
    #[schemars(range(min = 0, max = 1000))]
    pub min_available: i32,

    /// Act only on pods that exactly one PodDisruptionBudget covers.
    #[serde(default = "default_true")]
    pub require_budget: bool,

    /// Rest for a workload after an action, in seconds. It doubles with each further action within 24 hours, up to six
    /// hours.
    #[serde(default = "default_cooldown")]
    #[schemars(range(min = 10, max = 21_600))]
    pub cooldown_seconds: i32,

    /// Actions on one workload within 24 hours; then the policy stops and reports ActionsEffective: False.
    #[serde(default = "default_three")]
    #[schemars(range(min = 1, max = 20))]
    pub max_attempts: i32,

    /// Kinds of pods never acted on. Removing an entry is a decision: what DaemonSets or the kubelet own, and pods without
    /// a controller, stay protected whatever stands here.
    #[serde(default = "default_protect")]
    #[schemars(length(max = 8))]
    pub protect: Vec<ProtectedKind>,
}

impl Default for DisruptionSpec {
    fn default() -> Self {
        Self {
            max_concurrent: default_one(),
            max_per_hour: default_two(),
            min_available: default_one(),
            require_budget: default_true(),
            cooldown_seconds: default_cooldown(),
            max_attempts: default_three(),
            protect: default_protect(),
        }
    }
}

/// See [`DisruptionSpec::protect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum ProtectedKind {
    /// Pods of system priority classes, and all of kube-system.
    SystemCritical,
    /// Pods of a DaemonSet.
    DaemonSet,
    /// Pods without a controller.
    BarePod,
    /// The head of a RayCluster.
    RayHead,
    /// Pods of a Job whose podFailurePolicy does not ignore disruptions.
    JobWithoutDisruptionPolicy,
}

const fn default_one() -> i32 {
    1
}
const fn default_two() -> i32 {
    2
}
const fn default_three() -> i32 {
    3
}
const fn default_true() -> bool {
    true
}
const fn default_cooldown() -> i32 {
    900
}
fn default_protect() -> Vec<ProtectedKind> {
    use ProtectedKind::{BarePod, DaemonSet, JobWithoutDisruptionPolicy, RayHead, SystemCritical};
    vec![SystemCritical, DaemonSet, BarePod, RayHead, JobWithoutDisruptionPolicy]
}

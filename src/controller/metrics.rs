//! The controller's metrics: forecasts by container (only the leader exports them), and counters of itself.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use gpumem_engine::forecast::Forecast;
use gpumem_engine::identity::PodUid;
use gpumem_engine::policy::{Mode, PolicyKey};
use prometheus::{IntCounterVec, Opts, Registry};

use crate::api::names::metric;

/// How urgent a container's forecast is: the value of `gpumem_container_risk_level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RiskLevel {
    /// Below the clear level.
    Low,
    /// At or above the clear level: watch it.
    Elevated,
    /// At or above the act level.
    High,
    /// High, and the median time to OOM lies within a fifth of the horizon.
    Critical,
}

/// What the acting side knows of a container under its policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Assessed {
    /// Pod.
    pub pod: PodUid,
    /// Container in its spec.
    pub container: String,
    /// Forecast under the policy's question.
    pub forecast: Forecast,
    /// Level after hysteresis; `None` while unknown.
    pub level: Option<RiskLevel>,
}

/// Metrics of one controller process, on a registry of its own.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    actions: IntCounterVec,
    blocked: IntCounterVec,
    assessed: Mutex<HashMap<PolicyKey, Vec<Assessed>>>,
}

impl Metrics {
    /// Declares every metric.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        Ok(Self {
            actions: counters(
                metric::POLICY_ACTIONS,
                "Actions of policies by what became of them. mode=DryRun changed nothing in the cluster.",
                &["policy", "namespace", "action", "outcome", "mode"],
            )?,
            blocked: counters(
                "gpumem_decisions_blocked_total",
                "Decisions to act that were held back, by reason. See the policy's condition ActionAllowed for which pod.",
                &["reason"],
            )?,
            assessed: Mutex::default(),
            registry,
        })
    }

    /// Counts an action. `action` and `outcome` come from closed sets.
    pub fn action(&self, policy: &PolicyKey, action: &'static str, outcome: &'static str, mode: Mode) {
        let mode = match mode {
            Mode::Observe => "Observe",
            Mode::DryRun => "DryRun",
            Mode::Enforce => "Enforce",
        };
        self.actions.with_label_values(&[policy.name.as_str(), policy.namespace.as_str(), action, outcome, mode]).inc();
    }

    /// Counts a decision that was held back; `reason` comes from a closed set.
    pub fn decision_blocked(&self, reason: &'static str) {
        self.blocked.with_label_values(&[reason]).inc();
    }

    /// Replaces what `policy` says of its containers: for these, its forecast and level are exported instead of the ones
    /// under the default question. Call it after each evaluation, with an empty list when the policy is gone.
    pub fn assess(&self, policy: &PolicyKey, containers: Vec<Assessed>) {
        let mut assessed = self.assessed.lock().unwrap_or_else(PoisonError::into_inner);
        if containers.is_empty() {
            assessed.remove(policy);
        } else {
            assessed.insert(policy.clone(), containers);
        }
    }

    /// The registry, for further collectors.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }
}

//! The controller's metrics: forecasts by container, which only the leader exports, and counters of itself.
//!
//! Flows in: the fleet at scrape time, counts of every task. Flows out: Prometheus text. Nothing about a container is kept
//! here: its series end with it, and what is not known is absent, never 0.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpumem_engine::forecast::{Forecast, Outlook};
use gpumem_engine::identity::PodUid;
use gpumem_engine::pacing::AdminBudgets;
use gpumem_engine::policy::{Mode, Policy, PolicyKey};
use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use super::fleet::{Fault, Merged};
use super::pull;
use crate::api::names::metric;

mod exposition;

mod sizes;

mod truth;

pub use exposition::Exposition;
pub use sizes::{MAX_SIZES, Size};
pub use truth::Shown;

/// How urgent a container's forecast is: the value of `gpumem_container_risk_level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RiskLevel {
    /// P(OOM within the horizon) is below the clear level.
    Low,
    /// At or above the clear level, below the act level: watch it.
    Elevated,
    /// At or above the act level.
    High,
    /// High, and the median time to OOM lies within a fifth of the horizon: three minutes by default.
    Critical,
}

impl RiskLevel {
    /// The level of a forecast under a policy's question, without hysteresis; `None` while it is unknown.
    pub fn of(forecast: &Forecast, policy: &Policy) -> Option<Self> {
        let Outlook::Known { probability, time_to_oom, .. } = forecast.outlook else { return None };
        let prediction = &policy.prediction;
        let soon = time_to_oom.is_some_and(|time| time.q50 <= prediction.horizon / 5);
        Some(if probability >= prediction.act_probability {
            if soon { Self::Critical } else { Self::High }
        } else if probability >= prediction.clear_probability {
            Self::Elevated
        } else {
            Self::Low
        })
    }

    /// Value of the metric.
    pub const fn value(self) -> u8 {
        match self {
            Self::Low => 0,
            Self::Elevated => 1,
            Self::High => 2,
            Self::Critical => 3,
        }
    }
}

/// State of the breaker above all policies: the label of `gpumem_controller_breaker_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Actions may be taken.
    Closed,
    /// One action is let through, and decides.
    HalfOpen,
    /// None is taken.
    Open,
    /// Switched off, or its state cannot be read.
    Off,
}

impl BreakerState {
    const ALL: [Self; 4] = [Self::Closed, Self::HalfOpen, Self::Open, Self::Off];

    const fn label(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
            Self::Off => "off",
        }
    }
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
    pulls: IntCounterVec,
    pull_seconds: Histogram,
    dropped: IntCounterVec,
    samples: IntCounter,
    restarts: IntCounter,
    errors: IntCounterVec,
    agents: IntGauge,
    leader: IntGauge,
    certificate_expiry: Gauge,
    held: IntGaugeVec,
    breaker: IntGaugeVec,
    disrupted: IntGaugeVec,
    budgets: IntGaugeVec,
    oldest_report: Gauge,
    assessed: Mutex<HashMap<PolicyKey, Arc<Vec<Assessed>>>>,
    truth: truth::Truth,
    sizes: sizes::Sizes,
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
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let int_gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let gauge = |name: &str, help: &str| {
            let gauge = Gauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let build = IntGaugeVec::new(Opts::new("gpumem_build_info", "1, with the version that runs."), &["version"])?;
        registry.register(Box::new(build.clone()))?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let held = IntGaugeVec::new(
            Opts::new(
                "gpumem_controller_held",
                "What this replica holds: nodes, devices, pods, series, and pods claimed by several nodes (conflicts: \
                 an agent reports pods that are not its own; find it in the log and check that node).",
            ),
            &["what"],
        )?;
        registry.register(Box::new(held.clone()))?;
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            let gauges = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(gauges.clone()))?;
            Ok::<_, prometheus::Error>(gauges)
        };
        let breaker = gauges(
            metric::CONTROLLER_BREAKER,
            "1 for the state of the breaker above all policies. open: too many workloads are at risk at once or too many \
             actions fail, and nothing is done for half an hour; look at drivers, agents and the API server.",
            &["state"],
        )?;
        let disrupted = gauges(
            metric::CONTROLLER_DISRUPTED,
            "Pods that were disrupted by actions: now (not recovered yet) and within the last hour.",
            &["window"],
        )?;
        let budgets = gauges(
            metric::CONTROLLER_BUDGET,
            "The administrator's budgets of the cluster, of each namespace and of each node, in pods. Absent: no limit.",
            &["scope", "window"],
        )?;
        let pull_seconds = Histogram::with_opts(
            HistogramOpts::new(
                "gpumem_controller_pull_seconds",
                "Time of one pull of an agent. Rising towards 2 s means that agents will be missed: look at the \
                 agents' CPU limits and at the network.",
            )
            .buckets(vec![0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 10.0]),
        )?;
        registry.register(Box::new(pull_seconds.clone()))?;
        let metrics = Self {
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
            pulls: counters(
                "gpumem_controller_pulls_total",
                "Pulls of agents by outcome. connect and deadline: the agent or the network is down. tls: a stranger on \
                 a recycled address, or certificates that do not fit; restart that agent. Containers of agents that \
                 are not pulled become unknown, never safe.",
                &["outcome"],
            )?,
            dropped: counters(
                "gpumem_controller_dropped_total",
                "Parts of agents' reports that were absurd and left out, by kind. The log names the node. Anything but \
                 0 is a bug or a compromised agent.",
                &["kind"],
            )?,
            samples: counter("gpumem_controller_samples_total", "Samples taken from agents.")?,
            restarts: counter("gpumem_controller_agent_restarts_total", "Restarts of agents and nodes noticed.")?,
            errors: counters(
                "gpumem_controller_errors_total",
                "Errors of the controller's own parts. The log has the details.",
                &["part", "kind"],
            )?,
            agents: int_gauge("gpumem_controller_agents", "Agents that are pulled, as the API lists them.")?,
            leader: int_gauge(
                "gpumem_controller_leader",
                "1 on the replica that leads. The sum over replicas is 1; 0 for over 30 s means that nobody acts.",
            )?,
            certificate_expiry: gauge(
                "gpumem_controller_certificate_expiry_timestamp_seconds",
                "When the first certificate between controller and agents runs out, Unix time. It is renewed at two \
                 thirds of its life; less than 20 days ahead means that renewal fails.",
            )?,
            oldest_report: gauge(
                "gpumem_controller_oldest_report_seconds",
                "Age of the newest report of the node heard least recently.",
            )?,
            pull_seconds,
            held,
            breaker,
            disrupted,
            budgets,
            truth: truth::Truth::new(&registry)?,
            sizes: sizes::Sizes::default(),
            registry,
            assessed: Mutex::default(),
        };
        metrics.pulls.with_label_values(&["ok"]);
        for kind in pull::Error::KINDS {
            metrics.pulls.with_label_values(&[kind]);
        }
        for fault in Fault::ALL {
            metrics.dropped.with_label_values(&[fault.kind()]);
        }
        Ok(metrics)
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

    /// Notes how the breaker stands.
    pub fn breaker(&self, now: BreakerState) {
        for state in BreakerState::ALL {
            self.breaker.with_label_values(&[state.label()]).set(i64::from(state == now));
        }
    }

    /// Notes how many pods are in disruption now, and how many were disrupted within an hour.
    pub fn disrupted(&self, now: u32, hour: u32) {
        self.disrupted.with_label_values(&["now"]).set(i64::from(now));
        self.disrupted.with_label_values(&["hour"]).set(i64::from(hour));
    }

    /// Notes the administrator's budgets.
    pub fn budgets(&self, budgets: &AdminBudgets) {
        for (scope, allowance) in
            [("cluster", budgets.cluster), ("namespace", budgets.namespace), ("node", budgets.node)]
        {
            for (window, limit) in [("now", allowance.concurrent), ("hour", allowance.per_hour)] {
                match limit {
                    Some(limit) => self.budgets.with_label_values(&[scope, window]).set(i64::from(limit)),
                    // It was never set, or is no longer.
                    None => drop(self.budgets.remove_label_values(&[scope, window])),
                }
            }
        }
    }

    /// Replaces what `policy` says of its containers: for these, its forecast and level are exported instead of the ones
    /// under the default question. Call it after each evaluation, with an empty list when the policy is gone.
    pub fn assess(&self, policy: &PolicyKey, containers: Vec<Assessed>) {
        let mut assessed = self.assessed.lock().unwrap_or_else(PoisonError::into_inner);
        if containers.is_empty() {
            assessed.remove(policy);
        } else {
            assessed.insert(policy.clone(), Arc::new(containers));
        }
    }

    /// What each policy says of its containers; empty on a replica that does not lead.
    pub fn assessed(&self) -> HashMap<PolicyKey, Arc<Vec<Assessed>>> {
        self.assessed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts an error of one of the controller's own parts; both come from closed sets.
    pub fn failed(&self, part: &'static str, kind: &'static str) {
        self.errors.with_label_values(&[part, kind]).inc();
    }

    /// Counts a pull by its outcome.
    pub fn pulled(&self, outcome: &'static str, took: Duration) {
        self.pulls.with_label_values(&[outcome]).inc();
        self.pull_seconds.observe(took.as_secs_f64());
    }

    /// Counts what a merge took and dropped.
    pub fn merged(&self, merged: &Merged) {
        self.samples.inc_by(merged.points);
        self.restarts.inc_by(u64::from(merged.restarted) + u64::from(merged.rebooted));
        for (fault, count) in &merged.faults {
            self.dropped.with_label_values(&[fault.kind()]).inc_by(u64::from(*count));
        }
    }

    /// Notes how many agents are followed.
    pub fn agents(&self, count: usize) {
        self.agents.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Notes when the first certificate runs out, in Unix time.
    pub fn certificates(&self, expires: u64) {
        self.certificate_expiry.set(expires as f64);
    }

    /// The registry, for further collectors.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The text of everything registered.
    fn registered(&self) -> String {
        let mut text = String::new();
        // Fails only for families without metrics, which `gather` leaves out.
        let _ = TextEncoder::new().encode_utf8(&self.registry.gather(), &mut text);
        text
    }
}

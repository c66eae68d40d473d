//! The agent's own counters: what goes wrong here and what is left out. Every part of the agent counts into them, and
//! [`super::exporter`] shows them.

use gpumem_engine::sample::QueryFailure;
use prometheus::{Histogram, HistogramOpts, IntCounterVec, IntGauge, Opts, Registry};

/// Duration of a cycle.
pub const SAMPLE_DURATION: &str = "gpumem_agent_sample_duration_seconds";
/// Failed driver queries.
pub const QUERY_FAILURES: &str = "gpumem_agent_query_failures_total";
/// Failed reads below `/proc`.
pub const PROC_FAILURES: &str = "gpumem_agent_proc_failures_total";
/// Input that was not believed.
pub const DROPPED_INPUTS: &str = "gpumem_agent_dropped_inputs_total";
/// 1 while the pod watch works.
pub const POD_WATCH_UP: &str = "gpumem_agent_pod_watch_up";

/// The agent's own counters: what goes wrong here and what is left out.
#[derive(Debug)]
pub struct SelfMetrics {
    query_failures: IntCounterVec,
    proc_failures: IntCounterVec,
    dropped: IntCounterVec,
    /// 1 while the pod watch works.
    pub pod_watch_up: IntGauge,
    /// Seconds a cycle took, driver and `/proc` together.
    pub sample_duration: Histogram,
}

impl SelfMetrics {
    /// Fresh counters.
    pub fn new() -> Result<Self, prometheus::Error> {
        let counters = |name, help, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        Ok(Self {
            query_failures: counters(
                QUERY_FAILURES,
                "Driver queries that failed, by query and kind of failure. device_lost: reset the GPU; no_permission: see agent.deviceAccess in the chart; driver_gone: the driver was reloaded or upgraded, the agent reconnects by itself.",
                &["query", "kind"],
            )?,
            proc_failures: counters(
                PROC_FAILURES,
                "Reads below /proc that failed; the process's memory counts as unattributed. gone is normal for processes that just ended; permission means that /proc is mounted with hidepid.",
                &["file", "reason"],
            )?,
            dropped: counters(
                DROPPED_INPUTS,
                "Input that was not believed and left out. Anything but a rare single event is a fault worth reporting; the agent's log has details.",
                &["input", "reason"],
            )?,
            pod_watch_up: IntGauge::new(
                POD_WATCH_UP,
                "1 while the node's pods can be watched. At 0 new containers show by UID and id instead of names: check the API server and the agent's RBAC.",
            )?,
            sample_duration: Histogram::with_opts(
                HistogramOpts::new(
                    SAMPLE_DURATION,
                    "Duration of one cycle: driver queries, /proc and attribution. Above the sampling interval the driver is too slow; raise agent.interval.",
                )
                .buckets(vec![0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0]),
            )?,
        })
    }

    /// A driver query failed.
    pub fn query_failed(&self, query: &str, failure: QueryFailure) {
        self.query_failures.with_label_values(&[query, failure.kind()]).inc();
    }

    /// A read below `/proc` failed.
    pub fn proc_failed(&self, file: &str, reason: &str) {
        self.proc_failures.with_label_values(&[file, reason]).inc();
    }

    /// An input was left out.
    pub fn dropped(&self, input: &str, reason: &str) {
        self.dropped.with_label_values(&[input, reason]).inc();
    }

    /// Puts all of them into a registry.
    pub(super) fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.query_failures.clone()))?;
        registry.register(Box::new(self.proc_failures.clone()))?;
        registry.register(Box::new(self.dropped.clone()))?;
        registry.register(Box::new(self.pod_watch_up.clone()))?;
        registry.register(Box::new(self.sample_duration.clone()))?;
        Ok(())
    }
}

//! Series of what really happened: OOMs by container, warnings by what became of them, conditions of policies.
//!
//! OOMs and conditions are written as text by the leader alone. A container's series begins with its first OOM, at 1, and
//! ends with its pod; a new leader begins anew, which Prometheus takes for a counter's restart.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gpumem_engine::identity::PodUid;
use gpumem_engine::policy::PolicyKey;
use gpumem_engine::score::{Judged, Outcome};
use prometheus::{Histogram, HistogramOpts, IntCounterVec, Opts, Registry};

use super::Metrics;
use super::exposition::labels;
use crate::api::names::metric;

/// A series stays this long after its last OOM even where its pod holds no GPU memory any more: longer than the windows that
/// alerts look at.
const KEPT: Duration = Duration::from_hours(2);
/// Series at once: far more than a cluster has OOMs in two hours.
const MAX_SERIES: usize = 10_000;
/// Of a warning's lead: from a minute, which helps nobody, to a working day.
const LEADS: [f64; 9] = [60.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 14_400.0, 28_800.0];

/// One condition of a policy as a series shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Its type.
    pub condition: String,
    /// Its reason.
    pub reason: String,
    /// Whether its status is True.
    pub is_true: bool,
}

#[derive(Debug)]
pub(super) struct Truth {
    predictions: IntCounterVec,
    leads: Histogram,
    ooms: Mutex<BTreeMap<(PodUid, String), Ooms>>,
    conditions: Mutex<BTreeMap<PolicyKey, Vec<Shown>>>,
}

#[derive(Clone, Debug)]
struct Ooms {
    namespace: String,
    pod: String,
    count: u64,
    last: Instant,
}

impl Truth {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let predictions = IntCounterVec::new(
            Opts::new(
                metric::PREDICTIONS,
                "Warnings (a container's risk became High) by what became of them. Hit: the OOM came within 1.5 horizons. \
                 Early: later, with the warning still up. FalseAlarm: no OOM, and nobody acted. Missed: an OOM without a \
                 warning. Avoided: somebody acted. Unknown: nobody can say. Many FalseAlarms: raise act.probabilityPercent.",
            ),
            &["outcome"],
        )?;
        registry.register(Box::new(predictions.clone()))?;
        for outcome in Outcome::ALL {
            predictions.with_label_values(&[outcome.name()]);
        }
        let leads = Histogram::with_opts(
            HistogramOpts::new(metric::PREDICTION_LEAD, "Time from a container's warning to its OOM.")
                .buckets(LEADS.to_vec()),
        )?;
        registry.register(Box::new(leads.clone()))?;
        Ok(Self { predictions, leads, ooms: Mutex::default(), conditions: Mutex::default() })
    }

    /// Ends the series of pods that are gone; all of them where another replica leads.
    pub(super) fn expire(&self, leads: bool, now: Instant, is_alive: impl Fn(&PodUid) -> bool) {
        if !leads {
            locked(&self.ooms).clear();
            locked(&self.conditions).clear();
            return;
        }
        locked(&self.ooms).retain(|(pod, _), ooms| now.saturating_duration_since(ooms.last) < KEPT || is_alive(pod));
    }

    pub(super) fn write(&self, text: &mut String) {
        let ooms = locked(&self.ooms);
        if !ooms.is_empty() {
            let name = metric::CONTAINER_OOMS;
            let help = "GPU out-of-memory deaths of a container. The pod's Events and its workload's GpuMemoryProfile say more.";
            // Writing to a String cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter");
            for ((_, container), ooms) in &*ooms {
                let labels = labels(&[("namespace", &ooms.namespace), ("pod", &ooms.pod), ("container", container)]);
                let _ = writeln!(text, "{name}{{{labels}}} {}", ooms.count);
            }
        }
        let conditions = locked(&self.conditions);
        if !conditions.is_empty() {
            let name = metric::POLICY_CONDITION;
            let help = "1 where the policy's condition is True. kubectl describe gmp says why it is not.";
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
            for (policy, shown) in &*conditions {
                for Shown { condition, reason, is_true } in shown {
                    let labels = labels(&[
                        ("namespace", &policy.namespace),
                        ("policy", &policy.name),
                        ("condition", condition),
                        ("reason", reason),
                    ]);
                    let _ = writeln!(text, "{name}{{{labels}}} {}", u8::from(*is_true));
                }
            }
        }
    }
}

impl Metrics {
    /// Counts a container's GPU out-of-memory; call it once for each.
    pub fn oom(&self, uid: &PodUid, namespace: &str, pod: &str, container: &str, now: Instant) {
        let mut ooms = locked(&self.truth.ooms);
        let key = (uid.clone(), container.to_owned());
        if ooms.len() >= MAX_SERIES && !ooms.contains_key(&key) {
            return;
        }
        let fresh = || Ooms { namespace: namespace.to_owned(), pod: pod.to_owned(), count: 0, last: now };
        let known = ooms.entry(key).or_insert_with(fresh);
        known.count = known.count.saturating_add(1);
        known.last = now;
    }

    /// Counts judgements; call it once for each.
    pub fn judged(&self, judged: &[Judged]) {
        for Judged { outcome, lead } in judged {
            self.truth.predictions.with_label_values(&[outcome.name()]).inc();
            if let Some(lead) = lead {
                self.truth.leads.observe(lead.as_secs_f64());
            }
        }
    }

    /// Shows what policies' conditions are; policies that are not among these are gone.
    pub fn conditions(&self, shown: impl IntoIterator<Item = (PolicyKey, Vec<Shown>)>) {
        *locked(&self.truth.conditions) = shown.into_iter().collect();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

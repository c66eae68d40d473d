//! The text of `/metrics`: the registered counters, then the forecasts of every container straight from the fleet.
//!
//! The containers' families are written as text node by node instead of through the registry: at ten thousand series the
//! registry's model of the same takes a hundred megabytes for each scrape, and the fleet would be locked throughout.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gpumem_engine::forecast::{Forecast, Outlook};
use gpumem_engine::policy::Policy;
use tokio::sync::watch;

use super::{Assessed, Metrics, RiskLevel};
use crate::api::names::metric;
use crate::controller::fleet::shared::lock;
use crate::controller::fleet::{Fleet, Seen};
use crate::controller::leader::Leadership;

/// Everything `/metrics` is written from.
#[derive(Clone)]
pub struct Exposition {
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// The containers.
    pub fleet: Arc<Mutex<Fleet>>,
    /// Only the leader exports forecasts: two replicas would each page for the same container.
    pub leadership: watch::Receiver<Leadership>,
    /// The question asked for containers that no policy governs: a policy with every default.
    pub default: Arc<Policy>,
}

/// One family's lines, gathered while walking the fleet.
struct Family {
    name: &'static str,
    help: &'static str,
    lines: String,
}

impl Family {
    fn new(name: &'static str, help: &'static str) -> Self {
        Self { name, help, lines: String::new() }
    }

    /// `labels` are complete but for the braces; `extra` is one more.
    fn add(&mut self, labels: &str, extra: &str, value: f64) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.lines, "{}{{{labels}{extra}}} {value}", self.name);
    }

    fn write_to(self, text: &mut String) {
        if !self.lines.is_empty() {
            let Self { name, help, lines } = self;
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{lines}");
        }
    }
}

struct Families {
    growth: Family,
    probability: Family,
    time_to_oom: Family,
    time_to_limit: Family,
    risk: Family,
    workload: Family,
}

impl Exposition {
    /// The body of `/metrics` at `now`.
    pub fn text(&self, now: Instant) -> String {
        let leads = self.leadership.borrow().is_leader;
        self.update_gauges(leads, now);
        self.metrics.truth.expire(leads, now, |pod| lock(&self.fleet).node_of(pod).is_some());
        let mut text = self.metrics.registered();
        let simulated = lock(&self.fleet).simulated() > 0;
        if simulated {
            let name = metric::SIMULATED;
            let _ = writeln!(text, "# HELP {name} 1 where the driver is simulated.\n# TYPE {name} gauge\n{name} 1");
        }
        if leads {
            self.containers(now, &mut text);
            self.metrics.truth.write(&mut text);
            self.metrics.sizes.write(&mut text);
        } else {
            self.metrics.sizes.clear();
        }
        text
    }

    fn update_gauges(&self, leads: bool, now: Instant) {
        let (counts, oldest) = {
            let fleet = lock(&self.fleet);
            (fleet.counts(), fleet.oldest_report(now))
        };
        let Metrics { leader, held, oldest_report, .. } = &*self.metrics;
        leader.set(i64::from(leads));
        for (what, count) in [
            ("nodes", counts.nodes),
            ("devices", counts.devices),
            ("pods", counts.pods),
            ("series", counts.series),
            ("conflicts", counts.conflicts),
        ] {
            held.with_label_values(&[what]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        oldest_report.set(oldest.unwrap_or(Duration::ZERO).as_secs_f64());
    }

    fn containers(&self, now: Instant, text: &mut String) {
        let mut families = Families {
            growth: Family::new(
                metric::CONTAINER_GROWTH,
                "Lasting growth of a container's GPU memory. Absent when there is none.",
            ),
            probability: Family::new(
                metric::CONTAINER_OOM_PROBABILITY,
                "Probability that the container runs out of GPU memory within horizon seconds. Absent when unknown.",
            ),
            time_to_oom: Family::new(
                metric::CONTAINER_TIME_TO_OOM,
                "Time until the container runs out of GPU memory; one in ten comes before quantile 0.1. Absent when no \
                 OOM is expected.",
            ),
            time_to_limit: Family::new(
                metric::CONTAINER_TIME_TO_LIMIT,
                "Time until the container meets the limit that holds it (gpumem_container_memory_limit_bytes), at its lasting \
                 growth: its own allocation fails there. Absent where nothing holds it or it does not grow.",
            ),
            risk: Family::new(
                metric::CONTAINER_RISK,
                "0 low, 1 elevated, 2 high (the policy's act level), 3 critical (OOM within a fifth of the horizon). \
                 At 3: save a checkpoint or free memory now. Absent when unknown.",
            ),
            workload: Family::new(
                "gpumem_workload_info",
                "1 for each container with GPU memory, with the pod's controller, to join on pod.",
            ),
        };
        let assessed: Vec<Arc<Vec<Assessed>>> = {
            let assessed = self.metrics.assessed.lock().unwrap_or_else(PoisonError::into_inner);
            assessed.values().cloned().collect()
        };
        let mut governed: HashMap<(&str, &str), &Assessed> = HashMap::new();
        for entry in assessed.iter().flat_map(|entries| entries.iter()) {
            let known = governed.entry((entry.pod.as_str(), entry.container.as_str())).or_insert(entry);
            if entry.level > known.level {
                *known = entry;
            }
        }
        let mut after: Arc<str> = Arc::from("");
        loop {
            let next = lock(&self.fleet).visit_after(&after, now, &self.default, |node, seen| {
                let own = governed.get(&(seen.pod.uid.as_str(), seen.container));
                let (forecast, level) = match own {
                    Some(assessed) => (&assessed.forecast, assessed.level),
                    None => (&seen.forecast, RiskLevel::of(&seen.forecast, &self.default)),
                };
                families.add(node, &seen, forecast, level);
            });
            match next {
                Some(node) => after = node,
                None => break,
            }
        }
        let Families { growth, probability, time_to_oom, time_to_limit, risk, workload } = families;
        for family in [growth, probability, time_to_oom, time_to_limit, risk, workload] {
            family.write_to(text);
        }
    }
}

impl Families {
    fn add(&mut self, node: &str, seen: &Seen<'_>, forecast: &Forecast, level: Option<RiskLevel>) {
        let pod = seen.pod;
        let whose =
            labels(&[("node", node), ("namespace", &pod.namespace), ("pod", &pod.name), ("container", seen.container)]);
        // The same labels as the agents' own metrics of a container, so that the two join.
        let slice = seen.device.mig.map(|mig| mig.gpu_instance.to_string()).unwrap_or_default();
        let device = labels(&[
            ("gpu", &seen.index.to_string()),
            ("uuid", seen.device.gpu.as_str()),
            ("gpu_instance_id", &slice),
        ]);
        let all = format!("{whose},{device}");
        let (kind, name) = pod.owner.as_ref().map_or(("", ""), |owner| (&owner.kind, &owner.name));
        let owner = labels(&[("owner_kind", kind), ("owner_name", name)]);
        self.workload.add(&whose, &format!(",{owner}"), 1.0);
        if let Some(growth) = forecast.growth {
            self.growth.add(&all, "", growth.0);
        }
        if let Outlook::Known { by_horizon, time_to_oom, .. } = &forecast.outlook {
            for (horizon, probability) in by_horizon {
                self.probability.add(&all, &format!(",horizon=\"{horizon}\""), *probability);
            }
            if let Some(time) = time_to_oom {
                for (quantile, time) in [("0.1", time.q10), ("0.5", time.q50), ("0.9", time.q90)] {
                    self.time_to_oom.add(&all, &format!(",quantile=\"{quantile}\""), time.as_secs_f64());
                }
            }
        }
        if let Some(time) = seen.time_to_limit(forecast.growth) {
            self.time_to_limit.add(&all, "", time.as_secs_f64());
        }
        if let Some(level) = level {
            self.risk.add(&all, "", f64::from(level.value()));
        }
    }
}

pub(super) fn labels(pairs: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        if !text.is_empty() {
            text.push(',');
        }
        let _ = write!(text, "{name}=\"");
        for character in value.chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                other => text.push(other),
            }
        }
        text.push('"');
    }
    text
}

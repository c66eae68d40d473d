//! From a node's series to forecasts: builds each device's tenants, asks the engine, and picks the worst device of each
//! container. Answers are kept until new data comes, so that several readers of the same question pay once.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpumem_engine::forecast::{Class, Forecast, Outlook, Question, Tenant as Asked, Unknown, forecast_device};
use gpumem_engine::identity::{ContainerId, DeviceKey, PodUid};
use gpumem_engine::policy::{Budget, Policy};
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::series::Series;
use gpumem_engine::usage::{Attribution, AttributionGap};

use super::declared::Declaration;
use super::limits::held_to;
use super::node::{Device, Node, Tenant, TenantKey};
use super::{DeviceReport, Observation, PodReport, Standing};

/// An answer is given again for so long, unless new data comes: one pull interval.
const KEEP: Duration = Duration::from_secs(5);
/// Different questions kept for one device: one per policy that governs pods on it, and the default one.
const QUESTIONS: usize = 8;

/// What a policy asks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ask {
    /// Share declared for each container.
    declared: Option<Bytes>,
    headroom: Bytes,
    /// Its `capacity` is a placeholder: it depends on the device.
    question: Question,
    /// At or above this probability a known risk outweighs another device's silence.
    clear: f64,
}

impl Ask {
    pub(super) fn of(policy: &Policy) -> Self {
        let prediction = &policy.prediction;
        Self {
            declared: match policy.budget {
                Budget::Declared(share) => Some(share),
                // A MIG slice is a device of its own here, so its partition is its device.
                Budget::Device | Budget::Partition => None,
            },
            headroom: policy.headroom,
            question: Question {
                horizon: prediction.horizon,
                capacity: Bytes::ZERO,
                declared_peak: prediction.declared_peak,
                warm_up: prediction.warm_up,
                min_samples: prediction.min_samples,
                max_sample_age: prediction.max_sample_age,
            },
            clear: prediction.clear_probability,
        }
    }
}

/// One container with its worst device, borrowed from the fleet.
#[derive(Clone, Debug)]
pub struct Seen<'a> {
    /// Its pod.
    pub pod: &'a Arc<PodReport>,
    /// Name in the pod's spec.
    pub container: &'a str,
    /// Current instance.
    pub container_id: &'a ContainerId,
    /// Its worst device.
    pub device: &'a DeviceKey,
    /// NVML's index of that device.
    pub index: u32,
    /// Memory on that device in the newest sample.
    pub used: Bytes,
    /// The forecast of that device.
    pub forecast: Forecast,
    /// Age of the newest sample now.
    pub sample_age: Duration,
    /// That device as the agent reported it.
    pub report: &'a DeviceReport,
    /// The container's series on it.
    pub series: &'a Series,
    /// What the node's clock shows now: ages of the series' points count from it.
    pub clock: Moment,
    /// What its pod declares of the job.
    pub declared: Option<&'a Arc<Declaration>>,
    /// The limit that holds it on that device, as its agent read it back.
    pub limit: Option<Bytes>,
}

impl Seen<'_> {
    pub(super) fn to_observation(&self, node: &str) -> Observation {
        Observation {
            node: node.to_owned(),
            pod: Arc::clone(self.pod),
            container: self.container.to_owned(),
            container_id: self.container_id.clone(),
            device: self.device.clone(),
            used: self.used,
            forecast: self.forecast.clone(),
            sample_age: self.sample_age,
            peak: self.series.peak().max(self.used),
        }
    }
}

impl Node {
    /// Shows each chosen container that holds memory to `visit`, in the order of pods.
    pub(super) fn observe(
        &mut self,
        now: Instant,
        ask: &Ask,
        chosen: impl Fn(&PodReport) -> bool,
        standing: impl Fn(&PodUid) -> Standing,
        mut visit: impl FnMut(Seen<'_>),
    ) {
        let clock = self.clock(now);
        let Self { pods, devices, declared, limits, .. } = self;
        let chosen: BTreeMap<&PodUid, (&Arc<PodReport>, Standing)> = pods
            .iter()
            .filter(|(_, pod)| chosen(pod))
            .map(|(uid, pod)| (uid, (pod, standing(uid))))
            .filter(|(_, (_, standing))| *standing != Standing::Foreign)
            .collect();
        if chosen.is_empty() {
            return;
        }
        let mut worst: BTreeMap<&TenantKey, Seen<'_>> = BTreeMap::new();
        for (key, device) in devices {
            let wanted =
                |(tenant_key, tenant): &(&TenantKey, &Tenant)| !tenant.gone && chosen.contains_key(&tenant_key.pod);
            if !device.tenants.iter().any(|entry| wanted(&entry)) {
                continue;
            }
            device.answer(clock, ask, declared);
            let Device { report, tenants, answers, reported: _ } = &*device;
            let forecasts = answers.to(ask);
            let living = tenants.iter().filter(|(_, tenant)| !tenant.gone);
            for ((tenant_key, tenant), forecast) in living.zip(forecasts) {
                let Some((pod, standing)) = chosen.get(&tenant_key.pod) else { continue };
                let latest = tenant.series.latest();
                let sample_age = latest.map_or(Duration::MAX, |point| clock.since(point.at));
                let seen = Seen {
                    pod,
                    container: &tenant_key.container,
                    container_id: &tenant.container_id,
                    device: key,
                    index: report.index,
                    used: latest.map_or(Bytes::ZERO, |point| point.used),
                    forecast: doubt(*standing, report.attribution, tenant, sample_age, ask)
                        .unwrap_or_else(|| forecast.clone()),
                    sample_age,
                    report,
                    series: &tenant.series,
                    clock,
                    declared: declared.get(&tenant_key.pod),
                    limit: held_to(limits, &tenant.container_id, key),
                };
                let seen = remarked(seen);
                match worst.get_mut(tenant_key) {
                    Some(other) if rank(&seen.forecast, ask) > rank(&other.forecast, ask) => *other = seen,
                    Some(_) => {}
                    None => drop(worst.insert(tenant_key, seen)),
                }
            }
        }
        for (_, seen) in worst {
            visit(seen);
        }
    }
}

/// Adds to the reason what the pod's own declaration has to say.
fn remarked(mut seen: Seen<'_>) -> Seen<'_> {
    let peak = seen.series.peak().max(seen.used);
    if let Some(remark) = seen.declared.and_then(|declaration| declaration.remark(peak)) {
        seen.forecast.reason = format!("{}; {remark}", seen.forecast.reason);
    }
    seen
}

/// What overrules the engine's answer, if anything does.
fn doubt(
    standing: Standing,
    attribution: Attribution,
    tenant: &Tenant,
    sample_age: Duration,
    ask: &Ask,
) -> Option<Forecast> {
    // The engine's own patience, once more: its answer may be some seconds old.
    let patience = ask.question.max_sample_age.as_secs_f64().max(3.0 * tenant.series.interval());
    let (why, reason) = if standing == Standing::Doubtful {
        (Unknown::NoData, "more than one node claims this pod, and the API has not been asked yet".to_owned())
    } else if let Attribution::Unavailable(gap) = attribution {
        let (why, what) = match gap {
            AttributionGap::Query(failure) => (Unknown::NoData, failure.kind()),
            AttributionGap::NotSupported => (Unknown::SharedUnknown, "the device has no process list"),
            AttributionGap::NoProcessVisible => (Unknown::SharedUnknown, "the agent sees no process of the device"),
            AttributionGap::Inconsistent => (Unknown::SharedUnknown, "the processes claim more than is used"),
        };
        (why, format!("the device's memory cannot be split by container: {what}"))
    } else if sample_age.as_secs_f64() > patience {
        (Unknown::Stale, format!("the newest sample is {} s old", sample_age.as_secs()))
    } else {
        return None;
    };
    Some(unknown(why, reason))
}

fn unknown(why: Unknown, reason: String) -> Forecast {
    Forecast { class: Class::Unknown, growth: None, outlook: Outlook::Unknown { why }, gave_back: Bytes::ZERO, reason }
}

/// Order of devices, worst last. A device nobody knows about is worse than one known to be fine, because calling the
/// container fine would lower its risk on missing data; and better than one known to be at risk, for the same reason.
fn rank(forecast: &Forecast, ask: &Ask) -> (u8, f64) {
    match forecast.outlook {
        Outlook::Known { probability, .. } if probability >= ask.clear => (2, probability),
        Outlook::Unknown { .. } => (1, 0.0),
        Outlook::Known { probability, .. } => (0, probability),
    }
}

impl Device {
    /// Makes sure that `answers` holds one to `ask` that is fresh enough.
    fn answer(&mut self, clock: Moment, ask: &Ask, declared: &BTreeMap<PodUid, Arc<Declaration>>) {
        if self.answers.0.iter().any(|answer| answer.ask == *ask && clock.since(answer.at) < KEEP) {
            return;
        }
        let memory = self.report.memory;
        let usable = memory.map(|memory| memory.usable() - ask.headroom);
        let capacity = match ask.declared {
            Some(share) => share - ask.headroom,
            None => usable.unwrap_or_default(),
        };
        let living = self.tenants.iter().filter(|(_, tenant)| !tenant.gone);
        let asked: Vec<Asked<'_>> = living
            .map(|(key, tenant)| {
                // The policy's word is the administrator's; the pod's own stands in where there is none.
                let own = || declared.get(&key.pod).and_then(|declaration| declaration.end_of_growth());
                let declared_peak = ask.question.declared_peak.or_else(own);
                Asked { series: &tenant.series, question: Question { capacity, declared_peak, ..ask.question.clone() } }
            })
            .collect();
        // The engine is total, but a series' state came from the network: whatever it may still trip over costs this
        // device's forecast, not the controller.
        let forecast = || forecast_device(clock, usable, self.report.unattributed, &asked);
        let forecasts = catch_unwind(AssertUnwindSafe(forecast)).unwrap_or_else(|_| {
            let answer = unknown(Unknown::Inconclusive, "the series of this device is malformed".to_owned());
            vec![answer; asked.len()]
        });
        self.answers.0.retain(|answer| answer.ask != *ask);
        if self.answers.0.len() >= QUESTIONS {
            self.answers.0.remove(0);
        }
        self.answers.0.push(Answer { ask: ask.clone(), at: clock, forecasts });
    }
}

/// Answers already given, oldest first.
#[derive(Debug, Default)]
pub(super) struct Answers(Vec<Answer>);

#[derive(Debug)]
struct Answer {
    ask: Ask,
    at: Moment,
    /// In the order of the tenants that hold memory.
    forecasts: Vec<Forecast>,
}

impl Answers {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn to(&self, ask: &Ask) -> &[Forecast] {
        self.0.iter().find(|answer| answer.ask == *ask).map_or(&[], |answer| &answer.forecasts)
    }
}

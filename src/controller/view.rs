//! The read-only API of [`crate::api::view`], served by every replica on the port of its metrics.
//!
//! Flows in: the fleet, and what the acting side knows of policies. Flows out: JSON. It says no more than `/metrics` does,
//! to nobody else, and changes nothing. Bounded: one answer is written at a time, node by node, so that a fleet of ten
//! thousand containers is neither copied nor locked throughout; whoever comes meanwhile waits, and is refused when too many do.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use gpumem_engine::estimate::Interval;
use gpumem_engine::estimate::advice::setting;
use gpumem_engine::forecast::Forecast;
use gpumem_engine::oom;
use gpumem_engine::quantity::Bytes;
use gpumem_engine::usage::Attribution;
use hyper::{Method, Request, StatusCode};
use tokio::sync::Semaphore;

use super::fleet::declared::Declaration;
use super::fleet::shared::lock;
use super::fleet::{Described, Seen};
use super::metrics::{Assessed, Exposition, RiskLevel};
use crate::api::usage::{Ability, DeviceReport, NvmlState, PodReport};
use crate::api::view::{
    AbilityView, Advice, Answerer, CONTAINERS, ContainerList, ContainerView, DeclaredView, DeviceView, FORMAT, Level,
    MAX_CONTAINERS, NODES, Named, NodeList, NodeView, Range, SeriesPoint,
};
use crate::http::{self, Answer};

mod waiting;

/// Requests that may wait for the one that is answered: a team's worth of `top -w`.
const MAX_WAITING: usize = 16;
/// Remedies for one container.
const ADVICE: usize = 3;

/// Answers the read-only API.
pub struct View {
    exposition: Exposition,
    identity: String,
    waiting: Semaphore,
    writing: Semaphore,
}

/// What a request asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Only this namespace.
    pub namespace: Option<String>,
    /// Only this pod.
    pub pod: Option<String>,
    /// With recent points.
    pub series: bool,
}

impl Wanted {
    /// Reads a query. Unknown keys are refused: an ignored misspelling of `namespace` would show everything.
    fn of(query: &str) -> Result<Self, String> {
        let mut wanted = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match (key, value) {
                // Names of Kubernetes never need an escape, so an escaped one is nobody's.
                ("namespace", value) => wanted.namespace = Some(value.to_owned()),
                ("pod", value) => wanted.pod = Some(value.to_owned()),
                ("series", "1") => wanted.series = true,
                ("series", "0") => wanted.series = false,
                _ => return Err(format!("`{pair}` is not understood; known are namespace, pod and series=1\n")),
            }
        }
        Ok(wanted)
    }

    fn wants(&self, pod: &PodReport) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| *namespace == pod.namespace)
            && self.pod.as_ref().is_none_or(|name| *name == pod.name)
    }
}

impl View {
    /// Over what `/metrics` is written from; `identity` is the name of this replica.
    pub fn new(exposition: Exposition, identity: String) -> Self {
        Self { exposition, identity, waiting: Semaphore::new(MAX_WAITING), writing: Semaphore::new(1) }
    }

    /// Whether this path is ours.
    pub fn serves(&self, path: &str) -> bool {
        path == CONTAINERS || path == NODES
    }

    /// Answers a request.
    pub async fn answer<Body>(self: &Arc<Self>, request: &Request<Body>) -> Answer {
        if request.method() != Method::GET {
            return http::text(StatusCode::METHOD_NOT_ALLOWED, "this API only reads\n");
        }
        let wanted = match Wanted::of(request.uri().query().unwrap_or_default()) {
            Ok(wanted) => wanted,
            Err(problem) => return http::text(StatusCode::BAD_REQUEST, problem),
        };
        let is_nodes = request.uri().path() == NODES;
        let Ok(_waiting) = self.waiting.try_acquire() else {
            return http::text(StatusCode::TOO_MANY_REQUESTS, "too many readers, try again in a second\n");
        };
        let Ok(_writing) = self.writing.acquire().await else {
            return http::text(StatusCode::SERVICE_UNAVAILABLE, "ending\n");
        };
        let view = Arc::clone(self);
        let written = tokio::task::spawn_blocking(move || {
            let now = Instant::now();
            if is_nodes {
                serde_json::to_vec(&view.nodes(now))
            } else {
                serde_json::to_vec(&view.containers(&wanted, now))
            }
        });
        match written.await {
            Ok(Ok(body)) => http::json(StatusCode::OK, body),
            Ok(Err(_)) | Err(_) => http::text(StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be written\n"),
        }
    }

    fn answerer(&self) -> Answerer {
        Answerer {
            pod: self.identity.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            is_leader: self.exposition.leadership.borrow().is_leader,
        }
    }

    /// Every node.
    pub fn nodes(&self, now: Instant) -> NodeList {
        let nodes = lock(&self.exposition.fleet).described(now).map(|node| describe(&node)).collect();
        NodeList { format: FORMAT, controller: self.answerer(), nodes }
    }

    /// The containers that are wanted.
    pub fn containers(&self, wanted: &Wanted, now: Instant) -> ContainerList {
        let Exposition { metrics, fleet, default, .. } = &self.exposition;
        let assessed = metrics.assessed();
        let mut governed: HashMap<(&str, &str), (&str, &Assessed)> = HashMap::new();
        for (key, entries) in &assessed {
            for entry in entries.iter() {
                let known = governed.entry((entry.pod.as_str(), &entry.container)).or_insert((&key.name, entry));
                if entry.level > known.1.level {
                    *known = (&key.name, entry);
                }
            }
        }
        let (mut containers, mut left_out) = (Vec::new(), 0);
        let mut after: Arc<str> = Arc::from("");
        loop {
            let next = lock(fleet).visit_after(&after, now, default, |node, seen| {
                if !wanted.wants(seen.pod) {
                    return;
                }
                if containers.len() >= MAX_CONTAINERS {
                    left_out += 1;
                    return;
                }
                let (policy, forecast, level) = match governed.get(&(seen.pod.uid.as_str(), seen.container)) {
                    Some((policy, assessed)) => (Some((*policy).to_owned()), &assessed.forecast, assessed.level),
                    None => (None, &seen.forecast, RiskLevel::of(&seen.forecast, default)),
                };
                let series = if wanted.series { SeriesPoint::of(seen.series, seen.clock) } else { Vec::new() };
                containers.push(ContainerView { policy, series, ..container(node, &seen, forecast, level) });
            });
            match next {
                Some(node) => after = node,
                None => break,
            }
        }
        let simulated = lock(fleet).simulated() > 0;
        let mut waiting = lock(fleet).prospects();
        waiting.retain(|prospect| wanted.wants(&prospect.pod));
        let waiting = waiting.iter().filter_map(waiting::container).take(MAX_CONTAINERS).collect();
        ContainerList { format: FORMAT, controller: self.answerer(), simulated, containers, waiting, left_out }
    }
}

fn container(node: &str, seen: &Seen<'_>, forecast: &Forecast, level: Option<RiskLevel>) -> ContainerView {
    let Seen {
        pod,
        container,
        container_id: _,
        device,
        index,
        used,
        forecast: _,
        sample_age,
        report,
        series,
        clock: _,
        declared,
        limit,
    } = seen;
    let mut view = ContainerView {
        node: node.to_owned(),
        namespace: pod.namespace.clone(),
        pod: pod.name.clone(),
        pod_uid: pod.uid.to_string(),
        container: (*container).to_owned(),
        owner: pod.owner.as_ref().map(|owner| Named { kind: owner.kind.clone(), name: owner.name.clone() }),
        device: device.to_string(),
        gpu: *index,
        model: report.model.clone(),
        used_bytes: Some(used.0),
        capacity_bytes: report.memory.map(|memory| memory.usable().0),
        device_used_bytes: report.memory.map(|memory| memory.used.0),
        peak_bytes: Some(series.peak().0),
        level: match level {
            None => Level::Unknown,
            Some(RiskLevel::Low) => Level::Low,
            Some(RiskLevel::Elevated) => Level::Elevated,
            Some(RiskLevel::High) => Level::High,
            Some(RiskLevel::Critical) => Level::Critical,
        },
        limit_bytes: limit.map(|limit| limit.0),
        seconds_to_limit: seen.time_to_limit(forecast.growth).map(|time| time.as_secs_f64()),
        sample_age_seconds: Some(sample_age.as_secs_f64()),
        declared: declared.map(|declaration| declared_view(declaration)),
        ..ContainerView::default()
    };
    view.foretell(forecast);
    if level.is_some_and(|level| level > RiskLevel::Low) {
        let usable = report.memory.map(|memory| memory.usable());
        view.advice = advice(declared.map(|declaration| &**declaration), usable);
    }
    view
}

fn range(interval: &Interval) -> Range {
    let [low, median, high] = [interval.low, interval.median, interval.high].map(|bytes| Bytes::from_f64(bytes).0);
    Range { low, median, high }
}

fn declared_view(declaration: &Declaration) -> DeclaredView {
    match &declaration.read {
        Ok(declared) => DeclaredView { peak_bytes: declared.peak.as_ref().map(range), problem: None },
        Err(problem) => DeclaredView { peak_bytes: None, problem: Some(problem.to_string()) },
    }
}

/// Remedies with their new peak where the job is declared, else what helps in general.
fn advice(declared: Option<&Declaration>, usable: Option<Bytes>) -> Vec<Advice> {
    let declared = declared.and_then(|declaration| declaration.read.as_ref().ok());
    let remedies = declared.zip(usable).map(|(declared, usable)| declared.remedies(usable)).unwrap_or_default();
    let found: Vec<Advice> = remedies
        .iter()
        .take(ADVICE)
        .map(|remedy| Advice {
            what: if remedy.detail.is_empty() {
                remedy.kind.title().to_owned()
            } else {
                format!("{} ({})", remedy.kind.title(), remedy.detail)
            },
            peak_bytes: Some(range(&remedy.peak)),
            price: Some(remedy.price.to_owned()),
            setting: setting(remedy, None),
        })
        .collect();
    if !found.is_empty() {
        return found;
    }
    oom::general(None).into_iter().map(|what| Advice { what: what.to_owned(), ..Advice::default() }).collect()
}

fn describe(node: &Described<'_>) -> NodeView {
    let (nvml, detail) = match node.nvml {
        NvmlState::Up { driver } => ("Up", driver),
        NvmlState::Absent { reason } => ("Absent", reason),
        NvmlState::Down { reason } => ("Down", reason),
    };
    NodeView {
        node: node.name.to_owned(),
        agent_version: node.agent_version.to_owned(),
        nvml: nvml.to_owned(),
        nvml_detail: detail.clone(),
        simulated: node.simulated,
        report_age_seconds: node.report_age.as_secs_f64(),
        limits: able(&node.abilities.limits),
        suspend: able(&node.abilities.suspend),
        devices: node.devices.iter().map(|(report, containers)| device(report, *containers)).collect(),
    }
}

fn able(ability: &Ability) -> Option<AbilityView> {
    match ability {
        Ability::Off => None,
        Ability::Works { by } => Some(AbilityView { works: true, detail: by.clone() }),
        Ability::Fails { reason } => Some(AbilityView { works: false, detail: reason.clone() }),
    }
}

fn device(report: &DeviceReport, containers: usize) -> DeviceView {
    DeviceView {
        device: report.device.to_string(),
        gpu: report.index,
        model: report.model.clone(),
        capacity_bytes: report.memory.map(|memory| memory.usable().0),
        used_bytes: report.memory.map(|memory| memory.used.0),
        unattributed_bytes: report.unattributed.map(|unattributed| unattributed.0),
        attribution: match report.attribution {
            Attribution::Complete => "Complete",
            Attribution::Partial => "Partial",
            Attribution::Unavailable(_) => "Unavailable",
        }
        .to_owned(),
        containers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_and_a_misspelt_one_refused() {
        let wanted = Wanted { namespace: Some("team".into()), pod: Some("x-0".into()), series: true };
        assert_eq!(Wanted::of("namespace=team&pod=x-0&series=1"), Ok(wanted));
        assert_eq!(Wanted::of(""), Ok(Wanted::default()));
        for bad in ["namespaces=team", "series=yes", "x"] {
            assert!(Wanted::of(bad).is_err(), "{bad}");
        }
    }
}

//! What can be seen of a cluster: live data where the controller may be asked, statuses of policies and profiles where
//! not, and in words what is missing.

use gpumem_engine::quantity::counted;
use jiff::Timestamp;

use super::cluster::{Cluster, Error, Operator, is_ready};
use super::text::{few, time};
use crate::api::policy::{GpuMemoryPolicy, Risk, WorkloadStatus};
use crate::api::profile::GpuMemoryProfile;
use crate::api::view::{ContainerList, ContainerView, Level, Named, NodeList, Quantiles};

/// A report older than this, in seconds, is missing: pulls come every five.
pub const SILENT: f64 = 30.0;
/// What a status of nobody who writes any more says is Unknown after so many seconds.
const OLD: f64 = 60.0;

/// Containers, as far as they can be seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Worst first.
    pub containers: Vec<ContainerView>,
    /// Pods that hold no GPU memory yet; known from a controller only.
    pub waiting: Vec<ContainerView>,
    /// Whether they come from a controller; else from statuses, which list at most twenty workloads of a policy.
    pub is_live: bool,
    /// What could not be seen, and what to do about it.
    pub not_seen: Vec<String>,
}

/// Containers of the namespaces that are looked at, and the nodes that were heard of; `query` narrows a live answer.
pub async fn containers(cluster: &Cluster, query: &str) -> Result<(Seen, Result<NodeList, Error>), Error> {
    let (live, nodes, why, is_written) = match cluster.operator().await {
        Ok(operator) => {
            let (live, nodes) = tokio::join!(cluster.containers(&operator, query), cluster.nodes(&operator));
            match live {
                Ok(live) => (Some(live), nodes, String::new(), true),
                Err(error) => (None, nodes, error.line(), runs(&operator)),
            }
        }
        Err(error) => {
            let why = format!("live data: {}", error.line());
            let is_written = !matches!(error, Error::NoController { .. } | Error::NoReplica { .. });
            (None, Err(error), why, is_written)
        }
    };
    if let Some(live) = live {
        let mut seen = of_live(live);
        match &nodes {
            Ok(nodes) => seen.not_seen.extend(silent(nodes)),
            Err(error) => seen.not_seen.push(format!("whether every node reports: {}", error.line())),
        }
        return Ok((seen, nodes));
    }
    let mut not_seen = vec![why];
    let policies = cluster.policies(&mut not_seen).await?;
    let profiles = match cluster.profiles(&mut not_seen).await {
        Ok(profiles) => profiles,
        Err(error) => {
            not_seen.push(error.line());
            Vec::new()
        }
    };
    let now = (cluster.clock)();
    let containers = of_statuses(&policies, &profiles, is_written, now);
    let mut seen = Seen { containers, waiting: Vec::new(), is_live: false, not_seen };
    seen.not_seen.push(format!(
        "shown instead: the workloads most at risk in the {} of {} of {}{}; what no policy governs is not among them",
        if policies.len() == 1 { "status" } else { "statuses" },
        counted(policies.len(), "policy", "policies"),
        cluster.place(),
        written(&policies, now)
    ));
    if !is_written {
        seen.not_seen.push(format!(
            "nobody writes these statuses now: after {} what they say is Unknown, never safe",
            time(OLD)
        ));
    }
    sort(&mut seen.containers, Sort::Risk);
    Ok((seen, nodes))
}

/// Whether nothing new is known of a node.
pub fn is_unseen(node: &crate::api::view::NodeView) -> bool {
    node.report_age_seconds > SILENT || node.nvml == "Down"
}

/// Nodes of which nothing new is known: what runs there may be missing from a list, and is never safe.
fn silent(nodes: &NodeList) -> Vec<String> {
    let named = |of: fn(&crate::api::view::NodeView) -> Option<String>| -> Vec<String> {
        nodes.nodes.iter().filter_map(of).collect()
    };
    let quiet = named(|node| {
        (node.report_age_seconds > SILENT).then(|| format!("{} for {}", node.node, time(node.report_age_seconds)))
    });
    let blind = named(|node| (node.nvml == "Down").then(|| format!("{} ({})", node.node, node.nvml_detail)));
    let mut notes = Vec::new();
    if !quiet.is_empty() {
        notes.push(format!(
            "no report from {}: what runs there is Unknown or missing here, never safe; `kubectl gpumem doctor` says more",
            few(&quiet)
        ));
    }
    if !blind.is_empty() {
        notes.push(format!("NVML fails on {}: what runs there is not seen; try nvidia-smi there", few(&blind)));
    }
    notes
}

fn of_live(list: ContainerList) -> Seen {
    let is_empty = list.containers.is_empty();
    let mut seen = Seen { containers: list.containers, waiting: list.waiting, is_live: true, not_seen: Vec::new() };
    if list.simulated {
        seen.not_seen.push("SIMULATED: the driver of these nodes is simulated, there is no GPU behind it".to_owned());
    }
    if list.left_out > 0 {
        seen.not_seen.push(format!(
            "{} left out: look at one namespace at a time (-n)",
            counted(list.left_out, "container is", "containers are")
        ));
    }
    if !list.controller.is_leader && !is_empty {
        seen.not_seen.push(format!(
            "controller {} does not lead: policies and their levels are not known to it, levels are those of a policy with \
             every default",
            list.controller.pod
        ));
    }
    if list.format > crate::api::view::FORMAT {
        seen.not_seen.push("the controller is newer than this plugin: there may be more to see; update it".to_owned());
    }
    sort(&mut seen.containers, Sort::Risk);
    seen
}

/// Whether a controller is there that may write statuses, though it does not answer here.
fn runs(operator: &Operator) -> bool {
    operator.controllers.iter().any(is_ready)
}

/// Seconds since the status of a policy was last written, by what the API server notes of it.
fn age(policy: &GpuMemoryPolicy, now: Timestamp) -> Option<f64> {
    let writes = policy.metadata.managed_fields.iter().flatten();
    let of_status = writes.filter(|write| write.subresource.as_deref() == Some("status"));
    let newest = of_status.filter_map(|write| Some(write.time.as_ref()?.0)).max()?;
    Some((now.as_second() - newest.as_second()).max(0) as f64)
}

/// When the statuses that have workloads were written, as the end of a sentence.
fn written(policies: &[GpuMemoryPolicy], now: Timestamp) -> String {
    let has_workloads =
        |policy: &&GpuMemoryPolicy| policy.status.as_ref().is_some_and(|status| !status.workloads.is_empty());
    let ages: Option<Vec<f64>> = policies.iter().filter(has_workloads).map(|policy| age(policy, now)).collect();
    let Some(ages) = ages else { return ", of unknown age".to_owned() };
    match (ages.iter().copied().reduce(f64::min), ages.iter().copied().reduce(f64::max)) {
        (Some(newest), Some(oldest)) if time(newest) == time(oldest) => format!(", last written {} ago", time(newest)),
        (Some(newest), Some(oldest)) => format!(", last written {} to {} ago", time(newest), time(oldest)),
        _ => String::new(),
    }
}

/// What the statuses say, as of when they were written. One that a living controller keeps may stand for long where nothing
/// changes; a time to OOM in it that is over was not kept, and neither is any of a controller that is gone.
fn of_statuses(
    policies: &[GpuMemoryPolicy],
    profiles: &[GpuMemoryProfile],
    is_written: bool,
    now: Timestamp,
) -> Vec<ContainerView> {
    let rows = policies.iter().flat_map(|policy| {
        let namespace = policy.metadata.namespace.clone().unwrap_or_default();
        let name = policy.metadata.name.clone().unwrap_or_default();
        let age = age(policy, now);
        policy.status.iter().flat_map(|status| &status.workloads).map(move |workload| {
            let of_workload = |profile: &&GpuMemoryProfile| profile.spec.workload.uid == workload.workload.uid;
            let remembered = profiles.iter().find(of_workload).and_then(|profile| profile.status.as_ref());
            let is_over = age.zip(workload.seconds_to_oom).is_some_and(|(age, soon)| age > soon as f64 + OLD);
            let is_old = is_over || (!is_written && age.is_none_or(|age| age > OLD));
            ContainerView {
                namespace: namespace.clone(),
                pod: workload.pod.clone().unwrap_or_default(),
                container: workload.container.clone().unwrap_or_default(),
                owner: Some(Named { kind: workload.workload.kind.clone(), name: workload.workload.name.clone() }),
                peak_bytes: remembered.and_then(|status| u64::try_from(status.peak_bytes?).ok()),
                level: match workload.risk {
                    _ if is_old => Level::Unknown,
                    Risk::Low => Level::Low,
                    Risk::Unknown => Level::Unknown,
                    Risk::Elevated => Level::Elevated,
                    Risk::High => Level::High,
                },
                // "In two minutes" would count from now.
                seconds_to_oom: workload
                    .seconds_to_oom
                    .filter(|_| is_written && !is_old)
                    .map(|seconds| Quantiles { q50: seconds as f64, ..Quantiles::default() }),
                reason: as_of(workload, age),
                unknown: is_old.then(|| "stale".to_owned()),
                sample_age_seconds: age,
                policy: Some(name.clone()),
                ..ContainerView::default()
            }
        })
    });
    rows.collect()
}

/// What a status says of a workload, with the time that it speaks of.
fn as_of(workload: &WorkloadStatus, age: Option<f64>) -> String {
    let when = age.map_or("as of a status of unknown age".to_owned(), |age| format!("as of {} ago", time(age)));
    let soon =
        workload.seconds_to_oom.map_or(String::new(), |soon| format!(", out of memory {} later", time(soon as f64)));
    let why = if workload.reason.is_empty() { String::new() } else { format!(": {}", workload.reason) };
    format!("{when} {:?}{soon}{why}", workload.risk)
}

/// Order of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// Worst first: by level, then by how soon, then by probability.
    #[default]
    Risk,
    /// Largest first.
    Used,
    /// By namespace and name.
    Name,
}

/// Puts containers in order; equal ones by name, so that a watched screen stands still.
pub fn sort(containers: &mut [ContainerView], sort: Sort) {
    containers.sort_by(|a, b| {
        let soon = |view: &ContainerView| view.seconds_to_oom.map_or(f64::INFINITY, |time| time.q50);
        let likely = |view: &ContainerView| view.probability.unwrap_or(0.0);
        let by_name = || {
            let key = |view: &ContainerView| (view.namespace.clone(), view.pod.clone(), view.container.clone());
            key(a).cmp(&key(b))
        };
        match sort {
            Sort::Name => by_name(),
            Sort::Used => b.used_bytes.cmp(&a.used_bytes).then_with(by_name),
            Sort::Risk => b
                .level
                .cmp(&a.level)
                .then(soon(a).total_cmp(&soon(b)))
                .then(likely(b).total_cmp(&likely(a)))
                .then_with(by_name),
        }
    });
}

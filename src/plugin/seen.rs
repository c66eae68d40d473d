//! What can be seen of a cluster: live data where the controller may be asked, statuses of policies and profiles where
//! not, and in words what is missing.

use gpumem_engine::quantity::counted;

use super::cluster::{Cluster, Error};
use super::text::{few, time};
use crate::api::policy::{GpuMemoryPolicy, Risk};
use crate::api::profile::GpuMemoryProfile;
use crate::api::view::{ContainerList, ContainerView, Level, Named, NodeList, Quantiles};

/// A report older than this, in seconds, is missing: pulls come every five.
pub const SILENT: f64 = 30.0;

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
    let (live, nodes, why) = match cluster.operator().await {
        Ok(operator) => {
            let (live, nodes) = tokio::join!(cluster.containers(&operator, query), cluster.nodes(&operator));
            match live {
                Ok(live) => (Some(live), nodes, String::new()),
                Err(error) => (None, nodes, error.line()),
            }
        }
        Err(error) => {
            let why = format!("live data: {}", error.line());
            (None, Err(error), why)
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
    let containers = of_statuses(&policies, &profiles);
    let mut seen = Seen { containers, waiting: Vec::new(), is_live: false, not_seen };
    seen.not_seen.push(format!(
        "shown instead: the workloads most at risk in the {} of {} of {}; what no policy governs is not among them",
        if policies.len() == 1 { "status" } else { "statuses" },
        counted(policies.len(), "policy", "policies"),
        cluster.place()
    ));
    sort(&mut seen.containers, Sort::Risk);
    Ok((seen, nodes))
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

fn of_statuses(policies: &[GpuMemoryPolicy], profiles: &[GpuMemoryProfile]) -> Vec<ContainerView> {
    let rows = policies.iter().flat_map(|policy| {
        let namespace = policy.metadata.namespace.clone().unwrap_or_default();
        let name = policy.metadata.name.clone().unwrap_or_default();
        policy.status.iter().flat_map(|status| &status.workloads).map(move |workload| {
            let of_workload = |profile: &&GpuMemoryProfile| profile.spec.workload.uid == workload.workload.uid;
            let remembered = profiles.iter().find(of_workload).and_then(|profile| profile.status.as_ref());
            ContainerView {
                namespace: namespace.clone(),
                pod: workload.pod.clone().unwrap_or_default(),
                container: workload.container.clone().unwrap_or_default(),
                owner: Some(Named { kind: workload.workload.kind.clone(), name: workload.workload.name.clone() }),
                peak_bytes: remembered.and_then(|status| u64::try_from(status.peak_bytes?).ok()),
                level: match workload.risk {
                    Risk::Low => Level::Low,
                    Risk::Unknown => Level::Unknown,
                    Risk::Elevated => Level::Elevated,
                    Risk::High => Level::High,
                },
                seconds_to_oom: workload
                    .seconds_to_oom
                    .map(|seconds| Quantiles { q50: seconds as f64, ..Quantiles::default() }),
                reason: workload.reason.clone(),
                policy: Some(name.clone()),
                ..ContainerView::default()
            }
        })
    });
    rows.collect()
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

//! `top`: who uses GPU memory, and who will run out of it. Flows in: what can be seen. Flows out: one table.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::cluster::{Cluster, Error};
use super::seen::{self, Seen, Sort};
use super::table::{Cell, Output, Style, Title, csv, document, envelope, table};
use super::text::{UNKNOWN, bar, bytes, percent, rate, time};
use crate::api::view::{ContainerView, Level, NodeList};
use crate::cli::{FINE, NO, Shown};

/// What the lines of the table are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Rows {
    /// Containers of pods.
    #[default]
    #[value(alias = "pod", alias = "po")]
    Pods,
    /// Nodes.
    #[value(alias = "node", alias = "no")]
    Nodes,
    /// GPUs and MIG slices.
    #[value(alias = "gpu")]
    Gpus,
    /// Controllers of pods.
    #[value(alias = "workload", alias = "wl")]
    Workloads,
}

/// Show GPU memory and who will run out of it, worst first.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// What to list.
    #[arg(value_enum, default_value = "pods")]
    pub rows: Rows,
    /// Order of the lines.
    #[arg(long, value_enum, default_value = "risk")]
    pub sort: Sort,
    /// Show it again every two seconds, until interrupted.
    #[arg(short, long)]
    pub watch: bool,
    /// Show containers on a screen of their own, with bars and history, until q.
    #[arg(long, conflicts_with_all = ["watch", "fail_on"])]
    pub tui: bool,
    /// Exit with 3 when any line is at this level or above: elevated, high or critical. For CI.
    #[arg(long, value_parser = level)]
    pub fail_on: Option<Level>,
}

fn level(text: &str) -> Result<Level, String> {
    match text {
        "elevated" => Ok(Level::Elevated),
        "high" => Ok(Level::High),
        "critical" => Ok(Level::Critical),
        _ => Err("give elevated, high or critical".to_owned()),
    }
}

/// One look.
pub async fn run(cluster: &Cluster, args: &Args, output: Output, style: Style) -> Result<Shown, Error> {
    let query = match (&cluster.namespace, args.rows) {
        (Some(namespace), Rows::Pods | Rows::Workloads) => format!("?namespace={namespace}"),
        _ => String::new(),
    };
    let (mut seen, operator) = seen::containers(cluster, &query).await?;
    seen::sort(&mut seen.containers, args.sort);
    let worst = seen.containers.iter().map(|view| view.level).max().unwrap_or(Level::Low);
    let mut listed = match args.rows {
        Rows::Pods => pods(&seen, cluster.namespace.is_none()),
        Rows::Workloads => workloads(&seen, cluster.namespace.is_none(), args.sort),
        Rows::Nodes | Rows::Gpus => {
            let nodes = match &operator {
                Some(operator) => cluster.nodes(operator).await,
                None => Err(Error::NoController { place: "any namespace".to_owned() }),
            };
            match nodes {
                // Statuses know no node: without live data there is nothing to show.
                Err(error) => return Err(error),
                Ok(nodes) if args.rows == Rows::Nodes => by_node(&nodes, &seen, args.sort),
                Ok(nodes) => by_gpu(&nodes, &seen, args.sort),
            }
        }
    };
    if listed.items.is_empty() && matches!(output, Output::Table | Output::Wide) {
        let place = if args.rows == Rows::Pods { cluster.place() } else { "the cluster".to_owned() };
        seen.not_seen.insert(0, format!("nothing holds GPU memory in {place}"));
        listed.rows.clear();
    }
    let code = if args.fail_on.is_some_and(|level| worst >= level) { NO } else { FINE };
    let text = match output {
        Output::Table => listed.narrow(style),
        Output::Wide => table(&listed.titles, &listed.rows, style),
        Output::Csv => csv(listed.columns, &listed.items),
        Output::Json | Output::Yaml => document(&envelope(listed.kind, &listed.items, &seen.not_seen), output),
    };
    // A script reads notSeen; a person reads the lines beside the table.
    let notes = if matches!(output, Output::Json | Output::Yaml) { Vec::new() } else { seen.not_seen };
    Ok(Shown { text, notes, code })
}

/// A list in every form it may be printed in. The first `few` columns are the narrow table.
struct Listed {
    kind: &'static str,
    titles: Vec<Title>,
    few: usize,
    rows: Vec<Vec<Cell>>,
    columns: &'static [&'static str],
    items: Vec<Value>,
}

impl Listed {
    fn narrow(&self, style: Style) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let rows: Vec<Vec<Cell>> = self.rows.iter().map(|row| row.iter().take(self.few).cloned().collect()).collect();
        table(self.titles.get(..self.few).unwrap_or(&self.titles), &rows, style)
    }
}

fn pods(seen: &Seen, all: bool) -> Listed {
    let mut titles = vec!["POD", "CONTAINER", "NODE", ">GPU", ">USED", ">OF", "DEVICE", "RISK", ">P(OOM)", ">OOM IN"];
    let wide = ["CLASS", ">PEAK", ">GROWTH", ">AGE", "POLICY", "REASON"];
    titles.extend(wide);
    if all {
        titles.insert(0, "NAMESPACE");
    }
    let row = |view: &ContainerView| {
        let mut cells: Vec<Cell> = if all { vec![view.namespace.as_str().into()] } else { Vec::new() };
        let gpu = if view.device.is_empty() { UNKNOWN.to_owned() } else { gpu(view.gpu, &view.device) };
        cells.extend::<[Cell; 16]>([
            or_unknown(&view.pod).into(),
            or_unknown(&view.container).into(),
            or_unknown(&view.node).into(),
            gpu.into(),
            bytes(view.used_bytes).into(),
            bytes(view.capacity_bytes).into(),
            device_bar(view).into(),
            view.level.into(),
            percent(view.probability).into(),
            view.seconds_to_oom.map_or(UNKNOWN.to_owned(), |quantiles| time(quantiles.q50)).into(),
            or_unknown(&view.class).into(),
            bytes(view.peak_bytes).into(),
            rate(view.growth_bytes_per_second).into(),
            view.sample_age_seconds.map_or(UNKNOWN.to_owned(), time).into(),
            view.policy.as_deref().unwrap_or(UNKNOWN).into(),
            view.reason.as_str().into(),
        ]);
        cells
    };
    Listed {
        kind: "ContainerList",
        few: titles.len() - wide.len(),
        titles,
        rows: seen.containers.iter().map(row).collect(),
        columns: &[
            "namespace",
            "pod",
            "container",
            "node",
            "gpu",
            "device",
            "usedBytes",
            "capacityBytes",
            "deviceUsedBytes",
            "peakBytes",
            "level",
            "probability",
            "secondsToOom.q10",
            "secondsToOom.q50",
            "secondsToOom.q90",
            "class",
            "growthBytesPerSecond",
            "sampleAgeSeconds",
            "policy",
            "reason",
        ],
        items: seen.containers.iter().filter_map(|view| serde_json::to_value(view).ok()).collect(),
    }
}

/// What is summed up over several containers.
#[derive(Default)]
struct Sum<'a> {
    containers: usize,
    pods: std::collections::BTreeSet<&'a str>,
    used: Option<u64>,
    worst: Option<&'a ContainerView>,
}

impl<'a> Sum<'a> {
    /// Containers come worst first, so the first one is the worst.
    fn add(&mut self, view: &'a ContainerView) {
        self.containers += 1;
        self.pods.insert(&view.pod);
        if let Some(used) = view.used_bytes {
            self.used = Some(self.used.unwrap_or(0) + used);
        }
        self.worst.get_or_insert(view);
    }

    fn level(&self) -> Level {
        self.worst.map_or(Level::Low, |view| view.level)
    }

    fn soon(&self) -> Option<f64> {
        self.worst.and_then(|view| view.seconds_to_oom).map(|time| time.q50)
    }

    fn soon_text(&self) -> String {
        self.soon().map_or(UNKNOWN.to_owned(), time)
    }
}

fn sums<'a, Key: Ord>(seen: &'a [ContainerView], key: impl Fn(&'a ContainerView) -> Key) -> BTreeMap<Key, Sum<'a>> {
    let mut worst_first: Vec<&ContainerView> = seen.iter().collect();
    worst_first.sort_by(|a, b| {
        let soon = |view: &ContainerView| view.seconds_to_oom.map_or(f64::INFINITY, |time| time.q50);
        b.level.cmp(&a.level).then(soon(a).total_cmp(&soon(b)))
    });
    let mut sums: BTreeMap<Key, Sum<'a>> = BTreeMap::new();
    for view in worst_first {
        sums.entry(key(view)).or_default().add(view);
    }
    sums
}

/// Lines in the order that was asked for: each with its level, how soon, and how much.
fn ordered<T>(mut lines: Vec<(Level, Option<f64>, u64, T)>, sort: Sort) -> Vec<T> {
    match sort {
        Sort::Name => {}
        Sort::Used => lines.sort_by_key(|line| std::cmp::Reverse(line.2)),
        Sort::Risk => lines.sort_by(|a, b| {
            let soon = |time: Option<f64>| time.unwrap_or(f64::INFINITY);
            b.0.cmp(&a.0).then(soon(a.1).total_cmp(&soon(b.1)))
        }),
    }
    lines.into_iter().map(|line| line.3).collect()
}

fn workloads(seen: &Seen, all: bool, sort: Sort) -> Listed {
    let mut titles =
        vec!["WORKLOAD", ">PODS", ">CONTAINERS", ">USED", "RISK", ">OOM IN", "WORST POD", "POLICY", "REASON"];
    if all {
        titles.insert(0, "NAMESPACE");
    }
    let named = |view: &ContainerView| {
        let owner = view.owner.as_ref().map(|owner| format!("{}/{}", owner.kind, owner.name));
        (view.namespace.clone(), owner.unwrap_or_else(|| format!("Pod/{}", view.pod)))
    };
    let lines = sums(&seen.containers, named).into_iter().map(|((namespace, workload), sum)| {
        let (pod, policy, reason) =
            sum.worst.map_or(("", None, ""), |view| (view.pod.as_str(), view.policy.as_deref(), view.reason.as_str()));
        let mut cells: Vec<Cell> = if all { vec![namespace.as_str().into()] } else { Vec::new() };
        cells.extend::<[Cell; 9]>([
            workload.as_str().into(),
            sum.pods.len().to_string().into(),
            sum.containers.to_string().into(),
            bytes(sum.used).into(),
            sum.level().into(),
            sum.soon_text().into(),
            or_unknown(pod).into(),
            policy.unwrap_or(UNKNOWN).into(),
            reason.into(),
        ]);
        let item = json!({
            "namespace": namespace, "workload": workload, "pods": sum.pods.len(), "containers": sum.containers,
            "usedBytes": sum.used, "level": sum.level(), "secondsToOom": sum.soon(), "worstPod": pod, "policy": policy,
            "reason": reason,
        });
        (sum.level(), sum.soon(), sum.used.unwrap_or(0), (cells, item))
    });
    let (rows, items) = ordered(lines.collect(), sort).into_iter().unzip();
    Listed {
        kind: "WorkloadList",
        few: titles.len() - 2,
        titles,
        rows,
        columns: &[
            "namespace",
            "workload",
            "pods",
            "containers",
            "usedBytes",
            "level",
            "secondsToOom",
            "worstPod",
            "policy",
            "reason",
        ],
        items,
    }
}

fn by_node(nodes: &NodeList, seen: &Seen, sort: Sort) -> Listed {
    let sums = sums(&seen.containers, |view| view.node.as_str());
    let nothing = Sum::default();
    let lines = nodes.nodes.iter().map(|node| {
        let sum = sums.get(node.node.as_str()).unwrap_or(&nothing);
        let total = |of: fn(&crate::api::view::DeviceView) -> Option<u64>| {
            let known: Vec<u64> = node.devices.iter().filter_map(of).collect();
            (!known.is_empty()).then(|| known.iter().sum::<u64>())
        };
        let (used, capacity) = (total(|device| device.used_bytes), total(|device| device.capacity_bytes));
        let share = used.zip(capacity).map(|(used, capacity)| used as f64 / capacity.max(1) as f64);
        let cells: Vec<Cell> = vec![
            node.node.as_str().into(),
            node.devices.len().to_string().into(),
            bytes(used).into(),
            bytes(capacity).into(),
            percent(share).into(),
            sum.containers.to_string().into(),
            sum.level().into(),
            sum.soon_text().into(),
            node.nvml.as_str().into(),
            time(node.report_age_seconds).into(),
            node.agent_version.as_str().into(),
            node.nvml_detail.as_str().into(),
        ];
        let item = json!({
            "node": node.node, "gpus": node.devices.len(), "usedBytes": used, "capacityBytes": capacity,
            "containers": sum.containers, "level": sum.level(), "secondsToOom": sum.soon(), "nvml": node.nvml,
            "nvmlDetail": node.nvml_detail, "reportAgeSeconds": node.report_age_seconds, "agentVersion": node.agent_version,
            "simulated": node.simulated,
        });
        (sum.level(), sum.soon(), used.unwrap_or(0), (cells, item))
    });
    let (rows, items) = ordered(lines.collect(), sort).into_iter().unzip();
    Listed {
        kind: "NodeList",
        titles: vec![
            "NODE",
            ">GPUS",
            ">USED",
            ">OF",
            ">USE",
            ">CONTAINERS",
            "RISK",
            ">OOM IN",
            "NVML",
            ">REPORT",
            "AGENT",
            "DETAIL",
        ],
        few: 10,
        rows,
        columns: &[
            "node",
            "gpus",
            "usedBytes",
            "capacityBytes",
            "containers",
            "level",
            "secondsToOom",
            "nvml",
            "nvmlDetail",
            "reportAgeSeconds",
            "agentVersion",
            "simulated",
        ],
        items,
    }
}

fn by_gpu(nodes: &NodeList, seen: &Seen, sort: Sort) -> Listed {
    let sums = sums(&seen.containers, |view| view.device.as_str());
    let nothing = Sum::default();
    let devices = nodes.nodes.iter().flat_map(|node| node.devices.iter().map(move |device| (node, device)));
    let lines = devices.map(|(node, device)| {
        let sum = sums.get(device.device.as_str()).unwrap_or(&nothing);
        let shown = match (device.used_bytes, device.capacity_bytes) {
            (Some(used), Some(capacity)) => {
                let unattributed = device.unattributed_bytes.unwrap_or(0);
                bar(used.saturating_sub(unattributed), used, capacity, 20)
            }
            _ => UNKNOWN.to_owned(),
        };
        let worst = sum.worst.map_or(UNKNOWN.to_owned(), |view| format!("{}/{}", view.namespace, view.pod));
        let cells: Vec<Cell> = vec![
            node.node.as_str().into(),
            gpu(device.gpu, &device.device).into(),
            bytes(device.used_bytes).into(),
            bytes(device.capacity_bytes).into(),
            shown.into(),
            bytes(device.unattributed_bytes).into(),
            device.containers.to_string().into(),
            sum.level().into(),
            sum.soon_text().into(),
            worst.as_str().into(),
            device.model.as_str().into(),
            device.attribution.as_str().into(),
            device.device.as_str().into(),
        ];
        let item = json!({
            "node": node.node, "gpu": device.gpu, "device": device.device, "model": device.model,
            "usedBytes": device.used_bytes, "capacityBytes": device.capacity_bytes,
            "unattributedBytes": device.unattributed_bytes, "attribution": device.attribution,
            "containers": device.containers, "level": sum.level(), "secondsToOom": sum.soon(), "worst": worst,
        });
        (sum.level(), sum.soon(), device.used_bytes.unwrap_or(0), (cells, item))
    });
    let (rows, items) = ordered(lines.collect(), sort).into_iter().unzip();
    Listed {
        kind: "GpuList",
        titles: vec![
            "NODE",
            ">GPU",
            ">USED",
            ">OF",
            "MEMORY",
            ">NOBODY'S",
            ">CONTAINERS",
            "RISK",
            ">OOM IN",
            "WORST",
            "MODEL",
            "SPLIT",
            "UUID",
        ],
        few: 10,
        rows,
        columns: &[
            "node",
            "gpu",
            "device",
            "model",
            "usedBytes",
            "capacityBytes",
            "unattributedBytes",
            "attribution",
            "containers",
            "level",
            "secondsToOom",
            "worst",
        ],
        items,
    }
}

fn or_unknown(text: &str) -> &str {
    if text.is_empty() { UNKNOWN } else { text }
}

/// Index of the GPU, with the slice where it is one: `0`, `0/gi3`.
fn gpu(index: u32, device: &str) -> String {
    match device.split_once("/gi") {
        Some((_, slice)) => format!("{index}/gi{slice}"),
        None => index.to_string(),
    }
}

fn device_bar(view: &ContainerView) -> String {
    match (view.used_bytes, view.capacity_bytes) {
        (Some(used), Some(capacity)) => bar(used, view.device_used_bytes.unwrap_or(used), capacity, 12),
        _ => UNKNOWN.to_owned(),
    }
}

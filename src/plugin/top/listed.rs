//! The lists of `top`, each in every form it may be printed in. Pure.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::api::view::{ContainerView, Level, NodeList};
use crate::plugin::seen::{Seen, Sort};
use crate::plugin::table::{Cell, Style, Title, table};
use crate::plugin::text::{UNKNOWN, bar, bytes, percent, rate, time};

/// A list in every form it may be printed in. The first `few` columns are the narrow table.
pub(super) struct Listed {
    pub(super) kind: &'static str,
    pub(super) titles: Vec<Title>,
    pub(super) few: usize,
    pub(super) rows: Vec<Vec<Cell>>,
    pub(super) columns: &'static [&'static str],
    pub(super) items: Vec<Value>,
}

impl Listed {
    pub(super) fn narrow(&self, style: Style) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let rows: Vec<Vec<Cell>> = self.rows.iter().map(|row| row.iter().take(self.few).cloned().collect()).collect();
        table(self.titles.get(..self.few).unwrap_or(&self.titles), &rows, style)
    }
}

pub(super) fn pods(seen: &Seen, all: bool) -> Listed {
    let mut titles =
        vec!["POD", "~5CONTAINER", "~3NODE", "~2>GPU", ">USED", "~1>OF", "~4DEVICE", "RISK", ">P(OOM)", ">OOM IN"];
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
        items: seen.containers.iter().filter_map(known).collect(),
    }
}

/// A container as programs read it. What a status does not know is left out, since an absent field is not known: an empty
/// name would be one, and 0 an index.
fn known(view: &ContainerView) -> Option<Value> {
    let mut item = serde_json::to_value(view).ok()?;
    let fields = item.as_object_mut()?;
    fields.retain(|name, value| value != "" && (name != "gpu" || !view.device.is_empty()));
    Some(item)
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

pub(super) fn workloads(seen: &Seen, all: bool, sort: Sort) -> Listed {
    let mut titles =
        vec!["WORKLOAD", "~3>PODS", "~1>CONTAINERS", ">USED", "RISK", ">OOM IN", "~2WORST POD", "POLICY", "REASON"];
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

pub(super) fn by_node(nodes: &NodeList, seen: &Seen, sort: Sort) -> Listed {
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
            "~2>CONTAINERS",
            "RISK",
            ">OOM IN",
            "~3NVML",
            "~1>REPORT",
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

pub(super) fn by_gpu(nodes: &NodeList, seen: &Seen, sort: Sort) -> Listed {
    let sums = sums(&seen.containers, |view| view.device.as_str());
    let nothing = Sum::default();
    let devices = nodes.nodes.iter().flat_map(|node| node.devices.iter().map(move |device| (node, device)));
    let mut devices: Vec<_> = devices.collect();
    // Equal lines stay in this order, so that a watched screen stands still.
    devices.sort_by_key(|(node, device)| (&node.node, device.gpu, &device.device));
    let lines = devices.into_iter().map(|(node, device)| {
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
            "~4MEMORY",
            "~1>NOBODY'S",
            "~2>CONTAINERS",
            "RISK",
            ">OOM IN",
            "~3WORST",
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

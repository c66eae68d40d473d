//! How long `kubectl gpumem top` takes over 10,000 containers: the program as a person starts it, from its first instruction to its
//! exit, against an API server and a controller that are played on loopback.
//!
//! `cargo bench --bench plugin` closes with one line per figure, `figure NAME VALUE UNIT`. What is played answers at once and
//! without TLS, so that the figures are the program's own: reading flags and kubeconfig, three questions, ten thousand objects of
//! JSON, a table. `-- PATH` times another build of the program. A cluster adds its round trips, and the controller some tens of milliseconds.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark that cannot go on fails")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpumem::api::view::{
    Answerer, ContainerList, ContainerView, DeviceView, Level, Named, NodeList, NodeView, Quantiles,
};
use serde_json::json;

/// Nodes of eight devices with five containers each.
const NODES: usize = 250;
const ROUNDS: usize = 21;
const GIB: u64 = 1 << 30;

fn main() {
    let program = std::env::args().skip(1).find(|arg| arg != "--bench");
    let program = program.unwrap_or_else(|| env!("CARGO_BIN_EXE_kubectl-gpumem").to_owned());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let played = Arc::new(Played::new());
    let mib = played.containers.len() as f64 / 1_048_576.0;
    std::thread::spawn(move || {
        for stream in listener.incoming().map(Result::unwrap) {
            let played = Arc::clone(&played);
            std::thread::spawn(move || played.serve(&stream));
        }
    });
    let folder = std::env::temp_dir().join(format!("gpumem-bench-plugin-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let config = folder.join("config");
    std::fs::write(&config, kubeconfig(&address.to_string())).unwrap();
    println!("figure plugin_answer_10000 {mib:.1} MiB");
    for (name, line) in [
        ("top_pods_10000", &["top", "-A"][..]),
        ("top_pods_wide_10000", &["top", "-A", "-o", "wide"]),
        ("top_pods_json_10000", &["top", "-A", "-o", "json"]),
        ("top_workloads_10000", &["top", "workloads", "-A"]),
        ("top_nodes_250", &["top", "nodes"]),
        ("top_gpus_2000", &["top", "gpus"]),
    ] {
        let mut times: Vec<Duration> = (0..ROUNDS).map(|_| run(&program, line, &config)).collect();
        times.sort_unstable();
        let seconds = |place: usize| times.get(place).copied().unwrap_or_default().as_secs_f64();
        println!("figure plugin_{name}_p50 {:.3} s", seconds(ROUNDS / 2));
        println!("figure plugin_{name}_max {:.3} s", seconds(ROUNDS - 1));
    }
    let _ = std::fs::remove_dir_all(folder);
}

/// The program once, whole. What it prints is looked at, so that a failure is not taken for speed.
fn run(program: &str, line: &[&str], config: &std::path::Path) -> Duration {
    let began = Instant::now();
    let mut command = Command::new(program);
    let output = command.args(line).arg("--kubeconfig").arg(config).output().unwrap();
    let took = began.elapsed();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8_lossy(&output.stdout).lines().count();
    assert!(lines > NODES, "{line:?} printed {lines} lines");
    took
}

fn kubeconfig(address: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: played\n\
         clusters: [{{name: played, cluster: {{server: 'http://{address}'}}}}]\n\
         contexts: [{{name: played, context: {{cluster: played, user: played, namespace: team-0}}}}]\n\
         users: [{{name: played, user: {{}}}}]\n"
    )
}

/// The answers, made once.
struct Played {
    pods: String,
    lease: String,
    containers: String,
    nodes: String,
}

impl Played {
    fn new() -> Self {
        let pod = json!({
            "metadata": {"name": "controller-0", "namespace": "gpumem-system"},
            "spec": {"containers": [{"name": "controller", "args": ["controller", "--lease", "gpumem", "--ledger", "ledger"],
                "ports": [{"name": "metrics", "containerPort": 9401}]}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        let controller =
            Answerer { pod: "controller-0".into(), version: env!("CARGO_PKG_VERSION").into(), is_leader: true };
        let containers = ContainerList {
            format: 1,
            controller: controller.clone(),
            containers: (0..NODES * 8 * 5).map(container).collect(),
            ..ContainerList::default()
        };
        let nodes = NodeList { format: 1, controller, nodes: (0..NODES).map(node).collect() };
        Self {
            pods: json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [pod]}).to_string(),
            lease: json!({"metadata": {"name": "gpumem"}, "spec": {"holderIdentity": "controller-0"}}).to_string(),
            containers: serde_json::to_string(&containers).unwrap(),
            nodes: serde_json::to_string(&nodes).unwrap(),
        }
    }

    /// Answers on one connection until it ends.
    fn serve(&self, stream: &TcpStream) {
        let mut reader = BufReader::new(stream);
        loop {
            let mut head = Vec::new();
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) == 0 {
                    return;
                }
                if line == "\r\n" {
                    break;
                }
                head.push(line);
            }
            let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
            let body = match path {
                _ if path.contains("/proxy/api/v1/containers") => &self.containers,
                _ if path.contains("/proxy/api/v1/nodes") => &self.nodes,
                _ if path.contains("/leases/") => &self.lease,
                _ => &self.pods,
            };
            let length = body.len();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
            let mut writer = stream;
            if writer.write_all(head.as_bytes()).and_then(|()| writer.write_all(body.as_bytes())).is_err() {
                return;
            }
        }
    }
}

/// Every tenth grows; the others are flat. Texts are as long as real ones.
fn container(index: usize) -> ContainerView {
    let (node, gpu, grows) = (index / 40, index / 5 % 8, index.is_multiple_of(10));
    let used = (4 + index as u64 % 11) * GIB;
    ContainerView {
        node: format!("gpu-node-{node:03}.eu-west-1.compute.internal"),
        namespace: format!("team-{}", index % 40),
        pod: format!("trainer-{index}-6f9c7b8d5-x2k{:02}", index % 100),
        pod_uid: format!("5c89852c-d268-4c3f-9b07-{index:012}"),
        container: "trainer".into(),
        owner: Some(Named { kind: "ReplicaSet".into(), name: format!("trainer-{index}-6f9c7b8d5") }),
        device: device(node, gpu),
        gpu: gpu as u32,
        model: "NVIDIA H100 80GB HBM3".into(),
        used_bytes: Some(used),
        capacity_bytes: Some(79 * GIB),
        device_used_bytes: Some(60 * GIB),
        peak_bytes: Some(used),
        class: if grows { "Leak" } else { "Plateau" }.into(),
        level: if grows { Level::Elevated } else { Level::Low },
        reason: "grows 20 MiB/s over the last 12 min with 15.5 GiB of 79 GiB left: full in about 13 min".into(),
        probability: Some(if grows { 0.6 } else { 0.004 }),
        probability_by_horizon: [(300, 0.001), (900, 0.004), (3600, 0.02)].into(),
        seconds_to_oom: grows.then_some(Quantiles { q10: Some(660.0), q50: 790.0, q90: Some(1020.0) }),
        growth_bytes_per_second: grows.then_some(20.0 * 1_048_576.0),
        sample_age_seconds: Some(1.4),
        policy: Some("trainer".into()),
        ..ContainerView::default()
    }
}

fn device(node: usize, gpu: usize) -> String {
    format!("GPU-5c89852c-d268-c3f3-{node:04}-{gpu:012}")
}

fn node(index: usize) -> NodeView {
    let device = |gpu: usize| DeviceView {
        device: device(index, gpu),
        gpu: gpu as u32,
        model: "NVIDIA H100 80GB HBM3".into(),
        capacity_bytes: Some(79 * GIB),
        used_bytes: Some(60 * GIB),
        unattributed_bytes: Some(GIB),
        attribution: "Complete".into(),
        containers: 5,
    };
    NodeView {
        node: format!("gpu-node-{index:03}.eu-west-1.compute.internal"),
        agent_version: env!("CARGO_PKG_VERSION").into(),
        nvml: "Up".into(),
        nvml_detail: "580.65.06".into(),
        simulated: false,
        report_age_seconds: 1.4,
        devices: (0..8).map(device).collect(),
        limits: None,
        suspend: None,
    }
}

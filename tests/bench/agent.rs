//! What the agent costs: the release binary against the simulated driver, with one process for each PID.
//!
//! `cargo bench --bench agent` closes with one line per figure, `figure NAME VALUE UNIT`. While it measures, two controllers
//! pull every five seconds over mutual TLS, and Prometheus scrapes every five seconds (on the small node once a second, as
//! the peers in the README were measured); the agent's CPU includes all of that. The simulated driver's library runs inside
//! the agent as NVIDIA's does, so what it costs is in the figures, too: `agent_cpu_sampler` is the share of the thread that
//! calls it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark that cannot go on fails")]

#[path = "../it/support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpumem::api::names::AGENT_TLS_NAME;
use gpumem::api::usage::{Cursor, UsageReport};
use gpumem_engine::attribution::attribute;
use gpumem_engine::identity::{ContainerKey, DeviceKey, Pid, StartTime};
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::sample::{DeviceMemory, DeviceSample, ProcessMemory, RawSample, Reading};
use gpumem_engine::usage::Owner;
use gpumem_sim::client::Client;
use gpumem_sim::protocol::{Answer, Kind, Request};
use support::http::Connection;
use support::tls::Authority;
use support::{Agent, GIB, Node, api::pod, cgroup, container_id, uid, write_process};

const MIB: u64 = 1 << 20;
/// Long enough for a per mille of a core to show in nanoseconds of scheduling.
const WINDOW: Duration = Duration::from_mins(1);
/// Until the agent has given back what only its start needed.
const SETTLE: Duration = Duration::from_secs(25);
const PULL_EVERY: u32 = 5;
const SCRAPES: usize = 1000;
const CHANGES: u32 = 20;
const ATTRIBUTIONS: usize = 2000;

/// A node of a size.
struct Load {
    gpus: usize,
    processes: usize,
    /// Seconds between two scrapes.
    scrape_every: u32,
    suffix: &'static str,
}

fn main() {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some("hold") {
        return hold(&args.collect::<Vec<_>>());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut figures = Vec::new();
    for load in [
        Load { gpus: 1, processes: 8, scrape_every: 1, suffix: "_small" },
        Load { gpus: 8, processes: 64, scrape_every: 5, suffix: "" },
    ] {
        figures.extend(runtime.block_on(measure(&load)));
    }
    for (name, value, unit) in figures {
        println!("figure {name} {value:.3} {unit}");
    }
}

/// Holds memory until its standard input ends: one process, so one PID for the driver.
fn hold(args: &[String]) {
    let [socket, device, bytes] = args else { panic!("hold SOCKET DEVICE BYTES") };
    let mut client = Client::connect(socket.as_ref()).unwrap();
    let open = Request::Open { device: device.clone(), name: "job".into(), kind: Kind::Compute, context: Some(0) };
    assert!(matches!(client.ask(&open).unwrap(), Answer::Opened { .. }));
    let mut bytes: u64 = bytes.parse().unwrap();
    assert!(matches!(client.ask(&Request::Alloc { bytes }).unwrap(), Answer::Held { .. }));
    println!("held");
    // Each further byte on standard input asks for a MiB more.
    let mut more = [0];
    while std::io::stdin().read(&mut more).is_ok_and(|count| count == 1) {
        bytes += MIB;
        assert_eq!(client.ask(&Request::Alloc { bytes: MIB }).unwrap(), Answer::Held { bytes });
    }
}

type Figure = (String, f64, &'static str);

async fn measure(load: &Load) -> Vec<Figure> {
    let Load { gpus, processes, scrape_every, suffix } = load;
    let figure = |name: &str, value: f64, unit| (format!("{name}{suffix}"), value, unit);
    eprintln!("{gpus} GPUs x {processes} processes: starting");
    let node = Node::with(&format!("H200:{gpus}")).await;
    let authority = Authority::new();
    authority.install(&node.folder.0.join("tls"));
    let mut holders = start_processes(&node, *gpus, *processes);
    let agent = node.agent_every("1s").arg("--tls-dir", node.folder.0.join("tls")).start().await;
    let containers = gpus * processes;
    agent
        .metrics_when("every container is named", |metrics| {
            metrics.values("gpumem_container_memory_used_bytes", &["namespace=\"team\""]).len() == containers
        })
        .await;
    let mut readers = Readers::new(&agent, &authority).await;
    tokio::time::sleep(SETTLE).await;

    let before = Cpu::of(&agent);
    let began = Instant::now();
    let mut resident = 0.0_f64;
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    let mut second = 0;
    while began.elapsed() < WINDOW {
        ticks.tick().await;
        if second % scrape_every == 0 {
            let mut scraper = Connection::plain(agent.address).await.unwrap();
            scraper.get("/metrics").await.unwrap();
        }
        if second % PULL_EVERY == 0 {
            readers.pull().await;
        }
        second += 1;
        resident = resident.max(status(&agent, "VmRSS"));
    }
    let (wall, after) = (began.elapsed().as_secs_f64(), Cpu::of(&agent));
    let percent = |nanos: u64| nanos as f64 / 1e9 / wall * 100.0;

    let mut scraper = Connection::plain(agent.address).await.unwrap();
    let mut scrapes = Vec::with_capacity(SCRAPES);
    for _ in 0..SCRAPES {
        let began = Instant::now();
        scraper.get("/metrics").await.unwrap();
        scrapes.push(began.elapsed().as_secs_f64() * 1e3);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let first = readers.state_size().await;
    let mut delays = Vec::new();
    for change in 0..CHANGES {
        // Not in step with the agent's seconds.
        tokio::time::sleep(Duration::from_millis(u64::from(change) * 137 % 1000)).await;
        delays.push(delay(&mut scraper, &mut holders[0]).await);
    }
    let attributions = attributions(*gpus, *processes);
    eprintln!("largest resident so far {:.1} MiB; the whole state is {first} bytes", status(&agent, "VmHWM"));
    vec![
        figure("agent_rss", resident, "MiB"),
        figure("agent_cpu", percent(after.all - before.all), "percent"),
        figure("agent_cpu_sampler", percent(after.sampler - before.sampler), "percent"),
        figure("scrape_p50", percentile(&mut scrapes, 0.50), "ms"),
        figure("scrape_p99", percentile(&mut scrapes, 0.99), "ms"),
        figure("attribution", attributions, "us"),
        figure("driver_to_metrics", percentile(&mut delays, 1.0), "s"),
    ]
}

/// A process for each PID, spread over pods of eight containers, each container with one process on one GPU.
fn start_processes(node: &Node, gpus: usize, processes: usize) -> Vec<Holder> {
    let mut holders = Vec::new();
    let pods = (gpus * processes).div_ceil(8);
    let names: Vec<String> = (0..8).map(|container| format!("worker-{container}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for number in 0..pods {
        node.api.apply(pod(&format!("training-job-{number}"), &names));
    }
    for place in 0..gpus * processes {
        let (name, container) = (format!("training-job-{}", place / 8), names[place % 8]);
        let device = (place % gpus).to_string();
        let holder = Holder::start(node, &device, GIB + MIB * place as u64);
        let id = container_id(&format!("{name}/{container}"));
        write_process(&node.proc(), holder.0.id(), 1000 + place as u64, &cgroup(&uid(&name), &id));
        holders.push(holder);
    }
    for holder in &mut holders {
        holder.is_ready();
    }
    holders
}

struct Holder(Child);

impl Holder {
    fn start(node: &Node, device: &str, bytes: u64) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("hold").arg(node.socket()).args([device, &bytes.to_string()]);
        Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    fn is_ready(&mut self) {
        let mut line = [0; 5];
        self.0.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        assert_eq!(&line, b"held\n");
    }

    fn grow(&mut self) {
        let stdin = self.0.stdin.as_mut().unwrap();
        stdin.write_all(b"+").unwrap();
        stdin.flush().unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two controllers as they pull: a connection for each pull, resumed where the agent knows it.
struct Readers {
    address: SocketAddr,
    each: [(Arc<rustls::ClientConfig>, Option<Cursor>); 2],
}

impl Readers {
    async fn new(agent: &Agent, authority: &Authority) -> Self {
        let settings = || gpumem::tls::client(&authority.controller()).unwrap();
        let address = agent.usage_address().await;
        let each = [(settings(), None), (settings(), None)];
        let connected = async || Connection::tls(address, settings(), AGENT_TLS_NAME).await.ok();
        support::eventually("the agent has its certificate", connected).await;
        Self { address, each }
    }

    async fn pull(&mut self) {
        for (settings, cursor) in &mut self.each {
            let path = cursor.map_or_else(|| "/v1/usage".to_owned(), |cursor| format!("/v1/usage?since={cursor}"));
            let body = get(self.address, settings, &path).await;
            *cursor = Some(serde_json::from_slice::<UsageReport>(&body).unwrap().cursor);
        }
    }

    async fn state_size(&self) -> usize {
        get(self.address, &self.each[0].0, "/v1/usage").await.len()
    }
}

async fn get(address: SocketAddr, settings: &Arc<rustls::ClientConfig>, path: &str) -> hyper::body::Bytes {
    let mut connection = Connection::tls(address, Arc::clone(settings), AGENT_TLS_NAME).await.unwrap();
    let (status, body) = connection.get(path).await.unwrap();
    assert_eq!(status, 200);
    body
}

/// Nanoseconds on a core, of all threads and of the one that talks to the driver.
struct Cpu {
    all: u64,
    sampler: u64,
}

impl Cpu {
    fn of(agent: &Agent) -> Self {
        let mut cpu = Self { all: 0, sampler: 0 };
        for thread in std::fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap().flatten() {
            let read = |file: &str| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            let nanos = read("schedstat").split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0_u64);
            cpu.all += nanos;
            if read("comm").trim() == "sampler" {
                cpu.sampler += nanos;
            }
        }
        cpu
    }
}

/// A line of `/proc/<pid>/status`, in MiB.
fn status(agent: &Agent, name: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

/// From an allocation to the moment its value is in `/metrics`.
async fn delay(scraper: &mut Connection, holder: &mut Holder) -> f64 {
    let used = async |scraper: &mut Connection| {
        let (_, body) = scraper.get("/metrics").await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        let line = text
            .lines()
            .find(|line| line.starts_with("gpumem_device_memory_used_bytes{") && line.contains("gpu=\"0\""));
        line.unwrap().rsplit_once(' ').unwrap().1.to_owned()
    };
    let before = used(scraper).await;
    holder.grow();
    let began = Instant::now();
    while used(scraper).await == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    began.elapsed().as_secs_f64()
}

/// The median duration of one attribution in microseconds.
fn attributions(gpus: usize, processes: usize) -> f64 {
    let owner = |place: usize| Owner {
        started: StartTime(place as u64),
        container: Some(ContainerKey {
            pod: uid(&format!("pod-{place}")).as_str().into(),
            container: container_id(&place.to_string()).as_str().into(),
        }),
    };
    let owners: HashMap<Pid, Owner> = (0..gpus * processes).map(|place| (Pid(place as u32), owner(place))).collect();
    let device = |gpu: usize| DeviceSample {
        device: DeviceKey::whole(format!("GPU-{}", uid(&gpu.to_string())).as_str()),
        index: gpu as u32,
        model: "NVIDIA H200".to_owned(),
        memory: Reading::Value(DeviceMemory {
            total: Bytes::gib(140),
            used: Bytes::gib(processes as u64),
            free: Bytes::gib(140 - processes as u64),
            reserved: Some(Bytes::ZERO),
        }),
        processes: Reading::Value(
            (0..processes)
                .map(|place| ProcessMemory { pid: Pid((gpu * processes + place) as u32), used: Some(Bytes::gib(1)) })
                .collect(),
        ),
    };
    let sample = RawSample { at: Moment(1), devices: (0..gpus).map(device).collect() };
    let mut durations: Vec<f64> = (0..ATTRIBUTIONS)
        .map(|_| {
            let began = Instant::now();
            black_box(attribute(black_box(&sample), |pid| owners.get(&pid)));
            began.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    percentile(&mut durations, 0.5)
}

fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = ((values.len() as f64 * share).ceil() as usize).clamp(1, values.len());
    values[place - 1]
}

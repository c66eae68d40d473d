//! A node for the agent, without root and without a GPU: a simulated driver behind its real library, processes that hold
//! memory there, a `/proc` of our own making, and a Kubernetes API that serves pods.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
#![allow(dead_code, reason = "tests and benchmark use different parts")]

pub mod api;
pub mod http;
pub mod tls;

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpumem_sim::client::Client;
use gpumem_sim::driver::{Config, Handle};
use gpumem_sim::machine::Costs;
use gpumem_sim::protocol::{Answer, Fault, Request};

pub use api::Api;

/// The node's name everywhere.
pub const NODE: &str = "node-a";
pub const GIB: u64 = 1 << 30;
/// What a context costs here: nothing, so that tests can write round numbers.
const COSTS: Costs = Costs { context: 0, context_mig: 0, unattributed: 0 };
/// Far longer than anything takes, even on a machine busy with other things.
const LONG: Duration = Duration::from_mins(1);

/// A folder that is removed at the end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("gpumem-agent-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A node.
pub struct Node {
    driver: Option<Handle>,
    devices: String,
    pub api: Api,
    pub folder: Folder,
}

impl Node {
    /// A node with these devices, an API, and no process in its `/proc`.
    pub async fn with(devices: &str) -> Self {
        let folder = Folder::new();
        fs::create_dir_all(folder.0.join("proc")).unwrap();
        gpumem_sim::library::install(&folder.0).expect(
            "libgpumem_sim.so is built by `cargo build -p gpumem-sim`, or by any `cargo test` of the whole workspace",
        );
        let api = Api::start(&folder.0.join("kubeconfig")).await;
        let mut node = Self { driver: None, devices: devices.to_owned(), api, folder };
        node.start_driver();
        node
    }

    pub fn start_driver(&mut self) {
        let devices = gpumem_sim::spec::parse_devices(&self.devices, NODE).unwrap();
        let config = Config { costs: COSTS, proc: self.proc(), ..Config::new(self.socket(), devices) };
        self.driver = Some(Handle::start(config).unwrap());
    }

    pub fn stop_driver(&mut self) {
        self.driver.take();
    }

    /// Restarts the driver with other devices: the nearest thing to cutting MIG slices anew.
    pub fn restart_driver(&mut self, devices: &str) {
        self.stop_driver();
        devices.clone_into(&mut self.devices);
        self.start_driver();
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.0.join("driver.sock")
    }

    pub fn library(&self) -> PathBuf {
        self.folder.0.join("libnvidia-ml.so.1")
    }

    pub fn proc(&self) -> PathBuf {
        self.folder.0.join("proc")
    }

    pub fn fault(&self, device: Option<u32>, fault: Fault) {
        let request = Request::SetFault { device, fault, for_millis: None };
        assert_eq!(Client::connect(&self.socket()).unwrap().ask(&request).unwrap(), Answer::Done);
    }

    pub fn clear_faults(&self) {
        let request = Request::ClearFault { device: None, fault: None };
        assert_eq!(Client::connect(&self.socket()).unwrap().ask(&request).unwrap(), Answer::Done);
    }

    /// A process that holds memory on a device and runs in a container. `kind` is one of the driver's lists.
    pub fn process(&self, device: &str, bytes: u64, cgroup: &str) -> Process {
        self.process_of_kind(device, bytes, cgroup, "compute")
    }

    pub fn process_of_kind(&self, device: &str, bytes: u64, cgroup: &str, kind: &str) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpumem"));
        let shape = format!("plateau:at={bytes}");
        command.args(["sim", "workload", "--device", device, "--kind", kind, "--shape", &shape]);
        let child = command.arg("--socket").arg(self.socket()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let process = Process { child: child.unwrap(), proc: self.proc() };
        process.appears_as(1000 + u64::from(process.pid()), cgroup);
        process
    }

    /// The agent on this node, sampling ten times a second.
    pub fn agent(&self) -> AgentBuilder {
        self.agent_every("100ms")
    }

    pub fn agent_every(&self, interval: &str) -> AgentBuilder {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpumem"));
        command
            .args(["agent", "--node-name", NODE, "--interval", interval, "--listen", "127.0.0.1:0"])
            .args(["--usage-listen", "127.0.0.1:0"])
            .arg("--proc")
            .arg(self.proc())
            .arg("--nvml-library")
            .arg(self.library())
            .env("KUBECONFIG", self.folder.0.join("kubeconfig"))
            .env("GPUMEM_LOG_FORMAT", "json")
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        AgentBuilder(command)
    }
}

/// A process of the node.
pub struct Process {
    child: Child,
    proc: PathBuf,
}

impl Process {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn directory(&self) -> PathBuf {
        self.proc.join(self.pid().to_string())
    }

    /// Writes its `/proc` entry; a new directory each time, as a new process would have.
    pub fn appears_as(&self, started: u64, cgroup: &str) {
        write_process(&self.proc, self.pid(), started, cgroup);
    }

    /// Takes its `/proc` entry away, as if it had ended between the driver's list and the look at `/proc`.
    pub fn disappears(&self) {
        let _ = fs::remove_dir_all(self.directory());
    }

    /// Replaces one file of its entry.
    pub fn writes(&self, file: &str, text: &[u8]) {
        fs::create_dir_all(self.directory()).unwrap();
        fs::write(self.directory().join(file), text).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.disappears();
    }
}

pub fn write_process(proc: &Path, pid: u32, started: u64, cgroup: &str) {
    let directory = proc.join(pid.to_string());
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    // The command's name is made to confuse a parser that splits at spaces.
    let zeros = "0 ".repeat(17);
    fs::write(directory.join("stat"), format!("{pid} (a) b (c) S 1 {zeros}{started} 0 0\n")).unwrap();
    fs::write(directory.join("cgroup"), cgroup).unwrap();
}

/// The cgroup text of a container.
pub fn cgroup(pod: &str, container: &str) -> String {
    format!("0::/kubepods/burstable/pod{pod}/{container}\n")
}

/// A pod's UID and a container's id, made from a short name.
pub fn uid(name: &str) -> String {
    let hex = hex(name);
    format!("{}-{}-4{}-8{}-{}", &hex[..8], &hex[8..12], &hex[12..15], &hex[15..18], &hex[18..30])
}

pub fn container_id(name: &str) -> String {
    hex(name)
}

fn hex(name: &str) -> String {
    let mut text = String::new();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for round in 0..4_u8 {
        for byte in name.bytes().chain([round]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        let _ = write!(text, "{hash:016x}");
    }
    text
}

pub struct AgentBuilder(Command);

impl AgentBuilder {
    pub fn arg(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.0.arg(name).arg(value);
        self
    }

    pub fn flag(mut self, name: &str) -> Self {
        self.0.arg(name);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.0.env(name, value);
        self
    }

    /// Starts it; it listens once this returns.
    pub async fn start(mut self) -> Agent {
        let mut child = self.0.spawn().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let lines = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                lines.lock().unwrap().push(line);
            }
        });
        let mut agent = Agent { child, log, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let address = eventually("the agent listens", async || agent.address_in("metrics and health served")).await;
        agent.address = address;
        agent
    }
}

/// A running agent.
pub struct Agent {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    pub address: SocketAddr,
}

impl Agent {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    fn address_in(&self, message: &str) -> Option<SocketAddr> {
        let log = self.log.lock().unwrap();
        let lines = log.iter().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let mut served = lines.filter(|line| line["fields"]["message"] == message);
        served.next()?["fields"]["address"].as_str()?.parse().ok()
    }

    pub async fn usage_address(&self) -> SocketAddr {
        eventually("usage is served", async || self.address_in("usage served")).await
    }

    pub async fn get(&self, path: &str) -> (u16, String) {
        http::get(self.address, path).await.unwrap_or_else(|error| panic!("{path}: {error}\n{}", self.log()))
    }

    pub async fn metrics(&self) -> Metrics {
        Metrics(self.get("/metrics").await.1)
    }

    /// Waits until the metrics are as wanted, and gives them.
    pub async fn metrics_when(&self, what: &str, wanted: impl Fn(&Metrics) -> bool) -> Metrics {
        let shown = Mutex::new(String::new());
        let found = eventually_or(what, async || {
            let metrics = self.metrics().await;
            metrics.0.clone_into(&mut shown.lock().unwrap());
            wanted(&metrics).then_some(metrics)
        });
        found.await.unwrap_or_else(|| panic!("not within {LONG:?}: {what}\n{}\n{}", shown.lock().unwrap(), self.log()))
    }

    /// SIGTERM, and how long it takes to end.
    pub fn terminate(mut self) -> (std::process::ExitStatus, Duration) {
        let began = Instant::now();
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        (status, began.elapsed())
    }

    /// Waits until it ends by itself.
    pub fn wait(mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The text of `/metrics`.
#[derive(Debug)]
pub struct Metrics(pub String);

impl Metrics {
    /// The values of every series of this name that has all of these labels, written `name="value"`.
    pub fn values(&self, name: &str, labels: &[&str]) -> Vec<f64> {
        let of_name =
            self.0.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])));
        let matching = of_name.filter(|line| labels.iter().all(|label| line.contains(label)));
        matching.filter_map(|line| line.rsplit_once(' ')?.1.parse().ok()).collect()
    }

    /// The only value, if there is exactly one.
    pub fn value(&self, name: &str, labels: &[&str]) -> Option<f64> {
        match self.values(name, labels).as_slice() {
            [value] => Some(*value),
            _ => None,
        }
    }
}

/// Asks again until there is an answer.
pub async fn eventually<T>(what: &str, ask: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_or(what, ask).await.unwrap_or_else(|| panic!("not within {LONG:?}: {what}"))
}

async fn eventually_or<T>(_what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let give_up = Instant::now() + LONG;
    while Instant::now() < give_up {
        if let Some(answer) = ask().await {
            return Some(answer);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    None
}

//! A real Prometheus and a real Alertmanager as processes beside the cluster, in its network.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::monitor::{Kind, jobs, rendered};
use super::receiver::Receiver;
use super::until;
use super::world::World;
use crate::story::scrape::get;

/// How long a start may take on a busy machine.
const START: Duration = Duration::from_mins(1);

/// Both, with their folder; they end when this is dropped.
pub struct Monitoring {
    /// Where Prometheus answers.
    pub address: SocketAddr,
    folder: PathBuf,
    processes: Vec<(Command, Child)>,
}

impl Monitoring {
    /// Prometheus scrapes what the chart's monitors select and evaluates the chart's rules, rendered with `values`, each second;
    /// with a receiver, alerts go through the example configuration of Alertmanager to it.
    pub async fn start(
        world: &World,
        name: &str,
        monitors: Kind,
        values: &[&str],
        receiver: Option<&Receiver>,
    ) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("gpumem-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let mut monitoring = Self { address: free_port()?, folder, processes: Vec::new() };
        let kubeconfig = std::env::var("KUBECONFIG").context("KUBECONFIG is set by tests/cluster/cluster run")?;
        let jobs = jobs(&monitors.rendered(world)?, &kubeconfig)?;
        ensure!(jobs.len() == 2, "agents and controllers, and no more: {jobs:#?}");
        let settings =
            [&["monitoring.prometheusRule.enabled=true", "monitoring.prometheusRule.interval=1s"], values].concat();
        let rule = rendered(world, "templates/monitoring/prometheusrule.yaml", &settings)?;
        let rule = rule.first().context("the chart rendered no PrometheusRule")?;
        monitoring.write("rules.yaml", &rule["spec"].to_string())?;
        let mut alerting = json!([]);
        if let Some(receiver) = receiver {
            let address = free_port()?;
            monitoring.alertmanager(address, receiver)?;
            alerting = json!([{"static_configs": [{"targets": [address.to_string()]}]}]);
        }
        let config = json!({
            "global": {"evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": jobs,
            "alerting": {"alertmanagers": alerting}
        });
        let config = monitoring.write("prometheus.yml", &config.to_string())?;
        let data = format!("--storage.tsdb.path={}", monitoring.folder.join("prometheus").display());
        let listen = format!("--web.listen-address={}", monitoring.address);
        monitoring.run(&["prometheus"], &[&format!("--config.file={config}"), &data, &listen, "--log.level=warn"])?;
        monitoring.ready().await?;
        Ok(monitoring)
    }

    async fn ready(&self) -> Result<()> {
        until("Prometheus to be ready", START, || async {
            Ok(get(&self.address.to_string(), "/-/ready").await.ok().map(|_| ()))
        })
        .await
        .with_context(|| self.log())
    }

    /// The shipped example with its waits cut short and every address replaced by the receiver's.
    fn alertmanager(&mut self, address: SocketAddr, receiver: &Receiver) -> Result<()> {
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/alertmanager/alertmanager.yaml");
        let slack = self.write("slack-url", &format!("http://{}/slack", receiver.address))?;
        let config = std::fs::read_to_string(example)?
            .replace("/etc/alertmanager/secrets/slack-url", &slack)
            .replace("http://", &format!("http://{}/", receiver.address))
            .replace(".svc:8080", "")
            .replace("group_wait: 30s", "group_wait: 1s")
            .replace("group_interval: 5m", "group_interval: 1s");
        let config = format!("--config.file={}", self.write("alertmanager.yml", &config)?);
        let data = format!("--storage.path={}", self.folder.join("alertmanager").display());
        let listen = format!("--web.listen-address={address}");
        // The first is Debian's name for it.
        let names = ["prometheus-alertmanager", "alertmanager"];
        self.run(&names, &[&config, &data, &listen, "--cluster.listen-address=", "--log.level=warn"])
    }

    /// Answers of an instant query.
    pub async fn ask(&self, query: &str) -> Result<Vec<Value>> {
        let query = query.bytes().fold(String::new(), |text, byte| text + &format!("%{byte:02X}"));
        let answer = self.api(&format!("/api/v1/query?query={query}")).await?;
        Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default())
    }

    /// Rules that could not be evaluated, with Prometheus' words.
    pub async fn broken_rules(&self) -> Result<Vec<String>> {
        let answer = self.api("/api/v1/rules").await?;
        let groups = answer["data"]["groups"].as_array().cloned().unwrap_or_default();
        let rules: Vec<Value> =
            groups.iter().filter_map(|group| group["rules"].as_array()).flatten().cloned().collect();
        ensure!(!rules.is_empty(), "Prometheus has no rule: {answer}");
        Ok(rules
            .iter()
            .filter(|rule| rule["health"] != "ok")
            .map(|rule| format!("{}: {} {}", rule["name"], rule["health"], rule["lastError"]))
            .collect())
    }

    /// Prometheus takes connections and answers nothing, or goes on.
    pub fn hang(&self, hangs: bool) -> Result<()> {
        // It is the last that was started.
        let process = self.processes.last().context("Prometheus runs")?.1.id().to_string();
        let signal = if hangs { "-STOP" } else { "-CONT" };
        ensure!(Command::new("kill").args([signal, &process]).status()?.success(), "kill {signal} {process}");
        Ok(())
    }

    /// Prometheus dies without a word; nobody takes connections any more.
    pub fn kill(&mut self) -> Result<()> {
        let (_, process) = self.processes.last_mut().context("Prometheus runs")?;
        process.kill()?;
        process.wait()?;
        Ok(())
    }

    /// Prometheus starts again at the same address, with what it had recorded.
    pub async fn again(&mut self) -> Result<()> {
        let (command, process) = self.processes.last_mut().context("Prometheus ran")?;
        *process = command.spawn()?;
        self.ready().await
    }

    async fn api(&self, path: &str) -> Result<Value> {
        Ok(serde_json::from_str(&get(&self.address.to_string(), path).await?)?)
    }

    fn write(&self, name: &str, text: &str) -> Result<String> {
        let path = self.folder.join(name);
        std::fs::write(&path, text)?;
        Ok(path.display().to_string())
    }

    fn run(&mut self, names: &[&str], arguments: &[&str]) -> Result<()> {
        let found = names.iter().find(|name| {
            let paths = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&paths).any(|folder| folder.join(name).is_file())
        });
        let name = found.with_context(|| format!("none of {names:?} is here; tests/alerts/run tools installs it"))?;
        let log = std::fs::File::create(self.folder.join(format!("{name}.log")))?;
        let mut command = Command::new(name);
        command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let process = command.spawn().with_context(|| format!("starting {name}"))?;
        self.processes.push((command, process));
        Ok(())
    }

    /// The end of what both said.
    pub fn log(&self) -> String {
        let logs = ["prometheus.log", "prometheus-alertmanager.log", "alertmanager.log"];
        logs.iter().filter_map(|log| end_of(&self.folder.join(log))).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Monitoring {
    fn drop(&mut self) {
        for (_, process) in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn end_of(log: &Path) -> Option<String> {
    let text = std::fs::read_to_string(log).ok()?;
    let lines: Vec<_> = text.lines().collect();
    Some(lines[lines.len().saturating_sub(15)..].join("\n"))
}

fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

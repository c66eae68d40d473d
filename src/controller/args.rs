//! The controller's flags, as the chart passes them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use gpumem_engine::policy::Mode;

use super::granted::Granted;
use super::workload::Switches;

/// Flags of the controller.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Namespace of the operator.
    #[arg(long, env = "POD_NAMESPACE")]
    pub namespace: String,
    /// Name of this pod; the holder identity in the Lease and in intents.
    #[arg(long, env = "POD_NAME")]
    pub pod_name: String,
    /// Where to serve /metrics, /healthz and /readyz.
    #[arg(long, env = "GPUMEM_LISTEN", default_value = "0.0.0.0:9401")]
    pub listen: SocketAddr,
    /// Where to serve the state to other replicas, over mutual TLS.
    #[arg(long, env = "GPUMEM_PEER_LISTEN", default_value = "0.0.0.0:9444")]
    pub peer_listen: SocketAddr,
    /// Label selector of the agents' pods.
    #[arg(long, env = "GPUMEM_AGENT_SELECTOR")]
    pub agent_selector: String,
    /// Label selector of the controllers' pods.
    #[arg(long, env = "GPUMEM_CONTROLLER_SELECTOR")]
    pub controller_selector: String,
    /// Port on which agents serve /v1/usage.
    #[arg(long, env = "GPUMEM_AGENT_PORT", default_value_t = 9443)]
    pub agent_port: u16,
    /// Port on which other replicas serve their state.
    #[arg(long, env = "GPUMEM_PEER_PORT", default_value_t = 9444)]
    pub peer_port: u16,
    /// Name of the Secret with the agents' certificate; the authority's key is in `<name>-authority`.
    #[arg(long, env = "GPUMEM_TLS_SECRET")]
    pub tls_secret: String,
    /// Name of the ConfigMap with open intents and budgets.
    #[arg(long, env = "GPUMEM_LEDGER")]
    pub ledger: String,
    /// Name of the ConfigMap with the administrator's limits. Without it policies alone limit.
    #[arg(long, env = "GPUMEM_LIMITS")]
    pub limits: Option<String>,
    /// Actions that need a right and have it: any of Checkpoint, Evict, Scale, SuspendToHost, SuspendWorkload, with commas.
    #[arg(long, env = "GPUMEM_ACTIONS", default_value = "")]
    pub actions: Granted,
    /// Name of the Lease.
    #[arg(long, env = "GPUMEM_LEASE")]
    pub lease: String,
    /// No policy goes further than this: Observe, DryRun or Enforce.
    #[arg(long, env = "GPUMEM_MAX_MODE", default_value = "Observe", value_parser = mode)]
    pub max_mode: Mode,
    /// What may be done to workloads of which kind, as Kind=Lever+Lever,Kind=; the levers are Evict, Suspend and Scale, and
    /// a kind that is not named is observed only.
    #[arg(long, env = "GPUMEM_WORKLOAD_KINDS", default_value = Switches::DEFAULT)]
    pub workload_kinds: Switches,
    /// Read the last lines of a dead container's log where its exit state does not tell; wants get on pods/log.
    #[arg(long, env = "GPUMEM_READ_POD_LOGS")]
    pub read_pod_logs: bool,
    /// A GpuMemoryProfile is removed when its workload has been gone for so many days.
    #[arg(long, env = "GPUMEM_PROFILE_TTL_DAYS", default_value_t = 14, value_parser = clap::value_parser!(u64).range(1..=3650))]
    pub profile_ttl_days: u64,
    /// Longest time between two pulls of an agent, e.g. 5s; the pulls of many agents spread below it.
    #[arg(long, env = "GPUMEM_PULL_INTERVAL", default_value = "5s", value_parser = duration)]
    pub pull_interval: Duration,
    /// Keep the cooperative hook's ConfigMap in the namespaces that carry the label gpumem.dev/hook=Enabled.
    #[arg(long, env = "GPUMEM_HOOK_DELIVERY")]
    pub hook: bool,
    /// Where Kubernetes looks for the reason of an end.
    #[arg(long, env = "GPUMEM_TERMINATION_LOG", default_value = "/dev/termination-log")]
    pub termination_log: PathBuf,
}

fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "Observe" => Ok(Mode::Observe),
        "DryRun" => Ok(Mode::DryRun),
        "Enforce" => Ok(Mode::Enforce),
        _ => Err("give Observe, DryRun or Enforce".to_owned()),
    }
}

/// A number with the unit ms, s or m, of at least 100 ms and at most ten minutes.
fn duration(text: &str) -> Result<Duration, String> {
    let ends = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(ends);
    let number: u64 = number.parse().map_err(|_| "give a number and a unit, e.g. 5s".to_owned())?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => return Err("give the unit ms, s or m, e.g. 5s".to_owned()),
    };
    let duration = Duration::from_millis(number.saturating_mul(millis));
    if (Duration::from_millis(100)..=Duration::from_mins(10)).contains(&duration) {
        Ok(duration)
    } else {
        Err("give at least 100ms and at most 10m".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn the_charts_command_line_is_read() {
        let line = "controller --namespace gpumem --pod-name c-0 --listen 0.0.0.0:9401 --peer-listen 0.0.0.0:9444 \
                    --agent-selector app=agent,tier=node --controller-selector app=controller --agent-port 9443 \
                    --peer-port 9444 --tls-secret gpumem-tls --ledger gpumem-ledger --lease gpumem-controller \
                    --limits gpumem-limits --actions Checkpoint,Evict,Scale,SuspendToHost,SuspendWorkload \
                    --max-mode Enforce --workload-kinds Job=Evict+Suspend,JobSet= --pull-interval 5s \
                    --profile-ttl-days 7 --read-pod-logs";
        let Command { args } = Command::try_parse_from(line.split_whitespace()).unwrap();
        assert_eq!((args.max_mode, args.pull_interval), (Mode::Enforce, Duration::from_secs(5)));
        assert_eq!(args.peer_listen.port(), args.peer_port);
        assert_eq!((args.limits.as_deref(), args.actions), (Some("gpumem-limits"), Granted::all()));
        assert_eq!(args.workload_kinds.to_string(), "Job=Evict+Suspend,JobSet=");
        assert_eq!((args.profile_ttl_days, args.read_pod_logs), (7, true));
    }

    #[test]
    fn durations_carry_their_unit() {
        assert_eq!(duration("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_mins(2)));
        for bad in ["", "5", "s", "-5s", "5h", "1ms", "11m", "99999999999999999999s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}

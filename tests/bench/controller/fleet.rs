//! The measured process: pulls, keeps, observes, exports.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpumem::controller::fleet::Fleet;
use gpumem::controller::fleet::shared::{self, lock};
use gpumem::controller::health::Health;
use gpumem::controller::leader::Leadership;
use gpumem::controller::metrics::{Exposition, Metrics};
use gpumem::controller::pki;
use gpumem::controller::pull::{self, Agent, FIRST_PULL, Puller};
use gpumem_engine::policy::{Mode, Policy, PolicyKey};
use tokio::sync::watch;

use crate::Load;
use crate::agents::{address, moment, node};

const INTERVAL: Duration = Duration::from_secs(5);
/// For whole states to come, be parsed and be forgotten by the allocator.
const SETTLE: Duration = Duration::from_secs(20);
const WINDOW: Duration = Duration::from_mins(1);

/// Prints the figures of one load.
pub fn measure(load: Load, port: u16) {
    let bundle = crate::bundle();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(run(load, port, &bundle));
}

async fn run(load: Load, port: u16, bundle: &pki::Bundle) {
    let settings = pki::settings(bundle).unwrap();
    let (_tls, tls) = watch::channel(Some(settings.client));
    let agents: BTreeMap<String, Agent> = (0..load.agents)
        .map(|agent| {
            let node = node(agent);
            let address = SocketAddr::new(address(agent), port);
            (node.clone(), Agent { pod: format!("agent-{agent}"), node, address })
        })
        .collect();
    let (_publish, agents) = watch::channel(Some(Arc::new(agents)));
    let mut first = agents.clone();
    first.mark_changed();
    let (news, _heard) = watch::channel(0);
    let (fleet, metrics) = (Arc::new(Mutex::new(Fleet::default())), Arc::new(Metrics::new().unwrap()));
    let health = Arc::new(Health::default());
    health.wait_for(FIRST_PULL);
    let puller = Puller {
        fleet: Arc::clone(&fleet),
        metrics: Arc::clone(&metrics),
        health: Arc::clone(&health),
        tls,
        interval: INTERVAL,
        news,
    };
    let started = Instant::now();
    tokio::spawn(pull::run(Arc::new(puller), first));
    while !health.waiting().is_empty() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let first_round = started.elapsed();
    tokio::time::sleep(SETTLE).await;
    let counts = lock(&fleet).counts();
    assert_eq!((counts.nodes, counts.series), (load.agents, load.agents * load.series));

    let exposition = exposition(&fleet, &metrics);
    let mut delays = Delays::default();
    let (mut oldest, mut observing, mut scraping) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let (mut rounds, mut scrapes) = (0_u32, 0_u32);
    let (pulls, cpu, began) = (pulls(&metrics), cpu_seconds(), Instant::now());
    let mut turn = tokio::time::interval(Duration::from_secs(1));
    while began.elapsed() < WINDOW {
        turn.tick().await;
        let now = Instant::now();
        oldest = oldest.max(lock(&fleet).oldest_report(now).unwrap());
        let seen = (0..10).flat_map(|team| {
            let namespace = format!("team-{team}");
            shared::observe(&fleet, Instant::now(), &namespace, |_| true, &exposition.default)
        });
        for observation in seen {
            if observation.container_id.as_str().ends_with("00000000000000000000000000000000") {
                delays.note(observation.node, observation.used.0);
            }
        }
        observing += now.elapsed();
        rounds += 1;
        if rounds.is_multiple_of(15) {
            let now = Instant::now();
            let exposition = exposition.clone();
            let text = tokio::task::spawn_blocking(move || exposition.text(Instant::now())).await.unwrap();
            assert!(text.lines().count() > counts.series);
            scraping += now.elapsed();
            scrapes += 1;
        }
    }
    let window = began.elapsed().as_secs_f64();
    let pulled = self::pulls(&metrics) - pulls;
    let suffix = load.suffix;
    for (name, value, unit) in [
        ("controller_rss", memory_mib("VmRSS:"), "MiB"),
        ("controller_rss_peak", memory_mib("VmHWM:"), "MiB"),
        ("controller_cpu", 100.0 * (cpu_seconds() - cpu) / window, "percent"),
        ("first_round", first_round.as_secs_f64(), "s"),
        ("pull_interval_mean", window * load.agents as f64 / pulled, "s"),
        ("report_age_max", oldest.as_secs_f64(), "s"),
        ("decision_delay", delays.worst, "s"),
        ("observe_all", 1000.0 * observing.as_secs_f64() / f64::from(rounds), "ms"),
        ("scrape", 1000.0 * scraping.as_secs_f64() / f64::from(scrapes), "ms"),
    ] {
        // A machine too slow to scrape even once gives no figure for it.
        if value.is_finite() {
            println!("figure {name}{suffix} {value:.3} {unit}");
        }
    }
}

fn exposition(fleet: &Arc<Mutex<Fleet>>, metrics: &Arc<Metrics>) -> Exposition {
    let leads = Leadership { is_leader: true, ..Leadership::follower("bench", Instant::now()) };
    Exposition {
        metrics: Arc::clone(metrics),
        fleet: Arc::clone(fleet),
        leadership: watch::channel(leads).1,
        default: Arc::new(policy()),
    }
}

/// A policy with every default.
fn policy() -> Policy {
    let spec = serde_json::from_value(serde_json::json!({"target": {"podSelector": {}}})).unwrap();
    let key = PolicyKey { namespace: String::new(), name: String::new() };
    gpumem::api::convert::policy(key, &spec, Mode::Observe).unwrap()
}

/// From a sample to the decision that can know of it: the policy's dwell time and the call come on top.
#[derive(Default)]
struct Delays {
    /// The newest sample seen of each node, in seconds.
    seen: HashMap<String, u64>,
    worst: f64,
}

impl Delays {
    /// The container's KiB beyond 6 GiB are the second of its sample.
    fn note(&mut self, node: String, used: u64) {
        let second = (used - (6 << 30)) >> 10;
        let now = moment().0;
        if let Some(before) = self.seen.insert(node, second).filter(|before| *before < second) {
            // The first sample after the one seen last has waited the longest.
            let taken = (now / 1000) / 1_000_000 * 1_000_000 + before + 1;
            self.worst = self.worst.max(now as f64 / 1000.0 - taken as f64);
        }
    }
}

fn pulls(metrics: &Metrics) -> f64 {
    let families = metrics.registry().gather();
    let pulls = families.iter().find(|family| family.name() == "gpumem_controller_pulls_total").unwrap();
    let ok = pulls.get_metric().iter().find(|metric| metric.get_label()[0].value() == "ok").unwrap();
    ok.get_counter().get_value()
}

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn memory_mib(field: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<f64>().unwrap() / 1024.0
}

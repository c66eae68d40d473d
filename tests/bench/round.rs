//! How long the acting loop's round takes over an API server that takes 20 ms for every answer, with 1 to 500 pods at risk at
//! once, each with a policy of its own and budgets that allow no action.
//!
//! `cargo bench --bench round` closes with one line per figure, `figure NAME VALUE UNIT`. The API server is the tests' own, in
//! the process; what it costs is in the figures. `in_a_row` is how many answers a round waits for one after the other.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark that cannot go on fails")]
#![allow(clippy::large_futures, reason = "one future at a time; its size costs nothing")]
#![allow(dead_code, unused_imports, reason = "the tests' cluster can do more")]

#[path = "../it/cluster/mod.rs"]
mod cluster;

use std::time::{Duration, Instant};

use serde_json::json;

use cluster::server::Waits;
use cluster::{Cluster, Controller};

const LATENCY: Duration = Duration::from_millis(20);
const ROUNDS: usize = 6;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    for policies in [1, 10, 100, 500] {
        let mut cluster = Cluster::new();
        for index in 0..policies {
            let name = format!("w{index:03}");
            cluster.deployment(&name, 1);
            cluster.policy(&name, &name, |spec| spec["disruption"] = json!({"requireBudget": true}));
            cluster.report(&format!("{name}-0"), 0.95);
        }
        cluster.limit(&json!({"breaker": {"enabled": false}}));
        let mut controller = Controller::start(&cluster, "bench");
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            cluster.world().waits = Some(Waits { latency: LATENCY, ..Waits::default() });
            let (began, before) = (Instant::now(), cluster.world().log.len());
            controller.round(&mut cluster).await;
            let waits = cluster.world().waits.unwrap();
            rounds.push((began.elapsed().as_secs_f64(), cluster.world().log.len() - before, waits.in_a_row));
        }
        // The first round makes everything known; of the others the longest reads everything again.
        let again = rounds[1..].iter().max_by(|one, other| one.0.total_cmp(&other.0)).unwrap();
        for (name, (seconds, requests, in_a_row)) in [("first", &rounds[0]), ("again", again)] {
            println!("figure round_{name}_{policies} {seconds:.3} s");
            println!("figure round_{name}_{policies}_requests {requests} requests");
            println!("figure round_{name}_{policies}_in_a_row {in_a_row} answers");
        }
    }
}

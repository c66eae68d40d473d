//! What the controller's data side costs: a thousand simulated agents, one process playing them all, pulled over real mutual
//! TLS on loopback; and whether five thousand are still pulled on the beat.
//!
//! `cargo bench --bench controller` closes with one line per figure, `figure NAME VALUE UNIT`. While it measures, all
//! containers are observed under one policy once a second, and `/metrics` is written every fifteen seconds. Every series
//! comes with a day of past, so that memory is what it is after a day. The fleet and the agents are processes of their own:
//! figures are of the fleet's alone.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark that cannot go on fails")]

#[path = "controller/agents.rs"]
mod agents;

#[path = "controller/fleet.rs"]
mod fleet;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use gpumem::controller::pki::Bundle;

/// A fleet of a size.
#[derive(Clone, Copy)]
struct Load {
    agents: usize,
    series: usize,
    suffix: &'static str,
}

const LOADS: [Load; 2] =
    [Load { agents: 1_000, series: 10, suffix: "" }, Load { agents: 5_000, series: 8, suffix: "_5000" }];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["agents", agents, series] => agents::play(agents.parse().unwrap(), series.parse().unwrap()),
        ["fleet", place, port] => fleet::measure(LOADS[place.parse::<usize>().unwrap()], port.parse().unwrap()),
        // All loads, or those with this many agents.
        wanted => {
            for (place, load) in LOADS.iter().enumerate() {
                if wanted.is_empty() || wanted.contains(&load.agents.to_string().as_str()) {
                    for line in run(place, *load) {
                        println!("{line}");
                    }
                }
            }
        }
    }
}

/// Both processes for one load; gives the figures.
fn run(place: usize, load: Load) -> Vec<String> {
    let bundle = serde_json::to_string(&Bundle::new(now()).unwrap().to_secret()).unwrap();
    let mut agents = child(&["agents", &load.agents.to_string(), &load.series.to_string()], &bundle);
    let mut lines = BufReader::new(agents.stdout.take().unwrap()).lines();
    let port = lines.next().unwrap().unwrap();
    let mut fleet = child(&["fleet", &place.to_string(), &port], &bundle);
    let figures = BufReader::new(fleet.stdout.take().unwrap()).lines().map(Result::unwrap).collect();
    assert!(fleet.wait().unwrap().success());
    agents.kill().unwrap();
    agents.wait().unwrap();
    figures
}

/// This program once more, with the certificates on its standard input.
fn child(args: &[&str], bundle: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(bundle.as_bytes()).unwrap();
    child
}

fn bundle() -> Bundle {
    Bundle::from_secret(&serde_json::from_reader(std::io::stdin()).unwrap()).unwrap()
}

fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

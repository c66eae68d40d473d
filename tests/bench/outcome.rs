//! What the operator is worth: `cargo bench -p gpumem-engine --bench outcome [-- --fleets N --devices N --only FAMILY]`.
//!
//! Fleets in virtual time: every device has one job whose memory follows a shape of the corpus, three in ten share it with a
//! neighbour that stands still; four in ten jobs leak until they run out. A job saves its work now and then, loses what it
//! did since when it dies, and takes minutes to start. Four columns see the same jobs: nobody acts, everybody over 90 % is
//! evicted, `predict_linear` over ten minutes evicts, and the operator (the real engine from sample to decision) asks for a
//! checkpoint and evicts. A process that is evicted or runs out is started again.
//!
//! *Lost* are GPU hours that were worked twice or spent on starts after the first. *Innocent* is a pod that was stopped
//! though its curve never runs out, or a neighbour that was stopped or killed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    missing_docs,
    dead_code
)]

mod corpus;
#[path = "outcome/job.rs"]
mod job;
#[path = "outcome/operator.rs"]
mod operator;
#[path = "outcome/rules.rs"]
mod rules;

use std::collections::BTreeMap;

use corpus::dice::Dice;
use job::{Job, Live};
use operator::Operator;
use rules::{Linear, Rule, Threshold};

/// Seconds between two samples, and between two decisions.
const SAMPLE: f64 = 15.0;
const DECIDE: f64 = 30.0;
/// Longest time that is looked at: a day after the last job began.
const END: f64 = 28.0 * 3600.0;
/// Seeds of fleets, apart from those that anything was fitted on.
const FIRST_SEED: u64 = 700_000;

enum Column {
    Nobody,
    Rule(Box<dyn Rule>),
    Operator(Box<Operator>),
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    ooms: u32,
    stopped: u32,
    innocent: u32,
    lost_hours: f64,
    unfinished: u32,
    asked: u32,
}

fn main() {
    let value = |name: &str| {
        let mut words = std::env::args().skip_while(|word| word != name);
        words.nth(1).map(|text| text.parse::<u64>().expect("a number"))
    };
    let (fleets, devices) = (value("--fleets").unwrap_or(30), value("--devices").unwrap_or(40) as usize);
    let first = value("--from").unwrap_or(FIRST_SEED);
    let names = ["nobody acts", "evict at 90 %", "predict_linear", "operator"];
    let mut sums = [Sum::default(); 4];
    let mut held = BTreeMap::<&'static str, u32>::new();
    let mut missed = BTreeMap::<(&'static str, &'static str), u32>::new();
    for fleet in 0..fleets {
        let mut dice = Dice::new(19, first + fleet);
        let jobs: Vec<Job> = (0..devices).map(|_| Job::draw(&mut dice)).collect();
        for (place, sum) in sums.iter_mut().enumerate() {
            let column = match place {
                0 => Column::Nobody,
                1 => Column::Rule(Box::<Threshold>::default()),
                2 => Column::Rule(Box::<Linear>::default()),
                _ => Column::Operator(Box::new(Operator::new(devices))),
            };
            run(&jobs, column, Dice::new(23, fleet), sum, &mut held, &mut missed);
        }
    }
    println!("{fleets} fleets of {devices} devices, seeds {first} to {}", first + fleets - 1);
    print(&names, &sums);
    println!("\nwhy the operator held back, pods and half minutes: {held:?}");
    println!("what it stood by and saw run out, by its last word and family: {missed:?}\n");
    figures(&sums);
}

fn run(
    jobs: &[Job],
    mut column: Column,
    mut dice: Dice,
    sum: &mut Sum,
    held: &mut BTreeMap<&'static str, u32>,
    missed: &mut BTreeMap<(&'static str, &'static str), u32>,
) {
    let mut live: Vec<Live> = jobs.iter().map(Live::new).collect();
    let mut tick = 0_u64;
    loop {
        let now = tick as f64 * SAMPLE;
        if now > END || live.iter().all(|live| live.done) {
            break;
        }
        for (place, (job, live)) in jobs.iter().zip(&mut live).enumerate() {
            let before = live.ooms;
            live.pass(job, now, &mut dice);
            if let Column::Operator(operator) = &column
                && live.ooms > before
            {
                *missed.entry((operator.last[place], job.family)).or_default() += 1;
            }
        }
        let decides = (now % DECIDE).abs() < 1e-9;
        match &mut column {
            Column::Rule(rule) if decides => {
                for place in rule.stop(now, jobs, &live) {
                    live[place].stop(&jobs[place], now);
                }
            }
            Column::Nobody | Column::Rule(_) => {}
            Column::Operator(operator) => {
                operator.sample(now, jobs, &mut live);
                if decides {
                    operator.act(now, jobs, &mut live);
                }
            }
        }
        tick += 1;
    }
    for (job, live) in jobs.iter().zip(&live) {
        sum.ooms += live.ooms;
        sum.stopped += live.stopped;
        sum.innocent += live.neighbours_killed + if job.runs_out.is_none() { live.stopped } else { 0 };
        if matches!(column, Column::Operator(_)) && job.runs_out.is_none() && live.stopped > 0 {
            *missed.entry(("evicted though it never runs out", job.family)).or_default() += live.stopped;
        }
        sum.lost_hours += live.lost / 3600.0;
        sum.unfinished += u32::from(!live.done);
    }
    if let Column::Operator(operator) = column {
        sum.innocent += operator.neighbours_stopped;
        sum.stopped += operator.neighbours_stopped;
        sum.asked += operator.asked;
        for (reason, count) in operator.held {
            *held.entry(reason).or_default() += count;
        }
    }
}

fn print(names: &[&str; 4], sums: &[Sum; 4]) {
    println!(
        "{:16} {:>6} {:>8} {:>9} {:>12} {:>11} {:>7}",
        "", "OOMs", "evicted", "innocent", "GPU h lost", "unfinished", "asked"
    );
    for (name, sum) in names.iter().zip(sums) {
        println!(
            "{name:16} {:>6} {:>8} {:>9} {:>12.1} {:>11} {:>7}",
            sum.ooms, sum.stopped, sum.innocent, sum.lost_hours, sum.unfinished, sum.asked
        );
    }
}

fn figures(sums: &[Sum; 4]) {
    let [nobody, threshold, linear, operator] = sums;
    let avoided = |sum: &Sum| 1.0 - f64::from(sum.ooms) / f64::from(nobody.ooms.max(1));
    let lost = |sum: &Sum| sum.lost_hours / nobody.lost_hours.max(1e-9);
    for (name, sum) in [("operator", operator), ("evict_at_90", threshold), ("predict_linear", linear)] {
        println!("figure outcome_{name}_gradual_ooms_avoided {:.4} ratio", avoided(sum));
        println!("figure outcome_{name}_innocent_pods_harmed {} pods", sum.innocent);
        println!("figure outcome_{name}_work_lost {:.4} ratio", lost(sum));
    }
    println!("figure outcome_nobody_work_lost {:.1} gpu_hours", nobody.lost_hours);
}

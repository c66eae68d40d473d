//! What the operator is worth: `cargo bench -p gpumem-engine --bench outcome [-- --fleets N --devices N --from SEED --planned
//! --only WORD --explain]`.
//!
//! Fleets in virtual time: every device has one job whose memory follows a shape of the corpus, three in ten share it with a
//! neighbour that stands still; four in ten jobs leak until they run out. A job saves its work now and then, loses what it
//! did since when it dies, and takes minutes to start. All columns see the same jobs: nobody acts, everybody over 90 % is
//! evicted, `predict_linear` over ten minutes evicts, and the operator (the real engine from sample to decision) under several
//! policies. A process that is evicted or runs out is started again. `--planned` takes shapes whose growth ends by plan for
//! the jobs that do not leak; `--only` leaves out columns, `--explain` tells of every pod that is harmed.
//!
//! *Lost* are GPU hours that were worked twice or spent on starts after the first. A pod is *harmed* when it is stopped though
//! its curve never runs out, or as a neighbour. Two figures stand beside that. *In the end in time* are pods of leaking jobs
//! that were stopped though they would have been done before they ran out: no series shows when a job is done. *Died beside*
//! are neighbours that the kernel's refusal hit when another pod ran out: nobody stopped them, and nobody saved them.
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
#[path = "outcome/policies.rs"]
mod policies;
#[path = "outcome/rules.rs"]
mod rules;
#[path = "outcome/view.rs"]
mod view;

use std::collections::BTreeMap;

use corpus::dice::Dice;
use job::{Job, Live};
use operator::Operator;
use rules::{Linear, Rule, Threshold};

/// Seconds between two looks at the fleet, and between two decisions.
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

/// Name of a column and of its figures, and how to begin it for so many devices.
type Named = (&'static str, &'static str, fn(usize) -> Column);

const COLUMNS: [Named; 8] = [
    ("nobody acts", "nobody", |_| Column::Nobody),
    ("evict at 90 %", "evict_at_90", |_| Column::Rule(Box::<Threshold>::default())),
    ("predict_linear", "predict_linear", |_| Column::Rule(Box::<Linear>::default())),
    ("operator", "operator", |devices| operator(devices, policies::usual(devices), false)),
    ("… peaks declared", "declared", |devices| operator(devices, policies::usual(devices), true)),
    ("… Required, 10 min", "required", |devices| operator(devices, policies::required(devices), false)),
    ("… without checkpoints", "evict_only", |devices| operator(devices, policies::evict_only(devices), false)),
    ("… all defaults", "all_defaults", |devices| operator(devices, policies::all_defaults(devices), false)),
];

fn operator(devices: usize, policy: gpumem_engine::policy::Policy, declared: bool) -> Column {
    Column::Operator(Box::new(Operator::new(devices, policy, declared)))
}

#[derive(Clone, Debug, Default)]
struct Sum {
    ooms: u32,
    stopped: u32,
    harmed: u32,
    before_done: u32,
    beside: u32,
    lost_hours: f64,
    unfinished: u32,
    asked: u32,
    asked_in_vain: u32,
    /// Why nothing was done, by reason, counted once a decision and pod.
    held: BTreeMap<&'static str, u32>,
    /// What ran out all the same, by its last word and family.
    missed: BTreeMap<(&'static str, &'static str), u32>,
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let after = |name: &str| words.iter().skip_while(|word| *word != name).nth(1);
    let value = |name: &str| after(name).map(|text| text.parse::<u64>().expect("a number"));
    let flag = |name: &str| words.iter().any(|word| word == name);
    let (fleets, devices) = (value("--fleets").unwrap_or(30), value("--devices").unwrap_or(40) as usize);
    let first = value("--from").unwrap_or(FIRST_SEED);
    let (planned, explain) = (flag("--planned"), flag("--explain"));
    let columns: Vec<Named> = COLUMNS
        .into_iter()
        .filter(|(_, key, _)| *key == "nobody" || after("--only").is_none_or(|only| key.contains(only.as_str())))
        // Nobody declares a peak of what stands still.
        .filter(|(_, key, _)| planned || *key != "declared")
        .collect();
    let mut sums = vec![Sum::default(); columns.len()];
    for fleet in 0..fleets {
        let mut dice = Dice::new(19, first + fleet);
        let jobs: Vec<Job> = (0..devices).map(|_| Job::draw(&mut dice, planned)).collect();
        for ((name, _, begin), sum) in columns.iter().zip(&mut sums) {
            let cases = run(&jobs, begin(devices), Dice::new(23, fleet), sum);
            let told = if explain { cases } else { Vec::new() };
            for case in told {
                println!("{name}, fleet {}: {case}", first + fleet);
            }
        }
    }
    let shapes = if planned { ", what does not leak ends by plan" } else { "" };
    println!("{fleets} fleets of {devices} devices, seeds {first} to {}{shapes}", first + fleets - 1);
    print(&columns, &sums);
    figures(&columns, &sums);
}

/// Plays one fleet; gives what is to be told of the pods that were harmed.
fn run(jobs: &[Job], mut column: Column, mut dice: Dice, sum: &mut Sum) -> Vec<String> {
    let mut live: Vec<Live> = jobs.iter().map(Live::new).collect();
    let mut cases = Vec::new();
    let mut tick = 0_u64;
    loop {
        let now = tick as f64 * SAMPLE;
        if now > END || live.iter().all(|live| live.done) {
            break;
        }
        for (place, (job, live)) in jobs.iter().zip(&mut live).enumerate() {
            let (ooms, killed) = (live.ooms, live.neighbours_killed);
            live.pass(job, now, &mut dice);
            let Column::Operator(operator) = &column else { continue };
            if live.ooms > ooms {
                *sum.missed.entry((operator.last[place], job.family)).or_default() += 1;
            }
            if live.neighbours_killed > killed {
                cases.push(format!("neighbour-{place} died beside {}: {}", job.family, operator.last[place]));
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
    for live in &live {
        sum.ooms += live.ooms;
        sum.stopped += live.stopped;
        sum.harmed += live.stopped_quiet;
        sum.before_done += live.stopped_before_done;
        sum.beside += live.neighbours_killed;
        sum.lost_hours += live.lost / 3600.0;
        sum.unfinished += u32::from(!live.done);
    }
    if let Column::Operator(operator) = column {
        sum.harmed += operator.neighbours_stopped;
        sum.stopped += operator.neighbours_stopped;
        sum.asked += operator.asked;
        sum.asked_in_vain += operator.asked_in_vain;
        for (reason, count) in operator.held {
            *sum.held.entry(reason).or_default() += count;
        }
        cases.extend(operator.cases);
    }
    cases
}

fn print(columns: &[Named], sums: &[Sum]) {
    let nobody = &sums[0];
    println!(
        "{:22} {:>5} {:>8} {:>8} {:>7} {:>12} {:>11} {:>9} {:>7} {:>11} {:>6} {:>8}",
        "",
        "OOMs",
        "avoided",
        "stopped",
        "harmed",
        "died beside",
        "before done",
        "GPU h",
        "of none",
        "unfinished",
        "asked",
        "in vain"
    );
    for ((name, ..), sum) in columns.iter().zip(sums) {
        println!(
            "{name:22} {:>5} {:>8.3} {:>8} {:>7} {:>12} {:>11} {:>9.1} {:>7.3} {:>11} {:>6} {:>8}",
            sum.ooms,
            avoided(sum, nobody),
            sum.stopped,
            sum.harmed,
            sum.beside,
            sum.before_done,
            sum.lost_hours,
            lost(sum, nobody),
            sum.unfinished,
            sum.asked,
            sum.asked_in_vain
        );
    }
    for ((name, ..), sum) in columns.iter().zip(sums).filter(|(_, sum)| !sum.held.is_empty()) {
        println!("\n{name}\n  why it held back, decisions: {:?}", sum.held);
        println!("  what ran out all the same, by its last word and family: {:?}", sum.missed);
    }
    println!();
}

fn avoided(sum: &Sum, nobody: &Sum) -> f64 {
    1.0 - f64::from(sum.ooms) / f64::from(nobody.ooms.max(1))
}

fn lost(sum: &Sum, nobody: &Sum) -> f64 {
    sum.lost_hours / nobody.lost_hours.max(1e-9)
}

fn figures(columns: &[Named], sums: &[Sum]) {
    let nobody = &sums[0];
    for ((_, key, _), sum) in columns.iter().zip(sums).skip(1) {
        println!("figure outcome_{key}_gradual_ooms_avoided {:.4} ratio", avoided(sum, nobody));
        println!("figure outcome_{key}_innocent_pods_harmed {} pods", sum.harmed);
        println!("figure outcome_{key}_pods_stopped_before_done {} pods", sum.before_done);
        println!("figure outcome_{key}_neighbours_died_beside {} pods", sum.beside);
        println!("figure outcome_{key}_work_lost {:.4} ratio", lost(sum, nobody));
    }
    println!("figure outcome_nobody_neighbours_died_beside {} pods", nobody.beside);
    println!("figure outcome_nobody_work_lost {:.1} gpu_hours", nobody.lost_hours);
}

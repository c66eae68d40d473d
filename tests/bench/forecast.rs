//! The public benchmark of the forecast: `cargo bench -p gpumem-engine --bench forecast -- [options]`.
//!
//! `--runs N` runs per family (200), `--train` on the training seeds, `--only a,b` only these families or parts,
//! `--gentd26 FILE` serving pods as well, `--json FILE` figures as JSON, `--trace NAME` every evaluation of one feed,
//! `--train-lstm` trains the learned baseline anew and does nothing else.
//! Definitions are in `judge.rs`, shapes in `corpus/families.rs`, what is compared in `baselines.rs`.
#![allow(clippy::unwrap_used, clippy::disallowed_types, clippy::disallowed_methods, missing_docs, dead_code)]

mod baselines;
mod corpus;
mod cost;
mod feed;
mod judge;
mod lstm;
mod real;
mod recorded;
mod report;
mod subject;
mod synthetic;

use std::path::PathBuf;

use report::Report;

pub struct Options {
    pub runs: u64,
    pub train: bool,
    pub only: Vec<String>,
    pub gentd26: Option<PathBuf>,
    pub json: Option<PathBuf>,
    pub interval: usize,
    pub verbose: bool,
    pub trace: Option<String>,
}

impl Options {
    fn parse() -> Self {
        let mut options = Self {
            runs: 200,
            train: false,
            only: vec![],
            gentd26: None,
            json: None,
            interval: 15,
            verbose: false,
            trace: None,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().unwrap_or_default();
            match word.as_str() {
                "--runs" => options.runs = value().parse().unwrap(),
                "--train" => options.train = true,
                "--only" => options.only = value().split(',').map(str::to_owned).collect(),
                "--gentd26" => options.gentd26 = Some(value().into()),
                "--json" => options.json = Some(value().into()),
                "--interval" => options.interval = value().parse().unwrap(),
                "--trace" => options.trace = Some(value()),
                "--verbose" => options.verbose = true,
                _ => {}
            }
        }
        options
    }

    pub fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == part)
    }

    pub fn seeds(&self, runs: u64) -> impl Iterator<Item = u64> + use<> {
        let seeds = if self.train { corpus::TRAIN } else { corpus::TEST };
        seeds.take(runs as usize)
    }
}

fn main() {
    if std::env::args().any(|word| word == "--train-lstm") {
        lstm::train::run();
        return;
    }
    let options = Options::parse();
    let mut report = Report::default();
    synthetic::families(&options, &mut report);
    if options.wants("sampling") {
        synthetic::sampling(&options, &mut report);
    }
    if options.wants("robustness") {
        synthetic::robustness(&options, &mut report);
    }
    if options.wants("ablation") {
        synthetic::ablation(&options);
    }
    if options.wants("baselines") {
        synthetic::baselines(&options);
    }
    if options.wants("h200") {
        real::h200(&options, &mut report);
    }
    if options.wants("cases") {
        real::cases(&options, &mut report);
    }
    if let Some(path) = &options.gentd26 {
        real::serving(path, &options, &mut report);
    }
    if options.wants("cost") {
        cost::measure(&mut report);
    }
    report.print();
    if let Some(path) = &options.json {
        std::fs::write(path, report.json()).unwrap();
    }
}

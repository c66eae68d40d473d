//! Fits the calibration of the forecast on the training half of the corpus and writes it into the engine.
//!
//! `cargo run --release -p gpumem-engine --example fit -- --gentd26 FILE`. Deterministic: the same inputs give the same
//! file. The serving trace is not ours to ship; `docs/forecast.md` says where it comes from.
#![allow(clippy::unwrap_used, clippy::disallowed_types, clippy::disallowed_methods, missing_docs, dead_code)]

mod corpus;
mod feed;
mod judge;
mod recorded;
mod subject;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use corpus::families::{ALL, GRADUAL};
use feed::{Faults, Feed};
use gpumem_engine::forecast::calibration::{Calibration, HazardLaw, IDENTITY, KNOTS};
use gpumem_engine::forecast::{Hazard, Outlook, hazard};
use judge::{HORIZONS, Setting};

/// Shapes whose growth ends because someone planned it: no series shows that, a declared peak does. They weigh nothing in
/// the maps, or every leak would be told with their share of doubt; the benchmark reports what that costs.
const PLANNED: &[&str] = &["curriculum", "stop_ramp", "oversubscribed", "eval_accumulation", "doubling"];

/// How far each map is shrunk towards the raw probability where that is at least 0.8: wholly at the horizon, where alarms
/// are decided and what is seen comes from the few minutes around one boundary, and not at all below it.
const SHRINK: [f64; 3] = [0.0, 0.0, 1.0];

/// Runs of each family.
const RUNS: usize = 40;

/// One evaluation with what happened.
struct Sample {
    weight: f64,
    hazard: Hazard,
    grows: bool,
    raw: [f64; 3],
    happened: [Option<bool>; 3],
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let mut trace = None;
    while let Some(word) = words.next() {
        if word == "--gentd26" {
            trace = words.next().map(PathBuf::from);
        }
    }
    let Some(text) = trace.as_deref().and_then(|path| recorded::read(path).ok()) else {
        eprintln!(
            "the GenTD26 trace is missing: pass `--gentd26 FILE` (pod,step,used_mib,duty_pct; see docs/forecast.md for where it comes from)"
        );
        return ExitCode::FAILURE;
    };
    let (feeds, corpus_hash) = feeds(&text);
    let law = fit_hazard(&samples(&feeds, &IDENTITY));
    let calibration = Calibration { hazard: law, ..IDENTITY };
    let samples = samples(&feeds, &calibration);
    let maps = [0, 1, 2].map(|place| isotonic(&samples, place));
    let widths = widths(&feeds, &calibration);
    let inputs = [("corpus", corpus_hash), ("gentd26", hash(text.as_bytes(), OFFSET))];
    write(&law, &maps, &widths, &inputs);
    ExitCode::SUCCESS
}

/// A feed and how much one of its evaluations counts.
struct Weighted {
    feed: Feed,
    weight: f64,
    gradual: bool,
}

fn feeds(text: &str) -> (Vec<Weighted>, u64) {
    let (mut all, mut digest) = (Vec::new(), OFFSET);
    for family in ALL {
        for seed in corpus::TRAIN.take(RUNS) {
            let feed = Feed::of(&corpus::run(family, seed), 15, Faults::default(), seed);
            for row in &feed.rows {
                digest = hash(&row.used.to_bits().to_le_bytes(), digest);
            }
            let weight = if PLANNED.contains(&family.name) { 0.0 } else { 1.0 };
            all.push(Weighted { feed, weight, gradual: GRADUAL.contains(&family.name) });
        }
    }
    let synthetic = all.len() as f64;
    let serving: Vec<Feed> = [44.0, 40.0, 32.0]
        .into_iter()
        .flat_map(|capacity| recorded::serving(text, capacity * 1024.0))
        .enumerate()
        .filter_map(|(place, feed)| (place % 2 == 0).then_some(feed))
        .collect();
    // The serving pods count as much as all families together: they are the only real load there is.
    let weight = synthetic / serving.len() as f64;
    all.extend(serving.into_iter().map(|feed| Weighted { feed, weight, gradual: false }));
    (all, digest)
}

fn samples(feeds: &[Weighted], calibration: &Calibration) -> Vec<Sample> {
    let setting = Setting::of(3600.0);
    let mut samples = Vec::new();
    for Weighted { feed, weight, .. } in feeds {
        let mut count = 0;
        subject::walk_with(feed, &setting, None, calibration, &mut |at, series, answers| {
            count += 1;
            let Outlook::Known { by_horizon, .. } = &answers[feed.culprit].outlook else { return };
            if count % 5 != 0 {
                return;
            }
            let next = feed.ooms.iter().copied().find(|oom| *oom > at);
            let happened = HORIZONS.map(|horizon| {
                let happened = next.is_some_and(|oom| oom <= at + horizon);
                (happened || at + horizon <= feed.end).then_some(happened)
            });
            let capacity = subject::mib(feed.capacity_at(at) - feed.orphaned);
            samples.push(Sample {
                weight: *weight,
                hazard: hazard(&series[feed.culprit], Duration::from_hours(1), capacity),
                grows: answers[feed.culprit].growth.is_some(),
                raw: by_horizon.map(|(_, p)| p),
                happened,
            });
        });
    }
    samples
}

fn loss(samples: &[Sample], law: &HazardLaw) -> f64 {
    let mut sum = 0.0;
    for sample in samples.iter().filter(|sample| !sample.grows) {
        for (place, horizon) in HORIZONS.into_iter().enumerate() {
            if let Some(happened) = sample.happened[place] {
                let p = sample.hazard.within(horizon, law).clamp(1e-4, 1.0 - 1e-4);
                sum -= sample.weight * if happened { p.ln() } else { (1.0 - p).ln() };
            }
        }
    }
    sum
}

/// Coordinate descent on the log-loss with shrinking steps.
fn fit_hazard(samples: &[Sample]) -> HazardLaw {
    let mut best = IDENTITY.hazard;
    let mut least = loss(samples, &best);
    for step in [2.0, 1.4, 1.15, 1.05] {
        for _ in 0..6 {
            for place in 0..5 {
                for factor in [step, 1.0 / step] {
                    let mut law = best;
                    let value = match place {
                        0 => &mut law.most,
                        1 => &mut law.power,
                        2 => &mut law.own,
                        3 => &mut law.swing,
                        _ => &mut law.capacity,
                    };
                    *value *= factor;
                    // Nobody may be acted on for a base hazard.
                    law.most = law.most.min(0.45);
                    let now = loss(samples, &law);
                    if now < least {
                        (best, least) = (law, now);
                    }
                }
            }
        }
    }
    let round = |value: f64| (value * 1e5).round() / 1e5;
    HazardLaw {
        most: round(best.most),
        power: round(best.power),
        own: round(best.own),
        swing: round(best.swing),
        capacity: round(best.capacity),
    }
}

/// Pool adjacent violators over the knots' bins, then values at the knots.
fn isotonic(samples: &[Sample], place: usize) -> [f64; KNOTS.len()] {
    let (mut weights, mut hits) = ([0.0; KNOTS.len()], [0.0; KNOTS.len()]);
    for sample in samples {
        let Some(happened) = sample.happened[place] else { continue };
        let raw = sample.raw[place];
        // Shared between the two knots around it, as interpolation will read it.
        let above = KNOTS.iter().position(|knot| raw <= *knot).unwrap_or(KNOTS.len() - 1);
        let below = above.saturating_sub(1);
        let share = if above == below { 1.0 } else { (raw - KNOTS[below]) / (KNOTS[above] - KNOTS[below]) };
        for (knot, part) in [(above, share), (below, 1.0 - share)] {
            weights[knot] += sample.weight * part;
            hits[knot] += sample.weight * part * f64::from(u8::from(happened));
        }
    }
    let mut pools: Vec<(f64, f64, usize)> = Vec::new();
    for knot in 0..KNOTS.len() {
        // A little of the identity, so that an empty knot is not invented.
        let prior = 20.0;
        pools.push((weights[knot] + prior, hits[knot] + prior * KNOTS[knot], 1));
        while pools.len() > 1 {
            let (last, before) = (pools[pools.len() - 1], pools[pools.len() - 2]);
            if before.1 / before.0 <= last.1 / last.0 {
                break;
            }
            pools.pop();
            *pools.last_mut().unwrap() = (before.0 + last.0, before.1 + last.1, before.2 + last.2);
        }
    }
    let mut values = [0.0; KNOTS.len()];
    let mut knot = 0;
    for (weight, hit, count) in pools {
        for _ in 0..count {
            let shrink = if KNOTS[knot] >= 0.8 { SHRINK[place] } else { 0.0 };
            values[knot] = (((1.0 - shrink) * hit / weight + shrink * KNOTS[knot]) * 1e4).round() / 1e4;
            knot += 1;
        }
    }
    println!("map {place}: {values:?} weights {:?}", weights.map(f64::round));
    values
}

/// Split-conformal: by how much each side must grow so that a tenth of the truths lie beyond.
fn widths(feeds: &[Weighted], calibration: &Calibration) -> [(f64, f64); 3] {
    let setting = Setting::of(3600.0);
    let mut needed: [(Vec<f64>, Vec<f64>, usize); 3] = Default::default();
    for Weighted { feed, .. } in feeds.iter().filter(|weighted| weighted.gradual) {
        subject::walk_with(feed, &setting, None, calibration, &mut |at, _, answers| {
            let answer = &answers[feed.culprit];
            let Outlook::Known { time_to_oom: Some(time), .. } = &answer.outlook else { return };
            let Some(truth) = feed.ooms.iter().map(|oom| oom - at).find(|left| *left > 0.0) else { return };
            if truth > 2.0 * setting.horizon {
                return;
            }
            let kind = if answer.reason.contains("steps of") {
                0
            } else if answer.reason.contains("slowing") || answer.reason.contains("speeding") {
                2
            } else {
                1
            };
            let [q10, q50, q90] = [time.q10, time.q50, time.q90].map(|time| time.as_secs_f64());
            let bin = &mut needed[kind];
            bin.2 += 1;
            if truth < q50 {
                bin.0.push((q50 / truth).ln() / (q50 / q10).ln().max(1e-3));
            } else {
                bin.1.push((truth / q50).ln() / (q90 / q50).ln().max(1e-3));
            }
        });
    }
    needed.map(|(mut low, mut high, all)| {
        let tail = |values: &mut Vec<f64>| {
            values.sort_by(f64::total_cmp);
            let beyond = (0.1 * all as f64) as usize;
            let place = values.len().checked_sub(beyond + 1);
            place
                .and_then(|place| values.get(place))
                .map_or(0.3, |value| (value * 100.0).round() / 100.0)
                .clamp(0.3, 8.0)
        };
        println!("widths: {all} intervals, {} early {} late", low.len(), high.len());
        (tail(&mut low), tail(&mut high))
    })
}

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a: enough to tell whether an input changed.
fn hash(bytes: &[u8], from: u64) -> u64 {
    bytes.iter().fold(from, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn write(law: &HazardLaw, maps: &[[f64; KNOTS.len()]; 3], widths: &[(f64, f64); 3], inputs: &[(&str, u64)]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("forecast/calibration/data.rs");
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    let version = before
        .split("version: ")
        .nth(1)
        .and_then(|rest| rest.split(',').next())
        .and_then(|number| number.parse::<u32>().ok())
        .unwrap_or(0);
    let body = |version: u32| {
        let inputs: Vec<String> =
            inputs.iter().map(|(name, hash)| format!("(\"{name}\", \"fnv1a64:{hash:016x}\")")).collect();
        let maps: Vec<String> = maps.iter().map(|map| format!("        {map:?},\n")).collect();
        format!(
            "//! Written by the `fit` example; see `forecast::calibration`. Do not edit.\n\nuse super::{{Calibration, HazardLaw, Pieces}};\n\n/// The fit in use.\npub const FITTED: Calibration = Calibration {{\n    version: {version},\n    inputs: &[{}],\n    hazard: HazardLaw {{ most: {:?}, power: {:?}, own: {:?}, swing: {:?}, capacity: {:?} }},\n    maps: [\n{}    ],\n    widths: {widths:?},\n    pieces: Pieces::ALL,\n}};\n",
            inputs.join(", "),
            law.most,
            law.power,
            law.own,
            law.swing,
            law.capacity,
            maps.concat(),
        )
    };
    // The version counts fits that changed something; how the formatter lays the file out is no change.
    let plain = |text: &str| text.replace(|letter: char| letter.is_whitespace() || letter == ',', "");
    if plain(&body(version)) == plain(&before) {
        println!("version {version} holds: nothing changed");
        return;
    }
    std::fs::write(&path, body(version + 1)).unwrap();
    println!("wrote version {} to {}; run `cargo fmt -p gpumem-engine`", version + 1, path.display());
}

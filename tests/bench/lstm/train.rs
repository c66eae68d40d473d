//! Trains the layer on the training seeds of every family and writes its weights:
//! `cargo bench -p gpumem-engine --bench forecast -- --train-lstm`. Deterministic; some minutes.

use super::{CELLS, GATES, INPUTS, Memory, Model, OUTPUTS, Step, WEIGHTS, WIDTH};
use crate::corpus;
use crate::corpus::dice::Dice;
use crate::corpus::families::ALL;
use crate::feed::{Faults, Feed};
use crate::judge::{HORIZONS, Setting};

const RUNS: usize = 40;
const ROUNDS: usize = 14;
const BATCH: usize = 8;
const RATE: f32 = 0.006;

/// One life: what was seen, and what happened within each horizon where that is known.
struct Life {
    readings: Vec<(f64, f64, f64)>,
    truth: Vec<[Option<bool>; OUTPUTS]>,
}

/// Lives of every tenant of a feed, by what a baseline sees of it.
fn lives(feed: &Feed, setting: &Setting) -> Vec<Life> {
    let mut lives: Vec<Vec<Life>> = (0..feed.tenants).map(|_| Vec::new()).collect();
    let mut segment = vec![u64::MAX; feed.tenants];
    crate::baselines::walk(feed, setting, |reading| {
        let own = &mut lives[reading.tenant];
        if std::mem::replace(&mut segment[reading.tenant], reading.segment) != reading.segment {
            own.push(Life { readings: vec![], truth: vec![] });
        }
        let life = own.last_mut().unwrap();
        life.readings.push((reading.used, reading.room, reading.age));
        let next = feed.ooms.iter().copied().find(|oom| *oom > reading.at).filter(|_| reading.tenant == feed.culprit);
        life.truth.push(HORIZONS.map(|horizon| {
            let happened = next.is_some_and(|oom| oom <= reading.at + horizon);
            (happened || reading.at + horizon <= feed.end).then_some(happened)
        }));
    });
    lives.into_iter().flatten().collect()
}

/// Adds the gradient of one life to `slope`; gives the log-loss and how many answers it is the sum of.
fn learn(model: &Model, life: &Life, horizon: f64, slope: &mut [f32]) -> (f64, usize) {
    let mut memory = Memory::default();
    let steps: Vec<Step> =
        life.readings.iter().map(|&(used, room, age)| model.take(&mut memory, used, room, age, horizon)).collect();
    let (mut loss, mut count) = (0.0, 0);
    let (mut down_hidden, mut down_cell) = ([0.0_f32; CELLS], [0.0_f32; CELLS]);
    for (step, truth) in steps.iter().zip(&life.truth).rev() {
        for (place, happened) in truth.iter().enumerate() {
            let Some(happened) = *happened else { continue };
            let (wanted, said) = (f32::from(u8::from(happened)), step.said[place].clamp(1e-6, 1.0 - 1e-6));
            loss -= f64::from(if happened { said } else { 1.0 - said }.ln());
            count += 1;
            let row = GATES * WIDTH + place * (CELLS + 1);
            for cell in 0..CELLS {
                slope[row + cell] += (said - wanted) * step.hidden[cell];
                down_hidden[cell] += (said - wanted) * model.weights[row + cell];
            }
            slope[row + CELLS] += said - wanted;
        }
        let mut down = [0.0_f32; GATES];
        for cell in 0..CELLS {
            let gate = |gate: usize| step.gates[gate * CELLS + cell];
            let bent = step.cell[cell].tanh();
            let through = down_cell[cell] + down_hidden[cell] * gate(3) * (1.0 - bent * bent);
            down[cell] = through * gate(2) * gate(0) * (1.0 - gate(0));
            down[CELLS + cell] = through * step.former[cell] * gate(1) * (1.0 - gate(1));
            down[2 * CELLS + cell] = through * gate(0) * (1.0 - gate(2) * gate(2));
            down[3 * CELLS + cell] = down_hidden[cell] * bent * gate(3) * (1.0 - gate(3));
            down_cell[cell] = through * gate(1);
        }
        let mut back = [0.0_f32; WIDTH];
        let rows = slope.chunks_exact_mut(WIDTH).zip(model.weights.chunks_exact(WIDTH));
        for (down, (slope, weights)) in down.iter().zip(rows) {
            for place in 0..WIDTH {
                slope[place] += down * step.input[place];
                back[place] += down * weights[place];
            }
        }
        down_hidden.copy_from_slice(&back[INPUTS..INPUTS + CELLS]);
    }
    (loss, count)
}

/// Adam (Kingma and Ba), with the gradient cut to length one.
struct Adam {
    mean: Vec<f32>,
    square: Vec<f32>,
    turn: i32,
}

impl Adam {
    fn turn(&mut self, weights: &mut [f32], slope: &mut [f32], rate: f32) {
        self.turn += 1;
        let length = slope.iter().map(|slope| slope * slope).sum::<f32>().sqrt().max(1.0);
        let (first, second) = (1.0 - 0.9_f32.powi(self.turn), 1.0 - 0.999_f32.powi(self.turn));
        for (place, slope) in slope.iter_mut().enumerate() {
            let own = *slope / length;
            self.mean[place] += 0.1 * (own - self.mean[place]);
            self.square[place] += 0.001 * (own * own - self.square[place]);
            weights[place] -= rate * (self.mean[place] / first) / ((self.square[place] / second).sqrt() + 1e-8);
            *slope = 0.0;
        }
    }
}

/// Trains and writes.
pub fn run() {
    let setting = Setting::of(3600.0);
    let mut all: Vec<Life> = Vec::new();
    for family in ALL {
        for seed in corpus::TRAIN.take(RUNS) {
            all.extend(lives(&Feed::of(&corpus::run(family, seed), 15, Faults::default(), seed), &setting));
        }
    }
    let mut dice = Dice::new(4711, 1);
    let mut model = Model { weights: (0..WEIGHTS).map(|_| (0.2 * dice.normal()) as f32).collect() };
    // Cells forget little before they have learned what to forget.
    for cell in 0..CELLS {
        model.weights[(CELLS + cell) * WIDTH + WIDTH - 1] = 2.0;
    }
    let mut adam = Adam { mean: vec![0.0; WEIGHTS], square: vec![0.0; WEIGHTS], turn: 0 };
    let mut slope = vec![0.0_f32; WEIGHTS];
    for round in 0..ROUNDS {
        let (mut loss, mut count) = (0.0, 0);
        for place in (1..all.len()).rev() {
            all.swap(place, (dice.unit() * (place + 1) as f64) as usize);
        }
        let rate = RATE * (1.0 - round as f32 / ROUNDS as f32).powf(1.5);
        for batch in all.chunks(BATCH) {
            let mut answers = 0;
            for life in batch {
                let (own, n) = learn(&model, life, setting.horizon, &mut slope);
                (loss, answers) = (loss + own, answers + n);
            }
            let scale = 30.0 / answers.max(1) as f32;
            for slope in &mut slope {
                *slope *= scale;
            }
            adam.turn(&mut model.weights, &mut slope, rate);
            count += answers;
        }
        println!(
            "round {round}: log-loss {:.4} over {count} answers of {} lives",
            loss / f64::from(count as u32),
            all.len()
        );
        let weights: Vec<f64> = model.weights.iter().map(|weight| (f64::from(*weight) * 1e4).round() / 1e4).collect();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/bench/lstm/weights.json");
        std::fs::write(path, format!("{}\n", serde_json::to_string(&weights).unwrap().replace(',', ", "))).unwrap();
    }
}

//! What curves are put together from.

use super::dice::Dice;

pub const GIB: f64 = 1024.0;
pub const MINUTE: f64 = 60.0;
pub const HOUR: f64 = 3600.0;

/// Memory of common cards, less what the driver keeps.
pub fn card(dice: &mut Dice) -> f64 {
    dice.pick(&[16.0, 24.0, 40.0, 48.0, 80.0]) * GIB * dice.between(0.96, 0.995)
}

/// A process starts: context, weights in shards, then a few steps until `level` is held. Gives the share of `level` held
/// at each second of the first minutes.
pub struct StartUp {
    context: f64,
    load_from: f64,
    load_to: f64,
    weights: f64,
    steps: Vec<(f64, f64)>,
}

impl StartUp {
    pub fn new(dice: &mut Dice) -> Self {
        let load_from = dice.between(2.0, 12.0);
        let load_to = load_from + dice.log_between(4.0, 90.0);
        let weights = dice.between(0.5, 0.9);
        let count = dice.pick(&[3, 4, 5]);
        let (mut at, mut share) = (load_to, weights);
        let mut steps = Vec::new();
        for left in (1..=count).rev() {
            at += dice.log_between(1.0, 20.0);
            share += (1.0 - share) * if left == 1 { 1.0 } else { dice.between(0.3, 0.8) };
            steps.push((at, share));
        }
        Self { context: dice.between(400.0, 1300.0), load_from, load_to, weights, steps }
    }

    /// Level at `second` on the way to `level`.
    pub fn at(&self, second: f64, level: f64) -> f64 {
        let share = if second < self.load_from {
            0.0
        } else if second < self.load_to {
            self.weights * (second - self.load_from) / (self.load_to - self.load_from)
        } else {
            self.steps.iter().take_while(|(at, _)| *at <= second).last().map_or(self.weights, |(_, share)| *share)
        };
        (level * share).max(self.context.min(level))
    }
}

/// A start-up, then what `extra` adds to `level` at each second since the start; rounded to the driver's 2 MiB.
pub fn curve(dice: &mut Dice, seconds: f64, level: f64, mut extra: impl FnMut(f64) -> f64) -> Vec<f64> {
    let start = StartUp::new(dice);
    (0..seconds as usize)
        .map(|second| {
            let second = second as f64;
            let value = start.at(second, level) + extra(second);
            (value / 2.0).round().max(0.0) * 2.0
        })
        .collect()
}

/// Small movements around zero, in MiB: mostly none, as real plateaus are.
pub struct Jitter {
    dice: Dice,
    size: f64,
    hold: f64,
    value: f64,
}

impl Jitter {
    /// Up to `most` MiB; a third of all curves have none.
    pub fn new(dice: &mut Dice, most: f64) -> Self {
        let size = if dice.chance(0.33) { 0.0 } else { dice.log_between(2.0, most.max(3.0)) };
        Self { dice: Dice::new(dice.word(), 1), size, hold: dice.log_between(1.0, 60.0), value: 0.0 }
    }

    pub fn next(&mut self) -> f64 {
        if self.dice.chance(1.0 / self.hold) {
            self.value = self.size * self.dice.between(-1.0, 1.0);
        }
        self.value
    }
}

/// Excursions that return: `size` MiB for `length` seconds every `period`, shaken a little.
pub struct Spikes {
    dice: Dice,
    size: f64,
    length: f64,
    period: f64,
    next: f64,
    until: f64,
    now: f64,
}

impl Spikes {
    pub fn new(dice: &mut Dice, size: f64, length: f64, period: f64) -> Self {
        let next = period * dice.between(0.3, 1.0) + 200.0;
        Self { dice: Dice::new(dice.word(), 2), size, length, period, next, until: 0.0, now: 0.0 }
    }

    pub fn at(&mut self, second: f64) -> f64 {
        if second >= self.next {
            self.until = second + self.length * self.dice.between(0.8, 1.2);
            self.now = self.size * self.dice.between(0.9, 1.0);
            self.next = second + self.period * self.dice.between(0.97, 1.03);
        }
        if second < self.until { self.now } else { 0.0 }
    }
}

/// A caching allocator asks the driver in lumps and gives nothing back.
pub struct Cache {
    lump: f64,
    held: f64,
}

impl Cache {
    pub fn new(dice: &mut Dice) -> Self {
        Self { lump: dice.pick(&[2.0, 2.0, 20.0, 128.0]), held: 0.0 }
    }

    pub fn hold(&mut self, live: f64) -> f64 {
        self.held = self.held.max((live / self.lump).ceil() * self.lump);
        self.held
    }
}

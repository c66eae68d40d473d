//! The families. A number never changes, because a run is drawn from it and a seed; levels, noise, capacities, periods and durations are drawn.

use super::dice::Dice;
use super::parts::{Cache, HOUR, Jitter, MINUTE, Spikes, card, curve};
use super::{Family, Kind, Run, Trace};

macro_rules! families {
    ($($number:literal $name:literal $make:expr;)*) => {
        /// Every family.
        pub const ALL: &[Family] = &[$(Family { number: $number, name: $name, make: $make }),*];
    };
}

families! {
    1 "plateau" plateau;
    2 "shards" shards;
    3 "linear" |name, dice| linear(name, dice, 2.0, 6.0);
    4 "slow" slow;
    5 "superlinear" superlinear;
    6 "step" |name, dice| step(name, dice, 2.0, 6.0);
    7 "irregular" irregular;
    8 "curriculum" curriculum;
    9 "varlen" varlen;
    10 "eval" eval;
    11 "eval_accumulation" eval_accumulation;
    12 "save" save;
    13 "merge" merge;
    14 "fragmentation" fragmentation;
    15 "kv_load" kv_load;
    16 "pool" pool;
    17 "jax" jax;
    18 "doubling" doubling;
    19 "finder" finder;
    20 "one_step" one_step;
    21 "unfreeze" unfreeze;
    22 "stop_ramp" stop_ramp;
    23 "capture" capture;
    24 "swapping" swapping;
    25 "multi_tenant" multi_tenant;
    26 "helpers" helpers;
    27 "restart_loop" restart_loop;
    28 "moved" moved;
    29 "orphan" orphan;
    30 "saw_near_full" saw_near_full;
    31 "empty_cache" empty_cache;
    32 "phases" phases;
    33 "oversubscribed" oversubscribed;
    34 "faults" faults;
    35 "resized" resized;
    36 "leak_spikes_restart" leak_spikes_restart;
    103 "linear_hour" |name, dice| linear(name, dice, 1.0, 1.0);
    106 "step_hour" |name, dice| step(name, dice, 1.0, 1.0);
    110 "leak_spikes" |name, dice| leak_spikes(name, dice, 2.0, 6.0);
    111 "leak_spikes_hour" |name, dice| leak_spikes(name, dice, 1.0, 1.0);
    114 "saturating" saturating;
}

/// Names of the families that run out gradually.
pub const GRADUAL: &[&str] = &[
    "linear",
    "slow",
    "superlinear",
    "step",
    "irregular",
    "leak_spikes",
    "linear_hour",
    "step_hour",
    "leak_spikes_hour",
];

fn quiet(dice: &mut Dice) -> f64 {
    dice.between(3.0, 6.0) * HOUR
}

fn plateau(name: &'static str, dice: &mut Dice) -> Run {
    let (card, seconds) = (card(dice), quiet(dice));
    let level = card * dice.between(0.2, 0.96);
    let mut jitter = Jitter::new(dice, 0.004 * card);
    Run::single(name, card, curve(dice, seconds, level, |_| jitter.next().min(0.02 * card)), Kind::None)
}

fn shards(name: &'static str, dice: &mut Dice) -> Run {
    let (card, seconds) = (card(dice), quiet(dice));
    let level = card * dice.between(0.3, 0.95);
    let (count, length) = (dice.between(4.0, 40.0).floor(), dice.log_between(20.0, 300.0));
    let demand = (0..seconds as usize)
        .map(|second| level * (((second as f64 / length) * count).floor() / count).clamp(0.02, 1.0))
        .collect();
    Run::single(name, card, demand, Kind::None)
}

/// How a leak gets from its start to the end of the card: when, from where, over how many seconds.
struct Way {
    card: f64,
    base: f64,
    from: f64,
    over: f64,
}

impl Way {
    fn new(dice: &mut Dice, low: f64, high: f64) -> Self {
        let card = card(dice);
        Self {
            card,
            base: card * dice.between(0.1, 0.5),
            from: dice.pick(&[60.0, 120.0, 600.0, 3000.0]),
            over: dice.log_between(low, high.max(low * 1.001)) * HOUR,
        }
    }

    /// Seconds to simulate: until it is surely full.
    fn seconds(&self) -> f64 {
        self.from + 1.3 * self.over + 600.0
    }

    /// Share of the way at `second`.
    fn share(&self, second: f64) -> f64 {
        ((second - self.from) / self.over).max(0.0)
    }

    fn height(&self) -> f64 {
        self.card - self.base
    }
}

fn linear(name: &'static str, dice: &mut Dice, low: f64, high: f64) -> Run {
    let way = Way::new(dice, low, high);
    let mut jitter = Jitter::new(dice, 0.006 * way.card);
    let mut cache = Cache::new(dice);
    let demand =
        curve(dice, way.seconds(), way.base, |second| cache.hold(way.share(second) * way.height()) + jitter.next());
    Run::single(name, way.card, demand, Kind::Gradual)
}

fn slow(name: &'static str, dice: &mut Dice) -> Run {
    let card = card(dice);
    let rate = dice.log_between(100.0, 800.0);
    let over = dice.between(6.0, 14.0);
    let base = card - rate * over;
    let mut jitter = Jitter::new(dice, 300.0);
    let demand = curve(dice, (over + 2.0) * HOUR, base.max(0.1 * card), |second| rate * second / HOUR + jitter.next());
    Run::single(name, card, demand, Kind::Gradual)
}

fn superlinear(name: &'static str, dice: &mut Dice) -> Run {
    let way = Way::new(dice, 2.0, 6.0);
    let power = dice.between(1.5, 3.0);
    let mut jitter = Jitter::new(dice, 0.003 * way.card);
    let demand =
        curve(dice, way.seconds(), way.base, |second| way.share(second).powf(power) * way.height() + jitter.next());
    Run::single(name, way.card, demand, Kind::Gradual)
}

fn step(name: &'static str, dice: &mut Dice, low: f64, high: f64) -> Run {
    let way = Way::new(dice, low, high);
    let steps = (way.over / dice.log_between(3.0 * MINUTE, 20.0 * MINUTE).min(way.over / 8.0)).round();
    let size = way.height() / steps;
    let shake: Vec<f64> = (0..steps as usize * 2).map(|_| size * dice.between(-0.1, 0.1)).collect();
    let mut jitter = Jitter::new(dice, 0.003 * way.card);
    let demand = curve(dice, way.seconds(), way.base, |second| {
        let taken = (way.share(second) * steps).floor();
        taken * size + shake.get(taken as usize).copied().unwrap_or(0.0) + jitter.next()
    });
    Run::single(name, way.card, demand, Kind::Gradual)
}

fn irregular(name: &'static str, dice: &mut Dice) -> Run {
    let way = Way::new(dice, 2.0, 6.0);
    let gap = dice.log_between(3.0 * MINUTE, 15.0 * MINUTE);
    let size = way.height() * gap / way.over;
    let (mut next, mut held) = (way.from, 0.0);
    let mut own = Dice::new(dice.word(), 3);
    let demand = curve(dice, 2.0 * way.seconds(), way.base, |second| {
        if second >= next {
            next = second + own.exponential(gap);
            // Log-normal with mean one: many small steps, a few large.
            held += size * (0.8 * own.normal() - 0.32).exp();
        }
        held
    });
    Run::single(name, way.card, demand, Kind::Gradual)
}

fn curriculum(name: &'static str, dice: &mut Dice) -> Run {
    let (card, seconds) = (card(dice), quiet(dice));
    let base = card * dice.between(0.15, 0.35);
    let end = card * dice.between(0.5, 0.93);
    let (stages, stage) = (dice.between(3.0, 8.0).floor(), dice.log_between(5.0 * MINUTE, 40.0 * MINUTE));
    let demand = curve(dice, seconds, base, |second| (end - base) * ((second / stage).floor() / stages).min(1.0));
    Run::single(name, card, demand, Kind::Abrupt).declared(end)
}

fn varlen(name: &'static str, dice: &mut Dice) -> Run {
    let (card, seconds) = (card(dice), quiet(dice));
    let base = card * dice.between(0.2, 0.5);
    let (scale, sigma) = (card * dice.between(0.05, 0.25), dice.between(0.2, 0.5));
    let pace = dice.log_between(1.0, 30.0);
    let mut own = Dice::new(dice.word(), 4);
    let mut cache = Cache::new(dice);
    let demand = curve(dice, seconds, base, |_| {
        if own.chance(1.0 / pace) { cache.hold(scale * (sigma * own.normal()).exp()) } else { cache.hold(0.0) }
    });
    Run::single(name, card, demand, Kind::Abrupt)
}

fn eval(name: &'static str, dice: &mut Dice) -> Run {
    let (card, seconds) = (card(dice), quiet(dice));
    let level = card * dice.between(0.2, 0.7);
    let size = (card - level) * dice.between(0.1, 0.85);
    let (length, period) = (dice.log_between(8.0, 150.0), dice.log_between(6.0 * MINUTE, HOUR));
    let mut spikes = Spikes::new(dice, size, length, period);
    let mut jitter = Jitter::new(dice, 0.002 * card);
    let caches = dice.chance(0.4);
    let mut cache = Cache::new(dice);
    let demand = curve(dice, seconds, level, |second| {
        let spike = spikes.at(second);
        (if caches { cache.hold(spike) } else { spike }) + jitter.next()
    });
    Run::single(name, card, demand, Kind::Abrupt)
}

fn eval_accumulation(name: &'static str, dice: &mut Dice) -> Run {
    let card = card(dice);
    let base = card * dice.between(0.15, 0.4);
    let (length, period) =
        (dice.log_between(5.0 * MINUTE, 40.0 * MINUTE), dice.log_between(45.0 * MINUTE, 100.0 * MINUTE));
    let top = (card - base) * dice.between(0.3, 0.9);
    let grows = dice.chance(0.4);
    let demand = curve(dice, 5.0 * HOUR, base, |second| {
        let (round, inside) = ((second / period).floor(), second % period);
        let longer = if grows && round >= 3.0 { 3.0 } else { 1.0 };
        let from = period - length * longer;
        if from > 0.0 && inside >= from { top * (inside - from) / length } else { 0.0 }
    });
    Run::single(name, card, demand, Kind::Gradual)
}

fn save(name: &'static str, dice: &mut Dice) -> Run {
    let (card, seconds) = (card(dice), quiet(dice));
    let level = card * dice.between(0.3, 0.8);
    let size = (card - level) * dice.between(0.2, 1.15);
    let (length, period) = (dice.log_between(5.0, 40.0), dice.log_between(20.0 * MINUTE, 90.0 * MINUTE));
    let mut spikes = Spikes::new(dice, size, length, period);
    Run::single(name, card, curve(dice, seconds, level, |second| spikes.at(second)), Kind::Abrupt)
}

fn merge(name: &'static str, dice: &mut Dice) -> Run {
    let (card, seconds) = (card(dice), quiet(dice));
    let level = card * dice.between(0.4, 0.8);
    let size = level * dice.between(0.2, 1.0);
    let mut jitter = Jitter::new(dice, 0.002 * card);
    let demand = curve(dice, seconds, level, |second| jitter.next() + if second > seconds - 30.0 { size } else { 0.0 });
    Run::single(name, card, demand, Kind::Abrupt)
}

fn fragmentation(name: &'static str, dice: &mut Dice) -> Run {
    let (card, seconds) = (card(dice), dice.between(4.0, 8.0) * HOUR);
    let base = card * dice.between(0.3, 0.6);
    let end = card * if dice.chance(0.7) { dice.between(0.65, 0.94) } else { dice.between(1.03, 1.3) };
    let constant = dice.log_between(20.0 * MINUTE, 120.0 * MINUTE);
    let mut jitter = Jitter::new(dice, 0.002 * card);
    let mut cache = Cache::new(dice);
    let demand = curve(dice, seconds, base, |second| {
        cache.hold((end - base) * (1.0 - (-second / constant).exp()) + jitter.next())
    });
    Run::single(name, card, demand, Kind::Gradual)
}

/// Time constants of ten minutes to two hours, ending at 60 to 94 % of the card.
fn saturating(name: &'static str, dice: &mut Dice) -> Run {
    let (card, constant) = (card(dice), dice.log_between(10.0 * MINUTE, 120.0 * MINUTE));
    let base = card * dice.between(0.1, 0.4);
    let end = card * dice.between(0.6, 0.94);
    let mut jitter = Jitter::new(dice, 0.003 * card);
    let mut cache = Cache::new(dice);
    let demand = curve(dice, 6.0 * constant + HOUR, base, |second| {
        cache.hold((end - base) * (1.0 - (-second / constant).exp())) + jitter.next().min(0.01 * card)
    });
    Run::single(name, card, demand, Kind::Gradual)
}

fn kv_load(name: &'static str, dice: &mut Dice) -> Run {
    let (card, seconds) = (card(dice), dice.between(5.0, 9.0) * HOUR);
    let base = card * dice.between(0.2, 0.45);
    let swing = card * dice.between(0.15, 0.45);
    let (day, phase) = (dice.between(2.0, 8.0) * HOUR, dice.between(0.0, std::f64::consts::TAU));
    let (pull, shake) = (1.0 / dice.log_between(30.0, 900.0), dice.between(0.05, 0.3));
    let mut own = Dice::new(dice.word(), 5);
    let mut state = 0.0_f64;
    let demand = curve(dice, seconds, base, |second| {
        let target = 0.5 + 0.35 * (second / day * std::f64::consts::TAU + phase).sin();
        state += pull * (target - state) + shake * (2.0 * pull).sqrt() * own.normal();
        swing * state.clamp(0.0, 1.6)
    });
    Run::single(name, card, demand, Kind::Abrupt)
}

fn pool(name: &'static str, dice: &mut Dice) -> Run {
    let (card, seconds) = (card(dice), quiet(dice));
    let level = card * dice.between(0.85, 0.95);
    let more = if dice.chance(0.3) { dice.between(200.0, 2048.0).min(0.98 * card - level) } else { 0.0 };
    let at = dice.between(0.1, 0.9) * seconds;
    Run::single(name, card, curve(dice, seconds, level, |second| if second > at { more } else { 0.0 }), Kind::None)
}

fn jax(name: &'static str, dice: &mut Dice) -> Run {
    let (card, seconds) = (card(dice), quiet(dice));
    let (at, to) = (dice.between(0.0, 1.0) * seconds, dice.pick(&[0.75, 0.75, 0.85, 0.9]) * card);
    let from = dice.between(2.0, 20.0);
    let demand = (0..seconds as usize)
        .map(|second| match second as f64 {
            second if second < from => 600.0,
            second if second < at.max(from) => 0.75 * card,
            _ => to,
        })
        .collect();
    Run::single(name, card, demand, Kind::None)
}

fn doubling(name: &'static str, dice: &mut Dice) -> Run {
    let (card, seconds) = (card(dice), quiet(dice));
    let last = card * dice.between(0.3, 0.9);
    let pace = dice.log_between(5.0, 8.0 * MINUTE);
    let demand = (0..seconds as usize)
        .map(|second| last * 0.5_f64.powf((5.0 - (second as f64 / pace).floor()).max(0.0)))
        .collect();
    Run::single(name, card, demand, Kind::None)
}

fn finder(name: &'static str, dice: &mut Dice) -> Run {
    let (card, seconds) = (card(dice), quiet(dice));
    let trial = dice.log_between(5.0, 60.0);
    let base = card * dice.between(0.05, 0.2);
    let chosen = card * dice.between(0.5, 0.9);
    let demand = (0..seconds as usize)
        .map(|second| {
            let round = (second as f64 / trial).floor();
            if round < 6.0 { (base * 2.0_f64.powf(round * 0.7)).min(0.99 * card) } else { chosen }
        })
        .collect();
    Run::single(name, card, demand, Kind::None)
}

fn one_step(name: &'static str, dice: &mut Dice) -> Run {
    let (card, seconds) = (card(dice), quiet(dice));
    let level = card * dice.between(0.3, 0.6);
    let size = card * dice.between(0.05, 0.35) * if dice.chance(0.3) { -0.5 } else { 1.0 };
    let at = dice.between(0.05, 0.9) * seconds;
    let mut jitter = Jitter::new(dice, 0.003 * card);
    let demand = curve(dice, seconds, level, |second| jitter.next() + if second > at { size } else { 0.0 });
    Run::single(name, card, demand, Kind::None)
}

fn unfreeze(name: &'static str, dice: &mut Dice) -> Run {
    let (card, seconds) = (card(dice), quiet(dice));
    let level = card * dice.between(0.2, 0.5);
    let (count, every) = (dice.pick(&[1.0, 2.0, 3.0, 4.0]), dice.between(15.0, 80.0) * MINUTE);
    let size = (card - level) * dice.between(0.3, 0.9) / count;
    let demand = curve(dice, seconds, level, |second| size * (second / every).floor().min(count));
    Run::single(name, card, demand, Kind::Abrupt)
}

fn stop_ramp(name: &'static str, dice: &mut Dice) -> Run {
    let card = card(dice);
    let base = card * dice.between(0.1, 0.4);
    let end = card * dice.between(0.45, 0.92);
    let (from, over) = (dice.pick(&[60.0, 600.0]), dice.log_between(0.5, 4.0) * HOUR);
    let mut jitter = Jitter::new(dice, 0.003 * card);
    let demand = curve(dice, from + over + 3.0 * HOUR, base, |second| {
        (end - base) * ((second - from) / over).clamp(0.0, 1.0) + jitter.next()
    });
    Run::single(name, card, demand, Kind::None).declared(end * 1.02)
}

fn capture(name: &'static str, dice: &mut Dice) -> Run {
    let (card, seconds) = (card(dice), quiet(dice));
    let level = card * dice.between(0.3, 0.7);
    let (count, over) = (dice.between(5.0, 30.0).floor(), dice.between(60.0, 180.0));
    let size = (card - level) * dice.between(0.1, 0.8);
    let demand =
        curve(dice, seconds, level, |second| size * (((second - 30.0) / over * count).floor() / count).clamp(0.0, 1.0));
    Run::single(name, card, demand, Kind::None)
}

fn swapping(name: &'static str, dice: &mut Dice) -> Run {
    let (card, seconds) = (card(dice), dice.between(6.0, 12.0) * HOUR);
    let base = card * dice.between(0.15, 0.4);
    let stay = dice.log_between(2.0 * MINUTE, 40.0 * MINUTE);
    let most = card * 0.97 - base;
    let mut own = Dice::new(dice.word(), 6);
    let (mut next, mut held) = (120.0, 0.0_f64);
    let demand = curve(dice, seconds, base, |second| {
        if second >= next {
            next = second + own.exponential(stay);
            let size = card * own.log_between(0.02, 0.3);
            held = if own.chance(0.55) { held + size } else { held - size };
            if held > most || held < 0.0 {
                held = most * own.between(0.1, 0.5);
            }
        }
        held
    });
    Run::single(name, card, demand, Kind::Abrupt)
}

fn multi_tenant(name: &'static str, dice: &mut Dice) -> Run {
    let card = card(dice);
    let others = dice.pick(&[1, 2, 3]);
    let share = card * dice.between(0.3, 0.6) / f64::from(others);
    let grower_base = card * dice.between(0.05, 0.15);
    let height = card - share * f64::from(others) - grower_base;
    let over = dice.log_between(2.0, 5.0) * HOUR;
    let seconds = 300.0 + 1.2 * over;
    let stairs = if dice.chance(0.4) { dice.log_between(4.0, 15.0) * MINUTE } else { 1.0 };
    let grower = curve(dice, seconds, grower_base, |second| {
        height * (((second - 200.0).max(0.0) / stairs).floor() * stairs / over)
    });
    let mut tenants = vec![Trace { used: grower }];
    for _ in 0..others {
        let mut jitter = Jitter::new(dice, 0.003 * card);
        let period = dice.log_between(6.0, 40.0) * MINUTE;
        let spike = if dice.chance(0.3) { 0.1 * share } else { 0.0 };
        let mut spikes = Spikes::new(dice, spike, 40.0, period);
        let used = curve(dice, seconds, share - spike, |second| jitter.next() + spikes.at(second));
        tenants.push(Trace { used });
    }
    let total = |second: usize| tenants.iter().map(|tenant| tenant.used[second]).sum::<f64>();
    let full = (0..seconds as usize).find(|second| total(*second) > card);
    for tenant in &mut tenants {
        tenant.used.truncate(full.unwrap_or(usize::MAX));
    }
    let kind = if full.is_some() { Kind::Gradual } else { Kind::None };
    Run {
        family: name,
        capacity: vec![(0, card)],
        orphaned: 0.0,
        tenants,
        ooms: full.into_iter().collect(),
        kind,
        culprit: 0,
        declared: None,
    }
}

fn helpers(name: &'static str, dice: &mut Dice) -> Run {
    let (card, seconds) = (card(dice), quiet(dice));
    let level = card * dice.between(0.3, 0.6);
    let size = dice.between(400.0, 1500.0);
    let mut own = Dice::new(dice.word(), 7);
    let (mut count, stay) = (0.0_f64, dice.log_between(20.0, 1200.0));
    let most = ((card * 0.9 - level) / size).floor().min(8.0);
    let demand = curve(dice, seconds, level, |_| {
        if own.chance(1.0 / stay) {
            count = (count + if own.chance(0.5) { 1.0 } else { -1.0 }).clamp(0.0, most);
        }
        count * size
    });
    Run::single(name, card, demand, Kind::None)
}

fn restart_loop(name: &'static str, dice: &mut Dice) -> Run {
    let card = card(dice);
    let base = card * dice.between(0.2, 0.4);
    let over = dice.between(1.2, 2.2) * HOUR;
    let lives = dice.pick(&[2, 3]);
    let (mut used, mut ooms) = (Vec::new(), Vec::new());
    for _ in 0..lives {
        let mut jitter = Jitter::new(dice, 0.003 * card);
        let life =
            curve(dice, over + 600.0, base, |second| (card - base) * (second - 100.0).max(0.0) / over + jitter.next());
        used.extend(life.into_iter().take_while(|used| *used <= card));
        ooms.push(used.len());
        used.extend(std::iter::repeat_n(f64::NAN, dice.between(5.0, 60.0) as usize));
    }
    Run {
        family: name,
        capacity: vec![(0, card)],
        orphaned: 0.0,
        tenants: vec![Trace { used }],
        ooms,
        kind: Kind::Gradual,
        culprit: 0,
        declared: None,
    }
}

fn moved(name: &'static str, dice: &mut Dice) -> Run {
    let (first, second) = (card(dice), card(dice));
    let level = first.min(second) * dice.between(0.3, 0.8);
    let mut used = curve(dice, 2.0 * HOUR, level, |_| 0.0);
    let at = used.len() + 20;
    used.extend(std::iter::repeat_n(f64::NAN, 20));
    let later = level * dice.between(0.5, 1.1);
    used.extend(curve(dice, 2.0 * HOUR, later, |_| 0.0));
    Run { capacity: vec![(0, first), (at, second)], ..Run::single(name, first.max(second) * 2.0, used, Kind::None) }
}

fn orphan(name: &'static str, dice: &mut Dice) -> Run {
    let card = card(dice);
    let orphaned = card * dice.between(0.2, 0.5);
    let level = (card - orphaned) * dice.between(0.5, 1.3);
    let demand = curve(dice, 2.0 * HOUR, level, |_| 0.0);
    let run = Run::single(name, card - orphaned, demand, Kind::Abrupt);
    Run { capacity: vec![(0, card)], orphaned, ..run }
}

fn saw_near_full(name: &'static str, dice: &mut Dice) -> Run {
    let card = card(dice);
    let (low, high) = (card * dice.between(0.08, 0.4), card * dice.between(0.85, 0.96));
    let period = dice.log_between(1.5, 20.0);
    let mut own = Dice::new(dice.word(), 8);
    let demand = (0..(2.0 * HOUR) as usize)
        .map(|second| {
            let phase = (second as f64 / period).fract();
            (low + (high - low) * phase * own.between(0.9, 1.0)).round()
        })
        .collect();
    Run::single(name, card, demand, Kind::None)
}

fn empty_cache(name: &'static str, dice: &mut Dice) -> Run {
    let (card, seconds) = (card(dice), quiet(dice));
    let (live, top) = (card * dice.between(0.2, 0.5), card * dice.between(0.6, 0.93));
    let period = dice.log_between(60.0, 25.0 * MINUTE);
    let power = dice.between(0.3, 1.0);
    let demand = curve(dice, seconds, live, |second| (top - live) * ((second % period) / period).powf(power));
    Run::single(name, card, demand, Kind::None)
}

fn phases(name: &'static str, dice: &mut Dice) -> Run {
    let way = Way::new(dice, 2.0, 5.0);
    let creeps = dice.chance(0.5);
    let size = way.height() * dice.between(0.1, 0.3);
    let (one, other) = (dice.log_between(30.0, 240.0), dice.log_between(30.0, 240.0));
    let demand = curve(dice, way.seconds(), way.base, |second| {
        let high = if second % (one + other) < one { size } else { 0.0 };
        high + if creeps { way.height() * way.share(second) } else { 0.0 }
    });
    Run::single(name, way.card, demand, Kind::Gradual)
}

fn oversubscribed(name: &'static str, dice: &mut Dice) -> Run {
    let (card, seconds) = (card(dice), quiet(dice));
    let over = dice.log_between(30.0, 3600.0);
    let base = 0.2 * card;
    // Managed memory: full is where it stays, and nothing fails.
    let demand = curve(dice, seconds, base, |second| (0.8 * card * second / over).min(0.79 * card) - 2.0);
    Run::single(name, card, demand.into_iter().map(|used| used.min(card)).collect(), Kind::None).declared(card)
}

fn faults(name: &'static str, dice: &mut Dice) -> Run {
    let mut run = if dice.chance(0.5) { linear(name, dice, 2.0, 5.0) } else { plateau(name, dice) };
    let missing = dice.between(0.02, 0.1);
    let hole = dice.between(60.0, 900.0) as usize;
    for used in run.tenants.iter_mut().flat_map(|tenant| &mut tenant.used) {
        if dice.chance(missing) {
            *used = f64::NAN;
        } else if dice.chance(0.0005) {
            *used = 0.0;
        }
    }
    let from = (dice.between(0.2, 0.8) * run.seconds() as f64) as usize;
    for used in run.tenants.iter_mut().flat_map(|tenant| tenant.used.iter_mut().skip(from).take(hole)) {
        *used = f64::NAN;
    }
    run
}

fn resized(name: &'static str, dice: &mut Dice) -> Run {
    let (card, seconds) = (card(dice), quiet(dice));
    let level = card * dice.between(0.2, 0.45);
    let mut jitter = Jitter::new(dice, 0.002 * card);
    let demand = curve(dice, seconds, level, |_| jitter.next());
    let at = (dice.between(0.2, 0.8) * seconds) as usize;
    let run = Run::single(name, card, demand, Kind::None);
    Run { capacity: vec![(0, card), (at, card * dice.pick(&[0.5, 0.75]))], ..run }
}

fn leak_spikes(name: &'static str, dice: &mut Dice, low: f64, high: f64) -> Run {
    let way = Way::new(dice, low, high);
    let size = way.card * dice.between(0.03, 0.2);
    let (length, period) = (dice.log_between(10.0, 120.0), dice.log_between(4.0, 40.0) * MINUTE);
    let mut spikes = Spikes::new(dice, size, length, period);
    let mut jitter = Jitter::new(dice, 0.003 * way.card);
    let demand = curve(dice, way.seconds(), way.base, |second| {
        way.share(second) * way.height() + spikes.at(second) + jitter.next()
    });
    Run::single(name, way.card, demand, Kind::Gradual)
}

fn leak_spikes_restart(name: &'static str, dice: &mut Dice) -> Run {
    let (mut used, mut ooms) = (Vec::new(), Vec::new());
    let first = leak_spikes(name, dice, 1.5, 3.0);
    let card = first.capacity[0].1;
    for life in [first, leak_spikes(name, dice, 1.5, 3.0)] {
        let scale = card / life.capacity[0].1;
        used.extend(life.tenants[0].used.iter().map(|used| (used * scale).round()));
        ooms.push(used.len());
        used.extend(std::iter::repeat_n(f64::NAN, dice.between(5.0, 90.0) as usize));
    }
    Run { ooms, kind: Kind::Gradual, ..Run::single(name, card * 2.0, used, Kind::Gradual) }.with_capacity(card)
}

impl Run {
    fn with_capacity(mut self, card: f64) -> Self {
        self.capacity = vec![(0, card)];
        self
    }
}

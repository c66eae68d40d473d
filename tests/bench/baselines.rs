//! What people run today, in the same setting and with the same blind start as the forecast.
//!
//! Each keeps the readings of one tenant a minute of the horizon apart (H/60) and says whether it would alarm, or a
//! probability. The room of a tenant is the device less what the others use.

use crate::feed::Feed;
use crate::judge::{Eval, Setting};
use crate::lstm::{Memory, Model};

/// A rule and for how long it must hold, as shares of the horizon.
#[derive(Clone, Copy, Debug)]
pub struct Baseline {
    pub name: &'static str,
    pub rule: Rule,
    pub hold: f64,
}

#[derive(Clone, Copy, Debug)]
pub enum Rule {
    Never,
    /// Always the training half's rates.
    BaseRate,
    /// Level at or above a share of capacity.
    Level(f64),
    /// Least squares over the window (share of H), H ahead, with at least this level.
    Linear(f64, f64),
    /// Double exponential smoothing (0.3, 0.1), H ahead.
    Holt,
    /// Highest so far plus 15 % does not fit.
    Peak,
    /// Brownian motion with drift over half a horizon: first passage (inverse Gaussian).
    Brownian,
    /// h / (n + h) with exponential excess.
    Record,
    /// The learned sequence model, see `lstm/mod.rs`.
    Lstm,
}

pub const ALL: &[Baseline] = &[
    Baseline { name: "never", rule: Rule::Never, hold: 0.0 },
    Baseline { name: "base_rate", rule: Rule::BaseRate, hold: 0.05 },
    Baseline { name: "level_80", rule: Rule::Level(0.8), hold: 0.05 },
    Baseline { name: "level_90", rule: Rule::Level(0.9), hold: 0.05 },
    Baseline { name: "level_95", rule: Rule::Level(0.95), hold: 0.05 },
    Baseline { name: "linear_10m", rule: Rule::Linear(1.0 / 6.0, 0.0), hold: 0.0 },
    Baseline { name: "linear_10m_for5", rule: Rule::Linear(1.0 / 6.0, 0.0), hold: 1.0 / 12.0 },
    Baseline { name: "linear_30m_for5", rule: Rule::Linear(0.5, 0.0), hold: 1.0 / 12.0 },
    Baseline { name: "linear_60m_for0", rule: Rule::Linear(1.0, 0.0), hold: 0.0 },
    Baseline { name: "linear_60m_for5", rule: Rule::Linear(1.0, 0.0), hold: 1.0 / 12.0 },
    Baseline { name: "linear_60m_for15", rule: Rule::Linear(1.0, 0.0), hold: 0.25 },
    Baseline { name: "linear_60m_80_for15", rule: Rule::Linear(1.0, 0.8), hold: 0.25 },
    Baseline { name: "holt", rule: Rule::Holt, hold: 0.05 },
    Baseline { name: "peak_15", rule: Rule::Peak, hold: 0.05 },
    Baseline { name: "brownian", rule: Rule::Brownian, hold: 0.05 },
    Baseline { name: "record", rule: Rule::Record, hold: 0.05 },
    Baseline { name: "lstm", rule: Rule::Lstm, hold: 0.05 },
];

/// One tenant at one evaluation.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub at: f64,
    pub tenant: usize,
    pub segment: u64,
    pub age: f64,
    pub used: f64,
    /// What the others leave it.
    pub room: f64,
}

/// Every tenant's newest reading every `setting.every` seconds.
pub fn walk(feed: &Feed, setting: &Setting, mut see: impl FnMut(Reading)) {
    let mut born = vec![(u64::MAX, 0.0); feed.tenants];
    let mut latest = vec![0.0; feed.tenants];
    let mut next = setting.every;
    let mut rows = feed.rows.iter().peekable();
    while let Some(row) = rows.next() {
        if born[row.tenant].0 != row.segment {
            born[row.tenant] = (row.segment, row.at);
        }
        latest[row.tenant] = row.used;
        if rows.peek().is_some_and(|later| later.at <= row.at) || row.at < next {
            continue;
        }
        next = (row.at / setting.every).floor() * setting.every + setting.every;
        for tenant in 0..feed.tenants {
            let others: f64 = (0..feed.tenants).filter(|other| *other != tenant).map(|other| latest[other]).sum();
            let room = feed.capacity_at(row.at) - feed.orphaned - others;
            let (segment, from) = born[tenant];
            see(Reading { at: row.at, tenant, segment, age: row.at - from, used: latest[tenant], room });
        }
    }
}

/// Evaluations of one rule over a feed. `rates` are the training half's base rates for 300, 900 and 3600 s.
pub fn evals(baseline: &Baseline, feed: &Feed, setting: &Setting, rates: [f64; 3]) -> Vec<Eval> {
    let mut evals = Vec::new();
    let mut readings: Vec<Vec<(f64, f64)>> = vec![Vec::new(); feed.tenants];
    let mut memories = vec![Memory::default(); feed.tenants];
    let mut segments = vec![u64::MAX; feed.tenants];
    let model = matches!(baseline.rule, Rule::Lstm).then(Model::committed);
    walk(feed, setting, |Reading { at, tenant, segment, age, used, room }| {
        let (known, memory) = (&mut readings[tenant], &mut memories[tenant]);
        if std::mem::replace(&mut segments[tenant], segment) != segment {
            known.clear();
            *memory = Memory::default();
        }
        known.push((at, used));
        let (risk, within) = if let Some(model) = &model {
            model.take(memory, used, room, age, setting.horizon);
            (memory.within[2], memory.within)
        } else {
            let says =
                |horizon: f64, place: usize| say(baseline.rule, known, age, room, horizon, setting, rates[place]);
            (says(setting.horizon, 2), [says(300.0, 0), says(900.0, 1), says(3600.0, 2)])
        };
        evals.push(Eval { at, tenant, segment, age, risk: Some(risk), within: Some(within), time: None });
    });
    evals
}

fn say(rule: Rule, readings: &[(f64, f64)], age: f64, room: f64, horizon: f64, setting: &Setting, rate: f64) -> f64 {
    let (now, used) = readings.last().copied().unwrap_or_default();
    let yes = |yes: bool| f64::from(u8::from(yes));
    match rule {
        Rule::Never | Rule::Lstm => 0.0,
        Rule::BaseRate => rate,
        Rule::Level(share) => yes(used >= share * room),
        Rule::Linear(window, guard) => {
            let (slope, _) = line(readings, now - window * setting.horizon);
            yes(used >= guard * room && slope > 0.0 && used + slope * horizon >= room)
        }
        Rule::Holt => {
            let (mut level, mut trend, mut before) = (used, 0.0, None::<f64>);
            for (_, value) in readings.iter().rev().take(120).rev() {
                match before {
                    None => level = *value,
                    Some(last) => {
                        let old = level;
                        level = 0.3 * value + 0.7 * (level + trend);
                        trend = 0.1 * (level - old) + 0.9 * if trend == 0.0 { value - last } else { trend };
                    }
                }
                before = Some(*value);
            }
            yes(level + trend * horizon / setting.every >= room)
        }
        Rule::Peak => yes(1.15 * readings.iter().fold(0.0_f64, |peak, (_, used)| peak.max(*used)) >= room),
        Rule::Brownian => {
            let from = now - 0.5 * setting.horizon;
            let steps: Vec<f64> =
                readings.windows(2).filter(|pair| pair[0].0 >= from).map(|pair| pair[1].1 - pair[0].1).collect();
            let n = steps.len().max(1) as f64;
            let drift = steps.iter().sum::<f64>() / n;
            let variance = (steps.iter().map(|step| (step - drift).powi(2)).sum::<f64>() / n).max(1.0);
            let (drift, variance) = (drift / setting.every, variance / setting.every);
            let gap = (room - used).max(1.0);
            let root = (variance * horizon).sqrt();
            let tail = (2.0 * drift * gap / variance).min(50.0).exp() * normal((-gap - drift * horizon) / root);
            (normal((drift * horizon - gap) / root) + tail).clamp(0.0, 1.0)
        }
        Rule::Record => {
            let peak = readings.iter().fold(0.0_f64, |peak, (_, used)| peak.max(*used));
            horizon / (age + horizon) * (-(room - peak).max(0.0) / (0.07 * room)).exp()
        }
    }
}

fn line(readings: &[(f64, f64)], from: f64) -> (f64, usize) {
    let inside = || readings.iter().rev().take_while(|(at, _)| *at >= from);
    let n = inside().count();
    if n < 2 {
        return (0.0, n);
    }
    let (x, y) = inside().fold((0.0, 0.0), |sum, (at, used)| (sum.0 + at, sum.1 + used));
    let (x, y) = (x / n as f64, y / n as f64);
    let (xx, xy) =
        inside().fold((0.0, 0.0), |sum, (at, used)| (sum.0 + (at - x).powi(2), sum.1 + (at - x) * (used - y)));
    (if xx > 0.0 { xy / xx } else { 0.0 }, n)
}

fn normal(z: f64) -> f64 {
    let x = z.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.3275911 * x);
    let series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    let tail = 0.5 * series * (-x * x).exp();
    if z >= 0.0 { 1.0 - tail } else { tail }
}

//! From probabilities to alarms, and from alarms to right, false and neither.
//!
//! Definitions, in one setting for everyone: warm-up H/15, act dwell H/20 running during warm-up, an evaluation every H/60,
//! clear after H/5. An alarm is right if it is raised at most 1.5 H before an OOM of the named culprit, or earlier and
//! still up when it comes. One whose t + H lies beyond the end of a run that did not run out counts neither way.

use crate::feed::Feed;

#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub horizon: f64,
    pub warm_up: f64,
    pub dwell: f64,
    pub clear_for: f64,
    pub every: f64,
    pub act: f64,
    pub clear: f64,
}

impl Setting {
    pub fn of(horizon: f64) -> Self {
        Self {
            horizon,
            warm_up: horizon / 15.0,
            dwell: horizon / 20.0,
            clear_for: horizon / 5.0,
            every: horizon / 60.0,
            act: 0.8,
            clear: 0.5,
        }
    }
}

impl Setting {
    /// The same with another dwell, as a share of the horizon: rules that people hold for a time of their own.
    pub fn held(&self, share: f64) -> Self {
        Self { dwell: share * self.horizon, ..*self }
    }
}

/// One evaluation of one tenant.
#[derive(Clone, Copy, Debug)]
pub struct Eval {
    pub at: f64,
    pub tenant: usize,
    pub segment: u64,
    /// Age of the life.
    pub age: f64,
    /// P within the setting's horizon; `None` for no answer.
    pub risk: Option<f64>,
    /// P within 300, 900 and 3600 s.
    pub within: Option<[f64; 3]>,
    /// Quantiles of the time to OOM in seconds.
    pub time: Option<[f64; 3]>,
}

#[derive(Clone, Copy, Debug)]
pub struct Episode {
    pub tenant: usize,
    pub raised: f64,
    pub cleared: f64,
}

/// Turns evaluations into episodes, tenant by tenant.
pub fn episodes(evals: &[Eval], feed: &Feed, setting: &Setting) -> Vec<Episode> {
    let mut all = Vec::new();
    for tenant in 0..feed.tenants {
        let (mut above, mut below, mut up) = (None::<f64>, None::<f64>, None::<f64>);
        let mut segment = None;
        let mut last = 0.0;
        for eval in evals.iter().filter(|eval| eval.tenant == tenant) {
            if segment != Some(eval.segment) {
                if let Some(raised) = up.take() {
                    all.push(Episode { tenant, raised, cleared: last + setting.every });
                }
                (above, below, segment) = (None, None, Some(eval.segment));
            }
            last = eval.at;
            let Some(risk) = eval.risk else {
                above = None;
                continue;
            };
            above = if risk >= setting.act { above.or(Some(eval.at)) } else { None };
            below = if risk <= setting.clear { below.or(Some(eval.at)) } else { None };
            match up {
                None => {
                    let held = above.is_some_and(|since| eval.at - since >= setting.dwell - 1e-6);
                    if held && eval.age >= setting.warm_up {
                        up = Some(eval.at);
                    }
                }
                Some(raised) => {
                    if below.is_some_and(|since| eval.at - since >= setting.clear_for) {
                        all.push(Episode { tenant, raised, cleared: eval.at });
                        up = None;
                        above = None;
                    }
                }
            }
        }
        if let Some(raised) = up {
            all.push(Episode { tenant, raised, cleared: f64::INFINITY });
        }
    }
    all
}

/// What became of one run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Seconds of notice for each OOM; `None` for a missed one.
    pub leads: Vec<Option<f64>>,
    pub false_alarms: Vec<Episode>,
    pub censored: usize,
    pub hours: f64,
    /// Pairs of P and what happened, for 300, 900 and 3600 s.
    pub pairs: [Vec<(f64, bool)>; 3],
    /// Evaluations with an interval, and those that held the truth.
    pub intervals: (usize, usize),
    /// log2(q50 / true) at each of them.
    pub errors: Vec<f64>,
    /// The same, 50 to 70 minutes before.
    pub early: Vec<f64>,
    /// Evaluations without an answer, and all.
    pub silent: (usize, usize),
}

pub const HORIZONS: [f64; 3] = [300.0, 900.0, 3600.0];

pub fn judge(evals: &[Eval], feed: &Feed, setting: &Setting) -> Outcome {
    let mut outcome = Outcome { hours: feed.end / 3600.0, leads: vec![None; feed.ooms.len()], ..Outcome::default() };
    for episode in episodes(evals, feed, setting) {
        let next = feed.ooms.iter().position(|oom| episode.raised < *oom).map(|place| (place, feed.ooms[place]));
        let right = next.filter(|(_, oom)| {
            episode.tenant == feed.culprit
                && (oom - episode.raised <= 1.5 * setting.horizon || episode.cleared >= *oom - setting.every * 2.0)
                && episode.cleared >= (*oom).min(episode.raised + setting.every)
        });
        if let Some((place, oom)) = right {
            let lead = oom - episode.raised;
            outcome.leads[place] = Some(outcome.leads[place].map_or(lead, |known: f64| known.max(lead)));
        } else if next.is_none() && episode.raised + setting.horizon > feed.end {
            outcome.censored += 1;
        } else {
            outcome.false_alarms.push(episode);
        }
    }
    for eval in evals.iter().filter(|eval| eval.tenant == feed.culprit) {
        outcome.silent.1 += 1;
        outcome.silent.0 += usize::from(eval.risk.is_none());
        let next = feed.ooms.iter().copied().find(|oom| *oom > eval.at);
        if let Some(within) = eval.within {
            for (place, horizon) in HORIZONS.into_iter().enumerate() {
                let happened = next.is_some_and(|oom| oom <= eval.at + horizon);
                if happened || eval.at + horizon <= feed.end {
                    outcome.pairs[place].push((within[place], happened));
                }
            }
        }
        if let (Some([q10, q50, q90]), Some(oom)) = (eval.time, next) {
            let truth = oom - eval.at;
            if truth <= 2.0 * setting.horizon {
                outcome.intervals.0 += 1;
                outcome.intervals.1 += usize::from(q10 <= truth && truth <= q90);
                if (3000.0..4200.0).contains(&truth) {
                    outcome.early.push((q50 / truth).log2());
                }
                outcome.errors.push((q50 / truth.max(1.0)).log2());
            }
        }
    }
    outcome
}

/// A figure with its 95 % bootstrap interval over runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figure {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

/// Resamples runs, 200 times, seeded.
pub fn bootstrap(outcomes: &[Outcome], figure: impl Fn(&[&Outcome]) -> f64) -> Figure {
    let all: Vec<&Outcome> = outcomes.iter().collect();
    let value = figure(&all);
    if all.is_empty() {
        return Figure { value, low: value, high: value };
    }
    let mut dice = crate::corpus::dice::Dice::new(4242, all.len() as u64);
    let mut values: Vec<f64> = (0..200)
        .map(|_| {
            let again: Vec<&Outcome> = (0..all.len()).map(|_| all[(dice.unit() * all.len() as f64) as usize]).collect();
            figure(&again)
        })
        .collect();
    values.sort_by(f64::total_cmp);
    Figure { value, low: values[4], high: values[195] }
}

pub fn recall(outcomes: &[&Outcome], lead: f64) -> f64 {
    let leads = || outcomes.iter().flat_map(|outcome| &outcome.leads);
    leads().filter(|known| known.is_some_and(|known| known >= lead)).count() as f64 / leads().count().max(1) as f64
}

pub fn median_lead(outcomes: &[&Outcome]) -> f64 {
    median(outcomes.iter().flat_map(|outcome| &outcome.leads).filter_map(|lead| *lead).collect())
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Share of runs with any false alarm.
pub fn runs_with_false(outcomes: &[&Outcome]) -> f64 {
    let with = outcomes.iter().filter(|outcome| !outcome.false_alarms.is_empty()).count();
    with as f64 / outcomes.len().max(1) as f64
}

pub fn false_per_hour(outcomes: &[&Outcome]) -> f64 {
    let alarms: usize = outcomes.iter().map(|outcome| outcome.false_alarms.len()).sum();
    alarms as f64 / outcomes.iter().map(|outcome| outcome.hours).sum::<f64>().max(1e-9)
}

/// Brier skill against always saying `rate`.
pub fn skill(outcomes: &[&Outcome], place: usize, rate: f64) -> f64 {
    let pairs = || outcomes.iter().flat_map(|outcome| &outcome.pairs[place]);
    let brier = |say: &dyn Fn(f64) -> f64| -> f64 {
        pairs().map(|(p, happened)| (say(*p) - f64::from(u8::from(*happened))).powi(2)).sum()
    };
    let climate = brier(&|_| rate);
    // Where nothing ever happens there is nothing to be skilled at.
    if climate <= 0.0 { f64::NAN } else { 1.0 - brier(&|p| p) / climate }
}

pub fn rate(outcomes: &[&Outcome], place: usize) -> f64 {
    let pairs = || outcomes.iter().flat_map(|outcome| &outcome.pairs[place]);
    pairs().filter(|(_, happened)| *happened).count() as f64 / pairs().count().max(1) as f64
}

pub fn log_loss(outcomes: &[&Outcome], place: usize) -> f64 {
    let pairs = || outcomes.iter().flat_map(|outcome| &outcome.pairs[place]);
    let loss: f64 = pairs().map(|(p, happened)| -(if *happened { *p } else { 1.0 - p }).clamp(1e-4, 1.0).ln()).sum();
    loss / pairs().count().max(1) as f64
}

/// Expected calibration error over ten bins of equal count.
pub fn calibration_error(outcomes: &[&Outcome], place: usize) -> f64 {
    let mut pairs: Vec<_> = outcomes.iter().flat_map(|outcome| outcome.pairs[place].iter().copied()).collect();
    pairs.sort_by(|one, other| one.0.total_cmp(&other.0));
    let all = pairs.len().max(1) as f64;
    pairs
        .chunks((pairs.len() / 10).max(1))
        .map(|bin| {
            let said: f64 = bin.iter().map(|(p, _)| p).sum();
            let seen = bin.iter().filter(|(_, happened)| *happened).count() as f64;
            (said - seen).abs() / all
        })
        .sum()
}

pub fn coverage(outcomes: &[&Outcome]) -> f64 {
    let sum = outcomes.iter().fold((0, 0), |sum, run| (sum.0 + run.intervals.0, sum.1 + run.intervals.1));
    sum.1 as f64 / f64::from(u32::try_from(sum.0.max(1)).unwrap_or(1))
}

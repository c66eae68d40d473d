//! From probabilities to a level: thresholds, dwell and hysteresis of a policy.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Evaluation;
use crate::policy::Prediction;

/// How urgent it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Level {
    /// No forecast.
    #[default]
    Unknown,
    /// Nothing to do.
    Low,
    /// Above the clear threshold, or above the act threshold but not for long enough yet.
    Elevated,
    /// The policy would act.
    High,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unknown => "Unknown",
            Self::Low => "Low",
            Self::Elevated => "Elevated",
            Self::High => "High",
        })
    }
}

/// Whether an alarm is up, and since when its thresholds are met.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Alarm {
    above: Option<f64>,
    below: Option<f64>,
    up: bool,
}

impl Alarm {
    /// Takes the risk at `t_s` of a container of this `age` and says the level. No forecast neither raises nor clears.
    pub fn step(&mut self, t_s: f64, age: Duration, risk: Option<f64>, prediction: &Prediction) -> Level {
        let Some(risk) = risk else {
            self.above = None;
            return Level::Unknown;
        };
        self.above = if risk >= prediction.act_probability { self.above.or(Some(t_s)) } else { None };
        self.below = if risk <= prediction.clear_probability { self.below.or(Some(t_s)) } else { None };
        let held = |since: Option<f64>, long: Duration| since.is_some_and(|since| t_s - since >= long.as_secs_f64());
        if self.up {
            self.up = !held(self.below, prediction.clear_for);
        } else {
            self.up = age >= prediction.warm_up && held(self.above, prediction.act_for);
        }
        if age < prediction.warm_up {
            Level::Unknown
        } else if self.up {
            Level::High
        } else if risk > prediction.clear_probability {
            Level::Elevated
        } else {
            Level::Low
        }
    }
}

/// One alarm from raise to clear.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Episode {
    /// Device it was raised on.
    pub gpu: String,
    /// Whom it names.
    pub culprit: String,
    /// Seconds as in the file.
    pub raised_s: f64,
    /// `None` while it is up at the end of the file.
    pub cleared_s: Option<f64>,
    /// The sentence at the raise.
    pub reason: String,
}

/// The alarms a policy would have raised, by the time of the raise.
pub fn episodes(evaluations: &[Evaluation]) -> Vec<Episode> {
    let mut open: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut episodes: Vec<Episode> = Vec::new();
    for evaluation in evaluations {
        let key = (&*evaluation.gpu, &*evaluation.container);
        match (evaluation.level, open.get(&key)) {
            (Level::High, None) => {
                open.insert(key, episodes.len());
                episodes.push(Episode {
                    gpu: evaluation.gpu.clone(),
                    culprit: evaluation.container.clone(),
                    raised_s: evaluation.t_s,
                    cleared_s: None,
                    reason: evaluation.forecast.reason.clone(),
                });
            }
            (Level::Low | Level::Elevated, Some(&place)) => {
                open.remove(&key);
                if let Some(episode) = episodes.get_mut(place) {
                    episode.cleared_s = Some(evaluation.t_s);
                }
            }
            (Level::High, Some(_)) | (Level::Low | Level::Elevated, None) | (Level::Unknown, _) => {}
        }
    }
    episodes
}

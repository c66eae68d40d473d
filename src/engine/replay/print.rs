//! Evaluations and episodes as text for people, and as objects for machines.

use std::fmt::Write as _;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{Episode, Evaluation};
use crate::forecast::{Outlook, TimeToOom};

/// One line per evaluation, with a header.
pub fn table(evaluations: &[Evaluation]) -> String {
    let wide = evaluations.iter().map(|evaluation| evaluation.container.len()).max().unwrap_or(0).max(9);
    let mut text =
        format!("{:>9}  {:wide$}  {:8}  {:>4}  {:>9}  REASON\n", "TIME", "CONTAINER", "LEVEL", "P", "OOM IN");
    for evaluation in evaluations {
        let (probability, time) = match &evaluation.forecast.outlook {
            Outlook::Known { probability, time_to_oom, .. } => {
                let time = time_to_oom.map_or_else(|| "-".to_owned(), |time| format!("{:.0}s", time.q50.as_secs_f64()));
                (format!("{:.0}%", 100.0 * probability), time)
            }
            Outlook::Unknown { .. } => ("-".to_owned(), "-".to_owned()),
        };
        let _ = writeln!(
            text,
            "{:>8.0}s  {:wide$}  {:8}  {probability:>4}  {time:>9}  {}",
            evaluation.t_s, evaluation.container, evaluation.level, evaluation.forecast.reason
        );
    }
    text
}

/// One line per alarm, with a header; one sentence where there was none.
pub fn summary(episodes: &[Episode]) -> String {
    if episodes.is_empty() {
        return "no alarm would have been raised\n".to_owned();
    }
    let wide = episodes.iter().map(|episode| episode.culprit.len()).max().unwrap_or(0).max(7);
    let mut text = format!("{:>9}  {:>9}  {:wide$}  REASON\n", "RAISED", "CLEARED", "CULPRIT");
    for episode in episodes {
        let cleared = episode.cleared_s.map_or_else(|| "-".to_owned(), |cleared| format!("{cleared:.0}s"));
        let _ =
            writeln!(text, "{:>8.0}s  {cleared:>9}  {:wide$}  {}", episode.raised_s, episode.culprit, episode.reason);
    }
    text
}

// Objects as documented: flat, probabilities by horizon, `null` where nothing is said.
impl Serialize for Evaluation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("t_s", &self.t_s)?;
        if !self.gpu.is_empty() {
            map.serialize_entry("gpu", &self.gpu)?;
        }
        map.serialize_entry("container", &self.container)?;
        map.serialize_entry("level", &self.level)?;
        map.serialize_entry("class", &self.forecast.class)?;
        map.serialize_entry("regime", self.forecast.class.regime())?;
        map.serialize_entry("reason", &self.forecast.reason)?;
        match &self.forecast.outlook {
            Outlook::Known { by_horizon, time_to_oom, .. } => {
                map.serialize_entry("probability", &ByHorizon(by_horizon))?;
                map.serialize_entry("seconds_to_oom", &time_to_oom.map(Quantiles))?;
            }
            Outlook::Unknown { why } => {
                map.serialize_entry("unknown", why.kind())?;
                map.serialize_entry("probability", &None::<()>)?;
                map.serialize_entry("seconds_to_oom", &None::<()>)?;
            }
        }
        map.end()
    }
}

struct ByHorizon<'a>(&'a [(u32, f64); 3]);

impl Serialize for ByHorizon<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(horizon, probability)| (horizon.to_string(), probability)))
    }
}

struct Quantiles(TimeToOom);

impl Serialize for Quantiles {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let TimeToOom { q10, q50, q90 } = self.0;
        serializer
            .collect_map([("q10", q10), ("q50", q50), ("q90", q90)].map(|(name, value)| (name, value.as_secs_f64())))
    }
}

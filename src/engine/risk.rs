//! When a forecast counts as a risk: two thresholds, each held for a while, so that a probability that swings around one
//! of them decides nothing.
//!
//! Flows in: `now` and the newest [`Forecast`] of one container. Flows out: its [`Level`]. Only time that was watched
//! counts: a gap, or a forecast that is unknown, adds nothing to either dwell, so a restart or missing data can delay an
//! action and never cause one.

use std::time::Duration;

use crate::forecast::{Class, Forecast, Outlook};
use crate::policy::Prediction;
use crate::quantity::Moment;

/// Level of risk of a container under a policy, mildest first: where several devices or containers stand for one pod, the
/// last of these is its own. Unknown is worse than Low, because nobody can say that it is low.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// No OOM is expected within the horizon.
    Low,
    /// There is no forecast; its outlook says why.
    Unknown,
    /// Between the clear and the act threshold, or over the latter for too short a time.
    Elevated,
    /// Over the act threshold for long enough, and not below the clear threshold for long enough since.
    High,
}

/// What has to be remembered of one container instance under one policy between two forecasts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hysteresis {
    raised: bool,
    over: Duration,
    under: Duration,
    newest: Option<(Moment, Zone)>,
    interrupted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Zone {
    Under,
    Between,
    Over,
}

impl Hysteresis {
    /// Takes the forecast of `now` and says what the level is.
    ///
    /// During the warm-up the dwell runs where the forecast gives a probability, so that it need not start anew afterwards,
    /// but the level does not reach High.
    pub fn feed(&mut self, now: Moment, prediction: &Prediction, forecast: &Forecast) -> Level {
        let probability = match forecast.outlook {
            Outlook::Known { probability, .. } if probability.is_finite() => probability,
            Outlook::Known { .. } | Outlook::Unknown { .. } => {
                self.interrupted = true;
                return Level::Unknown;
            }
        };
        let zone = zone(prediction, probability);
        let watched = self.watched(now, prediction, zone);
        match zone {
            Zone::Over => (self.over, self.under) = (self.over + watched, Duration::ZERO),
            Zone::Between => (self.over, self.under) = (Duration::ZERO, Duration::ZERO),
            Zone::Under => (self.over, self.under) = (Duration::ZERO, self.under + watched),
        }
        self.newest = Some((now, zone));
        self.interrupted = false;
        match zone {
            Zone::Over if self.over >= prediction.act_for && forecast.class != Class::WarmUp => self.raised = true,
            Zone::Under if self.under >= prediction.clear_for => self.raised = false,
            Zone::Over | Zone::Between | Zone::Under => {}
        }
        match (self.raised, zone) {
            (true, _) => Level::High,
            (false, Zone::Under) => Level::Low,
            (false, Zone::Between | Zone::Over) => Level::Elevated,
        }
    }

    /// How much of the time since the last forecast counts for the dwell. After a gap longer than a sample may be old,
    /// both dwells start anew.
    fn watched(&mut self, now: Moment, prediction: &Prediction, zone: Zone) -> Duration {
        let Some((at, last)) = self.newest else { return Duration::ZERO };
        let passed = now.since(at);
        if passed > prediction.max_sample_age {
            (self.over, self.under) = (Duration::ZERO, Duration::ZERO);
            return Duration::ZERO;
        }
        if last == zone && !self.interrupted { passed } else { Duration::ZERO }
    }
}

fn zone(prediction: &Prediction, probability: f64) -> Zone {
    if probability >= prediction.act_probability {
        Zone::Over
    } else if probability <= prediction.clear_probability {
        Zone::Under
    } else {
        Zone::Between
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::forecast::Unknown;
    use crate::quantity::Bytes;

    fn prediction() -> Prediction {
        Prediction::default()
    }

    fn known(class: Class, probability: f64) -> Forecast {
        let outlook =
            Outlook::Known { probability, by_horizon: [(300, 0.0), (900, 0.0), (3600, 0.0)], time_to_oom: None };
        Forecast { class, growth: None, outlook, gave_back: Bytes::ZERO, reason: String::new() }
    }

    fn unknown() -> Forecast {
        let outlook = Outlook::Unknown { why: Unknown::Stale };
        Forecast { class: Class::Unknown, growth: None, outlook, gave_back: Bytes::ZERO, reason: String::new() }
    }

    /// Feeds one forecast a second from `from` to `to`, both included, and gives the last level.
    fn hold(risk: &mut Hysteresis, from: u64, to: u64, forecast: &Forecast) -> Level {
        let mut level = Level::Unknown;
        for second in from..=to {
            level = risk.feed(Moment::from_secs(second), &prediction(), forecast);
        }
        level
    }

    #[test]
    fn a_probability_over_the_act_level_counts_only_when_it_stays_there() {
        let mut risk = Hysteresis::default();
        assert_eq!(hold(&mut risk, 0, 119, &known(Class::Leak, 0.9)), Level::Elevated);
        assert_eq!(hold(&mut risk, 120, 120, &known(Class::Leak, 0.9)), Level::High);
    }

    #[test]
    fn a_probability_that_swings_around_the_act_level_never_counts() {
        let mut risk = Hysteresis::default();
        for second in 0..3600 {
            let probability = if second % 2 == 0 { 0.79 } else { 0.81 };
            let level = risk.feed(Moment::from_secs(second), &prediction(), &known(Class::Leak, probability));
            assert_eq!(level, Level::Elevated);
        }
    }

    #[test]
    fn a_risk_clears_only_after_it_was_low_for_long_enough() {
        let mut risk = Hysteresis::default();
        hold(&mut risk, 0, 120, &known(Class::Leak, 0.9));
        assert_eq!(hold(&mut risk, 121, 420, &known(Class::Plateau, 0.1)), Level::High);
        assert_eq!(hold(&mut risk, 421, 421, &known(Class::Plateau, 0.1)), Level::Low);
    }

    #[test]
    fn unknown_neither_raises_nor_clears_and_its_time_does_not_count() {
        let mut risk = Hysteresis::default();
        hold(&mut risk, 0, 100, &known(Class::Leak, 0.9));
        assert_eq!(hold(&mut risk, 101, 110, &unknown()), Level::Unknown);
        // 100 s were watched before, the 11 s around the hole are not.
        assert_eq!(hold(&mut risk, 111, 130, &known(Class::Leak, 0.9)), Level::Elevated);
        assert_eq!(hold(&mut risk, 131, 131, &known(Class::Leak, 0.9)), Level::High);
        assert_eq!(hold(&mut risk, 132, 1000, &unknown()), Level::Unknown);
        assert_eq!(hold(&mut risk, 1001, 1001, &known(Class::Leak, 0.7)), Level::High);
    }

    #[test]
    fn a_long_gap_starts_the_dwell_anew() {
        let mut risk = Hysteresis::default();
        hold(&mut risk, 0, 119, &known(Class::Leak, 0.9));
        assert_eq!(risk.feed(Moment::from_secs(1000), &prediction(), &known(Class::Leak, 0.9)), Level::Elevated);
        assert_eq!(hold(&mut risk, 1001, 1119, &known(Class::Leak, 0.9)), Level::Elevated);
        assert_eq!(hold(&mut risk, 1120, 1120, &known(Class::Leak, 0.9)), Level::High);
    }

    #[test]
    fn the_dwell_runs_during_the_warm_up_but_nothing_is_high_before_its_end() {
        let mut risk = Hysteresis::default();
        assert_eq!(hold(&mut risk, 0, 500, &known(Class::WarmUp, 0.95)), Level::Elevated);
        assert_eq!(hold(&mut risk, 501, 501, &known(Class::Leak, 0.95)), Level::High);
    }

    #[test]
    fn a_probability_that_is_no_number_is_unknown() {
        let mut risk = Hysteresis::default();
        assert_eq!(hold(&mut risk, 0, 500, &known(Class::Leak, f64::NAN)), Level::Unknown);
    }

    proptest! {
        #[test]
        fn high_needs_the_act_level_held_for_the_whole_dwell(
            steps in proptest::collection::vec((0_u64..40, proptest::option::of(0.0_f64..1.0)), 1..200)
        ) {
            let (mut risk, mut now, mut history) = (Hysteresis::default(), Moment(0), Vec::new());
            for (pause, probability) in steps {
                now = now + Duration::from_secs(pause);
                let forecast = probability.map_or_else(unknown, |p| known(Class::Leak, p));
                let level = risk.feed(now, &prediction(), &forecast);
                prop_assert_eq!(level == Level::Unknown, probability.is_none());
                history.push((now, probability));
                if level == Level::High {
                    // Somewhere in the past there were 120 s of known forecasts without one below the act level.
                    let held = |from: usize| history[from..].iter()
                        .take_while(|(_, p)| p.is_none_or(|p| p >= 0.8))
                        .filter(|(_, p)| p.is_some())
                        .last()
                        .map_or(0.0, |(at, _)| at.secs_since(history[from].0));
                    prop_assert!((0..history.len()).any(|from| history[from].1.is_some() && held(from) >= 120.0));
                }
            }
        }
    }
}

//! The breaker above all policies: when much seems wrong at once, the sensor is suspected before the workloads are.
//!
//! Flows in: how many of the watched workloads are at High risk, and how actions ended. Flows out: the [`Brake`]. The state
//! is plain data: whoever keeps it stores it beside the records of deeds and steps it with `now`.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Brake, Stamp};

/// More workloads than this share of all that are watched, at High at once, open the breaker.
const SHARE_PERCENT: u64 = 30;
/// So many have to be at High at least: two of three workloads of a small cluster may well leak.
const LEAST_HIGH: u32 = 4;
/// More failed actions than this share of those within [`WINDOW`] open the breaker.
const FAILED_PERCENT: usize = 50;
/// So many actions have to have ended within [`WINDOW`] at least.
const LEAST_OUTCOMES: usize = 4;
/// How long an outcome counts.
const WINDOW: Duration = Duration::from_hours(1);
/// How long the breaker stays open before one action is let through.
const OPEN_FOR: Duration = Duration::from_mins(30);
/// Outcomes kept; budgets allow far fewer within [`WINDOW`].
const MOST_OUTCOMES: usize = 64;

/// State of the breaker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Breaker {
    /// Open, with why, or closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<Open>,
    /// How the actions of the last hour ended, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outcomes: Vec<Ended>,
}

/// An open breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Open {
    /// Why.
    pub cause: Cause,
    /// From then on one action is let through.
    pub until: Stamp,
}

/// How one action ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// When.
    pub at: Stamp,
    /// Whether it failed: the API refused it for a reason that is not the workload's, or it was never seen to work.
    pub failed: bool,
}

/// Why a breaker opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// Too many workloads at High at once.
    ManyAtRisk {
        /// So many.
        high: u32,
        /// Of so many.
        watched: u32,
    },
    /// Too many actions failed.
    ActionsFail {
        /// So many.
        failed: u32,
        /// Of so many.
        of: u32,
    },
}

impl Cause {
    /// Name for a metric label.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::ManyAtRisk { .. } => "many_at_risk",
            Self::ActionsFail { .. } => "actions_fail",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ManyAtRisk { high, watched } => write!(
                f,
                "{high} of {watched} watched workloads were at High risk at once, which looks like a faulty driver or sensor rather than leaks"
            ),
            Self::ActionsFail { failed, of } => write!(f, "{failed} of the {of} actions within an hour failed"),
        }
    }
}

impl Breaker {
    /// Looks at the fleet: `high` of `watched` workloads are at High now.
    ///
    /// A closed breaker opens where that, or the outcomes, are too bad. One that is open stays so until [`Open::until`] and
    /// then lets one action through; how that ended decides, see [`Breaker::record`].
    pub fn step(&mut self, now: Stamp, high: u32, watched: u32) {
        self.outcomes.retain(|ended| now.since(ended.at) < WINDOW);
        if self.open.is_none() {
            self.open = self.cause(high, watched).map(|cause| Open { cause, until: now + OPEN_FOR });
        }
    }

    /// Notes how an action ended that was no dry run. One that was let through by a half-open breaker closes it, or
    /// opens it for as long again; where the fleet still looks as bad, the next [`Breaker::step`] opens it anew.
    pub fn record(&mut self, now: Stamp, failed: bool) {
        if let Some(open) = self.open.filter(|open| now >= open.until) {
            self.open = failed.then_some(Open { until: now + OPEN_FOR, ..open });
            // What failed before the breaker opened is answered by the probe.
            self.outcomes.clear();
        }
        self.outcomes.push(Ended { at: now, failed });
        let surplus = self.outcomes.len().saturating_sub(MOST_OUTCOMES);
        self.outcomes.drain(..surplus);
    }

    /// What it allows at `now`.
    pub fn brake(&self, now: Stamp) -> Brake {
        match self.open {
            None => Brake::Released,
            Some(Open { until, .. }) if now >= until => Brake::HalfOpen { since: until },
            Some(Open { cause, until }) => Brake::BreakerOpen { why: cause.to_string(), until },
        }
    }

    fn cause(&self, high: u32, watched: u32) -> Option<Cause> {
        if high >= LEAST_HIGH && u64::from(high) * 100 > u64::from(watched) * SHARE_PERCENT {
            return Some(Cause::ManyAtRisk { high, watched });
        }
        let of = self.outcomes.len();
        let failed = self.outcomes.iter().filter(|ended| ended.failed).count();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        (of >= LEAST_OUTCOMES && failed * 100 > of * FAILED_PERCENT)
            .then(|| Cause::ActionsFail { failed: count(failed), of: count(of) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Stamp = Stamp(1_000_000);

    fn stepped(high: u32, watched: u32) -> Breaker {
        let mut breaker = Breaker::default();
        breaker.step(NOW, high, watched);
        breaker
    }

    fn after(secs: i64) -> Stamp {
        Stamp(NOW.0 + secs)
    }

    #[test]
    fn many_workloads_at_risk_at_once_open_it_and_a_few_of_a_small_cluster_do_not() {
        assert!(matches!(stepped(40, 100).brake(NOW), Brake::BreakerOpen { until: Stamp(1_001_800), .. }));
        assert_eq!(stepped(30, 100).brake(NOW), Brake::Released);
        assert_eq!(stepped(1, 2).brake(NOW), Brake::Released);
        assert_eq!(stepped(3, 3).brake(NOW), Brake::Released);
        assert!(matches!(stepped(4, 4).brake(NOW), Brake::BreakerOpen { .. }));
    }

    #[test]
    fn it_stays_open_for_half_an_hour_and_then_lets_one_through() {
        let mut breaker = stepped(40, 100);
        breaker.step(after(1799), 0, 100);
        assert!(matches!(breaker.brake(after(1799)), Brake::BreakerOpen { .. }), "calm does not close it");
        assert_eq!(breaker.brake(after(1800)), Brake::HalfOpen { since: after(1800) });
        let mut worked = breaker.clone();
        worked.record(after(1810), false);
        worked.step(after(1811), 10, 100);
        assert_eq!(worked.brake(after(1811)), Brake::Released);
        let mut still = breaker.clone();
        still.record(after(1810), false);
        still.step(after(1811), 40, 100);
        assert!(matches!(still.brake(after(1811)), Brake::BreakerOpen { .. }), "it still looks as bad");
        breaker.record(after(1810), true);
        assert!(matches!(breaker.brake(after(1810)), Brake::BreakerOpen { until, .. } if until == after(3610)));
    }

    #[test]
    fn actions_that_fail_more_often_than_not_open_it_and_a_few_do_not() {
        let ended = |outcomes: &[bool]| {
            let mut breaker = Breaker::default();
            for failed in outcomes {
                breaker.record(NOW, *failed);
            }
            breaker.step(NOW, 0, 100);
            breaker.brake(NOW)
        };
        assert_eq!(ended(&[true, true, true]), Brake::Released);
        assert_eq!(ended(&[true, true, false, false]), Brake::Released);
        assert!(matches!(ended(&[true, true, true, false]), Brake::BreakerOpen { .. }));
    }

    #[test]
    fn failures_are_forgotten_after_an_hour() {
        let mut breaker = Breaker::default();
        (0..4).for_each(|second| breaker.record(after(second), true));
        breaker.step(after(3600), 0, 100);
        assert_eq!(breaker.outcomes.len(), 3);
        assert_eq!(breaker.brake(after(3600)), Brake::Released);
    }

    #[test]
    fn its_state_survives_as_text() {
        let mut breaker = stepped(40, 100);
        breaker.record(after(1), true);
        let text = serde_json::to_string(&breaker).unwrap();
        assert_eq!(serde_json::from_str::<Breaker>(&text).unwrap(), breaker);
        assert_eq!(serde_json::from_str::<Breaker>("{}").unwrap(), Breaker::default());
    }
}

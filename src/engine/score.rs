//! How good the warnings were: each is judged once, by what came after it.
//!
//! Flows in: the open warnings of a workload, as its profile keeps them, and one thing that happened. Flows out: the
//! warnings that stay open and the judgements. Pure: whoever writes both back in one step never judges twice, and a restart
//! loses nothing.
//!
//! Definitions. A *warning* begins when a container's risk becomes High and is over when that clears; what happens in
//! between counts once. It is a hit where the OOM comes at most 1.5 horizons after its beginning; a warning that is still up
//! when the OOM comes later than that was early. One that clears, or whose container ends well, without an OOM within 1.5
//! horizons was a false alarm, unless somebody acted meanwhile.

use std::time::Duration;

use crate::pacing::Stamp;

/// Open warnings of one workload at most; the oldest is dropped unjudged.
pub const MAX_OPEN: usize = 20;

/// A warning that is not judged yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// UID of the pod it was about.
    pub pod: String,
    /// The container.
    pub container: String,
    /// When its risk became High.
    pub since: Stamp,
    /// The horizon of the policy that raised it.
    pub horizon: Duration,
    /// When the risk cleared; `None` while it is up.
    pub cleared: Option<Stamp>,
    /// Whether something was done about the pod since.
    pub acted: bool,
}

impl Alarm {
    /// Until when an OOM makes it a hit.
    fn credit_ends(&self) -> Stamp {
        self.since + self.horizon.mul_f64(1.5)
    }

    fn is_about(&self, pod: &str, container: &str) -> bool {
        self.pod == pod && self.container == container
    }
}

/// What a warning, or the lack of one, turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The OOM came within 1.5 horizons.
    Hit,
    /// The OOM came later than that, with the warning still up.
    Early,
    /// No OOM came, and nobody did anything to keep it away.
    FalseAlarm,
    /// An OOM without a warning.
    Missed,
    /// No OOM came after somebody acted: we, or whoever stopped the pod.
    Avoided,
    /// Nobody can say: the pod vanished, or died of something else.
    Unknown,
}

impl Outcome {
    /// All of them, so that counters start at zero.
    pub const ALL: [Self; 6] = [Self::Hit, Self::Early, Self::FalseAlarm, Self::Missed, Self::Avoided, Self::Unknown];

    /// Name for a metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hit => "Hit",
            Self::Early => "Early",
            Self::FalseAlarm => "FalseAlarm",
            Self::Missed => "Missed",
            Self::Avoided => "Avoided",
            Self::Unknown => "Unknown",
        }
    }
}

/// A judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// What it was.
    pub outcome: Outcome,
    /// From the warning to the OOM, where both came.
    pub lead: Option<Duration>,
}

/// Something that happened to one container of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// UID of its pod.
    pub pod: String,
    /// The container. Empty for all containers of the pod.
    pub container: String,
    /// When.
    pub at: Stamp,
    /// What.
    pub what: What,
}

/// See [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Its risk became High, under a policy with this horizon.
    Raised(Duration),
    /// Its risk cleared.
    Cleared,
    /// Something was done about the pod, by us or by somebody else.
    Acted,
    /// It died of a GPU OOM.
    OutOfMemory,
    /// It ended well, by itself.
    Completed,
    /// It was stopped from outside.
    Stopped,
    /// It died of something else.
    Died,
    /// Time passed, and nobody has seen it for long.
    Gone,
    /// Time passed, and it still runs.
    Passed,
}

/// Takes an event: changes the open warnings, and gives what it decides.
pub fn take(alarms: &mut Vec<Alarm>, event: &Event) -> Vec<Judged> {
    let Event { pod, container, at, what } = event;
    let is_it = |alarm: &Alarm| alarm.pod == *pod && (container.is_empty() || alarm.container == *container);
    let mut judged = overdue(alarms, *at);
    match *what {
        What::Raised(horizon) => {
            if let Some(known) = alarms.iter_mut().find(|alarm| alarm.is_about(pod, container)) {
                // It came back before it was judged: one warning with a gap.
                known.cleared = None;
            } else {
                if alarms.len() >= MAX_OPEN {
                    alarms.remove(0);
                    judged.push(Judged { outcome: Outcome::Unknown, lead: None });
                }
                let (pod, container) = (pod.clone(), container.clone());
                alarms.push(Alarm { pod, container, since: *at, horizon, cleared: None, acted: false });
            }
        }
        What::Cleared => {
            for alarm in alarms.iter_mut().filter(|alarm| is_it(alarm) && alarm.cleared.is_none()) {
                alarm.cleared = Some(*at);
            }
        }
        What::Acted => {
            for alarm in alarms.iter_mut().filter(|alarm| is_it(alarm)) {
                alarm.acted = true;
            }
        }
        What::OutOfMemory => {
            let found = alarms.iter().position(is_it).map(|place| alarms.remove(place));
            judged.push(match found {
                None => Judged { outcome: Outcome::Missed, lead: None },
                Some(alarm) => after_oom(&alarm, *at),
            });
        }
        What::Completed | What::Stopped | What::Died | What::Gone => {
            let outcome = |alarm: &Alarm| match what {
                _ if alarm.acted => Outcome::Avoided,
                What::Completed => Outcome::FalseAlarm,
                What::Stopped => Outcome::Avoided,
                _ => Outcome::Unknown,
            };
            alarms.retain(|alarm| {
                let ends = is_it(alarm);
                if ends {
                    judged.push(Judged { outcome: outcome(alarm), lead: None });
                }
                !ends
            });
        }
        What::Passed => {}
    }
    judged
}

/// A warning that had cleared and whose credit ran out was judged before.
fn after_oom(alarm: &Alarm, at: Stamp) -> Judged {
    let outcome = if at <= alarm.credit_ends() { Outcome::Hit } else { Outcome::Early };
    Judged { outcome, lead: Some(at.since(alarm.since)) }
}

/// Judges the cleared warnings whose time is over.
fn overdue(alarms: &mut Vec<Alarm>, now: Stamp) -> Vec<Judged> {
    let mut judged = Vec::new();
    alarms.retain(|alarm| {
        let is_over = alarm.cleared.is_some() && now > alarm.credit_ends();
        if is_over {
            let outcome = if alarm.acted { Outcome::Avoided } else { Outcome::FalseAlarm };
            judged.push(Judged { outcome, lead: None });
        }
        !is_over
    });
    judged
}

#[cfg(test)]
mod tests;

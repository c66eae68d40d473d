//! What happens in the story, and what it comes to for each container. Pure data.

use gpumem_engine::decision::StepKind;
use serde::Serialize;

use crate::cli::page::wrap;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happening {
    /// Second of the story.
    pub at: i64,
    /// Place of the container in the fleet.
    pub place: usize,
    /// Its namespace and pod.
    pub pod: String,
    /// Of which kind.
    pub what: What,
    /// What was seen.
    pub seen: String,
    /// What would be done in a cluster, or why nothing would.
    pub would: Option<String>,
}

/// See [`Happening::what`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum What {
    /// The container began, or began again.
    Began,
    /// Its risk became High: people are told.
    Told,
    /// A policy that would act waits, and why is new.
    Held,
    /// A step would be taken.
    Acted,
    /// The application answered a request to save its work.
    Saved,
    /// It was refused memory.
    RanOut,
}

impl Happening {
    /// When, who, what was seen, what would be done: one line, broken at `width`.
    pub fn line(&self, width: usize) -> String {
        let would = self.would.as_ref().map(|would| format!("; demo: {would}")).unwrap_or_default();
        let text = format!("{}: {}{would}", self.pod, self.seen);
        format!("{}  {}", clock(self.at), wrap(&text, width, 9))
    }

    /// The same for a screen, where the reason is told below: what would be done, or what was seen.
    pub fn short(&self) -> String {
        let told = self.would.as_ref().map_or_else(|| self.seen.clone(), |would| format!("demo: {would}"));
        format!("{}  {}: {told}", clock(self.at), self.pod)
    }
}

/// What the story came to for one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// When people were told of it, once a run.
    pub told: Vec<Telling>,
    /// Steps that would be taken, and when.
    pub steps: Vec<(i64, StepKind)>,
    /// When it was refused memory.
    pub ran_out: Vec<i64>,
    /// Seconds of work that were not saved when it was refused memory.
    pub lost: i64,
}

/// People were told of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Telling {
    /// When.
    pub at: i64,
    /// When the run is refused memory, if nobody stops it; none for hours to come.
    pub full: Option<i64>,
}

impl Telling {
    /// Seconds from the word to the end that the run would meet.
    pub fn ahead(&self) -> Option<i64> {
        Some(self.full? - self.at)
    }
}

impl Outcome {
    /// Whether nobody was told of it and nothing would be done to it.
    pub fn is_left_alone(&self) -> bool {
        self.told.is_empty() && self.steps.is_empty()
    }

    /// When steps of a kind would be taken.
    pub fn steps_of(&self, kind: StepKind) -> Vec<i64> {
        self.steps.iter().filter(|(_, taken)| *taken == kind).map(|(at, _)| *at).collect()
    }
}

/// A second of the story as `h:mm:ss`.
pub fn clock(at: i64) -> String {
    let at = at.max(0);
    format!("{}:{:02}:{:02}", at / 3600, at / 60 % 60, at % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_when_who_what_and_what_would_be_done() {
        let happening = Happening {
            at: 3725,
            place: 0,
            pod: "ml/x-0".into(),
            what: What::Acted,
            seen: "it grows".into(),
            would: Some("would evict it".into()),
        };
        assert_eq!(happening.line(80), "1:02:05  ml/x-0: it grows; demo: would evict it");
    }
}

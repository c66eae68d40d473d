//! An action that is over, as it is written down and told of.

use gpumem_engine::pacing::Stamp;

use super::{Intent, Outcome, Untold};
use crate::api::policy::ActionRecord;
use crate::controller::now::rfc3339;

/// An action that ended, or whose end is not known yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// What was recorded before it.
    pub intent: Intent,
    /// What came of it.
    pub outcome: Outcome,
    /// When.
    pub at: Stamp,
}

impl Done {
    /// What people are to be told of it.
    pub fn untold(&self) -> Untold {
        Untold {
            intent: self.intent.clone(),
            outcome: self.outcome.name().to_owned(),
            said: self.outcome.explain(&self.intent.action),
            at: rfc3339(self.at),
        }
    }

    /// As status and profile keep it.
    pub fn record(&self) -> ActionRecord {
        self.untold().record()
    }
}

//! Who leads: one Lease in the operator's namespace.

use std::time::Instant;

/// Whether this replica leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// True while this replica holds the Lease for certain.
    pub is_leader: bool,
    /// Our holder identity in the Lease and in intents.
    pub identity: String,
    /// Since when this state holds.
    pub since: Instant,
}

impl Leadership {
    /// Not leading.
    pub fn follower(identity: impl Into<String>, since: Instant) -> Self {
        Self { is_leader: false, identity: identity.into(), since }
    }
}

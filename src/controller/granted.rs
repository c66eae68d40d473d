//! Which actions this installation has the right to, as the chart that granted them says.
//!
//! Asking the API server would tell as well, but only where it is asked for every kind in every namespace; and a right that
//! somebody granted by hand is not meant to be used before the operator is told.

use std::collections::BTreeSet;
use std::str::FromStr;

use gpumem_engine::decision::Hold;
use gpumem_engine::policy::{Actions, Rung, ScaleVia};

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Granted(BTreeSet<Rung>);

/// The actions that need a right, their names in policies, and the chart's values that grant them.
const RIGHTS: [(Rung, &str, &str); 5] = [
    (Rung::Evict, "Evict", "rbac.actions.evict"),
    (Rung::Checkpoint, "Checkpoint", "rbac.actions.checkpoint"),
    (Rung::Scale, "Scale", "rbac.actions.scale"),
    (Rung::SuspendToHost, "SuspendToHost", "agent.suspend.enabled"),
    (Rung::SuspendWorkload, "SuspendWorkload", "rbac.actions.suspendWorkload"),
];

impl Granted {
    /// Every right there is.
    pub fn all() -> Self {
        Self(RIGHTS.into_iter().map(|(rung, ..)| rung).collect())
    }

    /// Why a policy with these actions does nothing here: one of them is not granted. The others are not taken in its
    /// stead: a policy that asks for a checkpoint before an eviction must not evict without.
    pub fn check(&self, actions: &Actions) -> Result<(), Hold> {
        let asked = |rung| match rung {
            Rung::Evict => actions.evict,
            Rung::Checkpoint => actions.checkpoint.is_some(),
            Rung::Scale => actions.scale.is_some_and(|scale| scale.via == ScaleVia::Replicas),
            Rung::SuspendWorkload => actions.suspend_workload.is_some(),
            Rung::SuspendToHost => actions.suspend_to_host,
            Rung::Notify | Rung::LimitGrowth => false,
        };
        match RIGHTS.into_iter().find(|(rung, ..)| asked(*rung) && !self.0.contains(rung)) {
            Some((rung, _, value)) => Err(Hold::NotPermitted { rung, value }),
            None => Ok(()),
        }
    }
}

impl FromStr for Granted {
    type Err = String;

    /// Reads `Checkpoint,Evict`; the empty text grants nothing.
    fn from_str(text: &str) -> Result<Self, String> {
        let rungs = text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(|name| {
            let known = RIGHTS.into_iter().find(|(_, known, _)| *known == name);
            known
                .map(|(rung, ..)| rung)
                .ok_or_else(|| format!("{name} is none of Checkpoint, Evict, Scale, SuspendToHost, SuspendWorkload"))
        });
        rungs.collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use gpumem_engine::policy::{Checkpoint, CheckpointNeed, OnTimeout, Scale};

    use super::*;

    #[test]
    fn a_policy_that_asks_for_more_than_was_granted_is_told_which_value_grants_it() {
        let granted: Granted = "Evict".parse().unwrap();
        let evict = Actions { evict: true, ..Actions::default() };
        assert_eq!(granted.check(&evict), Ok(()));
        let timeout = std::time::Duration::from_mins(1);
        let checkpoint = Checkpoint { timeout, need: CheckpointNeed::Required, on_timeout: OnTimeout::Skip };
        let first = Actions { checkpoint: Some(checkpoint), ..evict };
        let why = granted.check(&first).unwrap_err();
        assert_eq!(why.reason(), "NotPermitted");
        assert!(why.to_string().contains("rbac.actions.checkpoint"), "{why}");
        assert_eq!("Evict, Checkpoint".parse::<Granted>().unwrap().check(&first), Ok(()));
    }

    #[test]
    fn scaling_by_metrics_needs_no_right_and_scaling_by_replicas_does() {
        let scale = |via| Actions { scale: Some(Scale { via, step: 1, max_replicas: 4 }), ..Actions::default() };
        let nothing: Granted = "".parse().unwrap();
        assert_eq!(nothing.check(&scale(ScaleVia::Metrics)), Ok(()));
        assert!(nothing.check(&scale(ScaleVia::Replicas)).is_err());
        assert_eq!(Granted::all().check(&scale(ScaleVia::Replicas)), Ok(()));
    }

    #[test]
    fn a_misspelt_action_is_refused() {
        assert!("Evict,Suspend".parse::<Granted>().unwrap_err().contains("SuspendWorkload"));
    }
}

//! The policies that are compared.

use std::time::Duration;

use gpumem_engine::policy::{
    Actions, Budget, Checkpoint, CheckpointNeed, Disruption, Mode, OnTimeout, Policy, PolicyKey, Prediction,
};
use gpumem_engine::quantity::Bytes;

/// How long an application has for its checkpoint.
const FIVE_MINUTES: Checkpoint =
    Checkpoint { timeout: Duration::from_mins(5), need: CheckpointNeed::BestEffort, on_timeout: OnTimeout::Proceed };

/// The CRD's defaults of a checkpoint.
const BY_DEFAULT: Checkpoint =
    Checkpoint { timeout: Duration::from_mins(10), need: CheckpointNeed::Required, on_timeout: OnTimeout::Skip };

/// A checkpoint within five minutes where it comes in time, then an eviction; budgets for a fleet of this size.
pub fn usual(devices: usize) -> Policy {
    listing(devices, Some(FIVE_MINUTES))
}

/// The same with the defaults of a checkpoint: no stop without an answer, and ten minutes for it.
pub fn required(devices: usize) -> Policy {
    listing(devices, Some(BY_DEFAULT))
}

/// For people without checkpoints.
pub fn evict_only(devices: usize) -> Policy {
    listing(devices, None)
}

/// Every default as it stands, with `mode: Enforce` and the rungs Checkpoint and Evict.
pub fn all_defaults(devices: usize) -> Policy {
    Policy { headroom: Bytes::mib(512), disruption: Disruption::default(), ..required(devices) }
}

fn listing(devices: usize, checkpoint: Option<Checkpoint>) -> Policy {
    let share = |percent: usize| (devices * percent / 100).max(1) as u32;
    Policy {
        key: PolicyKey { namespace: "ml".into(), name: "fleet".into() },
        mode: Mode::Enforce,
        paused: Vec::new(),
        precedence: 0,
        containers: Vec::new(),
        budget: Budget::Device,
        headroom: Bytes::ZERO,
        prediction: Prediction::default(),
        actions: Actions { checkpoint, evict: true, ..Actions::default() },
        growth: None,
        disruption: Disruption {
            max_concurrent: share(10),
            max_per_hour: share(30),
            min_available: 0,
            require_budget: false,
            cooldown: Duration::from_mins(15),
            max_attempts: 3,
            protect: Vec::new(),
        },
    }
}

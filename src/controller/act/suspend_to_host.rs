//! Freezes a container and moves its GPU memory to host memory, through the `GpuMemoryNode` of its node.

use gpumem_engine::pacing::Refusal;

use super::{Context, Intent, Outcome};

/// Not available: no agent of this version moves memory to the host. It is refused, and nothing is called.
pub fn send(_: &Context, _: &Intent) -> Outcome {
    Outcome::Refused { why: Refusal::Rejected, said: "moving GPU memory to host memory is not available".to_owned() }
}

//! Whether a container may be frozen at all. Each no says what would have happened.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use gpumem_engine::identity::ContainerId;
use gpumem_engine::quantity::Bytes;

use super::cuda::State;
use crate::agent::limits::Shared;
use crate::api::node::FreezeSpec;

/// Beyond the GPU's bytes, a checkpoint needs host memory for its own books.
const MARGIN: Bytes = Bytes::mib(256);
/// A limit of cgroup v1 at or above this means none.
const V1_UNLIMITED: u64 = 1 << 62;
/// Levels of cgroups that may have a limit of their own.
const MAX_LEVELS: usize = 16;

/// How many bytes would be moved, or why none may be.
pub fn check(
    container: &ContainerId,
    leaf: &Path,
    states: &BTreeMap<u32, State>,
    spec: &FreezeSpec,
    shared: &Shared,
) -> Result<Bytes, String> {
    if states.is_empty() {
        return Err("no process of the container uses CUDA".to_owned());
    }
    if states.values().any(|state| *state != State::Running) {
        return Err("one of its processes is locked or checkpointed already, by somebody else".to_owned());
    }
    let holdings = shared.holdings();
    let own: Vec<_> = holdings.iter().filter(|holding| holding.container.container == *container).collect();
    if own.iter().any(|holding| holding.device.mig.is_some()) {
        return Err("MIG: processes on a slice cannot be checkpointed".to_owned());
    }
    if own.is_empty() || own.iter().any(|holding| holding.used.is_none()) {
        return Err("how much GPU memory it holds is not known".to_owned());
    }
    if let Some(pid) = states.keys().find(|pid| is_mps_client(**pid)) {
        return Err(format!("MPS: process {pid} is a client of an MPS server and cannot be checkpointed"));
    }
    let bytes: Bytes = own.iter().filter_map(|holding| holding.used).sum();
    let asked = spec.host_bytes.and_then(|bytes| u64::try_from(bytes).ok()).map(Bytes);
    let rooms = [host_room(leaf), node_room(), asked];
    match rooms.into_iter().flatten().min() {
        Some(room) if room < bytes + MARGIN => Err(format!(
            "host memory: {bytes} would move there, and {room} are free within its memory limits; the kernel would kill it"
        )),
        Some(_) => Ok(bytes),
        None => Err("host memory: how much is free cannot be read".to_owned()),
    }
}

/// Free host memory within the limits of a cgroup and of all above it; `None` where nothing limits it.
pub fn host_room(leaf: &Path) -> Option<Bytes> {
    let levels = leaf.ancestors().take(MAX_LEVELS);
    levels
        .filter_map(|level| {
            room_of(level, "memory.max", "memory.current")
                .or_else(|| room_of(level, "memory.limit_in_bytes", "memory.usage_in_bytes"))
        })
        .min()
}

fn room_of(level: &Path, limit: &str, used: &str) -> Option<Bytes> {
    let number = |name: &str| fs::read_to_string(level.join(name)).ok()?.trim().parse::<u64>().ok();
    // "max" is no number: no limit at this level.
    let limit = number(limit).filter(|limit| *limit < V1_UNLIMITED)?;
    Some(Bytes(limit) - Bytes(number(used)?))
}

fn node_room() -> Option<Bytes> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_ascii_whitespace().next()?.parse().ok().map(|kib: u64| Bytes(kib.saturating_mul(1024)))
}

/// Clients find their server through this variable. One that cannot be read is left to the driver, which refuses itself.
fn is_mps_client(pid: u32) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|pair| pair.starts_with(b"CUDA_MPS_PIPE_DIRECTORY="))
}

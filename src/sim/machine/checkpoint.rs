//! The CUDA checkpoint API's states: a process is locked, its device memory leaves the device, and comes back. Pure.

use std::time::Instant;

use super::{Client, Machine};
use crate::protocol::{Answer, CheckpointState, CheckpointStep, Fault};

/// `CUDA_ERROR_INVALID_VALUE`: no CUDA process has this PID.
const INVALID_VALUE: u32 = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u32 = 2;
/// `CUDA_ERROR_ILLEGAL_STATE`.
const ILLEGAL_STATE: u32 = 401;
/// `CUDA_ERROR_NOT_READY`.
pub const NOT_READY: u32 = 600;
/// `CUDA_ERROR_NOT_SUPPORTED`: clients of MPS, and processes on MIG instances.
const NOT_SUPPORTED: u32 = 801;
/// `CUDA_ERROR_UNKNOWN`.
const UNKNOWN: u32 = 999;

impl Machine {
    /// True while a process's calls wait.
    pub fn is_suspended(&self, pid: u32) -> bool {
        self.suspended.contains_key(&pid)
    }

    /// Takes one step with a process.
    pub fn checkpoint(&mut self, pid: u32, step: CheckpointStep, now: Instant) -> Answer {
        use CheckpointState::{Checkpointed, Failed, Locked, Running};
        let own: Vec<&Client> = self.clients.values().filter(|client| client.pid == pid).collect();
        let refused = |code| Answer::CheckpointRefused { code };
        if own.is_empty() {
            return refused(INVALID_VALUE);
        }
        let fails = |fault| own.iter().any(|client| self.has(fault, client.place.device, now));
        let is_shared =
            own.iter().any(|client| client.kind == crate::protocol::Kind::Mps || client.place.slot.is_some());
        let state = self.suspended.get(&pid).copied().unwrap_or_default();
        let next = match (step, state) {
            (CheckpointStep::State, state) => state,
            (_, Running) if is_shared => return refused(NOT_SUPPORTED),
            (CheckpointStep::Lock, Running) if fails(Fault::LockTimesOut) => return refused(NOT_READY),
            (CheckpointStep::Restore, Checkpointed) if fails(Fault::RestoreFails) => {
                self.suspended.insert(pid, Failed);
                return refused(UNKNOWN);
            }
            (CheckpointStep::Restore, Checkpointed) if !self.fits_again(&own) => return refused(OUT_OF_MEMORY),
            (CheckpointStep::Lock, Running | Locked) | (CheckpointStep::Restore, Checkpointed) => Locked,
            (CheckpointStep::Checkpoint, Locked) if fails(Fault::CheckpointFails) => return refused(UNKNOWN),
            (CheckpointStep::Checkpoint, Locked) => Checkpointed,
            (CheckpointStep::Unlock, Locked) => Running,
            _ => return refused(ILLEGAL_STATE),
        };
        if next == Running {
            self.suspended.remove(&pid);
        } else {
            self.suspended.insert(pid, next);
        }
        Answer::Checkpointed { state: next }
    }

    /// False where the memory of a client is in host memory.
    pub(super) fn is_on_device(&self, client: &Client) -> bool {
        self.suspended.get(&client.pid) != Some(&CheckpointState::Checkpointed)
    }

    fn fits_again(&self, own: &[&Client]) -> bool {
        own.iter().all(|client| {
            let here = own.iter().filter(|other| other.place == client.place);
            here.map(|client| client.context + client.held).sum::<u64>() <= self.memory(client.place).free
        })
    }
}

//! CUDA's checkpoint calls, looked up at run time in the driver's own library (570 and later).
//!
//! `cuInit` makes no context and takes no GPU memory. The argument structs are 64 bytes whose reserved parts changed between
//! releases, so all of them are zero.

#![allow(unsafe_code, reason = "C functions that no crate wraps")]

use std::ffi::{c_int, c_uint};
use std::path::PathBuf;
use std::time::Duration;

use crate::agent::limits::nvml::Library;
use crate::api::usage::Ability;

/// What a process's CUDA is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs.
    Running,
    /// Its CUDA calls wait.
    Locked,
    /// Its GPU memory is in host memory, or on its way.
    Checkpointed,
    /// It cannot go on.
    Failed,
}

/// The steps of a checkpoint; errors are CUresult codes. Calls block, for seconds with much memory.
pub trait Checkpoints {
    /// Its name in reports.
    fn name(&self) -> String;
    /// State of a process; an error where it uses no CUDA.
    fn state(&self, pid: u32) -> Result<State, u32>;
    /// Waits for its work to end, and lets no more through.
    fn lock(&self, pid: u32, timeout: Duration) -> Result<(), u32>;
    /// Moves its memory to host memory.
    fn checkpoint(&self, pid: u32) -> Result<(), u32>;
    /// Moves it back.
    fn restore(&self, pid: u32) -> Result<(), u32>;
    /// Lets its calls through.
    fn unlock(&self, pid: u32) -> Result<(), u32>;
}

/// What a checkpoint of another user's process needs, by its bit in a set of capabilities. Tried one by one on an H200: with
/// less, CUDA answers with error 304.
const NEEDED: [(u32, &str); 2] = [(1, "DAC_OVERRIDE"), (19, "SYS_PTRACE")];

/// Whether processes can be suspended here, as far as can be told without suspending one.
pub fn ability(cuda: &Result<Cuda, String>) -> Ability {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    match cuda {
        Err(why) => Ability::Fails { reason: why.clone() },
        Ok(cuda) if cuda.simulated => Ability::Works { by: cuda.name() },
        Ok(cuda) => match lacking(&status) {
            Some(reason) => Ability::Fails { reason },
            None => Ability::Works { by: cuda.name() },
        },
    }
}

/// What the agent's own rights lack; nothing where its status cannot be read.
fn lacking(status: &str) -> Option<String> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let held = u64::from_str_radix(line.trim(), 16).ok()?;
    let missing: Vec<&str> = NEEDED.iter().filter(|(bit, _)| held >> bit & 1 == 0).map(|(_, name)| *name).collect();
    (!missing.is_empty())
        .then(|| format!("the agent's pod lacks {}: agent.suspend.enabled gives it", missing.join(" and ")))
}

#[repr(C, align(8))]
struct Args {
    timeout_ms: c_uint,
    reserved: [c_uint; 15],
}

type Init = unsafe extern "C" fn(c_uint) -> c_uint;
type GetState = unsafe extern "C" fn(c_int, *mut c_uint) -> c_uint;
type Step = unsafe extern "C" fn(c_int, *mut Args) -> c_uint;

/// A started CUDA driver library that has the calls.
#[derive(Debug)]
pub struct Cuda {
    simulated: bool,
    get_state: GetState,
    lock: Step,
    checkpoint: Step,
    restore: Step,
    unlock: Step,
}

// === impl Cuda ===

impl Cuda {
    /// Starts the first library that has the calls, or says why there is none.
    pub fn open(search: &[PathBuf]) -> Result<Self, String> {
        let mut why = "no libcuda.so.1 was found: the agent's pod needs the driver's compute libraries".to_owned();
        for library in search.iter().filter_map(|path| Library::open(path)) {
            match Self::started(library) {
                Ok(cuda) => return Ok(cuda),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    fn started(library: Library) -> Result<Self, String> {
        // SAFETY: CUDA's header declares these types for these names.
        let (init, get_state, lock, checkpoint, restore, unlock) = unsafe {
            (
                library.symbol::<Init>(c"cuInit"),
                library.symbol::<GetState>(c"cuCheckpointProcessGetState"),
                library.symbol::<Step>(c"cuCheckpointProcessLock"),
                library.symbol::<Step>(c"cuCheckpointProcessCheckpoint"),
                library.symbol::<Step>(c"cuCheckpointProcessRestore"),
                library.symbol::<Step>(c"cuCheckpointProcessUnlock"),
            )
        };
        let (Some(init), Some(get_state), Some(lock), Some(checkpoint), Some(restore), Some(unlock)) =
            (init, get_state, lock, checkpoint, restore, unlock)
        else {
            return Err("the driver has no checkpoint calls: they came with driver 570".to_owned());
        };
        // SAFETY: takes a number.
        match unsafe { init(0) } {
            // The simulated driver's library has NVML's calls too, which CUDA's has not.
            0 => {
                // SAFETY: the address is not called.
                let simulated = unsafe { library.symbol::<Init>(c"nvmlInit_v2") }.is_some();
                Ok(Self { simulated, get_state, lock, checkpoint, restore, unlock })
            }
            code => Err(format!("CUDA does not start (error {code})")),
        }
    }

    fn step(step: Step, pid: u32, timeout_ms: u32) -> Result<(), u32> {
        let mut args = Args { timeout_ms, reserved: [0; 15] };
        // SAFETY: a number, and a struct as large as the call reads that outlives it.
        match unsafe { step(pid.cast_signed(), &raw mut args) } {
            0 => Ok(()),
            code => Err(code),
        }
    }
}

impl Checkpoints for Cuda {
    fn name(&self) -> String {
        if self.simulated { "cuda-checkpoint (simulated)".to_owned() } else { "cuda-checkpoint".to_owned() }
    }

    fn state(&self, pid: u32) -> Result<State, u32> {
        let mut state = 0;
        // SAFETY: a number, and a place for one that outlives the call.
        match (unsafe { (self.get_state)(pid.cast_signed(), &raw mut state) }, state) {
            (0, 0) => Ok(State::Running),
            (0, 1) => Ok(State::Locked),
            // 4 and 5 are on the way, since CUDA 13.4.
            (0, 2 | 4 | 5) => Ok(State::Checkpointed),
            (0, _) => Ok(State::Failed),
            (code, _) => Err(code),
        }
    }

    fn lock(&self, pid: u32, timeout: Duration) -> Result<(), u32> {
        Self::step(self.lock, pid, u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX))
    }

    fn checkpoint(&self, pid: u32) -> Result<(), u32> {
        Self::step(self.checkpoint, pid, 0)
    }

    fn restore(&self, pid: u32) -> Result<(), u32> {
        Self::step(self.restore, pid, 0)
    }

    fn unlock(&self, pid: u32) -> Result<(), u32> {
        Self::step(self.unlock, pid, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_rights_are_named_before_the_first_freeze_needs_them() {
        assert_eq!(lacking("CapEff:\t0000000000080002\n"), None);
        let told = lacking("CapPrm:\t0\nCapEff:\t0000000000000002\n").expect("one is missing");
        assert_eq!(told, "the agent's pod lacks SYS_PTRACE: agent.suspend.enabled gives it");
        assert!(
            lacking("CapEff:\t0000000000000000\n").is_some_and(|told| told.contains("DAC_OVERRIDE and SYS_PTRACE"))
        );
        assert_eq!(lacking(""), None);
    }
}

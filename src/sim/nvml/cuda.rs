//! The checkpoint calls of `libcuda.so.1`, in the same library: a copy of it under that name answers them.
//!
//! The argument structs are 64 bytes, reserved but for the timeout of the lock.

use std::ffi::{c_int, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use super::location::socket;
use crate::client::Client;
use crate::machine::NOT_READY;
use crate::protocol::{Answer, CheckpointStep, Request};

const SUCCESS: c_uint = 0;
const INVALID_VALUE: c_uint = 1;
/// `CUDA_ERROR_SYSTEM_DRIVER_MISMATCH` and the like have no place here: without a driver there is no device.
const NO_DEVICE: c_uint = 100;
const UNKNOWN: c_uint = 999;
/// CUDA 13.0.
const VERSION: c_int = 13_000;

/// `CUcheckpointLockArgs`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LockArgs {
    pub timeout_ms: c_uint,
    pub reserved: [c_uint; 15],
}

/// Succeeds where a driver answers.
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> c_uint {
    if Client::connect(&socket()).is_ok() { SUCCESS } else { NO_DEVICE }
}

/// The version of CUDA.
///
/// # Safety
/// `version` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_uint {
    // SAFETY: by this function's contract.
    match unsafe { version.as_mut() } {
        Some(version) => *version = VERSION,
        None => return INVALID_VALUE,
    }
    SUCCESS
}

/// A process's state.
///
/// # Safety
/// `state` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCheckpointProcessGetState(pid: c_int, state: *mut c_uint) -> c_uint {
    // SAFETY: by this function's contract.
    let Some(state) = (unsafe { state.as_mut() }) else { return INVALID_VALUE };
    match step(pid, CheckpointStep::State) {
        Ok(found) => {
            *state = found;
            SUCCESS
        }
        Err(code) => code,
    }
}

/// Lets no further CUDA call of a process through; waits for its work as long as the timeout says.
///
/// # Safety
/// `args` is null or valid for reading.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCheckpointProcessLock(pid: c_int, args: *const LockArgs) -> c_uint {
    // SAFETY: by this function's contract.
    let timeout = unsafe { args.as_ref() }.map_or(0, |args| args.timeout_ms);
    let code = done(step(pid, CheckpointStep::Lock));
    if code == NOT_READY {
        thread::sleep(Duration::from_millis(u64::from(timeout)));
    }
    code
}

/// Moves a process's device memory to host memory.
#[unsafe(no_mangle)]
pub extern "C" fn cuCheckpointProcessCheckpoint(pid: c_int, _args: *const LockArgs) -> c_uint {
    done(step(pid, CheckpointStep::Checkpoint))
}

/// Moves it back.
#[unsafe(no_mangle)]
pub extern "C" fn cuCheckpointProcessRestore(pid: c_int, _args: *const LockArgs) -> c_uint {
    done(step(pid, CheckpointStep::Restore))
}

/// Lets its CUDA calls through again.
#[unsafe(no_mangle)]
pub extern "C" fn cuCheckpointProcessUnlock(pid: c_int, _args: *const LockArgs) -> c_uint {
    done(step(pid, CheckpointStep::Unlock))
}

fn done(result: Result<c_uint, c_uint>) -> c_uint {
    result.map_or_else(|code| code, |_| SUCCESS)
}

fn step(pid: c_int, step: CheckpointStep) -> Result<c_uint, c_uint> {
    let pid = u32::try_from(pid).map_err(|_| INVALID_VALUE)?;
    let asked = catch_unwind(AssertUnwindSafe(|| {
        Client::connect(&socket()).and_then(|mut client| client.ask(&Request::Checkpoint { pid, step }))
    }));
    match asked {
        Ok(Ok(Answer::Checkpointed { state })) => Ok(state as c_uint),
        Ok(Ok(Answer::CheckpointRefused { code })) => Err(code),
        Ok(Err(_)) => Err(NO_DEVICE),
        Ok(Ok(_)) | Err(_) => Err(UNKNOWN),
    }
}

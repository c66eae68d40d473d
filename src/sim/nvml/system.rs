//! Calls that concern no device: start and end, versions, counts.

use std::ffi::{c_char, c_int, c_uint};

use super::abi::{Code, Return, put, put_text};
use super::session::{answer, init, shutdown, state};

/// Starts the library; users are counted.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> Return {
    answer(init)
}

/// The same under its old name.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit() -> Return {
    answer(init)
}

/// The same; flags make no difference here, since no device is attached at the start.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> Return {
    answer(init)
}

/// Ends what one `nvmlInit` started.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> Return {
    answer(shutdown)
}

/// What a return code means, for people.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(result: Return) -> *const c_char {
    let text = match result {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        18 => c"Driver/library version mismatch",
        25 => c"Argument version mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

/// Version of the driver; it starts with `sim`.
///
/// # Safety
/// `version` is null or valid for writing `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> Return {
    // SAFETY: by this function's contract.
    answer(|| unsafe { put_text(version, length, &state()?.driver_version) })
}

/// Version of this library.
///
/// # Safety
/// `version` is null or valid for writing `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) -> Return {
    // SAFETY: by this function's contract.
    answer(|| unsafe { put_text(version, length, concat!("sim-", env!("CARGO_PKG_VERSION"))) })
}

/// Version of CUDA that the driver would support.
///
/// # Safety
/// `version` is null or valid for writing an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> Return {
    // SAFETY: by this function's contract.
    answer(|| unsafe { put(version, 13_000) })
}

/// The same under its old name.
///
/// # Safety
/// `version` is null or valid for writing an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) -> Return {
    // SAFETY: by this function's contract.
    unsafe { nvmlSystemGetCudaDriverVersion_v2(version) }
}

/// Name of a process, cut to the buffer.
///
/// # Safety
/// `name` is null or valid for writing `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetProcessName(pid: c_uint, name: *mut c_char, length: c_uint) -> Return {
    answer(|| {
        let state = state()?;
        let mut processes = state.devices.iter().flat_map(|device| &device.processes);
        let process = processes.find(|process| process.pid == pid).ok_or(Code::NotFound)?;
        let longest = (length as usize).checked_sub(1).ok_or(Code::InvalidArgument)?;
        let end = (0..=longest.min(process.name.len())).rev().find(|end| process.name.is_char_boundary(*end));
        // SAFETY: by this function's contract.
        unsafe { put_text(name, length, &process.name[..end.unwrap_or(0)]) }
    })
}

/// Number of devices, those included that fail.
///
/// # Safety
/// `count` is null or valid for writing an unsigned int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> Return {
    answer(|| {
        let devices = state()?.devices.len();
        // SAFETY: by this function's contract.
        unsafe { put(count, devices as c_uint) }
    })
}

/// The same under its old name.
///
/// # Safety
/// `count` is null or valid for writing an unsigned int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount(count: *mut c_uint) -> Return {
    // SAFETY: by this function's contract.
    unsafe { nvmlDeviceGetCount_v2(count) }
}

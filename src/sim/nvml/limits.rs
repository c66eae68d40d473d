//! Memory limits by cgroup: the calls that came with driver 615. A limit is a property of a cgroup's directory, so its path
//! must exist where the library runs.

use std::ffi::{CStr, c_char, c_ulonglong};

use super::abi::{Code, Handle, Return, put};
use super::session::{Target, answer, ask_driver, target};
use crate::protocol::{Answer, Fault, Request};

/// `nvmlSetMemoryLimits_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SetMemoryLimits {
    pub name_space: *const c_char,
    pub soft_limit: c_ulonglong,
    pub hard_limit: c_ulonglong,
}

/// `nvmlGetMemoryLimits_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GetMemoryLimits {
    pub name_space: *const c_char,
    pub soft_limit: c_ulonglong,
    pub hard_limit: c_ulonglong,
    pub current_used: c_ulonglong,
}

/// Limits a cgroup's memory on a device.
///
/// # Safety
/// `limits` is null or valid for reading, and its `name_space` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceSetMemoryLimits_v1(device: Handle, limits: *const SetMemoryLimits) -> Return {
    answer(|| {
        let target = whole(device)?;
        // SAFETY: by this function's contract.
        let SetMemoryLimits { name_space, soft_limit, hard_limit } =
            *unsafe { limits.as_ref() }.ok_or(Code::InvalidArgument)?;
        // SAFETY: by this function's contract.
        let cgroup = unsafe { cgroup(name_space) }?;
        if target.has(Fault::LimitRefused) {
            return Err(Code::NoPermission);
        }
        let device = u32::try_from(target.index).unwrap_or(u32::MAX);
        match ask_driver(&Request::SetLimit { device, cgroup, soft: soft_limit, hard: hard_limit })? {
            Answer::Done => Ok(()),
            _ => Err(Code::NotSupported),
        }
    })
}

/// The limit of a cgroup on a device, and what it holds there.
///
/// # Safety
/// `limits` is null or valid for reading and writing, and its `name_space` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryLimits_v1(device: Handle, limits: *mut GetMemoryLimits) -> Return {
    answer(|| {
        let target = whole(device)?;
        // SAFETY: by this function's contract.
        let name_space = unsafe { limits.as_ref() }.ok_or(Code::InvalidArgument)?.name_space;
        // SAFETY: by this function's contract.
        let cgroup = unsafe { cgroup(name_space) }?;
        let device = u32::try_from(target.index).unwrap_or(u32::MAX);
        match ask_driver(&Request::GetLimit { device, cgroup })? {
            Answer::Limit { soft, hard, used } => {
                let found = GetMemoryLimits { name_space, soft_limit: soft, hard_limit: hard, current_used: used };
                // SAFETY: by this function's contract.
                unsafe { put(limits, found) }
            }
            _ => Err(Code::NotSupported),
        }
    })
}

fn whole(device: Handle) -> Result<Target, Code> {
    let target = target(device)?;
    if target.slot.is_some() { Err(Code::NotSupported) } else { Ok(target) }
}

/// The path, if it is a directory.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn cgroup(path: *const c_char) -> Result<String, Code> {
    if path.is_null() {
        return Err(Code::InvalidArgument);
    }
    // SAFETY: not null, so a C string by this function's contract.
    let path = unsafe { CStr::from_ptr(path) }.to_str().map_err(|_| Code::InvalidArgument)?;
    if std::path::Path::new(path).is_dir() { Ok(path.to_owned()) } else { Err(Code::NotFound) }
}

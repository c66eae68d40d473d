//! NVML's limits by cgroup (`nvmlDeviceSetMemoryLimits_v1`, from driver 615 on), looked up at run time.
//!
//! nvml-wrapper knows neither call, so the library is opened a second time (which gives the same one) for six symbols. Structs
//! as in NVML's header: {path, soft, hard} to set, {path, soft, hard, used} to get, in bytes; all ones means no limit. The
//! soft limit stays 0: it would add up in every ancestor of a cgroup that goes away. This code has run against the
//! simulated driver only, never against a driver of that release.

#![allow(unsafe_code, reason = "C functions that no crate wraps")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use gpumem_engine::identity::DeviceUuid;
use gpumem_engine::quantity::Bytes;

use super::backend::{Backend, Failure, Held};

/// No limit.
const MAX: c_ulonglong = c_ulonglong::MAX;
/// Longest version string.
const VERSION_LENGTH: c_uint = 80;
/// Version strings of the simulated driver start with this.
const SIMULATED: &str = "sim";

#[repr(C)]
struct SetLimits {
    cgroup: *const c_char,
    soft: c_ulonglong,
    hard: c_ulonglong,
}

#[repr(C)]
struct GetLimits {
    cgroup: *const c_char,
    soft: c_ulonglong,
    hard: c_ulonglong,
    used: c_ulonglong,
}

type Device = *mut c_void;
type Plain = unsafe extern "C" fn() -> c_uint;
type Text = unsafe extern "C" fn(*mut c_char, c_uint) -> c_uint;
type ByUuid = unsafe extern "C" fn(*const c_char, *mut Device) -> c_uint;
type Set = unsafe extern "C" fn(Device, *const SetLimits) -> c_uint;
type Get = unsafe extern "C" fn(Device, *mut GetLimits) -> c_uint;

/// A started NVML that has the calls.
#[derive(Debug)]
pub struct Nvml {
    library: Library,
    version: String,
    by_uuid: ByUuid,
    set: Set,
    get: Get,
}

// === impl Nvml ===

impl Nvml {
    /// Starts the first library that does, or says why there are no limits.
    pub fn open(search: &[PathBuf]) -> Result<Self, String> {
        let mut why = "no NVML library was found".to_owned();
        for library in search.iter().filter_map(|path| Library::open(path)) {
            match Self::started(library) {
                Ok(nvml) => return Ok(nvml),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    fn started(library: Library) -> Result<Self, String> {
        // SAFETY: NVML's header declares these types for these names.
        let (init, version, by_uuid, set, get) = unsafe {
            (
                library.symbol::<Plain>(c"nvmlInit_v2"),
                library.symbol::<Text>(c"nvmlSystemGetDriverVersion"),
                library.symbol::<ByUuid>(c"nvmlDeviceGetHandleByUUID"),
                library.symbol::<Set>(c"nvmlDeviceSetMemoryLimits_v1"),
                library.symbol::<Get>(c"nvmlDeviceGetMemoryLimits_v1"),
            )
        };
        let (Some(init), Some(version), Some(by_uuid)) = (init, version, by_uuid) else {
            return Err("the NVML library lacks basic calls".to_owned());
        };
        // SAFETY: takes nothing.
        let code = unsafe { init() };
        if code != 0 {
            return Err(format!("NVML does not start (code {code})"));
        }
        let mut text = [0 as c_char; VERSION_LENGTH as usize];
        // SAFETY: the buffer is as long as it is said to be, and zeroed, so it ends in a NUL whatever is written.
        let read = unsafe { version(text.as_mut_ptr(), VERSION_LENGTH - 1) };
        // SAFETY: the last byte was never written to and is zero.
        let version = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned();
        let version = if read == 0 { version } else { "unknown".to_owned() };
        match (set, get) {
            (Some(set), Some(get)) => Ok(Self { library, version, by_uuid, set, get }),
            _ => Err(format!("driver {version} has no memory limits: they came with driver 615")),
        }
    }

    fn device(&self, uuid: &DeviceUuid) -> Result<Device, Failure> {
        let text = CString::new(uuid.as_str()).map_err(|_| Failure::NotFound)?;
        let mut device = std::ptr::null_mut();
        // SAFETY: a C string and a place for a handle, both alive during the call.
        checked(unsafe { (self.by_uuid)(text.as_ptr(), &raw mut device) })?;
        Ok(device)
    }
}

impl Backend for Nvml {
    fn name(&self) -> String {
        if self.is_simulated() { "nvml-cgroup (simulated)".to_owned() } else { "nvml-cgroup".to_owned() }
    }

    fn is_simulated(&self) -> bool {
        self.version.starts_with(SIMULATED)
    }

    fn get(&mut self, device: &DeviceUuid, cgroup: &Path) -> Result<Held, Failure> {
        let path = CString::new(cgroup.as_os_str().as_bytes()).map_err(|_| Failure::NotFound)?;
        let mut limits = GetLimits { cgroup: path.as_ptr(), soft: 0, hard: 0, used: 0 };
        let device = self.device(device)?;
        // SAFETY: a handle of this library; the struct and its path outlive the call.
        checked(unsafe { (self.get)(device, &raw mut limits) })?;
        Ok(Held { limit: (limits.hard != MAX).then_some(Bytes(limits.hard)), used: Bytes(limits.used) })
    }

    fn set(&mut self, device: &DeviceUuid, cgroup: &Path, limit: Option<Bytes>) -> Result<(), Failure> {
        let path = CString::new(cgroup.as_os_str().as_bytes()).map_err(|_| Failure::NotFound)?;
        let limits = SetLimits { cgroup: path.as_ptr(), soft: 0, hard: limit.map_or(MAX, |limit| limit.0) };
        let device = self.device(device)?;
        // SAFETY: a handle of this library; the struct and its path outlive the call.
        checked(unsafe { (self.set)(device, &raw const limits) })
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: NVML's header declares this type; it was started once by us.
        if let Some(shutdown) = unsafe { self.library.symbol::<Plain>(c"nvmlShutdown") } {
            // SAFETY: takes nothing.
            let _ = unsafe { shutdown() };
        }
    }
}

fn checked(code: c_uint) -> Result<(), Failure> {
    match code {
        0 => Ok(()),
        // FUNCTION_NOT_FOUND: the library has the call and the driver below it has not.
        3 | 13 => Err(Failure::NotSupported),
        4 => Err(Failure::NoPermission),
        6 => Err(Failure::NotFound),
        1 | 9 | 15 | 16 | 18 | 28 => Err(Failure::Gone),
        other => Err(Failure::Other(other)),
    }
}

/// A shared library, opened for as long as the process lives: unloading a driver's library ends badly.
#[derive(Clone, Copy, Debug)]
pub struct Library(*mut c_void);

// SAFETY: a handle of the loader, which may be used from any thread.
unsafe impl Send for Library {}

impl Library {
    /// Loads it, if it is there.
    pub fn open(path: &Path) -> Option<Self> {
        const FLAGS: c_int = libc::RTLD_NOW | libc::RTLD_LOCAL;
        let path = CString::new(path.as_os_str().as_bytes()).ok()?;
        // SAFETY: a C string that outlives the call.
        let handle = unsafe { libc::dlopen(path.as_ptr(), FLAGS) };
        (!handle.is_null()).then_some(Self(handle))
    }

    /// A function by its name.
    ///
    /// # Safety
    /// `F` is the type of a C function, and the library's function of this name has that type.
    pub unsafe fn symbol<F: Copy>(&self, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: a handle that dlopen gave, and a C string.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        // SAFETY: not null, of a function pointer's size, and of the type that the caller answers for.
        (!address.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
    }
}

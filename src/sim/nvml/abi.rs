//! NVML's return codes and structs, as `nvml.h` lays them out.

use std::ffi::{c_char, c_uint, c_ulonglong, c_void};

/// `nvmlReturn_t`.
pub type Return = c_uint;
/// `nvmlDevice_t`: opaque; here a number that is never followed.
pub type Handle = *mut c_void;

pub const SUCCESS: Return = 0;

/// The return codes other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    Uninitialized = 1,
    InvalidArgument = 2,
    NotSupported = 3,
    NoPermission = 4,
    NotFound = 6,
    InsufficientSize = 7,
    DriverNotLoaded = 9,
    Timeout = 10,
    GpuIsLost = 15,
    ResetRequired = 16,
    LibRmVersionMismatch = 18,
    ArgumentVersionMismatch = 25,
    Unknown = 999,
}

/// Where a process has no value for an id.
pub const NO_ID: c_uint = c_uint::MAX;
/// Where a process's memory is not available.
pub const NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemoryV1 {
    pub total: c_ulonglong,
    pub free: c_ulonglong,
    pub used: c_ulonglong,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemoryV2 {
    pub version: c_uint,
    pub total: c_ulonglong,
    pub reserved: c_ulonglong,
    pub free: c_ulonglong,
    pub used: c_ulonglong,
}

/// `NVML_STRUCT_VERSION(Memory, 2)`.
pub const MEMORY_V2: c_uint = size_of::<MemoryV2>() as c_uint | 2 << 24;

/// The second version, which the `_v2` and `_v3` lists share.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProcessInfo {
    pub pid: c_uint,
    pub used_gpu_memory: c_ulonglong,
    pub gpu_instance_id: c_uint,
    pub compute_instance_id: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PciInfo {
    pub bus_id_legacy: [c_char; 16],
    pub domain: c_uint,
    pub bus: c_uint,
    pub device: c_uint,
    pub pci_device_id: c_uint,
    pub pci_sub_system_id: c_uint,
    pub bus_id: [c_char; 32],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes {
    pub multiprocessor_count: c_uint,
    pub shared_copy_engine_count: c_uint,
    pub shared_decoder_count: c_uint,
    pub shared_encoder_count: c_uint,
    pub shared_jpeg_count: c_uint,
    pub shared_ofa_count: c_uint,
    pub gpu_instance_slice_count: c_uint,
    pub compute_instance_slice_count: c_uint,
    pub memory_size_mb: c_ulonglong,
}

/// Writes a result where the caller wants it.
///
/// # Safety
/// `to` is null or valid for writing a `T`; it need not be initialised.
pub unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(Code::InvalidArgument);
    }
    // SAFETY: not null, so valid for writing by this function's contract.
    unsafe { to.write(value) };
    Ok(())
}

/// Writes a text with its NUL into a buffer of `length` bytes.
///
/// # Safety
/// `to` is null or valid for writing `length` bytes.
pub unsafe fn put_text(to: *mut c_char, length: c_uint, text: &str) -> Result<(), Code> {
    if to.is_null() {
        return Err(Code::InvalidArgument);
    }
    if text.len() >= length as usize {
        return Err(Code::InsufficientSize);
    }
    // SAFETY: `to` is valid for `length` bytes by this function's contract, which the text and its NUL do not exceed.
    unsafe {
        text.as_ptr().copy_to_nonoverlapping(to.cast(), text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

/// A text in a fixed array, cut to leave room for the NUL.
pub fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut chars = [0; N];
    for (to, from) in chars.iter_mut().take(N - 1).zip(text.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    chars
}

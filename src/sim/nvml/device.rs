//! Calls on a device or a MIG instance: what it is, and its memory.

use std::ffi::{CStr, c_char, c_int, c_uint};

use super::abi::{Code, Handle, MEMORY_V2, MemoryV1, MemoryV2, PciInfo, Return, chars, put, put_text};
use super::session::{Target, answer, handle, index, refuse, target};
use crate::protocol::{Fault, Memory};

/// Handle of the device with this index.
///
/// # Safety
/// `device` is null or valid for writing a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(number: c_uint, device: *mut Handle) -> Return {
    answer(|| {
        let state = refuse(Some(index(number)))?;
        if index(number) >= state.devices.len() {
            return Err(Code::InvalidArgument);
        }
        // SAFETY: by this function's contract.
        unsafe { put(device, handle(index(number), None)) }
    })
}

/// Handle of the device or instance with this UUID.
///
/// # Safety
/// `uuid` is null or a C string; `device` is null or valid for writing a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut Handle) -> Return {
    answer(|| {
        // SAFETY: by this function's contract.
        let wanted = unsafe { text(uuid) }?;
        let state = refuse(None)?;
        for (index, candidate) in state.devices.iter().enumerate() {
            let is_wanted = |uuid: &str| uuid.eq_ignore_ascii_case(wanted);
            let slot = candidate.slots.iter().position(|slot| slot.as_ref().is_some_and(|i| is_wanted(&i.uuid)));
            if slot.is_some() || is_wanted(&candidate.uuid) {
                refuse(Some(index))?;
                // SAFETY: by this function's contract.
                return unsafe { put(device, handle(index, slot)) };
            }
        }
        Err(Code::NotFound)
    })
}

/// Handle of the device at this address on the bus.
///
/// # Safety
/// `bus_id` is null or a C string; `device` is null or valid for writing a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: *const c_char, device: *mut Handle) -> Return {
    answer(|| {
        // SAFETY: by this function's contract.
        let wanted = unsafe { text(bus_id) }?;
        let count = refuse(None)?.devices.len();
        let found = (0..count).find(|index| bus_id_of(*index).eq_ignore_ascii_case(wanted)).ok_or(Code::NotFound)?;
        refuse(Some(found))?;
        // SAFETY: by this function's contract.
        unsafe { put(device, handle(found, None)) }
    })
}

/// Name of the model; an instance's has its profile.
///
/// # Safety
/// `name` is null or valid for writing `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(device: Handle, name: *mut c_char, length: c_uint) -> Return {
    answer(|| {
        let target = target(device)?;
        let full = match target.instance() {
            Some(instance) => format!("{} MIG {}", target.device().name, instance.profile),
            None => target.device().name.clone(),
        };
        // SAFETY: by this function's contract.
        unsafe { put_text(name, length, &full) }
    })
}

/// `GPU-…` or `MIG-…`.
///
/// # Safety
/// `uuid` is null or valid for writing `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(device: Handle, uuid: *mut c_char, length: c_uint) -> Return {
    answer(|| {
        let target = target(device)?;
        let own = target.instance().map_or(&target.device().uuid, |instance| &instance.uuid);
        // SAFETY: by this function's contract.
        unsafe { put_text(uuid, length, own) }
    })
}

/// Index of a device; of an instance, its slot.
///
/// # Safety
/// `number` is null or valid for writing an unsigned int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetIndex(device: Handle, number: *mut c_uint) -> Return {
    answer(|| {
        let target = target(device)?;
        // SAFETY: by this function's contract.
        unsafe { put(number, target.slot.unwrap_or(target.index) as c_uint) }
    })
}

/// Number of the device node.
///
/// # Safety
/// `number` is null or valid for writing an unsigned int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMinorNumber(device: Handle, number: *mut c_uint) -> Return {
    answer(|| {
        let target = whole(device)?;
        // SAFETY: by this function's contract.
        unsafe { put(number, target.index as c_uint) }
    })
}

/// Address on the bus.
///
/// # Safety
/// `pci` is null or valid for writing the struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(device: Handle, pci: *mut PciInfo) -> Return {
    answer(|| {
        let index = target(device)?.index;
        let bus_id = bus_id_of(index);
        let info = PciInfo {
            // Four digits of the domain instead of eight.
            bus_id_legacy: chars(&bus_id[4..]),
            domain: 0,
            bus: bus_of(index) as c_uint,
            device: 0,
            pci_device_id: 0,
            pci_sub_system_id: 0,
            bus_id: chars(&bus_id),
        };
        // SAFETY: by this function's contract.
        unsafe { put(pci, info) }
    })
}

/// Memory, first version: `used` includes what is reserved.
///
/// # Safety
/// `memory` is null or valid for writing the struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: Handle, memory: *mut MemoryV1) -> Return {
    answer(|| {
        let Memory { total, reserved, used, free } = memory_of(&target(device)?)?;
        // SAFETY: by this function's contract.
        unsafe { put(memory, MemoryV1 { total, free, used: reserved + used }) }
    })
}

/// Memory, second version: `used` excludes what is reserved.
///
/// # Safety
/// `memory` is null or points to the struct with its version set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: *mut MemoryV2) -> Return {
    answer(|| {
        let target = target(device)?;
        if target.has(Fault::MemoryV2Missing) {
            return Err(Code::NotSupported);
        }
        if memory.is_null() {
            return Err(Code::InvalidArgument);
        }
        // SAFETY: not null, so it points to a struct with its version set by this function's contract.
        let version = unsafe { (&raw const (*memory).version).read() };
        if version != MEMORY_V2 {
            return Err(Code::ArgumentVersionMismatch);
        }
        let Memory { total, reserved, used, free } = memory_of(&target)?;
        // SAFETY: by this function's contract.
        unsafe { put(memory, MemoryV2 { version, total, reserved, free, used }) }
    })
}

/// Compute capability: Hopper's for all.
///
/// # Safety
/// `major` and `minor` are null or valid for writing an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: Handle,
    major: *mut c_int,
    minor: *mut c_int,
) -> Return {
    answer(|| {
        target(device)?;
        // SAFETY: by this function's contract.
        unsafe { put(major, 9).and_then(|()| put(minor, 0)) }
    })
}

/// A target that must be a whole device.
pub fn whole(device: Handle) -> Result<Target, Code> {
    let target = target(device)?;
    if target.slot.is_some() { Err(Code::InvalidArgument) } else { Ok(target) }
}

fn memory_of(target: &Target) -> Result<Memory, Code> {
    if target.has(Fault::MemoryNotSupported) {
        return Err(Code::NotSupported);
    }
    Ok(target.instance().map_or(target.device().memory, |instance| instance.memory))
}

fn bus_of(index: usize) -> usize {
    index + 1
}

fn bus_id_of(index: usize) -> String {
    format!("00000000:{:02X}:00.0", bus_of(index))
}

/// # Safety
/// `from` is null or a C string.
unsafe fn text<'a>(from: *const c_char) -> Result<&'a str, Code> {
    if from.is_null() {
        return Err(Code::InvalidArgument);
    }
    // SAFETY: not null, so a C string by this function's contract.
    unsafe { CStr::from_ptr(from) }.to_str().map_err(|_| Code::InvalidArgument)
}

//! Calls on a device or a MIG instance, process lists aside.

use std::ffi::{CStr, c_char, c_int, c_uint};

use super::abi::{Attributes, Code, Handle, MEMORY_V2, MemoryV1, MemoryV2, PciInfo, Return, chars, put, put_text};
use super::session::{Target, answer, handle, index, refuse, target};
use crate::protocol::{Fault, Memory};

/// As many MIG slots as a device with MIG on can have.
const MAX_MIG: c_uint = 7;

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

/// Whether MIG is on, now and after a reset.
///
/// # Safety
/// `current` and `pending` are null or valid for writing an unsigned int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(device: Handle, current: *mut c_uint, pending: *mut c_uint) -> Return {
    answer(|| {
        let mode = c_uint::from(!whole(device)?.device().slots.is_empty());
        // SAFETY: by this function's contract.
        unsafe { put(current, mode).and_then(|()| put(pending, mode)) }
    })
}

/// Most instances that the device can have.
///
/// # Safety
/// `count` is null or valid for writing an unsigned int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxMigDeviceCount(device: Handle, count: *mut c_uint) -> Return {
    answer(|| {
        let sliced = !whole(device)?.device().slots.is_empty();
        // SAFETY: by this function's contract.
        unsafe { put(count, if sliced { MAX_MIG } else { 0 }) }
    })
}

/// Handle of the instance in a slot; an empty slot is NOT_FOUND.
///
/// # Safety
/// `instance` is null or valid for writing a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: Handle,
    slot: c_uint,
    instance: *mut Handle,
) -> Return {
    answer(|| {
        let target = whole(device)?;
        if target.device().slots.is_empty() {
            return Err(Code::NotSupported);
        }
        if slot >= MAX_MIG {
            return Err(Code::InvalidArgument);
        }
        if target.device().slots.get(index(slot)).is_none_or(Option::is_none) {
            return Err(Code::NotFound);
        }
        // SAFETY: by this function's contract.
        unsafe { put(instance, handle(target.index, Some(index(slot)))) }
    })
}

/// Whether a handle is an instance's.
///
/// # Safety
/// `is_instance` is null or valid for writing an unsigned int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceIsMigDeviceHandle(device: Handle, is_instance: *mut c_uint) -> Return {
    answer(|| {
        let target = target(device)?;
        // SAFETY: by this function's contract.
        unsafe { put(is_instance, c_uint::from(target.slot.is_some())) }
    })
}

/// Handle of the device that an instance is part of.
///
/// # Safety
/// `parent` is null or valid for writing a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance: Handle, parent: *mut Handle) -> Return {
    answer(|| {
        let target = target(instance)?;
        if target.slot.is_none() {
            return Err(Code::InvalidArgument);
        }
        // SAFETY: by this function's contract.
        unsafe { put(parent, handle(target.index, None)) }
    })
}

/// GPU instance of an instance handle, as the process lists have it.
///
/// # Safety
/// `id` is null or valid for writing an unsigned int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceId(device: Handle, id: *mut c_uint) -> Return {
    answer(|| {
        let slot = target(device)?.slot.ok_or(Code::InvalidArgument)?;
        // SAFETY: by this function's contract.
        unsafe { put(id, slot as c_uint + 1) }
    })
}

/// Compute instance of an instance handle: each GPU instance has one, number 0.
///
/// # Safety
/// `id` is null or valid for writing an unsigned int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeInstanceId(device: Handle, id: *mut c_uint) -> Return {
    answer(|| {
        target(device)?.slot.ok_or(Code::InvalidArgument)?;
        // SAFETY: by this function's contract.
        unsafe { put(id, 0) }
    })
}

/// Slices and memory of an instance.
///
/// # Safety
/// `attributes` is null or valid for writing the struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetAttributes_v2(device: Handle, attributes: *mut Attributes) -> Return {
    answer(|| {
        let target = target(device)?;
        let instance = target.instance().ok_or(Code::NotSupported)?;
        let found = Attributes {
            multiprocessor_count: instance.slices * 16,
            gpu_instance_slice_count: instance.slices,
            compute_instance_slice_count: instance.slices,
            memory_size_mb: instance.memory.total >> 20,
            ..Attributes::default()
        };
        // SAFETY: by this function's contract.
        unsafe { put(attributes, found) }
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
fn whole(device: Handle) -> Result<Target, Code> {
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

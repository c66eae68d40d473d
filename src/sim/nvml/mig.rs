//! MIG: which instances a device has, and which device an instance is part of.

use std::ffi::c_uint;

use super::abi::{Attributes, Code, Handle, Return, put};
use super::device::whole;
use super::session::{answer, handle, index, target};

/// As many slots as a device with MIG on can have.
const MAX_MIG: c_uint = 7;

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

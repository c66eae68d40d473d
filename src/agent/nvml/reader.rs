//! One pass over the devices: NVML's answers as [`Reading`]s.
//!
//! Here are NVML's traps: lists that grow while they are read, slices that share their memory, a first version of the memory
//! query that mixes in the driver's own share, and symbols an old library does not have.

use gpumem_engine::identity::{DeviceKey, MigInstance, Pid};
use gpumem_engine::quantity::Bytes;
use gpumem_engine::sample::{DeviceMemory, DeviceSample, ProcessMemory, QueryFailure, Reading};
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlMemory_t, nvmlProcessInfo_t, nvmlReturn_t};

use super::{Gpu, Observer, clean, failure, lost};

/// First size of the buffer for a process list: one call where most drivers' tools need two.
const FIRST_PROCESSES: usize = 64;
/// The driver lists at most 950 processes; a list that claims more than this is not believed.
const MAX_PROCESSES: usize = 4096;
/// A list may grow between two calls; after so many it is reported as cut.
const LIST_ATTEMPTS: usize = 6;
/// More slices than any GPU can be cut into.
const MAX_SLICES: u32 = 64;

/// One pass over the devices.
pub(super) struct Reader<'a, O> {
    pub nvml: &'a Nvml,
    pub has_process_lists: bool,
    pub processes: &'a mut Vec<nvmlProcessInfo_t>,
    pub observer: &'a O,
}

// === impl Reader ===

impl<O: Observer> Reader<'_, O> {
    /// Adds one GPU, or its slices.
    pub fn gpu(&mut self, gpu: &mut Gpu, devices: &mut Vec<DeviceSample>) {
        let handle = match self.nvml.device_by_index(gpu.identity.index) {
            Ok(handle) => handle,
            Err(error) => return devices.push(lost(&gpu.identity, self.failed("handle", &error))),
        };
        if gpu.may_slice {
            match handle.mig_mode() {
                Ok(mode) if mode.current == 1 => return self.sliced(gpu, &handle, devices),
                Ok(_) => {}
                Err(error) if is_unsupported(&error) => gpu.may_slice = false,
                // The memory query below meets the same fault and reports it.
                Err(error) => _ = self.failed("mig_mode", &error),
            }
        }
        devices.push(DeviceSample {
            device: DeviceKey { gpu: gpu.identity.uuid.clone(), mig: None },
            index: gpu.identity.index,
            model: gpu.identity.model.clone(),
            memory: self.memory(&handle, &mut gpu.has_reserved),
            processes: self.process_lists(&handle),
        });
    }

    /// A partitioned GPU: one device for each GPU instance, which owns the memory however many compute instances it has.
    /// The parent's own sums need rights that monitoring does not have, and would count every slice twice.
    fn sliced(&mut self, gpu: &mut Gpu, parent: &Device<'_>, devices: &mut Vec<DeviceSample>) {
        let first = devices.len();
        let mut refused = None;
        let count = match parent.mig_device_count() {
            Ok(count) => count.min(MAX_SLICES),
            Err(error) => return devices.push(lost(&gpu.identity, self.failed("mig_count", &error))),
        };
        for place in 0..count {
            let found =
                parent.mig_device_by_index(place).and_then(|slice| Ok((gpu_instance(self.nvml, &slice)?, slice)));
            let (gpu_instance, slice) = match found {
                Ok(found) => found,
                // An empty place: instances are numbered with holes.
                Err(NvmlError::NotFound | NvmlError::InvalidArg) => continue,
                Err(error) => {
                    refused = Some(self.failed("mig_handle", &error));
                    continue;
                }
            };
            let device = DeviceKey { gpu: gpu.identity.uuid.clone(), mig: Some(MigInstance { gpu_instance }) };
            let processes = self.process_lists(&slice);
            if let Some(known) = devices.iter_mut().skip(first).find(|known| known.device == device) {
                known.processes = joined(std::mem::replace(&mut known.processes, Reading::NotSupported), processes);
                continue;
            }
            let model = slice.name().map_or_else(|_| format!("{} MIG", gpu.identity.model), clean);
            let memory = self.memory(&slice, &mut gpu.has_reserved);
            devices.push(DeviceSample { device, index: gpu.identity.index, model, memory, processes });
        }
        if devices.len() == first {
            // Partitioned and without a slice, or none of them may be seen.
            let refused = refused.map(|failure| lost(&gpu.identity, failure));
            let empty = || DeviceSample {
                device: DeviceKey { gpu: gpu.identity.uuid.clone(), mig: None },
                index: gpu.identity.index,
                model: gpu.identity.model.clone(),
                memory: Reading::NotSupported,
                processes: Reading::Value(Vec::new()),
            };
            devices.push(refused.unwrap_or_else(empty));
        }
    }

    /// The device's counters: the second version of the query, which tells the driver's own share apart, or the first.
    fn memory(&self, device: &Device<'_>, has_reserved: &mut bool) -> Reading<DeviceMemory> {
        if *has_reserved {
            match device.memory_info() {
                Ok(info) => {
                    return Reading::Value(DeviceMemory {
                        total: Bytes(info.total),
                        used: Bytes(info.used),
                        free: Bytes(info.free),
                        reserved: Some(Bytes(info.reserved)),
                    });
                }
                Err(error) if is_missing(&error) => *has_reserved = false,
                // An old driver under a new library, or a device that has no counters at all: the first version tells.
                Err(NvmlError::InvalidArg | NvmlError::UnexpectedVariant(_) | NvmlError::NotSupported) => {}
                Err(error) => return Reading::Failed(self.failed("memory", &error)),
            }
        }
        match memory_v1(self.nvml, device) {
            Ok(memory) => Reading::Value(memory),
            Err(error) if is_unsupported(&error) => Reading::NotSupported,
            Err(error) => Reading::Failed(self.failed("memory", &error)),
        }
    }

    /// The compute, graphics and MPS lists joined, duplicates included. One that fails makes the whole unknown: half a
    /// list would understate a container.
    fn process_lists(&mut self, device: &Device<'_>) -> Reading<Vec<ProcessMemory>> {
        if !self.has_process_lists {
            return Reading::NotSupported;
        }
        let lib = self.nvml.lib();
        let lists = [
            ("compute_processes", lib.nvmlDeviceGetComputeRunningProcesses_v3.as_ref()),
            ("graphics_processes", lib.nvmlDeviceGetGraphicsRunningProcesses_v3.as_ref()),
            ("mps_processes", lib.nvmlDeviceGetMPSComputeRunningProcesses_v3.as_ref()),
        ];
        let mut found: Option<Vec<ProcessMemory>> = None;
        for (query, symbol) in lists {
            let listed = nvml_sym(symbol).and_then(|list| self.list(device, *list));
            match listed {
                Ok(count) => {
                    let processes = self.processes.iter().take(count).map(process);
                    found.get_or_insert_default().extend(processes);
                }
                // Slices have no graphics, old drivers no MPS list.
                Err(error) if is_unsupported(&error) => {}
                Err(error) => return Reading::Failed(self.failed(query, &error)),
            }
        }
        found.map_or(Reading::NotSupported, Reading::Value)
    }

    /// Fills the buffer from one list and returns the number of its entries. nvml-wrapper asks for the size first, adds
    /// five and does not try again; a node that starts many processes at once needs more.
    fn list(&mut self, device: &Device<'_>, list: List) -> Result<usize, NvmlError> {
        for _ in 0..LIST_ATTEMPTS {
            let capacity = self.processes.len().max(FIRST_PROCESSES);
            self.processes.resize(capacity, EMPTY);
            let mut count = capacity as u32;
            // SAFETY: the handle comes from this NVML, `count` says how many records the buffer holds, and NVML writes
            // no more than that and the count.
            #[allow(unsafe_code, reason = "nvml-wrapper's own list has no retry")]
            let answer = unsafe { list(device.handle(), &raw mut count, self.processes.as_mut_ptr()) };
            match nvml_try(answer) {
                Ok(()) => return Ok((count as usize).min(capacity)),
                Err(NvmlError::InsufficientSize(_)) if capacity < MAX_PROCESSES => {
                    let wanted = (count as usize + count as usize / 4).max(capacity * 2);
                    self.processes.resize(wanted.min(MAX_PROCESSES), EMPTY);
                }
                Err(error) => return Err(error),
            }
        }
        Err(NvmlError::InsufficientSize(None))
    }

    fn failed(&self, query: &'static str, error: &NvmlError) -> QueryFailure {
        let failure = failure(error);
        self.observer.failed(query, failure);
        failure
    }
}

/// The shape shared by NVML's three lists.
type List = unsafe extern "C" fn(nvmlDevice_t, *mut u32, *mut nvmlProcessInfo_t) -> nvmlReturn_t;

const EMPTY: nvmlProcessInfo_t =
    nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: u32::MAX, computeInstanceId: u32::MAX };

fn process(info: &nvmlProcessInfo_t) -> ProcessMemory {
    // All ones is NVML's "not available".
    let used = (info.usedGpuMemory != u64::MAX).then_some(Bytes(info.usedGpuMemory));
    ProcessMemory { pid: Pid(info.pid), used }
}

fn memory_v1(nvml: &Nvml, device: &Device<'_>) -> Result<DeviceMemory, NvmlError> {
    let query = nvml_sym(nvml.lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut info = nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: the handle comes from this NVML and `info` is the struct the first version fills.
    #[allow(unsafe_code, reason = "nvml-wrapper has the second version only")]
    nvml_try(unsafe { query(device.handle(), &raw mut info) })?;
    Ok(DeviceMemory { total: Bytes(info.total), used: Bytes(info.used), free: Bytes(info.free), reserved: None })
}

fn gpu_instance(nvml: &Nvml, slice: &Device<'_>) -> Result<u32, NvmlError> {
    let query = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
    let mut id = 0;
    // SAFETY: the handle comes from this NVML and the id is a plain number.
    #[allow(unsafe_code, reason = "nvml-wrapper does not wrap it")]
    nvml_try(unsafe { query(slice.handle(), &raw mut id) })?;
    Ok(id)
}

fn joined(mine: Reading<Vec<ProcessMemory>>, other: Reading<Vec<ProcessMemory>>) -> Reading<Vec<ProcessMemory>> {
    match (mine, other) {
        (Reading::Value(mut mine), Reading::Value(other)) => {
            mine.extend(other);
            Reading::Value(mine)
        }
        (Reading::Failed(failure), _) | (_, Reading::Failed(failure)) => Reading::Failed(failure),
        (Reading::NotSupported, other) => other,
        (mine, Reading::NotSupported) => mine,
    }
}

fn is_missing(error: &NvmlError) -> bool {
    matches!(error, NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound)
}

fn is_unsupported(error: &NvmlError) -> bool {
    is_missing(error) || matches!(error, NvmlError::NotSupported)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_fails_on_one_compute_instance_is_unknown_for_the_slice() {
        let one = ProcessMemory { pid: Pid(1), used: Some(Bytes(1)) };
        let two = ProcessMemory { pid: Pid(2), used: None };
        assert_eq!(joined(Reading::Value(vec![one]), Reading::Value(vec![two])), Reading::Value(vec![one, two]));
        let failed = Reading::Failed(QueryFailure::Unknown);
        assert_eq!(joined(Reading::Value(vec![one]), failed.clone()), failed);
    }
}

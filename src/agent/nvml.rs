//! The driver: finds and loads NVML, and reads every device's memory and processes into a [`RawSample`].
//!
//! The only file that knows nvml-wrapper. Everything here blocks and may hang inside the driver, so it runs on the
//! sampler's thread alone. A query that fails becomes a failed [`Reading`], never a zero; only the loss of the whole driver
//! is for the caller to act on.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use gpumem_engine::identity::{DeviceKey, DeviceUuid, MigInstance, Pid};
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::sample::{DeviceMemory, DeviceSample, ProcessMemory, QueryFailure, RawSample, Reading};
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlMemory_t, nvmlProcessInfo_t, nvmlReturn_t};

/// The name every driver installs.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// Where container toolkits, GPU Operator, GKE, EKS and distributions put it, after the loader's own path.
const DIRECTORIES: [&str; 8] = [
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/nvidia/driver/usr/lib/aarch64-linux-gnu",
    "/run/nvidia/driver/usr/lib64",
    "/home/kubernetes/bin/nvidia/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
];
/// First size of the buffer for a process list: one call where most drivers' tools need two.
const FIRST_PROCESSES: usize = 64;
/// The driver lists at most 950 processes; a list that claims more than this is not believed.
const MAX_PROCESSES: usize = 4096;
/// A list may grow between two calls; after so many it is reported as cut.
const LIST_ATTEMPTS: usize = 6;
/// More slices than any GPU can be cut into.
const MAX_SLICES: u32 = 64;
/// Longest product name shown.
const MAX_NAME: usize = 96;
/// Drivers whose process records are larger than the header they ship says: their lists read as garbage.
const MISALIGNED: [(u32, u32, u32); 2] = [(535, 43, 2), (535, 86, 5)];
/// Version strings of the simulated driver start with this.
const SIMULATED: &str = "sim";

/// Why there is no working NVML.
#[derive(Debug)]
pub enum Error {
    /// The library is on no path.
    NotFound {
        /// Every path tried and what the loader said.
        tried: Vec<(PathBuf, String)>,
    },
    /// A library was loaded and its start failed.
    Init {
        /// Which library.
        library: PathBuf,
        /// What it answered.
        source: NvmlError,
    },
    /// It started and then failed as a whole.
    Driver(NvmlError),
}

impl Error {
    /// Name for a metric label, from a closed set.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "library_not_found",
            Self::Init { source, .. } | Self::Driver(source) => match source {
                NvmlError::DriverNotLoaded => "driver_not_loaded",
                NvmlError::LibRmVersionMismatch => "version_mismatch",
                other => failure(other).kind(),
            },
        }
    }

    /// True where the driver is there but will not talk to this process: missing device nodes or a cgroup rule.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::NotFound { .. } => false,
            Self::Init { source, .. } | Self::Driver(source) => {
                matches!(source, NvmlError::NoPermission | NvmlError::OperatingSystem | NvmlError::Unknown)
            }
        }
    }

    /// True where no driver answered at all: the library is missing, or it says that no driver is loaded.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::NotFound { .. } | Self::Init { source: NvmlError::DriverNotLoaded, .. })
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { tried } => {
                f.write_str("no NVML library; tried ")?;
                for (place, (path, why)) in tried.iter().enumerate() {
                    write!(f, "{}{} ({why})", if place == 0 { "" } else { ", " }, path.display())?;
                }
                Ok(())
            }
            Self::Init { library, source } => write!(f, "{} does not start: {source}", library.display()),
            Self::Driver(source) => write!(f, "the driver fails: {source}"),
        }
    }
}

/// What is known of a GPU for as long as the agent runs, so that a lost one keeps its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// NVML's index.
    pub index: u32,
    /// Its UUID.
    pub uuid: DeviceUuid,
    /// Product name.
    pub model: String,
}

/// Told about the reading while it goes on.
pub trait Observer {
    /// The next calls ask about this GPU.
    fn device(&self, index: u32);
    /// A query failed.
    fn failed(&self, query: &'static str, failure: QueryFailure);
}

/// A started NVML.
pub struct Driver {
    nvml: Nvml,
    version: String,
    gpus: Vec<Gpu>,
    has_process_lists: bool,
    processes: Vec<nvmlProcessInfo_t>,
}

struct Gpu {
    identity: Identity,
    /// False once the device said that it knows no MIG.
    may_slice: bool,
    /// False once the second version of the memory query is known to be missing.
    has_reserved: bool,
}

/// The paths the library is looked for, in order.
pub fn search_list(first: Option<&std::path::Path>) -> Vec<PathBuf> {
    first
        .map(PathBuf::from)
        .into_iter()
        .chain([PathBuf::from(LIBRARY)])
        .chain(DIRECTORIES.iter().map(|directory| PathBuf::from(directory).join(LIBRARY)))
        .collect()
}

// === impl Driver ===

impl Driver {
    /// Loads the first library that starts. `known` names the GPUs of earlier runs, should one be lost now.
    pub fn open(search: &[PathBuf], known: &[Identity]) -> Result<Self, Error> {
        let mut tried = Vec::new();
        let mut init = None;
        for path in search {
            match Nvml::builder().lib_path(OsString::from(path).as_os_str()).init() {
                Ok(nvml) => return Self::started(nvml, known),
                Err(NvmlError::LibloadingError(error)) => tried.push((path.clone(), loader_text(path, &error))),
                // A stale library may stand before the right one, so the search goes on.
                Err(source) => {
                    init.get_or_insert(Error::Init { library: path.clone(), source });
                }
            }
        }
        Err(init.unwrap_or(Error::NotFound { tried }))
    }

    fn started(nvml: Nvml, known: &[Identity]) -> Result<Self, Error> {
        let version = clean(nvml.sys_driver_version().map_err(Error::Driver)?);
        let count = nvml.device_count().map_err(Error::Driver)?;
        let gpus = (0..count)
            .map(|index| {
                let identity = identify(&nvml, index)
                    .or_else(|_| known.iter().find(|identity| identity.index == index).cloned().ok_or(()));
                let identity = identity.unwrap_or_else(|()| Identity {
                    index,
                    uuid: DeviceUuid(format!("unknown-{index}")),
                    model: "unknown".to_owned(),
                });
                Gpu { identity, may_slice: true, has_reserved: true }
            })
            .collect();
        let has_process_lists = !is_misaligned(&version);
        Ok(Self { nvml, version, gpus, has_process_lists, processes: Vec::new() })
    }

    /// The driver's version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// True where the driver is simulated; it says so itself.
    pub fn is_simulated(&self) -> bool {
        self.version.starts_with(SIMULATED)
    }

    /// The GPUs found when it started.
    pub fn identities(&self) -> Vec<Identity> {
        self.gpus.iter().map(|gpu| gpu.identity.clone()).collect()
    }

    /// Reads everything once.
    pub fn read(&mut self, at: Moment, observer: &impl Observer) -> RawSample {
        let mut reader = Reader {
            nvml: &self.nvml,
            has_process_lists: self.has_process_lists,
            processes: &mut self.processes,
            observer,
        };
        let mut devices = Vec::with_capacity(self.gpus.len());
        for gpu in &mut self.gpus {
            observer.device(gpu.identity.index);
            reader.gpu(gpu, &mut devices);
        }
        RawSample { at, devices }
    }
}

/// One pass over the devices.
struct Reader<'a, O> {
    nvml: &'a Nvml,
    has_process_lists: bool,
    processes: &'a mut Vec<nvmlProcessInfo_t>,
    observer: &'a O,
}

// === impl Reader ===

impl<O: Observer> Reader<'_, O> {
    fn gpu(&mut self, gpu: &mut Gpu, devices: &mut Vec<DeviceSample>) {
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

fn identify(nvml: &Nvml, index: u32) -> Result<Identity, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let model = device.name().map_or_else(|_| "unknown".to_owned(), clean);
    Ok(Identity { index, uuid: DeviceUuid(clean(device.uuid()?)), model })
}

fn lost(identity: &Identity, failure: QueryFailure) -> DeviceSample {
    DeviceSample {
        device: DeviceKey { gpu: identity.uuid.clone(), mig: None },
        index: identity.index,
        model: identity.model.clone(),
        memory: Reading::Failed(failure),
        processes: Reading::Failed(failure),
    }
}

/// The sample of a node whose driver is gone: every GPU that was ever seen, and nothing about it.
pub fn all_failed(known: &[Identity], failure: QueryFailure, at: Moment) -> RawSample {
    RawSample { at, devices: known.iter().map(|identity| lost(identity, failure)).collect() }
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

/// GPU_NOT_FOUND, newer than the crate's list.
const GPU_NOT_FOUND: u32 = 28;

fn failure(error: &NvmlError) -> QueryFailure {
    match error {
        NvmlError::GpuLost | NvmlError::ResetRequired | NvmlError::UnexpectedVariant(GPU_NOT_FOUND) => {
            QueryFailure::DeviceLost
        }
        NvmlError::NoPermission | NvmlError::OperatingSystem => QueryFailure::NoPermission,
        NvmlError::Uninitialized | NvmlError::DriverNotLoaded | NvmlError::LibRmVersionMismatch => {
            QueryFailure::DriverGone
        }
        NvmlError::Timeout => QueryFailure::Hung,
        NvmlError::InsufficientSize(_) => QueryFailure::Truncated,
        _ => QueryFailure::Unknown,
    }
}

fn is_missing(error: &NvmlError) -> bool {
    matches!(error, NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound)
}

fn is_unsupported(error: &NvmlError) -> bool {
    is_missing(error) || matches!(error, NvmlError::NotSupported)
}

fn is_misaligned(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    MISALIGNED[0] <= version && version <= MISALIGNED[1]
}

/// A driver's text as a label: printable and short.
fn clean(text: String) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(MAX_NAME).collect()
}

/// What the loader said, without the path that stands before it anyway.
fn loader_text(path: &std::path::Path, error: &dyn std::error::Error) -> String {
    let text = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    let place = path.display().to_string();
    let text = text.strip_prefix(&place).unwrap_or(&text).trim_start_matches([':', ' ']);
    clean(text.replace("cannot open shared object file: ", ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_comes_first_then_the_loader_then_every_known_place() {
        let list = search_list(Some(std::path::Path::new("/opt/nvml.so")));
        assert_eq!(list[0], PathBuf::from("/opt/nvml.so"));
        assert_eq!(list[1], PathBuf::from(LIBRARY));
        assert_eq!(list.len(), 2 + DIRECTORIES.len());
    }

    #[test]
    fn a_missing_library_is_reported_with_every_path_tried() {
        let list = [PathBuf::from("/nowhere/libnvidia-ml.so.1"), PathBuf::from("/nor/here.so")];
        let Err(error) = Driver::open(&list, &[]) else { panic!("no library is there") };
        let text = error.to_string();
        assert!(text.contains("/nowhere/libnvidia-ml.so.1 (") && text.contains("/nor/here.so ("), "{text}");
        assert_eq!(error.kind(), "library_not_found");
        assert!(error.is_absence() && !error.is_refusal());
    }

    #[test]
    fn drivers_with_the_larger_process_record_are_known() {
        for (version, misaligned) in
            [("535.43.02", true), ("535.86.05", true), ("535.104.05", false), ("530.1", false), ("sim 1", false)]
        {
            assert_eq!(is_misaligned(version), misaligned, "{version}");
        }
    }

    #[test]
    fn a_list_that_fails_on_one_compute_instance_is_unknown_for_the_slice() {
        let one = ProcessMemory { pid: Pid(1), used: Some(Bytes(1)) };
        let two = ProcessMemory { pid: Pid(2), used: None };
        assert_eq!(joined(Reading::Value(vec![one]), Reading::Value(vec![two])), Reading::Value(vec![one, two]));
        let failed = Reading::Failed(QueryFailure::Unknown);
        assert_eq!(joined(Reading::Value(vec![one]), failed.clone()), failed);
    }
}

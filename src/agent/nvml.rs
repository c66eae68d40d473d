//! The driver: finds and loads NVML, and reads every device's memory and processes into a [`RawSample`].
//!
//! With `reader` below it, the only file that knows nvml-wrapper. Everything here blocks and may hang inside the driver, so it runs on the
//! sampler's thread alone. A query that fails becomes a failed [`Reading`], never a zero; only the loss of the whole driver
//! is for the caller to act on.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use gpumem_engine::identity::{DeviceKey, DeviceUuid};
use gpumem_engine::quantity::Moment;
use gpumem_engine::sample::{DeviceSample, QueryFailure, RawSample, Reading};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::nvmlProcessInfo_t;

use self::reader::Reader;

mod reader;

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
                    uuid: DeviceUuid::from(format!("unknown-{index}")),
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

fn identify(nvml: &Nvml, index: u32) -> Result<Identity, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let model = device.name().map_or_else(|_| "unknown".to_owned(), clean);
    Ok(Identity { index, uuid: DeviceUuid::from(clean(device.uuid()?)), model })
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
}

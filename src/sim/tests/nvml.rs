//! The built library, loaded by the same reader that the agent uses.

use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use gpumem_sim::library;
use gpumem_sim::protocol::{Fault, Kind};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

use crate::support::{Driver, Folder, GIB, MIB, Process, eventually};

/// A driver and its library, loaded.
struct Loaded {
    nvml: Nvml,
    driver: Driver,
}

impl Loaded {
    fn with(devices: &str) -> Self {
        let driver = Driver::with(devices);
        let nvml = load(&driver.folder).unwrap();
        Self { nvml, driver }
    }

    fn device(&self) -> Device<'_> {
        self.nvml.device_by_index(0).unwrap()
    }
}

fn load(folder: &Folder) -> Result<Nvml, NvmlError> {
    let file = folder.0.join("libnvidia-ml.so.1");
    if !file.exists() {
        library::install(&folder.0).unwrap();
    }
    Nvml::builder().lib_path(file.as_os_str()).init()
}

fn bytes(process: &ProcessInfo) -> u64 {
    match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => bytes,
        UsedGpuMemory::Unavailable => panic!("not available"),
    }
}

#[test]
fn devices_have_names_uuids_and_versions_that_say_simulated() {
    let loaded = Loaded::with("H200:2;1x80GiB");
    let nvml = &loaded.nvml;
    assert!(nvml.sys_driver_version().unwrap().starts_with("sim"));
    assert!(nvml.sys_nvml_version().unwrap().starts_with("sim"));
    assert!(nvml.sys_cuda_driver_version().is_ok());
    assert_eq!(nvml.device_count().unwrap(), 3);
    let expected = loaded.driver.state();
    for index in 0..3 {
        let device = nvml.device_by_index(index).unwrap();
        assert_eq!(device.name().unwrap(), expected.devices[index as usize].name);
        assert_eq!(device.uuid().unwrap(), expected.devices[index as usize].uuid);
        assert_eq!(device.index().unwrap(), index);
        assert_eq!(device.minor_number().unwrap(), index);
        assert!(!device.mig_is_mig_device_handle().unwrap());
        assert_eq!(nvml.device_by_uuid(device.uuid().unwrap()).unwrap().index().unwrap(), index);
        let bus_id = device.pci_info().unwrap().bus_id;
        assert_eq!(nvml.device_by_pci_bus_id(bus_id).unwrap().index().unwrap(), index);
    }
    assert!(matches!(nvml.device_by_index(3), Err(NvmlError::InvalidArg)));
    assert!(matches!(nvml.device_by_uuid("GPU-none"), Err(NvmlError::NotFound)));
}

#[test]
fn both_versions_of_memory_agree_on_what_is_reserved() {
    let loaded = Loaded::with("H200");
    let _job = loaded.driver.holding("0", Kind::Compute, 4 * GIB);
    let device = loaded.device();
    let second = device.memory_info().unwrap();
    assert_eq!(second.total, 143_771 * MIB);
    assert_eq!(second.reserved, 616 * MIB);
    assert_eq!(second.used, (4096 + 500 + 15) * MIB);
    assert_eq!(second.total, second.reserved + second.used + second.free);
    // SAFETY: the struct is three plain numbers, which the call's signature infers, and lives through the call; the handle
    // comes from the library that is called.
    let first = unsafe {
        let mut first = std::mem::zeroed();
        assert_eq!(loaded.nvml.lib().nvmlDeviceGetMemoryInfo(device.handle(), &raw mut first), 0);
        first
    };
    assert_eq!((first.total, first.free, first.used), (second.total, second.free, second.used + second.reserved));
}

#[test]
fn processes_are_listed_by_kind_with_their_bytes() {
    let loaded = Loaded::with("H200");
    let device = loaded.device();
    assert_eq!(device.running_compute_processes().unwrap().len(), 0);
    let workload = Process::spawn(&loaded.driver.folder.socket(), &["workload", "--shape", "plateau:at=1GiB"]);
    let _own = loaded.driver.holding("0", Kind::Graphics, GIB);
    let listed = eventually("the workload's memory", || {
        let listed = device.running_compute_processes().unwrap();
        listed.first().filter(|process| bytes(process) == 1524 * MIB).cloned()
    });
    assert_eq!((listed.pid, listed.gpu_instance_id, listed.compute_instance_id), (workload.id(), None, None));
    let graphics = device.running_graphics_processes().unwrap();
    assert_eq!(graphics.iter().map(|process| process.pid).collect::<Vec<_>>(), [std::process::id()]);
    assert_eq!(device.mps_running_compute_processes().unwrap().len(), 0);
    assert_eq!(loaded.nvml.sys_process_name(workload.id(), 4).unwrap(), "pyt");
}

#[test]
fn a_process_of_both_kinds_and_a_client_of_mps_are_in_two_lists() {
    let loaded = Loaded::with("2x8GiB");
    let _both = loaded.driver.holding("0", Kind::Both, 0);
    let _mps = loaded.driver.holding("1", Kind::Mps, 0);
    let counts = |index| {
        let device = loaded.nvml.device_by_index(index).unwrap();
        [
            device.running_compute_processes().unwrap().len(),
            device.running_graphics_processes().unwrap().len(),
            device.mps_running_compute_processes().unwrap().len(),
        ]
    };
    assert_eq!((counts(0), counts(1)), ([1, 1, 0], [1, 0, 1]));
}

#[test]
fn mig_instances_have_their_own_memory_processes_and_ids() {
    let loaded = Loaded::with("H200,mig=3g.71gb+-+1g.18gb;H200");
    let _job = loaded.driver.holding("0.2", Kind::Compute, GIB);
    let parent = loaded.device();
    assert_eq!(parent.mig_mode().unwrap().current, 1);
    assert_eq!(parent.mig_device_count().unwrap(), 7);
    let present: Vec<u32> = (0..7).filter(|slot| parent.mig_device_by_index(*slot).is_ok()).collect();
    assert_eq!(present, [0, 2]);
    assert!(matches!(parent.mig_device_by_index(1), Err(NvmlError::NotFound)));
    let instance = parent.mig_device_by_index(2).unwrap();
    assert!(instance.mig_is_mig_device_handle().unwrap());
    assert!(instance.uuid().unwrap().starts_with("MIG-"));
    assert_eq!(instance.name().unwrap(), "NVIDIA H200 MIG 1g.18gb");
    assert_eq!(instance.mig_parent_device().unwrap().uuid().unwrap(), parent.uuid().unwrap());
    let memory = instance.memory_info().unwrap();
    assert_eq!((memory.total / MIB, memory.reserved, memory.used / MIB), (17_971, 0, 1024 + 146));
    assert_eq!(u64::from(instance.attributes().unwrap().gpu_instance_slice_count), 1);
    for device in [&parent, &instance] {
        let listed = device.running_compute_processes().unwrap();
        assert_eq!((listed[0].gpu_instance_id, listed[0].compute_instance_id), (Some(3), Some(0)));
    }
    assert!(parent.mig_device_by_index(0).unwrap().running_compute_processes().unwrap().is_empty());
    let mut id = 0;
    // SAFETY: the handle comes from the same library, which the call is made through; the number lives through it.
    assert_eq!(unsafe { loaded.nvml.lib().nvmlDeviceGetGpuInstanceId(instance.handle(), &raw mut id) }, 0);
    assert_eq!(id, 3);

    let whole = loaded.nvml.device_by_index(1).unwrap();
    assert_eq!((whole.mig_mode().unwrap().current, whole.mig_device_count().unwrap()), (0, 0));
    assert!(matches!(whole.mig_device_by_index(0), Err(NvmlError::NotSupported)));
}

#[test]
fn a_faulty_device_fails_every_call_and_its_neighbour_none() {
    let loaded = Loaded::with("2x8GiB");
    let (faulty, neighbour) = (loaded.device(), loaded.nvml.device_by_index(1).unwrap());
    for (fault, is_expected) in [
        (Fault::Lost, (|error| matches!(error, NvmlError::GpuLost)) as fn(NvmlError) -> bool),
        (Fault::ResetRequired, |error| matches!(error, NvmlError::ResetRequired)),
        (Fault::NoPermission, |error| matches!(error, NvmlError::NoPermission)),
        (Fault::Unknown, |error| matches!(error, NvmlError::Unknown)),
        (Fault::LibMismatch, |error| matches!(error, NvmlError::LibRmVersionMismatch)),
    ] {
        loaded.driver.fault(Some(0), fault);
        assert!(is_expected(faulty.memory_info().unwrap_err()), "{fault}");
        assert!(is_expected(faulty.running_compute_processes().unwrap_err()), "{fault}");
        assert!(is_expected(loaded.nvml.device_by_index(0).err().unwrap()), "{fault}");
        assert_eq!(loaded.nvml.device_count().unwrap(), 2);
        assert!(neighbour.memory_info().is_ok());
        loaded.driver.clear(fault);
        assert!(faulty.memory_info().is_ok());
    }
}

#[test]
fn calls_that_are_not_supported_leave_the_others_working() {
    let loaded = Loaded::with("1x8GiB");
    let _job = loaded.driver.holding("0", Kind::Compute, GIB);
    let device = loaded.device();
    loaded.driver.fault(None, Fault::MemoryV2Missing);
    assert!(matches!(device.memory_info(), Err(NvmlError::NotSupported)));
    loaded.driver.clear(Fault::MemoryV2Missing);
    loaded.driver.fault(None, Fault::MemoryNotSupported);
    assert!(matches!(device.memory_info(), Err(NvmlError::NotSupported)));
    assert_eq!(device.running_compute_processes().unwrap().len(), 1);
    loaded.driver.fault(None, Fault::ProcessesNotSupported);
    assert!(matches!(device.running_compute_processes(), Err(NvmlError::NotSupported)));
    assert!(device.name().is_ok());
}

#[test]
fn lists_can_be_odd_in_the_ways_real_ones_are() {
    let loaded = Loaded::with("1x8GiB");
    let _job = loaded.driver.holding("0", Kind::Compute, GIB);
    let device = loaded.device();
    loaded.driver.fault(None, Fault::Sentinel);
    let listed = device.running_compute_processes().unwrap();
    assert!(matches!(listed[0].used_gpu_memory, UsedGpuMemory::Unavailable));
    loaded.driver.clear(Fault::Sentinel);

    loaded.driver.fault(None, Fault::Duplicates);
    let pids: Vec<u32> = device.running_compute_processes().unwrap().iter().map(|process| process.pid).collect();
    assert_eq!(pids, [std::process::id(); 2]);
    loaded.driver.clear(Fault::Duplicates);

    loaded.driver.fault(None, Fault::Growing);
    assert_eq!(device.running_compute_processes_count().unwrap(), 1);
    assert!(matches!(device.running_compute_processes(), Err(NvmlError::InsufficientSize(_))));
    loaded.driver.clear(Fault::Growing);

    loaded.driver.fault(None, Fault::PidsHidden);
    assert_eq!(device.running_compute_processes().unwrap().len(), 0);
    assert!(device.memory_info().unwrap().used > GIB);
}

#[test]
fn a_hung_call_returns_once_released_and_stops_no_other_device() {
    let loaded = Loaded::with("2x8GiB");
    let (hung, neighbour) = (loaded.device(), loaded.nvml.device_by_index(1).unwrap());
    loaded.driver.fault(Some(0), Fault::Hung);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| hung.memory_info().map(|memory| memory.total));
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            assert!(neighbour.memory_info().is_ok());
        }
        assert!(!call.is_finished());
        loaded.driver.clear(Fault::Hung);
        assert_eq!(call.join().unwrap().unwrap(), 8 * GIB);
    });
}

#[test]
fn without_a_driver_init_says_so() {
    let folder = Folder::new();
    // A socket that nobody listens on; without one the library would ask where the environment says.
    drop(UnixListener::bind(folder.socket()).unwrap());
    assert!(matches!(load(&folder), Err(NvmlError::DriverNotLoaded)));
}

#[test]
fn a_fault_of_all_devices_fails_init() {
    let driver = Driver::with("1x8GiB");
    driver.fault(None, Fault::LibMismatch);
    assert!(matches!(load(&driver.folder), Err(NvmlError::LibRmVersionMismatch)));
    driver.clear(Fault::LibMismatch);
    assert!(load(&driver.folder).is_ok());
}

#[test]
fn after_a_restart_of_the_driver_only_a_new_init_works() {
    let mut driver = Driver::with("1x8GiB");
    let nvml = load(&driver.folder).unwrap();
    let device = nvml.device_by_index(0).unwrap();
    driver.stop();
    assert!(matches!(device.memory_info(), Err(NvmlError::GpuLost)));
    assert!(matches!(nvml.device_count(), Err(NvmlError::DriverNotLoaded)));
    driver.restart("2x8GiB");
    assert!(matches!(device.memory_info(), Err(NvmlError::GpuLost)));
    drop(nvml);
    let nvml = load(&driver.folder).unwrap();
    assert_eq!(nvml.device_count().unwrap(), 2);
    assert!(nvml.device_by_index(0).unwrap().memory_info().is_ok());
}

//! The process lists.
//!
//! As the kernel does, a PID that the caller cannot see is left out without a word: `/proc` decides, and a caller in
//! another PID namespace than the driver sees none (the real driver would translate those inside that namespace).

use std::ffi::c_uint;
use std::path::Path;

use super::abi::{Code, Handle, NO_ID, NOT_AVAILABLE, ProcessInfo, Return};
use super::session::{Target, answer, target};
use crate::protocol::{Fault, Kind};

/// More than the slack of any reader known (nvml-wrapper leaves room for five).
const GROWTH: usize = 6;

macro_rules! lists {
    ($($(#[$doc:meta])* $name:ident: $kinds:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// `count` is null or valid for reading and writing; `infos` is null or valid for writing that many entries.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: Handle, count: *mut c_uint, infos: *mut ProcessInfo) -> Return {
            // SAFETY: by this function's contract, which is the same.
            answer(|| unsafe { list(device, count, infos, &$kinds) })
        }
    )*};
}

lists! {
    /// Processes with a compute context.
    nvmlDeviceGetComputeRunningProcesses_v3: [Kind::Compute, Kind::Both, Kind::Mps];
    /// The same; both versions have the same entries.
    nvmlDeviceGetComputeRunningProcesses_v2: [Kind::Compute, Kind::Both, Kind::Mps];
    /// Processes with a graphics context.
    nvmlDeviceGetGraphicsRunningProcesses_v3: [Kind::Graphics, Kind::Both];
    /// The same; both versions have the same entries.
    nvmlDeviceGetGraphicsRunningProcesses_v2: [Kind::Graphics, Kind::Both];
    /// Clients of MPS.
    nvmlDeviceGetMPSComputeRunningProcesses_v3: [Kind::Mps];
    /// The same; both versions have the same entries.
    nvmlDeviceGetMPSComputeRunningProcesses_v2: [Kind::Mps];
}

/// A caller without enough room gets the count and INSUFFICIENT_SIZE; one with no room and nothing to list gets success.
unsafe fn list(device: Handle, count: *mut c_uint, infos: *mut ProcessInfo, kinds: &[Kind]) -> Result<(), Code> {
    let target = target(device)?;
    if target.has(Fault::ProcessesNotSupported) {
        return Err(Code::NotSupported);
    }
    if count.is_null() {
        return Err(Code::InvalidArgument);
    }
    let entries = entries(&target, kinds);
    // SAFETY: not null, so valid by this function's contract.
    let room = unsafe { count.read() } as usize;
    let grown = if target.has(Fault::Growing) && room > 0 { entries.len() + GROWTH } else { entries.len() };
    if room < grown {
        // SAFETY: as above.
        unsafe { count.write(grown as c_uint) };
        return Err(Code::InsufficientSize);
    }
    if infos.is_null() && !entries.is_empty() {
        return Err(Code::InvalidArgument);
    }
    // SAFETY: `count` as above; `infos` has `room` entries by this function's contract, and no more are written.
    unsafe {
        count.write(entries.len() as c_uint);
        if !entries.is_empty() {
            entries.as_ptr().copy_to_nonoverlapping(infos, entries.len());
        }
    }
    Ok(())
}

fn entries(target: &Target, kinds: &[Kind]) -> Vec<ProcessInfo> {
    let own_namespace = target.state.caller_pid == std::process::id();
    if !own_namespace || target.has(Fault::PidsHidden) {
        return Vec::new();
    }
    let slot = target.slot.map(|slot| slot as u32);
    let mut entries = Vec::new();
    for process in &target.device().processes {
        let here = slot.is_none() || process.slot == slot;
        if !here || !kinds.contains(&process.kind) || !Path::new(&format!("/proc/{}", process.pid)).exists() {
            continue;
        }
        let entry = ProcessInfo {
            pid: process.pid,
            used_gpu_memory: if target.has(Fault::Sentinel) { NOT_AVAILABLE } else { process.bytes },
            gpu_instance_id: process.slot.map_or(NO_ID, |slot| slot + 1),
            compute_instance_id: process.slot.map_or(NO_ID, |_| 0),
        };
        let times = if target.has(Fault::Duplicates) { 2 } else { 1 };
        entries.extend(std::iter::repeat_n(entry, times));
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{DeviceState, Memory, Process, State};

    fn target(caller_pid: u32, pids: &[u32]) -> Target {
        let process =
            |pid: &u32| Process { pid: *pid, name: "job".into(), kind: Kind::Compute, slot: None, bytes: 1 << 30 };
        let device = DeviceState {
            name: "Toy".into(),
            uuid: "GPU-0".into(),
            memory: Memory { total: 8 << 30, reserved: 0, used: 2 << 30, free: 6 << 30 },
            slots: Vec::new(),
            processes: pids.iter().map(process).collect(),
            faults: Vec::new(),
        };
        let state =
            State { boot: 1, driver_version: "sim".into(), caller_pid, faults: Vec::new(), devices: vec![device] };
        Target { state: state.into(), index: 0, slot: None }
    }

    fn pids(target: &Target) -> Vec<u32> {
        entries(target, &[Kind::Compute]).iter().map(|entry| entry.pid).collect()
    }

    #[test]
    fn a_process_that_the_caller_cannot_see_is_left_out() {
        let own = std::process::id();
        // No PID is as large as this one.
        assert_eq!(pids(&target(own, &[own, 1 << 30])), [own]);
    }

    #[test]
    fn a_caller_in_another_pid_namespace_sees_no_process() {
        let own = std::process::id();
        assert_eq!(pids(&target(own + 1, &[own])), [0; 0]);
        assert_eq!(pids(&target(0, &[own])), [0; 0]);
    }
}

//! What is said on the driver's socket: one JSON object a line, one answer to each request.
//!
//! A connection that says `open` holds one context on one device; its memory lives as long as the connection does, so
//! the death of the process frees it. Everyone may ask for the state and set faults: this is a simulator, not a boundary.

use std::fmt;
use std::io::{self, BufRead, Read, Write};
use std::str::FromStr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Where the driver listens when nothing else is said.
pub const DEFAULT_SOCKET: &str = "/run/gpumem-sim/driver.sock";
/// Names the socket, for every part that connects.
pub const SOCKET_ENV: &str = "GPUMEM_SIM_SOCKET";
/// What NVML gives as the driver's version. Whatever starts with `sim` is simulated.
pub const DRIVER_VERSION: &str = "sim-0.1";

/// A line longer than this is not ours.
const MAX_LINE: u64 = 1 << 20;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Create this connection's context.
    Open {
        /// Device to use: `auto`, an index, `index.slot`, or a UUID.
        device: String,
        /// What people see in listings.
        name: String,
        /// In which of NVML's process lists it appears.
        kind: Kind,
        /// Bytes the context costs; the driver's default where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        context: Option<u64>,
    },
    /// Hold this many bytes more.
    Alloc {
        /// How many.
        bytes: u64,
    },
    /// Hold this many bytes less.
    Free {
        /// How many; more than it holds frees all.
        bytes: u64,
    },
    /// Describe devices and processes.
    State,
    /// The same, if anything changed since this connection was last told.
    News,
    /// Limit the memory of a cgroup on a device, as the driver's memory accounting does.
    SetLimit {
        /// Device index.
        device: u32,
        /// Path of the cgroup's directory, as the caller sees it.
        cgroup: String,
        /// Bytes that are kept for it; only recorded.
        soft: u64,
        /// Bytes it may hold; all ones for no limit.
        hard: u64,
    },
    /// The limit of a cgroup on a device.
    GetLimit {
        /// Device index.
        device: u32,
        /// Path of the cgroup's directory, as the caller sees it.
        cgroup: String,
    },
    /// Look at a process's checkpoint state, or change it.
    Checkpoint {
        /// The process as the driver sees it.
        pid: u32,
        /// What to do.
        step: CheckpointStep,
    },
    /// Switch faults on.
    SetFault {
        /// Device index; all devices where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<u32>,
        /// What fails.
        fault: Fault,
        /// Clears by itself after this long.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_millis: Option<u64>,
    },
    /// Switch faults off.
    ClearFault {
        /// Device index; everywhere where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<u32>,
        /// What to end; all where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fault: Option<Fault>,
    },
}

/// What the driver answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// To `open`: the context exists.
    Opened {
        /// Index of the device.
        device: u32,
        /// MIG slot, if it is an instance.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        slot: Option<u32>,
        /// Memory of the device or instance.
        total: u64,
        /// Bytes the context costs.
        context: u64,
        /// PID of the client as the driver sees it.
        pid: u32,
    },
    /// To `alloc` and `free`: what the connection holds now, without the context.
    Held {
        /// Bytes.
        bytes: u64,
    },
    /// To `open` and `alloc`: CUDA_ERROR_OUT_OF_MEMORY.
    OutOfMemory(OutOfMemory),
    /// To `get_limit`.
    Limit {
        /// Bytes kept for the cgroup.
        soft: u64,
        /// Bytes it may hold; all ones for no limit.
        hard: u64,
        /// Bytes its processes hold on the device.
        used: u64,
    },
    /// To `set_limit` and `get_limit`: there is no accounting, or (in `misc`) no limit was ever set.
    LimitNotSupported,
    /// To `checkpoint`: the state afterwards.
    Checkpointed {
        /// State.
        state: CheckpointState,
    },
    /// To `checkpoint`: why not, as a CUresult.
    CheckpointRefused {
        /// The code.
        code: u32,
    },
    /// To `state` and `news`.
    State(State),
    /// To `news`: nothing changed.
    Same,
    /// To the rest: done.
    Done,
    /// The request makes no sense here.
    Refused {
        /// Why.
        why: String,
    },
    /// The device can do nothing any more; a CUDA program ends on this.
    DeviceLost,
}

/// The numbers of a refused allocation, as a framework prints them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutOfMemory {
    /// Index of the device.
    pub device: u32,
    /// Bytes asked for.
    pub requested: u64,
    /// Memory of the device or instance.
    pub total: u64,
    /// Bytes free there.
    pub free: u64,
    /// PID of the client as the driver sees it.
    pub pid: u32,
    /// Bytes this connection's context costs.
    pub context: u64,
    /// Bytes this connection holds beside it.
    pub held: u64,
    /// Every process there, this one included: PID and bytes.
    pub processes: Vec<(u32, u64)>,
}

/// All a driver knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Differs for each start of the driver.
    pub boot: u64,
    /// [`DRIVER_VERSION`] of the running driver.
    pub driver_version: String,
    /// PID of the asking process as the driver sees it; 0 where it cannot.
    pub caller_pid: u32,
    /// Faults of all devices.
    pub faults: Vec<Fault>,
    /// The devices by index.
    pub devices: Vec<DeviceState>,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceState {
    /// Name of the model.
    pub name: String,
    /// `GPU-…`
    pub uuid: String,
    /// Its memory; `used` counts processes and what belongs to none.
    pub memory: Memory,
    /// MIG instances by slot; empty where MIG is off.
    pub slots: Vec<Option<InstanceState>>,
    /// Its processes, those on its instances included.
    pub processes: Vec<Process>,
    /// Faults of this device alone.
    pub faults: Vec<Fault>,
}

/// One MIG instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstanceState {
    /// Such as `3g.71gb`.
    pub profile: String,
    /// `MIG-…`
    pub uuid: String,
    /// Compute slices.
    pub slices: u32,
    /// Its memory.
    pub memory: Memory,
}

/// Memory as NVML's second version counts it: total = reserved + used + free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are NVML's")]
pub struct Memory {
    pub total: u64,
    pub reserved: u64,
    pub used: u64,
    pub free: u64,
}

/// One process on a device or instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// PID as the driver sees it.
    pub pid: u32,
    /// What people see in listings.
    pub name: String,
    /// In which lists it appears.
    pub kind: Kind,
    /// MIG slot, if it is on an instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// Context and allocations.
    pub bytes: u64,
}

/// A step of the CUDA checkpoint API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointStep {
    /// Only look.
    State,
    /// Let no further CUDA call through.
    Lock,
    /// Move its device memory to host memory.
    Checkpoint,
    /// Move it back.
    Restore,
    /// Let CUDA calls through again.
    Unlock,
}

/// `CUprocessState`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum CheckpointState {
    /// It runs.
    #[default]
    Running = 0,
    /// Its CUDA calls wait.
    Locked = 1,
    /// Its device memory is in host memory.
    Checkpointed = 2,
    /// It cannot go on.
    Failed = 3,
}

/// How the driver accounts memory by cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Accounting {
    /// Through the kernel's dmem controller: to lower a limit below use succeeds and changes nothing.
    #[default]
    Dmem,
    /// In the driver: any limit is taken, and one that was never set cannot be read.
    Misc,
    /// Not at all, as before driver 615.
    Off,
}

/// In which of NVML's process lists a process appears.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// `C`
    #[default]
    Compute,
    /// `G`
    Graphics,
    /// `C+G`: in both lists
    Both,
    /// `M+C`: a client of MPS, in the compute and the MPS list
    Mps,
}

/// What can be made to fail while the driver runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// `GPU_IS_LOST` from every call on the device; allocations fail too.
    Lost,
    /// `RESET_REQUIRED` from every call on the device.
    ResetRequired,
    /// Calls on the device do not return until this is cleared.
    Hung,
    /// `NO_PERMISSION` from every call on the device; set for all, from init too.
    NoPermission,
    /// `UNKNOWN` from every call on the device, as in a container whose cgroup denies it; set for all, from init too.
    Unknown,
    /// `LIB_RM_VERSION_MISMATCH`, as after an upgrade of the driver; set for all, from init too.
    LibMismatch,
    /// `NOT_SUPPORTED` from the memory calls, as on an integrated GPU.
    MemoryNotSupported,
    /// Only the first version of the memory call works: an old driver.
    MemoryV2Missing,
    /// `NOT_SUPPORTED` from the process lists.
    ProcessesNotSupported,
    /// Every process's memory reads as not available (all ones).
    Sentinel,
    /// Every process is listed twice.
    Duplicates,
    /// More processes at the fetch than at the count, beyond the reader's slack: `INSUFFICIENT_SIZE`.
    Growing,
    /// No PID is visible to the reader, as without the host's PID namespace.
    PidsHidden,
    /// Setting a memory limit succeeds and changes nothing.
    LimitIgnored,
    /// `NO_PERMISSION` from setting a memory limit, as without root.
    LimitRefused,
    /// `NOT_SUPPORTED` from the memory-limit calls.
    LimitsNotSupported,
    /// Locking a process for a checkpoint times out: its work on the device does not end.
    LockTimesOut,
    /// A checkpoint fails after the lock.
    CheckpointFails,
    /// A restore fails; the process cannot go on.
    RestoreFails,
}

// === impl Fault ===

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = clap::ValueEnum::to_possible_value(self);
        f.write_str(name.as_ref().map_or("", clap::builder::PossibleValue::get_name))
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        clap::ValueEnum::from_str(text, false)
    }
}

// === the wire ===

/// Writes one message.
pub fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Reads one message; `None` at the end of the stream.
pub fn receive<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() != Some(&b'\n') {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a message ends in the middle or is too long"));
    }
    serde_json::from_slice(&line).map(Some).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line_of_json() {
        let mut wire = Vec::new();
        let request = Request::SetFault { device: Some(1), fault: Fault::LibMismatch, for_millis: None };
        send(&mut wire, &request).unwrap();
        assert_eq!(String::from_utf8_lossy(&wire), "{\"op\":\"set_fault\",\"device\":1,\"fault\":\"lib-mismatch\"}\n");
        let mut wire = wire.as_slice();
        assert_eq!(receive::<Request>(&mut wire).unwrap(), Some(request));
        assert_eq!(receive::<Request>(&mut wire).unwrap(), None);
    }

    #[test]
    fn a_cut_message_is_an_error_not_an_end() {
        assert!(receive::<Request>(&mut b"{\"op\":\"state\"}".as_slice()).is_err());
        assert!(receive::<Request>(&mut b"nonsense\n".as_slice()).is_err());
    }

    #[test]
    fn faults_have_the_same_name_everywhere() {
        for fault in <Fault as clap::ValueEnum>::value_variants() {
            assert_eq!(fault.to_string().parse(), Ok(*fault));
            assert_eq!(serde_json::to_string(fault).unwrap(), format!("\"{fault}\""));
        }
    }
}

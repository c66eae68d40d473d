//! gpumem-sim: a simulated GPU driver, so that nothing here needs a GPU to be developed, tested or tried.
//!
//! ```text
//!  workload ──open, alloc, free──▶ driver ◀──state── libnvidia-ml.so.1 ◀──NVML's C ABI── agent, or any NVML reader
//!  (a process, along a shape)      (daemon on a     (this crate's cdylib)
//!                                   unix socket)  ◀──faults── `gpumem sim fault`
//! ```
//!
//! The driver owns the devices' memory and knows each client by the host PID that the kernel vouches for, so workloads
//! in pods are seen as the real driver sees them. An allocation can fail, memory is free when its process dies, and what
//! NVML answers can be made to fail while all runs. What is simulated says so: the driver's version starts with `sim`.
//!
//! ```text
//! gpumem sim driver   --devices 'H200:2' --socket /tmp/sim.sock &
//! gpumem sim workload --shape leak:from=2GiB,rate=200MiB/s --socket /tmp/sim.sock &
//! cp target/debug/libgpumem_sim.so /tmp/lib/libnvidia-ml.so.1
//! GPUMEM_SIM_SOCKET=/tmp/sim.sock LD_LIBRARY_PATH=/tmp/lib gpumem agent …
//! gpumem sim fault    hung --device 0 --for 30s --socket /tmp/sim.sock
//! ```
//!
//! The library asks the driver whose `driver.sock` lies beside it, else the one that `GPUMEM_SIM_SOCKET` names, else the
//! one on `/run/gpumem-sim/driver.sock`. Shapes are listed in [`shape`], devices in [`spec`], faults in
//! [`protocol::Fault`]. In a cluster the driver belongs into the host's PID namespace, the socket's folder on a hostPath.
//!
//! Modules in reading order; `shape`, `spec`, `machine` and `oom` are pure.

pub mod units;

pub mod shape;
pub mod spec;

pub mod machine;
pub mod oom;
pub mod protocol;

pub mod client;
pub mod driver;
pub mod signals;
pub mod workload;

pub mod cli;
pub mod library;

mod nvml;

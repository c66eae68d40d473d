//! `libnvidia-ml.so.1` of the simulated driver: NVML's C ABI, answered from the driver's state.
//!
//! Flows in: calls of an unmodified NVML reader that loaded the built library. Flows out: NVML's return codes and
//! structs. Each call asks the driver anew, so two calls can disagree, as with the real one. No panic crosses the ABI.
//! The structs are declared here and not taken from a binding crate: what is checked against one (in the tests) should
//! not be made from it.

mod abi;
mod cuda;
mod device;
mod limits;
mod location;
mod mig;
mod processes;
mod session;
mod system;

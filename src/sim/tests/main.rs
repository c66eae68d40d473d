//! The simulated driver from outside: real processes on its socket, and the built library through a real NVML reader.

#![allow(clippy::unwrap_used, reason = "a test ends on what it does not expect")]

mod driver;
mod limits;
mod nvml;
mod support;
mod workload;

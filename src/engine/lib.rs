//! The pure core of gpu-memory-operator.
//!
//! ```text
//! RawSample ─▶ attribution ─Usage─▶ series ─Series─▶ forecast ─Forecast─▶ risk ─▶ decision (+ pacing) ─Decision─▶
//! ```
//!
//! Every function here is total: it takes data and `now`, gives data, and cannot fail. What is absent on purpose: a clock,
//! the environment, files, sockets, threads, locks, async, and Kubernetes. `src/engine/.clippy.toml` and
//! `tests/it/tidy.rs` hold that.
//!
//! Glossary: a *device* is a GPU or a MIG GPU instance; *used* is memory the driver says is allocated; a *limit* may not be
//! exceeded; a *budget* is how much disruption is allowed; a *segment* is one run of a container instance in a series.

// Models of the benchmarks are unit tests as well, and name the engine as those do.
#[cfg(test)]
extern crate self as gpumem_engine;

// Reading order.
pub mod quantity;

pub mod identity;

pub mod sample;

pub mod cgroup;

pub mod usage;

pub mod attribution;

pub mod series;

pub mod forecast;

pub mod policy;

pub mod risk;

pub mod pacing;

pub mod decision;

pub mod growth;
pub mod score;

pub mod peaks;

pub mod attempts;

pub mod replay;

pub mod oom;

pub mod env_merge;

pub mod estimate;

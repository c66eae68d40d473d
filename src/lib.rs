//! gpu-memory-operator: shows GPU memory per container, says which container will run out of it, when and how sure it is,
//! and acts as gently as it can before that.
//!
//! # The straight line
//!
//! ```text
//!  NODE: agent (DaemonSet)                                        CLUSTER: controller (Deployment, leader)
//!  nvml ─RawSample─▶ attribution ─Usage─▶ history ─▶ exporter ··▶ Prometheus
//!  I/O               pure                 (ring)  └▶ /v1/usage ─▶ fleet ─Observation─▶ decide ─Decision─▶ act ─Outcome─▶ report
//!                                                    pulled       series + forecast    pure              I/O            I/O
//!  limits ◀─ GpuMemoryNode (what should hold on this node) ◀─ limits
//!  I/O, read back into /v1/usage                              I/O, desired by the engine's growth
//! ```
//!
//! Each arrow is one named type, each box one file or folder, and a box is I/O or pure, never both.
//!
//! # Where things are
//!
//! | folder | what it is | may use |
//! |---|---|---|
//! | `src/engine` (crate) | the pure core: attribution, series, forecast, risk, decision, growth, estimate | serde, serde_json, thiserror |
//! | `src/api` | wire types: custom resources, `/v1/usage`, names | engine |
//! | `src/agent` | reads the driver on every GPU node, serves `/metrics` and `/v1/usage` | engine, api |
//! | `src/controller` | pulls agents, forecasts, decides, acts, reports | engine, api |
//! | `src/cli` | commands for one machine: estimate, replay, env-merge, and the sidecar that answers requests to save | engine, api |
//! | `src/plugin` | `kubectl gpumem`: reads a cluster through its API server; `demo` makes a fleet up | engine, api, cli, the shapes of sim |
//! | `hook` | pure Python in the frameworks' process: what their allocators hold | nothing of the above |
//! | `src/sim` (crate) | a simulated GPU driver behind a real `libnvidia-ml.so.1` | nothing of the above |
//!
//! Reading order for a newcomer: this page, `src/engine/lib.rs`, `src/engine/decision.rs`, `src/controller/reconcile.rs`,
//! `src/agent/mod.rs`, and then the story the whole is for, `tests/cluster/story/mod.rs`.
//!
//! # What is absent on purpose
//!
//! 1. The engine never reads a clock, a file, the environment or a lock (`src/engine/.clippy.toml`, `tests/it/tidy.rs`).
//! 2. The agent never writes to the API (its ClusterRole has no writing verb: `tests/cluster/chart.sh`).
//! 3. A failed driver query never looks like an idle GPU: it is [`Reading::Failed`](gpumem_engine::sample::Reading), and its
//!    series are absent (`src/engine/attribution/tests.rs`).
//! 4. An action needs a `RecordedIntent`, which only a compare-and-swap of the ledger makes (`tests/it/eviction.rs`,
//!    `tests/it/acts`).
//! 5. Nothing in memory that a restart cannot rebuild decides an action: deeds live in API objects, dwell times may only
//!    delay.
//! 6. No wall clock decides anything about memory: moments are the node's monotonic clock, and ages travel with them.
//! 7. Agent and controller never meet in code (`tests/it/tidy.rs`).
//! 8. Nothing is set on a node before its `GpuMemoryNode` records it, and nothing else is ever cleared
//!    (`tests/it/limits_agent.rs`).

pub mod api;

pub mod telemetry;

pub mod http;

pub mod tls;

pub mod text;

pub mod agent;

pub mod controller;

pub mod cli;

pub mod plugin;

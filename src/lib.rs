//! gpu-memory-operator: shows GPU memory per container, says which container will run out of it, when and how sure it is,
//! and acts as gently as it can before that.
//!
//! ```text
//!  NODE: agent (DaemonSet)                                        CLUSTER: controller (Deployment, leader)
//!  nvml ─RawSample─▶ attribution ─Usage─▶ history ─▶ exporter ··▶ Prometheus
//!  I/O               pure                 (ring)  └▶ /v1/usage ─▶ fleet ─Series─▶ forecast ─Forecast─▶ decide ─Decision─▶ act ─Outcome─▶ report
//!                                                    pulled       I/O             pure                 pure             I/O            I/O
//! ```

pub mod api;

pub mod telemetry;

pub mod http;

pub mod tls;

pub mod agent;

pub mod controller;

pub mod cli;

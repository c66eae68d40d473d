//! Tests of the parts together, in one process: no network beyond loopback, no cluster, no GPU.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod agent;
mod agent_driver;
mod agent_metrics;
mod agent_usage;
mod cleanup;
mod cluster;
mod eviction;
mod fleet;
mod ledger;
mod policy;
mod reconcile;
mod support;
mod tidy;

//! Tests of the parts together, in one process: no network beyond loopback, no cluster, no GPU.

#![allow(clippy::large_futures, reason = "a test awaits one future at a time; its size costs nothing")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod acts;
mod agent;
mod agent_driver;
mod agent_metrics;
mod agent_usage;
mod boards;
mod checkpoint;
mod cleanup;
mod cli;
mod cli_view;
mod cluster;
mod docs;
mod eviction;
mod fleet;
mod hook;
mod label_values;
mod ledger;
mod limits_agent;
mod limits_controller;
mod plugin;
mod plugin_api;
mod plugin_blind;
mod plugin_tui;
mod policy;
mod reconcile;
mod rounds;
mod simulate;
mod slow_clients;
mod support;
mod tidy;
mod truth;
mod workload;

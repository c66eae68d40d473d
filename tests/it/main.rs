//! Tests of the parts together, in one process: no network beyond loopback, no cluster, no GPU.

mod agent;
mod agent_driver;
mod agent_usage;
mod cli;
mod cli_view;
mod cluster;
mod eviction;
mod ledger;
mod plugin;
mod plugin_api;
mod plugin_tui;
mod policy;
mod reconcile;
mod support;
mod tidy;

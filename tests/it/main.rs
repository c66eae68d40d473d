//! Tests of the parts together, in one process: no network beyond loopback, no cluster, no GPU.

mod agent;
mod agent_driver;
mod agent_usage;
mod boards;
mod support;
mod tidy;

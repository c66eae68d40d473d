//! Tests of the parts together, in one process: no network beyond loopback, no cluster, no GPU.

mod boards;
mod tidy;

//! Under construction.

pub mod context;

pub mod fleet;

pub mod health;

pub mod leader;

pub mod metrics;

pub mod now;

pub mod reconcile;

pub mod observe;

pub mod workload;

pub mod intent;

pub mod act;

pub mod profile;

pub mod report;

/// Flags of the controller.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs until a signal.
pub fn main(_args: Args) -> std::process::ExitCode {
    std::process::ExitCode::FAILURE
}

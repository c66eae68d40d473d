//! Under construction.

pub mod fleet;

/// Flags of the controller.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs until a signal.
pub fn main(_args: Args) -> std::process::ExitCode {
    std::process::ExitCode::FAILURE
}

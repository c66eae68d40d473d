//! Under construction.

/// Flags of the agent.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs until a signal.
pub fn main(_args: Args) -> std::process::ExitCode {
    std::process::ExitCode::FAILURE
}

//! The simulator's commands alone, for images and tests that need nothing else of gpumem.

use std::process::ExitCode;

use clap::Parser;
use gpumem_sim::cli::Command;

/// Simulated GPUs: a driver, workloads that use its memory, and faults. Nothing here needs a GPU.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    Cli::parse().command.run()
}

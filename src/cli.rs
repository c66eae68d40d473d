//! The command line: raw flags in, validated configurations out. Nothing below reads flags or the environment.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Predicts GPU out-of-memory of running pods and acts before it happens.
#[derive(Debug, Parser)]
#[command(name = "gpumem", version)]
pub struct Cli {
    /// Form of the log on stderr.
    #[arg(long, global = true, value_enum, default_value = "text", env = "GPUMEM_LOG_FORMAT")]
    pub log_format: crate::telemetry::LogFormat,
    /// What to be.
    #[command(subcommand)]
    pub command: Command,
}

/// The roles of the one binary.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run on every GPU node: export GPU memory by container.
    Agent(crate::agent::Args),
    /// Run in the cluster: forecast, decide, act.
    Controller(crate::controller::Args),
}

impl Cli {
    /// Runs the chosen role to its end.
    pub fn run(self) -> ExitCode {
        crate::telemetry::init(self.log_format);
        match self.command {
            Command::Agent(args) => crate::agent::main(args),
            Command::Controller(args) => crate::controller::main(args),
        }
    }
}

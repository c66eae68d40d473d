//! The command line: raw flags in, validated configurations out. Nothing below reads flags or the environment.

use std::process::ExitCode;

use anyhow::Context;
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
    /// Remove what the controller made at run time; the chart runs it at the end of an uninstallation.
    Cleanup(crate::controller::cleanup::Args),
    /// Play the driver, or a process on it, where there is no GPU.
    #[command(subcommand)]
    Sim(gpumem_sim::cli::Command),
    /// Print the custom resource definitions, or write them into a directory.
    Crd {
        /// Directory to write one file per definition into; without it they go to standard output.
        #[arg(long)]
        directory: Option<std::path::PathBuf>,
    },
}

impl Cli {
    /// Runs the chosen role to its end.
    pub fn run(self) -> ExitCode {
        crate::telemetry::init(self.log_format);
        match self.command {
            Command::Agent(args) => crate::agent::main(args),
            Command::Controller(args) => crate::controller::main(args),
            Command::Cleanup(args) => match cleanup(args) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&error),
            },
            Command::Sim(command) => command.run(),
            Command::Crd { directory } => match print_crds(directory.as_deref()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&error),
            },
        }
    }
}

fn cleanup(args: crate::controller::cleanup::Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(crate::controller::cleanup::run(args))?)
}

fn print_crds(directory: Option<&std::path::Path>) -> anyhow::Result<()> {
    for (file, definition) in crate::api::crd::all() {
        let yaml = crate::api::crd::yaml(&definition)?;
        match directory {
            Some(directory) => std::fs::write(directory.join(file), yaml)
                .with_context(|| format!("writing {}", directory.join(file).display()))?,
            None => print!("---\n{yaml}"),
        }
    }
    Ok(())
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("gpumem: {error:#}");
    ExitCode::FAILURE
}

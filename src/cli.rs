//! The command line: raw flags in, validated configurations out. Nothing below reads flags or the environment.

use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};

// Reading order.
pub mod units;

pub mod page;

pub mod read;

pub mod replay;

pub mod estimate;

pub mod env_merge;

pub mod checkpoint;

/// Exit code: done, and the answer is no bad one.
pub const FINE: u8 = 0;
/// Exit code: the answer could not be found out.
pub const FAILED: u8 = 1;
/// Exit code: flags or files make no sense.
pub const BAD_INPUT: u8 = 2;
/// Exit code: the answer is no: it does not fit, a risk is there, a check failed.
pub const NO: u8 = 3;

/// What a command says, and how it ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// For standard output.
    pub text: String,
    /// For standard error: what could not be seen, and what to do about it.
    pub notes: Vec<String>,
    /// Exit code.
    pub code: u8,
}

impl Shown {
    /// An answer that is no bad one.
    pub fn fine(text: String) -> Self {
        Self { text, ..Self::default() }
    }

    /// Prints it as `program` and gives the exit code. A reader that hung up (`| head`) is no failure.
    pub fn print(&self, program: &str) -> ExitCode {
        use std::io::Write as _;
        let _ = std::io::stdout().lock().write_all(self.text.as_bytes());
        for note in &self.notes {
            let _ = write!(std::io::stderr(), "{}", page::complaint(program, note));
        }
        ExitCode::from(self.code)
    }
}

/// Form of the output of commands that need no cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// For people, with every line whole.
    Wide,
    /// For programs.
    Json,
}

impl Format {
    /// Columns of a page in this form, where the terminal has `terminal` of them.
    pub fn width(self, terminal: Option<usize>) -> usize {
        page::width(if self == Self::Wide { Some(usize::MAX) } else { terminal })
    }
}

/// Heading in the help of flags on the form of the output.
pub const OUTPUT: &str = "Output";

/// Predicts GPU out-of-memory of running pods and acts before it happens.
#[derive(Debug, Parser)]
#[command(name = "gpumem", version)]
pub struct Cli {
    /// Form of the log on stderr.
    #[arg(long, global = true, value_enum, default_value = "text", env = "GPUMEM_LOG_FORMAT", help_heading = OUTPUT)]
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
    /// Estimate how much GPU memory a job needs before it runs.
    Estimate(Box<estimate::Args>),
    /// Show which environment variables the GPU containers of a manifest gain at admission, and which they keep.
    EnvMerge(env_merge::Args),
    /// Answer requests to save work before a pod is stopped.
    #[command(subcommand)]
    Checkpoint(checkpoint::Action),
    /// Replay recorded data through the forecast.
    Replay(replay::Args),
    /// Print a completion script for a shell.
    Completion {
        /// For which shell.
        shell: clap_complete::Shell,
    },
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
            Command::Estimate(args) => finish(estimate::run(&args, page::terminal())),
            Command::EnvMerge(args) => finish(env_merge::run(&args)),
            Command::Replay(args) => finish(replay::run(&args, page::terminal())),
            Command::Checkpoint(checkpoint::Action::Answer(args)) => match checkpoint(args) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&error),
            },
            Command::Completion { shell } => {
                clap_complete::generate(shell, &mut Self::command(), "gpumem", &mut std::io::stdout());
                ExitCode::SUCCESS
            }
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

fn checkpoint(args: checkpoint::Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(checkpoint::run(args))?)
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

/// What can go wrong with these commands is what was given to them.
fn finish<E: std::error::Error>(outcome: Result<Shown, E>) -> ExitCode {
    match outcome {
        Ok(shown) => shown.print("gpumem"),
        Err(error) => {
            eprint!("{}", page::complaint("gpumem", &error.to_string()));
            ExitCode::from(BAD_INPUT)
        }
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("gpumem: {}", said(error));
    ExitCode::FAILURE
}

/// An error and its causes, each told once: many libraries' errors repeat their cause.
fn said(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        _ if text.contains(&cause) => text,
        _ => format!("{text}: {cause}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_the_error_repeats_is_told_once() {
        let error = anyhow::anyhow!("no such file").context("config: no such file").context("no client");
        assert_eq!(said(&error), "no client: config: no such file");
    }
}

//! One binary, one image: the subcommand picks the role.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    gpumem::cli::Cli::parse().run()
}

//! The kubectl plugin, `kubectl gpumem`: everything is in the library.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    gpumem::plugin::Cli::parse().main()
}

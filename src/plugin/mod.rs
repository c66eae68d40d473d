//! `kubectl gpumem`: the operator from a terminal. Needs a kubeconfig and nothing else, and `demo` not even that.
//!
//! Flows in: flags, and what [`cluster`] reads through the API server. Flows out: text in one of five forms, notes on what
//! could not be seen, an exit code: 0 fine, 1 could not be found out, 2 bad input, 3 the answer is no. Except for `pause`
//! and `resume` it changes nothing.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory as _, Parser, Subcommand};

// Reading order.
pub mod text;

pub mod table;

pub mod cluster;

pub mod seen;

pub mod top;

pub mod ladder;

pub mod explain;

pub mod doctor;

pub mod play;

pub mod policy;

pub mod prometheus;

pub mod simulate;

pub mod brake;

pub mod tui;

pub mod demo;

mod connect;

use cluster::{Cluster, Error};
use table::{Output, Style};

use crate::cli::page;
use crate::cli::{BAD_INPUT, FAILED, OUTPUT, Shown};

/// Between two looks of `--watch`: samples come once a second, pulls every five.
const WATCH: Duration = Duration::from_secs(2);

/// Heading in the help of flags that every command has: where the cluster is.
const CONNECTION: &str = "Connection";

/// GPU memory of pods: who uses it, who will run out of it, and what is done about it.
#[derive(Debug, Parser)]
#[command(name = "kubectl-gpumem", bin_name = "kubectl gpumem", version)]
pub struct Cli {
    /// Namespace to look into [default: the context's].
    #[arg(short, long, global = true, help_heading = CONNECTION)]
    pub namespace: Option<String>,
    /// Look into all namespaces.
    #[arg(short = 'A', long, global = true, conflicts_with = "namespace", help_heading = CONNECTION)]
    pub all_namespaces: bool,
    /// Namespace of the operator [default: found by its labels].
    #[arg(long, global = true, env = "GPUMEM_OPERATOR_NAMESPACE", help_heading = CONNECTION)]
    pub operator_namespace: Option<String>,
    /// Context of the kubeconfig.
    #[arg(long, global = true, help_heading = CONNECTION)]
    pub context: Option<String>,
    /// The kubeconfig.
    #[arg(long, global = true, help_heading = CONNECTION)]
    pub kubeconfig: Option<std::path::PathBuf>,
    /// Colour: auto is on a terminal, unless NO_COLOR is set.
    #[arg(long, global = true, value_enum, default_value = "auto", help_heading = OUTPUT)]
    pub color: When,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// When to use colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum When {
    /// On a terminal.
    #[default]
    Auto,
    /// Also in a pipe.
    Always,
    /// Not at all.
    Never,
}

/// Form of the output.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Printing {
    /// Form of the output.
    #[arg(short, long, value_enum, default_value = "table", help_heading = OUTPUT)]
    pub output: Output,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show GPU memory and who will run out of it, worst first.
    Top {
        /// What and how.
        #[command(flatten)]
        args: top::Args,
        /// In which form.
        #[command(flatten)]
        printing: Printing,
    },
    /// Explain the risk of one pod: why, what would be done when, and what stops it.
    Explain {
        /// Whose.
        #[command(flatten)]
        args: explain::Args,
        /// In which form.
        #[command(flatten)]
        printing: Printing,
    },
    /// Check the installation and your own rights.
    Doctor {
        /// In which form.
        #[command(flatten)]
        printing: Printing,
    },
    /// Work on policies without a cluster.
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Stop every action of every policy of the cluster, within seconds.
    Pause {
        /// Why, and who: it is shown wherever an action is held [default: what a pause says already].
        #[arg(long)]
        reason: Option<String>,
    },
    /// End a pause.
    Resume,
    /// Estimate how much GPU memory a job needs before it runs.
    Estimate(Box<crate::cli::estimate::Args>),
    /// Replay recorded data through the forecast.
    Replay(crate::cli::replay::Args),
    /// Play a story of a made-up fleet through the real forecast: needs no cluster and changes nothing.
    Demo {
        /// How.
        #[command(flatten)]
        args: demo::Args,
        /// In which form.
        #[command(flatten)]
        printing: Printing,
    },
    /// Print a completion script for a shell.
    Completion {
        /// For which shell.
        shell: clap_complete::Shell,
    },
    /// Print the versions of plugin, controllers and agents.
    Version {
        /// Of the plugin only: asks no cluster.
        #[arg(long)]
        client: bool,
    },
}

/// Work on policies.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Show what a policy would have done on recorded data.
    Test {
        /// Which policy, which data.
        #[command(flatten)]
        args: policy::TestArgs,
        /// In which form.
        #[command(flatten)]
        printing: Printing,
    },
    /// Play a policy over a recording or Prometheus' history: actions, how many avoided an OOM, how many were for nothing.
    Simulate {
        /// Which policy, which data.
        #[command(flatten)]
        args: simulate::SimulateArgs,
        /// In which form.
        #[command(flatten)]
        printing: Printing,
    },
}

impl Cli {
    /// Runs the command to its end.
    pub fn main(self) -> ExitCode {
        let style = self.style();
        match &self.command {
            Command::Estimate(args) => given(crate::cli::estimate::run(args, style.width)),
            Command::Replay(args) => given(crate::cli::replay::run(args, style.width)),
            Command::Policy(PolicyCommand::Test { args, printing }) => {
                given(policy::test(args, printing.output, style))
            }
            Command::Policy(PolicyCommand::Simulate { args, printing }) => {
                let now = jiff::Timestamp::now().as_second() as f64;
                match simulate::run(args, now, printing.output, style) {
                    // No fault of what was given: a script may try again.
                    Err(error @ crate::cli::replay::Error::Fetch { .. }) => {
                        complain(&error.to_string());
                        ExitCode::from(FAILED)
                    }
                    outcome => given(outcome),
                }
            }
            Command::Demo { args, printing } => match demo::main(args, printing.output, style) {
                // A terminal that fails is no fault of what was given.
                Err(error @ demo::Error::Screen(_)) => {
                    complain(&error.to_string());
                    ExitCode::from(FAILED)
                }
                outcome => given(outcome),
            },
            Command::Completion { shell } => {
                clap_complete::generate(*shell, &mut Self::command(), "kubectl-gpumem", &mut std::io::stdout());
                ExitCode::SUCCESS
            }
            Command::Version { client: true } => Shown::fine(own_version()).print("gpumem"),
            Command::Top { .. }
            | Command::Explain { .. }
            | Command::Doctor { .. }
            | Command::Pause { .. }
            | Command::Resume
            | Command::Version { client: false } => {
                match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                    Ok(runtime) => runtime.block_on(self.with_cluster(style)),
                    Err(error) => {
                        complain(&format!("the runtime did not start: {error}"));
                        ExitCode::from(FAILED)
                    }
                }
            }
        }
    }

    fn style(&self) -> Style {
        let color = match self.color {
            When::Always => true,
            When::Never => false,
            // https://no-color.org: set and not empty.
            When::Auto => {
                std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            }
        };
        Style { color, width: page::terminal() }
    }

    async fn with_cluster(&self, style: Style) -> ExitCode {
        let watch = matches!(&self.command, Command::Top { args, .. } if args.watch);
        if let Command::Explain { printing, .. } = &self.command
            && let Err(error) = explain::takes(printing.output)
        {
            return failed(&error);
        }
        let cluster = match connect::cluster(self).await {
            Ok(cluster) => cluster,
            Err(error) => {
                // What is asked first where the rest does not work.
                if matches!(self.command, Command::Version { .. }) {
                    print!("{}", own_version());
                }
                return failed(&error);
            }
        };
        if let Command::Top { args, .. } = &self.command
            && args.tui
        {
            return match tui::run(|looks| tui::watch(&cluster, looks), args.sort, style).await {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    complain(&error.to_string());
                    ExitCode::from(FAILED)
                }
            };
        }
        loop {
            let mut outcome = run(&self.command, &cluster, style, jiff::Timestamp::now()).await;
            if watch && std::io::stdout().is_terminal() {
                // A line that wraps, or a table that scrolls, would move at each look.
                if let (Ok(shown), Ok((width, height))) = (&mut outcome, ratatui::crossterm::terminal::size()) {
                    let rest = usize::from(height).saturating_sub(1 + shown.notes.len());
                    shown.text = text::cut(&shown.text, width.into(), rest);
                }
                // Home, and clear what is below: a whole clear would flicker.
                print!("\u{1b}[H\u{1b}[2J");
            }
            let code = match outcome {
                Ok(shown) => shown.print("gpumem"),
                Err(error @ Error::Unreachable { .. }) => {
                    complain(&format!("{error}\n   at: {}\n   fix: {}", cluster.server, error.fix()));
                    ExitCode::from(FAILED)
                }
                Err(error) => failed(&error),
            };
            if !watch {
                return code;
            }
            tokio::time::sleep(WATCH).await;
        }
    }
}

/// One command against a cluster.
pub async fn run(command: &Command, cluster: &Cluster, style: Style, now: jiff::Timestamp) -> Result<Shown, Error> {
    match command {
        Command::Top { args, printing } => top::run(cluster, args, printing.output, style).await,
        Command::Explain { args, printing } => explain::run(cluster, args, printing.output, style).await,
        Command::Doctor { printing } => doctor::run(cluster, now, printing.output, style).await,
        Command::Pause { reason } => brake::set(cluster, brake::Turn::Pause(reason.as_deref()), style).await,
        Command::Resume => brake::set(cluster, brake::Turn::Resume, style).await,
        Command::Version { .. } => version(cluster).await,
        // Need no cluster: `Cli::main` has run them.
        Command::Policy(_)
        | Command::Estimate(_)
        | Command::Replay(_)
        | Command::Demo { .. }
        | Command::Completion { .. } => Ok(Shown::default()),
    }
}

fn own_version() -> String {
    format!("plugin      {}\n", env!("CARGO_PKG_VERSION"))
}

async fn version(cluster: &Cluster) -> Result<Shown, Error> {
    let mut shown = Shown::fine(own_version());
    let asked = match cluster.operator().await {
        Ok(operator) => cluster.nodes(&operator).await,
        Err(error) => Err(error),
    };
    match asked {
        Ok(nodes) => {
            shown.text.extend(["controller  ", &nodes.controller.version, "\n"]);
            let mut agents: Vec<&str> = nodes.nodes.iter().map(|node| node.agent_version.as_str()).collect();
            agents.sort_unstable();
            agents.dedup();
            let agents = if agents.is_empty() { "none".to_owned() } else { agents.join(", ") };
            shown.text.extend(["agents      ", &agents, "\n"]);
        }
        Err(error) => {
            let at = match &error {
                Error::Unreachable { .. } => format!(" (at {})", cluster.server),
                _ => String::new(),
            };
            shown.notes.push(error.line() + &at);
            shown.code = FAILED;
        }
    }
    Ok(shown)
}

fn failed(error: &Error) -> ExitCode {
    complain(&format!("{error}\n   fix: {}", error.fix()));
    ExitCode::from(if matches!(error, Error::Form { .. }) { BAD_INPUT } else { FAILED })
}

/// Of commands that need no cluster: what can go wrong is what was given to them.
fn given<E: std::error::Error>(outcome: Result<Shown, E>) -> ExitCode {
    match outcome {
        Ok(shown) => shown.print("gpumem"),
        Err(error) => {
            complain(&error.to_string());
            ExitCode::from(BAD_INPUT)
        }
    }
}

/// On standard error, broken where that is a terminal.
fn complain(text: &str) {
    eprint!("{}", page::complaint("gpumem", text));
}

//! `gpumem sim driver | workload | fault | state`: the simulator's commands, for the root binary to flatten into its own.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::client::Client;
use crate::driver;
use crate::machine::Costs;
use crate::protocol::{Accounting, Answer, DEFAULT_SOCKET, Fault, Kind, Request, SOCKET_ENV, State};
use crate::shape::Shape;
use crate::signals::Signals;
use crate::spec::parse_devices;
use crate::units::{parse_duration, parse_size};
use crate::workload::{self, Outcome};

/// Simulated GPUs: a driver, workloads that use its memory, and faults. Nothing here needs a GPU.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Run the simulated driver until SIGTERM
    Driver(DriverArgs),
    /// Run a process that uses simulated GPU memory
    Workload(Box<WorkloadArgs>),
    /// Make the driver fail, or stop failing; without a name, list what fails
    Fault(FaultArgs),
    /// Show devices and processes
    State(StateArgs),
}

/// Where the driver is.
#[derive(Clone, Debug, Args)]
pub struct Socket {
    /// Unix socket of the driver
    #[arg(long, env = SOCKET_ENV, default_value = DEFAULT_SOCKET, value_name = "PATH")]
    pub socket: PathBuf,
}

/// Flags of `driver`.
#[derive(Clone, Debug, Args)]
pub struct DriverArgs {
    /// Where to listen
    #[command(flatten)]
    pub socket: Socket,
    /// Devices: `MODEL[:COUNT]` or `COUNTxSIZE`, then name=, mem=, reserved=, mig=; groups separated by `;`
    #[arg(long, env = "GPUMEM_SIM_DEVICES", default_value = "H200:1", value_name = "SPEC")]
    pub devices: String,
    /// Name of the machine, from which UUIDs are made; the host name if not given
    #[arg(long, env = "NODE_NAME")]
    pub node: Option<String>,
    /// What a context costs on a whole device
    #[arg(long, default_value = "500MiB", value_parser = parse_size, value_name = "SIZE")]
    pub context: u64,
    /// What a context costs on a MIG instance
    #[arg(long, default_value = "146MiB", value_parser = parse_size, value_name = "SIZE")]
    pub context_mig: u64,
    /// Memory that belongs to nobody on a device with a process
    #[arg(long, default_value = "15MiB", value_parser = parse_size, value_name = "SIZE")]
    pub unattributed: u64,
    /// How memory is accounted and limited by cgroup
    #[arg(long, value_enum, default_value_t)]
    pub accounting: Accounting,
    /// Where the cgroups of processes are read
    #[arg(long, default_value = "/proc", value_name = "PATH")]
    pub proc: PathBuf,
}

/// Flags of `workload`.
#[derive(Clone, Debug, Args)]
pub struct WorkloadArgs {
    /// Where the driver is
    #[command(flatten)]
    pub socket: Socket,
    /// What its memory does, such as `leak:from=2GiB,rate=200MiB/s`
    #[arg(long, env = "GPUMEM_SIM_SHAPE")]
    pub shape: Shape,
    /// Device: `auto` (most free memory), an index, INDEX.SLOT of a MIG instance, or a UUID
    #[arg(long, env = "GPUMEM_SIM_DEVICE", default_value = "auto")]
    pub device: String,
    /// What listings call it
    #[arg(long, default_value = "python")]
    pub name: String,
    /// In which of NVML's process lists it appears
    #[arg(long, value_enum, default_value_t)]
    pub kind: Kind,
    /// How much faster than the clock the shape runs
    #[arg(long, default_value_t = 1.0, value_parser = parse_speed)]
    pub speed: f64,
    /// Time between two changes of its memory
    #[arg(long, default_value = "100ms", value_parser = parse_duration)]
    pub tick: Duration,
    /// How long to try to reach the driver
    #[arg(long, default_value = "1m", value_parser = parse_duration)]
    pub patience: Duration,
    /// Time between two lines of progress
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub progress: Duration,
    /// Time before it touches the driver: it imports libraries and reads its data
    #[arg(long, default_value = "0s", value_parser = parse_duration)]
    pub delay: Duration,
    /// Exit code when a signal ends it: 143 as a program that does not handle SIGTERM
    #[arg(long, default_value_t = 0, value_name = "CODE")]
    pub exit_on_signal: u8,
}

/// Flags of `fault`.
#[derive(Clone, Debug, Args)]
pub struct FaultArgs {
    /// Where the driver is
    #[command(flatten)]
    pub socket: Socket,
    /// What to make fail
    #[arg(value_enum)]
    pub faults: Vec<Fault>,
    /// On this device alone
    #[arg(long)]
    pub device: Option<u32>,
    /// End by itself after this long
    #[arg(long = "for", value_parser = parse_duration, value_name = "DURATION", conflicts_with = "clear")]
    pub lasting: Option<Duration>,
    /// End the named faults, or all
    #[arg(long)]
    pub clear: bool,
}

/// Flags of `state`.
#[derive(Clone, Debug, Args)]
pub struct StateArgs {
    /// Where the driver is
    #[command(flatten)]
    pub socket: Socket,
    /// Print everything as JSON
    #[arg(long)]
    pub json: bool,
}

// === impl Command ===

impl Command {
    /// Does it; blocks for as long as it runs.
    ///
    /// Call it before the process has threads: driver and workload wait for signals, which are blocked a thread at a time.
    pub fn run(self) -> ExitCode {
        match self {
            Self::Driver(args) => main_driver(args),
            Self::Workload(args) => main_workload(*args),
            Self::Fault(args) => main_fault(args),
            Self::State(args) => main_state(args),
        }
    }
}

/// Runs the driver until a signal.
pub fn main_driver(args: DriverArgs) -> ExitCode {
    let DriverArgs { socket: Socket { socket }, devices, node, context, context_mig, unattributed, accounting, proc } =
        args;
    let devices = match parse_devices(&devices, &node.unwrap_or_else(host_name)) {
        Ok(devices) => devices,
        Err(why) => return fail(&format!("--devices: {why}")),
    };
    let listing: Vec<String> =
        devices.iter().map(|device| format!("{} {} MiB {}", device.name, device.total >> 20, device.uuid)).collect();
    let ready = || {
        say(&format!("simulated driver on {} with {} devices", socket.display(), listing.len()));
        for line in &listing {
            say(line);
        }
    };
    let costs = Costs { context, context_mig, unattributed };
    match driver::run(driver::Config { socket: socket.clone(), devices, costs, accounting, proc }, ready) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&chain(&error)),
    }
}

/// Runs a workload to its end.
pub fn main_workload(args: WorkloadArgs) -> ExitCode {
    let signals = Signals::block();
    let WorkloadArgs {
        socket: Socket { socket },
        shape,
        device,
        name,
        kind,
        speed,
        tick,
        patience,
        progress,
        delay,
        exit_on_signal,
    } = args;
    if !delay.is_zero() && signals.wait(delay).is_some() {
        return ExitCode::from(exit_on_signal);
    }
    let config =
        workload::Config { socket, shape, device, name, kind, speed, tick, patience, progress, exit_on_signal };
    match workload::run(&config, &signals, |line| say(&line)) {
        Outcome::Ended(code) => ExitCode::from(code),
        Outcome::OutOfMemory(text) => {
            // As a program that does not catch the exception.
            complain(&format!("Traceback (most recent call last):\n{text}"));
            ExitCode::FAILURE
        }
        Outcome::Failed(why) => fail(&why),
    }
}

/// Sets, clears or lists faults.
pub fn main_fault(args: FaultArgs) -> ExitCode {
    let FaultArgs { socket: Socket { socket }, faults, device, lasting, clear } = args;
    let for_millis = lasting.map(|lasting| u64::try_from(lasting.as_millis()).unwrap_or(u64::MAX));
    let requests: Vec<Request> = match (clear, faults.is_empty()) {
        (true, true) => vec![Request::ClearFault { device, fault: None }],
        (true, false) => faults.iter().map(|fault| Request::ClearFault { device, fault: Some(*fault) }).collect(),
        (false, _) => faults.iter().map(|fault| Request::SetFault { device, fault: *fault, for_millis }).collect(),
    };
    let result = connect(&socket).and_then(|mut client| {
        for request in &requests {
            match client.ask(request).map_err(|error| error.to_string())? {
                Answer::Done => {}
                Answer::Refused { why } => return Err(why),
                other => return Err(format!("unexpected answer of the driver: {other:?}")),
            }
        }
        client.state().map_err(|error| error.to_string())
    });
    match result {
        Ok(state) => {
            list_faults(&state);
            ExitCode::SUCCESS
        }
        Err(why) => fail(&why),
    }
}

/// Shows devices and processes.
pub fn main_state(args: StateArgs) -> ExitCode {
    let StateArgs { socket: Socket { socket }, json } = args;
    let state = match connect(&socket).and_then(|mut client| client.state().map_err(|error| error.to_string())) {
        Ok(state) => state,
        Err(why) => return fail(&why),
    };
    if json {
        say(&serde_json::to_string_pretty(&state).unwrap_or_default());
        return ExitCode::SUCCESS;
    }
    say(&format!("simulated driver {}", state.driver_version));
    for (index, device) in state.devices.iter().enumerate() {
        let memory = device.memory;
        say(&format!(
            "device {index}: {} {}: {} of {} MiB used, {} reserved",
            device.name,
            device.uuid,
            memory.used >> 20,
            memory.total >> 20,
            memory.reserved >> 20
        ));
        for (slot, instance) in device.slots.iter().enumerate() {
            if let Some(instance) = instance {
                let memory = instance.memory;
                say(&format!(
                    "  instance {index}.{slot}: {} {}: {} of {} MiB used",
                    instance.profile,
                    instance.uuid,
                    memory.used >> 20,
                    memory.total >> 20
                ));
            }
        }
        for process in &device.processes {
            let slot = process.slot.map_or_else(String::new, |slot| format!(" on {index}.{slot}"));
            say(&format!("  process {} {}{slot}: {} MiB", process.pid, process.name, process.bytes >> 20));
        }
    }
    list_faults(&state);
    ExitCode::SUCCESS
}

fn list_faults(state: &State) {
    for fault in &state.faults {
        say(&format!("fault on all devices: {fault}"));
    }
    for (index, device) in state.devices.iter().enumerate() {
        for fault in &device.faults {
            say(&format!("fault on device {index}: {fault}"));
        }
    }
}

fn connect(socket: &Path) -> Result<Client, String> {
    Client::connect(socket).map_err(|error| format!("no driver on {}: {error}", socket.display()))
}

fn parse_speed(text: &str) -> Result<f64, String> {
    let speed: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if speed.is_finite() && speed > 0.0 { Ok(speed) } else { Err("must be larger than zero".to_owned()) }
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map_or_else(|_| "node".to_owned(), |name| name.trim().into())
}

fn chain(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {}", chain(source)))
}

fn fail(why: &str) -> ExitCode {
    complain(&format!("gpumem sim: {why}"));
    ExitCode::FAILURE
}

/// One line on stdout; a reader that went away is no reason to stop.
fn say(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

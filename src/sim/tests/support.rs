//! A driver in a folder of its own, its clients, and waiting without guessing how long.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gpumem_sim::client::Client;
use gpumem_sim::driver::{Config, Handle};
use gpumem_sim::protocol::{Answer, Fault, Kind, Request, State};
use gpumem_sim::spec::parse_devices;

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// Far longer than anything takes, even on a machine busy with other things.
const LONG: Duration = Duration::from_mins(1);

/// A folder that is removed at the end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("gpumem-sim-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn socket(&self) -> PathBuf {
        self.0.join("driver.sock")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A driver with its folder.
pub struct Driver {
    handle: Option<Handle>,
    pub folder: Folder,
}

impl Driver {
    pub fn with(devices: &str) -> Self {
        Self::start_in(Folder::new(), devices)
    }

    pub fn start_in(folder: Folder, devices: &str) -> Self {
        let handle = Handle::start(config(&folder.socket(), devices)).unwrap();
        Self { handle: Some(handle), folder }
    }

    /// Ends the driver and starts another on the same socket.
    pub fn restart(&mut self, devices: &str) {
        self.stop();
        self.handle = Some(Handle::start(config(&self.folder.socket(), devices)).unwrap());
    }

    pub fn stop(&mut self) {
        if let Some(handle) = self.handle.take() {
            handle.stop();
        }
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.folder.socket()).unwrap()
    }

    /// A connection that holds a context on a device and this much beside it.
    pub fn holding(&self, device: &str, kind: Kind, bytes: u64) -> Client {
        let mut client = self.client();
        let open = Request::Open { device: device.into(), name: "job".into(), kind, context: None };
        assert!(matches!(client.ask(&open).unwrap(), Answer::Opened { .. }));
        assert_eq!(client.ask(&Request::Alloc { bytes }).unwrap(), Answer::Held { bytes });
        client
    }

    pub fn state(&self) -> State {
        self.client().state().unwrap()
    }

    /// Says in which cgroup the driver sees a process.
    pub fn place(&self, pid: u32, cgroup: &str) {
        let directory = self.folder.0.join("proc").join(pid.to_string());
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
    }

    /// Answers one request.
    pub fn ask(&self, request: &Request) -> Answer {
        self.client().ask(request).unwrap()
    }

    pub fn fault(&self, device: Option<u32>, fault: Fault) {
        let request = Request::SetFault { device, fault, for_millis: None };
        assert_eq!(self.client().ask(&request).unwrap(), Answer::Done);
    }

    pub fn clear(&self, fault: Fault) {
        let request = Request::ClearFault { device: None, fault: Some(fault) };
        assert_eq!(self.client().ask(&request).unwrap(), Answer::Done);
    }
}

pub fn config(socket: &Path, devices: &str) -> Config {
    let devices = parse_devices(devices, "node").unwrap();
    let proc = socket.with_file_name("proc");
    Config { proc, ..Config::new(socket.to_owned(), devices) }
}

/// A child process that is killed at the end.
pub struct Process(Option<Child>);

impl Process {
    /// `gpumem-sim` with these arguments on this socket.
    pub fn spawn(socket: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpumem-sim"));
        command.args(args).arg("--socket").arg(socket).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Some(command.spawn().unwrap()))
    }

    pub fn id(&self) -> u32 {
        self.0.as_ref().map_or(0, Child::id)
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a signal to a child of this process that has not been waited for, so its PID is still its own.
        assert_eq!(unsafe { libc::kill(self.id().cast_signed(), signal) }, 0);
    }

    pub fn output(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Asks again until there is an answer.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + LONG;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < give_up, "not within {LONG:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

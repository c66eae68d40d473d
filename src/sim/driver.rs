//! The daemon that plays the GPU driver: it owns the devices' memory and listens on a unix socket.
//!
//! Flows in: connections, each known by the PID the kernel vouches for (`SO_PEERCRED`, in the daemon's PID namespace,
//! which should be the host's). Flows out: answers. One thread a connection: there are as many as processes on a node.

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::io::{self, BufReader};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::machine::{ClientId, Costs, Machine, Wanted};
use crate::protocol::{Accounting, Answer, Request, receive, send};
use crate::signals::Signals;
use crate::spec::DeviceSpec;

/// A client that does not read its answer for this long is cut off.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two looks at whether a suspended process goes on.
const SUSPENDED_POLL: Duration = Duration::from_millis(20);

/// What a driver is started with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen.
    pub socket: PathBuf,
    /// What it owns.
    pub devices: Vec<DeviceSpec>,
    /// What contexts cost.
    pub costs: Costs,
    /// How memory is accounted by cgroup.
    pub accounting: Accounting,
    /// Where clients' cgroups are read.
    pub proc: PathBuf,
}

impl Config {
    /// A driver with the default costs, accounting and `/proc`.
    pub fn new(socket: PathBuf, devices: Vec<DeviceSpec>) -> Self {
        Self { socket, devices, costs: Costs::default(), accounting: Accounting::default(), proc: "/proc".into() }
    }
}

/// Why a driver does not start.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Error {
    #[error("another driver answers on {socket}")]
    AlreadyRunning { socket: PathBuf },
    #[error("cannot listen on {socket}")]
    Listen { socket: PathBuf, source: io::Error },
}

/// A running driver; dropping it ends it as `stop` does.
#[derive(Debug)]
pub struct Handle {
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
    identity: (u64, u64),
}

#[derive(Debug)]
struct Shared {
    socket: PathBuf,
    proc: PathBuf,
    machine: Mutex<Machine>,
    stopping: AtomicBool,
    streams: Mutex<HashMap<ClientId, UnixStream>>,
}

/// Runs a driver until SIGTERM or SIGINT; `ready` is called once it listens.
///
/// Call it before any other thread exists: the signals are blocked in this one.
pub fn run(config: Config, ready: impl FnOnce()) -> Result<(), Error> {
    let signals = Signals::block();
    let handle = Handle::start(config)?;
    ready();
    while signals.wait(Duration::from_hours(1)).is_none() {}
    handle.stop();
    Ok(())
}

// === impl Handle ===

impl Handle {
    /// Listens, and serves from threads of its own.
    pub fn start(config: Config) -> Result<Self, Error> {
        let Config { socket, devices, costs, accounting, proc } = config;
        let failed = |source| Error::Listen { socket: socket.clone(), source };
        remove_stale(&socket)?;
        if let Some(parent) = socket.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        let listener = UnixListener::bind(&socket).map_err(failed)?;
        // The agent connects as a user of its own, without a capability.
        fs::set_permissions(&socket, Permissions::from_mode(0o666)).map_err(failed)?;
        let identity = identity(&socket).map_err(failed)?;
        let shared = Arc::new(Shared {
            socket: socket.clone(),
            proc,
            machine: Mutex::new(Machine::new(devices, costs, boot_id()).accounting(accounting)),
            stopping: AtomicBool::new(false),
            streams: Mutex::new(HashMap::new()),
        });
        let accepting = thread::Builder::new()
            .name("accept".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || accept(&shared, &listener)
            })
            .map_err(failed)?;
        Ok(Self { shared, accepting: Some(accepting), identity })
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.shared.socket
    }

    /// Closes every connection, frees everything and removes the socket.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Accepting ends on its next connection, so make one. It fails where the socket was taken away; then nobody can
        // connect either and the thread is left behind.
        let woken = UnixStream::connect(&self.shared.socket).is_ok()
            && identity(&self.shared.socket).is_ok_and(|identity| identity == self.identity);
        for stream in lock(&self.shared.streams).values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        if woken {
            if let Some(accepting) = self.accepting.take() {
                let _ = accepting.join();
            }
            let _ = fs::remove_file(&self.shared.socket);
        }
    }
}

fn accept(shared: &Arc<Shared>, listener: &UnixListener) {
    let mut serving: Vec<JoinHandle<()>> = Vec::new();
    for client in 0.. {
        let accepted = listener.accept();
        if shared.stopping.load(Ordering::SeqCst) {
            break;
        }
        let Ok((stream, _)) = accepted else {
            // Out of file descriptors, most likely: some client must go first.
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        let registered = stream.try_clone().map(|clone| lock(&shared.streams).insert(client, clone));
        let spawned = thread::Builder::new().name(format!("client-{client}")).spawn({
            let shared = Arc::clone(shared);
            move || {
                if registered.is_ok() {
                    // A broken connection is a closed one: either way the client's memory is free.
                    let _ = serve(&shared, client, stream);
                }
                lock(&shared.machine).close(client);
                lock(&shared.streams).remove(&client);
            }
        });
        serving.retain(|thread| !thread.is_finished());
        match spawned {
            Ok(thread) => serving.push(thread),
            Err(_) => drop(lock(&shared.streams).remove(&client)),
        }
    }
    // Connections accepted after the first round of shutdowns end here.
    for stream in lock(&shared.streams).values() {
        let _ = stream.shutdown(Shutdown::Both);
    }
    for thread in serving {
        let _ = thread.join();
    }
}

fn serve(shared: &Shared, client: ClientId, stream: UnixStream) -> io::Result<()> {
    let pid = peer_pid(&stream)?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let mut stream = BufReader::new(stream);
    let mut told = None;
    while let Some(request) = receive::<Request>(&mut stream)? {
        let is_news = request == Request::News;
        let holds = matches!(request, Request::Open { .. } | Request::Alloc { .. } | Request::Free { .. });
        // The calls of a process that is suspended wait, for as long as it is.
        while holds && lock(&shared.machine).is_suspended(pid) && !shared.stopping.load(Ordering::SeqCst) {
            if !is_alive(pid) {
                return Ok(());
            }
            thread::sleep(SUSPENDED_POLL);
        }
        let mut answer = {
            let mut machine = lock(&shared.machine);
            let limits = matches!(request, Request::SetLimit { .. } | Request::GetLimit { .. });
            if limits || (holds && machine.has_limits()) {
                machine.refresh_cgroups(|pid| cgroup(&shared.proc, pid));
            }
            handle(&mut machine, client, pid, request, Instant::now())
        };
        if is_news && told.as_ref() == Some(&answer) {
            answer = Answer::Same;
        } else if is_news {
            told = Some(answer.clone());
        }
        send(stream.get_mut(), &answer)?;
    }
    Ok(())
}

fn handle(machine: &mut Machine, client: ClientId, pid: u32, request: Request, now: Instant) -> Answer {
    match request {
        Request::Open { .. } if pid == 0 => Answer::Refused {
            why: "your PID is not visible from the driver: run the driver in the host's PID namespace".to_owned(),
        },
        Request::Open { device, name, kind, context } => {
            machine.open(client, pid, Wanted { device: &device, name: &name, kind, context }, now)
        }
        Request::Alloc { bytes } => machine.alloc(client, bytes, now),
        Request::Free { bytes } => machine.free(client, bytes),
        Request::SetLimit { device, cgroup, soft, hard } => machine.set_limit(device, &cgroup, soft, hard, now),
        Request::GetLimit { device, cgroup } => machine.limit(device, &cgroup, now),
        Request::Checkpoint { pid, step } => machine.checkpoint(pid, step, now),
        Request::State | Request::News => Answer::State(machine.state(pid, now)),
        Request::SetFault { device, fault, for_millis } => {
            machine.set_fault(device, fault, for_millis.and_then(|ms| now.checked_add(Duration::from_millis(ms))))
        }
        Request::ClearFault { device, fault } => machine.clear_fault(device, fault),
    }
}

/// Its connection says nothing while we do not read from it.
fn is_alive(pid: u32) -> bool {
    // SAFETY: signal 0 is sent to nobody; it only tells whether the process exists.
    let result = unsafe { libc::kill(pid.cast_signed(), 0) };
    result == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

fn cgroup(proc: &Path, pid: u32) -> String {
    fs::read_to_string(proc.join(pid.to_string()).join("cgroup")).unwrap_or_default()
}

/// The PID behind a connection, in this process's PID namespace; 0 where it has none here.
fn peer_pid(stream: &UnixStream) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` and `size` outlive the call, and `size` says how large `peer` is.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut peer).cast(),
            &raw mut size,
        )
    };
    if result == 0 { Ok(u32::try_from(peer.pid).unwrap_or(0)) } else { Err(io::Error::last_os_error()) }
}

/// Removes what a driver that died left behind; one that answers is left alone.
fn remove_stale(socket: &Path) -> Result<(), Error> {
    if !socket.exists() {
        return Ok(());
    }
    if UnixStream::connect(socket).is_ok() {
        return Err(Error::AlreadyRunning { socket: socket.to_owned() });
    }
    fs::remove_file(socket).map_err(|source| Error::Listen { socket: socket.to_owned(), source })
}

fn identity(socket: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(socket).map(|metadata| (metadata.dev(), metadata.ino()))
}

fn boot_id() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 ^ u64::from(std::process::id()).rotate_left(40)
}

/// A panic in one client's thread leaves the machine whole: every change to it is one assignment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};

use gpumem_sim::client::Client;
use gpumem_sim::driver::{Error, Handle};
use gpumem_sim::protocol::{Answer, Kind, Request};

use crate::support::{Driver, Folder, GIB, Process, config, eventually};

#[test]
fn a_client_is_known_by_the_pid_that_the_kernel_vouches_for() {
    let driver = Driver::with("1x8GiB");
    assert_eq!(driver.state().caller_pid, std::process::id());
    let workload = Process::spawn(&driver.folder.socket(), &["workload", "--shape", "plateau:at=1GiB"]);
    eventually("the workload's memory under its PID", || {
        let state = driver.state();
        let process = state.devices[0].processes.first()?;
        (process.pid == workload.id() && process.bytes > GIB).then_some(())
    });
}

#[test]
fn memory_is_free_when_its_process_dies_however_it_dies() {
    let driver = Driver::with("1x8GiB");
    let workload = Process::spawn(&driver.folder.socket(), &["workload", "--shape", "plateau:at=1GiB"]);
    eventually("memory in use", || (driver.state().devices[0].memory.used > GIB).then_some(()));
    workload.signal(libc::SIGKILL);
    eventually("memory free", || (driver.state().devices[0].memory.used == 0).then_some(()));
}

#[test]
fn every_user_may_connect() {
    let driver = Driver::with("1x8GiB");
    let mode = fs::metadata(driver.folder.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666);
}

#[test]
fn a_socket_left_by_a_dead_driver_is_replaced() {
    let folder = Folder::new();
    drop(UnixListener::bind(folder.socket()).unwrap());
    assert!(folder.socket().exists());
    let driver = Driver::start_in(folder, "1x8GiB");
    assert_eq!(driver.state().devices.len(), 1);
}

#[test]
fn a_second_driver_on_the_socket_is_refused() {
    let driver = Driver::with("1x8GiB");
    let second = Handle::start(config(&driver.folder.socket(), "1x8GiB"));
    assert!(matches!(second, Err(Error::AlreadyRunning { .. })));
    assert_eq!(driver.state().devices.len(), 1);
}

#[test]
fn stopping_closes_connections_and_removes_the_socket() {
    let mut driver = Driver::with("1x8GiB");
    let mut client = driver.holding("0", Kind::Compute, GIB);
    driver.stop();
    assert!(client.state().is_err());
    assert!(!driver.folder.socket().exists());
}

#[test]
fn a_driver_process_ends_on_sigterm_and_removes_its_socket() {
    let folder = Folder::new();
    let driver = Process::spawn(&folder.socket(), &["driver", "--devices", "H200:2"]);
    eventually("the socket", || UnixStream::connect(folder.socket()).ok());
    driver.signal(libc::SIGTERM);
    let output = driver.output();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("simulated driver"));
    assert!(!folder.socket().exists());
}

#[test]
fn nonsense_ends_its_connection_and_no_other() {
    let driver = Driver::with("1x8GiB");
    let mut stream = UnixStream::connect(driver.folder.socket()).unwrap();
    stream.write_all(b"{\"op\":\"dance\"}\n").unwrap();
    assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0);
    assert_eq!(driver.state().devices.len(), 1);
}

#[test]
fn many_processes_share_a_device() {
    let driver = Driver::with("1x8GiB");
    let shape = ["workload", "--shape", "plateau:at=512MiB,context=100MiB"];
    let workloads: Vec<Process> = (0..4).map(|_| Process::spawn(&driver.folder.socket(), &shape)).collect();
    eventually("four processes", || {
        let device = driver.state().devices.remove(0);
        (device.processes.iter().filter(|p| p.bytes == 612 << 20).count() == 4).then_some(())
    });
    let pids: Vec<u32> = driver.state().devices[0].processes.iter().map(|process| process.pid).collect();
    assert!(workloads.iter().all(|workload| pids.contains(&workload.id())));
}

#[test]
fn allocations_race_without_exceeding_the_device() {
    let driver = Driver::with("1x8GiB,reserved=0B");
    let clients: Vec<_> = (0..8).map(|_| driver.holding("0", Kind::Compute, 0)).collect();
    let race = |mut client: Client| {
        let takes = (0..50).map(|_| client.ask(&Request::Alloc { bytes: 64 << 20 }).unwrap());
        let held = takes.filter(|answer| matches!(answer, Answer::Held { .. })).count() as u64 * (64 << 20);
        (held, client)
    };
    let racers: Vec<_> = clients.into_iter().map(|client| std::thread::spawn(move || race(client))).collect();
    let ended: Vec<_> = racers.into_iter().map(|racer| racer.join().unwrap()).collect();
    let held: u64 = ended.iter().map(|(held, _)| held).sum();
    let memory = driver.state().devices[0].memory;
    assert_eq!(memory.used, held + 8 * (500 << 20) + (15 << 20));
    assert!(memory.free < 64 << 20);
}

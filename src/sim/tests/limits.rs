//! Limits by cgroup on real processes, with the traps of both accountings, and the states of a checkpoint.

use gpumem_sim::driver::{Config, Handle};
use gpumem_sim::protocol::{Accounting, Answer, CheckpointState, CheckpointStep, Fault, Kind, Request};

use crate::support::{Driver, Folder, GIB, MIB, Process, config, eventually};

const POD: &str = "/kubepods/pod0000/aaaa";

fn set(hard: u64) -> Request {
    Request::SetLimit { device: 0, cgroup: format!("/host/sys/fs/cgroup{POD}"), soft: 0, hard }
}

fn get() -> Request {
    Request::GetLimit { device: 0, cgroup: format!("/host/sys/fs/cgroup{POD}") }
}

fn hard(answer: &Answer) -> u64 {
    match answer {
        Answer::Limit { hard, .. } => *hard,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_grower_fails_its_own_allocation_at_its_limit_and_its_neighbour_lives() {
    let driver = Driver::with("1x8GiB");
    let mut neighbour = driver.holding("0", Kind::Compute, GIB);
    let args = ["workload", "--shape", "leak:from=1GiB,rate=1GiB/s", "--speed", "20", "--tick", "10ms"];
    let grower = Process::spawn(&driver.folder.socket(), &args);
    driver.place(grower.id(), POD);
    driver.place(std::process::id(), "/kubepods/pod0000/bbbb");
    assert_eq!(driver.ask(&set(3 * GIB)), Answer::Done);
    let output = grower.output();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("CUDA out of memory") && stderr.contains("total capacity of 3.00 GiB"), "{stderr}");
    assert_eq!(neighbour.ask(&Request::Alloc { bytes: GIB }).unwrap(), Answer::Held { bytes: 2 * GIB });
}

#[test]
fn dmem_drops_a_limit_below_use_without_a_word() {
    let driver = Driver::with("1x8GiB");
    let _own = driver.holding("0", Kind::Compute, 4 * GIB);
    driver.place(std::process::id(), POD);
    assert_eq!(hard(&driver.ask(&get())), u64::MAX, "dmem reads as unlimited where nothing was set");
    assert_eq!(driver.ask(&set(6 * GIB)), Answer::Done);
    assert_eq!(driver.ask(&set(2 * GIB)), Answer::Done, "success");
    assert_eq!(
        driver.ask(&get()),
        Answer::Limit { soft: 0, hard: 6 * GIB, used: 4 * GIB + 500 * MIB },
        "and the old limit stays"
    );
    driver.fault(None, Fault::LimitIgnored);
    assert_eq!(driver.ask(&set(7 * GIB)), Answer::Done);
    assert_eq!(hard(&driver.ask(&get())), 6 * GIB);
    driver.clear(Fault::LimitIgnored);
    assert_eq!(driver.ask(&set(u64::MAX)), Answer::Done);
    assert_eq!(hard(&driver.ask(&get())), u64::MAX);
}

#[test]
fn misc_takes_any_limit_and_cannot_tell_unset_from_unsupported() {
    for accounting in [Accounting::Misc, Accounting::Off] {
        let folder = Folder::new();
        let handle = Handle::start(Config { accounting, ..config(&folder.socket(), "1x8GiB") }).unwrap();
        let mut client = gpumem_sim::client::Client::connect(handle.socket()).unwrap();
        assert_eq!(client.ask(&get()).unwrap(), Answer::LimitNotSupported);
        let taken = accounting == Accounting::Misc;
        assert_eq!(client.ask(&set(GIB)).unwrap() == Answer::Done, taken);
        assert_eq!(client.ask(&get()).unwrap() == Answer::LimitNotSupported, !taken);
    }
}

#[test]
fn a_mig_instance_takes_no_limit() {
    let driver = Driver::with("A100:1,mig=3g.40gb");
    assert_eq!(driver.ask(&set(GIB)), Answer::LimitNotSupported);
}

fn step(driver: &Driver, pid: u32, step: CheckpointStep) -> Answer {
    driver.ask(&Request::Checkpoint { pid, step })
}

fn is(state: CheckpointState) -> Answer {
    Answer::Checkpointed { state }
}

#[test]
fn a_checkpoint_frees_the_device_and_a_restore_needs_it_free() {
    let driver = Driver::with("1x8GiB");
    let workload = Process::spawn(&driver.folder.socket(), &["workload", "--shape", "plateau:at=5GiB"]);
    let pid = workload.id();
    eventually("memory in use", || (driver.state().devices[0].memory.used > 5 * GIB).then_some(()));
    assert_eq!(step(&driver, pid, CheckpointStep::Checkpoint), Answer::CheckpointRefused { code: 401 });
    assert_eq!(step(&driver, pid, CheckpointStep::Lock), is(CheckpointState::Locked));
    assert_eq!(step(&driver, pid, CheckpointStep::Checkpoint), is(CheckpointState::Checkpointed));
    assert_eq!(driver.state().devices[0].memory.used, 0);
    assert!(driver.state().devices[0].processes.is_empty());
    let other = driver.holding("0", Kind::Compute, 6 * GIB);
    assert_eq!(step(&driver, pid, CheckpointStep::Restore), Answer::CheckpointRefused { code: 2 });
    drop(other);
    eventually("the other is gone", || (driver.state().devices[0].memory.used < GIB).then_some(()));
    assert_eq!(step(&driver, pid, CheckpointStep::Restore), is(CheckpointState::Locked));
    assert_eq!(step(&driver, pid, CheckpointStep::Unlock), is(CheckpointState::Running));
    workload.signal(libc::SIGTERM);
    assert_eq!(workload.output().status.code(), Some(0), "it went on as if nothing had happened");
}

#[test]
fn a_checkpoint_can_fail_at_each_step() {
    let driver = Driver::with("1x8GiB");
    let _own = driver.holding("0", Kind::Compute, GIB);
    let pid = std::process::id();
    driver.fault(None, Fault::LockTimesOut);
    assert_eq!(step(&driver, pid, CheckpointStep::Lock), Answer::CheckpointRefused { code: 600 });
    assert_eq!(step(&driver, pid, CheckpointStep::State), is(CheckpointState::Running));
    driver.clear(Fault::LockTimesOut);
    assert_eq!(step(&driver, pid, CheckpointStep::Lock), is(CheckpointState::Locked));
    driver.fault(None, Fault::CheckpointFails);
    assert_eq!(step(&driver, pid, CheckpointStep::Checkpoint), Answer::CheckpointRefused { code: 999 });
    driver.clear(Fault::CheckpointFails);
    assert_eq!(step(&driver, pid, CheckpointStep::Checkpoint), is(CheckpointState::Checkpointed));
    driver.fault(None, Fault::RestoreFails);
    assert_eq!(step(&driver, pid, CheckpointStep::Restore), Answer::CheckpointRefused { code: 999 });
    assert_eq!(step(&driver, pid, CheckpointStep::State), is(CheckpointState::Failed));
    assert_eq!(step(&driver, 1, CheckpointStep::State), Answer::CheckpointRefused { code: 1 }, "no CUDA process");
}

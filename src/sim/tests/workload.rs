use gpumem_sim::protocol::Kind;

use crate::support::{Driver, Folder, GIB, MIB, Process, eventually};

fn leak(device: &str) -> Vec<&str> {
    vec!["workload", "--shape", "leak:from=1GiB,rate=1GiB/s", "--speed", "20", "--tick", "10ms", "--device", device]
}

#[test]
fn a_leak_ends_in_pytorchs_message_and_exit_1() {
    let driver = Driver::with("1x8GiB");
    let _neighbour = driver.holding("0", Kind::Compute, GIB);
    let output = Process::spawn(&driver.folder.socket(), &leak("0")).output();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let neighbour = format!("Process {} has 1.49 GiB memory in use. Including", std::process::id());
    for phrase in
        ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "capacity of 8.00 GiB", neighbour.as_str()]
    {
        assert!(stderr.contains(phrase), "{stderr}");
    }
}

#[test]
fn a_shape_that_ends_gives_its_exit_code() {
    let driver = Driver::with("1x8GiB");
    let code = |shape: &str| {
        let args = ["workload", "--shape", shape, "--speed", "100", "--tick", "5ms"];
        Process::spawn(&driver.folder.socket(), &args).output().status.code()
    };
    assert_eq!(code("crash:to=2GiB,over=10s,code=7"), Some(7));
    assert_eq!(code("plateau:at=1GiB,exit=5s"), Some(0));
    assert_eq!(code("plateau:at=1GiB,crash=5s"), Some(1));
}

#[test]
fn sigterm_ends_a_workload_with_0() {
    let driver = Driver::with("1x8GiB");
    let args = ["workload", "--shape", "plateau:at=1GiB", "--tick", "1h"];
    let workload = Process::spawn(&driver.folder.socket(), &args);
    eventually("memory in use", || (driver.state().devices[0].memory.used > GIB).then_some(()));
    workload.signal(libc::SIGTERM);
    assert_eq!(workload.output().status.code(), Some(0));
}

#[test]
fn a_workload_waits_for_its_driver() {
    let folder = Folder::new();
    let workload = Process::spawn(&folder.socket(), &["workload", "--shape", "plateau:at=1GiB"]);
    // Long enough for a first try to have failed on most runs; right in any case.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let driver = Driver::start_in(folder, "1x8GiB");
    eventually("the workload", || {
        driver.state().devices[0].processes.iter().any(|process| process.pid == workload.id()).then_some(())
    });
}

#[test]
fn a_workload_goes_on_with_a_new_driver() {
    let mut driver = Driver::with("1x8GiB");
    let args = ["workload", "--shape", "plateau:at=1GiB,context=100MiB", "--tick", "10ms"];
    let _workload = Process::spawn(&driver.folder.socket(), &args);
    let holds = |driver: &Driver| {
        let device = driver.state().devices.remove(0);
        device.processes.iter().any(|process| process.bytes == 1124 * MIB).then_some(())
    };
    eventually("its memory", || holds(&driver));
    driver.restart("1x8GiB");
    eventually("its memory with the new driver", || holds(&driver));
}

#[test]
fn a_workload_without_a_driver_gives_up_and_says_so() {
    let folder = Folder::new();
    let args = ["workload", "--shape", "plateau:at=1GiB", "--patience", "10ms"];
    let output = Process::spawn(&folder.socket(), &args).output();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no driver on"));
}

#[test]
fn commands_show_state_and_set_faults() {
    let driver = Driver::with("H200,mig=3g.71gb");
    let _job = driver.holding("0.0", Kind::Compute, GIB);
    let say = |args: &[&str]| {
        let output = Process::spawn(&driver.folder.socket(), args).output();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert_eq!(
        say(&["fault", "hung", "sentinel", "--device", "0"]).1,
        "fault on device 0: hung\nfault on device 0: sentinel\n"
    );
    assert_eq!(say(&["fault", "hung", "--clear"]).1, "fault on device 0: sentinel\n");
    let (succeeded, state) = say(&["state"]);
    assert!(succeeded && state.contains("simulated driver sim-") && state.contains("instance 0.0: 3g.71gb MIG-"));
    assert!(say(&["state", "--json"]).1.contains("\"bytes\": "));
    assert_eq!(say(&["fault", "--clear"]), (true, String::new()));
    assert!(!say(&["fault", "lost", "--device", "9"]).0);
}

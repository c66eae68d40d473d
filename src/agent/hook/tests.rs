use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use gpumem_engine::identity::DeviceUuid;
use gpumem_engine::sample::{DeviceMemory, DeviceSample, ProcessMemory, RawSample, Reading};
use gpumem_engine::usage::{Attribution, ContainerUsage};

use super::*;
use crate::agent::pods::SharedPods;

/// A `/proc` of our own making, and the agent's view of its processes.
struct Stage {
    proc: PathBuf,
    processes: Processes,
    metrics: SelfMetrics,
    hooks: Hooks,
    /// PID, container, devices by their number.
    running: Vec<(u32, &'static str, Vec<u16>)>,
}

fn uuid(number: u16) -> DeviceKey {
    DeviceKey::whole(DeviceUuid::from(format!("GPU-{number:04x}0000-1111-2222-3333-444455556666")))
}

fn gib(count: u64) -> Bytes {
    Bytes(count << 30)
}

/// A name as the hook writes it.
fn name(allocated: u64, reserved: u64, uuid: u16, ooms: u8, beat: u8) -> String {
    let mut bits = u128::from(allocated << 30 >> 17);
    bits = bits << 24 | u128::from(reserved << 30 >> 17);
    bits = bits << 16 | u128::from(uuid);
    bits = bits << 5 | u128::from(ooms);
    bits = bits << 3 | u128::from(beat & 7);
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let digits = (0..12).rev().map(|digit| char::from(alphabet[(bits >> (6 * digit) & 63) as usize]));
    "gm1".to_owned() + &digits.collect::<String>() + "\n"
}

impl Stage {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = format!("gpumem-hook-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let proc = std::env::temp_dir().join(folder);
        fs::create_dir_all(&proc).unwrap();
        let processes = Processes::new(&proc, None).unwrap();
        Self { proc, processes, metrics: SelfMetrics::new().unwrap(), hooks: Hooks::default(), running: Vec::new() }
    }

    fn runs(&mut self, pid: u32, container: &'static str, devices: &[u16]) {
        let zeros = "0 ".repeat(17);
        fs::create_dir_all(self.proc.join(format!("{pid}/task"))).unwrap();
        fs::write(self.proc.join(format!("{pid}/stat")), format!("{pid} (a) S 1 {zeros}7 0 0\n")).unwrap();
        fs::write(self.proc.join(format!("{pid}/cgroup")), "0::/\n").unwrap();
        self.running.push((pid, container, devices.to_vec()));
        self.thread(pid, pid, "python\n");
    }

    fn thread(&self, pid: u32, id: u32, name: &str) {
        let folder = self.proc.join(format!("{pid}/task/{id}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("comm"), name).unwrap();
    }

    /// A cycle at this second, with 80 GiB to each device.
    fn cycle(&mut self, second: u64) -> BTreeMap<(ContainerKey, DeviceKey), Figures> {
        let mut numbers: Vec<u16> = self.running.iter().flat_map(|(_, _, devices)| devices.clone()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let memory = DeviceMemory { total: gib(80), used: gib(80), free: Bytes::ZERO, reserved: None };
        let at = Moment::from_secs(second);
        let on = |number: u16| self.running.iter().filter(move |(_, _, devices)| devices.contains(&number));
        let sample = RawSample {
            at,
            devices: numbers
                .iter()
                .map(|number| DeviceSample {
                    device: uuid(*number),
                    index: 0,
                    model: String::new(),
                    memory: Reading::Value(memory),
                    processes: Reading::Value(
                        on(*number).map(|(pid, ..)| ProcessMemory { pid: Pid(*pid), used: Some(gib(9)) }).collect(),
                    ),
                })
                .collect(),
        };
        let usage = Usage {
            at,
            devices: numbers
                .iter()
                .map(|number| {
                    let mut containers: BTreeMap<&str, Vec<(Pid, StartTime)>> = BTreeMap::new();
                    for (pid, container, _) in on(*number) {
                        containers.entry(container).or_default().push((Pid(*pid), StartTime(7)));
                    }
                    DeviceUsage {
                        device: uuid(*number),
                        index: 0,
                        model: String::new(),
                        memory: Some(memory),
                        containers: containers
                            .into_iter()
                            .map(|(name, processes)| ContainerUsage {
                                container: key(name),
                                used: Some(gib(9)),
                                processes,
                            })
                            .collect(),
                        unattributed: None,
                        attribution: Attribution::Complete,
                    }
                })
                .collect(),
        };
        self.processes.refresh(&sample, StartTime(100), &SharedPods::default(), &self.metrics);
        self.hooks.read(&usage, &self.processes, &self.metrics)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.proc);
    }
}

fn key(name: &str) -> ContainerKey {
    ContainerKey { pod: "pod".into(), container: name.into() }
}

fn figures(allocated: u64, reserved: u64, ooms: u32, hooked: u32, processes: u32) -> Figures {
    Figures { allocated: Some(gib(allocated)), reserved: Some(gib(reserved)), ooms, hooked, processes }
}

#[test]
fn a_containers_processes_are_added_up_by_device_and_the_silent_ones_are_counted() {
    let mut stage = Stage::new();
    for pid in [10, 11, 12] {
        stage.runs(pid, "c", &[1, 2]);
    }
    stage.thread(10, 100, &name(1, 2, 1, 0, 0));
    stage.thread(10, 101, &name(3, 4, 2, 1, 0));
    stage.thread(11, 110, &name(5, 6, 2, 2, 0));
    let told = stage.cycle(1);
    assert_eq!(told.get(&(key("c"), uuid(1))), Some(&figures(1, 2, 0, 1, 3)));
    assert_eq!(told.get(&(key("c"), uuid(2))), Some(&figures(8, 10, 3, 2, 3)));
}

#[test]
fn a_name_without_a_uuid_counts_where_there_is_one_device_only() {
    let mut stage = Stage::new();
    stage.runs(10, "one", &[1]);
    stage.runs(11, "two", &[1, 2]);
    stage.runs(12, "wrong", &[1]);
    stage.thread(10, 100, &name(1, 2, 0, 0, 0));
    stage.thread(11, 110, &name(1, 2, 0, 0, 0));
    stage.thread(12, 120, &name(1, 2, 9, 0, 0));
    let told: Vec<_> = stage.cycle(1).into_keys().map(|(container, _)| container).collect();
    assert_eq!(told, [key("one")]);
}

#[test]
fn a_hook_that_counts_no_more_says_nothing_after_ten_seconds() {
    let mut stage = Stage::new();
    stage.runs(10, "c", &[1]);
    for second in 0..=20 {
        stage.thread(10, 100, &name(1, 2, 1, 0, u8::try_from(second.min(5)).unwrap()));
        assert_eq!(stage.cycle(second).len(), usize::from(second <= 15), "second {second}");
    }
    stage.thread(10, 100, &name(1, 2, 1, 0, 6));
    assert_eq!(stage.cycle(21).len(), 1, "it was only stopped");
}

#[test]
fn a_hook_that_starts_late_and_a_thread_that_ends_are_found() {
    let mut stage = Stage::new();
    stage.runs(10, "c", &[1]);
    assert!(stage.cycle(1).is_empty());
    stage.thread(10, 100, &name(1, 2, 1, 0, 0));
    assert!(stage.cycle(2).is_empty(), "it is searched for every five seconds only");
    assert_eq!(stage.cycle(6).len(), 1);
    fs::remove_dir_all(stage.proc.join("10/task/100")).unwrap();
    stage.thread(10, 102, &name(3, 4, 1, 0, 0));
    assert_eq!(stage.cycle(7).into_values().next(), Some(figures(3, 4, 0, 1, 1)));
}

#[test]
fn of_two_threads_that_claim_one_device_one_counts() {
    let mut stage = Stage::new();
    stage.runs(10, "c", &[1]);
    stage.thread(10, 100, &name(1, 2, 1, 0, 0));
    stage.thread(10, 101, &name(1, 2, 1, 0, 0));
    assert_eq!(stage.cycle(1).into_values().next(), Some(figures(1, 2, 0, 1, 1)));
}

#[test]
fn more_than_the_device_has_is_not_believed() {
    let mut stage = Stage::new();
    stage.runs(10, "c", &[1]);
    stage.thread(10, 100, &name(1, 81, 1, 0, 0));
    assert!(stage.cycle(1).is_empty());
}

#[test]
fn links_pipes_folders_long_half_and_strange_names_are_passed_over() {
    let mut stage = Stage::new();
    stage.runs(10, "c", &[1]);
    let task = stage.proc.join("10/task");
    // The kernel makes none of these; were it ever to, nothing may be followed, waited for, or read whole.
    fs::write(stage.proc.join("other"), name(1, 2, 1, 0, 0)).unwrap();
    fs::create_dir_all(task.join("101")).unwrap();
    symlink(stage.proc.join("other"), task.join("101/comm")).unwrap();
    fs::create_dir_all(task.join("102/comm")).unwrap();
    fs::create_dir_all(task.join("103")).unwrap();
    let pipe = task.join("103/comm");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
    stage.thread(10, 104, &name(1, 2, 1, 0, 0).repeat(100_000));
    stage.thread(10, 105, name(1, 2, 1, 0, 0).get(..9).unwrap());
    stage.thread(10, 106, "");
    fs::create_dir_all(task.join("self")).unwrap();
    fs::create_dir_all(task.join("99999999999999999999")).unwrap();
    assert!(stage.cycle(1).is_empty());
    stage.thread(10, 107, &name(1, 2, 1, 0, 0));
    assert_eq!(stage.cycle(7).len(), 1, "the good one beside them is read");
}

#[test]
fn a_process_of_very_many_threads_costs_no_more_than_the_bound() {
    let mut stage = Stage::new();
    stage.runs(10, "c", &[1]);
    for id in 0..u32::try_from(MAX_THREADS).unwrap() + 50 {
        fs::create_dir_all(stage.proc.join(format!("10/task/{}", 1000 + id))).unwrap();
    }
    assert!(stage.cycle(1).is_empty());
    assert!(stage.cycle(6).is_empty(), "and the agent lives");
}

#[test]
fn a_reused_pid_is_asked_anew() {
    let mut stage = Stage::new();
    stage.runs(10, "c", &[1]);
    stage.thread(10, 100, &name(1, 2, 1, 0, 0));
    assert_eq!(stage.cycle(1).len(), 1);
    fs::remove_dir_all(stage.proc.join("10")).unwrap();
    stage.running.clear();
    stage.runs(10, "d", &[1]);
    assert!(stage.cycle(2).is_empty());
}

#[test]
fn the_kernels_own_thread_names_are_read_without_a_right() {
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let (named, ready) = std::sync::mpsc::channel();
    let said = name(1, 2, 1, 3, 4);
    let own = said.trim_end().to_owned();
    let thread = std::thread::Builder::new().name(own).spawn(move || {
        let _ = named.send(());
        let _ = stopped.recv();
    });
    ready.recv().unwrap();
    let directory = openat(rustix::fs::CWD, "/proc/self", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut told = Told { started: StartTime(0), search_at: Moment(0), threads: Vec::new() };
    told.listen(&directory, Moment(1), &mut MAX_LOOKS.clone(), &SelfMetrics::new().unwrap());
    let heard: Vec<_> = told.threads.iter().map(|thread| thread.said).collect();
    assert_eq!(heard, [beacon::read(said.as_bytes()).unwrap()]);
    drop(stop);
    thread.unwrap().join().unwrap();
}

//! What a freeze does when each of its steps fails. Cases of the notes on limits: 27 to 30.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use gpumem_engine::identity::{ContainerKey, DeviceKey, DeviceUuid, MigInstance, Pid, StartTime};
use gpumem_engine::usage::{Attribution, ContainerUsage, DeviceUsage, Usage};

use super::*;
use crate::api::node::{GpuMemoryNode, GpuMemoryNodeSpec, GpuMemoryNodeStatus};

const BOOT: &str = "boot-1";
const POD: &str = "00000000-0000-4000-8000-000000000000";

/// A driver whose steps fail as told.
#[derive(Default)]
struct Driver {
    states: RefCell<BTreeMap<u32, State>>,
    refuse_lock: RefCell<Option<u32>>,
    refuse_checkpoint: RefCell<Option<u32>>,
    refuse_restore: RefCell<bool>,
}

impl Driver {
    fn step(&self, pid: u32, from: State, to: State) -> Result<(), u32> {
        let mut states = self.states.borrow_mut();
        match states.get_mut(&pid) {
            Some(state) if *state == from => {
                *state = to;
                Ok(())
            }
            Some(_) => Err(401),
            None => Err(1),
        }
    }

    fn all(&self, state: State) -> bool {
        self.states.borrow().values().all(|one| *one == state)
    }
}

impl Checkpoints for &Driver {
    fn name(&self) -> String {
        "fake".to_owned()
    }
    fn state(&self, pid: u32) -> Result<State, u32> {
        self.states.borrow().get(&pid).copied().ok_or(1)
    }
    fn lock(&self, pid: u32, _timeout: Duration) -> Result<(), u32> {
        if *self.refuse_lock.borrow() == Some(pid) { Err(600) } else { self.step(pid, State::Running, State::Locked) }
    }
    fn checkpoint(&self, pid: u32) -> Result<(), u32> {
        if *self.refuse_checkpoint.borrow() == Some(pid) {
            return Err(999);
        }
        self.step(pid, State::Locked, State::Checkpointed)
    }
    fn restore(&self, pid: u32) -> Result<(), u32> {
        if *self.refuse_restore.borrow() { Err(2) } else { self.step(pid, State::Checkpointed, State::Locked) }
    }
    fn unlock(&self, pid: u32) -> Result<(), u32> {
        self.step(pid, State::Locked, State::Running)
    }
}

/// A node with one container of two processes, 4 GiB each.
struct Scene {
    root: PathBuf,
    driver: Driver,
    shared: Shared,
    container: String,
}

impl Scene {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("gpumem-suspend-{name}-{}", std::process::id()));
        let container = "ab".repeat(32);
        let leaf = root.join(format!("kubepods/pod{POD}/{container}"));
        fs::create_dir_all(&leaf).unwrap();
        fs::write(root.join("cgroup.controllers"), "memory\n").unwrap();
        fs::write(leaf.join("cgroup.procs"), "11\n12\n13\n").unwrap();
        let scene = Self { root, driver: Driver::default(), shared: Shared::default(), container };
        *scene.driver.states.borrow_mut() = [(11, State::Running), (12, State::Running)].into();
        scene.uses(Some(8), None);
        scene
    }

    fn leaf(&self) -> PathBuf {
        self.root.join(format!("kubepods/pod{POD}/{}", self.container))
    }

    /// What NVML's list shows.
    fn uses(&self, gib: Option<u64>, mig: Option<MigInstance>) {
        let key = ContainerKey { pod: POD.into(), container: self.container.as_str().into() };
        let container = |gib| ContainerUsage {
            container: key.clone(),
            used: Some(Bytes::gib(gib)),
            processes: vec![(Pid(11), StartTime(1)), (Pid(12), StartTime(1))],
        };
        self.shared.hold(&Usage {
            devices: vec![DeviceUsage {
                device: DeviceKey { gpu: DeviceUuid::from("GPU-1".to_owned()), mig },
                index: 0,
                model: String::new(),
                memory: None,
                containers: gib.map(container).into_iter().collect(),
                unattributed: None,
                attribution: Attribution::Complete,
            }],
            ..Usage::default()
        });
    }

    fn freezer(&self) -> Freezer<&Driver> {
        Freezer::new(Leaves::new(&self.root), Ok(&self.driver))
    }

    /// The order, recorded or not, wanted or not.
    fn order(&self, wanted: bool, recorded: bool) -> Order {
        let entry = serde_json::json!({
            "podUID": POD, "namespace": "n", "pod": "p", "containerID": self.container, "device": ALL_DEVICES,
            "freeze": {"lockSeconds": 1}, "policy": "n/p", "expires": "2999-01-01T00:00:00Z",
        });
        let status = serde_json::json!({
            "podUID": POD, "containerID": self.container, "device": ALL_DEVICES, "backend": "fake", "state": "Pending",
            "reason": "", "cgroup": format!("kubepods/pod{POD}/{}", self.container), "bootId": BOOT,
        });
        let limits = if wanted { vec![serde_json::from_value(entry).unwrap()] } else { Vec::new() };
        let mut object = GpuMemoryNode::new("node", GpuMemoryNodeSpec { release: false, limits, written: None });
        let limits = if recorded { vec![serde_json::from_value(status).unwrap()] } else { Vec::new() };
        object.status = Some(GpuMemoryNodeStatus { limits, ..GpuMemoryNodeStatus::default() });
        self.shared.order(Some(object));
        self.shared.orders(Part::Freezes, BOOT, jiff::Timestamp::now())
    }

    fn keep(&self, freezer: &mut Freezer<&Driver>, wanted: bool) -> LimitReport {
        freezer.keep(&self.order(wanted, true), &self.shared).remove(0)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

#[test]
fn a_container_is_frozen_once_it_is_recorded_and_counts_once_nvml_shows_it_gone() {
    let scene = Scene::new("frozen");
    let mut freezer = scene.freezer();
    let report = freezer.keep(&scene.order(true, false), &scene.shared).remove(0);
    assert_eq!(report.state, LimitPhase::Pending);
    assert!(scene.driver.all(State::Running), "nothing is done before the ledger knows");
    assert_eq!(scene.keep(&mut freezer, true).state, LimitPhase::Pending);
    assert!(scene.driver.all(State::Checkpointed));
    assert_eq!(scene.keep(&mut freezer, true).state, LimitPhase::Pending, "NVML still lists it");
    scene.uses(None, None);
    let report = scene.keep(&mut freezer, true);
    assert_eq!((report.state, report.applied), (LimitPhase::Frozen, Some(Bytes::gib(8))));
    assert_eq!(scene.keep(&mut freezer, false).state, LimitPhase::Cleared);
    assert!(scene.driver.all(State::Running));
}

#[test]
fn case_27_too_little_host_memory_is_refused_before_anything_is_locked() {
    let scene = Scene::new("host");
    fs::write(scene.leaf().join("memory.max"), (4_u64 << 30).to_string()).unwrap();
    fs::write(scene.leaf().join("memory.current"), "0").unwrap();
    let report = scene.keep(&mut scene.freezer(), true);
    assert_eq!(report.state, LimitPhase::Refused);
    assert!(report.reason.contains("the kernel would kill it"), "{}", report.reason);
    assert!(scene.driver.all(State::Running));
}

#[test]
fn case_28_a_lock_that_times_out_leaves_every_process_running_and_is_not_repeated_at_once() {
    let scene = Scene::new("lock");
    *scene.driver.refuse_lock.borrow_mut() = Some(12);
    let mut freezer = scene.freezer();
    let report = scene.keep(&mut freezer, true);
    assert!(report.state == LimitPhase::Refused && report.reason.contains("CUDA error 600"), "{}", report.reason);
    assert!(scene.driver.all(State::Running), "the one that was locked is unlocked");
    *scene.driver.refuse_lock.borrow_mut() = None;
    assert_eq!(scene.keep(&mut freezer, true).state, LimitPhase::Refused);
    assert!(scene.driver.all(State::Running));
}

#[test]
fn a_checkpoint_that_fails_is_undone_for_all() {
    let scene = Scene::new("checkpoint");
    *scene.driver.refuse_checkpoint.borrow_mut() = Some(12);
    assert_eq!(scene.keep(&mut scene.freezer(), true).state, LimitPhase::Refused);
    assert!(scene.driver.all(State::Running), "the first was restored, the second unlocked");
}

#[test]
fn case_29_a_mig_slice_is_refused() {
    let scene = Scene::new("mig");
    scene.uses(Some(8), Some(MigInstance { gpu_instance: 1 }));
    let report = scene.keep(&mut scene.freezer(), true);
    assert!(report.state == LimitPhase::Refused && report.reason.starts_with("MIG"), "{}", report.reason);
}

#[test]
fn case_30_an_agent_that_starts_anew_owns_and_resumes_what_the_last_one_froze() {
    let scene = Scene::new("restart");
    scene.keep(&mut scene.freezer(), true);
    assert!(scene.driver.all(State::Checkpointed));
    scene.uses(None, None);
    let mut next = scene.freezer();
    assert_eq!(scene.keep(&mut next, true).state, LimitPhase::Frozen);
    assert_eq!(scene.keep(&mut scene.freezer(), false).state, LimitPhase::Cleared, "and one that finds it unwanted");
    assert!(scene.driver.all(State::Running));
}

#[test]
fn a_restore_without_room_stays_pending_and_says_so_and_nothing_is_ever_cleared_early() {
    let scene = Scene::new("room");
    let mut freezer = scene.freezer();
    scene.keep(&mut freezer, true);
    *scene.driver.refuse_restore.borrow_mut() = true;
    let report = scene.keep(&mut freezer, false);
    assert!(report.state == LimitPhase::Pending && report.reason.contains("needs 8 GiB"), "{}", report.reason);
    assert!(scene.driver.all(State::Checkpointed));
}

#[test]
fn a_deleted_object_resumes_everything() {
    let scene = Scene::new("deleted");
    let mut freezer = scene.freezer();
    scene.keep(&mut freezer, true);
    scene.shared.order(None);
    let order = scene.shared.orders(Part::Freezes, BOOT, jiff::Timestamp::now());
    freezer.keep(&order, &scene.shared);
    assert!(scene.driver.all(State::Running));
}

#[test]
fn a_driver_that_comes_after_the_agent_is_found_and_nothing_recorded_is_forgotten_until_then() {
    let scene = Scene::new("late");
    scene.keep(&mut scene.freezer(), true);
    scene.uses(None, None);
    let begun = Instant::now();
    for is_wanted in [true, false] {
        let mut late = Freezer::new(Leaves::new(&scene.root), Err("no driver".to_owned()));
        let report = scene.keep(&mut late, is_wanted);
        let waits = if is_wanted { LimitPhase::Unsupported } else { LimitPhase::Pending };
        assert_eq!((report.state, report.reason.contains("no driver")), (waits, true), "{}", report.reason);
        assert!(!report.cgroup.is_empty(), "it stays recorded");
        assert!(scene.driver.all(State::Checkpointed));
        assert!(!late.reopen(begun, || Ok(&scene.driver)), "not at every look");
        assert!(!late.reopen(begun + 2 * REOPEN, || Err("no driver".to_owned())));
        assert!(!late.reopen(begun + 2 * REOPEN, || Ok(&scene.driver)), "nor right after one in vain");
        assert!(late.reopen(begun + 4 * REOPEN, || Ok(&scene.driver)));
        let found = if is_wanted { LimitPhase::Frozen } else { LimitPhase::Cleared };
        assert_eq!(scene.keep(&mut late, is_wanted).state, found);
    }
    assert!(scene.driver.all(State::Running));
    fs::remove_dir_all(scene.leaf()).unwrap();
    let mut late: Freezer<&Driver> = Freezer::new(Leaves::new(&scene.root), Err("no driver".to_owned()));
    assert_eq!(scene.keep(&mut late, false).state, LimitPhase::Cleared, "its container has ended");
}

//! What the keeper does with a driver that misbehaves in ways the simulated one does not.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;

use super::*;

const POD: &str = "00000000-0000-4000-8000-000000000000";

/// A driver that holds one cgroup.
#[derive(Default)]
struct Fake {
    simulated: bool,
    limit: RefCell<Option<Bytes>>,
    fails: RefCell<Option<Failure>>,
}

impl Backend for &Fake {
    fn name(&self) -> String {
        "fake".to_owned()
    }
    fn is_simulated(&self) -> bool {
        self.simulated
    }
    fn get(&mut self, _: &DeviceUuid, _: &Path) -> Result<Held, Failure> {
        Ok(Held { limit: *self.limit.borrow(), used: Bytes::gib(1) })
    }
    fn set(&mut self, _: &DeviceUuid, _: &Path, limit: Option<Bytes>) -> Result<(), Failure> {
        if let Some(failure) = *self.fails.borrow() {
            return Err(failure);
        }
        *self.limit.borrow_mut() = limit;
        Ok(())
    }
}

struct Scene {
    root: PathBuf,
    container: String,
}

impl Scene {
    fn new(name: &str, hierarchy: &str) -> Self {
        let root = std::env::temp_dir().join(format!("gpumem-keeper-{name}-{}", std::process::id()));
        let container = "cd".repeat(32);
        fs::create_dir_all(root.join(hierarchy).join(format!("kubepods/pod{POD}/{container}"))).unwrap();
        if hierarchy.is_empty() {
            fs::write(root.join("cgroup.controllers"), "dmem\n").unwrap();
        }
        Self { root, container }
    }

    fn order(&self, wanted: bool, recorded: bool) -> Order {
        let entry = serde_json::json!({
            "podUID": POD, "namespace": "n", "pod": "p", "containerID": self.container, "device": "GPU-1",
            "bytes": 4_u64 << 30, "policy": "n/p", "expires": "2999-01-01T00:00:00Z",
        });
        let status = serde_json::json!({
            "podUID": POD, "containerID": self.container, "device": "GPU-1", "backend": "fake", "state": "Applied",
            "applied": 4_u64 << 30, "reason": "", "cgroup": format!("kubepods/pod{POD}/{}", self.container), "bootId": "b",
        });
        let list = |present: bool, value| if present { vec![value] } else { Vec::new() };
        Order {
            wanted: list(wanted, entry).into_iter().map(|entry| serde_json::from_value(entry).unwrap()).collect(),
            ledger: list(recorded, status).into_iter().map(|status| serde_json::from_value(status).unwrap()).collect(),
        }
    }

    fn keep(&self, fake: &Fake, wanted: bool, recorded: bool) -> LimitReport {
        let mut keeper = Keeper::new(Leaves::new(&self.root));
        keeper.keep(Some(&mut &*fake), &self.order(wanted, recorded), &[]).reports.remove(0)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

#[test]
fn cgroup_v1_is_unsupported_on_a_real_driver_and_taken_by_the_simulated_one() {
    let scene = Scene::new("v1", "memory");
    let report = scene.keep(&Fake::default(), true, false);
    assert_eq!(report.state, LimitPhase::Unsupported);
    assert!(report.reason.starts_with("cgroup v1"), "{}", report.reason);
    let simulated = Fake { simulated: true, ..Fake::default() };
    assert_eq!(scene.keep(&simulated, true, false).state, LimitPhase::Pending);
}

#[test]
fn what_only_root_may_is_said_so() {
    let scene = Scene::new("root", "");
    let fake = Fake::default();
    *fake.fails.borrow_mut() = Some(Failure::NoPermission);
    let report = scene.keep(&fake, true, true);
    assert!(report.state == LimitPhase::Unsupported && report.reason.contains("uid 0"), "{}", report.reason);
}

#[test]
fn without_a_driver_what_is_recorded_stays_recorded() {
    let scene = Scene::new("gone", "");
    let mut keeper = Keeper::new(Leaves::new(&scene.root));
    keeper.unsupported = Some("driver 580 has no memory limits: they came with driver 615".to_owned());
    let report = keeper.keep(None, &scene.order(true, true), &[]).reports.remove(0);
    assert!(report.state == LimitPhase::Unsupported && report.reason.contains("615"), "{}", report.reason);
    assert!(!report.cgroup.is_empty());
    let report = keeper.keep(None, &scene.order(false, true), &[]).reports.remove(0);
    assert_eq!((report.state, report.applied), (LimitPhase::Pending, Some(Bytes::gib(4))), "never cleared unseen");
}

#[test]
fn a_limit_that_somebody_changed_after_us_is_left_alone_when_ours_ends() {
    let scene = Scene::new("changed", "");
    let fake = Fake::default();
    let mut keeper = Keeper::new(Leaves::new(&scene.root));
    let mut keep = |wanted| keeper.keep(Some(&mut &fake), &scene.order(wanted, true), &[]).reports.remove(0);
    assert_eq!(keep(true).state, LimitPhase::Applied);
    *fake.limit.borrow_mut() = Some(Bytes::gib(3));
    let report = keep(false);
    assert_eq!(report.state, LimitPhase::Cleared);
    assert_eq!(*fake.limit.borrow(), Some(Bytes::gib(3)), "{}", report.reason);
}

#[test]
fn a_recorded_path_that_leads_out_of_the_mount_is_not_followed() {
    let leaves = Leaves::new(&std::env::temp_dir());
    for path in ["../etc", "/etc", "", "a/../../etc"] {
        assert_eq!(leaves.of_record(path), None, "{path}");
    }
}

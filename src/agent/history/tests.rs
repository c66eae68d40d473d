use std::collections::BTreeMap;

use gpumem_engine::identity::{ContainerKey, Pid};
use gpumem_engine::sample::{DeviceMemory, DeviceSample};
use gpumem_engine::usage::Attribution;

use super::*;
use crate::api::usage::PodReport;

/// A node with one device; a moment is one second.
struct Bench {
    history: History,
    pods: Pods,
    hooks: Vec<HookView>,
    now: u64,
    model: &'static str,
}

impl Bench {
    fn new() -> Self {
        Self { history: History::new(), pods: Pods::default(), hooks: Vec::new(), now: 0, model: "NVIDIA H200" }
    }

    /// One cycle in which these containers (pod, container id, GiB) hold memory.
    fn cycle(&mut self, holding: &[(&str, &str, u64)]) -> Vec<ContainerView> {
        self.now += 1;
        let at = Moment::from_secs(self.now);
        let containers = holding
            .iter()
            .enumerate()
            .map(|(place, (pod, container, gib))| ContainerUsage {
                container: ContainerKey { pod: (*pod).into(), container: (*container).into() },
                used: Some(Bytes::gib(*gib)),
                processes: vec![(Pid(place as u32), StartTime(place as u64))],
            })
            .collect();
        let key = DeviceKey::whole("GPU-0");
        let memory = DeviceMemory { total: Bytes::gib(140), used: Bytes::ZERO, free: Bytes::ZERO, reserved: None };
        let sample = RawSample {
            at,
            devices: vec![DeviceSample {
                device: key.clone(),
                index: 0,
                model: self.model.to_owned(),
                memory: Reading::Value(memory),
                processes: Reading::Value(Vec::new()),
            }],
        };
        let device = DeviceUsage {
            device: key,
            index: 0,
            model: self.model.to_owned(),
            memory: Some(memory),
            containers,
            unattributed: Some(Bytes::ZERO),
            attribution: Attribution::Complete,
        };
        let mut views = self.history.record(&sample, Usage { at, devices: vec![device] }, &self.pods, &self.hooks);
        views.remove(0).containers
    }

    fn name(&mut self, uid: &str, name: &str, containers: &[(&str, &str)]) {
        self.pods.apply(Pod {
            report: PodReport {
                uid: uid.into(),
                namespace: "team".to_owned(),
                name: name.to_owned(),
                labels: BTreeMap::new(),
                annotations: BTreeMap::new(),
                owner: None,
                terminating: false,
                ends: Vec::new(),
            },
            namespace: "team".into(),
            name: name.into(),
            config_hash: None,
            asks: Vec::new(),
            is_over: false,
            containers: containers.iter().map(|(id, name)| (ContainerId::from(*id), Arc::from(*name))).collect(),
        });
    }

    /// What a reader at a cursor gets: container, whether it is the whole state, and the moments in seconds.
    fn news(&self, since: Option<Cursor>) -> Vec<(String, bool, Vec<u64>)> {
        let seconds = |points: &mut dyn Iterator<Item = Point>| points.map(|point| point.at.0 / 1000).collect();
        self.history
            .changes(since)
            .map(|(_, entry, change)| {
                let name = entry.name.as_deref().unwrap_or_default().to_owned();
                match change {
                    Change::Points(_, points) => (name, false, seconds(&mut points.into_iter())),
                    Change::State(series) => (name, true, seconds(&mut series.points_since(None))),
                }
            })
            .collect()
    }
}

#[test]
fn a_reader_gets_exactly_what_came_after_its_cursor() {
    let mut bench = Bench::new();
    bench.name("u", "train", &[("c", "main")]);
    for _ in 0..3 {
        bench.cycle(&[("u", "c", 1)]);
    }
    let cursor = bench.history.cursor();
    assert_eq!(bench.news(Some(cursor)), [], "nothing new");
    bench.cycle(&[("u", "c", 1)]);
    bench.cycle(&[("u", "c", 1)]);
    assert_eq!(bench.news(Some(cursor)), [("main".to_owned(), false, vec![4, 5])]);
    assert_eq!(bench.news(None), [("main".to_owned(), true, vec![1, 2, 3, 4, 5])]);
}

#[test]
fn a_cursor_of_another_run_of_the_future_or_too_old_gets_the_state() {
    let mut bench = Bench::new();
    bench.name("u", "train", &[("c", "main")]);
    bench.cycle(&[("u", "c", 1)]);
    let first = bench.history.cursor();
    let is_state = |bench: &Bench, cursor| bench.news(Some(cursor)).iter().all(|(_, is_state, _)| *is_state);
    assert!(is_state(&bench, Cursor { epoch: first.epoch ^ 1, seq: first.seq }));
    assert!(is_state(&bench, Cursor { epoch: first.epoch, seq: first.seq + 1 }));
    assert!(is_state(&bench, Cursor { epoch: first.epoch, seq: 0 }), "before the first cycle");
    for _ in 1..RAW_POINTS {
        bench.cycle(&[("u", "c", 1)]);
    }
    let expected: Vec<u64> = (2..=RAW_POINTS as u64).collect();
    assert_eq!(bench.news(Some(first)), [("main".to_owned(), false, expected)], "the last that still works");
    bench.cycle(&[("u", "c", 1)]);
    assert!(is_state(&bench, first));
}

#[test]
fn what_the_api_says_of_a_pod_after_its_end_is_told_once() {
    let mut bench = Bench::new();
    bench.name("u", "train", &[("c", "main")]);
    bench.cycle(&[("u", "c", 1)]);
    bench.cycle(&[]);
    let changed = |bench: &Bench, cursor| bench.history.changed_pods(cursor).count();
    let after = bench.history.cursor();
    assert_eq!(changed(&bench, Some(after)), 0);
    // The kubelet writes the end down some time later.
    bench.name("u", "train", &[("c", "main")]);
    bench.cycle(&[]);
    assert_eq!((changed(&bench, Some(after)), changed(&bench, Some(bench.history.cursor()))), (1, 0));
    assert_eq!(changed(&bench, None), 1, "a new reader hears of it too");
}

#[test]
fn a_container_that_ended_is_told_once_more_and_then_not_again() {
    let mut bench = Bench::new();
    bench.name("u", "train", &[("c", "main")]);
    let before = bench.history.cursor();
    bench.cycle(&[("u", "c", 1)]);
    let during = bench.history.cursor();
    assert!(bench.cycle(&[]).is_empty(), "no view without a process");
    assert_eq!(bench.news(Some(during)), []);
    assert_eq!(bench.news(Some(before)).len(), 1);
}

#[test]
fn a_restarted_container_goes_on_in_its_series_as_a_new_segment() {
    let mut bench = Bench::new();
    bench.name("u", "train", &[("one", "main")]);
    bench.cycle(&[("u", "one", 9)]);
    let segment = |bench: &Bench| bench.history.devices[0].entries[0].series.segment();
    let first = segment(&bench);
    bench.name("u", "train", &[("two", "main")]);
    let views = bench.cycle(&[("u", "two", 1)]);
    assert_eq!(bench.history.devices[0].entries.len(), 1);
    assert_ne!(segment(&bench), first);
    assert_eq!(views[0].peak, Bytes::gib(1), "the peak is the instance's");
}

#[test]
fn the_segment_is_the_same_in_every_run_of_the_agent_and_differs_between_slices() {
    let (one, other) = (ContainerId::from("one"), ContainerId::from("other"));
    assert_eq!(segment(&one, "MIG 3g.71gb"), Segment(0xf25e_80d2_e844_7f09), "stored by readers: it must not change");
    assert_ne!(segment(&one, "MIG 3g.71gb"), segment(&other, "MIG 3g.71gb"));
    assert_ne!(segment(&one, "MIG 3g.71gb"), segment(&one, "MIG 1g.18gb"), "cut anew under the same id");
}

#[test]
fn two_instances_of_one_container_are_one_series_and_the_younger_is_current() {
    let mut bench = Bench::new();
    bench.name("u", "train", &[("old", "main"), ("new", "main")]);
    let views = bench.cycle(&[("u", "old", 2), ("u", "new", 3)]);
    assert_eq!(views.len(), 1);
    assert_eq!(views[0].used, Bytes::gib(5));
    assert_eq!(bench.history.devices[0].entries[0].instance.as_str(), "new");
}

#[test]
fn a_nameless_container_is_shown_by_ids_and_reported_whole_once_it_is_named() {
    let mut bench = Bench::new();
    let id = "0123456789abcdef";
    let views = bench.cycle(&[("u", id, 1)]);
    assert_eq!((&*views[0].namespace, &*views[0].pod, &*views[0].container), ("", "u", "0123456789ab"));
    assert_eq!(bench.news(None), [], "of no use to any reader yet");
    bench.cycle(&[("u", id, 1)]);
    let cursor = bench.history.cursor();
    bench.name("u", "train", &[(id, "main")]);
    let views = bench.cycle(&[("u", id, 1)]);
    assert_eq!((&*views[0].namespace, &*views[0].pod, &*views[0].container), ("team", "train", "main"));
    assert_eq!(bench.news(Some(cursor)), [("main".to_owned(), false, vec![1, 2, 3])]);
    bench.cycle(&[("u", id, 1)]);
    let cursor = Cursor { seq: cursor.seq + 1, ..cursor };
    assert_eq!(bench.news(Some(cursor)), [("main".to_owned(), false, vec![4])], "and as usual from then on");
}

#[test]
fn a_name_that_comes_late_joins_the_series_of_the_earlier_instance() {
    let mut bench = Bench::new();
    bench.name("u", "train", &[("one", "main")]);
    bench.cycle(&[("u", "one", 9)]);
    bench.cycle(&[("u", "two", 1), ("u", "other", 1)]);
    assert_eq!(bench.history.devices[0].entries.len(), 3);
    let cursor = bench.history.cursor();
    bench.name("u", "train", &[("two", "main")]);
    let views = bench.cycle(&[("u", "two", 1), ("u", "other", 1)]);
    assert_eq!(bench.history.devices[0].entries.len(), 2);
    assert_eq!(views.iter().filter(|view| &*view.container == "main").count(), 1);
    let news = bench.news(Some(cursor));
    assert_eq!(news.len(), 1);
    assert_eq!(news[0].2, [2, 3], "the points of its nameless time went along");
    let instances = &bench.history.devices[0].by_instance;
    let place = instances[&ContainerId::from("other")];
    assert_eq!(bench.history.devices[0].entries[place].instance.as_str(), "other", "the index holds after the move");
}

#[test]
fn series_end_minutes_after_their_pod_and_stay_while_it_lives() {
    let mut bench = Bench::new();
    bench.name("u", "train", &[("c", "main")]);
    bench.cycle(&[("u", "c", 1)]);
    bench.now += 3600;
    for _ in 0..EXPIRE_EVERY {
        bench.cycle(&[]);
    }
    assert_eq!(bench.news(None).len(), 1, "an hour without memory in a pod that lives");
    bench.pods.remove(&"u".into());
    for _ in 0..EXPIRE_EVERY {
        bench.cycle(&[]);
    }
    assert_eq!(bench.news(None), []);
    assert!(bench.history.devices.is_empty());
}

#[test]
fn there_is_an_end_to_the_number_of_series() {
    let mut bench = Bench::new();
    let ids: Vec<String> = (0..=MAX_SERIES).map(|number| format!("container-{number}")).collect();
    let holding: Vec<_> = ids.iter().map(|id| ("u", id.as_str(), 1)).collect();
    assert_eq!(bench.cycle(&holding).len(), MAX_SERIES);
    assert_eq!(bench.history.refused(), 1);
}

#[test]
fn withheld_values_leave_a_gap() {
    let mut bench = Bench::new();
    bench.name("u", "train", &[("c", "main")]);
    bench.cycle(&[("u", "c", 1)]);
    let usage = ContainerUsage {
        container: ContainerKey { pod: "u".into(), container: "c".into() },
        used: None,
        processes: Vec::new(),
    };
    let device = DeviceUsage {
        device: DeviceKey::whole("GPU-0"),
        index: 0,
        model: String::new(),
        memory: None,
        containers: vec![usage],
        unattributed: None,
        attribution: Attribution::Partial,
    };
    assert!(bench.history.record_device(&device, Moment::from_secs(2), &bench.pods, &[]).is_empty());
    assert_eq!(bench.news(None)[0].2, [1]);
}

#[test]
fn what_a_hook_tells_is_kept_only_where_it_speaks_for_all_processes_and_the_driver_bears_it_out() {
    let gib = |count: u64| Some(Bytes::gib(count));
    let figures = |allocated, reserved, hooked| Figures { allocated, reserved, ooms: 0, hooked, processes: 2 };
    for (told, kept) in [
        (figures(gib(3), gib(9), 2), Some((3, 9))),
        (figures(gib(3), gib(9), 1), None),
        (figures(None, gib(9), 2), None),
        (figures(gib(3), None, 2), None),
        (figures(gib(9), gib(3), 2), None),
        (figures(gib(3), gib(11), 2), None),
    ] {
        let mut bench = Bench::new();
        bench.name("u", "train", &[("c", "main")]);
        let pod = bench.pods.find(&ContainerKey { pod: "u".into(), container: "c".into() });
        let pod = pod.expect("it was named").pod;
        let device = DeviceKey::whole("GPU-0");
        let container_id = "c".into();
        bench.hooks =
            vec![HookView { device, index: 0, pod, container: "main".into(), container_id, figures: told.clone() }];
        bench.cycle(&[("u", "c", 10)]);
        let (_, _, change) = bench.history.changes(None).next().expect("the series");
        let Change::State(series) = change else { panic!("the whole state") };
        let point = series.points_since(None).next().expect("its point");
        let seen = point.allocator.map(|AllocatorPoint { allocated, reserved }| (allocated, reserved));
        assert_eq!(seen, kept.map(|(one, other)| (Bytes::gib(one), Bytes::gib(other))), "{told:?}");
    }
}

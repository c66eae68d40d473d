//! What people see on `/metrics`, byte for byte.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::sync::Arc;

use gpumem::agent::exporter::Exporter;
use gpumem::agent::hook::Figures;
use gpumem::agent::hook::HookView;
use gpumem::agent::metrics::SelfMetrics;
use gpumem::agent::owners;
use gpumem::agent::pods::Pod;
use gpumem::agent::snapshot::{ContainerView, DeviceView, Snapshot};
use gpumem::api::usage::{NvmlState, PodReport};
use gpumem_engine::identity::{DeviceKey, MigInstance};
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::sample::{DeviceMemory, QueryFailure};
use gpumem_engine::usage::{Attribution, AttributionGap};
use tokio::sync::watch;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/agent_metrics.txt");

fn device(index: u32, uuid: &str, mig: Option<u32>) -> DeviceView {
    DeviceView {
        key: DeviceKey { gpu: uuid.into(), mig: mig.map(|gpu_instance| MigInstance { gpu_instance }) },
        index,
        model: "NVIDIA H200".to_owned(),
        at: Moment::from_secs(10),
        failure: None,
        memory: Some(DeviceMemory {
            total: Bytes::gib(140),
            used: Bytes::gib(51),
            free: Bytes::gib(88),
            reserved: Some(Bytes::gib(1)),
        }),
        unattributed: Some(Bytes::gib(1)),
        attribution: Attribution::Complete,
        containers: Vec::new(),
    }
}

fn container(namespace: &str, pod: &str, container: &str, gib: u64) -> ContainerView {
    ContainerView {
        namespace: namespace.into(),
        pod: pod.into(),
        container: container.into(),
        used: Bytes::gib(gib),
        peak: Bytes::gib(gib + 1),
    }
}

/// What a hooked container of GPU-0 says; TensorFlow does not say what it holds.
fn hook(pod: &str, container: &str, allocated: Option<u64>, reserved: Option<u64>) -> HookView {
    let report = PodReport {
        uid: pod.into(),
        namespace: "team".to_owned(),
        name: pod.to_owned(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        owner: None,
        terminating: false,
        ends: Vec::new(),
    };
    let (namespace, name) = ("team".into(), pod.into());
    HookView {
        device: DeviceKey::whole("GPU-0"),
        index: 0,
        pod: Arc::new(Pod {
            report,
            namespace,
            name,
            config_hash: None,
            containers: Vec::new(),
            asks: Vec::new(),
            is_over: false,
        }),
        container: container.into(),
        container_id: "id".into(),
        figures: Figures {
            allocated: allocated.map(Bytes::gib),
            reserved: reserved.map(Bytes::gib),
            ooms: 0,
            hooked: 1,
            processes: 1,
        },
    }
}

fn render(snapshot: Snapshot, metrics: &SelfMetrics) -> String {
    let (_sender, receiver) = watch::channel(Arc::new(snapshot));
    let exporter = Exporter::new("node-a".to_owned(), receiver, metrics, || Moment(12_500)).unwrap();
    String::from_utf8(exporter.render().unwrap()).unwrap()
}

#[test]
fn the_metrics_of_a_busy_node_read_as_in_the_golden_file() {
    let mut shared = device(0, "GPU-0", None);
    // A label value may hold anything; the text must survive it.
    shared.containers =
        vec![container("team", "train-0", "main", 40), container("", "uid", "id \"quoted\" \\ \n ümlaut", 10)];
    let mut lost = device(1, "GPU-1", None);
    (lost.failure, lost.memory, lost.unattributed) = (Some(QueryFailure::DeviceLost), None, None);
    lost.attribution = Attribution::Unavailable(AttributionGap::Query(QueryFailure::DeviceLost));
    let mut slice = device(2, "GPU-2", Some(5));
    slice.model = "NVIDIA H200 MIG 3g.71gb".to_owned();
    slice.memory = slice.memory.map(|memory| DeviceMemory { reserved: None, ..memory });
    slice.containers = vec![container("team", "infer", "server", 50)];
    let snapshot = Snapshot {
        seq: 7,
        at: Some(Moment::from_secs(10)),
        nvml: NvmlState::Up { driver: "580.159".to_owned() },
        reason: "",
        simulated: false,
        devices: vec![shared, lost, slice],
        limits: Vec::new(),
        hooks: vec![hook("train-0", "main", Some(20), Some(32)), hook("tf", "main", Some(8), None)],
    };
    let metrics = SelfMetrics::new().unwrap();
    metrics.query_failed("memory", QueryFailure::DeviceLost);
    owners::Error::Malformed.count("cgroup", &metrics);
    metrics.pod_watch_up.set(1);
    let text = render(snapshot, &metrics);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(GOLDEN, &text).unwrap();
    }
    let golden = std::fs::read_to_string(GOLDEN).unwrap_or_default();
    assert!(text == golden, "not as in {GOLDEN}; if this is meant, run with UPDATE_GOLDEN=1\n{text}");
}

#[test]
fn a_node_whose_driver_is_absent_has_no_device_and_says_why() {
    let nvml = NvmlState::Absent { reason: "no NVML library".to_owned() };
    let snapshot = Snapshot { nvml, reason: "absent", ..Snapshot::starting() };
    let text = render(snapshot, &SelfMetrics::new().unwrap());
    assert!(text.contains("gpumem_agent_nvml_up{node=\"node-a\",reason=\"absent\"} 0\n"), "{text}");
    assert!(!text.contains("gpumem_device_"), "missing is never 0:\n{text}");
    assert!(!text.contains("gpumem_agent_sample_age_seconds"), "there is no sample yet");
}

/// Series in a text whose line has `part`.
fn series<'a>(text: &'a str, part: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter(move |line| !line.starts_with('#') && line.contains(part))
}

#[test]
fn a_thousand_pods_that_came_and_went_leave_nothing_and_series_stay_within_their_bounds() {
    let metrics = SelfMetrics::new().unwrap();
    let (sender, receiver) = watch::channel(Arc::new(Snapshot::starting()));
    let exporter = Exporter::new("node-a".to_owned(), receiver, &metrics, || Moment(12_500)).unwrap();
    let scrape = |devices| {
        let nvml = NvmlState::Up { driver: "580.159".to_owned() };
        let snapshot = Snapshot { nvml, at: Some(Moment::from_secs(10)), devices, ..Snapshot::starting() };
        sender.send_replace(Arc::new(snapshot));
        String::from_utf8(exporter.render().unwrap()).unwrap()
    };
    for round in 0..250_u64 {
        let mut shared = device(0, "GPU-0", None);
        shared.containers = (0..4).map(|pod| container("team", &format!("pod-{round}-{pod}"), "main", 10)).collect();
        let text = scrape(vec![shared, device(1, "GPU-1", None)]);
        for pod in 0..4 {
            // The controller adds eight: growth, risk, and three each of probability and time to OOM.
            let count = series(&text, &format!("pod=\"pod-{round}-{pod}\"")).count();
            assert!((2..=5).contains(&count), "{count} of a container on a GPU:\n{text}");
        }
        let gone = format!("pod=\"pod-{}-", round.wrapping_sub(1));
        assert_eq!(series(&text, &gone).count(), 0, "a series outlives its pod:\n{text}");
        // What churn brings: processes that end while they are looked at.
        owners::Error::Gone.count("cgroup", &metrics);
        owners::Error::Malformed.count("stat", &metrics);
        metrics.query_failed("running_processes", QueryFailure::DeviceLost);
    }
    let text = scrape(vec![device(0, "GPU-0", None)]);
    let idle = series(&text, "uuid=\"GPU-0\"").count();
    let own = series(&text, "gpumem_agent_").chain(series(&text, "gpumem_simulated")).count();
    assert!(idle <= 8, "{idle} of an idle GPU:\n{text}");
    assert!(own <= 60, "{own} of the agent itself:\n{text}");
    assert_eq!(series(&text, "").count(), idle + own, "series that nobody counts:\n{text}");
}

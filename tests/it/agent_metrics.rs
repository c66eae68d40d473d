//! What people see on `/metrics`, byte for byte.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use gpumem::agent::exporter::{Exporter, SelfMetrics};
use gpumem::agent::owners;
use gpumem::agent::snapshot::{ContainerView, DeviceView, Snapshot};
use gpumem::api::usage::NvmlState;
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
        hooks: Vec::new(),
    };
    let metrics = SelfMetrics::new().unwrap();
    metrics.query_failed("memory", QueryFailure::DeviceLost);
    metrics.proc_failed("cgroup", owners::Error::Malformed);
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

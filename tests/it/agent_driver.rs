//! The agent and a driver that fails: other devices go on, nothing looks idle, and it comes back by itself.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use gpumem_sim::protocol::Fault;

use crate::support::{GIB, Metrics, Node, api::pod, cgroup, container_id, uid};

const USED: &str = "gpumem_container_memory_used_bytes";
const DEVICE_USED: &str = "gpumem_device_memory_used_bytes";
const TOTAL: &str = "gpumem_device_memory_total_bytes";
const DEVICE_UP: &str = "gpumem_device_up";
const NVML_UP: &str = "gpumem_agent_nvml_up";

fn of(name: &str) -> String {
    cgroup(&uid(name), &container_id(&format!("{name}/main")))
}

fn is_up(metrics: &Metrics, gpu: u32) -> Option<bool> {
    metrics.value(DEVICE_UP, &[&format!("gpu=\"{gpu}\"")]).map(|up| up == 1.0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t5_t24_each_mig_slice_is_a_device_and_their_parent_is_none() {
    let node = Node::with("A100:1,mig=3g.40gb+-+2g.20gb").await;
    node.api.apply(pod("train", &["main"]));
    let _process = node.process("0.0", 3 * GIB, &of("train"));
    let agent = node.agent().start().await;
    let metrics = agent.metrics_when("named", |metrics| metrics.values(USED, &["pod=\"train\""]).len() == 1).await;
    assert_eq!(metrics.values(TOTAL, &["gpu_instance_id=\"\""]), [] as [f64; 0], "the parent would count them twice");
    assert_eq!(metrics.values(TOTAL, &["gpu=\"0\""]).len(), 2, "{}", metrics.0);
    assert_eq!(metrics.values(USED, &["gpu_instance_id=\"\""]), [] as [f64; 0]);
    assert_eq!(metrics.value("gpumem_device_info", &["model=\"NVIDIA A100-SXM4-80GB MIG 3g.40gb\""]), Some(1.0));
    node.fault(None, Fault::NoPermission);
    let metrics = agent.metrics_when("refused", |metrics| metrics.value(NVML_UP, &[]) == Some(0.0)).await;
    assert!(metrics.values(USED, &[]).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t6_slices_cut_anew_replace_the_old_ones_within_a_reconnection() {
    let mut node = Node::with("A100:1,mig=3g.40gb").await;
    let agent = node.agent().start().await;
    agent.metrics_when("one slice", |metrics| metrics.0.contains("MIG 3g.40gb")).await;
    node.restart_driver("A100:1,mig=2g.20gb+1g.10gb");
    let metrics = agent.metrics_when("two slices", |metrics| metrics.values(TOTAL, &[]).len() == 2).await;
    assert!(!metrics.0.contains("3g.40gb"));
    assert!(metrics.0.contains("2g.20gb") && metrics.0.contains("1g.10gb"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t11_a_list_that_grows_between_two_calls_is_read_whole() {
    let node = Node::with("H200:1").await;
    node.api.apply(pod("train", &["main"]));
    let _process = node.process("0", GIB, &of("train"));
    node.fault(None, Fault::Growing);
    let agent = node.agent().start().await;
    agent.metrics_when("named", |metrics| metrics.value(USED, &["pod=\"train\""]) == Some(GIB as f64)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t14_an_old_driver_gives_used_with_reserved_and_an_integrated_gpu_gives_processes_only() {
    let node = Node::with("H200:1").await;
    node.api.apply(pod("train", &["main"]));
    let _process = node.process("0", GIB, &of("train"));
    node.fault(None, Fault::MemoryV2Missing);
    let agent = node.agent().start().await;
    let metrics = agent.metrics_when("used", |metrics| metrics.values(USED, &["pod=\"train\""]).len() == 1).await;
    assert!(metrics.values("gpumem_device_memory_reserved_bytes", &[]).is_empty(), "unknown is absent");
    let used = metrics.value(DEVICE_USED, &[]);
    assert!(used > Some(GIB as f64), "the driver's own share is in it: {used:?}");
    node.clear_faults();
    node.fault(None, Fault::MemoryNotSupported);
    let metrics = agent.metrics_when("no counters", |metrics| metrics.values(TOTAL, &[]).is_empty()).await;
    assert_eq!(metrics.value(USED, &["pod=\"train\""]), Some(GIB as f64), "processes are known all the same");
    assert_eq!(is_up(&metrics, 0), Some(true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t15_a_lost_gpu_is_shown_as_lost_and_the_others_go_on() {
    let node = Node::with("H200:2").await;
    node.api.apply(pod("a", &["main"]));
    node.api.apply(pod("b", &["main"]));
    let _processes = [node.process("0", GIB, &of("a")), node.process("1", 2 * GIB, &of("b"))];
    let agent = node.agent().start().await;
    agent.metrics_when("both", |metrics| metrics.values(USED, &["namespace=\"team\""]).len() == 2).await;
    node.fault(Some(1), Fault::Lost);
    let metrics = agent.metrics_when("lost", |metrics| is_up(metrics, 1) == Some(false)).await;
    assert_eq!(is_up(&metrics, 0), Some(true));
    assert_eq!(metrics.value(USED, &["pod=\"a\""]), Some(GIB as f64));
    assert!(metrics.values(USED, &["pod=\"b\""]).is_empty(), "the last good value is not replayed");
    assert!(metrics.values(DEVICE_USED, &["gpu=\"1\""]).is_empty());
    assert!(metrics.value("gpumem_agent_query_failures_total", &["kind=\"device_lost\""]) > Some(0.0));
    assert_eq!(metrics.value(NVML_UP, &[]), Some(1.0));
    assert_eq!(agent.get("/readyz").await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t16_a_replaced_driver_is_opened_again() {
    let node = Node::with("H200:2").await;
    node.api.apply(pod("a", &["main"]));
    let _process = node.process("0", GIB, &of("a"));
    let agent = node.agent().start().await;
    agent.metrics_when("up", |metrics| metrics.values(USED, &["pod=\"a\""]).len() == 1).await;
    node.fault(None, Fault::LibMismatch);
    let metrics = agent.metrics_when("down", |metrics| metrics.value(NVML_UP, &[]) == Some(0.0)).await;
    assert_eq!((is_up(&metrics, 0), is_up(&metrics, 1)), (Some(false), Some(false)), "known devices stay, as down");
    assert!(metrics.values(USED, &[]).is_empty());
    assert_eq!(agent.get("/readyz").await.0, 503);
    let (status, health) = agent.get("/healthz").await;
    assert!(status == 200 && health.starts_with("degraded: "), "{health}");
    node.clear_faults();
    agent.metrics_when("up again", |metrics| metrics.values(USED, &["pod=\"a\""]).len() == 1).await;
    assert_eq!(agent.get("/healthz").await, (200, "ok\n".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t16_a_driver_that_restarts_is_found_again() {
    let mut node = Node::with("H200:1").await;
    let agent = node.agent().start().await;
    agent.metrics_when("up", |metrics| is_up(metrics, 0) == Some(true)).await;
    node.stop_driver();
    agent.metrics_when("down", |metrics| is_up(metrics, 0) == Some(false)).await;
    node.start_driver();
    agent.metrics_when("up again", |metrics| is_up(metrics, 0) == Some(true)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t17_a_hung_call_stops_neither_the_scrape_nor_the_exit() {
    let node = Node::with("H200:2").await;
    node.api.apply(pod("a", &["main"]));
    node.api.apply(pod("b", &["main"]));
    let _processes = [node.process("0", GIB, &of("a")), node.process("1", GIB, &of("b"))];
    let agent = node.agent().start().await;
    agent.metrics_when("both", |metrics| metrics.values(USED, &["namespace=\"team\""]).len() == 2).await;
    node.fault(Some(1), Fault::Hung);
    let scrape = tokio::time::timeout(Duration::from_secs(1), agent.metrics());
    scrape.await.expect("a scrape answers while a call hangs");
    let metrics = agent.metrics_when("hung", |metrics| is_up(metrics, 1) == Some(false)).await;
    assert_eq!(metrics.value("gpumem_device_attribution_complete", &["gpu=\"1\"", "reason=\"hung\""]), Some(0.0));
    assert_eq!(metrics.value(USED, &["pod=\"a\""]), Some(GIB as f64), "shown with its age");
    assert!(metrics.values(USED, &["pod=\"b\""]).is_empty());
    assert!(metrics.value("gpumem_agent_sample_age_seconds", &[]) > Some(2.0));
    let (status, health) = agent.get("/healthz").await;
    assert!(status == 200 && health.contains("GPU 1 has not returned"), "{health}");
    let (status, took) = agent.terminate();
    assert!(status.success() && took < Duration::from_secs(5), "{status} after {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t17_a_call_that_returns_after_all_brings_everything_back() {
    let node = Node::with("H200:1").await;
    let agent = node.agent().start().await;
    agent.metrics_when("up", |metrics| is_up(metrics, 0) == Some(true)).await;
    node.fault(Some(0), Fault::Hung);
    agent.metrics_when("hung", |metrics| is_up(metrics, 0) == Some(false)).await;
    node.clear_faults();
    agent.metrics_when("up again", |metrics| is_up(metrics, 0) == Some(true)).await;
    assert_eq!(agent.get("/readyz").await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t23_access_lost_while_running_is_said_and_ends_the_agent_only_if_asked_to() {
    let node = Node::with("H200:1").await;
    let patient = node.agent().arg("--device-access", "RuntimeClass").start().await;
    let strict = node.agent().flag("--exit-on-refused-access").start().await;
    for agent in [&patient, &strict] {
        agent.metrics_when("up", |metrics| metrics.value(NVML_UP, &[]) == Some(1.0)).await;
    }
    node.fault(None, Fault::Unknown);
    let status = strict.wait();
    assert!(!status.success());
    patient.metrics_when("down", |metrics| metrics.value(NVML_UP, &[]) == Some(0.0)).await;
    let (status, reason) = patient.get("/readyz").await;
    assert!(status == 503 && reason.contains("set agent.deviceAccess to CDI"), "{reason}");
    node.clear_faults();
    patient.metrics_when("up again", |metrics| metrics.value(NVML_UP, &[]) == Some(1.0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_driver_is_ready_and_says_so() {
    let mut node = Node::with("H200:1").await;
    node.stop_driver();
    let agent = node.agent().start().await;
    agent.metrics_when("absent", |metrics| metrics.value(NVML_UP, &["reason=\"absent\""]) == Some(0.0)).await;
    assert_eq!(agent.get("/readyz").await.0, 200);
    assert!(agent.metrics().await.values(DEVICE_UP, &[]).is_empty());
    node.start_driver();
    agent.metrics_when("found later", |metrics| metrics.value(NVML_UP, &[]) == Some(1.0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loaded_kernel_driver_without_access_is_not_absence() {
    let mut node = Node::with("H200:1").await;
    node.stop_driver();
    std::fs::create_dir_all(node.proc().join("driver/nvidia")).unwrap();
    std::fs::write(node.proc().join("driver/nvidia/version"), "NVRM version: 580\n").unwrap();
    let agent = node.agent().start().await;
    agent.metrics_when("down", |metrics| metrics.value(NVML_UP, &["reason=\"driver_not_loaded\""]) == Some(0.0)).await;
    let (status, reason) = agent.get("/readyz").await;
    assert!(status == 503 && reason.contains("set agent.deviceAccess to RuntimeClass"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_library_is_reported_with_every_place_it_was_looked_for() {
    let node = Node::with("H200:1").await;
    std::fs::remove_file(node.library()).unwrap();
    let agent = node.agent().start().await;
    agent.metrics_when("absent", |metrics| metrics.value(NVML_UP, &[]) == Some(0.0)).await;
    let log = agent.log();
    let library = node.library().display().to_string();
    for place in [
        library.as_str(),
        "/run/nvidia/driver/usr/lib",
        "/home/kubernetes/bin/nvidia",
        "/usr/local/nvidia",
        "/usr/lib64",
    ] {
        assert!(log.contains(place), "{place} is not in\n{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_ends_the_agent_at_once() {
    let node = Node::with("H200:1").await;
    let agent = node.agent().start().await;
    agent.metrics_when("up", |metrics| is_up(metrics, 0) == Some(true)).await;
    let (status, took) = agent.terminate();
    assert!(status.success() && took < Duration::from_secs(2), "{status} after {took:?}");
}

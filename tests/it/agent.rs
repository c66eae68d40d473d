//! The agent against the simulated driver: whose memory is it, and under which name. Numbers T… are those of the notes on
//! monitoring.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use gpumem_sim::protocol::Fault;

use crate::support::{Api, GIB, Node, api::pod, cgroup, container_id, eventually, uid};

const USED: &str = "gpumem_container_memory_used_bytes";
const UNATTRIBUTED: &str = "gpumem_device_memory_unattributed_bytes";
const DEVICE_USED: &str = "gpumem_device_memory_used_bytes";
const ATTRIBUTION: &str = "gpumem_device_attribution_complete";

/// The cgroup text of a container of a pod made by [`pod`].
fn of(name: &str, container: &str) -> String {
    cgroup(&uid(name), &container_id(&format!("{name}/{container}")))
}

fn gib(count: u64) -> f64 {
    (count * GIB) as f64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t1_three_processes_of_one_container_are_one_series() {
    let node = Node::with("H200:1").await;
    node.api.apply(pod("train", &["main"]));
    let _processes = [1, 2, 4].map(|size| node.process("0", size * GIB, &of("train", "main")));
    let agent = node.agent().start().await;
    let metrics =
        agent.metrics_when("7 GiB", |metrics| metrics.values(USED, &["namespace=\"team\""]) == [gib(7)]).await;
    let labels = [
        "node=\"node-a\"",
        "gpu=\"0\"",
        "uuid=\"GPU-",
        "gpu_instance_id=\"\"",
        "namespace=\"team\"",
        "pod=\"train\"",
        "container=\"main\"",
    ];
    assert_eq!(metrics.value(USED, &labels), Some(gib(7)), "{}", metrics.0);
    assert!(!metrics.0.contains("pid="));
    assert_eq!(metrics.value(UNATTRIBUTED, &[]), Some(0.0));
    assert_eq!(metrics.value("gpumem_simulated", &[]), Some(1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t2_t3_containers_that_share_a_gpu_are_split_and_the_rest_is_unattributed() {
    let node = Node::with("H200:1").await;
    node.api.apply(pod("a", &["main", "side"]));
    node.api.apply(pod("b", &["main"]));
    node.api.apply(pod("c", &["main"]));
    let _processes = [
        node.process("0", 10 * GIB, &of("a", "main")),
        node.process("0", 2 * GIB, &of("a", "side")),
        node.process("0", 3 * GIB, &of("b", "main")),
        node.process("0", 5 * GIB, "0::/system.slice/sshd.service\n"),
    ];
    let agent = node.agent().start().await;
    let metrics = agent
        .metrics_when("all", |metrics| {
            metrics.value(DEVICE_USED, &[]) == Some(gib(20))
                && metrics.values(USED, &["namespace=\"team\""]).iter().sum::<f64>() == gib(15)
        })
        .await;
    assert_eq!(metrics.value(USED, &["pod=\"a\"", "container=\"main\""]), Some(gib(10)));
    assert_eq!(metrics.value(USED, &["pod=\"a\"", "container=\"side\""]), Some(gib(2)));
    assert_eq!(metrics.value(USED, &["pod=\"b\""]), Some(gib(3)));
    assert!(metrics.values(USED, &["pod=\"c\""]).is_empty(), "a pod without a process has no series");
    assert_eq!(metrics.value(UNATTRIBUTED, &[]), Some(gib(5)), "a process of the host");
    assert_eq!(metrics.value(ATTRIBUTION, &["reason=\"\""]), Some(1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t4_mps_clients_are_listed_twice_and_counted_once() {
    let node = Node::with("H200:1").await;
    node.api.apply(pod("client", &["main"]));
    node.api.apply(pod("mps", &["server"]));
    let _client = node.process_of_kind("0", 6 * GIB, &of("client", "main"), "mps");
    let _viewer = node.process_of_kind("0", GIB, &of("client", "main"), "both");
    let _server = node.process("0", GIB, &of("mps", "server"));
    let agent = node.agent().start().await;
    let metrics = agent.metrics_when("named", |metrics| metrics.value(USED, &["pod=\"client\""]) == Some(gib(7))).await;
    assert_eq!(metrics.value(USED, &["pod=\"mps\""]), Some(gib(1)), "the server's own memory is its own pod's");
    assert_eq!(metrics.value(UNATTRIBUTED, &[]), Some(0.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t13_withheld_values_make_a_container_absent_not_huge() {
    let node = Node::with("H200:1").await;
    node.api.apply(pod("train", &["main"]));
    let _process = node.process("0", GIB, &of("train", "main"));
    let agent = node.agent().start().await;
    agent.metrics_when("a value", |metrics| metrics.values(USED, &[]).len() == 1).await;
    node.fault(None, Fault::Sentinel);
    let metrics = agent.metrics_when("none", |metrics| metrics.values(USED, &[]).is_empty()).await;
    assert_eq!(metrics.value(UNATTRIBUTED, &[]), Some(gib(1)));
    assert!(!metrics.0.contains("18446744073709"), "{}", metrics.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t8_without_the_hosts_pids_containers_have_no_value_rather_than_zero() {
    let node = Node::with("H200:1").await;
    node.fault(None, Fault::PidsHidden);
    node.api.apply(pod("train", &["main"]));
    let _process = node.process("0", 30 * GIB, &of("train", "main"));
    let agent = node.agent().start().await;
    let metrics = agent.metrics_when("used", |metrics| metrics.value(DEVICE_USED, &[]) == Some(gib(30))).await;
    assert!(metrics.values(USED, &[]).is_empty());
    assert_eq!(metrics.value(UNATTRIBUTED, &[]), Some(gib(30)));
    assert_eq!(metrics.value(ATTRIBUTION, &["reason=\"no_process_visible\""]), Some(0.0));
    assert!(metrics.0.contains("lacks hostPID"), "HELP says what to do");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t9_a_process_that_left_proc_is_unattributed_and_a_reused_pid_changes_its_owner() {
    let node = Node::with("H200:1").await;
    node.api.apply(pod("a", &["main"]));
    node.api.apply(pod("b", &["main"]));
    let process = node.process("0", GIB, &of("a", "main"));
    let agent = node.agent().start().await;
    agent.metrics_when("a's", |metrics| metrics.value(USED, &["pod=\"a\""]) == Some(gib(1))).await;
    process.disappears();
    let metrics = agent.metrics_when("nobody's", |metrics| metrics.values(USED, &[]).is_empty()).await;
    assert_eq!(metrics.value(UNATTRIBUTED, &[]), Some(gib(1)));
    process.appears_as(5000, &of("b", "main"));
    let metrics = agent.metrics_when("b's", |metrics| metrics.value(USED, &["pod=\"b\""]) == Some(gib(1))).await;
    assert!(metrics.values(USED, &["pod=\"a\""]).is_empty());
    assert!(metrics.value("gpumem_agent_proc_failures_total", &["reason=\"gone\""]).is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_in_proc_is_dropped_with_a_counter() {
    let node = Node::with("H200:1").await;
    node.api.apply(pod("good", &["main"]));
    let texts: [(&str, Vec<u8>, &str); 4] = [
        ("cgroup", vec![b'x'; 200_000], "too_long"),
        ("cgroup", b"\xff\xfe no colon here\n".to_vec(), "malformed"),
        ("stat", b"17 (no end".to_vec(), "malformed"),
        ("stat", vec![b')'; 100_000], "too_long"),
    ];
    let bad: Vec<_> = texts
        .iter()
        .map(|(file, text, _)| {
            let process = node.process("0", GIB, &of("good", "main"));
            process.writes(file, text);
            process
        })
        .collect();
    let _good = node.process("0", 2 * GIB, &of("good", "main"));
    let agent = node.agent().start().await;
    let dropped = "gpumem_agent_dropped_inputs_total";
    let metrics = agent
        .metrics_when("all dropped", |metrics| {
            let counted = |file: &str, reason: &str| {
                let labels = [format!("input=\"{file}\""), format!("reason=\"{reason}\"")];
                metrics.value(dropped, &[&labels[0], &labels[1]]).is_some_and(|count| count > 0.0)
            };
            texts.iter().all(|(file, _, reason)| counted(file, reason)) && metrics.values(USED, &[]) == [gib(2)]
        })
        .await;
    assert_eq!(metrics.value(UNATTRIBUTED, &[]), Some(gib(4)));
    drop(bad);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t21_a_pod_made_again_under_the_same_name_starts_anew() {
    let node = Node::with("H200:1").await;
    node.api.apply(pod("web-0", &["main"]));
    let old = node.process("0", 9 * GIB, &of("web-0", "main"));
    let agent = node.agent().start().await;
    let peak = "gpumem_container_memory_peak_bytes";
    agent.metrics_when("the old peak", |metrics| metrics.value(peak, &["pod=\"web-0\""]) == Some(gib(9))).await;
    drop(old);
    node.api.delete("web-0");
    let mut again = pod("web-0", &[]);
    again["metadata"]["uid"] = uid("web-0, the second").into();
    let id = container_id("second");
    again["status"]["containerStatuses"] =
        serde_json::json!([{"name": "main", "containerID": format!("containerd://{id}")}]);
    node.api.apply(again);
    let _new = node.process("0", GIB, &cgroup(&uid("web-0, the second"), &id));
    let metrics = agent
        .metrics_when("the new one", |metrics| {
            metrics.value(USED, &["pod=\"web-0\"", "container=\"main\""]) == Some(gib(1))
        })
        .await;
    assert_eq!(metrics.value(peak, &["pod=\"web-0\""]), Some(gib(1)), "the old peak is not inherited");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t22_no_series_outlives_its_processes_even_if_the_pod_object_stays() {
    let node = Node::with("H200:1").await;
    node.api.apply(pod("job", &["main"]));
    let process = node.process("0", GIB, &of("job", "main"));
    let agent = node.agent().start().await;
    agent.metrics_when("it runs", |metrics| metrics.values(USED, &["pod=\"job\""]).len() == 1).await;
    drop(process);
    let metrics = agent.metrics_when("it is gone", |metrics| !metrics.0.contains("pod=\"job\"")).await;
    assert_eq!(metrics.value(DEVICE_USED, &[]), Some(0.0), "the device goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_api_containers_are_counted_by_id_and_named_when_it_comes_back() {
    let mut node = Node::with("H200:1").await;
    node.api.stop().await;
    let _process = node.process("0", GIB, &of("train", "main"));
    let agent = node.agent().start().await;
    let by_id = [format!("pod=\"{}\"", uid("train")), format!("container=\"{}\"", &container_id("train/main")[..12])];
    let metrics = agent
        .metrics_when("by id", |metrics| metrics.value(USED, &["namespace=\"\"", &by_id[0], &by_id[1]]) == Some(gib(1)))
        .await;
    assert_eq!(metrics.value(UNATTRIBUTED, &[]), Some(0.0), "the sum holds");
    assert_eq!(metrics.value("gpumem_agent_pod_watch_up", &[]), Some(0.0));
    assert_eq!(agent.get("/readyz").await.0, 200);
    node.api.apply(pod("train", &["main"]));
    node.api.resume().await;
    let metrics = agent.metrics_when("by name", |metrics| metrics.value(USED, &["pod=\"train\""]).is_some()).await;
    assert_eq!(metrics.values(USED, &[]).len(), 1, "{}", metrics.0);
    assert_eq!(metrics.value("gpumem_agent_pod_watch_up", &[]), Some(1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_static_pod_is_named_through_its_mirror() {
    let node = Node::with("H200:1").await;
    let hash = &container_id("hash")[..32];
    let mut mirror = pod("static", &["main"]);
    mirror["metadata"]["annotations"] = serde_json::json!({"kubernetes.io/config.hash": hash});
    node.api.apply(mirror);
    let _process = node.process("0", GIB, &cgroup(hash, &container_id("static/main")));
    let agent = node.agent().start().await;
    agent
        .metrics_when("named", |metrics| metrics.value(USED, &["pod=\"static\"", "container=\"main\""]).is_some())
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_asks_the_api_for_its_own_nodes_pods_and_writes_nothing() {
    let node = Node::with("H200:1").await;
    let _agent = node.agent().start().await;
    let requests = eventually("a watch", async || {
        let requests = Api::requests(&node.api);
        requests.iter().any(|request| request.contains("watch=true")).then_some(requests)
    })
    .await;
    for request in requests {
        assert!(
            request.starts_with("GET /api/v1/pods?") && request.contains("fieldSelector=spec.nodeName%3Dnode-a"),
            "{request}"
        );
    }
}

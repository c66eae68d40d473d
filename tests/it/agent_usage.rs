//! `/v1/usage` as the controller reads it: cursors, restarts, and who may ask.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use gpumem::api::names::AGENT_TLS_NAME;
use gpumem::api::usage::{Cursor, FORMAT, NvmlState, SeriesData, SeriesReport, UsageReport};
use gpumem::tls;
use gpumem_engine::series::Series;

use crate::support::http::Connection;
use crate::support::tls::Authority;
use crate::support::{Agent, GIB, Node, api::pod, cgroup, container_id, eventually, uid};

/// A reader with the controller's certificate.
struct Reader {
    settings: Arc<rustls::ClientConfig>,
}

impl Reader {
    fn of(authority: &Authority) -> Self {
        Self { settings: tls::client(&authority.controller()).unwrap() }
    }

    async fn connect(&self, agent: &Agent) -> Option<Connection> {
        let address = agent.usage_address().await;
        Connection::tls(address, Arc::clone(&self.settings), AGENT_TLS_NAME).await.ok()
    }

    /// The answer at a cursor, once the agent has its certificate.
    async fn read(&self, agent: &Agent, since: Option<Cursor>) -> UsageReport {
        let path = since.map_or_else(|| "/v1/usage".to_owned(), |cursor| format!("/v1/usage?since={cursor}"));
        let mut connection = eventually("a connection", async || self.connect(agent).await).await;
        let (status, body) = connection.get(&path).await.unwrap();
        assert_eq!(status, 200);
        serde_json::from_slice(&body).expect("the answer is a UsageReport")
    }

    async fn read_when(
        &self,
        what: &str,
        agent: &Agent,
        since: Option<Cursor>,
        wanted: impl Fn(&UsageReport) -> bool,
    ) -> UsageReport {
        eventually(what, async || Some(self.read(agent, since).await).filter(&wanted)).await
    }
}

async fn node() -> (Node, Authority) {
    let node = Node::with("H200:1").await;
    let authority = Authority::new();
    authority.install(&node.folder.0.join("tls"));
    (node, authority)
}

async fn start(node: &Node) -> Agent {
    node.agent().arg("--tls-dir", node.folder.0.join("tls")).start().await
}

fn of(name: &str) -> String {
    cgroup(&uid(name), &container_id(&format!("{name}/main")))
}

fn only(report: &UsageReport) -> Option<&SeriesReport> {
    match report.series.as_slice() {
        [series] => Some(series),
        _ => None,
    }
}

fn has_state(report: &UsageReport) -> bool {
    only(report).is_some_and(|series| matches!(series.data, SeriesData::State(_)))
}

fn points(report: &UsageReport) -> usize {
    only(report).map_or(0, |series| match &series.data {
        SeriesData::Samples { points, .. } => points.len(),
        SeriesData::State(_) => 0,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_gets_the_whole_state_first_and_then_only_what_is_new() {
    let (node, authority) = node().await;
    node.api.apply(pod("train", &["main"]));
    let _process = node.process("0", GIB, &of("train"));
    let agent = start(&node).await;
    let reader = Reader::of(&authority);

    let first = reader.read_when("a first state", &agent, None, has_state).await;
    assert_eq!(first.format, FORMAT);
    assert_eq!((first.node.as_str(), first.interval_ms, first.simulated), ("node-a", 100, true));
    assert!(matches!(&first.nvml, NvmlState::Up { driver } if driver.starts_with("sim")));
    let series = only(&first).unwrap();
    assert_eq!((series.pod.as_str(), series.container.as_str()), (uid("train").as_str(), "main"));
    assert_eq!(series.container_id.as_str(), container_id("train/main"));
    let [pod] = first.pods.as_slice() else { panic!("one pod") };
    assert_eq!((pod.namespace.as_str(), pod.name.as_str()), ("team", "train"));
    assert_eq!(pod.annotations.keys().collect::<Vec<_>>(), ["gpumem.dev/actions"], "only ours");
    assert_eq!(pod.owner.as_ref().map(|owner| owner.kind.as_str()), Some("Job"));
    let SeriesData::State(state) = &series.data else { panic!("a state") };
    let mut mine: Series = (**state).clone();

    // What the reader pieces together from deltas is the agent's own series.
    let mut cursor = first.cursor;
    for _ in 0..5 {
        let delta = reader.read_when("points", &agent, Some(cursor), |report| points(report) > 0).await;
        let SeriesData::Samples { segment, points } = &only(&delta).unwrap().data else { panic!("samples") };
        for point in points {
            mine.push(*segment, *point);
        }
        assert!(delta.now >= points.last().unwrap().at, "ages are never negative");
        cursor = delta.cursor;
    }
    let whole = reader
        .read_when("the same cycle", &agent, None, |report| {
            let SeriesData::State(theirs) = &only(report).unwrap().data else { return false };
            theirs.latest().map(|point| point.at) >= mine.latest().map(|point| point.at)
        })
        .await;
    let SeriesData::State(theirs) = &only(&whole).unwrap().data else { panic!("a state") };
    let until = mine.latest().unwrap().at;
    let common = |series: &Series| series.points_since(None).filter(|point| point.at <= until).collect::<Vec<_>>();
    let (mine, theirs) = (common(&mine), common(theirs));
    assert!(!theirs.is_empty() && mine.ends_with(&theirs), "{mine:?}\n{theirs:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_cursor_gets_the_state_and_a_malformed_one_is_refused() {
    let (node, authority) = node().await;
    node.api.apply(pod("train", &["main"]));
    let _process = node.process("0", GIB, &of("train"));
    let agent = start(&node).await;
    let reader = Reader::of(&authority);
    let first = reader.read_when("a first state", &agent, None, has_state).await;
    let Cursor { epoch, seq } = first.cursor;
    for unknown in [Cursor { epoch: epoch ^ 1, seq }, Cursor { epoch, seq: seq + 1_000_000 }] {
        assert!(has_state(&reader.read(&agent, Some(unknown)).await), "{unknown}");
    }
    // Wait until the raw ring has moved on from the first cursor.
    let late = reader.read_when("a cursor too old", &agent, Some(first.cursor), has_state).await;
    assert!(late.cursor.seq >= seq + gpumem_engine::series::RAW_POINTS as u64);
    let mut connection = reader.connect(&agent).await.unwrap();
    assert_eq!(connection.get("/v1/usage?since=nonsense").await.unwrap().0, 400);
    assert_eq!(connection.get("/metrics").await.unwrap().0, 404, "the two ports do not mix");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_agent_continues_the_time_line_under_another_epoch() {
    let (node, authority) = node().await;
    node.api.apply(pod("train", &["main"]));
    let _process = node.process("0", GIB, &of("train"));
    let reader = Reader::of(&authority);
    let agent = start(&node).await;
    let before = reader.read_when("a state", &agent, None, has_state).await;
    agent.terminate();
    let agent = start(&node).await;
    let after = reader.read_when("a state", &agent, Some(before.cursor), has_state).await;
    assert_ne!(before.cursor.epoch, after.cursor.epoch);
    assert_eq!(before.boot_id, after.boot_id);
    assert!(!before.boot_id.is_empty());
    let (SeriesData::State(old), SeriesData::State(new)) = (&only(&before).unwrap().data, &only(&after).unwrap().data)
    else {
        panic!("states")
    };
    assert_eq!(old.segment(), new.segment(), "the same run of the container");
    assert!(old.latest().unwrap().at < new.started().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_without_a_name_is_reported_once_it_has_one_with_all_its_points() {
    let (node, authority) = node().await;
    let _process = node.process("0", GIB, &of("train"));
    let agent = start(&node).await;
    let reader = Reader::of(&authority);
    let nameless = reader
        .read_when("some cycles", &agent, None, |report| report.cursor.seq > 5 && !report.devices.is_empty())
        .await;
    assert!(nameless.series.is_empty());
    node.api.apply(pod("train", &["main"]));
    let named = reader.read_when("named", &agent, Some(nameless.cursor), |report| only(report).is_some()).await;
    let seen = match &only(&named).unwrap().data {
        SeriesData::Samples { points, .. } => points.len() as u64,
        SeriesData::State(series) => series.samples(),
    };
    assert!(seen > 5, "the points of the nameless time are there: {seen}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn how_a_container_ended_is_told_to_readers_old_and_new_though_it_holds_nothing_any_more() {
    let (node, authority) = node().await;
    node.api.apply(pod("train", &["main"]));
    let process = node.process("0", GIB, &of("train"));
    let agent = start(&node).await;
    let reader = Reader::of(&authority);
    reader.read_when("a state", &agent, None, has_state).await;
    drop(process);
    let during = reader.read_when("silence", &agent, None, |report| report.cursor.seq > 5).await;
    let after = reader.read_when("no news", &agent, Some(during.cursor), |report| report.pods.is_empty()).await;
    let mut dead = pod("train", &["main"]);
    dead["status"]["containerStatuses"][0]["state"] = serde_json::json!({"terminated": {"exitCode": 1, "reason": "Error",
        "finishedAt": "2026-11-29T10:00:00Z", "message": "CUDA out of memory"}});
    node.api.apply(dead);
    let has_end = |report: &UsageReport| report.pods.iter().any(|pod| !pod.ends.is_empty());
    let told = reader.read_when("the end", &agent, Some(after.cursor), has_end).await;
    let end = &told.pods[0].ends[0];
    assert_eq!((end.container.as_str(), end.exit_code, end.is_current), ("main", 1, true));
    assert_eq!((end.message.as_str(), told.series.len()), ("CUDA out of memory", 0));
    assert!(!has_end(&reader.read(&agent, Some(told.cursor)).await), "told once to whoever follows");
    assert!(has_end(&reader.read(&agent, None).await), "and to whoever is new");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_controllers_certificate_opens_the_door_and_a_new_authority_takes_over_live() {
    let (node, authority) = node().await;
    let agent = start(&node).await;
    let reader = Reader::of(&authority);
    reader.read(&agent, None).await;
    let stranger = Reader::of(&Authority::new());
    assert!(stranger.connect(&agent).await.is_none(), "another authority");
    let agents_own = Reader { settings: tls::client(&authority.agent()).unwrap() };
    let refused = match agents_own.connect(&agent).await {
        None => true,
        // TLS 1.3 tells a client of a refused certificate only after its first request.
        Some(mut connection) => connection.get("/v1/usage").await.is_err(),
    };
    assert!(refused, "an agent's certificate opens no other agent");
    assert!(crate::support::http::get(agent.usage_address().await, "/v1/usage").await.is_err(), "no plain text");

    let second = Authority::new();
    second.install(&node.folder.0.join("tls"));
    let reader = Reader::of(&second);
    eventually("the new certificate", async || reader.connect(&agent).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_is_told_of_before_it_holds_memory_and_not_after() {
    let (node, authority) = node().await;
    let mut waits = pod("train", &["main"]);
    waits["metadata"]["annotations"]["gpumem.dev/workload"] = "model=llama3.2-1b batch=4 seq=1024".into();
    waits["spec"]["containers"] =
        serde_json::json!([{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "4"}}}]);
    waits["status"]["phase"] = "Pending".into();
    node.api.apply(waits);
    node.api.apply(pod("silent", &["main"]));
    let agent = start(&node).await;
    let reader = Reader::of(&authority);

    let told = |report: &UsageReport| !report.waiting.is_empty();
    let report = reader.read_when("the waiting pod", &agent, None, told).await;
    let [waiting] = report.waiting.as_slice() else { panic!("one pod: {:?}", report.waiting) };
    assert_eq!(waiting.pod.name, "train");
    assert!(waiting.pod.annotations.contains_key("gpumem.dev/workload"));
    let asks: Vec<_> = waiting.asks.iter().map(|ask| (ask.container.as_str(), ask.resource.as_str())).collect();
    assert_eq!(asks, [("main", "nvidia.com/gpu")]);
    assert!(report.pods.is_empty() && report.series.is_empty());

    let _process = node.process("0", GIB, &of("train"));
    let later = reader.read_when("its first memory", &agent, None, has_state).await;
    assert_eq!(later.waiting, []);
}

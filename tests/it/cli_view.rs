//! The controller's read-only API from a fleet to the plugin's table, and how long both take for ten thousand containers.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpumem::api::convert;
use gpumem::api::usage::{
    Cursor, DeviceReport, FORMAT, NvmlState, OwnerReport, PodReport, SeriesData, SeriesReport, UsageReport,
};
use gpumem::api::view::{ContainerList, Level};
use gpumem::controller::fleet::Fleet;
use gpumem::controller::leader::Leadership;
use gpumem::controller::metrics::{Exposition, Metrics};
use gpumem::controller::view::{View, Wanted};
use gpumem::plugin::table::{Output, Style};
use gpumem::plugin::top;
use gpumem_engine::identity::{DeviceKey, PodUid};
use gpumem_engine::policy::{Mode, PolicyKey};
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::sample::DeviceMemory;
use gpumem_engine::series::{Point, Segment, Series};
use gpumem_engine::usage::Attribution;

use crate::plugin_api::World;

/// Twenty minutes of a second each; every tenth container grows.
const SECONDS: u64 = 1200;

fn series(grows: bool) -> Series {
    let mut series = Series::default();
    for second in 0..SECONDS {
        let used = Bytes::gib(8) + if grows { Bytes::mib(40 * second) } else { Bytes::ZERO };
        series.push(Segment(1), Point { at: Moment::from_secs(1000 + second), used, allocator: None });
    }
    series
}

/// A node with this many devices, five containers on each.
fn report(node: usize, devices: usize, kinds: &[Series; 2]) -> UsageReport {
    let key = |device: usize| DeviceKey::whole(format!("GPU-{node}-{device}").as_str());
    let now = Moment::from_secs(1000 + SECONDS);
    let (mut pods, mut series) = (Vec::new(), Vec::new());
    for device in 0..devices {
        for tenant in 0..5 {
            let grows = device % 2 == 0 && tenant == 0;
            let (name, uid) =
                (format!("p-{node}-{device}-{tenant}"), PodUid::from(format!("u-{node}-{device}-{tenant}")));
            let owner = OwnerReport {
                api_version: "apps/v1".into(),
                kind: "ReplicaSet".into(),
                name: format!("r-{node}"),
                uid: format!("r-{node}"),
            };
            pods.push(PodReport {
                uid: uid.clone(),
                namespace: format!("team-{}", node % 7),
                name,
                labels: BTreeMap::new(),
                annotations: BTreeMap::new(),
                owner: Some(owner),
                terminating: false,
                ends: Vec::new(),
            });
            series.push(SeriesReport {
                device: key(device),
                pod: uid,
                container: "main".into(),
                container_id: "c".into(),
                data: SeriesData::State(Box::new(kinds[usize::from(grows)].clone())),
            });
        }
    }
    let device = |index: usize| DeviceReport {
        device: key(index),
        index: index as u32,
        model: "NVIDIA H100 80GB HBM3".into(),
        at: now,
        memory: Some(DeviceMemory {
            total: Bytes::gib(96),
            used: Bytes::gib(87),
            free: Bytes::gib(9),
            reserved: Some(Bytes::gib(1)),
        }),
        unattributed: Some(Bytes::ZERO),
        attribution: Attribution::Complete,
    };
    UsageReport {
        format: FORMAT,
        limits: Vec::new(),
        agent_version: "0.1.0".into(),
        node: format!("node-{node}"),
        boot_id: "boot".into(),
        cursor: Cursor { epoch: 1, seq: 1 },
        now,
        interval_ms: 1000,
        simulated: false,
        nvml: NvmlState::Up { driver: "580".into() },
        devices: (0..devices).map(device).collect(),
        pods,
        series,
        abilities: gpumem::api::usage::Abilities::default(),
        hooks: Vec::new(),
        waiting: Vec::new(),
    }
}

fn view(nodes: usize, devices: usize) -> Arc<View> {
    Arc::new(View::new(exposition(nodes, devices), "c-0".to_owned()))
}

fn exposition(nodes: usize, devices: usize) -> Exposition {
    let kinds = [series(false), series(true)];
    let mut fleet = Fleet::default();
    let received = Instant::now();
    for node in 0..nodes {
        let merged = fleet.merge(&format!("node-{node}"), report(node, devices, &kinds), received);
        assert!(merged.accepted && merged.faults.is_empty(), "{merged:?}");
    }
    let spec = serde_json::from_value(serde_json::json!({"target": {"podSelector": {}}})).unwrap();
    let key = PolicyKey { namespace: String::new(), name: String::new() };
    let follower = Leadership::follower("c-0", received);
    let (_, leadership) = tokio::sync::watch::channel(Leadership { is_leader: true, ..follower });
    Exposition {
        metrics: Arc::new(Metrics::new().unwrap()),
        fleet: Arc::new(Mutex::new(fleet)),
        leadership,
        default: Arc::new(convert::policy(key, &spec, Mode::Observe).unwrap()),
    }
}

async fn get(view: &Arc<View>, path: &str) -> (u16, Vec<u8>) {
    let request = http::Request::get(path).body(()).unwrap();
    let answer = view.answer(&request).await;
    let status = answer.status().as_u16();
    (status, http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes().to_vec())
}

#[tokio::test]
async fn a_growing_container_is_shown_with_its_numbers_and_its_series() {
    let view = view(1, 1);
    let (status, body) = get(&view, "/api/v1/containers?namespace=team-0&pod=p-0-0-0&series=1").await;
    let list: ContainerList = serde_json::from_slice(&body).unwrap();
    assert_eq!((status, list.containers.len(), list.left_out), (200, 1, 0));
    let one = &list.containers[0];
    assert_eq!((one.node.as_str(), one.pod.as_str(), one.container.as_str()), ("node-0", "p-0-0-0", "main"));
    assert_eq!(one.capacity_bytes, Some(Bytes::gib(95).0));
    assert!(one.level >= Level::Elevated, "{one:?}");
    assert!(one.seconds_to_oom.is_some() && one.growth_bytes_per_second.is_some(), "{one:?}");
    assert!((20..=60).contains(&one.series.len()), "{}", one.series.len());
    assert!(
        one.series.is_sorted_by(|a, b| a.age_seconds > b.age_seconds && a.used_bytes <= b.used_bytes),
        "{:?}",
        one.series
    );
}

#[test]
fn a_container_on_a_gpu_has_at_most_eight_series_of_the_controller() {
    let text = exposition(1, 1).text(Instant::now());
    let own = |line: &&str| line.contains("pod=\"p-0-0-0\"");
    let on_device: Vec<&str> = text.lines().filter(own).filter(|line| line.contains("uuid=")).collect();
    // Growth, risk, and three each of probability and time to OOM; five more come from the agent.
    assert!((2..=8).contains(&on_device.len()), "{on_device:#?}");
    assert_eq!(text.lines().filter(own).count(), on_device.len() + 1, "and the one that names its owner");
}

#[tokio::test]
async fn a_query_narrows_the_answer_and_a_wrong_one_is_refused() {
    let view = view(2, 1);
    let count =
        async |path: &str| serde_json::from_slice::<ContainerList>(&get(&view, path).await.1).unwrap().containers.len();
    assert_eq!(count("/api/v1/containers").await, 10);
    assert_eq!(count("/api/v1/containers?namespace=team-1").await, 5);
    assert_eq!(count("/api/v1/containers?namespace=team-1&pod=p-0-0-0").await, 0);
    assert_eq!(get(&view, "/api/v1/containers?namspace=team-1").await.0, 400);
    let post = http::Request::post("/api/v1/nodes").body(()).unwrap();
    assert_eq!(view.answer(&post).await.status().as_u16(), 405);
}

#[tokio::test]
async fn top_of_ten_thousand_containers_takes_no_longer_than_a_blink() {
    let view = view(250, 8);
    // The controller's part: a first answer makes the forecasts, which every reader then shares for some seconds.
    let began = Instant::now();
    let list = view.containers(&Wanted::default(), Instant::now());
    let first = began.elapsed();
    let began = Instant::now();
    let (_, body) = get(&view, "/api/v1/containers").await;
    let again = began.elapsed();
    assert_eq!(list.containers.len(), 10_000);
    // The plugin's part.
    let mut world = World::healthy();
    world.live(&list, &view.nodes(Instant::now()));
    let cluster = world.cluster(None);
    let began = Instant::now();
    let shown = top::run(&cluster, &top::Args::default(), Output::Table, Style::default()).await.unwrap();
    let plugin = began.elapsed();
    assert_eq!(shown.text.lines().count(), 10_001);
    println!("answer {first:?}, again {again:?} ({} MiB), plugin {plugin:?}", body.len() >> 20);
    // Unoptimised and on a busy machine; optimised it is a twentieth of this.
    let limit = if cfg!(debug_assertions) { Duration::from_secs(20) } else { Duration::from_secs(1) };
    assert!(again + plugin < limit, "{again:?} + {plugin:?}");
}

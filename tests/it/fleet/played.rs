//! An agent that says what a test wants it to say, over the real server and real TLS.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use gpumem::api::usage::{Cursor, DeviceReport, FORMAT, NvmlState, PodReport, SeriesData, SeriesReport, UsageReport};
use gpumem::controller::pki::Bundle;
use gpumem::http;
use gpumem::tls::{self, Material};
use gpumem_engine::identity::DeviceKey;
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::sample::DeviceMemory;
use gpumem_engine::series::{Point, Segment};
use gpumem_engine::usage::Attribution;
use hyper::StatusCode;
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// What an agent answers to a cursor.
pub type Say = Box<dyn FnMut(Option<Cursor>) -> (StatusCode, Vec<u8>) + Send>;

/// A served agent; ends with the test's runtime.
pub struct Played {
    pub address: SocketAddr,
    /// Every cursor asked with.
    pub asked: Arc<Mutex<Vec<Option<Cursor>>>>,
}

pub async fn play(material: &Material, say: Say) -> Played {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (settings, receiver) = watch::channel(Some(tls::server(material).unwrap()));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (say, noted) = (Arc::new(Mutex::new(say)), Arc::clone(&asked));
    let handler = move |request: hyper::Request<Incoming>| {
        let query = request.uri().query().unwrap_or_default();
        let since = query.strip_prefix("since=").map(|text| text.parse().unwrap());
        noted.lock().unwrap().push(since);
        let (status, body) = say.lock().unwrap()(since);
        async move { http::json(status, body) }
    };
    tokio::spawn(async move {
        http::serve(listener, Some(receiver), handler, std::future::pending()).await;
        drop(settings);
    });
    Played { address, asked }
}

pub fn agent_material(bundle: &Bundle) -> Material {
    let agent = bundle.agent.clone();
    Material { ca: bundle.trusted().into_bytes(), cert: agent.cert.into_bytes(), key: agent.key.into_bytes() }
}

pub fn controller_material(bundle: &Bundle) -> Material {
    let own = bundle.controller.clone();
    Material { ca: bundle.trusted().into_bytes(), cert: own.cert.into_bytes(), key: own.key.into_bytes() }
}

/// A report of one container with these points, one a second, the last of them now.
pub fn report(node: &str, cursor: Cursor, points: std::ops::RangeInclusive<u64>) -> UsageReport {
    let now = Moment::from_secs(*points.end());
    let device = DeviceKey::whole("GPU-1");
    UsageReport {
        format: FORMAT,
        limits: Vec::new(),
        agent_version: "0.1.0".into(),
        node: node.into(),
        boot_id: "boot".into(),
        cursor,
        now,
        interval_ms: 1000,
        simulated: true,
        nvml: NvmlState::Up { driver: "580".into() },
        devices: vec![DeviceReport {
            device: device.clone(),
            index: 0,
            model: "NVIDIA H100".into(),
            at: now,
            memory: Some(DeviceMemory {
                total: Bytes::gib(80),
                used: Bytes::gib(10),
                free: Bytes::gib(70),
                reserved: Some(Bytes::ZERO),
            }),
            unattributed: Some(Bytes::ZERO),
            attribution: Attribution::Complete,
        }],
        pods: vec![PodReport {
            uid: format!("uid-{node}").as_str().into(),
            namespace: "team".into(),
            name: "train".into(),
            labels: [("app".to_owned(), "train".to_owned())].into(),
            annotations: BTreeMap::new(),
            owner: None,
            terminating: false,
            ends: Vec::new(),
        }],
        series: vec![SeriesReport {
            device,
            pod: format!("uid-{node}").as_str().into(),
            container: "main".into(),
            container_id: "c1".into(),
            data: SeriesData::Samples {
                segment: Segment(1),
                points: points
                    .map(|second| Point { at: Moment::from_secs(second), used: Bytes::gib(10), allocator: None })
                    .collect(),
            },
        }],
        abilities: gpumem::api::usage::Abilities::default(),
        hooks: Vec::new(),
        waiting: Vec::new(),
    }
}

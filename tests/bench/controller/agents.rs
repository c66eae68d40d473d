//! Many agents in one process: each has a loopback address of its own and all share one port, so the address a
//! connection came in on says which agent is meant.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use gpumem::api::usage::{
    Cursor, DeviceReport, FORMAT, NvmlState, OwnerReport, PodReport, SeriesData, SeriesReport, UsageReport,
};
use gpumem::tls::{self, Material};
use gpumem_engine::identity::{DeviceKey, PodUid};
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::sample::DeviceMemory;
use gpumem_engine::series::{Point, RAW_POINTS, Segment, Series};
use gpumem_engine::usage::Attribution;
use http_body_util::Full;
use hyper::body::Bytes as Body;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::server::ServerSessionMemoryCache;

const DAY: u64 = 86_400;
const GPUS: usize = 8;

/// Address of an agent: 127.1.0.0 and on.
pub fn address(agent: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(0x7f01_0000 + u32::try_from(agent).unwrap() + 1))
}

pub fn node(agent: usize) -> String {
    format!("node-{agent:05}")
}

/// The machine's monotonic clock, which fleet and agents share.
pub fn moment() -> Moment {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Moment(u64::try_from(time.tv_sec).unwrap() * 1000 + u64::try_from(time.tv_nsec).unwrap() / 1_000_000 + OFFSET)
}

/// So that a day of past fits before a machine that was started just now.
const OFFSET: u64 = 2 * DAY * 1000;

/// Serves until killed.
pub fn play(agents: usize, series: usize) {
    let bundle = crate::bundle();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = moment().0 / 1000;
    let fleet = Arc::new(Played { agents, past: (0..series).map(|shape| past(shape, first)).collect(), first });
    let material = Material {
        ca: bundle.trusted().into_bytes(),
        cert: bundle.agent.cert.into_bytes(),
        key: bundle.agent.key.into_bytes(),
    };
    let mut settings = Arc::unwrap_or_clone(tls::server(&material).unwrap());
    // In truth every agent has a store of its own, of the default size.
    settings.session_storage = ServerSessionMemoryCache::new(4 * agents);
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap().port());
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(settings));
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let (acceptor, fleet) = (acceptor.clone(), Arc::clone(&fleet));
            tokio::spawn(async move {
                let IpAddr::V4(address) = stream.local_addr().unwrap().ip() else { return };
                let agent = (u32::from(address) - 0x7f01_0001) as usize;
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = hyper::service::service_fn(|request: Request<hyper::body::Incoming>| {
                    let since = request.uri().query().and_then(|query| query.strip_prefix("since=")?.parse().ok());
                    let report = serde_json::to_vec(&fleet.report(agent, since)).unwrap();
                    async move { Ok::<_, std::convert::Infallible>(Response::new(Full::new(Body::from(report)))) }
                });
                let _ =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
}

struct Played {
    agents: usize,
    /// By shape: a day of past, which every agent shares.
    past: Vec<Series>,
    /// Second of the first sample that is not past.
    first: u64,
}

/// Seven of ten are flat, one saws, one leaks slowly, and one shows in its KiB which second it is.
fn used(shape: usize, second: u64) -> Bytes {
    match shape % 10 {
        0 => Bytes::gib(6) + Bytes::kib(second % 1_000_000),
        1 => Bytes::gib(4) + Bytes::mib(second % 300),
        2 => Bytes::gib(2) + Bytes::kib((second - OFFSET / 1000) / 4),
        flat => Bytes::gib(5) + Bytes::mib(100 * flat as u64),
    }
}

fn point(shape: usize, second: u64) -> Point {
    Point { at: Moment::from_secs(second), used: used(shape, second), allocator: None }
}

fn past(shape: usize, now: u64) -> Series {
    let mut series = Series::default();
    for second in now - DAY..=now {
        series.push(Segment(shape as u64), point(shape, second));
    }
    series
}

impl Played {
    fn report(&self, agent: usize, since: Option<Cursor>) -> UsageReport {
        assert!(agent < self.agents);
        let now = moment();
        let second = now.0 / 1000;
        let devices = (0..GPUS)
            .map(|gpu| DeviceReport {
                device: device(agent, gpu),
                index: gpu as u32,
                model: "NVIDIA H100 80GB HBM3".into(),
                at: Moment::from_secs(second),
                memory: Some(DeviceMemory {
                    total: Bytes::gib(80),
                    used: Bytes::gib(20),
                    free: Bytes::gib(60),
                    reserved: Some(Bytes::ZERO),
                }),
                unattributed: Some(Bytes::mib(600)),
                attribution: Attribution::Complete,
            })
            .collect();
        UsageReport {
            format: FORMAT,
            limits: Vec::new(),
            agent_version: "0.1.0".into(),
            node: node(agent),
            boot_id: "2b6c5d1e-91a4-4f2a-8f5a-6d3f7d3c9a11".into(),
            cursor: Cursor { epoch: 1, seq: second },
            now,
            interval_ms: 1000,
            simulated: true,
            nvml: NvmlState::Up { driver: "580.65.06".into() },
            devices,
            pods: (0..self.past.len()).map(|shape| pod(agent, shape)).collect(),
            series: (0..self.past.len()).map(|shape| self.series(agent, shape, second, since)).collect(),
            abilities: gpumem::api::usage::Abilities::default(),
            hooks: Vec::new(),
            waiting: Vec::new(),
        }
    }

    fn series(&self, agent: usize, shape: usize, second: u64, since: Option<Cursor>) -> SeriesReport {
        let segment = Segment(shape as u64);
        let since = since.filter(|since| second - since.seq < RAW_POINTS as u64);
        let data = if let Some(since) = since {
            SeriesData::Samples { segment, points: (since.seq + 1..=second).map(|at| point(shape, at)).collect() }
        } else {
            let mut series = self.past[shape].clone();
            for at in self.first + 1..=second {
                series.push(segment, point(shape, at));
            }
            SeriesData::State(Box::new(series))
        };
        SeriesReport {
            device: device(agent, shape % GPUS),
            pod: uid(agent, shape),
            container: "main".into(),
            container_id: format!("{agent:032x}{shape:032x}").as_str().into(),
            data,
        }
    }
}

fn device(agent: usize, gpu: usize) -> DeviceKey {
    DeviceKey::whole(format!("GPU-{agent:08x}-0000-4000-8000-{gpu:012x}").as_str())
}

fn uid(agent: usize, shape: usize) -> PodUid {
    PodUid::from(format!("{agent:08x}-1111-4111-8111-{shape:012x}"))
}

fn pod(agent: usize, shape: usize) -> PodReport {
    let labels = [
        ("app.kubernetes.io/name", "trainer"),
        ("app.kubernetes.io/instance", "team"),
        ("batch.kubernetes.io/job-name", "finetune-large"),
        ("pod-template-hash", "6b7f8d5c9f"),
        ("team", "research"),
    ];
    PodReport {
        uid: uid(agent, shape),
        namespace: format!("team-{}", shape % 10),
        name: format!("finetune-large-{agent}-{shape}"),
        labels: labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        annotations: BTreeMap::new(),
        owner: Some(OwnerReport {
            api_version: "apps/v1".into(),
            kind: "ReplicaSet".into(),
            name: "finetune-large-6b7f8d5c9f".into(),
            uid: "7c9e6679-7425-40de-944b-e07fc1f90ae7".into(),
        }),
        terminating: false,
        ends: Vec::new(),
    }
}

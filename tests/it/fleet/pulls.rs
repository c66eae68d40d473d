//! Pulls: cursors, impostors, garbage, peers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpumem::api::usage::Cursor;
use gpumem::controller::fleet::Fleet;
use gpumem::controller::fleet::shared::lock;
use gpumem::controller::health::Health;
use gpumem::controller::metrics::Metrics;
use gpumem::controller::peer;
use gpumem::controller::pki::{self, Bundle};
use gpumem::controller::pull::{self, Agent, FIRST_PULL, Puller};
use hyper::StatusCode;
use tokio::sync::watch;

use super::played::{Played, agent_material, controller_material, play, report};
use crate::support::eventually;
use crate::support::http::Connection;

/// A controller's data side that pulls ten times a second.
struct Controller {
    fleet: Arc<Mutex<Fleet>>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    news: watch::Receiver<u64>,
    _tls: watch::Sender<Option<Arc<rustls::ClientConfig>>>,
    _agents: watch::Sender<Option<Arc<BTreeMap<String, Agent>>>>,
}

fn controller(bundle: &Bundle, agents: &[(&str, SocketAddr)]) -> Controller {
    let (tls, settings) = watch::channel(Some(pki::settings(bundle).unwrap().client));
    let (news, heard) = watch::channel(0);
    let (publish, source) = watch::channel(None);
    let (fleet, metrics) = (Arc::new(Mutex::new(Fleet::default())), Arc::new(Metrics::new().unwrap()));
    let health = Arc::new(Health::default());
    health.wait_for(FIRST_PULL);
    let puller = Puller {
        fleet: Arc::clone(&fleet),
        metrics: Arc::clone(&metrics),
        health: Arc::clone(&health),
        tls: settings,
        interval: Duration::from_millis(100),
        news,
    };
    tokio::spawn(pull::run(Arc::new(puller), source));
    let agents = agents.iter().map(|(node, address)| {
        let agent = Agent { pod: format!("agent-{node}"), node: (*node).to_owned(), address: *address };
        ((*node).to_owned(), agent)
    });
    publish.send_replace(Some(Arc::new(agents.collect())));
    Controller { fleet, metrics, health, news: heard, _tls: tls, _agents: publish }
}

impl Controller {
    async fn heard(&mut self, merges: u64) {
        self.news.wait_for(|count| *count >= merges).await.unwrap();
    }

    fn count(&self, name: &str, label: &str) -> f64 {
        let families = self.metrics.registry().gather();
        let family = families.iter().find(|family| family.name() == name).unwrap();
        let metric = family.get_metric().iter().find(|metric| metric.get_label()[0].value() == label).unwrap();
        metric.get_counter().get_value()
    }

    async fn counts(&self, name: &str, label: &str) {
        eventually(label, async || (self.count(name, label) > 0.0).then_some(())).await;
    }
}

/// An honest agent, a second further with each answer; its epoch changes after `restart_after` answers.
async fn honest(bundle: &Bundle, node: &'static str, restart_after: u64) -> Played {
    let mut answers = 0;
    let say = move |since: Option<Cursor>| {
        answers += 1;
        let (epoch, second) = (1 + answers / restart_after, 1000 + answers);
        let from = since.filter(|since| since.epoch == epoch).map_or(second, |since| since.seq + 1);
        let report = report(node, Cursor { epoch, seq: second }, from..=second);
        (StatusCode::OK, serde_json::to_vec(&report).unwrap())
    };
    play(&agent_material(bundle), Box::new(say)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_pull_asks_for_what_is_later_than_the_last_and_a_restart_continues_the_series() {
    let bundle = Bundle::new(now()).unwrap();
    let agent = honest(&bundle, "a", 4).await;
    let mut controller = controller(&bundle, &[("a", agent.address)]);
    controller.heard(6).await;
    let asked = agent.asked.lock().unwrap().clone();
    let cursor = |epoch, seq| Some(Cursor { epoch, seq });
    assert_eq!(asked[..5], [None, cursor(1, 1001), cursor(1, 1002), cursor(1, 1003), cursor(2, 1004)]);
    assert_eq!(controller.health.waiting(), [] as [&str; 0]);
    let exported = lock(&controller.fleet).export("", Instant::now()).unwrap();
    let gpumem::api::usage::SeriesData::State(series) = &exported.series[0].data else { panic!() };
    assert!(series.samples() >= 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_impostor_on_a_recycled_address_is_not_heard() {
    let (bundle, other) = (Bundle::new(now()).unwrap(), Bundle::new(now()).unwrap());
    let stranger = honest(&other, "a", 1000).await;
    let controller = controller(&bundle, &[("a", stranger.address)]);
    controller.counts("gpumem_controller_pulls_total", "tls").await;
    assert_eq!(lock(&controller.fleet).counts().nodes, 0);
    assert_eq!(stranger.asked.lock().unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controllers_certificate_does_not_pass_for_an_agents() {
    let bundle = Bundle::new(now()).unwrap();
    let say = |_| (StatusCode::OK, b"{}".to_vec());
    let wrong = play(&controller_material(&bundle), Box::new(say)).await;
    let controller = controller(&bundle, &[("a", wrong.address)]);
    controller.counts("gpumem_controller_pulls_total", "tls").await;
    assert_eq!(wrong.asked.lock().unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_speaks_for_the_node_that_the_api_says_it_runs_on() {
    let bundle = Bundle::new(now()).unwrap();
    let liar = honest(&bundle, "b", 1000).await;
    let controller = controller(&bundle, &[("a", liar.address)]);
    controller.counts("gpumem_controller_dropped_total", "wrong_node").await;
    assert_eq!(lock(&controller.fleet).counts().nodes, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_an_agent_answers_is_counted_by_kind_and_the_others_go_on() {
    let bundle = Bundle::new(now()).unwrap();
    let table: [(&str, StatusCode, Vec<u8>); 5] = [
        ("malformed", StatusCode::OK, b"not json".to_vec()),
        ("malformed", StatusCode::OK, br#"{"format":1,"now":NaN}"#.to_vec()),
        ("malformed", StatusCode::OK, br#"{"format":99999999999999999999}"#.to_vec()),
        ("status", StatusCode::INTERNAL_SERVER_ERROR, Vec::new()),
        ("too_long", StatusCode::OK, vec![b' '; 17 << 20]),
    ];
    for (kind, status, body) in table {
        let good = honest(&bundle, "good", 1000).await;
        let bad = play(&agent_material(&bundle), Box::new(move |_| (status, body.clone()))).await;
        let mut controller = controller(&bundle, &[("good", good.address), ("bad", bad.address)]);
        controller.counts("gpumem_controller_pulls_total", kind).await;
        controller.heard(2).await;
        assert_eq!(lock(&controller.fleet).counts().nodes, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_gone_does_not_keep_the_replica_from_being_ready() {
    let bundle = Bundle::new(now()).unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let controller = controller(&bundle, &[("gone", free)]);
    controller.counts("gpumem_controller_pulls_total", "connect").await;
    eventually("ready", async || controller.health.waiting().is_empty().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_starting_replica_takes_its_peers_series_and_an_agent_cannot() {
    let bundle = Bundle::new(now()).unwrap();
    let fleet = Arc::new(Mutex::new(Fleet::default()));
    for node in ["a", "b", "c"] {
        let report = report(node, Cursor { epoch: 1, seq: 1030 }, 1000..=1030);
        assert!(lock(&fleet).merge(node, report, Instant::now()).accepted);
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let settings = pki::settings(&bundle).unwrap();
    let (_keep, server) = watch::channel(Some(settings.server));
    let served = Arc::clone(&fleet);
    let handler = move |request: hyper::Request<hyper::body::Incoming>| {
        let answer = peer::answer(&served, &request);
        async move { answer }
    };
    tokio::spawn(gpumem::http::serve(listener, Some(server), handler, std::future::pending()));

    let own = Mutex::new(Fleet::default());
    assert_eq!(peer::take_from(address, settings.client, &own).await.unwrap(), 3);
    assert_eq!(lock(&own).counts(), lock(&fleet).counts());
    assert_eq!(lock(&own).cursor("b"), Some(Cursor { epoch: 1, seq: 1030 }));

    let agent = gpumem::tls::client(&agent_material(&bundle)).unwrap();
    let mut refused = Connection::tls(address, agent, gpumem::api::names::CONTROLLER_TLS_NAME).await;
    let answer = match &mut refused {
        Ok(connection) => connection.get(peer::PATH).await.is_ok(),
        Err(_) => false,
    };
    assert!(!answer, "an agent's certificate opened the peers' port");
}

/// Certificates are checked against the wall clock.
pub fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

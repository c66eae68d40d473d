//! A Kubernetes API that serves pods: a list, and a watch that goes on.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

use super::{NODE, container_id, uid};

/// The API.
pub struct Api {
    state: Arc<State>,
    address: SocketAddr,
    serving: Option<JoinHandle<()>>,
}

struct State {
    pods: Mutex<Pods>,
    events: broadcast::Sender<(u64, String)>,
    requests: Mutex<Vec<String>>,
}

#[derive(Default)]
struct Pods {
    version: u64,
    by_name: BTreeMap<String, Value>,
    log: Vec<(u64, String)>,
}

impl Api {
    /// Serves, and writes a kubeconfig that points there.
    pub async fn start(kubeconfig: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{address}")}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "users": [{"name": "test", "user": {}}],
        });
        std::fs::write(kubeconfig, config.to_string()).unwrap();
        let state = State { pods: Mutex::default(), events: broadcast::channel(1024).0, requests: Mutex::default() };
        let mut api = Self { state: Arc::new(state), address, serving: None };
        api.serve(listener);
        api
    }

    fn serve(&mut self, listener: TcpListener) {
        let state = Arc::clone(&self.state);
        self.serving = Some(tokio::spawn(async move {
            // Dropped with the task, and the open connections with it.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&state);
                connections.spawn(async move {
                    let service = service_fn(move |request| {
                        let answer = answer(&state, &request);
                        async move { Ok::<_, Infallible>(answer) }
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        }));
    }

    /// Goes away, open watches included.
    pub async fn stop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            let _ = serving.await;
        }
    }

    /// Comes back on the same address.
    pub async fn resume(&mut self) {
        let address = self.address;
        let listener = super::eventually("the address is free", async || TcpListener::bind(address).await.ok()).await;
        self.serve(listener);
    }

    /// Every request so far, as `METHOD path?query`.
    pub fn requests(&self) -> Vec<String> {
        self.state.requests.lock().unwrap().clone()
    }

    /// Creates or replaces a pod.
    pub fn apply(&self, mut pod: Value) {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        let mut pods = self.state.pods.lock().unwrap();
        pods.version += 1;
        pod["metadata"]["resourceVersion"] = pods.version.to_string().into();
        let kind = if pods.by_name.insert(name, pod.clone()).is_some() { "MODIFIED" } else { "ADDED" };
        self.publish(&mut pods, kind, &pod);
    }

    pub fn delete(&self, name: &str) {
        let mut pods = self.state.pods.lock().unwrap();
        let Some(mut pod) = pods.by_name.remove(name) else { return };
        pods.version += 1;
        pod["metadata"]["resourceVersion"] = pods.version.to_string().into();
        self.publish(&mut pods, "DELETED", &pod);
    }

    fn publish(&self, pods: &mut Pods, kind: &str, pod: &Value) {
        let event = format!("{}\n", json!({"type": kind, "object": pod}));
        pods.log.push((pods.version, event.clone()));
        let _ = self.state.events.send((pods.version, event));
    }
}

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

fn answer(state: &Arc<State>, request: &Request<Incoming>) -> Answer {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let line = format!("{} {}?{query}", request.method(), request.uri().path());
    state.requests.lock().unwrap().push(line);
    if request.method() != hyper::Method::GET || request.uri().path() != "/api/v1/pods" {
        return plain(StatusCode::FORBIDDEN, &json!({"kind": "Status", "code": 403, "status": "Failure"}));
    }
    let pods = state.pods.lock().unwrap();
    if !query.contains("watch=true") {
        let items: Vec<&Value> = pods.by_name.values().collect();
        let list = json!({
            "apiVersion": "v1", "kind": "PodList",
            "metadata": {"resourceVersion": pods.version.to_string()}, "items": items,
        });
        return plain(StatusCode::OK, &list);
    }
    let since = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")?.parse().ok()).unwrap_or(0);
    let missed: Vec<_> =
        pods.log.iter().filter(|(version, _)| *version > since).map(|(_, event)| event.clone()).collect();
    let newest = pods.version;
    let events = futures::stream::unfold(state.events.subscribe(), |mut events| async move {
        Some((events.recv().await.ok()?, events))
    });
    let later = events.filter_map(move |(version, event)| std::future::ready((version > newest).then_some(event)));
    let body = futures::stream::iter(missed).chain(later).map(|event| Ok(Frame::data(Bytes::from(event))));
    Response::new(BodyExt::boxed_unsync(StreamBody::new(body)))
}

fn plain(status: StatusCode, body: &Value) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body.to_string())).boxed_unsync());
    *answer.status_mut() = status;
    answer
}

/// A running pod of the node, its containers named; their ids are made from `pod/container`.
pub fn pod(name: &str, containers: &[&str]) -> Value {
    let statuses: Vec<Value> = containers
        .iter()
        .map(|container| {
            let id = container_id(&format!("{name}/{container}"));
            json!({"name": container, "containerID": format!("containerd://{id}"), "ready": true})
        })
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "team", "uid": uid(name), "labels": {"app": name},
            "annotations": {"gpumem.dev/actions": "Enabled", "secret.io/token": "not for us"},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid("owner"), "controller": true}],
        },
        "spec": {"nodeName": NODE, "containers": []},
        "status": {"phase": "Running", "containerStatuses": statuses},
    })
}

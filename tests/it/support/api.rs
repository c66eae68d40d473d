//! A Kubernetes API that serves pods and GpuMemoryNodes: a list, and a watch that goes on.

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
    pods: Table,
    nodes: Table,
    requests: Mutex<Vec<String>>,
}

struct Table {
    objects: Mutex<Objects>,
    events: broadcast::Sender<(u64, String)>,
}

impl Default for Table {
    fn default() -> Self {
        Self { objects: Mutex::default(), events: broadcast::channel(1024).0 }
    }
}

#[derive(Default)]
struct Objects {
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
        let state = State { pods: Table::default(), nodes: Table::default(), requests: Mutex::default() };
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
    pub fn apply(&self, pod: Value) {
        self.state.pods.apply(pod);
    }

    pub fn delete(&self, name: &str) {
        self.state.pods.delete(name);
    }

    /// Creates or replaces a GpuMemoryNode.
    pub fn apply_node(&self, node: Value) {
        self.state.nodes.apply(node);
    }

    pub fn delete_node(&self, name: &str) {
        self.state.nodes.delete(name);
    }

    pub fn node(&self, name: &str) -> Option<Value> {
        self.state.nodes.objects.lock().unwrap().by_name.get(name).cloned()
    }
}

impl Table {
    fn apply(&self, mut object: Value) {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let mut objects = self.objects.lock().unwrap();
        objects.version += 1;
        object["metadata"]["resourceVersion"] = objects.version.to_string().into();
        let kind = if objects.by_name.insert(name, object.clone()).is_some() { "MODIFIED" } else { "ADDED" };
        self.publish(&mut objects, kind, &object);
    }

    fn delete(&self, name: &str) {
        let mut objects = self.objects.lock().unwrap();
        let Some(mut object) = objects.by_name.remove(name) else { return };
        objects.version += 1;
        object["metadata"]["resourceVersion"] = objects.version.to_string().into();
        self.publish(&mut objects, "DELETED", &object);
    }

    fn publish(&self, objects: &mut Objects, kind: &str, object: &Value) {
        let event = format!("{}\n", json!({"type": kind, "object": object}));
        objects.log.push((objects.version, event.clone()));
        let _ = self.events.send((objects.version, event));
    }
}

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

fn answer(state: &Arc<State>, request: &Request<Incoming>) -> Answer {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let line = format!("{} {}?{query}", request.method(), request.uri().path());
    state.requests.lock().unwrap().push(line);
    let (table, kind, version) = match (request.method(), request.uri().path()) {
        (&hyper::Method::GET, "/api/v1/pods") => (&state.pods, "PodList", "v1"),
        (&hyper::Method::GET, "/apis/gpumem.dev/v1alpha1/gpumemorynodes") => {
            (&state.nodes, "GpuMemoryNodeList", "gpumem.dev/v1alpha1")
        }
        _ => return plain(StatusCode::FORBIDDEN, &json!({"kind": "Status", "code": 403, "status": "Failure"})),
    };
    let pods = table.objects.lock().unwrap();
    if !query.contains("watch=true") {
        let items: Vec<&Value> = pods.by_name.values().collect();
        let list = json!({
            "apiVersion": version, "kind": kind,
            "metadata": {"resourceVersion": pods.version.to_string()}, "items": items,
        });
        return plain(StatusCode::OK, &list);
    }
    let since = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")?.parse().ok()).unwrap_or(0);
    let missed: Vec<_> =
        pods.log.iter().filter(|(version, _)| *version > since).map(|(_, event)| event.clone()).collect();
    let newest = pods.version;
    let events = futures::stream::unfold(table.events.subscribe(), |mut events| async move {
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

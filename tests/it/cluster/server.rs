//! A stateful API server as a `tower::Service`: objects with resourceVersions, compare-and-swap, server-side apply as far
//! as we use it, label selectors, watches, and the Eviction API with its arithmetic. Every request is written down, and
//! faults can be set: a crash before or after the n-th request, an outage, an answer of its own for evictions.

use std::collections::{BTreeMap, HashSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};

use futures::StreamExt as _;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, broadcast};

use super::evictions;

/// Group, plural, namespace and name of an object; the version plays no part.
pub type Key = (String, String, String, String);

/// One request as it came.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: Method,
    pub path: String,
    pub query: String,
    pub body: Value,
}

impl Seen {
    /// Whether it is one of this method whose path ends so.
    pub fn is(&self, method: &Method, end: &str) -> bool {
        self.method == *method && self.path.ends_with(end)
    }

    pub fn is_write(&self) -> bool {
        self.method != Method::GET
    }
}

/// The state of the server.
pub struct World {
    pub objects: BTreeMap<Key, Value>,
    pub log: Vec<Seen>,
    /// Objects as they were created by `replacements`, see [`super::scene`].
    pub uids: u64,
    version: u64,
    news: broadcast::Sender<(Key, Value)>,
    /// Answers given to the next evictions instead of the server's own.
    pub eviction_answers: Vec<(StatusCode, Value)>,
    /// Answers given once to the next request of this method whose path ends so, instead of the server's own.
    pub given: Vec<(Method, String, (StatusCode, Value))>,
    /// Requests of this method whose path ends so never get an answer.
    pub hangs: Option<(Method, String)>,
    /// Who owns the replicas of every workload, if not us.
    pub replicas_owner: Option<String>,
    /// How long answers take, and what came of that; `None` where they come at once.
    pub waits: Option<Waits>,
    /// Watches say nothing, and never end.
    pub silent: bool,
    /// Whether every request fails: the server is away.
    pub away: bool,
    /// Answers `503` to requests whose path contains this.
    pub broken: Option<String>,
    /// Answers `403` to requests whose path contains this.
    pub forbidden: Option<String>,
    /// What discovery tells of: `group/version`, and names of resources and subresources there.
    pub served: BTreeMap<String, Vec<String>>,
    crash: Option<(usize, Crash)>,
    /// Runs once before the first request whose method and path match: the world changes in the middle of a round.
    hooks: Vec<(Method, String, Hook)>,
    /// UIDs of pods that were evicted, in order.
    pub evicted: Vec<String>,
    /// Logs by the name of the pod.
    pub logs: BTreeMap<String, String>,
    /// Managers that wrote `metadata.name` by apply, with force.
    pub forced: HashSet<String>,
}

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;
type Hook = Box<dyn FnOnce(&mut World) + Send>;

/// When the controller dies: the request is lost, or it is done and its answer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    Before,
    After,
}

/// Turns of the runtime that an answer takes where it takes time: enough for everything to come that does not wait for it.
const TURNS: usize = 25;

/// Counts answers that had to be waited for one after the other, which times an answer's time is how long a caller waits. The
/// machine's own speed plays no part.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waits {
    /// Time that each answer takes in truth; only a bench looks at a clock.
    pub latency: std::time::Duration,
    /// So many answers, one after the other.
    pub in_a_row: usize,
    /// Requests under way, and the most of them there ever were.
    pub under_way: usize,
    pub most: usize,
}

impl Waits {
    fn begin(&mut self) -> usize {
        self.under_way += 1;
        self.most = self.most.max(self.under_way);
        self.in_a_row
    }

    fn end(&mut self, began: usize) {
        self.under_way -= 1;
        self.in_a_row = self.in_a_row.max(began + 1);
    }
}

/// The server.
#[derive(Clone)]
pub struct Api {
    world: Arc<Mutex<World>>,
    /// Notified when the controller's crash point is reached; its request never ends.
    pub crashed: Arc<Notify>,
}

impl Api {
    pub fn new() -> Self {
        let world = World {
            objects: BTreeMap::new(),
            log: Vec::new(),
            uids: 0,
            version: 1,
            news: broadcast::channel(1024).0,
            eviction_answers: Vec::new(),
            given: Vec::new(),
            hangs: None,
            replicas_owner: None,
            waits: None,
            silent: false,
            away: false,
            broken: None,
            forbidden: None,
            served: BTreeMap::new(),
            crash: None,
            hooks: Vec::new(),
            evicted: Vec::new(),
            logs: BTreeMap::new(),
            forced: HashSet::new(),
        };
        Self { world: Arc::new(Mutex::new(world)), crashed: Arc::new(Notify::new()) }
    }

    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    pub fn client(&self) -> kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.serve(request).await) }
        });
        kube::Client::new(service, "default")
    }

    async fn serve(&self, request: Request<Body>) -> Answer {
        let (parts, body) = request.into_parts();
        let bytes = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let seen = Seen {
            method: parts.method,
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        };
        if seen.query.contains("watch=") {
            return self.watch(&seen);
        }
        // So that two controllers in one test take turns at every request.
        tokio::task::yield_now().await;
        self.wait().await;
        let crash = self.world().arrives(&seen);
        let hangs = self.world().hangs.as_ref().is_some_and(|(method, end)| seen.is(method, end));
        if hangs {
            return std::future::pending().await;
        }
        if crash == Some(Crash::Before) {
            return self.die().await;
        }
        let (status, answer) = self.world().answer(&seen);
        if crash == Some(Crash::After) {
            return self.die().await;
        }
        // A log is text, everything else an object.
        let text = answer.as_str().map_or_else(|| answer.to_string(), str::to_owned);
        let body = http_body_util::Full::new(Bytes::from(text));
        Response::builder().status(status).body(body.boxed_unsync()).unwrap()
    }

    /// Lets whatever else is asked for at the same time come first.
    async fn wait(&self) {
        let begun = self.world().waits.as_mut().map(|waits| (waits.begin(), waits.latency));
        let Some((began, latency)) = begun else { return };
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        if let Some(waits) = &mut self.world().waits {
            waits.end(began);
        }
    }

    async fn die(&self) -> Answer {
        self.crashed.notify_one();
        std::future::pending().await
    }

    fn watch(&self, seen: &Seen) -> Answer {
        let path = Path::parse(&seen.path);
        let api = self.clone();
        let news = stream(self.world().news.subscribe()).filter_map(move |(key, object)| {
            let wanted = key.0 == path.group && key.1 == path.plural && !api.world().silent;
            let line = format!("{}\n", json!({"type": "MODIFIED", "object": object}));
            std::future::ready(wanted.then(|| Ok(Frame::data(Bytes::from(line)))))
        });
        Response::new(StreamBody::new(news).boxed_unsync())
    }
}

fn stream(receiver: broadcast::Receiver<(Key, Value)>) -> impl futures::Stream<Item = (Key, Value)> + Send {
    futures::stream::unfold(
        receiver,
        |mut receiver| async move { receiver.recv().await.ok().map(|item| (item, receiver)) },
    )
}

/// Where a request goes.
#[derive(Clone, Debug)]
pub struct Path {
    pub group: String,
    pub plural: String,
    pub namespace: String,
    pub name: String,
    pub subresource: String,
}

impl Path {
    fn parse(path: &str) -> Self {
        let mut parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let group = if parts[0] == "api" { String::new() } else { parts.remove(1).to_owned() };
        parts.drain(..2);
        let namespaced = parts.first() == Some(&"namespaces") && parts.len() > 2;
        let namespace = if namespaced { parts[1].to_owned() } else { String::new() };
        if namespaced {
            parts.drain(..2);
        }
        let part = |index: usize| parts.get(index).copied().unwrap_or_default().to_owned();
        Self { group, namespace, plural: part(0), name: part(1), subresource: part(2) }
    }

    fn key(&self) -> Key {
        (self.group.clone(), self.plural.clone(), self.namespace.clone(), self.name.clone())
    }
}

pub fn failure(code: u16, reason: &str, message: &str) -> (StatusCode, Value) {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message});
    (StatusCode::from_u16(code).unwrap(), body)
}

impl World {
    /// Stores an object as it is, giving it UID, version and generation.
    pub fn put(&mut self, group: &str, plural: &str, mut object: Value) {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let key = (group.to_owned(), plural.to_owned(), text("/metadata/namespace"), text("/metadata/name"));
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if object["metadata"]["uid"].is_null() {
            self.uids += 1;
            object["metadata"]["uid"] = json!(format!("uid-{}", self.uids));
        }
        if object["metadata"]["generation"].is_null() {
            object["metadata"]["generation"] = json!(1);
        }
        self.objects.insert(key.clone(), object.clone());
        let _ = self.news.send((key, object));
    }

    pub fn get(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<&Value> {
        self.objects.get(&(group.to_owned(), plural.to_owned(), namespace.to_owned(), name.to_owned()))
    }

    /// Changes a stored object.
    pub fn edit(&mut self, group: &str, plural: &str, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.get(group, plural, namespace, name).expect("the object is there").clone();
        let spec = object["spec"].clone();
        change(&mut object);
        if object["spec"] != spec {
            object["metadata"]["generation"] = json!(object["metadata"]["generation"].as_i64().unwrap_or(1) + 1);
        }
        self.put(group, plural, object);
    }

    pub fn remove(&mut self, group: &str, plural: &str, namespace: &str, name: &str) {
        self.objects.remove(&(group.to_owned(), plural.to_owned(), namespace.to_owned(), name.to_owned()));
    }

    pub fn list(&self, group: &str, plural: &str, namespace: &str) -> Vec<&Value> {
        let wanted = |key: &&Key| key.0 == group && key.1 == plural && (namespace.is_empty() || key.2 == namespace);
        self.objects.iter().filter(|(key, _)| wanted(key)).map(|(_, object)| object).collect()
    }

    /// The controller dies at the n-th request from now.
    pub fn crash_at(&mut self, request: usize, crash: Crash) {
        self.crash = Some((self.log.len() + request, crash));
    }

    /// Changes the world right before a request is answered.
    pub fn before(&mut self, method: Method, path: &str, hook: impl FnOnce(&mut World) + Send + 'static) {
        self.hooks.push((method, path.to_owned(), Box::new(hook)));
    }

    /// Requests whose path contains `part`.
    pub fn requests(&self, method: &Method, part: &str) -> Vec<Seen> {
        self.log.iter().filter(|seen| seen.method == method && seen.path.contains(part)).cloned().collect()
    }

    fn arrives(&mut self, seen: &Seen) -> Option<Crash> {
        let index = self.log.len();
        self.log.push(seen.clone());
        if let Some(at) =
            self.hooks.iter().position(|(method, path, _)| *method == seen.method && seen.path.contains(path))
        {
            let (_, _, hook) = self.hooks.remove(at);
            hook(self);
        }
        self.crash.filter(|(at, _)| *at == index).map(|(_, crash)| crash)
    }

    fn answer(&mut self, seen: &Seen) -> (StatusCode, Value) {
        let matches = |pattern: &Option<String>| pattern.as_ref().is_some_and(|part| seen.path.contains(part));
        if self.away || matches(&self.broken) {
            return failure(503, "ServiceUnavailable", "the server is away");
        }
        if matches(&self.forbidden) {
            return failure(403, "Forbidden", "not permitted");
        }
        if let Some(at) = self.given.iter().position(|(method, end, _)| seen.is(method, end)) {
            return self.given.remove(at).2;
        }
        if let Some(answer) = self.discover(&seen.path) {
            return answer;
        }
        let path = Path::parse(&seen.path);
        if path.subresource == "eviction" {
            let answer = self.eviction_answers.pop();
            return answer.unwrap_or_else(|| evictions::evict(self, &path, seen));
        }
        if path.subresource == "log" {
            return match self.logs.get(&path.name) {
                Some(log) => (StatusCode::OK, json!(log)),
                None => failure(400, "BadRequest", "previous terminated container not found"),
            };
        }
        match (seen.method.clone(), path.name.is_empty()) {
            (Method::GET, true) => self.answer_list(&path, seen),
            (Method::GET, false) => match self.objects.get(&path.key()) {
                Some(object) => (StatusCode::OK, self.with_ready_replicas(&path, object.clone())),
                None => failure(404, "NotFound", "not found"),
            },
            (Method::POST, _) => self.create(&path, seen),
            (Method::PUT, _) => self.replace(&path, seen),
            (Method::PATCH, _) => self.patch(&path, seen),
            (Method::DELETE, _) => match self.objects.remove(&path.key()) {
                Some(object) => (StatusCode::OK, object),
                None => failure(404, "NotFound", "not found"),
            },
            (method, _) => failure(405, "MethodNotAllowed", method.as_str()),
        }
    }

    fn discover(&self, path: &str) -> Option<(StatusCode, Value)> {
        if path == "/apis" {
            let groups = self.served.keys().map(|api_version| {
                let (group, version) = api_version.split_once('/').unwrap();
                let version = json!({"groupVersion": api_version, "version": version});
                json!({"name": group, "versions": [version], "preferredVersion": version})
            });
            let groups: Vec<Value> = groups.collect();
            return Some((StatusCode::OK, json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})));
        }
        let api_version = path.strip_prefix("/apis/").filter(|rest| rest.matches('/').count() == 1)?;
        let Some(names) = self.served.get(api_version) else {
            return Some(failure(404, "NotFound", "the server could not find the requested resource"));
        };
        let resource = |name: &String| json!({"name": name, "singularName": "", "namespaced": true, "kind": "K", "verbs": ["get"]});
        let resources: Vec<Value> = names.iter().map(resource).collect();
        let list =
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": resources});
        Some((StatusCode::OK, list))
    }

    /// What the controllers of the workloads would have written by now.
    fn with_ready_replicas(&self, path: &Path, mut object: Value) -> Value {
        if ["deployments", "statefulsets", "jobs"].contains(&path.plural.as_str()) {
            let app = &object["spec"]["selector"]["matchLabels"]["app"];
            if path.plural == "jobs" && app.is_null() {
                return object;
            }
            let pods = self.list("", "pods", &path.namespace).into_iter();
            let ready = pods.filter(|pod| pod["metadata"]["labels"]["app"] == *app && evictions::is_ready(pod)).count();
            let field = if path.plural == "jobs" { "ready" } else { "readyReplicas" };
            object["status"][field] = json!(ready);
        }
        object
    }

    fn answer_list(&self, path: &Path, seen: &Seen) -> (StatusCode, Value) {
        let selector = form_value(&seen.query, "labelSelector");
        let items: Vec<&Value> = self
            .list(&path.group, &path.plural, &path.namespace)
            .into_iter()
            .filter(|object| selector.as_deref().is_none_or(|selector| selects(selector, object)))
            .collect();
        (
            StatusCode::OK,
            json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": self.version.to_string()}, "items": items}),
        )
    }

    fn create(&mut self, path: &Path, seen: &Seen) -> (StatusCode, Value) {
        let mut object = seen.body.clone();
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if self.get(&path.group, &path.plural, &path.namespace, &name).is_some() {
            return failure(409, "AlreadyExists", "already exists");
        }
        object["metadata"]["namespace"] = json!(path.namespace);
        self.put(&path.group, &path.plural, object);
        (StatusCode::CREATED, self.get(&path.group, &path.plural, &path.namespace, &name).unwrap().clone())
    }

    fn replace(&mut self, path: &Path, seen: &Seen) -> (StatusCode, Value) {
        let Some(known) = self.objects.get(&path.key()) else { return failure(404, "NotFound", "not found") };
        let sent = &seen.body["metadata"]["resourceVersion"];
        if !sent.is_null() && *sent != known["metadata"]["resourceVersion"] {
            return failure(409, "Conflict", "the object has been modified");
        }
        self.put(&path.group, &path.plural, seen.body.clone());
        (StatusCode::OK, self.objects[&path.key()].clone())
    }

    fn patch(&mut self, path: &Path, seen: &Seen) -> (StatusCode, Value) {
        if seen.query.contains("force=true") {
            self.forced.insert(path.name.clone());
        }
        let is_apply = seen.query.contains("fieldManager");
        let known = self.objects.get(&path.key()).cloned();
        let mut object = match known {
            None if !is_apply || !path.subresource.is_empty() => return failure(404, "NotFound", "not found"),
            None => json!({"metadata": {"name": path.name, "namespace": path.namespace}}),
            Some(known) => known,
        };
        for precondition in ["resourceVersion", "uid"] {
            let sent = &seen.body["metadata"][precondition];
            if !sent.is_null() && *sent != object["metadata"][precondition] {
                return failure(409, "Conflict", "the object has been modified");
            }
        }
        let spec = object["spec"].clone();
        match path.subresource.as_str() {
            "scale" => {
                if let Some(owner) = self.replicas_owner.as_ref().filter(|_| !seen.query.contains("force=true")) {
                    return owned_by_other(owner);
                }
                object["spec"]["replicas"] = seen.body["spec"]["replicas"].clone();
            }
            // What a manager applied before and leaves out now is removed; there is one manager here.
            "status" => object["status"] = seen.body["status"].clone(),
            _ => merge(&mut object, &seen.body),
        }
        if object["spec"] != spec && object["metadata"]["generation"].is_number() {
            object["metadata"]["generation"] = json!(object["metadata"]["generation"].as_i64().unwrap_or(1) + 1);
        }
        if !seen.query.contains("dryRun=All") {
            self.put(&path.group, &path.plural, object.clone());
            object = self.objects[&path.key()].clone();
        }
        if path.subresource == "scale" {
            object = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": object["metadata"], "spec": {"replicas": object["spec"]["replicas"]}});
        }
        (StatusCode::OK, object)
    }
}

/// What the server says of a field that another manager owns.
fn owned_by_other(owner: &str) -> (StatusCode, Value) {
    let mut refusal = failure(409, "Conflict", &format!("Apply failed with 1 conflict: conflict with \"{owner}\""));
    let cause = json!({
        "reason": "FieldManagerConflict", "message": format!("conflict with \"{owner}\""), "field": ".spec.replicas"
    });
    refusal.1["details"] = json!({"causes": [cause]});
    refusal
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                if value.is_null() {
                    into.remove(key);
                    continue;
                }
                merge(into.entry(key.clone()).or_insert(Value::Object(Map::new())), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

fn form_value(query: &str, key: &str) -> Option<String> {
    let (_, value) = query.split('&').filter_map(|pair| pair.split_once('=')).find(|(name, _)| *name == key)?;
    let value = value.replace("%3D", "=").replace("%2C", ",").replace('+', " ").replace("%2F", "/");
    Some(value.replace("%28", "(").replace("%29", ")").replace("%20", " "))
}

/// Equalities, or one set: our tests' selectors need no more.
fn selects(selector: &str, object: &Value) -> bool {
    if let Some((key, values)) = selector.split_once(" in (") {
        let label = object["metadata"]["labels"][key].as_str();
        return values.trim_end_matches(')').split(',').any(|value| label == Some(value));
    }
    selector
        .split(',')
        .filter_map(|term| term.split_once('='))
        .all(|(key, value)| object["metadata"]["labels"][key].as_str() == Some(value))
}

//! A Kubernetes API in this process: objects by path, created once, replaced only with their newest version.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use kube::client::Body;
use serde_json::{Value, json};

#[derive(Clone, Default)]
pub struct Api {
    objects: Arc<Mutex<BTreeMap<String, Value>>>,
    writes: Arc<Mutex<Vec<String>>>,
    hangs: Arc<AtomicBool>,
}

impl Api {
    pub fn client(&self) -> kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let api = api.clone();
            async move {
                if api.hangs.load(Ordering::SeqCst) {
                    std::future::pending::<()>().await;
                }
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let (code, answer) = api.answer(head.method.as_str(), head.uri.path(), &body);
                let body = Full::new(Bytes::from(answer.to_string()));
                Ok::<_, Infallible>(http::Response::builder().status(code).body(body).unwrap())
            }
        });
        kube::Client::new(service, "gpumem")
    }

    /// From now on requests get no answer, or do again.
    pub fn hang(&self, hangs: bool) {
        self.hangs.store(hangs, Ordering::SeqCst);
    }

    /// `METHOD name` of every write that succeeded.
    pub fn writes(&self) -> Vec<String> {
        self.writes.lock().unwrap().clone()
    }

    /// The only object whose path ends so.
    pub fn object(&self, name: &str) -> Value {
        let objects = self.objects.lock().unwrap();
        objects.iter().find(|(path, _)| path.ends_with(&format!("/{name}"))).map(|(_, object)| object.clone()).unwrap()
    }

    /// Changes an object behind everybody's back.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut objects = self.objects.lock().unwrap();
        let object = objects.iter_mut().find(|(path, _)| path.ends_with(&format!("/{name}"))).unwrap().1;
        change(object);
        bump(object);
    }

    fn answer(&self, method: &str, path: &str, body: &[u8]) -> (u16, Value) {
        let mut objects = self.objects.lock().unwrap();
        match method {
            "GET" => objects.get(path).map_or_else(|| failure(404, "NotFound"), |object| (200, object.clone())),
            "POST" => {
                let mut object: Value = serde_json::from_slice(body).unwrap();
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                let path = format!("{path}/{name}");
                if objects.contains_key(&path) {
                    return failure(409, "AlreadyExists");
                }
                bump(&mut object);
                self.writes.lock().unwrap().push(format!("POST {name}"));
                objects.insert(path, object.clone());
                (201, object)
            }
            "PUT" => {
                let mut object: Value = serde_json::from_slice(body).unwrap();
                let Some(known) = objects.get(path) else { return failure(404, "NotFound") };
                if known["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
                    return failure(409, "Conflict");
                }
                bump(&mut object);
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                self.writes.lock().unwrap().push(format!("PUT {name}"));
                objects.insert(path.to_owned(), object.clone());
                (200, object)
            }
            other => panic!("{other} {path}"),
        }
    }
}

fn bump(object: &mut Value) {
    let version = object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse::<u64>().ok());
    object["metadata"]["resourceVersion"] = (version.unwrap_or(0) + 1).to_string().into();
}

fn failure(code: u16, reason: &str) -> (u16, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": reason,
    });
    (code, status)
}

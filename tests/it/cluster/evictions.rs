//! The Eviction API with the arithmetic of PodDisruptionBudgets, as the real server does it.

use http::StatusCode;
use serde_json::{Value, json};

use super::server::{Path, Seen, World, failure};

const SEVERAL: &str =
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";

pub fn evict(world: &mut World, path: &Path, seen: &Seen) -> (StatusCode, Value) {
    let Some(pod) = world.get("", "pods", &path.namespace, &path.name).cloned() else {
        return failure(404, "NotFound", "pods not found");
    };
    let wanted = &seen.body["deleteOptions"]["preconditions"]["uid"];
    if !wanted.is_null() && *wanted != pod["metadata"]["uid"] {
        return failure(409, "Conflict", "the UID in the precondition does not match the UID in record");
    }
    let budgets: Vec<Value> = world
        .list("policy", "poddisruptionbudgets", &path.namespace)
        .into_iter()
        .filter(|budget| {
            let labels = budget["spec"]["selector"]["matchLabels"].as_object();
            labels.is_some_and(|labels| labels.iter().all(|(key, value)| pod["metadata"]["labels"][key] == *value))
        })
        .cloned()
        .collect();
    if budgets.len() > 1 {
        return failure(500, "InternalError", SEVERAL);
    }
    if let Some(budget) = budgets.first() {
        let selected = world.list("", "pods", &path.namespace).into_iter().filter(|other| {
            let labels = budget["spec"]["selector"]["matchLabels"].as_object().unwrap();
            labels.iter().all(|(key, value)| other["metadata"]["labels"][key] == *value)
        });
        let healthy = selected.filter(|other| is_ready(other)).count() as u64;
        if healthy <= budget["spec"]["minAvailable"].as_u64().unwrap_or(0) {
            let mut refusal =
                failure(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.");
            refusal.1["details"] =
                json!({"causes": [{"reason": "DisruptionBudget", "message": "needs more healthy pods"}]});
            return refusal;
        }
    }
    if !seen.query.contains("dryRun=All") {
        world.evicted.push(pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned());
        world.edit("", "pods", &path.namespace, &path.name, |pod| {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        });
    }
    (StatusCode::CREATED, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
}

pub fn is_ready(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_null()
        && pod["status"]["conditions"]
            .as_array()
            .is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
}

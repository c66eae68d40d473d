//! How many pods a workload has and how many of them are Ready, as its own spec and status say: pods are not listed.

use gpumem_engine::pacing::Group;
use kube::core::DynamicObject;
use serde_json::Value;

use super::kind::Kind;
use super::number;

/// The group that an object is; `None` where another object tells, see [`super::group`].
pub fn group(kind: Kind, object: &DynamicObject) -> Option<Group> {
    let (spec, status) = (&object.data["spec"], &object.data["status"]);
    let (desired, ready, rolling_out) = match kind {
        Kind::Deployment => {
            // Pods of an old ReplicaSet are still there. Pods that are merely not Ready are no rollout.
            let old = number::of(&status["replicas"]) > number::of(&status["updatedReplicas"]);
            (number::or(&spec["replicas"], 1), number::of(&status["readyReplicas"]), is_behind(object) || old)
        }
        Kind::ReplicaSet => (number::or(&spec["replicas"], 1), number::of(&status["readyReplicas"]), is_behind(object)),
        Kind::StatefulSet => {
            let updating = !status["updateRevision"].is_null() && status["updateRevision"] != status["currentRevision"];
            (number::or(&spec["replicas"], 1), number::of(&status["readyReplicas"]), is_behind(object) || updating)
        }
        Kind::Rollout => {
            // Between two versions, or at a pause between two steps.
            let (stable, current) = (&status["stableRS"], &status["currentPodHash"]);
            let paused = status["pauseConditions"].as_array().is_some_and(|all| !all.is_empty());
            let between = !stable.is_null() && !current.is_null() && stable != current;
            // This status writes the generation as a string.
            let seen = status["observedGeneration"].as_str().and_then(|text| text.parse::<i64>().ok());
            let behind = seen.is_some_and(|seen| seen < object.metadata.generation.unwrap_or(0));
            (number::or(&spec["replicas"], 1), number::of(&status["readyReplicas"]), behind || between || paused)
        }
        Kind::Job => (job_pods(spec, status), number::of(&status["ready"]), false),
        Kind::JobSet => {
            if spec["suspend"] == true || is_over(status) {
                return Some(Group { desired: 0, ready: 0, rolling_out: false, budgets: 0 });
            }
            let (desired, ready) = job_set(spec, status);
            (desired, ready, false)
        }
        Kind::PyTorchJob => {
            if spec["runPolicy"]["suspend"] == true || is_over(status) {
                return Some(Group { desired: 0, ready: 0, rolling_out: false, budgets: 0 });
            }
            let statuses = entries(&status["replicaStatuses"]);
            let sum = |field: &str| statuses.iter().map(|one| number::of(&one[field])).fold(0, u32::saturating_add);
            (pods(kind, object).saturating_sub(sum("succeeded")), sum("active"), false)
        }
        Kind::RayCluster => {
            if spec["suspend"] == true {
                return Some(Group { desired: 0, ready: 0, rolling_out: false, budgets: 0 });
            }
            let head = u32::from(is_true(status, "HeadPodReady") || status["state"] == "ready");
            let ready = number::of(&status["readyWorkerReplicas"]).saturating_add(head);
            (pods(kind, object), ready, is_behind_if_told(object))
        }
        Kind::LeaderWorkerSet => {
            let size = number::or(&spec["leaderWorkerTemplate"]["size"], 1);
            let ready = number::of(&status["readyReplicas"]).saturating_mul(size);
            (pods(kind, object), ready, is_true(status, "UpdateInProgress"))
        }
        Kind::VolcanoJob => {
            let done = number::of(&status["succeeded"]);
            (pods(kind, object).saturating_sub(done), number::of(&status["running"]), false)
        }
        Kind::CronJob
        | Kind::TrainJob
        | Kind::RayJob
        | Kind::RayService
        | Kind::DaemonSet
        | Kind::Node
        | Kind::Pod
        | Kind::KueueWorkload => return None,
    };
    Some(Group { desired, ready, rolling_out, budgets: 0 })
}

/// Pods that stop when all of the workload does, by its spec.
pub fn pods(kind: Kind, object: &DynamicObject) -> u32 {
    let (spec, status) = (&object.data["spec"], &object.data["status"]);
    match kind {
        Kind::Job => job_pods(spec, status),
        Kind::JobSet => job_set(spec, &Value::Null).0,
        Kind::PyTorchJob => entries(&spec["pytorchReplicaSpecs"])
            .iter()
            .map(|replica| number::or(&replica["replicas"], 1))
            .fold(0, u32::saturating_add),
        // The autoscaler moves the workers; the status says how many it wants now. The head is one more.
        Kind::RayCluster => {
            let told = &status["desiredWorkerReplicas"];
            let workers = if told.is_null() {
                elements(&spec["workerGroupSpecs"])
                    .map(|group| number::of(&group["replicas"]))
                    .fold(0, u32::saturating_add)
            } else {
                number::of(told)
            };
            workers.saturating_add(1)
        }
        Kind::LeaderWorkerSet => {
            let size = number::or(&spec["leaderWorkerTemplate"]["size"], 1);
            number::or(&spec["replicas"], 1).saturating_mul(size)
        }
        Kind::VolcanoJob => {
            elements(&spec["tasks"]).map(|task| number::or(&task["replicas"], 1)).fold(0, u32::saturating_add)
        }
        Kind::Deployment | Kind::ReplicaSet | Kind::StatefulSet | Kind::Rollout => number::or(&spec["replicas"], 1),
        Kind::CronJob
        | Kind::TrainJob
        | Kind::RayJob
        | Kind::RayService
        | Kind::DaemonSet
        | Kind::Node
        | Kind::Pod
        | Kind::KueueWorkload => 1,
    }
}

/// Pods a Job should have now: its parallelism, but no more than are left to complete.
fn job_pods(spec: &Value, status: &Value) -> u32 {
    if spec["suspend"] == true || is_over(status) {
        return 0;
    }
    let left = match &spec["completions"] {
        Value::Null => u32::MAX,
        completions => number::of(completions).saturating_sub(number::of(&status["succeeded"])),
    };
    number::or(&spec["parallelism"], 1).min(left)
}

/// Pods a JobSet should have, and those of Jobs that are ready as a whole.
fn job_set(spec: &Value, status: &Value) -> (u32, u32) {
    let (mut desired, mut ready) = (0_u32, 0_u32);
    for replicated in elements(&spec["replicatedJobs"]) {
        let each = job_pods(&replicated["template"]["spec"], &Value::Null);
        let told = elements(&status["replicatedJobsStatus"]).find(|told| told["name"] == replicated["name"]);
        let (succeeded, whole) =
            told.map_or((0, 0), |told| (number::of(&told["succeeded"]), number::of(&told["ready"])));
        let jobs = number::or(&replicated["replicas"], 1).saturating_sub(succeeded);
        desired = desired.saturating_add(jobs.saturating_mul(each));
        ready = ready.saturating_add(whole.saturating_mul(each));
    }
    (desired, ready)
}

/// Whether it ended, for whatever reason.
fn is_over(status: &Value) -> bool {
    ["Complete", "Completed", "Failed", "Succeeded"].into_iter().any(|condition| is_true(status, condition))
}

fn is_true(status: &Value, condition: &str) -> bool {
    elements(&status["conditions"]).any(|known| known["type"] == condition && known["status"] == "True")
}

/// Whether the status is about an older spec; a status that does not tell is.
fn is_behind(object: &DynamicObject) -> bool {
    object.data["status"]["observedGeneration"].as_i64() < object.metadata.generation
}

/// The same for kinds whose status told nothing in their older versions.
fn is_behind_if_told(object: &DynamicObject) -> bool {
    !object.data["status"]["observedGeneration"].is_null() && is_behind(object)
}

fn elements(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn entries(value: &Value) -> Vec<&Value> {
    value.as_object().map(|map| map.values().collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(kind: Kind, spec: Value, status: Value) -> (u32, u32, bool) {
        let object = json!({"metadata": {"name": "a", "generation": 2}, "spec": spec, "status": status});
        let group = group(kind, &serde_json::from_value(object).unwrap()).unwrap();
        (group.desired, group.ready, group.rolling_out)
    }

    #[test]
    fn each_kind_says_how_many_pods_it_should_have_and_has() {
        let job = |parallelism: u32| json!({"spec": {"parallelism": parallelism, "completions": parallelism}});
        let job_set = json!({"replicatedJobs": [
            {"name": "driver", "template": job(1)}, {"name": "workers", "replicas": 2, "template": job(4)}
        ]});
        let torch = json!({"pytorchReplicaSpecs": {"Master": {}, "Worker": {"replicas": 3}}});
        let ray = json!({"workerGroupSpecs": [{"replicas": 2}, {"replicas": 3}]});
        let group = json!({"replicas": 2, "leaderWorkerTemplate": {"size": 4}});
        let volcano = json!({"tasks": [{"replicas": 1}, {"replicas": 7}]});
        for (kind, spec, status, expected) in [
            (Kind::Deployment, json!({}), json!({"observedGeneration": 2, "readyReplicas": 1}), (1, 1, false)),
            (Kind::Deployment, json!({"replicas": 3}), json!({"observedGeneration": 1}), (3, 0, true)),
            (
                Kind::Deployment,
                json!({"replicas": 3}),
                json!({"observedGeneration": 2, "replicas": 3, "updatedReplicas": 2}),
                (3, 0, true),
            ),
            (
                Kind::ReplicaSet,
                json!({"replicas": 2}),
                json!({"observedGeneration": 2, "readyReplicas": 2}),
                (2, 2, false),
            ),
            (
                Kind::StatefulSet,
                json!({"replicas": 2}),
                json!({"observedGeneration": 2, "updateRevision": "b", "currentRevision": "a"}),
                (2, 0, true),
            ),
            (
                Kind::Rollout,
                json!({"replicas": 2}),
                json!({"observedGeneration": "2", "readyReplicas": 2}),
                (2, 2, false),
            ),
            (Kind::Rollout, json!({}), json!({"observedGeneration": "1"}), (1, 0, true)),
            (Kind::Rollout, json!({}), json!({"stableRS": "a", "currentPodHash": "b"}), (1, 0, true)),
            (Kind::Rollout, json!({}), json!({"pauseConditions": [{"reason": "CanaryPauseStep"}]}), (1, 0, true)),
            (Kind::Job, json!({}), json!({"ready": 1}), (1, 1, false)),
            (
                Kind::Job,
                json!({"parallelism": 4, "completions": 5}),
                json!({"succeeded": 3, "ready": 2}),
                (2, 2, false),
            ),
            (Kind::Job, json!({"parallelism": 4, "suspend": true}), json!({"active": 4}), (0, 0, false)),
            (
                Kind::Job,
                json!({"parallelism": 4}),
                json!({"conditions": [{"type": "Failed", "status": "True"}]}),
                (0, 0, false),
            ),
            (
                Kind::JobSet,
                job_set.clone(),
                json!({"replicatedJobsStatus": [{"name": "workers", "ready": 1}]}),
                (9, 4, false),
            ),
            (
                Kind::JobSet,
                job_set.clone(),
                json!({"replicatedJobsStatus": [{"name": "driver", "succeeded": 1}, {"name": "other", "ready": 9}]}),
                (8, 0, false),
            ),
            (
                Kind::PyTorchJob,
                torch,
                json!({"replicaStatuses": {"Worker": {"active": 2, "succeeded": 1}}}),
                (3, 2, false),
            ),
            (Kind::RayCluster, ray.clone(), json!({}), (6, 0, false)),
            (
                Kind::RayCluster,
                ray,
                json!({"desiredWorkerReplicas": 4, "readyWorkerReplicas": 4, "state": "ready", "observedGeneration": 2}),
                (5, 5, false),
            ),
            (Kind::LeaderWorkerSet, group, json!({"readyReplicas": 1}), (8, 4, false)),
            (Kind::VolcanoJob, volcano, json!({"running": 6, "succeeded": 1}), (7, 6, false)),
        ] {
            assert_eq!(of(kind, spec.clone(), status.clone()), expected, "{kind:?} {spec} {status}");
        }
    }

    #[test]
    fn nonsense_in_a_spec_or_status_is_no_pod_and_never_many() {
        for nonsense in [json!(-4), json!("4"), json!([]), json!(1.5), json!({"a": 1})] {
            let spec = json!({
                "replicas": nonsense, "parallelism": nonsense, "completions": nonsense, "tasks": nonsense,
                "replicatedJobs": nonsense, "workerGroupSpecs": nonsense, "pytorchReplicaSpecs": nonsense,
                "leaderWorkerTemplate": {"size": nonsense}
            });
            for kind in Kind::SWITCHED {
                let object = json!({"metadata": {"name": "a"}, "spec": spec, "status": {"replicas": nonsense, "conditions": nonsense}});
                let object: DynamicObject = serde_json::from_value(object).unwrap();
                assert!(pods(kind, &object) <= 1, "{kind:?} {nonsense}");
                assert!(super::group(kind, &object).is_none_or(|group| group.ready == 0), "{kind:?} {nonsense}");
            }
        }
        let huge = json!({"replicas": u64::MAX, "leaderWorkerTemplate": {"size": u64::MAX}});
        assert_eq!(of(Kind::LeaderWorkerSet, huge, json!({})).0, u32::MAX);
    }
}

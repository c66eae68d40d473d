//! What is found out about a pod's workload: every kind's levers, whose they are, how many pods stop, and what happens
//! where an owner is gone, is another one, may not be read, or is nonsense.

use gpumem::api::convert;
use gpumem::api::policy::GpuMemoryPolicy;
use gpumem::controller::workload::{Chain, Hops, Resolution, Switches, read_group, read_pod, resolve};
use gpumem_engine::decision::{Blast, Hold};
use gpumem_engine::pacing::Stamp;
use gpumem_engine::policy::{Mode, Policy, PolicyKey};
use http::Method;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Controller, POLICIES, owner};

/// One owner: API version, kind, plural, spec and status. Its name and UID are its kind in small letters and a number.
type Owner = (&'static str, &'static str, &'static str, Value, Value);

/// Puts the pod `p` below these owners, nearest first, and gives the name of the top one.
fn below(cluster: &Cluster, owners: &[Owner], change: impl FnOnce(&mut Value)) {
    let reference = |index: usize| {
        owners
            .get(index)
            .map_or(Value::Null, |(api_version, kind, ..)| owner(api_version, kind, &name(index), &uid(index)))
    };
    cluster.pod("p", "p", reference(0), 10_000);
    cluster.world().edit("", "pods", "ml", "p", change);
    for (index, (api_version, kind, plural, spec, status)) in owners.iter().enumerate() {
        let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
        let above = reference(index + 1);
        let owners = if above.is_null() { json!([]) } else { json!([above]) };
        let mut world = cluster.world();
        world.put(
            group,
            plural,
            json!({
                "apiVersion": api_version, "kind": kind,
                "metadata": {"namespace": "ml", "name": name(index), "uid": uid(index), "generation": 1,
                    "ownerReferences": owners},
                "spec": spec, "status": status
            }),
        );
        if group.is_empty() {
            continue;
        }
        let served = world.served.entry((*api_version).to_owned()).or_default();
        served.push((*plural).to_owned());
        if ["deployments", "replicasets", "statefulsets", "rollouts", "leaderworkersets"].contains(plural) {
            served.push(format!("{plural}/scale"));
        }
    }
}

fn name(index: usize) -> String {
    format!("o{index}")
}

fn uid(index: usize) -> String {
    format!("uid-of-o{index}")
}

fn policy(change: impl FnOnce(&mut Value)) -> Policy {
    let cluster = Cluster::new();
    cluster.policy("p", "p", |spec| {
        spec["actions"] = json!([
            {"type": "Scale", "scale": {"via": "Replicas", "step": 1, "maxReplicas": 10}},
            {"type": "SuspendWorkload"}, {"type": "Evict"}
        ]);
        spec["disruption"]["protect"] = json!(["SystemCritical", "DaemonSet", "BarePod"]);
        change(spec);
    });
    let object = cluster.world().get(POLICIES.0, POLICIES.1, "ml", "p").unwrap().clone();
    let object: GpuMemoryPolicy = serde_json::from_value(object).unwrap();
    let key = PolicyKey { namespace: "ml".to_owned(), name: "p".to_owned() };
    convert::policy(key, &object.spec, Mode::Enforce).unwrap()
}

fn protecting(protect: &str) -> Policy {
    policy(|spec| spec["disruption"]["protect"] = json!([protect]))
}

async fn climb(cluster: &Cluster) -> (Hops, Chain) {
    let client = cluster.api.client();
    let facts = read_pod(&client, "ml", "p").await.unwrap().unwrap();
    let hops = Hops::default();
    let chain = hops.climb(&client, "ml", facts.owner.as_ref()).await;
    (hops, chain)
}

async fn look_with(cluster: &Cluster, policy: &Policy, switches: &Switches) -> Resolution {
    let client = cluster.api.client();
    let facts = read_pod(&client, "ml", "p").await.unwrap().unwrap();
    let (hops, chain) = climb(cluster).await;
    resolve(&client, switches, &hops, Stamp(cluster.stamp), policy, &chain, &facts).await
}

async fn look(cluster: &Cluster, policy: &Policy) -> Resolution {
    look_with(cluster, policy, &Switches::everything()).await
}

/// `1` or the reason why not.
fn evict(found: &Resolution) -> String {
    found.evict.as_ref().map_or_else(|why| why.reason().to_owned(), |Blast(pods)| pods.to_string())
}

/// `Job o0 1` or the reason why not.
fn suspend(found: &Resolution) -> String {
    let says = |handle: &gpumem::controller::workload::SuspendHandle| {
        format!("{} {} {}", handle.target.kind, handle.target.name, handle.blast)
    };
    found.suspend.as_ref().map_or_else(|why| why.reason().to_owned(), says)
}

/// `Deployment o1 3` or the reason why not.
fn scale(found: &Resolution) -> String {
    let says = |handle: &gpumem::controller::workload::ScaleHandle| {
        format!("{} {} {}", handle.target.kind, handle.target.name, handle.replicas)
    };
    found.scale.as_ref().map_or_else(|why| why.reason().to_owned(), says)
}

fn replica_set() -> Owner {
    ("apps/v1", "ReplicaSet", "replicasets", json!({"replicas": 3}), json!({}))
}

fn stateful_set() -> Owner {
    ("apps/v1", "StatefulSet", "statefulsets", json!({"replicas": 2}), json!({}))
}

fn job(spec: Value) -> Owner {
    ("batch/v1", "Job", "jobs", spec, json!({}))
}

fn indexed(pods: u32) -> Value {
    json!({"completionMode": "Indexed", "parallelism": pods, "completions": pods})
}

fn job_set() -> Owner {
    let template = json!({"spec": {"parallelism": 4, "completions": 4}});
    let spec = json!({"replicatedJobs": [{"name": "w", "replicas": 2, "template": template}]});
    ("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets", spec, json!({}))
}

fn ray_cluster(spec: Value) -> Owner {
    ("ray.io/v1", "RayCluster", "rayclusters", spec, json!({"desiredWorkerReplicas": 3}))
}

#[tokio::test]
async fn every_kind_has_its_levers_and_counts_the_pods_that_stop() {
    let cron = || ("batch/v1", "CronJob", "cronjobs", json!({}), json!({}));
    let train = || ("trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs", json!({}), json!({}));
    let torch = json!({"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}});
    let lws = |restart: &str| {
        let template = json!({"size": 4, "restartPolicy": restart});
        let spec = json!({"replicas": 2, "leaderWorkerTemplate": template});
        ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets", spec, json!({}))
    };
    let leader = || ("v1", "Pod", "pods", json!({}), json!({}));
    let volcano = json!({"minAvailable": 8, "tasks": [{"replicas": 1}, {"replicas": 7}]});
    let rows: Vec<(&str, Vec<Owner>, &str, &str, &str)> = vec![
        (
            "Deployment",
            vec![replica_set(), ("apps/v1", "Deployment", "deployments", json!({"replicas": 3}), json!({}))],
            "1",
            "NoLever",
            "Deployment o1 3",
        ),
        ("ReplicaSet of its own", vec![replica_set()], "1", "NoLever", "ReplicaSet o0 3"),
        ("StatefulSet", vec![stateful_set()], "1", "NoLever", "StatefulSet o0 2"),
        (
            "Rollout",
            vec![replica_set(), ("argoproj.io/v1alpha1", "Rollout", "rollouts", json!({"replicas": 5}), json!({}))],
            "1",
            "NoLever",
            "Rollout o1 5",
        ),
        ("Job", vec![job(json!({}))], "1", "Job o0 1", "Job o0 1"),
        ("Job of workers", vec![job(json!({"parallelism": 4}))], "1", "Job o0 4", "Job o0 4"),
        ("Indexed Job", vec![job(indexed(4))], "4", "Job o0 4", "Job o0 4"),
        ("CronJob", vec![job(json!({})), cron()], "1", "Job o0 1", "Job o0 1"),
        ("JobSet", vec![job(indexed(4)), job_set()], "8", "JobSet o1 8", "NoLever"),
        ("TrainJob", vec![job(indexed(4)), job_set(), train()], "8", "TrainJob o2 8", "NoLever"),
        (
            "PyTorchJob",
            vec![("kubeflow.org/v1", "PyTorchJob", "pytorchjobs", torch, json!({}))],
            "4",
            "PyTorchJob o0 4",
            "NoLever",
        ),
        ("RayCluster", vec![ray_cluster(json!({}))], "1", "NoLever", "NoLever"),
        (
            "autoscaled RayCluster",
            vec![ray_cluster(json!({"enableInTreeAutoscaling": true}))],
            "1",
            "NoLever",
            "ReplicasOwnedByOther",
        ),
        (
            "RayJob",
            vec![ray_cluster(json!({})), ("ray.io/v1", "RayJob", "rayjobs", json!({}), json!({}))],
            "1",
            "NoLever",
            "NoLever",
        ),
        (
            "RayService",
            vec![ray_cluster(json!({})), ("ray.io/v1", "RayService", "rayservices", json!({}), json!({}))],
            "1",
            "NoLever",
            "NoLever",
        ),
        (
            "LeaderWorkerSet, worker",
            vec![stateful_set(), leader(), stateful_set(), lws("")],
            "4",
            "NoLever",
            "LeaderWorkerSet o3 2",
        ),
        (
            "LeaderWorkerSet, leader",
            vec![stateful_set(), lws("RecreateGroupOnPodRestart")],
            "4",
            "NoLever",
            "LeaderWorkerSet o1 2",
        ),
        ("LeaderWorkerSet without", vec![stateful_set(), lws("None")], "1", "NoLever", "LeaderWorkerSet o1 2"),
        ("Volcano", vec![("batch.volcano.sh/v1alpha1", "Job", "jobs", volcano, json!({}))], "8", "NoLever", "NoLever"),
    ];
    for (title, owners, evicts, suspends, scales) in rows {
        let cluster = Cluster::new();
        below(&cluster, &owners, |_| {});
        let found = look(&cluster, &policy(|_| {})).await;
        assert_eq!(
            (evict(&found), suspend(&found), scale(&found)),
            (evicts.into(), suspends.into(), scales.into()),
            "{title}"
        );
        let (_, chain) = climb(&cluster).await;
        assert_eq!(chain.owners.len(), owners.len(), "{title}: the whole chain is kept");
        let off = look_with(&cluster, &policy(|_| {}), &"".parse().unwrap()).await;
        assert!(
            off.evict.is_err() && off.suspend.is_err() && off.scale.is_err(),
            "{title}: all of it can be turned off"
        );
    }
}

#[tokio::test]
async fn only_kinds_whose_controllers_were_run_are_on_by_default() {
    let default: Switches = Switches::DEFAULT.parse().unwrap();
    for (owners, evicts) in [
        (vec![stateful_set()], "1"),
        (vec![job(json!({}))], "1"),
        (vec![job(json!({})), job_set()], "UnsupportedOwner"),
        (vec![ray_cluster(json!({}))], "UnsupportedOwner"),
    ] {
        let cluster = Cluster::new();
        below(&cluster, &owners, |_| {});
        let found = look_with(&cluster, &policy(|_| {}), &default).await;
        assert_eq!(evict(&found), evicts, "{owners:?}");
    }
    // A JobSet may be suspended and not evicted from: the lever below it is not taken instead.
    let cluster = Cluster::new();
    below(&cluster, &[job(indexed(4)), job_set()], |_| {});
    let half: Switches = "Job=Evict+Suspend,JobSet=Suspend".parse().unwrap();
    let found = look_with(&cluster, &policy(|_| {}), &half).await;
    assert_eq!((evict(&found), suspend(&found)), ("UnsupportedOwner".to_owned(), "JobSet o1 8".to_owned()));
    let other: Switches = "Job=Evict+Suspend,JobSet=Evict".parse().unwrap();
    assert_eq!(suspend(&look_with(&cluster, &policy(|_| {}), &other).await), "UnsupportedOwner");
}

#[tokio::test]
async fn a_job_that_would_count_an_eviction_as_a_failure_is_left_alone_unless_the_policy_says_otherwise() {
    let rule = json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]});
    for (spec, evicts) in [
        (json!({}), "JobWithoutDisruptionPolicy"),
        (json!({"podFailurePolicy": {"rules": []}}), "JobWithoutDisruptionPolicy"),
        (json!({"podFailurePolicy": {"rules": [rule]}}), "1"),
    ] {
        let cluster = Cluster::new();
        below(&cluster, &[job(spec.clone())], |_| {});
        let found = look(&cluster, &protecting("JobWithoutDisruptionPolicy")).await;
        assert_eq!(evict(&found), evicts, "{spec}");
        assert_eq!(suspend(&found), "Job o0 1", "suspending it counts as no failure");
        assert_eq!(evict(&look(&cluster, &protecting("BarePod")).await), "1");
    }
    let text = Hold::Protected(gpumem_engine::decision::Protected::Job).to_string();
    assert!(text.contains("podFailurePolicy") && text.contains("DisruptionTarget") && text.contains("Never"), "{text}");
}

#[tokio::test]
async fn the_head_of_a_ray_cluster_is_never_evicted_while_it_is_protected_and_counts_as_all_of_it() {
    let cluster = Cluster::new();
    below(&cluster, &[ray_cluster(json!({}))], |pod| pod["metadata"]["labels"]["ray.io/node-type"] = json!("head"));
    assert_eq!(evict(&look(&cluster, &protecting("RayHead")).await), "ProtectedRayHead");
    assert_eq!(evict(&look(&cluster, &protecting("BarePod")).await), "4");
}

fn kueue(cluster: &Cluster, name: &str, owner: &str, spec: Value, status: Value) {
    let mut world = cluster.world();
    world.served.insert("kueue.x-k8s.io/v1beta2".to_owned(), vec!["workloads".to_owned()]);
    let owners = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "o0", "uid": owner, "controller": true}]);
    world.put(
        "kueue.x-k8s.io",
        "workloads",
        json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {"namespace": "ml", "name": name, "uid": format!("uid-{name}"),
                "labels": {"kueue.x-k8s.io/job-uid": uid(0)}, "ownerReferences": owners},
            "spec": spec, "status": status
        }),
    );
}

#[tokio::test]
async fn what_kueue_admits_is_left_to_kueues_own_lever() {
    let cluster = Cluster::new();
    below(&cluster, &[job(json!({"parallelism": 2}))], |_| {});
    kueue(&cluster, "w", &uid(0), json!({}), json!({}));
    let found = look(&cluster, &policy(|_| {})).await;
    assert_eq!(
        (evict(&found), suspend(&found), scale(&found)),
        ("NoLever".into(), "Workload w 2".into(), "ReplicasOwnedByOther".into())
    );
    let handle = found.suspend.unwrap();
    assert_eq!(handle.target.api_version, "kueue.x-k8s.io/v1beta2");
    assert_eq!(handle.suspend_patch(), json!({"metadata": {"uid": "uid-w"}, "spec": {"active": false}}));
    // Its own switch.
    let off = look_with(&cluster, &policy(|_| {}), &Switches::DEFAULT.parse().unwrap()).await;
    assert_eq!((evict(&off), suspend(&off)), ("NoLever".into(), "UnsupportedOwner".into()));

    // Deactivated already: the pods are on their way out.
    kueue(&cluster, "w", &uid(0), json!({"active": false}), json!({}));
    assert_eq!(suspend(&look(&cluster, &policy(|_| {})).await), "PodTerminating");
    // Two at once: which of them admits the pod is not known.
    kueue(&cluster, "w", &uid(0), json!({}), json!({}));
    kueue(&cluster, "v", &uid(0), json!({}), json!({}));
    assert_eq!(suspend(&look(&cluster, &policy(|_| {})).await), "OwnerUnknown");
    // One of them is over.
    kueue(&cluster, "v", &uid(0), json!({}), json!({"conditions": [{"type": "Finished", "status": "True"}]}));
    assert_eq!(suspend(&look(&cluster, &policy(|_| {})).await), "Workload w 2");
    // The right to list them is missing.
    cluster.world().forbidden = Some("/workloads".to_owned());
    let found = look(&cluster, &policy(|_| {})).await;
    assert_eq!((evict(&found), suspend(&found)), ("PodUnverified".into(), "PodUnverified".into()));
}

#[tokio::test]
async fn a_workload_object_of_kueue_counts_only_if_it_belongs_to_the_job_and_a_mark_only_where_kueue_is() {
    let cluster = Cluster::new();
    below(&cluster, &[job(json!({}))], |pod| pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = json!("q"));
    assert_eq!(suspend(&look(&cluster, &policy(|_| {})).await), "Job o0 1", "Kueue is not installed");
    // Somebody's Workload bears the label and has another owner.
    kueue(&cluster, "w", "another", json!({}), json!({}));
    assert_eq!(suspend(&look(&cluster, &policy(|_| {})).await), "OwnerUnknown");
    cluster.world().edit("", "pods", "ml", "p", |pod| pod["metadata"]["labels"] = json!({"app": "p"}));
    assert_eq!(
        suspend(&look(&cluster, &policy(|_| {})).await),
        "Job o0 1",
        "Kueue is there, and has nothing to do with it"
    );
}

#[tokio::test]
async fn replicas_that_somebody_else_owns_are_left_to_them() {
    let autoscaler = |owners: Value| {
        json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": {"namespace": "ml", "name": "h", "ownerReferences": owners},
            "spec": {"maxReplicas": 9, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "o0"}}
        })
    };
    let scaled = json!([{"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": "s", "uid": "s1", "controller": true}]);
    for (owners, by) in [(json!([]), "HorizontalPodAutoscaler h"), (scaled, "KEDA's ScaledObject s")] {
        let cluster = Cluster::new();
        below(&cluster, &[stateful_set()], |_| {});
        cluster.world().put("autoscaling", "horizontalpodautoscalers", autoscaler(owners));
        let found = look(&cluster, &policy(|_| {})).await;
        assert_eq!(found.scale.unwrap_err(), Hold::ReplicasOwnedByOther { by: by.to_owned() });
    }
    let cluster = Cluster::new();
    below(&cluster, &[stateful_set()], |_| {});
    cluster.world().edit("apps", "statefulsets", "ml", "o0", |object| {
        object["metadata"]["managedFields"] = json!([{
            "manager": "argocd-controller", "operation": "Apply", "apiVersion": "apps/v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:replicas": {}}}
        }]);
    });
    let found = look(&cluster, &policy(|_| {})).await;
    assert_eq!(scale(&found), "ReplicasOwnedByOther");
    assert_eq!(evict(&found), "1", "an eviction changes no replicas");
    // Whether there is an autoscaler cannot be known.
    for break_it in ["forbidden", "broken"] {
        let cluster = Cluster::new();
        below(&cluster, &[stateful_set()], |_| {});
        let part = Some("horizontalpodautoscalers".to_owned());
        if break_it == "broken" {
            cluster.world().broken = part;
        } else {
            cluster.world().forbidden = part;
        }
        assert_eq!(scale(&look(&cluster, &policy(|_| {})).await), "PodUnverified", "{break_it}");
    }
    // A policy that leaves replicas to others asks nobody.
    let quiet = policy(|spec| spec["actions"] = json!([{"type": "Evict"}]));
    let before = cluster.world().requests(&Method::GET, "horizontalpodautoscalers").len();
    assert_eq!(scale(&look(&cluster, &quiet).await), "NoLever");
    assert_eq!(cluster.world().requests(&Method::GET, "horizontalpodautoscalers").len(), before);
}

#[tokio::test]
async fn replicas_of_a_kind_without_a_scale_subresource_are_not_written() {
    let cluster = Cluster::new();
    let rollout = ("argoproj.io/v1alpha1", "Rollout", "rollouts", json!({"replicas": 5}), json!({}));
    below(&cluster, &[replica_set(), rollout], |_| {});
    cluster.world().served.insert("argoproj.io/v1alpha1".to_owned(), vec!["rollouts".to_owned()]);
    assert_eq!(scale(&look(&cluster, &policy(|_| {})).await), "NoLever");
}

#[tokio::test]
async fn a_size_that_is_no_count_is_none_and_an_absent_one_is_the_default() {
    for (spec, replicas) in [
        (json!({}), "StatefulSet o0 1"),
        (json!({"replicas": -1}), "StatefulSet o0 0"),
        (json!({"replicas": "many"}), "StatefulSet o0 0"),
    ] {
        let cluster = Cluster::new();
        below(&cluster, &[("apps/v1", "StatefulSet", "statefulsets", spec.clone(), json!({}))], |_| {});
        assert_eq!(scale(&look(&cluster, &policy(|_| {})).await), replicas, "{spec}");
    }
}

#[tokio::test]
async fn a_suspended_workload_and_one_that_lives_elsewhere_have_no_lever_left() {
    let cluster = Cluster::new();
    below(&cluster, &[job(json!({"suspend": true}))], |_| {});
    assert_eq!(suspend(&look(&cluster, &policy(|_| {})).await), "PodTerminating");
    let cluster = Cluster::new();
    below(&cluster, &[job(json!({"managedBy": "kueue.x-k8s.io/multikueue"}))], |_| {});
    let found = look(&cluster, &policy(|_| {})).await;
    assert_eq!((evict(&found), suspend(&found)), ("UnsupportedOwner".into(), "UnsupportedOwner".into()));
    assert!(found.evict.unwrap_err().to_string().contains("multikueue"));
}

#[tokio::test]
async fn an_owner_that_is_gone_another_one_forbidden_or_not_answering_is_no_owner_to_act_on() {
    let hop = |cluster: Cluster| async move { climb(&cluster).await.1.standing.unwrap_err().to_string() };
    let built = || {
        let cluster = Cluster::new();
        below(&cluster, &[job(indexed(2)), job_set()], |_| {});
        cluster
    };
    let cluster = built();
    cluster.world().remove("jobset.x-k8s.io", "jobsets", "ml", "o1");
    assert!(hop(cluster).await.contains("there is no JobSet o1, or jobset.x-k8s.io/v1alpha2 is not served"));
    let cluster = built();
    cluster.world().edit("jobset.x-k8s.io", "jobsets", "ml", "o1", |object| object["metadata"]["uid"] = json!("new"));
    assert!(hop(cluster).await.contains("JobSet o1 was created anew since"));
    let cluster = built();
    cluster.world().forbidden = Some("/jobsets/".to_owned());
    assert!(hop(cluster).await.contains("reading JobSet o1 is not permitted"));
    let cluster = built();
    cluster.world().broken = Some("/jobsets/".to_owned());
    assert!(hop(cluster).await.contains("reading JobSet o1 failed"));
    // A circle through other kinds.
    let cluster = built();
    cluster.world().edit("jobset.x-k8s.io", "jobsets", "ml", "o1", |object| {
        object["metadata"]["ownerReferences"] = json!([owner("batch/v1", "Job", "o0", "uid-of-o0")]);
    });
    assert!(hop(cluster).await.contains("circle"));
}

#[tokio::test]
async fn an_owner_deleted_or_replaced_between_climb_and_look_is_not_acted_on() {
    for replace in [false, true] {
        let cluster = Cluster::new();
        below(&cluster, &[job(indexed(2)), job_set()], |_| {});
        cluster.world().before(Method::GET, "/jobs/o0", |_| {});
        let client = cluster.api.client();
        let facts = read_pod(&client, "ml", "p").await.unwrap().unwrap();
        let (hops, chain) = climb(&cluster).await;
        cluster.world().before(Method::GET, "/jobsets/o1", move |world| {
            if replace {
                world.edit("jobset.x-k8s.io", "jobsets", "ml", "o1", |object| object["metadata"]["uid"] = json!("new"));
            } else {
                world.remove("jobset.x-k8s.io", "jobsets", "ml", "o1");
            }
        });
        let everything = Switches::everything();
        let policy = policy(|_| {});
        let found = resolve(&client, &everything, &hops, Stamp(cluster.stamp), &policy, &chain, &facts).await;
        assert_eq!((evict(&found), suspend(&found)), ("OwnerUnknown".into(), "OwnerUnknown".into()));
    }
}

#[tokio::test]
async fn discovery_is_asked_for_rarely_and_its_failure_is_not_remembered() {
    let cluster = Cluster::new();
    below(&cluster, &[stateful_set()], |_| {});
    let client = cluster.api.client();
    let facts = read_pod(&client, "ml", "p").await.unwrap().unwrap();
    let (hops, chain) = climb(&cluster).await;
    let (everything, policy) = (Switches::everything(), policy(|_| {}));
    cluster.world().broken = Some("/apis".to_owned());
    let found = resolve(&client, &everything, &hops, Stamp(0), &policy, &chain, &facts).await;
    assert_eq!(evict(&found), "PodUnverified");
    cluster.world().broken = None;
    let asked =
        || cluster.world().log.iter().filter(|seen| seen.path == "/apis" || seen.path == "/apis/apps/v1").count();
    let before = asked();
    for (now, times) in [(1, 2), (100, 2), (300, 2), (302, 4), (5, 6)] {
        let found = resolve(&client, &everything, &hops, Stamp(now), &policy, &chain, &facts).await;
        assert_eq!(evict(&found), "1");
        assert_eq!(asked() - before, times, "at {now} s");
    }
}

#[tokio::test]
async fn a_group_is_known_from_the_owner_or_from_the_child_that_knows() {
    let cluster = Cluster::new();
    let active = json!({"active": [{"name": "o0"}, {"name": "gone"}]});
    let run = ("batch/v1", "Job", "jobs", json!({"parallelism": 3}), json!({"ready": 2}));
    below(&cluster, &[run, ("batch/v1", "CronJob", "cronjobs", json!({}), active)], |_| {});
    let (_, chain) = climb(&cluster).await;
    let group = read_group(&cluster.api.client(), "ml", chain.top().unwrap()).await.unwrap().unwrap();
    assert_eq!((group.desired, group.ready), (3, 2));

    let cluster = Cluster::new();
    let cluster_of = (
        "ray.io/v1",
        "RayCluster",
        "rayclusters",
        json!({}),
        json!({"desiredWorkerReplicas": 3, "readyWorkerReplicas": 3, "state": "ready"}),
    );
    let job = ("ray.io/v1", "RayJob", "rayjobs", json!({}), json!({"rayClusterName": "o0"}));
    below(&cluster, &[cluster_of, job], |_| {});
    let (_, chain) = climb(&cluster).await;
    let client = cluster.api.client();
    let group = read_group(&client, "ml", chain.top().unwrap()).await.unwrap().unwrap();
    assert_eq!((group.desired, group.ready), (4, 4));
    // A status that names somebody else's cluster is not believed.
    cluster
        .world()
        .edit("ray.io", "rayclusters", "ml", "o0", |object| object["metadata"]["ownerReferences"] = json!([]));
    let group = read_group(&client, "ml", chain.top().unwrap()).await.unwrap().unwrap();
    assert_eq!((group.desired, group.ready), (0, 0));
    // The owner itself is gone, or another one.
    cluster.world().remove("ray.io", "rayjobs", "ml", "o1");
    assert_eq!(read_group(&client, "ml", chain.top().unwrap()).await.unwrap(), None);
    // A trainer gives its JobSet its own name.
    let cluster = Cluster::new();
    below(&cluster, &[("trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs", json!({}), json!({}))], |_| {});
    let (.., spec, _) = job_set();
    cluster.world().put(
        "jobset.x-k8s.io",
        "jobsets",
        json!({
            "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
            "metadata": {"namespace": "ml", "name": "o0",
                "ownerReferences": [owner("trainer.kubeflow.org/v1alpha1", "TrainJob", "o0", "uid-of-o0")]},
            "spec": spec, "status": {"replicatedJobsStatus": [{"name": "w", "ready": 1}]}
        }),
    );
    let (_, trainer) = climb(&cluster).await;
    let group = read_group(&cluster.api.client(), "ml", trainer.top().unwrap()).await.unwrap().unwrap();
    assert_eq!((group.desired, group.ready), (8, 4));
}

#[tokio::test]
async fn a_policy_finds_a_pod_by_any_owner_of_its_chain_and_says_why_it_holds() {
    for target in [("batch/v1", "Job", "o0"), ("jobset.x-k8s.io/v1alpha2", "JobSet", "o1")] {
        let mut cluster = Cluster::new();
        below(&cluster, &[job(indexed(4)), job_set()], |_| {});
        cluster.policy("p", "p", |spec| {
            spec["target"] = json!({"ownerRef": {"apiVersion": target.0, "kind": target.1, "name": target.2}});
        });
        cluster.report("p", 0.95);
        let mut controller = Controller::start(&cluster, "c1");
        controller.rounds(&mut cluster, 3).await;
        assert_eq!(cluster.condition("p", "ActionAllowed"), "False/JobWithoutDisruptionPolicy", "{target:?}");
        assert_eq!(cluster.evicted(), 0);
        let status = cluster.status("p");
        assert_eq!(status.workloads[0].workload.kind, "JobSet", "memory belongs to the highest owner");
    }
    // With the rule it is evicted.
    let mut cluster = Cluster::new();
    let rule = json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]});
    below(&cluster, &[job(json!({"podFailurePolicy": {"rules": [rule]}}))], |_| {});
    cluster.policy("p", "p", |_| {});
    cluster.report("p", 0.95);
    Controller::start(&cluster, "c1").rounds(&mut cluster, 3).await;
    assert_eq!(cluster.evicted(), 1);
}

//! The cooperative hook from end to end without a GPU: its files in the namespaces that want them, and a real Python
//! interpreter whose thread names an agent reads.

use std::process::{Command, Stdio};

use gpumem::controller::hook::{FILES, Turned, remove_all, turn};
use http::Method;
use serde_json::json;

use crate::cluster::Cluster;
use crate::support::{GIB, Node, api::pod, cgroup, container_id, uid};

fn labelled(cluster: &Cluster, name: &str, value: &str) {
    let labels = json!({"gpumem.dev/hook": value});
    cluster.world().put("", "namespaces", json!({"metadata": {"name": name, "labels": labels}}));
}

fn held(cluster: &Cluster) -> Vec<String> {
    let world = cluster.world();
    let maps = world.list("", "configmaps", "");
    maps.iter().filter_map(|map| Some(map["metadata"]["namespace"].as_str()?.to_owned())).collect()
}

#[tokio::test]
async fn the_hook_is_kept_in_namespaces_that_opted_in_and_taken_away_from_the_others() {
    let cluster = Cluster::new();
    let client = cluster.api.client();
    labelled(&cluster, "wants", "Enabled");
    labelled(&cluster, "declines", "Disabled");
    assert_eq!(turn(&client, "gpumem").await.unwrap(), Turned { written: 1, ..Turned::default() });
    assert_eq!(held(&cluster), ["wants"]);
    {
        let world = cluster.world();
        let map = world.get("", "configmaps", "wants", "gpumem-hook").unwrap();
        for (key, text) in FILES {
            assert_eq!(map["data"][key], text, "{key}");
        }
    }
    assert_eq!(turn(&client, "gpumem").await.unwrap(), Turned::default(), "nothing is written twice");
    // Somebody, or an older release, changed it.
    cluster.world().edit("", "configmaps", "wants", "gpumem-hook", |map| map["data"]["init.py"] = json!("old"));
    assert_eq!(turn(&client, "gpumem").await.unwrap().written, 1);
    labelled(&cluster, "wants", "Disabled");
    assert_eq!(turn(&client, "gpumem").await.unwrap(), Turned { deleted: 1, ..Turned::default() });
    assert!(held(&cluster).is_empty());
}

#[tokio::test]
async fn a_config_map_that_is_not_ours_is_neither_written_nor_deleted() {
    let cluster = Cluster::new();
    let client = cluster.api.client();
    labelled(&cluster, "wants", "Enabled");
    let own = json!({"metadata": {"namespace": "wants", "name": "gpumem-hook"}, "data": {"a": "b"}});
    cluster.world().put("", "configmaps", own);
    let labels = json!({"gpumem.dev/hook-owner": "another-operator"});
    let other = json!({"metadata": {"namespace": "ml", "name": "gpumem-hook", "labels": labels}});
    cluster.world().put("", "configmaps", other);
    let ours = json!({"gpumem.dev/hook-owner": "gpumem"});
    let named = json!({"metadata": {"namespace": "ml", "name": "mine", "labels": ours}});
    cluster.world().put("", "configmaps", named);
    assert_eq!(turn(&client, "gpumem").await.unwrap(), Turned { foreign: 1, ..Turned::default() });
    assert_eq!(remove_all(&client, "gpumem").await.unwrap(), 0);
    assert_eq!(held(&cluster).len(), 3);
    let world = cluster.world();
    let lists = world.requests(&Method::GET, "/api/v1/configmaps");
    assert!(lists.iter().all(|seen| seen.query.contains("metadata.name%3Dgpumem-hook")), "no other may be read");
}

#[tokio::test]
async fn one_namespace_that_refuses_does_not_keep_the_others_from_theirs() {
    let cluster = Cluster::new();
    let client = cluster.api.client();
    for name in ["a-ends", "b-wants"] {
        labelled(&cluster, name, "Enabled");
    }
    cluster.world().forbidden = Some("/namespaces/a-ends/".to_owned());
    let error = turn(&client, "gpumem").await.unwrap_err();
    assert_eq!((error.kind(), held(&cluster)), ("write", vec!["b-wants".to_owned()]));
}

#[tokio::test]
async fn an_uninstallation_takes_every_hook_away() {
    let cluster = Cluster::new();
    let client = cluster.api.client();
    for name in ["one", "two"] {
        labelled(&cluster, name, "Enabled");
    }
    turn(&client, "gpumem").await.unwrap();
    assert_eq!(remove_all(&client, "gpumem").await.unwrap(), 2);
    assert!(held(&cluster).is_empty());
}

#[test]
fn every_file_of_the_hook_is_delivered_and_mounted() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let mut delivered: Vec<&str> = FILES.iter().map(|(_, text)| *text).collect();
    let files = std::fs::read_dir(root.join("hook/gpumem_hook")).unwrap().flatten();
    let mut texts: Vec<String> = files
        .map(|file| file.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "py"))
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect();
    texts.push(read("hook/sitecustomize.py"));
    texts.sort_unstable();
    delivered.sort_unstable();
    assert!(texts == delivered, "controller::hook::FILES is not what hook/ holds");
    let policy = read("charts/gpu-memory-operator/templates/admission.yaml");
    for (key, _) in FILES {
        assert!(policy.contains(&format!("\"{key}\" \"")), "the admission policy does not mount {key}");
    }
    let size: usize = FILES.iter().map(|(_, text)| text.len()).sum();
    assert!(size < 256 << 10, "a ConfigMap holds 1 MiB; this is for every namespace");
}

/// Plays the framework: 3 GiB live and 4 GiB held, on a stub of PyTorch, until its standard input ends. The stub's UUID is not
/// that of the simulated device, so it gives none: there is one device only.
const PROGRAM: &str = "import torch, sys; torch.cuda.get_device_properties = lambda index: None; torch.cuda.grow(3 << 30, cached=1 << 30); sys.stdin.read()";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_without_a_right_reads_what_a_real_python_process_says() {
    let root = env!("CARGO_MANIFEST_DIR");
    let node = Node::with("H200:1").await;
    node.api.apply(pod("train", &["main"]));
    let process = node.process("0", 5 * GIB, &cgroup(&uid("train"), &container_id("train/main")));
    let mut python = Command::new("python3")
        .args(["-B", "-c", PROGRAM])
        .env("PYTHONPATH", format!("{root}/hook:{root}/tests/hook/stubs"))
        .env("GPUMEM_HOOK", "1")
        .env("GPUMEM_HOOK_DIR", node.folder.0.join("hook"))
        .stdin(Stdio::piped())
        .spawn()
        .expect("python3 (3.8 or newer) runs the hook's tests: install it");
    // The process that holds memory on the simulated device shows the interpreter's threads as its own.
    let entry = node.proc().join(process.pid().to_string());
    std::os::unix::fs::symlink(format!("/proc/{}/task", python.id()), entry.join("linked")).unwrap();
    let agent = node.agent().flag("--hook").start().await;
    let seen = crate::support::eventually("the interpreter's names", async || {
        // A copy, as the agent follows no link: the kernel's own files are plain.
        let _ = std::fs::remove_dir_all(entry.join("task"));
        for thread in std::fs::read_dir(entry.join("linked")).ok()?.flatten() {
            let copy = entry.join("task").join(thread.file_name());
            std::fs::create_dir_all(&copy).ok()?;
            std::fs::copy(thread.path().join("comm"), copy.join("comm")).ok()?;
        }
        let metrics = agent.metrics().await;
        let of = ["namespace=\"team\"", "pod=\"train\"", "container=\"main\""];
        let allocated = metrics.value("gpumem_container_allocator_allocated_bytes", &of)?;
        Some((allocated, metrics.value("gpumem_container_allocator_reserved_bytes", &of)?))
    })
    .await;
    assert_eq!(seen, ((3 * GIB) as f64, (4 * GIB) as f64));
    drop(python.stdin.take());
    assert!(python.wait().unwrap().success(), "the hook does not keep the program alive");
}

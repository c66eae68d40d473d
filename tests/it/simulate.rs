//! `kubectl gpumem policy simulate` over what a Prometheus says: from a file, and from a server on the loopback address.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::plugin::golden;

const POLICY: &str = "apiVersion: gpumem.dev/v1alpha1\nkind: GpuMemoryPolicy\nmetadata: {name: trainer, namespace: team-a}\n\
    spec:\n  target: {podSelector: {}}\n  prediction: {warmUpSeconds: 60, act: {probabilityPercent: 80, forSeconds: 60}}\n  \
    growthLimit: {ceiling: 90%}\n  actions: [{type: Evict}, {type: Checkpoint}, {type: Notify}]\n";

/// Two hours at 15 s: one job leaks until it dies, comes back, and leaks again; one stops growing by itself; one of another
/// namespace is none of the policy's business.
fn answer() -> Value {
    let gib = 1_073_741_824.0_f64;
    let leak = |t: f64| (2.0 + (t % 3000.0) / 3000.0 * 22.2).min(23.9) * gib;
    let stops = |t: f64| (3.0 + (t / 1200.0).min(1.0) * 15.0) * gib;
    let series = |name: &str, labels: Value, value: &dyn Fn(f64) -> f64| {
        let values: Vec<Value> =
            (0..480).map(|n| json!([1_790_000_000 + n * 15, format!("{}", value(f64::from(n) * 15.0))])).collect();
        let mut metric = labels;
        metric["__name__"] = json!(name);
        // A container that died is not there for a while.
        let is_there = |value: &Value| {
            metric["pod"] != "train-0" || !(3000..3105).contains(&(value[0].as_i64().unwrap() - 1_790_000_000))
        };
        let values: Vec<Value> = values.into_iter().filter(is_there).collect();
        json!({"metric": metric, "values": values})
    };
    let who = |gpu: &str, namespace: &str, pod: &str| json!({"uuid": gpu, "namespace": namespace, "pod": pod, "container": "main", "node": "n"});
    let result = [
        series("gpumem_container_memory_used_bytes", who("GPU-1", "team-a", "train-0"), &leak),
        series("gpumem_container_oom_events_total", who("GPU-1", "team-a", "train-0"), &|t| (t / 3000.0).floor()),
        series("gpumem_device_memory_total_bytes", json!({"uuid": "GPU-1"}), &|_| 24.0 * gib),
        series("gpumem_container_memory_used_bytes", who("GPU-2", "team-a", "tune-0"), &stops),
        series("gpumem_device_memory_total_bytes", json!({"uuid": "GPU-2"}), &|_| 24.0 * gib),
        series("gpumem_container_memory_used_bytes", who("GPU-3", "team-b", "other-0"), &leak),
        series("gpumem_device_memory_total_bytes", json!({"uuid": "GPU-3"}), &|_| 24.0 * gib),
    ];
    json!({"status": "success", "data": {"resultType": "matrix", "result": result}})
}

struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gpumem-simulate-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("policy.yaml"), POLICY).unwrap();
        std::fs::write(path.join("recording.json"), answer().to_string()).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn simulate(folder: &Path, rest: &[&str]) -> (String, String, i32) {
    let output = Command::new(env!("CARGO_BIN_EXE_kubectl-gpumem"))
        .args(["policy", "simulate", "-f"])
        .arg(folder.join("policy.yaml"))
        .args(rest)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code().unwrap())
}

#[test]
fn what_came_true_what_was_for_nothing_and_what_was_missed_is_counted() {
    let folder = Folder::new("file");
    let file = folder.0.join("recording.json").display().to_string();
    for (form, name) in [("table", "policy-simulate"), ("wide", "policy-simulate.wide"), ("csv", "policy-simulate.csv")]
    {
        let (text, notes, code) = simulate(&folder.0, &["--prometheus", &file, "-o", form]);
        assert_eq!((notes.as_str(), code), ("", 0));
        // The listing of alarms has the forecast's numbers, which every new fit changes; the counts are the point.
        golden(name, &if form == "wide" { crate::cli::shape(&text) } else { text });
    }
    let (text, ..) = simulate(&folder.0, &["--prometheus", &file, "-o", "json"]);
    let found: Value = serde_json::from_str(&text).unwrap();
    let item = &found["items"][0];
    assert_eq!((&item["mode"], &item["containers"], &item["gpus"]), (&json!("Observe"), &json!(2), &json!(2)));
    assert_eq!(item["rungs"], json!(["Notify", "Checkpoint", "Evict"]));
    // Both deaths were seen coming; the other job's namespace is not the policy's.
    assert_eq!((&item["total"]["avoided"], &item["missed"]), (&json!(2), &json!(0)), "{text}");
    assert!(!text.contains("team-b"), "{text}");
}

#[test]
fn pods_narrow_it_and_nothing_left_is_said() {
    let folder = Folder::new("pods");
    let file = folder.0.join("recording.json").display().to_string();
    let (text, notes, code) = simulate(&folder.0, &["--prometheus", &file, "--pods", "nobody-*"]);
    assert!(
        code == 1 && text.contains("0 alarms") && notes.contains("nothing in the recording is governed"),
        "{notes}"
    );
    let (text, ..) = simulate(&folder.0, &["--prometheus", &file, "--pods", "tune-*"]);
    assert!(text.contains("1 container on 1 GPU"), "{text}");
}

#[test]
fn test_and_simulate_speak_of_the_same_containers() {
    let folder = Folder::new("containers");
    let row = |t_s: u32| format!("{t_s},train,{},24576\n{t_s},side,900,24576\n", 2000 + (t_s % 3600) * 6);
    let rows: Vec<String> = (0..7200).step_by(10).map(row).collect();
    let trace = folder.0.join("leak.csv");
    std::fs::write(&trace, "t_s,container,used_mib,capacity_mib\n".to_owned() + &rows.concat()).unwrap();
    for (containers, alarms) in [("[]", true), ("[train]", true), ("[side]", false), ("[none]", false)] {
        let policy = POLICY.replace("{podSelector: {}}", &format!("{{podSelector: {{}}, containers: {containers}}}"));
        std::fs::write(folder.0.join("policy.yaml"), policy).unwrap();
        let [test, simulate] = ["test", "simulate"].map(|command| {
            let output = Command::new(env!("CARGO_BIN_EXE_kubectl-gpumem"))
                .args(["policy", command, "-o", "json", "-f"])
                .arg(folder.0.join("policy.yaml"))
                .arg("--trace")
                .arg(&trace)
                .output()
                .unwrap();
            serde_json::from_slice::<Value>(&output.stdout).unwrap()
        });
        let raised = |found: &Value| -> Vec<f64> {
            let alarms = found["items"][0]["alarms"].as_array().unwrap().iter();
            alarms.map(|alarm| alarm["raisedS"].as_f64().unwrap()).collect()
        };
        assert_eq!(raised(&test), raised(&simulate), "{containers}");
        assert_eq!(!raised(&test).is_empty(), alarms, "{containers}: {test}");
        assert_eq!(test["items"][0]["missed"], simulate["items"][0]["missed"], "{containers}");
        let is_none = containers == "[none]";
        for found in [&test, &simulate] {
            assert_eq!(found["notSeen"].to_string().contains("nothing in the recording"), is_none, "{found}");
        }
    }
}

#[test]
fn a_server_is_asked_one_range_query_and_its_answer_is_played() {
    let folder = Folder::new("server");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/prom", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut asked, mut buffer) = (String::new(), [0; 4096]);
        while !asked.contains("\r\n\r\n") {
            let read = stream.read(&mut buffer).unwrap();
            asked += &String::from_utf8_lossy(&buffer[..read]);
        }
        let body = answer().to_string();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        asked
    });
    let (text, notes, code) = simulate(&folder.0, &["--prometheus", &url, "--since", "2h"]);
    let asked = server.join().unwrap();
    assert!(code == 0 && text.contains("avoided"), "{text}{notes}");
    assert!(asked.starts_with("GET /prom/api/v1/query_range?start=") && asked.contains("&step=15&query="), "{asked}");
}

#[test]
fn what_cannot_be_asked_says_how_to_get_it_all_the_same() {
    let folder = Folder::new("bad");
    for (place, says, ends) in [
        ("https://prometheus.example", "curl -sG https://prometheus.example/api/v1/query_range", 2),
        ("http://127.0.0.1:1", "kubectl port-forward", 1),
        ("localhost:9090", "--prometheus http://localhost:9090", 2),
        ("/no/such/file", "cannot be read", 2),
        ("Cargo.toml", "not an answer of Prometheus", 2),
    ] {
        let (_, error, code) = simulate(&folder.0, &["--prometheus", place]);
        assert!(code == ends && error.contains(says), "{place}: {code} {error}");
    }
    let (_, error, code) = simulate(&folder.0, &[]);
    assert!(code == 2 && error.contains("--prometheus"), "{error}");
}

#[test]
fn every_rung_that_may_be_taken_is_named_mildest_first_and_held_apart() {
    let folder = Folder::new("rungs");
    let policy = POLICY.replace(
        "actions: [{type: Evict}, {type: Checkpoint}, {type: Notify}]",
        "disruption: {cooldownSeconds: 21600}\n  \
         actions: [{type: Evict}, {type: SuspendWorkload}, {type: Checkpoint}, {type: SuspendToHost}, {type: Notify}]",
    );
    std::fs::write(folder.0.join("policy.yaml"), policy.replace("spec:\n", "spec:\n  mode: DryRun\n")).unwrap();
    let row = |t_s: u32| format!("{t_s},train,{},24576\n", 2000 + (t_s % 3600) * 6);
    let rows: Vec<String> = (0..7200).step_by(10).map(row).collect();
    std::fs::write(folder.0.join("leak.csv"), "t_s,container,used_mib,capacity_mib\n".to_owned() + &rows.concat())
        .unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_kubectl-gpumem"))
        .args(["policy", "test", "-o", "json", "-f"])
        .arg(folder.0.join("policy.yaml"))
        .arg("--trace")
        .arg(folder.0.join("leak.csv"))
        .output()
        .unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let alarms = found["items"][0]["alarms"].as_array().unwrap();
    assert_eq!(
        alarms[0]["would"], "SuspendToHost or Checkpoint+SuspendWorkload or Checkpoint+Evict (dry run)",
        "{found}"
    );
}

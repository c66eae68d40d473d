//! What each command of `kubectl gpumem` makes of a cluster that shows less than everything: it says what it could not see and
//! what to do about it, and shows what it can. A row is what is missing, a column a command.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use serde_json::json;

use crate::plugin::{ask, golden, screen};
use crate::plugin_api::{World, containers, nodes};

const COMMANDS: [&str; 9] = [
    "top pods",
    "top nodes",
    "top gpus",
    "top workloads",
    "explain pod/train-6f9-x2k",
    "doctor",
    "pause",
    "resume",
    "version",
];

/// Every command as a terminal of a page shows it, failures with their fix.
async fn sheet(world: &World) -> String {
    let mut sheet = String::new();
    for line in COMMANDS {
        let shown = match ask(world, line).await {
            Ok(shown) => screen(&shown),
            Err(error) => {
                let said = format!("{error}\n   fix: {}", error.fix());
                gpumem::cli::page::hanging("gpumem", &said, gpumem::cli::page::PAGE) + "[exit 1]\n"
            }
        };
        sheet.extend(["$ kubectl gpumem ", line, "\n", &shown, "\n"]);
    }
    sheet
}

/// What follows a command on a sheet.
fn of<'a>(sheet: &'a str, command: &str) -> &'a str {
    let (_, rest) = sheet.split_once(&format!("$ kubectl gpumem {command}\n")).unwrap();
    rest.split("\n$ ").next().unwrap()
}

/// A text without its line breaks, to look for a sentence in it.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn without_a_controller_statuses_are_shown_and_the_rest_says_where_to_look() {
    let mut world = World::healthy();
    world.set_pods("controller", &[]);
    let sheet = sheet(&world).await;
    golden("blind-no-controller", &sheet);
    for command in COMMANDS {
        let text = flat(of(&sheet, command));
        assert!(text.contains("no controller of gpu-memory-operator"), "{command}: {text}");
        assert!(text.contains("--operator-namespace"), "{command} says what to do: {text}");
    }
    for command in ["top pods", "explain pod/train-6f9-x2k"] {
        assert!(of(&sheet, command).contains("train-6f9-x2k"), "{command} shows what the statuses know");
        assert!(flat(of(&sheet, command)).contains("of unknown age"), "{command} claims nothing of now");
    }
}

#[tokio::test]
async fn statuses_that_nobody_writes_show_their_age_and_are_unknown_after_a_minute() {
    let mut world = World::healthy();
    world.set_pods("controller", &[]);
    let deployment = json!({"metadata": {"name": "gpumem-controller", "namespace": "gpumem-system"},
        "spec": {"replicas": 0, "selector": {}, "template": {}}});
    world.set("/apis/apps/v1/deployments", &crate::plugin_api::list(&[deployment]));
    for (written, level, age) in [("11:59:44", "High", "20s"), ("11:57:04", "Unknown", "3m")] {
        world.status_written(&format!("2026-11-29T{written}Z"));
        let table = flat(&screen(&ask(&world, "top pods -o wide").await.unwrap()));
        assert!(table.contains("Deployment gpumem-system/gpumem-controller has no ready replica"), "{table}");
        assert!(table.contains("scale deployment gpumem-controller --replicas=1"), "{table}");
        assert!(table.contains(&format!("last written {age} ago")), "{table}");
        let json: serde_json::Value =
            serde_json::from_str(&ask(&world, "top pods -o json").await.unwrap().text).unwrap();
        let item = &json["items"][0];
        assert_eq!(item["level"], level, "{item}");
        assert_eq!(
            item["reason"],
            format!("as of {age} ago High, out of memory 13m later: grows 20 MiB/s over the last 12 min")
        );
        for field in ["secondsToOom", "class", "device", "gpu", "model", "node", "podUID"] {
            assert!(item.get(field).is_none(), "{field} is not known: {item}");
        }
    }
}

#[tokio::test]
async fn whoever_may_not_ask_a_living_controller_sees_its_statuses_with_their_age() {
    let mut world = World::healthy();
    world.refuse(403, "/proxy/");
    for (written, level) in [("11:54:04", "High"), ("11:00:00", "Unknown")] {
        world.status_written(&format!("2026-11-29T{written}Z"));
        let text = ask(&world, "top pods -o json").await.unwrap().text;
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["items"][0]["level"], level, "a time to OOM that is long over is none: {text}");
        assert!(text.contains(", last written "), "{text}");
    }
}

#[tokio::test]
async fn without_any_right_each_command_names_the_right_that_it_needs() {
    let mut world = World::healthy();
    world.refuse(403, "/api/v1/");
    world.refuse(403, "/apis/gpumem.dev");
    world.refuse(403, "/apis/apiextensions.k8s.io");
    world.refuse(403, "/apis/coordination.k8s.io");
    world.review(false);
    let sheet = sheet(&world).await;
    golden("blind-no-rights", &sheet);
    for command in COMMANDS {
        let text = flat(of(&sheet, command));
        assert!(text.contains("ask for the right to") || text.contains("ask an administrator"), "{command}: {text}");
    }
    assert!(of(&sheet, "doctor").contains("ok      api"), "what can be seen is shown");
    for command in ["doctor", "version"] {
        assert!(of(&sheet, command).contains("[exit 1]"), "{command} could not find out");
    }
}

#[tokio::test]
async fn with_half_the_agents_down_every_list_says_whose_report_is_missing() {
    let mut world = World::healthy();
    let mut seen = nodes();
    seen.nodes[1].report_age_seconds = 240.0;
    world.live(&containers(), &seen);
    world.set_pods("agent", &[("agent-a", "node-a", true), ("agent-b", "node-b", false)]);
    let sheet = sheet(&world).await;
    golden("blind-half-the-agents", &sheet);
    for command in &COMMANDS[..5] {
        let text = flat(of(&sheet, command));
        assert!(text.contains("no report from node-b for 4m"), "{command}: {text}");
    }
    assert!(of(&sheet, "doctor").contains("FAILED  agents"), "{sheet}");
}

#[tokio::test]
async fn a_node_whose_driver_fails_is_named_beside_every_list() {
    let mut world = World::healthy();
    let mut seen = nodes();
    seen.nodes[0].nvml = "Down".into();
    seen.nodes[0].nvml_detail = "driver/library version mismatch".into();
    world.live(&containers(), &seen);
    for command in &COMMANDS[..5] {
        let text = flat(&screen(&ask(&world, command).await.unwrap()));
        assert!(text.contains("NVML fails on node-a (driver/library version mismatch)"), "{command}: {text}");
    }
}

#[tokio::test]
async fn objects_of_another_version_are_left_out_by_name_and_the_others_shown() {
    let mut world = World::healthy();
    world.refuse(403, "/proxy/");
    let path = "/apis/gpumem.dev/v1alpha1/namespaces/team-a/gpumemorypolicies";
    let mut list: serde_json::Value = world.get(path);
    let mut old = list["items"][0].clone();
    old["metadata"]["name"] = json!("ancient");
    old["spec"] = json!({"mode": "Terminate"});
    list["items"].as_array_mut().unwrap().push(old);
    world.set(path, &list);
    for command in ["top pods", "top workloads", "explain pod/train-6f9-x2k"] {
        let text = flat(&screen(&ask(&world, command).await.unwrap()));
        assert!(text.contains("team-a/ancient is left out, it is not understood"), "{command}: {text}");
        assert!(
            text.contains("train-6f9-x2k") && text.contains("`kubectl gpumem doctor` says more"),
            "{command}: {text}"
        );
    }
}

#[tokio::test]
async fn a_crd_of_another_version_is_said_to_be_that_and_live_data_is_shown_all_the_same() {
    let mut world = World::healthy();
    world.refuse(404, "/apis/gpumem.dev/v1alpha1");
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpumemorypolicies.gpumem.dev";
    let mut definition = world.get(path);
    definition["spec"]["versions"][0]["name"] = json!("v1alpha0");
    world.set(path, &definition);
    let sheet = sheet(&world).await;
    golden("blind-old-crd", &sheet);
    assert!(of(&sheet, "top pods").contains("train-6f9-x2k"), "{sheet}");
    let explained = flat(of(&sheet, "explain pod/train-6f9-x2k"));
    assert!(explained.contains("not in the version of this plugin"), "{explained}");
    assert!(flat(of(&sheet, "doctor")).contains("does not serve v1alpha1"), "{sheet}");
}

#[tokio::test]
async fn an_api_server_that_fails_is_an_error_of_every_command() {
    let mut world = World::healthy();
    world.refuse(500, "/");
    let sheet = sheet(&world).await;
    for command in COMMANDS {
        let text = flat(of(&sheet, command));
        assert!(text.contains("kubectl get --raw /readyz"), "{command}: {text}");
    }
}

#[test]
fn a_context_that_is_none_is_an_error_of_every_command_with_the_way_to_list_them() {
    let folder = crate::support::Folder::new();
    let file = folder.0.join("config");
    std::fs::write(&file, "apiVersion: v1\nkind: Config\nclusters: []\ncontexts: []\nusers: []\n").unwrap();
    for command in COMMANDS {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_kubectl-gpumem"))
            .args(command.split(' '))
            .args(["--context", "none", "--kubeconfig"])
            .arg(&file)
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{command}: {error}");
        assert!(error.contains("no way to a cluster") && error.contains("kubectl config get-contexts"), "{error}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.is_empty(), command != "version", "{command}: {text}");
    }
}

#[test]
fn an_api_server_that_does_not_answer_is_named_with_its_context() {
    let folder = crate::support::Folder::new();
    let file = folder.0.join("config");
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: away\nclusters: [{{name: c, cluster: {{server: \"http://127.0.0.1:{port}\"}}}}]\n\
         contexts: [{{name: away, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
    );
    std::fs::write(&file, text).unwrap();
    for command in COMMANDS {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_kubectl-gpumem"))
            .args(command.split(' '))
            .arg("--kubeconfig")
            .arg(&file)
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{command}: {error}");
        assert!(error.contains(&format!("http://127.0.0.1:{port}/, context away")), "{command}: {error}");
    }
}

//! Dashboards and alert rules: the committed files are those that are generated, they are sound, and every metric they read
//! is one that the code names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

#[path = "../../deploy/dashboards/generate/boards.rs"]
mod generated;
#[path = "../../deploy/dashboards/generate/panel.rs"]
mod panel;

const RULES: &str = "charts/gpu-memory-operator/files/alerts.yaml";

pub fn read(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn boards() -> Vec<(String, Value)> {
    generated::all()
        .into_iter()
        .map(|(name, text)| {
            (name, serde_json::from_str(&text).unwrap_or_else(|error| panic!("a board is no JSON: {error}")))
        })
        .collect()
}

fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    value.pointer(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// Panels that show something.
fn panels(board: &Value) -> impl Iterator<Item = &Value> {
    list(board, "/panels").iter().filter(|panel| panel["type"] != "row")
}

/// All PromQL of a board: panels, annotations, variables.
pub fn queries(board: &Value) -> Vec<String> {
    let panels = panels(board).flat_map(|panel| list(panel, "/targets").iter().map(|target| text(target, "/expr")));
    let annotations = list(board, "/annotations/list").iter().map(|annotation| text(annotation, "/expr"));
    let variables = list(board, "/templating/list").iter().map(|variable| text(variable, "/query/query"));
    panels.chain(annotations).chain(variables).filter(|query| !query.is_empty()).map(str::to_owned).collect()
}

/// Names of our metrics in a text: `gpumem_…`, and what rules record with `:` around it.
fn metrics(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'))
        .filter(|word| word.starts_with("gpumem_") || word.contains(":gpumem_"))
        .map(str::to_owned)
        .collect()
}

/// Metrics that the code names, with the parts of histograms.
fn named() -> BTreeSet<String> {
    let mut names = metrics(&read("src/api/names.rs"));
    for name in names.clone() {
        names.extend(["bucket", "sum", "count"].map(|part| format!("{name}_{part}")));
    }
    names
}

fn recorded() -> BTreeSet<String> {
    read(RULES).lines().filter_map(|line| line.trim().strip_prefix("- record: ")).map(str::to_owned).collect()
}

#[test]
fn committed_boards_are_those_that_are_generated() {
    for folder in ["deploy/dashboards", "charts/gpu-memory-operator/files/dashboards"] {
        let mut names = BTreeSet::new();
        for (name, generated) in generated::all() {
            let committed = read(&format!("{folder}/{name}"));
            assert!(committed == generated, "{folder}/{name} is stale: cargo run --example dashboards");
            names.insert(name);
        }
        let found: BTreeSet<_> = fs::read_dir(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder))
            .expect("the folder exists")
            .map(|entry| entry.expect("a readable folder").path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
            .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .collect();
        assert_eq!(found, names, "{folder} holds boards that nobody generates");
    }
}

#[test]
fn every_metric_that_boards_and_rules_read_is_named_in_the_code() {
    let (named, recorded) = (named(), recorded());
    let mut sources: BTreeMap<String, BTreeSet<String>> = BTreeMap::from([(RULES.to_owned(), metrics(&read(RULES)))]);
    for path in [
        "docs/autoscaling.md",
        "docs/alerts.md",
        "docs/dashboards.md",
        "deploy/autoscaling/prometheus-adapter.yaml",
        "deploy/autoscaling/keda.yaml",
    ] {
        sources.insert(path.to_owned(), metrics(&read(path)));
    }
    for (name, board) in boards() {
        sources.insert(name, metrics(&queries(&board).join("\n")));
    }
    for (source, used) in sources {
        assert!(!used.is_empty(), "{source} reads no metric of ours");
        let unknown: Vec<_> = used.iter().filter(|name| !named.contains(*name) && !recorded.contains(*name)).collect();
        assert!(unknown.is_empty(), "{source} reads {unknown:?}: neither in src/api/names.rs nor recorded by {RULES}");
    }
}

#[test]
fn every_recorded_series_is_read_by_somebody() {
    let mut readers = read(RULES).lines().filter(|line| !line.contains("- record: ")).collect::<Vec<_>>().join("\n");
    for path in ["docs/autoscaling.md", "deploy/autoscaling/prometheus-adapter.yaml", "deploy/autoscaling/keda.yaml"] {
        readers.push_str(&read(path));
    }
    for (_, board) in boards() {
        readers.push_str(&queries(&board).join("\n"));
    }
    let used = metrics(&readers);
    let unread: Vec<_> = recorded().into_iter().filter(|name| !used.contains(name)).collect();
    assert!(unread.is_empty(), "recorded for nobody: {unread:?}");
}

#[test]
fn alerts_link_to_boards_that_exist() {
    let uids: BTreeSet<_> = boards().iter().map(|(_, board)| text(board, "/uid").to_owned()).collect();
    let rules = read(RULES);
    let links: Vec<_> = rules.lines().filter_map(|line| line.trim().strip_prefix("dashboard: ")).collect();
    assert_eq!(links.len(), rules.matches("- alert: ").count(), "every alert has a dashboard");
    for link in links {
        let uid = link.split('/').next().unwrap_or_default();
        assert!(uids.contains(uid), "an alert links to {uid}, and there is no such board");
    }
}

#[test]
fn every_panel_says_what_it_shows() {
    for (name, board) in boards() {
        for panel in panels(&board) {
            let title = text(panel, "/title");
            let wrong = |what: &str| panic!("{name}: panel '{title}' {what}");
            if title.is_empty() {
                wrong("has no title");
            }
            if text(panel, "/description").len() < 20 {
                wrong("has no description");
            }
            if text(panel, "/fieldConfig/defaults/unit").is_empty() {
                wrong("has no unit");
            }
            if text(panel, "/fieldConfig/defaults/noValue").is_empty() {
                wrong("does not say why it is empty");
            }
            if !["timeseries", "stat", "table", "bargauge"].contains(&text(panel, "/type")) {
                wrong("is of a kind that we do not draw");
            }
            if list(panel, "/targets").is_empty() {
                wrong("asks nothing");
            }
            for place in std::iter::once(panel).chain(list(panel, "/targets")) {
                if text(place, "/datasource/uid") != "${datasource}" {
                    wrong("does not use the chosen data source");
                }
            }
            for target in list(panel, "/targets") {
                if text(target, "/expr").contains("rate(") && !text(target, "/expr").contains("$__rate_interval") {
                    wrong("takes a rate over a fixed time");
                }
            }
        }
    }
}

#[test]
fn boards_are_sound() {
    let mut uids = BTreeSet::new();
    for (name, board) in boards() {
        assert_eq!(format!("{}.json", text(&board, "/uid")), name);
        assert!(uids.insert(text(&board, "/uid").to_owned()), "{name}: its uid is taken");
        assert_eq!(board["schemaVersion"], 39, "{name}");
        assert!(
            board.get("__inputs").is_none() && board.get("__requires").is_none(),
            "{name}: made for import by hand"
        );
        assert!(board.to_string().len() < 900_000, "{name}: too large for a ConfigMap");
        assert_eq!(board["tags"], serde_json::json!(["gpu-memory"]), "{name}");

        let mut ids = BTreeSet::new();
        let mut taken = BTreeMap::new();
        for panel in list(&board, "/panels") {
            assert!(ids.insert(panel["id"].as_u64()), "{name}: the id of {} is taken", panel["title"]);
            let [x, y, w, h] =
                ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().expect("a place in the grid"));
            assert!(x + w <= 24, "{name}: {} sticks out", panel["title"]);
            for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
                let other = taken.insert(cell, panel["title"].clone());
                assert!(other.is_none(), "{name}: {} lies on {other:?}", panel["title"]);
            }
        }
    }
}

#[test]
fn variables_are_defined_and_used() {
    for (name, board) in boards() {
        let defined: BTreeSet<_> =
            list(&board, "/templating/list").iter().map(|variable| text(variable, "/name").to_owned()).collect();
        let mut all = queries(&board);
        all.extend(panels(&board).map(|panel| text(panel, "/datasource/uid").to_owned()));
        let used: BTreeSet<_> = all
            .iter()
            .flat_map(|query| query.split('$').skip(1))
            .map(|rest| {
                rest.trim_start_matches('{')
                    .chars()
                    .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                    .collect::<String>()
            })
            .filter(|variable| !variable.starts_with("__"))
            .collect();
        assert_eq!(used, defined, "{name}: variables used, and variables defined");
    }
}

//! The custom resources as the server gets them: generated files are up to date, and every rule accepts and rejects.

use gpumem::api::policy::{GpuMemoryPolicy, GpuMemoryPolicySpec};
use serde_json::{Value, json};

#[test]
fn the_committed_definitions_are_what_the_code_generates() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("crds");
    let mut files: Vec<String> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    let mut generated = gpumem::api::crd::all();
    generated.sort_by_key(|(file, _)| *file);
    assert_eq!(files, generated.iter().map(|(file, _)| *file).collect::<Vec<_>>());
    for (file, definition) in generated {
        let yaml = gpumem::api::crd::yaml(&definition).unwrap();
        let committed = std::fs::read_to_string(folder.join(file)).unwrap();
        assert!(yaml == committed, "crds/{file} is out of date: run `gpumem crd --directory crds`");
    }
}

fn spec(change: impl FnOnce(&mut Value)) -> GpuMemoryPolicySpec {
    let mut spec = json!({
        "mode": "Enforce",
        "target": {"podSelector": {"matchLabels": {"app": "train"}}},
        "actions": [{"type": "Notify"}, {"type": "Evict"}]
    });
    change(&mut spec);
    serde_json::from_value(spec).unwrap()
}

fn object(spec: GpuMemoryPolicySpec) -> GpuMemoryPolicy {
    GpuMemoryPolicy::new("p", spec)
}

fn problems(change: impl FnOnce(&mut Value)) -> String {
    match object(spec(change)).validate_cel() {
        Ok(()) => String::new(),
        Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
    }
}

type Change = fn(&mut Value);

#[test]
fn what_is_documented_is_accepted() {
    let accepted: [Change; 8] = [
        |_| {},
        |spec| *spec = json!({"target": {"podSelector": {}}}),
        |spec| spec["target"] = json!({"ownerRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"}}),
        |spec| spec["target"] = json!({"podSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}),
        |spec| spec["memory"] = json!({"budget": "Declared", "declared": "40Gi"}),
        |spec| spec["memory"] = json!({"budget": "Partition", "headroom": "256Mi"}),
        |spec| spec["prediction"] = json!({"horizonSeconds": 60, "act": {"probabilityPercent": 80, "forSeconds": 4}}),
        |spec| spec["disruption"] = json!({"requireBudget": false, "minAvailable": 0}),
    ];
    for change in accepted {
        assert_eq!(problems(change), "", "{:?}", spec(change));
    }
}

#[test]
fn each_rule_rejects_and_says_why() {
    let rejected: [(&str, Change); 8] = [
        ("exactly one of podSelector and ownerRef", |spec| spec["target"] = json!({})),
        ("exactly one of podSelector and ownerRef", |spec| {
            spec["target"]["ownerRef"] = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"});
        }),
        ("mode Enforce needs a podSelector that selects something", |spec| spec["target"] = json!({"podSelector": {}})),
        ("declared is needed when budget is Declared", |spec| spec["memory"] = json!({"budget": "Declared"})),
        ("declared is needed when budget is Declared", |spec| spec["memory"] = json!({"declared": "40Gi"})),
        ("clear.probabilityPercent must be below", |spec| {
            spec["prediction"] = json!({"clear": {"probabilityPercent": 80, "forSeconds": 1}});
        }),
        ("act.forSeconds must be below horizonSeconds", |spec| spec["prediction"] = json!({"horizonSeconds": 120})),
        ("act.forSeconds must be below horizonSeconds", |spec| {
            spec["prediction"] = json!({"act": {"probabilityPercent": 90, "forSeconds": 900}});
        }),
    ];
    for (words, change) in rejected {
        assert!(problems(change).contains(words), "{words}: {}", problems(change));
    }
}

#[test]
fn the_target_cannot_change_while_the_policy_acts() {
    let other: Change = |spec| spec["target"]["podSelector"]["matchLabels"]["app"] = json!("other");
    let before = object(spec(|_| {}));
    let rejected = object(spec(other)).validate_cel_update(&before).unwrap_err();
    assert!(rejected.iter().any(|error| error.to_string().contains("target cannot change")), "{rejected:?}");
    let observing = object(spec(|spec| {
        other(spec);
        spec["mode"] = json!("Observe");
    }));
    assert!(observing.validate_cel_update(&before).is_ok(), "to Observe it may");
    assert!(object(spec(other)).validate_cel_update(&observing).is_ok(), "and from there back to Enforce");
}

#[test]
fn every_spec_the_rules_accept_with_defaults_can_be_used() {
    let key = gpumem_engine::policy::PolicyKey { namespace: "ml".into(), name: "p".into() };
    let policy = gpumem::api::convert::policy(key, &spec(|_| {}), gpumem_engine::policy::Mode::Enforce);
    assert_eq!(policy.unwrap().mode, gpumem_engine::policy::Mode::Enforce);
}

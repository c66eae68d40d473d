//! The custom resource definitions as YAML, as `gpumem crd` prints them and `crds/` holds them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

use super::node::GpuMemoryNode;
use super::policy::GpuMemoryPolicy;
use super::profile::GpuMemoryProfile;

/// Every definition, with the name of its file in `crds/`.
pub fn all() -> Vec<(&'static str, CustomResourceDefinition)> {
    vec![
        ("gpumemorynodes.yaml", GpuMemoryNode::crd()),
        ("gpumemorypolicies.yaml", GpuMemoryPolicy::crd()),
        ("gpumemoryprofiles.yaml", GpuMemoryProfile::crd()),
    ]
}

/// One definition as YAML. Formats that the API server does not know (it warns about each) are left out, and so is
/// `nullable`: a field of ours is there or absent, never null.
pub fn yaml(definition: &CustomResourceDefinition) -> Result<String, serde_yaml::Error> {
    let mut value = serde_json::to_value(definition).map_err(<serde_yaml::Error as serde::ser::Error>::custom)?;
    clean(&mut value);
    serde_yaml::to_string(&value)
}

fn clean(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let is_schema = fields.contains_key("type");
            if is_schema {
                if fields.get("format").and_then(Value::as_str).is_some_and(|format| format.starts_with("uint")) {
                    fields.remove("format");
                }
                if fields.get("nullable") == Some(&Value::Bool(true)) {
                    fields.remove("nullable");
                }
            }
            fields.values_mut().for_each(clean);
        }
        Value::Array(items) => items.iter_mut().for_each(clean),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Fields of a policy, as paths, that its definition does not know: the API server would drop or refuse them, and a reader
/// that passes over them would judge another policy than the one that was meant.
pub fn unknown_fields(policy: &Value) -> Vec<String> {
    let definition = GpuMemoryPolicy::crd();
    let schema = definition.spec.versions.into_iter().next().and_then(|version| version.schema);
    let schema = schema.and_then(|schema| schema.open_api_v3_schema).map(serde_json::to_value);
    let mut unknown = Vec::new();
    if let (Some(Ok(schema)), Some(spec)) = (schema, policy.get("spec")) {
        compare(spec, &schema["properties"]["spec"], "spec", &mut unknown);
    }
    unknown
}

fn compare(value: &Value, schema: &Value, path: &str, unknown: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let Some(known) = schema["properties"].as_object() else { return };
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                match known.get(name) {
                    Some(schema) => compare(value, schema, &path, unknown),
                    None => unknown.push(path),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| compare(item, &schema["items"], path, unknown)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_that_the_definition_does_not_know_are_named_by_their_path() {
        let policy = json!({"metadata": {"any": 1}, "spec": {
            "mode": "Observe",
            "target": {"podSelector": {"matchLabels": {"any.label/is": "fine"}}, "podSelektor": {}},
            "actions": [{"type": "Notify"}, {"type": "Evict", "gently": true}],
            "prediction": {"act": {"probabilityPercent": 80, "forSecond": 1}},
        }});
        let mut unknown = unknown_fields(&policy);
        unknown.sort();
        assert_eq!(unknown, ["spec.actions.gently", "spec.prediction.act.forSecond", "spec.target.podSelektor"]);
        assert_eq!(unknown_fields(&json!({"spec": {"target": {"podSelector": {}}}})), Vec::<String>::new());
    }
}

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

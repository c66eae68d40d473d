//! Finds the containers of a manifest that run on a GPU. Flows in: documents of any kind that carries a pod template. Flows
//! out: what the engine's reader made of each command line.

use gpumem_engine::estimate::declared;
use gpumem_engine::estimate::manifest::{self, Reading};
use gpumem_engine::estimate::options::Options;
use serde_json::Value;

use super::{Error, over};

/// On a pod template: the job in plain words, see [`declared`].
pub const ANNOTATION: &str = crate::api::names::ANNOTATION_WORKLOAD;

/// A container that runs on a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Kind, name and container, for people.
    pub place: String,
    /// The job, as far as it could be read.
    pub options: Options,
    /// The program that was recognised.
    pub program: Option<&'static str>,
    /// What could not be read.
    pub unread: Vec<String>,
}

/// Every container of `documents` that asks for a GPU or runs a known program; with `only`, the ones of that name.
pub fn containers(documents: &[Value], only: Option<&str>) -> Result<Vec<Found>, Error> {
    let mut found = Vec::new();
    for document in documents {
        let kind = text(document, &["kind"]).unwrap_or("object");
        let name = text(document, &["metadata", "name"])
            .or_else(|| text(document, &["metadata", "generateName"]))
            .unwrap_or("without a name");
        walk(document, &format!("{kind} {name}"), only, &mut found)?;
    }
    Ok(found)
}

/// Whatever has `spec.containers` is a pod or a template of one, at any depth: a Job's, a CronJob's, one of the replica
/// kinds of a training operator, one of the groups of a Ray cluster.
fn walk(value: &Value, place: &str, only: Option<&str>, found: &mut Vec<Found>) -> Result<(), Error> {
    match value {
        Value::Object(fields) => {
            if let Some(containers) = value.pointer("/spec/containers").and_then(Value::as_array) {
                let annotation = value.pointer("/metadata/annotations").and_then(|all| all.get(ANNOTATION));
                for container in containers {
                    found.extend(read(container, annotation, place, only)?);
                }
                return Ok(());
            }
            for (key, field) in fields {
                // A replica kind's name tells its pods apart: Master and Worker of a PyTorchJob.
                let is_replica = field.get("template").is_some() && !matches!(key.as_str(), "spec" | "jobTemplate");
                let inner = if is_replica { format!("{place} {key}") } else { place.to_owned() };
                walk(field, &inner, only, found)?;
            }
            Ok(())
        }
        Value::Array(items) => items.iter().try_for_each(|item| walk(item, place, only, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

fn read(
    container: &Value,
    annotation: Option<&Value>,
    place: &str,
    only: Option<&str>,
) -> Result<Option<Found>, Error> {
    let name = text(container, &["name"]).unwrap_or("container");
    let words = |key| container.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let args: Vec<String> = words("command").chain(words("args")).map(str::to_owned).collect();
    let env: Vec<(String, String)> = container
        .get("env")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some((text(entry, &["name"])?.to_owned(), text(entry, &["value"])?.to_owned())))
        .collect();
    let Reading { mut options, program, mut unread } = manifest::read(&args, &env);
    let asks = ["limits", "requests"].iter().any(|part| {
        let resources = container.pointer(&format!("/resources/{part}")).and_then(Value::as_object);
        resources.is_some_and(|all| all.keys().any(|key| key.starts_with("nvidia.com/")))
    });
    let is_wanted = only.map_or(asks || program.is_some(), |only| only == name);
    if !is_wanted {
        return Ok(None);
    }
    let place = format!("{place}, container {name}");
    if let Some(annotation) = annotation {
        let wrong = |problem: String| Error::Annotation { place: place.clone(), problem };
        let text = annotation.as_str().ok_or_else(|| wrong("must be a text".to_owned()))?;
        let said = declared::options(text).map_err(|problem| wrong(problem.to_string()))?;
        options = over(&options, &said);
        unread.clear();
    }
    Ok(Some(Found { place, options, program, unread }))
}

fn text<'a>(value: &'a Value, path: &[&str]) -> Option<&'a str> {
    path.iter().try_fold(value, |value, key| value.get(*key))?.as_str()
}

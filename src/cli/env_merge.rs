//! `gpumem env-merge -f pod.yaml`: what admission adds to each container's environment, and why not. Flows in: manifests of
//! any kind that carries a pod template. Flows out: text. All thinking is [`gpumem_engine::env_merge`]'s.

use std::fmt::Write as _;
use std::path::PathBuf;

use gpumem_engine::env_merge::{Container, Given, Merged, TorchVersion, Wanted, merge};
use serde_json::{Value, json};

use super::{Format, Shown, read};

/// Show which environment variables the GPU containers of a manifest gain at admission, and which they keep.
///
/// Nothing is changed. The chart's admission policy follows the same rules for pods that opted in; whatever the manifest
/// sets itself always stays.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Manifests of pods or of anything that makes pods; - for standard input.
    #[arg(short, long, required = true)]
    pub file: Vec<PathBuf>,
    /// Folder of the hook in the container: show what the hook adds too.
    #[arg(long, value_parser = folder)]
    pub hook: Option<String>,
    /// Share of the device that each process may take, more than 0 and at most 1.
    #[arg(long, value_parser = fraction)]
    pub fraction: Option<f64>,
    /// Version of the image's PyTorch, e.g. 2.11; some settings are only for versions known to understand them.
    #[arg(long, value_parser = torch)]
    pub torch: Option<TorchVersion>,
    /// The pods may be suspended to host memory.
    #[arg(long)]
    pub suspendable: bool,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value = "table", help_heading = super::OUTPUT)]
    pub output: Format,
}

/// Why nothing is shown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] read::Error),
    /// No pod in any of the files.
    #[error("no document holds a pod or a pod template")]
    NoPod,
    /// A container is not what Kubernetes takes.
    #[error("{place}: {problem}")]
    Container {
        /// Kind, name and container.
        place: String,
        /// What is wrong.
        problem: &'static str,
    },
}

fn fraction(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "give a number".to_owned())?;
    if value > 0.0 && value <= 1.0 { Ok(value) } else { Err("give more than 0 and at most 1".to_owned()) }
}

/// It goes into `PYTHONPATH`, where a relative path would depend on the container's working directory, and a colon ends it.
/// The same that the chart takes as hook.mountPath.
fn folder(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
    if text.len() > 1 && text.starts_with('/') && text.chars().all(is_plain) {
        Ok(text.to_owned())
    } else {
        Err(format!("give the folder's whole path in the container, like /opt/gpumem-hook, not `{text}`"))
    }
}

fn torch(text: &str) -> Result<TorchVersion, String> {
    let mut parts = text.split('.').map(|part| part.parse::<u32>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) => Ok(TorchVersion { major, minor }),
        _ => Err("give major and minor version, e.g. 2.11".to_owned()),
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<Shown, Error> {
    let wanted = Wanted {
        expandable_segments: true,
        tensorflow_growth: true,
        jax_growth: true,
        fraction: args.fraction,
        torch: args.torch,
        hook: args.hook.clone(),
        may_be_suspended: args.suspendable,
    };
    let mut found = Vec::new();
    for file in &args.file {
        for document in read::documents(file)? {
            let kind = document.get("kind").and_then(Value::as_str).unwrap_or("object").to_owned();
            let name = document.pointer("/metadata/name").or_else(|| document.pointer("/metadata/generateName"));
            let place = format!("{kind} {}", name.and_then(Value::as_str).unwrap_or("without a name"));
            walk(&document, &place, &mut found)?;
        }
    }
    if found.is_empty() {
        return Err(Error::NoPod);
    }
    let merged: Vec<_> = found.iter().map(|(place, container)| (place.as_str(), merge(container, &wanted))).collect();
    Ok(match args.output {
        // Lines hold values to copy: they are never broken.
        Format::Table | Format::Wide => Shown { notes: warnings(&merged), ..Shown::fine(table(&merged)) },
        Format::Json => {
            let containers: Vec<_> = merged
                .iter()
                .map(|(place, merged)| json!({"container": place, "changes": merged.changes, "kept": merged.kept}))
                .collect();
            let text = serde_json::to_string_pretty(&json!({"containers": containers})).unwrap_or_default();
            Shown { notes: warnings(&merged), ..Shown::fine(text + "\n") }
        }
    })
}

/// Whatever has `spec.containers` is a pod or a template of one, at any depth.
fn walk(value: &Value, place: &str, found: &mut Vec<(String, Container)>) -> Result<(), Error> {
    match value {
        Value::Object(fields) => {
            if value.pointer("/spec/containers").is_some_and(Value::is_array) {
                for list in ["initContainers", "containers"] {
                    let containers = value.pointer(&format!("/spec/{list}")).and_then(Value::as_array);
                    for container in containers.into_iter().flatten() {
                        let name = container.get("name").and_then(Value::as_str).unwrap_or("without a name");
                        let what = if list == "containers" { "container" } else { "init container" };
                        let place = format!("{place}, {what} {name}");
                        found.push((place.clone(), parsed(container, &place)?));
                    }
                }
                return Ok(());
            }
            fields.values().try_for_each(|field| walk(field, place, found))
        }
        Value::Array(items) => items.iter().try_for_each(|item| walk(item, place, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

/// A container as the rules see it. The admission policy asks the same of `sees_gpu`.
fn parsed(container: &Value, place: &str) -> Result<Container, Error> {
    let wrong = |problem| Error::Container { place: place.to_owned(), problem };
    let array = |key| container.get(key).and_then(Value::as_array).into_iter().flatten();
    let mut env = Vec::new();
    for entry in array("env") {
        let name = entry.get("name").and_then(Value::as_str).ok_or_else(|| wrong("an entry of env has no name"))?;
        let given = match (entry.get("valueFrom"), entry.get("value")) {
            (Some(Value::Object(_)), _) => Given::ValueFrom,
            (_, Some(Value::String(value))) => Given::Literal(value.clone()),
            (_, None | Some(Value::Null)) => Given::Literal(String::new()),
            (_, Some(_)) => return Err(wrong("a value in env is not a text: put it in quotes")),
        };
        env.push((name.to_owned(), given));
    }
    let asks = ["limits", "requests"].iter().any(|part| {
        let resources = container.pointer(&format!("/resources/{part}")).and_then(Value::as_object);
        resources.is_some_and(|all| all.keys().any(|key| key.starts_with("nvidia.com/")))
    });
    let claims = container.pointer("/resources/claims").and_then(Value::as_array).is_some_and(|all| !all.is_empty());
    let is_shown = env.iter().any(|(name, given)| {
        name == "NVIDIA_VISIBLE_DEVICES"
            && !matches!(given, Given::Literal(value) if matches!(value.as_str(), "" | "void" | "none"))
    });
    let words = array("command").chain(array("args")).filter_map(Value::as_str).map(str::to_owned).collect();
    Ok(Container { sees_gpu: asks || claims || is_shown, env, has_env_from: array("envFrom").next().is_some(), words })
}

fn table(merged: &[(&str, Merged)]) -> String {
    let mut text = String::new();
    for (place, merged) in merged {
        let _ = writeln!(text, "{place}");
        for change in &merged.changes {
            let _ = match &change.before {
                None => writeln!(text, "  add     {}={}", change.name, change.after),
                Some(before) => writeln!(text, "  extend  {}={}   (was {before})", change.name, change.after),
            };
        }
        for kept in &merged.kept {
            let _ = writeln!(text, "  keep    {}: {}", kept.name, kept.why);
        }
        if merged.changes.is_empty() && merged.kept.is_empty() {
            let _ = writeln!(text, "  nothing to add");
        }
    }
    text
}

/// What a person should look at, whatever the form of the output.
fn warnings(merged: &[(&str, Merged)]) -> Vec<String> {
    let kept = merged.iter().flat_map(|(place, merged)| merged.kept.iter().map(move |kept| (place, kept)));
    let warned = kept.filter(|(_, kept)| kept.is_warning);
    warned.map(|(place, kept)| format!("warning: {place}: {}: {}", kept.name, kept.why)).collect()
}

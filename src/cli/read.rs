//! Files and manifests that a command line names.

use std::io::Read as _;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

/// Recordings of a week at 1 Hz are far below; what is larger is not one.
const MAX_BYTES: u64 = 512 << 20;

/// Why a file gives nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("{file} cannot be read: {source}")]
    File {
        /// Which.
        file: String,
        /// Why not.
        source: std::io::Error,
    },
    /// It is no file of reasonable size.
    #[error("{file} is larger than {} MiB", MAX_BYTES >> 20)]
    TooLarge {
        /// Which.
        file: String,
    },
    /// It is not YAML.
    #[error("{file} is not YAML: {source}")]
    Yaml {
        /// Which.
        file: String,
        /// Where and why.
        source: serde_yaml::Error,
    },
}

/// The text of a file; `-` is standard input.
pub fn text(file: &Path) -> Result<String, Error> {
    let failed = |source| Error::File { file: file.display().to_string(), source };
    let mut text = String::new();
    let read = if file.as_os_str() == "-" {
        std::io::stdin().lock().take(MAX_BYTES + 1).read_to_string(&mut text)
    } else {
        std::fs::File::open(file).map_err(failed)?.take(MAX_BYTES + 1).read_to_string(&mut text)
    };
    if read.map_err(failed)? as u64 > MAX_BYTES {
        return Err(Error::TooLarge { file: file.display().to_string() });
    }
    Ok(text)
}

/// The documents of a YAML file, empty ones left out, the items of a `List` one by one.
pub fn documents(file: &Path) -> Result<Vec<Value>, Error> {
    let text = text(file)?;
    let mut found = Vec::new();
    for document in serde_yaml::Deserializer::from_str(&text) {
        let value =
            Value::deserialize(document).map_err(|source| Error::Yaml { file: file.display().to_string(), source })?;
        match value {
            Value::Null => {}
            Value::Object(mut object) if object.contains_key("items") && !object.contains_key("spec") => {
                if let Some(Value::Array(items)) = object.remove("items") {
                    found.extend(items);
                }
            }
            other => found.push(other),
        }
    }
    Ok(found)
}

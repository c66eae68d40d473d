//! PyTorch's list of allocator settings: `key:value,key:[a:b,c]`, as its `CUDAAllocatorConfig` reads it.

use std::fmt;

/// Segments that grow in place, which leaves less memory in pieces.
pub const EXPANDABLE: &str = "expandable_segments";
/// Share of the device that the process may take.
pub const FRACTION: &str = "per_process_memory_fraction";
/// Longest text looked at.
const MAX_BYTES: usize = 4096;

/// A list that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocConf {
    /// Keys and values without blanks, in their order.
    entries: Vec<(String, String)>,
}

/// Why a list cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Two commas in a row, or one at an end.
    EmptyEntry,
    /// An entry without `:` or without a key or value.
    NoValue,
    /// A bracket without its other one.
    Bracket,
    /// A value that must be `True` or `False` and is not.
    Boolean,
    /// No list of settings is this long.
    TooLong,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EmptyEntry => "a comma too many",
            Self::NoValue => "an entry that is not key:value",
            Self::Bracket => "a bracket without its other one",
            Self::Boolean => "expandable_segments must be True or False",
            Self::TooLong => "longer than 4 KiB",
        })
    }
}

// === impl AllocConf ===

impl AllocConf {
    /// Reads a list; commas in brackets belong to a value, blanks to nobody.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        if text.len() > MAX_BYTES {
            return Err(Problem::TooLong);
        }
        let text: String = text.chars().filter(|char| !char.is_whitespace()).collect();
        let mut entries = Vec::new();
        for entry in split(&text)? {
            if entry.is_empty() {
                return Err(Problem::EmptyEntry);
            }
            let (key, value) = entry.split_once(':').ok_or(Problem::NoValue)?;
            let is_key = !key.is_empty() && key.chars().all(|char| char.is_ascii_alphanumeric() || char == '_');
            if !is_key || value.is_empty() {
                return Err(Problem::NoValue);
            }
            if key == EXPANDABLE && !matches!(value, "True" | "False") {
                return Err(Problem::Boolean);
            }
            entries.push((key.to_owned(), value.to_owned()));
        }
        Ok(Self { entries })
    }

    /// A key's value; the last where it is there twice.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.entries.iter().rev().find(|(other, _)| other == key).map(|(_, value)| value.as_str())
    }

    /// Whether CUDA's own allocator is asked for, which ignores most keys.
    pub fn is_async(&self) -> bool {
        self.get("backend") == Some("cudaMallocAsync")
    }
}

/// Entries between commas that are outside brackets.
fn split(text: &str) -> Result<Vec<&str>, Problem> {
    let (mut entries, mut start, mut is_inside) = (Vec::new(), 0, false);
    for (at, char) in text.char_indices() {
        match (char, is_inside) {
            ('[', false) => is_inside = true,
            (']', true) => is_inside = false,
            ('[', true) | (']', false) => return Err(Problem::Bracket),
            (',', false) => {
                entries.push(text.get(start..at).unwrap_or_default());
                start = at + 1;
            }
            _ => {}
        }
    }
    if is_inside {
        return Err(Problem::Bracket);
    }
    entries.push(text.get(start..).unwrap_or_default());
    Ok(entries)
}

/// The user's text with more keys at its end; every character of the user's stays.
pub fn join(own: &str, keys: &[(&'static str, String)]) -> String {
    let mut text = own.to_owned();
    for (key, value) in keys {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(key);
        text.push(':');
        text.push_str(value);
    }
    text
}

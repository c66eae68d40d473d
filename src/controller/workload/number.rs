//! Counts in objects that somebody else's controller wrote: what is no count must never wrap into a large one.

use serde_json::Value;

/// The count here: 0 where it is negative, absent or no number at all.
pub fn of(value: &Value) -> u32 {
    match value.as_u64() {
        Some(number) => u32::try_from(number).unwrap_or(u32::MAX),
        None => 0,
    }
}

/// The count here, and `default` where there is none.
pub fn or(value: &Value, default: u32) -> u32 {
    if value.is_null() { default } else { of(value) }
}

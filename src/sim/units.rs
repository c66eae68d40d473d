//! Sizes, durations and rates as people write them: `2GiB`, `500ms`, `12GiB/h`.
//!
//! Flows in: text from shapes, device specs and flags. Flows out: plain numbers, and text that parses back to the same
//! number. Pure.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

const SIZE_UNITS: [(&str, u64); 15] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("Ti", 1 << 40),
    ("Gi", 1 << 30),
    ("Mi", 1 << 20),
    ("Ki", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("kB", 1_000),
    ("B", 1),
    ("", 1),
];

const DURATION_UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("", 1_000)];

/// Reads an amount of memory: `2GiB`, `1.5Gi`, `800MB`, or plain bytes.
///
/// # Errors
/// Says what is wrong with the text.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split_unit(text);
    let Some((_, factor)) = SIZE_UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(format!("`{text}` has no known unit of memory; write it like 2GiB, 500MiB or 1.5GB"));
    };
    scale(text, number, *factor)
}

/// Writes an amount of memory so that `parse_size` gives back exactly the same number.
pub fn format_size(bytes: u64) -> String {
    for (unit, size) in &SIZE_UNITS[..4] {
        if bytes >= *size && bytes.is_multiple_of(*size) {
            return format!("{}{unit}", bytes / size);
        }
    }
    format!("{bytes}B")
}

/// Reads a duration to the millisecond: `500ms`, `30s`, `5m`, `2h`; a bare number is seconds.
///
/// # Errors
/// Says what is wrong with the text.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split_unit(text);
    let Some((_, factor)) = DURATION_UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(format!("`{text}` has no known unit of time; write it like 500ms, 30s, 5m or 2h"));
    };
    scale(text, number, *factor).map(Duration::from_millis)
}

/// Writes a duration so that `parse_duration` gives back the same number of milliseconds.
pub fn format_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    for (unit, size) in [("h", 3_600_000), ("m", 60_000), ("s", 1_000)] {
        if millis >= size && millis.is_multiple_of(size) {
            return format!("{}{unit}", millis / size);
        }
    }
    format!("{millis}ms")
}

/// A speed of growth, kept as it was written so that `12GiB/h` stays exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Amount of memory in each unit of time.
    pub bytes: u64,
    /// The unit of time.
    pub per: Per,
}

/// The unit of time of a [`Rate`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Per {
    /// `/s`
    #[default]
    Second,
    /// `/m`
    Minute,
    /// `/h`
    Hour,
}

// === impl Rate ===

impl Rate {
    /// Bytes a second.
    pub fn per_second(self) -> f64 {
        self.bytes as f64
            / match self.per {
                Per::Second => 1.0,
                Per::Minute => 60.0,
                Per::Hour => 3600.0,
            }
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (amount, unit) =
            text.split_once('/').ok_or_else(|| format!("`{text}` is not a rate; write it like 200MiB/s or 4GiB/h"))?;
        let per = match unit.trim() {
            "s" => Per::Second,
            "m" | "min" => Per::Minute,
            "h" => Per::Hour,
            other => return Err(format!("`{other}` is not a unit of time for a rate; use /s, /m or /h")),
        };
        Ok(Self { bytes: parse_size(amount)?, per })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.per {
            Per::Second => "s",
            Per::Minute => "m",
            Per::Hour => "h",
        };
        write!(f, "{}/{unit}", format_size(self.bytes))
    }
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// `number` times `factor`, exactly for whole numbers, rounded for decimals.
fn scale(text: &str, number: &str, factor: u64) -> Result<u64, String> {
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(|| format!("`{text}` is too large"));
    }
    let value: f64 = number.parse().map_err(|_| format!("`{text}` does not start with a number"))?;
    let scaled = (value * factor as f64).round();
    if scaled < u64::MAX as f64 { Ok(scaled as u64) } else { Err(format!("`{text}` is too large")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_read_in_binary_and_decimal_units() {
        assert_eq!(parse_size("2GiB"), Ok(2 << 30));
        assert_eq!(parse_size("1.5Gi"), Ok(3 << 29));
        assert_eq!(parse_size("80 GB"), Ok(80_000_000_000));
        assert_eq!(parse_size("7"), Ok(7));
        assert!(parse_size("2 gigs").is_err());
        assert!(parse_size("GiB").is_err());
        assert!(parse_size("99999999TiB").is_err());
    }

    #[test]
    fn durations_and_rates_are_read() {
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("90"), Ok(Duration::from_secs(90)));
        assert!(parse_duration("3 days").is_err());
        assert_eq!("3600MiB/h".parse::<Rate>().map(Rate::per_second), Ok(1_048_576.0));
        assert!("200MiB".parse::<Rate>().is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(bytes: u64, millis in 0_u64..1 << 45) {
            prop_assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
    }
}

//! Amounts and moments as types: memory in bytes, rates, and points on a node's monotonic time line.
//!
//! Flows in: plain numbers at the edges. Flows out: values the rest of the engine can trust. Nothing here reads a clock.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A count with its noun: `1 sample`, `3 samples`, `0 policies`. Whatever counts something for people goes through here.
pub fn counted(count: impl TryInto<u64>, one: &str, many: &str) -> String {
    // What does not fit is many.
    let count = count.try_into().unwrap_or(u64::MAX);
    format!("{count} {}", if count == 1 { one } else { many })
}

/// An amount of memory in bytes. Arithmetic saturates: a sum of readings never wraps around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Nothing at all.
    pub const ZERO: Self = Self(0);

    /// `n` KiB (1024 bytes).
    pub const fn kib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 10))
    }

    /// `n` MiB (2^20 bytes).
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }

    /// `n` GiB (2^30 bytes).
    pub const fn gib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 30))
    }

    /// From a float; negative and NaN become zero, too large saturates.
    pub fn from_f64(bytes: f64) -> Self {
        Self(bytes as u64)
    }

    /// As a float, exact below 2^53.
    pub fn as_f64(self) -> f64 {
        self.0 as f64
    }

    /// In MiB, for arithmetic that is shown to people.
    pub fn as_mib(self) -> f64 {
        self.as_f64() / 1_048_576.0
    }

    /// `self - other`, or zero where `other` is larger.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self.saturating_sub(other)
    }
}

impl std::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Bytes {
    /// Binary units with at most one decimal: `11.2 GiB`, `512 MiB`, `0 B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        for (size, unit) in UNITS {
            if self.0 >= size {
                let value = self.as_f64() / size as f64;
                return if (value - value.round()).abs() < 0.05 {
                    write!(f, "{value:.0} {unit}")
                } else {
                    write!(f, "{value:.1} {unit}")
                };
            }
        }
        write!(f, "{} B", self.0)
    }
}

/// A rate of growth in bytes per second; negative when memory shrinks. Always finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BytesPerSecond(pub f64);

impl fmt::Display for BytesPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0.0 { "-" } else { "" };
        write!(f, "{sign}{}/s", Bytes::from_f64(self.0.abs()))
    }
}

/// A moment on one node's monotonic time line (CLOCK_MONOTONIC), in milliseconds since an arbitrary origin.
///
/// Two moments compare only when they come from the same node and boot. The wall clock plays no part: a node whose clock
/// is wrong is forecast as well as any other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(pub u64);

impl Moment {
    /// `n` seconds after the origin.
    pub const fn from_secs(n: u64) -> Self {
        Self(n.saturating_mul(1000))
    }

    /// Time passed since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// Seconds passed since `earlier` as a float; zero if `earlier` is later.
    pub fn secs_since(self, earlier: Self) -> f64 {
        self.since(earlier).as_secs_f64()
    }
}

impl Add<Duration> for Moment {
    type Output = Self;
    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(later.as_millis()).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_thing_is_no_plural() {
        assert_eq!(
            [0, 1, 2].map(|count: u32| counted(count, "sample", "samples")),
            ["0 samples", "1 sample", "2 samples"]
        );
        assert_eq!(counted(1_usize, "policy", "policies"), "1 policy");
        assert_eq!(counted(-1_i32, "replica", "replicas"), "18446744073709551615 replicas", "no count is negative");
    }

    #[test]
    fn sizes_read_as_people_write_them() {
        assert_eq!(Bytes::gib(11).to_string(), "11 GiB");
        assert_eq!(Bytes::mib(11_469).to_string(), "11.2 GiB");
        assert_eq!(Bytes(17).to_string(), "17 B");
        assert_eq!(BytesPerSecond(-2_097_152.0).to_string(), "-2 MiB/s");
    }

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        assert_eq!(Bytes(u64::MAX) + Bytes(1), Bytes(u64::MAX));
        assert_eq!(Bytes(1) - Bytes(2), Bytes::ZERO);
        assert_eq!(Bytes::from_f64(f64::NAN), Bytes::ZERO);
        assert_eq!(Moment(5).since(Moment(9)), Duration::ZERO);
    }
}

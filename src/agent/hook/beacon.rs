//! A thread's name as the hook writes it: one device's allocator in 15 characters. The other side is `beacon_name` in
//! `hook/gpumem_hook/__init__.py`; `tests/data/hook-names.json` holds both to the same.

use gpumem_engine::quantity::Bytes;

/// Marks a name as ours, and its format.
const PREFIX: &[u8] = b"gm1";
/// Characters after it, 6 bits each.
const DIGITS: usize = 12;
/// Memory is told in units of this.
const UNIT_SHIFT: u32 = 17;
/// All ones: not known.
const UNKNOWN: u32 = 0xFF_FFFF;

/// What one name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beacon {
    /// Live memory, to 64 KiB; `None` where the framework does not say.
    pub allocated: Option<Bytes>,
    /// Live and cached memory, to 64 KiB; `None` where the framework does not say.
    pub reserved: Option<Bytes>,
    /// The first four hexadecimal digits of the GPU's UUID; `None` where the process does not know it.
    pub uuid: Option<u16>,
    /// Out-of-memory failures so far; 31 stands for that many or more.
    pub ooms: u8,
    /// Counts the hook's looks, modulo 8.
    pub beat: u8,
}

/// Reads the text of a `comm` file; `None` where it is some other thread's name, or says what cannot be.
pub fn read(comm: &[u8]) -> Option<Beacon> {
    let name = comm.strip_suffix(b"\n").unwrap_or(comm);
    let digits = name.strip_prefix(PREFIX).filter(|digits| digits.len() == DIGITS)?;
    let mut bits: u128 = 0;
    for digit in digits {
        bits = bits << 6 | u128::from(value(*digit)?);
    }
    let field = |shift: u32, mask: u32| u32::try_from(bits >> shift & u128::from(mask)).unwrap_or_default();
    let bytes = |units: u32| (units != UNKNOWN).then_some(Bytes(u64::from(units) << UNIT_SHIFT));
    let (allocated, reserved) = (bytes(field(48, UNKNOWN)), bytes(field(24, UNKNOWN)));
    // What is live is held; both are rounded alike, so this is exact.
    if matches!((allocated, reserved), (Some(allocated), Some(reserved)) if allocated > reserved) {
        return None;
    }
    let uuid = field(8, 0xFFFF);
    Some(Beacon {
        allocated,
        reserved,
        uuid: u16::try_from(uuid).ok().filter(|uuid| *uuid != 0),
        ooms: u8::try_from(field(3, 31)).unwrap_or_default(),
        beat: u8::try_from(field(0, 7)).unwrap_or_default(),
    })
}

/// A digit of base64's URL alphabet.
fn value(digit: u8) -> Option<u8> {
    Some(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Golden {
        allocated: u64,
        reserved: Option<u64>,
        uuid: u16,
        ooms: u8,
        beat: u8,
        name: String,
    }

    #[test]
    fn names_that_the_hook_writes_are_read_to_64_kib() {
        let golden: Vec<Golden> = serde_json::from_str(include_str!("../../../tests/data/hook-names.json")).unwrap();
        for case in golden {
            let read = read(format!("{}\n", case.name).as_bytes()).unwrap();
            if case.allocated < 1 << 40 {
                assert!(read.allocated.unwrap().0.abs_diff(case.allocated) <= 1 << 16, "{}", case.name);
            } else {
                assert_eq!((read.allocated, read.reserved), (None, None), "larger than any GPU: not known");
            }
            if let (Some(expected), Some(found)) = (case.reserved, read.reserved) {
                assert!(found.0.abs_diff(expected) <= 1 << 16, "{}", case.name);
            }
            assert_eq!(read.uuid.unwrap_or_default(), case.uuid);
            assert_eq!((read.ooms, read.beat), (case.ooms.min(31), case.beat % 8));
        }
    }

    #[test]
    fn other_names_and_impossible_figures_are_not_read() {
        let held_less_than_live = "gm1AAABAAAAAAAA";
        for name in [
            "",
            "\n",
            "python",
            "gpumem-hook",
            "gm1",
            "gm1AAAAAAAAAAA",
            "gm1AAAAAAAAAAAAA",
            "gm2AAAAAAAAAAAA",
            "gm1AAAAAAAAAAA+",
            "gm1AAAAAAAAAAA ",
            "gm1\u{e4}AAAAAAAAAA",
            "GM1AAAAAAAAAAAA",
            held_less_than_live,
        ] {
            assert_eq!(read(name.as_bytes()), None, "{name:?}");
        }
        assert!(read(b"gm1AAAAAAAAAAAA").is_some(), "a name without a newline is whole as well");
        assert_eq!(read(&[0xFF; 15]), None);
    }
}

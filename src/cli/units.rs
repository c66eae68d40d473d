//! Sizes and durations as people type them on a command line.

use std::time::Duration;

use gpumem_engine::quantity::Bytes;

/// A size: `24GiB`, `24Gi`, `512 MiB`, `18G` (decimal), or plain bytes.
pub fn size(text: &str) -> Result<Bytes, String> {
    let text = text.trim();
    let ends = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(ends);
    let unit: f64 = match unit.trim().strip_suffix('B').unwrap_or(unit.trim()) {
        "" => 1.0,
        "Ki" => 1024.0,
        "Mi" => 1_048_576.0,
        "Gi" => 1_073_741_824.0,
        "Ti" => 1_099_511_627_776.0,
        "k" | "K" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        _ => return Err("write a size like 24GiB, 512MiB or 18G".to_owned()),
    };
    let bytes = number.parse::<f64>().map_err(|_| "write a size like 24GiB, 512MiB or 18G".to_owned())? * unit;
    // Nobody means 24 bytes by 24.
    if unit <= 1.0 && (1.0..1_048_576.0).contains(&bytes) {
        return Err(format!("{number} without a unit is bytes: write {number}GiB or {number}MiB"));
    }
    // 2^50 is a thousand times the largest device.
    if (1.0..1_125_899_906_842_624.0).contains(&bytes) {
        Ok(Bytes::from_f64(bytes))
    } else {
        Err("give a size above zero and below 1 PiB".to_owned())
    }
}

/// A duration: `90s`, `15m`, `1h`, `500ms`, `1h30m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    const WRONG: &str = "write a duration with its unit, like 90s, 15m or 1h30m";
    let (mut rest, mut total) = (text.trim(), 0.0);
    if rest.is_empty() {
        return Err(WRONG.to_owned());
    }
    while !rest.is_empty() {
        let ends = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(WRONG)?;
        let (number, after) = rest.split_at(ends);
        let number: f64 = number.parse().map_err(|_| WRONG.to_owned())?;
        let unit_ends = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_ends);
        total += number
            * match unit {
                "ms" => 0.001,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                "d" => 86_400.0,
                _ => return Err(WRONG.to_owned()),
            };
        rest = next;
    }
    if total <= 86_400.0 * 30.0 { Ok(Duration::from_secs_f64(total)) } else { Err("at most 30 days".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_binary_and_decimal_units() {
        assert_eq!(size("24GiB"), Ok(Bytes::gib(24)));
        assert_eq!(size("24Gi"), Ok(Bytes::gib(24)));
        assert_eq!(size("1.5 GiB"), Ok(Bytes::mib(1536)));
        assert_eq!(size("18G"), Ok(Bytes(18_000_000_000)));
        assert_eq!(size("1073741824"), Ok(Bytes::gib(1)));
        for bad in ["", "GiB", "-1GiB", "1e9", "24 gigs", "0", "24", "9999TiB", "NaN"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_carry_their_units() {
        assert_eq!(duration("15m"), Ok(Duration::from_mins(15)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_mins(90)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        for bad in ["", "15", "m", "-5s", "5y", "99999d", "1..5s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}

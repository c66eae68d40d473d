//! Amounts of memory as frameworks print them. All prefixes are binary: those who write `GB` or `G` divide by 1024 too.

use crate::quantity::Bytes;

/// Larger amounts are a missing limit or an underflow that was printed, never a device.
const ABSURD: u64 = 1 << 60;

/// Reads the amount at the start of `text`, past blanks and punctuation; exact bytes in brackets behind it
/// are preferred.
///
/// Expects lower case. A number without a unit counts bytes.
pub(super) fn at_start(text: &str) -> Option<Bytes> {
    let text = text.trim_start_matches([' ', ':', '=', '~', '(', '`', '\'']);
    let (amount, rest) = amount(text)?;
    let exact = rest
        .trim_start()
        .strip_prefix('(')
        .and_then(self::amount)
        .filter(|(_, rest)| rest.trim_start().starts_with(')'));
    Some(exact.map_or(amount, |(exact, _)| exact)).filter(|bytes| bytes.0 < ABSURD)
}

/// Reads the amount that ends `text`: `4.61 GiB` or `48.00M`.
pub(super) fn at_end(text: &str) -> Option<Bytes> {
    let text = text.trim_end();
    // No amount is longer than this, and it keeps a hostile line from being walked again for each phrase.
    let from = (text.len().saturating_sub(48)..text.len()).find(|at| text.is_char_boundary(*at))?;
    let near = &text[from..];
    let unit = near.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number = unit.trim_end();
    let start = number
        .rfind(|c: char| !is_of_number(c))
        .map_or(0, |at| at + number[at..].chars().next().map_or(1, char::len_utf8));
    let (amount, rest) = amount(&near[start..])?;
    (rest.is_empty() && amount.0 < ABSURD).then_some(amount)
}

fn is_of_number(c: char) -> bool {
    c.is_ascii_digit() || matches!(c, '.' | ',' | '_')
}

fn amount(text: &str) -> Option<(Bytes, &str)> {
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let end = text.find(|c: char| !is_of_number(c)).unwrap_or(text.len());
    // A sentence may end right behind the number.
    let printed = text[..end].trim_end_matches(['.', ',', '_']);
    let rest = &text[printed.len()..];
    let digits: String = printed.chars().filter(|c| !matches!(c, ',' | '_')).take(40).collect();
    let word = rest.trim_start_matches(' ');
    let word_end = word.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(word.len());
    let (factor, rest) = match factor(&word[..word_end]) {
        Some(factor) => (factor, &word[word_end..]),
        None => (1, rest),
    };
    let bytes = match digits.parse::<u64>() {
        Ok(whole) => Bytes(whole.saturating_mul(factor)),
        Err(_) => Bytes::from_f64(digits.parse::<f64>().ok()? * factor as f64),
    };
    Some((bytes, rest))
}

fn factor(unit: &str) -> Option<u64> {
    Some(match unit {
        "b" | "byte" | "bytes" => 1,
        "k" | "kb" | "kib" | "ki" | "kibibytes" | "kilobytes" => 1 << 10,
        "m" | "mb" | "mib" | "mi" | "mebibytes" | "megabytes" => 1 << 20,
        "g" | "gb" | "gib" | "gi" | "gibibytes" | "gigabytes" => 1 << 30,
        "t" | "tb" | "tib" | "ti" => 1 << 40,
        "p" | "pb" | "pib" => 1 << 50,
        "e" | "eb" | "eib" => 1 << 60,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_unit_is_read() {
        for (text, bytes) in [
            ("41.50 mib (gpu 0; 1 gib", 43_515_904),
            ("48.00m (50331648 bytes) from", 50_331_648),
            ("6.10gib (6549825126b) on", 6_549_825_126),
            ("0 bytes", 0),
            (": 930000000", 930_000_000),
            ("1.500000gb memory", 1_610_612_736),
            ("39.250000kb", 40_192),
            ("1,070,000,000 bytes (allocated", 1_070_000_000),
            ("512. of", 512),
            ("2 gib.", 2_147_483_648),
        ] {
            assert_eq!(at_start(text), Some(Bytes(bytes)), "{text}");
        }
        assert_eq!(at_start("17179869184.00 gib"), None, "no limit, printed");
        assert_eq!(at_start("... gib"), None);
    }

    #[test]
    fn an_amount_before_a_phrase_is_read_backwards() {
        assert_eq!(at_end("allocated; 7.50 mib "), Some(Bytes(7_864_320)));
        assert_eq!(at_end("(0 bytes"), Some(Bytes(0)));
        assert_eq!(at_end("é12kib"), Some(Bytes(12_288)));
        assert_eq!(at_end("is the"), None);
        assert_eq!(at_end(""), None);
    }
}

//! Turns a raw log tail into lines that phrases can be looked for in: bounded, without colours, escapes undone.

/// One line of a log.
pub(super) struct Line {
    /// As printed, without colours and rank prefix.
    pub text: String,
    /// The same in ASCII lower case; offsets are those of `text`.
    pub lower: String,
    /// The record it came from calls itself a warning or less.
    pub level: Level,
}

/// How serious a log record says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// A warning: whatever it tells of was survived.
    Warning,
    /// Information or debugging.
    Info,
    /// An error, or nothing said.
    Unsaid,
}

/// The last `limit` bytes of `tail`, or a little less where a character would be cut.
pub(super) fn last(tail: &str, limit: usize) -> &str {
    let mut from = tail.len().saturating_sub(limit);
    while !tail.is_char_boundary(from) {
        from += 1;
    }
    &tail[from..]
}

/// Splits into lines; a record with escaped line breaks (JSON loggers) becomes several that share its level.
pub(super) fn lines(tail: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    for record in tail.split(['\n', '\r']) {
        let clean = without_colours(&unescaped(record));
        let level = structured_level(&clean.to_ascii_lowercase());
        for text in clean.split('\n').filter(|text| !text.trim().is_empty()) {
            let text = without_rank(text).to_owned();
            let lower = text.to_ascii_lowercase();
            lines.push(Line { text, lower, level });
        }
    }
    lines
}

/// Undoes the escapes of a JSON string, even if escaped twice by a second logger around the first.
fn unescaped(record: &str) -> String {
    if !record.contains('\\') {
        return record.to_owned();
    }
    let mut out = String::with_capacity(record.len());
    let mut rest = record.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        let mut after = rest.as_str().trim_start_matches('\\').chars();
        match after.next() {
            Some('n' | 'r') => out.push('\n'),
            Some('t') => out.push(' '),
            Some(quote @ ('"' | '\'' | '/')) => out.push(quote),
            Some('u') => {
                let code = after.as_str().get(..4).and_then(|hex| u32::from_str_radix(hex, 16).ok());
                let Some(decoded) = code.and_then(char::from_u32) else {
                    out.push('u');
                    rest = after;
                    continue;
                };
                out.push(decoded);
                after.nth(3);
            }
            Some(other) => out.extend(['\\', other]),
            None => {}
        }
        rest = after;
    }
    out
}

/// Drops ANSI control sequences and other control characters, line breaks excepted.
fn without_colours(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c == '\u{1b}' {
            // Any other escape than `ESC [` is one character long here; what it leaves behind is not worth a parser.
            if rest.next_if_eq(&'[').is_some() {
                while rest.next_if(|c| c.is_ascii_digit() || matches!(c, ';' | '?' | ':' | ' ')).is_some() {}
                rest.next_if(char::is_ascii_alphabetic);
            }
        } else if c == '\t' {
            out.push(' ');
        } else if c == '\n' || !c.is_control() {
            out.push(c);
        }
    }
    out
}

/// Drops `[rank3]: `, which torchrun puts before each line, continuation lines of one message included.
fn without_rank(line: &str) -> &str {
    let Some(inner) = line.trim_start().strip_prefix('[') else { return line };
    match inner.split_once("]:") {
        Some((rank, rest)) if rank.len() <= 16 && rank.bytes().all(|b| b.is_ascii_alphanumeric()) => rest,
        _ => line,
    }
}

/// The level that a structured record carries as a field; it may come behind the message.
fn structured_level(lower: &str) -> Level {
    for key in
        ["\"level\":", "\"severity\":", "\"levelname\":", "\"lvl\":", "\"loglevel\":", "level=", "severity=", "lvl="]
    {
        let Some(at) = lower.find(key) else { continue };
        let value = lower[at + key.len()..].trim_start_matches([' ', '"']);
        if value.starts_with("warn") {
            return Level::Warning;
        }
        if ["info", "debug", "trace", "notice"].iter().any(|level| value.starts_with(level)) {
            return Level::Info;
        }
    }
    Level::Unsaid
}

/// The level that the plain beginning of a line names as a word of its own.
pub(super) fn plain_level(before: &str) -> Level {
    for (index, word) in before.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').enumerate() {
        // A level stands at the front, behind dates and process names; further on the word is prose.
        if index > 40 {
            break;
        }
        match word {
            "warning" | "warn" | "userwarning" | "runtimewarning" => return Level::Warning,
            "info" | "debug" | "notice" => return Level::Info,
            "error" | "critical" | "fatal" => return Level::Unsaid,
            _ => {}
        }
    }
    Level::Unsaid
}

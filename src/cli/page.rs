//! How text meets a terminal: how wide a page is, where lines break, and the error stream. Pure but for the two functions that
//! ask the terminal.
//!
//! The rule, for everything that people read: a line is no longer than the terminal is wide, and text no longer than
//! [`WIDEST`], since longer lines are hard to read. Where output goes into a pipe or a file a page has [`PAGE`] columns, so
//! that what is pasted into a ticket reads as it did. Names are never cut there, because a script may look for them. `-o wide`
//! breaks, cuts and leaves out nothing, and neither do the forms for programs.

use std::io::IsTerminal as _;

/// Columns of a page that is no terminal.
pub const PAGE: usize = 80;
/// Columns of text at most.
pub const WIDEST: usize = 110;
/// Columns of text at least: below this a broken line helps nobody.
const NARROWEST: usize = 40;
/// What stands below the last column of a line needs this much room; else it goes below the line's beginning.
const ROOM: usize = 30;

/// Columns of text where the terminal has `terminal` of them, or where there is none.
pub fn width(terminal: Option<usize>) -> usize {
    match terminal {
        // Asked for whole lines.
        Some(usize::MAX) => usize::MAX,
        Some(columns) => columns.clamp(NARROWEST, WIDEST),
        None => PAGE,
    }
}

/// Columns of the terminal that standard output is; `None` where it is none.
pub fn terminal() -> Option<usize> {
    let size = std::io::stdout().is_terminal().then(ratatui::crossterm::terminal::size);
    size.and_then(Result::ok).map(|(columns, _)| columns.into())
}

/// `program: text` for standard error: broken at the terminal's width, whole where a log takes it.
pub fn complaint(program: &str, text: &str) -> String {
    let size = std::io::stderr().is_terminal().then(ratatui::crossterm::terminal::size);
    let columns = size.and_then(Result::ok).map_or(usize::MAX, |(columns, _)| width(Some(columns.into())));
    hanging(program, text, columns)
}

/// `program: text`, each line of it broken at `columns`, what follows below the text.
pub fn hanging(program: &str, text: &str, columns: usize) -> String {
    let indent = program.chars().count() + 2;
    let lines: Vec<String> = text.lines().map(|line| indented(line, columns, indent)).collect();
    format!("{program}: {}\n", lines.join("\n"))
}

/// A line of a message: the first words stand where they stood, what is broken off is set below them. A command to copy stands
/// on a line of its own, indented, and is never broken.
fn indented(line: &str, columns: usize, indent: usize) -> String {
    let lead = line.len() - line.trim_start().len();
    if lead > 0 && !line.trim_start().starts_with("fix: ") {
        return line.to_owned();
    }
    format!("{}{}", " ".repeat(lead), wrap(line, columns, indent.max(lead)))
}

/// Characters that are seen: colours take no room.
pub fn seen(text: &str) -> usize {
    let mut is_escape = false;
    let is_seen = |character: &char| {
        let was_escape = is_escape;
        is_escape = if is_escape { *character != 'm' } else { *character == '\u{1b}' };
        !was_escape && !is_escape
    };
    text.chars().filter(is_seen).count()
}

/// `text` in lines of at most `width` characters, each but the first with `indent` spaces before it. The first is taken to
/// begin at `indent` too. A word that is longer stands alone and whole.
pub fn wrap(text: &str, width: usize, indent: usize) -> String {
    let (mut out, mut length) = (String::new(), 0);
    for word in text.split_whitespace() {
        let word_length = seen(word);
        if length > 0 && indent + length + 1 + word_length > width {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            length = 0;
        } else if length > 0 {
            out.push(' ');
            length += 1;
        }
        out.push_str(word);
        length += word_length;
    }
    out
}

/// Every line of `text` that is longer than `width` broken, what follows set below its last column, or below the text of its
/// list item.
pub fn fit(text: &str, width: usize) -> String {
    let mut out = String::new();
    for line in text.lines() {
        if seen(line) <= width {
            out += line;
        } else {
            let at = hang(line, width);
            let (head, rest) = line.split_at(line.char_indices().nth(at).map_or(line.len(), |(byte, _)| byte));
            out += head;
            // Below the beginning, where there is no room below the last column.
            let indent = if at + ROOM <= width { at } else { 4 };
            out += &broken(rest, width, at, indent);
        }
        out.push('\n');
    }
    out
}

/// `text` that begins at column `at`, with what follows at column `indent`.
fn broken(text: &str, width: usize, at: usize, indent: usize) -> String {
    let (mut out, mut column) = (String::new(), at);
    for (place, word) in text.split_whitespace().enumerate() {
        let length = seen(word);
        if place > 0 && column + 1 + length > width {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if place > 0 {
            out.push(' ');
            column += 1;
        }
        out += word;
        column += length;
    }
    out
}

/// Where the last column of a line begins: behind its last gap of two blanks, else behind its indent and the mark of a list.
fn hang(line: &str, width: usize) -> usize {
    let characters: Vec<char> = line.chars().collect();
    let is_gap = |place: &usize| {
        characters.get(place - 2..=*place).is_some_and(|three| three[..2] == [' ', ' '] && three[2] != ' ')
    };
    let behind_gap = (2..characters.len()).rev().find(is_gap);
    let lead = characters.iter().take_while(|character| **character == ' ').count();
    match behind_gap {
        Some(place) if place > lead && place < width => place,
        _ => {
            let rest: String = characters.iter().skip(lead).collect();
            let first = rest.split(' ').next().unwrap_or_default();
            let is_mark = first == "-" || first.strip_suffix('.').is_some_and(|number| number.parse::<u32>().is_ok());
            if is_mark { lead + first.chars().count() + 1 } else { lead }
        }
    }
}

/// The first `width` characters of each line, with `…` where something had to go.
pub fn clip(text: &str, width: usize) -> String {
    let mut out = String::new();
    for line in text.lines() {
        if line.chars().count() <= width {
            out += line;
        } else {
            out.extend(line.chars().take(width.saturating_sub(1)));
            out.push('…');
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_as_wide_as_its_terminal_within_reason() {
        assert_eq!(
            [None, Some(20), Some(80), Some(100), Some(250), Some(usize::MAX)].map(width),
            [80, 40, 80, 100, 110, usize::MAX]
        );
    }

    #[test]
    fn texts_wrap_at_words_and_keep_those_that_are_too_long() {
        assert_eq!(wrap("one two three", 8, 2), "one\n  two\n  three");
        assert_eq!(wrap("unbreakable", 4, 0), "unbreakable");
        assert_eq!(wrap("a \u{1b}[31mbc\u{1b}[0m d", 6, 0), "a \u{1b}[31mbc\u{1b}[0m d", "colours take no room");
    }

    #[test]
    fn what_is_broken_off_stands_below_the_last_column() {
        let row = format!("  10s  train  {}", "word ".repeat(12).trim_end());
        assert_eq!(
            fit(&row, 50),
            "  10s  train  word word word word word word word\n              word word word word word\n"
        );
        let item = format!("  - {}", "word ".repeat(9).trim_end());
        assert_eq!(fit(&item, 40), "  - word word word word word word word\n    word word\n");
        assert_eq!(fit("short  line\n\n", 40), "short  line\n\n");
    }

    #[test]
    fn no_room_below_the_last_column_means_below_the_line() {
        let row = format!("{}  {}", "x".repeat(30), "word ".repeat(8).trim_end());
        let fitted = fit(&row, 50);
        assert_eq!(fitted.lines().nth(1), Some("    word word word word word"), "{fitted}");
        assert!(fitted.lines().all(|line| line.len() <= 50), "{fitted}");
    }

    #[test]
    fn a_complaint_hangs_below_its_program_and_keeps_its_lines() {
        assert_eq!(hanging("gpumem", "one two three", 17), "gpumem: one two\n        three\n");
        assert_eq!(hanging("gpumem", "one\n   fix: two", usize::MAX), "gpumem: one\n   fix: two\n");
        assert_eq!(hanging("gpumem", "do\n   curl a b c", 12), "gpumem: do\n   curl a b c\n", "a command is to copy");
    }

    #[test]
    fn a_clipped_line_says_that_it_is() {
        assert_eq!(clip("abcdef\nab\n", 4), "abc…\nab\n");
    }
}

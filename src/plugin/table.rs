//! Tables, and the other forms a list of objects can be printed in. Pure.

use serde_json::Value;

use crate::api::view::Level;
use crate::cli::page::{self, PAGE};

/// Form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Table,
    /// With every column.
    Wide,
    /// For programs: `{"apiVersion": "cli.gpumem.dev/v1", "kind", "items", "notSeen"}`.
    Json,
    /// The same as YAML.
    Yaml,
    /// One line per item.
    Csv,
}

/// How a terminal wants it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// With colours.
    pub color: bool,
    /// Characters of a line: those of the terminal, `usize::MAX` for as many as it takes. `None` where output goes into a pipe.
    pub width: Option<usize>,
}

impl Style {
    /// Characters of a line of text.
    pub fn page(self) -> usize {
        page::width(self.width)
    }

    /// What the form of the output makes of it: `-o wide` leaves every line whole.
    pub fn of(self, output: Output) -> Self {
        if output == Output::Wide { Self { width: Some(usize::MAX), ..self } } else { self }
    }
}

/// A cell, and how urgent it is where that shall show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    text: String,
    level: Option<Level>,
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, level: None }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<Level> for Cell {
    fn from(level: Level) -> Self {
        Self { text: level.name().to_owned(), level: Some(level) }
    }
}

/// `text` in the colour of `level`.
pub fn colored(text: &str, level: Level, style: Style) -> String {
    let code = match level {
        Level::Low => "32",
        Level::Unknown => "2",
        Level::Elevated => "33",
        Level::High => "31",
        Level::Critical => "1;31",
    };
    if style.color { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
}

/// A column's title. One that starts with `>` is of numbers and set to the right. One that starts with `~` and a digit, before
/// that, may be left out where a terminal is too narrow: the lowest digit first.
pub type Title = &'static str;

/// A title's rank among those that may be left out, and the rest of it.
fn rank(title: Title) -> (Option<char>, &'static str) {
    let rest = title.strip_prefix('~').map(str::chars);
    rest.map_or((None, title), |mut chars| (chars.next(), chars.as_str()))
}

/// No name is shortened below this.
const SHORTEST_NAME: usize = 12;

/// `text` in at most `width` characters, with `…` for what had to go from its middle.
pub fn shortened(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let tail = width.saturating_sub(1) / 2;
    let head: String = text.chars().take(width.saturating_sub(1 + tail)).collect();
    let tail: String = text.chars().skip(length - tail).collect();
    head + "…" + &tail
}

/// Lines of cells under titles. In a pipe columns are left out as on a terminal of [`PAGE`], but names stay whole.
pub fn table(titles: &[Title], rows: &[Vec<Cell>], style: Style) -> String {
    let plain = |title: &Title| rank(title).1.trim_start_matches('>').to_owned();
    let mut widths: Vec<usize> = titles.iter().map(|title| plain(title).chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.text.chars().count());
        }
    }
    let room = style.width.unwrap_or(PAGE);
    let mut is_shown = vec![true; titles.len()];
    let mut ranks: Vec<(char, usize)> =
        titles.iter().enumerate().filter_map(|(place, title)| Some((rank(title).0?, place))).collect();
    ranks.sort_unstable();
    for (_, place) in ranks {
        let shown = widths.iter().zip(&is_shown).filter(|(_, is_shown)| **is_shown).map(|(width, _)| width + 2);
        let fits = shown.sum::<usize>() <= room.saturating_add(2);
        if let Some(is_shown) = is_shown.get_mut(place).filter(|_| !fits) {
            *is_shown = false;
        }
    }
    let all: usize = widths.iter().zip(&is_shown).filter(|(_, is_shown)| **is_shown).map(|(width, _)| width + 2).sum();
    let over = style.width.map_or(0, |width| all.saturating_sub(width.saturating_add(2)));
    // Names are the widest, and what is too much of them goes from their middle: pods differ at their ends.
    let names = titles
        .iter()
        .zip(&mut widths)
        .zip(&is_shown)
        .filter(|((title, _), is_shown)| **is_shown && !rank(title).1.starts_with('>'));
    if let Some(((_, width), _)) = names.max_by_key(|((_, width), _)| **width).filter(|_| over > 0) {
        *width = width.saturating_sub(over).max(SHORTEST_NAME.min(*width));
    }
    let head: Vec<Cell> = titles.iter().map(|title| plain(title).into()).collect();
    let mut out = String::new();
    for row in std::iter::once(&head).chain(rows) {
        let mut line = String::new();
        for (((cell, width), title), _) in
            row.iter().zip(&widths).zip(titles).zip(&is_shown).filter(|(_, is_shown)| **is_shown)
        {
            let text = shortened(&cell.text, *width);
            let pad = " ".repeat(width.saturating_sub(text.chars().count()));
            let text = match cell.level {
                Some(level) => colored(&text, level, style),
                None => text,
            };
            let gap = if line.is_empty() { "" } else { "  " };
            line.extend(if rank(title).1.starts_with('>') { [gap, &pad, &text] } else { [gap, &text, &pad] });
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

/// The documented envelope around a list.
pub fn envelope(kind: &str, items: &[Value], not_seen: &[String]) -> Value {
    serde_json::json!({ "apiVersion": "cli.gpumem.dev/v1", "kind": kind, "items": items, "notSeen": not_seen })
}

/// A value in one of the forms for programs.
pub fn document(value: &Value, output: Output) -> String {
    match output {
        Output::Yaml => serde_yaml::to_string(value).unwrap_or_default(),
        Output::Table | Output::Wide | Output::Json | Output::Csv => {
            serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
        }
    }
}

/// Items as CSV: `columns` are paths into an item (`secondsToOom.q50`), and the titles too. What is absent is empty.
pub fn csv(columns: &[&str], items: &[Value]) -> String {
    let mut out = columns.join(",") + "\n";
    for item in items {
        let cells: Vec<String> = columns.iter().map(|column| csv_cell(item, column)).collect();
        out += &cells.join(",");
        out.push('\n');
    }
    out
}

fn csv_cell(item: &Value, column: &str) -> String {
    let text = match column.split('.').try_fold(item, |value, key| value.get(key)) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    // A leading sign makes a spreadsheet compute; names of Kubernetes never start with one.
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_line_up_and_numbers_stand_right() {
        let rows = [vec!["a".into(), "10".into()], vec!["long-name".into(), "9".into()]];
        assert_eq!(table(&["NAME", ">N"], &rows, Style::default()), "NAME        N\na          10\nlong-name   9\n");
    }

    #[test]
    fn csv_quotes_what_it_must_and_leaves_the_unknown_empty() {
        let items = [json!({"a": "x, \"y\"", "b": {"c": 1.5}}), json!({"a": "z"})];
        assert_eq!(csv(&["a", "b.c"], &items), "a,b.c\n\"x, \"\"y\"\"\",1.5\nz,\n");
    }

    #[test]
    fn a_narrow_terminal_keeps_what_must_be_seen() {
        let rows = [vec!["pod-0".into(), "node-a".into(), "81%".into(), "High".into()]];
        let shown = |width| table(&["POD", "~1NODE", "~2>USE", "RISK"], &rows, Style { color: false, width });
        assert_eq!(shown(None).lines().next(), Some("POD    NODE    USE  RISK"));
        assert_eq!(shown(Some(24)).lines().next(), Some("POD    NODE    USE  RISK"));
        assert_eq!(shown(Some(23)), "POD    USE  RISK\npod-0  81%  High\n");
        assert_eq!(shown(Some(3)), "POD    RISK\npod-0  High\n");
        let rows = [vec!["a-trainer-of-many-words-0".into(), "".into(), "".into(), "High".into()]];
        let shown = table(&["POD", "~1NODE", "~2>USE", "RISK"], &rows, Style { color: false, width: Some(22) });
        assert_eq!(shown, "POD               RISK\na-traine…words-0  High\n");
    }

    #[test]
    fn colour_never_moves_a_column() {
        let rows = [vec![Level::High.into(), "x".into()]];
        let colored = table(&["RISK", "Y"], &rows, Style { color: true, width: None });
        assert!(colored.contains("\u{1b}[31mHigh\u{1b}[0m  x"), "{colored:?}");
    }
}

//! Rows of a recording, and what is wrong with the others.

use std::collections::HashMap;

use crate::quantity::Bytes;

/// One line of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Seconds since the recording's start.
    pub t_s: f64,
    /// Device; empty where the file names none.
    pub gpu: String,
    /// Container.
    pub container: String,
    /// What the driver says the container uses.
    pub used: Bytes,
    /// Live bytes of its allocator.
    pub allocated: Option<Bytes>,
    /// Live and cached bytes of its allocator.
    pub reserved: Option<Bytes>,
    /// Highest live bytes since the row before.
    pub step_peak: Option<Bytes>,
    /// What the device may hold.
    pub capacity: Option<Bytes>,
}

/// Why a file cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing in it.
    #[error("line 1: the file is empty; it starts with the header `t_s,container,used_mib`")]
    Empty,
    /// A column nobody knows.
    #[error(
        "line 1: unknown column `{name}`; known are t_s, container, used_mib, gpu, allocated_mib, reserved_mib, step_peak_mib, capacity_mib"
    )]
    UnknownColumn {
        /// As written.
        name: String,
    },
    /// A column twice.
    #[error("line 1: column `{name}` appears twice")]
    DoubleColumn {
        /// As written.
        name: String,
    },
    /// A column that must be there.
    #[error("line 1: column `{name}` is missing")]
    MissingColumn {
        /// Which.
        name: &'static str,
    },
    /// More or fewer cells than the header.
    #[error("line {line}: {found} values where the header has {expected} columns")]
    Width {
        /// Line in the file, the header being 1.
        line: usize,
        /// Cells in the line.
        found: usize,
        /// Cells in the header.
        expected: usize,
    },
    /// A cell that must not be empty.
    #[error("line {line}: `{column}` is empty")]
    Blank {
        /// Line in the file, the header being 1.
        line: usize,
        /// Which column.
        column: &'static str,
    },
    /// Not a finite number.
    #[error("line {line}: `{column}` is not a number: `{value}`")]
    NotANumber {
        /// Line in the file, the header being 1.
        line: usize,
        /// Which column.
        column: &'static str,
        /// As written.
        value: String,
    },
    /// Below zero.
    #[error("line {line}: `{column}` is negative: `{value}`")]
    Negative {
        /// Line in the file, the header being 1.
        line: usize,
        /// Which column.
        column: &'static str,
        /// As written.
        value: String,
    },
    /// A container's time runs backwards.
    #[error("line {line}: time of container `{container}` goes back from {before} to {t_s} s")]
    TimeGoesBack {
        /// Line in the file, the header being 1.
        line: usize,
        /// Whose.
        container: String,
        /// Its time before, as printed.
        before: String,
        /// Its time now, as printed.
        t_s: String,
    },
}

const COLUMNS: [&str; 8] =
    ["t_s", "container", "used_mib", "gpu", "allocated_mib", "reserved_mib", "step_peak_mib", "capacity_mib"];

/// Reads the rows, ordered by time; within a moment, as in the file. Columns may come in any order, lines may end as they
/// like, blank lines are skipped, an optional value may be left empty.
pub fn parse(text: &str) -> Result<Vec<Row>, Error> {
    let mut lines =
        text.lines().enumerate().map(|(number, line)| (number + 1, line.trim_start_matches('\u{feff}').trim()));
    let (_, header) = lines.next().filter(|(_, header)| !header.is_empty()).ok_or(Error::Empty)?;
    let mut places: HashMap<&'static str, usize> = HashMap::new();
    let mut width = 0;
    for (place, name) in header.split(',').map(str::trim).enumerate() {
        let known = COLUMNS.into_iter().find(|column| *column == name);
        let column = known.ok_or_else(|| Error::UnknownColumn { name: name.to_owned() })?;
        if places.insert(column, place).is_some() {
            return Err(Error::DoubleColumn { name: name.to_owned() });
        }
        width = place + 1;
    }
    if let Some(name) = COLUMNS.into_iter().take(3).find(|column| !places.contains_key(column)) {
        return Err(Error::MissingColumn { name });
    }
    let mut rows = Vec::new();
    let mut times: HashMap<(String, String), f64> = HashMap::new();
    for (line, text) in lines.filter(|(_, text)| !text.is_empty()) {
        let cells: Vec<&str> = text.split(',').map(str::trim).collect();
        if cells.len() != width {
            return Err(Error::Width { line, found: cells.len(), expected: width });
        }
        let row = Cells { line, values: &cells, places: &places }.row()?;
        let key = (row.gpu.clone(), row.container.clone());
        if let Some(before) = times.insert(key, row.t_s).filter(|before| *before > row.t_s) {
            let (container, t_s) = (row.container, row.t_s.to_string());
            return Err(Error::TimeGoesBack { line, container, before: before.to_string(), t_s });
        }
        rows.push(row);
    }
    // Containers may follow one another in the file; stable, so rows of one moment keep their order.
    rows.sort_by(|one: &Row, other| one.t_s.total_cmp(&other.t_s));
    Ok(rows)
}

/// One line's cells by column name.
struct Cells<'a> {
    line: usize,
    values: &'a [&'a str],
    places: &'a HashMap<&'static str, usize>,
}

impl Cells<'_> {
    fn row(&self) -> Result<Row, Error> {
        let container = self.text("container").to_owned();
        if container.is_empty() {
            return Err(Error::Blank { line: self.line, column: "container" });
        }
        Ok(Row {
            t_s: self.number("t_s")?.ok_or(Error::Blank { line: self.line, column: "t_s" })?,
            gpu: self.text("gpu").to_owned(),
            container,
            used: self.mib("used_mib")?.ok_or(Error::Blank { line: self.line, column: "used_mib" })?,
            allocated: self.mib("allocated_mib")?,
            reserved: self.mib("reserved_mib")?,
            step_peak: self.mib("step_peak_mib")?,
            capacity: self.mib("capacity_mib")?,
        })
    }

    fn text(&self, column: &'static str) -> &str {
        self.places.get(column).and_then(|place| self.values.get(*place)).copied().unwrap_or_default()
    }

    fn number(&self, column: &'static str) -> Result<Option<f64>, Error> {
        let (line, value) = (self.line, self.text(column));
        if value.is_empty() {
            return Ok(None);
        }
        let number = value.parse::<f64>().ok().filter(|number| number.is_finite());
        let number = number.ok_or_else(|| Error::NotANumber { line, column, value: value.to_owned() })?;
        if number < 0.0 {
            return Err(Error::Negative { line, column, value: value.to_owned() });
        }
        Ok(Some(number))
    }

    fn mib(&self, column: &'static str) -> Result<Option<Bytes>, Error> {
        Ok(self.number(column)?.map(|mib| Bytes::from_f64(mib * 1_048_576.0)))
    }
}

//! The live view: a table that redraws in place on a terminal, and a line every ten seconds elsewhere.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};

use super::frame::{Frame, PodView};
use super::verdict::Story;

/// Draws frames.
pub struct Screen {
    is_terminal: bool,
    drawn: usize,
    events_shown: usize,
    last_line: u64,
}

impl Screen {
    /// A screen on standard output.
    pub fn new() -> Self {
        Self { is_terminal: std::io::stdout().is_terminal(), drawn: 0, events_shown: 0, last_line: u64::MAX }
    }

    /// Draws one frame.
    pub fn draw(&mut self, frame: &Frame, story: &Story) {
        let seconds = frame.at.as_secs();
        let news = story.events.len() > self.events_shown;
        if !self.is_terminal && !news && (!seconds.is_multiple_of(10) || seconds == self.last_line) {
            return;
        }
        self.last_line = seconds;
        let mut out = String::new();
        if self.is_terminal && self.drawn > 0 {
            let _ = write!(out, "\x1b[{}A\x1b[J", self.drawn);
        }
        for (at, object, reason, note) in &story.events[self.events_shown..] {
            let _ = writeln!(out, "  {:>3} s  Event {reason} on {object}: {note}", at.as_secs());
        }
        self.events_shown = story.events.len();
        let table = table(frame);
        self.drawn = table.lines().count();
        out.push_str(&table);
        print!("{out}");
        let _ = std::io::stdout().flush();
    }
}

fn table(frame: &Frame) -> String {
    let mut out = String::new();
    let gpus: Vec<_> = frame
        .gpus
        .iter()
        .filter(|(_, (used, _))| *used > 0.0)
        .map(|(gpu, (used, total))| {
            format!("GPU {gpu} {} {:.0} of {:.0} GiB", bar(used / total), gib(*used), gib(*total))
        })
        .collect();
    let _ = writeln!(out, "\n  {:>3} s  {}   SIMULATED GPUs", frame.at.as_secs(), gpus.join("   "));
    let _ = writeln!(
        out,
        "         {:<38} {:<12} {:>9} {:>11} {:>7} {:>9}  RISK",
        "POD", "STATE", "USED", "GROWTH", "P 5 MIN", "OOM IN"
    );
    for pod in &frame.pods {
        let _ = writeln!(out, "         {}", row(pod));
    }
    out
}

fn row(pod: &PodView) -> String {
    let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let risk = match pod.risk {
        None => "unknown",
        Some(level) if level < 1.0 => "low",
        Some(level) if level < 2.0 => "elevated",
        Some(level) if level < 3.0 => "HIGH",
        Some(_) => "CRITICAL",
    };
    let state = match pod.exit_code {
        Some(code) if pod.restarts > 0 => format!("{} (exit {code})", pod.state),
        _ => pod.state.clone(),
    };
    format!(
        "{:<38} {:<12} {:>9} {:>11} {:>7} {:>9}  {}",
        pod.name,
        state,
        shown(pod.used.map(|bytes| format!("{:.1} GiB", gib(bytes)))),
        shown(pod.growth.map(|rate| format!("{:+.0} MiB/s", rate / 1_048_576.0))),
        shown(pod.probability.map(|p| format!("{:.0} %", p * 100.0))),
        shown(pod.seconds_to_oom.map(|left| format!("{left:.0} s"))),
        risk
    )
}

fn gib(bytes: f64) -> f64 {
    bytes / 1_073_741_824.0
}

fn bar(share: f64) -> String {
    const WIDTH: usize = 20;
    let full = (share.clamp(0.0, 1.0) * WIDTH as f64).round() as usize;
    format!("[{}{}]", "█".repeat(full), "·".repeat(WIDTH - full))
}

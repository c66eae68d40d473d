//! Recognises an out-of-memory death from what a container left behind: its last log lines and its exit state.
//!
//! Flows in: log text that tenants wrote, so nothing about it is trusted. Flows out: an [`OomReport`] with the numbers
//! that the framework printed, or nothing. Matching is by fixed phrases over bounded text, in time linear in it.
//! A mention of an OOM (help text, a test, a caught error) is not an OOM.

mod advice;
mod look_alike;
mod numbers;
mod shapes;
mod size;
mod text;

#[cfg(test)]
mod tests;

use crate::quantity::Bytes;

pub use advice::{advice, general};
pub use numbers::Numbers;
use text::Line;

/// Only this much of a tail's end is read: an OOM is among the last things a process says.
pub const MAX_TAIL_BYTES: usize = 64 * 1024;

/// The evidence of a report is cut to this many characters: it goes into Events and conditions.
pub const EVIDENCE_CHARS: usize = 300;

/// What kind of out-of-memory it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The device had no room for the allocation.
    DeviceFull,
    /// The device had room; a limit that the process was started with refused.
    SelfImposedLimit,
    /// A server compared its budget with the device at start and gave up, often without any allocation failing.
    StartupDoesNotFit,
    /// The text of an OOM, printed as the consequence of another failure: look before it.
    Secondary,
    /// Usually hides an OOM, but has other causes: wants a second source, such as the device's free memory.
    Probable,
}

/// An out-of-memory found in a log.
#[derive(Clone, Debug, PartialEq)]
pub struct OomReport {
    /// What kind it was.
    pub kind: Kind,
    /// Who printed it, as its users call it.
    pub framework: &'static str,
    /// Which known message this is; a closed set, fit for a metric label.
    pub shape: &'static str,
    /// Whether the process normally dies of this message; the other messages are part of a retry with a smaller size.
    pub is_fatal: bool,
    /// The amounts in the message.
    pub numbers: Numbers,
    /// The matched line without control characters, cut to [`EVIDENCE_CHARS`].
    pub evidence: String,
}

/// What ended a container.
#[derive(Clone, Debug, PartialEq)]
pub enum Death {
    /// Device memory ran out.
    GpuOom(OomReport),
    /// The kernel killed it for host memory: more GPU memory would not have helped.
    HostOomKilled,
    /// Anything else, a clean exit included.
    Other,
}

/// Finds the out-of-memory that a log's end tells of.
///
/// With several in the tail, the surer one wins, then the one with numbers, then the later one: the last words of a
/// dying process are often a vague echo of the message that named the amounts.
pub fn classify(tail: &str) -> Option<OomReport> {
    let lines = text::lines(text::last(tail, MAX_TAIL_BYTES));
    let cpu_only = look_alike::runs_on_the_cpu(&lines);
    let mut best: Option<((u8, bool), OomReport)> = None;
    for index in 0..lines.len() {
        let Some(report) = report_at(&lines, index, cpu_only) else { continue };
        let rank = (certainty(&report), report.numbers.requested.is_some());
        if best.as_ref().is_none_or(|(so_far, _)| rank >= *so_far) {
            best = Some((rank, report));
        }
    }
    best.map(|(_, report)| report)
}

/// Tells what ended a container from its exit code, the reason in its terminated state, and its last log lines.
///
/// `OOMKilled` is the kernel's own word and beats any text. Exit code 137 without that reason is only a SIGKILL, which
/// kubelet and impatient supervisors send too; 143 is a polite stop. A process that was stopped from outside after it
/// printed an OOM may have outlived it, so such a report becomes [`Kind::Probable`]; so does a message that is normally
/// retried. After exit code 0 the OOM was handled, and a [`Kind::Secondary`] text is the cause of nothing.
pub fn from_exit(exit_code: i32, reason: Option<&str>, tail: Option<&str>) -> Death {
    const SIGKILL: i32 = 128 + 9;
    const SIGTERM: i32 = 128 + 15;
    if reason.is_some_and(|reason| reason.trim().eq_ignore_ascii_case("OOMKilled")) {
        return Death::HostOomKilled;
    }
    if exit_code == 0 {
        return Death::Other;
    }
    let tail = tail.unwrap_or_default();
    if exit_code == SIGKILL && look_alike::names_a_host_kill(text::last(tail, MAX_TAIL_BYTES)) {
        return Death::HostOomKilled;
    }
    let Some(mut report) = classify(tail) else { return Death::Other };
    if report.kind == Kind::Secondary {
        return Death::Other;
    }
    let was_stopped = exit_code == SIGKILL || exit_code == SIGTERM;
    if was_stopped || !report.is_fatal {
        report.kind = Kind::Probable;
    }
    Death::GpuOom(report)
}

fn report_at(lines: &[Line], index: usize, cpu_only: bool) -> Option<OomReport> {
    let line = &lines[index];
    let (shape, at) = shapes::find(lines, index)?;
    if (cpu_only && shape.is_shared_with_cpu) || look_alike::is_only_a_mention(lines, index, at) {
        return None;
    }
    let window = shapes::window(lines, index, shape.following);
    let numbers = Numbers::read(&window);
    Some(OomReport {
        kind: refine(shape.kind, &numbers),
        framework: shape.framework,
        shape: shape.id,
        is_fatal: shape.is_fatal,
        numbers,
        evidence: line.text.trim().chars().filter(|c| !c.is_control()).take(EVIDENCE_CHARS).collect(),
    })
}

/// A limit in the message only matters if it is what refused: a process with a limit can meet a full card as well.
fn refine(kind: Kind, numbers: &Numbers) -> Kind {
    let Some(allowed) = numbers.allowed else { return kind };
    if !matches!(kind, Kind::DeviceFull | Kind::SelfImposedLimit) {
        return kind;
    }
    let requested = numbers.requested.unwrap_or(Bytes::ZERO);
    let held = numbers.reserved.or(numbers.allocated).unwrap_or(Bytes::ZERO);
    let had_room = numbers.free.is_none_or(|free| free >= requested);
    if had_room || held + requested > allowed { Kind::SelfImposedLimit } else { Kind::DeviceFull }
}

fn certainty(report: &OomReport) -> u8 {
    match report.kind {
        Kind::DeviceFull if !report.is_fatal => 2,
        Kind::DeviceFull | Kind::SelfImposedLimit | Kind::StartupDoesNotFit => 3,
        Kind::Probable => 1,
        Kind::Secondary => 0,
    }
}

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
    is_advice_shown: bool,
    last_line: u64,
}

impl Screen {
    /// A screen on standard output.
    pub fn new() -> Self {
        Self {
            is_terminal: std::io::stdout().is_terminal(),
            drawn: 0,
            events_shown: 0,
            is_advice_shown: false,
            last_line: u64::MAX,
        }
    }

    /// Draws one frame.
    pub fn draw(&mut self, frame: &Frame, story: &Story) {
        let seconds = frame.at.as_secs();
        let advice = story.taken.as_ref().filter(|_| !self.is_advice_shown);
        let news = story.events.len() > self.events_shown || advice.is_some();
        if !self.is_terminal && !news && (!seconds.is_multiple_of(10) || seconds == self.last_line) {
            return;
        }
        self.last_line = seconds;
        let mut out = String::new();
        if self.is_terminal && self.drawn > 0 {
            let _ = write!(out, "\x1b[{}A\x1b[J", self.drawn);
        }
        for (index, (at, object, reason, note)) in story.events.iter().enumerate().skip(self.events_shown) {
            // Pod, owner and policy get the same Event; one of them is enough to read.
            if story.events[..index].iter().any(|(_, _, r, n)| (r, n) == (reason, note)) {
                continue;
            }
            let _ = writeln!(out, "{:>5} s  Event {reason} on {object}:\n{}", at.as_secs(), wrapped(note));
        }
        self.events_shown = story.events.len();
        if let Some((at, advice, job)) = advice {
            let gib = gib(advice.peak as f64);
            let _ = writeln!(out, "{:>5} s  kubectl gpumem explain pod/{}:", at.as_secs(), advice.pod);
            let _ = writeln!(out, "{}", wrapped(&format!("why {}", advice.reason)));
            let _ = writeln!(out, "{}", wrapped(&format!("do {}: then {gib:.1} GiB", advice.what)));
            let _ = writeln!(out, "         Its owner takes the advice: {job}");
            self.is_advice_shown = true;
        }
        let table = table(frame);
        self.drawn = table.lines().count();
        out.push_str(&table);
        print!("{out}");
        let _ = std::io::stdout().flush();
    }
}

/// A line of a terminal of 100 columns; longer ones would break the redrawing.
const LINE: usize = 100;
/// GPUs told of in one line.
const GPUS: usize = 3;

/// A text in lines that fit, set in as far as the table's clock.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last().map_or(0, |line| line.chars().count());
        if line > 0 && line + 1 + word.chars().count() > LINE - 10 {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.iter().map(|line| format!("         {line}")).collect::<Vec<_>>().join("\n")
}

/// Text of one frame.
pub fn table(frame: &Frame) -> String {
    let mut gpus: Vec<_> = frame
        .gpus
        .iter()
        .filter(|(_, (used, _))| *used > 0.0)
        .map(|(gpu, (used, total))| format!("GPU {gpu} {} {:.0}/{:.0} GiB", bar(used / total), gib(*used), gib(*total)))
        .collect();
    gpus.push("(simulated)".to_owned());
    let mut lines = vec![String::new()];
    for (index, some) in gpus.chunks(GPUS).enumerate() {
        let clock = if index == 0 { format!("{:>5} s", frame.at.as_secs()) } else { " ".repeat(7) };
        lines.push(format!("{clock}  {}", some.join("  ")));
    }
    lines.push(format!(
        "  {:<34} {:<17} {:>8} {:>10} {:>7} {:>6}  RISK",
        "POD", "STATE", "USED", "GROWTH", "P 5 MIN", "OOM IN"
    ));
    lines.extend(frame.pods.iter().map(row));
    for job in &frame.suspended {
        let whose = if job.is_ours { "suspended by gpumem" } else { "suspended by somebody else" };
        lines.push(format!("  {:<34} {whose}", format!("Job {}", job.role.name())));
    }
    lines.iter().fold(String::new(), |out, line| out + &line.chars().take(LINE).collect::<String>() + "\n")
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
    let state = match (pod.exit_code, pod.limit) {
        _ if pod.state != "Running" => pod.state.clone(),
        (Some(code), _) if pod.restarts > 0 => format!("{} (exit {code})", pod.state),
        _ if pod.is_saved => format!("{}, saved", pod.state),
        _ if pod.is_asked => format!("{}, asked", pod.state),
        (_, Some(limit)) => format!("{}, max {}Gi", pod.state, limit >> 30),
        _ => pod.state.clone(),
    };
    format!(
        "  {:<34} {:<17} {:>8} {:>10} {:>7} {:>6}  {}",
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
    const WIDTH: usize = 10;
    let full = (share.clamp(0.0, 1.0) * WIDTH as f64).round() as usize;
    format!("[{}{}]", "█".repeat(full), "·".repeat(WIDTH - full))
}

#[test]
fn a_frame_with_everybody_on_stage_fits_a_terminal_of_100_by_35() {
    use super::plan::{Plan, Role};
    use std::time::Duration;

    let pod = |role: Role, state: &str| PodView {
        role,
        name: format!("{}-f68fd7d9bc-fvcsk", role.name()),
        uid: role.name().to_owned(),
        state: state.to_owned(),
        restarts: i32::from(role == Role::Limited),
        exit_code: (role == Role::Limited).then_some(1),
        disrupted: None,
        last_words: String::new(),
        is_asked: role == Role::Saving,
        is_saved: false,
        limit: (role == Role::Limited).then_some(20 << 30),
        used: Some(71.5 * 1_073_741_824.0),
        growth: Some(-150.0 * 1_048_576.0),
        probability: Some(1.0),
        seconds_to_oom: Some(1234.0),
        risk: Some(3.0),
    };
    let plan = Plan::draw(1, "image").with_milder_rungs();
    // While one is replaced there are two of it.
    let mut pods: Vec<_> = plan.order.iter().map(|role| pod(*role, "Running")).collect();
    pods.extend([pod(Role::Guarded, "Terminating"), pod(Role::Saving, "Terminating")]);
    let full = (71.5 * 1_073_741_824.0, 80.0 * 1_073_741_824.0);
    let job = super::frame::SuspendedJob { role: Role::Job, is_ours: true, failed: 0, is_over: false };
    let frame = Frame {
        at: Duration::from_secs(123),
        pods,
        gpus: (0..5).map(|gpu| (gpu.to_string(), full)).collect(),
        suspended: vec![job],
        ..Frame::default()
    };
    let shown = table(&frame);
    println!("{shown}");
    assert!(shown.lines().count() < 35, "{shown}");
    let widest = shown.lines().map(|line| line.chars().count()).max();
    assert!(widest < Some(LINE), "{widest:?} columns leave nothing out:\n{shown}");
}

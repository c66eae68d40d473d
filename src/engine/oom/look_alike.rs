//! Tells a report of an out-of-memory from a mention of one, and device memory from host memory.
//!
//! The rule: words before the phrase say who speaks (help, a test, a prompt), words anywhere in the line say whether it
//! was survived. Frameworks append hints to real messages, so help words behind the phrase mean nothing.

use super::text::{Level, Line, last, plain_level};

/// Host memory: the CUDA calls that pin it fail with the same error code as those for the device.
const HOST: &[&str] = &[
    "cpuallocator",
    "device:cpu",
    "allocator cpu",
    "allocator (cpu",
    "cpu_bfc",
    "bytes on host",
    "bytes) on host",
    "on the host",
    "host memory",
    "pinned memory",
    "pinned system memory",
    "pinned buffer",
    "pin memory",
    "pin_memory",
    "page-locked",
    "hostalloc",
    "allochost",
    "mallochost",
    "hostmalloc",
    "host_malloc",
    "hostregister",
    "java heap",
    "java.lang",
    "oom-kill",
    "oom_kill",
    "oomkill",
    "killed process",
    "out of memory: kill",
    "cgroup",
    "slurmstepd",
    "srun: error",
    "cc1plus",
    "system memory",
    "out_of_host_memory",
    "failed to allocate cpu",
];

/// The process went on.
const SURVIVED: &[&str] = &[
    "not a failure",
    "retrying",
    "will retry",
    "trying again",
    "try again with",
    "attempting to recover",
    "recovered",
    "recovering",
    "skipping",
    "skipped",
    "skip batch",
    "skip this batch",
    "reducing batch",
    "reducing the batch",
    "reduced batch",
    "lowering batch",
    "decreasing batch",
    "decreasing the batch",
    "batch size reduced",
    "halving",
    "falling back",
    "fall back to",
    "fallback to",
    "ran out of memory with exception",
    "allocator cache flushes",
    "ignoring",
    "continuing",
    "switching to",
    "insufficient to use tactic",
    "preempt",
    "retract",
    "oom handled",
];

/// Someone speaks about the error instead of having it.
const ABOUT: &[&str] = &[
    "if you",
    "if there",
    "if it ",
    "if we ",
    "if the ",
    "if your",
    "in case",
    "when you",
    "whenever",
    "to avoid",
    "to prevent",
    "to fix",
    "to debug",
    "avoid ",
    "avoids ",
    "prevents",
    "may cause",
    "may lead",
    "may run",
    "may hit",
    "might",
    "could cause",
    "could lead",
    "can cause",
    "can lead",
    "can result",
    "will cause",
    "would cause",
    "risk of",
    "leads to",
    "e.g.",
    "for example",
    "example:",
    "such as",
    "tip:",
    "hint:",
    "note:",
    "faq",
    "troubleshoot",
    "documentation",
    "docs/",
    "readme",
    "how to",
    "how do i",
    "how can i",
    "known issue",
    " expected",
    "(expected",
    "no cuda",
    "simulat",
    "mock",
    "fake",
    "inject",
    "assert ",
    "assert_",
    "assert(",
    "raises",
    "::test",
    "match=",
    "in str(",
    "except ",
    "raise ",
    "print(",
    "println",
    "throw ",
    "echo ",
    "grep",
    ".contains(",
    "case ",
    "changelog",
    "fixed ",
    "handles ",
    "catch",
];

/// Servers log what their users write, at any length.
const QUOTED: &[&str] =
    &["prompt:", "prompt=", "prompt\"", "received request", "\"content\"", "'content'", "\"role\"", "'role'"];

/// Words about an error stand near it; a traceback that was flattened into one line has all words somewhere.
const NEAR_BYTES: usize = 120;

/// A data loader's traceback says at its top that it failed while pinning host memory.
const TRACEBACK_LINES: usize = 30;

/// Whether the phrase at byte `at` of a line is only talk, survived, or about host memory.
pub(super) fn is_only_a_mention(lines: &[Line], index: usize, at: usize) -> bool {
    let line = &lines[index];
    let text = line.lower.as_str();
    let before = &text[..at];
    let is_code_comment = text.trim_start().starts_with(['#', '/']);
    if is_code_comment
        || any(text, HOST)
        || any(text, SURVIVED)
        || any(last(before, NEAR_BYTES), ABOUT)
        || any(before, QUOTED)
        || is_of_a_passed_test(text)
    {
        return true;
    }
    // A pinned allocation is named by its call on the next lines, a recovery by the line after.
    let next: Vec<&str> = lines.iter().skip(index + 1).take(2).map(|line| line.lower.as_str()).collect();
    if next.iter().any(|text| text.contains("attempting to recover from oom") || text.contains("recovered from oom")) {
        return true;
    }
    if text.contains("current device") || next.first().is_some_and(|text| text.contains("current device")) {
        let call = ["hostalloc(", "mallochost(", "hostregister(", "hostmalloc("];
        if next.iter().any(|text| any(text, &call)) {
            return true;
        }
    }
    if lines[index.saturating_sub(TRACEBACK_LINES)..index].iter().any(|line| line.lower.contains("pin memory thread")) {
        return true;
    }
    match spoken_level(line, before) {
        Level::Unsaid => false,
        Level::Warning => true,
        // Supervisors forward a child's stderr at INFO: an exception's name before the phrase says that it was thrown.
        Level::Info => !["error: ", "exception: ", "error\": ", "what(): "].iter().any(|name| before.contains(name)),
    }
}

/// Whether a container without a CUDA-like provider in its log names the CPU's: an arena's text is the same on both.
pub(super) fn runs_on_the_cpu(lines: &[Line]) -> bool {
    let names = |provider: &[&str]| lines.iter().any(|line| any(&line.lower, provider));
    names(&["cpuexecutionprovider", "cpu execution provider", "for cpu", "device:cpu", "cpu_bfc", "bfcarena for cpu"])
        && !names(&["cuda", "tensorrt", "rocm", "migraphx", "gpu"])
}

/// Whether a tail tells of a kernel's or a batch system's kill for host memory.
pub(super) fn names_a_host_kill(tail: &str) -> bool {
    let lower = tail.to_ascii_lowercase();
    any(
        &lower,
        &[
            "oom-kill event",
            "oom_kill event",
            "memory cgroup out of memory",
            "out of memory: killed process",
            "oomkilled",
        ],
    )
}

fn spoken_level(line: &Line, before: &str) -> Level {
    // NCCL calls its fatal errors WARN.
    if before.contains("nccl warn") {
        return Level::Unsaid;
    }
    if line.level == Level::Unsaid { plain_level(before) } else { line.level }
}

fn is_of_a_passed_test(text: &str) -> bool {
    let text = text.trim_end();
    text.ends_with("passed")
        || text.contains(" passed [")
        || text.contains("--- pass")
        || text.ends_with("... ok")
        || text.starts_with("ok ")
}

fn any(text: &str, phrases: &[&str]) -> bool {
    phrases.iter().any(|phrase| text.contains(phrase))
}

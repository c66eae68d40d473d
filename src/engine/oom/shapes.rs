//! The known messages, most telling first. A phrase is what several versions have in common, not a whole sentence.

mod libraries;
mod serving;
mod training;

use super::Kind;
use super::text::Line;

/// A message: each group must have a phrase in the line.
pub(super) struct Shape {
    pub id: &'static str,
    pub framework: &'static str,
    pub kind: Kind,
    /// All of these groups must be found in the line, any phrase of a group will do.
    groups: &'static [&'static [&'static str]],
    /// One of these must be found in the lines that belong to the message; empty: nothing is asked.
    near: &'static [&'static str],
    /// This many further lines belong to the message.
    pub following: usize,
    pub is_fatal: bool,
    /// The CPU build prints the same.
    pub is_shared_with_cpu: bool,
}

const fn shape(
    id: &'static str,
    framework: &'static str,
    kind: Kind,
    groups: &'static [&'static [&'static str]],
) -> Shape {
    Shape { id, framework, kind, groups, near: &[], following: 0, is_fatal: true, is_shared_with_cpu: false }
}

impl Shape {
    const fn over(self, following: usize) -> Self {
        Self { following, ..self }
    }

    const fn near(self, near: &'static [&'static str]) -> Self {
        Self { near, ..self }
    }

    const fn retried(self) -> Self {
        Self { is_fatal: false, ..self }
    }

    const fn shared_with_cpu(self) -> Self {
        Self { is_shared_with_cpu: true, ..self }
    }
}

const TRIED: &[&str] = &["tried to allocate"];
const OOM: &[&str] = &["out of memory", "out_of_memory", "outofmemory"];
const WENT_WRONG: &[&str] = &["error", "exception", "fatal", "panic", "fail", "abort", "terminat", "crash", "critical"];
const STATUS: &[&str] = &[
    "cuda_error_out_of_memory",
    "cudaerrormemoryallocation",
    "cudaerror(2)",
    "hip_error_outofmemory",
    "hip_error_out_of_memory",
    "hiperroroutofmemory",
    "hiperrormemoryallocation",
    "error_out_of_device_memory",
    "erroroutofdevicememory",
    "result_error_out_of_device_memory",
    "cl_mem_object_allocation_failure",
];

/// The first shape that fits line `index`, and where its earliest phrase starts.
pub(super) fn find(lines: &[Line], index: usize) -> Option<(&'static Shape, usize)> {
    let text = lines[index].lower.as_str();
    // Few lines of a log are about memory; the rest is not searched for every phrase.
    if ![
        "memory",
        "alloc",
        "outofdevice",
        "resource",
        "cublas",
        "cudnn",
        "nvml",
        "oom",
        "vram",
        "gpu ram",
        "kv",
        "limit:",
        "stats:",
        "in-use",
        "prefill",
        "size was",
        "dst tensor",
        "implementation",
    ]
    .iter()
    .any(|word| text.contains(word))
    {
        return None;
    }
    // Frameworks before the libraries they call: both print the name of the same status.
    [training::SHAPES, serving::SHAPES, libraries::SHAPES].into_iter().flatten().find_map(|shape| {
        let at = shape.start_in(text)?;
        let near = || window(lines, index, shape.following);
        (shape.near.is_empty() || shape.near.iter().any(|phrase| near().contains(phrase))).then_some((shape, at))
    })
}

impl Shape {
    fn start_in(&self, text: &str) -> Option<usize> {
        let mut start = usize::MAX;
        for group in self.groups {
            start = start.min(group.iter().find_map(|phrase| text.find(phrase))?);
        }
        Some(start)
    }
}

/// A line and those after it that belong to its message, in lower case: not beyond the next message.
pub(super) fn window(lines: &[Line], index: usize, following: usize) -> String {
    let mut window = lines[index].lower.clone();
    for line in lines.iter().skip(index + 1).take(following) {
        if line.lower.contains("out of memory") {
            break;
        }
        window.push('\n');
        window.push_str(&line.lower);
    }
    window
}

//! The agent's own memory: one small heap that gives back what it frees, enough descriptors, and no code kept mapped that
//! only the start needed.
//!
//! One binary plays every role, and starting the agent runs through much of it: flags, TLS, the API client's set-up. A
//! third of what would stay resident is code that never runs again. It is unmapped now and then; the kernel maps the few
//! pages that are still in use again by itself, and may reclaim the rest.

use std::time::Duration;

use tracing::{debug, warn};

/// After the first samples, the first list of pods and the first pull.
const FIRST: Duration = Duration::from_secs(20);
/// Rare work (a list of pods, a whole state for a new controller) maps its code again.
const EVERY: Duration = Duration::from_mins(10);

/// Settings of the process, made before it has a second thread.
pub fn begin_small() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised) {
        warn!(%error, "the limit of open files stays as it is");
    }
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: glibc's own settings, changed before a second thread exists.
        #[allow(unsafe_code, reason = "no safe interface to glibc's allocator settings")]
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 1);
            libc::mallopt(libc::M_TRIM_THRESHOLD, 128 * 1024);
            // Large answers live outside the heap, so that they leave no holes in it.
            libc::mallopt(libc::M_MMAP_THRESHOLD, 64 * 1024);
        }
    }
}

/// Unmaps idle code for as long as the agent runs.
pub async fn stay_small() {
    tokio::time::sleep(FIRST).await;
    loop {
        unmap_idle_code();
        tokio::time::sleep(EVERY).await;
    }
}

fn unmap_idle_code() {
    let (Ok(binary), Ok(maps)) = (std::env::current_exe(), std::fs::read_to_string("/proc/self/maps")) else { return };
    let binary = binary.display().to_string();
    for (start, end) in maps.lines().filter_map(|line| code_of(line, &binary)) {
        // SAFETY: the range is the binary's executable mapping: private, backed by its file and never written to, as the
        // linker makes no relocations in code. Dropping its pages changes no content; the next use reads the same again.
        #[allow(unsafe_code, reason = "no safe interface to madvise")]
        let failed = unsafe {
            libc::madvise(std::ptr::with_exposed_provenance_mut(start), end - start, libc::MADV_DONTNEED) != 0
        };
        debug!(failed, bytes = end - start, "idle code unmapped");
    }
}

/// The range of a line of `/proc/self/maps`, if it is the binary's code.
fn code_of(line: &str, binary: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (range, rights) = (fields.next()?, fields.next()?);
    let path = fields.nth(3)?;
    let (start, end) = range.split_once('-')?;
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    (rights == "r-xp" && path == binary && start < end).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_binarys_own_code_is_unmapped() {
        let line = |rights: &str, path: &str| format!("5593e000-5594f000 {rights} 0a2f 08:01 1234      {path}");
        assert_eq!(code_of(&line("r-xp", "/gpumem"), "/gpumem"), Some((0x5593_e000, 0x5594_f000)));
        for (rights, path) in [("r--p", "/gpumem"), ("rw-p", "/gpumem"), ("r-xp", "/usr/lib/libc.so.6")] {
            assert_eq!(code_of(&line(rights, path), "/gpumem"), None, "{rights} {path}");
        }
        assert_eq!(code_of("7f00-7f01 r-xp 0 00:00 0", "/gpumem"), None);
        assert_eq!(code_of("nonsense", "/gpumem"), None);
    }

    #[test]
    fn code_runs_on_after_it_was_unmapped() {
        unmap_idle_code();
        assert_eq!(code_of("", ""), None);
    }
}

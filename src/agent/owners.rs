//! Whose process is it: `/proc/<pid>` read into the engine's [`Owners`].
//!
//! A process's cgroup is read once in its life. What makes that safe is an open descriptor of its `/proc` directory: it
//! stands for that very process, so asking it once a cycle whether it still has entries (one cheap system call) rules out
//! a reused PID without reading `stat` again. All text from `/proc` is bounded before it is looked at.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;

use gpumem_engine::attribution::Owners;
use gpumem_engine::cgroup::{self, Membership, NotAPod};
use gpumem_engine::identity::{ContainerKey, Pid, PodUid, StartTime};
use gpumem_engine::quantity::Moment;
use gpumem_engine::sample::RawSample;
use gpumem_engine::usage::Owner;
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, accessat, openat};
use rustix::io::Errno;

use crate::agent::metrics::SelfMetrics;
use crate::agent::pods::SharedPods;

/// Longest `stat` looked at; the kernel's own is below 1 KiB.
const MAX_STAT: usize = 4096;
/// Field of `/proc/<pid>/stat` that holds the start time, counted from the state after the command's name.
const START_FIELD: usize = 19;
/// Processes watched at once; a descriptor each.
const MAX_PROCESSES: usize = 8192;
/// A process that seemed to run in no container is looked at again after this long: it may have been caught before the
/// runtime moved it, or before the first list of pods.
const RECHECK_MS: u64 = 30_000;

/// Why something in `/proc` could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The process is gone.
    #[error("the process is gone")]
    Gone,
    /// Not allowed to look.
    #[error("permission denied")]
    Permission,
    /// No descriptor left.
    #[error("too many open files")]
    Descriptors,
    /// Longer than it may be.
    #[error("the text is too long")]
    TooLong,
    /// Not the text that the kernel writes.
    #[error("the text is malformed")]
    Malformed,
    /// Anything else.
    #[error("it cannot be read")]
    Io,
}

impl Error {
    /// Name for a metric label.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Permission => "permission",
            Self::Descriptors => "descriptors",
            Self::TooLong => "too_long",
            Self::Malformed => "malformed",
            Self::Io => "io",
        }
    }

    /// Counts it as met while reading `file`. What is malformed or too long is dropped input too.
    pub fn count(self, file: &str, metrics: &SelfMetrics) {
        metrics.proc_failed(file, self.kind());
        if matches!(self, Self::Malformed | Self::TooLong) {
            metrics.dropped(file, self.kind());
        }
    }
}

impl From<Errno> for Error {
    fn from(error: Errno) -> Self {
        match error {
            Errno::NOENT | Errno::SRCH => Self::Gone,
            Errno::ACCESS | Errno::PERM => Self::Permission,
            Errno::MFILE | Errno::NFILE => Self::Descriptors,
            _ => Self::Io,
        }
    }
}

/// The processes of the newest sample.
pub struct Processes {
    proc: OwnedFd,
    own_pod: Option<PodUid>,
    known: HashMap<Pid, Process>,
    owners: Owners,
    text: Vec<u8>,
    cycle: u64,
}

struct Process {
    directory: OwnedFd,
    started: StartTime,
    /// When to look at its cgroup again; `None` once it is known to run in a container.
    recheck: Option<Moment>,
    cycle: u64,
}

// === impl Processes ===

impl Processes {
    /// Reads below `proc`. `own_pod` is the pod the agent itself runs in.
    pub fn new(proc: &Path, own_pod: Option<PodUid>) -> std::io::Result<Self> {
        let proc = openat(CWD, proc, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { proc, own_pod, known: HashMap::new(), owners: Owners::default(), text: Vec::new(), cycle: 0 })
    }

    /// Brings the owners in line with a sample. `listed_at` is when it was taken, in ticks since boot.
    pub fn refresh(&mut self, sample: &RawSample, listed_at: StartTime, pods: &SharedPods, metrics: &SelfMetrics) {
        self.cycle += 1;
        let listed = sample.devices.iter().filter_map(|device| device.processes.value()).flatten();
        let mut alive = Vec::with_capacity(self.known.len());
        for process in listed {
            if let Some(found) = self.check(process.pid, metrics) {
                alive.push(found);
            }
        }
        let cycle = self.cycle;
        self.known.retain(|_, process| process.cycle == cycle);
        let mut unknown = self.owners.refresh(&alive, listed_at);
        let due = |process: &Process| process.recheck.is_some_and(|recheck| recheck <= sample.at);
        unknown.extend(
            self.known.iter().filter(|(_, process)| due(process)).map(|(pid, process)| (*pid, process.started)),
        );
        if unknown.is_empty() {
            return;
        }
        for (pid, started) in unknown {
            match self.container(pid, pods) {
                Ok(container) => {
                    if let Some(process) = self.known.get_mut(&pid) {
                        let again = Moment(sample.at.0 + RECHECK_MS);
                        process.recheck = (container.is_none() || !pods.lock().is_synced()).then_some(again);
                    }
                    self.owners.insert(pid, Owner { started, container });
                }
                Err(error) => {
                    error.count("cgroup", metrics);
                    self.known.remove(&pid);
                }
            }
        }
    }

    /// The owner of a process of the last sample.
    pub fn owner(&self, pid: Pid) -> Option<&Owner> {
        self.owners.get(pid)
    }

    /// `/proc/<pid>` of a process of the last sample, opened when that process was met.
    pub fn directory(&self, pid: Pid) -> Option<&OwnedFd> {
        self.known.get(&pid).map(|process| &process.directory)
    }

    /// The process behind a PID, if it lives and can be read.
    fn check(&mut self, pid: Pid, metrics: &SelfMetrics) -> Option<(Pid, StartTime)> {
        if let Some(process) = self.known.get_mut(&pid) {
            if process.cycle == self.cycle {
                return Some((pid, process.started)); // listed on several devices
            }
            if accessat(&process.directory, "stat", Access::EXISTS, AtFlags::empty()).is_ok() {
                process.cycle = self.cycle;
                return Some((pid, process.started));
            }
            self.known.remove(&pid);
        }
        match self.meet(pid) {
            Ok(started) => Some((pid, started)),
            Err(error) => {
                error.count("stat", metrics);
                None
            }
        }
    }

    fn meet(&mut self, pid: Pid) -> Result<StartTime, Error> {
        if self.known.len() >= MAX_PROCESSES {
            return Err(Error::Descriptors);
        }
        let name = pid.0.to_string();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(&self.proc, name.as_str(), flags, Mode::empty())?;
        let started = start_time(read(&directory, "stat", MAX_STAT, &mut self.text)?)?;
        self.known.insert(pid, Process { directory, started, recheck: None, cycle: self.cycle });
        Ok(started)
    }

    fn container(&mut self, pid: Pid, pods: &SharedPods) -> Result<Option<ContainerKey>, Error> {
        let process = self.known.get(&pid).ok_or(Error::Gone)?;
        let text = read(&process.directory, "cgroup", cgroup::MAX_TEXT_BYTES, &mut self.text)?;
        match cgroup::parse(&String::from_utf8_lossy(text), self.own_pod.as_ref()) {
            Membership::NotAPod(NotAPod::Malformed) => Err(Error::Malformed),
            Membership::NotAPod(NotAPod::TooLong) => Err(Error::TooLong),
            membership => {
                let pods = pods.lock();
                Ok(membership.container(|uid| pods.pod(uid).is_some()).cloned())
            }
        }
    }
}

/// A whole small file below a process's directory, at most `limit` bytes of it.
fn read<'t>(directory: &OwnedFd, name: &str, limit: usize, text: &'t mut Vec<u8>) -> Result<&'t [u8], Error> {
    let file = openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    text.clear();
    let mut chunk = [0; 4096];
    loop {
        match rustix::io::read(&file, &mut chunk) {
            Ok(0) => return Ok(text),
            Ok(count) => text.extend_from_slice(chunk.get(..count).unwrap_or_default()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if text.len() > limit {
            text.clear();
            text.shrink_to(4096);
            return Err(Error::TooLong);
        }
    }
}

/// Field 22 of `stat`. The command's name may hold spaces and parentheses, so the fields are counted after the last one.
fn start_time(stat: &[u8]) -> Result<StartTime, Error> {
    let after = stat.iter().rposition(|byte| *byte == b')').ok_or(Error::Malformed)?;
    let fields = stat.get(after + 1..).and_then(|rest| std::str::from_utf8(rest).ok()).ok_or(Error::Malformed)?;
    let field = fields.split_ascii_whitespace().nth(START_FIELD).ok_or(Error::Malformed)?;
    field.parse().map(StartTime).map_err(|_| Error::Malformed)
}

#[cfg(test)]
mod tests;

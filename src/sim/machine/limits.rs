//! Memory limits by cgroup, as drivers from 615 on account them. Pure.
//!
//! Two behaviours are reproduced, traps included. Through the kernel's dmem controller, a limit below what the cgroup
//! holds is dropped while the call succeeds. In the driver's own accounting (misc) any limit is taken, and one that was
//! never set cannot be told from one that is not supported.

use std::collections::BTreeMap;
use std::time::Instant;

use super::{Client, ClientId, Machine};
use crate::protocol::{Accounting, Answer, Fault};

/// No limit.
const MAX: u64 = u64::MAX;
/// Directories at the end of a cgroup's path that name it: the pod's and the container's.
const NAMED_BY: usize = 2;

/// Soft and hard limit by device and the end of the cgroup's path.
pub(super) type Limits = BTreeMap<(usize, Vec<String>), (u64, u64)>;

impl Machine {
    /// True where a client's cgroup matters.
    pub fn has_limits(&self) -> bool {
        !self.limits.is_empty()
    }

    /// Looks at the cgroup of every client again; `read` gives the text for a PID.
    pub fn refresh_cgroups(&mut self, read: impl Fn(u32) -> String) {
        for client in self.clients.values_mut() {
            client.cgroup = read(client.pid);
        }
    }

    /// Takes a limit, or drops it as the driver would.
    pub fn set_limit(&mut self, device: u32, cgroup: &str, soft: u64, hard: u64, now: Instant) -> Answer {
        let device = device as usize;
        let Some(name) = self.limit_name(device, cgroup, now) else { return Answer::LimitNotSupported };
        if self.has(Fault::LimitIgnored, device, now) {
            return Answer::Done;
        }
        match self.accounting {
            // The kernel answers EBUSY, and its dmem controller drops that answer.
            Accounting::Dmem if self.held_in(device, &name) > hard => {}
            Accounting::Dmem if (soft, hard) == (0, MAX) => drop(self.limits.remove(&(device, name))),
            Accounting::Dmem | Accounting::Misc | Accounting::Off => {
                self.limits.insert((device, name), (soft, hard));
            }
        }
        Answer::Done
    }

    /// The limit of a cgroup and what it holds.
    pub fn limit(&self, device: u32, cgroup: &str, now: Instant) -> Answer {
        let device = device as usize;
        let Some(name) = self.limit_name(device, cgroup, now) else { return Answer::LimitNotSupported };
        let used = self.held_in(device, &name);
        match (self.limits.get(&(device, name)), self.accounting) {
            (Some(&(soft, hard)), _) => Answer::Limit { soft, hard, used },
            (None, Accounting::Dmem) => Answer::Limit { soft: 0, hard: MAX, used },
            (None, Accounting::Misc | Accounting::Off) => Answer::LimitNotSupported,
        }
    }

    /// The hard limit that leaves a client the least, with what its cgroup holds.
    pub(super) fn tightest(&self, client: ClientId) -> Option<(u64, u64)> {
        let client = self.clients.get(&client)?;
        let own = self
            .limits
            .iter()
            .filter(|((device, name), _)| *device == client.place.device && is_within(&client.cgroup, name));
        own.map(|((device, name), (_, hard))| (*hard, self.held_in(*device, name)))
            .min_by_key(|(hard, used)| hard.saturating_sub(*used))
    }

    fn limit_name(&self, device: usize, cgroup: &str, now: Instant) -> Option<Vec<String>> {
        let is_whole = self.devices.get(device).is_some_and(|spec| spec.slots.is_empty());
        let works = self.accounting != Accounting::Off && !self.has(Fault::LimitsNotSupported, device, now);
        let directories: Vec<&str> = directories(cgroup).collect();
        let end = directories.get(directories.len().saturating_sub(NAMED_BY)..)?;
        (is_whole && works && !end.is_empty()).then(|| end.iter().map(|name| (*name).to_owned()).collect())
    }

    fn held_in(&self, device: usize, name: &[String]) -> u64 {
        let inside = |client: &&Client| {
            client.place.device == device && self.is_on_device(client) && is_within(&client.cgroup, name)
        };
        self.clients.values().filter(inside).map(|client| client.context + client.held).sum()
    }
}

/// Whether a line of `/proc/<pid>/cgroup` passes through a cgroup with such an end.
fn is_within(text: &str, name: &[String]) -> bool {
    text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).any(|path| {
        let directories: Vec<&str> = directories(path).collect();
        directories.windows(name.len()).any(|part| part.iter().eq(name.iter()))
    })
}

fn directories(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !name.is_empty() && *name != "..")
}

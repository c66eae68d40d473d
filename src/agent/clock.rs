//! The agent's clocks. The one place that reads them; everything below is given its moment.

use std::time::Duration;

use gpumem_engine::identity::StartTime;
use gpumem_engine::quantity::Moment;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// The node's monotonic clock: it goes on through a restart of the agent, and no wall clock can move it.
pub fn monotonic() -> Moment {
    Moment(millis(clock_gettime(ClockId::Monotonic)))
}

/// Now, in the unit in which `/proc/<pid>/stat` says when a process started.
pub fn ticks() -> StartTime {
    // What the kernel tells user space is in hundredths of a second on every architecture with an NVIDIA driver.
    StartTime(millis(clock_gettime(ClockId::Boottime)) / 10)
}

fn millis(time: Timespec) -> u64 {
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    let rest = Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0));
    u64::try_from((seconds + rest).as_millis()).unwrap_or(u64::MAX)
}

//! SIGTERM and SIGINT as something to wait for, instead of a handler.
//!
//! Waiting for a signal doubles as sleeping, and works for PID 1 of a container, where an unhandled SIGTERM is ignored.

use std::time::Duration;

/// Blocked signals; wait for them here.
#[derive(Debug)]
pub struct Signals {
    set: libc::sigset_t,
}

// === impl Signals ===

impl Signals {
    /// Blocks SIGTERM and SIGINT in this thread and all it starts from now on.
    pub fn block() -> Self {
        // SAFETY: a zeroed set is a valid argument to sigemptyset, which initialises it; the pointers live through the
        // calls, which cannot fail for these signal numbers.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            libc::sigaddset(&raw mut set, libc::SIGINT);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            Self { set }
        }
    }

    /// Sleeps at most this long; `Some` if a signal came.
    pub fn wait(&self, longest: Duration) -> Option<i32> {
        let timeout = libc::timespec {
            tv_sec: libc::time_t::try_from(longest.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(longest.subsec_nanos().cast_signed()),
        };
        // SAFETY: the set was initialised by `block`; both pointers live through the call, and no info is asked for.
        let signal = unsafe { libc::sigtimedwait(&raw const self.set, std::ptr::null_mut(), &raw const timeout) };
        (signal > 0).then_some(signal)
    }
}

//! Which levers a workload has: for each kind, what can be done to it, whose lever it is, and how many pods stop by it.

use gpumem_engine::decision::{Blast, Hold, Levers};

use super::handle::{ScaleHandle, SuspendHandle};

/// What can be done to the workload of one pod, with everything that the call needs; each lever that is missing says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// Evicting this pod.
    pub evict: Result<Blast, Hold>,
    /// Suspending the workload.
    pub suspend: Result<SuspendHandle, Hold>,
    /// Changing the number of its pods.
    pub scale: Result<ScaleHandle, Hold>,
    /// Kind of the workload, for what is missing altogether.
    pub kind: String,
}

impl Resolution {
    /// Of a workload whose pods can only be evicted, one at a time.
    pub fn eviction_only(kind: &str) -> Self {
        let no = |lever: &'static str| Hold::NoLever { lever, kind: kind.to_owned() };
        Self { evict: Ok(Blast(1)), suspend: Err(no("suspend")), scale: Err(no("scale")), kind: kind.to_owned() }
    }

    /// As decisions see it.
    pub fn levers(&self) -> Levers {
        Levers {
            evict: self.evict.clone(),
            suspend: self.suspend.as_ref().map(|handle| Blast(handle.blast)).map_err(Clone::clone),
            scale: self.scale.as_ref().map(|handle| handle.replicas).map_err(Clone::clone),
            suspend_to_host: Err(Hold::NoLever { lever: "suspend to host", kind: self.kind.clone() }),
        }
    }
}

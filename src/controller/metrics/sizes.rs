//! What workloads should be given: one series for each profile that recommends something, as the last look through all
//! profiles found them. The leader alone exports them.

use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::ResourceExt as _;

use super::Metrics;
use super::exposition::labels;
use crate::api::names::metric;
use crate::api::profile::GpuMemoryProfile;

/// Series at once: as many profiles as a cluster of thousands of GPUs has.
pub const MAX_SIZES: usize = 10_000;

/// The recommendation of one profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Size {
    namespace: String,
    kind: String,
    workload: String,
    container: String,
    bytes: i64,
}

impl Size {
    /// What a profile recommends; `None` while it knows nothing, or where its workload is gone.
    pub fn of(profile: &GpuMemoryProfile) -> Option<Self> {
        let status = profile.status.as_ref().filter(|status| status.gone_since.is_none())?;
        let recommendation = status.recommendation.as_ref()?;
        Some(Self {
            namespace: profile.namespace().unwrap_or_default(),
            kind: profile.spec.workload.kind.clone(),
            workload: profile.spec.workload.name.clone(),
            container: recommendation.container.clone(),
            bytes: recommendation.bytes,
        })
    }
}

#[derive(Debug, Default)]
pub(super) struct Sizes(Mutex<Vec<Size>>);

impl Sizes {
    pub(super) fn clear(&self) {
        self.locked().clear();
    }

    pub(super) fn write(&self, text: &mut String) {
        let sizes = self.locked();
        if sizes.is_empty() {
            return;
        }
        let name = metric::WORKLOAD_RECOMMENDED;
        let help = "Memory on one device that the workload's hungriest container should have, as its GpuMemoryProfile says: \
                    from its OOMs, else its highest peak, and 10 % more.";
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
        for Size { namespace, kind, workload, container, bytes } in &*sizes {
            let labels = labels(&[
                ("namespace", namespace),
                ("workload_kind", kind),
                ("workload", workload),
                ("container", container),
            ]);
            let _ = writeln!(text, "{name}{{{labels}}} {bytes}");
        }
    }

    fn locked(&self) -> MutexGuard<'_, Vec<Size>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Metrics {
    /// Replaces what profiles recommend. Of two profiles of one name (the workload was made anew) the larger size counts, and
    /// beyond [`MAX_SIZES`] the rest is left out.
    pub fn sizes(&self, mut sizes: Vec<Size>) {
        let key =
            |size: &Size| (size.namespace.clone(), size.kind.clone(), size.workload.clone(), size.container.clone());
        sizes.sort_by_cached_key(|size| (key(size), std::cmp::Reverse(size.bytes)));
        sizes.dedup_by_key(|size| key(size));
        sizes.truncate(MAX_SIZES);
        *self.sizes.locked() = sizes;
    }
}

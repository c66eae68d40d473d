//! Growth limits that held containers until lately: once a container has died its agent has nothing left to read back, and it
//! may be that limit which it died of. Flows in: what agents read back. Flows out: what held a container just before its end.

use std::collections::BTreeMap;
use std::time::Duration;

use gpumem_engine::identity::{ContainerId, DeviceKey};
use gpumem_engine::quantity::{Bytes, Moment};

use super::limits::holding;
use crate::api::node::device_of;
use crate::api::usage::LimitReport;

/// An end that is reported so long after the limit was read back last may have come of it.
const JUST_BEFORE: Duration = Duration::from_mins(1);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Held(BTreeMap<(ContainerId, DeviceKey), (Bytes, Moment)>);

impl Held {
    /// Takes what an agent read back at `now` of the node's clock.
    pub(super) fn take(&mut self, reports: &[LimitReport], now: Moment) {
        self.0.retain(|_, (_, at)| now.since(*at) <= JUST_BEFORE);
        for report in reports {
            if let Some((device, limit)) = device_of(&report.device).zip(holding(report)) {
                self.0.insert((report.container_id.clone(), device), (limit, now));
            }
        }
    }

    /// What held a container whose instance `ended`.
    pub(super) fn just_before(&self, ended: &str, device: &DeviceKey) -> Option<Bytes> {
        self.0.get(&(ContainerId::from(ended), device.clone())).map(|(limit, _)| *limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::node::LimitPhase;

    fn report(state: LimitPhase) -> LimitReport {
        LimitReport {
            pod: "u".into(),
            container_id: "c1".into(),
            device: "GPU-1".into(),
            desired: Some(Bytes::gib(20)),
            applied: (state != LimitPhase::Cleared).then_some(Bytes::gib(20)),
            backend: String::new(),
            state,
            reason: String::new(),
            cgroup: String::new(),
        }
    }

    #[test]
    fn a_limit_is_known_for_a_minute_after_it_was_read_back_last() {
        let device = DeviceKey::whole("GPU-1");
        let mut held = Held::default();
        held.take(&[report(LimitPhase::Applied)], Moment::from_secs(100));
        held.take(&[report(LimitPhase::Cleared)], Moment::from_secs(130));
        assert_eq!(held.just_before("c1", &device), Some(Bytes::gib(20)));
        assert_eq!(held.just_before("c2", &device), None, "another instance");
        held.take(&[], Moment::from_secs(161));
        assert_eq!(held.just_before("c1", &device), None);
    }
}

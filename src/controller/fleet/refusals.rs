//! Allocations that containers' own allocators refused, as gpumem's hook in them counts: a process may survive one. Flows in:
//! what hooks report. Flows out: how many there were, where the last came just before a container's end. It is a
//! container's word, and only tells what it may have died of: no action is taken for it. A death that it explains counts as an OOM
//! of its workload, and several of them, one like the other, as a loop of restarts, which only holds actions back.

use std::collections::BTreeMap;
use std::time::Duration;

use gpumem_engine::identity::ContainerId;
use gpumem_engine::quantity::Moment;

use super::node::TenantKey;
use crate::api::usage::HookReport;

/// An end that is reported so long after a refusal may have come of it: a traceback takes a second, a dump of the model some,
/// and the kubelet's word some more.
const JUST_BEFORE: Duration = Duration::from_mins(1);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<TenantKey, Refused>);

#[derive(Debug)]
struct Refused {
    container_id: ContainerId,
    count: u32,
    /// When it was last seen to rise. A count that was there when we first looked says nothing of when.
    rose: Option<Moment>,
}

impl Refusals {
    /// Takes what hooks report at `now` of the node's clock.
    pub(super) fn take(&mut self, hooks: &[HookReport], now: Moment) {
        for HookReport { pod, container, container_id, ooms, .. } in hooks {
            let key = TenantKey { pod: pod.clone(), container: container.clone() };
            let fresh = || Refused { container_id: container_id.clone(), count: *ooms, rose: None };
            let known = self.0.entry(key).or_insert_with(fresh);
            if known.container_id != *container_id {
                *known = fresh();
            }
            // The count of a process goes with it; another device of the container has its own.
            if *ooms > known.count {
                (known.count, known.rose) = (*ooms, Some(now));
            }
        }
    }

    /// How many there were in a container whose instance `ended` is reported at `now`, where the last was just before.
    pub(super) fn just_before(&self, key: &TenantKey, ended: &str, now: Moment) -> Option<u32> {
        let refused = self.0.get(key).filter(|known| known.container_id.as_str() == ended)?;
        let rose = refused.rose.filter(|rose| now.since(*rose) <= JUST_BEFORE)?;
        (rose <= now).then_some(refused.count)
    }

    /// Forgets all others.
    pub(super) fn retain(&mut self, stays: impl Fn(&TenantKey) -> bool) {
        self.0.retain(|key, _| stays(key));
    }
}

//! What every agent reported, merged: the series of every container, and what is known of its node and pod.
//!
//! Flows in: [`UsageReport`](crate::api::usage::UsageReport)s with the node the API says their agent runs on, and when they
//! arrived. Flows out: [`Observation`]s. Pure: no I/O, `now` is an argument.

use std::time::Duration;

use gpumem_engine::forecast::Forecast;
use gpumem_engine::identity::{ContainerId, DeviceKey};
use gpumem_engine::quantity::Bytes;

use crate::api::usage::PodReport;

/// One container that holds GPU memory, with the forecast of its worst device under one policy's question.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Node whose agent reported it: the API's name of the node, not the report's.
    pub node: String,
    /// Its pod as the agent's watch shows it; believed only after the API confirmed UID and node.
    pub pod: PodReport,
    /// Name in the pod's spec.
    pub container: String,
    /// Current instance.
    pub container_id: ContainerId,
    /// Its worst device: the one `forecast` speaks of.
    pub device: DeviceKey,
    /// Memory on that device in the newest sample.
    pub used: Bytes,
    /// The forecast; `Unknown` when data is old, missing or doubtful.
    pub forecast: Forecast,
    /// Age of the newest sample now.
    pub sample_age: Duration,
}

/// Everything the agents reported.
#[derive(Debug, Default)]
pub struct Fleet {}

impl Fleet {
    /// Observes every container that holds GPU memory in `namespace`, of the pods that `select` picks, under the policy's
    /// question. Containers the policy does not look at are left out.
    pub fn observe(
        &mut self,
        _now: std::time::Instant,
        _namespace: &str,
        _select: impl Fn(&PodReport) -> bool,
        _policy: &gpumem_engine::policy::Policy,
    ) -> Vec<Observation> {
        Vec::new()
    }

    /// Pods that more than one node claims, with those nodes. Their forecasts are `Unknown` until [`Fleet::settle`].
    pub fn conflicts(&self) -> Vec<(gpumem_engine::identity::PodUid, Vec<String>)> {
        Vec::new()
    }

    /// The API's word on a pod that several nodes claim: it runs on `node`, or nowhere (`None`).
    pub fn settle(&mut self, _pod: &gpumem_engine::identity::PodUid, _node: Option<&str>) {}
}

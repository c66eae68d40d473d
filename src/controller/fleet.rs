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

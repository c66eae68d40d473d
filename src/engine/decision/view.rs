//! What a decision sees of one pod.

use std::time::Duration;

use super::Hold;
use crate::forecast::{Forecast, Outlook, TimeToOom};
use crate::identity::{DeviceKey, PodUid};
use crate::pacing::{Group, Stamp, WorkloadUid};
use crate::quantity::Bytes;
use crate::risk::Level;

/// A pod, named so that it cannot be mistaken for its successor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID: a StatefulSet's new pod has the old name and another UID.
    pub uid: PodUid,
    /// Node it runs on.
    pub node: String,
}

/// What a pod belongs to: its top owner, or the pod itself where it has none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Workload {
    /// API version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: WorkloadUid,
}

/// One pod under one policy: its worst container on its worst device.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// The pod.
    pub pod: PodRef,
    /// Its workload.
    pub workload: Workload,
    /// Worst container.
    pub container: String,
    /// That container's worst device.
    pub device: DeviceKey,
    /// Memory of that container on that device.
    pub used: Bytes,
    /// Level of risk.
    pub level: Level,
    /// What `level` follows from.
    pub forecast: Forecast,
    /// Age of the newest sample.
    pub sample_age: Duration,
    /// Whether the pod may be acted on at all; otherwise why not.
    pub standing: Result<Standing, Hold>,
    /// Where the pod stands with a checkpoint; read wherever we asked for one, whatever `standing` says, so that a request is
    /// taken back.
    pub checkpoint: CheckpointState,
    /// When an Event about this risk was last written.
    pub notified: Option<Stamp>,
    /// How long the container has run.
    pub age: Option<Duration>,
    /// Since when the level has been High without a break, as far as this process saw it: a restart can only delay.
    pub high_since: Option<Stamp>,
    /// Whether containers of other pods use the device.
    pub shared: bool,
    /// What the container may fill: the device less what others hold.
    pub room: Option<Bytes>,
    /// Where its limit stands.
    pub limit: LimitState,
}

/// Where the limit of a container on its device stands, as the agent read it back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LimitState {
    /// Nobody asked for one.
    #[default]
    NotSet,
    /// It was asked for, and the agent has not confirmed it yet.
    Pending {
        /// Since when.
        since: Stamp,
    },
    /// It holds.
    Holds {
        /// So much and no more.
        bytes: Bytes,
    },
    /// It cannot hold there.
    Unsupported {
        /// Why.
        why: String,
    },
}

impl View {
    /// Median time to the OOM, when one is expected.
    pub fn expected_in(&self) -> Option<Duration> {
        self.time_to_oom().map(|time| time.q50)
    }

    /// Time before which one OOM in ten comes, when one is expected.
    pub fn earliest_in(&self) -> Option<Duration> {
        self.time_to_oom().map(|time| time.q10)
    }

    /// Time after which one OOM in ten comes, when one is expected.
    pub fn latest_in(&self) -> Option<Duration> {
        self.time_to_oom().map(|time| time.q90)
    }

    fn time_to_oom(&self) -> Option<TimeToOom> {
        match self.forecast.outlook {
            Outlook::Known { time_to_oom, .. } => time_to_oom,
            Outlook::Unknown { .. } => None,
        }
    }

    /// Probability of the OOM within the policy's horizon, when it is known.
    pub fn probability(&self) -> Option<f64> {
        match self.forecast.outlook {
            Outlook::Known { probability, .. } => Some(probability),
            Outlook::Unknown { .. } => None,
        }
    }
}

/// A pod that may be acted on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The workload's pods.
    pub group: Group,
    /// Whether this pod is Ready.
    pub ready: bool,
    /// What its workload lets be done.
    pub levers: Levers,
    /// How long its processes have between SIGTERM and SIGKILL.
    pub grace: Duration,
}

/// What a workload lets be done; each lever that is missing says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Levers {
    /// Evicting this pod.
    pub evict: Result<Blast, Hold>,
    /// Suspending the workload.
    pub suspend: Result<Blast, Hold>,
    /// Changing its replicas: how many it has by its spec.
    pub scale: Result<u32, Hold>,
    /// Moving the container's GPU memory to host memory.
    pub suspend_to_host: Result<(), Hold>,
}

impl Levers {
    /// Of a workload whose pods can only be evicted, one at a time.
    pub fn eviction_only(kind: &str) -> Self {
        let no = |lever: &'static str| Err(Hold::NoLever { lever, kind: kind.to_owned() });
        Self {
            evict: Ok(Blast(1)),
            suspend: no("suspend").map(|()| Blast(0)),
            scale: no("scale").map(|()| 0),
            suspend_to_host: no("suspend to host"),
        }
    }
}

/// Pods that stop when one lever is pulled: budgets count these, not actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Blast(pub u32);

/// Where a pod stands with a checkpoint, as its annotations say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CheckpointState {
    /// Nobody asked.
    #[default]
    NotRequested,
    /// We asked, nobody has answered.
    Requested {
        /// Id of the request.
        id: String,
        /// UID of the pod it was made to: where it is another's, annotations were copied and nothing counts.
        pod: PodUid,
        /// Until when it waits.
        deadline: Stamp,
    },
    /// The application answered our request.
    Done {
        /// Id of the request.
        id: String,
        /// UID of the pod it was made to.
        pod: PodUid,
    },
}

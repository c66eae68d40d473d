//! What an action does: one call to the API each.

use std::time::Duration;

use crate::policy::{Resume, Rung};

/// What an [`Act`] does: one call to the API each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write `/scale`.
    Scale {
        /// Replicas it was decided on.
        from: u32,
        /// Replicas it should have.
        to: u32,
    },
    /// Ask the application to save its work, by annotations on the pod.
    RequestCheckpoint {
        /// How long it has.
        timeout: Duration,
    },
    /// Take the request back: the risk is over.
    WithdrawCheckpoint {
        /// Id of the request.
        id: String,
    },
    /// Freeze the container and move its GPU memory to host memory.
    SuspendToHost,
    /// Suspend the workload that owns the pod.
    SuspendWorkload {
        /// When it goes on.
        resume: Resume,
    },
    /// Let a workload that we suspended go on.
    ResumeWorkload,
    /// Ask the Eviction API to remove the pod.
    Evict,
}

impl Step {
    /// The rung it belongs to.
    pub const fn rung(&self) -> Rung {
        self.kind().rung()
    }

    /// Which it is, without its parameters.
    pub const fn kind(&self) -> StepKind {
        match self {
            Self::Scale { .. } => StepKind::Scale,
            Self::RequestCheckpoint { .. } => StepKind::RequestCheckpoint,
            Self::WithdrawCheckpoint { .. } => StepKind::WithdrawCheckpoint,
            Self::SuspendToHost => StepKind::SuspendToHost,
            Self::SuspendWorkload { .. } => StepKind::SuspendWorkload,
            Self::ResumeWorkload => StepKind::ResumeWorkload,
            Self::Evict => StepKind::Evict,
        }
    }

    /// See [`StepKind::name`].
    pub const fn name(&self) -> &'static str {
        self.kind().name()
    }
}

/// Which step, without its parameters: what records keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StepKind {
    /// See [`Step::Scale`].
    Scale,
    /// See [`Step::RequestCheckpoint`].
    RequestCheckpoint,
    /// See [`Step::WithdrawCheckpoint`].
    WithdrawCheckpoint,
    /// See [`Step::SuspendToHost`].
    SuspendToHost,
    /// See [`Step::SuspendWorkload`].
    SuspendWorkload,
    /// See [`Step::ResumeWorkload`].
    ResumeWorkload,
    /// See [`Step::Evict`].
    Evict,
}

impl StepKind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Scale,
        Self::RequestCheckpoint,
        Self::WithdrawCheckpoint,
        Self::SuspendToHost,
        Self::SuspendWorkload,
        Self::ResumeWorkload,
        Self::Evict,
    ];

    /// Name in records, Events and metrics: a closed set.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scale => "Scale",
            Self::RequestCheckpoint => "Checkpoint",
            Self::WithdrawCheckpoint => "WithdrawCheckpoint",
            Self::SuspendToHost => "SuspendToHost",
            Self::SuspendWorkload => "SuspendWorkload",
            Self::ResumeWorkload => "ResumeWorkload",
            Self::Evict => "Evict",
        }
    }

    /// The step of that name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The rung it belongs to.
    pub const fn rung(self) -> Rung {
        match self {
            Self::Scale => Rung::Scale,
            Self::RequestCheckpoint | Self::WithdrawCheckpoint => Rung::Checkpoint,
            Self::SuspendToHost => Rung::SuspendToHost,
            Self::SuspendWorkload | Self::ResumeWorkload => Rung::SuspendWorkload,
            Self::Evict => Rung::Evict,
        }
    }
}

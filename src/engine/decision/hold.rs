//! Why nothing was done: a closed set, each with a name for conditions and a sentence for people.

use std::time::Duration;

use crate::pacing::{Limit, Refusal, Stamp};
use crate::policy::Rung;
use crate::quantity::Bytes;

mod sentence;

/// What stands in the way of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The policy, or the administrator's maximum, is Observe.
    ModeObserve,
    /// The policy is paused.
    PolicyPaused {
        /// Its first reason.
        why: String,
    },
    /// All actions of the cluster are paused.
    BrakePaused {
        /// The reason given.
        why: String,
    },
    /// The record of past actions cannot be read, so no action may be added to it.
    LedgerUnreadable {
        /// What is wrong with it.
        why: String,
    },
    /// An earlier action has to be settled first.
    Unsettled {
        /// Its id.
        id: String,
    },
    /// This controller began to lead a short while ago.
    JustStarted {
        /// When this ends.
        until: Stamp,
    },
    /// Another policy of the same precedence and age claims the pod.
    Tied {
        /// The other policy.
        with: String,
    },
    /// The pod's owner opted out.
    OptedOut {
        /// Where, and with which value.
        place: String,
    },
    /// The pod is of a kind that is never acted on.
    Protected(Protected),
    /// The pod's owner is of a kind that is not acted on.
    UnsupportedOwner {
        /// Its kind.
        kind: String,
    },
    /// The pod's owners could not be established.
    OwnerUnknown {
        /// Why.
        why: String,
    },
    /// The pod could not be read, or is not the one that was reported.
    PodUnverified {
        /// Why.
        why: String,
    },
    /// The pod is ending already.
    PodTerminating,
    /// The pod does not run.
    PodNotRunning {
        /// Its phase.
        phase: String,
    },
    /// The newest sample is too old.
    StaleData {
        /// Its age.
        age: Duration,
    },
    /// The risk was high, but is below the act level now.
    RiskEasing,
    /// A rollout of the workload is in progress.
    RolloutInProgress,
    /// The last action on this workload is not over.
    InFlight,
    /// The workload is not whole again since the last action.
    ReplacementNotReady {
        /// Ready pods.
        ready: u32,
        /// Pods it should have.
        desired: u32,
    },
    /// The workload rests after the last action.
    Cooldown {
        /// When this ends.
        until: Stamp,
    },
    /// The last call was refused or came to nothing.
    BackOff {
        /// When the next may be.
        until: Stamp,
        /// What the API refused it for, if it did.
        refusal: Option<Refusal>,
    },
    /// Enough was tried on this workload within a day.
    AttemptsExhausted {
        /// How often.
        attempts: u32,
    },
    /// A neighbour on the same device is being removed; that may be enough.
    DeviceBeingRelieved,
    /// The policy has as many pods in disruption as it may.
    ConcurrentBudget {
        /// How many.
        max: u32,
    },
    /// The policy disrupted as many pods within an hour as it may.
    HourlyBudget {
        /// How many.
        max: u32,
    },
    /// Too few Ready pods would remain.
    MinAvailable {
        /// How many would.
        remaining: u32,
        /// How many must.
        min: u32,
    },
    /// No PodDisruptionBudget covers the pod, and the policy wants one.
    NoBudget,
    /// Several PodDisruptionBudgets cover the pod: the Eviction API refuses such pods.
    SeveralBudgets {
        /// How many.
        budgets: u32,
    },
    /// The workload's kind has no such lever, or it is off.
    NoLever {
        /// Which lever.
        lever: &'static str,
        /// Kind of the workload.
        kind: String,
    },
    /// Somebody else owns the replicas.
    ReplicasOwnedByOther {
        /// Who.
        by: String,
    },
    /// What the decision was based on changed before the call.
    Changed {
        /// What changed.
        what: String,
    },
    /// The administrator lets nothing be done in this namespace.
    NamespaceNotAllowed {
        /// The namespace.
        namespace: String,
    },
    /// The policy lists an action that this installation has no right to.
    NotPermitted {
        /// The action.
        rung: Rung,
        /// What grants the right.
        value: &'static str,
    },
    /// One action would stop more pods than the policy ever allows.
    BlastExceedsBudget {
        /// Pods that would stop.
        stops: u32,
        /// Pods that may.
        max: u32,
    },
    /// The administrator's budget of a node is used up.
    NodeBudget {
        /// The node.
        node: String,
        /// Which of its numbers.
        limit: Limit,
    },
    /// The administrator's budget of a namespace is used up.
    NamespaceBudget {
        /// The namespace.
        namespace: String,
        /// Which of its numbers.
        limit: Limit,
    },
    /// The administrator's budget of the cluster is used up.
    ClusterBudget {
        /// Which of its numbers.
        limit: Limit,
    },
    /// Much seems wrong at once.
    BreakerOpen {
        /// What.
        why: String,
        /// From then on one action is let through.
        until: Stamp,
    },
    /// The breaker let one action through, and its outcome decides.
    BreakerProbing,
    /// The application was asked for a checkpoint and has time left to answer.
    AwaitingCheckpoint {
        /// Until when.
        until: Stamp,
    },
    /// The application was asked for a checkpoint and did not answer in time.
    CheckpointUnanswered,
    /// The application took a checkpoint, and the policy lists nothing that would follow.
    CheckpointTaken,
    /// The OOM comes before a checkpoint and the end of the pod would.
    NoTimeForCheckpoint {
        /// What it needs.
        needs: Duration,
    },
    /// The OOM comes before this would have an effect.
    NoTime {
        /// What would be done.
        rung: Rung,
        /// What it needs.
        needs: Duration,
    },
    /// The container has not run for long enough to be stopped.
    TooYoung {
        /// How long it has to have run.
        least: Duration,
    },
    /// The forecast looks further ahead than what was seen of the container allows.
    TooLittleSeen,
    /// Its memory went down by itself of late.
    GivesBack {
        /// Most that it gave back.
        bytes: Bytes,
    },
    /// The replacement would run out just the same.
    WouldNotDiffer {
        /// At about so much memory.
        used: Bytes,
    },
    /// The workload's pods ran out at the same peak again and again.
    RestartLoop {
        /// OOMs in a row.
        ooms: usize,
        /// The highest memory of any of them.
        peak: Bytes,
    },
    /// It was tried on this pod and the risk stayed.
    DidNotHelp {
        /// What was tried.
        rung: Rung,
    },
    /// It does not help against this kind of growth.
    WouldNotHelp {
        /// What would be done.
        rung: Rung,
        /// Why it does not help.
        why: &'static str,
    },
    /// A limit keeps the container from taking its neighbours' memory.
    LimitHolds {
        /// The limit.
        bytes: Bytes,
    },
    /// A limit was asked for and does not hold yet.
    LimitPending,
    /// A limit was asked for and cannot hold there.
    LimitUnsupported {
        /// Why.
        why: String,
    },
    /// No limit is set, or none that protects anybody.
    NoLimit,
    /// An autoscaler reads our metrics and is expected to act.
    AutoscalerExpected {
        /// Until when that is waited for.
        until: Stamp,
    },
    /// Replicas were added a short while ago and may not take load yet.
    ScaleSettling {
        /// Until when that is waited for.
        until: Stamp,
    },
    /// The container is on its way to host memory, and its device still shows what it held.
    HostMoveSettling {
        /// Until when that is waited for.
        until: Stamp,
    },
    /// The policy lists no action.
    NothingListed,
    /// The workload has as many replicas as the policy allows.
    ScaleAtMaximum {
        /// How many.
        max: u32,
    },
}

/// A kind of pod that is never acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protected {
    /// Of a system priority class, or in kube-system.
    System,
    /// Of a DaemonSet.
    DaemonSet,
    /// Static: the kubelet's own, only mirrored in the API.
    Static,
    /// Without a controller that would replace it.
    Bare,
    /// The head of a RayCluster.
    RayHead,
    /// Of a Job that would count an eviction as a failure.
    Job,
}

impl Hold {
    /// Name for a condition's reason, an Event or a metric label.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::ModeObserve => "ModeObserve",
            Self::PolicyPaused { .. } => "Paused",
            Self::BrakePaused { .. } => "PausedByAdministrator",
            Self::LedgerUnreadable { .. } => "LedgerUnreadable",
            Self::Unsettled { .. } => "EarlierActionUnsettled",
            Self::JustStarted { .. } => "JustStarted",
            Self::Tied { .. } => "PoliciesTied",
            Self::OptedOut { .. } => "OptedOut",
            Self::Protected(Protected::System) => "ProtectedSystemPod",
            Self::Protected(Protected::DaemonSet) => "ProtectedDaemonSet",
            Self::Protected(Protected::Static) => "ProtectedStaticPod",
            Self::Protected(Protected::Bare) => "ProtectedBarePod",
            Self::Protected(Protected::RayHead) => "ProtectedRayHead",
            Self::Protected(Protected::Job) => "JobWithoutDisruptionPolicy",
            Self::UnsupportedOwner { .. } => "UnsupportedOwner",
            Self::OwnerUnknown { .. } => "OwnerUnknown",
            Self::PodUnverified { .. } => "PodUnverified",
            Self::PodTerminating => "PodTerminating",
            Self::PodNotRunning { .. } => "PodNotRunning",
            Self::StaleData { .. } => "SamplesStale",
            Self::RiskEasing => "RiskEasing",
            Self::RolloutInProgress => "RolloutInProgress",
            Self::InFlight => "ActionInFlight",
            Self::ReplacementNotReady { .. } => "ReplacementNotReady",
            Self::Cooldown { .. } => "Cooldown",
            Self::BackOff { refusal: Some(refusal), .. } => refusal.reason(),
            Self::BackOff { refusal: None, .. } => "BackOff",
            Self::AttemptsExhausted { .. } => "AttemptsExhausted",
            Self::DeviceBeingRelieved => "DeviceBeingRelieved",
            Self::ConcurrentBudget { .. } => "ConcurrentBudgetExhausted",
            Self::HourlyBudget { .. } => "HourlyBudgetExhausted",
            Self::MinAvailable { .. } => "MinAvailable",
            Self::NoBudget => "NoBudget",
            Self::SeveralBudgets { .. } => "SeveralBudgets",
            Self::NoLever { .. } => "NoLever",
            Self::ReplicasOwnedByOther { .. } => "ReplicasOwnedByOther",
            Self::Changed { .. } => "ChangedBeforeCall",
            Self::NamespaceNotAllowed { .. } => "NamespaceNotAllowed",
            Self::NotPermitted { .. } => "NotPermitted",
            Self::BlastExceedsBudget { .. } => "BlastExceedsBudget",
            Self::NodeBudget { .. } => "NodeBudgetExhausted",
            Self::NamespaceBudget { .. } => "NamespaceBudgetExhausted",
            Self::ClusterBudget { .. } => "ClusterBudgetExhausted",
            Self::BreakerOpen { .. } => "BreakerOpen",
            Self::BreakerProbing => "BreakerProbing",
            Self::AwaitingCheckpoint { .. } => "AwaitingCheckpoint",
            Self::CheckpointUnanswered => "CheckpointUnanswered",
            Self::CheckpointTaken => "CheckpointTaken",
            Self::NoTimeForCheckpoint { .. } => "NoTimeForCheckpoint",
            Self::NoTime { .. } => "NoTime",
            Self::TooYoung { .. } => "TooYoung",
            Self::TooLittleSeen => "TooLittleSeen",
            Self::GivesBack { .. } => "GivesBack",
            Self::WouldNotDiffer { .. } => "WouldNotDiffer",
            Self::RestartLoop { .. } => "RestartLoop",
            Self::DidNotHelp { .. } => "DidNotHelp",
            Self::WouldNotHelp { .. } => "WouldNotHelp",
            Self::LimitHolds { .. } => "LimitHolds",
            Self::LimitPending => "LimitPending",
            Self::LimitUnsupported { .. } => "LimitUnsupported",
            Self::NoLimit => "NoLimit",
            Self::AutoscalerExpected { .. } => "AutoscalerExpected",
            Self::ScaleSettling { .. } => "ScaleSettling",
            Self::HostMoveSettling { .. } => "HostMoveSettling",
            Self::NothingListed => "NothingListed",
            Self::ScaleAtMaximum { .. } => "ScaleAtMaximum",
        }
    }
}

//! Budgets above all policies: of the cluster, of each namespace and of each node. The most restrictive of all wins.
//!
//! They count pods that stop, not actions, and whole gangs: an action on one pod that ends eight takes eight of each.

use std::fmt;

use super::{Deed, DeedState, HOUR, Stamp};
use crate::decision::Hold;
use crate::quantity::counted;

/// What the administrator allows, whatever policies say. A budget that is absent does not limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdminBudgets {
    /// Of all pods.
    pub cluster: Allowance,
    /// Of the pods of each namespace.
    pub namespace: Allowance,
    /// Of the pods of each node.
    pub node: Allowance,
    /// Percent of the cluster's GPU pods that may be in disruption at once; at least one pod may.
    pub percent: Option<u32>,
    /// GPU pods that were seen in the cluster. While it is absent, `percent` allows nothing.
    pub gpu_pods: Option<u32>,
}

/// Pods that may be disrupted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// At once.
    pub concurrent: Option<u32>,
    /// In any hour.
    pub per_hour: Option<u32>,
}

/// The number that an administrator's budget was exceeded by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Pods at once.
    Concurrent(u32),
    /// Pods within an hour.
    PerHour(u32),
    /// Percent of the cluster's GPU pods at once.
    Percent(u32),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Concurrent(max) => write!(f, "{} at once", counted(*max, "pod", "pods")),
            Self::PerHour(max) => write!(f, "{} within an hour", counted(*max, "pod", "pods")),
            Self::Percent(max) => write!(f, "{max} % of the GPU pods at once"),
        }
    }
}

impl AdminBudgets {
    /// Whether `blast` more pods may be disrupted in `namespace` on `node`; otherwise the first budget in the way.
    pub(super) fn allow(
        &self,
        now: Stamp,
        deeds: &[Deed],
        dry_run: bool,
        (namespace, node, blast): (&str, &str, u32),
    ) -> Result<(), Hold> {
        let like = |deed: &&Deed| deed.dry_run == dry_run;
        let on_node = deeds.iter().filter(like).filter(|deed| deed.node == node);
        self.node.allow(now, on_node, blast).map_err(|limit| Hold::NodeBudget { node: node.to_owned(), limit })?;
        let within = deeds.iter().filter(like).filter(|deed| deed.namespace == namespace);
        self.namespace
            .allow(now, within, blast)
            .map_err(|limit| Hold::NamespaceBudget { namespace: namespace.to_owned(), limit })?;
        let all = || deeds.iter().filter(like);
        self.cluster.allow(now, all(), blast).map_err(|limit| Hold::ClusterBudget { limit })?;
        let Some(percent) = self.percent else { return Ok(()) };
        let share = self.gpu_pods.map_or(0, |pods| (u64::from(pods) * u64::from(percent) / 100).max(1));
        if u64::from(concurrent(all())) + u64::from(blast) > share {
            return Err(Hold::ClusterBudget { limit: Limit::Percent(percent) });
        }
        Ok(())
    }
}

impl Allowance {
    fn allow<'a>(&self, now: Stamp, deeds: impl Iterator<Item = &'a Deed> + Clone, blast: u32) -> Result<(), Limit> {
        if let Some(max) = self.concurrent.filter(|max| concurrent(deeds.clone()).saturating_add(blast) > *max) {
            return Err(Limit::Concurrent(max));
        }
        match self.per_hour.filter(|max| hourly(now, deeds).saturating_add(blast) > *max) {
            Some(max) => Err(Limit::PerHour(max)),
            None => Ok(()),
        }
    }
}

/// Pods in disruption.
pub(super) fn concurrent<'a>(deeds: impl Iterator<Item = &'a Deed>) -> u32 {
    deeds.filter(|deed| deed.state != DeedState::Settled).fold(0, |sum, deed| sum.saturating_add(deed.blast))
}

/// Pods disrupted within the last hour. What is open counts until it is known.
pub(super) fn hourly<'a>(now: Stamp, deeds: impl Iterator<Item = &'a Deed>) -> u32 {
    deeds
        .filter(|deed| deed.state == DeedState::Open || now.since(deed.at) < HOUR)
        .fold(0, |sum, deed| sum.saturating_add(deed.blast))
}

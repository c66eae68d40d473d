//! Which pods a policy selects, and which of several policies governs a pod.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gpumem_engine::decision::Workload;
use gpumem_engine::identity::PodUid;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::{Selector, SelectorExt as _};

use super::{Memory, Observation, PodReport, ahead};
use crate::api::convert::Rejection;
use crate::api::policy::{GpuMemoryPolicy, OwnerRef, SelectorOperator, Target};
use crate::controller::context::Context;
use crate::controller::now::Now;

/// What a policy's target selects.
#[derive(Clone, Debug)]
pub enum Selection {
    /// Pods by their labels.
    Labels(Selector),
    /// Pods below an owner.
    Owner(OwnerRef),
}

impl Selection {
    /// Reads a target.
    pub fn of(target: &Target) -> Result<Self, Rejection> {
        match (&target.pod_selector, &target.owner_ref) {
            (Some(selector), None) => {
                let requirements = selector.match_expressions.iter().map(|requirement| LabelSelectorRequirement {
                    key: requirement.key.clone(),
                    operator: operator(requirement.operator).to_owned(),
                    values: Some(requirement.values.clone()),
                });
                for requirement in &selector.match_expressions {
                    let takes_values = matches!(requirement.operator, SelectorOperator::In | SelectorOperator::NotIn);
                    if takes_values == requirement.values.is_empty() {
                        return Err(Rejection {
                            field: "spec.target.podSelector.matchExpressions",
                            problem: format!(
                                "{} with operator {} {} values",
                                requirement.key,
                                operator(requirement.operator),
                                if takes_values { "needs" } else { "takes no" }
                            ),
                        });
                    }
                }
                let labels = LabelSelector {
                    match_labels: Some(selector.match_labels.clone()),
                    match_expressions: Some(requirements.collect()),
                };
                Selector::try_from(labels)
                    .map(Self::Labels)
                    .map_err(|error| Rejection { field: "spec.target.podSelector", problem: error.to_string() })
            }
            (None, Some(owner)) => Ok(Self::Owner(owner.clone())),
            (Some(_), Some(_)) | (None, None) => Err(Rejection {
                field: "spec.target",
                problem: "give exactly one of podSelector and ownerRef".to_owned(),
            }),
        }
    }

    /// Whether a reported pod may be one of them, as far as the report tells.
    pub fn may_select(&self, pod: &PodReport) -> bool {
        match self {
            Self::Labels(selector) => selector.matches(&pod.labels),
            Self::Owner(_) => pod.owner.is_some(),
        }
    }

    /// Whether a reported pod is one of them.
    pub async fn selects(&self, ctx: &Context, memory: &mut Memory, now: &Now, pod: &PodReport) -> bool {
        match self {
            Self::Labels(_) => self.may_select(pod),
            Self::Owner(owner) => memory.chain(ctx, now, pod).await.owners.iter().any(|workload| is(workload, owner)),
        }
    }

    /// Keeps those that are.
    pub async fn narrow(
        &self,
        ctx: &Context,
        memory: &mut Memory,
        now: &Now,
        found: Vec<Observation>,
    ) -> Vec<Observation> {
        if matches!(self, Self::Labels(_)) {
            return found;
        }
        ahead::chains(ctx, memory, now, found.iter().map(|observation| &*observation.pod)).await;
        let mut kept = Vec::new();
        for observation in found {
            if self.selects(ctx, memory, now, &observation.pod).await {
                kept.push(observation);
            }
        }
        kept
    }
}

fn is(workload: &Workload, owner: &OwnerRef) -> bool {
    workload.api_version == owner.api_version && workload.kind == owner.kind && workload.name == owner.name
}

fn operator(operator: SelectorOperator) -> &'static str {
    match operator {
        SelectorOperator::In => "In",
        SelectorOperator::NotIn => "NotIn",
        SelectorOperator::Exists => "Exists",
        SelectorOperator::DoesNotExist => "DoesNotExist",
    }
}

/// What every policy selects.
#[derive(Debug, Default)]
pub struct Claims {
    selected: Vec<Vec<Observation>>,
    ranks: Vec<Rank>,
}

/// Highest precedence first, then oldest. A policy without a time of creation is the youngest.
type Rank = (Reverse<i32>, i64);

/// What a policy governs of what it selects.
#[derive(Debug, Default)]
pub struct Governed {
    /// Containers of the pods it governs.
    pub containers: Vec<Observation>,
    /// Pods that another policy of the same rank selects too, with its name.
    pub tied: HashMap<PodUid, String>,
    /// Policies that govern the others, with the number of pods.
    pub lost_to: BTreeMap<String, usize>,
}

impl Claims {
    /// Adds what the next policy selects.
    pub fn add(&mut self, object: &GpuMemoryPolicy, selected: Vec<Observation>) {
        let created = object.metadata.creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second());
        self.ranks.push((Reverse(object.spec.precedence), created));
        self.selected.push(selected);
    }

    /// Gives every pod to one policy: by rank, and by name where ranks are equal, but then it is tied and nobody acts on it.
    pub fn settle(self, policies: &[Arc<GpuMemoryPolicy>]) -> Vec<Governed> {
        let mut claimants = HashMap::<PodUid, Vec<usize>>::new();
        for (index, selected) in self.selected.iter().enumerate() {
            for observation in selected {
                let claimants = claimants.entry(observation.pod.uid.clone()).or_default();
                if claimants.last() != Some(&index) {
                    claimants.push(index);
                }
            }
        }
        let name = |index: usize| policies[index].metadata.name.clone().unwrap_or_default();
        for claimants in claimants.values_mut() {
            claimants.sort_by_key(|index| (self.ranks[*index], name(*index)));
        }
        let mut governed: Vec<Governed> = self.ranks.iter().map(|_| Governed::default()).collect();
        for (pod, claimants) in &claimants {
            let winner = claimants[0];
            for loser in &claimants[1..] {
                *governed[*loser].lost_to.entry(name(winner)).or_default() += 1;
                if self.ranks[*loser] == self.ranks[winner] {
                    governed[winner].tied.entry(pod.clone()).or_insert_with(|| name(*loser));
                }
            }
        }
        for (index, selected) in self.selected.into_iter().enumerate() {
            governed[index].containers =
                selected.into_iter().filter(|observation| claimants[&observation.pod.uid][0] == index).collect();
        }
        governed
    }
}

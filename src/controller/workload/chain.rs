//! Climbing from a pod to its top owner.

use std::collections::{BTreeSet, HashMap};

use gpumem_engine::decision::{Hold, Protected, Workload};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use kube::Api;
use kube::core::{NamespaceResourceScope, ObjectMeta, Resource};
use serde::de::DeserializeOwned;

use super::{Error, as_workload, controller_of};
use crate::api::usage::OwnerReport;

/// The owners of a pod, nearest first, and whether the last of them is one whose pods we act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Owners as far as they were established, nearest first.
    pub owners: Vec<Workload>,
    /// Whether pods of this chain may be acted on.
    pub standing: Result<(), Hold>,
}

impl Chain {
    /// The top owner, if there is any.
    pub fn top(&self) -> Option<&Workload> {
        self.owners.last()
    }

    /// Whether the chain ends in a state that another look may change soon.
    pub fn is_provisional(&self) -> bool {
        matches!(self.standing, Err(Hold::OwnerUnknown { .. }))
    }
}

/// What one look at an object told: its own controller, or that it is not the one referred to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Hop {
    Next(Option<OwnerReport>),
    Broken(String),
}

/// Looks at owners, remembered by UID: an object's controller never changes during its life.
#[derive(Debug, Default)]
pub struct Hops {
    known: HashMap<String, Option<OwnerReport>>,
}

/// Deeper chains do not occur; a longer one is somebody's mistake.
const MAX_DEPTH: usize = 8;
/// More than any cluster has live GPU workloads; beyond it we forget all and look again.
const MAX_KNOWN: usize = 50_000;

impl Hops {
    /// Climbs from a pod's controller to its top owner.
    pub async fn climb(&mut self, client: &kube::Client, namespace: &str, owner: Option<&OwnerReport>) -> Chain {
        let Some(first) = owner else {
            return Chain { owners: Vec::new(), standing: Err(Hold::Protected(Protected::Bare)) };
        };
        let (mut owners, mut visited) = (Vec::new(), BTreeSet::new());
        let mut current = first.clone();
        loop {
            if !visited.insert(current.uid.clone()) {
                return unknown(owners, "its owners form a circle");
            }
            if owners.len() == MAX_DEPTH {
                return unknown(owners, "its chain of owners is too long");
            }
            let kind = Kind::of(&current);
            owners.push(as_workload(&current));
            let standing = match kind {
                Kind::Node => Err(Hold::Protected(Protected::Static)),
                Kind::DaemonSet => Err(Hold::Protected(Protected::DaemonSet)),
                Kind::Other => Err(Hold::UnsupportedOwner { kind: current.kind.chars().take(63).collect() }),
                Kind::ReplicaSet | Kind::Deployment | Kind::StatefulSet => {
                    match self.hop(client, namespace, kind, &current).await {
                        Hop::Next(Some(next)) => {
                            current = next;
                            continue;
                        }
                        Hop::Next(None) if kind == Kind::ReplicaSet => {
                            Err(Hold::UnsupportedOwner { kind: current.kind.clone() })
                        }
                        Hop::Next(None) => Ok(()),
                        Hop::Broken(why) => return unknown(owners, &why),
                    }
                }
            };
            return Chain { owners, standing };
        }
    }

    async fn hop(&mut self, client: &kube::Client, namespace: &str, kind: Kind, owner: &OwnerReport) -> Hop {
        if let Some(next) = self.known.get(&owner.uid) {
            return Hop::Next(next.clone());
        }
        let looked = match kind {
            Kind::ReplicaSet => look::<ReplicaSet>(client, namespace, owner).await,
            Kind::Deployment => look::<Deployment>(client, namespace, owner).await,
            Kind::StatefulSet => look::<StatefulSet>(client, namespace, owner).await,
            Kind::Node | Kind::DaemonSet | Kind::Other => return Hop::Next(None),
        };
        match looked {
            Ok(Some(metadata)) if metadata.uid.as_deref() == Some(&owner.uid) => {
                let next = controller_of(metadata.owner_references.as_deref().unwrap_or_default());
                if self.known.len() >= MAX_KNOWN {
                    self.known.clear();
                }
                self.known.insert(owner.uid.clone(), next.clone());
                Hop::Next(next)
            }
            Ok(Some(_)) => Hop::Broken(format!("{} {} was created anew since", owner.kind, owner.name)),
            Ok(None) => Hop::Broken(format!("{} {} does not exist", owner.kind, owner.name)),
            Err(error) if error.is_forbidden() => Hop::Broken(format!("{error} is not permitted")),
            Err(error) => Hop::Broken(format!("{error} failed")),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    ReplicaSet,
    Deployment,
    StatefulSet,
    DaemonSet,
    Node,
    Other,
}

impl Kind {
    /// By group and kind: a `Deployment` of another group is not ours to know.
    fn of(owner: &OwnerReport) -> Self {
        match (owner.api_version.as_str(), owner.kind.as_str()) {
            ("apps/v1", "ReplicaSet") => Self::ReplicaSet,
            ("apps/v1", "Deployment") => Self::Deployment,
            ("apps/v1", "StatefulSet") => Self::StatefulSet,
            ("apps/v1", "DaemonSet") => Self::DaemonSet,
            ("v1", "Node") => Self::Node,
            _ => Self::Other,
        }
    }
}

fn unknown(owners: Vec<Workload>, why: &str) -> Chain {
    Chain { owners, standing: Err(Hold::OwnerUnknown { why: why.to_owned() }) }
}

async fn look<K>(client: &kube::Client, namespace: &str, owner: &OwnerReport) -> Result<Option<ObjectMeta>, Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let found = api.get_metadata_opt(&owner.name).await.map_err(|source| Error::Owner {
        kind: owner.kind.clone(),
        name: owner.name.clone(),
        source,
    })?;
    Ok(found.map(|object| object.metadata))
}

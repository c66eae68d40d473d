//! Climbing from a pod to its top owner.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpumem_engine::decision::{Hold, Protected, Workload};

use super::catalogue::Catalogue;
use super::kind::Kind;
use super::object::Located;
use super::{Error, as_workload, controller_of};
use crate::api::usage::OwnerReport;

/// The owners of a pod, nearest first, and whether pods below the last of them may be acted on at all.
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

/// Owners by the UID of what they own; `None` for what nobody does.
type Known = HashMap<String, Option<OwnerReport>>;

/// Looks at owners, remembered by UID: an object's controller never changes during its life. Many pods may be climbed from at
/// once; two that meet at an owner that nobody knows yet both look at it.
#[derive(Debug, Default)]
pub struct Hops {
    known: Mutex<Known>,
    /// What the API server serves.
    pub(super) catalogue: Catalogue,
}

/// Deeper chains do not occur; a longer one is somebody's mistake.
const MAX_DEPTH: usize = 8;
/// More than any cluster has live GPU workloads; beyond it we forget all and look again.
const MAX_KNOWN: usize = 50_000;

impl Hops {
    /// Climbs from a pod's controller to its top owner. An owner of a kind we do not know ends the climb: what stands above
    /// it, and what it would do about a pod that goes, is not known either.
    pub async fn climb(&self, client: &kube::Client, namespace: &str, owner: Option<&OwnerReport>) -> Chain {
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
            let workload = as_workload(&current);
            let kind = Kind::of(&workload);
            owners.push(workload.clone());
            let standing = match kind {
                Some(Kind::Node) => Err(Hold::Protected(Protected::Static)),
                Some(Kind::DaemonSet) => Err(Hold::Protected(Protected::DaemonSet)),
                None => Err(Hold::UnsupportedOwner { kind: current.kind.chars().take(63).collect() }),
                Some(kind) => match self.hop(client, namespace, kind, &workload).await {
                    Hop::Next(Some(next)) => {
                        current = next;
                        continue;
                    }
                    Hop::Next(None) if kind == Kind::Pod => Err(Hold::Protected(Protected::Bare)),
                    Hop::Next(None) => Ok(()),
                    Hop::Broken(why) => return unknown(owners, &why),
                },
            };
            return Chain { owners, standing };
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn hop(&self, client: &kube::Client, namespace: &str, kind: Kind, owner: &Workload) -> Hop {
        if let Some(next) = self.known().get(&owner.uid.0).cloned() {
            return Hop::Next(next);
        }
        let Workload { kind: name_of_kind, name, api_version, .. } = owner;
        let api = Located::of(kind, owner, namespace).api(client);
        let looked = api.get_metadata_opt(name).await.map_err(|source| Error::Owner {
            kind: name_of_kind.clone(),
            name: name.clone(),
            source,
        });
        match looked.map(|found| found.map(|object| object.metadata)) {
            Ok(Some(metadata)) if metadata.uid.as_deref() == Some(&owner.uid.0) => {
                let next = controller_of(metadata.owner_references.as_deref().unwrap_or_default());
                let mut known = self.known();
                if known.len() >= MAX_KNOWN {
                    known.clear();
                }
                known.insert(owner.uid.0.clone(), next.clone());
                Hop::Next(next)
            }
            Ok(Some(_)) => Hop::Broken(format!("{name_of_kind} {name} was created anew since")),
            Ok(None) if api_version == "apps/v1" || api_version == "batch/v1" => {
                Hop::Broken(format!("{name_of_kind} {name} does not exist"))
            }
            Ok(None) => Hop::Broken(format!("there is no {name_of_kind} {name}, or {api_version} is not served")),
            Err(error) if error.is_forbidden() => Hop::Broken(format!("{error} is not permitted")),
            Err(error) => Hop::Broken(format!("{error} failed")),
        }
    }
}

fn unknown(owners: Vec<Workload>, why: &str) -> Chain {
    Chain { owners, standing: Err(Hold::OwnerUnknown { why: why.to_owned() }) }
}

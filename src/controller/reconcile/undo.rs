//! What undoes an action of ours when its time has come: a suspended workload goes on, a request for a checkpoint that
//! nobody needs any more is taken back. A policy that was deleted, edited or lowered since leaves nothing behind.

use std::collections::HashMap;

use gpumem_engine::decision::{Act, Decision, PodRef, Step, Suspended, Workload, resumptions};
use gpumem_engine::pacing::{Brake, Deeds, Stamp};
use gpumem_engine::policy::{Mode, Policy, PolicyKey, Resume};
use serde_json::json;

use crate::api::convert;
use crate::controller::at_once::{AT_ONCE, all};
use crate::controller::context::Context;
use crate::controller::intent::{Action, LedgerDeed, LedgerRequest, PolicyRef};
use crate::controller::now::Now;
use crate::controller::observe::Observed;
use crate::controller::profile;
use crate::controller::stock::Stock;

/// What is to be undone for a policy: of a policy that is there, its decisions go with the others of it.
pub type Undo = HashMap<PolicyKey, Vec<Decision>>;

/// Everything that is to be undone now.
pub async fn due(ctx: &Context, stock: &Stock, observed: &[Observed], deeds: &Deeds, now: &Now) -> Undo {
    let mut undo = Undo::new();
    let Some(state) = stock.state() else { return undo };
    let suspended: Vec<&LedgerDeed> = state.deeds.iter().filter(|deed| deed.suspension().is_some()).collect();
    let resumptions: Vec<_> = suspended.iter().map(|deed| resume(ctx, observed, deed, deeds, now)).collect();
    for (deed, decisions) in suspended.iter().zip(all(AT_ONCE, resumptions).await) {
        undo.entry(deed.policy.key()).or_default().extend(decisions);
    }
    if deeds.brake == Brake::Released {
        for request in state.requests.iter().filter(|request| is_orphan(request, observed)) {
            undo.entry(request.policy.key()).or_default().push(Decision::Act(take_back(request)));
        }
    }
    undo
}

/// Whether and when a workload that we suspended goes on.
async fn resume(ctx: &Context, observed: &[Observed], deed: &LedgerDeed, deeds: &Deeds, now: &Now) -> Vec<Decision> {
    let Action::SuspendWorkload { resume_after_cooldown } = deed.action else { return Vec::new() };
    let key = deed.policy.key();
    let policy = observed.iter().find(|one| one.key == key).and_then(|one| one.policy.as_ref().ok()).cloned();
    let Some(policy) = policy.or_else(|| nobodys(&deed.policy)) else { return Vec::new() };
    let workload = Workload::from(&deed.workload);
    let mut deeds = deeds.clone();
    // Its pods are gone, so nobody has read what is remembered of it. Before the shortest rest is over nobody need.
    if now.stamp >= deed.stamp() + policy.disruption.cooldown {
        let Ok(history) = profile::read(&ctx.read, &deed.namespace, &workload, now.stamp).await else {
            return Vec::new();
        };
        deeds.histories.insert(workload.uid.clone(), history);
    }
    let suspended = Suspended {
        pod: PodRef {
            namespace: deed.namespace.clone(),
            name: deed.pod.clone(),
            uid: deed.pod_uid.clone(),
            node: deed.node.clone(),
        },
        workload,
        container: deed.container.clone(),
        device: deed.device.clone(),
        resume: if resume_after_cooldown { Resume::AfterCooldown } else { Resume::Manual },
        at: deed.stamp(),
    };
    resumptions(now.stamp, &policy, &[suspended], &deeds)
}

/// A policy that is gone or not valid rests as long as one that says nothing about it.
fn nobodys(policy: &PolicyRef) -> Option<Policy> {
    let spec = json!({"target": {"podSelector": {}}});
    convert::policy(policy.key(), &serde_json::from_value(spec).ok()?, Mode::Observe).ok()
}

/// Whether nobody decides about a request any more: its policy is gone, no longer goes so far, no longer asks for
/// checkpoints, or no longer governs the pod. A pod that no agent reports for a while is no such case: missing data undoes
/// nothing.
fn is_orphan(request: &LedgerRequest, observed: &[Observed]) -> bool {
    let key = request.policy.key();
    let policy = observed.iter().find(|one| one.key == key).and_then(|one| one.policy.as_ref().ok());
    let stands = policy.is_some_and(|policy| policy.mode == Mode::Enforce && policy.actions.checkpoint.is_some());
    let taken_over =
        observed.iter().any(|one| one.key != key && one.views.iter().any(|view| view.pod.uid == request.pod_uid));
    !stands || taken_over
}

fn take_back(request: &LedgerRequest) -> Act {
    Act {
        step: Step::WithdrawCheckpoint { id: request.id.clone() },
        pod: PodRef {
            namespace: request.namespace.clone(),
            name: request.pod.clone(),
            uid: request.pod_uid.clone(),
            node: request.node.clone(),
        },
        workload: Workload::from(&request.workload),
        container: request.container.clone(),
        device: request.device.clone(),
        expected_in: None,
        reason: "the policy it was made for is gone, or no longer asks for it".to_owned(),
        dry_run: false,
        fresh_until: Stamp(i64::MAX),
        blast: 0,
        passed: Vec::new(),
    }
}

//! Takes an action; so far the one of asking the Eviction API to remove a pod.
//!
//! Flows in: a [`RecordedIntent`], which cannot be had without having stood in the ledger. Flows out: an [`Outcome`]. Just
//! before the call everything that the decision rested on is read again: the pod, its namespace, its policy, its budgets,
//! the ledger with the pause, and whether we still lead. The call carries the pod's UID, is sent once, and every answer has
//! its own outcome.

use std::time::Duration;

use gpumem_engine::decision::{Hold, PodRef};
use gpumem_engine::pacing::Stamp;
use gpumem_engine::policy::{Mode, Policy, PolicyKey};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::Api;
use kube::api::PostParams;
use kube::core::response::Status;

use super::context::Context;
use super::intent::{self, Intent, RecordedIntent};
use super::now::Now;
use super::workload::{check_namespace, count_budgets, read_pod};
use crate::api::convert;
use crate::api::policy::GpuMemoryPolicy;

mod outcome;

pub use outcome::Outcome;

/// The API server may spend 10 s on conflicts of the PodDisruptionBudget; the client's own limit is a little longer.
const CALL: Duration = Duration::from_secs(20);
/// All reads before the call together: beyond it the API server is in no state to be asked for more.
const READS: Duration = Duration::from_secs(10);

/// Evicts the pod of the intent, unless anything changed since the decision.
pub async fn evict(ctx: &Context, recorded: RecordedIntent, now: &Now) -> (Intent, Outcome) {
    let outcome = match tokio::time::timeout(READS, look_again(ctx, &recorded, now)).await {
        Err(_) => Outcome::Withdrawn(changed("the API server was too slow")),
        Ok(Err(why)) => Outcome::Withdrawn(why),
        Ok(Ok(())) => match may_send(ctx, &recorded, now.later()) {
            Err(why) => Outcome::Withdrawn(why),
            Ok(()) => send(ctx, recorded.intent()).await,
        },
    };
    (recorded.spend(), outcome)
}

/// Reads everything again that the decision rested on.
async fn look_again(ctx: &Context, recorded: &RecordedIntent, now: &Now) -> Result<(), Hold> {
    let intent = recorded.intent();
    let key = intent.policy.key();
    // A deadline that has passed already is not worth the reads.
    may_send(ctx, recorded, now.later())?;
    let (policy, facts, namespace, ledger) = tokio::join!(
        read_policy(ctx, &key),
        read_pod(&ctx.read, &intent.namespace, &intent.pod),
        check_namespace(&ctx.read, &intent.namespace),
        intent::read(ctx),
    );
    check_ledger(ledger, intent)?;
    let policy = check_policy(policy?, recorded)?;
    namespace?;
    let facts = facts.map_err(super::workload::Error::into_hold)?;
    let facts = facts.ok_or_else(|| changed("the pod is gone"))?;
    let PodRef { uid, node, .. } = &facts.pod;
    if *uid != intent.pod_uid {
        return Err(changed("another pod took its name"));
    }
    if *node != intent.node {
        return Err(changed("the pod is on another node"));
    }
    facts.check(&policy.disruption.protect)?;
    let budgets = count_budgets(&ctx.read, &intent.namespace, &facts.labels).await;
    match budgets.map_err(super::workload::Error::into_hold)? {
        0 if policy.disruption.require_budget => Err(Hold::NoBudget),
        0 | 1 => Ok(()),
        budgets => Err(Hold::SeveralBudgets { budgets }),
    }
}

fn check_ledger(ledger: Result<intent::Ledger, intent::Error>, intent: &Intent) -> Result<(), Hold> {
    let ledger = ledger.map_err(|error| Hold::LedgerUnreadable { why: error.to_string() })?;
    if let Some(why) = ledger.pause {
        return Err(Hold::BrakePaused { why });
    }
    let state = ledger.state.map_err(|error| Hold::LedgerUnreadable { why: error.to_string() })?;
    // Another leader settles what it finds open. Then the action is no longer ours to take.
    if state.intents.iter().any(|open| open.id == intent.id) {
        Ok(())
    } else {
        Err(changed("another controller closed this action"))
    }
}

async fn read_policy(ctx: &Context, key: &PolicyKey) -> Result<Option<GpuMemoryPolicy>, Hold> {
    let api: Api<GpuMemoryPolicy> = Api::namespaced(ctx.read.clone(), &key.namespace);
    api.get_opt(&key.name).await.map_err(|_| changed("the policy could not be read again"))
}

fn check_policy(policy: Option<GpuMemoryPolicy>, recorded: &RecordedIntent) -> Result<Policy, Hold> {
    let object = policy.ok_or_else(|| changed("the policy was deleted"))?;
    let key = recorded.intent().policy.key();
    // The mode is judged as written: the administrator's maximum was applied in the decision, and only lowers it.
    let policy = convert::policy(key, &object.spec, Mode::Enforce)
        .map_err(|rejection| changed(&format!("the policy is not valid any more ({rejection})")))?;
    if let Some(why) = policy.paused.first() {
        return Err(Hold::PolicyPaused { why: why.clone() });
    }
    let needed = if recorded.intent().dry_run { Mode::DryRun } else { Mode::Enforce };
    if policy.mode < needed {
        return Err(Hold::ModeObserve);
    }
    if !policy.actions.evict || object.metadata.generation != Some(recorded.policy_generation()) {
        return Err(changed("the policy was edited"));
    }
    Ok(policy)
}

/// The last look, with nothing awaited between it and the call.
fn may_send(ctx: &Context, recorded: &RecordedIntent, now: Stamp) -> Result<(), Hold> {
    if !ctx.leadership.borrow().is_leader {
        return Err(changed("this controller no longer leads"));
    }
    if now > recorded.send_by() {
        return Err(changed("the action was recorded too long ago"));
    }
    if now > recorded.fresh_until() {
        return Err(Hold::StaleData { age: now.since(recorded.fresh_until()) });
    }
    Ok(())
}

fn changed(what: &str) -> Hold {
    Hold::Changed { what: what.to_owned() }
}

async fn send(ctx: &Context, intent: &Intent) -> Outcome {
    let pods: Api<Pod> = Api::namespaced(ctx.act.clone(), &intent.namespace);
    let params = PostParams { dry_run: intent.dry_run, ..PostParams::default() };
    let body = body(intent);
    let call = pods.create_subresource::<Eviction, Status>("eviction", &intent.pod, &params, &body);
    match tokio::time::timeout(CALL, call).await {
        Ok(Ok(_)) if intent.dry_run => Outcome::WouldEvict,
        Ok(Ok(_)) => Outcome::Evicted,
        Ok(Err(kube::Error::Api(status))) => Outcome::of_refusal(&status),
        Ok(Err(error)) => Outcome::Unclear { why: unclear(&error).to_owned() },
        Err(_) => Outcome::Unclear { why: "the API server did not answer in time".to_owned() },
    }
}

/// Our own body: kube's `Api::evict` writes `delete_options`, which the server drops, and with it the UID precondition.
fn body(intent: &Intent) -> Eviction {
    Eviction {
        metadata: ObjectMeta {
            name: Some(intent.pod.clone()),
            namespace: Some(intent.namespace.clone()),
            ..ObjectMeta::default()
        },
        delete_options: Some(DeleteOptions {
            preconditions: Some(Preconditions {
                uid: Some(intent.pod_uid.as_str().to_owned()),
                ..Preconditions::default()
            }),
            ..DeleteOptions::default()
        }),
    }
}

fn unclear(error: &kube::Error) -> &'static str {
    match error {
        kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => "the API server's answer could not be read",
        kube::Error::BuildRequest(_) => "the call could not be made",
        _ => "the connection to the API server broke",
    }
}

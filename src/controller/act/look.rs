//! The last look: everything that a decision rested on is read again, just before the call.

use std::time::Duration;

use gpumem_engine::decision::{Hold, PodRef};
use gpumem_engine::pacing::{Brake, Stamp};
use gpumem_engine::policy::{Actions, Mode, Policy, PolicyKey};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DynamicObject;

use super::suspend::Holder;
use super::{changed, no_lever, scale, suspend};
use crate::api::convert;
use crate::api::names::ANNOTATION_CHECKPOINT_REQUEST;
use crate::api::policy::GpuMemoryPolicy;
use crate::controller::admin::{self, Limits};
use crate::controller::context::Context;
use crate::controller::intent::{self, Action, Intent, Lever, RecordedIntent, State};
use crate::controller::now::Now;
use crate::controller::workload::{Error, PodFacts, SuspendHandle, Target, check_namespace, count_budgets};

/// What the last look saw of the object that the call will be about.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    version: Option<String>,
    nothing_to_do: bool,
    rest: Duration,
}

impl Seen {
    /// Its version.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// How long the policy lets a workload rest after an action.
    pub fn rest(&self) -> Duration {
        self.rest
    }

    /// Whether the effect of the action is there without it.
    pub fn nothing_to_do(&self) -> bool {
        self.nothing_to_do
    }
}

/// Reads everything again that the decision rested on.
pub async fn again(ctx: &Context, recorded: &RecordedIntent, now: &Now) -> Result<Seen, Hold> {
    let intent = recorded.intent();
    let key = intent.policy.key();
    // A deadline that has passed already is not worth the reads.
    may_send(ctx, recorded, now.later())?;
    let (policy, pod, namespace, ledger, limits) = tokio::join!(
        read_policy(ctx, &key),
        read_pod(ctx, intent),
        check_namespace(&ctx.read, &intent.namespace),
        intent::read(ctx),
        admin::read(ctx),
    );
    let state = check_ledger(ledger, intent)?;
    namespace?;
    match (&intent.action, &intent.lever) {
        // What undoes an action of ours needs no policy: it may be gone by now, and that is why.
        (Action::WithdrawCheckpoint { id }, _) => Ok(to_take_back(pod?, intent, id)),
        (Action::ResumeWorkload, Some(Lever::Suspend(handle))) => to_resume(ctx, &state, intent, handle).await,
        (action, lever) => {
            check_limits(limits, &state, recorded, now.later())?;
            let policy = check_policy(policy?, recorded)?;
            let (pod, facts) = check_pod(pod?, intent, &policy)?;
            if is_disruptive(action) {
                check_budgets(ctx, intent, &policy, &facts).await?;
            }
            let version = match (action, lever) {
                (Action::SuspendWorkload { .. }, Some(Lever::Suspend(handle))) => {
                    let object = read_target(ctx, &handle.target).await?;
                    suspend::may_suspend(handle, object.as_ref())?;
                    object.and_then(|object| object.metadata.resource_version)
                }
                (Action::Scale { from, .. }, Some(Lever::Scale(handle))) => {
                    let object = read_target(ctx, &handle.target).await?;
                    scale::may_scale(handle, object.as_ref(), *from)?;
                    object.and_then(|object| object.metadata.resource_version)
                }
                (Action::SuspendWorkload { .. } | Action::ResumeWorkload | Action::Scale { .. }, _) => {
                    return Err(no_lever());
                }
                _ => pod.metadata.resource_version,
            };
            Ok(Seen { version, nothing_to_do: false, rest: policy.disruption.cooldown })
        }
    }
}

/// Reads the object of a lever; `None` when there is none of its name.
pub async fn read_target(ctx: &Context, target: &Target) -> Result<Option<DynamicObject>, Hold> {
    let failed = |source| Error::Owner { kind: target.kind.clone(), name: target.name.clone(), source }.into_hold();
    target.api(ctx.read.clone()).get_opt(&target.name).await.map_err(failed)
}

/// A workload is let go on only where it is still suspended by the action that the ledger says so of.
async fn to_resume(ctx: &Context, state: &State, intent: &Intent, handle: &SuspendHandle) -> Result<Seen, Hold> {
    let deed = state.deeds.iter().find(|deed| deed.suspension() == Some(handle));
    let deed = deed.ok_or_else(|| changed("its suspension is over"))?;
    if deed.workload.uid != intent.workload.uid {
        return Err(changed("its suspension is another workload's"));
    }
    let object = read_target(ctx, &handle.target).await?;
    match suspend::holder(handle, object.as_ref(), &deed.id) {
        Holder::Ours => {
            Ok(Seen { version: object.and_then(|object| object.metadata.resource_version), ..Seen::default() })
        }
        Holder::Lifted | Holder::Gone => Ok(Seen { nothing_to_do: true, ..Seen::default() }),
        Holder::TakenOver => Err(changed("its owner took the suspension over")),
    }
}

/// The last look of all, with nothing awaited between it and the call.
pub fn may_send(ctx: &Context, recorded: &RecordedIntent, now: Stamp) -> Result<(), Hold> {
    if !ctx.leadership.borrow().is_leader {
        return Err(changed("this controller no longer leads"));
    }
    if now > recorded.send_by() {
        return Err(changed("the action was recorded too long ago"));
    }
    if now > recorded.fresh_until() && rests_on_samples(&recorded.intent().action) {
        return Err(Hold::StaleData { age: now.since(recorded.fresh_until()) });
    }
    Ok(())
}

/// What undoes an action of ours rests on no sample.
const fn rests_on_samples(action: &Action) -> bool {
    !matches!(action, Action::WithdrawCheckpoint { .. } | Action::ResumeWorkload)
}

/// Whether pods stop by it.
const fn is_disruptive(action: &Action) -> bool {
    matches!(action, Action::Evict | Action::SuspendWorkload { .. } | Action::SuspendToHost)
}

fn check_ledger(ledger: Result<intent::Ledger, intent::Error>, intent: &Intent) -> Result<State, Hold> {
    let ledger = ledger.map_err(|error| Hold::LedgerUnreadable { why: error.to_string() })?;
    if let Some(why) = ledger.pause {
        return Err(Hold::BrakePaused { why });
    }
    let state = ledger.state.map_err(|error| Hold::LedgerUnreadable { why: error.to_string() })?;
    // Another leader settles what it finds open. Then the action is no longer ours to take.
    if state.intents.iter().any(|open| open.id == intent.id) {
        Ok(state)
    } else {
        Err(changed("another controller closed this action"))
    }
}

/// Budgets were counted under the limits of the decision. Others would have to be counted anew.
fn check_limits(
    limits: Result<Limits, admin::Error>,
    state: &State,
    recorded: &RecordedIntent,
    now: Stamp,
) -> Result<(), Hold> {
    let limits = limits.map_err(|error| Hold::LedgerUnreadable { why: error.to_string() })?;
    limits.allow(&recorded.intent().namespace)?;
    if limits != *recorded.limits() {
        return Err(changed("the administrator edited the limits"));
    }
    match state.breaker.brake(now) {
        Brake::BreakerOpen { why, until } if limits.breaker.enabled => Err(Hold::BreakerOpen { why, until }),
        _ => Ok(()),
    }
}

async fn read_policy(ctx: &Context, key: &PolicyKey) -> Result<Option<GpuMemoryPolicy>, Hold> {
    let api: Api<GpuMemoryPolicy> = Api::namespaced(ctx.read.clone(), &key.namespace);
    api.get_opt(&key.name).await.map_err(|_| changed("the policy could not be read again"))
}

async fn read_pod(ctx: &Context, intent: &Intent) -> Result<Option<Pod>, Hold> {
    let Intent { namespace, pod: name, .. } = intent;
    let api: Api<Pod> = Api::namespaced(ctx.read.clone(), namespace);
    let failed = |source| Error::Pod { namespace: namespace.clone(), name: name.clone(), source }.into_hold();
    api.get_opt(name).await.map_err(failed)
}

fn check_policy(policy: Option<GpuMemoryPolicy>, recorded: &RecordedIntent) -> Result<Policy, Hold> {
    let object = policy.ok_or_else(|| changed("the policy was deleted"))?;
    let intent = recorded.intent();
    // The mode is judged as written: the administrator's maximum was applied in the decision, and only lowers it.
    let policy = convert::policy(intent.policy.key(), &object.spec, Mode::Enforce)
        .map_err(|rejection| changed(&format!("the policy is not valid any more ({rejection})")))?;
    if let Some(why) = policy.paused.first() {
        return Err(Hold::PolicyPaused { why: why.clone() });
    }
    let needed = if intent.dry_run { Mode::DryRun } else { Mode::Enforce };
    if policy.mode < needed {
        return Err(Hold::ModeObserve);
    }
    if !allows(&policy.actions, &intent.action) || object.metadata.generation != Some(recorded.policy_generation()) {
        return Err(changed("the policy was edited"));
    }
    Ok(policy)
}

const fn allows(actions: &Actions, action: &Action) -> bool {
    match action {
        Action::Scale { .. } => actions.scale.is_some(),
        Action::RequestCheckpoint { .. } | Action::WithdrawCheckpoint { .. } => actions.checkpoint.is_some(),
        Action::SuspendToHost => actions.suspend_to_host,
        Action::SuspendWorkload { .. } | Action::ResumeWorkload => actions.suspend_workload.is_some(),
        Action::Evict => actions.evict,
    }
}

fn check_pod(pod: Option<Pod>, intent: &Intent, policy: &Policy) -> Result<(Pod, PodFacts), Hold> {
    let pod = pod.ok_or_else(|| changed("the pod is gone"))?;
    let facts = PodFacts::of(&pod);
    let PodRef { uid, node, .. } = &facts.pod;
    if *uid != intent.pod_uid {
        return Err(changed("another pod took its name"));
    }
    if *node != intent.node {
        return Err(changed("the pod is on another node"));
    }
    facts.check(&policy.disruption.protect)?;
    Ok((pod, facts))
}

async fn check_budgets(ctx: &Context, intent: &Intent, policy: &Policy, facts: &PodFacts) -> Result<(), Hold> {
    let budgets = count_budgets(&ctx.read, &intent.namespace, &facts.labels).await.map_err(Error::into_hold)?;
    match budgets {
        0 if policy.disruption.require_budget => Err(Hold::NoBudget),
        0 | 1 => Ok(()),
        budgets => Err(Hold::SeveralBudgets { budgets }),
    }
}

/// A request is taken back from the pod it was made to, where it still stands.
fn to_take_back(pod: Option<Pod>, intent: &Intent, id: &str) -> Seen {
    let same = pod.filter(|pod| pod.metadata.uid.as_deref() == Some(intent.pod_uid.as_str()));
    let Some(pod) = same else { return Seen { nothing_to_do: true, ..Seen::default() } };
    let annotations = pod.metadata.annotations.as_ref();
    let stands = annotations.and_then(|all| all.get(ANNOTATION_CHECKPOINT_REQUEST)).is_some_and(|own| own == id);
    Seen { version: pod.metadata.resource_version, nothing_to_do: !stands, ..Seen::default() }
}

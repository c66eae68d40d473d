//! Tells people: the policy's status, Events on pod, workload and policy, and metrics.
//!
//! Flows in: what was observed, decided and done. Flows out: writes, and only where something changed: numbers are rounded,
//! texts that move each second are written with the next real change. What cannot be written is logged and tried again in
//! the next round; nothing that was decided depends on it.

use std::time::Duration;

use gpumem_engine::decision::Decision;
use gpumem_engine::pacing::Brake;
use gpumem_engine::policy::{Mode, PolicyKey};
use gpumem_engine::risk::Level;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::Recorder;
use serde_json::json;
use tracing::warn;

use super::at_once::{AT_ONCE, all};
use super::context::Context;
use super::intent::{self, Done, Untold};
use super::limits;
use super::metrics::{Assessed, RiskLevel, Shown};
use super::now::Now;
use super::observe::{Memory, Observed};
use crate::api::names::{FIELD_MANAGER, GROUP, VERSION};
use crate::api::policy::{GpuMemoryPolicy, GpuMemoryPolicyStatus};

mod condition;
pub mod event;
mod once;
mod status;

pub use event::recorder;
pub use status::coarse;

/// Changes that only move a number are written at most this often.
const BETWEEN_MINOR: Duration = Duration::from_secs(10);

/// Reports one round.
#[allow(clippy::too_many_arguments)] // One argument for each arrow that ends here.
pub async fn report(
    ctx: &Context,
    memory: &mut Memory,
    recorder: &Recorder,
    observed: &[Observed],
    decisions: &[Vec<Decision>],
    done: &[Done],
    untold: Vec<Untold>,
    brake: &Brake,
    now: &Now,
) {
    let mut told = Vec::new();
    for (one, decisions) in observed.iter().zip(decisions) {
        assess(ctx, one);
        count_holds(ctx, memory, one, decisions);
        for decision in decisions {
            if let Decision::Notify(notify) = decision {
                told.push(event::notify(recorder, &one.object, notify));
                memory.notified.insert((one.key.clone(), notify.pod.uid.clone()), now.stamp);
                ctx.metrics.action(&one.key, "Notify", "Succeeded", mode(one));
            }
        }
    }
    all(AT_ONCE, told).await;
    let (late, mut told) = tell(ctx, observed, done, untold).await;
    let (mut shown, mut due) = (Vec::new(), Vec::new());
    for (one, decisions) in observed.iter().zip(decisions) {
        let own: Vec<&Done> = done.iter().filter(|done| done.intent.policy.key() == one.key).collect();
        let written = memory.written.get(&one.key);
        let previous =
            written.map(|(_, status)| status.clone()).or_else(|| one.object.status.clone()).unwrap_or_default();
        let before = status::with(&previous, late.iter().filter(|untold| untold.intent.policy.key() == one.key));
        let mut next = status::build(now.stamp, one, decisions, &own, brake, &before);
        limits::tell(ctx, &one.key, &mut next, &previous, now.stamp);
        shown.push((one.key.clone(), conditions(&next)));
        let is_due = match status::difference(&previous, &next) {
            status::Difference::None => false,
            status::Difference::Minor => written.is_none_or(|(at, _)| now.stamp.since(*at) >= BETWEEN_MINOR),
            status::Difference::Major => true,
        };
        if is_due {
            due.push((one.key.clone(), next));
        }
    }
    let writes: Vec<_> = due.iter().map(|(key, status)| write(ctx, key, status)).collect();
    let written = all(AT_ONCE, writes).await;
    for ((key, status), is_written) in due.into_iter().zip(written) {
        if is_written {
            memory.written.insert(key, (now.stamp, status));
        } else {
            told.retain(|untold| untold.intent.policy.key() != key);
        }
    }
    // Last: whoever dies before leaves it all to the next, who finds what was written already.
    let told: Vec<String> = told.into_iter().map(|untold| untold.intent.id).collect();
    if !told.is_empty()
        && let Err(error) = intent::told(ctx, &told, now).await
    {
        warn!(error = &error as &dyn std::error::Error, "that people were told is not noted, telling them again");
    }
    ctx.metrics.conditions(shown);
}

/// Tells of the actions that ended, and of those that an earlier leader had no time to tell of. Gives the latter, and all that
/// people have been told of.
async fn tell(ctx: &Context, observed: &[Observed], done: &[Done], untold: Vec<Untold>) -> (Vec<Untold>, Vec<Untold>) {
    let is_late = |untold: &Untold| done.iter().all(|done| done.intent.id != untold.intent.id);
    let late: Vec<Untold> = untold.into_iter().filter(is_late).collect();
    let mut due: Vec<Untold> = done.iter().map(Done::untold).collect();
    due.extend(late.iter().cloned());
    let policy = |untold: &Untold| observed.iter().find(|one| one.key == untold.intent.policy.key());
    let tellings: Vec<_> =
        due.iter().map(|untold| event::tell(ctx, policy(untold).map(|one| &*one.object), untold)).collect();
    let is_told = all(AT_ONCE, tellings).await;
    let told = due.into_iter().zip(is_told).filter(|(_, is_told)| *is_told).map(|(untold, _)| untold);
    (late, told.collect())
}

fn conditions(status: &GpuMemoryPolicyStatus) -> Vec<Shown> {
    let shown = |condition: &Condition| Shown {
        condition: condition.type_.clone(),
        reason: condition.reason.clone(),
        is_true: condition.status == "True",
    };
    status.conditions.iter().map(shown).collect()
}

fn mode(one: &Observed) -> Mode {
    one.policy.as_ref().map_or(Mode::Observe, |policy| policy.mode)
}

async fn write(ctx: &Context, key: &PolicyKey, status: &GpuMemoryPolicyStatus) -> bool {
    let api: Api<GpuMemoryPolicy> = Api::namespaced(ctx.act.clone(), &key.namespace);
    let patch = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "GpuMemoryPolicy",
        "metadata": {"name": key.name}, "status": status
    });
    match api.patch_status(&key.name, &PatchParams::apply(FIELD_MANAGER), &Patch::Apply(&patch)).await {
        Ok(_) => true,
        // An apply would create a policy that was deleted meanwhile; on the status subresource it is a 404.
        Err(kube::Error::Api(status)) if status.code == 404 => false,
        Err(error) => {
            warn!(namespace = key.namespace, policy = key.name, %error, "status not written, trying again");
            false
        }
    }
}

fn assess(ctx: &Context, one: &Observed) {
    let horizon = one.policy.as_ref().map_or(Duration::ZERO, |policy| policy.prediction.horizon);
    let assessed = one.containers.iter().map(|(observation, level)| {
        let critical = status::median(&observation.forecast).is_some_and(|median| median * 5 <= horizon);
        Assessed {
            pod: observation.pod.uid.clone(),
            container: observation.container.clone(),
            forecast: observation.forecast.clone(),
            level: match level {
                Level::Unknown => None,
                Level::Low => Some(RiskLevel::Low),
                Level::Elevated => Some(RiskLevel::Elevated),
                Level::High if critical => Some(RiskLevel::Critical),
                Level::High => Some(RiskLevel::High),
            },
        }
    });
    ctx.metrics.assess(&one.key, assessed.collect());
}

/// Counts a hold when it begins or its reason changes, not once a second.
fn count_holds(ctx: &Context, memory: &mut Memory, one: &Observed, decisions: &[Decision]) {
    let mut held = Vec::new();
    for decision in decisions {
        if let Decision::Hold { pod, why, .. } = decision {
            let key = (one.key.clone(), pod.uid.clone());
            if memory.held.insert(key.clone(), why.reason()) != Some(why.reason()) {
                ctx.metrics.decision_blocked(why.reason());
            }
            held.push(key);
        }
    }
    memory.held.retain(|key, _| key.0 != one.key || held.contains(key));
}

//! One node's object: listed, written where something changed, its status kept in line with the agent's report, and
//! removed when nothing is to hold any more.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use serde_json::json;
use tracing::{info, warn};

use super::event::Told;
use super::{Known, LIFE, RELIST, RENEW};
use crate::api::names::{FIELD_MANAGER, GROUP, LIMITS_MANAGER, VERSION};
use crate::api::node::{GpuMemoryNode, GpuMemoryNodeStatus, LimitEntry, LimitPhase, LimitStatus, MAX_ENTRIES};
use crate::api::usage::{Abilities, Ability, LimitReport};
use crate::controller::context::Context;
use crate::controller::now::{Now, parse_rfc3339, rfc3339};

/// An agent's report that is older says nothing about what holds now.
const FRESH: Duration = Duration::from_mins(1);

/// Reads the objects, the first time and now and then; false where they cannot be used in this round.
pub async fn list(ctx: &Context, now: &Now) -> bool {
    let due = ctx.limits.state().listed.is_none_or(|listed| now.stamp.since(listed) >= RELIST);
    if !due {
        return ctx.limits.state().unusable.is_none();
    }
    let api: Api<GpuMemoryNode> = Api::all(ctx.read.clone());
    let found = api.list(&ListParams::default()).await;
    let mut state = ctx.limits.state();
    match found {
        Ok(found) => {
            // What an earlier leader found to hold, it told of.
            let is_first = state.listed.is_none();
            state.nodes.clear();
            for object in found.items {
                let Some(name) = object.metadata.name.clone() else { continue };
                let holding = object.status.iter().flat_map(|status| &status.limits);
                for entry in holding.filter(|entry| is_first && entry.state == LimitPhase::Applied) {
                    let (container, device) = entry.key();
                    state.told.insert((container.to_owned(), device.to_owned()), Told::Holds);
                }
                let freezes = object.spec.limits.iter().filter(|entry| entry.freeze.is_some()).cloned().collect();
                state.nodes.insert(name, Known { object: Some(object), freezes });
            }
            (state.listed, state.unusable) = (Some(now.stamp), None);
            true
        }
        Err(kube::Error::Api(status)) if status.code == 403 || status.code == 404 => {
            let why = "limits are off: set agent.limits.enabled in the chart".to_owned();
            if state.unusable.is_none() {
                info!("policies ask for limits, and agent.limits.enabled is not set");
            }
            (state.listed, state.unusable) = (Some(now.stamp), Some(why));
            // What the limits would be is still worth saying.
            true
        }
        Err(error) => {
            warn!(%error, "GpuMemoryNodes cannot be listed, nothing is changed in this round");
            false
        }
    }
}

/// The entry that the object has for a container and device.
pub fn entry(ctx: &Context, node: &str, key: &(String, String)) -> Option<LimitEntry> {
    let state = ctx.limits.state();
    let object = state.nodes.get(node)?.object.as_ref()?;
    object.spec.limits.iter().find(|entry| entry.key() == (&key.0, &key.1)).cloned()
}

/// What tells a node's object from the one before it.
pub fn uid(ctx: &Context, node: &str) -> String {
    let state = ctx.limits.state();
    let object = state.nodes.get(node).and_then(|known| known.object.as_ref());
    object.and_then(|object| object.metadata.uid.clone()).unwrap_or_default()
}

/// An entry as it stands; renewed or not.
pub fn kept(entry: LimitEntry, renewed: bool, now: &Now) -> LimitEntry {
    let expires = if renewed { rfc3339(now.stamp + LIFE) } else { entry.expires.clone() };
    LimitEntry { expires, ..entry }
}

/// Brings one node's object in line with what is wanted.
pub async fn settle(ctx: &Context, name: &str, mut wanted: Vec<LimitEntry>, now: &Now) {
    if ctx.limits.state().unusable.is_some() {
        return;
    }
    let (boot, reports, age) = match ctx.fleet().limits(name, now.instant) {
        Some((boot, reports, age)) => (boot.to_owned(), reports.to_vec(), age),
        // Nobody has heard of this node: a controller that has just begun to lead must not take anything away.
        None => return,
    };
    let known = ctx.limits.state().nodes.get(name).cloned().unwrap_or_default();
    let is_over = |entry: &LimitEntry| parse_rfc3339(&entry.expires).is_none_or(|expires| expires <= now.stamp);
    wanted.extend(known.freezes.iter().filter(|entry| !is_over(entry)).cloned());
    wanted.sort_by(|a, b| a.key().cmp(&b.key()));
    wanted.dedup_by(|a, b| a.key() == b.key());
    wanted.truncate(MAX_ENTRIES);
    let object = known.object;
    let present: &[LimitEntry] = object.as_ref().map_or(&[], |object| &object.spec.limits);
    if object.is_none() && wanted.is_empty() {
        return;
    }
    let object = if differ(present, &wanted, now) {
        match write(ctx, name, &wanted, object.is_none(), now).await {
            Some(written) => written,
            None => return,
        }
    } else if let Some(object) = object {
        object
    } else {
        return;
    };
    let object = if age <= FRESH { report(ctx, name, object, &boot, &reports, now).await } else { object };
    let is_empty =
        object.spec.limits.is_empty() && object.status.as_ref().is_none_or(|status| status.limits.is_empty());
    let freezes = known.freezes.into_iter().filter(|entry| !is_over(entry)).collect();
    let known = Known { object: Some(object.clone()), freezes };
    ctx.limits.state().nodes.insert(name.to_owned(), known);
    // An administrator's release stays until it is taken back.
    if is_empty && age <= FRESH && !object.spec.release {
        delete(ctx, name, &object).await;
    }
}

/// Whether the object has to be written: other limits, or an entry that needs renewal.
fn differ(present: &[LimitEntry], wanted: &[LimitEntry], now: &Now) -> bool {
    let plain = |entry: &LimitEntry| (entry.key().0.to_owned(), entry.key().1.to_owned(), entry.bytes, entry.freeze);
    let a: BTreeSet<_> = present.iter().map(|entry| format!("{:?}", plain(entry))).collect();
    let b: BTreeSet<_> = wanted.iter().map(|entry| format!("{:?}", plain(entry))).collect();
    let renewal = wanted.iter().any(|wanted| {
        let known = present.iter().find(|present| present.key() == wanted.key());
        let expires = known.and_then(|known| parse_rfc3339(&known.expires));
        expires.is_none_or(|expires| expires < now.stamp + RENEW)
            && known.is_none_or(|known| known.expires != wanted.expires)
    });
    a != b || renewal
}

async fn write(ctx: &Context, name: &str, entries: &[LimitEntry], is_new: bool, now: &Now) -> Option<GpuMemoryNode> {
    let mut metadata = json!({"name": name});
    if is_new {
        // It goes with its node.
        let nodes: Api<Node> = Api::all(ctx.read.clone());
        let node = nodes.get_opt(name).await.ok().flatten()?;
        let uid = node.metadata.uid?;
        metadata["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]);
    } else if let Some(owners) = owners(ctx, name) {
        metadata["ownerReferences"] = owners;
    }
    let object = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "GpuMemoryNode", "metadata": metadata,
        // Taking the last entry away would take the spec away, which the server refuses.
        "spec": {"limits": entries, "written": rfc3339(now.stamp)},
    });
    let api: Api<GpuMemoryNode> = Api::all(ctx.act.clone());
    match api.patch(name, &PatchParams::apply(LIMITS_MANAGER), &Patch::Apply(&object)).await {
        Ok(written) => Some(written),
        Err(error) => {
            ctx.metrics.failed("limits", "write");
            warn!(node = name, %error, "limits not written, trying again");
            None
        }
    }
}

/// An apply without a field that the same manager set before takes the field away.
fn owners(ctx: &Context, name: &str) -> Option<serde_json::Value> {
    let state = ctx.limits.state();
    let owners = state.nodes.get(name)?.object.as_ref()?.metadata.owner_references.clone()?;
    serde_json::to_value(owners).ok()
}

/// Puts what the agent read back into the status.
async fn report(
    ctx: &Context,
    name: &str,
    object: GpuMemoryNode,
    boot: &str,
    reports: &[LimitReport],
    now: &Now,
) -> GpuMemoryNode {
    let previous = object.status.clone().unwrap_or_default();
    let abilities = ctx.fleet().abilities(name).cloned().unwrap_or_default();
    let next = status(&object, &previous, boot, (reports, &abilities), now);
    if next == previous {
        return object;
    }
    let api: Api<GpuMemoryNode> = Api::all(ctx.act.clone());
    let mut status = serde_json::to_value(&next).unwrap_or_default();
    // Said even where empty: what was listed is cleared.
    status["limits"] = serde_json::to_value(&next.limits).unwrap_or_default();
    let patch = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "GpuMemoryNode", "metadata": {"name": name}, "status": status,
    });
    match api.patch_status(name, &PatchParams::apply(FIELD_MANAGER), &Patch::Apply(&patch)).await {
        Ok(written) => written,
        Err(error) => {
            ctx.metrics.failed("limits", "status");
            warn!(node = name, %error, "status of limits not written, trying again");
            object
        }
    }
}

/// The status that follows from a report. What was recorded stays until the agent says that it is cleared, or the node
/// has booted since.
pub fn status(
    object: &GpuMemoryNode,
    previous: &GpuMemoryNodeStatus,
    boot: &str,
    (reports, abilities): (&[LimitReport], &Abilities),
    now: &Now,
) -> GpuMemoryNodeStatus {
    let mut limits: Vec<LimitStatus> = Vec::new();
    for report in reports.iter().filter(|report| report.state != LimitPhase::Cleared) {
        let key = (report.container_id.as_str(), report.device.as_str());
        let is_asked = object.spec.limits.iter().any(|entry| entry.key() == key);
        let is_recorded = previous.limits.iter().any(|known| known.key() == key);
        // An agent records only what it was asked for: anything else it says is not believed.
        if is_asked || is_recorded {
            limits.push(LimitStatus {
                pod_uid: report.pod.as_str().to_owned(),
                container_id: key.0.to_owned(),
                device: key.1.to_owned(),
                desired: report.desired.and_then(|bytes| i64::try_from(bytes.0).ok()),
                applied: report.applied.and_then(|bytes| i64::try_from(bytes.0).ok()),
                backend: crate::text::shorten(&report.backend, 64),
                state: report.state,
                reason: crate::text::shorten(&report.reason, 500),
                cgroup: report.cgroup.clone(),
                boot_id: boot.to_owned(),
            });
        }
    }
    for known in &previous.limits {
        let is_reported =
            reports.iter().any(|report| (report.container_id.as_str(), report.device.as_str()) == known.key());
        if !is_reported && known.boot_id == boot && !known.cgroup.is_empty() {
            limits.push(known.clone());
        }
    }
    limits.sort_by(|a, b| a.key().cmp(&b.key()));
    limits.truncate(MAX_ENTRIES);
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let holds = |entry: &&LimitStatus| matches!(entry.state, LimitPhase::Applied | LimitPhase::Frozen);
    GpuMemoryNodeStatus {
        desired: count(object.spec.limits.len()),
        applied: count(limits.iter().filter(holds).count()),
        conditions: conditions(object, &limits, abilities, &previous.conditions, now),
        limits,
    }
}

fn conditions(
    object: &GpuMemoryNode,
    limits: &[LimitStatus],
    abilities: &Abilities,
    previous: &[Condition],
    now: &Now,
) -> Vec<Condition> {
    let of = |phases: &[LimitPhase]| limits.iter().filter(|entry| phases.contains(&entry.state)).collect::<Vec<_>>();
    let all = object.spec.limits.len();
    let applied = of(&[LimitPhase::Applied, LimitPhase::Frozen]).len();
    let found = [
        ("LimitPending", "Ratcheting", of(&[LimitPhase::Pending])),
        ("LimitUnsupported", "Unsupported", of(&[LimitPhase::Unsupported, LimitPhase::Refused])),
        ("LimitDrift", "NotAsSet", of(&[LimitPhase::Drift])),
    ];
    let is_whole = applied == all;
    let mut conditions = vec![(
        "LimitApplied",
        is_whole,
        if is_whole { "ReadBack" } else { "Incomplete" },
        format!("{applied} of {all} entries were read back as they should be"),
    )];
    for (kind, reason, entries) in found {
        let message = match entries.first() {
            Some(first) => format!(
                "{} of {all}; first: container {} on {}: {}",
                entries.len(),
                first.container_id.get(..12).unwrap_or(&first.container_id),
                first.device,
                first.reason
            ),
            None => "none".to_owned(),
        };
        let reason = if entries.is_empty() { "None" } else { reason };
        conditions.push((kind, !entries.is_empty(), reason, message));
    }
    for (kind, ability) in [("CanLimit", &abilities.limits), ("CanSuspend", &abilities.suspend)] {
        match ability {
            // The chart does not ask for it: nothing is said rather than something alarming.
            Ability::Off => {}
            Ability::Works { by } => conditions.push((kind, true, "Tried", by.clone())),
            Ability::Fails { reason } => conditions.push((kind, false, "Unsupported", reason.clone())),
        }
    }
    let condition = |(kind, holds, reason, message): (&str, bool, &str, String)| {
        let status = if holds { "True" } else { "False" };
        let same = previous.iter().find(|known| known.type_ == kind && known.status == status);
        let time = jiff::Timestamp::from_second(now.stamp.0).unwrap_or_default();
        Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: crate::text::shorten(&message, 1000),
            observed_generation: object.metadata.generation,
            last_transition_time: same.map_or(Time(time), |known| known.last_transition_time.clone()),
        }
    };
    conditions.into_iter().map(condition).collect()
}

async fn delete(ctx: &Context, name: &str, object: &GpuMemoryNode) {
    let api: Api<GpuMemoryNode> = Api::all(ctx.act.clone());
    let preconditions =
        Preconditions { uid: object.metadata.uid.clone(), resource_version: object.metadata.resource_version.clone() };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(name, &params).await {
        Ok(_) => drop(ctx.limits.state().nodes.remove(name)),
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => {
            // Somebody else was first; the next list shows what there is.
            ctx.limits.state().listed = None;
        }
        Err(error) => warn!(node = name, %error, "an empty GpuMemoryNode was not deleted, trying again"),
    }
}

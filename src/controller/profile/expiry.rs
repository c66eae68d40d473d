//! Looks through all profiles now and then: judges warnings whose time is over, removes profiles whose workload has been gone
//! for some days, and shows what they recommend as metrics.
//!
//! A workload is gone where the API says that there is none of its name, or one with another UID. What cannot be asked
//! (a kind that is no longer served, a missing right) is not gone. A task of its own: a thousand reads would stall the acting loop.

use std::sync::Arc;
use std::time::Duration;

use gpumem_engine::decision::Workload;
use gpumem_engine::pacing::Stamp;
use gpumem_engine::score::{Alarm, Event, Judged, What};
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Preconditions};
use kube::{Api, ResourceExt as _};
use tracing::{info, warn};

use super::{Error, open_alarms, pass, update};
use crate::api::policy::WorkloadRef;
use crate::api::profile::{GpuMemoryProfile, GpuMemoryProfileStatus};
use crate::controller::context::Context;
use crate::controller::metrics::{RiskLevel, Size};
use crate::controller::now::{Now, parse_rfc3339, rfc3339};

/// Between two looks at the warnings.
const BETWEEN: Duration = Duration::from_mins(10);
/// Until the first look, which only shows: whoever has just begun has not seen the containers that warnings are about.
const FIRST: Duration = Duration::from_mins(1);
/// Owners are asked for at every so many looks.
const OWNERS_EVERY: u32 = 6;
/// Profiles read at a time.
const PAGE: u32 = 200;
/// A container that nobody sees for so long beyond a warning's time does not come back.
const PATIENCE: Duration = Duration::from_mins(15);

/// What a sweep did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Profiles looked at.
    pub profiles: usize,
    /// Warnings judged.
    pub judged: usize,
    /// Profiles removed.
    pub removed: usize,
}

/// Sweeps until `shutdown`, while this replica leads.
pub async fn run(ctx: Arc<Context>, shutdown: impl Future<Output = ()>) {
    tokio::pin!(shutdown);
    let mut look = 0_u32;
    let mut wait = FIRST;
    loop {
        tokio::select! {
            () = &mut shutdown => return,
            () = tokio::time::sleep(wait) => {}
        }
        let is_first = wait == FIRST;
        wait = BETWEEN;
        if !ctx.leadership.borrow().is_leader {
            wait = FIRST;
            continue;
        }
        let swept = if is_first {
            show(&ctx).await
        } else {
            look = look.wrapping_add(1);
            sweep(&ctx, &Now::read(), look.is_multiple_of(OWNERS_EVERY)).await
        };
        match swept {
            Ok(swept) if swept.judged + swept.removed > 0 => info!(?swept, "profiles swept"),
            Ok(_) => {}
            Err(error) => {
                ctx.metrics.failed("profile", error.kind());
                warn!(error = &error as &dyn std::error::Error, "profiles not swept, trying again");
            }
        }
    }
}

/// Shows what all profiles recommend, and changes nothing.
pub async fn show(ctx: &Context) -> Result<Swept, Error> {
    let mut swept = Swept::default();
    let mut sizes = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let (profiles, next) = page(ctx, &params).await?;
        swept.profiles += profiles.len();
        sizes.extend(profiles.iter().filter_map(Size::of));
        match next {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    ctx.metrics.sizes(sizes);
    Ok(swept)
}

/// Looks through all profiles once; with `owners` also for those whose workload is gone.
pub async fn sweep(ctx: &Context, now: &Now, owners: bool) -> Result<Swept, Error> {
    let mut params = ListParams::default().limit(PAGE);
    let mut swept = Swept::default();
    let mut sizes = Vec::new();
    loop {
        let (profiles, next) = page(ctx, &params).await?;
        for profile in profiles {
            if !ctx.leadership.borrow().is_leader {
                return Ok(swept);
            }
            swept.profiles += 1;
            sizes.extend(Size::of(&profile));
            swept.judged += judge(ctx, &profile, now).await?;
            if owners {
                swept.removed += usize::from(expire(ctx, &profile, now).await?);
            }
        }
        match next {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    ctx.metrics.sizes(sizes);
    Ok(swept)
}

/// Some profiles, and where the next begin.
async fn page(ctx: &Context, params: &ListParams) -> Result<(Vec<GpuMemoryProfile>, Option<String>), Error> {
    let all: Api<GpuMemoryProfile> = Api::all(ctx.read.clone());
    let page = all.list(params).await.map_err(|source| Error::Read { name: "(all)".to_owned(), source })?;
    Ok((page.items, page.metadata.continue_.filter(|token| !token.is_empty())))
}

/// Judges the warnings of a profile whose time is over.
async fn judge(ctx: &Context, profile: &GpuMemoryProfile, now: &Now) -> Result<usize, Error> {
    let alarms = profile.status.as_ref().map(open_alarms).unwrap_or_default();
    if alarms.is_empty() {
        return Ok(0);
    }
    let events: Vec<Event> = alarms.iter().map(|alarm| event(ctx, alarm, now.stamp)).collect();
    let change = |status: &mut GpuMemoryProfileStatus| {
        let decided: Vec<Option<Vec<Judged>>> = events.iter().map(|event| pass(status, event)).collect();
        let is_changed = decided.iter().any(Option::is_some);
        is_changed.then(|| decided.into_iter().flatten().flatten().collect::<Vec<_>>())
    };
    let namespace = profile.namespace().unwrap_or_default();
    let judged =
        update(&ctx.act, &namespace, &Workload::from(&profile.spec.workload), change).await?.unwrap_or_default();
    ctx.metrics.judged(&judged);
    Ok(judged.len())
}

/// What the passing of time means for a warning.
fn event(ctx: &Context, alarm: &Alarm, now: Stamp) -> Event {
    let assessed = ctx.metrics.assessed();
    let mut levels = assessed.values().flat_map(|entries| entries.iter());
    let seen = levels.find(|entry| entry.pod.as_str() == alarm.pod && entry.container == alarm.container);
    let is_up = seen.and_then(|entry| entry.level).map(|level| level >= RiskLevel::High);
    let is_late = now > alarm.since + alarm.horizon.mul_f64(1.5) + PATIENCE;
    let what = match (seen, is_up) {
        (None, _) if is_late => What::Gone,
        // It cleared while nobody led.
        (Some(_), Some(false)) if alarm.cleared.is_none() => What::Cleared,
        _ => What::Passed,
    };
    Event { pod: alarm.pod.clone(), container: alarm.container.clone(), at: now, what }
}

/// Notes that the workload is gone, or removes the profile when that was long ago; true where it was removed.
async fn expire(ctx: &Context, profile: &GpuMemoryProfile, now: &Now) -> Result<bool, Error> {
    let namespace = profile.namespace().unwrap_or_default();
    let since = profile.status.as_ref().and_then(|status| status.gone_since.as_deref());
    let Some(is_there) = exists(&ctx.read, &namespace, &profile.spec.workload).await else { return Ok(false) };
    if !is_there && let Some(since) = since.and_then(parse_rfc3339) {
        if now.stamp < since + ctx.profile_ttl {
            return Ok(false);
        }
        return remove(ctx, &namespace, profile).await;
    }
    if is_there == since.is_none() {
        return Ok(false);
    }
    let change = |status: &mut GpuMemoryProfileStatus| {
        status.gone_since = (!is_there).then(|| rfc3339(now.stamp));
        Some(())
    };
    update(&ctx.act, &namespace, &Workload::from(&profile.spec.workload), change).await?;
    Ok(false)
}

/// Removes a profile as it was read: one that was written meanwhile stays.
async fn remove(ctx: &Context, namespace: &str, profile: &GpuMemoryProfile) -> Result<bool, Error> {
    let name = profile.name_any();
    let api: Api<GpuMemoryProfile> = Api::namespaced(ctx.act.clone(), namespace);
    let preconditions =
        Preconditions { uid: profile.uid(), resource_version: profile.metadata.resource_version.clone() };
    let params = DeleteParams::default().preconditions(preconditions);
    match api.delete(&name, &params).await {
        Ok(_) => {
            info!(namespace, profile = name, "workload gone for long, profile removed");
            Ok(true)
        }
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
        Err(source) => Err(Error::Write { name, source }),
    }
}

/// Whether the very object is there; `None` where nobody can say.
async fn exists(client: &kube::Client, namespace: &str, workload: &WorkloadRef) -> Option<bool> {
    let (group, version) = workload.api_version.split_once('/').unwrap_or(("", &workload.api_version));
    let gvk = GroupVersionKind::gvk(group, version, &workload.kind);
    let resource = match group {
        // Their plurals are regular; of others the API says how they are called, and whether they are served at all.
        "" | "apps" | "batch" => ApiResource::from_gvk(&gvk),
        _ => kube::discovery::pinned_kind(client, &gvk).await.ok()?.0,
    };
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    match api.get_metadata_opt(&workload.name).await {
        Ok(found) => Some(found.is_some_and(|found| found.metadata.uid.as_deref() == Some(workload.uid.as_str()))),
        Err(_) => None,
    }
}

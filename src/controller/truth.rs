//! What really happened to containers with GPU memory: the OOMs, the warnings that came true, and the peaks.
//!
//! Flows in: the ends that agents report, the levels of the round, what was done. Flows out: profile entries first, and what
//! follows from each exactly once: counters and Events. The profile's compare-and-swap is the fence: whoever adds an entry
//! counts it, so neither a restart nor a change of leader counts an OOM twice. All this is after the fact and decides no
//! action; each round does a bounded amount of it.
//!
//! Of a container that no policy governs only the metric is kept: nobody asked for anything in its namespace, so nothing is
//! written there. What was counted is then remembered by the leader alone. A new one counts what ended since it leads, so
//! that nothing is counted twice; an OOM between two leaders is not counted.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use gpumem_engine::decision::{Hold, LimitState, View, Workload};
use gpumem_engine::identity::PodUid;
use gpumem_engine::oom::Death;
use gpumem_engine::pacing::{Stamp, WorkloadUid};
use gpumem_engine::policy::PolicyKey;
use gpumem_engine::risk::Level;
use gpumem_engine::score::{Event, What};
use kube::runtime::events::Recorder;
use tracing::{info, warn};

use super::at_once::{AT_ONCE, all};
use super::context::Context;
use super::fleet::{EndKey, Ended};
use super::intent::{Action, Done};
use super::now::{Now, parse_rfc3339};
use super::observe::{Memory, Observed};
use super::profile::{self, Lesson};
use super::report::event::{self, Whom};
use crate::api::usage::PodReport;

mod death;
mod governed;
mod misfit;
mod peak;

/// Profiles written for one purpose in one round at most; the rest waits for the next round.
const WRITES: usize = 10;
/// All of it together begins nothing new after this long: with an API server that hangs, the acting loop must come round.
const PATIENCE: Duration = Duration::from_secs(5);
/// An end that could not be settled is looked at again after this long…
const RETRY: Duration = Duration::from_secs(30);
/// …and given up after this.
const GIVE_UP: Duration = Duration::from_mins(10);
/// Older ends are remembered, but are no news: counters and Events would put them at a wrong time.
const NEWS: Duration = Duration::from_hours(1);
/// The level of a run that ended is seen for a little longer.
const QUIET: Duration = Duration::from_mins(1);

/// What the rounds of one process remember of this. All of it may be lost: profiles know what was counted.
#[derive(Debug, Default)]
pub struct Knowledge {
    settled: HashSet<EndKey>,
    waiting: HashMap<EndKey, (Stamp, Stamp)>,
    governed: HashMap<(PodUid, String), Governed>,
    windows: HashMap<(String, WorkloadUid), peak::Running>,
    /// Pods that were warned of, or looked at for nothing, with when they were heard of last.
    misfits: HashMap<PodUid, Stamp>,
    /// Pods at risk whose neighbour's limit holds, with that noted in their profiles.
    spared: HashSet<PodUid>,
}

/// A container that a policy governs.
#[derive(Clone, Debug)]
struct Governed {
    policy: PolicyKey,
    workload: Workload,
    namespace: String,
    horizon: Duration,
    seen: Stamp,
    /// What is known of it, and what its profile was told; `None` while nothing is.
    is_high: Option<bool>,
    told: Option<bool>,
    /// It ended just now: until then its level is that of the run that ended.
    quiet_until: Option<Stamp>,
}

/// Takes stock after a round.
pub async fn look(
    ctx: &Context,
    memory: &mut Memory,
    recorder: &Recorder,
    observed: &[Observed],
    done: &[Done],
    now: &Now,
) {
    let until = now.later() + PATIENCE;
    follow(memory, observed, now.stamp);
    raise(ctx, memory, now, until).await;
    acted(ctx, memory, observed, done, now).await;
    ends(ctx, memory, observed, now, until).await;
    peak::write(ctx, memory, now, until).await;
    misfit::warn(ctx, memory, recorder, observed, now, until).await;
}

/// Notes who is governed, at which level and peak.
fn follow(memory: &mut Memory, observed: &[Observed], now: Stamp) {
    let knowledge = &mut memory.truth;
    for one in observed {
        let Ok(policy) = &one.policy else { continue };
        let workloads: HashMap<&PodUid, &Workload> =
            one.views.iter().map(|view| (&view.pod.uid, &view.workload)).collect();
        for (observation, level) in &one.containers {
            let Some(workload) = workloads.get(&observation.pod.uid) else { continue };
            let key = (observation.pod.uid.clone(), observation.container.clone());
            let known = knowledge.governed.entry(key).or_insert_with(|| Governed {
                policy: one.key.clone(),
                workload: (*workload).clone(),
                namespace: observation.pod.namespace.clone(),
                horizon: policy.prediction.horizon,
                seen: now,
                is_high: None,
                told: None,
                quiet_until: None,
            });
            (known.seen, known.horizon) = (now, policy.prediction.horizon);
            known.policy.clone_from(&one.key);
            known.workload.clone_from(workload);
            if *level != Level::Unknown && known.quiet_until.is_none_or(|until| now >= until) {
                known.is_high = Some(*level == Level::High);
            }
            peak::follow(&mut knowledge.windows, observation, workload, now);
        }
    }
    knowledge.governed.retain(|_, governed| now.since(governed.seen) < NEWS);
    peak::forget(&mut knowledge.windows, now);
}

/// Writes down where a warning began or cleared: it must outlive this process.
async fn raise(ctx: &Context, memory: &mut Memory, now: &Now, until: Stamp) {
    // That nothing is known to be wrong is no news. What an earlier leader raised and nobody raises again, the sweep clears.
    let is_due =
        |governed: &Governed| governed.is_high.is_some_and(|is_high| is_high != governed.told.unwrap_or(false));
    if now.later() >= until {
        return;
    }
    // What concerns one workload is one write: two at once would meet in its profile.
    let mut due = BTreeMap::<(&str, &WorkloadUid), Raise>::new();
    for ((pod, container), governed) in memory.truth.governed.iter().filter(|(_, governed)| is_due(governed)) {
        let place = (governed.namespace.as_str(), &governed.workload.uid);
        if due.len() >= WRITES && !due.contains_key(&place) {
            continue;
        }
        let is_high = governed.is_high == Some(true);
        let what = if is_high { What::Raised(governed.horizon) } else { What::Cleared };
        let fresh = || Raise {
            namespace: governed.namespace.clone(),
            workload: governed.workload.clone(),
            events: Vec::new(),
            told: Vec::new(),
        };
        let raise = due.entry(place).or_insert_with(fresh);
        raise.told.push(((pod.clone(), container.clone()), is_high));
        raise.events.push(Event { pod: pod.to_string(), container: container.clone(), at: now.stamp, what });
    }
    let due: Vec<Raise> = due.into_values().collect();
    let writes: Vec<_> = due.iter().map(|raise| score(ctx, &raise.namespace, &raise.workload, &raise.events)).collect();
    let written = all(AT_ONCE, writes).await;
    for (raise, _) in due.into_iter().zip(written).filter(|(_, is_written)| *is_written) {
        for (key, is_high) in raise.told {
            if let Some(known) = memory.truth.governed.get_mut(&key) {
                known.told = Some(is_high);
            }
        }
    }
}

/// Warnings of one workload that begin or clear.
struct Raise {
    namespace: String,
    workload: Workload,
    events: Vec<Event>,
    told: Vec<((PodUid, String), bool)>,
}

/// Puts events into the workload's profile, and counts what they decide. False where it has to be tried again.
async fn score(ctx: &Context, namespace: &str, workload: &Workload, events: &[Event]) -> bool {
    let pass = |status: &mut _| {
        let judged: Vec<_> = events.iter().filter_map(|event| profile::pass(status, event)).collect();
        (!judged.is_empty()).then(|| judged.concat())
    };
    match profile::update(&ctx.act, namespace, workload, pass).await {
        Ok(judged) => {
            ctx.metrics.judged(&judged.unwrap_or_default());
            true
        }
        Err(error) => {
            ctx.metrics.failed("truth", error.kind());
            warn!(error = &error as &dyn std::error::Error, "warning not noted in its profile, trying again");
            false
        }
    }
}

/// What we did tells a warning that was averted from a false one.
async fn acted(ctx: &Context, memory: &mut Memory, observed: &[Observed], done: &[Done], now: &Now) {
    for done in done.iter().filter(|done| !done.intent.dry_run && done.outcome.is_done()) {
        let workload = Workload::from(&done.intent.workload);
        let of_all = match &done.intent.action {
            Action::Evict | Action::SuspendToHost => false,
            // It changes what every pod of the workload goes through.
            Action::SuspendWorkload { .. } | Action::Scale { .. } => true,
            // These take no memory away from anybody.
            Action::RequestCheckpoint { .. } | Action::WithdrawCheckpoint { .. } | Action::ResumeWorkload => continue,
        };
        let own = Some(&done.intent.pod_uid).filter(|_| !of_all);
        averted(ctx, &done.intent.namespace, &workload, own, now).await;
    }
    // A limit that holds keeps a container out of the memory of its neighbours: it is their OOM that does not come.
    let views = || observed.iter().flat_map(|one| &one.views);
    let limited = |view: &View| {
        let is_beside = |other: &View| other.pod.node == view.pod.node && other.device == view.device;
        let holds = |other: &View| matches!(other.limit, LimitState::Holds { .. }) && other.pod.uid != view.pod.uid;
        views().any(|other| is_beside(other) && holds(other))
    };
    let due = views().filter(|view| view.level == Level::High && limited(view));
    let due: Vec<&View> = due.filter(|view| !memory.truth.spared.contains(&view.pod.uid)).take(WRITES).collect();
    for view in due {
        if averted(ctx, &view.pod.namespace, &view.workload, Some(&view.pod.uid), now).await {
            memory.truth.spared.insert(view.pod.uid.clone());
        }
    }
    memory.truth.spared.retain(|uid| views().any(|view| view.pod.uid == *uid && view.level == Level::High));
}

/// Marks the open warnings of a workload's pod, or of all its pods, as acted on. False where it has to be tried again.
async fn averted(ctx: &Context, namespace: &str, workload: &Workload, own: Option<&PodUid>, now: &Now) -> bool {
    let mark = |status: &mut _| {
        let pods: BTreeSet<String> = profile::open_alarms(status).into_iter().map(|alarm| alarm.pod).collect();
        let meant = pods.into_iter().filter(|pod| own.is_none_or(|own| own.as_str() == pod));
        let event = |pod| Event { pod, container: String::new(), at: now.stamp, what: What::Acted };
        let judged: Vec<_> = meant.filter_map(|pod| profile::pass(status, &event(pod))).collect();
        (!judged.is_empty()).then(|| judged.concat())
    };
    match profile::update(&ctx.act, namespace, workload, mark).await {
        Ok(judged) => {
            ctx.metrics.judged(&judged.unwrap_or_default());
            true
        }
        Err(error) => {
            ctx.metrics.failed("truth", error.kind());
            warn!(error = &error as &dyn std::error::Error, "an averted warning is not noted in its profile");
            false
        }
    }
}

/// Settles the ends that are new.
async fn ends(ctx: &Context, memory: &mut Memory, observed: &[Observed], now: &Now, until: Stamp) {
    let is_due = |ended: &Ended| {
        let key = ended.key();
        let waits = memory.truth.waiting.get(&key).is_some_and(|(_, last)| now.stamp.since(*last) < RETRY);
        !memory.truth.settled.contains(&key) && !waits
    };
    let mut due = ctx.fleet().ended(is_due);
    due.sort_by(|one, other| one.end.finished_at.cmp(&other.end.finished_at));
    for ended in due.into_iter().take(WRITES) {
        if now.later() >= until {
            break;
        }
        let key = ended.key();
        let first = memory.truth.waiting.get(&key).map_or(now.stamp, |(first, _)| *first);
        let is_last = now.stamp.since(first) >= GIVE_UP;
        if settle(ctx, memory, observed, &ended, is_last, now).await || is_last {
            memory.truth.waiting.remove(&key);
            let (pod, container, _) = &key;
            if let Some(governed) = memory.truth.governed.get_mut(&(pod.clone(), container.clone())) {
                (governed.is_high, governed.told) = (None, None);
                governed.quiet_until = Some(now.stamp + QUIET);
            }
            memory.truth.settled.insert(key);
        } else {
            memory.truth.waiting.insert(key, (first, now.stamp));
        }
    }
    if memory.truth.settled.len() > 2 * 4096 {
        // The fleet holds half as many: what it still tells is settled again, and known to the profiles.
        memory.truth.settled.clear();
    }
}

/// Settles one end; false where it has to be tried again.
async fn settle(
    ctx: &Context,
    memory: &mut Memory,
    observed: &[Observed],
    ended: &Ended,
    is_last: bool,
    now: &Now,
) -> bool {
    let policy = governed::by(ctx, memory, observed, &ended.pod, now).await;
    let key = (ended.pod.uid.clone(), ended.end.container.clone());
    let governed = memory.truth.governed.get(&key).filter(|_| policy.is_some()).cloned();
    let at = parse_rfc3339(&ended.end.finished_at).unwrap_or(now.stamp).min(now.stamp);
    // An agent's word alone writes nothing into anybody's namespace. Of a pod that is gone the warning is still judged.
    let confirmed = memory.confirmed(ctx, now, &ended.node, &ended.pod, RETRY).await;
    if let Err(why) = &confirmed {
        let is_gone = matches!(why, Hold::PodUnverified { .. });
        if !is_gone {
            return false;
        }
        if let Some(governed) = governed {
            let event = event_of(ended, at, death::ended_by_itself(ended));
            return score(ctx, &governed.namespace, &governed.workload, &[event]).await;
        }
        info!(pod = ended.pod.name, container = ended.end.container, %why, "end of a container not confirmed by the API");
        return is_last;
    }
    let Some(policy) = policy else {
        governed::only_count(ctx, ended, at, now).await;
        return true;
    };
    let workload = match &governed {
        Some(governed) => governed.workload.clone(),
        None => match workload_of(ctx, memory, &ended.pod, is_last, now).await {
            Some(workload) => workload,
            None => return false,
        },
    };
    let is_news = now.stamp.since(at) < NEWS;
    let whom = Whom { pod: &ended.pod, node: &ended.node, workload: &workload, policy: Some(&*policy) };
    if let Some((lesson, learned)) = death::known(ctx, &ended.pod, &workload, &ended.end, now.stamp).await {
        // Whoever counted it may have died before it told anybody.
        if is_news {
            event::out_of_memory(ctx, &whom, &lesson, &learned).await;
        }
        return true;
    }
    let found = death::of(ctx, ended).await;
    if let Some(why) = found.unread {
        ctx.metrics.failed("truth", why);
    }
    match &found.death {
        Death::GpuOom(report) => {
            let declared = ctx.fleet().declared(&ended.pod.uid);
            let lesson = Lesson {
                record: death::record(ended, report),
                advice: death::advice(report, ended, declared.as_deref(), &policy),
                is_scored: governed.is_some(),
            };
            let change = |status: &mut _| profile::learn(status, &lesson, now.stamp);
            match profile::update(&ctx.act, &ended.pod.namespace, &workload, change).await {
                Ok(None) => true,
                Ok(Some(learned)) => {
                    ctx.metrics.judged(&learned.judged);
                    if is_news {
                        ctx.metrics.oom(
                            &ended.pod.uid,
                            &ended.pod.namespace,
                            &ended.pod.name,
                            &ended.end.container,
                            now.instant,
                        );
                        event::out_of_memory(ctx, &whom, &lesson, &learned).await;
                    }
                    info!(
                        namespace = ended.pod.namespace,
                        pod = ended.pod.name,
                        container = ended.end.container,
                        shape = report.shape,
                        "GPU out-of-memory recorded"
                    );
                    true
                }
                Err(error) => {
                    ctx.metrics.failed("truth", error.kind());
                    warn!(error = &error as &dyn std::error::Error, "out-of-memory not recorded, trying again");
                    false
                }
            }
        }
        Death::HostOomKilled | Death::Other => {
            if found.death == Death::HostOomKilled && is_news {
                event::host_out_of_memory(ctx, &whom, &ended.end).await;
            }
            let what = if found.death == Death::HostOomKilled { What::Died } else { death::ended_by_itself(ended) };
            score(ctx, &ended.pod.namespace, &workload, &[event_of(ended, at, what)]).await
        }
    }
}

fn event_of(ended: &Ended, at: Stamp, what: What) -> Event {
    Event { pod: ended.pod.uid.to_string(), container: ended.end.container.clone(), at, what }
}

/// The workload that a pod belongs to: its top owner, or the pod itself. `None` while the owners cannot be read.
async fn workload_of(
    ctx: &Context,
    memory: &mut Memory,
    pod: &PodReport,
    is_last: bool,
    now: &Now,
) -> Option<Workload> {
    let chain = memory.chain(ctx, now, pod).await;
    if chain.is_provisional() && !is_last {
        return None;
    }
    Some(chain.top().cloned().unwrap_or_else(|| super::observe::pod_as_workload(pod)))
}

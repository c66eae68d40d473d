//! What one container died of: from its exit state, its termination message, and where the chart allows it the last lines of
//! its log.

use std::time::Duration;

use gpumem_engine::decision::Workload;
use gpumem_engine::estimate::advice::sentence;
use gpumem_engine::oom::{self, Death, Kind, Numbers, OomReport};
use gpumem_engine::pacing::Stamp;
use gpumem_engine::quantity::Bytes;
use gpumem_engine::score::What;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;
use tracing::{debug, warn};

use crate::api::policy::GpuMemoryPolicy;
use crate::api::profile::{MAX_ADVICE, OomRecord};
use crate::api::usage::{EndReport, PodReport};
use crate::controller::context::Context;
use crate::controller::fleet::Ended;
use crate::controller::fleet::declared::Declaration;
use crate::controller::profile::{self, Learned, Lesson};

/// A log that takes longer is left unread.
const DEADLINE: Duration = Duration::from_secs(5);
/// Lines of a log's end that are read.
const LINES: i64 = 200;
/// A device filled to this share was full, as far as a vague message needs a second source.
const FULL: f64 = 0.9;

/// What a container died of, and why its log was not read where it should have been.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// What it died of.
    pub death: Death,
    /// A closed set: `logs_forbidden`, `logs_gone`, `logs_deadline`, `logs_failed`.
    pub unread: Option<&'static str>,
}

/// What a container died of.
pub async fn of(ctx: &Context, ended: &Ended) -> Found {
    let end = &ended.end;
    let by_message = judge(ended, Some(&end.message).filter(|message| !message.is_empty()).map(String::as_str));
    let is_settled = by_message != Death::Other || end.exit_code == 0;
    if is_settled {
        return Found { death: by_message, unread: None };
    }
    if !ctx.read_pod_logs {
        return Found { death: by_hook(ended, by_message), unread: None };
    }
    match read_log(ctx, &ended.pod, end).await {
        Ok(tail) => Found { death: by_hook(ended, judge(ended, Some(&tail))), unread: None },
        Err(why) => Found { death: by_hook(ended, by_message), unread: Some(why) },
    }
}

/// Where no text tells what it died of, the hook's count may: its allocator refused memory just before, on a device that was
/// full. A signal is no answer to that: somebody else stopped it.
fn by_hook(ended: &Ended, by_text: Death) -> Death {
    let is_stopped = !matches!(ended_by_itself(ended), What::Died);
    match (by_text, ended.refused) {
        (Death::Other, Some(count)) if !is_stopped && was_full(ended) => Death::GpuOom(OomReport {
            kind: Kind::Probable,
            framework: "unknown framework",
            shape: "HookCounted",
            is_fatal: true,
            numbers: Numbers::default(),
            evidence: format!(
                "nothing; but gpumem's hook in it counted {count} refused allocation(s), the last within a minute of the end, \
                 and {} was full",
                if ended.limit.is_some() { "the growth limit that held it" } else { "the device" }
            ),
        }),
        (death, _) => death,
    }
}

/// A vague message counts only where the device was full as well.
fn judge(ended: &Ended, tail: Option<&str>) -> Death {
    let reason = Some(ended.end.reason.as_str()).filter(|reason| !reason.is_empty());
    let death = oom::from_exit(ended.end.exit_code, reason, tail);
    match &death {
        Death::GpuOom(report) if report.kind == Kind::Probable && !was_full(ended) => Death::Other,
        Death::GpuOom(_) | Death::HostOomKilled | Death::Other => death,
    }
}

/// The device, or what a growth limit left of it.
fn was_full(ended: &Ended) -> bool {
    let most = ended.limit.into_iter().chain(ended.capacity).min();
    ended.peak.zip(most).is_some_and(|(peak, most)| peak.as_f64() >= FULL * most.as_f64())
}

/// The growth limit that an OOM ran into: what it asked for in vain did not fit in it, or it was as good as reached.
pub fn limit(ended: &Ended, report: &OomReport) -> Option<Bytes> {
    // What a framework was told to keep to is its own.
    let limit = ended.limit.filter(|_| report.kind != Kind::SelfImposedLimit)?;
    let peak = ended.peak?;
    let wanted = peak + report.numbers.requested.unwrap_or(Bytes::ZERO);
    (wanted > limit || peak.as_f64() >= FULL * limit.as_f64()).then_some(limit)
}

/// The last lines of the run that ended. Read once: what is gone by then is gone.
async fn read_log(ctx: &Context, pod: &PodReport, end: &EndReport) -> Result<String, &'static str> {
    let pods: Api<Pod> = Api::namespaced(ctx.read.clone(), &pod.namespace);
    let params = LogParams {
        container: Some(end.container.clone()),
        previous: !end.is_current,
        tail_lines: Some(LINES),
        limit_bytes: Some(oom::MAX_TAIL_BYTES as i64),
        ..LogParams::default()
    };
    match tokio::time::timeout(DEADLINE, pods.logs(&pod.name, &params)).await {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
            warn!(namespace = pod.namespace, pod = pod.name, "log not read: the operator lacks get on pods/log");
            Err("logs_forbidden")
        }
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 400 | 404) => {
            debug!(namespace = pod.namespace, pod = pod.name, "log is gone");
            Err("logs_gone")
        }
        Ok(Err(error)) => {
            warn!(namespace = pod.namespace, pod = pod.name, %error, "log not read");
            Err("logs_failed")
        }
        Err(_) => Err("logs_deadline"),
    }
}

/// What an earlier process learned from this end, where it did: then its log is not read again.
pub async fn known(
    ctx: &Context,
    pod: &PodReport,
    workload: &Workload,
    end: &EndReport,
    now: Stamp,
) -> Option<(Lesson, Learned)> {
    let is_it = |record: &OomRecord| {
        record.pod_uid == pod.uid.as_str() && record.container == end.container && record.time == end.finished_at
    };
    let (record, status) = profile::knows(&ctx.read, &pod.namespace, workload, is_it).await?;
    // What the profile says beside its OOMs it says of the newest.
    let is_newest = status.ooms.first() == Some(&record);
    let learned = Learned {
        judged: Vec::new(),
        restart_loop: profile::loop_of(&status, now).filter(|_| is_newest),
        count: status.oom_count,
    };
    let advice = if is_newest { status.advice } else { Vec::new() };
    Some((Lesson { record, advice, is_scored: false }, learned))
}

/// What an end that was no OOM means for a warning.
pub fn ended_by_itself(ended: &Ended) -> What {
    const SIGKILL: i32 = 128 + 9;
    const SIGTERM: i32 = 128 + 15;
    match ended.end.exit_code {
        // A server that exits well on SIGTERM was stopped all the same.
        _ if ended.pod.terminating => What::Stopped,
        0 => What::Completed,
        SIGKILL | SIGTERM => What::Stopped,
        _ => What::Died,
    }
}

/// As the profile keeps it.
pub fn record(ended: &Ended, report: &OomReport) -> OomRecord {
    let signed = |bytes: Bytes| i64::try_from(bytes.0).unwrap_or(i64::MAX);
    let numbers = &report.numbers;
    // Where nobody saw the container, its own words stand in.
    let peak = ended.peak.filter(|peak| *peak > Bytes::ZERO).or(numbers.reserved).or(numbers.allocated);
    OomRecord {
        time: ended.end.finished_at.clone(),
        pod: ended.pod.name.clone(),
        pod_uid: ended.pod.uid.to_string(),
        container: ended.end.container.clone(),
        peak_bytes: peak.map(signed),
        capacity_bytes: ended.capacity.or(numbers.capacity).map(signed),
        requested_bytes: numbers.requested.map(signed),
        limit_bytes: limit(ended, report).map(signed),
        framework: report.framework.to_owned(),
        shape: report.shape.to_owned(),
        kind: format!("{:?}", report.kind),
        evidence: report.evidence.clone(),
    }
}

/// What to change: with the expected new peak where the pod declared its job, else what the message itself suggests.
pub fn advice(
    report: &OomReport,
    ended: &Ended,
    declared: Option<&Declaration>,
    policy: &GpuMemoryPolicy,
) -> Vec<String> {
    let mut lines: Vec<String> = oom::advice(report).into_iter().map(str::to_owned).collect();
    let computed = declared.and_then(|declaration| declaration.read.as_ref().ok()).zip(ended.capacity);
    if let Some((declared, usable)) = computed {
        let remedies = declared.remedies(usable);
        let sentences = remedies.iter().take(MAX_ADVICE).map(|remedy| sentence(remedy, Some(report.framework)));
        let sentences: Vec<String> = sentences.collect();
        if !sentences.is_empty() {
            lines = sentences;
        }
    }
    if limit(ended, report).is_some() {
        // A smaller batch helps too, but the device may have room.
        let name = policy.metadata.name.as_deref().unwrap_or_default();
        lines.insert(0, format!("Raise growthLimit.ceiling of policy {name} if it needs more, or mend its growth."));
    }
    lines.truncate(MAX_ADVICE);
    lines
}

//! What a profile learns: OOMs, warnings and peaks between the records of the API and the engine's types. Pure; each function
//! changes a status, or leaves it alone and says so.

use std::time::Duration;

use gpumem_engine::attempts::{Loop, Oom, recommend, restart_loop};
use gpumem_engine::pacing::Stamp;
use gpumem_engine::peaks::Peaks;
use gpumem_engine::quantity::Bytes;
use gpumem_engine::score::{self, Alarm, Event, Judged, What};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::api::profile::{
    GpuMemoryProfileStatus, MAX_ADVICE, MAX_OOMS, MAX_PEAKS, OomRecord, PeakRecord, RESTART_LOOP, Recommendation,
    WarningRecord,
};
use crate::controller::now::{parse_rfc3339, rfc3339};
use crate::text::shorten;

/// An OOM to remember.
#[derive(Clone, Debug)]
pub struct Lesson {
    /// What is known of it.
    pub record: OomRecord,
    /// What to change, the first to try first.
    pub advice: Vec<String>,
    /// Whether warnings about this container are judged at all: a policy governs it, or did.
    pub is_scored: bool,
}

/// What an OOM taught.
#[derive(Clone, Debug, PartialEq)]
pub struct Learned {
    /// Judgements that follow from it.
    pub judged: Vec<Judged>,
    /// The loop it belongs to.
    pub restart_loop: Option<Loop>,
    /// OOMs of the workload so far, this one included.
    pub count: i64,
}

/// Adds an OOM and what follows from it; `None` where it is known already, whoever counted it.
pub fn learn(status: &mut GpuMemoryProfileStatus, lesson: &Lesson, now: Stamp) -> Option<Learned> {
    let record = &lesson.record;
    let is_same = |known: &OomRecord| {
        known.pod_uid == record.pod_uid && known.container == record.container && known.time == record.time
    };
    let at = stamp(&record.time, now);
    // Of what fell off the end of a full list nobody can say any more that it was not counted.
    let is_lost = status.ooms.len() >= MAX_OOMS && status.ooms.last().is_some_and(|last| at <= stamp(&last.time, now));
    if status.ooms.iter().any(is_same) || is_lost {
        return None;
    }
    status.ooms.push(record.clone());
    status.ooms.sort_by_key(|known| std::cmp::Reverse(stamp(&known.time, now)));
    status.ooms.truncate(MAX_OOMS);
    status.oom_count = status.oom_count.saturating_add(1);
    let has_alarm = status
        .warnings
        .iter()
        .any(|warning| warning.pod_uid == record.pod_uid && warning.container == record.container);
    let judged = if lesson.is_scored || has_alarm {
        let (pod, container) = (record.pod_uid.clone(), record.container.clone());
        judge(status, &Event { pod, container, at, what: What::OutOfMemory }).unwrap_or_default()
    } else {
        Vec::new()
    };
    if let Some(peak) = record.peak_bytes {
        raise(status, &record.container, at, bytes(peak));
    }
    status.advice = lesson.advice.iter().take(MAX_ADVICE).map(|line| shorten(line, 300)).collect();
    let restart_loop = loop_of(status, now);
    let limit = status.ooms.first().and_then(|newest| newest.limit_bytes).map(bytes);
    set_loop(status, restart_loop.as_ref(), limit, now);
    set_recommendation(status, now);
    Some(Learned { judged, restart_loop, count: status.oom_count })
}

/// The loop that the workload's newest OOM belongs to. For whoever decides: an eviction meets the same end.
pub fn loop_of(status: &GpuMemoryProfileStatus, now: Stamp) -> Option<Loop> {
    restart_loop(&ooms(status, now), now)
}

/// Takes an event that is no OOM; `None` where it changes nothing.
pub fn pass(status: &mut GpuMemoryProfileStatus, event: &Event) -> Option<Vec<Judged>> {
    judge(status, event)
}

/// Warnings that are not judged yet.
pub fn open_alarms(status: &GpuMemoryProfileStatus) -> Vec<Alarm> {
    let alarm = |warning: &WarningRecord| {
        Some(Alarm {
            pod: warning.pod_uid.clone(),
            container: warning.container.clone(),
            // One that cannot be read cannot be judged.
            since: parse_rfc3339(&warning.since)?,
            horizon: Duration::from_secs(u64::try_from(warning.horizon_seconds).ok()?),
            cleared: warning.cleared_time.as_deref().and_then(parse_rfc3339),
            acted: warning.acted,
        })
    };
    status.warnings.iter().filter_map(alarm).collect()
}

fn judge(status: &mut GpuMemoryProfileStatus, event: &Event) -> Option<Vec<Judged>> {
    let before = open_alarms(status);
    let mut alarms = before.clone();
    let judged = score::take(&mut alarms, event);
    if alarms == before && judged.is_empty() && alarms.len() == status.warnings.len() {
        return None;
    }
    status.warnings = alarms
        .into_iter()
        .map(|alarm| WarningRecord {
            pod_uid: alarm.pod,
            container: alarm.container,
            since: rfc3339(alarm.since),
            horizon_seconds: i64::try_from(alarm.horizon.as_secs()).unwrap_or(i64::MAX),
            cleared_time: alarm.cleared.map(rfc3339),
            acted: alarm.acted,
        })
        .collect();
    for one in &judged {
        let count = status.judged.entry(one.outcome.name().to_owned()).or_default();
        *count = count.saturating_add(1);
    }
    Some(judged)
}

/// Highest memory of one container over all pods of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// In this window.
    pub highest: Bytes,
    /// Since the containers started.
    pub ever: Bytes,
    /// Whether the window is over.
    pub is_over: bool,
}

/// A container's window, by its name.
pub type Seen<'a> = (&'a str, Window);

/// Takes the windows of a workload's containers; `None` where nothing is new.
pub fn peak(status: &mut GpuMemoryProfileStatus, seen: &[Seen<'_>], now: Stamp) -> Option<()> {
    let mut is_new = false;
    for (container, window) in seen {
        is_new |= raise(status, container, now, window.ever);
        if window.is_over {
            is_new = true;
            edit(status, container, |peaks| peaks.add(now, window.highest));
        }
    }
    if is_new {
        set_recommendation(status, now);
    }
    is_new.then_some(())
}

/// A record by less than this share is none worth writing.
const NEWS: f64 = 0.02;

fn raise(status: &mut GpuMemoryProfileStatus, container: &str, at: Stamp, level: Bytes) -> bool {
    let known = status.peaks.iter().find(|record| record.container == container).map_or(0, |record| record.max_bytes);
    let is_new = level.as_f64() > bytes(known).as_f64() * (1.0 + NEWS);
    if is_new {
        edit(status, container, |peaks| peaks.raise(at, level));
    }
    is_new
}

fn edit(status: &mut GpuMemoryProfileStatus, container: &str, change: impl FnOnce(&mut Peaks)) {
    let place = status.peaks.iter().position(|record| record.container == container);
    let mut peaks = place.and_then(|place| status.peaks.get(place)).map(read).unwrap_or_default();
    change(&mut peaks);
    let record = written(container, &peaks);
    if let Some(known) = place.and_then(|place| status.peaks.get_mut(place)) {
        *known = record;
    } else if status.peaks.len() < MAX_PEAKS {
        status.peaks.push(record);
    }
    status.peak_bytes = status.peaks.iter().map(|record| record.max_bytes).max();
}

fn read(record: &PeakRecord) -> Peaks {
    let weights =
        record.weights.iter().filter_map(|(bucket, weight)| Some((bucket.parse().ok()?, *weight as f64 / 1000.0)));
    let time = |text: &str| parse_rfc3339(text).unwrap_or_default();
    Peaks::from_parts(weights, time(&record.reference_time), bytes(record.max_bytes), time(&record.max_time))
}

fn written(container: &str, peaks: &Peaks) -> PeakRecord {
    let (max, max_at) = peaks.max();
    let weights = peaks.weights().map(|(bucket, weight)| (bucket.to_string(), (weight * 1000.0).round() as i64));
    PeakRecord {
        container: container.to_owned(),
        p50_bytes: peaks.percentile(0.5).map(signed),
        p95_bytes: peaks.percentile(0.95).map(signed),
        max_bytes: signed(max),
        max_time: rfc3339(max_at),
        reference_time: rfc3339(peaks.reference()),
        weights: weights.filter(|(_, weight)| *weight > 0).collect(),
    }
}

/// `limit` is the growth limit that its newest OOM ran into.
fn set_loop(status: &mut GpuMemoryProfileStatus, found: Option<&Loop>, limit: Option<Bytes>, now: Stamp) {
    let way_out = match limit {
        Some(limit) => {
            format!(
                "It was held to {limit} by a growth limit: raise growthLimit.ceiling of its policy, or change the job"
            )
        }
        None => "Change the job (see advice) or give it a larger device".to_owned(),
    };
    let (value, reason, message) = match found {
        Some(Loop { container, count, peak, since }) => (
            "True",
            "SamePeak",
            format!(
                "container {container} ran out of GPU memory {count} times at about {peak} since {}: a restart or an \
                 eviction meets the same end. {way_out}",
                rfc3339(*since)
            ),
        ),
        None => ("False", "NoPattern", "its OOMs are few, or at different peaks".to_owned()),
    };
    let same = status.conditions.iter().find(|known| known.type_ == RESTART_LOOP && known.status == value);
    let time = jiff::Timestamp::from_second(now.0).unwrap_or_default();
    let condition = Condition {
        type_: RESTART_LOOP.to_owned(),
        status: value.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: None,
        last_transition_time: same.map_or(Time(time), |known| known.last_transition_time.clone()),
    };
    status.conditions.retain(|known| known.type_ != RESTART_LOOP);
    status.conditions.push(condition);
}

/// The size for the container that needs most.
fn set_recommendation(status: &mut GpuMemoryProfileStatus, now: Stamp) {
    // What ran into a growth limit tells where that was, and nothing of what the job needs.
    let own = GpuMemoryProfileStatus {
        ooms: status.ooms.iter().filter(|record| record.limit_bytes.is_none()).cloned().collect(),
        ..GpuMemoryProfileStatus::default()
    };
    let ooms = ooms(&own, now);
    let sizes = status.peaks.iter().filter_map(|record| {
        let size = recommend(&record.container, &read(record), &ooms)?;
        Some((
            size.bytes,
            Recommendation { container: record.container.clone(), bytes: signed(size.bytes), basis: size.basis },
        ))
    });
    status.recommendation = sizes.max_by_key(|(bytes, _)| *bytes).map(|(_, size)| size);
}

fn ooms(status: &GpuMemoryProfileStatus, now: Stamp) -> Vec<Oom> {
    let oom = |record: &OomRecord| Oom {
        at: stamp(&record.time, now),
        container: record.container.clone(),
        peak: record.peak_bytes.map(bytes),
        requested: record.requested_bytes.map(bytes),
    };
    status.ooms.iter().map(oom).collect()
}

/// A node's clock may be ahead of ours: nothing happened later than now.
fn stamp(text: &str, now: Stamp) -> Stamp {
    parse_rfc3339(text).unwrap_or(now).min(now)
}

fn bytes(signed: i64) -> Bytes {
    Bytes(u64::try_from(signed).unwrap_or(0))
}

fn signed(bytes: Bytes) -> i64 {
    i64::try_from(bytes.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use gpumem_engine::score::Outcome;
    use proptest::prelude::*;

    use super::*;

    fn lesson(pod: &str, at: i64, gib: u64) -> Lesson {
        let record = OomRecord {
            time: rfc3339(Stamp(at)),
            pod: pod.into(),
            pod_uid: pod.into(),
            container: "main".into(),
            peak_bytes: Some(signed(Bytes::gib(gib))),
            framework: "PyTorch".into(),
            ..OomRecord::default()
        };
        Lesson { record, advice: vec!["Lower the batch size.".into()], is_scored: true }
    }

    #[test]
    fn an_oom_is_learned_once_however_often_it_is_told() {
        let mut status = GpuMemoryProfileStatus::default();
        let learned = learn(&mut status, &lesson("a", 1000, 40), Stamp(1010)).expect("new");
        assert_eq!((learned.count, learned.judged[0].outcome), (1, Outcome::Missed));
        let before = status.clone();
        assert_eq!(learn(&mut status, &lesson("a", 1000, 40), Stamp(9000)), None);
        assert_eq!(status, before);
    }

    #[test]
    fn what_fell_off_the_list_is_not_counted_again() {
        let mut status = GpuMemoryProfileStatus::default();
        for n in 0..30 {
            learn(&mut status, &lesson("a", 1000 + n, 40), Stamp(5000)).expect("new");
        }
        assert_eq!((status.ooms.len(), status.oom_count), (MAX_OOMS, 30));
        assert_eq!(learn(&mut status, &lesson("a", 1003, 40), Stamp(5000)), None);
    }

    proptest! {
        #[test]
        fn ends_told_in_any_order_and_any_number_of_times_count_once_each(
            told in proptest::collection::vec((0_u8..4, 0_i64..12), 0..200)
        ) {
            let (mut status, mut distinct, mut counted) = (GpuMemoryProfileStatus::default(), HashSet::new(), 0);
            for (pod, at) in told {
                let learned = learn(&mut status, &lesson(&format!("p{pod}"), 1000 + at, 40), Stamp(5000));
                // A full list may leave an old one out; nothing ever counts twice.
                prop_assert!(learned.is_none() || distinct.insert((pod, at)));
                counted += i64::from(learned.is_some());
                prop_assert_eq!(status.oom_count, counted);
                prop_assert!(status.ooms.len() <= MAX_OOMS);
            }
        }
    }

    #[test]
    fn the_third_oom_at_one_peak_is_told_before_the_fourth() {
        let mut status = GpuMemoryProfileStatus::default();
        for (pod, at) in [("a", 1000), ("b", 2000)] {
            assert_eq!(learn(&mut status, &lesson(pod, at, 40), Stamp(at)).unwrap().restart_loop, None);
        }
        assert_eq!(status.conditions[0].status, "False");
        let third = learn(&mut status, &lesson("c", 3000, 40), Stamp(3000)).unwrap();
        assert_eq!(third.restart_loop.map(|found| found.count), Some(3));
        assert_eq!((status.conditions.len(), status.conditions[0].status.as_str()), (1, "True"));
        assert!(status.recommendation.as_ref().unwrap().basis.starts_with("ran out of memory 3 times"));
        // It runs with more now, and dies elsewhere: no loop.
        assert_eq!(learn(&mut status, &lesson("d", 4000, 70), Stamp(4000)).unwrap().restart_loop, None);
        assert_eq!(status.conditions[0].status, "False");
    }

    #[test]
    fn a_warning_is_kept_until_it_is_judged() {
        let mut status = GpuMemoryProfileStatus::default();
        let event = |at, what| Event { pod: "a".into(), container: "main".into(), at: Stamp(at), what };
        let raised = event(1000, What::Raised(Duration::from_mins(15)));
        assert_eq!(pass(&mut status, &raised), Some(vec![]));
        assert_eq!(pass(&mut status, &raised), None, "a new leader sees it again");
        // The process that raised it is gone; another one sees the OOM.
        let text = serde_json::to_string(&status).unwrap();
        let mut status: GpuMemoryProfileStatus = serde_json::from_str(&text).unwrap();
        let learned = learn(&mut status, &lesson("a", 1600, 40), Stamp(1601)).unwrap();
        assert_eq!(learned.judged, [Judged { outcome: Outcome::Hit, lead: Some(Duration::from_mins(10)) }]);
        assert_eq!((status.warnings.len(), status.judged["Hit"]), (0, 1));
    }

    #[test]
    fn peaks_are_written_when_a_window_ends_or_a_record_falls() {
        let mut status = GpuMemoryProfileStatus::default();
        let window = |gib, is_over| Window { highest: Bytes::gib(gib), ever: Bytes::gib(gib), is_over };
        assert_eq!(peak(&mut status, &[("main", window(10, false))], Stamp(100)), Some(()), "the first is a record");
        assert_eq!(peak(&mut status, &[("main", window(10, false))], Stamp(200)), None);
        assert_eq!(peak(&mut status, &[("main", window(8, true))], Stamp(3700)), Some(()));
        let record = &status.peaks[0];
        assert_eq!((record.max_bytes, status.peak_bytes), (signed(Bytes::gib(10)), Some(signed(Bytes::gib(10)))));
        assert!(record.p50_bytes < Some(signed(Bytes::gib(9))), "{record:?}");
        assert_eq!(status.recommendation.as_ref().unwrap().container, "main");
        for n in 0..40 {
            peak(&mut status, &[(&format!("c{n}"), window(1, true))], Stamp(4000));
        }
        assert_eq!(status.peaks.len(), MAX_PEAKS);
    }
}

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gpumem_engine::forecast::{Outlook, Unknown};
use gpumem_engine::identity::{DeviceKey, PodUid};
use gpumem_engine::policy::{Budget, Policy};
use gpumem_engine::quantity::{Bytes, Moment};
use gpumem_engine::sample::{DeviceMemory, QueryFailure};
use gpumem_engine::series::{Point, RAW_POINTS, Segment, Series};
use gpumem_engine::usage::{Attribution, AttributionGap};

use super::{FORGET, Fault, Fleet, Merged, Observation};
use crate::api::node::LimitPhase;
use crate::api::usage::{
    Cursor, DeviceReport, FORMAT, LimitReport, NvmlState, PodReport, SeriesData, SeriesReport, UsageReport,
};
use crate::controller::run::default_policy;

const MIB_PER_SECOND: u64 = 20;

/// A node in virtual time: one container, growing from 10 GiB by 20 MiB a second on an 80 GiB device.
struct Agent {
    node: &'static str,
    boot: String,
    epoch: u64,
    /// Seconds on the node's clock.
    now: u64,
    series: Series,
}

fn agent(node: &'static str) -> Agent {
    Agent { node, boot: "boot-1".into(), epoch: 1, now: 5_000, series: Series::default() }
}

fn used(second: u64) -> Bytes {
    Bytes::gib(10) + Bytes::mib(MIB_PER_SECOND * (second - 5_000))
}

impl Agent {
    fn run(&mut self, seconds: u64) -> &mut Self {
        for _ in 0..seconds {
            self.now += 1;
            let point = Point { at: Moment::from_secs(self.now), used: used(self.now), allocator: None };
            self.series.push(Segment(7), point);
        }
        self
    }

    fn restart(&mut self) -> &mut Self {
        self.epoch += 1;
        self.series = Series::default();
        self
    }

    /// What `/v1/usage` answers to this cursor.
    fn report(&mut self, since: Option<Cursor>) -> UsageReport {
        let cursor = Cursor { epoch: self.epoch, seq: self.now };
        let data = match since.filter(|since| since.epoch == self.epoch && self.now - since.seq < RAW_POINTS as u64) {
            Some(since) => SeriesData::Samples {
                segment: Segment(7),
                points: self.series.points_since(Some(Moment::from_secs(since.seq))).collect(),
            },
            None => SeriesData::State(Box::new(self.series.clone())),
        };
        let pod = pod("train", "uid-train");
        UsageReport {
            format: FORMAT,
            limits: Vec::new(),
            agent_version: "0.1.0".into(),
            node: self.node.into(),
            boot_id: self.boot.clone(),
            cursor,
            now: Moment::from_secs(self.now),
            interval_ms: 1000,
            simulated: true,
            nvml: NvmlState::Up { driver: "580".into() },
            devices: vec![DeviceReport {
                device: device(),
                index: 0,
                model: "NVIDIA H100 80GB".into(),
                at: Moment::from_secs(self.now),
                memory: Some(DeviceMemory {
                    total: Bytes::gib(80),
                    used: used(self.now),
                    free: Bytes::gib(80) - used(self.now),
                    reserved: Some(Bytes::ZERO),
                }),
                unattributed: Some(Bytes::ZERO),
                attribution: Attribution::Complete,
            }],
            series: vec![SeriesReport {
                device: device(),
                pod: pod.uid.clone(),
                container: "main".into(),
                container_id: "c1".into(),
                data,
            }],
            pods: vec![pod],
            abilities: crate::api::usage::Abilities::default(),
            hooks: Vec::new(),
            waiting: Vec::new(),
        }
    }
}

fn device() -> DeviceKey {
    DeviceKey::whole("GPU-1")
}

fn pod(name: &str, uid: &str) -> PodReport {
    PodReport {
        uid: uid.into(),
        namespace: "team-a".into(),
        name: name.into(),
        labels: BTreeMap::from([("app".into(), "train".into())]),
        annotations: BTreeMap::new(),
        owner: None,
        terminating: false,
        ends: Vec::new(),
    }
}

fn policy() -> Policy {
    default_policy().unwrap()
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Pulls every five seconds for as long as the agent runs.
fn pull(fleet: &mut Fleet, agent: &mut Agent, start: Instant, seconds: u64) -> Merged {
    let mut merged = Merged::default();
    for _ in 0..seconds / 5 {
        let cursor = fleet.cursor(agent.node);
        let report = agent.run(5).report(cursor);
        merged = fleet.merge(agent.node, report, at(start, agent));
        assert_eq!(merged.faults, BTreeMap::new());
    }
    merged
}

fn at(start: Instant, agent: &Agent) -> Instant {
    start + secs(agent.now)
}

fn observe(fleet: &mut Fleet, now: Instant) -> Vec<Observation> {
    fleet.observe(now, "team-a", |_| true, &policy())
}

fn only(fleet: &mut Fleet, now: Instant) -> Observation {
    let mut seen = observe(fleet, now);
    assert_eq!(seen.len(), 1, "{seen:?}");
    seen.remove(0)
}

fn median(observation: &Observation) -> f64 {
    match observation.forecast.outlook {
        Outlook::Known { time_to_oom: Some(time), .. } => time.q50.as_secs_f64(),
        _ => panic!("{observation:?}"),
    }
}

fn why(observation: &Observation) -> Unknown {
    match observation.forecast.outlook {
        Outlook::Unknown { why } => why,
        Outlook::Known { .. } => panic!("{observation:?}"),
    }
}

#[test]
fn a_leak_pulled_every_five_seconds_is_forecast_from_all_its_samples() {
    let (mut fleet, mut agent, start) = (Fleet::default(), agent("a"), Instant::now());
    let merged = pull(&mut fleet, &mut agent, start, 900);
    assert_eq!((merged.accepted, merged.points), (true, 5));
    let seen = only(&mut fleet, at(start, &agent) + secs(2));
    assert_eq!((seen.node.as_str(), seen.container.as_str(), seen.used), ("a", "main", used(agent.now)));
    assert_eq!(seen.sample_age, secs(2));
    // 80 GiB less headroom, margin and what is used, at 20 MiB/s.
    let expected = (79.0 * 1024.0 - used(agent.now).as_mib()) / MIB_PER_SECOND as f64;
    assert!((median(&seen) / expected - 1.0).abs() < 0.15, "{} against {expected}", median(&seen));
}

#[test]
fn an_agent_restart_keeps_the_time_to_oom_within_a_fifth() {
    let (mut fleet, mut agent, start) = (Fleet::default(), agent("a"), Instant::now());
    pull(&mut fleet, &mut agent, start, 900);
    let before = median(&only(&mut fleet, at(start, &agent)));
    agent.now += 20;
    agent.restart().run(10);
    let report = agent.report(fleet.cursor("a"));
    let merged = fleet.merge("a", report, at(start, &agent));
    assert!(merged.restarted && !merged.rebooted);
    assert_eq!(merged.points, 10);
    let after = median(&only(&mut fleet, at(start, &agent))) + 30.0;
    assert!((after / before - 1.0).abs() < 0.2, "{before} became {after}");
}

#[test]
fn a_reboot_starts_anew() {
    let (mut fleet, mut agent, start) = (Fleet::default(), agent("a"), Instant::now());
    pull(&mut fleet, &mut agent, start, 900);
    let later = at(start, &agent) + secs(300);
    agent.boot = "boot-2".into();
    agent.now = 5_010;
    let merged = fleet.merge("a", agent.restart().run(5).report(None), later);
    assert!(merged.rebooted);
    assert!(matches!(why(&only(&mut fleet, later)), Unknown::TooFewSamples | Unknown::WarmingUp));
}

#[test]
fn a_controller_that_lost_sight_of_an_agent_gets_the_whole_series_and_the_gap_is_filled() {
    let (mut fleet, mut agent, start) = (Fleet::default(), agent("a"), Instant::now());
    pull(&mut fleet, &mut agent, start, 300);
    agent.run(600);
    let merged = fleet.merge("a", agent.report(fleet.cursor("a")), at(start, &agent));
    assert_eq!(merged.points, 600);
    assert_eq!(fleet.export("", at(start, &agent)).unwrap().series[0].data, SeriesData::State(Box::new(agent.series)));
}

#[test]
fn silence_ages_a_forecast_into_unknown() {
    let (mut fleet, mut agent, start) = (Fleet::default(), agent("a"), Instant::now());
    pull(&mut fleet, &mut agent, start, 900);
    let last = at(start, &agent);
    let max_age = policy().prediction.max_sample_age;
    assert!(matches!(only(&mut fleet, last + max_age).forecast.outlook, Outlook::Known { .. }));
    assert_eq!(why(&only(&mut fleet, last + max_age + secs(1))), Unknown::Stale);
}

#[test]
fn a_failed_reading_never_looks_like_a_container_that_left() {
    let (mut fleet, mut agent, start) = (Fleet::default(), agent("a"), Instant::now());
    pull(&mut fleet, &mut agent, start, 300);
    for (gap, expected) in [
        (AttributionGap::Query(QueryFailure::Hung), Unknown::NoData),
        (AttributionGap::NoProcessVisible, Unknown::SharedUnknown),
    ] {
        agent.now += 20;
        let mut report = agent.report(fleet.cursor("a"));
        report.devices[0].attribution = Attribution::Unavailable(gap);
        (report.series, report.pods) = (vec![], vec![]);
        fleet.merge("a", report, at(start, &agent));
        assert_eq!(why(&only(&mut fleet, at(start, &agent))), expected);
    }
}

#[test]
fn a_container_that_holds_nothing_is_not_observed_and_its_past_is_kept_for_a_while() {
    let (mut fleet, mut agent, start) = (Fleet::default(), agent("a"), Instant::now());
    pull(&mut fleet, &mut agent, start, 300);
    let empty = |agent: &mut Agent, seconds| {
        agent.now += seconds;
        let mut report = agent.report(None);
        (report.series, report.pods) = (vec![], vec![]);
        report
    };
    fleet.merge("a", empty(&mut agent, 5), at(start, &agent));
    assert_eq!(observe(&mut fleet, at(start, &agent)), []);
    assert_eq!(fleet.counts().series, 1);
    fleet.merge("a", empty(&mut agent, FORGET.as_secs()), at(start, &agent));
    assert_eq!(fleet.counts().series, 0);
    assert_eq!(fleet.counts().pods, 0);
}

#[test]
fn a_terminating_pod_is_dropped_with_its_last_memory() {
    let (mut fleet, mut agent, start) = (Fleet::default(), agent("a"), Instant::now());
    pull(&mut fleet, &mut agent, start, 300);
    let mut report = agent.run(5).report(fleet.cursor("a"));
    report.pods[0].terminating = true;
    fleet.merge("a", report, at(start, &agent));
    assert_eq!(observe(&mut fleet, at(start, &agent)).len(), 1);
    agent.now += 5;
    let mut report = agent.report(fleet.cursor("a"));
    (report.series, report.pods) = (vec![], vec![]);
    fleet.merge("a", report, at(start, &agent));
    assert_eq!(fleet.counts().series, 0);
}

#[test]
fn a_restarted_container_starts_a_new_segment_and_keeps_its_attempts() {
    let (mut fleet, mut agent, start) = (Fleet::default(), agent("a"), Instant::now());
    pull(&mut fleet, &mut agent, start, 600);
    let peak = used(agent.now);
    agent.restart().run(10);
    let mut report = agent.report(None);
    report.series[0].container_id = "c2".into();
    fleet.merge("a", report, at(start, &agent));
    let exported = fleet.export("", at(start, &agent)).unwrap();
    let SeriesData::State(series) = &exported.series[0].data else { panic!() };
    assert_eq!(series.samples(), 10);
    assert_eq!(series.attempts().iter().map(|attempt| attempt.peak).collect::<Vec<_>>(), [peak]);
}

#[test]
fn a_pod_claimed_by_two_nodes_is_unknown_until_the_api_has_spoken() {
    let (mut fleet, start) = (Fleet::default(), Instant::now());
    let (mut honest, mut liar) = (agent("honest"), agent("liar"));
    pull(&mut fleet, &mut honest, start, 900);
    pull(&mut fleet, &mut liar, start, 900);
    let now = at(start, &honest);
    let uid = PodUid::from("uid-train");
    assert_eq!(fleet.conflicts(), [(uid.clone(), vec!["honest".to_owned(), "liar".to_owned()])]);
    assert!(observe(&mut fleet, now).iter().all(|seen| why(seen) == Unknown::NoData));

    fleet.settle(&uid, Some("honest"));
    assert_eq!(fleet.conflicts(), []);
    let seen = only(&mut fleet, now);
    assert_eq!(seen.node, "honest");
    median(&seen);
    let merged = fleet.merge("liar", liar.run(5).report(fleet.cursor("liar")), at(start, &liar));
    assert_eq!(merged.faults, BTreeMap::from([(Fault::ForeignPod, 1)]));
}

#[test]
fn a_pod_that_only_the_wrong_node_reports_is_left_out_once_the_api_has_spoken() {
    let (mut fleet, mut liar, start) = (Fleet::default(), agent("liar"), Instant::now());
    pull(&mut fleet, &mut liar, start, 300);
    fleet.settle(&"uid-train".into(), Some("honest"));
    assert_eq!(observe(&mut fleet, at(start, &liar)), []);
}

#[test]
fn a_declared_share_is_what_a_container_may_fill() {
    let (mut fleet, mut agent, start) = (Fleet::default(), agent("a"), Instant::now());
    pull(&mut fleet, &mut agent, start, 900);
    let now = at(start, &agent);
    let whole = median(&only(&mut fleet, now));
    let declared = Policy { budget: Budget::Declared(Bytes::gib(40)), ..policy() };
    let share = median(&fleet.observe(now, "team-a", |_| true, &declared)[0]);
    assert!((whole - share - 40.0 * 1024.0 / MIB_PER_SECOND as f64).abs() < 0.1 * whole, "{whole} {share}");
    let other = Policy { containers: vec!["sidecar".into()], ..policy() };
    assert_eq!(fleet.observe(now, "team-a", |_| true, &other), []);
    assert_eq!(fleet.observe(now, "team-b", |_| true, &policy()), []);
}

#[test]
fn of_several_devices_the_worst_counts_and_an_unknown_one_is_never_hidden_by_a_safe_one() {
    let (mut fleet, mut agent, start) = (Fleet::default(), agent("a"), Instant::now());
    let flat = |report: &mut UsageReport, blind: bool| {
        let (mut other, mut series) = (report.devices[0].clone(), report.series[0].clone());
        other.device = DeviceKey::whole("GPU-0");
        series.device = other.device.clone();
        if blind {
            (other.memory, other.unattributed) = (None, None);
        }
        let level = |point: &Point| Point { used: Bytes::gib(5), ..*point };
        series.data = match &series.data {
            SeriesData::Samples { segment, points } => {
                SeriesData::Samples { segment: *segment, points: points.iter().map(level).collect() }
            }
            SeriesData::State(state) => {
                let points = state.points_since(None).map(|point| level(&point)).collect();
                SeriesData::Samples { segment: Segment(7), points }
            }
        };
        report.devices.push(other);
        report.series.push(series);
    };
    for turn in 0..600 {
        let mut report = agent.run(5).report(fleet.cursor("a"));
        flat(&mut report, turn == 599);
        fleet.merge("a", report, at(start, &agent));
    }
    let now = at(start, &agent);
    // The leak on the one device is above the clear level within this horizon: it counts, blind neighbour or not.
    let long = policy();
    let seen = fleet.observe(now, "team-a", |_| true, &long);
    assert_eq!(seen[0].device, device(), "{seen:?}");
    // Within this one it is safe on the device that is seen, and unknown on the other.
    let mut short = policy();
    short.prediction.horizon = secs(60);
    assert_eq!(why(&fleet.observe(now, "team-a", |_| true, &short)[0]), Unknown::NoCapacity);
}

#[test]
fn a_node_without_an_agent_is_forgotten_after_a_while() {
    let (mut fleet, mut agent, start) = (Fleet::default(), agent("a"), Instant::now());
    pull(&mut fleet, &mut agent, start, 300);
    let last = at(start, &agent);
    fleet.forget(last + FORGET, &["b".to_owned()].into());
    assert_eq!(fleet.counts().nodes, 1);
    fleet.forget(last + FORGET + secs(1), &["a".to_owned()].into());
    assert_eq!(fleet.counts().nodes, 1);
    fleet.forget(last + FORGET + secs(1), &["b".to_owned()].into());
    assert_eq!(fleet.counts(), super::Counts::default());
}

#[test]
fn a_peers_state_is_taken_over_and_continued_with_deltas() {
    let (mut ours, mut theirs, mut agent, start) = (Fleet::default(), Fleet::default(), agent("a"), Instant::now());
    pull(&mut theirs, &mut agent, start, 900);
    let state = theirs.export("", at(start, &agent)).unwrap();
    let json = serde_json::to_string(&state).unwrap();
    assert!(ours.adopt(serde_json::from_str(&json).unwrap(), at(start, &agent)).accepted);
    assert!(!ours.adopt(state, at(start, &agent)).accepted);
    assert_eq!(theirs.export("a", at(start, &agent)), None);
    assert_eq!(pull(&mut ours, &mut agent, start, 5).points, 5);
    let merged = pull(&mut ours, &mut agent, start, 5);
    assert_eq!(merged.points, 5);
    median(&only(&mut ours, at(start, &agent)));
}

/// Everything of the "bad input" that reaches the fleet: how it is spoilt, and what it is dropped as.
#[test]
fn garbage_is_dropped_by_kind_and_never_a_panic() {
    type Spoil = fn(&mut UsageReport);
    let whole: [(Fault, Spoil); 8] = [
        (Fault::WrongFormat, |report| report.format = 2),
        (Fault::WrongNode, |report| report.node = "b".into()),
        (Fault::BadText, |report| report.boot_id = String::new()),
        (Fault::BadText, |report| report.boot_id = "x".repeat(10_000)),
        (Fault::BadMoment, |report| report.now = Moment(u64::MAX)),
        (Fault::BadMoment, |report| report.now = Moment::from_secs(1)),
        (Fault::TooMany, |report| report.pods = vec![report.pods[0].clone(); 3_000]),
        (Fault::TooMany, |report| report.series = vec![report.series[0].clone(); 9_000]),
    ];
    let parts: [(Fault, u32, Spoil); 14] = [
        (Fault::BadText, 2, |report| drop(report.pods[0].labels.insert("k".into(), "x".repeat(10_000)))),
        (Fault::BadText, 1, |report| report.series[0].container = "x".repeat(10_000)),
        (Fault::BadText, 2, |report| report.devices[0].model = "x".repeat(10_000)),
        (Fault::BadText, 2, |report| report.pods[0].uid = PodUid::from("")),
        (Fault::BadMoment, 2, |report| report.devices[0].at = Moment(u64::MAX)),
        (Fault::BadMoment, 1, |report| spoil(report, |point| point.at = Moment(u64::MAX))),
        (Fault::Overfull, 1, |report| spoil(report, |point| point.used = Bytes::gib(81))),
        (Fault::Overfull, 1, |report| spoil(report, |point| point.used = Bytes(u64::MAX))),
        (Fault::Overfull, 1, |report| memory(report, |memory| memory.used = Bytes::gib(81))),
        (Fault::Overfull, 1, |report| memory(report, |memory| memory.total = Bytes(u64::MAX))),
        (Fault::Overfull, 1, |report| report.devices[0].unattributed = Some(Bytes::gib(79))),
        (Fault::Duplicate, 1, |report| report.devices.push(report.devices[0].clone())),
        (Fault::Duplicate, 1, |report| report.pods.push(report.pods[0].clone())),
        (Fault::Duplicate, 1, |report| report.series.push(report.series[0].clone())),
    ];
    let honest = |seconds| {
        let (mut fleet, mut agent, start) = (Fleet::default(), agent("a"), Instant::now());
        pull(&mut fleet, &mut agent, start, seconds);
        let report = agent.run(5).report(fleet.cursor("a"));
        (fleet, report, at(start, &agent))
    };
    for (fault, spoil) in whole {
        let (mut fleet, mut report, now) = honest(300);
        spoil(&mut report);
        assert_eq!(fleet.merge("a", report, now), Merged::refused(fault));
        assert_eq!(observe(&mut fleet, now).len(), 1, "{fault:?}");
    }
    for (fault, count, spoil) in parts {
        let (mut fleet, mut report, now) = honest(300);
        spoil(&mut report);
        let merged = fleet.merge("a", report, now);
        let mut expected = BTreeMap::from([(fault, 1)]);
        if count == 2 {
            // What depends on the dropped entry goes with it.
            expected.insert(Fault::Unlisted, 1);
        }
        assert!(merged.accepted);
        assert_eq!(merged.faults, expected);
        observe(&mut fleet, now);
    }
}

fn spoil(report: &mut UsageReport, how: impl Fn(&mut Point)) {
    if let SeriesData::Samples { points, .. } = &mut report.series[0].data {
        how(&mut points[0]);
    }
}

fn memory(report: &mut UsageReport, how: impl Fn(&mut DeviceMemory)) {
    how(report.devices[0].memory.as_mut().unwrap());
}

#[test]
fn a_whole_series_from_a_hostile_agent_is_judged_like_its_points() {
    let (mut agent, start) = (agent("a"), Instant::now());
    let honest = agent.run(600).report(None);
    let json = serde_json::to_value(&honest).unwrap();
    let spoilt: [(&str, serde_json::Value, Option<Fault>); 5] = [
        ("/series/0/data/State/started", u64::MAX.into(), Some(Fault::BadMoment)),
        ("/series/0/data/State/state/born", u64::MAX.into(), Some(Fault::BadMoment)),
        ("/series/0/data/State/peak", u64::MAX.into(), Some(Fault::Overfull)),
        ("/series/0/data/State/samples", u64::MAX.into(), None),
        ("/series/0/data/State/state/interval", u32::MAX.into(), None),
    ];
    for (path, value, fault) in spoilt {
        let mut json = json.clone();
        *json.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value;
        let mut fleet = Fleet::default();
        let merged = fleet.merge("a", serde_json::from_value(json).unwrap(), at(start, &agent));
        assert_eq!(merged.faults.keys().next().copied(), fault, "{path}");
        observe(&mut fleet, at(start, &agent));
        let mut report = honest.clone();
        report.cursor.seq += 5;
        fleet.merge("a", report, at(start, &agent));
        observe(&mut fleet, at(start, &agent));
    }
}

/// The same container with something declared of it, observed after a quarter of an hour.
fn declaring(text: &str) -> Observation {
    declaring_under(&policy(), text)
}

fn declaring_under(policy: &Policy, text: &str) -> Observation {
    let (mut fleet, mut agent, start) = (Fleet::default(), agent("a"), Instant::now());
    for _ in 0..180 {
        let mut report = agent.run(5).report(fleet.cursor("a"));
        report.pods[0].annotations.insert("gpumem.dev/workload".into(), text.into());
        assert_eq!(fleet.merge("a", report, at(start, &agent)).faults, BTreeMap::new());
    }
    fleet.observe(at(start, &agent), "team-a", |_| true, policy).remove(0)
}

#[test]
fn growth_ends_where_the_pod_declares_it_and_the_policy_has_the_last_word() {
    let plain = {
        let (mut fleet, mut agent, start) = (Fleet::default(), agent("a"), Instant::now());
        pull(&mut fleet, &mut agent, start, 900);
        only(&mut fleet, at(start, &agent))
    };
    assert!(matches!(plain.forecast.outlook, Outlook::Known { time_to_oom: Some(_), .. }), "{plain:?}");
    // 27 GiB are used by now; the declared job ends well below the device's 80.
    let text = "model=llama3.1-8b method=lora batch=4 seq=2048 checkpointing=full";
    let high = gpumem_engine::estimate::declared::declared(text).unwrap().end_of_growth().unwrap();
    assert!(high > Bytes::gib(28) && high < Bytes::gib(75), "{high}");
    let declared = declaring(text);
    assert!(matches!(declared.forecast.outlook, Outlook::Known { time_to_oom: None, .. }), "{declared:?}");
    assert!(declared.forecast.reason.contains("declared"), "{}", declared.forecast.reason);
    let mut own = policy();
    own.prediction.declared_peak = Some(Bytes::gib(200));
    let overruled = declaring_under(&own, text);
    assert!(matches!(overruled.forecast.outlook, Outlook::Known { time_to_oom: Some(_), .. }), "{overruled:?}");
}

#[test]
fn a_container_beyond_its_declaration_is_forecast_as_without_and_says_so() {
    let beyond = declaring("model=llama3.2-1b method=lora batch=1 seq=512");
    assert!(matches!(beyond.forecast.outlook, Outlook::Known { time_to_oom: Some(_), .. }), "{beyond:?}");
    assert!(beyond.forecast.reason.contains("exceeds what was declared"), "{}", beyond.forecast.reason);
}

#[test]
fn a_declaration_that_cannot_be_read_changes_nothing_and_names_its_key() {
    let wrong = declaring("model=llama3.1-8b batchsize=4");
    assert!(matches!(wrong.forecast.outlook, Outlook::Known { time_to_oom: Some(_), .. }), "{wrong:?}");
    let reason = &wrong.forecast.reason;
    assert!(reason.contains("annotation gpumem.dev/workload is not used: key `batchsize` is not known"), "{reason}");
}

#[test]
fn an_end_is_told_with_what_the_container_held_even_after_its_pod_is_ending() {
    use crate::api::usage::EndReport;
    let (mut fleet, mut agent, start) = (Fleet::default(), agent("a"), Instant::now());
    pull(&mut fleet, &mut agent, start, 60);
    let held = used(agent.now);
    // Its memory is gone and so is the tenant; the kubelet writes the end down only now.
    let mut gone = agent.report(fleet.cursor("a"));
    agent.now += 10;
    (gone.now, gone.cursor.seq) = (Moment::from_secs(agent.now), agent.now);
    gone.devices[0].at = gone.now;
    gone.series.clear();
    gone.pods[0].terminating = true;
    fleet.merge("a", gone.clone(), at(start, &agent));
    assert_eq!(fleet.counts().series, 0);
    assert_eq!(fleet.ended(|_| true), []);
    let end = |container: &str| EndReport {
        container: container.into(),
        container_id: "c1".into(),
        exit_code: 143,
        reason: "Error".into(),
        finished_at: "2026-11-29T10:00:00Z".into(),
        message: String::new(),
        is_current: true,
    };
    gone.pods[0].ends = vec![end("main"), end("sidecar")];
    fleet.merge("a", gone.clone(), at(start, &agent));
    let ended = fleet.ended(|_| true);
    assert_eq!(ended.len(), 1, "the sidecar never held GPU memory");
    assert_eq!((ended[0].peak, ended[0].capacity), (Some(held), Some(Bytes::gib(80))));
    // Told again it is the same end.
    fleet.merge("a", gone.clone(), at(start, &agent));
    assert_eq!(fleet.ended(|_| true).len(), 1);
    // Texts longer than any kubelet writes are not believed.
    gone.pods[0].ends[0].message = "x".repeat(10_000);
    assert_eq!(fleet.merge("a", gone, at(start, &agent)).faults, BTreeMap::from([(Fault::BadText, 1)]));
}

#[test]
fn a_container_meets_its_limit_before_the_device_is_full_and_its_forecast_stays_the_devices() {
    let (mut fleet, mut agent, start) = (Fleet::default(), agent("a"), Instant::now());
    pull(&mut fleet, &mut agent, start, 895);
    let now = at(start, &agent) + secs(5);
    let plain = only(&mut fleet, now);
    let report = |agent: &mut Agent, fleet: &Fleet, applied: Bytes, device: &str| {
        let cursor = fleet.cursor(agent.node);
        let limit = LimitReport {
            pod: "uid-train".into(),
            container_id: "c1".into(),
            device: device.into(),
            desired: Some(applied),
            applied: Some(applied),
            backend: "nvml-cgroup".into(),
            state: LimitPhase::Applied,
            reason: String::new(),
            cgroup: "a/b".into(),
        };
        UsageReport { limits: vec![limit], ..agent.run(5).report(cursor) }
    };
    let seen = |fleet: &mut Fleet, now| {
        let mut found = None;
        fleet.visit_after("", now, &policy(), |_, seen| {
            found = Some((seen.limit, seen.time_to_limit(seen.forecast.growth)));
        });
        found.unwrap()
    };
    let limit = used(agent.now + 5) + Bytes::mib(MIB_PER_SECOND * 60);
    let limited = report(&mut agent, &fleet, limit, "GPU-1");
    fleet.merge("a", limited, at(start, &agent));
    let (held, time) = seen(&mut fleet, at(start, &agent));
    assert_eq!(held, Some(limit));
    assert!((time.unwrap().as_secs_f64() / 60.0 - 1.0).abs() < 0.05, "{time:?}");
    // Nothing is decided by it: the forecast is that of the device, five seconds later.
    let with_limit = only(&mut fleet, at(start, &agent));
    assert!((median(&with_limit) / median(&plain) - 1.0).abs() < 0.02, "{with_limit:?}");

    // At its limit it is there already; a freeze and a limit on another device are none of this one.
    let limit = used(agent.now + 5);
    let limited = report(&mut agent, &fleet, limit, "GPU-1");
    fleet.merge("a", limited, at(start, &agent));
    assert_eq!(seen(&mut fleet, at(start, &agent)).1, Some(Duration::ZERO));
    for elsewhere in ["all", "GPU-2"] {
        let limited = report(&mut agent, &fleet, limit, elsewhere);
        fleet.merge("a", limited, at(start, &agent));
        assert_eq!(seen(&mut fleet, at(start, &agent)), (None, None), "{elsewhere}");
    }
}

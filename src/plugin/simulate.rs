//! `policy simulate`: what a policy would have come to over a recording or over Prometheus' history: how often it would
//! have acted, how many of those came before the memory was full, how many would have been for nothing.
//!
//! The policy is played as if it were in mode Enforce, since that is what one wants to know before one sets it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use gpumem_engine::policy::{Mode, Policy, Rung};
use gpumem_engine::quantity::Bytes;
use gpumem_engine::replay::prometheus::{self as recorded, NOBODY, Recording};
use gpumem_engine::replay::{self, Options, Row};
use serde::Serialize;
use serde_json::json;

use super::policy::{Alarm, Did, crossings, judge, listing, not_played};
use super::table::{Cell, Output, Style, csv, document, envelope, table};
use super::text::{time, wrap};
use super::{ladder, prometheus};
use crate::cli::replay::{self as command, Error};
use crate::cli::{Shown, read, units};

/// Play a policy on what was recorded.
#[derive(Clone, Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("data").required(true).args(["trace", "prometheus"])))]
pub struct SimulateArgs {
    /// The policy; every GpuMemoryPolicy of the file is played.
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    pub filename: PathBuf,
    /// A recording, in the form that `replay` takes.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// A Prometheus (http://localhost:9090), or a file with its answer to a range query; - for standard input.
    #[arg(long, value_name = "URL|FILE")]
    pub prometheus: Option<String>,
    /// How far back to ask Prometheus.
    #[arg(long, value_parser = units::duration, default_value = "6h")]
    pub since: Duration,
    /// How dense; longer where one query could not hold it.
    #[arg(long, value_parser = units::duration, default_value = "15s")]
    pub step: Duration,
    /// Only pods of this name; a * stands for anything. Metrics do not know labels, so a policy's podSelector is not applied.
    #[arg(long, value_name = "NAME")]
    pub pods: Option<String>,
    /// What each device may hold, e.g. 24GiB; goes before the recording's own.
    #[arg(long, value_parser = units::size)]
    pub capacity: Option<Bytes>,
}

/// What one container came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Tally {
    alarms: usize,
    /// Alarms at which a rung that acts would have been taken.
    actions: usize,
    /// Actions before the memory was full.
    avoided: usize,
    /// Actions where it never became full.
    r#false: usize,
    /// Alarms that restraint held back.
    held: usize,
    /// Alarms that people would have been told of, and no more.
    told: usize,
}

impl Tally {
    fn add(&mut self, alarm: &Alarm) {
        self.alarms += 1;
        match (alarm.did, alarm.full_after_s) {
            (Did::Act, Some(_)) => (self.actions, self.avoided) = (self.actions + 1, self.avoided + 1),
            (Did::Act, None) => (self.actions, self.r#false) = (self.actions + 1, self.r#false + 1),
            (Did::Held, _) => self.held += 1,
            (Did::Tell, _) => self.told += 1,
        }
    }
}

/// One policy over one recording.
struct Played {
    policy: Policy,
    /// Its mode before it was played as Enforce.
    mode: Mode,
    /// Seconds of the recording.
    seconds: f64,
    containers: usize,
    gpus: usize,
    alarms: Vec<Alarm>,
    total: Tally,
    by_container: BTreeMap<String, Tally>,
    /// Times memory was full with no alarm before it.
    missed: usize,
}

/// Runs the command; `now` is Unix seconds.
pub fn run(args: &SimulateArgs, now: f64, output: Output, style: Style) -> Result<Shown, Error> {
    let policies = command::policies(&args.filename)?;
    let recording = load(args, now)?;
    let mut shown = Shown::default();
    if recording.is_dcgm {
        shown.notes.push(
            "from the DCGM exporter: a device's memory is taken for that of the pod which holds it; who shares it is not \
             told apart"
                .to_owned(),
        );
    }
    let mut items = Vec::new();
    for policy in policies {
        let (rows, options) = command::asked(recording.rows.clone(), args.capacity, &policy);
        let blind = command::no_capacity(&rows, &options).filter(|note| !shown.notes.contains(note));
        shown.notes.extend(blind);
        let played = play(policy, args.pods.as_deref(), &rows, &options, &recording, args.prometheus.is_some());
        if played.containers == 0 {
            shown.notes.push(format!(
                "policy {}: nothing in the recording is governed by it (its namespace, containers, or --pods)",
                played.policy.key.name
            ));
        }
        match output {
            Output::Table | Output::Wide => {
                let gap = if shown.text.is_empty() { "" } else { "\n" };
                shown.text += gap;
                shown.text += &played.page(output == Output::Wide, style);
            }
            Output::Json | Output::Yaml => items.push(played.json()),
            Output::Csv => items.extend(played.by_container.iter().map(|(container, tally)| {
                let mut item = json!(tally);
                item["policy"] = json!(played.policy.key.name);
                item["container"] = json!(container);
                item
            })),
        }
    }
    match output {
        Output::Table | Output::Wide => {}
        Output::Json | Output::Yaml => {
            shown.text = document(&envelope("PolicySimulation", &items, &shown.notes), output);
        }
        Output::Csv => {
            let columns = ["policy", "container", "alarms", "actions", "avoided", "false", "held", "told"];
            shown.text = csv(&columns, &items);
        }
    }
    Ok(shown)
}

fn load(args: &SimulateArgs, now: f64) -> Result<Recording, Error> {
    if let Some(place) = &args.prometheus {
        let text = if place.starts_with("http://") || place.starts_with("https://") {
            let failed = |problem: String| {
                let url = place.clone();
                if url.starts_with("http://") { Error::Fetch { url, problem } } else { Error::Address { url, problem } }
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| failed(error.to_string()))?;
            runtime
                .block_on(prometheus::fetch(place, prometheus::Span::until(now, args.since, args.step)))
                .map_err(failed)?
        } else if place.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
            let problem = format!("write it with its scheme: --prometheus http://{place}");
            return Err(Error::Address { url: place.clone(), problem });
        } else {
            read::text(place.as_ref())?
        };
        return recorded::recording(&text).map_err(|source| Error::Prometheus { place: place.clone(), source });
    }
    let file = args.trace.clone().unwrap_or_default();
    let wrong = |source| Error::Recording { file: file.display().to_string(), source };
    Ok(Recording { rows: replay::parse(&read::text(&file)?).map_err(wrong)?, ..Recording::default() })
}

fn play(
    mut policy: Policy,
    pods: Option<&str>,
    rows: &[Row],
    options: &Options,
    recording: &Recording,
    is_named: bool,
) -> Played {
    let mode = std::mem::replace(&mut policy.mode, Mode::Enforce);
    let governs = |container: &str| governs(&policy, pods, container, is_named);
    let evaluations = replay::evaluate(rows, options);
    let mut episodes = replay::episodes(&evaluations);
    episodes.retain(|episode| governs(&episode.culprit));
    let mut alarms = judge(&policy, rows, options, episodes);
    let window = 1.5 * policy.prediction.horizon.as_secs_f64();
    for alarm in &mut alarms {
        // A counted OOM is the truth, and may come before a sample saw the device full.
        let counted = recording
            .ooms
            .iter()
            .find(|(at, who)| *who == alarm.container && (alarm.raised_s..=alarm.raised_s + window).contains(at));
        let after = counted.map(|(at, _)| at - alarm.raised_s);
        alarm.full_after_s = [alarm.full_after_s, after].into_iter().flatten().reduce(f64::min);
    }
    let is_seen = |gpu: Option<&str>, who: Option<&str>, at: f64| {
        alarms.iter().any(|alarm| {
            gpu.is_none_or(|gpu| gpu == alarm.gpu)
                && who.is_none_or(|who| who == alarm.container)
                && alarm.full_after_s.is_some()
                && (alarm.raised_s..=alarm.raised_s + window).contains(&at)
        })
    };
    let governed: Vec<&Row> = rows.iter().filter(|row| governs(&row.container)).collect();
    let gpus: std::collections::BTreeSet<&str> = governed.iter().map(|row| row.gpu.as_str()).collect();
    let missed = if recording.ooms.is_empty() {
        let full = crossings(rows, options).into_iter().filter(|(gpu, _)| gpus.contains(gpu.as_str()));
        full.filter(|(gpu, at)| !is_seen(Some(gpu), None, *at)).count()
    } else {
        let ooms = recording.ooms.iter().filter(|(_, who)| governs(who));
        ooms.filter(|(at, who)| !is_seen(None, Some(who), *at)).count()
    };
    let (mut total, mut by_container) = (Tally::default(), BTreeMap::<String, Tally>::new());
    for alarm in &alarms {
        total.add(alarm);
        by_container.entry(alarm.container.clone()).or_default().add(alarm);
    }
    let containers: std::collections::BTreeSet<&str> = governed.iter().map(|row| row.container.as_str()).collect();
    let (containers, gpus) = (containers.len(), gpus.len());
    let seconds = rows.last().map_or(0.0, |row| row.t_s) - rows.first().map_or(0.0, |row| row.t_s);
    Played { policy, mode, seconds, containers, gpus, alarms, total, by_container, missed }
}

/// Whether the policy speaks of a container, as far as its name tells: namespace and pod stand in it where it comes from
/// Prometheus.
fn governs(policy: &Policy, pods: Option<&str>, name: &str, is_named: bool) -> bool {
    if name == NOBODY {
        return false;
    }
    let mut parts = name.rsplitn(3, '/');
    let container = parts.next().unwrap_or_default();
    let pod = parts.next();
    let namespace = parts.next();
    if is_named && !policy.key.namespace.is_empty() && namespace.is_some_and(|found| found != policy.key.namespace) {
        return false;
    }
    let is_container = policy.containers.is_empty() || policy.containers.iter().any(|wanted| wanted == container);
    is_container && pods.is_none_or(|pattern| matches(pattern, pod.unwrap_or(container)))
}

/// Whether `text` is what `pattern` says; a `*` stands for anything.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

impl Played {
    fn acting(&self) -> Vec<Rung> {
        ladder::allowed(&self.policy.actions).into_iter().filter(|rung| *rung != Rung::Notify).collect()
    }

    fn page(&self, is_wide: bool, style: Style) -> String {
        let mut out = String::new();
        let as_if = if self.mode == Mode::Enforce {
            String::new()
        } else {
            format!(", played as if it were Enforce (it is {:?})", self.mode)
        };
        let s = |count: usize| if count == 1 { "" } else { "s" };
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "Policy {} over {} of {} container{} on {} GPU{}{as_if}",
            self.policy.key.name,
            time(self.seconds),
            self.containers,
            s(self.containers),
            self.gpus,
            s(self.gpus)
        );
        let sentence = ladder::sentence(&ladder::allowed(&self.policy.actions));
        let _ = writeln!(out, "At a risk: {}\n", wrap(&sentence, 110, 11));
        if !self.by_container.is_empty() {
            let titles = ["CONTAINER", ">ALARMS", ">ACTED", ">AVOIDED", ">FALSE", ">HELD", ">TOLD"];
            let rows: Vec<Vec<Cell>> = self
                .by_container
                .iter()
                .map(|(container, tally)| {
                    let Tally { alarms, actions, avoided, r#false, held, told } = tally;
                    let counts = [alarms, actions, avoided, r#false, held, told];
                    std::iter::once(container.as_str().into()).chain(counts.map(|n| n.to_string().into())).collect()
                })
                .collect();
            out += &table(&titles, &rows, style);
            out.push('\n');
        }
        if is_wide && !self.alarms.is_empty() {
            out += &listing(&self.alarms, style);
        }
        let Tally { alarms, actions, avoided, r#false, held, told } = &self.total;
        let verdict = format!(
            "{alarms} alarm{}. Acted on {actions}: {avoided} before the memory was full (avoided), {} where it never \
             became full (false). Held back {held}, told people only {told}. Full without an alarm before it: {}.",
            s(*alarms),
            r#false,
            self.missed
        );
        out += &wrap(&verdict, 110, 0);
        out.push('\n');
        out += not_played(&self.acting());
        out
    }

    fn json(&self) -> serde_json::Value {
        let containers: Vec<serde_json::Value> = self
            .by_container
            .iter()
            .map(|(container, tally)| {
                let mut item = json!(tally);
                item["container"] = json!(container);
                item
            })
            .collect();
        let rungs: Vec<String> = ladder::allowed(&self.policy.actions).iter().map(|rung| format!("{rung:?}")).collect();
        json!({
            "policy": self.policy.key.name, "namespace": self.policy.key.namespace, "mode": format!("{:?}", self.mode),
            "seconds": self.seconds, "containers": self.containers, "gpus": self.gpus, "rungs": rungs,
            "total": self.total, "missed": self.missed, "byContainer": containers, "alarms": self.alarms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, text, is) in [
            ("train", "train", true),
            ("train", "trainer", false),
            ("train-*", "train-0", true),
            ("*-0", "train-0", true),
            ("a*b*c", "a-bb-c", true),
            ("a*b*c", "a-c", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, text), is, "{pattern} {text}");
        }
    }
}

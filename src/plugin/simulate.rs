//! `policy simulate`: what a policy would have come to over a recording or over Prometheus' history: how often it would
//! have acted, how many of those came before the memory was full, how many would have been for nothing.
//!
//! The policy is played as if it were in mode Enforce, since that is what one wants to know before one sets it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use gpumem_engine::policy::{Mode, Policy, Rung};
use gpumem_engine::quantity::{Bytes, counted};
use gpumem_engine::replay;
use gpumem_engine::replay::prometheus::{self as recorded, Recording};
use serde::Serialize;
use serde_json::json;

use super::play::{Alarm, Data, Did};
use super::policy::{listing, not_played};
use super::table::{Cell, Output, Style, csv, document, envelope, table};
use super::text::time;
use super::{ladder, play, prometheus};
use crate::cli::page::{fit, wrap};
use crate::cli::replay::{self as command, Error};
use crate::cli::{FAILED, FINE, Shown, read, units};

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
struct Simulated {
    policy: Policy,
    /// Its mode before it was played as Enforce.
    mode: Mode,
    /// Seconds of the recording.
    seconds: f64,
    played: play::Played,
    total: Tally,
    by_container: BTreeMap<String, Tally>,
}

/// Runs the command; `now` is Unix seconds.
pub fn run(args: &SimulateArgs, now: f64, output: Output, style: Style) -> Result<Shown, Error> {
    let policies = command::policies(&args.filename)?;
    let recording = load(args, now)?;
    let style = style.of(output);
    let mut shown = Shown::default();
    if recording.is_dcgm {
        shown.notes.push(
            "from the DCGM exporter: a device's memory is taken for that of the pod which holds it; who shares it is not \
             told apart"
                .to_owned(),
        );
    }
    let (mut items, mut is_judged) = (Vec::new(), false);
    for mut policy in policies {
        let mode = std::mem::replace(&mut policy.mode, Mode::Enforce);
        let (rows, options) = command::asked(recording.rows.clone(), args.capacity, &policy);
        let blind = command::no_capacity(&rows, &options);
        let data = Data {
            rows: &rows,
            options: &options,
            ooms: &recording.ooms,
            is_named: args.prometheus.is_some(),
            pods: args.pods.as_deref(),
        };
        let played = play::play(&policy, data);
        // Without a capacity it is the same for all.
        let why = if blind.is_some() { Vec::new() } else { played.notes(&policy) };
        shown.notes.extend(blind.into_iter().chain(why).filter(|note| !shown.notes.contains(note)).collect::<Vec<_>>());
        is_judged |= !played.unjudged.is_all;
        let played = count(policy, mode, &recording, played);
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
    shown.code = if is_judged { FINE } else { FAILED };
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

fn count(policy: Policy, mode: Mode, recording: &Recording, played: play::Played) -> Simulated {
    let rows = &recording.rows;
    let seconds = rows.last().map_or(0.0, |row| row.t_s) - rows.first().map_or(0.0, |row| row.t_s);
    let (mut total, mut by_container) = (Tally::default(), BTreeMap::<String, Tally>::new());
    for alarm in &played.alarms {
        total.add(alarm);
        by_container.entry(alarm.container.clone()).or_default().add(alarm);
    }
    Simulated { policy, mode, seconds, played, total, by_container }
}

impl Simulated {
    fn acting(&self) -> Vec<Rung> {
        ladder::allowed(&self.policy.actions).into_iter().filter(|rung| *rung != Rung::Notify).collect()
    }

    fn page(&self, is_wide: bool, style: Style) -> String {
        let as_if = if self.mode == Mode::Enforce {
            String::new()
        } else {
            format!(", played as if it were Enforce (it is {:?})", self.mode)
        };
        let head = format!(
            "Policy {} over {} of {} on {}{as_if}",
            self.policy.key.name,
            time(self.seconds),
            counted(self.played.containers, "container", "containers"),
            counted(self.played.gpus, "GPU", "GPUs")
        );
        let sentence = ladder::sentence(&ladder::allowed(&self.policy.actions));
        let mut out = fit(&head, style.page());
        out.extend(["At a risk: ", &wrap(&sentence, style.page(), 11), "\n\n"]);
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
        if is_wide {
            out += &listing(&self.played.alarms, true, style);
        }
        let Tally { alarms, actions, avoided, r#false, held, told } = &self.total;
        let verdict = format!(
            "{}. Acted on {actions}: {avoided} before the memory was full (avoided), {} where it never \
             became full (false). Held back {held}, told people only {told}. Full without an alarm before it: {}.",
            counted(*alarms, "alarm", "alarms"),
            r#false,
            self.played.missed
        );
        for text in [&verdict, not_played(&self.acting())].into_iter().filter(|text| !text.is_empty()) {
            out += &wrap(text, style.page(), 0);
            out.push('\n');
        }
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
            "seconds": self.seconds, "containers": self.played.containers, "gpus": self.played.gpus, "rungs": rungs,
            "total": self.total, "missed": self.played.missed, "byContainer": containers, "alarms": self.played.alarms,
        })
    }
}

//! `policy test`: what a policy would have done on recorded data. Flows in: a policy and a recording. Flows out: each alarm,
//! what the policy would have made of it, and what the recording shows came next.
//!
//! The recording knows no budgets, owners or replacements: what only a cluster knows is not played, and the output says so.

use std::path::PathBuf;

use gpumem_engine::policy::{Policy, Rung};
use gpumem_engine::quantity::{Bytes, counted};
use serde_json::json;

use super::ladder;
use super::play::{Alarm, Data, Played, play};
use super::table::{Cell, Output, Style, csv, document, envelope, table};
use super::text::{percent, time};
use crate::cli::page::{fit, wrap};
use crate::cli::{FAILED, FINE, Shown, units};

/// Test a policy on recorded data.
#[derive(Clone, Debug, clap::Args)]
pub struct TestArgs {
    /// The policy; every GpuMemoryPolicy of the file is tested.
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    pub filename: PathBuf,
    /// The recording, in the form that `replay` takes.
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// What each device may hold, e.g. 24GiB; goes before the file's capacity_mib.
    #[arg(long, value_parser = units::size)]
    pub capacity: Option<Bytes>,
}

/// Runs the command.
pub fn test(args: &TestArgs, output: Output, style: Style) -> Result<Shown, crate::cli::replay::Error> {
    let style = style.of(output);
    let mut shown = Shown::default();
    let (mut items, mut is_judged) = (Vec::new(), false);
    for policy in crate::cli::replay::policies(&args.filename)? {
        let (rows, options) = crate::cli::replay::prepare(&args.trace, args.capacity, Some(&policy))?;
        let played = play(&policy, Data { rows: &rows, options: &options, ooms: &[], is_named: false, pods: None });
        let blind = crate::cli::replay::no_capacity(&rows, &options);
        // Without a capacity it is the same for all.
        let why = if blind.is_some() { Vec::new() } else { played.notes(&policy) };
        shown.notes.extend(blind.into_iter().chain(why).filter(|note| !shown.notes.contains(note)).collect::<Vec<_>>());
        is_judged |= !played.unjudged.is_all;
        let Played { alarms, missed, .. } = played;
        let fulfilled = alarms.iter().filter(|alarm| alarm.full_after_s.is_some()).count();
        match output {
            Output::Table | Output::Wide => {
                let gap = if shown.text.is_empty() { "" } else { "\n" };
                shown.text += gap;
                shown.text += &page(&policy, &alarms, fulfilled, missed, output == Output::Wide, style);
            }
            Output::Json | Output::Yaml => items.push(json!({
                "policy": policy.key.name, "namespace": policy.key.namespace, "mode": format!("{:?}", policy.mode),
                "alarms": alarms, "cameTrue": fulfilled, "didNot": alarms.len() - fulfilled, "missed": missed,
            })),
            Output::Csv => items.extend(alarms.iter().filter_map(|alarm| serde_json::to_value(alarm).ok())),
        }
    }
    match output {
        Output::Table | Output::Wide => {}
        Output::Json | Output::Yaml => shown.text = document(&envelope("PolicyTest", &items, &shown.notes), output),
        Output::Csv => {
            let columns =
                ["raisedS", "clearedS", "gpu", "container", "would", "highestAfterwards", "fullAfterS", "reason"];
            shown.text = csv(&columns, &items);
        }
    }
    shown.code = if is_judged { FINE } else { FAILED };
    Ok(shown)
}

fn page(policy: &Policy, alarms: &[Alarm], fulfilled: usize, missed: usize, is_wide: bool, style: Style) -> String {
    let rungs = ladder::allowed(&policy.actions);
    let acting: Vec<Rung> = rungs.iter().copied().filter(|rung| *rung != Rung::Notify).collect();
    let actions: Vec<String> = [policy.actions.notify.then(|| "Notify".to_owned()), Some(ladder::names(&acting))]
        .into_iter()
        .flatten()
        .filter(|name| !name.is_empty())
        .collect();
    let head = format!(
        "Policy {}: mode {:?}, actions {}, {} % within {} held for {}",
        policy.key.name,
        policy.mode,
        if actions.is_empty() { "none".to_owned() } else { actions.join(" and ") },
        (policy.prediction.act_probability * 100.0).round(),
        time(policy.prediction.horizon.as_secs_f64()),
        time(policy.prediction.act_for.as_secs_f64())
    );
    let mut out = fit(&head, style.page()) + "\n";
    out += &listing(alarms, is_wide, style);
    let verdict = format!(
        "{}: {fulfilled} before the device was full, {} where it never was; full without an alarm before it: {missed}.",
        counted(alarms.len(), "alarm", "alarms"),
        alarms.len() - fulfilled
    );
    for text in [&verdict, not_played(&acting)].into_iter().filter(|text| !text.is_empty()) {
        out += &wrap(text, style.page(), 0);
        out.push('\n');
    }
    out
}

/// What a recording does not know of these rungs.
pub(super) fn not_played(acting: &[Rung]) -> &'static str {
    match acting {
        [] => "",
        [Rung::Evict] => {
            "Not played: PodDisruptionBudgets, minAvailable, protected kinds, and how the data would go on after an action."
        }
        _ => {
            "Not played: which rung has a lever on the workload and would help, PodDisruptionBudgets, minAvailable, protected \
             kinds, and how the data would go on after an action."
        }
    }
}

/// Alarms: a line each with every column, or what would be done and why below the line of its alarm.
pub(super) fn listing(alarms: &[Alarm], is_wide: bool, style: Style) -> String {
    let mut out = String::new();
    if !is_wide && !alarms.is_empty() {
        let titles = [">RAISED", ">CLEARED", "CONTAINER", ">HIGHEST", "FULL"];
        let rows: Vec<Vec<Cell>> = alarms
            .iter()
            .map(|alarm| {
                let [raised, cleared, container, _, highest, full, _] = cells(alarm);
                vec![raised, cleared, container, highest, full]
            })
            .collect();
        let lines = table(&titles, &rows, style);
        let mut lines = lines.lines();
        out.extend(lines.next().into_iter().flat_map(|titles| [titles, "\n"]));
        for (line, alarm) in lines.zip(alarms) {
            let below = wrap(&format!("would {}: {}", alarm.would, alarm.reason), style.page(), 10);
            out.extend([line, "\n          ", &below, "\n"]);
        }
        out.push('\n');
        return out;
    }
    let rows: Vec<Vec<Cell>> = alarms.iter().map(|alarm| cells(alarm).into()).collect();
    if !rows.is_empty() {
        let titles = [">RAISED", ">CLEARED", "CONTAINER", "WOULD", ">HIGHEST", "FULL", "REASON"];
        out += &table(&titles, &rows, style);
        out.push('\n');
    }
    out
}

fn cells(alarm: &Alarm) -> [Cell; 7] {
    let full = alarm.full_after_s.map_or("never".to_owned(), |after| format!("{} later", time(after)));
    [
        format!("{:.0}s", alarm.raised_s).into(),
        alarm.cleared_s.map_or("-".to_owned(), |at| format!("{at:.0}s")).into(),
        alarm.container.as_str().into(),
        alarm.would.as_str().into(),
        percent(alarm.highest_afterwards).into(),
        full.into(),
        alarm.reason.as_str().into(),
    ]
}

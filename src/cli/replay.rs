//! `gpumem replay FILE.csv`: what the forecast would have said of recorded data, and when a policy would have raised an
//! alarm. Flows in: flags and files. Flows out: text. All thinking is [`gpumem_engine::replay`]'s.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use gpumem_engine::forecast::{Outlook, Unknown};
use gpumem_engine::policy::{Budget, Mode, Policy, PolicyKey};
use gpumem_engine::quantity::Bytes;
use gpumem_engine::replay::{self, Evaluation, Level, Options, Row};
use kube::ResourceExt;

use super::{FAILED, FINE, Format, Shown, page, read, units};
use crate::api::convert::{self, Rejection};
use crate::api::crd;
use crate::api::policy::{GpuMemoryPolicy, PodSelector, PolicyMode};
use crate::plugin::text::time;

/// Replay a recording through the forecast.
///
/// The file is CSV with the header `t_s,container,used_mib`, and optionally `gpu`, `allocated_mib`, `reserved_mib`,
/// `step_peak_mib` and `capacity_mib`. Containers of one gpu share it.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The recording; - for standard input.
    pub file: PathBuf,
    /// What each device may hold, e.g. 24GiB; goes before the file's capacity_mib.
    #[arg(long, value_parser = units::size)]
    pub capacity: Option<Bytes>,
    /// Known end of growth, e.g. 18GiB: the policy's declaredPeak.
    #[arg(long, value_parser = units::size)]
    pub declared: Option<Bytes>,
    /// How far ahead an OOM matters [default: 15m, or the policy's].
    #[arg(long, value_parser = units::duration)]
    pub horizon: Option<Duration>,
    /// No forecast for a container younger than this [default: 10m, or the policy's].
    #[arg(long, value_parser = units::duration)]
    pub warm_up: Option<Duration>,
    /// How long a risk has to hold before an alarm is raised [default: 2m, or the policy's].
    #[arg(long, value_parser = units::duration)]
    pub act_for: Option<Duration>,
    /// A GpuMemoryPolicy whose prediction, budget and headroom are taken; flags go before it.
    #[arg(long)]
    pub policy: Option<PathBuf>,
    /// Print alarms from raise to clear instead of every evaluation.
    #[arg(long)]
    pub summary: bool,
    /// Form of the output; json is one object a line.
    #[arg(short, long, value_enum, default_value = "table", help_heading = super::OUTPUT)]
    pub output: Format,
}

/// Why nothing was replayed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] read::Error),
    /// The recording is not one.
    #[error("{file}: {source}")]
    Recording {
        /// Which file.
        file: String,
        /// Where and why.
        source: replay::Error,
    },
    /// The policy is not one.
    #[error("{file}: {problem}")]
    Policy {
        /// Which file.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// Flags that exclude each other.
    #[error(
        "the OOM would come before the alarm: --horizon is {horizon:?}, a risk has to hold for {act_for:?}; give a shorter \
         --act-for"
    )]
    Dwell {
        /// As given.
        act_for: Duration,
        /// As given.
        horizon: Duration,
    },
    /// Prometheus' data is not what it should be.
    #[error("{place}: {source}")]
    Prometheus {
        /// File or address.
        place: String,
        /// What is wrong.
        source: replay::prometheus::Error,
    },
    /// Prometheus did not answer.
    #[error("Prometheus at {url}: {problem}")]
    Fetch {
        /// Its address.
        url: String,
        /// What happened, and what to do.
        problem: String,
    },
    /// Not where a Prometheus can be asked.
    #[error("Prometheus at {url}: {problem}")]
    Address {
        /// What was given.
        url: String,
        /// What to give.
        problem: String,
    },
    /// A horizon of nothing.
    #[error("--horizon must be at least 1s")]
    Horizon,
}

/// Runs the command; lines are broken for a terminal of so many columns.
pub fn run(args: &Args, terminal: Option<usize>) -> Result<Shown, Error> {
    let width = args.output.width(terminal);
    let policy = args.policy.as_deref().map(policies).transpose()?.and_then(|found| found.into_iter().next());
    let (rows, mut options) = prepare(&args.file, args.capacity, policy.as_ref())?;
    let prediction = &mut options.prediction;
    prediction.declared_peak = args.declared.or(prediction.declared_peak);
    prediction.horizon = args.horizon.unwrap_or(prediction.horizon);
    prediction.warm_up = args.warm_up.unwrap_or(prediction.warm_up);
    prediction.act_for = args.act_for.unwrap_or(prediction.act_for);
    if prediction.horizon < Duration::from_secs(1) {
        return Err(Error::Horizon);
    }
    if prediction.act_for >= prediction.horizon {
        return Err(Error::Dwell { act_for: prediction.act_for, horizon: prediction.horizon });
    }
    let evaluations = replay::evaluate(&rows, &options);
    let episodes = if args.summary { replay::episodes(&evaluations) } else { Vec::new() };
    let note = no_capacity(&rows, &options);
    let unjudged =
        if args.summary { never_judged(&rows, &evaluations, &options, |_| true) } else { Unjudged::default() };
    let is_blind = args.summary && unjudged.is_all;
    let text = match (args.output, args.summary) {
        // A line each, whatever the width: one looks for where it changes.
        (Format::Table | Format::Wide, false) => {
            let columns = if args.output == Format::Table { terminal.unwrap_or(page::PAGE) } else { usize::MAX };
            page::clip(&replay::table(&evaluations), columns)
        }
        // "No alarm" would be taken for "all is well".
        (Format::Table | Format::Wide, true) if is_blind => "nothing was judged\n".to_owned(),
        (Format::Table | Format::Wide, true) if episodes.is_empty() && !unjudged.why.is_empty() => {
            "no alarm would have been raised of what was judged\n".to_owned()
        }
        (Format::Table | Format::Wide, true) => page::fit(&replay::summary(&episodes), width),
        (Format::Json, false) => lines(&evaluations),
        (Format::Json, true) => lines(&episodes),
    };
    let mut shown = Shown::fine(text);
    // Without a capacity it is the same for all.
    let why = if note.is_some() { Vec::new() } else { unjudged.why };
    shown.notes.extend(note.into_iter().chain(why));
    shown.code = if is_blind { FAILED } else { FINE };
    Ok(shown)
}

/// What a recording has and no alarm could have come of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unjudged {
    /// Each container that was never judged, and why.
    pub why: Vec<String>,
    /// Whether nothing else is in the recording.
    pub is_all: bool,
}

/// What of the recording was never judged, among the containers that `is_asked` names.
pub fn never_judged(
    rows: &[Row],
    evaluations: &[Evaluation],
    options: &Options,
    is_asked: impl Fn(&str) -> bool,
) -> Unjudged {
    let mut lengths: BTreeMap<(&str, &str), (f64, f64)> = BTreeMap::new();
    for row in rows.iter().filter(|row| is_asked(&row.container)) {
        lengths.entry((&row.container, &row.gpu)).or_insert((row.t_s, row.t_s)).1 = row.t_s;
    }
    let all = lengths.len();
    let mut newest: BTreeMap<(&str, &str), &Evaluation> = BTreeMap::new();
    for evaluation in evaluations {
        let key = (&*evaluation.container, &*evaluation.gpu);
        if evaluation.level != Level::Unknown {
            lengths.remove(&key);
        }
        newest.insert(key, evaluation);
    }
    let sentence = |((container, gpu), (first, last)): (&(&str, &str), &(f64, f64))| {
        let place = if gpu.is_empty() { String::new() } else { format!(" on {gpu}") };
        let why = match newest.get(&(*container, *gpu)).map(|newest| (&newest.forecast.outlook, newest)) {
            None => "it ended before the first look at it".to_owned(),
            // The level waits for the warm-up, the forecast for less.
            Some((Outlook::Known { .. } | Outlook::Unknown { why: Unknown::WarmingUp }, _)) => format!(
                "warming up the whole time (it needs {}, the recording has {})",
                time(options.prediction.warm_up.as_secs_f64()),
                time(last - first)
            ),
            Some((Outlook::Unknown { .. }, newest)) => newest.forecast.reason.clone(),
        };
        format!("container {container}{place} was never judged: {why}")
    };
    let mut why: Vec<String> = lengths.iter().map(sentence).collect();
    if rows.is_empty() {
        why.push("nothing was judged: the recording has no sample".to_owned());
    }
    Unjudged { is_all: lengths.len() == all, why }
}

/// Rows of the file, and what a policy asks of them.
pub fn prepare(
    file: &std::path::Path,
    capacity: Option<Bytes>,
    policy: Option<&Policy>,
) -> Result<(Vec<Row>, Options), Error> {
    let text = read::text(file)?;
    let rows = replay::parse(&text).map_err(|source| Error::Recording { file: file.display().to_string(), source })?;
    let Some(policy) = policy else { return Ok((rows, Options { capacity, ..Options::default() })) };
    Ok(asked(rows, capacity, policy))
}

/// Rows and question as `policy` sees them. Its headroom is kept free of every capacity, as in a cluster.
pub fn asked(mut rows: Vec<Row>, capacity: Option<Bytes>, policy: &Policy) -> (Vec<Row>, Options) {
    let share = match policy.budget {
        Budget::Declared(share) => Some(share),
        Budget::Device | Budget::Partition => None,
    };
    let less = |capacity: Bytes| share.unwrap_or(capacity) - policy.headroom;
    for row in &mut rows {
        row.capacity = row.capacity.map(less);
    }
    let capacity = capacity.or(share).map(less);
    (rows, Options { prediction: policy.prediction.clone(), capacity })
}

/// What to say where nothing tells how much a device holds.
pub fn no_capacity(rows: &[Row], options: &Options) -> Option<String> {
    let unknown = options.capacity.is_none() && !rows.is_empty() && rows.iter().all(|row| row.capacity.is_none());
    unknown.then(|| {
        "no capacity is known, so there is no forecast: give --capacity, or a column capacity_mib in the file"
            .to_owned()
    })
}

/// Every GpuMemoryPolicy of a file of manifests, at least one. Other kinds are passed over.
pub fn policies(file: &std::path::Path) -> Result<Vec<Policy>, Error> {
    let wrong = |problem: String| Error::Policy { file: file.display().to_string(), problem };
    let mut found = Vec::new();
    for document in read::documents(file)? {
        if document.get("kind").and_then(serde_json::Value::as_str) != Some("GpuMemoryPolicy") {
            continue;
        }
        if let Some(field) = crd::unknown_fields(&document).first() {
            return Err(wrong(format!("{field}: there is no such field; the API server would not take it")));
        }
        let object: GpuMemoryPolicy = serde_json::from_value(document).map_err(|error| wrong(error.to_string()))?;
        if object.spec.mode == PolicyMode::Enforce
            && object.spec.target.pod_selector.as_ref().is_some_and(|s| *s == PodSelector::default())
        {
            return Err(wrong(
                "spec.target.podSelector: mode Enforce needs one that selects something; the API server refuses this"
                    .to_owned(),
            ));
        }
        let key = PolicyKey { namespace: object.namespace().unwrap_or_default(), name: object.name_any() };
        let policy = convert::policy(key, &object.spec, Mode::Enforce);
        found.push(policy.map_err(|Rejection { field, problem }| wrong(format!("{field}: {problem}")))?);
    }
    if found.is_empty() {
        return Err(wrong("no GpuMemoryPolicy in it".to_owned()));
    }
    Ok(found)
}

fn lines<T: serde::Serialize>(items: &[T]) -> String {
    // Plain numbers and texts always serialise.
    let lines = items.iter().map(|item| serde_json::to_string(item).unwrap_or_default() + "\n");
    lines.collect()
}

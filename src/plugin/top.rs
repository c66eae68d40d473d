//! `top`: who uses GPU memory, and who will run out of it. Flows in: what can be seen. Flows out: one table.

use super::cluster::{Cluster, Error};
use super::seen::{self, Seen, Sort};
use super::table::{Output, Style, csv, document, envelope, table};
use crate::api::view::Level;
use crate::cli::{FAILED, FINE, NO, Shown};

mod listed;

use listed::{by_gpu, by_node, pods, workloads};

/// What the lines of the table are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Rows {
    /// Containers of pods.
    #[default]
    #[value(alias = "pod", alias = "po")]
    Pods,
    /// Nodes.
    #[value(alias = "node", alias = "no")]
    Nodes,
    /// GPUs and MIG slices.
    #[value(alias = "gpu")]
    Gpus,
    /// Controllers of pods.
    #[value(alias = "workload", alias = "wl")]
    Workloads,
}

/// Show GPU memory and who will run out of it, worst first.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// What to list.
    #[arg(value_enum, default_value = "pods")]
    pub rows: Rows,
    /// Order of the lines.
    #[arg(long, value_enum, default_value = "risk")]
    pub sort: Sort,
    /// Show it again every two seconds, until interrupted.
    #[arg(short, long)]
    pub watch: bool,
    /// Show containers on a screen of their own, with bars and history, until q.
    #[arg(long, conflicts_with_all = ["watch", "fail_on"])]
    pub tui: bool,
    /// Exit with 3 when any line is at this level or above: elevated, high or critical; with 1 when all are Unknown. For CI.
    #[arg(long, value_parser = level)]
    pub fail_on: Option<Level>,
}

fn level(text: &str) -> Result<Level, String> {
    match text {
        "elevated" => Ok(Level::Elevated),
        "high" => Ok(Level::High),
        "critical" => Ok(Level::Critical),
        _ => Err("give elevated, high or critical".to_owned()),
    }
}

/// The table of containers that `pods` prints.
pub(super) fn table_of(seen: &Seen, style: Style, is_wide: bool) -> String {
    let listed = pods(seen, true);
    if is_wide { table(&listed.titles, &listed.rows, style) } else { listed.narrow(style) }
}

/// One look.
pub async fn run(cluster: &Cluster, args: &Args, output: Output, style: Style) -> Result<Shown, Error> {
    let query = match (&cluster.namespace, args.rows) {
        (Some(namespace), Rows::Pods | Rows::Workloads) => format!("?namespace={namespace}"),
        _ => String::new(),
    };
    let (mut seen, nodes) = seen::containers(cluster, &query).await?;
    seen::sort(&mut seen.containers, args.sort);
    let worst = seen.containers.iter().map(|view| view.level).max().unwrap_or(Level::Low);
    // A gate must not pass because nothing was seen. A cluster that is seen and empty passes.
    let mut is_blind = match &nodes {
        _ if !seen.containers.is_empty() => seen.containers.iter().all(|view| view.level == Level::Unknown),
        Ok(nodes) if seen.is_live => !nodes.nodes.is_empty() && nodes.nodes.iter().all(seen::is_unseen),
        _ => !seen.is_live,
    };
    let mut listed = match args.rows {
        Rows::Pods => pods(&seen, cluster.namespace.is_none()),
        Rows::Workloads => workloads(&seen, cluster.namespace.is_none(), args.sort),
        // Statuses know no node: without live data there is nothing to show.
        Rows::Nodes => by_node(&nodes?, &seen, args.sort),
        Rows::Gpus => by_gpu(&nodes?, &seen, args.sort),
    };
    if listed.items.is_empty() && matches!(output, Output::Table | Output::Wide) {
        let place =
            if matches!(args.rows, Rows::Pods | Rows::Workloads) { cluster.place() } else { "the cluster".to_owned() };
        let is_there = match &cluster.namespace {
            Some(namespace) if matches!(args.rows, Rows::Pods | Rows::Workloads) => cluster.has(namespace).await,
            _ => true,
        };
        is_blind |= !is_there;
        let what = if is_there { "nothing holds GPU memory in" } else { "there is no" };
        seen.not_seen.insert(0, format!("{what} {place}"));
        listed.rows.clear();
    }
    let code = match args.fail_on {
        Some(level) if worst >= level => NO,
        Some(_) if is_blind => FAILED,
        _ => FINE,
    };
    let text = match output {
        Output::Table => listed.narrow(style),
        Output::Wide => table(&listed.titles, &listed.rows, style.of(output)),
        Output::Csv => csv(listed.columns, &listed.items),
        Output::Json | Output::Yaml => document(&envelope(listed.kind, &listed.items, &seen.not_seen), output),
    };
    // A script reads notSeen; a person reads the lines beside the table.
    let mut notes = if matches!(output, Output::Json | Output::Yaml) { Vec::new() } else { seen.not_seen };
    if code == FAILED {
        notes.push("--fail-on could not be answered: there is no forecast of anything".to_owned());
    }
    Ok(Shown { text, notes, code })
}

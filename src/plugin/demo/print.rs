//! The story as text: tables at chosen moments, what happened between them, and what it came to. Pure.

use std::fmt::Write as _;

use gpumem_engine::decision::StepKind;
use gpumem_engine::quantity::counted;
use serde_json::{Value, json};

use super::cast::Part;
use super::happening::{Happening, Outcome, Telling, clock};
use super::story::{LONG, Story};
use crate::cli::page::wrap;
use crate::plugin::table::{Output, Style, csv, document, envelope};
use crate::plugin::text::time;
use crate::plugin::top;

/// Moments at which the plain output shows the fleet: before, when the leaks are told of, after, and at the end.
const MOMENTS: [i64; 4] = [0, 15 * 60, 30 * 60, LONG];
/// What is true of everything here.
const MADE_UP: &str = "everything here is made up: no cluster was asked, and nothing was changed anywhere";

/// The story from its beginning to its end, in a form.
pub(super) fn whole(mut story: Story, output: Output, style: Style) -> String {
    let style = style.of(output);
    match output {
        Output::Table | Output::Wide => page(&mut story, output == Output::Wide, style),
        Output::Json | Output::Yaml => {
            story.advance(LONG);
            document(&envelope("DemoStory", &items(&story), &[MADE_UP.to_owned()]), output)
        }
        Output::Csv => {
            story.advance(LONG);
            csv(&COLUMNS, &items(&story))
        }
    }
}

fn page(story: &mut Story, is_wide: bool, style: Style) -> String {
    let (nodes, gpus) = count(story.fleet().parts());
    let head = format!(
        "A demo: {MADE_UP}. {} on {} of {}; forecast and decisions are those of the product. In namespace ml a policy acts, in \
         lab one only watches.",
        counted(story.fleet().parts().len(), "container", "containers"),
        counted(gpus, "GPU", "GPUs"),
        counted(nodes, "node", "nodes"),
    );
    let mut out = wrap(&head, style.page(), 0) + "\n";
    let mut told = 0;
    for moment in MOMENTS {
        story.advance(moment);
        let news = story.happenings().get(told..).unwrap_or_default();
        if !news.is_empty() {
            out.push('\n');
        }
        for happening in news {
            out += &happening.line(style.page());
            out.push('\n');
        }
        told = story.happenings().len();
        let _ = writeln!(out, "\nAt {}:", clock(moment));
        out += &top::table_of(&story.seen(), style, is_wide);
    }
    out + "\n" + &summary(story, style)
}

/// Nodes and GPUs of the fleet.
fn count(parts: &[Part]) -> (usize, usize) {
    let distinct = |of: fn(&Part) -> &str| parts.iter().map(of).collect::<std::collections::BTreeSet<_>>().len();
    (distinct(|part| part.device.node), distinct(|part| &part.device.uuid))
}

/// Who was told of how long before, what ran out, and who was left alone.
pub(super) fn summary(story: &Story, style: Style) -> String {
    let mut out = wrap(&format!("What came of it until {} ({MADE_UP}):", clock(story.at())), style.page(), 0) + "\n";
    let mut alone = Vec::new();
    for (part, outcome) in story.fleet().parts().iter().zip(story.outcomes()) {
        if outcome.is_left_alone() {
            alone.push(format!("{}/{} ({})", part.namespace, part.workload, part.does));
            continue;
        }
        let _ = writeln!(out, "  told   {}", wrap(&sentence(part, outcome, story), style.page(), 9));
    }
    if !alone.is_empty() {
        let text = format!("{}: never told of, never touched", alone.join(", "));
        let _ = writeln!(out, "  quiet  {}", wrap(&text, style.page(), 9));
    }
    let next = "On a cluster: kubectl gpumem doctor, then kubectl gpumem top --tui.";
    out + &wrap(next, style.page(), 0) + "\n"
}

fn sentence(part: &Part, outcome: &Outcome, story: &Story) -> String {
    let ahead: Vec<String> = outcome.told.iter().filter_map(|told| Some(time(told.ahead()? as f64))).collect();
    let told = format!(
        "of {}/{} {}, {} before its GPU is full",
        part.namespace,
        part.workload,
        often(outcome.told.len()),
        ahead.join(" and ")
    );
    let evicted = outcome.steps_of(StepKind::Evict).len();
    let what = match (evicted, outcome.steps_of(StepKind::RequestCheckpoint).len()) {
        (0, 0) => format!("its policy {} only watches", story.guard().policy(part.namespace).key.name),
        (0, asked) => format!("asked to save its work {}", often(asked)),
        (evicted, 0) => format!("evicted {}", often(evicted)),
        (evicted, _) => format!("evicted {} with its work saved", often(evicted)),
    };
    let end = if outcome.ran_out.is_empty() {
        if story.is_over() { "never ran out" } else { "has not run out so far" }.to_owned()
    } else {
        format!("ran out {} and lost {} of work", often(outcome.ran_out.len()), time(outcome.lost as f64))
    };
    format!("{told}; {what}; {end}")
}

fn often(times: usize) -> String {
    match times {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        times => format!("{times} times"),
    }
}

/// Columns of CSV.
const COLUMNS: [&str; 14] = [
    "namespace",
    "workload",
    "container",
    "node",
    "gpu",
    "policy",
    "mode",
    "shape",
    "told",
    "toldAheadSeconds",
    "wouldSave",
    "wouldEvict",
    "ranOut",
    "lostSeconds",
];

/// One item for each container.
fn items(story: &Story) -> Vec<Value> {
    let parts = story.fleet().parts().iter().zip(story.outcomes()).enumerate();
    parts
        .map(|(place, (part, outcome))| {
            let policy = story.guard().policy(part.namespace);
            let own = story.happenings().iter().filter(|happening| happening.place == place);
            let mut item = json!({
                "namespace": part.namespace, "workload": part.workload, "container": part.container,
                "node": part.device.node, "gpu": part.device.gpu, "policy": policy.key.name,
                "mode": format!("{:?}", policy.mode), "shape": part.shape.to_string(),
                "told": outcome.told.len(), "wouldSave": outcome.steps_of(StepKind::RequestCheckpoint).len(),
                "wouldEvict": outcome.steps_of(StepKind::Evict).len(), "ranOut": outcome.ran_out.len(),
                "lostSeconds": outcome.lost, "happenings": own.map(happening).collect::<Vec<Value>>(),
            });
            // Of the first time; what never was is absent, as everywhere.
            if let Some(ahead) = outcome.told.first().and_then(Telling::ahead) {
                item["toldAheadSeconds"] = ahead.into();
            }
            item
        })
        .collect()
}

fn happening(happening: &Happening) -> Value {
    // The namespace is the item's.
    let pod = happening.pod.split_once('/').map_or(happening.pod.as_str(), |(_, pod)| pod);
    let mut item = json!({
        "atSeconds": happening.at, "pod": pod, "what": happening.what, "seen": happening.seen,
    });
    if let Some(would) = &happening.would {
        item["would"] = would.as_str().into();
    }
    item
}

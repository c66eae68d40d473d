//! The story as text: tables at chosen moments, what happened between them, and what it came to. Pure.

use gpumem_engine::decision::StepKind;
use gpumem_engine::quantity::counted;
use serde_json::{Value, json};

use super::cast::Part;
use super::happening::{Happening, Outcome, clock};
use super::story::{LONG, Story};
use crate::cli::page::wrap;
use crate::plugin::table::{Output, Style, csv, document, envelope};
use crate::plugin::text::time;
use crate::plugin::top;

/// Moments at which the plain output shows the fleet: before, when the leaks are told of, after, and at the end.
const MOMENTS: [i64; 4] = [0, 15 * 60, 36 * 60, LONG];
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
            out += &wrap(&happening.line(), style.page(), 9);
            out.push('\n');
        }
        told = story.happenings().len();
        out += &format!("\nAt {}:\n", clock(moment));
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
            alone.push(format!("{} ({})", part.workload, part.does));
            continue;
        }
        let text = format!("{}/{}: {}", part.namespace, part.workload, sentence(part, outcome, story));
        out += &format!("  told   {}\n", wrap(&text, style.page(), 9));
    }
    if !alone.is_empty() {
        out += &format!(
            "  quiet  {}\n",
            wrap(&format!("{}: never told of, never touched", alone.join(", ")), style.page(), 9)
        );
    }
    let next = "On a cluster: kubectl gpumem doctor, then kubectl gpumem top --tui.";
    out + &wrap(next, style.page(), 0) + "\n"
}

fn sentence(part: &Part, outcome: &Outcome, story: &Story) -> String {
    let ahead =
        outcome.ahead().map_or_else(String::new, |ahead| format!("{} before its GPU is full", time(ahead as f64)));
    let told = outcome.told.map_or_else(String::new, |at| format!("told of at {}, {ahead}", clock(at)));
    let acted: Vec<String> =
        outcome.steps.iter().map(|(at, kind)| format!("{} at {}", name(*kind), clock(*at))).collect();
    let what = if acted.is_empty() {
        format!("its policy {} only watches", story.guard().policy(part.namespace).key.name)
    } else {
        acted.join(", ")
    };
    let end = match outcome.ran_out.as_slice() {
        [] if outcome.steps.iter().any(|(_, kind)| *kind == StepKind::Evict) => "it never ran out".to_owned(),
        [] => "it has not run out yet".to_owned(),
        [first, ..] => {
            format!("it ran out at {} and lost {} of work", clock(*first), time(outcome.lost as f64))
        }
    };
    format!("{told}; {what}; {end}")
}

const fn name(kind: StepKind) -> &'static str {
    match kind {
        StepKind::RequestCheckpoint => "asked to save",
        StepKind::WithdrawCheckpoint => "request to save taken back",
        StepKind::Evict => "evicted",
        StepKind::Scale => "scaled out",
        StepKind::SuspendToHost => "moved to the host",
        StepKind::SuspendWorkload => "suspended",
        StepKind::ResumeWorkload => "resumed",
    }
}

/// Columns of CSV.
const COLUMNS: [&str; 13] = [
    "namespace",
    "workload",
    "container",
    "node",
    "gpu",
    "policy",
    "mode",
    "shape",
    "toldAtSeconds",
    "toldAheadSeconds",
    "wouldEvictAtSeconds",
    "ranOutAtSeconds",
    "lostSeconds",
];

/// One item for each container.
fn items(story: &Story) -> Vec<Value> {
    let parts = story.fleet().parts().iter().zip(story.outcomes()).enumerate();
    parts
        .map(|(place, (part, outcome))| {
            let policy = story.guard().policy(part.namespace);
            let evicted = outcome.steps.iter().find(|(_, kind)| *kind == StepKind::Evict).map(|(at, _)| *at);
            let own = story.happenings().iter().filter(|happening| happening.place == place);
            let mut item = json!({
                "namespace": part.namespace, "workload": part.workload, "container": part.container,
                "node": part.device.node, "gpu": part.device.gpu, "policy": policy.key.name,
                "mode": format!("{:?}", policy.mode), "shape": part.shape.to_string(),
                "happenings": own.map(happening).collect::<Vec<Value>>(),
            });
            let times = [
                ("toldAtSeconds", outcome.told),
                ("toldAheadSeconds", outcome.ahead()),
                ("wouldEvictAtSeconds", evicted),
                ("ranOutAtSeconds", outcome.ran_out.first().copied()),
                ("lostSeconds", outcome.ran_out.first().map(|_| outcome.lost)),
            ];
            // What never was is absent, as everywhere.
            for (key, at) in times.into_iter().filter_map(|(key, at)| Some((key, at?))) {
                item[key] = at.into();
            }
            item
        })
        .collect()
}

fn happening(happening: &Happening) -> Value {
    let mut item = json!({
        "atSeconds": happening.at, "pod": happening.pod, "what": happening.what, "seen": happening.seen,
    });
    if let Some(would) = &happening.would {
        item["would"] = would.as_str().into();
    }
    item
}

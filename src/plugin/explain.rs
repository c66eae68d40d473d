//! `explain pod/x`: why this risk, what would be done about it and when, and what stops it. Flows in: the live view of the
//! pod, the policies of its namespace, the profile of its workload. Flows out: one page.

use std::fmt::Write as _;

use gpumem_engine::policy::Rung;
use gpumem_engine::quantity::counted;
use serde_json::{Value, json};

use super::cluster::{Cluster, Error};
use super::seen::{self, Seen};
use super::table::{Output, Style, colored, document};
use super::text::{UNKNOWN, bar, bytes, percent, rate, sparkline, thinned, time};
use crate::api::policy::{ActionType, GpuMemoryPolicy, PolicyMode};
use crate::api::profile::GpuMemoryProfile;
use crate::api::view::{ContainerView, Level, NOT_STARTED};
use crate::cli::Shown;
use crate::cli::page::wrap;

mod remedy;

/// Where the text of a line begins.
const INDENT: usize = 14;

/// Explain the risk of one pod.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The pod: pod/NAME or NAME.
    #[arg(value_parser = pod)]
    pub pod: String,
    /// Only this container.
    #[arg(short, long)]
    pub container: Option<String>,
}

/// The name of a pod, with or without its kind. Other kinds are refused before a cluster is asked for a pod of that name.
fn pod(text: &str) -> Result<String, String> {
    match text.split_once('/') {
        None | Some(("pod" | "pods" | "po", _)) => Ok(text.to_owned()),
        Some((kind, _)) => Err(format!(
            "only pods are explained, not {kind}; `kubectl gpumem top workloads` names the worst pod of each workload"
        )),
    }
}

/// Refuses the form that a page does not have, before a cluster is asked.
pub fn takes(output: Output) -> Result<(), Error> {
    match output {
        Output::Csv => Err(Error::Form { what: "explain", takes: "table, wide, json or yaml" }),
        Output::Table | Output::Wide | Output::Json | Output::Yaml => Ok(()),
    }
}

/// One page.
pub async fn run(cluster: &Cluster, args: &Args, output: Output, style: Style) -> Result<Shown, Error> {
    takes(output)?;
    let name = args.pod.trim_start_matches("pods/").trim_start_matches("pod/").trim_start_matches("po/");
    let namespace = cluster.namespace.clone().unwrap_or_default();
    let (mut seen, _) = seen::containers(cluster, &format!("?namespace={namespace}&pod={name}&series=1")).await?;
    seen.containers.retain(|view| {
        view.pod == name && args.container.as_ref().is_none_or(|container| *container == view.container)
    });
    let mut not_seen = std::mem::take(&mut seen.not_seen);
    let policies = cluster.policies(&mut not_seen).await;
    let policies = policies.unwrap_or_else(|error| without(&mut not_seen, &error));
    let profiles = cluster.profiles(&mut not_seen).await;
    let profiles = profiles.unwrap_or_else(|error| without(&mut not_seen, &error));
    if seen.containers.is_empty() {
        // Whether it will fit is known before it starts.
        seen.containers.extend(std::mem::take(&mut seen.waiting).into_iter().filter(|view| view.pod == name));
        let is_asked = |view: &ContainerView| args.container.as_ref().is_none_or(|wanted| *wanted == view.container);
        seen.containers.retain(|view| view.container.is_empty() || is_asked(view));
    }
    if seen.containers.is_empty() {
        // It may have died of what it is asked about.
        seen.containers = remedy::dead(name, &namespace, args.container.as_deref(), &profiles);
    }
    if seen.containers.is_empty() {
        return Err(missing(name, &namespace, args, &seen, not_seen));
    }
    let pages: Vec<Page<'_>> = seen.containers.iter().map(|view| page(view, &policies, &profiles)).collect();
    if !matches!(output, Output::Table | Output::Wide) {
        let items: Vec<Value> = pages.iter().map(Page::json).collect();
        return Ok(Shown::fine(document(&super::table::envelope("Explanation", &items, &not_seen), output)));
    }
    let texts: Vec<String> = pages.iter().map(|page| page.text(style.of(output))).collect();
    Ok(Shown { text: texts.join("\n"), notes: not_seen, code: crate::cli::FINE })
}

/// Nothing of a kind, and a note why; the same thing is not said twice.
fn without<K>(not_seen: &mut Vec<String>, error: &Error) -> Vec<K> {
    let line = error.line();
    if !not_seen.contains(&line) {
        not_seen.push(line);
    }
    Vec::new()
}

/// Without live data nobody knows whether the pod is there: policies list those most at risk only.
fn missing(name: &str, namespace: &str, args: &Args, seen: &Seen, not_seen: Vec<String>) -> Error {
    let container = args.container.as_ref().map(|name| format!("container {name} of ")).unwrap_or_default();
    let what = format!("GPU memory of {container}pod {namespace}/{name}");
    if seen.is_live { Error::NotFound { what } } else { Error::Unseen { what, why: not_seen } }
}

/// What is known of one container.
struct Page<'a> {
    view: &'a ContainerView,
    policy: Option<&'a GpuMemoryPolicy>,
    profile: Option<&'a GpuMemoryProfile>,
}

fn page<'a>(view: &'a ContainerView, policies: &'a [GpuMemoryPolicy], profiles: &'a [GpuMemoryProfile]) -> Page<'a> {
    let named = |policy: &&GpuMemoryPolicy| policy.metadata.name.as_ref() == view.policy.as_ref();
    // A replica that does not lead knows no policy; the statuses may name the pod.
    let in_status = |policy: &&GpuMemoryPolicy| {
        let workloads = policy.status.iter().flat_map(|status| &status.workloads);
        workloads.into_iter().any(|workload| workload.pod.as_deref() == Some(view.pod.as_str()))
    };
    let policy = match &view.policy {
        Some(_) => policies.iter().find(named),
        None => policies.iter().find(in_status),
    };
    let by_owner = |profile: &&GpuMemoryProfile| {
        let workload = &profile.spec.workload;
        let is_owner = view.owner.as_ref().is_some_and(|owner| {
            // The pod's controller may be a ReplicaSet, the workload is its Deployment.
            workload.name == owner.name
                || owner.name.strip_prefix(workload.name.as_str()).is_some_and(|rest| rest.starts_with('-'))
        });
        let statuses = || profile.status.iter();
        let in_actions = statuses().flat_map(|status| &status.actions).any(|action| action.pod == view.pod);
        let in_ooms = statuses().flat_map(|status| &status.ooms).any(|oom| oom.pod == view.pod);
        is_owner || in_actions || in_ooms
    };
    Page { view, policy, profile: profiles.iter().find(by_owner) }
}

impl Page<'_> {
    fn text(&self, style: Style) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut out, style);
        out
    }

    fn write(&self, text: &mut String, style: Style) -> std::fmt::Result {
        let view = self.view;
        let out = &mut Lines { text, style, width: style.page() };
        let level = colored(&view.level.name().to_uppercase(), view.level, style);
        // A pod that waits may not say which of its containers the job runs in.
        let container =
            if view.container.is_empty() { String::new() } else { format!(", container {}", view.container) };
        out.plain(&format!("Pod {}/{}{container}", view.namespace, view.pod))?;
        match to_limit(view) {
            // Its own limit comes first: what the device has left saves it from nothing.
            Some(meets) => out.plain(&format!("{meets}. The device: {level}, {}", headline(view)))?,
            None => out.plain(&format!("{level}: {}", headline(view)))?,
        }
        out.gap()?;
        out.line("why", &view.reason)?;
        if let Some(unknown) = &view.unknown {
            let waits = if unknown == NOT_STARTED { " (it holds no GPU memory yet)" } else { "" };
            out.line("unknown", &format!("no forecast: {unknown}{waits}"))?;
        }
        if !view.class.is_empty() {
            out.line("class", &format!("{} ({})", view.class, meaning(&view.class)))?;
        }
        memory(out, view)?;
        if view.growth_bytes_per_second.is_some() {
            out.line("growth", &rate(view.growth_bytes_per_second))?;
        }
        if let Some(limit) = view.limit_bytes {
            let meets = match view.seconds_to_limit {
                Some(0.0) => "it has met it: its next allocation fails, whatever the device has left".to_owned(),
                Some(seconds) => format!(
                    "at this growth it meets it in {}: its own allocation fails there, whatever the device has left",
                    time(seconds)
                ),
                None => "it does not grow towards it".to_owned(),
            };
            let more = if view.seconds_to_limit.is_some() {
                "; if it needs more, raise growthLimit.ceiling of its policy, else mend its growth"
            } else {
                ""
            };
            out.line(
                "limit",
                &format!("held to {}; {meets}. The forecast is of the device{more}", bytes(Some(limit))),
            )?;
        }
        if !view.probability_by_horizon.is_empty() {
            let horizons = view.probability_by_horizon.iter();
            let texts: Vec<String> = horizons
                .map(|(seconds, share)| format!("{} within {}", percent(Some(*share)), time(f64::from(*seconds))))
                .collect();
            out.line("P(OOM)", &texts.join(", "))?;
        }
        if let Some(age) = view.sample_age_seconds {
            out.line("sample", &format!("{} old, node {}", time(age), view.node))?;
        }
        if let Some(declared) = &view.declared {
            out.line("declared", &remedy::declared(declared))?;
        }
        out.gap()?;
        self.policy_text(out)?;
        self.profile_text(out)?;
        let profile = self.profile.and_then(|profile| profile.status.as_ref());
        remedy::lines(view, profile).iter().try_for_each(|advice| out.line("do", advice))
    }

    fn policy_text(&self, out: &mut Lines<'_>) -> std::fmt::Result {
        let Some(policy) = self.policy else {
            return out.line(
                "policy",
                "none is known to govern it: levels are those of a policy with every default, and nothing is done",
            );
        };
        let spec = &policy.spec;
        let name = policy.metadata.name.as_deref().unwrap_or_default();
        let (act, clear) = (spec.prediction.act, spec.prediction.clear);
        out.line(
            "policy",
            &format!(
                "{name}, mode {:?}: risk is High at {} % within {} held for {}, over at {} % held for {}",
                spec.mode,
                act.probability_percent,
                time(f64::from(spec.prediction.horizon_seconds)),
                time(f64::from(act.for_seconds)),
                clear.probability_percent,
                time(f64::from(clear.for_seconds))
            ),
        )?;
        out.line("would do", &would(policy, self.view.level))?;
        let conditions = policy.status.iter().flat_map(|status| &status.conditions);
        let mut stops = Vec::new();
        for condition in conditions {
            // AtRisk is the good news when False; the others are when True.
            // That nothing was done yet stops nothing.
            let is_fine =
                (condition.type_ == "AtRisk") != (condition.status == "True") || condition.reason == "NoActions";
            if condition.type_ == "AtRisk" {
                out.line("at risk", &format!("{}: {}", condition.status, condition.message))?;
            } else if !is_fine {
                stops.push(format!(
                    "{} is {} ({}): {}",
                    condition.type_, condition.status, condition.reason, condition.message
                ));
            }
        }
        if stops.is_empty() {
            let known = policy.status.as_ref().is_some_and(|status| !status.conditions.is_empty());
            out.line("stopped by", if known { "nothing" } else { "not known: the policy has no status yet" })?;
        }
        for stop in &stops {
            out.line("stopped by", stop)?;
        }
        let last =
            policy.status.iter().flat_map(|status| &status.recent_actions).find(|action| action.pod == self.view.pod);
        if let Some(last) = last {
            let dry = if last.dry_run { ", dry run" } else { "" };
            out.line(
                "last action",
                &format!("{:?} at {}: {}{dry}; {}", last.action, last.time, last.outcome, last.message),
            )?;
        }
        Ok(())
    }

    fn profile_text(&self, out: &mut Lines<'_>) -> std::fmt::Result {
        let Some((profile, status)) = self.profile.and_then(|profile| Some((profile, profile.status.as_ref()?))) else {
            return Ok(());
        };
        let workload = &profile.spec.workload;
        let peak = bytes(status.peak_bytes.and_then(|peak| u64::try_from(peak).ok()));
        let next =
            status.next_allowed_time.as_ref().map_or(String::new(), |time| format!(", next action not before {time}"));
        out.line(
            "remembered",
            &format!(
                "{} {}: peak {peak}, {} within 24 h{next}",
                workload.kind,
                workload.name,
                counted(status.attempts, "disrupting action", "disrupting actions")
            ),
        )?;
        remedy::learned(status).iter().try_for_each(|(name, text)| out.line(name, text))
    }

    fn json(&self) -> Value {
        let policy = self.policy.map(|policy| {
            json!({
                "name": policy.metadata.name, "mode": policy.spec.mode, "prediction": policy.spec.prediction,
                "actions": policy.spec.actions, "wouldDo": would(policy, self.view.level),
                "conditions": policy.status.as_ref().map(|status| &status.conditions),
                "recentActions": policy.status.as_ref().map(|status| &status.recent_actions),
            })
        });
        let profile = self.profile.map(|profile| json!({"workload": profile.spec.workload, "status": profile.status}));
        json!({ "container": self.view, "policy": policy, "profile": profile })
    }
}

/// That it meets the limit that holds it before its device is full.
fn to_limit(view: &ContainerView) -> Option<String> {
    let (limit, seconds) = view.limit_bytes.zip(view.seconds_to_limit)?;
    if view.seconds_to_oom.is_some_and(|oom| view.level > Level::Low && oom.q50 < seconds) {
        return None;
    }
    let limit = bytes(Some(limit));
    let policy = view.policy.as_ref().map(|name| format!(" (policy {name})")).unwrap_or_default();
    Some(if seconds > 0.0 {
        format!(
            "Meets its growth limit of {limit} in about {}: its own allocation will fail there{policy}",
            time(seconds)
        )
    } else {
        format!("Has met its growth limit of {limit}: its next allocation fails{policy}")
    })
}

fn headline(view: &ContainerView) -> String {
    if view.unknown.as_deref() == Some(NOT_STARTED) && view.level >= Level::High {
        return "will run out of memory once it starts".to_owned();
    }
    match (view.seconds_to_oom, view.level) {
        (Some(quantiles), Level::Elevated | Level::High | Level::Critical) => {
            let between = match (quantiles.q10, quantiles.q90) {
                (Some(early), Some(late)) => format!(" (80 % between {} and {})", time(early), time(late)),
                _ => String::new(),
            };
            format!("out of memory in about {}{between}", time(quantiles.q50))
        }
        (None, Level::Elevated | Level::High | Level::Critical) => {
            "out of memory expected, at no time that could be named".to_owned()
        }
        (_, Level::Low) => "no out-of-memory expected".to_owned(),
        (_, Level::Unknown) => "no forecast".to_owned(),
    }
}

fn memory(out: &mut Lines<'_>, view: &ContainerView) -> std::fmt::Result {
    let Some(used) = view.used_bytes else {
        if view.unknown.as_deref() == Some(NOT_STARTED) {
            let most = bytes(view.capacity_bytes);
            return out.line("memory", &format!("none yet; at most {most}, on GPU {} ({})", view.gpu, view.model));
        }
        return out.line("memory", &format!("not seen; peak {}", bytes(view.peak_bytes)));
    };
    out.line(
        "memory",
        &format!(
            "{} of {} on GPU {} ({}), peak {}; all on that GPU {}",
            Some(used).map_or(UNKNOWN.to_owned(), |used| bytes(Some(used))),
            bytes(view.capacity_bytes),
            view.gpu,
            view.model,
            bytes(view.peak_bytes),
            bytes(view.device_used_bytes)
        ),
    )?;
    if let Some(capacity) = view.capacity_bytes {
        let legend = "█ its own ▒ others ░ free";
        let cells = out.room().saturating_sub(1 + legend.chars().count()).min(60);
        let drawn = bar(used, view.device_used_bytes.unwrap_or(used), capacity, cells.max(10));
        out.line("", &format!("{drawn} {legend}"))?;
    }
    if let (Some(first), Some(last)) = (view.series.first(), view.series.last()) {
        let values: Vec<u64> = view.series.iter().map(|point| point.used_bytes).collect();
        let (low, high) = (values.iter().min().copied(), values.iter().max().copied());
        let span = time(first.age_seconds - last.age_seconds);
        let range = format!("{span}, {} to {}", bytes(low), bytes(high));
        let cells = out.room().saturating_sub(1 + range.chars().count());
        out.line("history", &format!("{} {range}", sparkline(&thinned(&values, cells.max(10)))))?;
    }
    Ok(())
}

fn rung(action: ActionType) -> Rung {
    match action {
        ActionType::Notify => Rung::Notify,
        ActionType::LimitGrowth => Rung::LimitGrowth,
        ActionType::Scale => Rung::Scale,
        ActionType::Checkpoint => Rung::Checkpoint,
        ActionType::SuspendToHost => Rung::SuspendToHost,
        ActionType::SuspendWorkload => Rung::SuspendWorkload,
        ActionType::Evict => Rung::Evict,
    }
}

/// What the policy does at this level.
fn would(policy: &GpuMemoryPolicy, level: Level) -> String {
    let rungs: Vec<Rung> = policy.spec.actions.iter().map(|action| rung(action.action)).collect();
    let actions = super::ladder::sentence(&rungs);
    let when = if level >= Level::High { "now" } else { "once it is High" };
    match policy.spec.mode {
        PolicyMode::Observe => format!("nothing but report: mode is Observe (in Enforce, {when}: {actions})"),
        PolicyMode::DryRun => format!("{when}, with dryRun=All, so that nothing changes: {actions}"),
        PolicyMode::Enforce => format!("{when}: {actions}"),
    }
}

fn meaning(class: &str) -> &'static str {
    match class {
        "WarmUp" => "started recently; growth means nothing yet",
        "Plateau" => "flat",
        "Leak" => "lasting growth of live memory",
        "Fragmentation" => "growth of what the allocator holds, not of what is live",
        "Peak" => "isolated high-water marks",
        "Periodic" => "rises and falls with a period",
        "Pool" => "a preallocated pool; its inside is invisible",
        "RestartLoop" => "dies of OOM at the same peak again and again",
        "Load" => "moves up and down with load",
        _ => "not enough is known",
    }
}

/// Lines of a page: a name, and a text that hangs beside it.
struct Lines<'a> {
    text: &'a mut String,
    style: Style,
    width: usize,
}

impl Lines<'_> {
    fn line(&mut self, name: &str, text: &str) -> std::fmt::Result {
        // Pale, so that the eye finds the texts; the colour of what is unknown is the pale one.
        let name = colored(&format!("{name:<12}"), Level::Unknown, self.style);
        writeln!(self.text, "  {name}{}", wrap(text, self.width, INDENT))
    }

    fn plain(&mut self, text: &str) -> std::fmt::Result {
        writeln!(self.text, "{}", wrap(text, self.width, 0))
    }

    fn gap(&mut self) -> std::fmt::Result {
        writeln!(self.text)
    }

    /// Characters that a text beside a name may take.
    fn room(&self) -> usize {
        self.width.min(crate::cli::page::WIDEST).saturating_sub(INDENT)
    }
}

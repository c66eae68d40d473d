//! `doctor`: is everything there that forecasts and actions need, and may you see it? Flows in: the cluster. Flows out: one
//! line per check with what to do about it, and an exit code for CI.

use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde::Serialize;

use gpumem_engine::quantity::counted;

use super::cluster::{Cluster, Error, Operator, argument, is_ready};
use super::seen::SILENT;
use super::table::{Output, Style, colored, csv, document, envelope};
use super::text::{few, time};
use crate::api::view::{AbilityView, Level, NodeList, NodeView};
use crate::cli::page::wrap;
use crate::cli::{FAILED, FINE, NO, Shown};

/// A lease that was not renewed for this long has no holder.
const LEASE_ENDS: i64 = 15;
/// What is said where nothing of the installation could be seen.
const BLIND: &str = "nothing of the installation could be seen with your rights: whether it works is not known";

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Could not be looked at.
    NotSeen,
    /// Works, but look at it.
    Warning,
    /// Does not work.
    Failed,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// Name; stable.
    pub check: &'static str,
    /// What was found.
    pub verdict: Verdict,
    /// In words.
    pub found: String,
    /// What to do; empty where nothing is to be done.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fix: String,
}

fn check(check: &'static str, verdict: Verdict, found: impl Into<String>, fix: impl Into<String>) -> Check {
    Check { check, verdict, found: found.into(), fix: fix.into() }
}

fn not_seen(name: &'static str, error: &Error) -> Check {
    let verdict = match error {
        Error::Forbidden { .. } => Verdict::NotSeen,
        _ => Verdict::Failed,
    };
    check(name, verdict, error.to_string(), error.fix())
}

/// All checks.
pub async fn run(cluster: &Cluster, now: Timestamp, output: Output, style: Style) -> Result<Shown, Error> {
    let version = cluster.client.apiserver_version().await;
    let version = version.map_err(|error| Error::of("the API server's version", "get /version", error))?;
    let mut checks = vec![check("api", Verdict::Ok, format!("Kubernetes {}", version.git_version), "")];
    checks.extend(definitions(cluster).await);
    let operator = cluster.operator().await;
    checks.extend(rights(cluster, operator.as_ref().ok()).await);
    match &operator {
        Err(error) => checks.push(not_seen("controllers", error)),
        Ok(operator) => {
            checks.push(controllers(operator));
            checks.push(leader(operator, now));
            checks.push(brake(cluster, operator).await);
            let agents = cluster.pods("agent").await;
            let nodes = cluster.nodes(operator).await;
            checks.push(match &agents {
                Ok(agents) => self::agents(agents),
                Err(error) => not_seen("agents", error),
            });
            match &nodes {
                Ok(nodes) => {
                    checks.push(reports(nodes, agents.as_deref().unwrap_or_default()));
                    checks.push(nvml(nodes));
                    checks.extend(holds(nodes));
                    checks.push(versions(operator, nodes));
                }
                Err(error) => checks.push(not_seen("live data", error)),
            }
        }
    }
    let worst = checks.iter().map(|check| check.verdict).max().unwrap_or(Verdict::Ok);
    let items: Vec<_> = checks.iter().filter_map(|check| serde_json::to_value(check).ok()).collect();
    // Your rights and the server's version say nothing of the installation.
    let of_installation = || checks.iter().filter(|check| !matches!(check.check, "api" | "right"));
    let is_blind = of_installation().all(|check| check.verdict == Verdict::NotSeen);
    let notes: Vec<String> = is_blind.then(|| BLIND.to_owned()).into_iter().collect();
    let code = match worst {
        Verdict::Failed => NO,
        _ if is_blind => FAILED,
        _ => FINE,
    };
    let text = match output {
        Output::Table | Output::Wide => checks.iter().map(|check| line(check, style.of(output))).collect(),
        Output::Csv => csv(&["check", "verdict", "found", "fix"], &items),
        Output::Json | Output::Yaml => document(&envelope("Diagnosis", &items, &notes), output),
    };
    Ok(Shown { text, notes, code })
}

fn line(check: &Check, style: Style) -> String {
    let (mark, level) = match check.verdict {
        Verdict::Ok => ("ok    ", Level::Low),
        Verdict::NotSeen => ("unseen", Level::Unknown),
        Verdict::Warning => ("look  ", Level::Elevated),
        Verdict::Failed => ("FAILED", Level::Critical),
    };
    let mut text =
        format!("{}  {:<12}{}\n", colored(mark, level, style), check.check, wrap(&check.found, style.page(), 20));
    if !check.fix.is_empty() {
        text.extend([" ".repeat(20), "fix: ".to_owned(), wrap(&check.fix, style.page(), 25), "\n".to_owned()]);
    }
    text
}

async fn definitions(cluster: &Cluster) -> Vec<Check> {
    let api: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let mut checks = Vec::new();
    for (_, wanted) in crate::api::crd::all() {
        let name = wanted.name_any();
        checks.push(match api.get(&name).await {
            Ok(found) => definition(&name, &found, &wanted),
            Err(error) => {
                let error = Error::of(&name, format!("get customresourcedefinition {name}"), error);
                let mut seen = not_seen("crd", &error);
                if matches!(error, Error::NotFound { .. }) {
                    "install the chart, or look at your context".clone_into(&mut seen.fix);
                }
                seen
            }
        });
    }
    checks
}

fn definition(name: &str, found: &CustomResourceDefinition, wanted: &CustomResourceDefinition) -> Check {
    let conditions = found.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_established =
        conditions.into_iter().any(|condition| condition.type_ == "Established" && condition.status == "True");
    let properties = |definition: &CustomResourceDefinition| {
        let version = definition.spec.versions.iter().find(|version| version.name == crate::api::names::VERSION);
        let schema = version.and_then(|version| version.schema.as_ref()?.open_api_v3_schema.as_ref());
        serde_json::to_value(schema).unwrap_or_default().pointer("/properties/spec/properties").map(|fields| {
            fields.as_object().map(|fields| fields.keys().cloned().collect::<Vec<_>>()).unwrap_or_default()
        })
    };
    let reinstall = "apply the CRDs of this version: kubectl apply --server-side -f crds/ (Helm does not update CRDs)";
    match (is_established, properties(found), properties(wanted)) {
        (false, ..) => {
            check("crd", Verdict::Failed, format!("{name} is not established"), "kubectl describe crd, conditions")
        }
        (_, None, _) => {
            let found = format!("{name} does not serve {}", crate::api::names::VERSION);
            check("crd", Verdict::Failed, found, reinstall)
        }
        (_, Some(found), Some(wanted)) if wanted.iter().any(|field| !found.contains(field)) => {
            let missing: Vec<&str> = wanted.iter().filter(|field| !found.contains(field)).map(String::as_str).collect();
            let found = format!("{name} is older than this plugin: no {}", missing.join(", "));
            check("crd", Verdict::Warning, found, reinstall)
        }
        _ => check("crd", Verdict::Ok, format!("{name} established"), ""),
    }
}

/// What each right is for; all of them are your own, not the operator's.
async fn rights(cluster: &Cluster, operator: Option<&Operator>) -> Vec<Check> {
    let own = cluster.namespace.as_deref();
    let theirs = operator.map(|operator| operator.namespace.as_str());
    let wanted = [
        ("list", "gpumem.dev", "gpumemorypolicies", "", own, "see policies and their statuses"),
        ("list", "gpumem.dev", "gpumemoryprofiles", "", own, "see what is remembered of workloads"),
        ("get", "", "pods", "proxy", theirs, "see live data (top, explain)"),
        ("patch", "", "configmaps", "", theirs, "pause and resume"),
    ];
    let api: Api<SelfSubjectAccessReview> = Api::all(cluster.client.clone());
    let mut checks = Vec::new();
    for (verb, group, resource, subresource, namespace, what_for) in wanted {
        let attributes = ResourceAttributes {
            verb: Some(verb.to_owned()),
            group: Some(group.to_owned()),
            resource: Some(resource.to_owned()),
            subresource: Some(subresource.to_owned()).filter(|text| !text.is_empty()),
            namespace: namespace.map(str::to_owned),
            ..ResourceAttributes::default()
        };
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() },
            ..Default::default()
        };
        let full = if subresource.is_empty() { resource.to_owned() } else { format!("{resource}/{subresource}") };
        let place = namespace.map_or("all namespaces".to_owned(), |name| format!("namespace {name}"));
        let right = format!("{verb} {full} in {place}");
        checks.push(match api.create(&PostParams::default(), &review).await {
            Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => {
                check("right", Verdict::Ok, format!("you may {right}: {what_for}"), "")
            }
            Ok(_) => check(
                "right",
                Verdict::NotSeen,
                format!("you may not {right}: needed to {what_for}"),
                format!("ask an administrator for a role with {right}"),
            ),
            Err(error) => not_seen("right", &Error::of(format!("whether you may {right}"), "ask", error)),
        });
    }
    checks
}

fn controllers(operator: &Operator) -> Check {
    let Operator { namespace, controllers, .. } = operator;
    let ready = controllers.iter().filter(|pod| is_ready(pod)).count();
    let found = format!(
        "{ready} of {} Ready in namespace {namespace}",
        counted(controllers.len(), "controller", "controllers")
    );
    match ready {
        0 => check(
            "controllers",
            Verdict::Failed,
            found,
            format!(
                "kubectl -n {namespace} describe pod {}",
                controllers.first().map(ResourceExt::name_any).unwrap_or_default()
            ),
        ),
        ready if ready < controllers.len() => {
            check("controllers", Verdict::Warning, found, format!("kubectl -n {namespace} get pods"))
        }
        _ => check("controllers", Verdict::Ok, found, ""),
    }
}

fn leader(operator: &Operator, now: Timestamp) -> Check {
    let Some(spec) = operator.lease.as_ref().and_then(|lease| lease.spec.as_ref()) else {
        return check(
            "leader",
            Verdict::NotSeen,
            "the Lease could not be read",
            "ask for get on leases of its namespace",
        );
    };
    let age = spec.renew_time.as_ref().map(|renewed| now.as_second() - renewed.0.as_second());
    match (spec.holder_identity.as_deref().filter(|holder| !holder.is_empty()), age) {
        (Some(holder), Some(age)) if age <= LEASE_ENDS => check("leader", Verdict::Ok, format!("{holder} leads"), ""),
        (Some(holder), Some(age)) => check(
            "leader",
            Verdict::Failed,
            format!("{holder} did not renew its Lease for {}: nobody acts", time(age as f64)),
            "look at the controllers' logs; is this machine's clock right?",
        ),
        _ => check("leader", Verdict::Failed, "nobody leads: nobody acts", "look at the controllers' logs"),
    }
}

async fn brake(cluster: &Cluster, operator: &Operator) -> Check {
    let namespace = &operator.namespace;
    let max_mode = operator.controllers.iter().find_map(|pod| argument(pod, "--max-mode"));
    let max_mode = max_mode.unwrap_or_else(|| "Observe".to_owned());
    let Some(name) = operator.controllers.iter().find_map(|pod| argument(pod, "--ledger")) else {
        return check(
            "brake",
            Verdict::NotSeen,
            "no controller names its ledger",
            "is this chart older than the plugin?",
        );
    };
    let api: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), namespace);
    match api.get_opt(&name).await {
        Err(error) => not_seen(
            "brake",
            &Error::of(format!("ledger {namespace}/{name}"), format!("get configmap {namespace}/{name}"), error),
        ),
        Ok(ledger) => {
            let data = ledger.and_then(|ledger| ledger.data).unwrap_or_default();
            match data.get("pause").map(|text| text.trim()).filter(|text| !text.is_empty()) {
                Some(why) => check("brake", Verdict::Warning, format!("paused: {why}"), "kubectl gpumem resume"),
                None => check("brake", Verdict::Ok, format!("not paused; no policy goes further than {max_mode}"), ""),
            }
        }
    }
}

fn agents(agents: &[Pod]) -> Check {
    let node =
        |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_else(|| "no node".into());
    let down: Vec<String> = agents.iter().filter(|pod| !is_ready(pod)).map(node).collect();
    let found = format!("{} of {} Ready", agents.len() - down.len(), counted(agents.len(), "agent", "agents"));
    if agents.is_empty() {
        return check(
            "agents",
            Verdict::Failed,
            "no agent runs",
            "look at the DaemonSet: its node selector matches no node?",
        );
    }
    if down.is_empty() {
        return check("agents", Verdict::Ok, found, "");
    }
    let fix = "kubectl describe that pod; containers of its node are unknown until it is back, never safe";
    check("agents", Verdict::Failed, format!("{found}; not on {}", few(&down)), fix)
}

fn reports(nodes: &NodeList, agents: &[Pod]) -> Check {
    let silent: Vec<String> = nodes
        .nodes
        .iter()
        .filter(|node| node.report_age_seconds > SILENT)
        .map(|node| format!("{} ({})", node.node, time(node.report_age_seconds)))
        .collect();
    let heard = |pod: &&Pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        nodes.nodes.iter().any(|known| Some(known.node.as_str()) == node)
    };
    let never: Vec<String> = agents
        .iter()
        .filter(|pod| is_ready(pod) && !heard(pod))
        .filter_map(|pod| pod.spec.as_ref()?.node_name.clone())
        .collect();
    if silent.is_empty() && never.is_empty() {
        return check("reports", Verdict::Ok, counted(nodes.nodes.len(), "node reports", "nodes report"), "");
    }
    let mut found = Vec::new();
    if !silent.is_empty() {
        found.push(format!("silent: {}", few(&silent)));
    }
    if !never.is_empty() {
        found.push(format!("never heard: {}", few(&never)));
    }
    check(
        "reports",
        Verdict::Failed,
        found.join("; "),
        "a NetworkPolicy between controller and agents, or certificates: see gpumem_controller_pulls_total by outcome",
    )
}

fn nvml(nodes: &NodeList) -> Check {
    let down: Vec<String> = nodes
        .nodes
        .iter()
        .filter(|node| node.nvml == "Down")
        .map(|node| format!("{} ({})", node.node, node.nvml_detail))
        .collect();
    let devices: Vec<_> = nodes.nodes.iter().flat_map(|node| &node.devices).collect();
    let blind = devices.iter().filter(|device| device.attribution == "Unavailable").count();
    if !down.is_empty() {
        let fix = "nvidia-smi on that node; the agent keeps trying";
        return check("nvml", Verdict::Failed, format!("NVML fails on {}", few(&down)), fix);
    }
    if blind > 0 {
        return check(
            "nvml",
            Verdict::Failed,
            format!(
                "memory of {blind} of {} cannot be split by container",
                counted(devices.len(), "device", "devices")
            ),
            "kubectl gpumem top gpus -o wide; mostly the agent lacks hostPID",
        );
    }
    let simulated = nodes.nodes.iter().filter(|node| node.simulated).count();
    let note = if simulated > 0 {
        format!("; {} a SIMULATED driver", counted(simulated, "node has", "nodes have"))
    } else {
        String::new()
    };
    let verdict = if devices.is_empty() { Verdict::Warning } else { Verdict::Ok };
    let (devices, nodes) = (counted(devices.len(), "device", "devices"), counted(nodes.nodes.len(), "node", "nodes"));
    check("nvml", verdict, format!("{devices} on {nodes}{note}"), "")
}

/// Whether what policies may ask for works, where the chart asks for it.
fn holds(nodes: &NodeList) -> Vec<Check> {
    let one = |name: &'static str, what: &str, of: fn(&NodeView) -> Option<&AbilityView>| {
        let able: Vec<_> = nodes.nodes.iter().filter_map(|node| Some((node, of(node)?))).collect();
        let failing: Vec<_> = able.iter().filter(|(_, ability)| !ability.works).collect();
        let (_, first) = able.first()?;
        let working = able.len() - failing.len();
        let untried: Vec<_> = able.iter().filter(|(_, ability)| is_untried(ability)).collect();
        let Some((node, ability)) = failing.first() else {
            // What was not tried is not said to hold.
            if let Some((node, ability)) = untried.first() {
                let names: Vec<String> = untried.iter().map(|(node, _)| node.node.clone()).collect();
                let found = format!("whether {what} is not known on {}: {}", few(&names), ability.detail);
                let fix = format!("the log of the agent on {} (docs/limits.md says what it needs)", node.node);
                return Some(check(name, Verdict::Warning, found, fix));
            }
            let nodes = counted(working, "node", "nodes");
            return Some(check(name, Verdict::Ok, format!("{what} on {nodes}, by {}", first.detail), ""));
        };
        let names: Vec<String> = failing.iter().map(|(node, _)| node.node.clone()).collect();
        let found = format!("{what} on {working} of {} nodes; not on {}", able.len(), few(&names));
        let fix = format!("{}: {} (docs/limits.md says what each needs)", node.node, ability.detail);
        Some(check(name, Verdict::Warning, found, fix))
    };
    [
        one("limits", "memory limits hold", |node| node.limits.as_ref()),
        one("suspend", "containers can be moved to host memory", |node| node.suspend.as_ref()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Whether an agent says that something works which it could not try.
fn is_untried(ability: &AbilityView) -> bool {
    ability.works && ability.detail.contains(", not tried: ")
}

fn versions(operator: &Operator, nodes: &NodeList) -> Check {
    let own = env!("CARGO_PKG_VERSION");
    let controller = nodes.controller.version.as_str();
    let mut agents: Vec<&str> = nodes.nodes.iter().map(|node| node.agent_version.as_str()).collect();
    agents.sort_unstable();
    agents.dedup();
    let found = format!("plugin {own}, controller {controller}, agents {}", agents.join(" and "));
    if controller == own && agents.iter().all(|version| *version == own) {
        check("versions", Verdict::Ok, found, "")
    } else {
        let fix = format!("finish the rollout in namespace {}, or update the plugin", operator.namespace);
        check("versions", Verdict::Warning, found, fix)
    }
}

//! What the Prometheus Operator makes of the chart's objects: scrape jobs of its PodMonitors or ServiceMonitors, a rule file of
//! its PrometheusRule. The chart is rendered by Helm, so a selector or a rule that does not fit is found here.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::world::World;
use crate::story::frame::RELEASE_NAMESPACE;

/// Which of the chart's monitors say what is scraped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Pods by their labels.
    PodMonitor,
    /// Services by their labels, and the pods behind them.
    ServiceMonitor,
}

impl Kind {
    /// The objects of the chart that scrape so, once a second; with ServiceMonitors their Services too.
    pub fn rendered(self, world: &World) -> Result<Vec<Value>> {
        let switch = match self {
            Self::PodMonitor => "podMonitor",
            Self::ServiceMonitor => "serviceMonitor",
        };
        let values = ["enabled=true", "interval=1s", "scrapeTimeout=1s"];
        let mut values = values.map(|value| format!("monitoring.{switch}.{value}")).to_vec();
        if self == Self::ServiceMonitor {
            values.push("monitoring.podMonitor.enabled=false".to_owned());
        }
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        rendered(world, "templates/monitoring.yaml", &values)
    }
}

/// Objects of a template of the chart, rendered for the release that is installed.
pub fn rendered(world: &World, template: &str, values: &[&str]) -> Result<Vec<Value>> {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/gpu-memory-operator");
    let mut arguments = vec!["helm", "template", "gpumem", chart, "--namespace", RELEASE_NAMESPACE];
    arguments.extend(["--show-only", template]);
    for value in values {
        arguments.extend(["--set", value]);
    }
    let text = world.cluster(&arguments)?;
    let objects = text.split("\n---").map(|part| serde_yaml::from_str::<Value>(part.trim_start_matches("---")));
    let objects: Vec<Value> = objects.collect::<Result<_, _>>().with_context(|| format!("{template} is no YAML"))?;
    Ok(objects.into_iter().filter(Value::is_object).collect())
}

/// The scrape jobs of monitors, with the labels that the Prometheus Operator gives.
pub fn jobs(monitors: &[Value], kubeconfig: &str) -> Result<Vec<Value>> {
    let mut jobs = Vec::new();
    for monitor in monitors.iter().filter(|object| object["kind"] != "Service") {
        let (role, selected, port, endpoints) = match text(&monitor["kind"]) {
            "PodMonitor" => ("pod", "pod", "pod_container_port_name", "podMetricsEndpoints"),
            "ServiceMonitor" => ("endpointslice", "service", "endpointslice_port_name", "endpoints"),
            _ => bail!("no monitor: {monitor}"),
        };
        let name = format!("{}/{}", text(&monitor["metadata"]["namespace"]), text(&monitor["metadata"]["name"]));
        let spec = &monitor["spec"];
        for endpoint in spec[endpoints].as_array().context("no endpoints")? {
            let mut relabel = vec![
                json!({"source_labels": ["__meta_kubernetes_pod_phase"], "regex": "Failed|Succeeded", "action": "drop"}),
                json!({
                    "source_labels": [format!("__meta_kubernetes_{port}")],
                    "regex": endpoint["port"], "action": "keep"
                }),
            ];
            for (label, value) in spec["selector"]["matchLabels"].as_object().context("no selector")? {
                let label: String = label.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
                relabel.push(json!({
                    "source_labels": [format!("__meta_kubernetes_{selected}_label_{label}")], "regex": value, "action": "keep"
                }));
            }
            for target in ["namespace", "pod", "container"] {
                let source = if target == "namespace" { target.to_owned() } else { format!("pod_{target}_name") };
                let source = source.replace("pod_pod_", "pod_");
                relabel.push(json!({"source_labels": [format!("__meta_kubernetes_{source}")], "target_label": target}));
            }
            relabel.push(match role {
                "pod" => json!({"target_label": "job", "replacement": name}),
                _ => json!({"source_labels": ["__meta_kubernetes_service_name"], "target_label": "job"}),
            });
            relabel.push(json!({"target_label": "endpoint", "replacement": endpoint["port"]}));
            relabel.extend(endpoint["relabelings"].as_array().cloned().unwrap_or_default());
            jobs.push(json!({
                "job_name": format!("{}/{name}/{}", text(&monitor["kind"]), jobs.len()),
                "honor_labels": endpoint["honorLabels"],
                "scrape_interval": endpoint["interval"],
                "scrape_timeout": endpoint["scrapeTimeout"],
                "metrics_path": endpoint["path"],
                "kubernetes_sd_configs": [{
                    "role": role, "kubeconfig_file": kubeconfig,
                    "namespaces": {"names": spec["namespaceSelector"]["matchNames"]}
                }],
                "relabel_configs": relabel
            }));
        }
    }
    Ok(jobs)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

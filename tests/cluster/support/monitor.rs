//! What the Prometheus Operator makes of the chart's objects: scrape jobs of its PodMonitors, a rule file of its
//! PrometheusRule. The chart is rendered by Helm, so a selector or a rule that does not fit is found here.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::world::World;
use crate::story::frame::RELEASE_NAMESPACE;

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

/// The scrape jobs of PodMonitors, with the labels that the Prometheus Operator gives.
pub fn jobs(monitors: &[Value], kubeconfig: &str) -> Result<Vec<Value>> {
    let mut jobs = Vec::new();
    for monitor in monitors {
        ensure!(monitor["kind"] == "PodMonitor", "no PodMonitor: {monitor}");
        let name = format!("{}/{}", text(&monitor["metadata"]["namespace"]), text(&monitor["metadata"]["name"]));
        let spec = &monitor["spec"];
        for endpoint in spec["podMetricsEndpoints"].as_array().context("no endpoints")? {
            let mut relabel = vec![
                json!({"source_labels": ["__meta_kubernetes_pod_phase"], "regex": "Failed|Succeeded", "action": "drop"}),
                json!({
                    "source_labels": ["__meta_kubernetes_pod_container_port_name"],
                    "regex": endpoint["port"], "action": "keep"
                }),
            ];
            for (label, value) in spec["selector"]["matchLabels"].as_object().context("no selector")? {
                let label: String = label.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
                relabel.push(json!({
                    "source_labels": [format!("__meta_kubernetes_pod_label_{label}")], "regex": value, "action": "keep"
                }));
            }
            for target in ["namespace", "pod", "container"] {
                let source = if target == "namespace" { target.to_owned() } else { format!("pod_{target}_name") };
                let source = source.replace("pod_pod_", "pod_");
                relabel.push(json!({"source_labels": [format!("__meta_kubernetes_{source}")], "target_label": target}));
            }
            relabel.push(json!({"target_label": "job", "replacement": name}));
            relabel.push(json!({"target_label": "endpoint", "replacement": endpoint["port"]}));
            relabel.extend(endpoint["relabelings"].as_array().cloned().unwrap_or_default());
            jobs.push(json!({
                "job_name": format!("podMonitor/{name}/{}", jobs.len()),
                "honor_labels": endpoint["honorLabels"],
                "scrape_interval": endpoint["interval"],
                "scrape_timeout": endpoint["scrapeTimeout"],
                "metrics_path": endpoint["path"],
                "kubernetes_sd_configs": [{
                    "role": "pod", "kubeconfig_file": kubeconfig,
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

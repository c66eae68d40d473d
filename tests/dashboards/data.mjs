// A made-up day of a small cluster, as OpenMetrics text for `promtool tsdb create-blocks-from openmetrics`: every metric that
// the dashboards read, with the labels that a scrape gives it. Nothing in it was measured.
//
//   node data.mjs > day.om        NODES=200 node data.mjs > large.om (more nodes of the dullest kind, for timing)

export const END = Date.UTC(2026, 0, 15, 12, 0, 0) / 1000;
const HOURS = Number(process.env.HOURS ?? 26), STEP = 60, GIB = 2 ** 30;
const START = END - HOURS * 3600;
const extra = Math.max(0, Number(process.env.NODES ?? 3) - 3);

// Repeatable noise in [0, 1).
const noise = (...seed) => {
  let hash = 2166136261;
  for (const char of seed.join()) hash = Math.imul(hash ^ char.charCodeAt(0), 16777619);
  hash ^= hash >>> 13; hash = Math.imul(hash, 0x5bd1e995); hash ^= hash >>> 15;
  return (hash >>> 0) / 2 ** 32;
};

const nodes = [
  { name: "gpu-a", model: "NVIDIA H200", gpus: [{ total: 141 }, { total: 141 }] },
  { name: "gpu-b", model: "NVIDIA H200", gpus: [{ total: 141 }, { total: 141 }] },
  { name: "gpu-c", model: "NVIDIA A100-SXM4-80GB", gpus: [{ total: 39.5, mig: "1" }, { total: 39.5, mig: "2" }, { total: 80 }] },
];
for (let i = 0; i < extra; i++) nodes.push({ name: `gpu-x${i}`, model: "NVIDIA H200", gpus: Array.from({ length: 8 }, () => ({ total: 141 })) });

// shape(t) in GiB with t in seconds before END (so negative), or null while the container is not there.
const ramp = (from, to, begin) => (t) => (t < begin ? null : from + ((to - from) * (t - begin)) / -begin);
const pods = [
  { ns: "ml-train", kind: "Job", workload: "llama-finetune", pod: "llama-finetune-0-x7k2p", policy: "training", node: 0, gpu: 0,
    shape: (t) => (t < -5 * 3600 ? null : t < -4.8 * 3600 ? 40 : 74 + 24 * Math.max(0, t / 3600 + 2)), noise: 0.6, growth: 24, grows: -1.8 * 3600, allocator: 0.86 },
  { ns: "ml-train", kind: "Job", workload: "vision-pretrain", pod: "vision-pretrain-0-9qd4m", policy: "training", node: 0, gpu: 1,
    shape: (t) => 88 + 9 * Math.sin(t / 700), noise: 2, growth: 0, allocator: 0.9 },
  ...[0, 1].map((i) => ({ ns: "search", kind: "Deployment", workload: "vllm-chat", pod: `vllm-chat-6c9f7d5b8-${["4vwzs", "k8tqn"][i]}`, policy: "", node: 1, gpu: i,
    shape: () => (i ? 96 : 129.7), noise: 0, growth: 0 })),
  { ns: "search", kind: "Deployment", workload: "embedder", pod: "embedder-7d4b9c6f5-zz5rl", policy: "serving", node: 1, gpu: 1,
    shape: (t) => 14 + 12 * (1 + t / (26 * 3600)), noise: 0.2, growth: 12 / 26 },
  { ns: "research", kind: "StatefulSet", workload: "notebook-alice", pod: "notebook-alice-0", policy: "", node: 2, gpu: 0,
    shape: (t) => (Math.sin(t / 9000) > 0 ? 11 : 3.5), noise: 0.3, growth: 0 },
  ...[-150, -90, -40, 0].map((end, i) => ({ ns: "research", kind: "Job", workload: "diffusion-sweep", pod: `diffusion-sweep-${["a2x", "b9c", "c4d", "d1f"][i]}`, policy: "training", node: 2, gpu: 2, oom: end * 60,
    shape: (t) => { const begin = end ? (end - 30) * 60 : -26 * 60; return t < begin || t > end * 60 + 240 ? null : t > end * 60 ? 0.4 : 22 + (end ? 57 / 1800 : 52 / 1560) * (t - begin); },
    noise: 0.3, growth: 115, allocator: 0.7 })),
];
for (let i = 0; i < extra; i++) for (let gpu = 0; gpu < 8; gpu++) pods.push({ ns: `team-${i % 20}`, kind: "Job", workload: `train-${i}-${gpu}`, pod: `train-${i}-${gpu}-0`, policy: "", node: 3 + i, gpu, shape: () => 100, noise: 1, growth: 0 });

const out = [];
let size = 0;
const flush = () => { process.stdout.write(out.join("")); out.length = 0; size = 0; };
function series(name, labels, value) {
  const text = Object.entries(labels).filter(([, v]) => v !== "").map(([k, v]) => `${k}="${v}"`).join(",");
  for (let at = START; at <= END; at += STEP) {
    const v = value(at - END, at);
    if (v === null || v === undefined || Number.isNaN(v)) continue;
    out.push(`${name}{${text}} ${v} ${at}\n`);
    if (++size > 100000) flush();
  }
}
const constant = (v) => () => v;
const agent = (n) => ({ namespace: "gpumem-system", pod: `gpumem-agent-${nodes[n].name}`, container: "agent", endpoint: "metrics", job: "gpumem-system/gpumem-agent", instance: `10.0.0.${n + 1}:9400` });
const replicas = ["7f9c4-2jxkw", "7f9c4-tn6dq"].map((pod, i) => ({ namespace: "gpumem-system", pod: `gpumem-controller-${pod}`, container: "controller", endpoint: "metrics", job: "gpumem-system/gpumem-controller", instance: `10.0.1.${i + 1}:9401` }));
const uuid = (n, g) => `GPU-${(0xa000 + n * 16 + (nodes[n].gpus[g].mig ? 0 : g)).toString(16)}4c1e-9d0b-4f7a-8e21-5b6c7d8e9f00`;
const device = (n, g) => ({ node: nodes[n].name, gpu: String(nodes[n].gpus[g].mig ? 0 : g > 1 ? 1 : g), uuid: uuid(n, g), gpu_instance_id: nodes[n].gpus[g].mig ?? "" });
// How the controller names a device: a MIG slice in the uuid.
const reported = (p) => { const { gpu_instance_id: slice, uuid: id, ...rest } = device(p.node, p.gpu); return { ...rest, uuid: slice ? `${id}/gi${slice}` : id }; };
const usedGib = (p, t) => { const base = p.shape(t); return base === null ? null : Math.max(0, base + (p.noise ? p.noise * (noise(p.pod, t) - 0.5) : 0)); };

function day() {
// Agents and what they see.
nodes.forEach((node, n) => {
  const target = agent(n), own = { ...target, node: node.name };
  series("up", target, constant(1));
  series("scrape_samples_post_metric_relabeling", target, () => 40 + 9 * node.gpus.length + 2 * pods.filter((p) => p.node === n).length);
  series("gpumem_agent_nvml_up", { ...own, reason: "" }, constant(1));
  series("gpumem_simulated", own, constant(1));
  series("gpumem_agent_build_info", { ...own, version: "0.1.0" }, constant(1));
  series("gpumem_agent_pod_watch_up", own, constant(1));
  series("gpumem_agent_sample_age_seconds", own, (t) => 0.3 + 0.7 * noise(node.name, t) + (n === 2 && t > -7000 && t < -6600 ? (t + 7000) / 12 : 0));
  for (const [le, share] of [[0.005, 0.05], [0.01, 0.6], [0.025, 0.93], [0.05, 0.99], ["+Inf", 1]]) series("gpumem_agent_sample_duration_seconds_bucket", { ...own, le: String(le) }, (t, at) => Math.floor((at - START) * share));
  series("gpumem_agent_query_failures_total", { ...own, query: "running_processes", kind: "timeout" }, (t) => (n === 2 ? (t < -7000 ? 0 : t < -6600 ? Math.floor((t + 7000) / 20) : 20) : 0));
  series("gpumem_agent_proc_failures_total", { ...own, file: "cgroup", reason: "gone" }, (t, at) => Math.floor((at - START) / 1700));
  series("gpumem_agent_dropped_inputs_total", { ...own, input: "processes", reason: "reserved_pid" }, (t, at) => Math.floor((at - START) / 9000));
  node.gpus.forEach((gpu, g) => {
    const labels = { ...target, ...device(n, g) };
    const here = pods.filter((p) => p.node === n && p.gpu === g);
    const stray = (t) => (n === 2 && g === 2 ? (t > -2400 && t < -1500 ? 18 : 0.4) : 0.6);
    const used = (t) => here.reduce((sum, p) => sum + (usedGib(p, t) ?? 0), stray(t));
    series("gpumem_device_memory_total_bytes", labels, constant(gpu.total * GIB));
    series("gpumem_device_memory_used_bytes", labels, (t) => Math.round(used(t) * GIB));
    series("gpumem_device_memory_free_bytes", labels, (t) => Math.max(0, Math.round((gpu.total - 0.5 - used(t)) * GIB)));
    series("gpumem_device_memory_reserved_bytes", labels, constant(0.5 * GIB));
    series("gpumem_device_memory_unattributed_bytes", labels, (t) => Math.round(stray(t) * GIB));
    series("gpumem_device_info", { ...labels, model: node.model + (gpu.mig ? " MIG 3g.40gb" : ""), driver: "580.95.05" }, constant(1));
    series("gpumem_device_up", labels, constant(1));
    series("gpumem_device_attribution_complete", { ...labels, reason: n === 2 && g === 2 ? "partial" : "" }, constant(n === 2 && g === 2 ? 0 : 1));
  });
});

for (const p of pods) {
  const { name: node, gpus } = nodes[p.node], total = gpus[p.gpu].total;
  const { endpoint, job, instance } = agent(p.node), leader = replicas[0];
  const labels = { endpoint, job, instance, ...device(p.node, p.gpu), namespace: p.ns, pod: p.pod, container: "main" };
  const forecast = { endpoint: leader.endpoint, job: leader.job, instance: leader.instance, ...reported(p), namespace: p.ns, pod: p.pod, container: "main" };
  let peak = 0;
  series("gpumem_container_memory_used_bytes", labels, (t) => { const v = usedGib(p, t); return v === null ? null : Math.round(v * GIB); });
  series("gpumem_container_memory_peak_bytes", labels, (t) => { const v = usedGib(p, t); if (v === null) return null; peak = Math.max(peak, v); return Math.round(peak * GIB); });
  if (p.policy === "serving") series("gpumem_container_memory_limit_bytes", labels, (t) => (p.shape(t) === null ? null : 40 * GIB));
  if (p.allocator) {
    series("gpumem_container_allocator_reserved_bytes", labels, (t) => { const v = usedGib(p, t); return v === null ? null : Math.round(Math.max(0, v - 1.1) * GIB); });
    series("gpumem_container_allocator_allocated_bytes", labels, (t) => { const v = usedGib(p, t); return v === null ? null : Math.round(Math.max(0, v - 1.1) * p.allocator * GIB); });
  }
  series("gpumem_workload_info", { node, namespace: p.ns, pod: p.pod, container: "main", owner_kind: p.kind === "Deployment" ? "ReplicaSet" : p.kind, owner_name: p.kind === "Deployment" ? p.pod.replace(/-[^-]+$/, "") : p.workload, endpoint: leader.endpoint, job: leader.job, instance: leader.instance }, (t) => (p.shape(t) === null ? null : 1));
  // Warm for ten minutes: not known until then.
  const known = (t) => p.shape(t) !== null && p.shape(t - 600) !== null && !(p.oom && t > p.oom);
  const left = (t) => (total - 1 - (p.node === 1 && p.gpu === 1 ? 96 : 0) - usedGib(p, t));
  const limit = p.policy === "serving" ? (t) => 40 - usedGib(p, t) : left;
  const median = (t) => (known(t) && p.growth > 5 && t > (p.grows ?? -1e9) ? Math.max(20, (limit(t) / (p.growth * (0.97 + 0.06 * noise("slope", p.pod, Math.floor(t / 300))))) * 3600) : null);
  const growth = (t) => (known(t) && p.growth && t > (p.grows ?? -1e9) ? (p.growth * (0.95 + 0.1 * noise("growth", p.pod, t)) * GIB) / 3600 : null);
  const within = (t, h) => { const m = median(t); return m === null ? 0.004 + 0.01 * noise(p.pod, t, h) : 1 / (1 + (m / h) ** 4); };
  series("gpumem_container_memory_growth_bytes_per_second", forecast, growth);
  for (const [q, f] of [["0.1", 0.72], ["0.5", 1], ["0.9", 1.5]]) series("gpumem_container_time_to_oom_seconds", { ...forecast, quantile: q }, (t) => { const m = median(t); return m === null ? null : m * f; });
  for (const h of [300, 900, 3600]) series("gpumem_container_oom_probability_ratio", { ...forecast, horizon: String(h) }, (t) => (known(t) ? within(t, h) : null));
  series("gpumem_container_risk_level", forecast, (t) => { if (!known(t)) return null; const m = median(t); return m === null ? (p.workload === "embedder" ? 1 : 0) : m < 420 ? 3 : m < 9000 ? 2 : 1; });
  if (p.oom) series("gpumem_container_oom_events_total", { ...labels }, (t) => (t > p.oom && t < p.oom + 240 ? 1 : null));
}

// What profiles recommend: of the workloads that a policy governs.
for (const [namespace, workload_kind, workload, gib] of [["ml-train", "Job", "llama-finetune", 138], ["ml-train", "Job", "vision-pretrain", 108], ["search", "Deployment", "embedder", 29], ["research", "Job", "diffusion-sweep", 91]]) {
  const { endpoint, job, instance } = replicas[0];
  series("gpumem_workload_memory_recommended_bytes", { endpoint, job, instance, namespace, workload_kind, workload, container: "main" }, constant(gib * GIB));
}

// Controllers.
replicas.forEach((replica, i) => {
  const leads = (t) => (t < -15000 ? i === 1 : i === 0);
  series("up", replica, constant(1));
  series("scrape_samples_post_metric_relabeling", replica, (t) => (leads(t) ? 60 + 8 * pods.length : 45));
  series("gpumem_controller_leader", replica, (t) => (leads(t) ? 1 : 0));
  series("gpumem_build_info", { ...replica, version: "0.1.0" }, constant(1));
  for (const [what, count] of [["nodes", () => nodes.length], ["devices", () => nodes.flatMap(({ gpus }) => gpus).length], ["series", (t) => pods.filter((p) => p.shape(t) !== null).length], ["pods", (t) => pods.filter((p) => p.shape(t) !== null).length], ["conflicts", () => 0]]) series("gpumem_controller_held", { ...replica, what }, count);
  series("gpumem_controller_agents", replica, () => nodes.length);
  series("gpumem_controller_oldest_report_seconds", replica, (t) => 1 + 4.5 * noise("report", i, t) + (t > -7000 && t < -6600 ? t + 7000 : 0));
  series("gpumem_controller_errors_total", { ...replica, part: "leader", kind: "timeout" }, (t) => (t < -15000 ? 0 : 3));
  series("gpumem_controller_dropped_total", { ...replica, kind: "future" }, (t) => (t < -4000 ? 0 : 1));
  series("gpumem_controller_certificate_expiry_timestamp_seconds", replica, constant(END + 61 * 86400));
  for (const [le, share] of [[0.005, 0.3], [0.01, 0.8], [0.025, 0.95], [0.1, 0.995], ["+Inf", 1]]) series("gpumem_controller_pull_seconds_bucket", { ...replica, le: String(le) }, (t, at) => Math.floor(((at - START) / 5) * nodes.length * share));
  series("gpumem_controller_pulls_total", { ...replica, outcome: "ok" }, (t, at) => Math.floor(((at - START) / 5) * nodes.length));
  series("gpumem_controller_pulls_total", { ...replica, outcome: "deadline" }, (t) => (t < -7000 ? 0 : t < -6600 ? Math.floor((t + 7000) / 10) : 40));
});
const l = replicas[0];
const leaderOnly = { endpoint: l.endpoint, job: l.job, instance: l.instance };
const steps = (...times) => (t) => times.filter((time) => t >= time * 3600).length;
series("gpumem_predictions_total", { ...l, outcome: "Hit" }, steps(-23, -19, -14.5, -9, -8.7, -5.2, -2.5, -1.5, -0.66));
series("gpumem_predictions_total", { ...l, outcome: "Avoided" }, steps(-17, -11, -6.1, -3.4));
series("gpumem_predictions_total", { ...l, outcome: "FalseAlarm" }, steps(-20.5, -7.3));
series("gpumem_predictions_total", { ...l, outcome: "Missed" }, steps(-12.8));
const hits = steps(-23, -19, -14.5, -9, -8.7, -5.2, -2.5, -1.5, -0.66);
for (const [le, share] of [[60, 0], [300, 0.12], [600, 0.35], [1200, 0.7], [1800, 0.9], [3600, 1], ["+Inf", 1]]) series("gpumem_prediction_lead_seconds_bucket", { ...l, le: String(le) }, (t) => Math.round(hits(t) * share));
const act = (policy, namespace, action, outcome, mode, ...times) => series("gpumem_policy_actions_total", { ...leaderOnly, policy, namespace, action, outcome, mode }, steps(...times));
act("training", "ml-train", "Notify", "Succeeded", "Enforce", -23.1, -19.1, -14.6, -9.1, -5.3, -1.1);
act("training", "ml-train", "Checkpoint", "Succeeded", "Enforce", -17.2, -11.2, -6.2, -1.05);
act("training", "research", "Notify", "Succeeded", "DryRun", -2.6, -1.6, -0.7, -0.1);
act("training", "research", "Evict", "DryRun", "DryRun", -2.55, -1.55, -0.68);
act("serving", "search", "Evict", "BlockedByBudget", "Enforce", -8.9, -3.5);
for (const [reason, ...times] of [["Cooldown", -17, -11, -6.1], ["ConcurrentBudgetExhausted", -8.9, -3.5], ["SamplesStale", -1.9], ["ModeObserve", -14, -9, -2, -1]]) series("gpumem_decisions_blocked_total", { ...l, reason }, steps(...times));
const condition = (namespace, policy, name, reason, value) => series("gpumem_policy_condition", { ...leaderOnly, namespace, policy, condition: name, reason }, constant(value));
for (const [namespace, policy, risky] of [["ml-train", "training", 1], ["research", "training", 1], ["search", "serving", 0]]) {
  condition(namespace, policy, "Ready", "Accepted", 1); condition(namespace, policy, "TargetsResolved", "Resolved", 1);
  condition(namespace, policy, "DataFresh", "Fresh", 1); condition(namespace, policy, "AtRisk", risky ? "OutOfMemoryExpected" : "NoRisk", risky);
}
condition("search", "misspelt", "Ready", "InvalidSpec", 0); condition("search", "misspelt", "TargetsResolved", "NoMatch", 0);
condition("search", "misspelt", "DataFresh", "Fresh", 1); condition("search", "misspelt", "AtRisk", "NoRisk", 0);
out.push("# EOF\n");
flush();
}

if (process.argv[1] === new URL(import.meta.url).pathname) day();

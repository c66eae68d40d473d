//! Names other programs see: API group, annotations, objects, metric names. They live here only.

/// API group of the custom resources, and prefix of annotations and labels.
pub const GROUP: &str = "gpumem.dev";
/// Version of the custom resources.
pub const VERSION: &str = "v1alpha1";
/// Field manager of the controller's server-side applies.
pub const FIELD_MANAGER: &str = "gpumem-controller";
/// Field manager of the node objects' specs: a manager of its own, so that limits and statuses never release each other.
pub const LIMITS_MANAGER: &str = "gpumem-limits";
/// Field manager of the uninstallation.
pub const CLEANUP_MANAGER: &str = "gpumem-cleanup";
/// Reporting controller of Events.
pub const REPORTER: &str = "gpumem.dev/controller";

/// Owner's opt-out on a pod or namespace: `Disabled` stops every action; any other value but `Enabled` counts as a pause.
pub const ANNOTATION_ACTIONS: &str = "gpumem.dev/actions";

/// On a pod: id of our request to save its work. Written by the controller.
pub const ANNOTATION_CHECKPOINT_REQUEST: &str = "gpumem.dev/checkpoint-request";
/// On a pod: until when the request waits, RFC 3339. Written by the controller.
pub const ANNOTATION_CHECKPOINT_DEADLINE: &str = "gpumem.dev/checkpoint-deadline";
/// On a pod: id of the request that was fulfilled. Written by the application.
pub const ANNOTATION_CHECKPOINT_DONE: &str = "gpumem.dev/checkpoint-done";
/// On a pod template: what the container will run, for the estimate that the forecast starts from.
pub const ANNOTATION_WORKLOAD: &str = "gpumem.dev/workload";
/// On a workload that we suspended: id of the action. Nobody else's suspension is ever lifted.
pub const ANNOTATION_SUSPENDED: &str = "gpumem.dev/suspended";

/// On a namespace or pod: `Enabled` lets admission set framework defaults for its GPU containers, `Disabled` on a pod forbids it.
pub const LABEL_DEFAULTS: &str = "gpumem.dev/defaults";
/// On a namespace: `Enabled` keeps the cooperative hook there and puts it into GPU containers; `Disabled` on a pod forbids it.
pub const LABEL_HOOK: &str = "gpumem.dev/hook";
/// On the hook's ConfigMap: namespace of the operator that keeps it. One without it is never touched.
pub const LABEL_HOOK_OWNER: &str = "gpumem.dev/hook-owner";
/// Name of the ConfigMap with the hook's files, the same in every namespace.
pub const HOOK_CONFIG_MAP: &str = "gpumem-hook";

/// On a pod: lines `ID VERB [ARGUMENT]` for its hook, e.g. `1 trim`. Written by people; the pod sees it through its hook's folder.
pub const ANNOTATION_HOOK_COMMAND: &str = "gpumem.dev/hook-command";

/// Common name in the controller's client certificate: agents serve `/v1/usage` to nobody else.
pub const CONTROLLER_TLS_NAME: &str = "gpumem-controller";
/// DNS name in the agents' server certificate: the controller believes nobody else.
pub const AGENT_TLS_NAME: &str = "gpumem-agent";

/// Key in the TLS Secret: certificate(s) of the authority, PEM. During a rotation it holds the old one too.
pub const TLS_CA: &str = "ca.crt";
/// Key in the TLS Secret: the agents' certificate, PEM.
pub const TLS_AGENT_CERT: &str = "agent.crt";
/// Key in the TLS Secret: the agents' private key, PEM.
pub const TLS_AGENT_KEY: &str = "agent.key";

/// Metric names. HELP texts stand where a metric is declared.
pub mod metric {
    /// All memory of a device.
    pub const DEVICE_TOTAL: &str = "gpumem_device_memory_total_bytes";
    /// Allocated by anybody, the driver's own share left out where NVML tells it apart.
    pub const DEVICE_USED: &str = "gpumem_device_memory_used_bytes";
    /// Not allocated.
    pub const DEVICE_FREE: &str = "gpumem_device_memory_free_bytes";
    /// Kept by driver and firmware.
    pub const DEVICE_RESERVED: &str = "gpumem_device_memory_reserved_bytes";
    /// Used, but by no container.
    pub const DEVICE_UNATTRIBUTED: &str = "gpumem_device_memory_unattributed_bytes";
    /// Model and driver of a device.
    pub const DEVICE_INFO: &str = "gpumem_device_info";
    /// 1 while the device answers.
    pub const DEVICE_UP: &str = "gpumem_device_up";
    /// 1 while the device's memory can be split by container; label `reason`.
    pub const DEVICE_ATTRIBUTION: &str = "gpumem_device_attribution_complete";
    /// Memory of a container on a device.
    pub const CONTAINER_USED: &str = "gpumem_container_memory_used_bytes";
    /// Highest memory of a container on a device since it started, as far as the agent saw it.
    pub const CONTAINER_PEAK: &str = "gpumem_container_memory_peak_bytes";
    /// Lasting growth of a container.
    pub const CONTAINER_GROWTH: &str = "gpumem_container_memory_growth_bytes_per_second";
    /// P(OOM) within a horizon.
    pub const CONTAINER_OOM_PROBABILITY: &str = "gpumem_container_oom_probability_ratio";
    /// Time until a container meets the limit that holds it; absent where nothing holds it.
    pub const CONTAINER_TIME_TO_LIMIT: &str = "gpumem_container_time_to_limit_seconds";
    /// Quantiles of the time to OOM.
    pub const CONTAINER_TIME_TO_OOM: &str = "gpumem_container_time_to_oom_seconds";
    /// 0 low to 3 critical; absent when unknown.
    pub const CONTAINER_RISK: &str = "gpumem_container_risk_level";
    /// What may not be exceeded on a device, where something enforces it; absent elsewhere. Labels as of the used bytes.
    pub const CONTAINER_LIMIT: &str = "gpumem_container_memory_limit_bytes";
    /// Live memory as the container's own allocator counts it (hooked pods only).
    pub const CONTAINER_ALLOCATED: &str = "gpumem_container_allocator_allocated_bytes";
    /// Memory the container's own allocator holds, live or cached (hooked pods only).
    pub const CONTAINER_CACHED: &str = "gpumem_container_allocator_reserved_bytes";
    /// GPU out-of-memory failures seen; labels `namespace`, `pod`, `container`. A series begins with its first failure, at 1.
    pub const CONTAINER_OOMS: &str = "gpumem_container_oom_events_total";
    /// Always 1; labels `node`, `namespace`, `pod`, `container`, `owner_kind`, `owner_name` (the pod's controller; empty without one).
    pub const WORKLOAD_INFO: &str = "gpumem_workload_info";
    /// What a workload's hungriest container should have on one device, as its profile recommends; labels `namespace`,
    /// `workload_kind`, `workload`, `container`.
    pub const WORKLOAD_RECOMMENDED: &str = "gpumem_workload_memory_recommended_bytes";
    /// Actions of policies. `outcome` as in the policy's `status.recentActions`: `Succeeded`, `BlockedByBudget`, `Rejected`, …
    pub const POLICY_ACTIONS: &str = "gpumem_policy_actions_total";
    /// 1 where the policy's condition is True, 0 otherwise; labels `namespace`, `policy`, `condition`, `reason`.
    pub const POLICY_CONDITION: &str = "gpumem_policy_condition";
    /// Warnings that have been judged; `outcome` is `Hit`, `Early`, `FalseAlarm`, `Missed`, `Avoided` where somebody acted in
    /// between, or `Unknown`.
    pub const PREDICTIONS: &str = "gpumem_predictions_total";
    /// Histogram of the seconds from a container's warning to its OOM.
    pub const PREDICTION_LEAD: &str = "gpumem_prediction_lead_seconds";
    /// Decisions to act that were held back; label `reason`.
    pub const DECISIONS_BLOCKED: &str = "gpumem_decisions_blocked_total";
    /// 1 on an agent whose NVML works; labels `node`, `reason`.
    pub const AGENT_NVML_UP: &str = "gpumem_agent_nvml_up";
    /// Age of an agent's newest sample.
    pub const AGENT_SAMPLE_AGE: &str = "gpumem_agent_sample_age_seconds";
    /// Histogram of the seconds a sampling cycle took.
    pub const AGENT_SAMPLE_DURATION: &str = "gpumem_agent_sample_duration_seconds";
    /// Failed driver queries; labels `query`, `kind`.
    pub const AGENT_QUERY_FAILURES: &str = "gpumem_agent_query_failures_total";
    /// Failed reads below `/proc`; labels `file`, `reason`.
    pub const AGENT_PROC_FAILURES: &str = "gpumem_agent_proc_failures_total";
    /// Input an agent did not believe; labels `input`, `reason`.
    pub const AGENT_DROPPED_INPUTS: &str = "gpumem_agent_dropped_inputs_total";
    /// 1 while an agent sees the pods of its node.
    pub const AGENT_POD_WATCH_UP: &str = "gpumem_agent_pod_watch_up";
    /// Version of an agent; labels `node`, `version`.
    pub const AGENT_BUILD_INFO: &str = "gpumem_agent_build_info";
    /// 1 on the replica that acts, 0 on the others.
    pub const CONTROLLER_LEADER: &str = "gpumem_controller_leader";
    /// Agents that a replica pulls.
    pub const CONTROLLER_AGENTS: &str = "gpumem_controller_agents";
    /// Age of the report of the node that was heard least recently.
    pub const CONTROLLER_OLDEST_REPORT: &str = "gpumem_controller_oldest_report_seconds";
    /// Histogram of the seconds one pull of one agent took.
    pub const CONTROLLER_PULL_SECONDS: &str = "gpumem_controller_pull_seconds";
    /// Pulls by `outcome`: `ok`, or why not.
    pub const CONTROLLER_PULLS: &str = "gpumem_controller_pulls_total";
    /// What a replica holds; label `what`: nodes, devices, pods, series, conflicts.
    pub const CONTROLLER_HELD: &str = "gpumem_controller_held";
    /// Parts of agents' reports that were left out; label `kind`.
    pub const CONTROLLER_DROPPED: &str = "gpumem_controller_dropped_total";
    /// Errors of the controller's own parts; labels `part`, `kind`.
    pub const CONTROLLER_ERRORS: &str = "gpumem_controller_errors_total";
    /// When the certificate between controller and agents ends, in Unix time.
    pub const CONTROLLER_CERTIFICATE_EXPIRY: &str = "gpumem_controller_certificate_expiry_timestamp_seconds";
    /// 1 for the state that the breaker above all policies is in; label `state`: closed, half_open, open, off.
    pub const CONTROLLER_BREAKER: &str = "gpumem_controller_breaker_state";
    /// Pods that were disrupted by us; label `window`: now (not recovered yet), hour.
    pub const CONTROLLER_DISRUPTED: &str = "gpumem_controller_disrupted_pods";
    /// The administrator's budgets; labels `scope` (cluster, namespace, node) and `window`. Absent where none is set.
    pub const CONTROLLER_BUDGET: &str = "gpumem_controller_disruption_budget_pods";
    /// Version of a controller; label `version`.
    pub const CONTROLLER_BUILD_INFO: &str = "gpumem_build_info";
    /// 1 where the driver is simulated.
    pub const SIMULATED: &str = "gpumem_simulated";
}

//! Names other programs see: API group, annotations, objects, metric names. They live here only.

/// API group of the custom resources, and prefix of annotations and labels.
pub const GROUP: &str = "gpumem.dev";
/// Version of the custom resources.
pub const VERSION: &str = "v1alpha1";
/// Field manager of the controller's server-side applies.
pub const FIELD_MANAGER: &str = "gpumem-controller";
/// Reporting controller of Events.
pub const REPORTER: &str = "gpumem.dev/controller";

/// Owner's opt-out on a pod or namespace: `Disabled` stops every action; any other value but `Enabled` counts as a pause.
pub const ANNOTATION_ACTIONS: &str = "gpumem.dev/actions";

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
    /// Quantiles of the time to OOM.
    pub const CONTAINER_TIME_TO_OOM: &str = "gpumem_container_time_to_oom_seconds";
    /// 0 low to 3 critical; absent when unknown.
    pub const CONTAINER_RISK: &str = "gpumem_container_risk_level";
    /// Actions of policies.
    pub const POLICY_ACTIONS: &str = "gpumem_policy_actions_total";
    /// 1 on an agent whose NVML works.
    pub const AGENT_NVML_UP: &str = "gpumem_agent_nvml_up";
    /// 1 where the driver is simulated.
    pub const SIMULATED: &str = "gpumem_simulated";
}

//! From the wire to the engine: a policy's spec becomes an [`engine policy`](gpumem_engine::policy::Policy), or the name of
//! the field that is wrong. The server has checked the schema; what only we can check is checked here.

use std::time::Duration;

use gpumem_engine::policy::{
    self, Actions, Budget, Ceiling, Checkpoint, Disruption, GrowthLimit, Mode, Policy, PolicyKey, Prediction,
    Protection, Resume, Scale,
};
use gpumem_engine::quantity::Bytes;

use super::policy::{
    ActionSpec, ActionType, CheckpointNeed, CheckpointSpec, DisruptionSpec, Enforcement, GpuMemoryPolicySpec,
    GrowthLimitSpec, Memory, MemoryBudget, OnTimeout, PolicyMode, PredictionSpec, ProtectedKind, ResumeWhen, ScaleSpec,
    ScaleVia,
};

/// A field that cannot be used as it stands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Rejection {
    /// Path of the field, e.g. `spec.memory.declared`.
    pub field: &'static str,
    /// What is wrong with it and what would do.
    pub problem: String,
}

impl Rejection {
    fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }
}

/// Reads a spec. `max_mode` is the administrator's brake: a mode above it is lowered to it.
pub fn policy(key: PolicyKey, spec: &GpuMemoryPolicySpec, max_mode: Mode) -> Result<Policy, Rejection> {
    let GpuMemoryPolicySpec { mode, paused, precedence, target, memory, prediction, actions, growth_limit, disruption } =
        spec;
    if target.pod_selector.is_some() == target.owner_ref.is_some() {
        return Err(Rejection::new("spec.target", "give exactly one of podSelector and ownerRef"));
    }
    let (budget, headroom) = read_memory(memory)?;
    Ok(Policy {
        key,
        mode: read_mode(*mode).min(max_mode),
        paused: paused.as_ref().map(|paused| paused.reasons.clone()).unwrap_or_default(),
        precedence: *precedence,
        containers: target.containers.clone(),
        budget,
        headroom,
        prediction: read_prediction(prediction)?,
        actions: read_actions(actions)?,
        growth: growth_limit.as_ref().map(read_growth).transpose()?,
        disruption: read_disruption(disruption)?,
    })
}

fn read_actions(specs: &[ActionSpec]) -> Result<Actions, Rejection> {
    let mut actions = Actions::default();
    for spec in specs {
        match spec.action {
            ActionType::Notify => actions.notify = true,
            ActionType::LimitGrowth => actions.limit_growth = true,
            ActionType::Scale => actions.scale = Some(read_scale(spec.scale.unwrap_or_default())?),
            ActionType::Checkpoint => {
                actions.checkpoint = Some(read_checkpoint(spec.checkpoint.unwrap_or_default())?);
            }
            ActionType::SuspendToHost => actions.suspend_to_host = true,
            ActionType::SuspendWorkload => {
                let resume = match spec.suspend_workload.unwrap_or_default().resume {
                    ResumeWhen::AfterCooldown => Resume::AfterCooldown,
                    ResumeWhen::Manual => Resume::Manual,
                };
                actions.suspend_workload = Some(resume);
            }
            ActionType::Evict => actions.evict = true,
        }
    }
    Ok(actions)
}

fn read_scale(ScaleSpec { via, step, max_replicas }: ScaleSpec) -> Result<Scale, Rejection> {
    let max_replicas = match (via, max_replicas) {
        (ScaleVia::Replicas, None) => {
            return Err(Rejection::new("spec.actions.scale.maxReplicas", "via Replicas needs it"));
        }
        (ScaleVia::Metrics, None) => u32::MAX,
        (_, Some(max)) => count("spec.actions.scale.maxReplicas", max)?,
    };
    let via = match via {
        ScaleVia::Metrics => policy::ScaleVia::Metrics,
        ScaleVia::Replicas => policy::ScaleVia::Replicas,
    };
    Ok(Scale { via, step: count("spec.actions.scale.step", step)?, max_replicas })
}

fn read_checkpoint(
    CheckpointSpec { timeout_seconds, need, on_timeout }: CheckpointSpec,
) -> Result<Checkpoint, Rejection> {
    Ok(Checkpoint {
        timeout: seconds("spec.actions.checkpoint.timeoutSeconds", timeout_seconds)?,
        need: match need {
            CheckpointNeed::Required => policy::CheckpointNeed::Required,
            CheckpointNeed::BestEffort => policy::CheckpointNeed::BestEffort,
        },
        on_timeout: match on_timeout {
            OnTimeout::Skip => policy::OnTimeout::Skip,
            OnTimeout::Proceed => policy::OnTimeout::Proceed,
        },
    })
}

fn read_growth(
    GrowthLimitSpec { ceiling, max_per_minute, enforcement }: &GrowthLimitSpec,
) -> Result<GrowthLimit, Rejection> {
    if ceiling.is_none() && max_per_minute.is_none() {
        return Err(Rejection::new("spec.growthLimit", "give ceiling, maxPerMinute or both"));
    }
    Ok(GrowthLimit {
        ceiling: ceiling.as_deref().map(read_ceiling).transpose()?,
        per_minute: max_per_minute.as_deref().map(|text| size("spec.growthLimit.maxPerMinute", text)).transpose()?,
        enforcement: match enforcement {
            Enforcement::Advise => policy::Enforcement::Advise,
            Enforcement::Kernel => policy::Enforcement::Kernel,
        },
    })
}

fn read_ceiling(text: &str) -> Result<Ceiling, Rejection> {
    const FIELD: &str = "spec.growthLimit.ceiling";
    let Some(percent) = text.strip_suffix('%') else { return size(FIELD, text).map(Ceiling::Size) };
    match percent.parse() {
        Ok(percent @ 1..=100) => Ok(Ceiling::Percent(percent)),
        _ => Err(Rejection::new(FIELD, format!("`{text}` is not a share; write it like 50%, from 1% to 100%"))),
    }
}

fn read_mode(mode: PolicyMode) -> Mode {
    match mode {
        PolicyMode::Observe => Mode::Observe,
        PolicyMode::DryRun => Mode::DryRun,
        PolicyMode::Enforce => Mode::Enforce,
    }
}

fn read_memory(memory: &Memory) -> Result<(Budget, Bytes), Rejection> {
    let declared = memory.declared.as_deref().map(|text| size("spec.memory.declared", text)).transpose()?;
    let budget = match (memory.budget, declared) {
        (MemoryBudget::Device, None) => Budget::Device,
        (MemoryBudget::Partition, None) => Budget::Partition,
        (MemoryBudget::Declared, Some(share)) if share > Bytes::ZERO => Budget::Declared(share),
        (MemoryBudget::Declared, _) => {
            return Err(Rejection::new("spec.memory.declared", "budget Declared needs a size above zero, e.g. 40Gi"));
        }
        (MemoryBudget::Device | MemoryBudget::Partition, Some(_)) => {
            return Err(Rejection::new("spec.memory.declared", "only budget Declared takes a declared size"));
        }
    };
    Ok((budget, size("spec.memory.headroom", &memory.headroom)?))
}

fn read_prediction(prediction: &PredictionSpec) -> Result<Prediction, Rejection> {
    let PredictionSpec { horizon_seconds, declared_peak, act, clear, .. } = prediction;
    if clear.probability_percent >= act.probability_percent {
        return Err(Rejection::new(
            "spec.prediction.clear.probabilityPercent",
            format!("must be below act.probabilityPercent ({})", act.probability_percent),
        ));
    }
    if act.for_seconds >= *horizon_seconds {
        return Err(Rejection::new(
            "spec.prediction.act.forSeconds",
            format!("must be below horizonSeconds ({horizon_seconds})"),
        ));
    }
    Ok(Prediction {
        horizon: seconds("spec.prediction.horizonSeconds", *horizon_seconds)?,
        declared_peak: declared_peak.as_deref().map(|text| size("spec.prediction.declaredPeak", text)).transpose()?,
        act_probability: f64::from(act.probability_percent) / 100.0,
        act_for: seconds("spec.prediction.act.forSeconds", act.for_seconds)?,
        clear_probability: f64::from(clear.probability_percent) / 100.0,
        clear_for: seconds("spec.prediction.clear.forSeconds", clear.for_seconds)?,
        min_samples: count("spec.prediction.minSamples", prediction.min_samples)?,
        max_sample_age: seconds("spec.prediction.maxSampleAgeSeconds", prediction.max_sample_age_seconds)?,
        warm_up: seconds("spec.prediction.warmUpSeconds", prediction.warm_up_seconds)?,
    })
}

fn read_disruption(disruption: &DisruptionSpec) -> Result<Disruption, Rejection> {
    Ok(Disruption {
        max_concurrent: count("spec.disruption.maxConcurrent", disruption.max_concurrent)?,
        max_per_hour: count("spec.disruption.maxPerHour", disruption.max_per_hour)?,
        min_available: count("spec.disruption.minAvailable", disruption.min_available)?,
        require_budget: disruption.require_budget,
        cooldown: seconds("spec.disruption.cooldownSeconds", disruption.cooldown_seconds)?,
        max_attempts: count("spec.disruption.maxAttempts", disruption.max_attempts)?,
        protect: disruption.protect.iter().copied().map(read_protection).collect(),
    })
}

fn read_protection(kind: ProtectedKind) -> Protection {
    match kind {
        ProtectedKind::SystemCritical => Protection::SystemCritical,
        ProtectedKind::DaemonSet => Protection::DaemonSet,
        ProtectedKind::BarePod => Protection::BarePod,
        ProtectedKind::RayHead => Protection::RayHead,
        ProtectedKind::JobWithoutDisruptionPolicy => Protection::JobWithoutDisruptionPolicy,
    }
}

fn seconds(field: &'static str, value: i32) -> Result<Duration, Rejection> {
    Ok(Duration::from_secs(u64::from(count(field, value)?)))
}

fn count(field: &'static str, value: i32) -> Result<u32, Rejection> {
    u32::try_from(value).map_err(|_| Rejection::new(field, format!("{value} is negative")))
}

/// Reads a Kubernetes quantity of bytes: a decimal number with an optional suffix Ki, Mi, Gi, Ti, k, M, G or T.
pub fn size(field: &'static str, text: &str) -> Result<Bytes, Rejection> {
    let wrong = || Rejection::new(field, format!("`{text}` is not a size; write it like 512Mi or 40Gi"));
    let number_ends = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_ends);
    let unit: f64 = match suffix {
        "" => 1.0,
        "Ki" => 1024.0,
        "Mi" => 1_048_576.0,
        "Gi" => 1_073_741_824.0,
        "Ti" => 1_099_511_627_776.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        _ => return Err(wrong()),
    };
    let bytes = number.parse::<f64>().map_err(|_| wrong())? * unit;
    // 2^60 is far above any device, and far below where a float loses whole bytes that matter.
    if bytes.is_finite() && bytes < 2_f64.powi(60) { Ok(Bytes::from_f64(bytes)) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn convert(spec: serde_json::Value) -> Result<Policy, Rejection> {
        let key = PolicyKey { namespace: "team-a".into(), name: "p".into() };
        policy(key, &serde_json::from_value(spec).expect("the schema admits it"), Mode::Enforce)
    }

    #[test]
    fn the_defaults_of_the_schema_are_those_of_the_engine() {
        let policy = convert(json!({"target": {"podSelector": {"matchLabels": {"app": "t"}}}})).unwrap();
        assert_eq!(policy.prediction, Prediction::default());
        assert_eq!(policy.disruption, Disruption::default());
    }

    #[test]
    fn a_field_that_is_left_out_beside_another_has_its_own_default() {
        let target = json!({"podSelector": {"matchLabels": {"app": "t"}}});
        let one = |prediction| convert(json!({"target": target, "prediction": prediction})).unwrap().prediction;
        let whole = Prediction::default();
        assert_eq!(
            one(json!({"act": {"probabilityPercent": 90}})),
            Prediction { act_probability: 0.9, ..whole.clone() }
        );
        assert_eq!(
            one(json!({"act": {"forSeconds": 7}, "clear": {"probabilityPercent": 40}})),
            Prediction { act_for: Duration::from_secs(7), clear_probability: 0.4, ..whole }
        );
    }

    #[test]
    fn the_shortest_policy_observes_with_the_documented_defaults() {
        let policy = convert(json!({"target": {"podSelector": {"matchLabels": {"app": "t"}}}})).unwrap();
        assert_eq!(policy.mode, Mode::Observe);
        assert_eq!(policy.actions, Actions { notify: true, ..Actions::default() });
        assert_eq!(policy.prediction.horizon, Duration::from_mins(15));
        assert_eq!(policy.headroom, Bytes::mib(512));
        assert!(policy.disruption.require_budget);
        assert_eq!(policy.disruption.protect.len(), 5);
    }

    #[test]
    fn the_administrators_brake_lowers_a_mode_and_never_raises_it() {
        let key = || PolicyKey { namespace: "n".into(), name: "p".into() };
        let spec = |mode: &str| {
            serde_json::from_value::<GpuMemoryPolicySpec>(
                json!({"mode": mode, "target": {"podSelector": {"matchLabels": {"app": "t"}}}}),
            )
            .unwrap()
        };
        assert_eq!(policy(key(), &spec("Enforce"), Mode::DryRun).unwrap().mode, Mode::DryRun);
        assert_eq!(policy(key(), &spec("Observe"), Mode::Enforce).unwrap().mode, Mode::Observe);
    }

    #[test]
    fn every_rejection_names_its_field() {
        let target = json!({"podSelector": {"matchLabels": {"app": "t"}}});
        for (spec, field) in [
            (json!({"target": {}}), "spec.target"),
            (json!({"target": target, "memory": {"budget": "Declared"}}), "spec.memory.declared"),
            (json!({"target": target, "memory": {"declared": "1Gi"}}), "spec.memory.declared"),
            (json!({"target": target, "memory": {"headroom": "lots"}}), "spec.memory.headroom"),
            (json!({"target": target, "prediction": {"declaredPeak": "1Xi"}}), "spec.prediction.declaredPeak"),
            (
                json!({"target": target, "prediction": {"clear": {"probabilityPercent": 90, "forSeconds": 1}}}),
                "spec.prediction.clear.probabilityPercent",
            ),
            (json!({"target": target, "prediction": {"horizonSeconds": 60}}), "spec.prediction.act.forSeconds"),
            (json!({"target": target, "disruption": {"maxPerHour": -1}}), "spec.disruption.maxPerHour"),
        ] {
            assert_eq!(convert(spec.clone()).map_err(|rejection| rejection.field), Err(field), "{spec}");
        }
    }

    #[test]
    fn sizes_are_read_as_kubernetes_writes_them() {
        assert_eq!(size("f", "512Mi"), Ok(Bytes::mib(512)));
        assert_eq!(size("f", "1.5Gi"), Ok(Bytes::mib(1536)));
        assert_eq!(size("f", "2G"), Ok(Bytes(2_000_000_000)));
        for bad in ["", "Gi", "-1Gi", "1e9", "1.2.3", "99999999Ti", "1 Gi"] {
            assert!(size("f", bad).is_err(), "{bad}");
        }
    }
}

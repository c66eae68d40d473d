//! What a policy's status says about its growth limit: where it holds, and where it would.

use gpumem_engine::growth::Cause;
use gpumem_engine::pacing::Stamp;
use gpumem_engine::policy::PolicyKey;
use gpumem_engine::quantity::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::{Line, lines};
use crate::api::node::LimitPhase;
use crate::api::policy::GpuMemoryPolicyStatus;
use crate::controller::context::Context;

/// Name of the condition.
const CONDITION: &str = "GrowthLimited";
/// Containers named in the message.
const NAMED: usize = 5;

/// Adds the condition to a policy's next status, where the policy has a growth limit.
pub fn tell(
    ctx: &Context,
    key: &PolicyKey,
    next: &mut GpuMemoryPolicyStatus,
    previous: &GpuMemoryPolicyStatus,
    now: Stamp,
) {
    let lines = lines(ctx, key);
    if lines.is_empty() {
        return;
    }
    let unusable = ctx.limits.state().unusable.clone();
    let (status, reason, message) = finding(&lines, unusable.as_deref());
    let same = previous.conditions.iter().find(|known| known.type_ == CONDITION && known.status == status);
    let time = jiff::Timestamp::from_second(now.0).unwrap_or_default();
    next.conditions.push(Condition {
        type_: CONDITION.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: crate::text::shorten(&message, 1000),
        observed_generation: next.observed_generation,
        last_transition_time: same.map_or(Time(time), |known| known.last_transition_time.clone()),
    });
}

/// Status, reason and message.
fn finding(lines: &[Line], unusable: Option<&str>) -> (&'static str, &'static str, String) {
    let phase = |line: &Line| line.state.as_ref().map(|state| state.phase);
    let (status, reason) = if let (Some(_), true) = (unusable, lines.iter().any(|line| line.asked)) {
        ("False", "Off")
    } else if lines.iter().all(|line| matches!(line.desired.cause, Cause::ManagedBy(_))) {
        ("False", "ManagedBy")
    } else if lines.iter().any(|line| matches!(phase(line), Some(LimitPhase::Drift))) {
        ("False", "LimitDrift")
    } else if lines.iter().any(|line| matches!(phase(line), Some(LimitPhase::Unsupported | LimitPhase::Refused))) {
        ("False", "LimitUnsupported")
    } else if lines.iter().all(|line| !line.asked) {
        ("False", "Advised")
    } else if lines.iter().all(|line| !line.asked || phase(line) == Some(LimitPhase::Applied)) {
        ("True", "LimitApplied")
    } else {
        ("False", "LimitPending")
    };
    let mut texts: Vec<String> = lines.iter().take(NAMED).map(text).collect();
    if lines.len() > NAMED {
        texts.push(format!("and {} more", lines.len() - NAMED));
    }
    if let Some(why) = unusable.filter(|_| reason == "Off") {
        texts.insert(0, why.to_owned());
    }
    (status, reason, texts.join("; "))
}

fn text(line: &Line) -> String {
    let Line { pod, container, device, desired, asked, state } = line;
    let place = format!("{pod}/{container} on {}", device.get(..12).unwrap_or(device));
    // A tenth of a GiB moves less than bytes do.
    let about = |bytes: Bytes| format!("{:.1} GiB", bytes.as_f64() / 1_073_741_824.0);
    match (asked, state) {
        (false, _) => format!("{place} would be held to {}: {}", about(desired.target), desired.reason),
        (true, None) => format!("{place} is to be held to {}: {}", about(desired.target), desired.reason),
        (true, Some(state)) => match (state.phase, state.applied) {
            (LimitPhase::Applied, Some(applied)) => format!("{place} is held to {}", about(applied)),
            (LimitPhase::Pending, Some(applied)) => {
                format!("{place} is held to {} on its way to {}", about(applied), about(desired.target))
            }
            _ => format!("{place} is not held to {}: {}", about(desired.target), state.reason),
        },
    }
}

#[cfg(test)]
mod tests {
    use gpumem_engine::policy::Enforcement;

    use super::super::LimitState;
    use super::*;

    fn line(asked: bool, phase: Option<LimitPhase>) -> Line {
        let target = Bytes::gib(12);
        Line {
            pod: "train".to_owned(),
            container: "main".to_owned(),
            device: "GPU-0123456789".to_owned(),
            desired: gpumem_engine::growth::Desired {
                target,
                holds: target,
                policy: PolicyKey { namespace: "n".to_owned(), name: "p".to_owned() },
                enforcement: Enforcement::Kernel,
                cause: Cause::Ceiling,
                reason: "the policy's ceiling is 12 GiB".to_owned(),
            },
            asked,
            state: phase.map(|phase| LimitState {
                device: "GPU-0123456789".to_owned(),
                desired: Some(target),
                applied: (phase == LimitPhase::Applied).then_some(target),
                phase,
                reason: "driver below 615".to_owned(),
            }),
        }
    }

    #[test]
    fn the_condition_says_what_holds_and_what_would() {
        let (status, reason, message) = finding(&[line(false, None)], None);
        assert_eq!((status, reason), ("False", "Advised"));
        assert_eq!(message, "train/main on GPU-01234567 would be held to 12.0 GiB: the policy's ceiling is 12 GiB");
        assert_eq!(finding(&[line(true, Some(LimitPhase::Applied))], None).1, "LimitApplied");
        assert_eq!(finding(&[line(true, Some(LimitPhase::Pending))], None).1, "LimitPending");
        let (_, reason, message) = finding(&[line(true, Some(LimitPhase::Unsupported))], None);
        assert!(reason == "LimitUnsupported" && message.contains("driver below 615"), "{message}");
        assert_eq!(finding(&[line(true, None)], Some("off")).1, "Off");
    }
}

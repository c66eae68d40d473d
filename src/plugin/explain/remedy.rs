//! The part of a page that says what happened before and what to change. Flows in: the live view and the profile. Flows out:
//! sentences.

use gpumem_engine::quantity::counted;

use crate::api::profile::{GpuMemoryProfile, GpuMemoryProfileStatus};
use crate::api::view::{Advice, ContainerView, DeclaredView, Range};
use crate::plugin::text::bytes;

/// What to change: computed for the pod's own job where it declares one, else what its last death suggests, else what helps in
/// general.
pub fn lines(view: &ContainerView, profile: Option<&GpuMemoryProfileStatus>) -> Vec<String> {
    let is_computed = view.advice.iter().any(|advice| advice.peak_bytes.is_some());
    match profile.map(|status| &status.advice).filter(|advice| !is_computed && !advice.is_empty()) {
        Some(remembered) => remembered.clone(),
        None => view.advice.iter().map(sentence).collect(),
    }
}

/// What the profile knows of its deaths and its size, with the name of each line.
pub fn learned(status: &GpuMemoryProfileStatus) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if let Some(last) = status.ooms.first() {
        let text = format!(
            "{}, the last at {} (pod {}, container {}, {}, holding {}): {}",
            counted(status.oom_count, "GPU out-of-memory death", "GPU out-of-memory deaths"),
            last.time,
            last.pod,
            last.container,
            last.framework,
            amount(last.peak_bytes),
            last.evidence
        );
        let by_limit = last.limit_bytes.map(|limit| {
            format!(
                "; it was held to {} by its policy's growth limit: that was full, not the device",
                amount(Some(limit))
            )
        });
        let text = text + &by_limit.unwrap_or_default();
        lines.push(("died", text));
    }
    let loops = status.conditions.iter().filter(|condition| condition.status == "True");
    lines.extend(loops.map(|condition| ("loop", condition.message.clone())));
    if let Some(size) = &status.recommendation {
        let text = format!("{} for container {}: {}", amount(Some(size.bytes)), size.container, size.basis);
        lines.push(("size", text));
    }
    lines
}

/// The containers of a pod that hold no GPU memory now and are known to have died of it, as far as profiles tell.
pub fn dead(pod: &str, namespace: &str, container: Option<&str>, profiles: &[GpuMemoryProfile]) -> Vec<ContainerView> {
    let mut views: Vec<ContainerView> = Vec::new();
    let ooms = profiles.iter().filter_map(|profile| profile.status.as_ref()).flat_map(|status| &status.ooms);
    let own = ooms.filter(|oom| oom.pod == pod && container.is_none_or(|container| oom.container == container));
    for oom in own {
        if views.iter().all(|view| view.container != oom.container) {
            views.push(ContainerView {
                namespace: namespace.to_owned(),
                pod: pod.to_owned(),
                pod_uid: oom.pod_uid.clone(),
                container: oom.container.clone(),
                peak_bytes: oom.peak_bytes.and_then(|peak| u64::try_from(peak).ok()),
                capacity_bytes: oom.capacity_bytes.and_then(|bytes| u64::try_from(bytes).ok()),
                reason: format!("died of GPU out-of-memory at {} and holds no GPU memory now", oom.time),
                ..ContainerView::default()
            });
        }
    }
    views
}

/// What the pod declares.
pub fn declared(declared: &DeclaredView) -> String {
    match (&declared.problem, &declared.peak_bytes) {
        (Some(problem), _) => format!("annotation gpumem.dev/workload is not used: {problem}"),
        (None, Some(peak)) => format!("a peak of {}", range(peak)),
        (None, None) => "a server that takes a share of its card".to_owned(),
    }
}

fn sentence(advice: &Advice) -> String {
    let peak = advice.peak_bytes.as_ref().map(|peak| format!(": then {}", range(peak))).unwrap_or_default();
    let more = [&advice.price, &advice.setting].into_iter().flatten();
    more.fold(format!("{}{peak}", advice.what), |text, more| format!("{text}; {more}"))
}

fn range(range: &Range) -> String {
    format!("{} ({} to {})", bytes(Some(range.median)), bytes(Some(range.low)), bytes(Some(range.high)))
}

fn amount(signed: Option<i64>) -> String {
    bytes(signed.and_then(|signed| u64::try_from(signed).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::profile::{OomRecord, Recommendation};

    const GIB: u64 = 1 << 30;

    #[test]
    fn computed_advice_wins_over_remembered_and_that_over_general() {
        let general = ContainerView {
            advice: vec![Advice { what: "Lower the batch size.".into(), ..Advice::default() }],
            ..ContainerView::default()
        };
        let computed = ContainerView {
            advice: vec![Advice {
                what: "gradient checkpointing".into(),
                peak_bytes: Some(Range { low: 28 * GIB, median: 31 * GIB, high: 34 * GIB }),
                price: Some("25 to 35 % slower".into()),
                setting: Some("PyTorch: model.gradient_checkpointing_enable()".into()),
            }],
            ..ContainerView::default()
        };
        let profile = GpuMemoryProfileStatus { advice: vec!["Raise the limit.".into()], ..Default::default() };
        assert_eq!(lines(&general, None), ["Lower the batch size."]);
        assert_eq!(lines(&general, Some(&profile)), ["Raise the limit."]);
        assert_eq!(
            lines(&computed, Some(&profile)),
            [format!(
                "gradient checkpointing: then {}; 25 to 35 % slower; PyTorch: model.gradient_checkpointing_enable()",
                range(&Range { low: 28 * GIB, median: 31 * GIB, high: 34 * GIB })
            )]
        );
        assert_eq!(lines(&ContainerView::default(), None), Vec::<String>::new());
    }

    #[test]
    fn a_death_and_a_size_are_told_with_their_numbers() {
        let status = GpuMemoryProfileStatus {
            oom_count: 3,
            ooms: vec![OomRecord {
                pod: "tune-2".into(),
                framework: "PyTorch".into(),
                limit_bytes: Some(20 << 30),
                ..OomRecord::default()
            }],
            recommendation: Some(Recommendation { bytes: 80 << 30, basis: "ran out".into(), ..Default::default() }),
            ..Default::default()
        };
        let told = learned(&status);
        assert_eq!(told.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["died", "size"]);
        assert!(told[0].1.starts_with("3 GPU out-of-memory deaths") && told[1].1.starts_with("80"), "{told:?}");
        assert!(
            told[0].1.ends_with("held to 20 GiB by its policy's growth limit: that was full, not the device"),
            "{told:?}"
        );
    }

    #[test]
    fn a_declaration_is_told_or_what_is_wrong_with_it() {
        let wrong = DeclaredView { problem: Some("key `x` is not known".into()), ..DeclaredView::default() };
        assert!(declared(&wrong).ends_with("is not used: key `x` is not known"));
        assert!(declared(&DeclaredView::default()).contains("share"));
    }
}

//! The rungs of a policy in words, the same in `explain`, `policy test` and `policy simulate`. Pure.

use gpumem_engine::policy::{Actions, Rung};

/// What a rung does, in words.
pub fn words(rung: Rung) -> &'static str {
    match rung {
        Rung::Notify => "Notify (Events on pod and policy)",
        Rung::LimitGrowth => "LimitGrowth (hold it to growthLimit)",
        Rung::Scale => "Scale (more replicas)",
        Rung::Checkpoint => "Checkpoint (ask it to save its work)",
        Rung::SuspendToHost => "SuspendToHost (move its GPU memory to host memory)",
        Rung::SuspendWorkload => "SuspendWorkload (suspend its Job)",
        Rung::Evict => "Evict through the Eviction API",
    }
}

/// Whether a rung takes something from the workload, so that budgets, cool-downs and attempts count it.
pub fn disrupts(rung: Rung) -> bool {
    matches!(rung, Rung::SuspendToHost | Rung::SuspendWorkload | Rung::Evict)
}

/// The rungs that are allowed, mildest first.
pub fn allowed(actions: &Actions) -> Vec<Rung> {
    let Actions { notify, limit_growth, scale, checkpoint, suspend_to_host, suspend_workload, evict } = actions;
    let all = [
        (*notify, Rung::Notify),
        (*limit_growth, Rung::LimitGrowth),
        (scale.is_some(), Rung::Scale),
        (checkpoint.is_some(), Rung::Checkpoint),
        (*suspend_to_host, Rung::SuspendToHost),
        (suspend_workload.is_some(), Rung::SuspendWorkload),
        (*evict, Rung::Evict),
    ];
    all.into_iter().filter_map(|(is_on, rung)| is_on.then_some(rung)).collect()
}

/// What a policy with these rungs does at a risk, in one sentence. Of those that act the mildest is taken that is predicted
/// to help before the memory is full; only one that cannot help here is passed over. A checkpoint is asked for before a job is
/// suspended or a pod evicted; by itself it is worth having too.
pub fn sentence(rungs: &[Rung]) -> String {
    let mut rungs = rungs.to_vec();
    rungs.sort_unstable();
    rungs.dedup();
    let saves = rungs.contains(&Rung::Checkpoint);
    let notify = rungs.first() == Some(&Rung::Notify);
    let acts: Vec<&str> =
        rungs.iter().filter(|rung| !matches!(rung, Rung::Notify | Rung::Checkpoint)).map(|rung| words(*rung)).collect();
    let mut parts: Vec<String> = Vec::new();
    if notify {
        parts.push(words(Rung::Notify).to_owned());
    }
    match acts.as_slice() {
        [] if saves => parts.push(words(Rung::Checkpoint).to_owned()),
        [] => {}
        [one] => parts.push((*one).to_owned()),
        several => parts.push(format!("the mildest of these that helps in time: {}", several.join("; "))),
    }
    if parts.is_empty() {
        return "nothing: it has no actions".to_owned();
    }
    let after = if saves && rungs.iter().any(|rung| matches!(rung, Rung::SuspendWorkload | Rung::Evict)) {
        " (Checkpoint first: it is asked to save its work before it is suspended or evicted)"
    } else {
        ""
    };
    parts.join(", then ") + after
}

/// Names of rungs for a table: `LimitGrowth, Checkpoint+Evict`.
pub fn names(rungs: &[Rung]) -> String {
    let is_after = |rung: &Rung| matches!(rung, Rung::SuspendWorkload | Rung::Evict);
    let saves = rungs.contains(&Rung::Checkpoint) && rungs.iter().any(is_after);
    let name = |rung: &Rung| if saves && is_after(rung) { format!("Checkpoint+{rung:?}") } else { format!("{rung:?}") };
    rungs.iter().filter(|rung| !(saves && **rung == Rung::Checkpoint)).map(name).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rungs_are_told_mildest_first_whatever_their_order_in_the_file() {
        assert_eq!(
            sentence(&[Rung::Evict, Rung::Notify]),
            "Notify (Events on pod and policy), then Evict through the Eviction API"
        );
        assert_eq!(
            sentence(&[Rung::Evict, Rung::Checkpoint, Rung::LimitGrowth, Rung::Notify]),
            "Notify (Events on pod and policy), then the mildest of these that helps in time: LimitGrowth (hold it to \
             growthLimit); Evict through the Eviction API (Checkpoint first: it is asked to save its work before it is \
             suspended or evicted)"
        );
        assert_eq!(sentence(&[]), "nothing: it has no actions");
        assert_eq!(names(&[Rung::Scale, Rung::Checkpoint, Rung::Evict]), "Scale or Checkpoint+Evict");
    }

    #[test]
    fn a_checkpoint_alone_is_an_action_too() {
        assert_eq!(sentence(&[Rung::Checkpoint]), "Checkpoint (ask it to save its work)");
        assert_eq!(names(&[Rung::Checkpoint]), "Checkpoint");
    }
}

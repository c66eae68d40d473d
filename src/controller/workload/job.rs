//! What is particular about Jobs: which failures count, who manages them, and which can change their size.

use serde_json::Value;

use super::handle::ScaleWrite;
use super::number;

/// The pod condition of every disruption, ours included.
const DISRUPTION: &str = "DisruptionTarget";
/// Each kind's own controller, as `managedBy` may name it.
const OWN_CONTROLLERS: [&str; 5] = [
    "kubernetes.io/job-controller",
    "jobset.sigs.k8s.io/jobset-controller",
    "trainer.kubeflow.org/trainjob-controller",
    "kubeflow.org/training-operator",
    "ray.io/kuberay-operator",
];

/// Whether an eviction is no failure to the Job: a rule of its `podFailurePolicy` ignores disruptions, and no rule before
/// it can match first. A container that is told to end may exit with any code, so every earlier rule may match.
pub fn ignores_disruption(spec: &Value) -> bool {
    let rules = spec["podFailurePolicy"]["rules"].as_array().into_iter().flatten();
    for rule in rules {
        if rule["action"] != "Ignore" {
            return false;
        }
        let mut patterns = rule["onPodConditions"].as_array().into_iter().flatten();
        // An absent status means True.
        if patterns.any(|pattern| {
            pattern["type"] == DISRUPTION && pattern["status"].as_str().is_none_or(|status| status == "True")
        }) {
            return true;
        }
    }
    false
}

/// The foreign controller that `managedBy` names: its object here is a shadow of one elsewhere.
pub fn foreign_manager(spec: &Value) -> Option<&str> {
    let manager = spec["managedBy"].as_str().or_else(|| spec["runPolicy"]["managedBy"].as_str());
    manager.filter(|manager| !manager.is_empty() && !OWN_CONTROLLERS.contains(manager))
}

/// Whether the loss of one pod stops the others too: an Indexed Job of several pods is one program on several hosts, unless
/// its author says by `backoffLimitPerIndex` that each index is on its own.
pub fn is_gang(spec: &Value) -> bool {
    spec["completionMode"] == "Indexed"
        && spec["backoffLimitPerIndex"].is_null()
        && number::or(&spec["parallelism"], 1) > 1
}

/// How its number of pods can be changed. An Indexed Job is elastic only while it has as many completions as pods, and then
/// the two change together; a Job of independent pods changes its parallelism alone.
pub fn scale(spec: &Value) -> Option<ScaleWrite> {
    if spec["completionMode"] == "Indexed" {
        let all_at_once = !spec["parallelism"].is_null() && spec["parallelism"] == spec["completions"];
        return all_at_once.then_some(ScaleWrite::ParallelismAndCompletions);
    }
    Some(ScaleWrite::Parallelism)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_eviction_is_no_failure_only_where_the_first_rule_that_can_match_ignores_it() {
        let ignore = json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]});
        let short = json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]});
        let fail = json!({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [143]}});
        let count = json!({"action": "Count", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]});
        let other = json!({"action": "Ignore", "onPodConditions": [{"type": "ConfigIssue", "status": "True"}]});
        let not = json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "False"}]});
        for (rules, ignores) in [
            (json!([ignore]), true),
            (json!([short]), true),
            (json!([ignore, fail]), true),
            (json!([other, ignore]), true),
            (json!([fail, ignore]), false),
            (json!([count, ignore]), false),
            (json!([other]), false),
            (json!([not]), false),
            (json!([]), false),
            (json!("Ignore"), false),
        ] {
            assert_eq!(ignores_disruption(&json!({"podFailurePolicy": {"rules": rules}})), ignores, "{rules}");
        }
        assert!(!ignores_disruption(&json!({})));
    }

    #[test]
    fn an_indexed_job_of_several_pods_is_one_program_and_changes_its_size_as_one() {
        let spec = |parallelism: u32, completions: u32| json!({"completionMode": "Indexed", "parallelism": parallelism, "completions": completions});
        assert!(is_gang(&spec(4, 4)) && !is_gang(&spec(1, 4)) && !is_gang(&json!({"parallelism": 4})));
        let mut alone = spec(4, 4);
        alone["backoffLimitPerIndex"] = json!(1);
        assert!(!is_gang(&alone));
        assert_eq!(scale(&spec(4, 4)), Some(ScaleWrite::ParallelismAndCompletions));
        assert_eq!(scale(&spec(2, 4)), None);
        assert_eq!(scale(&json!({"completionMode": "Indexed"})), None);
        assert_eq!(scale(&json!({"completions": 4})), Some(ScaleWrite::Parallelism));
    }

    #[test]
    fn a_shadow_of_a_job_elsewhere_names_its_manager() {
        assert_eq!(
            foreign_manager(&json!({"managedBy": "kueue.x-k8s.io/multikueue"})),
            Some("kueue.x-k8s.io/multikueue")
        );
        assert_eq!(foreign_manager(&json!({"managedBy": "kubernetes.io/job-controller"})), None);
        assert_eq!(
            foreign_manager(&json!({"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}})),
            Some("kueue.x-k8s.io/multikueue")
        );
        assert_eq!(foreign_manager(&json!({})), None);
    }
}

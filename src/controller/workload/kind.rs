//! The kinds of workloads we know: how to find them, and which levers each can have.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use gpumem_engine::decision::Workload;

/// A kind we know the meaning of, by its group: the version plays no part, and a `Job` of another group is another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `apps/v1`.
    Deployment,
    /// `apps/v1`.
    ReplicaSet,
    /// `apps/v1`.
    StatefulSet,
    /// `apps/v1`.
    DaemonSet,
    /// `batch/v1`.
    Job,
    /// `batch/v1`.
    CronJob,
    /// A node that owns its static pods.
    Node,
    /// A pod that owns others: the leader of a LeaderWorkerSet's group.
    Pod,
    /// Argo Rollouts.
    Rollout,
    /// Sets of Jobs.
    JobSet,
    /// Kubeflow Trainer v2.
    TrainJob,
    /// Kubeflow Training Operator v1.
    PyTorchJob,
    /// KubeRay.
    RayCluster,
    /// KubeRay; owns a RayCluster and a submitting Job.
    RayJob,
    /// KubeRay; owns a RayCluster.
    RayService,
    /// Groups of a leader and its workers.
    LeaderWorkerSet,
    /// Volcano's Job.
    VolcanoJob,
    /// Kueue's Workload: it owns no pod, and holds the lever of the Job that it admits.
    KueueWorkload,
}

/// What can be done to a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lever {
    /// Evicting one of its pods.
    Evict,
    /// Suspending all of it.
    Suspend,
    /// Changing the number of its pods.
    Scale,
}

impl Lever {
    const ALL: [Self; 3] = [Self::Evict, Self::Suspend, Self::Scale];

    const fn name(self) -> &'static str {
        match self {
            Self::Evict => "Evict",
            Self::Suspend => "Suspend",
            Self::Scale => "Scale",
        }
    }
}

impl Kind {
    /// Every kind that has a switch.
    pub const SWITCHED: [Self; 15] = [
        Self::Deployment,
        Self::ReplicaSet,
        Self::StatefulSet,
        Self::Job,
        Self::CronJob,
        Self::Rollout,
        Self::JobSet,
        Self::TrainJob,
        Self::PyTorchJob,
        Self::RayCluster,
        Self::RayJob,
        Self::RayService,
        Self::LeaderWorkerSet,
        Self::VolcanoJob,
        Self::KueueWorkload,
    ];

    /// The kind of an owner; `None` for one we do not know.
    pub fn of(owner: &Workload) -> Option<Self> {
        let (group, version) = owner.api_version.rsplit_once('/').unwrap_or(("", &owner.api_version));
        Some(match (group, version, owner.kind.as_str()) {
            ("apps", "v1", "Deployment") => Self::Deployment,
            ("apps", "v1", "ReplicaSet") => Self::ReplicaSet,
            ("apps", "v1", "StatefulSet") => Self::StatefulSet,
            ("apps", "v1", "DaemonSet") => Self::DaemonSet,
            ("batch", "v1", "Job") => Self::Job,
            ("batch", "v1", "CronJob") => Self::CronJob,
            ("", "v1", "Node") => Self::Node,
            ("", "v1", "Pod") => Self::Pod,
            ("argoproj.io", _, "Rollout") => Self::Rollout,
            ("jobset.x-k8s.io", _, "JobSet") => Self::JobSet,
            ("trainer.kubeflow.org", _, "TrainJob") => Self::TrainJob,
            ("kubeflow.org", _, "PyTorchJob") => Self::PyTorchJob,
            ("ray.io", _, "RayCluster") => Self::RayCluster,
            ("ray.io", _, "RayJob") => Self::RayJob,
            ("ray.io", _, "RayService") => Self::RayService,
            ("leaderworkerset.x-k8s.io", _, "LeaderWorkerSet") => Self::LeaderWorkerSet,
            ("batch.volcano.sh", _, "Job") => Self::VolcanoJob,
            _ => return None,
        })
    }

    /// Its plural in the API's paths.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Deployment => "deployments",
            Self::ReplicaSet => "replicasets",
            Self::StatefulSet => "statefulsets",
            Self::DaemonSet => "daemonsets",
            Self::Job | Self::VolcanoJob => "jobs",
            Self::CronJob => "cronjobs",
            Self::Node => "nodes",
            Self::Pod => "pods",
            Self::Rollout => "rollouts",
            Self::JobSet => "jobsets",
            Self::TrainJob => "trainjobs",
            Self::PyTorchJob => "pytorchjobs",
            Self::RayCluster => "rayclusters",
            Self::RayJob => "rayjobs",
            Self::RayService => "rayservices",
            Self::LeaderWorkerSet => "leaderworkersets",
            Self::KueueWorkload => "workloads",
        }
    }

    /// Name of its switch; `None` for what has none.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::Deployment => "Deployment",
            Self::ReplicaSet => "ReplicaSet",
            Self::StatefulSet => "StatefulSet",
            Self::Job => "Job",
            Self::CronJob => "CronJob",
            Self::Rollout => "Rollout",
            Self::JobSet => "JobSet",
            Self::TrainJob => "TrainJob",
            Self::PyTorchJob => "PyTorchJob",
            Self::RayCluster => "RayCluster",
            Self::RayJob => "RayJob",
            Self::RayService => "RayService",
            Self::LeaderWorkerSet => "LeaderWorkerSet",
            Self::VolcanoJob => "VolcanoJob",
            Self::KueueWorkload => "KueueWorkload",
            Self::DaemonSet | Self::Node | Self::Pod => return None,
        })
    }

    /// Levers it can have.
    pub const fn levers(self) -> &'static [Lever] {
        match self {
            Self::Deployment | Self::ReplicaSet | Self::StatefulSet | Self::Rollout | Self::LeaderWorkerSet => {
                &[Lever::Evict, Lever::Scale]
            }
            Self::Job | Self::CronJob => &[Lever::Evict, Lever::Suspend, Lever::Scale],
            Self::JobSet | Self::TrainJob | Self::PyTorchJob => &[Lever::Evict, Lever::Suspend],
            Self::RayCluster | Self::RayJob | Self::RayService | Self::VolcanoJob => &[Lever::Evict],
            Self::KueueWorkload => &[Lever::Suspend],
            Self::DaemonSet | Self::Node | Self::Pod => &[],
        }
    }

    /// Where its own suspension is written. A CronJob's stops future runs only, so it is none for the run at risk.
    pub const fn suspend_field(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Job | Self::JobSet | Self::TrainJob => Some(&["spec", "suspend"]),
            Self::PyTorchJob => Some(&["spec", "runPolicy", "suspend"]),
            _ => None,
        }
    }

    /// Whether it leaves the spec of what it owns alone once that exists, so that a lever below it is not written back.
    pub const fn leaves_its_own_alone(self) -> bool {
        matches!(self, Self::CronJob)
    }
}

/// Which levers the administrator turned on, for each kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switches(BTreeMap<Kind, Vec<Lever>>);

impl Switches {
    /// What the chart passes by default: the kinds whose own controllers were run in the tests.
    pub const DEFAULT: &'static str = "Deployment=Evict+Scale,ReplicaSet=Evict+Scale,StatefulSet=Evict+Scale,Job=Evict+Suspend+Scale,CronJob=Evict+Suspend+Scale";

    /// Everything that exists.
    pub fn everything() -> Self {
        Self(Kind::SWITCHED.into_iter().map(|kind| (kind, kind.levers().to_vec())).collect())
    }

    /// Whether this lever of this kind is on. What has no switch does not stand in the way.
    pub fn allow(&self, kind: Kind, lever: Lever) -> bool {
        kind.name().is_none() || self.0.get(&kind).is_some_and(|levers| levers.contains(&lever))
    }
}

impl FromStr for Switches {
    type Err = String;

    /// `Kind=Lever+Lever,Kind=`; a kind that is not named has all its levers off.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut switches = BTreeMap::new();
        for entry in text.split(',').filter(|entry| !entry.is_empty()) {
            let (name, levers) = entry.split_once('=').ok_or_else(|| format!("{entry}: give Kind=Lever+Lever"))?;
            let kind = Kind::SWITCHED
                .into_iter()
                .find(|kind| kind.name() == Some(name))
                .ok_or_else(|| format!("{name} is no kind that can be acted on"))?;
            let mut on = Vec::new();
            for lever in levers.split('+').filter(|lever| !lever.is_empty()) {
                let known = Lever::ALL.into_iter().find(|known| known.name() == lever);
                match known.filter(|known| kind.levers().contains(known)) {
                    Some(known) => on.push(known),
                    None => return Err(format!("a {name} has no lever {lever}")),
                }
            }
            switches.insert(kind, on);
        }
        Ok(Self(switches))
    }
}

impl fmt::Display for Switches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (kind, levers)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let levers: Vec<&str> = levers.iter().map(|lever| lever.name()).collect();
            write!(f, "{comma}{}={}", kind.name().unwrap_or_default(), levers.join("+"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use gpumem_engine::pacing::WorkloadUid;

    use super::*;

    #[test]
    fn a_kind_is_known_by_its_group_whatever_its_version() {
        let of = |api_version: &str, kind: &str| {
            let uid = WorkloadUid(String::new());
            Kind::of(&Workload { api_version: api_version.into(), kind: kind.into(), name: String::new(), uid })
        };
        assert_eq!(of("batch/v1", "Job"), Some(Kind::Job));
        assert_eq!(of("batch.volcano.sh/v1alpha1", "Job"), Some(Kind::VolcanoJob));
        assert_eq!(of("jobset.x-k8s.io/v1alpha2", "JobSet"), of("jobset.x-k8s.io/v1", "JobSet"));
        for (api_version, kind) in [("example.com/v1", "Deployment"), ("v1", "Deployment"), ("apps/v2", "Deployment")] {
            assert_eq!(of(api_version, kind), None, "{api_version} {kind}");
        }
    }

    #[test]
    fn switches_read_back_and_refuse_what_does_not_exist() {
        for text in [Switches::DEFAULT, "", "JobSet=", "JobSet=Suspend,TrainJob=Evict+Suspend"] {
            let switches: Switches = text.parse().unwrap();
            assert_eq!(switches.to_string().parse::<Switches>().unwrap(), switches, "{text}");
        }
        for wrong in ["Job", "Pod=Evict", "JobSet=Scale", "JobSet=suspend", "batch/v1=Evict"] {
            assert!(wrong.parse::<Switches>().is_err(), "{wrong}");
        }
        let switches: Switches = "JobSet=Suspend".parse().unwrap();
        assert!(switches.allow(Kind::JobSet, Lever::Suspend) && switches.allow(Kind::Pod, Lever::Evict));
        assert!(!switches.allow(Kind::JobSet, Lever::Evict) && !switches.allow(Kind::Job, Lever::Suspend));
    }
}

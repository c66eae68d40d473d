//! Which levers a workload has: for each kind what can be done to it, whose lever it is, and how many pods stop by it.
//!
//! Flows in: a pod's facts and its chain of owners. Flows out: a [`Resolution`]. A lever is taken from the lowest owner that
//! has one and whose own manager would not write it back: of a Job that a JobSet made, the JobSet's; of what Kueue admits,
//! Kueue's. Every object is read anew, so that what is called is what was looked at.

use gpumem_engine::decision::{Blast, Hold, Levers, Protected, Workload};
use gpumem_engine::pacing::Stamp;
use gpumem_engine::policy::{Policy, Protection, ScaleVia};
use kube::core::DynamicObject;

use super::handle::{ScaleHandle, ScaleWrite, SuspendHandle, Target};
use super::kind::{Kind, Lever, Switches};
use super::kueue::{self, Admission};
use super::object::Located;
use super::{Chain, Error, Hops, PodFacts, job, number, replicas, size};

/// What can be done to the workload of one pod, with everything that the call needs; each lever that is missing says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// Evicting this pod.
    pub evict: Result<Blast, Hold>,
    /// Suspending the workload.
    pub suspend: Result<SuspendHandle, Hold>,
    /// Changing the number of its pods.
    pub scale: Result<ScaleHandle, Hold>,
    /// Freezing the container, with its GPU memory in host memory.
    pub suspend_to_host: Result<(), Hold>,
}

impl Resolution {
    /// As decisions see it.
    pub fn levers(&self) -> Levers {
        Levers {
            evict: self.evict.clone(),
            suspend: self.suspend.as_ref().map(|handle| Blast(handle.blast)).map_err(Clone::clone),
            scale: self.scale.as_ref().map(|handle| handle.replicas).map_err(Clone::clone),
            suspend_to_host: self.suspend_to_host.clone(),
        }
    }

    fn nothing(why: &Hold) -> Self {
        let no = || why.clone();
        Self { evict: Err(no()), suspend: Err(no()), scale: Err(no()), suspend_to_host: Err(no()) }
    }
}

/// One owner, as it was just read. Only those are read whose fields matter.
struct Link<'a> {
    kind: Kind,
    workload: &'a Workload,
    object: Option<DynamicObject>,
}

impl Link<'_> {
    fn field(&self, name: &str) -> &serde_json::Value {
        static NULL: serde_json::Value = serde_json::Value::Null;
        self.object.as_ref().map_or(&NULL, |object| &object.data[name])
    }

    fn spec(&self) -> &serde_json::Value {
        self.field("spec")
    }

    fn pods(&self) -> u32 {
        self.object.as_ref().map_or(1, |object| size::pods(self.kind, object))
    }
}

/// Resolves the levers of the pod's workload. `policy` says what is protected, and whether replicas are written at all:
/// where they are not, nobody is asked who owns them.
pub async fn resolve(
    client: &kube::Client,
    switches: &Switches,
    hops: &Hops,
    now: Stamp,
    policy: &Policy,
    chain: &Chain,
    facts: &PodFacts,
) -> Resolution {
    let kind = chain.top().map_or_else(|| "Pod".to_owned(), |top| top.kind.clone());
    let links = match chain.standing.clone() {
        Ok(()) => read_links(client, chain, facts).await,
        Err(why) => Err(why),
    };
    let links = match links {
        Ok(links) => links,
        Err(why) => return Resolution::nothing(&why),
    };
    let namespace = &facts.pod.namespace;
    let is_marked = kueue::is_marked(&facts.labels)
        || links.iter().filter_map(|link| link.object.as_ref()?.metadata.labels.as_ref()).any(kueue::is_marked);
    let admission = kueue::admission(client, &hops.catalogue, now, namespace, &chain.owners, is_marked).await;
    let admission = match admission {
        Ok(admission) => admission,
        Err(why) => return Resolution::nothing(&why),
    };
    if let Some((kind, manager)) = links.iter().find_map(|link| Some((link.kind, job::foreign_manager(link.spec())?))) {
        let kind = format!("{} managed by {manager}", kind.name().unwrap_or_default());
        return Resolution::nothing(&Hold::UnsupportedOwner { kind: kind.clone() });
    }
    let scale = match policy.actions.scale.map(|scale| scale.via) {
        Some(ScaleVia::Replicas) => scale(client, switches, hops, now, &links, &admission, facts).await,
        Some(ScaleVia::Metrics) | None => Err(no("scale", &kind)),
    };
    Resolution {
        evict: evict(switches, policy, &links, &admission, facts),
        suspend: suspend(switches, &links, admission, facts),
        scale,
        suspend_to_host: to_host(&links, facts),
    }
}

fn no(lever: &'static str, kind: &str) -> Hold {
    Hold::NoLever { lever, kind: kind.to_owned() }
}

/// What the administrator left off.
fn off(kind: Kind) -> Hold {
    Hold::UnsupportedOwner { kind: kind.name().unwrap_or_default().to_owned() }
}

async fn read_links<'a>(client: &kube::Client, chain: &'a Chain, facts: &PodFacts) -> Result<Vec<Link<'a>>, Hold> {
    let mut links = Vec::new();
    for (index, workload) in chain.owners.iter().enumerate() {
        let Some(kind) = Kind::of(workload) else {
            return Err(Hold::UnsupportedOwner { kind: workload.kind.clone() });
        };
        // A ReplicaSet below another owner says nothing that the owner does not.
        let is_below = kind == Kind::ReplicaSet && index + 1 < chain.owners.len();
        let object = if is_below || matches!(kind, Kind::Pod | Kind::CronJob) {
            None
        } else {
            let read =
                Located::of(kind, workload, &facts.pod.namespace).read(client).await.map_err(Error::into_hold)?;
            let gone = || Hold::OwnerUnknown { why: format!("{} {} is gone", workload.kind, workload.name) };
            Some(read.ok_or_else(gone)?)
        };
        links.push(Link { kind, workload, object });
    }
    Ok(links)
}

/// Whether this pod may be evicted, and how many pods stop with it.
fn evict(
    switches: &Switches,
    policy: &Policy,
    links: &[Link<'_>],
    admission: &Admission,
    facts: &PodFacts,
) -> Result<Blast, Hold> {
    let protects = |protection| policy.disruption.protect.contains(&protection);
    let is_head = facts.labels.get("ray.io/node-type").is_some_and(|node| node == "head");
    if is_head && protects(Protection::RayHead) {
        return Err(Hold::Protected(Protected::RayHead));
    }
    if let Some(link) = links.iter().find(|link| !switches.allow(link.kind, Lever::Evict)) {
        return Err(off(link.kind));
    }
    if *admission != Admission::None {
        return Err(no("evict", "workload that Kueue admits"));
    }
    let counts = |link: &&Link<'_>| link.kind == Kind::Job && !job::ignores_disruption(link.spec());
    if protects(Protection::JobWithoutDisruptionPolicy) && links.iter().any(|link| counts(&link)) {
        return Err(Hold::Protected(Protected::Job));
    }
    let blast = links.iter().map(|link| blast(link, is_head)).max().unwrap_or(1);
    Ok(Blast(blast.max(1)))
}

/// Whether this pod may be frozen: nobody may wait for it, and the kubelet may not take it for dead. That the agents can do it
/// at all was checked with the rights.
fn to_host(links: &[Link<'_>], facts: &PodFacts) -> Result<(), Hold> {
    let lever = "suspend to host";
    if links.iter().map(Link::pods).max().unwrap_or(1) > 1 {
        return Err(no(lever, "workload of several pods"));
    }
    if !facts.exec_probes.is_empty() {
        return Err(no(lever, "pod whose liveness probe runs a command in it"));
    }
    Ok(())
}

/// Pods that stop when one of this owner's does.
fn blast(link: &Link<'_>, is_head: bool) -> u32 {
    match link.kind {
        Kind::JobSet | Kind::PyTorchJob | Kind::VolcanoJob => link.pods(),
        Kind::Job if job::is_gang(link.spec()) => link.pods(),
        Kind::RayCluster if is_head => link.pods(),
        Kind::LeaderWorkerSet => {
            let template = &link.spec()["leaderWorkerTemplate"];
            // Unless told otherwise, a group is made anew as a whole when one of its pods goes.
            if template["restartPolicy"] == "None" { 1 } else { number::or(&template["size"], 1) }
        }
        _ => 1,
    }
}

/// Whose suspension stops the pod's workload for good, and not just until its manager looks again.
fn suspend(
    switches: &Switches,
    links: &[Link<'_>],
    admission: Admission,
    facts: &PodFacts,
) -> Result<SuspendHandle, Hold> {
    let blast = links.iter().map(Link::pods).max().unwrap_or(1).max(1);
    let top = links.last().map_or("Pod", |link| link.workload.kind.as_str());
    match admission {
        Admission::Somehow => {
            return Err(Hold::OwnerUnknown {
                why: "Kueue admits it, and the one Workload that does is not to be found".to_owned(),
            });
        }
        Admission::By(..) if !switches.allow(Kind::KueueWorkload, Lever::Suspend) => {
            return Err(off(Kind::KueueWorkload));
        }
        Admission::By(_, false) => return Err(Hold::PodTerminating),
        Admission::By(target, true) => {
            let field = vec!["spec".to_owned(), "active".to_owned()];
            return Ok(SuspendHandle { target: *target, field, suspended: false, blast });
        }
        Admission::None => {}
    }
    let above = links.iter().rposition(|link| !link.kind.leaves_its_own_alone());
    let Some(holder) = above.map(|index| &links[index]) else { return Err(no("suspend", top)) };
    let Some(path) = holder.kind.suspend_field() else { return Err(no("suspend", top)) };
    if let Some(link) = links
        .iter()
        .find(|link| link.kind.levers().contains(&Lever::Suspend) && !switches.allow(link.kind, Lever::Suspend))
    {
        return Err(off(link.kind));
    }
    let suspended = path.iter().try_fold(holder.object.as_ref().map(|object| &object.data), |value, key| {
        Some(value.and_then(|value| value.get(key)))
    });
    if suspended.flatten().and_then(serde_json::Value::as_bool) == Some(true) {
        // Its pods are on their way out already.
        return Err(Hold::PodTerminating);
    }
    Ok(SuspendHandle {
        target: target(holder, facts),
        field: path.iter().map(|&key| key.to_owned()).collect(),
        suspended: true,
        blast,
    })
}

fn target(link: &Link<'_>, facts: &PodFacts) -> Target {
    Located::of(link.kind, link.workload, &facts.pod.namespace).0
}

/// Whose number of pods may be changed, if it is nobody else's to change.
async fn scale(
    client: &kube::Client,
    switches: &Switches,
    hops: &Hops,
    now: Stamp,
    links: &[Link<'_>],
    admission: &Admission,
    facts: &PodFacts,
) -> Result<ScaleHandle, Hold> {
    let owned = |by: String| Err(Hold::ReplicasOwnedByOther { by });
    if *admission != Admission::None {
        return owned("Kueue".to_owned());
    }
    let above = links.iter().rposition(|link| !link.kind.leaves_its_own_alone());
    let top = links.last().map_or("Pod", |link| link.workload.kind.as_str());
    let Some(holder) = above.map(|index| &links[index]) else { return Err(no("scale", top)) };
    let write = match holder.kind {
        Kind::Deployment | Kind::ReplicaSet | Kind::StatefulSet | Kind::Rollout | Kind::LeaderWorkerSet => {
            ScaleWrite::Subresource
        }
        Kind::Job => {
            job::scale(holder.spec()).ok_or_else(|| no("scale", "Job whose completions differ from its parallelism"))?
        }
        Kind::RayCluster if holder.spec()["enableInTreeAutoscaling"] == true => {
            return owned("the Ray autoscaler".to_owned());
        }
        _ => return Err(no("scale", top)),
    };
    if let Some(link) =
        links.iter().find(|link| link.kind.levers().contains(&Lever::Scale) && !switches.allow(link.kind, Lever::Scale))
    {
        return Err(off(link.kind));
    }
    let target = target(holder, facts);
    if write == ScaleWrite::Subresource {
        let scales = hops.catalogue.has_scale(client, now, &target.api_version, &target.plural).await;
        if !scales.map_err(Error::into_hold)? {
            return Err(no("scale", &format!("{} of {}", target.kind, target.api_version)));
        }
    }
    let owners: Vec<Workload> = links.iter().map(|link| link.workload.clone()).collect();
    let autoscaler = replicas::autoscaler(client, &target.namespace, &owners).await.map_err(Error::into_hold)?;
    let Some(object) = &holder.object else { return Err(no("scale", top)) };
    if let Some(by) = autoscaler.or_else(|| replicas::manager(object, write)) {
        return owned(by);
    }
    let mut handle = ScaleHandle { target, write, replicas: 0 };
    handle.replicas = handle.replicas_of(object).unwrap_or(0);
    Ok(handle)
}

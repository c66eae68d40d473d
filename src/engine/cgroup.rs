//! Which container a process runs in, read from the text of `/proc/<pid>/cgroup`.
//!
//! Flows in: that text as the agent read it. Flows out: a [`Membership`]. Paths are relative to the *reader's* cgroup
//! namespace, so the same process may show as `/kubepods/…/pod<uid>/<id>`, as `/../../pod<uid>/<id>`, or, from within its
//! own pod, as `/../<id>`; therefore nothing is anchored at the root. Text that fits no known form is "not a pod" with a
//! reason, never an error and never a guess. Whether pod and container exist, and which container is the pod's sandbox,
//! only the pod's status tells: that is the caller's check.

use crate::identity::{ContainerId, ContainerKey, PodUid};

#[cfg(test)]
mod tests;

/// Longest text looked at. Twelve hierarchies of cgroup v1 with paths as long as the kernel prints them stay below.
pub const MAX_TEXT_BYTES: usize = 64 * 1024;

/// Deepest nesting of pods kept. One is the rule, two is a cluster that runs inside a pod.
const MAX_NESTED: usize = 8;

/// Where a process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Membership {
    /// In this container.
    Container(ContainerKey),
    /// In a container of a pod that itself runs within the container of another pod; outermost first, never fewer than
    /// two. [`Membership::container`] chooses.
    Nested(Vec<ContainerKey>),
    /// In no container of a pod.
    NotAPod(NotAPod),
}

/// Why a process counts as belonging to no pod: a closed set, fit for a metric label. In ascending order of what the
/// reason tells, which decides when the lines of one text differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NotAPod {
    /// No line has the form `id:controllers:/path`.
    Malformed,
    /// The text is longer than [`MAX_TEXT_BYTES`].
    TooLong,
    /// At the root of the hierarchy, or in the reader's own cgroup when that looks like the root.
    Root,
    /// A process of the host.
    Host,
    /// In a container that no kubelet manages.
    PlainContainer,
    /// In another container of the reader's own pod, but the caller did not say which pod that is.
    OwnPodUnknown,
    /// In a pod's cgroup but in none of its containers: the overhead of a sandboxed runtime.
    PodOverhead,
    /// The runtime's own monitor of a container (conmon): not the workload's memory.
    RuntimeMonitor,
    /// The lines name different containers. Naming one of them might blame an innocent pod.
    Conflicting,
}

/// Reads the text of `/proc/<pid>/cgroup`.
///
/// `own_pod` is the UID of the pod the reader runs in, if any: a sibling container in a private cgroup namespace shows
/// without its pod's UID. Total: any text gives an answer.
pub fn parse(text: &str, own_pod: Option<&PodUid>) -> Membership {
    if text.len() > MAX_TEXT_BYTES {
        return Membership::NotAPod(NotAPod::TooLong);
    }
    let mut containers: Vec<ContainerKey> = Vec::new();
    let mut reason = NotAPod::Malformed;
    for path in text.lines().filter_map(path_of_line) {
        match parse_path(path, own_pod) {
            Ok(found) => match joined(containers, found) {
                Some(both) => containers = both,
                None => return Membership::NotAPod(NotAPod::Conflicting),
            },
            Err(why) => reason = reason.max(why),
        }
    }
    match containers.len() {
        0 => Membership::NotAPod(reason),
        1 => Membership::Container(containers.swap_remove(0)),
        _ => Membership::Nested(containers),
    }
}

// === impl Membership ===

impl Membership {
    /// The container to name. Of nested ones it is the outermost whose pod `is_on_node`, else the innermost.
    ///
    /// Outermost, because a container that may write its cgroups can create directories below its own that look like
    /// another pod's: its memory must stay its own. The innermost serves an agent whose node is itself a container.
    pub fn container(&self, is_on_node: impl Fn(&PodUid) -> bool) -> Option<&ContainerKey> {
        match self {
            Self::Container(container) => Some(container),
            Self::Nested(containers) => {
                containers.iter().find(|container| is_on_node(&container.pod)).or(containers.last())
            }
            Self::NotAPod(_) => None,
        }
    }
}

// === impl NotAPod ===

impl NotAPod {
    /// Name for a metric label.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::TooLong => "too_long",
            Self::Root => "root",
            Self::Host => "host",
            Self::PlainContainer => "plain_container",
            Self::OwnPodUnknown => "own_pod_unknown",
            Self::PodOverhead => "pod_overhead",
            Self::RuntimeMonitor => "runtime_monitor",
            Self::Conflicting => "conflicting",
        }
    }
}

/// The path of one line `id:controllers:path`. Only the first two colons separate; the path may hold more.
fn path_of_line(line: &str) -> Option<&str> {
    let mut fields = line.splitn(3, ':');
    let (id, _controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    // The kernel appends this where the cgroup was removed before its last process was reaped.
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    (is_id && path.starts_with('/')).then_some(path)
}

/// The containers one path passes through, outermost first and never empty, or why there is none.
fn parse_path(path: &str, own_pod: Option<&PodUid>) -> Result<Vec<ContainerKey>, NotAPod> {
    let mut found = Vec::new();
    let mut reason = NotAPod::Root;
    let mut pod: Option<PodUid> = None;
    let mut ups = 0;
    let mut is_first = true;
    for component in path.split('/').filter(|component| !component.is_empty()) {
        if component == ".." {
            if !is_first {
                return Err(NotAPod::Malformed); // the kernel climbs before it descends
            }
            ups += 1;
            continue;
        }
        // One step up from a container is its pod; CRI-O may put the reader itself one directory deeper.
        let is_sibling = std::mem::take(&mut is_first) && (1..=2).contains(&ups);
        reason = reason.max(NotAPod::Host);
        if let Some(inner) = pod_of(component) {
            pod = Some(inner);
            continue;
        }
        let (owner, cgroup) = match pod_and_cgroup_of(component) {
            Some((inner, cgroup)) => (Ok(inner), Some(cgroup)),
            None => match (pod.take(), own_pod) {
                (Some(outer), _) => (Ok(outer), cgroup_of(component)),
                (None, Some(own)) if is_sibling => (Ok(own.clone()), cgroup_of(component)),
                (None, None) if is_sibling => (Err(NotAPod::OwnPodUnknown), cgroup_of(component)),
                (None, _) => (Err(NotAPod::PlainContainer), cgroup_of(component)),
            },
        };
        match (owner, cgroup) {
            (Ok(pod), Some(Cgroup::Container(container))) => keep(&mut found, ContainerKey { pod, container }),
            (Err(why), Some(Cgroup::Container(_))) => reason = reason.max(why),
            (_, Some(Cgroup::Monitor)) => reason = reason.max(NotAPod::RuntimeMonitor),
            (Ok(_), None) if !is_sibling => reason = reason.max(NotAPod::PodOverhead),
            (_, None) => {}
        }
    }
    if pod.is_some() {
        reason = reason.max(NotAPod::PodOverhead);
    }
    if found.is_empty() { Err(reason) } else { Ok(found) }
}

/// Adds the next inner container; beyond [`MAX_NESTED`] the outermost ones and the innermost are kept.
fn keep(containers: &mut Vec<ContainerKey>, inner: ContainerKey) {
    if containers.len() == MAX_NESTED {
        containers.pop();
    }
    containers.push(inner);
}

/// The longer of two lines' containers if the other is a part of it: with cgroup v1 a nested runtime may use only some
/// of the hierarchies. `None` if they contradict each other.
fn joined(a: Vec<ContainerKey>, b: Vec<ContainerKey>) -> Option<Vec<ContainerKey>> {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let is_part = short.is_empty() || long.windows(short.len()).any(|part| part == short);
    is_part.then_some(long)
}

/// What a directory below a pod's is.
enum Cgroup {
    Container(ContainerId),
    Monitor,
}

/// A runtime's directory of one container: `<id>`, `crio-<id>`, `cri-containerd-<id>.scope` and the like.
fn cgroup_of(component: &str) -> Option<Cgroup> {
    let name = component.strip_suffix(".scope").unwrap_or(component);
    let (runtime, id) = name.rsplit_once('-').unwrap_or(("", name));
    runtime_cgroup(runtime, id)
}

fn runtime_cgroup(runtime: &str, id: &str) -> Option<Cgroup> {
    if !is_lower_hex(id, 64) {
        return None;
    }
    Some(if runtime.ends_with("conmon") { Cgroup::Monitor } else { Cgroup::Container(ContainerId::from(id)) })
}

/// `<pod's slice>:<runtime>:<id>` as one directory: a runtime set to cgroupfs under a kubelet set to systemd.
fn pod_and_cgroup_of(component: &str) -> Option<(PodUid, Cgroup)> {
    let mut fields = component.splitn(3, ':');
    let (slice, runtime, id) = (fields.next()?, fields.next()?, fields.next()?);
    Some((pod_of_slice(slice)?, runtime_cgroup(runtime, id)?))
}

/// The kubelet's directory of a pod: `pod<uid>`, or `kubepods-<qos>-pod<uid>.slice` by the systemd driver.
fn pod_of(component: &str) -> Option<PodUid> {
    pod_of_slice(component).or_else(|| pod_uid(component.strip_prefix("pod")?, '-'))
}

fn pod_of_slice(component: &str) -> Option<PodUid> {
    let (parents, pod) = component.strip_suffix(".slice")?.rsplit_once('-')?;
    if !parents.split('-').any(|parent| parent == "kubepods") {
        return None;
    }
    // A dash in a slice's name means "child of", so the kubelet writes the UID's dashes as underscores.
    pod_uid(pod.strip_prefix("pod")?, '_')
}

/// A UID in the API's form, given how its driver writes a dash. A static pod's has none: it is a hash of its manifest.
fn pod_uid(text: &str, dash: char) -> Option<PodUid> {
    if is_lower_hex(text, 32) {
        return Some(PodUid::from(text));
    }
    let mut lengths = [8, 4, 4, 4, 12].into_iter();
    let is_uid = text.split(dash).all(|part| lengths.next().is_some_and(|length| is_lower_hex(part, length)));
    (is_uid && lengths.next().is_none()).then(|| PodUid::from(text.replace(dash, "-")))
}

fn is_lower_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

//! The cgroup of a container: its leaf below the host's cgroup mount, found by the same rules that name processes.
//!
//! Flows in: a container's id. Flows out: the directory. It is looked for in the tree and not computed from
//! `/proc/<pid>/cgroup`, because that text is relative to the reader's own cgroup namespace.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpumem_engine::cgroup::{self, Membership};
use gpumem_engine::identity::ContainerId;

/// Directories looked at in one search; a busy node has a few thousand.
const MAX_DIRECTORIES: usize = 20_000;
/// Deepest directory looked at; a cluster within a pod doubles the usual six.
const MAX_DEPTH: usize = 16;
/// A container that was not found is not looked for again for so long.
const MISSED: Duration = Duration::from_secs(2);
/// Hierarchies of cgroup v1 that have every container.
const V1: [&str; 3] = ["memory", "devices", "cpu"];

/// Finds leaves, and remembers them.
#[derive(Debug)]
pub struct Leaves {
    root: PathBuf,
    known: HashMap<ContainerId, (PathBuf, u64)>,
    missed: HashMap<ContainerId, Instant>,
}

/// Which cgroups a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// One unified hierarchy.
    V2,
    /// One hierarchy for each controller.
    V1,
    /// None at that place.
    Absent,
}

// === impl Leaves ===

impl Leaves {
    /// Below the mount point `root`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), known: HashMap::new(), missed: HashMap::new() }
    }

    /// Which cgroups are mounted there.
    pub fn version(&self) -> Version {
        if self.root.join("cgroup.controllers").exists() {
            Version::V2
        } else if self.v1().is_some() {
            Version::V1
        } else {
            Version::Absent
        }
    }

    /// The top of the hierarchy that leaves are looked for in.
    pub fn top(&self) -> PathBuf {
        self.v1().filter(|_| self.version() == Version::V1).unwrap_or_else(|| self.root.clone())
    }

    /// A leaf's path as it is recorded: below the mount point, so that it means the same to every agent.
    pub fn recorded(&self, leaf: &Path) -> String {
        leaf.strip_prefix(&self.root).unwrap_or(leaf).display().to_string()
    }

    /// The directory of a recorded path; `None` where it leads out of the mount point, or is gone.
    pub fn of_record(&self, recorded: &str) -> Option<PathBuf> {
        let is_below = Path::new(recorded).components().all(|part| matches!(part, std::path::Component::Normal(_)));
        let leaf = self.root.join(recorded);
        (is_below && !recorded.is_empty() && leaf.is_dir()).then_some(leaf)
    }

    /// The leaf of a container, if it is there.
    pub fn find(&mut self, container: &ContainerId) -> Option<PathBuf> {
        if let Some((leaf, inode)) = self.known.get(container) {
            // A directory of the same name is another cgroup if its number is.
            if fs::metadata(leaf).is_ok_and(|metadata| metadata.ino() == *inode) {
                return Some(leaf.clone());
            }
            self.known.remove(container);
        }
        if self.missed.get(container).is_some_and(|missed| missed.elapsed() < MISSED) {
            return None;
        }
        let found = self.search(container);
        match &found {
            Some(leaf) => {
                let inode = fs::metadata(leaf).map_or(0, |metadata| metadata.ino());
                self.known.insert(container.clone(), (leaf.clone(), inode));
                self.missed.remove(container);
            }
            None => drop(self.missed.insert(container.clone(), Instant::now())),
        }
        found
    }

    /// Forgets containers that nobody asks for any more.
    pub fn retain(&mut self, wanted: impl Fn(&ContainerId) -> bool) {
        self.known.retain(|container, _| wanted(container));
        self.missed.retain(|container, _| wanted(container));
    }

    /// The nearest to the top wins: a container that may write its own cgroups can only imitate others further down.
    fn search(&self, container: &ContainerId) -> Option<PathBuf> {
        let top = self.top();
        let mut queue = VecDeque::from([(top.clone(), 0)]);
        let mut seen = 0;
        while let Some((directory, depth)) = queue.pop_front() {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    continue;
                }
                seen += 1;
                if seen > MAX_DIRECTORIES {
                    return None;
                }
                let path = entry.path();
                let below = path.strip_prefix(&top).unwrap_or(&path).display().to_string();
                let is_it = match cgroup::parse(&format!("0::/{below}\n"), None) {
                    Membership::Container(key) => key.container == *container,
                    Membership::Nested(keys) => keys.last().is_some_and(|key| key.container == *container),
                    Membership::NotAPod(_) => false,
                };
                if is_it {
                    return Some(path);
                }
                if depth < MAX_DEPTH {
                    queue.push_back((path, depth + 1));
                }
            }
        }
        None
    }

    fn v1(&self) -> Option<PathBuf> {
        V1.iter().map(|controller| self.root.join(controller)).find(|hierarchy| hierarchy.is_dir())
    }
}

/// Every process in a cgroup and below it.
pub fn processes(leaf: &Path) -> Vec<u32> {
    let mut found = Vec::new();
    let mut queue = VecDeque::from([leaf.to_owned()]);
    let mut seen = 0;
    while let Some(directory) = queue.pop_front() {
        seen += 1;
        if seen > MAX_DIRECTORIES {
            break;
        }
        let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
        found.extend(text.lines().filter_map(|line| line.trim().parse::<u32>().ok()));
        let children = fs::read_dir(&directory).into_iter().flatten().flatten();
        queue.extend(
            children.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
        );
    }
    found.sort_unstable();
    found.dedup();
    found
}

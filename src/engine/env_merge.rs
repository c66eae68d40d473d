//! Which environment variables a GPU container gains at admission, and which it keeps. Flows in: a container's own
//! environment, as its manifest has it, and what the administrator wants. Flows out: the changed values and, for everything
//! that stays as it is, why. It never changes a key that the user set, never reorders, and never guesses what it cannot see.
//!
//! The chart's MutatingAdmissionPolicy follows the same rules in CEL; `tests/cluster/admission.rs` compares the two on a
//! real API server.

pub mod alloc_conf;

use std::fmt;

use serde::Serialize;

use alloc_conf::AllocConf;

/// PyTorch's settings, the name that every version reads.
pub const TORCH: &str = "PYTORCH_CUDA_ALLOC_CONF";
/// PyTorch's settings since 2.9. Where both names are set this one wins as a whole.
pub const TORCH_NEW: &str = "PYTORCH_ALLOC_CONF";
/// TensorFlow: take memory as it is needed.
pub const TENSORFLOW: &str = "TF_FORCE_GPU_ALLOW_GROWTH";
/// JAX: take three quarters of the device at once, or as it is needed.
pub const JAX_PREALLOCATE: &str = "XLA_PYTHON_CLIENT_PREALLOCATE";
/// JAX: share of the device; deprecated, read by all versions.
pub const JAX_FRACTION: &str = "XLA_PYTHON_CLIENT_MEM_FRACTION";
/// JAX: the same in new versions. With both set the client refuses to start.
pub const JAX_FRACTION_NEW: &str = "XLA_CLIENT_MEM_FRACTION";
/// Options of XLA; one of them is a fraction too.
const XLA_FLAGS: &str = "XLA_FLAGS";
/// Where Python finds the hook.
pub const PYTHONPATH: &str = "PYTHONPATH";
/// Switches the hook on.
pub const HOOK: &str = "GPUMEM_HOOK";
/// The first PyTorch that knows `per_process_memory_fraction`; an older one ends with an error.
const TORCH_FRACTION: TorchVersion = TorchVersion { major: 2, minor: 10 };
/// Flags of servers that hand memory back in a way that expandable segments cannot.
const SAVERS: [&str; 3] = ["--enable-sleep-mode", "--enable-memory-saver", "--enable_sleep_mode"];

/// A container as its manifest has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Container {
    /// Asks for a GPU, or is shown one.
    pub sees_gpu: bool,
    /// `env`, in its order. Of two entries of one name Kubernetes takes the later.
    pub env: Vec<(String, Given)>,
    /// Has an `envFrom`, whose names are not known.
    pub has_env_from: bool,
    /// `command` and `args`.
    pub words: Vec<String>,
}

/// How a variable gets its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// By the manifest.
    Literal(String),
    /// From a ConfigMap, a Secret or a field: not known here.
    ValueFrom,
}

/// A version of PyTorch, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TorchVersion {
    /// Before the point.
    pub major: u32,
    /// After it.
    pub minor: u32,
}

/// What the administrator wants.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches, as the chart has them")]
pub struct Wanted {
    /// `expandable_segments:True` for PyTorch.
    pub expandable_segments: bool,
    /// Growth on demand for TensorFlow.
    pub tensorflow_growth: bool,
    /// Growth on demand for JAX.
    pub jax_growth: bool,
    /// Share of the device that each process may take, more than 0 and at most 1.
    pub fraction: Option<f64>,
    /// The image's PyTorch, where it is known.
    pub torch: Option<TorchVersion>,
    /// Folder of the hook in the container.
    pub hook: Option<String>,
    /// This pod may be suspended to host memory, which expandable segments can prevent.
    pub may_be_suspended: bool,
}

/// What becomes of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Merged {
    /// Variables to set, in the order they are added in.
    pub changes: Vec<Change>,
    /// What stays as it is.
    pub kept: Vec<Kept>,
}

/// A variable to set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Its name.
    pub name: String,
    /// The user's value; `None` where there was none.
    pub before: Option<String>,
    /// The new value, which begins with the user's.
    pub after: String,
}

/// Something that was wanted and is not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// The variable.
    pub name: String,
    /// Why.
    #[serde(serialize_with = "display")]
    pub why: Why,
    /// True where a person should look at it: it is not the user's plain wish.
    pub is_warning: bool,
}

/// Why a variable is left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The container asks for no GPU.
    NoGpu,
    /// The user set it, or the key in question.
    UserSet,
    /// It is there and says what is wanted.
    AlreadySo,
    /// `valueFrom`.
    ValueFrom,
    /// `envFrom` may hold it.
    EnvFrom,
    /// It holds `$(…)`, which Kubernetes replaces later.
    Reference,
    /// It cannot be read; PyTorch would refuse it too.
    Unreadable(alloc_conf::Problem),
    /// `backend:cudaMallocAsync` ignores the key.
    AsyncBackend,
    /// The command line asks for a sleep mode or memory saver.
    MemorySaver,
    /// The pod may be suspended to host memory.
    Suspendable,
    /// PyTorch's version is not known, or too old for the key.
    TorchVersion,
    /// The other of JAX's two names, or a flag in `XLA_FLAGS`, sets it.
    OtherFraction,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoGpu => "the container asks for no GPU",
            Self::UserSet => "the manifest sets it",
            Self::AlreadySo => "it is set like this already",
            Self::ValueFrom => "its value comes from valueFrom and is not known here",
            Self::EnvFrom => "envFrom may hold it, and an entry in env would hide that one: set it in env yourself",
            Self::Reference => "it holds a $(…) reference, whose value is not known here",
            Self::Unreadable(problem) => return write!(f, "it cannot be read ({problem}): PyTorch will refuse it too"),
            Self::AsyncBackend => "backend:cudaMallocAsync has no expandable segments",
            Self::MemorySaver => "the command line asks for a sleep mode, which expandable segments prevent",
            Self::Suspendable => {
                "the pod may be suspended to host memory, which expandable segments can prevent"
            }
            Self::TorchVersion => {
                "per_process_memory_fraction needs PyTorch 2.10, and an older one ends at an unknown key: say the version, or let the hook set the fraction"
            }
            Self::OtherFraction => "another variable sets JAX's fraction, and JAX refuses to start with two",
        })
    }
}

/// What `container` gains and keeps. Pure and idempotent: the result of [`applied`] gains nothing more.
pub fn merge(container: &Container, wanted: &Wanted) -> Merged {
    let mut merge = Merge { container, merged: Merged::default() };
    if !container.sees_gpu {
        merge.keep("all", Why::NoGpu);
        return merge.merged;
    }
    merge.torch(wanted);
    if wanted.tensorflow_growth {
        merge.add(TENSORFLOW, "true");
    }
    if wanted.jax_growth {
        merge.add(JAX_PREALLOCATE, "false");
    }
    if let Some(fraction) = wanted.fraction {
        merge.jax_fraction(fraction);
    }
    if let Some(folder) = &wanted.hook {
        merge.hook(folder);
    }
    merge.merged
}

/// The container after the changes: a value is changed in its last entry, a new one goes to the end.
pub fn applied(container: &Container, merged: &Merged) -> Container {
    let mut changed = container.clone();
    for change in &merged.changes {
        let value = Given::Literal(change.after.clone());
        match changed.env.iter_mut().rev().find(|(name, _)| *name == change.name) {
            Some((_, given)) => *given = value,
            None => changed.env.push((change.name.clone(), value)),
        }
    }
    changed
}

struct Merge<'a> {
    container: &'a Container,
    merged: Merged,
}

/// What is known of a variable.
enum Found<'a> {
    Literal(&'a str),
    Absent,
    Hidden(Why),
}

// === impl Merge ===

impl<'a> Merge<'a> {
    /// The entry that counts: the last of that name.
    fn find(&self, name: &str) -> Found<'a> {
        match self.container.env.iter().rev().find(|(other, _)| other == name) {
            Some((_, Given::Literal(value))) => Found::Literal(value),
            Some((_, Given::ValueFrom)) => Found::Hidden(Why::ValueFrom),
            None if self.container.has_env_from => Found::Hidden(Why::EnvFrom),
            None => Found::Absent,
        }
    }

    fn keep(&mut self, name: &str, why: Why) {
        let is_warning = matches!(why, Why::Unreadable(_));
        self.merged.kept.push(Kept { name: name.to_owned(), why, is_warning });
    }

    fn change(&mut self, name: &str, before: Option<&str>, after: String) {
        self.merged.changes.push(Change { name: name.to_owned(), before: before.map(str::to_owned), after });
    }

    /// A variable that is one value: set where it is absent, left where it is not, whatever it says.
    fn add(&mut self, name: &str, value: &str) {
        match self.find(name) {
            Found::Literal(own) if own == value => self.keep(name, Why::AlreadySo),
            Found::Literal(_) => self.keep(name, Why::UserSet),
            Found::Hidden(why) => self.keep(name, why),
            Found::Absent => self.change(name, None, value.to_owned()),
        }
    }

    /// PyTorch's list of settings, under the name or names that the user uses.
    fn torch(&mut self, wanted: &Wanted) {
        let mut keys = Vec::new();
        if wanted.expandable_segments {
            if self.container.words.iter().any(|word| SAVERS.iter().any(|saver| word.contains(saver))) {
                self.keep(TORCH, Why::MemorySaver);
            } else if wanted.may_be_suspended {
                self.keep(TORCH, Why::Suspendable);
            } else {
                keys.push((alloc_conf::EXPANDABLE, "True".to_owned()));
            }
        }
        if let Some(fraction) = wanted.fraction {
            if wanted.torch >= Some(TORCH_FRACTION) {
                keys.push((alloc_conf::FRACTION, fraction.to_string()));
            } else {
                self.keep(TORCH, Why::TorchVersion);
            }
        }
        if keys.is_empty() {
            return;
        }
        let is_given = |name| self.container.env.iter().any(|(other, _)| other == name);
        let names = match (is_given(TORCH), is_given(TORCH_NEW)) {
            (true, true) => &[TORCH, TORCH_NEW][..],
            (false, true) => &[TORCH_NEW],
            (_, false) => &[TORCH],
        };
        for name in names {
            match self.find(name) {
                Found::Absent => self.change(name, None, alloc_conf::join("", &keys)),
                Found::Hidden(why) => self.keep(name, why),
                // An empty value is how one says "no defaults for me".
                Found::Literal("") => self.keep(name, Why::UserSet),
                Found::Literal(own) if own.contains("$(") => self.keep(name, Why::Reference),
                Found::Literal(own) => self.torch_list(name, own, &keys),
            }
        }
    }

    fn torch_list(&mut self, name: &str, own: &str, keys: &[(&'static str, String)]) {
        let conf = match AllocConf::parse(own) {
            Ok(conf) => conf,
            Err(problem) => return self.keep(name, Why::Unreadable(problem)),
        };
        let mut missing = Vec::new();
        for (key, value) in keys {
            match conf.get(key) {
                Some(own) if own == value => self.keep(name, Why::AlreadySo),
                Some(_) => self.keep(name, Why::UserSet),
                None if *key == alloc_conf::EXPANDABLE && conf.is_async() => self.keep(name, Why::AsyncBackend),
                None => missing.push((*key, value.clone())),
            }
        }
        if !missing.is_empty() {
            self.change(name, Some(own), alloc_conf::join(own, &missing));
        }
    }

    fn jax_fraction(&mut self, fraction: f64) {
        let is_elsewhere = match self.find(XLA_FLAGS) {
            Found::Literal(flags) => flags.contains("xla_gpu_memory_fraction") || flags.contains("$("),
            Found::Absent => false,
            Found::Hidden(_) => true,
        };
        if is_elsewhere || !matches!(self.find(JAX_FRACTION_NEW), Found::Absent) {
            return self.keep(JAX_FRACTION, Why::OtherFraction);
        }
        self.add(JAX_FRACTION, &fraction.to_string());
    }

    /// The hook's folder goes last on the path: the user's own modules come first, a `sitecustomize` too.
    fn hook(&mut self, folder: &str) {
        self.add(HOOK, "1");
        if !matches!(self.find(HOOK), Found::Absent | Found::Literal("1")) {
            return; // switched off, or not known
        }
        match self.find(PYTHONPATH) {
            Found::Literal(own) if own.split(':').any(|entry| entry == folder) => {
                self.keep(PYTHONPATH, Why::AlreadySo);
            }
            Found::Literal("") => self.change(PYTHONPATH, Some(""), folder.to_owned()),
            Found::Literal(own) => self.change(PYTHONPATH, Some(own), format!("{own}:{folder}")),
            Found::Hidden(why) => self.keep(PYTHONPATH, why),
            Found::Absent => self.change(PYTHONPATH, None, folder.to_owned()),
        }
    }
}

fn display<T: fmt::Display, S: serde::Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

#[cfg(test)]
mod tests;

//! Who is who: devices, pods, containers and processes as types, never bare strings.

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

macro_rules! name {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        ///
        /// A clone shares the text: every sample names its containers anew.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Arc<str>);

        impl $type {
            /// The plain text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<&str> for $type {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $type {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_str(Text).map(Self)
            }
        }
    };
}

name! {
    /// NVML's UUID of a GPU or of a MIG device, `GPU-…` or `MIG-…` in full.
    DeviceUuid
}
name! {
    /// A pod's UID in the dashed form of the API; for static pods the 32 hexadecimal digits of the config hash.
    PodUid
}
name! {
    /// The runtime's id of a container, 64 hexadecimal digits, without `containerd://`.
    ContainerId
}

/// Reads a text into shared memory without a String in between.
struct Text;

impl Visitor<'_> for Text {
    type Value = Arc<str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E>(self, text: &str) -> Result<Arc<str>, E> {
        Ok(text.into())
    }
}

/// A MIG slice of a GPU: its GPU instance owns the memory, compute instances within it share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MigInstance {
    /// NVML's GPU-instance id.
    pub gpu_instance: u32,
}

/// The thing that has a memory of its own and can run out of it: a whole GPU, or one MIG GPU instance of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceKey {
    /// UUID of the physical GPU.
    pub gpu: DeviceUuid,
    /// The slice, when the GPU is partitioned.
    pub mig: Option<MigInstance>,
}

impl DeviceKey {
    /// A whole GPU.
    pub fn whole(gpu: impl Into<DeviceUuid>) -> Self {
        Self { gpu: gpu.into(), mig: None }
    }
}

impl fmt::Display for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mig {
            None => write!(f, "{}", self.gpu),
            Some(mig) => write!(f, "{}/gi{}", self.gpu, mig.gpu_instance),
        }
    }
}

/// A process id as the host's PID namespace numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pid(pub u32);

/// When a process started, in clock ticks since boot (field 22 of `/proc/<pid>/stat`). With the [`Pid`] it names one
/// process for ever: a reused PID has another start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StartTime(pub u64);

/// One running instance of a container, as a cgroup path names it. A restart gives the same pod and another id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContainerKey {
    /// UID of the pod.
    pub pod: PodUid,
    /// Id of the container's current instance.
    pub container: ContainerId,
}

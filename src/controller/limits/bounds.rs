//! Limits that others set on a container, as its pod's spec shows them: read once for each pod, as the spec of a running pod
//! does not change. They are upper bounds, and never fought. What does not show here is found where it takes effect: a limit
//! of a cgroup that is not ours is reported by the agent and left alone.

use gpumem_engine::growth::{Bound, Enforcer};
use gpumem_engine::quantity::Bytes;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;

use crate::api::convert;
use crate::controller::context::Context;
use crate::controller::fleet::{Observation, Place};

/// Pods whose bounds are remembered.
const REMEMBERED: usize = 4096;

/// What other enforcers hold a container to on a device; `None` while the pod cannot be read.
pub async fn of(ctx: &Context, observation: &Observation, place: &Place) -> Option<Vec<Bound>> {
    let key = (observation.pod.uid.clone(), observation.container.clone());
    let known = ctx.limits.state().pairs.get(&key).cloned();
    let pairs = if let Some(pairs) = known {
        pairs
    } else {
        let pods: Api<Pod> = Api::namespaced(ctx.read.clone(), &observation.pod.namespace);
        let pod = pods.get_opt(&observation.pod.name).await.ok()??;
        if pod.metadata.uid.as_deref() != Some(observation.pod.uid.as_str()) {
            return None;
        }
        let pairs = pairs(&pod, &observation.container);
        let mut state = ctx.limits.state();
        if state.pairs.len() >= REMEMBERED {
            state.pairs.clear();
        }
        state.pairs.insert(key, pairs.clone());
        pairs
    };
    Some(pairs.iter().filter_map(|(name, value)| bound(name, value, place.device.gpu.as_str())).collect())
}

/// The variables and annotations of a container that say how much GPU memory it may have.
fn pairs(pod: &Pod, container: &str) -> Vec<(String, String)> {
    let annotations = pod.metadata.annotations.iter().flatten();
    let kai = format!("nvidia.com/container.{container}.gpu-memory.limit");
    let noted = annotations.filter(|(key, _)| **key == kai).map(|(_, value)| (KAI.to_owned(), value.clone()));
    let spec = pod.spec.iter();
    let containers = spec.flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let own = containers.filter(|own| own.name == container).flat_map(|own| own.env.iter().flatten());
    let set = own.filter_map(|variable| {
        let is_limit = variable.name.starts_with(HAMI) || variable.name == MPS || variable.name == TOOLKIT;
        is_limit.then(|| variable.value.clone().map(|value| (variable.name.clone(), value))).flatten()
    });
    noted.chain(set).collect()
}

const KAI: &str = "kai";
const HAMI: &str = "CUDA_DEVICE_MEMORY_LIMIT";
const MPS: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
const TOOLKIT: &str = "NVIDIA_GPU_MEMORY_LIMIT";

fn bound(name: &str, value: &str, gpu: &str) -> Option<Bound> {
    let value = value.trim();
    let (enforcer, bytes) = match name {
        // Bare numbers are MiB, as everywhere in NVIDIA's tools.
        KAI => (Enforcer::Kai, mebibytes(value).or_else(|| convert::size("annotation", value).ok())),
        TOOLKIT => (Enforcer::Toolkit, mebibytes(value)),
        MPS => (Enforcer::Mps, mps(value, gpu)),
        _ => (Enforcer::Hami, suffixed(value)),
    };
    // Zero means no limit to HAMi, and nothing to the others.
    bytes.filter(|bytes| *bytes > Bytes::ZERO).map(|bytes| Bound { enforcer, bytes })
}

fn mebibytes(value: &str) -> Option<Bytes> {
    value.parse::<u64>().ok().map(|mib| Bytes(mib.saturating_mul(1 << 20)))
}

/// `1g`, `512M`, or bytes; binary units.
fn suffixed(value: &str) -> Option<Bytes> {
    let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let (number, unit) = value.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return None,
    };
    number.parse::<u64>().ok().map(|number| Bytes(number.saturating_mul(1 << shift)))
}

/// `0=1G,GPU-uuid=512M`: the entry of this GPU. Indices count what the container sees, which is not known here; of those
/// the largest is believed.
fn mps(value: &str, gpu: &str) -> Option<Bytes> {
    let entries = || value.split(',').filter_map(|entry| entry.split_once('='));
    let by_uuid = entries().find(|(device, _)| device.trim().eq_ignore_ascii_case(gpu));
    let sizes = entries()
        .filter(|(device, _)| device.trim().parse::<u32>().is_ok())
        .filter_map(|(_, size)| suffixed(size.trim()));
    by_uuid.map_or_else(|| sizes.max(), |(_, size)| suffixed(size.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_enforcers_own_spelling_is_read() {
        let read = |name, value| bound(name, value, "GPU-a").map(|bound| bound.bytes);
        assert_eq!(read(KAI, "8192"), Some(Bytes::gib(8)));
        assert_eq!(read(KAI, "8Gi"), Some(Bytes::gib(8)));
        assert_eq!(read(TOOLKIT, "1000"), Some(Bytes::mib(1000)));
        assert_eq!(read(TOOLKIT, "1000.5"), None, "whole MiB only");
        assert_eq!(read("CUDA_DEVICE_MEMORY_LIMIT_0", "3000m"), Some(Bytes::mib(3000)));
        assert_eq!(read("CUDA_DEVICE_MEMORY_LIMIT", "0"), None, "unlimited");
        assert_eq!(read(MPS, "0=1G,GPU-A=512M"), Some(Bytes::mib(512)));
        assert_eq!(read(MPS, "0=1G,1=2G"), Some(Bytes::gib(2)));
        assert_eq!(read(MPS, "nonsense"), None);
    }

    #[test]
    fn only_the_containers_own_variables_count() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"annotations": {
                "nvidia.com/container.main.gpu-memory.limit": "8192",
                "nvidia.com/container.side.gpu-memory.limit": "1",
            }},
            "spec": {"containers": [
                {"name": "main", "env": [{"name": TOOLKIT, "value": "4096"}, {"name": "OTHER", "value": "1"},
                    {"name": HAMI, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
                {"name": "side", "env": [{"name": MPS, "value": "0=1G"}]},
            ]},
        }))
        .expect("a pod");
        let names: Vec<_> = pairs(&pod, "main").into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, [KAI, TOOLKIT]);
    }
}

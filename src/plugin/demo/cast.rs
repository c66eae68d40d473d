//! Who is in the made-up fleet, and what their memory does: the shapes are those of `gpumem sim workload --shape`. Pure.

use gpumem_engine::quantity::Bytes;
use gpumem_sim::shape::{Curve, Shape};
use gpumem_sim::spec::parse_devices;

/// Namespace whose policy acts.
pub const GUARDED: &str = "ml";
/// Nodes and their GPUs.
const NODES: [(&str, &str); 3] = [("gpu-h100-1", "H100:3"), ("gpu-a100-1", "A100:2"), ("gpu-l40s-1", "L40S:3")];
/// The rate of a leak differs by this share from seed to seed.
const SWING: f64 = 0.03;

/// Namespace, kind, workload, container, node, GPU, second of the story at which it begins, what it does, and its shape.
type Role = (&'static str, &'static str, &'static str, &'static str, usize, usize, i64, &'static str, &'static str);

const ROLES: [Role; 9] = [
    (GUARDED, "Deployment", "llama-sft", "train", 0, 0, -2520, "leaks", "leak:from=22GiB,rate=920MiB/m,jitter=16MiB"),
    ("lab", "Deployment", "llama-sft", "train", 0, 1, -2520, "leaks", "leak:from=22GiB,rate=920MiB/m,jitter=16MiB"),
    (GUARDED, "Deployment", "vllm-70b", "vllm", 0, 2, -2400, "holds a pool", "pool:at=74540MiB,weights=36GiB,load=3m"),
    (GUARDED, "Job", "resnet", "train", 1, 0, -2100, "saw-tooth", "saw:from=31GiB,to=66GiB,period=40s,jitter=64MiB"),
    (GUARDED, "Deployment", "embed-api", "api", 1, 1, -2400, "creeps", "leak:from=38GiB,rate=3GiB/h,jitter=16MiB"),
    (
        GUARDED,
        "StatefulSet",
        "feature-cache",
        "cache",
        2,
        0,
        -600,
        "leaks, and stops by itself",
        "leak:from=15GiB,rate=420MiB/m,until=46m,jitter=8MiB",
    ),
    (GUARDED, "StatefulSet", "jupyter-anna", "notebook", 2, 1, -2400, "shares a GPU", "plateau:at=9GiB,jitter=4MiB"),
    (
        GUARDED,
        "Deployment",
        "whisper",
        "asr",
        2,
        1,
        -2000,
        "shares a GPU",
        "spike:from=14GiB,to=19GiB,every=4m,for=40s,jitter=8MiB",
    ),
    (GUARDED, "Deployment", "sdxl", "serve", 2, 2, 420, "loads, and stays", "load:from=1GiB,to=31GiB,over=5m"),
];

/// One container of the fleet.
#[derive(Clone, Debug)]
pub struct Part {
    /// Namespace.
    pub namespace: &'static str,
    /// Kind of its workload.
    pub kind: &'static str,
    /// Name of its workload.
    pub workload: &'static str,
    /// Name of the container.
    pub container: &'static str,
    /// Second of the story at which it begins.
    pub begins: i64,
    /// What it does, in words.
    pub does: &'static str,
    /// What its memory does.
    pub shape: Shape,
    /// Where it runs.
    pub device: Device,
}

/// A GPU of the fleet.
#[derive(Clone, Debug)]
pub struct Device {
    /// Name of its node.
    pub node: &'static str,
    /// Its number on the node.
    pub gpu: u32,
    /// `GPU-…`
    pub uuid: String,
    /// Product name.
    pub model: String,
    /// What workloads may fill.
    pub usable: Bytes,
}

/// A word that depends on nothing but its arguments (SplitMix64's finaliser).
fn word(seed: u64, salt: u64) -> u64 {
    let mut x = seed.wrapping_add(salt.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// `length` characters as Kubernetes draws them for names.
pub fn suffix(seed: u64, salt: u64, length: usize) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let letter = |place: usize| {
        let drawn = word(seed, salt.wrapping_mul(31).wrapping_add(place as u64)) % LETTERS.len() as u64;
        LETTERS.get(drawn as usize).map_or('b', |letter| char::from(*letter))
    };
    (0..length).map(letter).collect()
}

/// The fleet of a seed.
///
/// # Errors
/// Says which role has a shape or a device that is none; a test draws every one of them.
pub fn draw(seed: u64) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    for (place, role) in ROLES.iter().enumerate() {
        let (namespace, kind, workload, container, node, gpu, begins, does, text) = *role;
        let mut shape: Shape = text.parse().map_err(|error| format!("{workload}: {error}"))?;
        shape.options.seed = word(seed, place as u64);
        if let Curve::Leak { rate, .. } = &mut shape.curve {
            // By the name, so that what leaks with a policy and without leaks alike.
            let salt = workload.bytes().fold(0, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
            let swing = word(seed, salt) as f64 / u64::MAX as f64 * 2.0 - 1.0;
            rate.bytes = (rate.bytes as f64 * (1.0 + SWING * swing)) as u64;
        }
        let (node, devices) = NODES.get(node).ok_or_else(|| format!("{workload}: no such node"))?;
        let devices = parse_devices(devices, node)?;
        let device = devices.get(gpu).ok_or_else(|| format!("{workload}: no such GPU"))?;
        let device = Device {
            node,
            gpu: gpu as u32,
            uuid: device.uuid.clone(),
            model: device.name.clone(),
            usable: Bytes(device.total - device.reserved),
        };
        parts.push(Part { namespace, kind, workload, container, begins, does, shape, device });
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_has_its_fleet_and_the_twins_leak_alike() {
        for seed in 0..50 {
            let parts = draw(seed).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(parts.len(), ROLES.len());
            assert_eq!(parts[0].shape.curve, parts[1].shape.curve);
        }
        assert_ne!(draw(1).map(|parts| parts[0].shape.clone()), draw(2).map(|parts| parts[0].shape.clone()));
    }

    #[test]
    fn names_are_as_kubernetes_draws_them_and_the_same_each_time() {
        assert_eq!(suffix(1, 2, 5), suffix(1, 2, 5));
        assert_ne!(suffix(1, 2, 5), suffix(1, 3, 5));
        assert!(suffix(7, 0, 9).chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()));
    }
}

//! Which devices a simulated driver owns, from a short text.
//!
//! Flows in: `H200:2`, `8x80GiB`, `A100:1,mig=3g.40gb+2g.20gb+-+1g.10gb;L4:4`. Flows out: one [`DeviceSpec`] a device,
//! with its UUIDs. Pure: the same text and node name always give the same devices.
//!
//! Groups are separated by `;`. A group is a known model (`H200`, `H100`, `A100`, `B200`, `L40S`, `L4`, `T4`) with an
//! optional `:count`, or `COUNTxSIZE`; then `name=`, `mem=`, `reserved=` and `mig=` with `+` between the instances (`-`
//! leaves a slot empty, as real ones are after a re-slice).

use crate::units::parse_size;

const MIB: u64 = 1 << 20;

/// Model, name as NVML gives it, and total and reserved MiB. H200 as measured; the others rough, from memory: good for trying, not for figures.
const MODELS: [(&str, &str, u64, u64); 7] = [
    ("H200", "NVIDIA H200", 143_771, 616),
    ("H100", "NVIDIA H100 80GB HBM3", 81_559, 551),
    ("A100", "NVIDIA A100-SXM4-80GB", 81_920, 634),
    ("B200", "NVIDIA B200", 183_359, 735),
    ("L40S", "NVIDIA L40S", 46_068, 598),
    ("L4", "NVIDIA L4", 23_034, 567),
    ("T4", "Tesla T4", 15_360, 443),
];

/// Reserved memory of a device that is not a known model.
const RESERVED: u64 = 600 * MIB;
/// An H200's shares of a MIG instance: of seven compute slices and eight memory slices.
const COMPUTE_SLICES: u32 = 7;
const MEMORY_SLICES: u64 = 8;

/// One device that a driver is to own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Name of the model.
    pub name: String,
    /// `GPU-…`
    pub uuid: String,
    /// All of its memory.
    pub total: u64,
    /// What the driver keeps for itself.
    pub reserved: u64,
    /// Its MIG instances by slot; empty where MIG is off.
    pub slots: Vec<Option<InstanceSpec>>,
}

/// One MIG instance of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceSpec {
    /// Such as `3g.71gb`.
    pub profile: String,
    /// `MIG-…`
    pub uuid: String,
    /// All of its memory.
    pub total: u64,
    /// Compute slices.
    pub slices: u32,
}

/// Reads a spec; `node` makes the UUIDs of one machine differ from another's.
///
/// # Errors
/// Says which part of the text is wrong and what it may be.
pub fn parse_devices(text: &str, node: &str) -> Result<Vec<DeviceSpec>, String> {
    let mut devices = Vec::new();
    for group in text.split(';').map(str::trim).filter(|group| !group.is_empty()) {
        let (head, rest) = group.split_once(',').unwrap_or((group, ""));
        let (count, mut device) = parse_head(head.trim())?;
        let mut mig = "";
        for pair in rest.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| format!("`{pair}` is not of the form key=value"))?;
            match key.trim() {
                "name" => value.trim().clone_into(&mut device.name),
                "mem" => device.total = parse_size(value)?,
                "reserved" => device.reserved = parse_size(value)?,
                "mig" => mig = value,
                other => return Err(format!("a device has no key `{other}`; known are name, mem, reserved, mig")),
            }
        }
        if device.total <= device.reserved {
            return Err(format!("`{group}`: its memory must exceed the {} bytes reserved", device.reserved));
        }
        if device.name.len() > 95 || device.name.contains('\0') {
            return Err(format!("`{group}`: NVML's names have at most 95 bytes"));
        }
        for _ in 0..count {
            let index = devices.len();
            let uuid = uuid("GPU", &format!("{node}/{index}"));
            let slots = parse_mig(mig, device.total, &uuid)?;
            devices.push(DeviceSpec { uuid, slots, ..device.clone() });
        }
    }
    match devices.len() {
        1..=64 => Ok(devices),
        0 => Err("no device: write it like H200:2 or 4x80GiB".to_owned()),
        count => Err(format!("{count} devices are too many; a driver owns at most 64")),
    }
}

fn parse_head(head: &str) -> Result<(usize, DeviceSpec), String> {
    let bad_count = |_| format!("`{head}`: the number of devices must be a whole number");
    if let Some((count, size)) = head.split_once('x').filter(|(count, _)| count.trim().parse::<usize>().is_ok()) {
        let total = parse_size(size)?;
        let name = format!("Simulated GPU {}", size.trim());
        return Ok((count.trim().parse().map_err(bad_count)?, blank(name, total, RESERVED)));
    }
    let (model, count) = head.split_once(':').unwrap_or((head, "1"));
    let count = count.trim().parse().map_err(bad_count)?;
    if let Some((_, name, total, reserved)) = MODELS.iter().find(|(id, ..)| id.eq_ignore_ascii_case(model.trim())) {
        return Ok((count, blank((*name).to_owned(), total * MIB, reserved * MIB)));
    }
    let known: Vec<&str> = MODELS.iter().map(|(id, ..)| *id).collect();
    Err(format!("`{model}` is not a known model; use one of {} or COUNTxSIZE", known.join(", ")))
}

fn blank(name: String, total: u64, reserved: u64) -> DeviceSpec {
    DeviceSpec { name, uuid: String::new(), total, reserved, slots: Vec::new() }
}

/// Slots of `3g.71gb+1g.18gb`; an instance has as many eighths of the memory as its name comes closest to.
fn parse_mig(text: &str, total: u64, parent: &str) -> Result<Vec<Option<InstanceSpec>>, String> {
    let mut slots = Vec::new();
    let (mut compute, mut memory) = (0, 0);
    for (slot, profile) in text.split('+').map(str::trim).filter(|profile| !profile.is_empty()).enumerate() {
        if profile == "-" {
            slots.push(None);
            continue;
        }
        let parts = profile.split_once("g.").and_then(|(slices, gigabytes)| {
            let slices: u32 = slices.parse().ok()?;
            let gigabytes: u64 = gigabytes.strip_suffix("gb")?.parse().ok()?;
            (slices >= 1 && (1..=10_000).contains(&gigabytes)).then_some((slices, gigabytes))
        });
        let (slices, gigabytes) = parts.ok_or_else(|| format!("`{profile}` is not a MIG profile such as 3g.40gb"))?;
        let eighths = ((gigabytes << 30) as f64 * MEMORY_SLICES as f64 / total as f64).round().max(1.0) as u64;
        compute += slices;
        memory += eighths;
        if compute > COMPUTE_SLICES || memory > MEMORY_SLICES {
            return Err(format!("`{text}` does not fit on one device of {} MiB", total / MIB));
        }
        slots.push(Some(InstanceSpec {
            profile: profile.to_owned(),
            uuid: uuid("MIG", &format!("{parent}/{slot}/{profile}")),
            total: total / MEMORY_SLICES * eighths / MIB * MIB,
            slices,
        }));
    }
    if slots.len() > COMPUTE_SLICES as usize {
        return Err(format!("`{text}` has more than {COMPUTE_SLICES} slots"));
    }
    Ok(slots)
}

/// A UUID that depends on nothing but `text`: FNV-1a twice, then mixed so that neighbours differ in every digit.
fn uuid(prefix: &str, text: &str) -> String {
    let hash = |basis: u64| {
        let hash = text.bytes().fold(basis, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash ^ hash >> 33
    };
    let (high, low) = (hash(0xcbf2_9ce4_8422_2325), hash(0x6c62_272e_07bb_0142));
    format!(
        "{prefix}-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_sizes_and_groups_are_read() {
        let devices = parse_devices("H200:2; 2x80GiB,name=Toy; T4", "node-a").unwrap();
        let seen: Vec<(&str, u64)> = devices.iter().map(|d| (d.name.as_str(), d.total / MIB)).collect();
        assert_eq!(
            seen,
            [
                ("NVIDIA H200", 143_771),
                ("NVIDIA H200", 143_771),
                ("Toy", 81_920),
                ("Toy", 81_920),
                ("Tesla T4", 15_360)
            ]
        );
    }

    #[test]
    fn uuids_differ_between_devices_and_nodes_but_not_between_starts() {
        let uuids = |node: &str| -> Vec<String> {
            parse_devices("2x8GiB,mig=1g.1gb", node).unwrap().into_iter().map(|device| device.uuid).collect()
        };
        let (a, b) = (uuids("a"), uuids("b"));
        assert_eq!(a, uuids("a"));
        assert_eq!(a[0].len(), "GPU-00000000-0000-0000-0000-000000000000".len());
        assert!(a[0] != a[1] && a[0] != b[0]);
    }

    #[test]
    fn mig_instances_take_eighths_and_may_leave_slots_empty() {
        let devices = parse_devices("H200,mig=3g.71gb+-+1g.18gb", "n").unwrap();
        let slots = &devices[0].slots;
        assert_eq!(slots.len(), 3);
        assert_eq!(slots[0].as_ref().map(|i| (i.total / MIB, i.slices)), Some((71_885, 3)));
        assert_eq!(slots[1], None);
        assert_eq!(slots[2].as_ref().map(|i| i.total / MIB), Some(17_971));
        assert!(parse_devices("H200,mig=4g.71gb+4g.71gb", "n").is_err());
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text: &str| parse_devices(text, "n").unwrap_err();
        assert!(error("H2O0").contains("`H2O0` is not a known model"));
        assert!(error("H200,mom=3GiB").contains("no key `mom`"));
        assert!(error("1x100MiB").contains("must exceed"));
        assert!(error("H200:x").contains("whole number"));
        assert!(error("H200,mig=huge").contains("not a MIG profile"));
        assert!(error(" ").contains("no device"));
        assert!(error("999999x8GiB").contains("too many"));
    }
}

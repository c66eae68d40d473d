//! GPUs and MIG profiles that jobs are placed on, with the memory a process can really take.

/// A GPU, or one MIG profile of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Card {
    /// As people write it.
    pub name: &'static str,
    /// Memory as sold, in GiB: for the reader alone.
    pub sold_gib: f64,
    /// Memory the driver offers to processes, in MiB: its `total` less what it keeps for itself.
    pub usable_mib: f64,
    /// Decides the size of a CUDA context and of cuBLAS workspaces.
    pub generation: Generation,
    /// A slice of a larger GPU.
    pub is_mig: bool,
}

/// Generation of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the vendor's own names")]
pub enum Generation {
    Volta,
    Turing,
    Ampere,
    Ada,
    Hopper,
    Blackwell,
}

impl Card {
    /// Memory a process can take, in bytes.
    pub fn usable(&self) -> f64 {
        self.usable_mib * 1_048_576.0
    }
}

const fn gpu(name: &'static str, sold_gib: f64, usable_mib: f64, generation: Generation) -> Card {
    Card { name, sold_gib, usable_mib, generation, is_mig: false }
}

const fn mig(name: &'static str, sold_gib: f64, usable_mib: f64, generation: Generation) -> Card {
    Card { name, sold_gib, usable_mib, generation, is_mig: true }
}

/// The table, smallest first. Sizes are NVML's totals less the driver's reserve, rounded down; MIG sizes are those that
/// `nvidia-smi mig -lgip` prints.
pub const CARDS: &[Card] = &[
    mig("A100-40GB MIG 1g.5gb", 5.0, 4_864.0, Generation::Ampere),
    gpu("RTX 4060 8GB", 8.0, 7_900.0, Generation::Ada),
    mig("A100-80GB MIG 1g.10gb", 10.0, 9_728.0, Generation::Ampere),
    mig("A100-40GB MIG 2g.10gb", 10.0, 9_856.0, Generation::Ampere),
    mig("H100-80GB MIG 1g.10gb", 10.0, 9_984.0, Generation::Hopper),
    gpu("RTX 3080 10GB", 10.0, 9_900.0, Generation::Ampere),
    gpu("RTX 3060 12GB", 12.0, 11_900.0, Generation::Ampere),
    gpu("T4", 16.0, 14_900.0, Generation::Turing),
    gpu("RTX 4080", 16.0, 15_900.0, Generation::Ada),
    gpu("V100-16GB", 16.0, 16_100.0, Generation::Volta),
    mig("H200 MIG 1g.18gb", 18.0, 16_384.0, Generation::Hopper),
    mig("A100-80GB MIG 2g.20gb", 20.0, 19_712.0, Generation::Ampere),
    mig("A100-40GB MIG 3g.20gb", 20.0, 19_968.0, Generation::Ampere),
    mig("H100-80GB MIG 1g.20gb", 20.0, 20_096.0, Generation::Hopper),
    mig("H100-80GB MIG 2g.20gb", 20.0, 20_096.0, Generation::Hopper),
    gpu("A10", 24.0, 22_500.0, Generation::Ampere),
    gpu("L4", 24.0, 22_500.0, Generation::Ada),
    gpu("RTX 3090", 24.0, 24_100.0, Generation::Ampere),
    gpu("RTX 4090", 24.0, 24_100.0, Generation::Ada),
    gpu("V100-32GB", 32.0, 32_400.0, Generation::Volta),
    gpu("RTX 5090", 32.0, 32_100.0, Generation::Blackwell),
    mig("H200 MIG 2g.35gb", 35.0, 33_280.0, Generation::Hopper),
    gpu("A100-40GB", 40.0, 40_300.0, Generation::Ampere),
    mig("A100-80GB MIG 3g.40gb", 40.0, 39_936.0, Generation::Ampere),
    mig("H100-80GB MIG 3g.40gb", 40.0, 40_448.0, Generation::Hopper),
    gpu("L40S", 48.0, 45_500.0, Generation::Ada),
    gpu("A6000", 48.0, 48_500.0, Generation::Ampere),
    mig("H200 MIG 3g.71gb", 71.0, 70_000.0, Generation::Hopper),
    gpu("A100-80GB", 80.0, 80_900.0, Generation::Ampere),
    gpu("H100-80GB", 80.0, 81_000.0, Generation::Hopper),
    gpu("RTX PRO 6000", 96.0, 97_200.0, Generation::Blackwell),
    gpu("H100-96GB", 96.0, 97_200.0, Generation::Hopper),
    gpu("H200", 141.0, 143_100.0, Generation::Hopper),
    gpu("B200", 180.0, 182_600.0, Generation::Blackwell),
];

/// The card that people call `name`: case, vendor and punctuation do not matter.
pub fn find(name: &str) -> Option<&'static Card> {
    let plain = |name: &str| -> String {
        let name =
            name.to_lowercase().replace("nvidia", "").replace("tesla", "").replace("-sxm4", "").replace("geforce", "");
        name.chars().filter(|char| char.is_ascii_alphanumeric() || *char == '.').collect()
    };
    let wanted = plain(name);
    if wanted.is_empty() {
        return None;
    }
    let exact = CARDS.iter().find(|card| plain(card.name) == wanted);
    // `H200 141GB` is the H200, `L40S 48GB` the L40S; `A100` alone could be two sizes and stays unknown.
    exact.or_else(|| {
        let starts = |card: &&Card| {
            wanted.strip_prefix(&plain(card.name)).is_some_and(|rest| {
                rest.strip_suffix("gb").is_some_and(|size| size.chars().all(|char| char.is_ascii_digit()))
            })
        };
        CARDS.iter().find(starts)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_found_as_people_write_them() {
        assert_eq!(find("NVIDIA H200").map(|card| card.name), Some("H200"));
        assert_eq!(find("h200 141GB").map(|card| card.name), Some("H200"));
        assert_eq!(find("a100-80gb").map(|card| card.name), Some("A100-80GB"));
        assert_eq!(find("H200 MIG 1g.18gb").map(|card| card.name), Some("H200 MIG 1g.18gb"));
        assert_eq!(find("A100"), None);
        assert_eq!(find(""), None);
    }

    #[test]
    fn the_table_is_sorted_by_size_as_sold_and_no_card_offers_more_than_it_has() {
        assert!(CARDS.windows(2).all(|pair| pair[0].sold_gib <= pair[1].sold_gib));
        assert!(CARDS.iter().all(|card| card.usable_mib <= card.sold_gib * 1024.0));
    }
}

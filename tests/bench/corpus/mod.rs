//! The synthetic corpus: families of curves as containers draw them on a GPU, seeded, with their truth.
//!
//! Nothing in here knows the predictor. Curves are made at one point a second; whoever uses them takes every n-th.

pub mod dice;
pub mod families;
pub mod parts;

use dice::Dice;

/// How the memory ran out, if it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A rise of more than 5 % of capacity over at least twenty minutes before.
    Gradual,
    /// No precursor a sampler could see.
    Abrupt,
    /// It did not.
    None,
}

/// One container's curve in MiB, a value a second; NaN where there is nothing to sample.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub used: Vec<f64>,
}

/// One device over time.
#[derive(Clone, Debug)]
pub struct Run {
    pub family: &'static str,
    /// Capacity in MiB from this second on.
    pub capacity: Vec<(usize, f64)>,
    /// Held by nobody, in MiB.
    pub orphaned: f64,
    pub tenants: Vec<Trace>,
    /// Seconds at which the device ran out.
    pub ooms: Vec<usize>,
    pub kind: Kind,
    /// Who caused it.
    pub culprit: usize,
    /// Known end of growth of tenant 0 in MiB, where the shape has one.
    pub declared: Option<f64>,
}

impl Run {
    pub fn seconds(&self) -> usize {
        self.tenants.iter().map(|tenant| tenant.used.len()).max().unwrap_or(0)
    }

    pub fn capacity_at(&self, second: usize) -> f64 {
        self.capacity.iter().take_while(|(from, _)| *from <= second).last().map_or(0.0, |(_, mib)| *mib)
    }

    /// One tenant on one device; cut at the first second that does not fit.
    pub fn single(family: &'static str, capacity: f64, demand: Vec<f64>, kind: Kind) -> Self {
        let full = demand.iter().position(|used| *used > capacity);
        let used = demand.into_iter().take(full.unwrap_or(usize::MAX)).collect();
        Self {
            family,
            capacity: vec![(0, capacity)],
            orphaned: 0.0,
            tenants: vec![Trace { used }],
            ooms: full.into_iter().collect(),
            kind: if full.is_some() { kind } else { Kind::None },
            culprit: 0,
            declared: None,
        }
    }

    pub fn declared(mut self, mib: f64) -> Self {
        self.declared = Some(mib);
        self
    }
}

/// A family: its number in the list of shapes, its name, and how to make one run of it.
#[derive(Clone, Copy)]
pub struct Family {
    pub number: u64,
    pub name: &'static str,
    pub make: fn(&'static str, &mut Dice) -> Run,
}

/// The run of a family with this seed.
pub fn run(family: &Family, seed: u64) -> Run {
    (family.make)(family.name, &mut Dice::new(family.number, seed))
}

/// Seeds to fit on; disjoint from [`TEST`].
pub const TRAIN: std::ops::Range<u64> = 0..120;
/// Seeds to report on.
pub const TEST: std::ops::Range<u64> = 100_000..100_200;

//! What an agent would have seen of a run: samples at an interval, with or without what goes wrong on the way.

use crate::corpus::dice::Dice;
use crate::corpus::{Kind, Run};

/// One sample of one tenant; memory in MiB.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub at: f64,
    pub tenant: usize,
    pub segment: u64,
    pub used: f64,
    /// Allocated and reserved.
    pub live: Option<(f64, f64)>,
}

/// One device as seen, with the truth beside it.
#[derive(Clone, Debug)]
pub struct Feed {
    pub name: String,
    pub tenants: usize,
    pub rows: Vec<Row>,
    pub capacity: Vec<(f64, f64)>,
    pub orphaned: f64,
    pub ooms: Vec<f64>,
    pub kind: Kind,
    pub culprit: usize,
    pub declared: Option<f64>,
    pub end: f64,
}

/// What goes wrong between driver and series.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Share of samples lost.
    pub lost: f64,
    /// Share of samples delivered twice.
    pub twice: f64,
    /// Share of samples delivered after the next one.
    pub late: f64,
    /// Largest shift of a sample's time, as a share of the interval.
    pub jitter: f64,
}

impl Feed {
    pub fn capacity_at(&self, at: f64) -> f64 {
        self.capacity.iter().take_while(|(from, _)| *from <= at).last().map_or(0.0, |(_, mib)| *mib)
    }

    /// Takes one sample of `run` every `interval` seconds.
    pub fn of(run: &Run, interval: usize, faults: Faults, seed: u64) -> Self {
        let mut dice = Dice::new(777, seed);
        // Agents do not start with the workload: the first sample falls anywhere in the first interval.
        let offset = (dice.unit() * interval as f64) as usize;
        let mut rows: Vec<Row> = Vec::new();
        for second in (offset..run.seconds()).step_by(interval) {
            let changes = run.capacity.iter().filter(|(from, _)| *from <= second).count();
            let segment = (run.ooms.iter().filter(|oom| **oom <= second).count() * 100 + changes) as u64;
            for (tenant, trace) in run.tenants.iter().enumerate() {
                let Some(used) = trace.used.get(second).filter(|used| used.is_finite()) else { continue };
                if dice.chance(faults.lost) {
                    continue;
                }
                let shift = faults.jitter * interval as f64 * dice.between(-0.5, 0.5);
                let row = Row { at: (second as f64 + shift).max(0.0), tenant, segment, used: *used, live: None };
                if dice.chance(faults.twice) {
                    rows.push(row);
                }
                rows.push(row);
                let last = rows.len() - 1;
                if dice.chance(faults.late) && last > run.tenants.len() {
                    rows.swap(last, last - run.tenants.len());
                }
            }
        }
        Self {
            name: run.family.to_owned(),
            tenants: run.tenants.len(),
            rows,
            capacity: run.capacity.iter().map(|(from, mib)| (*from as f64, *mib)).collect(),
            orphaned: run.orphaned,
            ooms: run.ooms.iter().map(|oom| *oom as f64).collect(),
            kind: run.kind,
            culprit: run.culprit,
            declared: run.declared,
            end: run.seconds() as f64,
        }
    }
}

//! What the deaths of a workload teach: whether it dies at the same peak again and again, and how much it should ask for.
//!
//! Flows in: its OOMs and peaks, as its profile keeps them, over all its pods. Flows out: a [`Loop`], a [`Size`].

use std::time::Duration;

use crate::pacing::Stamp;
use crate::peaks::{MARGIN, Peaks};
use crate::quantity::{Bytes, counted};

/// So many OOMs at one peak are a loop: two may be chance, and the fourth need not be waited for.
pub const LOOP: usize = 3;
/// Peaks this near each other are the same: the allocator's granularity and what neighbours hold make up the rest.
const SAME: f64 = 0.05;
/// Older OOMs are another story.
const RECENT: Duration = Duration::from_hours(7 * 24);

/// One OOM of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oom {
    /// When.
    pub at: Stamp,
    /// The container that died.
    pub container: String,
    /// What it held, as far as anybody saw.
    pub peak: Option<Bytes>,
    /// What it asked for in vain.
    pub requested: Option<Bytes>,
}

/// A workload that dies at the same peak again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// The container.
    pub container: String,
    /// OOMs in a row at that peak.
    pub count: usize,
    /// The highest of these peaks.
    pub peak: Bytes,
    /// When the first of them happened.
    pub since: Stamp,
}

/// The loop that the newest OOM belongs to, if it does: a restart meets the same end, however many pods it takes.
pub fn restart_loop(ooms: &[Oom], now: Stamp) -> Option<Loop> {
    let mut ooms: Vec<&Oom> = ooms.iter().filter(|oom| oom.at + RECENT >= now).collect();
    ooms.sort_by_key(|oom| std::cmp::Reverse(oom.at));
    let newest = ooms.first().filter(|oom| oom.peak.is_some_and(|peak| peak > Bytes::ZERO))?;
    let near = |peak: Bytes, other: Bytes| (peak.as_f64() - other.as_f64()).abs() <= SAME * peak.max(other).as_f64();
    let own = ooms.iter().filter(|oom| oom.container == newest.container);
    let in_a_row: Vec<&&Oom> =
        own.take_while(|oom| oom.peak.zip(newest.peak).is_some_and(|(peak, newest)| near(peak, newest))).collect();
    let peak = in_a_row.iter().filter_map(|oom| oom.peak).max()?;
    let since = in_a_row.last()?.at;
    (in_a_row.len() >= LOOP).then(|| Loop { container: newest.container.clone(), count: in_a_row.len(), peak, since })
}

/// How much memory a container should be given, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Size {
    /// How much.
    pub bytes: Bytes,
    /// What it follows from, in one sentence.
    pub basis: String,
}

/// The size to ask for. An OOM shows a lower bound, and beats what was merely seen; with neither there is none to tell.
pub fn recommend(container: &str, peaks: &Peaks, ooms: &[Oom]) -> Option<Size> {
    let own = ooms.iter().filter(|oom| oom.container == container);
    let wanted = own.clone().filter_map(|oom| Some(oom.peak? + oom.requested.unwrap_or(Bytes::ZERO))).max();
    let with_margin = |bytes: Bytes| Bytes::from_f64(bytes.as_f64() * (1.0 + MARGIN));
    let percent = (100.0 * MARGIN).round();
    let (seen, _) = peaks.max();
    match wanted {
        Some(wanted) if wanted >= seen => Some(Size {
            bytes: with_margin(wanted),
            basis: format!(
                "ran out of memory {}, wanting {wanted} at most; at least that and {percent} % more: how much more it \
                 would have wanted nobody knows",
                counted(own.count(), "time", "times")
            ),
        }),
        _ if seen > Bytes::ZERO => Some(Size {
            bytes: with_margin(seen),
            basis: match peaks.percentile(0.95) {
                Some(usual) => format!(
                    "highest peak seen {seen} and {percent} % more; 95 % of {:.0} hours stayed at or below {usual}",
                    peaks.windows().max(1.0)
                ),
                None => format!("highest peak seen {seen} and {percent} % more"),
            },
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn oom(at: i64, container: &str, mib: u64) -> Oom {
        Oom {
            at: Stamp(at),
            container: container.into(),
            peak: Some(Bytes::mib(mib)),
            requested: Some(Bytes::mib(512)),
        }
    }

    #[test]
    fn the_third_oom_at_the_same_peak_is_a_loop() {
        let two = [oom(100, "main", 40_000), oom(900, "main", 40_900)];
        assert_eq!(restart_loop(&two, Stamp(1000)), None);
        let three = [two.as_slice(), &[oom(1700, "main", 39_500)]].concat();
        let found = restart_loop(&three, Stamp(1800)).expect("a loop");
        assert_eq!((found.count, found.peak, found.since), (3, Bytes::mib(40_900), Stamp(100)));
    }

    #[test]
    fn another_peak_another_container_or_a_week_breaks_it() {
        let grows = [oom(100, "main", 40_000), oom(900, "main", 40_000), oom(1700, "main", 60_000)];
        assert_eq!(restart_loop(&grows, Stamp(1800)), None);
        let others = [oom(100, "a", 40_000), oom(900, "b", 40_000), oom(1700, "a", 40_000)];
        assert_eq!(restart_loop(&others, Stamp(1800)), None);
        let old = [oom(100, "main", 40_000), oom(900, "main", 40_000), oom(700_000, "main", 40_000)];
        assert_eq!(restart_loop(&old, Stamp(700_000)), None);
        let unseen = Oom { peak: None, ..oom(1700, "main", 0) };
        assert_eq!(restart_loop(&[oom(100, "main", 1), oom(900, "main", 1), unseen], Stamp(1800)), None);
    }

    #[test]
    fn a_size_follows_from_ooms_first_and_from_peaks_else() {
        let mut peaks = Peaks::default();
        assert_eq!(recommend("main", &peaks, &[]), None);
        peaks.add(Stamp(1), Bytes::gib(10));
        let size = recommend("main", &peaks, &[]).unwrap();
        assert_eq!(size.bytes, Bytes::from_f64(Bytes::gib(10).as_f64() * 1.1));
        assert!(size.basis.contains("highest peak seen 10"), "{}", size.basis);
        let size = recommend("main", &peaks, &[oom(1, "main", 40_000), oom(2, "other", 80_000)]).unwrap();
        assert_eq!(size.bytes, Bytes::from_f64(Bytes::mib(40_512).as_f64() * 1.1));
        assert!(size.basis.starts_with("ran out of memory 1 time,"), "{}", size.basis);
    }

    proptest! {
        #[test]
        fn a_loop_counts_no_more_than_there_were(
            ooms in proptest::collection::vec((0_i64..1_000_000, 0_u64..4, 1_u64..90_000), 0..30)
        ) {
            let ooms: Vec<Oom> = ooms.into_iter().map(|(at, name, mib)| oom(at, &format!("c{name}"), mib)).collect();
            if let Some(found) = restart_loop(&ooms, Stamp(1_000_000)) {
                prop_assert!(found.count >= LOOP);
                prop_assert!(found.count <= ooms.iter().filter(|oom| oom.container == found.container).count());
            }
        }
    }
}

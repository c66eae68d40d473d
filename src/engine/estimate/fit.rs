//! Does it fit, on which card, and with which batch. Flows in: an estimate and the table of cards. Flows out: verdicts.

use super::cards::{CARDS, Card};
use super::run::{Run, Task};
use super::shape::Shape;
use super::{Error, Estimate, Interval, estimate};

/// Whether a job fits a capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The high end fits, or the median leaves a fifth of the card free.
    Fits,
    /// It may fit; try it where a failure costs little.
    Unsure,
    /// Even the low end does not fit.
    DoesNotFit,
}

impl Verdict {
    /// As a person reads it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::Unsure => "may not fit",
            Self::DoesNotFit => "does not fit",
        }
    }
}

/// A card and whether the job fits it.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// Which card.
    pub card: &'static Card,
    /// Whether it fits.
    pub verdict: Verdict,
    /// What it would need there.
    pub needs: Interval,
}

/// The admission rule: the high end fits, or the median is at most four fifths of the capacity (in 454 runs of the 4D
/// parallelism estimator, arXiv 2411.06465, nothing estimated below 80 % of a card ran out).
pub fn verdict(needs: &Interval, capacity: f64) -> Verdict {
    if needs.high <= capacity || needs.median <= 0.8 * capacity {
        Verdict::Fits
    } else if needs.low > capacity {
        Verdict::DoesNotFit
    } else {
        Verdict::Unsure
    }
}

/// Every card of the table with its verdict, smallest first. Each is estimated anew, since the size of a context depends
/// on the card.
pub fn table(shape: &Shape, run: &Run) -> Result<Vec<Fit>, Error> {
    CARDS
        .iter()
        .map(|card| {
            let needs = on(shape, run, card)?.needs;
            Ok(Fit { card, verdict: verdict(&needs, card.usable()), needs })
        })
        .collect()
}

/// The estimate as it would be on `card`.
pub fn on(shape: &Shape, run: &Run, card: &'static Card) -> Result<Estimate, Error> {
    estimate(shape, &Run { card: Some(card), ..run.clone() })
}

/// The largest batch whose verdict is [`Verdict::Fits`] within `capacity` bytes; `None` when not even one sample does.
/// For a server it is the number of sequences of full length that its pool holds at once.
pub fn largest_batch(shape: &Shape, run: &Run, capacity: f64) -> Result<Option<u64>, Error> {
    if let Task::Serve { utilization, .. } = run.task {
        let found = estimate(shape, run)?;
        let one = super::serving::kv_bytes_per_token(shape, run) * run.sequence as f64;
        let room = utilization * capacity - (found.needs.high * utilization - one);
        return Ok(if room < one || one <= 0.0 { None } else { Some((room / one) as u64) });
    }
    let fits = |batch: u64| -> Result<bool, Error> {
        let found = estimate(shape, &Run { batch, ..run.clone() })?;
        Ok(verdict(&found.needs, capacity) == Verdict::Fits)
    };
    if !fits(1)? {
        return Ok(None);
    }
    // More samples never need less, so halving finds the edge.
    let (mut fitting, mut too_many) = (1_u64, 2_u64);
    while too_many <= 1_000_000 && fits(too_many)? {
        fitting = too_many;
        too_many *= 2;
    }
    while too_many - fitting > 1 {
        let middle = fitting + (too_many - fitting) / 2;
        if fits(middle)? {
            fitting = middle;
        } else {
            too_many = middle;
        }
    }
    Ok(Some(fitting))
}

#[cfg(test)]
mod tests {
    use super::super::known;
    use super::*;

    #[test]
    fn the_rule_takes_the_high_end_or_four_fifths() {
        let needs = Interval::new(10.0, 16.0, 24.0);
        assert_eq!(verdict(&needs, 24.0), Verdict::Fits);
        assert_eq!(verdict(&needs, 20.0), Verdict::Fits);
        assert_eq!(verdict(&needs, 19.0), Verdict::Unsure);
        assert_eq!(verdict(&needs, 9.0), Verdict::DoesNotFit);
    }

    #[test]
    fn the_largest_batch_fits_and_one_more_does_not() {
        let shape = known::shape("llama3.2-1b").expect("known");
        let run = Run { sequence: 1024, ..Run::train() };
        let capacity = 80e9;
        let batch = largest_batch(&shape, &run, capacity).expect("an estimate").expect("a batch");
        let needs = |batch| estimate(&shape, &Run { batch, ..run.clone() }).expect("an estimate").needs;
        assert_eq!(verdict(&needs(batch), capacity), Verdict::Fits);
        assert_ne!(verdict(&needs(batch + 1), capacity), Verdict::Fits);
        assert_eq!(largest_batch(&shape, &run, 1e9), Ok(None));
    }

    #[test]
    fn a_published_out_of_memory_is_never_called_a_fit() {
        use super::super::run::{Attention, Checkpointing, Compute, Format, Lora, Targets};
        // litgpt, LoRA, batch 2 of 1,304 tokens, A100 of 40 GB: ran out.
        let lora = Lora { rank: 8, targets: Targets::Some, trains_embeddings: false, is_fp32: false };
        let run = Run {
            weights: Format::Bf16,
            compute: Compute::Half,
            lora: Some(lora),
            batch: 2,
            sequence: 1304,
            attention: Attention::Sdpa,
            checkpointing: Checkpointing::Off,
            is_foreign: true,
            ..Run::train()
        };
        let card = super::super::cards::find("A100-40GB").expect("known");
        let needs = on(&known::shape("llama2-13b").expect("known"), &run, card).expect("an estimate").needs;
        assert_ne!(verdict(&needs, card.usable()), Verdict::Fits, "{needs}");
    }
}

//! What to change when a job does not fit. Flows in: shape, run and capacity, or a measured peak and capacity. Flows out:
//! remedies in the order a person should try them, each with the peak it leads to, its price in time and the setting.

use super::fit::{Verdict, verdict};
use super::remedy::Kind;
use super::run::{Attention, Checkpointing, Compute, Format, Lora, Optimizer, Run, Step, Targets, Task};
use super::settings::{Setting, settings};
use super::shape::Shape;
use super::states::states;
use super::{Error, Interval, estimate};

/// One thing to change and what it leads to.
#[derive(Clone, Debug, PartialEq)]
pub struct Remedy {
    /// What to change.
    pub kind: Kind,
    /// The numbers of this case, such as the micro-batch to use.
    pub detail: String,
    /// Bytes saved.
    pub saves: Interval,
    /// The peak afterwards, in bytes.
    pub peak: Interval,
    /// Whether it then fits.
    pub verdict: Verdict,
    /// What it costs.
    pub price: &'static str,
    /// What to write, by framework.
    pub settings: &'static [Setting],
}

/// Every remedy that saves something, by bytes saved per cost, those that make the job fit by themselves first.
pub fn advise(shape: &Shape, run: &Run, capacity: f64) -> Result<Vec<Remedy>, Error> {
    Ok(changes(shape, run, capacity)?.into_iter().map(|(remedy, _)| remedy).collect())
}

/// Remedies to apply one after the other until the job fits: the best by bytes per cost each time, those that leave the
/// results as they are before any other. Peaks are those with
/// all earlier ones applied. Ends where nothing helps any more; look at the last one's verdict.
pub fn plan(shape: &Shape, run: &Run, capacity: f64) -> Result<Vec<Remedy>, Error> {
    let mut steps = Vec::new();
    let mut now = run.clone();
    let mut is_fitting = verdict(&estimate(shape, run)?.needs, capacity) == Verdict::Fits;
    let mut only_mild = true;
    while !is_fitting && steps.len() < 12 {
        let mut best = changes(shape, &now, capacity)?;
        // What changes neither results nor the number of GPUs comes first, all of it if need be.
        best.retain(|(remedy, _)| !only_mild || remedy.kind.is_mild());
        let Some((remedy, changed)) = best.into_iter().next() else {
            if only_mild {
                only_mild = false;
                continue;
            }
            break;
        };
        (is_fitting, now) = (remedy.verdict == Verdict::Fits, changed);
        steps.push(remedy);
    }
    Ok(steps)
}

/// A remedy in one sentence: what to change, the peak it leads to, its price, and what to write in `framework` (PyTorch
/// where that is not known or has no setting of its own).
pub fn sentence(remedy: &Remedy, framework: Option<&str>) -> String {
    let Remedy { kind, detail, peak, verdict, price, .. } = remedy;
    let detail = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
    let setting = setting(remedy, framework).map(|line| format!("; {line}")).unwrap_or_default();
    format!("{}{detail}: then {peak}, {}; {price}{setting}", kind.title(), verdict.words())
}

/// What to write for a remedy in `framework`, the framework's name first.
pub fn setting(remedy: &Remedy, framework: Option<&str>) -> Option<String> {
    let of = |name: &str| remedy.settings.iter().find(|setting| setting.framework.eq_ignore_ascii_case(name));
    let found = framework.and_then(of).or_else(|| of("PyTorch")).or_else(|| remedy.settings.first())?;
    Some(format!("{}: {}", found.framework, found.line))
}

fn changes(shape: &Shape, run: &Run, capacity: f64) -> Result<Vec<(Remedy, Run)>, Error> {
    let before = estimate(shape, run)?;
    let mut found = Vec::new();
    for (kind, detail, changed) in candidates(shape, run, capacity) {
        // A change that contradicts the run is no remedy for it.
        let Ok(after) = estimate(shape, &changed) else { continue };
        let saves = saved(&before.needs, &after.needs);
        if saves.median < 0.002 * before.needs.median {
            continue;
        }
        let verdict = verdict(&after.needs, capacity);
        let remedy =
            Remedy { kind, detail, saves, peak: after.needs, verdict, price: kind.price(), settings: settings(kind) };
        found.push((remedy, changed));
    }
    let worth = |remedy: &Remedy| remedy.saves.median / remedy.kind.cost();
    found.sort_by(|(one, _), (other, _)| {
        let fits = |remedy: &Remedy| remedy.verdict != Verdict::Fits;
        // Among those that fit, the cheapest; among the others, the most bytes per cost.
        fits(one).cmp(&fits(other)).then_with(|| match (fits(one), fits(other)) {
            (false, false) => one.kind.cost().total_cmp(&other.kind.cost()),
            _ => worth(other).total_cmp(&worth(one)),
        })
    });
    Ok(found)
}

/// The difference of two peaks. Their errors are mostly shared, so bounds differ like medians, with a tenth either way.
fn saved(before: &Interval, after: &Interval) -> Interval {
    let median = (before.median - after.median).max(0.0);
    Interval::new(median * 0.85, median, median * 1.15)
}

/// What could be changed about this run.
fn candidates(shape: &Shape, run: &Run, capacity: f64) -> Vec<(Kind, String, Run)> {
    let mut list = Vec::new();
    let mut add = |kind: Kind, detail: String, changed: Run| list.push((kind, detail, changed));
    if run.attention == Attention::Eager {
        add(Kind::Attention, String::new(), Run { attention: Attention::Flash, ..run.clone() });
    }
    if run.parallel.tensor < 8 && !run.parallel.sequence {
        let (tensor, sequence) = (run.parallel.tensor * 2, run.task == Task::Train);
        let mut changed = run.clone();
        (changed.parallel.tensor, changed.parallel.sequence) = (tensor, sequence);
        add(Kind::Tensor, format!("over {tensor} GPUs"), changed);
    }
    match run.task {
        Task::Train => training(shape, run, capacity, &mut add),
        Task::Generate { .. } | Task::Serve { .. } => serving(run, &mut add),
    }
    list
}

fn training(shape: &Shape, run: &Run, capacity: f64, add: &mut impl FnMut(Kind, String, Run)) {
    if !run.expandable {
        add(Kind::Allocator, String::new(), Run { expandable: true, ..run.clone() });
    }
    if run.optimizer == Optimizer::Adam(Step::Foreach) {
        add(Kind::FusedStep, String::new(), Run { optimizer: Optimizer::Adam(Step::Fused), ..run.clone() });
    }
    if run.loss_chunk == 0 {
        add(Kind::ChunkedLoss, "1,024 tokens at a time".to_owned(), Run { loss_chunk: 1024, ..run.clone() });
    }
    if run.compute == Compute::Fp32 {
        add(Kind::Bf16, String::new(), Run { compute: Compute::Autocast, ..run.clone() });
    }
    if run.batch > 1 {
        let changed = |batch: u64| {
            let accumulation = run.accumulation.saturating_mul(run.batch.div_ceil(batch));
            Run { batch, accumulation, ..run.clone() }
        };
        let fits = |batch: u64| {
            estimate(shape, &changed(batch)).is_ok_and(|after| verdict(&after.needs, capacity) == Verdict::Fits)
        };
        // The largest half, quarter, … that fits; one sample where none does.
        let mut batch = run.batch / 2;
        while batch > 1 && !fits(batch) {
            batch /= 2;
        }
        let after = changed(batch);
        add(Kind::Accumulate, format!("micro-batch {batch}, {} steps of accumulation", after.accumulation), after);
    }
    if run.checkpointing != Checkpointing::Full {
        add(Kind::Checkpointing, String::new(), Run { checkpointing: Checkpointing::Full, ..run.clone() });
    }
    if matches!(run.optimizer, Optimizer::Adam(_)) {
        add(Kind::Adam8bit, String::new(), Run { optimizer: Optimizer::Adam8bit, ..run.clone() });
        if !run.offload.optimizer && states(shape, run).optimizer > 0.0 {
            let mut changed = run.clone();
            changed.offload.optimizer = true;
            changed.parallel.zero = changed.parallel.zero.max(2);
            add(Kind::Offload, String::new(), changed);
        }
    }
    if run.lora.is_none() {
        if run.compute != Compute::Half {
            let (weights, compute) = (Format::Bf16, Compute::Half);
            add(Kind::PureBf16, String::new(), Run { weights, compute, ..run.clone() });
        }
        let lora = Some(Lora { rank: 16, targets: Targets::All, trains_embeddings: false, is_fp32: true });
        let on = |weights| Run { weights, compute: Compute::Autocast, lora, steps_in_backward: false, ..run.clone() };
        add(Kind::Lora, "rank 16 on BF16 weights".to_owned(), on(Format::Bf16));
        add(Kind::Qlora, "rank 16 on NF4 weights".to_owned(), on(Format::Nf4));
    } else if !run.weights.is_quantised() {
        add(Kind::Qlora, "NF4 weights under the adapters".to_owned(), Run { weights: Format::Nf4, ..run.clone() });
    }
    if run.parallel.zero < 3 || run.parallel.data < 8 {
        let mut changed = run.clone();
        changed.parallel.zero = 3;
        changed.parallel.data =
            if run.parallel.zero < 3 && run.parallel.data > 1 { run.parallel.data } else { run.parallel.data * 2 };
        add(Kind::Zero, format!("stage 3 over {} GPUs", changed.parallel.data), changed);
    }
}

fn serving(run: &Run, add: &mut impl FnMut(Kind, String, Run)) {
    if !run.weights.is_quantised() {
        add(Kind::QuantisedWeights, String::new(), Run { weights: Format::Int4, ..run.clone() });
    }
    if run.kv_bytes > 1.0 {
        add(Kind::QuantisedCache, String::new(), Run { kv_bytes: 1.0, ..run.clone() });
    }
    if run.sequence > 1024 {
        let mut changed = Run { sequence: run.sequence / 2, ..run.clone() };
        if let Task::Serve { batched_tokens, .. } = &mut changed.task {
            *batched_tokens = (*batched_tokens).min(2048);
        }
        add(Kind::ShorterContext, format!("{} tokens", changed.sequence), changed);
    }
    if let Task::Serve { utilization, batched_tokens, sequences } = run.task
        && utilization < 0.9
    {
        let task = Task::Serve { utilization: 0.92, batched_tokens, sequences };
        add(Kind::Utilization, "92 % of the card, if nothing else runs on it".to_owned(), Run { task, ..run.clone() });
    }
}

/// What is known of a job that ran, when its model is not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Highest memory of the process that was seen, or what it had when it ran out, in bytes.
    pub peak: f64,
    /// What it may take, in bytes.
    pub capacity: f64,
    /// Live tensors and what the allocator held at that time, in bytes, where its message or a hook says so.
    pub allocator: Option<(f64, f64)>,
    /// It is a server with a pool that fills its share at start.
    pub has_pool: bool,
    /// It trains: it has gradients and an optimizer.
    pub trains: bool,
}

/// Remedies for a job known by its numbers alone. What they save is known as a share of typical jobs, so intervals are
/// wide; what the allocator held in vain is known exactly where its numbers are.
pub fn advise_measured(job: &Measured) -> Vec<Remedy> {
    let dynamic = (job.peak - 0.6 * super::GIB).max(0.0);
    let mut list: Vec<(Kind, [f64; 3])> = Vec::new();
    if let Some((allocated, reserved)) = job.allocator {
        let idle = ((reserved - allocated).max(0.0) / dynamic.max(1.0)).min(1.0);
        list.push((Kind::Allocator, [0.3 * idle, 0.7 * idle, idle]));
    } else if !job.has_pool {
        list.push((Kind::Allocator, [0.0, 0.05, 0.2]));
    }
    // Shares of a typical training job's dynamic memory: ours on an H200, and the effect sizes of Transformers' guide.
    if job.has_pool {
        list.push((Kind::Utilization, [0.05, 0.15, 0.4]));
        list.push((Kind::QuantisedCache, [0.0, 0.1, 0.4]));
        list.push((Kind::QuantisedWeights, [0.1, 0.35, 0.6]));
    } else if job.trains {
        list.push((Kind::Accumulate, [0.05, 0.3, 0.45]));
        list.push((Kind::Checkpointing, [0.05, 0.3, 0.7]));
        list.push((Kind::Attention, [0.0, 0.1, 0.5]));
        list.push((Kind::ChunkedLoss, [0.0, 0.1, 0.5]));
        list.push((Kind::Bf16, [0.0, 0.15, 0.45]));
        list.push((Kind::Adam8bit, [0.0, 0.2, 0.35]));
        list.push((Kind::Zero, [0.1, 0.35, 0.5]));
        list.push((Kind::Offload, [0.05, 0.3, 0.5]));
        list.push((Kind::Lora, [0.1, 0.5, 0.75]));
    } else {
        list.push((Kind::QuantisedWeights, [0.1, 0.4, 0.7]));
        list.push((Kind::ShorterContext, [0.0, 0.1, 0.45]));
        list.push((Kind::Tensor, [0.3, 0.45, 0.5]));
    }
    let mut remedies: Vec<Remedy> = list
        .into_iter()
        .map(|(kind, [low, median, high])| {
            let saves = Interval::new(low * dynamic, median * dynamic, high * dynamic);
            let peak = Interval::new(job.peak - saves.high, job.peak - saves.median, job.peak - saves.low);
            let verdict = if peak.high <= job.capacity {
                Verdict::Fits
            } else if peak.low > job.capacity {
                Verdict::DoesNotFit
            } else {
                Verdict::Unsure
            };
            let detail = "a share of what such jobs usually save: the model is not known".to_owned();
            Remedy { kind, detail, saves, peak, verdict, price: kind.price(), settings: settings(kind) }
        })
        .filter(|remedy| remedy.saves.median > 0.0)
        .collect();
    let worth = |remedy: &Remedy| remedy.saves.median / remedy.kind.cost().max(0.1);
    remedies.sort_by(|one, other| worth(other).total_cmp(&worth(one)));
    remedies
}

#[cfg(test)]
mod tests {
    use super::super::known;
    use super::*;

    #[test]
    fn a_plan_ends_in_a_job_that_fits() {
        let shape = known::shape("llama3-8b").expect("known");
        let run = Run { batch: 8, sequence: 2048, attention: Attention::Eager, ..Run::train() };
        let capacity = 80e9;
        let steps = plan(&shape, &run, capacity).expect("an estimate");
        assert_eq!(steps.last().map(|remedy| remedy.verdict), Some(Verdict::Fits), "{steps:?}");
        assert!(steps.len() <= 8, "{steps:?}");
        let peaks: Vec<f64> = steps.iter().map(|remedy| remedy.peak.median).collect();
        assert!(peaks.windows(2).all(|pair| pair[1] <= pair[0]), "{peaks:?}");
    }

    #[test]
    fn a_job_that_fits_needs_no_plan() {
        let shape = known::shape("gpt2").expect("known");
        assert_eq!(plan(&shape, &Run { sequence: 128, ..Run::train() }, 80e9), Ok(Vec::new()));
    }

    #[test]
    fn every_remedy_says_what_it_costs_and_how_to_do_it() {
        let shape = known::shape("llama2-7b").expect("known");
        let list = advise(&shape, &Run { batch: 4, ..Run::train() }, 40e9).expect("an estimate");
        assert!(list.len() >= 8, "{list:?}");
        for remedy in list {
            assert!(remedy.saves.median > 0.0 && !remedy.price.is_empty() && remedy.settings.len() >= 3, "{remedy:?}");
        }
    }

    #[test]
    fn idle_blocks_of_a_measured_job_come_first_when_they_are_the_trouble() {
        let gib = 1_073_741_824.0;
        let job = Measured {
            peak: 40.0 * gib,
            capacity: 36.0 * gib,
            allocator: Some((20.0 * gib, 39.0 * gib)),
            has_pool: false,
            trains: true,
        };
        let list = advise_measured(&job);
        assert_eq!(list.first().map(|remedy| remedy.kind), Some(Kind::Allocator));
        assert!(list.iter().all(|remedy| remedy.peak.low <= remedy.peak.high));
    }
}

//! The peak of a training step: the states of [`super::states`] and the tensors of [`super::activations`] put on the time
//! line of a step, and the worst moment taken. Flows in: checked shape and run. Flows out: an estimate.

use super::activations::{around, block, loss};
use super::overhead::{Held, context, nccl, settled, slack, workspace};
use super::run::{Attention, Checkpointing, Compute, Format, Optimizer, Run};
use super::shape::{Family, Shape};
use super::states::{States, base_bytes, states, weight_bytes};
use super::{Estimate, Interval, Phase, Term, worst};

/// How sure the formulas are: share below and above the median.
#[derive(Clone, Copy)]
struct Spread {
    states: (f64, f64),
    activations: (f64, f64),
    loss: (f64, f64),
}

fn spread(shape: &Shape, run: &Run) -> Spread {
    let is_unknown = shape.family == Family::Unknown || !shape.doubts.is_empty();
    let activations = match (is_unknown, run.is_foreign || run.compiled, shape.family) {
        (true, ..) => (0.6, 1.0),
        // Quantised layers keep more than their inputs in some kernels.
        (_, true, _) if run.weights.is_quantised() => (0.3, 1.0),
        (_, true, _) => (0.3, 0.6),
        (.., Family::T5) => (0.3, 0.3),
        _ => (0.03, 0.05),
    };
    let loss = if run.is_foreign || is_unknown { (0.4, 0.7) } else { (0.02, 0.04) };
    let states = match (is_unknown, run.is_foreign) {
        // An MLP without the gate that is assumed has a third less.
        _ if shape.family == Family::Unknown => (0.25, 0.08),
        (true, _) => (0.05, 0.08),
        // Whether gradients are kept in 16 or 32 bits beside a master copy differs between tools.
        _ if run.compute == Compute::Master => (0.08, 0.12),
        (_, true) => (0.03, 0.05),
        _ => (0.005, 0.01),
    };
    Spread { states, activations, loss }
}

/// The estimate of a training job on its fullest GPU.
pub(super) fn estimate(shape: &Shape, run: &Run) -> Estimate {
    let spread = spread(shape, run);
    let states = states(shape, run);
    let step = step(shape, run, &states);
    let of = |(below, above): (f64, f64), bytes: f64| Interval::spread(bytes, below, above);
    let held = Held {
        weights: states.weights,
        optimizer: states.optimizer,
        gradients: states.gradients,
        activations: step.kept + step.last,
        logits: step.logits,
        casts: if run.lora.is_some() { 0.0 } else { step.casts },
        step: states.step,
    };
    let phase = |gradients: f64, activations: f64, loss: f64, passing: (&'static str, f64), casts: f64| {
        let mut terms = vec![
            Term { name: "weights", bytes: of(spread.states, states.weights) },
            Term { name: "gradients", bytes: of(spread.states, gradients) },
            Term { name: "optimizer", bytes: of(spread.states, states.optimizer) },
            Term { name: "activations", bytes: of(spread.activations, activations) },
            Term { name: "logits and loss", bytes: of(spread.loss, loss) },
            Term { name: passing.0, bytes: of((0.1, 0.15), passing.1) },
            Term { name: "16-bit copies", bytes: of((0.05, 0.05), casts) },
            Term { name: "gathered weights and buckets", bytes: of((0.5, 0.8), step.buffers) },
            Term { name: "attention that falls back", bytes: Interval::new(0.0, 0.0, step.fallback) },
        ];
        let alive: f64 = terms.iter().map(|term| term.bytes.median).sum();
        terms.extend([workspace(run), slack(run, &held, settled(run, &held) - alive), nccl(run), context(run)]);
        terms
    };
    let deep = ("backward temporaries", step.deep);
    let recomputed = ("backward temporaries", step.last);
    let table = ("backward temporaries", step.embedding);
    let mut phases = vec![
        // In the forward pass all 16-bit copies are still cached; the loss has one gradient less than a moment later.
        (Phase::Loss, phase(step.carried, step.kept, step.loss * 0.83, ("backward temporaries", 0.0), step.casts)),
        (Phase::Loss, phase(step.carried, step.kept, step.loss, deep, step.late_casts)),
        // The first block is the last to go backward; the embedding's gradient comes after it.
        (Phase::Backward, phase(step.before_last, step.inputs, 0.0, recomputed, step.last_casts)),
        (Phase::Backward, phase(states.gradients, 0.0, 0.0, table, 0.0)),
        (Phase::Step, phase(states.gradients, 0.0, 0.0, ("optimizer temporaries", states.step), 0.0)),
    ];
    if run.loads_whole && parallel_data(run) > 1.0 {
        // All weights lie on each GPU before they are divided.
        let whole = base_bytes(shape, run) / run.parallel.tensor as f64;
        let bytes = Interval::new(whole, whole * (1.0 + 1.0 / parallel_data(run)), whole * 2.1);
        let copies = Interval::spread(block(shape, run).kept * run.tokens() + shape.embedding(), 0.8, 2.0);
        let term = |name, bytes| Term { name, bytes };
        phases.push((
            Phase::Load,
            vec![
                term("weights before sharding", bytes),
                term("copies", copies),
                workspace(run),
                nccl(run),
                context(run),
            ],
        ));
    }
    if run.is_made_on_device && shape.tied {
        let bytes = Interval::exact(states.weights);
        let width = weight_bytes(shape, run.weights) / shape.params();
        let head = Interval::exact(shape.embedding() * width);
        let term = |name, bytes| Term { name, bytes };
        let load = vec![term("weights", bytes), term("head before it is tied", head), workspace(run), context(run)];
        phases.push((Phase::Load, load));
    }
    let mut estimate = worst(phases, super::overhead::OUTSIDE);
    notes(shape, run, &mut estimate);
    estimate
}

fn parallel_data(run: &Run) -> f64 {
    if run.parallel.zero >= 3 { run.parallel.data as f64 } else { 1.0 }
}

/// Bytes on the time line of one step.
struct StepBytes {
    /// Gradients that are there when a forward pass begins.
    carried: f64,
    /// Activations at the loss.
    kept: f64,
    /// Logits and what the loss makes of them.
    loss: f64,
    /// Activations at the end of the backward pass.
    last: f64,
    /// Temporaries of one block's backward pass beside everything kept.
    deep: f64,
    /// Temporaries of the embedding's gradient.
    embedding: f64,
    /// 16-bit copies of fp32 weights under autocast: in the forward pass, when the backward pass begins, and at its end.
    casts: f64,
    late_casts: f64,
    last_casts: f64,
    /// Gradients that are there when the first block is recomputed, and the block inputs that still are.
    before_last: f64,
    inputs: f64,
    /// One fp32 copy of the logits: the largest single block of a step.
    logits: f64,
    /// Gathered weights, reduction buckets, dequantised matrices.
    buffers: f64,
    /// Scores of one block, if a kernel that should not write them out does so after all.
    fallback: f64,
}

fn step(shape: &Shape, run: &Run, states: &States) -> StepBytes {
    let parallel = &run.parallel;
    let tokens = run.tokens();
    let block = block(shape, run);
    let stages = parallel.pipeline.min(shape.layers).max(1);
    let layers = shape.layers.div_ceil(stages) as f64;
    // The first stage of a pipeline holds as many micro-batches as there are stages (Narayanan et al. 2021, 1F1B).
    let in_flight = stages.min(run.accumulation.max(1)) as f64;
    let each = block.kept + block.scores;
    let (kept, last) = match run.checkpointing {
        // One block is recomputed at a time on top of all inputs.
        Checkpointing::Full => (layers * block.input, each),
        Checkpointing::Off | Checkpointing::Selective => (layers * each, 0.0),
    };
    let (loss_kept, loss_passing) = loss(shape, run);
    // Only the last stage has the head, and it holds one micro-batch; the first has the others. The fuller one counts.
    let head = loss_kept + loss_passing + tokens * around(shape, run);
    let first = kept * tokens * in_flight;
    let (kept, loss) = if stages > 1 && first > kept * tokens + head { (first, 0.0) } else { (kept * tokens, head) };

    let trains = run.lora.is_none_or(|lora| lora.trains_embeddings);
    let split = parallel.tensor as f64 * if parallel.zero >= 3 { parallel.data as f64 } else { 1.0 };
    let gradient_width = if states.gradients > 0.0 { super::states::gradient_width(shape, run) } else { 0.0 };
    let table = if trains { shape.embedding() * gradient_width / split } else { 0.0 };
    // The gradient of a table is dense. A tied one gets two, and their sum, before they are added to what is there.
    let embedding = table
        * match (shape.tied, run.accumulation > 1) {
            (true, true) => 3.0,
            (true, false) => 2.0,
            (false, _) => 1.0,
        };
    let matrices = shape.block_matrices() * layers / parallel.tensor as f64;
    let head_params = shape.embedding() / parallel.tensor as f64;
    let is_cast = run.compute == Compute::Autocast && run.weights == Format::Fp32;
    let one = if is_cast { 2.0 } else { 0.0 };
    let casts = one * (matrices + head_params);
    let (late_casts, last_casts) = match run.checkpointing {
        // After the forward pass autocast's cache is cleared, and only what autograd saved keeps its copy.
        Checkpointing::Full => (one * head_params, one * matrices / layers),
        Checkpointing::Off | Checkpointing::Selective => (casts, 0.0),
    };
    // The cache holds copies of trained weights alone.
    let casts = if run.lora.is_some() { late_casts } else { casts };
    let carried = if run.accumulation > 1 { states.gradients } else { 0.0 };
    StepBytes {
        carried,
        kept,
        loss,
        last: if run.checkpointing == Checkpointing::Full { last * tokens + block.passing * tokens } else { 0.0 },
        deep: (block.passing * tokens - loss_passing).max(0.0) * 0.5,
        embedding,
        casts,
        late_casts,
        last_casts,
        before_last: (states.gradients - table).max(carried),
        inputs: if run.checkpointing == Checkpointing::Full { block.input * tokens } else { 0.0 },
        logits: loss_kept.max(loss_passing) / if run.loss_chunk == 0 { 1.0 } else { 2.0 }
            * if loss_passing > loss_kept { 0.5 } else { 1.0 },
        buffers: buffers(shape, run),
        fallback: fallback(shape, run),
    }
}

/// Other people's code asks for FlashAttention and gets it for some models only: published jobs of long sequences need
/// just what one block's scores take. It raises the high end alone.
fn fallback(shape: &Shape, run: &Run) -> f64 {
    if !run.is_foreign || run.attention == Attention::Eager || run.checkpointing != Checkpointing::Full {
        return 0.0;
    }
    let eager = block(shape, &Run { attention: Attention::Eager, ..run.clone() });
    (eager.scores + eager.passing) * run.tokens()
}

/// Weights gathered for a moment, buckets of gradients on their way, and matrices brought back from few bits.
///
/// DeepSpeed's defaults are buckets of 5e8 elements and at most 1e9 gathered ones (its configuration page, EleutherAI's
/// cookbook); FSDP gathers the block in work and the next one; DDP keeps its buckets as a second copy of the gradients.
fn buffers(shape: &Shape, run: &Run) -> f64 {
    let parallel = &run.parallel;
    let params = shape.params() / parallel.tensor as f64;
    let trained = super::states::trained(shape, run) / parallel.tensor as f64;
    let width = match run.weights {
        Format::Fp32 if run.compute == Compute::Autocast => 2.0,
        format => super::states::bytes_per_weight(format),
    };
    let unit = shape.block_matrices() / parallel.tensor as f64;
    let shared = match (parallel.data, parallel.zero) {
        (1, _) if run.offload.weights => 2.0 * (unit + shape.embedding()) * width,
        (1, _) => 0.0,
        (_, 0) => trained * super::states::gradient_width(shape, run),
        (_, 1 | 2) => params.min(5e8) * width + trained.min(5e8) * width,
        _ => (2.0 * unit + shape.embedding()).min(params) * width + unit.min(trained) * width,
    };
    let is_offloaded = run.offload.optimizer || run.offload.weights;
    let offloaded = if is_offloaded { trained.min(5e8) * 2.0 } else { 0.0 };
    let dequantised = super::states::dequantised(shape, run.weights, true);
    shared + offloaded + dequantised
}

fn notes(shape: &Shape, run: &Run, estimate: &mut Estimate) {
    let mut assume = |text: String| estimate.assumptions.push(text);
    assume(format!("{:.2} billion parameters", shape.params() / 1e9));
    assume("the peak of a step after the first, when optimizer states exist".to_owned());
    if run.card.is_none() {
        assume("card not given: a CUDA context of 0.3 to 0.9 GiB".to_owned());
    }
    if run.parallel.is_split() {
        assume("the fullest GPU of the job; NCCL takes 0.1 to 1.6 GiB".to_owned());
    }
    if matches!(run.optimizer, Optimizer::Adam(_)) && run.compute == Compute::Half && run.lora.is_none() {
        assume("Adam's states are kept in 16 bits like the weights".to_owned());
    }
    let mut unknown = |text: &str| estimate.unknowns.push(text.to_owned());
    if shape.family == Family::Unknown {
        unknown("the architecture: activations are a guess between 0.4 and 2 times the median");
    }
    if run.is_foreign {
        unknown("the model code: activations may be 30 % smaller or 40 % larger than Hugging Face's");
    }
    if run.compiled {
        unknown("what the compiler fuses: activations may be 30 % smaller or 40 % larger");
    }
    if run.varies {
        unknown("lengths of samples: freed blocks rarely fit again, the allocator may hold twice what a step uses");
    }
    estimate.unknowns.extend(shape.doubts.iter().cloned());
}

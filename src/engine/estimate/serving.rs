//! Memory of a model that only reads and writes tokens: plain generation, and servers with a paged pool. Flows in: checked
//! shape and run. Flows out: an estimate.

use super::overhead::{Held, context, nccl, slack, workspace};
use super::run::{Attention, Run, Task};
use super::shape::{Family, Shape};
use super::states::{dequantised, model_split, weight_bytes};
use super::{Error, Estimate, Interval, Phase, Term, worst};

/// Bytes of keys and values of one token on one GPU: two tensors of `kv_heads * head_dim` a layer (PagedAttention paper).
/// Tensor parallelism divides them down to one head a GPU, pipeline parallelism by layers.
pub fn kv_bytes_per_token(shape: &Shape, run: &Run) -> f64 {
    let heads = if shape.kv_bytes_per_token.is_some() { 1 } else { shape.kv_heads };
    let split = run.parallel.tensor.min(heads) * run.parallel.pipeline.min(shape.layers);
    shape.kv_elements_per_token() * run.kv_bytes / split.max(1) as f64
}

/// What a forward pass over `tokens` tokens needs for a moment, in bytes: one block's widest point and its residual
/// streams. Found to be `3 * ffn + 4.5 * hidden` elements a token on an H200 for gated MLPs.
fn passing(shape: &Shape, run: &Run, tokens: f64, sequence: f64) -> f64 {
    let hidden = shape.hidden as f64;
    let experts = shape.experts.map_or(shape.ffn as f64, |experts| {
        experts.active as f64 * (experts.width as f64 + hidden) + experts.shared_width as f64
    });
    // GELU written as single operations has one more tensor alive than a gate has.
    let wide = if shape.composed_gelu || shape.family == Family::Unknown { 4.0 } else { 3.0 };
    let tensor = run.parallel.tensor as f64;
    let scores = if run.attention == Attention::Eager { shape.heads as f64 * sequence * 6.0 / tensor } else { 0.0 };
    tokens * ((wide * experts / tensor + 4.5 * hidden) * run.pass_bytes() + scores)
}

/// The estimate of a model that serves or generates.
pub(super) fn estimate(shape: &Shape, run: &Run) -> Result<Estimate, Error> {
    let is_doubtful = shape.family == Family::Unknown || !shape.doubts.is_empty();
    let doubt = if shape.family == Family::Unknown {
        // An MLP without the gate that is assumed has a third less.
        0.25
    } else if is_doubtful {
        0.08
    } else if run.weights.is_quantised() {
        0.03
    } else {
        0.01
    };
    let weights = weight_bytes(shape, run.weights) / model_split(shape, run);
    let weights_term = Term { name: "weights", bytes: Interval::spread(weights, doubt, doubt.min(0.08) * 1.5) };
    match run.task {
        Task::Serve { utilization, batched_tokens, sequences } => {
            Ok(server(shape, run, weights_term, (utilization, batched_tokens as f64, sequences as f64)))
        }
        Task::Generate { new_tokens, keeps_cache } => {
            Ok(generate(shape, run, weights_term, new_tokens as f64, keeps_cache))
        }
        Task::Train => {
            Err(Error::Contradiction { field: "task", other: "serving", why: "training is estimated elsewhere" })
        }
    }
}

fn generate(shape: &Shape, run: &Run, weights: Term, new_tokens: f64, keeps_cache: bool) -> Estimate {
    let batch = run.batch as f64;
    let (prompt, all) = (run.tokens(), batch * (run.sequence as f64 + new_tokens));
    let kv = kv_bytes_per_token(shape, run);
    // Generation makes only the last position's logits, in 16 bits and then in fp32 for the choice of a token. A forward
    // pass alone gives those of every token.
    let vocab = shape.vocab as f64 / run.parallel.tensor as f64;
    let logits = if new_tokens > 0.0 { batch * vocab * 6.0 } else { prompt * vocab * run.pass_bytes() };
    let phase = |cache: f64, passing: f64| {
        // What a growing cache or a pass without one leaves behind; the weights never move.
        let moves = if new_tokens > 0.0 { passing.min(0.25 * cache + passing) + 0.1 * cache } else { passing };
        vec![
            weights,
            Term { name: "KV cache", bytes: Interval::spread(cache, 0.02, 0.08) },
            Term { name: "forward temporaries", bytes: Interval::spread(passing, 0.2, 0.35) },
            Term { name: "logits and loss", bytes: Interval::spread(logits, 0.4, 0.4) },
            Term {
                name: "dequantised matrices",
                bytes: Interval::spread(dequantised(shape, run.weights, false), 0.9, 0.6),
            },
            workspace(run),
            slack(run, &Held { weights: weights.bytes.median, activations: moves, ..Held::default() }, 0.0),
            nccl(run),
            context(run),
        ]
    };
    let sequence = run.sequence as f64 + new_tokens;
    let mut phases = if keeps_cache {
        // While writing, each layer's cache is copied to one a token longer.
        let longer = kv * all / shape.layers as f64;
        let prefill = (Phase::Prefill, phase(kv * prompt, passing(shape, run, prompt, run.sequence as f64)));
        vec![prefill, (Phase::Decode, phase(kv * all, longer + passing(shape, run, batch, sequence)))]
    } else {
        vec![(Phase::Decode, phase(0.0, passing(shape, run, all, sequence)))]
    };
    if run.is_made_on_device && shape.tied {
        let width = weights.bytes.median / shape.params();
        let head = Interval::exact(shape.embedding() * width);
        let load = vec![weights, Term { name: "head before it is tied", bytes: head }, workspace(run), context(run)];
        phases.push((Phase::Load, load));
    }
    let mut estimate = worst(phases, super::overhead::OUTSIDE);
    estimate.assumptions.push(format!("{:.2} billion parameters", shape.params() / 1e9));
    if !keeps_cache {
        estimate.assumptions.push("keys and values are not kept: each token reads everything again".to_owned());
    }
    if new_tokens > 0.0 {
        let why = "how much the allocator keeps while sequences grow: tensors get larger with each token, freed ones do not fit";
        estimate.unknowns.push(why.to_owned());
    }
    estimate.unknowns.extend(shape.doubts.iter().cloned());
    estimate
}

/// A server takes `utilization` of the card at start: weights, the peak of a profiling pass, and the rest for keys and
/// values (vLLM's memory profiling). On a card that is not known, the pool is what `sequences` of full length need.
fn server(
    shape: &Shape,
    run: &Run,
    weights: Term,
    (utilization, batched_tokens, sequences): (f64, f64, f64),
) -> Estimate {
    let token = kv_bytes_per_token(shape, run);
    let activation = passing(shape, run, batched_tokens, run.sequence as f64)
        + sequences * shape.vocab as f64 * 6.0 / run.parallel.tensor as f64;
    let activation = Interval::spread(activation, 0.35, 0.8);
    let graphs = Interval::new(0.0, 0.2e9, 1.5e9);
    let one = token * run.sequence as f64;
    let fixed = weights.bytes.median + activation.median;
    let pool = match run.card {
        // The context and the captured graphs come on top of the share in some versions: above it, never below.
        Some(card) => (utilization * card.usable() - fixed - context(run).bytes.median).max(0.0),
        None => one * sequences,
    };
    let terms = vec![
        weights,
        Term { name: "forward temporaries", bytes: activation },
        // What temporaries take the pool does not get: its bounds are those of the share as a whole.
        Term { name: "KV cache", bytes: Interval::spread(pool, 0.03, 0.02) },
        Term { name: "CUDA graphs", bytes: graphs },
        workspace(run),
        nccl(run),
        context(run),
    ];
    let mut estimate = worst(vec![(Phase::Pool, terms)], super::overhead::OUTSIDE);
    let least = fixed + one;
    let outside = [context(run).bytes, workspace(run).bytes, Interval::spread(least, 0.05, 0.08)];
    estimate.needs = Interval::sum(&outside).times(1.0 / utilization);
    if let Some(card) = run.card {
        let share = utilization * card.usable();
        estimate.assumptions.push(format!(
            "the server takes {:.0} % of a {} and fills it with keys and values",
            utilization * 100.0,
            card.name
        ));
        let room = if token > 0.0 { pool / token } else { 0.0 };
        estimate.assumptions.push(format!("room for {room:.0} tokens of keys and values, {token:.0} bytes each"));
        if least > share {
            estimate.unknowns.push(format!(
                "will not start: weights, temporaries and one sequence of {} tokens need {:.1} GiB, the share is {:.1} GiB",
                run.sequence,
                least / 1_073_741_824.0,
                share / 1_073_741_824.0
            ));
        } else {
            // The share holds whatever its parts turn out to be.
            let around = Interval::new(share * 0.96, share, share + graphs.high);
            estimate.total = Interval::new(around.low, estimate.total.median.max(share), around.high);
        }
    } else {
        estimate
            .assumptions
            .push(format!("card not given: the pool is what {sequences} sequences of {} tokens need", run.sequence));
    }
    estimate.unknowns.extend(shape.doubts.iter().cloned());
    estimate
}

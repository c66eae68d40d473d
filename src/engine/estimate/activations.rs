//! Bytes kept for the backward pass. Flows in: shape and run. Flows out: bytes of one block and of the head.
//!
//! The counts follow the tensors that PyTorch's autograd saves in Hugging Face's model code, kernel by kernel: a linear
//! layer saves its input when its weight is trained, a product saves both factors, softmax its output, dropout a byte of
//! mask. For plain GPT blocks they give Korthikanti et al.'s `34 + 5as/h`, which [`korthikanti`] has as printed.

use super::run::{Attention, Checkpointing, Compute, Format, Run, Targets};
use super::shape::{Family, Shape};

/// What one block keeps or needs, in bytes for each token on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Block {
    /// Kept for the backward pass, scores aside.
    pub kept: f64,
    /// Kept scores of attention; zero where a kernel does not write them out.
    pub scores: f64,
    /// The block's input, all that full checkpointing keeps.
    pub input: f64,
    /// Needed for a moment beside what is kept, in the backward pass.
    pub passing: f64,
}

/// Korthikanti et al. 2022: bytes of one block at 16 bits for `tokens` tokens of sequences of `sequence`, on one of
/// `tensor` GPUs.
pub fn korthikanti(
    shape: &Shape,
    tokens: f64,
    sequence: f64,
    tensor: f64,
    is_sequence_parallel: bool,
    kind: Checkpointing,
) -> f64 {
    let hidden = shape.hidden as f64;
    let scores = 5.0 * shape.heads as f64 * sequence / hidden;
    let unit = tokens * hidden;
    match (kind, is_sequence_parallel) {
        (Checkpointing::Full, _) => 2.0 * unit,
        (Checkpointing::Selective, true) => unit / tensor * 34.0,
        (Checkpointing::Selective, false) => unit * (10.0 + 24.0 / tensor),
        (Checkpointing::Off, true) => unit / tensor * (34.0 + scores),
        (Checkpointing::Off, false) => unit * (10.0 + 24.0 / tensor + scores / tensor),
    }
}

/// Bytes of an element of the residual stream.
fn residual(run: &Run) -> f64 {
    if run.weights == Format::Fp32 { 4.0 } else { 2.0 }
}

/// One block of `shape` under `run`.
pub fn block(shape: &Shape, run: &Run) -> Block {
    let (hidden, ffn) = (shape.hidden as f64, shape.ffn as f64);
    let (pass, stream) = (run.pass_bytes(), residual(run));
    let trains = run.lora.is_none();
    let tensor = run.parallel.tensor as f64;
    let replicated = if run.parallel.sequence { tensor } else { 1.0 };

    let (norms, inputs) = outside_matrices(shape, run);
    let (attention, scores, attention_passing) = attention(shape, run);
    // Width of the MLP that a token passes; each active expert also gets its own copy of the token.
    let (width, copies) = shape.experts.map_or((ffn, 0.0), |experts| {
        let active = experts.active as f64;
        (active * experts.width as f64 + experts.shared_width as f64, 2.0 * active * hidden * pass)
    });
    let mlp_tensors = match shape.family {
        // Gate, its activation, up; the product is the input of the down projection, kept when that is trained.
        Family::Llama | Family::Gemma => 3.0 + f64::from(trains),
        // ReLU's output, what dropout leaves of it, and its mask.
        Family::T5 if !shape.gated => 2.5,
        // `gelu_new` as below, times the other half, and dropout.
        Family::T5 => {
            if run.compute == Compute::Autocast {
                10.5
            } else {
                7.5
            }
        }
        // gelu_new is written as single operations: power, tanh, sum and two products keep five tensors. Under autocast
        // the power runs in fp32, and so does what follows it.
        _ if shape.composed_gelu && run.compute == Compute::Autocast => 8.0,
        _ if shape.composed_gelu => 5.0,
        // ReLU keeps its output, which the next matrix reads anyway.
        Family::Opt => 1.0,
        Family::Gpt2 | Family::Bert | Family::NeoX => 1.0 + f64::from(trains),
        Family::Unknown => 4.0,
    };
    let masks = match shape.family {
        Family::Gpt2 | Family::Bert | Family::Opt => 2.0 * hidden,
        // The decoder's blocks have three places with dropout.
        Family::T5 => 2.5 * hidden,
        _ => 0.0,
    };
    let fused = if run.compiled { 0.6 } else { 1.0 };
    let kept = (norms + inputs + masks + copies) / replicated + (attention + mlp_tensors * width * pass) / tensor;
    Block {
        kept: kept * fused + adapters(shape, run, width),
        scores: if run.checkpointing == Checkpointing::Selective { 0.0 } else { scores / tensor },
        input: stream * hidden / replicated,
        passing: 4.0 * hidden * pass + (2.0 * width * pass + attention_passing) / tensor,
    }
}

/// What norms keep, and the inputs of the four places where matrices read them.
fn outside_matrices(shape: &Shape, run: &Run) -> (f64, f64) {
    let hidden = shape.hidden as f64;
    let (pass, stream) = (run.pass_bytes(), residual(run));
    let trains = f64::from(run.lora.is_none());
    // Under autocast each matrix gets its own 16-bit copy of an fp32 input; otherwise they share it.
    let is_cast = run.compute == Compute::Autocast && stream > pass;
    match shape.family {
        Family::Llama | Family::Gemma | Family::T5 => {
            // RMSNorm in fp32: the input raised to fp32, and the normalised one for its weight's gradient.
            let weighed = if shape.wide_norms { 4.0 } else { stream };
            let norm = if shape.layer_norm { stream * hidden } else { 4.0 * hidden + trains * weighed * hidden };
            let norms = if shape.post_norms { 4.0 } else { 2.0 };
            let weighed_heads = if shape.wide_norms { 4.0 } else { pass };
            let queries = if shape.qk_norm {
                (4.0 + trains * weighed_heads) * (shape.query_width() + shape.key_width())
            } else {
                0.0
            };
            let inputs = if is_cast { 5.0 } else { 2.0 };
            (norms * norm + queries, trains * inputs * pass * hidden)
        }
        // LayerNorm keeps its input. Post-norm: the output is the residual stream, kept by the next sum for free.
        Family::Bert => (2.0 * stream * hidden, trains * if is_cast { 4.0 } else { 2.0 } * pass * hidden),
        Family::NeoX => (stream * hidden, trains * 2.0 * pass * hidden),
        Family::Opt if is_cast => (2.0 * stream * hidden, trains * 4.0 * pass * hidden),
        Family::Gpt2 | Family::Opt => (2.0 * stream * hidden, trains * 2.0 * pass * hidden),
        Family::Unknown => (8.0 * pass * hidden, 2.0 * pass * hidden),
    }
}

/// Attention: kept bytes, kept scores, and what passes by in the backward pass.
fn attention(shape: &Shape, run: &Run) -> (f64, f64, f64) {
    let (queries, keys, pass) = (shape.query_width(), shape.key_width(), run.pass_bytes());
    let row = shape.heads as f64 * run.sequence as f64;
    let trains = run.lora.is_none();
    // PyTorch's fp32 kernels know no grouped queries: scores are written out after all. No fused kernel takes keys of one
    // head beside queries of many (Falcon gives them as they are), or T5's bias, which has a gradient: what PyTorch
    // composes instead computes in fp32.
    let is_shared = shape.family == Family::NeoX && shape.kv_heads == 1 && shape.heads > 1;
    let composed = run.attention == Attention::Sdpa && (is_shared || shape.family == Family::T5);
    let falls_back =
        composed || run.attention == Attention::Sdpa && run.compute == Compute::Fp32 && shape.kv_heads < shape.heads;
    let is_eager = run.attention == Attention::Eager || falls_back || shape.writes_scores;
    // Rotary positions make new queries and keys while the joint projection stays alive behind the values.
    let joint = if shape.family == Family::NeoX && !is_eager { 2.0 * queries } else { 0.0 };
    if !is_eager {
        // FlashAttention keeps queries, keys, values, its output and one fp32 number a row.
        return (pass * (2.0 * queries + 2.0 * keys + joint) + 4.0 * shape.heads as f64, 0.0, pass * 2.0 * queries);
    }
    // Keys and values are repeated for each query head, unless there is one of them.
    let repeated = if shape.kv_heads == 1 && !falls_back { 2.0 * keys } else { 2.0 * queries };
    let kept = pass * (queries + repeated + if trains || run.compute != Compute::Half { queries } else { 0.0 });
    // GPT-J, GPT-Neo and CodeGen raise queries and keys to fp32 for their product.
    let is_raised = shape.writes_scores && shape.family == Family::NeoX && run.compute == Compute::Half;
    let kept = kept + if is_raised { 2.0 * (4.0 - pass) * queries } else { 0.0 };
    // BLOOM is as OPT but for its dropout, which its configurations leave out.
    let has_dropout = match shape.family {
        Family::Opt => !shape.writes_scores,
        family => matches!(family, Family::Gpt2 | Family::Bert | Family::T5),
    };
    let score = match (shape.family, run.compute) {
        _ if composed && !has_dropout => 4.0,
        // Softmax output, mask, and the product after dropout; under autocast the softmax is fp32.
        _ if has_dropout && run.compute == Compute::Autocast => 4.0 + 1.0 + 2.0,
        (Family::T5, Compute::Half | Compute::Master) => 4.0 + 1.0 + 2.0,
        (Family::Gpt2 | Family::Bert | Family::T5, _) => 2.0 * pass + 1.0,
        (Family::Opt, Compute::Fp32) if has_dropout => 2.0 * pass + 1.0,
        (_, Compute::Fp32) => 4.0,
        // fp32 softmax output and its 16-bit copy.
        _ => 4.0 + 2.0,
    };
    // Half of T5's blocks read the encoder's output too, with scores of their own.
    let cross = if shape.family == Family::T5 { 1.5 } else { 1.0 };
    (kept * cross, score * row * cross, 8.0 * row)
}

/// What adapters keep beside the frozen base: copies of their inputs (peft casts to the adapter's type, once for each).
fn adapters(shape: &Shape, run: &Run, width: f64) -> f64 {
    let Some(lora) = run.lora else {
        return 0.0;
    };
    let (hidden, queries) = (shape.hidden as f64, shape.query_width());
    let is_shared = run.compute == Compute::Fp32 || (run.compute == Compute::Half && !lora.is_fp32);
    let copy = if run.compute == Compute::Half && lora.is_fp32 { 4.0 } else { run.pass_bytes() };
    let (inputs, outputs) = match lora.targets {
        // One joint projection, or queries and values.
        Targets::Some if matches!(shape.family, Family::Gpt2 | Family::NeoX) => (1.0, 0.0),
        Targets::Some => (2.0, 0.0),
        Targets::Attention => (3.0, queries),
        Targets::All => (5.0, queries + width),
    };
    let inputs: f64 = if is_shared { 1.0_f64.max(inputs - 3.0) } else { inputs };
    // A shared output is kept by attention's kernel already.
    let outputs = if is_shared && lora.targets == Targets::Attention { 0.0 } else { outputs };
    copy * (inputs * hidden + outputs) + copy * 4.0 * lora.rank as f64
}

/// What is kept outside the blocks for each token: the last norm and, for BERT, the head's own layers.
pub fn around(shape: &Shape, run: &Run) -> f64 {
    let (pass, stream) = (run.pass_bytes(), residual(run));
    let tensors = if shape.family == Family::Bert { 5.0 * pass } else { 4.0 + stream + pass };
    tensors * shape.hidden as f64
}

/// The loss: bytes kept, and bytes that pass by at its peak, for the tokens of one forward pass.
///
/// Causal models: the logits are raised to fp32, log-softmax keeps one fp32 copy, and two fp32 gradients of the same
/// size are alive at the start of the backward pass: 12 bytes for each token and entry of the vocabulary.
/// A chunked loss (Liger, torchtune, Unsloth) has only a chunk of tokens' logits at a time.
pub fn loss(shape: &Shape, run: &Run) -> (f64, f64) {
    let vocab = shape.vocab as f64 / run.parallel.tensor as f64;
    let all = run.tokens();
    let chunk = if run.loss_chunk > 0 { all.min(run.loss_chunk as f64) } else { all };
    let (kept, passing) = match (shape.family, run.compute) {
        // These give their logits to the loss as they are; the others raise them to fp32 before.
        (Family::Bert | Family::T5, Compute::Half | Compute::Master) => (2.0, 4.0),
        (Family::Bert | Family::T5, Compute::Autocast) => (6.0, 4.0),
        _ => (4.0, 8.0),
    };
    let kept = kept + if shape.softcap { run.pass_bytes() } else { 0.0 };
    if run.loss_chunk > 0 {
        // Gradients of the hidden states are made with the loss, chunk by chunk.
        return (all * shape.hidden as f64 * run.pass_bytes(), chunk * vocab * (kept + passing));
    }
    (chunk * vocab * kept, chunk * vocab * passing)
}

//! Bytes of what a step keeps: weights, gradients and optimizer states, and how sharding divides them. Flows in: shape
//! and run. Flows out: bytes on one GPU. Also the formulas of other tools, for comparison and for their worked examples.

use super::run::{Compute, Format, Lora, Optimizer, Run, Step, Targets};
use super::shape::Shape;

/// What a step keeps on one GPU, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct States {
    /// Weights.
    pub weights: f64,
    /// All gradients.
    pub gradients: f64,
    /// Optimizer states with an fp32 master copy, if there is one.
    pub optimizer: f64,
    /// Copies for a moment in the optimizer's step.
    pub step: f64,
}

impl States {
    /// Weights, gradients and optimizer states together.
    pub fn total(&self) -> f64 {
        self.weights + self.gradients + self.optimizer
    }
}

/// Bytes of one weight in a format: the stored bits and the scales beside them.
///
/// Sources: bitsandbytes (blocks of 64, nested constants in blocks of 256; QLoRA paper), GPTQ and AWQ checkpoints (groups
/// of 128 with a 16-bit scale and a packed zero), llama.cpp's k-quants (bits per weight in its quantize table).
pub fn bytes_per_weight(format: Format) -> f64 {
    match format {
        Format::Fp32 => 4.0,
        Format::Bf16 => 2.0,
        Format::Fp8 | Format::Int8 => 1.0,
        Format::Int4 => 0.5 + 2.5 / 128.0,
        Format::Nf4 => 0.5 + 4.0 / 64.0,
        Format::Nf4Double => 0.5 + 1.0 / 64.0 + 4.0 / (64.0 * 256.0),
        Format::GgufQ4 => 4.85 / 8.0,
        Format::GgufQ5 => 5.7 / 8.0,
        Format::GgufQ6 => 6.5625 / 8.0,
        Format::GgufQ8 => 8.5 / 8.0,
    }
}

/// Bytes of all weights in a format. Embedding, head and norms stay at 16 bits under quantisation (bitsandbytes, GPTQ,
/// AWQ), except in llama.cpp's files, which quantise them too.
pub fn weight_bytes(shape: &Shape, format: Format) -> f64 {
    let params = shape.params();
    let matrices = (shape.layers as f64 * shape.block_matrices()).min(params);
    match format {
        Format::Fp32 | Format::Bf16 | Format::GgufQ4 | Format::GgufQ5 | Format::GgufQ6 | Format::GgufQ8 => {
            params * bytes_per_weight(format)
        }
        Format::Fp8 | Format::Int8 | Format::Int4 | Format::Nf4 | Format::Nf4Double => {
            matrices * bytes_per_weight(format) + (params - matrices) * 2.0
        }
    }
}

/// Matrices brought back to 16 bits for a moment (bitsandbytes' and GPTQ's kernels for more than one token).
/// bitsandbytes in generation quantises the head as well.
pub fn dequantised(shape: &Shape, format: Format, trains: bool) -> f64 {
    let matrix = shape.hidden as f64 * shape.ffn as f64;
    let head = match format {
        Format::Nf4 | Format::Nf4Double if !trains => shape.largest_tensor(),
        _ => 0.0,
    };
    if format.is_quantised() { 2.0 * (matrix + head) } else { 0.0 }
}

/// Parameters of the adapters: `rank * (in + out)` for each adapted matrix (LoRA paper), without trained embeddings.
pub fn lora_params(shape: &Shape, lora: &Lora) -> f64 {
    let (hidden, queries, keys, ffn) = (shape.hidden as f64, shape.query_width(), shape.key_width(), shape.ffn as f64);
    let attention = 4.0 * hidden + 2.0 * queries + 2.0 * keys;
    let sides = match lora.targets {
        Targets::Some => 2.0 * hidden + queries + keys,
        Targets::Attention => attention,
        Targets::All => attention + if shape.is_gated() { 3.0 } else { 2.0 } * (hidden + ffn),
    };
    shape.layers as f64 * lora.rank as f64 * sides
}

/// Parameters that are trained: all, or the adapters and what is trained whole beside them.
pub fn trained(shape: &Shape, run: &Run) -> f64 {
    run.lora.map_or_else(|| shape.params(), |lora| lora_params(shape, &lora) + whole_beside(shape, &lora))
}

/// Parameters of embedding and head where they are trained whole beside adapters (peft's `modules_to_save`).
fn whole_beside(shape: &Shape, lora: &Lora) -> f64 {
    let tables = if shape.tied { 1.0 } else { 2.0 };
    if lora.trains_embeddings { shape.embedding() * tables } else { 0.0 }
}

/// Bytes of one trained weight, and of its gradient. Under peft adapters are fp32 whatever the base is, while whole
/// modules keep the base's type. A master copy makes fp32 gradients where they are not divided (DeepSpeed's bf16
/// optimizer, Megatron's main gradients: 18 bytes a parameter in all).
fn widths(shape: &Shape, run: &Run) -> (f64, f64) {
    match (run.compute, &run.lora) {
        (compute, Some(lora)) => {
            let adapter = if compute == Compute::Half && !lora.is_fp32 { 2.0 } else { 4.0 };
            let base = if run.weights == Format::Fp32 { 4.0 } else { 2.0 };
            let (adapters, whole) = (lora_params(shape, lora), whole_beside(shape, lora));
            let width = (adapters * adapter + whole * base) / (adapters + whole).max(1.0);
            (width, width)
        }
        (Compute::Fp32 | Compute::Autocast, None) => (4.0, 4.0),
        (Compute::Half, None) => (2.0, 2.0),
        (Compute::Master, None) => (2.0, if run.parallel.zero >= 2 { 2.0 } else { 4.0 }),
    }
}

/// Bytes of one gradient.
pub fn gradient_width(shape: &Shape, run: &Run) -> f64 {
    widths(shape, run).1
}

/// Bytes of the base weights as the run keeps them. peft's `prepare_model_for_kbit_training` raises what is not
/// quantised (embedding, head, norms) to fp32.
pub fn base_bytes(shape: &Shape, run: &Run) -> f64 {
    let raises = run.weights.is_quantised() && run.lora.is_some_and(|lora| lora.is_fp32);
    let rest = shape.params() - (shape.layers as f64 * shape.block_matrices()).min(shape.params());
    weight_bytes(shape, run.weights) + if raises { 2.0 * rest } else { 0.0 }
}

/// Optimizer bytes for one trained parameter whose gradient has `width` bytes.
///
/// Sources: ZeRO paper (12 bytes for mixed-precision Adam: fp32 copy and two moments), Transformers' guide on training on
/// one GPU (8 for Adam, 2 for 8-bit Adam), Adafactor paper (rows and columns, next to nothing), GaLore paper, Muon.
///
/// `side` is the usual side of a matrix; `tables` the share of trained parameters that are embeddings.
pub fn optimizer_bytes(optimizer: Optimizer, compute: Compute, width: f64, side: f64, tables: f64) -> f64 {
    let master = if compute == Compute::Master { 4.0 } else { 0.0 };
    let state = if compute == Compute::Master { 4.0 } else { width };
    master
        + match optimizer {
            Optimizer::None | Optimizer::Sgd => 0.0,
            Optimizer::Adam(_) => 2.0 * state,
            // Two bytes, and an fp32 scale per moment for each block of 256; embeddings keep fp32 states.
            Optimizer::Adam8bit => (2.0 + 8.0 / 256.0) * (1.0 - tables) + 8.0 * tables,
            Optimizer::Adafactor => 4.0 / side.max(1.0),
            Optimizer::Momentum | Optimizer::Muon => state,
            Optimizer::Galore(rank) => 2.0 * state * (f64::from(rank) / side.max(1.0)).min(1.0),
        }
}

/// What the job keeps on its fullest GPU.
///
/// ZeRO paper: stage 1 divides optimizer states over the data-parallel GPUs, stage 2 gradients too, stage 3 weights too.
/// Tensor, pipeline and expert parallelism divide all three (Megatron-LM).
pub fn states(shape: &Shape, run: &Run) -> States {
    let parallel = &run.parallel;
    let split = model_split(shape, run);
    let shards = parallel.data as f64 * parallel.context as f64;
    let stage = |from: u8| if parallel.zero >= from { shards } else { 1.0 };
    let trained = trained(shape, run);
    let (weight_width, width) = widths(shape, run);
    let base = base_bytes(shape, run);
    let adapters = if run.lora.is_some() { trained * weight_width } else { 0.0 };
    let whole = run
        .lora
        .map_or_else(|| shape.embedding() * if shape.tied { 1.0 } else { 2.0 }, |lora| whole_beside(shape, &lora));
    let tables = (whole / trained.max(1.0)).min(1.0);
    let optimizer = trained * optimizer_bytes(run.optimizer, run.compute, weight_width, shape.hidden as f64, tables);
    let largest = shape.largest_tensor().min(trained);
    let step = match run.optimizer {
        Optimizer::Adam(Step::Foreach) | Optimizer::Muon => trained * width.min(4.0) / split / stage(1),
        Optimizer::Adam(Step::Single) | Optimizer::Galore(_) => 2.0 * largest * width / stage(1),
        // In fp32, of one tensor at a time: the gradient, its square, the update and the weight.
        Optimizer::Adafactor => 4.0 * largest * 4.0 / stage(1),
        // Fused kernels and in-place updates need nothing; 8-bit Adam works in blocks.
        Optimizer::Adam(Step::Fused) | Optimizer::Adam8bit | Optimizer::Sgd | Optimizer::Momentum | Optimizer::None => {
            0.0
        }
    };
    let on_device = |is_away: bool, bytes: f64| if is_away { 0.0 } else { bytes };
    let largest_gradient = shape.largest_tensor() * width;
    let gradients = trained * width / split / stage(2);
    States {
        weights: on_device(run.offload.weights, (base + adapters) / split / stage(3)),
        gradients: if run.steps_in_backward {
            largest_gradient.min(gradients)
        } else {
            // With offload, gradients leave as they come; a bucket of them is counted among the buffers.
            on_device(run.offload.optimizer && parallel.zero >= 2, gradients)
        },
        optimizer: on_device(run.offload.optimizer, optimizer / split / stage(1)),
        step: on_device(run.offload.optimizer || run.steps_in_backward, step),
    }
}

/// Into how many parts tensor, pipeline and expert parallelism cut the weights, for the fullest GPU.
pub fn model_split(shape: &Shape, run: &Run) -> f64 {
    let parallel = &run.parallel;
    let stages = parallel.pipeline.min(shape.layers).max(1);
    let fullest = shape.layers.div_ceil(stages) as f64;
    let embeddings = shape.embedding() * if shape.tied || stages > 1 { 1.0 } else { 2.0 };
    let blocks = shape.block_matrices() * fullest;
    let share = (blocks + embeddings) / (shape.block_matrices() * shape.layers as f64 + embeddings);
    let experts = parallel.expert.min(shape.experts.map_or(1, |experts| experts.count)) as f64;
    parallel.tensor as f64 * experts / if stages > 1 { share.min(1.0) } else { 1.0 }
}

/// ZeRO's table for mixed-precision Adam: bytes on each of `gpus` GPUs for `params` parameters (Rajbhandari et al.).
pub fn zero_paper(params: f64, gpus: f64, stage: u8) -> f64 {
    let (weights, gradients, optimizer) = (2.0 * params, 2.0 * params, 12.0 * params);
    match stage {
        0 => weights + gradients + optimizer,
        1 => weights + gradients + optimizer / gpus,
        2 => weights + (gradients + optimizer) / gpus,
        _ => (weights + gradients + optimizer) / gpus,
    }
}

/// DeepSpeed's `estimate_zero2_model_states_mem_needs`: bytes on each GPU.
pub fn deepspeed_zero2(params: f64, gpus: f64, offloads: bool) -> f64 {
    if offloads { 2.0 * params } else { 4.0 * params + 16.0 * params / gpus }
}

/// DeepSpeed's `estimate_zero3_model_states_mem_needs`: bytes on each GPU; `largest` is the largest layer's parameters.
pub fn deepspeed_zero3(params: f64, largest: f64, gpus: f64, offload: super::run::Offload) -> f64 {
    let gathered = 4.0 * largest;
    if offload.weights {
        gathered
    } else if offload.optimizer {
        gathered + 2.0 * params / gpus
    } else {
        gathered + 18.0 * params / gpus
    }
}

/// What `accelerate estimate-memory` says for training with Adam: four times the weights.
pub fn accelerate_rule(params: f64, bytes_per_weight: f64) -> f64 {
    4.0 * params * bytes_per_weight
}

/// The rule of thumb "16 bytes a parameter".
pub fn sixteen_bytes_rule(params: f64) -> f64 {
    16.0 * params
}

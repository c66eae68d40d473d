//! A job as a person types it: plain words and numbers from a command line, an annotation or a manifest. [`super::job`]
//! checks them.
//!
//! `None` means "not said": a default is taken and named among the assumptions, or the field's absence is an error.

use serde::{Deserialize, Serialize};

/// A job in plain words and numbers. Every field may be left out but the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Options {
    /// Name of a known model (`llama3.1-8b`, `Qwen/Qwen2.5-7B-Instruct`, `resnet50`).
    pub model: Option<String>,
    /// Text of the model's `config.json`; it wins over the name.
    pub config: Option<String>,
    /// `train`, `generate`, `serve`. Default: `train`.
    pub task: Option<String>,
    /// `full`, `lora`, `qlora`. Default: `full`.
    pub method: Option<String>,
    /// `fp32`, `amp` (autocast over fp32 weights), `bf16` (everything in 16 bits), `master` (16 bits with an fp32 master
    /// copy: DeepSpeed, Megatron). Default: `amp` for training, `bf16` else.
    pub precision: Option<String>,
    /// Format of the stored weights: `fp32`, `bf16`, `fp8`, `int8`, `gptq`, `awq`, `nf4`, `q4_k` ….
    pub weights: Option<String>,
    /// `adamw`, `adamw_fused`, `adamw_single`, `adamw_8bit`, `paged_adamw_8bit`, `adafactor`, `sgd`, `sgd_momentum`, `lion`, `muon`,
    /// `galore`. Default: `adamw`.
    pub optimizer: Option<String>,
    /// Samples of one forward pass on one GPU. Default: 1.
    pub batch: Option<u64>,
    /// Tokens of one sample; of prompt and answer together for a server.
    pub sequence: Option<u64>,
    /// Forward passes per optimizer step. Default: 1.
    pub accumulation: Option<u64>,
    /// `eager`, `sdpa`, `flash`. Default: `sdpa`.
    pub attention: Option<String>,
    /// `none`, `selective`, `full`. Default: `none`.
    pub checkpointing: Option<String>,
    /// Tokens whose logits exist at once; 0 for all.
    pub loss_chunk: Option<u64>,
    /// Rank of adapters. Default: 16.
    pub lora_rank: Option<u64>,
    /// `attention`, `all`, or `some` (queries and values alone). Default: `attention`.
    pub lora_targets: Option<String>,
    /// Embedding and head are trained beside the adapters.
    pub lora_embeddings: bool,
    /// GPUs that hold copies or shards of the whole model. Default: 1.
    pub data_parallel: Option<u64>,
    /// ZeRO stage 0 to 3; FSDP is 3. Default: 0.
    pub zero: Option<u8>,
    /// Tensor-parallel degree. Default: 1.
    pub tensor_parallel: Option<u64>,
    /// Sequence parallelism beside tensor parallelism.
    pub sequence_parallel: bool,
    /// Pipeline stages. Default: 1.
    pub pipeline_parallel: Option<u64>,
    /// Context-parallel degree. Default: 1.
    pub context_parallel: Option<u64>,
    /// Expert-parallel degree. Default: 1.
    pub expert_parallel: Option<u64>,
    /// Optimizer states in host memory.
    pub offload_optimizer: bool,
    /// Weights in host memory too.
    pub offload_weights: bool,
    /// The model is compiled.
    pub compile: bool,
    /// Samples differ in length and are not packed.
    pub varying_lengths: bool,
    /// `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.
    pub expandable_segments: bool,
    /// The model code is not Hugging Face's of today: activations are less certain.
    pub other_code: bool,
    /// Tokens written after the prompt. Default: 256 for `generate`.
    pub new_tokens: Option<u64>,
    /// Generation keeps no keys and values.
    pub no_cache: bool,
    /// Share of the card a server takes. Default: 0.9.
    pub utilization: Option<f64>,
    /// Tokens of one pass of a server. Default: 8,192.
    pub batched_tokens: Option<u64>,
    /// Sequences at once in a server. Default: 256.
    pub sequences: Option<u64>,
    /// Format of keys and values: `bf16`, `fp8`. Default: `bf16`.
    pub kv_cache: Option<String>,
    /// Side of images in pixels.
    pub image_size: Option<u64>,
    /// The card, as in the table (`H200`, `A100-80GB`, `H100-80GB MIG 3g.40gb`).
    pub gpu: Option<String>,
    /// What the job may take, in GiB, where it is not the card's.
    pub capacity_gib: Option<f64>,
}

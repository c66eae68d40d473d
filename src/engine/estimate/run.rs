//! How a model runs: everything beside its shape that decides its memory. Flows in: words and numbers from options or a
//! manifest. Flows out: a checked [`Run`]; what contradicts itself is an error that names the field.

use super::{Error, within};

/// What the job does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Task {
    /// Forward, backward and optimizer step.
    Train,
    /// Plain generation or forward passes in one process.
    Generate {
        /// Tokens written after the prompt; 0 for a forward pass alone.
        new_tokens: u64,
        /// Keys and values are kept between tokens.
        keeps_cache: bool,
    },
    /// A server that takes a share of the card at start and pages keys and values inside it.
    Serve {
        /// Share of the card it may fill: vLLM's `gpu_memory_utilization`.
        utilization: f64,
        /// Tokens of one forward pass: vLLM's `max_num_batched_tokens`.
        batched_tokens: u64,
        /// Sequences at once: vLLM's `max_num_seqs`.
        sequences: u64,
    },
}

/// How weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the formats' own")]
pub enum Format {
    Fp32,
    Bf16,
    Fp8,
    Int8,
    /// GPTQ or AWQ with groups of 128.
    Int4,
    /// bitsandbytes NF4, one fp32 constant per 64 weights.
    Nf4,
    /// NF4 with its constants quantised again.
    Nf4Double,
    /// llama.cpp's `Q4_K`.
    GgufQ4,
    /// llama.cpp's `Q5_K`.
    GgufQ5,
    /// llama.cpp's `Q6_K`.
    GgufQ6,
    /// llama.cpp's `Q8_0`.
    GgufQ8,
}

impl Format {
    /// The words that [`Format::parse`] knows, for a message.
    pub const WORDS: &str = "fp32, bf16, fp16, fp8, int8, int4, gptq, awq, nf4, nf4-dq, q4_k, q5_k, q6_k, q8_0";

    /// The format that people call `word`.
    pub fn parse(field: &'static str, word: &str) -> Result<Self, Error> {
        let plain = word.trim().to_lowercase().replace('_', "-");
        Ok(match plain.as_str() {
            "fp32" | "float32" | "float" | "f32" => Self::Fp32,
            "bf16" | "bfloat16" | "fp16" | "float16" | "half" | "f16" => Self::Bf16,
            "fp8" | "float8" | "fp8-e4m3" | "compressed-tensors" => Self::Fp8,
            "int8" | "8bit" | "8-bit" | "w8a8" | "gptq-int8" => Self::Int8,
            "int4" | "4bit" | "4-bit" | "gptq" | "awq" | "gptq-int4" | "gptq-marlin" | "awq-marlin" | "w4a16" => {
                Self::Int4
            }
            "nf4" | "bnb" | "bitsandbytes" | "bnb-nf4" | "fp4" => Self::Nf4,
            "nf4-dq" | "bnb-nf4-dq" => Self::Nf4Double,
            "q4-k" | "q4-k-m" | "q4-k-s" | "q4-0" | "gguf" => Self::GgufQ4,
            "q5-k" | "q5-k-m" | "q5-k-s" => Self::GgufQ5,
            "q6-k" => Self::GgufQ6,
            "q8-0" => Self::GgufQ8,
            _ => {
                let value = word.chars().take(40).collect();
                return Err(Error::Unknown { field, value, known: Self::WORDS });
            }
        })
    }

    /// Less than 16 bits a weight?
    pub fn is_quantised(self) -> bool {
        !matches!(self, Self::Fp32 | Self::Bf16)
    }
}

/// In which precision the passes are computed and the states kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compute {
    /// Everything in fp32 (TF32 changes no size).
    Fp32,
    /// Everything in 16 bits, states too: `model.to(bfloat16)`.
    Half,
    /// fp32 weights, passes under autocast: `torch.autocast`, HF `bf16=True` or `fp16=True`.
    Autocast,
    /// 16-bit weights and gradients with an fp32 master copy in the optimizer: DeepSpeed, Megatron, FSDP mixed precision.
    Master,
}

/// Optimizer, as far as its state counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optimizer {
    /// No optimizer: nothing is trained.
    None,
    /// Adam or AdamW.
    Adam(Step),
    /// Adam with 8-bit states.
    Adam8bit,
    /// Adafactor: factored second moments, no first.
    Adafactor,
    /// SGD without momentum.
    Sgd,
    /// SGD with momentum, Lion.
    Momentum,
    /// Muon: one momentum for matrices.
    Muon,
    /// GaLore: Adam on a projection of the given rank.
    Galore(u32),
}

/// How PyTorch's optimizer walks over the parameters; it decides the temporaries of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// All parameters at once, PyTorch's default on a GPU: one more copy of them for a moment.
    Foreach,
    /// One kernel, no copy.
    Fused,
    /// One tensor after the other.
    Single,
}

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// Scores of sequence times sequence are written out.
    Eager,
    /// PyTorch's `scaled_dot_product_attention`.
    Sdpa,
    /// FlashAttention.
    Flash,
}

/// What is kept for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checkpointing {
    /// Everything.
    Off,
    /// All but the scores of attention (Korthikanti's selective recomputation).
    Selective,
    /// The input of each block alone.
    Full,
}

/// Low-rank adapters on frozen weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lora {
    /// Rank.
    pub rank: u64,
    /// Which matrices have an adapter.
    pub targets: Targets,
    /// Embedding and head are trained whole beside the adapters.
    pub trains_embeddings: bool,
    /// The adapters are fp32 although the base is not: peft's default; it keeps fp32 copies of their inputs.
    pub is_fp32: bool,
}

/// Matrices of a block that have an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Targets {
    /// Queries and values, or the joint projection: many tools' default.
    Some,
    /// The four of attention.
    Attention,
    /// All linear layers.
    All,
}

/// How the work is split over GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parallel {
    /// Data-parallel degree.
    pub data: u64,
    /// ZeRO stage; FSDP's full shard is 3, its shard-grad-op is 2.
    pub zero: u8,
    /// Tensor-parallel degree.
    pub tensor: u64,
    /// Sequence parallelism beside tensor parallelism.
    pub sequence: bool,
    /// Pipeline stages.
    pub pipeline: u64,
    /// Context-parallel degree.
    pub context: u64,
    /// Expert-parallel degree.
    pub expert: u64,
}

impl Parallel {
    /// One GPU.
    pub const ONE: Self = Self { data: 1, zero: 0, tensor: 1, sequence: false, pipeline: 1, context: 1, expert: 1 };

    /// Does more than one GPU take part?
    pub fn is_split(&self) -> bool {
        self.data > 1 || self.tensor > 1 || self.pipeline > 1 || self.context > 1 || self.expert > 1
    }
}

/// What lives in host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Optimizer states, and with them the fp32 copy and gradients after each step.
    pub optimizer: bool,
    /// Weights too.
    pub weights: bool,
}

/// How a model runs. [`Run::train`] and [`Run::generate`] give what most people mean.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own, all 64 combinations occur")]
pub struct Run {
    /// What it does.
    pub task: Task,
    /// How weights are stored; for training the frozen ones under LoRA.
    pub weights: Format,
    /// Precision of passes and states.
    pub compute: Compute,
    /// Optimizer.
    pub optimizer: Optimizer,
    /// Samples of one forward pass on one GPU.
    pub batch: u64,
    /// Tokens of one sample.
    pub sequence: u64,
    /// Forward passes per optimizer step.
    pub accumulation: u64,
    /// Attention.
    pub attention: Attention,
    /// Checkpointing.
    pub checkpointing: Checkpointing,
    /// Tokens whose logits exist at once; 0 for all of them.
    pub loss_chunk: u64,
    /// Adapters.
    pub lora: Option<Lora>,
    /// Split over GPUs.
    pub parallel: Parallel,
    /// What lives in host memory.
    pub offload: Offload,
    /// The forward pass is compiled: single operations are fused and fewer tensors kept.
    pub compiled: bool,
    /// Each gradient is used and freed in the backward pass.
    pub steps_in_backward: bool,
    /// Samples differ in length and are not packed: freed blocks rarely fit again.
    pub varies: bool,
    /// `expandable_segments:True`: freed memory of any size is used again.
    pub expandable: bool,
    /// The model is made with random weights on the GPU, where a tied head exists for a moment.
    pub is_made_on_device: bool,
    /// Under ZeRO 3 or FSDP each GPU loads the whole model before it is divided (no meta device).
    pub loads_whole: bool,
    /// Bytes of one element of keys and values when serving.
    pub kv_bytes: f64,
    /// The GPU, as people call it; it decides the context's size and what a share of it is.
    pub card: Option<&'static super::cards::Card>,
    /// The framework is not PyTorch, or the model code is not Hugging Face's: activations are less certain.
    pub is_foreign: bool,
}

impl Run {
    /// Full training on one GPU: AdamW, 16-bit passes over fp32 weights, one sample of 2,048 tokens.
    pub fn train() -> Self {
        Self {
            task: Task::Train,
            weights: Format::Fp32,
            compute: Compute::Autocast,
            optimizer: Optimizer::Adam(Step::Foreach),
            batch: 1,
            sequence: 2048,
            accumulation: 1,
            attention: Attention::Sdpa,
            checkpointing: Checkpointing::Off,
            loss_chunk: 0,
            lora: None,
            parallel: Parallel::ONE,
            offload: Offload::default(),
            compiled: false,
            steps_in_backward: false,
            varies: false,
            expandable: false,
            is_made_on_device: false,
            loads_whole: false,
            kv_bytes: 2.0,
            card: None,
            is_foreign: false,
        }
    }

    /// Generation of `new_tokens` with 16-bit weights on one GPU.
    pub fn generate(new_tokens: u64) -> Self {
        Self {
            task: Task::Generate { new_tokens, keeps_cache: true },
            weights: Format::Bf16,
            compute: Compute::Half,
            optimizer: Optimizer::None,
            ..Self::train()
        }
    }

    /// Bytes of an element of the passes.
    pub fn pass_bytes(&self) -> f64 {
        if self.compute == Compute::Fp32 { 4.0 } else { 2.0 }
    }

    /// Tokens of one forward pass on one GPU.
    pub fn tokens(&self) -> f64 {
        self.batch as f64 * self.sequence as f64 / self.parallel.context.max(1) as f64
    }

    /// Rejects what no machine has and what contradicts itself.
    pub fn check(&self) -> Result<(), Error> {
        let clash = |field, other, why| Err(Error::Contradiction { field, other, why });
        within("batch", self.batch as f64, 1.0, 1e7)?;
        within("sequence", self.sequence as f64, 1.0, 1e9)?;
        within("accumulation", self.accumulation as f64, 1.0, 1e6)?;
        within("loss chunk", self.loss_chunk as f64, 0.0, 1e12)?;
        within("kv bytes", self.kv_bytes, 0.25, 4.0)?;
        let Parallel { data, zero, tensor, sequence, pipeline, context, expert } = self.parallel;
        for (field, degree) in [
            ("data parallel", data),
            ("tensor parallel", tensor),
            ("pipeline parallel", pipeline),
            ("context parallel", context),
            ("expert parallel", expert),
        ] {
            within(field, degree as f64, 1.0, 1e6)?;
        }
        within("ZeRO stage", f64::from(zero), 0.0, 3.0)?;
        if sequence && tensor == 1 {
            return clash("sequence parallel", "tensor parallel", "it splits the norms over the tensor-parallel GPUs");
        }
        if let Some(lora) = self.lora {
            within("LoRA rank", lora.rank as f64, 1.0, 65_536.0)?;
        }
        match self.task {
            Task::Train => {
                if self.optimizer == Optimizer::None {
                    return clash("optimizer", "task", "training needs one");
                }
                if self.weights.is_quantised() && self.lora.is_none() {
                    return clash("weights", "LoRA", "quantised weights cannot be trained; train an adapter on them");
                }
                if self.compute == Compute::Half && self.weights == Format::Fp32 {
                    return clash(
                        "weights",
                        "precision",
                        "16-bit training stores 16-bit weights; for fp32 weights use amp",
                    );
                }
                if self.compute == Compute::Fp32 && self.weights == Format::Bf16 {
                    return clash("weights", "precision", "fp32 training cannot start from weights kept in 16 bits");
                }
                if self.offload.weights && zero < 3 && data > 1 {
                    return clash("offload weights", "ZeRO stage", "only stage 3 can keep weights in host memory");
                }
                if self.steps_in_backward && self.accumulation > 1 {
                    return clash("step in backward", "accumulation", "a gradient that is freed cannot be added to");
                }
            }
            Task::Generate { new_tokens, .. } => within("new tokens", new_tokens as f64, 0.0, 1e9)?,
            Task::Serve { utilization, batched_tokens, sequences } => {
                within("gpu_memory_utilization", utilization, 0.01, 1.0)?;
                within("max_num_batched_tokens", batched_tokens as f64, 1.0, 1e9)?;
                within("max_num_seqs", sequences as f64, 1.0, 1e7)?;
            }
        }
        if self.task != Task::Train && self.lora.is_some_and(|lora| lora.trains_embeddings) {
            return clash("train embeddings", "task", "nothing is trained");
        }
        Ok(())
    }
}

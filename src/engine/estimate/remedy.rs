//! The things that can be changed about a job, what they are called and what they cost. Flows in: a kind. Flows out:
//! words for a person and a number for sorting.

/// A thing to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Allocator settings against fragmentation.
    Allocator,
    /// A fused optimizer step without temporaries.
    FusedStep,
    /// Attention that does not write scores out.
    Attention,
    /// A loss that has only some tokens' logits at a time.
    ChunkedLoss,
    /// 16-bit passes over fp32 weights.
    Bf16,
    /// Smaller micro-batches, as many samples a step.
    Accumulate,
    /// Recompute blocks in the backward pass.
    Checkpointing,
    /// 8-bit optimizer states.
    Adam8bit,
    /// Everything in 16 bits.
    PureBf16,
    /// Divide states and weights over GPUs.
    Zero,
    /// Split matrices over GPUs.
    Tensor,
    /// Optimizer states in host memory.
    Offload,
    /// Train adapters alone.
    Lora,
    /// Train adapters on 4-bit weights.
    Qlora,
    /// Fewer bits for the weights of a server.
    QuantisedWeights,
    /// Fewer bits for keys and values.
    QuantisedCache,
    /// Shorter sequences or fewer at once.
    ShorterContext,
    /// Another share of the card for a pool.
    Utilization,
}

impl Kind {
    /// In a few words, for a list.
    pub fn title(self) -> &'static str {
        match self {
            Self::Allocator => "let the allocator grow its segments",
            Self::FusedStep => "fused optimizer step",
            Self::Attention => "flash or memory-efficient attention",
            Self::ChunkedLoss => "chunked cross-entropy",
            Self::Bf16 => "BF16 autocast",
            Self::Accumulate => "smaller micro-batch with gradient accumulation",
            Self::Checkpointing => "gradient checkpointing",
            Self::Adam8bit => "8-bit optimizer",
            Self::PureBf16 => "weights, gradients and states in BF16",
            Self::Zero => "divide states and weights over GPUs (ZeRO 3, FSDP)",
            Self::Tensor => "split matrices over GPUs (tensor parallel)",
            Self::Offload => "optimizer states in host memory",
            Self::Lora => "LoRA adapters",
            Self::Qlora => "LoRA on 4-bit weights (QLoRA)",
            Self::QuantisedWeights => "4-bit weights",
            Self::QuantisedCache => "8-bit keys and values",
            Self::ShorterContext => "half the context",
            Self::Utilization => "another share of the card for the pool",
        }
    }

    /// What it costs: the usual change of time, and what else a person should know.
    pub fn price(self) -> &'static str {
        match self {
            Self::Allocator => "no time to speak of",
            Self::FusedStep => "none; a little faster",
            Self::Attention => "none; faster for long sequences",
            Self::ChunkedLoss => "0 to 5 % slower, often faster",
            Self::Bf16 => "none on Ampere and newer: about twice as fast",
            Self::Accumulate => "5 to 20 % slower: smaller kernels",
            Self::Checkpointing => "25 to 35 % slower: one more forward pass",
            Self::Adam8bit => "0 to 5 % slower; same results in practice",
            Self::PureBf16 => "faster; small updates may be lost, watch the loss",
            Self::Zero => "5 to 30 % slower, by how fast the GPUs are linked; needs more GPUs",
            Self::Tensor => "10 to 30 % slower inside one host, far more across hosts; needs more GPUs",
            Self::Offload => "1.5 to 4 times slower; needs as much host memory",
            Self::Lora => "faster; learns less than full training",
            Self::Qlora => "20 to 40 % slower than LoRA; learns less than full training",
            Self::QuantisedWeights | Self::QuantisedCache => "about as fast; answers change a little",
            Self::ShorterContext => "long requests are refused or cut",
            Self::Utilization => "fewer sequences at once",
        }
    }

    /// Does it leave results and the number of GPUs as they are, at a price in time that people pay without asking?
    pub fn is_mild(self) -> bool {
        match self {
            Self::Allocator
            | Self::FusedStep
            | Self::Attention
            | Self::ChunkedLoss
            | Self::Bf16
            | Self::Accumulate
            | Self::Checkpointing
            | Self::Adam8bit => true,
            Self::PureBf16
            | Self::Zero
            | Self::Tensor
            | Self::Offload
            | Self::Lora
            | Self::Qlora
            | Self::QuantisedWeights
            | Self::QuantisedCache
            | Self::ShorterContext
            | Self::Utilization => false,
        }
    }

    /// Price as one number: 1 is a run that takes twice as long, or as much regret.
    pub fn cost(self) -> f64 {
        match self {
            Self::Allocator | Self::FusedStep | Self::Attention => 0.02,
            Self::ChunkedLoss | Self::Bf16 => 0.04,
            Self::Adam8bit => 0.08,
            Self::Accumulate => 0.12,
            Self::QuantisedCache => 0.15,
            Self::Utilization | Self::ShorterContext => 0.25,
            Self::Checkpointing | Self::PureBf16 | Self::QuantisedWeights => 0.3,
            Self::Zero | Self::Tensor => 0.5,
            Self::Lora => 0.7,
            Self::Qlora => 0.9,
            Self::Offload => 1.5,
        }
    }
}

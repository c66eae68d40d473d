//! What a transformer is made of: the numbers that decide its memory. Flows in: a table or a config.json. Flows out:
//! parameter counts by kind. No guess is made here without being named in [`Shape::doubts`].

use super::{Error, within};

/// How a block is built, as far as it decides which tensors are kept for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// RMSNorm, rotary positions, gated MLP: Llama, Mistral, Qwen, Yi, Baichuan, Phi-3, DeepSeek and most since 2023.
    Llama,
    /// As Llama, with norm weights computed in fp32 and a wide gated GELU MLP.
    Gemma,
    /// GPT-2: LayerNorm, learned positions, GELU composed of single operations, dropout.
    Gpt2,
    /// BERT, RoBERTa and their like: post-norm encoder, dropout, trained on masked tokens or a classification.
    Bert,
    /// OPT and BLOOM: pre-norm, ReLU or GELU, learned or linear-bias positions.
    Opt,
    /// GPT-NeoX, Pythia, GPT-J, Falcon, StableLM-alpha, Phi-1: attention and MLP side by side, plain GELU.
    NeoX,
    /// T5 and its like: encoder and decoder, relative positions.
    T5,
    /// Not known. Counted like the heaviest of the others, with a wide interval.
    Unknown,
}

/// Mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: u64,
    /// Experts that see each token.
    pub active: u64,
    /// Width of one expert's MLP.
    pub width: u64,
    /// Width of the MLP every token passes beside them; 0 for none.
    pub shared_width: u64,
    /// Leading layers that have the plain MLP instead.
    pub dense_layers: u64,
}

/// The numbers of a transformer.
#[expect(clippy::struct_excessive_bools, reason = "each is a property of its own, as config files have them")]
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// What people call it.
    pub name: String,
    /// How its blocks are built.
    pub family: Family,
    /// Blocks.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Attention heads.
    pub heads: u64,
    /// Heads of keys and values; fewer than `heads` with grouped queries.
    pub kv_heads: u64,
    /// Width of one head.
    pub head_dim: u64,
    /// Width of the MLP.
    pub ffn: u64,
    /// Entries of the vocabulary.
    pub vocab: u64,
    /// Positions with a learned embedding; 0 for none.
    pub positions: u64,
    /// The head uses the embedding's weights.
    pub tied: bool,
    /// Queries and keys are normalised before attention.
    pub qk_norm: bool,
    /// Queries, keys and values have a bias.
    pub qkv_bias: bool,
    /// GELU is written as single operations (`gelu_new`), whose tensors are all kept.
    pub composed_gelu: bool,
    /// Norms of a gated block are LayerNorm: one kernel that keeps its input and raises nothing to fp32.
    pub layer_norm: bool,
    /// What attention and MLP give is normalised too: two more norms in a block (Gemma 2 and 3).
    pub post_norms: bool,
    /// The MLP of a family that has none otherwise has a gate (T5 v1.1, Flan-T5, mT5).
    pub gated: bool,
    /// Its code writes attention's scores out whatever kernel is asked for: GPT-J, GPT-Neo, CodeGen, BLOOM, DeBERTa.
    pub writes_scores: bool,
    /// Norms multiply by their weight in fp32, so the normalised input is kept in fp32 (OLMo 2, Gemma).
    pub wide_norms: bool,
    /// Logits are squeezed by a tanh, whose result is kept (Gemma 2).
    pub softcap: bool,
    /// Mixture of experts, if it is one.
    pub experts: Option<Experts>,
    /// Bytes of keys and values per token and layer at 16 bits, where not `4 * kv_heads * head_dim` (latent attention).
    pub kv_bytes_per_token: Option<u64>,
    /// Parameters of a vision tower beside the text model; 0 for none.
    pub tower: u64,
    /// Parameters as published, when the shape's own count is not to be trusted.
    pub published: Option<u64>,
    /// What was assumed about the shape, in sentences. Each widens the interval.
    pub doubts: Vec<String>,
}

impl Shape {
    /// A shape of the Llama kind with grouped queries; the rest follows from these.
    #[expect(clippy::too_many_arguments, reason = "one row of a config.json, in its order")]
    pub fn llama(
        name: &str,
        layers: u64,
        hidden: u64,
        heads: u64,
        kv_heads: u64,
        ffn: u64,
        vocab: u64,
        tied: bool,
    ) -> Self {
        Self {
            name: name.to_owned(),
            family: Family::Llama,
            layers,
            hidden,
            heads,
            kv_heads,
            head_dim: hidden.checked_div(heads).unwrap_or(0),
            ffn,
            vocab,
            positions: 0,
            tied,
            qk_norm: false,
            qkv_bias: false,
            composed_gelu: false,
            layer_norm: false,
            post_norms: false,
            gated: false,
            writes_scores: false,
            wide_norms: false,
            softcap: false,
            experts: None,
            kv_bytes_per_token: None,
            tower: 0,
            published: None,
            doubts: Vec::new(),
        }
    }

    /// Rejects numbers that no model has.
    pub fn check(&self) -> Result<(), Error> {
        within("layers", self.layers as f64, 1.0, 10_000.0)?;
        within("hidden", self.hidden as f64, 1.0, 1e6)?;
        within("heads", self.heads as f64, 1.0, 1e5)?;
        within("kv_heads", self.kv_heads as f64, 1.0, 1e5)?;
        within("head_dim", self.head_dim as f64, 1.0, 1e5)?;
        within("ffn", self.ffn as f64, 1.0, 1e8)?;
        within("vocab", self.vocab as f64, 1.0, 1e8)?;
        within("positions", self.positions as f64, 0.0, 1e9)?;
        within("tower", self.tower as f64, 0.0, 1e13)?;
        within("params", self.published.unwrap_or(1) as f64, 1.0, 1e14)?;
        if self.kv_heads > self.heads {
            return Err(Error::Contradiction {
                field: "kv_heads",
                other: "heads",
                why: "queries share keys, so there cannot be more heads of keys than of queries",
            });
        }
        if let Some(experts) = self.experts {
            within("experts", experts.count as f64, 1.0, 1e5)?;
            within("expert width", experts.width as f64, 1.0, 1e8)?;
            within("shared expert width", experts.shared_width as f64, 0.0, 1e8)?;
            if experts.active > experts.count || experts.active == 0 {
                return Err(Error::Contradiction {
                    field: "experts per token",
                    other: "experts",
                    why: "a token passes at least one expert and at most all",
                });
            }
        }
        Ok(())
    }

    /// Does the MLP have a gate beside its up and down projections?
    pub fn is_gated(&self) -> bool {
        self.gated || matches!(self.family, Family::Llama | Family::Gemma)
    }

    /// Width of all query heads together.
    pub fn query_width(&self) -> f64 {
        self.heads as f64 * self.head_dim as f64
    }

    /// Width of all key heads together.
    pub fn key_width(&self) -> f64 {
        self.kv_heads as f64 * self.head_dim as f64
    }

    /// Parameters of the matrices of one average block: attention and MLP, all experts.
    pub fn block_matrices(&self) -> f64 {
        let hidden = self.hidden as f64;
        let attention = 2.0 * hidden * (self.query_width() + self.key_width());
        let matrices = if self.is_gated() { 3.0 } else { 2.0 };
        let dense = matrices * hidden * self.ffn as f64;
        let mlp = self.experts.map_or(dense, |experts| {
            let routed = experts.count as f64 * (matrices * experts.width as f64 + 1.0);
            let sparse = hidden * (routed + matrices * experts.shared_width as f64);
            let share = (experts.dense_layers as f64 / self.layers as f64).min(1.0);
            dense * share + sparse * (1.0 - share)
        });
        let cross = if self.family == Family::T5 { 0.5 * attention } else { 0.0 };
        attention + cross + mlp
    }

    /// Parameters of the token embedding (and of the head, which has as many when it is not tied).
    pub fn embedding(&self) -> f64 {
        self.vocab as f64 * self.hidden as f64
    }

    /// All parameters: the published number where there is one, else counted from the shape.
    pub fn params(&self) -> f64 {
        self.published.map_or_else(|| self.counted(), |published| published as f64)
    }

    /// Parameters counted from the shape: matrices, embeddings, norms and biases as the family has them.
    pub fn counted(&self) -> f64 {
        let (hidden, layers) = (self.hidden as f64, self.layers as f64);
        let (queries, keys, ffn) = (self.query_width(), self.key_width(), self.ffn as f64);
        let biases = queries + 2.0 * keys + 2.0 * hidden + ffn;
        let (block, rest) = match self.family {
            Family::Llama | Family::Gemma => (2.0 * hidden, hidden),
            Family::Gpt2 | Family::Opt | Family::NeoX | Family::Unknown => (4.0 * hidden + biases, 2.0 * hidden),
            // The masked-token head: a dense layer, a norm, and a bias for every entry of the vocabulary.
            Family::Bert => (4.0 * hidden + biases, 2.0 * hidden + hidden * hidden + 5.0 * hidden + self.vocab as f64),
            Family::T5 => (3.0 * hidden, hidden),
        };
        let bias = if self.qkv_bias { queries + 2.0 * keys } else { 0.0 };
        let norms = if self.qk_norm { 2.0 * self.head_dim as f64 } else { 0.0 };
        let embeddings = self.embedding() * if self.tied { 1.0 } else { 2.0 } + self.positions as f64 * hidden;
        layers * (self.block_matrices() + block + bias + norms) + embeddings + rest + self.tower as f64
    }

    /// The largest single parameter tensor.
    pub fn largest_tensor(&self) -> f64 {
        let expert = self.experts.map_or(0.0, |experts| self.hidden as f64 * experts.width as f64);
        self.embedding().max(self.hidden as f64 * self.ffn as f64).max(expert)
    }

    /// Keys and values of one token in all layers, in elements: `2 * layers * kv_heads * head_dim` (PagedAttention paper).
    pub fn kv_elements_per_token(&self) -> f64 {
        let layer = self.kv_bytes_per_token.map_or(2.0 * self.key_width(), |bytes| bytes as f64 / 2.0);
        self.layers as f64 * layer
    }
}

//! Shapes of well-known models, so that a name is enough. The numbers are those of each model's published config.json.

use super::shape::{Experts, Family, Shape};

/// name, layers, hidden, heads, kv heads, ffn, vocab, tied.
type Row = (&'static str, u64, u64, u64, u64, u64, u64, bool);

const LLAMA: &[Row] = &[
    ("llama2-7b", 32, 4096, 32, 32, 11008, 32000, false),
    ("llama2-13b", 40, 5120, 40, 40, 13824, 32000, false),
    ("llama2-70b", 80, 8192, 64, 8, 28672, 32000, false),
    ("llama-13b", 40, 5120, 40, 40, 13824, 32000, false),
    ("codellama-34b", 48, 8192, 64, 8, 22016, 32000, false),
    ("llama3-8b", 32, 4096, 32, 8, 14336, 128256, false),
    ("llama3.1-8b", 32, 4096, 32, 8, 14336, 128256, false),
    ("llama3-70b", 80, 8192, 64, 8, 28672, 128256, false),
    ("llama3.1-70b", 80, 8192, 64, 8, 28672, 128256, false),
    ("llama3.1-405b", 126, 16384, 128, 8, 53248, 128256, false),
    ("llama3.2-1b", 16, 2048, 32, 8, 8192, 128256, true),
    ("llama3.2-3b", 28, 3072, 24, 8, 8192, 128256, true),
    ("tinyllama-1.1b", 22, 2048, 32, 4, 5632, 32000, false),
    ("smollm2-1.7b", 24, 2048, 32, 32, 8192, 49152, true),
    ("mistral-7b", 32, 4096, 32, 8, 14336, 32000, false),
    ("yi-6b", 32, 4096, 32, 4, 11008, 64000, false),
    ("yi-34b", 60, 7168, 56, 8, 20480, 64000, false),
    ("baichuan2-7b", 32, 4096, 32, 32, 11008, 125696, false),
    ("baichuan2-13b", 40, 5120, 40, 40, 13696, 125696, false),
    ("chatglm3-6b", 28, 4096, 32, 2, 13696, 65024, false),
    ("qwen-1.8b", 24, 2048, 16, 16, 5504, 151936, false),
    ("qwen-7b", 32, 4096, 32, 32, 11008, 151936, false),
    ("qwen-14b", 40, 5120, 40, 40, 13696, 152064, false),
    ("qwen-72b", 80, 8192, 64, 64, 24576, 152064, false),
    ("qwen2.5-0.5b", 24, 896, 14, 2, 4864, 151936, true),
    ("qwen2.5-1.5b", 28, 1536, 12, 2, 8960, 151936, true),
    ("qwen2.5-3b", 36, 2048, 16, 2, 11008, 151936, true),
    ("qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064, false),
    ("qwen2.5-14b", 48, 5120, 40, 8, 13824, 152064, false),
    ("qwen2.5-32b", 64, 5120, 40, 8, 27648, 152064, false),
    ("qwen2.5-72b", 80, 8192, 64, 8, 29568, 152064, false),
    ("phi-3-mini", 32, 3072, 32, 32, 8192, 32064, false),
];

const OTHER: &[(Family, Row, u64)] = &[
    (Family::Gpt2, ("gpt2", 12, 768, 12, 12, 3072, 50257, true), 1024),
    (Family::Gpt2, ("gpt2-medium", 24, 1024, 16, 16, 4096, 50257, true), 1024),
    (Family::Gpt2, ("gpt2-large", 36, 1280, 20, 20, 5120, 50257, true), 1024),
    (Family::Gpt2, ("gpt2-xl", 48, 1600, 25, 25, 6400, 50257, true), 1024),
    (Family::Gpt2, ("gpt3-175b", 96, 12288, 96, 96, 49152, 50257, true), 2048),
    (Family::Bert, ("bert-base", 12, 768, 12, 12, 3072, 30522, true), 514),
    (Family::Bert, ("bert-large", 24, 1024, 16, 16, 4096, 30522, true), 514),
    (Family::Bert, ("roberta-large", 24, 1024, 16, 16, 4096, 50265, true), 516),
    (Family::Opt, ("opt-1.3b", 24, 2048, 32, 32, 8192, 50272, true), 2050),
    (Family::Opt, ("opt-6.7b", 32, 4096, 32, 32, 16384, 50272, true), 2050),
    (Family::Opt, ("opt-13b", 40, 5120, 40, 40, 20480, 50272, true), 2050),
    (Family::Opt, ("bloomz-7b1", 30, 4096, 32, 32, 16384, 250880, true), 0),
    (Family::NeoX, ("pythia-1b", 16, 2048, 8, 8, 8192, 50304, false), 0),
    (Family::NeoX, ("gpt-j-6b", 28, 4096, 16, 16, 16384, 50400, false), 0),
    (Family::NeoX, ("phi-1.5", 24, 2048, 32, 32, 8192, 51200, false), 0),
    (Family::NeoX, ("stablelm-alpha-3b", 16, 4096, 32, 32, 16384, 50688, false), 0),
    (Family::NeoX, ("falcon-40b", 60, 8192, 128, 8, 32768, 65024, true), 0),
];

/// Every known name, for a message.
pub fn names() -> impl Iterator<Item = &'static str> {
    LLAMA.iter().map(|row| row.0).chain(OTHER.iter().map(|row| row.1.0)).chain(SPECIAL.iter().copied())
}

const SPECIAL: &[&str] = &[
    "gemma-2b",
    "gemma2-9b",
    "qwen3-0.6b",
    "qwen3-8b",
    "qwen3-32b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "deepseek-v3",
    "t0-3b",
    "t5-3b",
    "mt0-xxl",
];

/// The shape of a model that people call `name`; spelling, publisher and endings such as `-instruct` do not matter.
pub fn shape(name: &str) -> Option<Shape> {
    let wanted = plain(name);
    let row = |row: &Row| {
        let &(name, layers, hidden, heads, kv_heads, ffn, vocab, tied) = row;
        Shape::llama(name, layers, hidden, heads, kv_heads, ffn, vocab, tied)
    };
    if let Some(found) = LLAMA.iter().find(|row| plain(row.0) == wanted) {
        let mut shape = row(found);
        shape.qkv_bias = shape.name.starts_with("qwen");
        return Some(shape);
    }
    if let Some((family, found, positions)) = OTHER.iter().find(|entry| plain(entry.1.0) == wanted) {
        let mut shape = row(found);
        (shape.family, shape.positions) = (*family, *positions);
        shape.composed_gelu = *family == Family::Gpt2 || matches!(shape.name.as_str(), "gpt-j-6b" | "phi-1.5");
        shape.writes_scores = matches!(shape.name.as_str(), "gpt-j-6b" | "bloomz-7b1");
        return Some(shape);
    }
    special(SPECIAL.iter().copied().find(|name| plain(name) == wanted)?)
}

fn special(name: &str) -> Option<Shape> {
    let moe = |count, active, width| Experts { count, active, width, shared_width: 0, dense_layers: 0 };
    let mut shape = match name {
        "gemma-2b" => Shape::llama(name, 18, 2048, 8, 1, 16384, 256_000, true),
        "gemma2-9b" => Shape::llama(name, 42, 3584, 16, 8, 14336, 256_000, true),
        "qwen3-0.6b" => Shape::llama(name, 28, 1024, 16, 8, 3072, 151_936, true),
        "qwen3-8b" => Shape::llama(name, 36, 4096, 32, 8, 12288, 151_936, false),
        "qwen3-32b" => Shape::llama(name, 64, 5120, 64, 8, 25600, 151_936, false),
        "mixtral-8x7b" => Shape::llama(name, 32, 4096, 32, 8, 14336, 32000, false),
        "qwen3-30b-a3b" => Shape::llama(name, 48, 2048, 32, 4, 6144, 151_936, false),
        "deepseek-v3" => Shape::llama(name, 61, 7168, 128, 128, 18432, 129_280, false),
        "t0-3b" | "t5-3b" => Shape::llama(name, 48, 1024, 32, 32, 16384, 32128, true),
        "mt0-xxl" => Shape::llama(name, 48, 4096, 64, 64, 10240, 250_112, false),
        _ => return None,
    };
    match name {
        "gemma-2b" | "gemma2-9b" => {
            (shape.family, shape.head_dim, shape.wide_norms) = (Family::Gemma, 256, true);
            (shape.post_norms, shape.softcap) = (name == "gemma2-9b", name == "gemma2-9b");
        }
        "qwen3-0.6b" | "qwen3-8b" | "qwen3-32b" => (shape.qk_norm, shape.head_dim) = (true, 128),
        "mixtral-8x7b" => shape.experts = Some(moe(8, 2, 14336)),
        "qwen3-30b-a3b" => {
            (shape.qk_norm, shape.head_dim) = (true, 128);
            shape.experts = Some(moe(128, 8, 768));
        }
        "deepseek-v3" => {
            shape.experts = Some(Experts { shared_width: 2048, dense_layers: 3, ..moe(256, 8, 2048) });
            shape.head_dim = 128;
            // Multi-head latent attention keeps 512 + 64 elements of a token and layer (DeepSeek-V2 paper).
            (shape.kv_bytes_per_token, shape.published) = (Some(1152), Some(671_026_419_200));
        }
        "t0-3b" | "t5-3b" => (shape.family, shape.head_dim, shape.published) = (Family::T5, 128, Some(2_851_598_336)),
        "mt0-xxl" => (shape.family, shape.published) = (Family::T5, Some(12_921_057_280)),
        _ => {}
    }
    Some(shape)
}

/// A name without publisher, case, punctuation, a release's patch digits and the endings that leave the shape as it is.
fn plain(name: &str) -> String {
    let name = name.rsplit('/').next().unwrap_or_default().split('(').next().unwrap_or_default();
    let words =
        name.to_lowercase().replace("meta-llama", "llama").replace("llama-", "llama").replace("qwen-2", "qwen2");
    let kept = words.split(['-', '_', ' ']).filter(|word| {
        let ending =
            ["instruct", "chat", "hf", "base", "it", "uncased", "cased", "alpha", "fp16", "awq", "gptq", "int4"];
        let is_version = word.len() == 4 && word.starts_with('v') && word.contains('.');
        !is_version && (!ending.contains(word) || words.starts_with("bert") && *word == "base")
    });
    kept.flat_map(str::chars).filter(|char| char.is_ascii_alphanumeric() || *char == '.').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_as_people_write_them() {
        for (written, known) in [
            ("meta-llama/Llama-3.1-8B-Instruct", "llama3.1-8b"),
            ("meta-llama/Llama-2-7b-chat-hf", "llama2-7b"),
            ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
            ("openai-community/gpt2", "gpt2"),
            ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b"),
            ("google-bert/bert-base-uncased", "bert-base"),
            ("StableLM-alpha-3B", "stablelm-alpha-3b"),
        ] {
            assert_eq!(shape(written).map(|shape| shape.name), Some(known.to_owned()), "{written}");
        }
        assert_eq!(shape("somebody/my-net"), None);
    }

    #[test]
    fn every_known_shape_is_sound_and_found_under_its_own_name() {
        for name in names() {
            let shape = shape(name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(shape.check(), Ok(()), "{name}");
            assert_eq!(shape.name, name);
        }
    }

    #[test]
    fn parameter_counts_match_the_published_ones() {
        for (name, published) in [
            ("gpt2-xl", 1_557_611_200.0),
            ("llama3.2-3b", 3_212_749_824.0),
            ("llama2-7b", 6_738_415_616.0),
            ("llama3-8b", 8_030_261_248.0),
            ("qwen2.5-1.5b", 1_543_714_304.0),
            ("tinyllama-1.1b", 1_100_048_384.0),
            ("bert-large", 335_174_458.0),
            ("bert-base", 109_514_298.0),
            ("mixtral-8x7b", 46_702_792_704.0),
        ] {
            let params = shape(name).map_or(0.0, |shape| shape.params());
            assert!((params / published - 1.0).abs() < 2e-4, "{name}: {params} {published}");
        }
    }
}

//! Reads a model's shape from the text of its Hugging Face `config.json`. A field that is missing and cannot be derived
//! is an error that names it; a default that had to be taken is a doubt of the shape, and widens the interval.

use serde_json::Value;

use super::Error;
use super::shape::{Experts, Family, Shape};

/// The shape that a `config.json` describes. Models with a vision or audio part keep their text model under
/// `text_config`; the tower's parameters are then estimated from `vision_config`.
pub fn shape(text: &str) -> Result<Shape, Error> {
    let root: Value = serde_json::from_str(text).map_err(|error| Error::Json(error.to_string()))?;
    if !root.is_object() {
        return Err(Error::Json("it is not an object".to_owned()));
    }
    let inner = ["text_config", "llm_config", "language_config"].iter().find_map(|key| root.get(*key));
    let config = inner.filter(|inner| inner.is_object()).unwrap_or(&root);
    let mut doubts = Vec::new();
    let stated = text_of(config, "model_type").or_else(|| text_of(&root, "model_type"));
    let kind = stated.or_else(|| of_class(config)).or_else(|| of_class(&root)).unwrap_or_default();
    let (family, is_familiar) = family(&kind);
    if !is_familiar {
        let kind = if kind.is_empty() { "not given" } else { &kind };
        doubts.push(format!(
            "model_type {kind:.40} is not known: activations are taken from the heaviest known kind, and its MLP is counted with \
             a gate, without which its weights are a fifth smaller"
        ));
    }
    let hidden = need(config, &["hidden_size", "n_embd", "d_model", "dim"], "hidden_size")?;
    let mut layers = need(
        config,
        &["num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers"],
        "num_hidden_layers",
    )?;
    if family == Family::T5 {
        let decoder = number(config, &["num_decoder_layers", "decoder_layers"])?;
        layers = layers.saturating_add(decoder.unwrap_or(layers));
    }
    let heads = need(
        config,
        &["num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads"],
        "num_attention_heads",
    )?;
    let vocab = number(config, &["vocab_size", "padded_vocab_size"])?
        .map_or_else(|| need(&root, &["vocab_size"], "vocab_size"), Ok)?;
    let head_dim = match number(config, &["head_dim", "d_kv", "kv_channels"])? {
        Some(head_dim) => head_dim,
        None => hidden.checked_div(heads).filter(|dim| *dim > 0).ok_or(Error::Contradiction {
            field: "num_attention_heads",
            other: "hidden_size",
            why: "there are more heads than the width can hold",
        })?,
    };
    let groups = ["num_key_value_heads", "multi_query_group_num", "num_kv_heads", "n_head_kv"];
    let kv_heads = match number(config, &groups)? {
        Some(kv_heads) if config.get("multi_query_attention") != Some(&Value::Bool(false)) => kv_heads,
        _ if config.get("multi_query") == Some(&Value::Bool(true)) => 1,
        _ => heads,
    };
    let ffn = match number(
        config,
        &["intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "d_ff", "encoder_ffn_dim", "hidden_dim"],
    )? {
        // The first Qwen writes gate and up together.
        Some(ffn) if kind == "qwen" => ffn / 2,
        Some(ffn) => ffn,
        // These have no such field or leave it empty, and their code takes four times the width.
        None if ["gpt2", "gpt_bigcode", "gptj", "gpt_neo", "codegen", "bloom", "falcon"].contains(&kind.as_str()) => {
            hidden.saturating_mul(4)
        }
        None => {
            doubts.push("intermediate_size is missing: 4 * hidden_size is assumed".to_owned());
            hidden.saturating_mul(4)
        }
    };
    let default_tied = matches!(family, Family::Gpt2 | Family::Bert | Family::Opt | Family::Gemma | Family::T5);
    let tied = [config, &root].iter().find_map(|at| at.get("tie_word_embeddings").and_then(Value::as_bool));
    let learned =
        matches!(family, Family::Gpt2 | Family::Bert | Family::Opt) && !matches!(kind.as_str(), "bloom" | "starcoder2");
    let positions = number(config, &["max_position_embeddings", "n_positions", "n_ctx"])?.filter(|_| learned);
    let name = text_of(&root, "_name_or_path").filter(|name| !name.is_empty()).unwrap_or(kind.clone());
    let mut shape = Shape::llama(&name, layers, hidden, heads, kv_heads, ffn, vocab, tied.unwrap_or(default_tied));
    shape.family = family;
    shape.head_dim = head_dim;
    shape.positions = positions.unwrap_or(0);
    shape.qk_norm = kind.starts_with("qwen3") || kind.starts_with("gemma3") || kind.starts_with("olmo2");
    shape.qkv_bias = kind == "qwen" || kind.starts_with("qwen2");
    let activation = text_of(config, "hidden_act").or_else(|| text_of(config, "activation_function"));
    let default = matches!(kind.as_str(), "gpt2" | "gptj" | "gpt_neo" | "codegen" | "phi");
    shape.composed_gelu = activation.map_or(default, |word| matches!(word.as_str(), "gelu_new" | "gelu_fast"));
    shape.layer_norm = ["stablelm", "cohere"].iter().any(|word| kind.starts_with(word));
    // `gated-gelu` of T5's code is `gelu_new`.
    shape.gated = !is_familiar || text_of(config, "feed_forward_proj").is_some_and(|word| word.starts_with("gated"));
    let starts = |words: &[&str]| words.iter().any(|word| kind.starts_with(word));
    shape.writes_scores = starts(&["gptj", "codegen", "bloom", "deberta"]) || kind == "gpt_neo";
    shape.wide_norms = starts(&["gemma", "olmo2"]);
    shape.softcap = kind == "gemma2" && config.get("final_logit_softcapping") != Some(&Value::Null);
    shape.post_norms = kind.starts_with("gemma2") || kind.starts_with("gemma3");
    shape.experts = experts(config, ffn)?;
    shape.kv_bytes_per_token = match number(config, &["kv_lora_rank"])? {
        Some(rank) => Some(rank.saturating_add(number(config, &["qk_rope_head_dim"])?.unwrap_or(64)).saturating_mul(2)),
        None => None,
    };
    if shape.kv_bytes_per_token.is_some() {
        doubts.push("latent attention: its projections are counted as if they were full ones".to_owned());
    }
    shape.tower = tower(&root, &mut doubts)?;
    shape.doubts = doubts;
    shape.check()?;
    Ok(shape)
}

/// The `model_type` that the name of a model's class tells where the field is missing: `llama` of `LlamaForCausalLM`.
fn of_class(config: &Value) -> Option<String> {
    let class = config.get("architectures")?.as_array()?.first()?.as_str()?;
    let end = ["For", "LMHead", "Model", "DoubleHeads"].iter().filter_map(|word| class.find(word)).min()?;
    let word = class[..end].to_lowercase();
    let spelt = [("gptneox", "gpt_neox"), ("gptneo", "gpt_neo"), ("gptbigcode", "gpt_bigcode"), ("gptoss", "gpt_oss")];
    let more = [("xlmroberta", "xlm-roberta")];
    let found = spelt.iter().chain(&more).find(|(joined, _)| word == *joined);
    Some(found.map_or(word, |(_, kind)| (*kind).to_owned()))
}

/// The family of a `model_type`, and whether it was a familiar word.
fn family(kind: &str) -> (Family, bool) {
    let starts = |words: &[&str]| words.iter().any(|word| kind.starts_with(word));
    let family = if starts(&["gemma"]) {
        Family::Gemma
    } else if starts(&[
        "llama", "mistral", "mixtral", "qwen", "yi", "baichuan", "phi3", "phi4", "deepseek", "internlm", "chatglm",
        "glm", "olmo", "granite", "smollm", "cohere", "stablelm", "minicpm", "gpt_oss", "exaone", "solar",
    ]) {
        Family::Llama
    } else if starts(&["gpt2", "gpt_bigcode"]) {
        Family::Gpt2
    } else if starts(&["bert", "roberta", "xlm-roberta", "electra", "camembert", "distilbert", "albert", "deberta"]) {
        Family::Bert
    } else if starts(&["opt", "bloom", "starcoder2"]) {
        Family::Opt
    } else if starts(&["gpt_neox", "gptj", "codegen", "falcon", "phi", "gpt_neo", "RefinedWeb"]) {
        Family::NeoX
    } else if starts(&["t5", "mt5", "umt5", "bart", "mbart", "pegasus"]) {
        Family::T5
    } else {
        return (Family::Unknown, false);
    };
    (family, true)
}

fn experts(config: &Value, ffn: u64) -> Result<Option<Experts>, Error> {
    let Some(count) =
        number(config, &["num_local_experts", "num_experts", "n_routed_experts"])?.filter(|count| *count > 1)
    else {
        return Ok(None);
    };
    let width = number(config, &["moe_intermediate_size", "expert_ffn_hidden_size"])?.unwrap_or(ffn);
    let shared = match number(config, &["shared_expert_intermediate_size"])? {
        Some(shared) => shared,
        None => number(config, &["n_shared_experts"])?.unwrap_or(0).saturating_mul(width),
    };
    Ok(Some(Experts {
        count,
        active: number(config, &["num_experts_per_tok", "moe_topk", "num_experts_per_token"])?.unwrap_or(2),
        width,
        shared_width: shared,
        dense_layers: number(config, &["first_k_dense_replace"])?.unwrap_or(0),
    }))
}

/// Parameters of a vision tower: `12 * hidden^2` a layer, as in a plain vision transformer.
fn tower(root: &Value, doubts: &mut Vec<String>) -> Result<u64, Error> {
    let Some(vision) = root.get("vision_config").filter(|vision| vision.is_object()) else {
        return Ok(0);
    };
    let hidden = number(vision, &["hidden_size", "width", "embed_dim"])?;
    let layers = number(vision, &["num_hidden_layers", "layers", "depth"])?;
    doubts.push("a vision tower: its weights are estimated, its activations are not counted".to_owned());
    let (Some(hidden), Some(layers)) = (hidden, layers) else {
        doubts.push("vision_config gives no size: 400 million parameters are assumed".to_owned());
        return Ok(400_000_000);
    };
    super::within("vision_config.hidden_size", hidden as f64, 1.0, 1e5)?;
    super::within("vision_config.num_hidden_layers", layers as f64, 1.0, 1e4)?;
    Ok(hidden.saturating_mul(hidden).saturating_mul(12).saturating_mul(layers))
}

fn text_of(config: &Value, key: &str) -> Option<String> {
    config.get(key).and_then(Value::as_str).map(|text| text.chars().take(80).collect())
}

/// The first of `keys` that is there and not null. What is there must be a whole number.
fn number(config: &Value, keys: &[&'static str]) -> Result<Option<u64>, Error> {
    for key in keys {
        match config.get(*key) {
            None | Some(Value::Null) => {}
            Some(value) => {
                let found = value.as_u64().or_else(|| value.as_array()?.first()?.as_u64());
                return found.map(Some).ok_or_else(|| Error::Unknown {
                    field: key,
                    value: value.to_string().chars().take(40).collect(),
                    known: "a whole number, 0 or more",
                });
            }
        }
    }
    Ok(None)
}

fn need(config: &Value, keys: &[&'static str], field: &'static str) -> Result<u64, Error> {
    number(config, keys)?.ok_or(Error::Missing { field, hint: "config.json must say it, no default is safe" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_llama_config_gives_the_published_parameter_count() {
        let shape = shape(
            r#"{"model_type":"llama","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,
               "num_key_value_heads":8,"intermediate_size":14336,"vocab_size":128256,"tie_word_embeddings":false}"#,
        );
        let shape = shape.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(shape.params(), 8_030_261_248.0);
        assert!(shape.doubts.is_empty());
    }

    #[test]
    fn the_mlp_of_a_family_is_gated_only_where_its_code_has_a_gate() {
        // StarCoder2-3B and StableLM-2-1.6B as published: 3,030,371,328 and 1,644,515,328 parameters.
        for (text, params) in [
            (
                r#"{"model_type":"starcoder2","hidden_size":3072,"num_hidden_layers":30,"num_attention_heads":24,
                   "num_key_value_heads":2,"intermediate_size":12288,"vocab_size":49152,"tie_word_embeddings":true}"#,
                3_030_371_328.0,
            ),
            (
                r#"{"model_type":"stablelm","hidden_size":2048,"num_hidden_layers":24,"num_attention_heads":32,
                   "num_key_value_heads":32,"intermediate_size":5632,"vocab_size":100352,"use_qkv_bias":true}"#,
                1_644_515_328.0,
            ),
        ] {
            let found = shape(text).unwrap_or_else(|error| panic!("{error}")).params();
            assert!((found / params - 1.0_f64).abs() < 5e-4, "{found} beside {params}");
        }
    }

    #[test]
    fn a_missing_size_is_named_and_never_guessed() {
        let error = shape(r#"{"model_type":"llama","num_hidden_layers":32,"num_attention_heads":32,"vocab_size":9}"#);
        assert_eq!(
            error.err().map(|error| error.to_string()),
            Some("hidden_size is missing: config.json must say it, no default is safe".to_owned())
        );
    }

    #[test]
    fn an_unfamiliar_architecture_says_so() {
        let shape = shape(r#"{"model_type":"mamba9","hidden_size":64,"num_layers":2,"n_head":2,"vocab_size":9}"#);
        let shape = shape.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(shape.family, Family::Unknown);
        assert_eq!(shape.doubts.len(), 2, "{:?}", shape.doubts);
    }

    #[test]
    fn a_config_without_its_model_type_is_read_by_the_name_of_its_class() {
        let fields = r#""hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,
            "intermediate_size":14336,"vocab_size":128256"#;
        let read = |text: &str| shape(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        for (class, kind) in [
            ("LlamaForCausalLM", "llama"),
            ("Qwen2MoeForCausalLM", "qwen2_moe"),
            ("GPT2LMHeadModel", "gpt2"),
            ("GPTNeoXForCausalLM", "gpt_neox"),
            ("BertModel", "bert"),
            ("XLMRobertaForMaskedLM", "xlm-roberta"),
        ] {
            let told = read(&format!(r#"{{"architectures":["{class}"],{fields}}}"#));
            let stated = read(&format!(r#"{{"model_type":"{kind}",{fields}}}"#));
            assert_eq!((told.counted(), told.family), (stated.counted(), stated.family), "{class}");
            assert!(told.doubts.is_empty(), "{:?}", told.doubts);
        }
        let silent = read(&format!("{{{fields}}}"));
        let llama = read(&format!(r#"{{"model_type":"llama",{fields}}}"#));
        assert!(!silent.doubts.is_empty());
        assert!(silent.counted() >= llama.counted(), "the heavier of what it may be");
    }

    #[test]
    fn absurd_numbers_and_broken_text_are_errors_not_panics() {
        for text in [
            "",
            "[]",
            "3",
            "{",
            r#"{"hidden_size":-1}"#,
            r#"{"hidden_size":1e400}"#,
            r#"{"hidden_size":"big"}"#,
            r#"{"hidden_size":18446744073709551615,"num_layers":18446744073709551615,"n_head":1,"vocab_size":1}"#,
            r#"{"hidden_size":2,"num_layers":1,"n_head":0,"vocab_size":1}"#,
            r#"{"hidden_size":2,"num_layers":1,"n_head":9,"vocab_size":1}"#,
        ] {
            assert!(shape(text).is_err(), "{text}");
        }
    }
}

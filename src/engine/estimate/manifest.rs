//! Reads how a job runs from a container's command line and environment, as a pod manifest has them. Flows in: words that
//! are already out of YAML. Flows out: [`Options`] and what could not be read. Nothing is guessed from what is not there.

use super::options::Options;

/// What a command line said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// The job, as far as it could be read.
    pub options: Options,
    /// Which program was recognised; `None` where none was.
    pub program: Option<&'static str>,
    /// What matters for memory and could not be read, in sentences.
    pub unread: Vec<String>,
}

/// Reads a container's `command` and `args` (in that order, as one list) and its environment.
///
/// Understood: vLLM's server, `torchrun`, `deepspeed`, `accelerate launch`, and flags of Hugging Face's Trainer, TRL and
/// scripts that borrow their names. Files that the command line names (DeepSpeed's JSON, Accelerate's YAML) are not at
/// hand here: they are listed as unread.
pub fn read(args: &[String], env: &[(String, String)]) -> Reading {
    let words = unwrap_shell(args);
    let mut reading = Reading::default();
    let has = |name: &str| words.iter().any(|word| word.rsplit('/').next() == Some(name));
    let is_vllm = has("vllm") || words.iter().any(|word| word.starts_with("vllm.entrypoints"));
    reading.program = [
        ("vLLM", is_vllm),
        ("DeepSpeed", has("deepspeed")),
        ("Accelerate", has("accelerate")),
        ("torchrun", has("torchrun")),
    ]
    .into_iter()
    .find_map(|(name, is_it)| is_it.then_some(name));
    if is_vllm {
        reading.options.task = Some("serve".to_owned());
        // `vllm serve MODEL`: the model has no flag.
        let at = words.iter().position(|word| word == "serve");
        reading.options.model = at.and_then(|at| words.get(at + 1)).filter(|word| !word.starts_with('-')).cloned();
    }
    let mut at = 0;
    while let Some(word) = words.get(at) {
        at += 1;
        let Some(flag) =
            word.strip_prefix("--").or_else(|| word.strip_prefix('-').filter(|rest| *rest == "tp" || *rest == "pp"))
        else {
            continue;
        };
        let (name, value) = if let Some((name, value)) = flag.split_once('=') {
            (name, Some(value.to_owned()))
        } else {
            // A word after a flag is its value, unless it is the next flag.
            (flag, words.get(at).filter(|next| !next.starts_with("--")).cloned())
        };
        flag_value(&mut reading, &name.replace('-', "_"), value.as_deref(), is_vllm);
    }
    for (name, value) in env {
        if name == "PYTORCH_CUDA_ALLOC_CONF" || name == "PYTORCH_ALLOC_CONF" {
            reading.options.expandable_segments = value.to_lowercase().contains("expandable_segments:true");
        }
        if name == "WORLD_SIZE" && reading.options.data_parallel.is_none() && !is_vllm {
            reading.options.data_parallel = value.trim().parse().ok();
        }
    }
    if reading.options.model.is_none() {
        reading.unread.push("the model: no flag names it".to_owned());
    }
    if reading.program.is_none() && reading.options.batch.is_none() {
        reading.unread.push("the program: no known launcher or Trainer flag on the command line".to_owned());
    }
    reading
}

/// `sh -c "a b 'c d'"` as its words; everything else as it is.
fn unwrap_shell(args: &[String]) -> Vec<String> {
    let mut words = Vec::new();
    let mut is_script = false;
    for arg in args {
        if is_script {
            words.extend(split(arg));
            is_script = false;
            continue;
        }
        is_script = matches!(arg.as_str(), "-c" | "-lc" | "-ec" | "-exc" | "-xc");
        if !is_script {
            words.push(arg.clone());
        }
    }
    words
}

/// Words of a shell line: quotes group, a backslash takes the next character as it is. Variables stay as they are.
fn split(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut is_open) = (Vec::new(), String::new(), None, false);
    let mut chars = line.chars();
    while let Some(char) = chars.next() {
        match (quote, char) {
            (None, '\'' | '"') => (quote, is_open) = (Some(char), true),
            (Some(open), close) if open == close => quote = None,
            (None | Some('"'), '\\') => match chars.next() {
                Some('\n') | None => {}
                Some(next) => word.push(next),
            },
            (None, space) if space.is_whitespace() => {
                if is_open || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                is_open = false;
            }
            _ => word.push(char),
        }
    }
    if is_open || !word.is_empty() {
        words.push(word);
    }
    words
}

/// One flag. Names are those of vLLM, HF's TrainingArguments, TRL, torchrun, DeepSpeed and Accelerate.
fn flag_value(reading: &mut Reading, name: &str, value: Option<&str>, is_vllm: bool) {
    let Reading { options, unread, .. } = reading;
    let text = || value.map(str::to_owned);
    let is_on = !matches!(value.map(str::to_lowercase).as_deref(), Some("false" | "no" | "0" | "off"));
    // A number that is a variable or nonsense is not read, and said so.
    let mut number = || {
        let found = value.and_then(|value| value.trim().parse::<u64>().ok());
        if found.is_none() {
            unread.push(format!(
                "--{name} {}: not a whole number",
                value.unwrap_or("").chars().take(40).collect::<String>()
            ));
        }
        found
    };
    match name {
        "model" | "model_name_or_path" | "model_name" | "base_model" | "pretrained_model_name_or_path" | "model_id" => {
            options.model = text();
        }
        "per_device_train_batch_size"
        | "train_micro_batch_size_per_gpu"
        | "micro_batch_size"
        | "train_batch_size"
        | "batch_size" => {
            options.batch = number();
        }
        "max_seq_length" | "max_length" | "block_size" | "model_max_length" | "cutoff_len" | "seq_length"
        | "max_source_length" | "max_model_len" => {
            options.sequence = number();
        }
        "gradient_accumulation_steps" => options.accumulation = number(),
        "gradient_checkpointing" | "use_gradient_checkpointing" | "recompute_activations" if is_on => {
            options.checkpointing = Some("full".to_owned());
        }
        "bf16" | "fp16" if is_on => options.precision = Some("amp".to_owned()),
        "bf16_full" | "pure_bf16" if is_on => options.precision = Some("bf16".to_owned()),
        "mixed_precision" => {
            options.precision = Some(if value == Some("no") { "fp32" } else { "amp" }.to_owned());
        }
        "torch_dtype" | "model_dtype" if matches!(value, Some("bfloat16" | "float16")) => {
            // 16-bit weights; whether the passes run under autocast changes little beside that.
            options.precision = Some("bf16".to_owned());
        }
        "optim" | "optimizer" => options.optimizer = text(),
        "attn_implementation" => options.attention = text(),
        "use_flash_attention_2" | "flash_attn" | "use_flash_attn" if is_on => {
            options.attention = Some("flash".to_owned());
        }
        "use_liger_kernel" | "use_liger" if is_on => options.loss_chunk = Some(1024),
        "torch_compile" if is_on => options.compile = true,
        "use_peft" | "use_lora" if is_on && options.method.is_none() => options.method = Some("lora".to_owned()),
        "load_in_4bit" if is_on => options.method = Some("qlora".to_owned()),
        "lora_r" | "lora_rank" | "lora_dim" => {
            options.lora_rank = number();
            options.method.get_or_insert_with(|| "lora".to_owned());
        }
        // `num_machines` is not here: accelerate's `num_processes` counts all machines already.
        "nproc_per_node" | "num_gpus" | "num_processes" | "nnodes" | "num_nodes" => {
            multiply(&mut options.data_parallel, number());
        }
        "zero_stage" => options.zero = number().and_then(|stage| u8::try_from(stage).ok()),
        "fsdp" | "use_fsdp" if is_on => options.zero = Some(3),
        "offload_optimizer_device" if value == Some("cpu") => options.offload_optimizer = true,
        "offload_param_device" if value == Some("cpu") => options.offload_weights = true,
        "packing" if !is_on => options.varying_lengths = true,
        "tensor_parallel_size" | "tp" | "tensor_model_parallel_size" => options.tensor_parallel = number(),
        "pipeline_parallel_size" | "pp" | "pipeline_model_parallel_size" => options.pipeline_parallel = number(),
        "context_parallel_size" => options.context_parallel = number(),
        "sequence_parallel" if is_on => options.sequence_parallel = true,
        "gpu_memory_utilization" => {
            options.utilization = value.and_then(|value| value.trim().parse().ok());
            if options.utilization.is_none() {
                unread.push("--gpu_memory_utilization: not a number".to_owned());
            }
        }
        "max_num_batched_tokens" => options.batched_tokens = number(),
        "max_num_seqs" => options.sequences = number(),
        "kv_cache_dtype" => options.kv_cache = text(),
        "quantization" => options.weights = text(),
        "dtype" if is_vllm && matches!(value, Some("float32" | "float")) => options.precision = Some("fp32".to_owned()),
        "deepspeed" | "deepspeed_config" | "deepspeed_config_file"
            if value.is_some_and(|value| value.contains('.')) =>
        {
            unread.push(format!(
                "DeepSpeed's configuration {}: ZeRO stage, precision and offload are in it",
                value.unwrap_or("")
            ));
        }
        "config_file" | "config" => {
            unread.push(format!("the file {}: it may change anything", value.unwrap_or("")));
        }
        "cpu_offload_gb" => {
            unread.push("--cpu_offload_gb: weights in host memory are not counted for a server".to_owned());
        }
        _ => {}
    }
}

fn multiply(degree: &mut Option<u64>, by: Option<u64>) {
    if let Some(by) = by {
        *degree = Some(degree.unwrap_or(1).saturating_mul(by.max(1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        split(line)
    }

    #[test]
    fn a_vllm_server_is_read() {
        let line = "vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 2 --gpu-memory-utilization=0.85 --max-model-len 8192 --kv-cache-dtype fp8";
        let Reading { options, program, unread } = read(&words(line), &[]);
        assert_eq!(program, Some("vLLM"));
        assert!(unread.is_empty(), "{unread:?}");
        let expected = Options {
            model: Some("meta-llama/Llama-3.1-8B-Instruct".to_owned()),
            task: Some("serve".to_owned()),
            tensor_parallel: Some(2),
            utilization: Some(0.85),
            sequence: Some(8192),
            kv_cache: Some("fp8".to_owned()),
            ..Options::default()
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn a_trainer_behind_a_shell_and_torchrun_is_read() {
        let script = "torchrun --nproc_per_node=4 --nnodes 2 train.py --model_name_or_path 'Qwen/Qwen2.5-7B' --bf16 --gradient_checkpointing True \\\n --per_device_train_batch_size 8 --optim adamw_torch_fused --max_seq_length 4096 --fsdp 'full_shard auto_wrap'";
        let args = ["bash".to_owned(), "-c".to_owned(), script.to_owned()];
        let env = [("PYTORCH_CUDA_ALLOC_CONF".to_owned(), "expandable_segments:True".to_owned())];
        let Reading { options, program, .. } = read(&args, &env);
        assert_eq!(program, Some("torchrun"));
        assert_eq!((options.data_parallel, options.zero, options.batch), (Some(8), Some(3), Some(8)));
        assert_eq!(options.checkpointing.as_deref(), Some("full"));
        assert!(options.expandable_segments);
        assert!(super::super::job::job(&options).is_ok());
    }

    #[test]
    fn what_is_in_a_file_or_a_variable_is_listed_as_unread() {
        let line = "deepspeed --num_gpus 8 run.py --deepspeed ds.json --per_device_train_batch_size $BATCH";
        let Reading { unread, .. } = read(&words(line), &[]);
        assert_eq!(unread.len(), 3, "{unread:?}");
    }

    #[test]
    fn an_accelerate_launch_with_adapters_is_read() {
        let line = "accelerate launch --num_processes 8 --mixed_precision bf16 sft.py --model_name_or_path x --use_peft --lora_r 32 --load_in_4bit";
        let Reading { options, .. } = read(&words(line), &[]);
        assert_eq!(
            (options.method.as_deref(), options.lora_rank, options.data_parallel),
            (Some("qlora"), Some(32), Some(8))
        );
    }
}

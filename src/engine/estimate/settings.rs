//! The exact setting for each remedy in each framework. Text only: what a person pastes.

use super::remedy::Kind;

/// A line to paste, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The framework.
    pub framework: &'static str,
    /// What to write.
    pub line: &'static str,
}

const fn set(framework: &'static str, line: &'static str) -> Setting {
    Setting { framework, line }
}

/// How to do `kind` in each framework that can. `N` stands for a number of GPUs, `B` for a smaller batch.
pub fn settings(kind: Kind) -> &'static [Setting] {
    match kind {
        Kind::Allocator => {
            const {
                &[
                    set("PyTorch", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
                    set(
                        "HF Trainer",
                        "env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, torch_empty_cache_steps=50",
                    ),
                    set("vLLM", "no setting needed: keys and values live in one pool"),
                    set("TensorFlow", "TF_GPU_ALLOCATOR=cuda_malloc_async"),
                    set("JAX", "XLA_PYTHON_CLIENT_ALLOCATOR=platform (slow; for finding out only)"),
                ]
            }
        }
        Kind::Attention => {
            const {
                &[
                    set("PyTorch", "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)"),
                    set("HF Trainer", "from_pretrained(…, attn_implementation=\"flash_attention_2\") or \"sdpa\""),
                    set("Accelerate", "as for HF Trainer: it is set on the model"),
                    set("DeepSpeed", "as for HF Trainer; Megatron-DeepSpeed: --use-flash-attn-v2"),
                    set("JAX", "jax.nn.dot_product_attention(q, k, v, implementation=\"cudnn\")"),
                ]
            }
        }
        Kind::ChunkedLoss => {
            const {
                &[
                    set("PyTorch", "liger_kernel: LigerFusedLinearCrossEntropyLoss; torchtune: LinearCrossEntropyLoss"),
                    set("HF Trainer", "use_liger_kernel=True"),
                    set("Accelerate", "apply_liger_kernel_to_llama() before the model is made"),
                    set("DeepSpeed", "as for HF Trainer: use_liger_kernel=True"),
                ]
            }
        }
        Kind::Bf16 => {
            const {
                &[
                    set("PyTorch", "with torch.autocast(\"cuda\", dtype=torch.bfloat16): …"),
                    set("HF Trainer", "bf16=True"),
                    set("Accelerate", "mixed_precision: bf16"),
                    set("DeepSpeed", "\"bf16\": {\"enabled\": true}"),
                    set("vLLM", "--dtype bfloat16"),
                    set("TensorFlow", "tf.keras.mixed_precision.set_global_policy(\"mixed_bfloat16\")"),
                    set("JAX", "dtype=jnp.bfloat16 on the modules, parameters stay float32"),
                ]
            }
        }
        Kind::PureBf16 => {
            const {
                &[
                    set("PyTorch", "model.to(torch.bfloat16); use stochastic rounding or Kahan sums in the optimizer"),
                    set("HF Trainer", "from_pretrained(…, dtype=torch.bfloat16), bf16=False"),
                    set("Accelerate", "mixed_precision: no, and the model in bfloat16"),
                    set("JAX", "param_dtype=jnp.bfloat16"),
                ]
            }
        }
        Kind::Accumulate => {
            const {
                &[
                    set("PyTorch", "DataLoader(batch_size=B), loss / steps, optimizer.step() every `steps` batches"),
                    set("HF Trainer", "per_device_train_batch_size=B, gradient_accumulation_steps=batch/B"),
                    set(
                        "Accelerate",
                        "Accelerator(gradient_accumulation_steps=batch/B), with accelerator.accumulate(model): …",
                    ),
                    set("DeepSpeed", "\"train_micro_batch_size_per_gpu\": B, \"gradient_accumulation_steps\": batch/B"),
                    set("TensorFlow", "optimizer = Adam(gradient_accumulation_steps=batch/B)"),
                    set("JAX", "optax.MultiSteps(optimizer, every_k_schedule=batch/B)"),
                ]
            }
        }
        Kind::Checkpointing => {
            const {
                &[
                    set("PyTorch", "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"),
                    set("HF Trainer", "gradient_checkpointing=True"),
                    set(
                        "Accelerate",
                        "model.gradient_checkpointing_enable(); FSDP: fsdp_activation_checkpointing: true",
                    ),
                    set("DeepSpeed", "model.gradient_checkpointing_enable(); deepspeed.checkpointing.configure(…)"),
                    set("TensorFlow", "tf.recompute_grad(block)"),
                    set("JAX", "jax.checkpoint(block); flax: nn.remat(Block)"),
                ]
            }
        }
        Kind::FusedStep => {
            const {
                &[
                    set("PyTorch", "torch.optim.AdamW(…, fused=True)"),
                    set("HF Trainer", "optim=\"adamw_torch_fused\""),
                    set("Accelerate", "as for PyTorch"),
                    set("DeepSpeed", "\"optimizer\": {\"type\": \"AdamW\"} uses FusedAdam already"),
                ]
            }
        }
        Kind::Adam8bit => {
            const {
                &[
                    set("PyTorch", "bitsandbytes.optim.AdamW8bit(…) or torchao.optim.AdamW8bit(…)"),
                    set("HF Trainer", "optim=\"adamw_bnb_8bit\" (or \"paged_adamw_8bit\")"),
                    set("Accelerate", "as for PyTorch"),
                    set("DeepSpeed", "pass the bitsandbytes optimizer, \"zero_allow_untested_optimizer\": true"),
                    set("JAX", "optax.adafactor(…) is the nearest"),
                    set("TensorFlow", "tf.keras.optimizers.Adafactor is the nearest"),
                ]
            }
        }
        Kind::Lora => {
            const {
                &[
                    set("PyTorch", "peft.get_peft_model(model, LoraConfig(r=16, target_modules=\"all-linear\"))"),
                    set("HF Trainer", "SFTTrainer(…, peft_config=LoraConfig(r=16, target_modules=\"all-linear\"))"),
                    set("Accelerate", "as for PyTorch, before accelerator.prepare"),
                    set("DeepSpeed", "as for PyTorch, before deepspeed.initialize"),
                ]
            }
        }
        Kind::Qlora => {
            const {
                &[
                    set(
                        "PyTorch",
                        "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=\"nf4\", bnb_4bit_compute_dtype=torch.bfloat16)",
                    ),
                    set(
                        "HF Trainer",
                        "from_pretrained(…, quantization_config=BitsAndBytesConfig(load_in_4bit=True, …)) with peft_config",
                    ),
                    set("Accelerate", "as for HF Trainer; with FSDP also bnb_4bit_quant_storage=torch.bfloat16"),
                    set("DeepSpeed", "as for HF Trainer; with ZeRO 3 also bnb_4bit_quant_storage=torch.bfloat16"),
                ]
            }
        }
        Kind::Zero => {
            const {
                &[
                    set("PyTorch", "fully_shard(model) (FSDP2), torchrun --nproc-per-node N"),
                    set("HF Trainer", "fsdp=\"full_shard auto_wrap\", torchrun --nproc-per-node N"),
                    set("Accelerate", "distributed_type: FSDP, fsdp_version: 2, num_processes: N"),
                    set("DeepSpeed", "\"zero_optimization\": {\"stage\": 3}, deepspeed --num_gpus N"),
                    set("JAX", "jax.sharding.NamedSharding over a mesh axis of N"),
                    set("TensorFlow", "tf.keras.distribution.ModelParallel over N devices"),
                ]
            }
        }
        Kind::Tensor => {
            const {
                &[
                    set("PyTorch", "torch.distributed.tensor.parallel.parallelize_module over N GPUs"),
                    set("HF Trainer", "from_pretrained(…, tp_plan=\"auto\"), torchrun --nproc-per-node N"),
                    set("Accelerate", "parallelism_config with tp_size=N"),
                    set("DeepSpeed", "\"tensor_parallel\": {\"autotp_size\": N}"),
                    set("vLLM", "--tensor-parallel-size N"),
                    set("JAX", "a mesh axis of N and PartitionSpec(\"model\") on the matrices"),
                ]
            }
        }
        Kind::Offload => {
            const {
                &[
                    set("PyTorch", "fully_shard(model, offload_policy=CPUOffloadPolicy())"),
                    set("HF Trainer", "deepspeed=ds.json with the DeepSpeed line"),
                    set("Accelerate", "fsdp_offload_params: true"),
                    set(
                        "DeepSpeed",
                        "\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\"}}",
                    ),
                    set("vLLM", "--cpu-offload-gb 16"),
                ]
            }
        }
        Kind::QuantisedWeights => {
            const {
                &[
                    set("vLLM", "an AWQ, GPTQ or FP8 build of the model, or --quantization fp8"),
                    set("PyTorch", "torchao.quantization.quantize_(model, Int4WeightOnlyConfig())"),
                    set("HF Trainer", "from_pretrained(…, quantization_config=BitsAndBytesConfig(load_in_4bit=True))"),
                ]
            }
        }
        Kind::QuantisedCache => {
            const {
                &[
                    set("vLLM", "--kv-cache-dtype fp8"),
                    set("PyTorch", "transformers: generate(…, cache_implementation=\"quantized\")"),
                ]
            }
        }
        Kind::ShorterContext => {
            const {
                &[
                    set("vLLM", "--max-model-len with half the length, --max-num-batched-tokens 2048"),
                    set("PyTorch", "shorter inputs or fewer new tokens"),
                ]
            }
        }
        Kind::Utilization => {
            const {
                &[
                    set("vLLM", "--gpu-memory-utilization 0.90 (with what else runs on the card left out of it)"),
                    set(
                        "TensorFlow",
                        "tf.config.experimental.set_memory_growth(gpu, True), or a memory limit of a logical device",
                    ),
                    set(
                        "JAX",
                        "XLA_PYTHON_CLIENT_MEM_FRACTION=.50 (default .75), or XLA_PYTHON_CLIENT_PREALLOCATE=false",
                    ),
                    set("PyTorch", "torch.cuda.set_per_process_memory_fraction(0.5)"),
                ]
            }
        }
    }
}

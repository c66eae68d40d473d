//! What to do about an out-of-memory, for the person who is on call.

use super::{Kind, OomReport};
use crate::quantity::Bytes;

/// Less than this beside the own allocator is contexts and libraries, not a neighbour.
const CONTEXTS: Bytes = Bytes::gib(2);

/// One or two concrete next steps, the likeliest first.
pub fn advice(report: &OomReport) -> Vec<&'static str> {
    match report.kind {
        Kind::SelfImposedLimit => limit(report),
        Kind::StartupDoesNotFit => startup(report),
        Kind::Secondary => vec![
            "Look for the failure before this message: a peer's timeout or a corrupt size asked for the impossible amount.",
        ],
        Kind::Probable => vec![
            "Compare with the device's free memory at that time: under 1 GiB means that this was an out-of-memory.",
            "If memory was free, look for a driver or library mismatch instead.",
        ],
        Kind::DeviceFull => device_full(report),
    }
}

/// What helps against growth before anything has failed, the mildest first; for a container of which only its framework may be
/// known.
pub fn general(framework: Option<&str>) -> [&'static str; 3] {
    match framework {
        Some("vLLM" | "SGLang" | "TGI") => [
            "Lower --gpu-memory-utilization (vLLM) or --mem-fraction-static (SGLang) if others share the device.",
            "Lower --max-num-seqs or --max-model-len: long requests at once make the peak.",
            "Quantise the weights or shard the model over more GPUs.",
        ],
        Some("JAX" | "TensorFlow") => [
            "Lower the batch size, or turn on rematerialisation (jax.checkpoint, tf.recompute_grad).",
            "Let the pool grow as needed: XLA_PYTHON_CLIENT_PREALLOCATE=false, TF_FORCE_GPU_ALLOW_GROWTH=true.",
            "Give the pod a larger device or one of its own.",
        ],
        _ => [
            "Look for tensors kept from step to step (losses summed without .item(), lists of outputs): live memory should not grow.",
            "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True if the allocator holds far more than is live.",
            "Lower the batch size or sequence length, turn on activation checkpointing, or give it a larger device.",
        ],
    }
}

fn limit(report: &OomReport) -> Vec<&'static str> {
    let raise = match report.shape {
        "sglang-pool-full" => {
            "Raise --mem-fraction-static or lower --max-running-requests: the token pool was full, not the device."
        }
        "ort-arena-limit" => "Raise gpu_mem_limit of the CUDA provider: the arena's limit refused, not the device.",
        "hami" => {
            "Raise the pod's GPU memory limit or make the process smaller: its share was used up, not the device."
        }
        "paddle" => "Raise FLAGS_gpu_memory_limit_mb: it refused the allocation, not the device.",
        "rmm" => "Raise the pool's maximum size: it refused the allocation, not the device.",
        "cupy" => "Raise the memory pool's limit (CUPY_GPU_MEMORY_LIMIT): it refused the allocation, not the device.",
        _ => {
            "Raise the process's memory fraction (set_per_process_memory_fraction or an injected limit): it refused, not the device."
        }
    };
    vec![raise, "If the limit is meant to protect neighbours, lower the batch size or context length instead."]
}

fn startup(report: &OomReport) -> Vec<&'static str> {
    match report.shape {
        "vllm-no-cache-blocks" => vec![
            "Raise --gpu-memory-utilization if the device has room beyond the weights; nothing was left of the share for the KV cache.",
            "Otherwise shard the model (--tensor-parallel-size), quantise it, or lower --max-model-len.",
        ],
        "vllm-free-below-share" => vec![
            "Find what else is on the device, an old pod still stopping included; the share is of the whole device.",
            "Lower --gpu-memory-utilization to what is free if the neighbour is meant to stay.",
        ],
        "vllm-context-too-long" => {
            vec![
                "Lower --max-model-len, or raise --gpu-memory-utilization: one request of full length does not fit the KV cache.",
            ]
        }
        "vllm-warm-up" => {
            vec!["Lower --max-num-seqs or --gpu-memory-utilization: the warm-up batch did not fit beside the cache."]
        }
        "sglang-weights-no-kv" => vec![
            "Raise --mem-fraction-static: the weights alone use up the static share.",
            "If it is near 1 already, shard the model (--tp) or quantise it.",
        ],
        "sglang-unbalanced" => {
            vec!["Free the devices that are occupied by other processes: the ranks see unequal free memory."]
        }
        "tgi-warmup" => vec!["Lower --max-batch-prefill-tokens or --max-batch-total-tokens, or shard the model."],
        _ => vec![
            "Shard or quantise the model, or shorten its context: weights and cache do not fit the device's budget.",
        ],
    }
}

fn device_full(report: &OomReport) -> Vec<&'static str> {
    let numbers = &report.numbers;
    let mut steps = Vec::new();
    let requested = numbers.requested.unwrap_or(Bytes::ZERO);
    let tenth = Bytes::from_f64(numbers.capacity.unwrap_or(Bytes::ZERO).as_f64() / 10.0);
    if numbers.elsewhere().is_some_and(|elsewhere| elsewhere > CONTEXTS.max(tenth)) {
        steps.push("Another process holds a good part of the device: list the processes on it and give this pod a device of its own.");
    }
    let in_pieces = |idle: Bytes| idle > tenth.max(Bytes::mib(256)) && idle >= requested;
    if numbers.idle().is_some_and(in_pieces) {
        steps.push(if report.framework == "PyTorch on ROCm" {
            "Set PYTORCH_HIP_ALLOC_CONF=expandable_segments:True: the allocator holds enough memory, but in pieces."
        } else {
            "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: the allocator holds enough memory, but in pieces."
        });
    }
    if numbers.capacity.is_some_and(|capacity| requested > capacity) {
        steps.push("One allocation is larger than the whole device: shrink that tensor (chunk it, shorten the sequence) or shard the model.");
    }
    if !report.is_fatal {
        steps.push("TensorFlow retries with less: with a shared device set TF_FORCE_GPU_ALLOW_GROWTH=true so that its pool starts small.");
    }
    if steps.is_empty() {
        steps.push(match report.framework {
            "llama.cpp" => "Offload fewer layers (--n-gpu-layers) or lower the context size.",
            "JAX" | "TensorFlow" => "Lower the batch size, or raise the pool's share (XLA_PYTHON_CLIENT_MEM_FRACTION) if the device is not shared.",
            "ONNX Runtime" | "TensorRT" => "Lower the batch size or the number of model instances on the device.",
            "NCCL" => "Leave the communicator room: lower the batch size or NCCL_BUFFSIZE.",
            _ => "Lower the batch size or context length, turn on activation checkpointing, or ask for a larger device.",
        });
    }
    steps.truncate(2);
    steps
}

//! Messages of inference servers and engines.

use super::super::Kind::{DeviceFull, Probable, SelfImposedLimit, StartupDoesNotFit};
use super::{OOM, Shape, WENT_WRONG, shape};

pub(super) const SHAPES: &[Shape] = &[
    shape(
        "vllm-no-cache-blocks",
        "vLLM",
        StartupDoesNotFit,
        &[&[
            "no available memory for the cache blocks",
            "no available memory for cache blocks",
            "no available memory for the kv cache",
            "no available memory for kv cache",
        ]],
    ),
    shape(
        "vllm-free-below-share",
        "vLLM",
        StartupDoesNotFit,
        &[&["free memory on device"], &["less than desired gpu memory utilization"]],
    ),
    shape(
        "vllm-context-too-long",
        "vLLM",
        StartupDoesNotFit,
        &[&["kv cache"], &["max seq len", "max_model_len", "max model len"], &["larger than"]],
    ),
    shape(
        "sglang-weights-no-kv",
        "SGLang",
        StartupDoesNotFit,
        &[
            &["memory"],
            &["leave no", "not enough", "insufficient", "no memory left", "exceed"],
            &["mem-fraction-static", "mem_fraction_static"],
        ],
    ),
    shape("sglang-unbalanced", "SGLang", StartupDoesNotFit, &[&["memory capacity is unbalanced"]]),
    shape("sglang-pool-full", "SGLang", SelfImposedLimit, &[&["prefill out of memory", "decode out of memory"]])
        .over(3),
    shape(
        "tgi-warmup",
        "TGI",
        StartupDoesNotFit,
        &[&["not enough memory to handle"], &["prefill tokens", "total tokens"]],
    ),
    shape(
        "kv-cache-no-fit",
        "inference server",
        StartupDoesNotFit,
        &[
            &["kv cache", "kvcache", "kv-cache"],
            &[
                "not enough",
                "no enough",
                "insufficient",
                "leave no",
                "leaves no",
                "impossible to fit",
                "no memory left",
            ],
            &["memory", "fit"],
            WENT_WRONG,
        ],
    ),
    shape(
        "weights-no-fit",
        "inference server",
        StartupDoesNotFit,
        &[
            &[
                "enough gpu ram to fit",
                "insufficient vram",
                "not enough vram",
                "not enough gpu memory to",
                "insufficient gpu memory to",
            ],
            WENT_WRONG,
        ],
    ),
    // === ONNX Runtime, TensorRT ===
    shape(
        "ort-arena-limit",
        "ONNX Runtime",
        SelfImposedLimit,
        &[&["bfcarena", "bfc_arena", "available memory of"], &["is smaller than requested bytes"]],
    )
    .shared_with_cpu(),
    shape("ort-bfcarena", "ONNX Runtime", DeviceFull, &[&["bfcarena", "bfc_arena"], &["failed to allocate"]])
        .shared_with_cpu(),
    shape("ort-cuda-failure-2", "ONNX Runtime", DeviceFull, &[&["failure 2"], OOM, &["gpu=", "expr="]]),
    shape(
        "tensorrt",
        "TensorRT",
        DeviceFull,
        &[
            &[
                "cuda runtime (out of memory)",
                "error code 2: outofmemory",
                "outofmemory (no further",
                "requested size was",
            ],
            &["memory", "requested size was"],
        ],
    )
    .over(2),
    // === llama.cpp ===
    shape(
        "llamacpp-buffer",
        "llama.cpp",
        DeviceFull,
        &[&["cudamalloc failed", "hipmalloc failed", "cudamalloc retry failed"], OOM],
    ),
    shape(
        "llamacpp-buffer",
        "llama.cpp",
        DeviceFull,
        &[
            &["failed to allocate", "unable to allocate"],
            &["cuda", "rocm", "hip", "vulkan", "sycl", "metal"],
            &["0 buffer", "1 buffer", "2 buffer", "3 buffer", "4 buffer", "5 buffer", "6 buffer", "7 buffer"],
        ],
    ),
    shape(
        "llamacpp-cuda-error",
        "llama.cpp",
        DeviceFull,
        &[&["cuda error: out of memory", "cuda error 2", "hip error: out of memory", "rocm error: out of memory"]],
    )
    .near(&["current device", "ggml"])
    .over(2),
    // The CPU backend says the same of its cache.
    shape("llamacpp-kv-cache", "llama.cpp", Probable, &[&["failed to allocate buffer for kv cache"]]),
    shape("tensorrt-tactic", "TensorRT", Probable, &[&["could not find any implementation"], &["insufficient"]]),
];

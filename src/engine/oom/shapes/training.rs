//! Messages of PyTorch, PaddlePaddle, TensorFlow and XLA.

use super::super::Kind::{DeviceFull, Probable, Secondary, SelfImposedLimit, StartupDoesNotFit};
use super::{OOM, STATUS, Shape, TRIED, shape};

pub(super) const SHAPES: &[Shape] = &[
    // === PyTorch ===
    shape("pt-1eb", "PyTorch", Secondary, &[&["tried to allocate more than 1eb"]]),
    shape("pt-async-allocator", "PyTorch", DeviceFull, &[&["would exceed allowed memory"]]).over(8),
    shape("pt-mps", "PyTorch", DeviceFull, &[&["mps backend out of memory"]]).over(2),
    shape("pt-fraction-allowed", "PyTorch", SelfImposedLimit, &[OOM, TRIED, &["b allowed", "bytes allowed"]]).over(2),
    shape("pt-hip", "PyTorch on ROCm", DeviceFull, &[&["hip out of memory"], TRIED]).over(2),
    shape("pt-private-pools", "PyTorch", DeviceFull, &[OOM, TRIED, &["in private pools"]]).over(2),
    shape("pt-21-capacty", "PyTorch", DeviceFull, &[OOM, TRIED, &["total capacty"]]).over(2),
    shape("pt-25-process-list", "PyTorch", DeviceFull, &[OOM, TRIED, &["total capacity of"]]).over(2),
    shape("pt-reserved-total", "PyTorch", DeviceFull, &[OOM, TRIED, &["reserved in total"]]).over(2),
    shape("pt-legacy-cached", "PyTorch", DeviceFull, &[OOM, TRIED, &["already allocated", "cached)"]]).over(2),
    shape("vllm-warm-up", "vLLM", StartupDoesNotFit, &[&["out of memory occurred when warming up"]]),
    shape(
        "pt-short",
        "PyTorch",
        DeviceFull,
        &[
            &[
                "uda out of memory",
                "xpu out of memory",
                "npu out of memory",
                "gpu out of memory",
                "mlu out of memory",
                "out of memory. tried",
                "out of memory, tried",
            ],
            TRIED,
        ],
    )
    .over(2),
    shape("pt-nvml-assert", "PyTorch", Probable, &[&["nvml_success =="], &["assert"]]),
    shape(
        "pt-exception",
        "PyTorch",
        DeviceFull,
        &[&["torch.cuda.outofmemoryerror:", "torch.outofmemoryerror:", "torch.xpu.outofmemoryerror:"]],
    )
    .over(2),
    // === PaddlePaddle, whose exception has the name of XLA's ===
    shape(
        "paddle",
        "PaddlePaddle",
        DeviceFull,
        &[
            &["out of memory error on gpu", "memory on gpu"],
            &["cannot allocate", "can not allocate", "out of memory error"],
        ],
    )
    .over(4),
    // === TensorFlow and XLA ===
    shape("tf-no-destination", "TensorFlow", Probable, &[&["dst tensor is not initialized"]]),
    shape("xla-constant", "JAX", DeviceFull, &[&["failed to allocate"], &["bytes for new constant"]]).shared_with_cpu(),
    shape(
        "tf-driver-failed-alloc",
        "TensorFlow",
        DeviceFull,
        &[&["failed to alloc"], &["from device", "on device"], STATUS],
    )
    .retried(),
    shape("tf-oom-tensor", "TensorFlow", DeviceFull, &[&["oom when allocating"], &["tensor", "shape"]])
        .shared_with_cpu(),
    shape("tf-bfc-stats", "TensorFlow", DeviceFull, &[&["stats:", "sum total of in-use chunks"]])
        .near(&["maxinuse:"])
        .over(8),
    shape("tf-bfc-stats", "TensorFlow", DeviceFull, &[&["limit:"]]).near(&["maxinuse:"]).over(4),
    shape(
        "tf-bfc-ran-out",
        "TensorFlow",
        DeviceFull,
        &[&["ran out of memory trying to allocate"], &["allocator", "gpu"]],
    ),
    shape(
        "tf-exhausted",
        "TensorFlow",
        DeviceFull,
        &[&["resourceexhausted", "resource exhausted", "resource_exhausted"], &["failed to allocate memory"]],
    )
    .shared_with_cpu(),
    shape("jax-failed-request", "JAX", DeviceFull, &[&["failed to allocate request for"]]).shared_with_cpu(),
    shape(
        "jax-out-of-memory",
        "JAX",
        DeviceFull,
        &[
            &["resource_exhausted", "resourceexhausted", "resource exhausted"],
            &["out of memory", "ran out of memory", "that was not possible"],
        ],
    )
    .over(1)
    .shared_with_cpu(),
];

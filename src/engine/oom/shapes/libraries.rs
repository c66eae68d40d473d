//! Messages of libraries below the frameworks, and those that anyone prints.

use super::super::Kind::{DeviceFull, Probable, SelfImposedLimit};
use super::{OOM, STATUS, Shape, WENT_WRONG, shape};

pub(super) const SHAPES: &[Shape] = &[
    shape(
        "cublas-alloc-failed",
        "CUDA libraries",
        Probable,
        &[&[
            "cublas_status_alloc_failed",
            "cudnn_status_alloc_failed",
            "cusolver_status_alloc_failed",
            "cusparse_status_alloc_failed",
            "rocblas_status_memory_error",
            "hipblas_status_alloc_failed",
            "miopenstatusallocfailed",
            "cufft_alloc_failed",
            "device_allocation_failed",
        ]],
    ),
    shape(
        "cublas-not-initialized",
        "CUDA libraries",
        Probable,
        &[&[
            "cublas_status_not_initialized",
            "cudnn_status_not_initialized",
            "could not create cudnn handle",
            "could not create cublas handle",
            "unable to find a valid cudnn algorithm",
            "unable to find an engine to execute",
            "batched plan with scratch allocator",
            "hsa_status_error_out_of_resources",
            "pi_error_out_of_resources",
            "ur_result_error_out_of_resources",
        ]],
    ),
    shape(
        "nccl",
        "NCCL",
        DeviceFull,
        &[&["nccl"], &["cuda failure", "cuda malloc", "cuda calloc", "hip failure"], &["out of memory", "failed to"]],
    ),
    shape("cupy", "CuPy", DeviceFull, &[&["out of memory to allocate"], &["bytes"]]),
    shape(
        "cupy",
        "CuPy",
        DeviceFull,
        &[&["out of memory allocating"], &["cupy", "allocated so far", "outofmemoryerror"]],
    ),
    shape("numba-driver", "CUDA driver", DeviceFull, &[&["cumemalloc", "cumemcreate"], STATUS]),
    shape("cudarc", "cudarc", DeviceFull, &[&["drivererror(cuda_error_out_of_memory"]]),
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
    shape(
        "rmm",
        "RAPIDS",
        SelfImposedLimit,
        &[&["maximum pool size exceeded", "exceeded memory limit"], &["rmm", "out_of_memory", "bad_alloc"]],
    ),
    shape("rmm", "RAPIDS", DeviceFull, &[&["bad_alloc", "rmm"], &["cuda", "rmm failure"], OOM]),
    shape("hami", "HAMi", SelfImposedLimit, &[&["hami"], &[" oom "]]),
    // === Whoever prints it ===
    shape("cuda-status", "CUDA", DeviceFull, &[STATUS]),
    shape(
        "cuda-out-of-memory",
        "CUDA",
        DeviceFull,
        &[
            &[
                "cuda error: out of memory",
                "hip error: out of memory",
                "cuda runtime error",
                "cuda runtime api error",
                "cuda driver error",
                "cuda failure",
                "error=2 :",
                "cuda error 2",
                "cuda failed with error",
                "gpu api call",
                "cuda error",
            ],
            OOM,
        ],
    )
    .over(2),
    shape(
        "gpu-out-of-memory",
        "GPU",
        DeviceFull,
        &[
            &[
                "cuda out of memory",
                "hip out of memory",
                "gpu out of memory",
                "cuda: out of memory",
                "out of memory on gpu",
                "out of memory on device",
                "out of device memory",
                "out of gpu memory",
                "out of vram",
                "wgpu error: out of memory",
                "cuda memory allocation failed",
                "gpu is out of memory",
                "gpu ran out of memory",
                "device out of memory",
            ],
            WENT_WRONG,
        ],
    ),
    shape("julia", "CUDA.jl", DeviceFull, &[&["out of gpu memory trying to allocate"]]).over(3),
    shape(
        "gpu-out-of-memory-vague",
        "GPU",
        Probable,
        &[
            &["cuda", "gpu memory", "rocm", "nccl", "cublas", "cudnn", "vram", "hip error"],
            OOM,
            &["error:", "exception:", "fatal", "panicked", "aborted", "terminate called", "failed:"],
        ],
    ),
];

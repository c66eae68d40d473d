//! Messages of the same kinds that are not in the committed table: other versions, other programs.
//! Numbers are invented.

use super::super::*;

const FOUND: &[(&str, Kind)] = &[
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU 3 has a total capacity of 79.15 GiB of which 41.88 MiB is free. Including non-PyTorch memory, this process has 79.10 GiB memory in use. Of the allocated memory 77.60 GiB is allocated by PyTorch, and 410.10 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
        Kind::DeviceFull,
    ),
    (
        "RuntimeError: NPU out of memory. Tried to allocate 1.90 GiB (NPU 7; 60.96 GiB total capacity; 46.97 GiB already allocated; 46.97 GiB current active; 1.65 GiB free; 47.25 GiB reserved in total by PyTorch)",
        Kind::DeviceFull,
    ),
    (
        "RuntimeError: XPU out of memory. Tried to allocate 12.00 GiB. GPU 0 has a total capacity of 15.9 GiB.",
        Kind::DeviceFull,
    ),
    (
        "RuntimeError: MPS backend out of memory (MPS allocated: 17.20 GB, other allocations: 1.60 GB, max allowed: 18.13 GB). Tried to allocate 1.20 GB on private pool.",
        Kind::SelfImposedLimit,
    ),
    ("torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)", Kind::DeviceFull),
    ("torch.AcceleratorError: CUDA error: out of memory", Kind::DeviceFull),
    ("RuntimeError: CUDA error: out of memory", Kind::DeviceFull),
    ("RuntimeError: CUDA out of memory.", Kind::DeviceFull),
    (
        "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58",
        Kind::DeviceFull,
    ),
    (
        "THCudaCheck FAIL file=/pytorch/aten/src/THC/generic/THCStorage.cu line=58 error=2 : out of memory",
        Kind::DeviceFull,
    ),
    (
        "W tensorflow/core/framework/op_kernel.cc:1651] OP_REQUIRES failed at conv_ops.cc:486 : Resource exhausted: OOM when allocating tensor with shape[32,64,128,128] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        Kind::DeviceFull,
    ),
    (
        "W external/local_xla/xla/tsl/framework/bfc_allocator.cc:497] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.10GiB (rounded to 2254857984)requested by op model/dense",
        Kind::DeviceFull,
    ),
    (
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.",
        Kind::DeviceFull,
    ),
    (
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 19.59GiB. [executable_name='jit_f']",
        Kind::DeviceFull,
    ),
    (
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Attempting to allocate 2.30G. That was not possible. There are 1.50G free.; (0x0x0_HBM0)",
        Kind::DeviceFull,
    ),
    (
        "ValueError: Free memory on device cuda:0 (7.34/15.49 GiB) on startup is less than desired GPU memory utilization (0.8, 12.39 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
        Kind::StartupDoesNotFit,
    ),
    (
        "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (9120). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
        Kind::StartupDoesNotFit,
    ),
    (
        "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (10.05 GiB).",
        Kind::StartupDoesNotFit,
    ),
    (
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. Please try lowering `max_num_seqs`",
        Kind::StartupDoesNotFit,
    ),
    (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.5",
        Kind::StartupDoesNotFit,
    ),
    ("torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 39.41 GiB", Kind::DeviceFull),
    (
        "onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) Available memory of 1048576 is smaller than requested bytes of 4194304",
        Kind::SelfImposedLimit,
    ),
    (
        "[E:onnxruntime:Default] CUDA failure 2: out of memory ; GPU=0 ; hostname=b ; file=/onnxruntime_src/cuda_allocator.cc ; line=47 ; expr=cudaMalloc((void**)&p, size);",
        Kind::DeviceFull,
    ),
    ("[TRT] [E] 1: [defaultAllocator.cpp::allocate::20] Error Code 1: Cuda Runtime (out of memory)", Kind::DeviceFull),
    (
        "[TRT] [W] Requested amount of GPU memory (8388608 bytes) could not be allocated. [E] 2: [executionContext.cpp] Error Code 2: OutOfMemory (no further information)",
        Kind::DeviceFull,
    ),
    (
        "terminate called after throwing an instance of 'tensorrt_llm::common::TllmException'\n  what():  [TensorRT-LLM][ERROR] CUDA runtime error in cudaMalloc: out of memory",
        Kind::DeviceFull,
    ),
    (
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 13285.50 MiB on device 0: cudaMalloc failed: out of memory",
        Kind::DeviceFull,
    ),
    ("ggml_gallocr_reserve_n_impl: failed to allocate ROCm0 buffer of size 1879048192", Kind::DeviceFull),
    (
        "time=2026-01-01T00:00:00Z level=ERROR source=sched.go:450 msg=\"error loading llama server\" error=\"llama runner process has terminated: cudaMalloc failed: out of memory\"",
        Kind::DeviceFull,
    ),
    ("CUDA error 2 at ggml-cuda.cu:7233: out of memory", Kind::DeviceFull),
    ("node-a:812:940 [3] include/alloc.h:102 NCCL WARN Cuda failure 2 'out of memory'", Kind::DeviceFull),
    ("node-a:812:940 [3] include/alloc.h:125 NCCL WARN Failed to CUDA calloc async 6291456 bytes", Kind::DeviceFull),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", Kind::Probable),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", Kind::Probable),
    ("RuntimeError: Unable to find a valid cuDNN algorithm to run convolution", Kind::Probable),
    (
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 1,070,000,000 bytes (allocated so far: 12,300,000,000 bytes).",
        Kind::DeviceFull,
    ),
    (
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 1,070,000,000 bytes (allocated so far: 3,300,000,000 bytes, limit set to: 4,000,000,000 bytes).",
        Kind::SelfImposedLimit,
    ),
    (
        "numba.cuda.cudadrv.driver.CudaAPIError: [CUresult.CUDA_ERROR_OUT_OF_MEMORY] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY",
        Kind::DeviceFull,
    ),
    (
        "MemoryError: std::bad_alloc: out_of_memory: CUDA error (failed to allocate 33295450768 bytes) at: cuda_memory_resource.hpp:62: cudaErrorMemoryAllocation out of memory",
        Kind::DeviceFull,
    ),
    (
        "MemoryError: std::bad_alloc: out_of_memory: RMM failure at:pool_memory_resource.hpp:252: Maximum pool size exceeded",
        Kind::SelfImposedLimit,
    ),
    (
        "ResourceExhaustedError: Out of memory error on GPU Virtual Memory 0. Cannot allocate 27.0MB memory on GPU 0, available memory is only 4.06MB.",
        Kind::DeviceFull,
    ),
    ("RuntimeError: CUDA failed with error out of memory", Kind::DeviceFull),
    ("ERROR: LoadError: Out of GPU memory trying to allocate 1.000 GiB", Kind::DeviceFull),
    (
        "thread 'main' panicked at src/main.rs:9: called `Result::unwrap()` on an `Err` value: DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")",
        Kind::DeviceFull,
    ),
    (
        "mxnet.base.MXNetError: [00:00:00] pooled_storage_manager.h:161: cudaMalloc retry failed: out of memory",
        Kind::DeviceFull,
    ),
    ("parallel_for failed: cudaErrorMemoryAllocation: out of memory", Kind::DeviceFull),
    (
        "terminate called after throwing an instance of 'vk::OutOfDeviceMemoryError'\n  what():  vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
        Kind::DeviceFull,
    ),
    ("Unexpected error: CUDA out of memory. Tried to allocate 1.00 GiB", Kind::DeviceFull),
    (
        "RuntimeError: NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp:1090",
        Kind::Probable,
    ),
    ("[TensorRT-LLM][ERROR] Assertion failed: Impossible to fit in any sequence in kvCache", Kind::StartupDoesNotFit),
    ("RuntimeError: Failed to commit: CUDA driver error: out of memory", Kind::DeviceFull),
    (
        "[HAMI-core ERROR (pid:12 thread=34 allocator.c:52)]: Device 0 OOM 25770852352 / 25769803776",
        Kind::SelfImposedLimit,
    ),
    (
        "INFO 01-02 launcher.py:3] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB",
        Kind::DeviceFull,
    ),
    (
        "2026-01-20T15:24:43Z ERROR vllm_rs: KVCache allocation failed: Insufficient GPU memory for it.",
        Kind::StartupDoesNotFit,
    ),
    ("  | (EngineCore_DP0 pid=9) ValueError: No available memory for the cache blocks.", Kind::StartupDoesNotFit),
    ("Last error:\nFailed to CUDA calloc async 6291456 bytes", Kind::DeviceFull),
    ("InternalError: Dst tensor is not initialized.", Kind::Probable),
    ("InternalError: CUDA runtime implicit initialization on GPU:0 failed. Status: out of memory", Kind::DeviceFull),
    ("RESOURCE_EXHAUSTED: Failed to allocate 2147483648 bytes for new constant", Kind::DeviceFull),
    ("llama_kv_cache_init: failed to allocate buffer for kv cache", Kind::Probable),
    ("[TRT] [E] 10: Could not find any implementation for node {c} due to insufficient workspace", Kind::Probable),
    ("E0102 x.cc:9] failed to load 'x': Internal: unable to allocate memory on GPU: out of memory", Kind::DeviceFull),
    ("pycuda._driver.MemoryError: cuMemAlloc failed: out of memory", Kind::DeviceFull),
    ("tvm.error.InternalError: Check failed: (e == cudaSuccess) is false: CUDA: out of memory", Kind::DeviceFull),
    ("Memory allocation error on worker 0: std::bad_alloc: cudaErrorMemoryAllocation", Kind::DeviceFull),
];

const NOT_FOUND: &[&str] = &[
    "RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to allocate 2359296 bytes. Error code 12 (Cannot allocate memory)",
    "numpy.core._exceptions.MemoryError: Unable to allocate 8.00 GiB for an array with shape (1024, 1048576) and data type float64",
    "java.lang.OutOfMemoryError: Java heap space",
    "java.lang.OutOfMemoryError: Cannot reserve 4194304 bytes of direct buffer memory (allocated: 1, limit: 2)",
    "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
    "[1234.5] Memory cgroup out of memory: Killed process 812 (cuda-worker) total-vm:1kB",
    "[1234.5] Out of memory: Killed process 812 (python3) total-vm:99kB, anon-rss:98kB",
    "E tensorflow/stream_executor/cuda/cuda_driver.cc:893] failed to alloc 8589934592 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[9,9] and type float on /job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu",
    "ggml_cuda_host_malloc: failed to allocate 1024.00 MiB of pinned memory: out of memory",
    "ggml_gallocr_reserve_n_impl: failed to allocate CPU buffer of size 1879048192",
    "CUDA failure 2: out of memory ; GPU=0 ; hostname=b ; expr=cudaHostAlloc((void**)&p, size, 0x00);",
    "grpc._channel._InactiveRpcError: RESOURCE_EXHAUSTED: Received message larger than max (5 vs. 4)",
    "RESOURCE_EXHAUSTED: Quota exceeded for quota metric 'requests'",
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376",
    "RuntimeError: DataLoader worker (pid 12) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
    "Tip: reduce --batch-size if you run into torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate ...",
    "tests/test_oom.py::test_splits_batch[CUDA out of memory. Tried to allocate 2.00 GiB] PASSED [ 12%]",
    "    with pytest.raises(RuntimeError, match=\"CUDA out of memory. Tried to allocate\"):",
    "    raise RuntimeError(\"CUDA out of memory. Tried to allocate 2.00 GiB\")",
    "    except torch.cuda.OutOfMemoryError:",
    "INFO logger.py:39] Received request cmpl-1: prompt: 'How do I fix RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB?'",
    "{\"level\":\"warning\",\"msg\":\"CUDA out of memory. Tried to allocate 2.00 GiB, reducing batch size to 8\"}",
    "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity), skipping batch 12",
    "OOM during validation, retrying with micro batch 2: RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "[TRT] [W] Tactic Device request: 4500MB Available: 2500MB. Device memory is insufficient to use tactic.",
    "INFO: set max_split_size_mb to prevent CUDA_ERROR_OUT_OF_MEMORY",
    "  --oom-retries N   what to do on OOM (GPU out of memory)",
    "INFO worker.py] Available KV cache memory: 12.3 GiB, GPU memory utilization 0.9",
    "Error: 1 pod out of memory quota",
    "error: Out of memory allocating 48 bytes for symbol table",
    "srun: error: gpu-node-3: task 0: Out Of Memory",
    "gpu-node-3 kernel: fatal: process table: out of memory",
    "/usr/local/cuda/bin/nvcc: cc1plus: fatal error: out of memory allocating 65536 bytes",
    "Sequence group 0 is preempted because there is not enough KV cache space. Increase gpu_memory_utilization. total errors 0",
    "Error: model requires more system memory (9.1 GiB) than is available (7.0 GiB) (GPU out of memory budget)",
    "ValueError: Too large swap space. 8.00 GiB out of the 15.00 GiB total CPU memory is allocated for the swap space.",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "W0410 memory.cc:212] Failed to allocate CUDA memory with byte size 102236160 on GPU 0: CNMEM_STATUS_OUT_OF_MEMORY, falling back to pinned system memory",
    "RuntimeError: Caught RuntimeError in pin memory thread for device 0.\nOriginal Traceback (most recent call last):\n    data = loop()\nRuntimeError: CUDA error: out of memory",
    "DEBUG CUDA out of memory. Tried to allocate 196.00 MiB (GPU 0; 15.78 GiB total capacity; 13.57 GiB already allocated; 46.75 MiB free; 14.10 GiB reserved in total by PyTorch)",
    "Error: mmap failed: Cannot allocate memory",
    "Evicted: The node was low on resource: memory. Container gpu-worker was using 9Gi",
];

#[test]
fn other_wordings_of_the_same_failures_are_found() {
    let wrong: Vec<_> = FOUND
        .iter()
        .filter_map(|(text, kind)| {
            let found = classify(text).map(|report| (report.kind, report.shape));
            (found.map(|(kind, _)| kind) != Some(*kind)).then(|| format!("{found:?} for {text}"))
        })
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn host_memory_talk_and_survived_errors_are_left_alone() {
    let wrong: Vec<_> = NOT_FOUND
        .iter()
        .filter_map(|text| classify(text).map(|report| format!("{} for {text}", report.shape)))
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn a_start_check_names_what_it_wanted_and_what_it_had() {
    let tail = "ValueError: Free memory on device cuda:0 (7.50/15.50 GiB) on startup is less than desired GPU memory utilization (0.8, 12.25 GiB).";
    let numbers = classify(tail).expect("a start check").numbers;
    let gib = |n: f64| Some(Bytes::from_f64(n * 1024.0 * 1_048_576.0));
    assert_eq!((numbers.free, numbers.capacity, numbers.requested), (gib(7.5), gib(15.5), gib(12.25)));
}

#[test]
fn a_message_broken_over_lines_keeps_its_numbers() {
    let tail = "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 39.50 GiB\nGPU 0 has a total capacity of 31.50 GiB of which 2.00 GiB is free.";
    let numbers = classify(tail).expect("an OOM").numbers;
    assert_eq!((numbers.capacity, numbers.free), (Some(Bytes::mib(32_256)), Some(Bytes::gib(2))));
}

#[test]
fn an_arena_of_the_cpu_provider_is_host_memory() {
    let arena = "BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 930000000";
    assert_eq!(classify(&format!("providers: ['CPUExecutionProvider']\n{arena}")), None);
    assert!(classify(&format!("providers: ['CUDAExecutionProvider', 'CPUExecutionProvider']\n{arena}")).is_some());
}

#[test]
fn the_framework_is_told_where_two_share_an_exceptions_name() {
    let framework = |tail: &str| classify(tail).map(|report| report.framework);
    let paddle = "ResourceExhaustedError: Out of memory error on GPU 0. Cannot allocate 40.1MB memory on GPU 0.";
    assert_eq!(framework(paddle), Some("PaddlePaddle"));
    assert_eq!(framework("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes."), Some("JAX"));
}

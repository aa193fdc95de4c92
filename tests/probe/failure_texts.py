"""What libraries really say when memory ran out, and what merely sounds like it; each from its source or a user's report."""

_ASYNCHRONOUS = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
_SEARCH = (
    "Search for `{}' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.\n"
)
_TF32 = (
    "PyTorch is checking whether allow_tf32_new is enabled for cuBlas matmul,Current status indicate that you have used mix "
    "of the legacy and new APIs to set the TF32 status for cublas matmul. We suggest only using the new API to set the TF32 "
    "flag. See also: https://pytorch.org/docs/main/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices"
)

OUT_OF_MEMORY = {
    "CUDA allocator": (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.75 GiB of which 1.19 GiB is "
        "free. Process 4711 has 13.55 GiB memory in use. Of the allocated memory 11.20 GiB is allocated by PyTorch, and "
        "2.21 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management"
    ),
    "CUDA allocator, earlier wording": (
        "CUDA out of memory. Tried to allocate 2.87 GiB (GPU 0; 14.76 GiB total capacity; 8.77 GiB already allocated; "
        "19.75 MiB free; 13.71 GiB reserved in total by PyTorch)"
    ),
    "CUDA allocator under a fraction": (
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.14 GiB of which 75.01 GiB is "
        "free. 2.51 GiB allowed; Of the allocated memory 2.48 GiB is allocated by PyTorch"
    ),
    "CUDA error, asynchronous": "CUDA error: out of memory\n" + _ASYNCHRONOUS,
    "CUDA error, with a link": "CUDA error: out of memory\n"
    + _SEARCH.format("cudaErrorMemoryAllocation")
    + _ASYNCHRONOUS,
    "CUDA driver": "CUDA driver error: out of memory",
    "cuBLAS": "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuSOLVER": "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
    "cuFFT": "cuFFT error: CUFFT_ALLOC_FAILED",
    "cuDNN": "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN 9": "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "cuDNN, engine": "GET was unable to find an engine to execute this computation",
    "cuDNN, engine found by trying": "FIND was unable to find an engine to execute this computation",
    "cuDNN, algorithm": "Unable to find a valid cuDNN algorithm to run convolution",
    "HIP allocator": (
        "HIP out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 23.98 GiB of which 1.06 GiB is free."
    ),
    "HIP error": (
        "HIP error: out of memory\nHIP kernel errors might be asynchronously reported at some other API call, so the "
        "stacktrace below might be incorrect.\nFor debugging consider passing AMD_SERIALIZE_KERNEL=3\n"
        "Compile with `TORCH_USE_HIP_DSA` to enable device-side assertions.\n"
    ),
    "MPS": (
        "MPS backend out of memory (MPS allocated: 9.57 GiB, other allocations: 17.35 GiB, max allowed: 27.20 GiB). Tried "
        "to allocate 292.50 MiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for "
        "memory allocations (may cause system failure)."
    ),
    "MPS, earlier wording": (
        "MPS backend out of memory (MPS allocated: 5.56 GB, other allocations: 1.10 GB, max allowed: 6.80 GB). Tried to "
        "allocate 768.00 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit"
    ),
    "MPS, small": (
        "MPS backend out of memory (MPS allocated: 16.00 GB, other allocations: 3.31 GB, max allowed: 18.13 GB). Tried to "
        "allocate 256 bytes on shared pool."
    ),
    "XPU allocator": (
        "XPU out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 15.11 GiB. Of the allocated memory "
        "8.02 GiB is allocated by PyTorch, and 12.50 MiB is reserved by PyTorch but unallocated."
    ),
    "XPU runtime": "Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
    "XPU runtime, resources": "level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)",
    "XPU runtime, earlier wording": "Native API failed. Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES)",
    "NCCL": (
        "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled cuda error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclUnhandledCudaError: Call to CUDA function failed.\n"
        "Last error:\nCuda failure 2 'out of memory'"
    ),
    "NCCL, earlier wording": "node:18451:18451 [0] enqueue.cc:1085 NCCL WARN Cuda failure 'out of memory'",
    "NCCL, calloc": (
        "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, unhandled cuda error\n"
        "Last error:\nFailed to CUDA calloc async 608 bytes"
    ),
    "bitsandbytes": "Error out of memory at line 380 in file /src/csrc/pythonInterface.cpp",
    "bitsandbytes, kernels": "Error out of memory at line 88 in file /src/csrc/ops.cu",
    "torch on a CPU": (
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
        "1099511627776 bytes. Error code 12 (Cannot allocate memory)"
    ),
    "torch on a CPU, Windows": (
        "[enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: not enough memory: you tried to allocate "
        "4294967296 bytes."
    ),
    "torch on a CPU, earlier wording": (
        "[enforce fail at CPUAllocator.cpp:64] posix_memalign(&data, gAlignment, nbytes) == 0. 12 vs 0. "
        "DefaultCPUAllocator: not enough memory: you tried to allocate 5GB. Buy new RAM!"
    ),
    "errno 12": "[Errno 12] Cannot allocate memory",
    "torch, mapping": "unable to mmap 4194304 bytes from file </torch_4711_1937_0>: Cannot allocate memory (12)",
    "torch, shared memory": "unable to allocate shared memory(shm) for file </torch_4711_1937_0>: No space left on device (28)",
    "torch, shared memory, no reason": (
        "unable to allocate shared memory(shm) for file </torch_4711_1937_0>: Resource temporarily unavailable (11)"
    ),
    "torch, shared memory object": (
        "unable to open shared memory object </torch_4711_1937_0> in read-write mode: No space left on device (28)"
    ),
    "loader worker, bus error": (
        "DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that dataloader's workers are out of "
        "shared memory. Please try to raise your shared memory limit."
    ),
    "loader worker, log": (
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm)."
    ),
    "numpy": ("Unable to allocate 8.00 GiB for an array with shape (32768, 32768) and data type float64"),
    "numpy, by name": "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 3.05 MiB for an array with shape (1,)",
    "Arrow": "malloc of size 1099511627776 failed",
    "Arrow, growing": "realloc of size 4096 failed",
    "Arrow, by name": "pyarrow.lib.ArrowMemoryError: malloc of size 64 failed",
    "C++": "std::bad_alloc",
    "a host allocator": "mimalloc: error: unable to allocate memory (1073741824 bytes)",
    "a host allocator, of the system": (
        "mimalloc: error: unable to allocate OS memory (error: 12 (0xc), addr: 0x0, size: 0x40000000 bytes, align: 0x400, "
        "commit: 1, allow large: 1)"
    ),
    "jemalloc": "<jemalloc>: Error in mmap(): err: 12, msg: Cannot allocate memory",
    "tcmalloc": "src/tcmalloc.cc:332] tcmalloc: large alloc 8589934592 bytes == (nil) @  0x7f0e0a1f1a1f",
    "tcmalloc, later wording": "tcmalloc: allocation failed 8589934592",
    "glibc": "malloc: Cannot allocate memory",
    "GNU tools": "xrealloc: cannot allocate 1048576 bytes",
    "GNU tools, in words": "virtual memory exhausted: Cannot allocate memory",
    "the C++ compiler": "InductorError: CppCompileError: cc1plus: out of memory allocating 65536 bytes after a total of 1 GB",
    "Rust": "memory allocation of 8589934592 bytes failed",
    "Rust, by errno": "Cannot allocate memory (os error 12)",
    "JavaScript, of a notebook": "FATAL ERROR: Reached heap limit Allocation failed - out of memory: failed to allocate 64 MB",
    "Python's fork": "OSError: [Errno 12] Cannot allocate memory",
    "Windows": "[WinError 1455] The paging file is too small for this operation to complete",
    "Windows, in words": "Not enough memory resources are available to process this command",
    "RMM": "std::bad_alloc: out_of_memory: CUDA error at: cuda_memory_resource.hpp:70: cudaErrorMemoryAllocation out of memory",
    "Thrust": "parallel_for failed: cudaErrorMemoryAllocation: out of memory",
    "CuPy": "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes (allocated so far: 1,024 bytes).",
    "Triton": "Triton Error [CUDA]: out of memory",
    "CUDA driver, by name": "cuMemCreate failed with CUDA_ERROR_OUT_OF_MEMORY",
    "CUDA driver, by name and words": "failed to alloc 17179869184 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    "NVRTC": "nvrtc: error: NVRTC_ERROR_OUT_OF_MEMORY",
    "cuSPARSE": "CUDA error: CUSPARSE_STATUS_ALLOC_FAILED when calling `cusparseCreate(handle)`",
    "cuRAND": "CURAND_STATUS_ALLOCATION_FAILED",
    "cuDNN 9, host": "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
    "pinning thread": "Caught RuntimeError in pin memory thread for device 0.\nRuntimeError: CUDA error: out of memory\n"
    + _ASYNCHRONOUS,
    "DeepSpeed, pinned": "deepspeed.ops.aio: failed to allocate 2147483648 bytes of pinned memory",
    "HIP, rocBLAS": "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
    "HIP, older name": "HIP runtime error: hipErrorMemoryAllocation",
    "ComfyUI": "OutOfMemoryError: Allocation on device",
    "llama.cpp": "allocating 2000.00 MiB on device 0: cudaMalloc failed: out of memory",
    "ONNX Runtime": "Failed to allocate memory for requested buffer of size 1073741824",
    "HSA": (
        "HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources. This error may also occur "
        "when the core runtime library needs to spawn threads or create internal OS-specific events."
    ),
    "HIP, by name": "hipErrorOutOfMemory: out of memory",
    "a runtime": "RuntimeError: out of memory: failed to allocate 4.00 GiB on device 0",
    "Level Zero": "level_zero backend failed with ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
    "XPU runtime, host": "Native API failed. Native API returns: 38 (UR_RESULT_ERROR_OUT_OF_HOST_MEMORY)",
    "XPU extension": "Allocation is out of device memory on current platform.",
    "OpenCL": "clEnqueueNDRangeKernel: CL_OUT_OF_HOST_MEMORY",
    "MPS, one tensor": "Invalid buffer size: 39.06 GiB",
    "MPS, command buffer": (
        "Error: command buffer exited with error status. Insufficient Memory (00000008:"
        "kIOGPUCommandBufferCallbackErrorOutOfMemory)"
    ),
    "XLA": "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
    "TensorFlow": "OOM when allocating tensor with shape[8,1024,1024] and type float on GPU:0 by allocator GPU_0_bfc",
    "TensorFlow, allocator": "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB (rounded to 2147483648)",
    "Arrow, mapping": "OSError: Memory mapping file failed: Cannot allocate memory",
    "Arrow, in full": "pyarrow.lib.ArrowMemoryError: Out of memory: malloc of size 8589934592 failed",
    "safetensors": "safetensors_rust.SafetensorError: Error preparing tensor for reading: Cannot allocate memory (os error 12)",
    "torch, shared file": "unable to write to file </torch_4711_1937_0>: No space left on device (28)",
    "pandas": "numpy.core._exceptions.MemoryError: Unable to allocate 14.9 GiB for an array with shape (2000000000,)",
    "OpenMP": "libgomp: Thread creation failed: Resource temporarily unavailable",
}

OTHER = {
    "Triton's tile": (
        "unsupported",
        "out of resource: shared memory, Required: 131072, Hardware limit: 101376. Reducing block sizes or `num_stages` "
        "may help.",
    ),
    "Triton's tile, by name": (
        "unsupported",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 66560, Hardware limit: 65536. "
        "Reducing block sizes or `num_stages` may help.",
    ),
    "Triton's registers": (
        "unsupported",
        "out of resource: tensor memory, Required: 640, Hardware limit: 512. Reducing block sizes or `num_stages` may help.",
    ),
    "no code for the chip": (
        "unsupported",
        "CUDA error: no kernel image is available for execution on the device\n" + _ASYNCHRONOUS,
    ),
    "no checkpointing": ("unsupported", "'Tiny' object has no attribute 'gradient_checkpointing_enable'"),
    "no checkpointing, transformers": ("unsupported", "OwnModel does not support gradient checkpointing."),
    "no compiler's work": (
        "unsupported",
        "InductorError: CppCompileError: C++ compile error\n\nCommand:\ng++ /tmp/x.main.cpp -shared",
    ),
    "flash attention": ("unsupported", "FlashAttention only support fp16 and bf16 data type"),
    "flash attention 3": ("unsupported", "FlashAttention only supports fp16, bf16, and fp8_e4m3 data type"),
    "TF32, asked for while compiling": ("unsupported", f"InductorError: LoweringException: RuntimeError: {_TF32}"),
    "TF32, asked for anywhere": ("unsupported", _TF32),
    "flash attention, toggled on": (
        "unsupported",
        "FlashAttention2 has been toggled on, but it cannot be used due to the following error: the package flash_attn seems "
        "to be not installed.",
    ),
    "flash attention 3, toggled on": (
        "unsupported",
        "FlashAttention3 has been toggled on, but cannot be used: Flash Attention 3 requires CUDA.",
    ),
    "flash attention, older card": ("unsupported", "FlashAttention only supports Ampere GPUs or newer."),
    "flash attention, head": ("unsupported", "FlashAttention forward only supports head dimension at most 256"),
    "flash attention, numbers": (
        "unsupported",
        "Flash Attention 2 only supports torch.float16 and torch.bfloat16 dtypes, but the current dtype is torch.float32.",
    ),
    "xFormers": (
        "unsupported",
        "No operator found for `memory_efficient_attention_forward` with inputs:\n     query       : shape=(1, 2, 1, 40)",
    ),
    "xFormers, capability": (
        "unsupported",
        "requires device with capability > (8, 0) but your GPU has capability (7, 5) (too old)",
    ),
    "cuDNN attention, execution": ("unsupported", "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    "cuDNN attention, graph": (
        "unsupported",
        "Expected mha_graph->execute(handle, variant_pack, workspace_ptr.get()).is_good() to be true, but got false.",
    ),
    "cuDNN attention, plans": (
        "unsupported",
        "cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph.",
    ),
    "CUDA graphs, overwritten": (
        "unsupported",
        "Error: accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run. Stack trace: File "
        '"model.py", line 7. To prevent overwriting, clone the tensor outside of torch.compile() or call '
        "torch.compiler.cudagraph_mark_step_begin() before each model invocation.",
    ),
    "CUDA graphs, capturing": (
        "unsupported",
        "CUDA error: operation not permitted when stream is capturing\n" + _ASYNCHRONOUS,
    ),
    "CUDA graphs, ended": (
        "unsupported",
        "CUDA error: operation failed due to a previous error during capture\n" + _ASYNCHRONOUS,
    ),
    "Triton, a format": (
        "unsupported",
        "type fp8e4nv not supported in this architecture. The supported fp8 dtypes are fp8e5",
    ),
    "ptxas": ("unsupported", "ptxas /tmp/x.ptx, line 80; error: Feature '.bf16' requires .target sm_80 or higher"),
    "Triton, missing": (
        "unsupported",
        "Cannot find a working triton installation. Either the package is not installed",
    ),
    "compiling, Python": ("unsupported", "torch.compile is not supported on Python 3.14+"),
    "compiling, Windows": ("unsupported", "Windows not yet supported for torch.compile"),
    "DeepSpeed, no compiler": (
        "unsupported",
        "MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA op(s)",
    ),
    "DeepSpeed, no operation": (
        "unsupported",
        "Unable to JIT load the cpu_adam op due to it not being compatible due to hardware/software issue. None",
    ),
    "bitsandbytes, no card": ("unsupported", "No GPU found. A GPU is needed for quantization."),
    "quantized weights": (
        "unsupported",
        "You cannot perform fine-tuning on purely quantized models. Please attach trainable adapters on top of it",
    ),
    "MPS, no operator": (
        "unsupported",
        "The operator 'aten::_linalg_solve_ex.result' is not currently implemented for the MPS device.",
    ),
    "no backend": (
        "unsupported",
        "Could not run 'aten::_scaled_mm' with arguments from the 'CPU' backend. This could be because the operator "
        "doesn't exist for this backend",
    ),
    "a library loaded too late": ("unsupported", "libgomp.so.1: cannot allocate memory in static TLS block"),
    "shared memory that is closed": (
        "crashed",
        "unable to allocate shared memory(shm) for file </torch_4711_1937_0>: Permission denied (13)",
    ),
    "advice on memory": ("crashed", "shapes differ; if you run out of memory, lower the batch size, says the manual"),
    "advice on allocators": (
        "crashed",
        "expandable_segments not supported on this platform; see the memory management notes",
    ),
    "memory bandwidth": ("crashed", "insufficient memory bandwidth counters for this profile"),
    "mapped memory": (
        "crashed",
        "CUDA error: part or all of the requested memory range is already mapped\n" + _ASYNCHRONOUS,
    ),
    "mapping, another reason": ("crashed", "unable to mmap 4194304 bytes from file <weights.bin>: No such device (19)"),
    "a memory view": ("crashed", "memoryview: a bytes-like object is required, not 'str'"),
    "low memory loading": ("crashed", "Using `low_cpu_mem_usage=True` or a `device_map` requires Accelerate"),
    "weights named memory": ("crashed", "Missing key(s) in state_dict: 'memory.weight', 'memory.bias'"),
    "a worker of joblib": (
        "crashed",
        "A worker process managed by the executor was unexpectedly terminated. This could be caused by a segmentation fault "
        "while calling the function or by an excessive memory usage causing the Operating System to kill the worker.",
    ),
    "open files": ("crashed", "[Errno 24] Too many open files: '/dev/shm/torch_4711'"),
    "file descriptors": ("crashed", "received 0 items of ancdata"),
    "ECC": ("crashed", "CUDA error: uncorrectable ECC error encountered\n" + _ASYNCHRONOUS),
    "launch failure": ("crashed", "CUDA error: unspecified launch failure\n" + _ASYNCHRONOUS),
    "launch arguments": ("crashed", "CUDA error: invalid configuration argument\n" + _ASYNCHRONOUS),
    "NCCL, timeout": (
        "crashed",
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, Timeout(ms)=600000)",
    ),
    "safetensors, header": ("crashed", "Error while deserializing header: MetadataIncompleteBuffer"),
    "numpy, too big": (
        "crashed",
        "array is too big; `arr.size * arr.dtype.itemsize` is larger than the maximum possible size.",
    ),
    "an allocation's name": ("crashed", "cannot allocate a second name for the column 'memory_id'"),
    "illegal access": ("crashed", "CUDA error: an illegal memory access was encountered\n" + _ASYNCHRONOUS),
    "illegal access, with a link": (
        "crashed",
        "CUDA error: an illegal memory access was encountered\n"
        + _SEARCH.format("cudaErrorIllegalAddress")
        + _ASYNCHRONOUS,
    ),
    "assertion": ("crashed", "CUDA error: device-side assert triggered\n" + _ASYNCHRONOUS),
    "misaligned": ("crashed", "CUDA error: misaligned address\n" + _ASYNCHRONOUS),
    "disk": ("crashed", "[Errno 28] No space left on device: 'output/model.bin'"),
    "NCCL, another failure": (
        "crashed",
        "NCCL error in: NCCLUtils.hpp:275, unhandled cuda error, NCCL version 2.20.5\nLast error:\n"
        "Cuda failure 217 'peer access is not supported between these two devices'",
    ),
    "bitsandbytes, another failure": ("crashed", "Error named symbol not found at line 90 in file /src/csrc/ops.cu"),
    "memory format": ("crashed", "required rank 4 tensor to use channels_last memory format"),
    "pinned memory": ("crashed", "cannot pin 'torch.LongTensor' only dense CPU tensors can be pinned in memory"),
    "a key": ("crashed", "'memory'"),
    "a sentence": ("crashed", "the memory of the elephant ran out of patience"),
    "file memory map": ("crashed", "mmap length is greater than file size: the memory map cannot be made"),
    "loader worker, ended": ("crashed", "DataLoader worker (pid(s) 4711, 4712) exited unexpectedly"),
    "loader worker, segfault": ("crashed", "DataLoader worker (pid 4711) is killed by signal: Segmentation fault. "),
    "shapes": ("crashed", "mat1 and mat2 shapes cannot be multiplied (4x16 and 8x8)"),
}

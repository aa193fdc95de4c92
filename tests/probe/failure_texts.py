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

"""CUDA's kernels on fake CPU tensors, for their memory: fused operations and autocast's lists.

Sources: torch's `aten/src/ATen/autocast_mode.h` (the lists), `native/Dropout.cpp` (the fused kernel on CUDA),
`native/transformers/cuda/sdp_utils.cpp` (which attention a CUDA device takes).
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

aten = torch.ops.aten

# AT_FORALL_FP32: these run in float32 under CUDA's autocast on copied inputs.
_IN_FLOAT32 = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor "
    "pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm cosine_similarity nll_loss nll_loss2d kl_div l1_loss "
    "smooth_l1_loss huber_loss mse_loss soft_margin_loss binary_cross_entropy_with_logits cdist logsumexp"
)
# AT_FORALL_FP32_SET_OPT_DTYPE: these read 16 bits and write float32.
_TO_FLOAT32 = ("prod", "prod.dim_int", "cumprod", "cumsum", "sum", "sum.dim_IntList", "linalg_vector_norm")

_HALVES = (torch.float16, torch.bfloat16)
FLASH_HEAD_DIM = 256
"""The widest head that flash attention takes (`sdp_utils.cpp`, check_head_dim_size_flash)."""


@contextmanager
def cuda_ways(on: bool = True) -> Iterator[None]:
    """Let operations on fake CPU tensors make what CUDA's would, where `on`; real tensors have no such kernels."""
    if not on:
        yield
        return
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that another kernel is replaced is what is meant
            _replace(library)
        yield
    finally:
        library._destroy()


def _replace(library: Any) -> None:
    library.impl("dropout", _dropout, "AutogradCPU")
    library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
    for name in _IN_FLOAT32.split():
        library.impl(name, _in_float32(name), "AutocastCPU", allow_override=True)
    for name in _TO_FLOAT32:
        library.impl(name, _to_float32(name), "AutocastCPU", allow_override=True)
    library.impl("softmax.int", _softmax(aten._softmax.default, aten.softmax.int), "AutocastCPU", allow_override=True)
    library.impl(
        "log_softmax.int", _softmax(aten._log_softmax.default, aten.log_softmax.int), "AutocastCPU", allow_override=True
    )


def _dropout(tensor: Any, p: float, train: bool) -> Any:
    """As on CUDA, a kernel that keeps a mask of one byte a value; the CPU keeps the factors."""
    return aten.native_dropout(tensor, p, train)[0] if train and 0 < p < 1 and tensor.numel() else tensor


def _attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Flash attention for 16 bits without a mask, else the memory-efficient one, else the plain products."""
    grouped = enable_gqa and query.shape[-3] != key.shape[-3]
    wide = query.shape[-1] != value.shape[-1] or query.shape[-1] > FLASH_HEAD_DIM
    if query.dtype in _HALVES and mask is None and not wide:
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, False, scale=scale)[0]
    if grouped:
        # `_scaled_dot_product_attention_math` repeats keys and values for their group of queries.
        times = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
        return aten._scaled_dot_product_attention_math(query, key, value, mask, dropout, causal, None, scale=scale)[0]
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, float("-inf"))
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    keep = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    return aten._scaled_dot_product_efficient_attention(query, key, value, mask, keep, dropout, causal, scale=scale)[0]


def _without_autocast() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


def _operation(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _in_float32(name: str) -> Any:
    operation = _operation(name)

    def run(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            return operation(*map(_wide, args), **{key: _wide(value) for key, value in kwargs.items()})

    return run


def _to_float32(name: str) -> Any:
    operation = _operation(name)

    def run(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            if tensor.dtype in _HALVES and kwargs.get("dtype") is None:
                kwargs["dtype"] = torch.float32
            return operation(tensor, *args, **kwargs)

    return run


def _softmax(fused: Any, plain: Any) -> Any:
    def run(tensor: Any, dim: int, dtype: Any = None) -> Any:
        with _without_autocast():
            if tensor.dtype in _HALVES and dtype in (None, torch.float32):
                return fused(tensor, dim, True)
            return plain(tensor, dim, dtype)

    return run


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _HALVES else value

"""CUDA's kernels on fake CPU tensors, for their memory: fused operations and autocast's casts.

Fake tensors of CUDA itself cannot be trained without a card: autograd's engine wants its streams. Sources: torch's
`ATen/autocast_mode.h` (what autocast casts on CUDA, read from the installed torch), `native/Dropout.cpp` (the fused kernel on
CUDA), `native/SoftMax.cpp`, `native/transformers/attention.cpp` and `cuda/sdp_utils.cpp` (which attention a CUDA device takes).
"""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

aten = torch.ops.aten

_HALVES = (torch.float16, torch.bfloat16)
_CAST = (*_HALVES, torch.float32)
FLASH_HEAD_DIM = 256
"""The widest head that flash attention takes (`sdp_utils.cpp`, check_head_dim_size_flash)."""

ALIGNED = 8
"""Heads (flash) and masks (memory-efficient) are padded to a multiple of it (`attention.cpp`, pad_last_dim, pad_bias)."""


@contextmanager
def cuda_ways(on: bool = True) -> Iterator[None]:
    """Let operations on fake CPU tensors make what CUDA's would, if `on`; real tensors have no such kernels."""
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
    cpu, cuda = (
        set(torch._C._dispatch_get_registrations_for_dispatch_key(f"Autocast{name}")) for name in ("CPU", "CUDA")
    )
    for name in cpu - cuda:
        library.impl(name, torch.library.fallthrough_kernel, "AutocastCPU", allow_override=True)
    for policy, kernel in _POLICIES.items():
        for name in autocast_list(policy):
            # The 16-bit operations of both are alike, and the CPU's keep copies of weights for the whole forward.
            if f"aten::{name}" in cuda and not (policy == "LOWER_PRECISION_FP" and f"aten::{name}" in cpu):
                library.impl(name, _cast(name, kernel), "AutocastCPU", allow_override=True)


def autocast_list(policy: str) -> list[str]:
    """The operations of a list in the installed `ATen/autocast_mode.h`, as `pow.Scalar`."""
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    macro = re.search(rf"#define AT_FORALL_{policy}\(_\)((?:.*\\\n)*.*)", header.read_text(encoding="utf-8"))
    assert macro, f"{header} has no list {policy}"
    return [name + (overload and f".{overload}") for name, overload in re.findall(r"_\((\w+)(?:, (\w+))?\)", macro[1])]


def _dropout(tensor: Any, p: float, train: bool) -> Any:
    """CUDA's kernel, which keeps a mask of one byte a value; the CPU keeps the factors."""
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
        if beyond := (width := query.shape[-1]) % ALIGNED:
            query, key, value = (torch.nn.functional.pad(part, (0, ALIGNED - beyond)) for part in (query, key, value))
        result = aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, False, scale=scale)[0]
        return result[..., :width] if beyond else result
    if grouped:
        math = aten._scaled_dot_product_attention_math
        return math(query, key, value, mask, dropout, causal, None, scale=scale, enable_gqa=True)[0]
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.where(mask, 0.0, torch.scalar_tensor(float("-inf"), dtype=query.dtype))
        if beyond := mask.shape[-1] % ALIGNED:
            mask = torch.nn.functional.pad(mask, (0, ALIGNED - beyond))[..., : mask.shape[-1]]
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    keep = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    return aten._scaled_dot_product_efficient_attention(query, key, value, mask, keep, dropout, causal, scale=scale)[0]


def _cast(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The operation as this policy runs it."""
    packet, _, overload = name.partition(".")
    operation = getattr(getattr(aten, packet), overload or "default")
    autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            return kernel(operation, args, kwargs)

    return run


def _in_dtype(dtype: torch.dtype, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def cast(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.dtype in _CAST else value

    # As compiled by gcc, C++ casts its arguments from the last one on.
    named = {key: tree_map(cast, kwargs[key]) for key in reversed(kwargs)}
    return operation(*[tree_map(cast, value) for value in reversed(args)][::-1], **named)


def _in_halves(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _in_dtype(torch.get_autocast_dtype("cpu"), operation, args, kwargs)


def _in_float32(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _in_dtype(torch.float32, operation, args, kwargs)


def _in_widest(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    wide = any(isinstance(value, torch.Tensor) and value.dtype == torch.float32 for value in (*args, *kwargs.values()))
    return (_in_float32 if wide else _in_halves)(operation, args, kwargs)


def _to_float32(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Reads 16 bits and writes float32, unless the caller names a dtype."""
    place = next(place for place, argument in enumerate(operation._schema.arguments) if argument.name == "dtype")
    dtype = args[place] if place < len(args) else kwargs.get("dtype")
    if dtype is None and args[0].is_floating_point():
        args, kwargs, dtype = args[:place], {**kwargs, "dtype": torch.float32}, torch.float32
    fused = _FUSED.get(operation)
    # Of bfloat16, CUDA makes a float32 copy too.
    if fused and args[0].dtype == torch.float16 and dtype == torch.float32:
        return fused(args[0], kwargs["dim"] if "dim" in kwargs else args[1], True)
    return operation(*args, **kwargs)


_POLICIES = {
    "LOWER_PRECISION_FP": _in_halves,
    "FP32": _in_float32,
    "FP32_SET_OPT_DTYPE": _to_float32,
    "PROMOTE": _in_widest,
}
_FUSED = {aten.softmax.int: aten._softmax.default, aten.log_softmax.int: aten._log_softmax.default}

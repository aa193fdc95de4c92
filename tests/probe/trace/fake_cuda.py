"""Traces of a step on tensors without storage, as CPU's with CUDA's kernels replaced and as CUDA's own; run as a program.

python -m tests.probe.trace.fake_cuda LIBRARY MODEL: LIBRARY is made of fake_cuda.cpp. Prints one line for each way of training,
JSON: [name of the way, peaks of the first kind, peaks of the second, whether the tapes are the same, difference of operations].
"""

import ctypes
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

if __name__ == "__main__":
    ctypes.CDLL(sys.argv[1])  # before torch asks for CUDA the first time

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.memory.trace import MemoryTrace
from autotune.probe.trace import step
from autotune.probe.trace.cuda_kernels import cuda_ways
from tests.probe.trace.test_step import MODELS, SMALL, peaks, workload_of

DEBERTA = {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}
MODELS.update({"deberta-v2": DEBERTA, "modernbert": SMALL})
ODD = "odd bert"
"""A BERT whose heads and sequences are no multiple of eight: attention's kernels pad them."""

WITHOUT_SDPA = ("deberta-v2",)
"""Models that have plain attention only."""

HALF = {"training_arguments": {"bf16": True}}
WAYS: dict[str, dict[str, Any]] = {
    "fp32": {"training_arguments": {}},
    "bf16": HALF,
    "fp16": {"training_arguments": {"fp16": True}},
    "bf16 weights": {**HALF, "model_arguments": {"dtype": "bfloat16"}},
    "bf16, LoRA": {**HALF, "adapter": {"r": 4, "target_modules": "all-linear"}},
    "bf16, checkpointed": {"training_arguments": {"bf16": True, "activation_checkpointing": True}},
}


class Operations(TorchDispatchMode):  # type: ignore[misc]
    """Counts operations by the dtypes and shapes of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        tensors = [value for value in torch.utils._pytree.tree_leaves(results) if isinstance(value, torch.Tensor)]
        if tensors:
            made = (f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}" for tensor in tensors)
            self.counts[f"{func} {' '.join(made)}"] += 1
        return results


def traced(subject: step.Subject, fields: dict[str, Any], device: str) -> tuple[dict[str, Any], Counter[str]]:
    """The tape of two samples and two layers, and its operations."""
    config, operations = subject.repeats.config(subject.config, 2), Operations()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, step._values_guessed(subject.padded), cuda_ways(device == "cpu"), torch.device(device):
        batch = {name: torch.empty((2, *row.shape), dtype=row.dtype) for name, row in subject.sample.items()}
        with operations:
            return step.trace_step(subject.workload, config, batch, fields, subject.repeats), operations.counts


def ways(name: str) -> Iterator[tuple[str, step.Subject, dict[str, Any]]]:
    """Name of a way, its subject and the step's fields."""
    workload = workload_of(name) if name != ODD else replace(workload_of("bert", hidden_size=48), sequence_length=21)
    for padded, attention, dropout, (way, fields) in itertools.product(
        (False, True), ("sdpa", "eager")[name in WITHOUT_SDPA :], (True, False), WAYS.items()
    ):
        if (padded or not dropout) and way not in ("fp32", "bf16"):
            continue
        subject = step.Subject(workload, (2,), on_cuda=True)
        subject.padded = padded
        for field, value in list(vars(subject.config).items()):
            if not dropout and isinstance(value, float) and ("drop" in field):
                setattr(subject.config, field, 0.0)
        arguments = {**fields.get("model_arguments", {}), "attn_implementation": attention}
        title = f"{way}, {attention}, {'padded' if padded else 'not padded'}, {'' if dropout else 'no '}dropout"
        yield title, subject, {**fields, "model_arguments": arguments}


def main(name: str) -> None:
    torch.autograd.set_multithreading_enabled(False)  # no thread of the device
    setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)  # noqa: B010
    setattr(torch.cuda, "is_bf16_supported", lambda *_: True)  # noqa: B010
    # Kernels of CUDA that a build for CPUs decomposes, because it has none; fake tensors never run them.
    library = torch.library.Library("aten", "IMPL")
    library.impl("silu_backward", lambda *_: None, "CUDA")
    for title, subject, fields in ways(name):
        (ours, mine), (real, theirs) = (traced(subject, fields, device) for device in ("cpu", "cuda"))
        highest = [peaks(MemoryTrace.from_dict(tape)) for tape in (ours, real)]
        differing = {"ours only": dict(mine - theirs), "CUDA's only": dict(theirs - mine)}
        print(json.dumps([title, *highest, ours == real, differing]))


if __name__ == "__main__":
    main(sys.argv[2])

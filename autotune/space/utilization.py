"""Model FLOPs utilization (MFU): the share of a device's peak arithmetic that a training uses, and of a measured product.

FLOPs of a sample x samples / second / devices
----------------------------------------------
          peak FLOPs / second
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from autotune.core import Configuration, Environment, InvalidRequest, Serializable, Trial, Workload
from autotune.core.gpus import CardSpec, card_of
from autotune.space.settings import SETTINGS, Context
from autotune.space.settings.precision import ALIKE
from autotune.space.setup import training_setup

OF_FOUR_BITS = {"bfloat16": "bf16", "float16": "fp16"}
"""Dtype in which bitsandbytes computes packed weights' products -> the precision."""


@dataclass(frozen=True)
class SampleFlops(Serializable):
    """Floating-point operations of one sample's forward and backward pass that the model needs, without recomputation.

    Attention is counted whole, also if a causal kernel skips half of it (PaLM, appendix B, counts so); frozen weights have
    no gradients.
    """

    whole: float  #: of the longest sample
    half: float | None = None  #: of one of half its length; None if all are alike

    def of(self, share: float) -> float:
        """Operations of a sample with this share of the longest one's tokens: one part is linear, attention's quadratic."""
        if self.half is None:
            return self.whole
        squared = 2 * self.whole - 4 * self.half
        return (self.whole - squared) * share + squared * share**2


def padded_share(lengths: Sequence[float], count: int) -> float:
    """Expected length of the longest of n random samples, to which a batch of them is padded.

    lengths: quantiles at equal steps from 0 to 1, between which it goes straight. The mean of the largest of m draws is the
    integral of the quantile function over u^m.
    """
    powers: list[float] = (np.linspace(0.0, 1.0, len(lengths)) ** count).tolist()
    return sum(
        (low + high) / 2 * (after - before)
        for (low, high), (before, after) in zip(pairwise(lengths), pairwise(powers), strict=True)
    )


@dataclass(frozen=True)
class Arithmetic(Serializable):
    """Operations of samples, and the device's measured rates."""

    samples: Mapping[str, SampleFlops] = field(default_factory=dict)  #: adapter, as `adapter_key` -> of a sample
    products: Mapping[str, float] = field(default_factory=dict)  #: precision -> of its fastest, operations / s


@dataclass(frozen=True)
class Utilization:
    """Shares of a device's arithmetic that a training uses."""

    precision: str
    sample_flops: float  #: operations of a sample as it was trained, padding included
    mfu: float | None = None  #: share of the card's data-sheet peak in this precision; None if it is not in the list
    of_measured: float | None = None  #: share of the fastest product that was measured on the device
    card: CardSpec | None = None  #: whose peak it is

    @property
    def text(self) -> str:
        """`45.2 % of the H200's 989.5 TFLOP/s in bf16 (MFU), 57 % of the fastest product measured here`; the known part."""
        parts = []
        if self.mfu is not None and self.card is not None:
            peak = self.card.flops[self.precision] / 1e12
            parts.append(f"{self.mfu:.1%} of the {self.card.name}'s {peak:g} TFLOP/s in {self.precision} (MFU)")
        if self.of_measured is not None:
            parts.append(f"{self.of_measured:.0%} of the fastest product of matrices measured here")
        return ", ".join(parts)


def adapter_key(configuration: Configuration, environment: Environment, task: str) -> str:
    """Key of the configuration's adapter; empty if all weights are trained."""
    adapter = training_setup(configuration, environment, {}, task).adapter
    return json.dumps(adapter, sort_keys=True) if adapter else ""


def utilization(
    trial: Trial, arithmetic: Arithmetic, environment: Environment, workload: Workload, base: Mapping[str, Any]
) -> Utilization | None:
    """Utilization of this trial; None if its speed or its operations are not known. base: the user's own arguments."""
    configuration, speed = trial.configuration, trial.samples_per_second
    try:
        sample_flops = arithmetic.samples.get(adapter_key(configuration, environment, workload.task))
        precision = _precision(configuration, environment, workload, base)
    except InvalidRequest:  # it has a setting or a value of another version
        return None
    if sample_flops is None or not speed:
        return None
    tokens, share = trial.tokens_per_second, 1.0
    if tokens and workload.sequence_length:  # of a sample in the timed steps, padding included
        share = float(tokens) / float(speed) / workload.sequence_length
    flops = sample_flops.of(share)
    rate = flops * float(speed) / configuration.data_parallel_size
    card = None if environment.is_cpu else card_of(environment.device_name, environment.total_memory_bytes)
    peak = card.flops.get(precision) if card else None
    product = arithmetic.products.get(precision)
    return Utilization(precision, flops, rate / peak if peak else None, rate / product if product else None, card)


def _precision(
    configuration: Configuration, environment: Environment, workload: Workload, base: Mapping[str, Any]
) -> str:
    """The number format of the factors of its matrix products."""
    packed = training_setup(configuration, environment, base).model_arguments.get("quantization_config") or {}
    value = str(
        configuration.values.get("precision") or SETTINGS["precision"].from_user(Context(environment, workload, base))
    )
    return OF_FOUR_BITS.get(packed.get("bnb_4bit_compute_dtype", ""), ALIKE.get(value, value))

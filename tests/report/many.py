"""Whole studies for figures: hundreds of plausible trials, with everything a report may tell of them; and SVG read again."""

import math
import random
import re
from dataclasses import replace
from xml.etree import ElementTree

from autotune.core import Configuration, Measurement, Outcome, Trial
from autotune.core.loss_curves import Curve, Numerics
from autotune.core.prospect import OptimalityGap
from autotune.memory.peak import MemoryPeak, MemorySplit
from autotune.study.result import SearchResult
from tests.makers import ALLOWED, MIB, configuration, ended, result
from tests.replay_probe import recorded

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96)
SHARES = {"data_wait_s": 0.06, "forward_s": 0.28, "backward_s": 0.5, "optimizer_s": 0.1}
"""Of a step's seconds; the rest is overhead."""


def many(number: int) -> SearchResult:
    """A study of so many trials: some out of memory, ended early or not finite, the fastest measured again."""
    chance = random.Random(number)
    chosen = {configuration(8, 96): None}
    while len(chosen) < number:
        settings = {
            "checkpointing": chance.choice(["none", "full", "offload"]),
            "precision": chance.choice(["fp32", "bf16", "tf32"]),
            "optimizer": chance.choice(["adamw_torch_fused", "adafactor", "sgd", "adamw_bnb_8bit"]),
            "workers": chance.choice([0, 2, 4]),
            "pin_memory": chance.choice([True, False]),
        }
        chosen[configuration(chance.choice(SIZES), 96, **settings)] = None
    trials = [Trial(at, item, _measured(at, item, chance)) for at, item in enumerate(chosen)]
    whole = [trial for trial in trials if trial.feasible and not trial.measurement.ended_early]
    whole.sort(key=lambda trial: -float(trial.samples_per_second or 0))
    for trial in (trials[0], *whole[:3]):
        trials[trial.number] = replace(trial, confirmations=(trial.measurement,) * 3)
    best = whole[0].number
    falling = {at: Curve(tuple(8 + at / 50 + math.exp(-step / 8) for step in range(30))) for at in (1, 2, 3)}
    return result(
        trials,
        prospects={at: OptimalityGap(1.2 / (1 + at), 2.0 / (1 + at), number - at) for at in range(number)},
        estimated_peaks={0: peak(500), best: peak(600)},
        numerics=Numerics(falling, {trial.number: falling for trial in whole[:3]}),
    )


def _measured(number: int, of: Configuration, chance: random.Random) -> Measurement:
    if number and chance.random() < 0.03:
        return ended(Outcome.NON_FINITE_LOSS)
    full, bf16 = of.values["checkpointing"] == "full", of.values["precision"] == "bf16"
    speed = 10 * of.micro_batch_size**0.5 * (0.8 if full else 1.0) * (1.5 if bf16 else 1.0) * chance.uniform(0.95, 1.05)
    bytes_ = int((100 + 20 * of.micro_batch_size * (0.5 if full else 1.0)) * MIB)
    probe = recorded(of, speed, bytes_, ALLOWED, chance.uniform(0.005, 0.03))
    return divided(replace(probe, ended_early=bool(number and probe.steps and chance.random() < 0.4)))


def divided(measurement: Measurement) -> Measurement:
    """The same with every step's time divided as SHARES say."""
    steps = [
        replace(step, **{name: share * step.seconds for name, share in SHARES.items()}) for step in measurement.steps
    ]
    return replace(measurement, steps=tuple(steps))


def peak(mib: int) -> MemoryPeak:
    """An estimate of so many MiB, of which the allocator leaves a tenth unused."""
    tenth = mib * MIB // 10
    return MemoryPeak(MemorySplit(tenth, tenth, 2 * tenth, 4 * tenth, tenth, 0), 10 * tenth, "forward and backward")


def texts(svg: str) -> list[str]:
    """Every text that an SVG shows, its title left out."""
    return [item.text or "" for item in ElementTree.fromstring(svg).iter() if re.fullmatch(r"(\{.*\})?text", item.tag)]

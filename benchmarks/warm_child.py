"""Probes in a warm child, one that has carried out others before, against probes in a fresh process.

python benchmarks/warm_child.py [N [DEVICE]]: N pairs (200) of each model on a device (cpu), interleaved, on an otherwise idle
machine; prints a table and writes it to reports/. The configurations of a model take turns: each warm probe follows one with
other values.
"""

import os
import random
import sys
import tempfile
from itertools import cycle
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from machine import write_table  # noqa: E402

from autotune.core import Configuration, Interval, Measurement, Outcome  # noqa: E402
from autotune.core.interval import quotient_interval  # noqa: E402
from autotune.core.request import tuning_request  # noqa: E402
from autotune.core.slot import Slot  # noqa: E402
from autotune.probe import ProbeOptions  # noqa: E402
from autotune.probe.device import nvml  # noqa: E402
from autotune.probe.process.launcher import ProbeHost  # noqa: E402
from autotune.probe.queries import read_environment, read_workload  # noqa: E402
from autotune.probe.runner import WARM, LiveProbe  # noqa: E402

MODELS = {"bert-mini": 128, "gpt2-mini": 128, "vit-mini": None}
"""Model -> tokens of a sample; None for images."""

GLOBAL_BATCH = 8
SETTINGS = {"checkpointing": "none", "precision": "fp32", "optimizer": "adamw_torch", "workers": 0, "pin_memory": False}
CONFIGURATIONS = [
    Configuration.exact(GLOBAL_BATCH, 8, SETTINGS),
    Configuration.exact(GLOBAL_BATCH, 4, SETTINGS | {"optimizer": "adamw_torch_fused"}),
    Configuration.exact(GLOBAL_BATCH, 8, SETTINGS | {"checkpointing": "full", "optimizer": "sgd"}),
]

Pair = tuple[Measurement, Measurement]
"""A warm and a fresh measurement of one configuration, one right after the other."""


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    card = nvml.choose_device(sys.argv[2] if len(sys.argv) > 2 else "cpu")
    lines = ["| model | pairs | fresh | warm | warm / fresh: seconds | speed | peak memory |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory(prefix="warm-child-") as folder:
        lines += [
            row(model, pairs(model, length, count, card, Path(folder, model))) for model, length in MODELS.items()
        ]
    lines += ["", "Seconds are medians of a whole probe, ratios geometric means with 95% intervals."]
    write_table(ROOT / "reports" / "warm_child.md", "Probes in a warm child and in fresh processes", lines)


def pairs(model: str, length: int | None, count: int, card: nvml.Card | None, folder: Path) -> list[Pair]:
    """So many pairs, those without whose first measurement no child was warm yet."""
    measured: list[Pair] = []
    request = tuning_request(model, GLOBAL_BATCH, sequence_length=length, device="cuda" if card else "cpu")
    with ProbeHost() as warm_host, ProbeHost() as fresh_host:
        environment, _ = read_environment(fresh_host, request, card)
        workload = read_workload(fresh_host, request)

        def measure(host: ProbeHost, number: int, configuration: Configuration) -> Measurement:
            place = folder / f"{'warm' if host is warm_host else 'fresh'}-{number:04d}"
            allowed, used = environment.free_memory_bytes, nvml.usage_of(card)
            probe = LiveProbe(host, environment, workload, {}, allowed, lambda slot: place, device_used=used)
            os.environ[WARM] = str(int(host is warm_host))
            measurement = probe(configuration, ProbeOptions(Slot(number), 300.0))
            if measurement.outcome is not Outcome.COMPLETED:
                raise SystemExit(f"{model} did not train: {measurement.outcome}: {measurement.reason}")
            return measurement

        configurations = cycle(CONFIGURATIONS)
        for number in range(1, 10 * count):
            configuration = next(configurations)
            hosts = random.sample([warm_host, fresh_host], 2)
            both = {host: measure(host, number, configuration) for host in hosts}
            if both[warm_host].orders_before:
                measured.append((both[warm_host], both[fresh_host]))
            if len(measured) == count:
                break
    return measured


def row(model: str, measured: list[Pair]) -> str:
    """Cells of one model."""
    seconds, speeds, peaks = (
        [(value(warm), value(fresh)) for warm, fresh in measured]
        for value in (
            lambda measurement: measurement.probe_seconds,
            lambda measurement: measurement.samples_per_second,
            lambda measurement: measurement.peak_bytes,
        )
    )
    medians = [f"{median(side):.2f} s" for side in zip(*seconds, strict=True)]
    ratios = [written(quotient_interval(*zip(*both, strict=True))) for both in (seconds, speeds, peaks)]
    return f"| {model} | {len(measured)} | {medians[1]} | {medians[0]} | {' | '.join(ratios)} |"


def written(ratio: Interval) -> str:
    """`0.61 (0.59 to 0.63)`."""
    return f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


if __name__ == "__main__":
    main()

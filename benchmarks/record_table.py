"""Records an exhaustive table: every configuration of a space really probed, for replaying searches on it.

python benchmarks/record_table.py NAME [SECONDS]: one of TABLES into tests/data/tables/NAME.jsonl: what is searched in
the first line, then a configuration a line in an order drawn once; at the end the ten best of each memory budget again in
three interleaved rounds with all their accumulation. NAME.known.json holds what is known before any probe: the estimate of
each peak, and what the device can do. Every line is written at once: the same command goes on where it
was stopped, and stops by itself when the seconds are over. Needs an idle machine, about fifteen minutes a table.

Probes run on one thread, and what they free goes back to the machine at once: on two threads speeds err by 8 to 27 % from
process to process instead of 3 to 13, and the heap's fragments make peaks err by up to 30 MiB of 170 instead of 1.
"""

import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from fidelity import asked  # noqa: E402
from tables import BUDGETS, FOLDER, ROUNDS, Row  # noqa: E402

from autotune.core.configuration import Configuration  # noqa: E402
from autotune.core.environment import Environment  # noqa: E402
from autotune.core.measurement import Outcome  # noqa: E402
from autotune.core.request import tuning_request  # noqa: E402
from autotune.core.slot import Slot  # noqa: E402
from autotune.core.workload import Workload  # noqa: E402
from autotune.probe import ProbeOptions  # noqa: E402
from autotune.probe.order import Timing  # noqa: E402
from autotune.probe.process.launcher import ProbeHost  # noqa: E402
from autotune.probe.queries import known_rates, traced  # noqa: E402
from autotune.probe.runner import LiveProbe  # noqa: E402
from autotune.space.build import build_space  # noqa: E402

TABLES: dict[str, dict[str, Any]] = {
    "encoder": {"model": "bert-mini", "global_batch_size": 16, "sequence_length": 32},
    "decoder": {"model": "gpt2-mini", "global_batch_size": 16, "sequence_length": 32},
    "encoder-decoder": {"model": "t5-mini", "global_batch_size": 16, "sequence_length": 24},
    "vision": {"model": "vit-mini", "global_batch_size": 16},
    "mixture-of-experts": {"model": "moe-mini", "global_batch_size": 16, "sequence_length": 32},
}
SPACE = """
description: what a table holds
parameters:
  micro_batch_size: divisors
  checkpointing: [none, full]
  precision: [fp32, bf16]
  optimizer: [adamw_torch, adamw_torch_fused, adamw_bnb_8bit, adafactor]
  workers: [0, 2]
"""
QUIET = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**18),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""Surroundings of every probe: tensors have mappings of their own, in large pages."""
BEST = 10
"""Configurations of each budget that are measured again."""
LIMIT = 8 * 2**30
TIMING = Timing(untimed_least=2, untimed_most=4, timed_least=8, timed_most=8, seconds=20.0)


def photographs(folder: Path, count: int = 64) -> Path:
    """A folder of large photographs in two classes, whose decoding costs a loader more than the model's step."""
    from sklearn.datasets import load_sample_images

    drawn = random.Random(0)
    for number in range(count):
        picture = Image.fromarray(np.asarray(load_sample_images().images[number % 2]))
        left, top = drawn.randrange(0, 100), drawn.randrange(0, 80)
        place = folder / ("temple", "flower")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        picture.crop((left, top, left + 512, top + 320)).save(place / f"{number:03d}.jpg", quality=90)
    return folder


def best_of_each_budget(rows: list[Row]) -> list[Configuration]:
    """The fastest configurations that fit each budget, without repetition."""
    known = [(row, row.measurement.samples_per_second, row.measurement.peak_bytes) for row in rows if not row.again]
    fitting = [(row, speed, peak) for row, speed, peak in known if speed is not None and peak]
    peaks = [peak for _, _, peak in fitting]
    chosen: dict[Configuration, None] = {}
    for share in BUDGETS:
        budget = min(peaks) + share * (max(peaks) - min(peaks))
        able = sorted((item for item in fitting if item[2] <= budget), key=lambda one: -one[1])
        chosen |= dict.fromkeys(row.configuration for row, _, _ in able[:BEST])
    return list(chosen)


def known_beforehand(
    host: ProbeHost, environment: Environment, workload: Workload, configurations: list[Configuration]
) -> dict[str, Any]:
    """As plain data: the estimated peak of each configuration, a micro-step's arithmetic, and the device's rates."""
    model = traced(host, workload, environment, configurations, {})
    estimates = [
        {"configuration": configuration.to_dict(), "bytes": model.peak(configuration).device_bytes}
        for configuration in configurations
    ]
    rates = known_rates(host, environment)
    return {"rates": rates, "arithmetic": model.arithmetic, "estimates": estimates}


def record(name: str, seconds: float, path: Path) -> bool:
    """Go on with a table; whether it is complete."""
    until = time.monotonic() + seconds
    os.environ.update(QUIET)
    with ProbeHost() as host, tempfile.TemporaryDirectory() as scratch:
        asked_for = dict(TABLES[name])
        if name == "vision":
            asked_for["dataset"] = str(photographs(Path(scratch) / "photographs"))
        space_file = Path(scratch) / "table.yaml"
        space_file.write_text(SPACE)
        request = tuning_request(**asked_for, space=str(space_file), device="cpu")
        environment = Environment.from_dict(asked(host, "capabilities", {"device": "cpu"}))
        wanted = {"request": request.to_dict(), "cache": str(Path(scratch) / "cache")}
        workload = Workload.from_dict(asked(host, "prepare", wanted))
        space = build_space(request, environment, workload, {})
        beforehand = path.with_suffix(".known.json")
        if not beforehand.exists():
            beforehand.write_text(json.dumps(known_beforehand(host, environment, workload, list(space))) + "\n")
        if not path.exists():
            head = {"request": TABLES[name], "environment": environment.to_dict(), "workload": workload.to_dict()}
            head["workload"] |= {"data": "", "data_identity": name, "source": name}
            path.write_text(json.dumps(head) + "\n", encoding="utf-8")
        rows = [Row.read(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]

        probe = LiveProbe(
            host,
            environment,
            workload,
            {},
            LIMIT,
            lambda slot: Path(scratch) / f"{slot.number}-{slot.round}",
            timings=(TIMING, TIMING),
        )

        def probed(configuration: Configuration, again: int) -> bool:
            """Probe and write it down, if that is not done yet; whether there was time."""
            if any(row.configuration == configuration and row.again == again for row in rows):
                return True
            if time.monotonic() > until:
                return False
            row = Row(configuration, probe(configuration, ProbeOptions(Slot(len(rows), again), 300.0)), again)
            assert row.measurement.outcome is Outcome.COMPLETED, (configuration, row.measurement.reason)
            rows.append(row)
            with path.open("a", encoding="utf-8") as file:
                file.write(row.line() + "\n")
            return True

        order = list(space)
        random.Random(0).shuffle(order)
        if not all(probed(configuration, 0) for configuration in order):
            return False
        best = best_of_each_budget(rows)
        turns = [(item, again) for again in range(1, ROUNDS + 1) for item in best[again:] + best[:again]]
        return all(probed(item, again) for item, again in turns)


def main() -> None:
    name, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 3600.0
    path = FOLDER / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    done = record(name, seconds, path)
    print(
        f"{name}: {len(path.read_text(encoding='utf-8').splitlines()) - 1} rows, {'complete' if done else 'not complete'}"
    )


if __name__ == "__main__":
    main()

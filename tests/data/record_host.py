"""Records what a host answers to the orders of a search: python tests/data/record_host.py MODEL FILE.json [OPTION=VALUE ...].

Options are those of `search`. Probed are the baseline, every other value of a setting alone, and every micro-batch size in
each precision; they are short: a RecordedHost is for testing what is built on a host, not for how well is measured.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from autotune.core.configuration import Configuration
from autotune.core.request import tuning_request
from autotune.core.slot import Slot
from autotune.probe import ProbeOptions
from autotune.probe.order import Order, Timing
from autotune.probe.queries import read_environment, read_workload
from autotune.probe.runner import LiveProbe
from autotune.space.build import build_space
from autotune.space.search_space import SearchSpace
from autotune.space.settings import MICRO
from autotune.study.warm_start import build_warm_start
from tests.recorded_host import RecordingHost, save_recording

TIMING = Timing(untimed_least=2, untimed_most=2, timed_least=4, timed_most=4)
ROUND = Timing(untimed_least=4, untimed_most=4, timed_least=16, timed_most=16)
LIMIT = 8 << 30
DEADLINE_S = 600.0


def probed(space: SearchSpace) -> Iterator[Configuration]:
    """The configurations to probe; some may come twice."""
    baseline = {name: value for name, value in space.baseline.values.items() if value in space.values[name]}
    yield space.baseline
    for name, values in space.values.items():
        for value in values:
            yield space.configuration(baseline | {name: value})
    for size in space.values[MICRO]:
        for precision in space.values["precision"]:
            yield space.configuration(baseline | {MICRO: size, "precision": precision})


def main() -> None:
    model, path = sys.argv[1], Path(sys.argv[2])
    given = dict(option.split("=", 1) for option in sys.argv[3:])
    options: dict[str, Any] = {name: int(value) if value.isdigit() else value for name, value in given.items()}
    request = tuning_request(model, **{"global_batch_size": 16, "device": "cpu", **options})
    answers: list[tuple[Order, Any]] = []
    with tempfile.TemporaryDirectory() as name, RecordingHost(answers) as host:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = name
        environment, _ = read_environment(host, request, None, every_optimizer=True)
        workload = read_workload(host, request)
        space = build_space(request, environment, workload, {})
        build_warm_start(host, environment, workload, space, {}, LIMIT)
        timings = (TIMING, ROUND)
        probe = LiveProbe(host, environment, workload, {}, LIMIT, lambda n, _: folder / f"{n}", timings=timings)
        for number, configuration in enumerate(dict.fromkeys(probed(space))):
            measurement = probe(configuration, ProbeOptions(Slot(number), DEADLINE_S))
            print(f"{configuration}: {measurement.outcome} {measurement.samples_per_second}", flush=True)
        bf16 = space.configuration(dict(space.baseline.values) | {"precision": "bf16"})
        for number, configuration in enumerate((space.baseline, bf16)):
            probe(configuration, ProbeOptions(Slot(number, 1), DEADLINE_S))
        probe.train("sanity_check", space.baseline, folder / "sanity_check", DEADLINE_S, {})
    save_recording(answers, path)


if __name__ == "__main__":
    main()

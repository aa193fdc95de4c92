"""What probes promise against what a plain Trainer gets, for five models and five configurations each.

python benchmarks/fidelity.py [FOLDER]: in turns, a confirmation round, a probe as the search makes it (composed
from three micro-steps where there are more) and a slice of a plain script's training, which stands still while the
others are measured. Every result is kept in FOLDER at once: the same command goes on where it was stopped. Needs an idle
machine for about half an hour; writes reports/fidelity.md.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from machine import write_table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from autotune.core.configuration import Configuration  # noqa: E402
from autotune.core.environment import Environment  # noqa: E402
from autotune.core.measurement import Measurement, Outcome, pooled  # noqa: E402
from autotune.core.request import tuning_request  # noqa: E402
from autotune.core.slot import Slot  # noqa: E402
from autotune.core.workload import Workload  # noqa: E402
from autotune.probe import ProbeOptions  # noqa: E402
from autotune.probe.order import Order, Timing  # noqa: E402
from autotune.probe.process.answers import ask  # noqa: E402
from autotune.probe.process.launcher import ProbeHost  # noqa: E402
from autotune.probe.runner import LiveProbe  # noqa: E402
from autotune.space.setup import training_setup  # noqa: E402

MODELS = {"bert-mini": 64, "gpt2-mini": 64, "llama-mini": 32, "t5-mini": 32, "vit-mini": None}
GLOBAL_BATCH = 8
PLAIN = {"checkpointing": "none", "precision": "fp32", "optimizer": "adamw_torch_fused", "workers": 0}
CONFIGURATIONS: list[tuple[int, dict[str, Any]]] = [
    (4, {}),
    (8, {"precision": "bf16"}),
    (1, {}),
    (4, {"checkpointing": "full"}),
    (2, {"optimizer": "adafactor"}),
]
LIMIT = 4 * 2**30
ROUNDS, STEPS, SECONDS = 10, 200, 30
SLICE = STEPS // ROUNDS
TIMING = Timing(untimed_least=3, timed_least=10, timed_most=10, seconds=30.0)
"""One round: short, so that both sides see the same moods of the machine."""


@dataclass
class Case:
    """promised, composed: speeds of the pooled rounds, samples / second. got: the plain script's JSON line."""

    model: str
    configuration: str
    promised: tuple[float, float, float]
    composed: float | None
    peak_bytes: int
    got: dict[str, Any]

    @property
    def error(self) -> float:
        return self.promised[0] / self.got["samples_per_second"] - 1

    @property
    def own_error(self) -> float:
        """The plain script's even slices against its odd ones: what the machine alone makes of one and the same run."""
        times = self.got["step_times_s"][-self.got["steps"] :]
        slices = [sum(times[at : at + SLICE]) / len(times[at : at + SLICE]) for at in range(0, len(times), SLICE)]
        return statistics.fmean(slices[::2]) / statistics.fmean(slices[1::2]) - 1

    @property
    def composed_error(self) -> float | None:
        """Of the composed speed against that of the rounds with the full accumulation, which ran beside it."""
        return None if self.composed is None else self.composed / self.promised[0] - 1

    @property
    def peak_error(self) -> float:
        return self.peak_bytes / (self.got["peak_bytes"] - self.got["peak_file_bytes"]) - 1


class TrainingFailed(Exception):
    """A plain script ended without a result; its argument is the script's folder."""


class PlainScript:
    """A plain script that trains with what its folder holds, standing still between its slices."""

    def __init__(
        self,
        folder: Path,
        limit: int = LIMIT,
        seconds: float = SECONDS,
        steps: int = STEPS,
        pause_after: int = SLICE,
    ) -> None:
        script = str(ROOT / "benchmarks" / "plain_training.py")
        command = [sys.executable, script, str(folder), str(limit), str(seconds), str(steps), str(pause_after)]
        # Not in this project's folder: it must not even be able to import it.
        pipe, self._folder = subprocess.PIPE, folder
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        self.done: dict[str, Any] | None = None
        self._wait()

    @property
    def processor_seconds(self) -> float:
        """What it and the processes of its data loaders have used so far."""
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return sum(map(_processor_seconds, [str(pid), *children]))

    def slice(self) -> None:
        """Let it train until it stands still again or has ended."""
        if self.done is None:
            assert self._process.stdin is not None
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            self._wait()

    def _wait(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == "paused":
                return
            if line.startswith('{"samples_per_second"'):
                self.done = json.loads(line)
        self._process.wait()
        if self.done is None:
            raise TrainingFailed(self._folder)


def _processor_seconds(pid: str) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def write_answer(folder: Path, environment: Environment, workload: Workload, configuration: Configuration) -> None:
    """The files that the plain script reads."""
    (folder / "request.json").write_text(json.dumps({"workload": workload.to_dict()}))
    answer = training_setup(configuration, environment, {}).training_arguments
    (folder / "best_training_arguments.json").write_text(json.dumps(answer))
    (folder / "best_model_arguments.json").write_text(
        json.dumps(training_setup(configuration, environment, {}).model_arguments)
    )


def workload_of(host: ProbeHost, model: str, cache: Path) -> Workload:
    """The built-in model of that name at its benchmark's length."""
    length = MODELS[model]
    options = {} if length is None else {"sequence_length": length}
    wanted = {"request": tuning_request(model, GLOBAL_BATCH, **options).to_dict(), "cache": str(cache)}
    return Workload.from_dict(asked(host, "prepare", wanted))


def measured(host: ProbeHost, environment: Environment, workload: Workload, number: int, folder: Path) -> Case:
    """One case, all its rounds."""
    micro, settings = CONFIGURATIONS[number]
    configuration = Configuration.exact(GLOBAL_BATCH, micro, PLAIN | settings)
    probe = LiveProbe(
        host,
        environment,
        workload,
        {},
        LIMIT,
        lambda slot: folder / f"{slot.number}-{slot.round}",
        timings=(TIMING, TIMING),
    )
    write_answer(folder, environment, workload, configuration)
    plain = PlainScript(folder)
    full: list[Measurement] = []
    composed: list[Measurement] = []

    def probed(confirmation: int, into: list[Measurement], one_round: int) -> None:
        into.append(probe(configuration, ProbeOptions(Slot(one_round, confirmation), 300.0)))
        assert into[-1].outcome is Outcome.COMPLETED, into[-1].reason

    for one_round in range(ROUNDS):
        turns = [lambda: probed(1, full, one_round), plain.slice]  # noqa: B023
        if configuration.gradient_accumulation_steps > 3:
            turns.append(lambda: probed(0, composed, one_round))  # noqa: B023
        for turn in turns[one_round % len(turns) :] + turns[: one_round % len(turns)]:
            turn()
        if plain.done is not None:
            break
    while plain.done is None:
        plain.slice()
    speed = pooled(full).samples_per_second
    composed_speed = pooled(composed).samples_per_second if composed else None
    assert speed is not None
    return Case(
        workload.name,
        str(configuration),
        (speed.value, speed.low, speed.high),
        None if composed_speed is None else composed_speed.value,
        max(item.peak_bytes or 0 for item in full),
        plain.done,
    )


def asked(host: ProbeHost, kind: str, request: dict[str, Any]) -> Any:
    return ask(host, Order(kind=kind, folder=str(host.scratch_folder()), deadline_s=300.0, request=request))


def cases(kept: Path) -> list[Case]:
    """Every case, those known from an earlier run read from their files."""
    every = []
    with ProbeHost() as host, tempfile.TemporaryDirectory() as scratch:
        environment = Environment.from_dict(asked(host, "capabilities", {"device": "cpu"}))
        for number in range(len(CONFIGURATIONS)):
            for model in MODELS:
                path = kept / f"{model}-{number}.json"
                if not path.exists():
                    workload = workload_of(host, model, Path(scratch) / "cache")
                    folder = Path(scratch) / path.stem
                    folder.mkdir()
                    path.write_text(json.dumps(asdict(measured(host, environment, workload, number, folder))))
                case = Case(**json.loads(path.read_text()))
                print(f"{model} {case.configuration}: {case.error:+.1%}, peak {case.peak_error:+.1%}", flush=True)
                every.append(case)
    return every


def table(every: list[Case]) -> list[str]:
    rows = ["| model | configuration | promised samples/s | got | error | composed error | peak | got | error |"]
    rows.append("|---|---|---|---|---|---|---|---|---|")
    for case in every:
        value, low, high = case.promised
        composed = "-" if case.composed_error is None else f"{case.composed_error:+.1%}"
        got_peak = case.got["peak_bytes"] - case.got["peak_file_bytes"]
        rows.append(
            f"| {case.model} | {case.configuration} | {value:.1f} ({low:.1f} to {high:.1f}) "
            f"| {case.got['samples_per_second']:.1f} | {case.error:+.1%} | {composed} "
            f"| {case.peak_bytes / 2**20:.0f} MiB | {got_peak / 2**20:.0f} MiB | {case.peak_error:+.1%} |"
        )
    within = sum(abs(case.error) <= 0.03 for case in every)
    peaks = sum(abs(case.peak_error) <= 0.03 for case in every)
    parts = [abs(case.composed_error) for case in every if case.composed_error is not None]
    covered = sum(case.promised[1] <= case.got["samples_per_second"] <= case.promised[2] for case in every)
    bias = statistics.median(case.error for case in every)
    alone = sum(abs(case.own_error) <= 0.03 for case in every)
    rows += [
        "",
        f"Speed within 3 %: {within} of {len(every)}; median error {bias:+.1%}; "
        f"the plain script agrees with itself (even slices against odd ones) within 3 % in {alone}. "
        f"What was got lies in the promised interval in {covered}. Peak within 3 %: {peaks} of {len(every)}. "
        f"Composed from three micro-steps: within 2 % of the full accumulation in {sum(part <= 0.02 for part in parts)} "
        f"of {len(parts)}, median {statistics.median(parts):.1%}.",
        "",
        f"Promised: up to {ROUNDS} rounds of {TIMING.timed_most} timed steps, each a process of its own, pooled. Got: one plain "
        f"script (benchmarks/plain_training.py, imports no autotune), {STEPS} steps or {SECONDS} s in slices of {SLICE}, which "
        "take turns with the rounds. Peak: the highest, as a search reports it.",
    ]
    return rows


def main() -> None:
    kept = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    kept.mkdir(parents=True, exist_ok=True)
    every = cases(kept)
    assert not any(case.got["imports_autotune"] for case in every)
    write_table(ROOT / "reports" / "fidelity.md", "Promised against got, model by model", table(every))


if __name__ == "__main__":
    main()

"""RecordedHost: answers the orders of a search from a recorded file, for tests that take seconds."""

import copy
import json
import math
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

from autotune.core import Configuration, Measurement, TuningRequest, Workload, read_json, write_json
from autotune.core.time_limit import TimeLimit
from autotune.probe import ExitInfo
from autotune.probe.order import Order, TrainingOrder, answer_name
from autotune.probe.process.launcher import HostSet
from tests.replay_probe import recorded


class RecordedHost:
    """A host that starts no process.

    recording: a file of `save_recording`. slower: how many times as long its steps last. orders: all that it was sent.

    The device, its rates and the model are as recorded, with the requested sequence length. A configuration that was not
    recorded has the speed of the one that shares most of its values and is nearest in micro-batch size, and its peak,
    scaled by the micro-batch; above the limit it runs out of memory.
    """

    uses_cache = False

    def __init__(self, recording: Path, _objects: bytes = b"", slower: float = 1.0) -> None:
        self.time_limit = TimeLimit()
        self._recording = read_json(recording)
        self._folders = ExitStack()
        self.slower = slower
        self.orders: list[Order] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folders that were requested."""
        self._folders.close()

    def scratch_folder(self) -> Path:
        """A new folder that is gone once this host is closed."""
        folder = Path(tempfile.mkdtemp(prefix="ask-"))
        self._folders.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def run(self, order: Order) -> ExitInfo:
        """Write the answer where a child would leave it, one a rank; every child exits well.

        Raises KeyError for an order of a kind that is not recorded.
        """
        self.orders.append(order)
        folder = Path(order.folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "order.json", order.to_dict())
        seconds = 0.0
        if order.kind == "probe":
            measurement = self.probe(cast("TrainingOrder", order))
            answer, seconds = measurement.to_dict(), measurement.probe_seconds
        else:
            answer = {"value": self._value(order)}
        for rank in range(order.ranks):
            write_json(folder / answer_name(rank), answer)
        return ExitInfo("exited", seconds, [0] * order.ranks)

    def background_host(self) -> "RecordedHost":
        """Another one with the same recording, whose orders are among this one's."""
        other = copy.copy(self)
        other._folders = ExitStack()
        return other

    def abandon(self) -> None:
        """Nothing runs."""

    def _value(self, order: Order) -> Any:
        match order.kind:
            case "prepare":
                return self.prepare(order)
            case "trace":
                return self._trace(order)
            case "rates":
                return self._recording["rates"]
            case "capabilities":
                return self._recording["environment"]
            case "verification":
                return self._verification(cast("TrainingOrder", order))
        return self._nearest(cast("TrainingOrder", order), order.kind)[1]

    def prepare(self, order: Order) -> dict[str, Any]:
        """The recorded workload, with the sequence length that is requested."""
        request = TuningRequest.from_dict(order.request["request"])
        workload = Workload.from_dict(self._recording["workload"])
        length = workload.sequence_length and (request.sequence_length or workload.sequence_length)
        return replace(workload, sequence_length=length).to_dict()

    def probe(self, order: TrainingOrder) -> Measurement:
        """The measurement of the ordered configuration."""
        configuration = order.configuration
        nearest, data = self._nearest(order, "probes")
        measurement = Measurement.from_dict(data)
        larger = max(1.0, configuration.micro_batch_size / nearest.micro_batch_size)
        peak = int((measurement.peak_bytes or 0) * larger)
        run = order.accumulation_steps_run
        speed = (measurement.samples_per_second or 1.0) / self.slower
        answer = recorded(configuration, speed, peak, order.allowed_bytes or peak, run=run)
        most = order.timing.untimed_most + order.timing.timed_most
        in_round = bool(order.confirmation) and not answer.is_composed
        trained, losses = self._nearest(order, "losses")
        # The Trainer adds up the losses of the micro-steps.
        scale = configuration.gradient_accumulation_steps / trained.gradient_accumulation_steps
        return replace(
            answer,
            settings=configuration.values,
            asked=configuration.values,
            system_state=measurement.system_state,
            probe_seconds=measurement.probe_seconds,
            losses=tuple(scale * loss for loss in losses[:most]) if in_round and answer.steps else (),
        )

    def _nearest(self, order: TrainingOrder, kind: str) -> tuple[Configuration, Any]:
        """(configuration, answer) that is recorded of this kind and shares most values with the ordered configuration."""
        wanted = order.configuration

        def distance(recorded: Configuration) -> tuple[int, float]:
            settings = {name: value for name, value in wanted.values.items() if name != "micro_batch_size"}
            differing = sum(recorded.values.get(name) != value for name, value in settings.items())
            return differing, abs(math.log(recorded.micro_batch_size / wanted.micro_batch_size))

        pairs = [(Configuration.from_dict(configuration), answer) for configuration, answer in self._recording[kind]]
        return min(pairs, key=lambda pair: distance(pair[0]))

    def _trace(self, order: Order) -> dict[str, Any]:
        traces = self._recording["traces"]
        answer = dict(traces["model"])
        for kind in ("steps", "updates"):
            missing = {"error": "not recorded"}
            answer[kind] = [traces[kind].get(_key(wanted), missing) for wanted in order.request[kind]]
        return answer

    def _verification(self, order: TrainingOrder) -> dict[str, Any]:
        measurement = self.probe(order)
        timing, seconds = order.timing, measurement.step_time_s or 1.0
        steps = min(timing.timed_most, max(timing.timed_least, math.ceil(timing.seconds / seconds)))
        return {
            "step_times_s": [seconds * (1 + 0.01 * (-1) ** step) for step in range(steps)],
            "data_wait_s": [0.0] * steps,
            "samples": order.configuration.global_batch_size * steps,
            "seconds": seconds * steps,
            "untimed_steps": 1,
            "peaks": {"peak_device_bytes": measurement.peak_bytes},
            "joules": None,
            "system_state": {},
            "observed_warnings": (),
        }


class RecordingHost(HostSet):
    """Hosts that keep what its children answered, for a RecordedHost.

    answers: (order, the first rank's answer) of all hosts that are to be saved together.
    """

    uses_cache = False

    def __init__(self, answers: list[tuple[Order, Any]], objects: bytes = b"") -> None:
        super().__init__(objects)
        self._answers = answers

    def background_host(self) -> None:
        """None: its answers would not be kept."""

    def run(self, order: Order) -> ExitInfo:
        """As `HostSet.run`."""
        info = super().run(order)
        path = Path(order.folder) / answer_name(0)
        if path.exists():
            self._answers.append((order, read_json(path) | {"probe_seconds": info.seconds}))
        return info


LEFT_OUT = ("stage_peak_bytes", "log_tail")
"""Fields of a measurement that no recording needs."""


def save_recording(answers: Iterable[tuple[Order, Any]], recording: Path) -> None:
    """Write what a RecordedHost reads. Raises OSError if the disk refuses."""
    recorded: dict[str, Any] = {"probes": [], "losses": [], "sanity_check": []}
    traces: dict[str, Any] = {"model": {}, "steps": {}, "updates": {}}
    for order, answer in answers:
        if order.kind == "probe" and answer["outcome"] == "completed" and order.configuration:
            brief = {name: value for name, value in answer.items() if value and name not in LEFT_OUT}
            losses = brief.pop("losses", [])
            kind, content = ("losses", losses) if order.confirmation else ("probes", brief)
            recorded[kind].append([order.configuration.to_dict(), content])
        elif "value" not in answer:
            continue
        elif order.kind == "trace":
            traces["model"] = {name: value for name, value in answer["value"].items() if name not in traces}
            for kind in ("steps", "updates"):
                traces[kind] |= dict(zip(map(_key, order.request[kind]), answer["value"][kind], strict=True))
        elif order.kind == "sanity_check" and order.configuration:
            recorded["sanity_check"].append([order.configuration.to_dict(), answer["value"]])
        elif order.kind != "verification":
            name = {"capabilities": "environment", "prepare": "workload"}.get(order.kind, order.kind)
            recorded[name] = answer["value"]
    recording.write_text(json.dumps(recorded | {"traces": traces}) + "\n", encoding="utf-8")


def _key(wanted: Mapping[str, Any]) -> str:
    """The key of a requested trace."""
    return json.dumps(wanted, sort_keys=True)

"""Probing by the user's command: a host that starts it again for each trial, with the trial's training arguments.

parent ==socket==> supervisor ─> COMMAND ─> ... ─> a program with a Trainer ──answer.json──> parent, which ends them all
"""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from autotune.commands.run.exchange import STARTUP, TRIAL, VARIABLE, Facts, Instructions
from autotune.core import interrupt
from autotune.core.io import write_json
from autotune.probe import ExitInfo
from autotune.probe.device.compile import compiled_variables
from autotune.probe.order import CHILD_ANSWER, LOG, TRAINED_BY_RANKS, Order, TrainingOrder, answer_name
from autotune.probe.process.launcher import CLOSE_S, ROOT, HostSet, supervised, write_order
from autotune.probe.process.supervisor import KEPT
from autotune.probe.train.fields import probe_fields, round_fields
from autotune.space.settings.checkpointing import ALIASES

LOOK_S = 0.05
"""Seconds between looks for answers."""

START, START_S = 3.0, 60.0
"""Time limit of a start of the command before its steps: a multiple of the first start's time, plus seconds."""

OTHER_RANKS_S = 20.0
"""Seconds that other ranks may take to answer after the first: one that failed leaves them waiting for its gradients."""

WITHOUT_TRACKERS = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
"""Variables of trackers, and of the hub's telemetry, that a program may start by itself, where it does not train."""


@dataclass(frozen=True)
class Command:
    """The words of the user's command, and the variables that it is started with. stdout: descriptor; None: that of autotune."""

    words: Sequence[str]
    environment: Mapping[str, str]
    stdout: int | None = None

    def hooked(self, messages: Path, instructions: Instructions) -> dict[str, str]:
        """The command's variables with the hook, for instructions that are in the folder of messages from now on."""
        instructions.write(messages)
        # An empty one is the current folder.
        paths = filter(None, [str(STARTUP), self.environment.get("PYTHONPATH"), *ROOT])
        return {**self.environment, VARIABLE: str(messages), "PYTHONPATH": os.pathsep.join(paths)}


class CommandHost(HostSet):
    """Trains by the command, one trial at a time; all other orders are carried out by processes of autotune."""

    def __init__(self, command: Command, facts: Facts, scratch: Path) -> None:
        super().__init__()
        self._command, self._facts, self._scratch = command, facts, scratch
        self._compiled: Path | None = None

    def run(self, order: Order) -> ExitInfo:
        """Same contract as `HostSet.run`."""
        if order.kind == "prepare":
            write_order(order)
            write_json(Path(order.folder) / CHILD_ANSWER, {"value": dict(self._facts.workload)})
            return ExitInfo("exited", codes=[0])
        if order.kind not in TRAINED_BY_RANKS:
            return super().run(order)
        interrupt.check()
        order = replace(order, deadline_s=self.time_limit.cut(order.deadline_s + START_S + START * self._facts.seconds))
        write_order(order)
        with tempfile.TemporaryDirectory(dir=self._scratch, ignore_cleanup_errors=True) as scratch:
            return self._trained(cast("TrainingOrder", order), Path(scratch))

    def _trained(self, order: TrainingOrder, scratch: Path) -> ExitInfo:
        """Start the command for this order, and end it once all ranks have answered: how it ended."""
        defaults = order.environment.training_argument_defaults
        fields = changed(probe_fields(order) | round_fields(order), self._facts, defaults)
        instructions = Instructions(
            purpose=TRIAL,
            call=self._facts.call,
            fields=fields | {"output_dir": str(scratch / "output")},
            number=self._facts.number,
            order=order.folder,
        )
        (scratch / "tmp").mkdir()
        environment = self._command.hooked(scratch, instructions) | WITHOUT_TRACKERS
        environment |= {**order.host_environment, **order.process_environment}
        self._compiled = self._compiled or self.scratch_folder()
        environment |= {"TMPDIR": str(scratch / "tmp"), **compiled_variables(order, self._compiled)}
        environment[KEPT] = json.dumps([str(scratch), str(self._compiled), order.folder])
        if order.ranks > 1:
            environment["AUTOTUNE_MEETING"] = str(scratch)
        answers = [Path(order.folder) / answer_name(rank) for rank in range(order.ranks)]
        begun = time.monotonic()
        with open(Path(order.folder) / LOG, "wb") as log:
            process, channel = supervised([str(scratch / "host"), *self._command.words], environment, log)
        info = ExitInfo("timed out", codes=[None] * order.ranks)
        until = begun + order.deadline_s
        try:
            while time.monotonic() < until:
                interrupt.check()
                is_over, answered = process.poll() is not None, [path.exists() for path in answers]
                if is_over or all(answered):
                    end = json.loads(channel.recv(65536) or '{"host_ended": -9}') if is_over else {}
                    codes = [end.get("host_ended", 0)] * order.ranks
                    info = ExitInfo("exited", codes=codes, kernel_oom_kills=end.get("kernel_oom_kills", 0))
                    break
                if any(answered) and info.ended == "timed out":  # the others may wait for it in vain
                    until = min(until, time.monotonic() + OTHER_RANKS_S)
                    info = ExitInfo("exited", codes=[-signal.SIGKILL] * order.ranks)
                time.sleep(LOOK_S)
        finally:
            channel.close()  # the supervisor ends the command, and all that it has started
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(CLOSE_S)
            process.kill()
            process.wait()
        return replace(info, seconds=time.monotonic() - begun)


def changed(fields: Mapping[str, Any], facts: Facts, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not as in the program's arguments, and at their defaults those that only the program has.

    Of two names of one field the older gives way.
    """
    arguments, base = facts.arguments, facts.base.keys() - ALIASES
    fields = {name: defaults.get(name) for name in base} | dict(fields)
    differing = {name: value for name, value in fields.items() if name not in arguments or arguments[name] != value}
    return differing | {old: None for old, new in ALIASES.items() if old in arguments and new in differing}

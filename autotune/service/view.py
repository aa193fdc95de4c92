"""A search on a server as `Progress`, put together from its events, for the displays of searches here."""

import math
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from autotune.core.configuration import RANKS, Configuration
from autotune.core.interval import Interval
from autotune.core.trial import Trial
from autotune.study.plan import Progress

SIZES = ("micro_batch_size", "gradient_accumulation_steps", RANKS)


class View:
    """The trials of a search so far."""

    def __init__(self) -> None:
        self._trials: dict[int, Trial] = {}

    def progress(self, kind: str, body: Mapping[str, Any]) -> Progress | None:
        """The progress that an event of this kind is of; None for what is not shown."""
        if kind == "state":
            reason = f": {body['reason']}" if body.get("reason") else ""
            waits = body["state"] in ("queued", "running")
            return Progress("preparing", self._sorted(), message=f"{body['state']}{reason}") if waits else None
        configuration, number, trial = _configuration(body["values"]), body["number"], None
        if kind in ("trial", "confirmed"):
            before = self._trials.get(number)
            rounds = len(before.confirmations) + 1 if before and kind == "confirmed" else 0
            self._trials[number] = trial = _trial(body, configuration, rounds)
        elif kind == "progress":
            kind = body["doing"].partition(" ")[0] if configuration else "finishing" if body["doing"] else "resumed"
        names = ("probes_left", "seconds_left", "speedup", "message")
        told = {name: body[name] for name in names} | {"max_gain": body["could_win"]}
        best = self._trials.get(body["best"])
        return Progress(kind, self._sorted(), number, configuration, trial, best, **told)

    def _sorted(self) -> tuple[Trial, ...]:
        return tuple(self._trials[number] for number in sorted(self._trials))


def _configuration(values: Mapping[str, Any] | None) -> Configuration | None:
    if values is None:
        return None
    settings = tuple(item for item in values.items() if item[0] not in SIZES)
    micro, accumulation, ranks = (values[name] for name in SIZES)
    return Configuration(micro, accumulation, ranks, settings)


class _Outcome(str):
    """Text of how a trial ended, as `outcome_text` has it before its first comma or colon; value: the outcome's name."""

    value: str


def _trial(body: Mapping[str, Any], configuration: Configuration | None, rounds: int) -> Trial:
    """What displays read of a trial; its steps stay on the server."""
    speed, feasible = body["samples_per_second"], not body["reason"]
    text, *reason = re.split("[,:] ", body["reason"], maxsplit=1)
    outcome = _Outcome(text)
    outcome.value = body["outcome"]
    final = SimpleNamespace(
        outcome=outcome,
        reason="".join(reason),
        feasible=feasible,
        warnings=tuple(body["warnings"]),
        **{"where": "", "refused_bytes": None, "ended_early": False},
    )
    shown = SimpleNamespace(
        number=body["number"],
        configuration=configuration,
        samples_per_second=speed and Interval(*(math.inf if number is None else number for number in speed)),
        peak_bytes=body["peak_bytes"],
        final=final,
        feasible=feasible,
        confirmations=(None,) * rounds,
        confirmed=feasible and rounds > 0,
        disqualified_reason="",
    )
    return cast(Trial, shown)

"""A search on a server as `Progress`, put together from its events, for the displays of searches here."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autotune.core import Configuration, Measurement, Trial
from autotune.judge.standing import Standing
from autotune.study.plan import Progress, ProgressKind

SAME = ("number", "probes_left", "seconds_left", "seconds_to_go", "max_gain", "message")
"""Fields of a Progress that an event has unchanged."""


class View:
    """The trials of a search so far."""

    def __init__(self) -> None:
        self._trials: dict[int, Trial] = {}
        self._objective = "samples_per_second"

    def progress(self, kind: str, body: Mapping[str, Any]) -> Progress | None:
        """The progress of an event of this kind; None if it is not shown."""
        if kind == "lost":
            return None
        if kind == "state":
            reason = f": {body['reason']}" if body.get("reason") else ""
            waits = body["state"] in ("queued", "running")
            return (
                Progress(ProgressKind.PREPARING, self._standing(), message=f"{body['state']}{reason}")
                if waits
                else None
            )
        configuration, self._objective = None, body["objective"]
        if body["values"]:
            settings = {name: value for name, value in body["values"].items() if name not in body["sizes"]}
            configuration = Configuration(**body["sizes"], settings=tuple(settings.items()))
        if kind in (ProgressKind.TRIAL, ProgressKind.CONFIRMED) and configuration:
            measured, number = Measurement.from_dict(body["measurement"]), body["number"]
            if kind == "trial":
                self._trials[number] = Trial(number, configuration, measured)
            elif before := self._trials.get(number):
                self._trials[number] = replace(before, confirmations=(*before.confirmations, measured))
        if kind != ProgressKind.PREPARING:  # the trials may not be read yet
            reasons = {int(number): reason for number, reason in body["disqualified"].items()}
            self._trials = {
                number: replace(trial, disqualified_reason=reasons.get(number, ""))
                for number, trial in self._trials.items()
            }
        return Progress(
            kind=ProgressKind(body["kind"]),
            standing=self._standing(),
            configuration=configuration,
            trial=self._trials.get(body["number"]) if kind in (ProgressKind.TRIAL, ProgressKind.CONFIRMED) else None,
            **{name: body[name] for name in SAME},
        )

    def _standing(self) -> Standing:
        return Standing(tuple(self._trials[number] for number in sorted(self._trials)), self._objective)

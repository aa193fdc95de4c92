"""Ledger: all that is known of a study's measurements, as it lies in the study's folder.

<folder>/probes/0007/proposal.json       that trial 7 was begun, and with which configuration
         probes/0007/order.json, measurement.json
         probes/0007/confirmation-1/     its first round
         probes/reference/confirmation-1/, probes/device-1/

A trial that was begun and has no measurement was interrupted, or its executor was lost: it is measured before all else. So is
one that timed out, if it may take longer now.
"""

import bisect
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.core import Configuration, Measurement, Outcome, Trial, write_json
from autotune.core.io import Unreadable, read_record
from autotune.core.kept import OF_LOSSES, OF_NUMERICS, KeptSetting
from autotune.core.loss_curves import Numerics
from autotune.core.prospect import OptimalityGap
from autotune.core.slot import Slot, SlotKind
from autotune.core.stop_reason import StopReason
from autotune.judge.dominance import TOO_FEW_DEVICES
from autotune.judge.standing import Standing
from autotune.probe.order import ANSWER, ORDER
from autotune.study.job import Begin
from autotune.study.loss_check import compare_losses, disqualify_flagged, flagged
from autotune.study.measure import keep
from autotune.study.plan import Plan
from autotune.study.store import (
    PROPOSAL,
    Damage,
    discard_damaged,
    folder_number,
    keep_prospect,
    probe_folder,
    read_peaks,
    read_prospects,
    read_references,
    read_rounds,
    read_trial,
    reporting_storage,
)


@dataclass
class Ledger:
    """The measurements of a study; only its methods change it, and measurements are on disk before they count.

    unfinished: number -> configuration of trials that were begun and have no measurement. references: round -> the training
    that its losses are compared with. calibrations: device -> what it repeated. risks: number -> how likely a trial was to fit
    that was tried although it might not. out_of_time: what was given up, and why: the time was over; left_out: what else there
    was no time for, as text. pace: (seconds that a measurement of this run took, repetitions included, those of its probe
    alone). gap: what the untried could win at the last proposal. numerics: the losses of all rounds so far, compared. damage:
    files that could not be read.
    """

    folder: Path
    plan: Plan
    unfinished: dict[int, Configuration] = field(default_factory=dict)
    references: dict[int, Measurement] = field(default_factory=dict)
    calibrations: dict[str, Trial] = field(default_factory=dict)
    risks: dict[int, float] = field(default_factory=dict)
    out_of_time: dict[Slot, StopReason] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    pace: list[tuple[float, float]] = field(default_factory=list)
    gap: OptimalityGap | None = None
    numerics: Numerics | None = None
    damage: Damage = field(default_factory=dict)
    _measured: dict[int, Trial] = field(default_factory=dict)
    _numbers: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        may_be_unproven = self.plan.time.is_set or not self.plan.confirmation_rounds
        self.standing = Standing((), self.plan.objective, may_be_unproven)
        """Standing of the measured trials; without any before the baseline, with which all is compared."""

    @property
    def trials(self) -> list[Trial]:
        """The measured trials, in the order of their numbers; empty before the baseline."""
        return [*self.standing.trials]

    # Reading --------------------------------------------------------------------------------------------------

    @classmethod
    def read(cls, folder: Path, plan: Plan) -> "Ledger":
        """The ledger in this folder; what cannot be read is measured again. Raises OSError if the disk refuses."""
        ledger = cls(folder, plan)
        for place in sorted((folder / "probes").glob("[0-9]*")):
            if (number := folder_number(place.name)) is not None:
                ledger._read_trial(place, number)
        for place in sorted((folder / "probes").glob("device-*")):
            if (trial := read_trial(place, 0)) is not None and trial.measurement.device:
                ledger.calibrations[trial.measurement.device] = trial
        ledger.references = read_references(folder, ledger.damage)
        read_prospects(folder, ledger.damage)
        read_peaks(folder, ledger.damage)
        discard_damaged(folder, ledger.damage)
        ledger._judge()
        return ledger

    def _read_trial(self, place: Path, number: int) -> None:
        self._numbers.add(number)
        trial = read_trial(place, number, self.damage)
        proposal = _proposal(place)
        if (risk := proposal.get("risk")) is not None:
            self.risks[number] = float(risk)
        if trial is None:
            if (configuration := _configuration(proposal, place)) is not None:
                self.unfinished[number] = configuration
        elif self._has_more_time(trial.measurement):
            self.unfinished[number] = trial.configuration
        elif not (number and trial.measurement.where == TOO_FEW_DEVICES):  # there may be enough of them now
            self._measured[number] = self._of_this_run(trial)

    def _of_this_run(self, trial: Trial) -> Trial:
        """The trial without rounds that are to be measured again, for a training of this run's length."""
        rounds = (
            measured
            for measured in trial.confirmations
            if measured.where != TOO_FEW_DEVICES and not self._has_more_time(measured)
        )
        return replace(trial, confirmations=tuple(rounds)).with_training_steps(self.plan.training_steps)

    def _has_more_time(self, measured: Measurement) -> bool:
        """True if it timed out, and may take longer than that by the --probe-timeout of this run."""
        return measured.outcome is Outcome.TIMED_OUT and measured.probe_seconds < (self.plan.probe_timeout_s or 0.0)

    @property
    def damaged_trials(self) -> list[int]:
        """Numbers of the trials that are measured again because their files cannot be read."""
        return sorted(number for number in self.unfinished if {*self.damage} & self._files(number))

    def _files(self, number: int) -> set[Path]:
        return {probe_folder(self.folder, Slot(number)) / name for name in (ORDER, ANSWER)}

    @property
    def measured(self) -> int:
        """Number of trials that are measured."""
        return len(self._measured)

    @property
    def flagged(self) -> list[Configuration]:
        """Configurations that do not learn as the reference does: nothing that learns as one of them can win."""
        if not self.trials or self.numerics is None or self.plan.allow_loss_difference:
            return []
        return [trial.configuration for trial in flagged(self.trials, self.numerics)]

    @property
    def kept(self) -> dict[str, KeptSetting]:
        """Setting -> why it keeps the user's value, as the trials showed."""
        plan = self.plan
        left_out = {*(() if plan.keep_numerics else OF_NUMERICS), *(OF_LOSSES if plan.allow_loss_difference else ())}
        shown = [each for trial in self.trials for each in trial.measurement.kept]
        return {each.setting: each for each in reversed(shown) if each.kind not in left_out}

    @property
    def next_number(self) -> int:
        """Number of a new trial; the first one is the baseline."""
        return max(self._numbers, default=-1) + 1 if 0 in self._measured else 0

    # Writing --------------------------------------------------------------------------------------------------

    def begin(self, job: Begin) -> None:
        """Note that a job begins. Raises StorageFailed."""
        with reporting_storage(self.folder):
            self.keep_gap(job.gap)
            if job.slot.kind is not SlotKind.TRIAL or job.slot.round:
                return
            number = job.slot.number
            if number not in self.unfinished:
                place = probe_folder(self.folder, job.slot)
                place.mkdir(parents=True, exist_ok=True)
                write_json(place / PROPOSAL, {"configuration": job.configuration.to_dict(), "risk": job.risk})
                if job.risk is not None:
                    self.risks[number] = job.risk
            self.unfinished[number] = job.configuration
            self._numbers.add(number)

    def record(
        self, slot: Slot, configuration: Configuration, measurement: Measurement, seconds: float | None = None
    ) -> None:
        """Write a measurement and take it in. seconds: that it took. Raises StorageFailed."""
        if seconds is not None:
            self.pace.append((seconds, measurement.probe_seconds))
        with reporting_storage(self.folder):
            keep(probe_folder(self.folder, slot), configuration, measurement)
        if slot.kind is SlotKind.DEVICE:
            self.calibrations[measurement.device] = Trial(0, configuration, measurement)
            return
        if slot.kind is SlotKind.REFERENCE:
            self.references[slot.round] = replace(measurement, round=slot.round, asked=configuration.values)
        elif slot.round:
            trial = self._measured[slot.number]
            others = [measured for measured in trial.confirmations if measured.round != slot.round]
            bisect.insort(others, replace(measurement, round=slot.round), key=lambda measured: measured.round)
            self._measured[slot.number] = replace(trial, confirmations=tuple(others))
        else:
            # Rounds are there if it is measured again because its probe could not be read.
            rounds = read_rounds(probe_folder(self.folder, slot)).values()
            trial = Trial(slot.number, configuration, measurement, tuple(rounds))
            self._measured[slot.number] = self._of_this_run(trial)
            self._numbers.add(slot.number)
            self.unfinished.pop(slot.number, None)
        self._judge()

    def give_up(self, slot: Slot, reason: StopReason) -> None:
        """Note that there was no time for this measurement; a later search makes it."""
        self.out_of_time[slot] = reason
        if slot.kind is SlotKind.TRIAL and not slot.round:
            self.unfinished.pop(slot.number, None)

    def keep_gap(self, gap: OptimalityGap | None) -> None:
        """Write what the untried could still win next to the last trial. Raises OSError if the disk refuses."""
        if gap is None:
            return
        self.gap = gap
        if self.trials:
            keep_prospect(self.folder, self.trials[-1].number, gap)

    def leave_out(self, *parts: str) -> None:
        """Note what the search has no time for."""
        self.left_out += parts

    def _judge(self) -> None:
        """Compare all losses so far; what does not learn as the reference does cannot win, unless that is allowed."""
        if 0 not in self._measured:
            return
        before = replace(self.standing, trials=tuple(self._measured[number] for number in sorted(self._measured)))
        self.numerics = compare_losses(before, self.references)
        trials = [*before.trials]
        if self.numerics and not self.plan.allow_loss_difference:
            disqualify_flagged(trials, self.numerics, self.plan.require_parity)
        self.standing = replace(before, trials=tuple(trials))  # from which what settings keep follows
        own, *others = trials
        self.standing = replace(before, trials=(own, *(self._without_others(trial) for trial in others)))

    def _without_others(self, trial: Trial) -> Trial:
        """The trial, barred if it has another value than a setting keeps: one of an earlier search of this study."""
        own, values = self._measured[0].configuration.values, trial.configuration.values
        for name, each in self.kept.items():
            if name in values and not each.allows(values[name], own[name]):
                return replace(trial, disqualified_reason=each.text)
        return trial


def _proposal(place: Path) -> Mapping[str, Any]:
    """The proposal in a trial's folder; empty if it is missing or cannot be read."""
    try:
        proposal: Mapping[str, Any] = read_record(place / PROPOSAL, dict)
        return proposal
    except (FileNotFoundError, Unreadable):
        return {}


def _configuration(proposal: Mapping[str, Any], place: Path) -> Configuration | None:
    """The configuration of a trial without a measurement that can be read; None if nothing says it."""
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        return Configuration.from_dict(proposal["configuration"])
    with contextlib.suppress(FileNotFoundError, Unreadable):
        configuration: Configuration = read_record(
            place / ORDER, lambda order: Configuration.from_dict(order["configuration"])
        )
        return configuration
    return None

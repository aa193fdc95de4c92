"""Probing: what is proposed runs on the idle devices, and what they measured is told."""

import bisect
import contextlib
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from autotune.core import Outcome, Trial
from autotune.core.errors import SearchFailed, TimeIsOver
from autotune.core.failures import relevant_end
from autotune.core.io import file_end
from autotune.core.units import format_seconds
from autotune.executors.pool import RETURN_S, Ended, Pool
from autotune.probe.order import LOG
from autotune.space.dominance import SAME_CRASHES, crashing_values
from autotune.study import devices
from autotune.study.jobs import job_of, measured, progress
from autotune.study.measure import keep
from autotune.study.plan import Watch
from autotune.study.stopping import time_is_over
from autotune.study.store import read_rounds, reporting_storage
from autotune.study.study import PROBES, Asked, Study, ask, tell

CRASHES_THAT_END = 6
"""The same crash so many times in a row, with no value to blame, ends the search: it is the machine."""


@dataclass
class Probing:
    """Probes of a study on its devices. warm_up: as in `search`. time_over: why nothing more is proposed."""

    study: Study
    pool: Pool
    watch: Watch
    warm_up: Callable[[], None]
    time_over: str = ""

    def start(self) -> str:
        """Let idle devices probe what is proposed; why nothing is proposed, or nothing where others must end first."""
        study, pool = self.study, self.pool
        if not pool.is_running:
            self.raise_without_devices()
        if self.time_over:
            self._leave_waiting()
        while pool.idle and not self.time_over:
            if pool.is_running and study.wish.to_stop:
                return ""
            study.wish.check()
            if again := next((known for known in study.again if pool.but(pool.idle, known[1])), None):
                study.again.remove(again)
                number, able = again[0], pool.but(pool.idle, again[1])
            else:
                able = [device for device in pool.idle if not devices.is_suspect(study, device)]
                if not able:
                    return ""
                proposal, stop_reason = self._propose()
                if proposal is None:
                    return stop_reason
                number, *_ = study.running[proposal[0]] = proposal
            _, _, configuration = study.running[number]
            ranks = pool.width(configuration)
            if len(pool.idle) < ranks <= len(pool.devices):  # it is next, once so many are idle
                study.again.insert(0, (number, ""))
                return ""
            message = "" if study.risk is None else f"may not fit ({study.risk:.0%} likely to)"
            self.watch(progress(study, "probing", number=number, configuration=configuration, message=message))
            others = [name for name in pool.idle if name != able[0]]
            pool.start(
                number, job_of(study, pool, configuration, number, device=able[0]), able[0], *others[: ranks - 1]
            )
        return self.time_over

    def raise_without_devices(self) -> None:
        """Raise SearchFailed where all devices are lost for good."""
        seconds = min(RETURN_S, self.study.plan.time.seconds_left())
        message = f"all devices were lost; waiting up to {format_seconds(seconds)} for one to return"
        devices.raise_without(
            self.pool,
            seconds,
            lambda: self.watch(progress(self.study, "preparing", message=message)),
            self.study.wish.check,
        )

    def _leave_waiting(self) -> None:
        """Leave out what waits for a device, now that the time is over; raises TimeIsOver where that is the baseline."""
        study = self.study
        for number, _ in study.again:
            del study.running[number]
            study.unlikely.discard(number)
        study.again.clear()
        if not study.trials and not study.running:
            raise study.plan.time.too_late("your own settings were measured")

    def compare(self, reserved: Collection[str] = ()) -> None:
        """Let idle devices that are not reserved repeat what another one did, where nothing compares them yet."""
        for device in self.pool.idle:
            if device not in reserved and not self.time_over:
                devices.start_baseline(self.study, self.pool, device)

    def _propose(self) -> tuple[Asked | None, str]:
        """What `ask` answers; nothing while all else follows from the baseline, or the last probes run."""
        study = self.study
        if study.running and not study.trials:
            return None, ""
        if study.running and len(study.trials) + len(study.running) >= study.plan.probes(study.trials):
            return None, ""
        if study.trials:
            self.warm_up()
        study.left_out.clear()
        with reporting_storage(study.folder):
            return ask(study)

    def take(self, ended: Ended) -> None:
        """Tell what came of a probe, or of the baseline on a further device; raises SearchFailed as `search` does."""
        study, pool = self.study, self.pool
        if isinstance(ended.key, str):
            if isinstance(ended.error, TimeIsOver):
                self.time_over = time_is_over(study.plan)
            devices.take_baseline(study, pool, ended)
            return
        assert isinstance(ended.key, int)
        number, running, configuration = study.running[ended.key]
        if isinstance(ended.error, TimeIsOver):
            del study.running[number]
            study.unlikely.discard(number)
            if not study.trials and not study.running:
                raise ended.error
            study.left_out += [] if self.time_over else [PROBES]
            self.time_over = time_is_over(study.plan)
            return
        if (measurement := measured(study, pool, configuration, ended)) is None:
            study.again.append((number, ended.device))
            return
        with reporting_storage(study.folder):
            if ended.error is not None:
                keep(study.probe_folder(number), configuration, measurement)
            tell(study, running, configuration, measurement)
        # Rounds are there if it is measured again because its probe could not be read.
        rounds = read_rounds(study.probe_folder(number)).values()
        trial = Trial(number, configuration, measurement, tuple(rounds))
        del study.running[number]
        study.unlikely.discard(number)
        if number == 0:
            study.trials += study.waiting
            study.waiting.clear()
        bisect.insort(study.trials, trial, key=lambda trial: trial.number)
        devices.judge(study, pool)
        what = {"number": number, "configuration": configuration, "trial": trial}
        self.watch(progress(study, "trial", message=pool.running, **what))
        stop_where_it_crashes(study)


def stop_where_it_crashes(study: Study) -> None:
    """Raise SearchFailed where the baseline crashed or the last crashes are one and the same, with no value to blame.

    Values that crash wherever they are, are only ruled out (`crashing_values`), unless nothing runs at all.
    """
    has_run = any(trial.measurement.outcome is Outcome.COMPLETED for trial in study.trials)
    most = CRASHES_THAT_END if has_run else SAME_CRASHES
    blamed = [values.items() for values, _ in crashing_values(study.trials) if len(values) == 1]
    last = study.trials[-most:]
    if study.trials and study.trials[0].measurement.outcome is Outcome.CRASHED:
        raise _crash(study, study.trials[0], "The baseline crashed")
    if len(last) < most or any(trial.measurement.outcome is not Outcome.CRASHED for trial in last):
        return
    if has_run and any(values <= trial.configuration.values.items() for trial in last for values in blamed):
        return
    if len({re.sub(r"\d+", "#", trial.measurement.reason) for trial in last}) == 1:
        raise _crash(study, last[-1], f"The same crash came {most} times in a row")


def _crash(study: Study, trial: Trial, what: str) -> SearchFailed:
    log, reason = study.probe_folder(trial.number) / LOG, trial.measurement.reason.rstrip(".")
    tail = trial.measurement.log_tail or _end_of(log)
    last = _last_line(tail)
    detail = "" if last in reason or reason in last else f" ({last})"
    cause = "Fix the cause"
    if place := _place_in_model(tail):
        cause = (
            f"The model's own code raised it ({place}): compare the fields of its config and --sequence-length with it"
        )
    return SearchFailed(
        f"{what}: {reason}{detail}.", f"Its output is in {log}. {cause}, then search again with --fresh."
    )


def _place_in_model(output: str) -> str:
    """File and line of a model of transformers that raised what ended this output; empty if something else did."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', relevant_end(output))
    file, line = frames[-1] if frames else ("", "")
    return f"{Path(file).name}, line {line}" if "transformers/models/" in file else ""


def _end_of(log: Path) -> str:
    """The end of a probe's output; empty if it cannot be read."""
    with contextlib.suppress(OSError):
        return file_end(log, 4000).decode(errors="replace")
    return ""


def _last_line(text: str) -> str:
    """The last line of a text that is not empty, as much of it as a message needs."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")[:300]

"""Verify: plain trainings with the user's settings and with the answer in turns, to compare the speed-up.

round 1: yours answer | round 2: answer yours | round 3: yours answer | ...     each a process of its own, alone on the device
"""

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.commands.save import fields_of_saved
from autotune.commands.verify.result import Verification
from autotune.core import Environment, InvalidRequest, Measurement, Outcome, Step, Trial, write_json
from autotune.core.measurement import ROUNDS_THAT_TELL
from autotune.core.note import Note, NoteKind
from autotune.core.paths import cache_folder, study_word
from autotune.core.request import VERIFICATION_SECONDS
from autotune.core.slot import Slot
from autotune.core.units import format_bytes, format_seconds, three_digits
from autotune.core.warning import ResultWarning, WarningKind
from autotune.probe import Host, ProbeOptions
from autotune.probe.device import nvml
from autotune.probe.order import CHILD_ANSWER, Timing
from autotune.probe.process.launcher import HostSet
from autotune.probe.queries import read_environment
from autotune.report.claim import substitute_text
from autotune.report.evidence import real_run_lines
from autotune.report.live.views import saying
from autotune.report.markdown import wrapped
from autotune.space.launch import launch_line
from autotune.study.measure import live_probe
from autotune.study.pacing import untimed_seconds
from autotune.study.result import SearchResult, training_setup_of
from autotune.study.store import VERIFICATION, locked, reporting_storage

MOST_STEPS = 100_000
"""Limit of the steps of a side: the order of the samples is in the training's memory, and beyond this it would count."""

PLACE = Path("probes", "verification")
"""Orders and logs of the trainings in a study's folder."""

ROUNDS, MOST_ROUNDS, ROUND_S = 6, 20, 10.0
"""Rounds at least and at most; between these as many as make each side's timed steps in a round take so long. What two
processes of one configuration differ by shrinks with the rounds alone."""


def verify(
    folder: str | Path,
    seconds: float = VERIFICATION_SECONDS,
    watch: Callable[[str], None] | bool | None = None,
) -> Verification:
    """Train with the user's settings and with the answer of the study in this folder in turns, and compare their speeds.

    A failed training is returned as one. If the answer is the user's own settings, nothing is trained. Writes
    verification.json to the folder, and orders and logs to probes/verification.

    Args:
        folder: The study's report folder.
        seconds: Duration of each side's timed steps, in all rounds together.
        watch: Called with a line on what is done next and one for each training. By default, or by True, they are shown on
            standard error; by False, they are not.

    Raises:
        InvalidRequest: The study alone does not say how to train.
        NothingFits: The study has no answer.
        StudyInUse: Another process holds the folder.
        StorageFailed: The folder cannot be written.
        ProbeHostFailed: The process that starts probes failed.
        KeyboardInterrupt: Nothing is left running. verification.json has the complete rounds, unless there are none or it holds
            an earlier verification and they are too few to tell.
    """
    folder = Path(folder)
    if not 0 < seconds < math.inf:
        raise InvalidRequest(f"The seconds must be above 0, not {seconds!r}.", "Leave them out to take 30.")
    # An answer that was refuted is tried again.
    result = SearchResult(**fields_of_saved(folder) | {"verification": None})
    best = result.best
    verification = Verification(study_word(folder), best, _rival(result), objective=result.request.objective)
    if verification.is_same:
        return verification
    if (ranks := result.setup.processes) > 1:
        raise InvalidRequest(
            f"The result of this study trains on {ranks} ranks, and verify starts a single process.",
            f"Start your own training with {launch_line(ranks, result.setup.variables)} and watch its speed.",
        )
    check_trainable(result)
    show = saying(watch)
    with locked(folder):
        with HostSet() as host:
            here = environment_here(host, result)
            shutil.rmtree(folder / PLACE, ignore_errors=True)
            turns = _Turns(result, here, host, seconds)
            show(turns.announcement)
            try:
                turns.run(show)
            except KeyboardInterrupt:
                # What can tell, or what is better than nothing, outlives the interrupt.
                if turns.complete >= (ROUNDS_THAT_TELL if (folder / VERIFICATION).exists() else 1):
                    _written(folder, verification, turns)
                raise
        return _written(folder, verification, turns)


def _rival(result: SearchResult) -> Trial | None:
    """The user's settings, or the least change of them that fits; None if neither runs or that change is the answer."""
    return None if result.best is result.substitute else result.compared_trial


def _written(folder: Path, verification: Verification, turns: "_Turns") -> Verification:
    """The verification with what was measured, written to the study's folder."""
    verification = replace(
        verification, yours=turns.measured["yours"], answer=turns.measured["answer"], notes=turns.notes
    )
    with reporting_storage(folder):
        write_json(folder / VERIFICATION, verification.to_dict())
    return verification


# Before the training ----------------------------------------------------------------------------------------------


def check_trainable(result: SearchResult, verb: str = "Verify") -> None:
    """Raise InvalidRequest if the model or data of the study are missing. verb: of the advice."""
    if result.workload.user_objects:
        raise InvalidRequest(
            "The model of this study is the caller's own code, which is not in the study.",
            f"{verb} it by running the training itself with best_training_arguments.json.",
        )
    if result.workload.data and not (cache_folder() / result.workload.data / "data").is_dir():
        raise InvalidRequest(
            f"The prepared data of this study is no longer in {cache_folder()}.",
            "Run the same search command again: it prepares the data again.",
        )


def environment_here(host: Host, result: SearchResult, verb: str = "Verify") -> Environment:
    """The study's device as it is now, with the optimizers that its request names.

    Raises InvalidRequest if there is none of that kind.
    """
    measured = result.environment
    request = replace(result.request, device=measured.device)
    try:
        return read_environment(host, request, nvml.choose_device(request.device))[0]
    except InvalidRequest as error:
        raise InvalidRequest(
            f"The study was measured on {measured.device_name}. {error.message}", f"{verb} it on such a machine."
        ) from error


def _notes(result: SearchResult, here: Environment) -> tuple[Note, ...]:
    best = result.best
    notes = [Note(NoteKind.REAL_RUN, detail=line) for line in real_run_lines(result)]
    if differing := differing_facts(result.environment.identity(), here.identity()):
        notes.append(Note(NoteKind.OTHER_MACHINE, detail="; ".join(differing)))
    if rival := substitute_text(result):
        notes.append(Note(NoteKind.SUBSTITUTE, detail=rival.rstrip(".")))
    if not result.standing.is_shown(best):
        notes.append(Note(NoteKind.NOT_PROVEN))
    if best.measurement.worst_batch or best.final.worst_batch:
        notes.append(Note(NoteKind.LARGEST_BATCH))
    return tuple(notes)


def differing_facts(measured: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """`torch 2.12.0, here 2.13.0` for each fact that differs."""
    before, now = ({**facts, **facts["versions"], "versions": None} for facts in (measured, here))
    return [
        f"{name.replace('_', ' ')} {before.get(name)}, here {now.get(name)}"
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name)
    ]


# The trainings ----------------------------------------------------------------------------------------------------


class _Turns:
    """The trainings of a verification: sides that take turns in rounds, within these seconds of each side."""

    def __init__(self, result: SearchResult, here: Environment, host: Host, seconds: float) -> None:
        assert result.folder is not None
        self._result, self._here = result, here
        self.measured: dict[str, list[Measurement]] = {"yours": [], "answer": []}
        rival = _rival(result)
        self._sides = {**({"yours": rival} if rival else {}), "answer": result.best}
        self._device_used = nvml.usage_of(nvml.choose_device(here.device))
        of = host, here, result.workload, result.allowed_bytes, result.folder
        self._probe = live_probe(result.request, *of, device_used=self._device_used)
        self._rounds = min(MOST_ROUNDS, max(ROUNDS, math.ceil(seconds / ROUND_S)))
        self._seconds = seconds

    def timing(self, trial: Trial) -> Timing:
        """Duration of a training with this trial's settings in a round: untimed steps as in a round of the search."""
        own = self._probe.timing(
            trial.configuration,
            ProbeOptions(Slot(trial.number, 1), 0.0),
            trial.configuration.gradient_accumulation_steps,
        )
        seconds = self._seconds / self._rounds
        expected = math.ceil(seconds / (trial.final.step_time_s or 1.0))
        most = min(MOST_STEPS // self._rounds, max(100, 4 * expected))  # samples are prepared for this number
        return replace(own, timed_least=1, timed_most=most, seconds=seconds, timed_seconds_least=0.0)

    def _expected_s(self, trial: Trial) -> float:
        """Seconds that a training with this trial's settings is expected to take in a round."""
        timing, step_s = self.timing(trial), trial.final.step_time_s or 1.0
        timed_s = max(timing.seconds, step_s)
        return trial.measurement.starting_s + untimed_seconds(timing, step_s) + timed_s

    @property
    def announcement(self) -> str:
        """Text on what is trained for how long, and how long all of it is expected to take."""
        whole_s = self._rounds * sum(map(self._expected_s, self._sides.values()))
        rival = self._result.baseline_name
        rival = f"the least change of {rival} that fits" if self._result.substitute else rival
        both = f"{rival} and the answer in turns" if "yours" in self._sides else "the answer"
        text = f"Training {both}, {self._rounds} times; of each {format_seconds(self._seconds)} in all."
        lines = wrapped(f"{text} This takes about {format_seconds(whole_s)}.")
        for side, trial in self._sides.items():
            lines += wrapped(str(trial.configuration), f"  {side:<8}", " " * 10)
        return "\n".join(lines)

    def run(self, show: Callable[[str], None]) -> None:
        """Measure the rounds of both sides, up to the first that does not complete."""
        for number in range(1, self._rounds + 1):
            for side in list(self._sides) if number % 2 else reversed(self._sides):
                self.measured[side].append(last := self._trained(side, number))
                text = f"round {number} of {self._rounds}, {side}: {_line(last)}"
                show("\n".join(wrapped(text, "  ", " " * 4)))
                if not last.feasible:
                    return

    @property
    def complete(self) -> int:
        """Rounds that every side was trained in."""
        return min(len(self.measured[side]) for side in self._sides)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Limits of the comparison."""
        notes = _notes(self._result, self._here)
        trained = [measured for rounds in self.measured.values() for measured in rounds]
        if self.complete < self._rounds and all(measured.feasible for measured in trained):
            notes += (Note(NoteKind.ENDED_EARLY, {"rounds": self.complete, "planned": self._rounds}),)
        return notes

    def _trained(self, side: str, number: int) -> Measurement:
        """A plain training with exactly the arguments of this side."""
        assert self._result.folder is not None
        trial = self._sides[side]
        configuration, setup = trial.configuration, training_setup_of(self._result, trial)
        folder = self._result.folder / PLACE / f"{number}-{side}"
        before, begun = self._device_used(), time.monotonic()
        answer, failure = self._probe.train(
            "verification",
            configuration,
            folder,
            20 * self._expected_s(trial) + 600,
            {"round": number},
            number=trial.number,
            timing=self.timing(trial),
            training_arguments=setup.training_arguments,
            model_arguments=setup.model_arguments,
        )
        (folder / CHILD_ANSWER).unlink(missing_ok=True)
        others = sorted({*(before[1] if before else ()), *((self._device_used() or (0, []))[1] if before else ())})
        warnings = (ResultWarning(WarningKind.SHARED_DEVICE, detail=", ".join(others)),) if others else ()
        facts: dict[str, Any] = {
            "accumulation_steps": configuration.gradient_accumulation_steps,
            "accumulation_steps_run": configuration.gradient_accumulation_steps,
            "data_parallel_size": configuration.data_parallel_size,
            "allowed_bytes": self._result.allowed_bytes,
            "context_bytes": self._here.context_bytes,
            "probe_seconds": time.monotonic() - begun,
            "training_steps": self._result.request.training_steps,
            "compile_s": trial.final.compile_s,
            "round": number,
        }
        if failure is not None:
            facts |= {"observed_warnings": warnings, "refused_bytes": failure.refused_bytes}
            return Measurement(failure.outcome, failure.reason, **facts)
        times, waits = answer["step_times_s"], answer["data_wait_s"]
        unknown: dict[str, Any] = {"first_s": 0.0, "middle_s": 0.0, "last_s": 0.0, "optimizer_s": 0.0, "tokens": 0}
        samples = answer["samples"] // len(times)
        return Measurement(
            Outcome.COMPLETED,
            steps=tuple(
                Step(step_s, wait_s, samples=samples, **unknown) for step_s, wait_s in zip(times, waits, strict=True)
            ),
            untimed_steps=answer["untimed_steps"],
            joules=answer["joules"],
            system_state=answer["system_state"],
            observed_warnings=(*warnings, *map(ResultWarning.from_dict, answer["observed_warnings"])),
            **answer["peaks"],
            **facts,
        )


def _line(measured: Measurement) -> str:
    """`41.2 samples/s, peak 364 MiB`, or why there is no speed."""
    speed = measured.samples_per_second
    if speed is None:
        return f"{measured.outcome.value.replace('_', ' ')}: {measured.reason}"
    disturbed = ", disturbed" if measured.observed_warnings else ""
    return f"{three_digits(speed)} samples/s, peak {format_bytes(measured.peak_bytes)}{disturbed}"

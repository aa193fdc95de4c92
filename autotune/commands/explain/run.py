"""Explain: where a study's speed-up comes from, setting by setting, by measuring the way from the baseline to the answer."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from autotune.commands.explain.breakdown import MemoryBreakdown, memory_breakdown
from autotune.commands.explain.explanation import Explanation
from autotune.commands.explain.reasons import alternatives, bound
from autotune.commands.explain.remeasure import Remeasured, Remeasurer, retrace
from autotune.commands.explain.text import explanation_markdown
from autotune.commands.save import fields_of_saved
from autotune.commands.verify.run import check_trainable, differing_facts, environment_here
from autotune.core.configuration import Configuration
from autotune.core.environment import Environment
from autotune.core.errors import InvalidRequest
from autotune.core.io import read_json, write_json
from autotune.core.measurement import Measurement
from autotune.core.request import CONFIRMATION_ROUNDS, MOST_ROUNDS
from autotune.probe import Probe, ProbeOptions
from autotune.probe.device import nvml
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.runner import LiveProbe
from autotune.report.files import storage_errors, write_whole
from autotune.report.live.views import saying
from autotune.study.objective import speed_up
from autotune.study.plan import Plan
from autotune.study.result import SearchResult
from autotune.study.store import EXPLANATION, locked, probe_folder, reporting_storage

Dissect = Callable[[Mapping[str, Configuration]], MemoryBreakdown]
Watch = Callable[[str], None]


def explain(
    folder: str | Path, rounds: int = CONFIRMATION_ROUNDS, fresh: bool = False, watch: Watch | bool | None = None
) -> Explanation:
    """Where the speed-up of the study in this folder comes from; also written to explanation.json and explanation.md.

    rounds: of each configuration at the least, up to twice as many while the whole gain is not known to 10 %. What an
    earlier call measured is not measured again, unless fresh. watch: called with what is measured next; by default, or by
    True, that is shown on standard error; False: nothing is shown.

    Raises InvalidRequest for what cannot be trained from the study alone, NothingFits for a study without an answer,
    StudyInUse, StorageFailed, ProbeHostFailed; KeyboardInterrupt passes, and what was measured stays.
    """
    folder = Path(folder)
    if isinstance(rounds, bool) or not isinstance(rounds, int) or not 1 <= rounds <= MOST_ROUNDS:
        raise InvalidRequest(f"The rounds must be a whole number from 1 to {MOST_ROUNDS}, not {rounds!r}.", "Try 3.")
    result = SearchResult(**fields_of_saved(folder))
    result.best  # noqa: B018  (says now what would otherwise be said after the folder is locked)
    place = folder / EXPLANATION
    with locked(folder), ExitStack() as stack:
        _begin(place, result, fresh)
        live = _Live(result, place, stack)
        made = explained(result, live, place, rounds, saying(watch), live.memory_breakdown)
        write_explanation(folder, made.to_dict())
    return made


def explained(
    result: SearchResult,
    probe: Probe,
    place: Path,
    rounds: int = CONFIRMATION_ROUNDS,
    watch: Watch = lambda line: None,
    dissect_these: Dissect = lambda configurations: MemoryBreakdown(),
) -> Explanation:
    """The explanation of a study, measured by this probe and kept in this place."""
    baseline, best, objective = result.baseline, result.best, result.request.objective
    retraced = None
    if best.configuration != baseline.configuration:
        again = Remeasurer(place, _plan(result), result.trials, probe, watch)
        retraced = retrace(baseline.configuration, best.configuration, again, rounds)
    anatomy = dissect_these({"baseline": baseline.configuration, "answer": best.configuration})
    counted = replace(result, arithmetic=anatomy.arithmetic)
    used = {"baseline": counted.utilization(baseline), "answer": counted.utilization(best)}
    confirmed, reason = speed_up(best, baseline, objective)
    if confirmed is not None and not best.confirmed:
        reason = "the speed-up is that of single probes: it was not confirmed"
    return Explanation(
        name=result.request.name_of_study(result.workload.task, result.environment.device),
        baseline=baseline,
        best=best,
        objective=objective,
        retraced=retraced,
        confirmed=confirmed,
        confirmed_reason=reason,
        bound=bound(best, result.trials, used["answer"]),
        bound_before=bound(baseline, result.trials, used["baseline"]),
        anatomy=anatomy,
        utilization=used,
        alternatives=alternatives(best, result.trials, result.ruled_out, objective),
        fixed=tuple(result.request.fix),
        notes=_notes(result, place, retraced),
    )


def _plan(result: SearchResult) -> Plan:
    request = result.request
    return Plan(
        n_trials=request.n_trials,
        objective=request.objective,
        memory_limit_bytes=result.memory_limit_bytes,
        allowed_bytes=result.allowed_bytes,
        probe_timeout_s=request.probe_timeout_s,
        training_steps=request.training_steps,
    )


def _notes(result: SearchResult, place: Path, retraced: Remeasured | None) -> tuple[str, ...]:
    notes = []
    if (place / "environment.json").exists():
        here = Environment.from_dict(read_json(place / "environment.json"))
        if differing := differing_facts(result.environment.identity(), here.identity()):
            notes.append(f"another machine or versions than the search's: {'; '.join(differing)}")
    if retraced is not None and retraced.rounds < CONFIRMATION_ROUNDS:
        notes.append(f"{retraced.rounds} round(s) only: the intervals are those of the steps, not of rounds")
    if not result.best.confirmed:
        notes.append("the answer is from one probe and was not confirmed")
    return tuple(notes)


def _begin(place: Path, result: SearchResult, fresh: bool) -> None:
    """Remove what was measured for another answer, or all where it is to be measured anew."""
    question = {
        "baseline": result.baseline.configuration.to_dict(),
        "answer": result.best.configuration.to_dict(),
        "allowed_bytes": result.allowed_bytes,
    }
    with reporting_storage(place.parent):
        try:
            known = read_json(place / "question.json")
        except (OSError, ValueError):
            known = None
        if fresh or known != question:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True, exist_ok=True)
            write_json(place / "question.json", question)


class _Live:
    """The study's own probe: the machine is read and processes are started when the first thing must be measured."""

    def __init__(self, result: SearchResult, place: Path, stack: ExitStack) -> None:
        self._result, self._place, self._stack = result, place, stack

    def __call__(self, configuration: Configuration, options: ProbeOptions) -> Measurement:
        return self._probe(configuration, options)

    def memory_breakdown(self, configurations: Mapping[str, Configuration]) -> MemoryBreakdown:
        """The memory's anatomy, from the place where it was kept or traced now."""
        kept = self._place / "anatomy.json"
        if kept.exists():
            return MemoryBreakdown.from_dict(read_json(kept))
        result = self._result
        made = memory_breakdown(
            self._host, result.workload, result.environment, result.request.training_args, configurations
        )
        with reporting_storage(self._place.parent):
            write_json(kept, made.to_dict())
        return made

    @cached_property
    def _host(self) -> ProbeHost:
        return self._stack.enter_context(ProbeHost())

    @cached_property
    def _probe(self) -> LiveProbe:
        result = self._result
        check_trainable(result, "Explain")
        here = environment_here(result.environment, "Explain")
        self._same_machine(here)
        card = nvml.choose_device(here.device)
        return LiveProbe(
            self._host,
            here,
            result.workload,
            result.request.training_args,
            result.allowed_bytes,
            partial(probe_folder, self._place),
            result.request.objective,
            device_used=nvml.usage_of(card),
        )

    def _same_machine(self, here: Environment) -> None:
        """Raise InvalidRequest where what was measured before comes from another machine: the two do not mix."""
        record = self._place / "environment.json"
        if record.exists():
            before = Environment.from_dict(read_json(record))
            if differing := differing_facts(before.identity(), here.identity()):
                raise InvalidRequest(
                    f"This explanation was begun on another machine or with other versions ({'; '.join(differing)}).",
                    "Use --fresh to measure anew.",
                )
        with reporting_storage(self._place.parent):
            write_json(record, here.to_dict())


def write_explanation(folder: Path, told: Mapping[str, Any]) -> None:
    """Write explanation.json and explanation.md. Raises StorageFailed."""
    with storage_errors(folder):
        write_json(folder / "explanation.json", told)
        text = explanation_markdown(told)
        write_whole(folder / "explanation.md", lambda path: path.write_text(text, encoding="utf-8"))

"""Explain: a study's speed-up, setting by setting, by measuring a path from the baseline to the answer."""

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from autotune.commands.explain.explanation import Explanation
from autotune.commands.explain.reasons import bound
from autotune.commands.explain.remeasure import Remeasured, Remeasurement
from autotune.commands.rounds import measure_rounds, study_of
from autotune.commands.save import fields_of_saved
from autotune.commands.verify.run import check_trainable, differing_facts, environment_here
from autotune.core import Configuration, Environment, InvalidRequest, Measurement, read_json, write_json
from autotune.core.note import Note, NoteKind
from autotune.core.request import EXPLANATION_ROUNDS, MOST_ROUNDS
from autotune.core.time_limit import TimeLimit
from autotune.judge.certainty import GapKind, SpeedupGap
from autotune.probe import Probe, ProbeOptions
from autotune.probe.device import nvml
from autotune.probe.process.launcher import HostSet
from autotune.probe.runner import LiveProbe
from autotune.report.claim import claim_of
from autotune.report.files import storage_errors
from autotune.report.live.views import saying
from autotune.report.markdown import sentence
from autotune.study.measure import live_probe
from autotune.study.plan import plan_of
from autotune.study.result import SearchResult
from autotune.study.store import EXPLANATION, locked, reporting_storage

LineWatch = Callable[[str], None]


def explain(
    folder: str | Path, rounds: int = EXPLANATION_ROUNDS, fresh: bool = False, watch: LineWatch | bool | None = None
) -> Explanation:
    """Explain the speed-up of the study in this folder; also written to explanation.json.

    Args:
        folder: The study's report folder.
        rounds: Of each configuration at least, up to twice as many while the total gain is not known to 10 %.
        fresh: Measure again what an earlier call measured.
        watch: Called with a line before each measurement. By default, or by True, it is shown on standard error; by False, it
            is not.

    Raises:
        InvalidRequest: The study alone does not say how to train.
        NothingFits: The study has no answer.
        StudyInUse: Another process holds the folder.
        StorageFailed: The folder cannot be written.
        ProbeHostFailed: The process that starts probes failed.
        KeyboardInterrupt: Everything measured is kept.
    """
    folder = Path(folder)
    if isinstance(rounds, bool) or not isinstance(rounds, int) or not 1 <= rounds <= MOST_ROUNDS:
        raise InvalidRequest(f"The rounds must be a whole number from 1 to {MOST_ROUNDS}, not {rounds!r}.", "Try 3.")
    result = SearchResult(**fields_of_saved(folder))
    result.best  # noqa: B018  (raises before the folder is locked)
    explanation_folder = folder / EXPLANATION
    with locked(folder), ExitStack() as stack:
        _begin(explanation_folder, result, fresh)
        probe = _study_probe(result, explanation_folder, stack, saying(watch))
        explanation = explained(result, probe, explanation_folder, rounds)
        with storage_errors(folder):
            write_json(folder / "explanation.json", explanation.to_dict())
    return explanation


def explained(
    result: SearchResult, probe: Probe, explanation_folder: Path, rounds: int = EXPLANATION_ROUNDS
) -> Explanation:
    """The explanation of a study, measured by this probe and stored in this folder."""
    baseline, best, objective = result.baseline, result.best, result.request.objective
    remeasured = None
    if best.configuration != baseline.configuration:
        plan = plan_of(result.request, result.environment, TimeLimit(), result.allowed_bytes)
        study = study_of(baseline.configuration, explanation_folder, plan)
        again = Remeasurement(baseline.configuration, best.configuration, result.trials, objective, rounds)
        measure_rounds(study, probe, [again.next_measurement])
        remeasured = again.results(study.trials)
    sides = {"baseline": baseline, "answer": best}
    confirmed, gap = result.standing.gain(best) if baseline.feasible else None, result.speedup_gap
    if confirmed is not None and not result.standing.is_shown(best):
        confirmed, gap = None, SpeedupGap(GapKind.NOT_PROVEN)
    return Explanation(
        name=result.name,
        baseline=baseline,
        best=best,
        objective=objective,
        remeasured=remeasured,
        confirmed=confirmed,
        confirmed_gap=gap,
        bounds={name: bound(trial, result.trials) for name, trial in sides.items()},
        memory={name: result.estimated_peaks.get(trial.number) for name, trial in sides.items()},
        utilization={name: result.utilization(trial) for name, trial in sides.items()},
        notes=_notes(result, explanation_folder, remeasured),
        kept=_kept(result) if remeasured is None else "",
    )


def _kept(result: SearchResult) -> str:
    """Reason why the search kept the user's settings, and how to find out more."""
    claim, gap = claim_of(result), result.speedup_gap
    return " ".join([f"{claim.headline}.", *claim.details, sentence(gap.advice if gap else "")]).strip()


def _notes(result: SearchResult, explanation_folder: Path, remeasured: Remeasured | None) -> tuple[Note, ...]:
    notes = []
    here = _recorded_environment(explanation_folder)
    if here and (differing := differing_facts(result.environment.identity(), here.identity())):
        notes.append(Note(NoteKind.OTHER_MACHINE, detail="; ".join(differing)))
    if remeasured is not None and remeasured.rounds < EXPLANATION_ROUNDS:
        notes.append(Note(NoteKind.FEW_ROUNDS, {"rounds": remeasured.rounds}))
    return tuple(notes)


def _begin(explanation_folder: Path, result: SearchResult, fresh: bool) -> None:
    """Remove measurements of another question, or with fresh all."""
    question = {
        "baseline": result.baseline.configuration.to_dict(),
        "answer": result.best.configuration.to_dict(),
        "allowed_bytes": result.allowed_bytes,
    }
    with reporting_storage(explanation_folder.parent):
        try:
            earlier = read_json(explanation_folder / "question.json")
        except (OSError, ValueError):
            earlier = None
        if fresh or earlier != question:
            shutil.rmtree(explanation_folder, ignore_errors=True)
            explanation_folder.mkdir(parents=True, exist_ok=True)
            write_json(explanation_folder / "question.json", question)


def _study_probe(result: SearchResult, explanation_folder: Path, stack: ExitStack, watch: LineWatch) -> Probe:
    """The study's own probe; the first measurement reads the machine and starts processes, which this stack ends.

    watch: called with a line before each measurement.
    """

    @cache
    def live() -> LiveProbe:
        check_trainable(result, "Explain")
        host = stack.enter_context(HostSet())
        here = environment_here(host, result, "Explain")
        before = _recorded_environment(explanation_folder)
        if before and (differing := differing_facts(before.identity(), here.identity())):
            raise InvalidRequest(
                f"This explanation was started on another machine or with other versions ({'; '.join(differing)}).",
                "Use --fresh to measure again.",
            )
        with reporting_storage(explanation_folder.parent):
            write_json(explanation_folder / "environment.json", here.to_dict())
        used = nvml.usage_of(nvml.choose_device(here.device))
        of = host, here, result.workload, result.allowed_bytes, explanation_folder
        return live_probe(result.request, *of, device_used=used)

    def probe(configuration: Configuration, options: ProbeOptions) -> Measurement:
        watch(f"round {options.slot.round}: {configuration}")
        return live()(configuration, options)

    return probe


def _recorded_environment(explanation_folder: Path) -> Environment | None:
    """Environment of an explanation that was started here, or None."""
    record = explanation_folder / "environment.json"
    return Environment.from_dict(read_json(record)) if record.exists() else None

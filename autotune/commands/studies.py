"""List of the studies in a folder, and its text."""

from collections.abc import Mapping
from datetime import date
from pathlib import Path

from autotune.commands.layout import aligned
from autotune.commands.result import TuningResult
from autotune.core.errors import AutotuneError, InvalidRequest
from autotune.core.slot import Slot
from autotune.core.units import format_bytes, three_digits
from autotune.probe.order import ANSWER
from autotune.report.claim import Verdict, claim_of, gain_words, times_text
from autotune.report.markdown import WIDTH, wrapped
from autotune.report.trial_text import NOT_PROVEN, speed_text
from autotune.study.store import REQUEST, probe_folder

REAL = "real run"
HEAD = ("study", "samples/s", REAL, "speed-up", "peak", "trials", "when")
"""The column of real trainings only if there is one."""

Studies = Mapping[str, TuningResult | AutotuneError]
"""Name of a study -> its result, or why that cannot be read."""


def studies(output_dir: Path) -> Studies:
    """The studies in this folder in the order of their names."""
    found: dict[str, TuningResult | AutotuneError] = {}
    for folder in sorted(path.parent for path in output_dir.glob(f"*/{REQUEST}")):
        try:
            found[folder.name] = result = TuningResult.load(folder)
            result.best_setup  # noqa: B018  (raises for a study of another version)
            _row(folder.name, result)  # as for all of them below: one study must not hide the others
        except AutotuneError as error:
            found[folder.name] = error
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            message = f"{folder} cannot be read: {type(error).__name__}: {error}."
            found[folder.name] = InvalidRequest(message, "Restore its files from a copy, or remove the folder.")
    return found


def studies_lines(studies: Studies) -> list[str]:
    """A row for each study, the latest first, and what cannot be read; a name without room has a line of its own."""
    results = [(name, result) for name, result in studies.items() if isinstance(result, TuningResult)]
    dated = [(_row(name, result), _measured_last(result)) for name, result in results]
    rows = [row for row, _ in sorted(dated, key=lambda each: (each[0][-1], each[1]), reverse=True)]
    lines = []
    if rows:
        names, *columns = zip(HEAD, *rows, strict=True)
        columns = [column for column in columns if column[0] != REAL or {*column[1:]} != {"-"}]
        numbers = aligned([*zip(*columns, strict=True)], 0)
        room = min(max(map(len, names)), WIDTH - max(map(len, numbers)))
        for name, line in zip(names, numbers, strict=True):
            lines += [f"{name:<{room}}{line}"] if len(name) <= room else [name, f"{'':<{room}}{line}"]
    errors = (f"{name}: {error}" for name, error in studies.items() if isinstance(error, AutotuneError))
    return [*lines, *(line for error in errors for line in wrapped(error))]


def _measured_last(result: TuningResult) -> float:
    """Time of the last trial's measurement, by which studies of one day are sorted."""
    assert result.folder is not None
    files = (probe_folder(result.folder, Slot(trial.number)) / ANSWER for trial in result.trials)
    return max((file.stat().st_mtime for file in files), default=0.0)


def _row(name: str, result: TuningResult) -> tuple[str, ...]:
    best, claim, count = result.best_trial, claim_of(result), str(len(result.trials))
    assert result.folder is not None
    proven = NOT_PROVEN if claim.verdict is Verdict.NOT_PROVEN else ""
    first = next(probe_folder(result.folder, Slot()).glob("*.json"), result.folder / REQUEST)
    return (
        name,
        speed_text(best) if best else result.why_no_best,
        three_digits(result.real_run.measured) if result.real_run else "-",
        gain_words(claim.state) if claim.gain is None else f"{times_text(claim.gain, claim.verdict)}{proven}",
        format_bytes(best.peak_bytes if best else None),
        count if result.complete else f"{count} of {result.request.n_trials}",
        result.date or date.fromtimestamp(first.stat().st_mtime).isoformat(),
    )

"""What came back from a GPU, as one report: figures against goals, the searches behind them, and what failed.

python benchmarks/gpu_report.py evidence-0.tgz evidence-1.tgz ... [--out reports/gpu.md]: the archives of tests/gpu/evidence.sh.
Whatever is not in them is reported as `not run`; what ran on a CPU is marked as a rehearsal and meets no goal.
"""

import argparse
import json
import re
import sys
import tarfile
import tempfile
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from machine import made_line  # noqa: E402

from autotune.commands.result import TuningResult  # noqa: E402
from autotune.core import Outcome, Trial  # noqa: E402
from autotune.core.units import counted, format_bytes, format_seconds, three_digits  # noqa: E402
from autotune.judge.objective import round_ratio  # noqa: E402
from autotune.report.trial_text import range_text, short_words  # noqa: E402

NOT_RUN, REHEARSAL = "not run", "CPU (rehearsal)"
SPEED_UP, PROMISE, MEAN_ERROR, LARGEST_ERROR = 2.9, 0.015, 0.015, 0.04
MFU = {"bert": 0.45, "bert-compiled": 0.45, "gpt2": 0.45, "llama-1b": 0.50, "llama-8b": 0.48}
"""Study -> share of the card's data-sheet peak that its answer is to reach."""


@dataclass(frozen=True)
class Row:
    """A goal and what was found. met: None if it cannot be said, as in a rehearsal."""

    goal: str
    target: str
    figure: str = NOT_RUN
    met: bool | None = None
    device: str = "-"


@dataclass
class Evidence:
    """What the archives hold. texts: of each step, by `PART/NAME`; studies by name; guide and preflight as plain data."""

    texts: dict[str, str] = field(default_factory=dict)
    studies: dict[str, TuningResult] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    guide: Mapping[str, Any] | None = None
    preflight: Mapping[str, Any] | None = None

    @property
    def is_rehearsal(self) -> bool:
        """Whether anything of it ran on a CPU."""
        devices = [result.environment.device for result in self.studies.values()]
        return "cpu" in [*devices, (self.preflight or {}).get("device"), (self.guide or {}).get("device")]

    def text(self, name: str) -> str:
        """Output of the step of this name; empty if it did not run."""
        return next((text for place, text in self.texts.items() if place.endswith(f"/{name}")), "")


def read(archives: Sequence[Path]) -> Evidence:
    """Everything in these archives that can be read."""
    evidence = Evidence()
    with tempfile.TemporaryDirectory(prefix="gpu-report-") as scratch:
        parts: dict[str, Path] = {}  # of one that ran again, the later one
        for number, archive in enumerate(archives):
            folder = Path(scratch, str(number))
            folder.mkdir()
            try:
                with tarfile.open(archive) as opened:
                    opened.extractall(folder, filter="data")
            except (OSError, EOFError, tarfile.TarError, zlib.error) as error:  # cut while it was written
                evidence.unreadable[archive.name] = f"{type(error).__name__}: {error}".splitlines()[0]
            parts |= {part.name: part for part in folder.iterdir()}
        for _, part in sorted(parts.items()):
            evidence.texts |= {
                f"{part.name.removeprefix('part-')}/{path.stem}": path.read_text() for path in part.glob("*.txt")
            }
            for path in (*part.glob("preflight.json"), *part.glob("*/guide.json")):
                try:
                    setattr(evidence, path.stem, json.loads(path.read_text()))
                except ValueError as error:
                    evidence.unreadable[path.name] = str(error)
            for path in sorted(part.glob("*/request.json")):
                name = path.parent.name
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        evidence.studies[name] = TuningResult.load(path.parent)
                except Exception as error:  # of a search that was cut: one study must not cost the report
                    evidence.unreadable[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return evidence


# Goals ----------------------------------------------------------------------------------------------------------------


def goals(evidence: Evidence) -> list[Row]:
    """A row for each goal, in the order of the parts."""
    return [
        _preflight(evidence),
        _tests(evidence),
        _speed_up(evidence, "bert", "BERT-large: speed-up over the Trainer's defaults", SPEED_UP),
        _speed_up(evidence, "bert-over-bf16", "BERT-large: speed-up over bf16 alone", 1.0),
        *_promise(evidence),
        *(_mfu(evidence, name, goal) for name, goal in MFU.items()),
        *(_compiled(evidence, name) for name in ("gpt2", "bert-compiled", "llama-1b")),
        _within_limit(evidence),
        *_estimates(evidence),
        _out_of_memory(evidence),
        _failures(evidence),
        _probe_seconds(evidence),
        _guide(evidence),
    ]


def _row(goal: str, target: str, figure: str, met: bool | None, results: Sequence[TuningResult]) -> Row:
    """A row of these studies."""
    devices = sorted({_device(result.environment.device, result.environment.device_name) for result in results})
    return Row(goal, target, figure, None if REHEARSAL in devices else met, ", ".join(devices) or "-")


def _device(device: str | None, name: str = "GPU") -> str:
    return REHEARSAL if device == "cpu" else name


def _preflight(evidence: Evidence) -> Row:
    row = Row("Preflight: what would fail", "nothing")
    if evidence.preflight is None:
        return row
    lines = evidence.preflight["lines"]
    problems = sorted({problem[1] for line in lines.values() for problem in line["problems"]})
    device = _device(evidence.preflight["device"], lines.get("card", {}).get("facts", {}).get("name", "GPU"))
    seconds = format_seconds(evidence.preflight["seconds"])
    figure = f"{'; '.join(problems) or 'nothing'}, in {seconds}"
    return Row(row.goal, row.target, figure, None if device == REHEARSAL else not problems, device)


def _tests(evidence: Evidence) -> Row:
    row = Row("Tests on the card: passed", "all")
    text = evidence.text("tests")
    if not text:
        return Row(row.goal, row.target, NOT_RUN)
    counts = {
        word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", _summary(text))
    }
    if not counts:
        lines = Counter(re.findall(r"\b(PASSED|FAILED|ERROR|SKIPPED)\b +\[ *\d+%\]", text))
        ended = ", ".join(f"{number} {word.lower()}" for word, number in lines.items())
        return Row(row.goal, row.target, f"cut before the end: {ended or 'none ended'}")
    is_cut = "KeyboardInterrupt" in text
    first = evidence.studies.get("first")
    ran = counts.get("passed", 0) + counts.get("failed", 0)
    figure = ", ".join(f"{number} {word}" for word, number in counts.items()) + ", cut before the end" * is_cut
    met = not is_cut and ran == counts.get("passed", 0) > 0 and not any(word.startswith("error") for word in counts)
    return _row(row.goal, row.target, figure, met if ran else None, [first] if first else [])


def _summary(text: str) -> str:
    """Last line of pytest's output with its counts."""
    lines = [line for line in text.splitlines() if re.match(r"=+ .*\bin [\d.]+s", line)]
    return lines[-1] if lines else ""


def _speed_up(evidence: Evidence, study: str, goal: str, least: float) -> Row:
    target = f"at least {least:g}x" if least > 1 else "above 1x"
    if (result := evidence.studies.get(study)) is None:
        return Row(goal, target)
    if (ratio := result.measured_speedup) is None:
        return _row(goal, target, "no speed-up was measured", None, [result])
    met = ratio.low > 1 if least == 1 else ratio >= least
    return _row(goal, target, f"{ratio:.2f}x ({range_text(ratio)})", met, [result])


def _promise(evidence: Evidence) -> Iterator[Row]:
    goals = "Promised speed of the answer against plain trainings", "Promised speed-up against plain trainings"
    target = f"within {PROMISE:.1%}"
    result = next((result for result in evidence.studies.values() if result.verification), None)
    if result is None or not (found := result.verification):
        yield from (Row(goal, target) for goal in goals)
        return
    rounds = found["rounds"]["answer"]
    steps = sum(len(each["step_times_s"]) for each in rounds)
    how = f"{counted(steps, 'step')} in {counted(len(rounds), 'round')}; {found['verdict']['kind'].replace('_', ' ')}"
    of_answer = [found[side]["answer"] or {} for side in ("promised", "measured")]
    of_both = [found[side] for side in ("promised", "measured")]
    for goal, unit, name, sides in zip(
        goals, (" samples/s", "x"), ("samples_per_second", "speedup"), (of_answer, of_both), strict=True
    ):
        promised, measured = (side.get(name) for side in sides)
        if not promised or not measured:
            yield _row(goal, target, found["verdict"]["text"], None, [result])
            continue
        off = measured / promised - 1
        intervals = [
            f"{side[f'{name}_low']:.2f} to {side[f'{name}_high']:.2f}" for side in sides if f"{name}_low" in side
        ]
        figure = f"{off:+.1%}: promised {three_digits(promised)}{unit}, measured {three_digits(measured)}{unit} ({how})"
        figure += f"; intervals {' and '.join(intervals)}" if intervals else ""
        yield _row(goal, target, figure, abs(off) <= PROMISE, [result])


def _mfu(evidence: Evidence, study: str, goal: float) -> Row:
    name, target = f"MFU of {study}'s answer", f"at least {goal:.0%}"
    if (result := evidence.studies.get(study)) is None:
        return Row(name, target)
    use = result.utilization(best) if (best := result.best_trial) else None
    if best is None or use is None or use.mfu is None:
        return _row(name, target, "unknown" if best else "no answer", None, [result])
    figure = f"{use.mfu:.1%} ({_answer(result, best)}, {three_digits(best.samples_per_second or 0.0)} samples/s)"
    return _row(name, target, figure, use.mfu >= goal, [result])


def _answer(result: TuningResult, best: Trial) -> str:
    """`32x2, bf16, compile regional`: sizes, and what differs from the baseline."""
    baseline = result.baseline_trial
    return ", ".join(short_words(best.configuration, baseline.configuration if baseline else None))


def _compiled(evidence: Evidence, study: str) -> Row:
    goal, target = f"Compiled against eager, {study}", "above 1x"
    if (result := evidence.studies.get(study)) is None:
        return Row(goal, target)
    groups: dict[tuple[Any, ...], dict[str, Trial]] = {}
    for trial in result.trials:
        values = dict(trial.configuration.values)
        kind = str(values.pop("compile", "none"))
        key = (trial.configuration.micro_batch_size, *sorted(values.items(), key=str))
        if trial.feasible and trial.samples_per_second:
            groups.setdefault(key, {})[kind] = trial
    texts, ratios = [], []
    for trials in groups.values():
        eager = trials.pop("none", None)
        for kind, trial in trials.items():
            if eager is None:
                continue
            ratios.append(round_ratio(trial, eager, result.request.objective))
            compile_s = trial.measurement.compile_s
            seconds = f", {compile_s:.0f} s of compiling" if compile_s else ""
            precision = eager.configuration.values.get("precision", "")
            size = f"{eager.configuration.micro_batch_size}x{eager.configuration.gradient_accumulation_steps}"
            texts.append(f"{ratios[-1]:.2f}x ({range_text(ratios[-1])}) {kind} {size} {precision}{seconds}")
    if not texts:
        return _row(goal, target, "no pair was measured", None, [result])
    return _row(goal, target, "; ".join(texts), max(ratios) > 1, [result])


def _within_limit(evidence: Evidence) -> Row:
    goal, target = "Peak memory of the answers within the allowed", "all"
    shares = {
        name: (best.peak_bytes or 0) / result.allowed_bytes
        for name, result in evidence.studies.items()
        if (best := result.best_trial) and best.peak_bytes
    }
    if not shares:
        return Row(goal, target)
    most = max(shares, key=lambda name: shares[name])
    kept = sum(share <= 1 for share in shares.values())
    figure = f"{kept} of {len(shares)}; highest {shares[most]:.0%} of the allowed ({most})"
    return _row(goal, target, figure, kept == len(shares), [evidence.studies[name] for name in shares])


def _estimates(evidence: Evidence) -> Iterator[Row]:
    """Of the peaks that were estimated without a probe: compiled trainings are not traced."""
    goals = "Estimated peak memory against measured, mean", "the same, largest"
    targets = f"at most {MEAN_ERROR:.1%}", f"at most {LARGEST_ERROR:.0%}"
    errors: dict[tuple[str, int], float] = {}
    for name, result in evidence.studies.items():
        for trial in result.trials:
            estimate = result.estimated_peaks.get(trial.number)
            measured = trial.measurement.peak_bytes
            eager = trial.configuration.values.get("compile", "none") == "none"
            if estimate and measured and eager and trial.measurement.outcome is Outcome.COMPLETED:
                errors[name, trial.number] = estimate.device_bytes / measured - 1
    if not errors:
        yield from (Row(goal, target) for goal, target in zip(goals, targets, strict=True))
        return
    results = [evidence.studies[name] for name in dict.fromkeys(name for name, _ in errors)]
    sizes = {key: abs(error) for key, error in errors.items()}
    mean, worst = fmean(sizes.values()), max(sizes, key=lambda key: sizes[key])
    yield _row(goals[0], targets[0], f"{mean:.1%} of {counted(len(errors), 'trial')}", mean <= MEAN_ERROR, results)
    figure = f"{errors[worst]:+.1%} (trial {worst[1]} of {worst[0]})"
    yield _row(goals[1], targets[1], figure, sizes[worst] <= LARGEST_ERROR, results)
    by_search = {name: [size for (of, _), size in sizes.items() if of == name] for name, _ in sizes}
    texts = [
        f"{name} {fmean(of):.1%} and {max(of):.1%} of {counted(len(of), 'trial')}" for name, of in by_search.items()
    ]
    yield _row("the same by search, mean and largest", "-", "; ".join(texts), None, results)


def _count(evidence: Evidence, goal: str, target: str, counts: Callable[[Trial], str], met: bool | None) -> Row:
    """Row of the trials after the baseline for which `counts` says something."""
    tried = [(name, trial) for name, result in evidence.studies.items() for trial in result.trials if trial.number]
    if not tried:
        return Row(goal, target)
    found = [f"{name} {trial.number}{': ' * bool(text)}{text}" for name, trial in tried if (text := counts(trial))]
    figure = f"{len(found)} of {len(tried)}" + (f" ({'; '.join(found)})" if found else "")
    return _row(goal, target, figure, not found if met is None else met, list(evidence.studies.values()))


def _out_of_memory(evidence: Evidence) -> Row:
    said = _count(
        evidence,
        "Probes out of memory, the baselines apart",
        "few",
        lambda trial: "out of memory" if trial.measurement.outcome is Outcome.OUT_OF_MEMORY else "",
        met=True,
    )
    return Row(said.goal, said.target, said.figure, None, said.device)


def _failures(evidence: Evidence) -> Row:
    ordinary = (Outcome.COMPLETED, Outcome.OUT_OF_MEMORY)
    return _count(
        evidence,
        "Probes that failed otherwise",
        "none",
        lambda trial: (
            ""
            if trial.measurement.outcome in ordinary
            else f"{trial.measurement.outcome}: {trial.measurement.reason[:80]}"
        ),
        met=None,
    )


def _probe_seconds(evidence: Evidence) -> Row:
    goal, target = "Seconds of a probe and of a round, medians", "-"
    parts = []
    for name, result in evidence.studies.items():
        probes = [trial.measurement.probe_seconds for trial in result.trials]
        rounds = [measured.probe_seconds for trial in result.trials for measured in trial.confirmations]
        if probes:
            parts.append(f"{name} {median(probes):.1f}" + (f" and {median(rounds):.1f}" if rounds else ""))
    return _row(goal, target, "; ".join(parts), None, list(evidence.studies.values())) if parts else Row(goal, target)


def _guide(evidence: Evidence) -> Row:
    goal, target = "The guides' methods: measured", "all that are not ruled out"
    if evidence.guide is None:
        return Row(goal, target)
    rows = evidence.guide["rungs"]
    done = [row for row in rows if row["outcome"] == Outcome.COMPLETED.value]
    best = max((row["speed_of_first"] or 0 for row in done), default=0)
    least = min((row["peak_of_first"] or 1 for row in done), default=1)
    others = Counter(row["outcome"].replace("_", " ") for row in rows if row not in done)
    left = f" ({', '.join(f'{number} {outcome}' for outcome, number in others.items())})" if others else ""
    figure = f"{len(done)} of {len(rows)}{left}; fastest {best:.2f}x of the first, least memory {least:.2f}x"
    device = _device(evidence.guide["device"], evidence.guide["environment"]["device_name"])
    return Row(goal, target, figure, None, device)


# The report -----------------------------------------------------------------------------------------------------------


def report(evidence: Evidence) -> str:
    """Markdown: goals, searches, steps, what failed, and what the preflight said."""
    title = "# Evidence of a GPU"
    if evidence.is_rehearsal:
        title += ": a rehearsal on a CPU"
    lines = [title, ""]
    if evidence.is_rehearsal:
        lines += ["**Rehearsed with small models on a CPU: no figure here says anything about a GPU.**", ""]
    lines += [*_machines(evidence), made_line(), ""]
    cells = [("goal", "target", "figure", "met", "device")]
    cells += [
        (row.goal, row.target, row.figure, {True: "yes", False: "**no**", None: "-"}[row.met], row.device)
        for row in goals(evidence)
    ]
    lines += [*_table(cells), "", "## Searches", "", *_table(_searches(evidence)), ""]
    lines += ["## Steps", "", *_table(_steps(evidence))]
    if said := [line for line in evidence.text("preflight").splitlines() if not line.startswith("==")]:
        lines += ["", "## Preflight", "", "```text", *said, "```"]
    if failed := re.findall(r"^(?:FAILED|ERROR) .*$", evidence.text("tests"), re.MULTILINE):
        lines += ["", "## Tests that failed", "", "```text", *failed, "```"]
    return "\n".join(lines) + "\n"


def _machines(evidence: Evidence) -> list[str]:
    """A line for each device and set of versions."""
    lines = []
    for result in evidence.studies.values():
        environment = result.environment
        versions = ", ".join(f"{name} {version}" for name, version in environment.versions.items() if version)
        driver = f", driver {environment.driver}" if environment.driver else ""
        memory = format_bytes(environment.total_memory_bytes)
        lines.append(f"Device: {environment.device_name} ({environment.device}, {memory}{driver}), {versions}.")
    return list(dict.fromkeys(lines)) or ["No search came back."]


def _searches(evidence: Evidence) -> list[tuple[str, ...]]:
    cells = [("search", "trials", "out of memory", "answer", "samples/s", "speed-up", "peak", "rounds", "why it ended")]
    for name, result in evidence.studies.items():
        best, ratio = result.best_trial, result.measured_speedup
        memory = sum(trial.measurement.outcome is Outcome.OUT_OF_MEMORY for trial in result.trials)
        cells.append(
            (
                name + (" (rehearsal)" if result.environment.device == "cpu" else ""),
                str(len(result.trials)),
                str(memory),
                _answer(result, best) if best else "-",
                three_digits(best.samples_per_second) if best and best.samples_per_second else "-",
                f"{ratio:.2f}x" if ratio else "-",
                format_bytes(best.peak_bytes) if best else "-",
                str(len(best.confirmations)) if best else "-",
                result.stop_reason,
            )
        )
    return cells + [(name, *["-"] * 7, reason) for name, reason in evidence.unreadable.items()]


def _steps(evidence: Evidence) -> list[tuple[str, ...]]:
    """Every command with its exit code, as far as the script ran it; 124 and 137: its time was over."""
    cells = [("part", "step", "exit", "took")]
    for place, text in evidence.texts.items():
        part, _, name = place.partition("/")
        code = re.findall(r"^== \S+: exit (\d+)$", text, re.MULTILINE)
        took = re.findall(r"\(took ([^)]*)\)", text)
        ended = "cut" if text.startswith("== ") else "-"  # without its first line the script did not run it
        cells.append((part, name, code[-1] if code else ended, took[-1] if took else "-"))
    return cells


def _table(cells: Sequence[Sequence[str]]) -> list[str]:
    """Rows of Markdown, the first of them the head."""
    rows = ["| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in row) + " |" for row in cells]
    return [rows[0], "|" + "---|" * len(cells[0]), *rows[1:]]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archives", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "gpu.md")
    given = parser.parse_args(words)
    text = report(read(given.archives))
    given.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

"""Promised against measured speed-ups: searches as a user makes them, and plain scripts that train both sides in turns.

python benchmarks/promised.py FOLDER [--searches N] [--quick]: for four models in turns, with another seed each time, `autotune
search` in a process of its own; then two plain scripts (benchmarks/plain_training.py, which imports no autotune), one with the
user's settings and one with the answer: one stands still while the other trains a few steps, and so on. Where a search kept the
user's settings, the next best trial is trained in place of an answer. Every search and every pair is kept in FOLDER at once: the
same command continues where it was stopped. Needs an idle machine for two minutes a search; writes reports/promised.md.
--quick: one short search, into FOLDER/promised.md: to see it run.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from fidelity import ROOT, PlainScript
from machine import write_table

from autotune.commands.save import fields_of_saved
from autotune.core import Configuration, Interval, Trial, read_json, write_json
from autotune.core.interval import quotient_interval
from autotune.judge.objective import speed
from autotune.report.claim import SAME_SPEED
from autotune.report.trial_text import range_text, short_words
from autotune.space.setup import training_setup
from autotune.study.result import SearchResult

SEARCH = {"n_trials": 12, "timeout_s": 60}
PAIR_S, TURNS = 15.0, 10
"""Seconds of each side's timed steps, about, and in how many turns."""

UNTIMED = 5
"""First steps of a plain script that do not count."""


@dataclass(frozen=True)
class Work:
    """A workload, by the options of its search."""

    name: str
    model: str
    options: tuple[str, ...]
    texts: bool = False


WORKS = [
    Work("decoder, random tokens", "gpt2-mini", ("-b", "24", "--sequence-length", "64")),
    Work(
        "encoder, texts of all lengths",
        "bert-mini",
        ("-b", "32", "--sequence-length", "128", "--task", "sequence-classification"),
        texts=True,
    ),
    Work("encoder-decoder, random tokens", "t5-mini", ("-b", "16", "--sequence-length", "32")),
    Work("images", "vit-mini", ("-b", "32")),
]


@dataclass(frozen=True)
class Case:
    """A search and a pair of plain trainings.

    trial: the number of the answer, or of the next best where the user's settings were kept; None where nothing else completed.
    promised: speed-up of that trial and its 95 % interval, by the search. speeds: samples / second of each turn, of the
    user's settings and of that trial. busy: processor seconds a second of the script that stood still, at most.
    """

    work: str
    seed: int
    kept: bool
    trial: int | None
    change: str
    confirmed: bool
    promised: tuple[float, float, float] | None
    speeds: tuple[tuple[float, ...], tuple[float, ...]]
    busy: float
    search_s: float

    @property
    def promise(self) -> Interval | None:
        return Interval(*self.promised) if self.promised else None

    @property
    def measured(self) -> Interval | None:
        return quotient_interval(self.speeds[1], self.speeds[0]) if self.speeds[0] else None


def arguments_of(work: Work, seed: int, root: Path, quick: bool) -> list[str]:
    """Arguments of a workload's search."""
    data = ["--dataset", str(texts_file(root / "texts.jsonl"))] if work.texts else []
    limits = ("--n-trials", "3", "--timeout", "3m") if quick else limits_of(SEARCH)
    return [work.model, *work.options, *data, *limits, "--seed", str(seed)]


def searched(arguments: Sequence[str], folder: Path) -> float:
    """Search as a user does, with the model's first study on this machine; the seconds that it took."""
    done = folder / "searched.json"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        command = [sys.executable, "-m", "autotune", "search", *arguments, "--device", "cpu", "--no-history", "--quiet"]
        command += ["--output-dir", str(folder), "--study-name", "study"]
        begun = time.monotonic()
        with open(folder / "search.log", "w") as log:
            code = subprocess.run(command, stdout=log, stderr=log, env=environment(folder.parent), cwd=ROOT).returncode
        assert code == 0, (folder / "search.log").read_text()
        write_json(done, time.monotonic() - begun)
    return float(read_json(done))


def limits_of(search: dict[str, int]) -> tuple[str, ...]:
    return ("--n-trials", str(search["n_trials"]), "--timeout", f"{search['timeout_s']}s")


def environment(folder: Path) -> dict[str, str]:
    """A user's variables, with a cache of this benchmark's own."""
    return os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")}


def texts_file(path: Path) -> Path:
    """Paragraphs of Python's documentation; the label: is it a sentence?"""
    if not path.exists():
        sys.path.insert(0, str(ROOT / "tests" / "data"))
        from python_topics import paragraphs

        rows = [json.dumps({"text": text, "label": int(text[-1] == ".")}) for text in paragraphs()]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def chosen(result: SearchResult) -> tuple[Trial | None, bool]:
    """(the answer, False), or (the fastest other trial that might have won, True) where the user's settings were kept."""
    best, objective = result.best, result.request.objective
    if best.number:
        return best, False
    others = [
        trial
        for trial in result.trials[1:]
        if trial.feasible and not trial.disqualified_reason and not trial.measurement.ended_early
    ]
    return max(others, key=lambda trial: (trial.confirmed, speed(trial.final, objective) or 0.0), default=None), True


Data = dict[str, list[Any]] | Path | None
"""Samples of a plain script: prepared texts, a folder of images, or random ones."""


def side(folder: Path, result: SearchResult, configuration: Configuration, data: Data) -> Path:
    """The folder that a plain script reads for a configuration."""
    setup = training_setup(configuration, result.environment, result.request.training_args, result.workload.task)
    assert not (setup.variables | dict(setup.adapter)), "a plain script knows arguments alone"
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "best_training_arguments.json", dict(setup.training_arguments))
    write_json(folder / "best_model_arguments.json", dict(setup.model_arguments))
    write_json(folder / "request.json", {"workload": result.workload.to_dict()})
    if isinstance(data, Path) and not (folder / "images").exists():
        (folder / "images").symlink_to(data)
    elif isinstance(data, dict):
        write_json(folder / "texts.json", data)
    return folder


def prepared_texts(prepared: str, cache: Path) -> dict[str, list[Any]] | None:
    """The samples as a search prepared them (`Workload.data`), tokens as labels if it has none; None of random ones."""
    if not prepared:
        return None
    import datasets

    data = datasets.load_from_disk(str(cache / "autotune" / prepared / "data"))
    texts = list(data["input_ids"])
    return {"input_ids": texts, "labels": list(data["labels"]) if "labels" in data.column_names else texts}


def turn_steps(configurations: Iterable[Configuration], slowest_s: float, seconds: float) -> tuple[int, int]:
    """(steps of a turn of these seconds, the first of them that do not count), the same for all: they train on the same samples.

    slowest_s: seconds of the slowest step. While a script stands still its workers fill their queues, which are used up first.
    """
    ready = [(2 * int(each.values.get("workers", 0)), each.gradient_accumulation_steps) for each in configurations]
    skipped = 1 + max(-(-batches // accumulation) for batches, accumulation in ready)
    return skipped + max(2, round(seconds / slowest_s)), skipped


def trained(
    folders: Sequence[Path], result: SearchResult, steps: int, skipped: int, turns: int = TURNS
) -> tuple[list[tuple[float, ...]], float]:
    """(samples / second of each turn of each folder's script, how busy those were that stood still while another trained).

    Raises TrainingFailed with the folder of a script that ends without a result.
    """
    scripts = [PlainScript(folder, result.allowed_bytes, 1e6, turns * steps, steps) for folder in folders]
    busy = 0.0
    for turn in range(turns):
        first = turn % len(scripts)
        for script in scripts[first:] + scripts[:first]:
            paused = [other for other in scripts if other is not script and other.done is None]
            begun, before = time.monotonic(), sum(other.processor_seconds for other in paused)
            script.slice()
            used = sum(other.processor_seconds for other in paused) - before
            busy = max(busy, used / (time.monotonic() - begun))
    return [speeds_of(script, result.request.global_batch_size, steps, skipped) for script in scripts], busy


def speeds_of(script: PlainScript, batch: int, steps: int, skipped: int) -> tuple[float, ...]:
    """Samples / second of each turn of a script that has ended."""
    assert script.done is not None
    assert not script.done["imports_autotune"]
    assert script.done["global_batch_size"] == batch
    times = script.done["step_times_s"][UNTIMED:]
    turns = [times[begin + skipped : begin + steps] for begin in range(0, len(times), steps)]
    return tuple(batch * len(turn) / sum(turn) for turn in turns)


def pair(folder: Path, result: SearchResult, rival: Trial, seconds: float) -> tuple[list[tuple[float, ...]], float]:
    """`trained`: the user's settings and a rival."""
    trials = {"yours": result.baseline, "answer": rival}
    texts = prepared_texts(result.workload.data, folder.parent / "cache")
    folders = [side(folder / name, result, trial.configuration, texts) for name, trial in trials.items()]
    slowest_s = max(trial.final.step_time_s or 1.0 for trial in trials.values())
    return trained(folders, result, *turn_steps((t.configuration for t in trials.values()), slowest_s, seconds / TURNS))


def case_of(work: Work, seed: int, root: Path, quick: bool) -> Case:
    """A search and its pair, from the folder where they are known."""
    folder = root / f"{work.model}-{seed}"
    known = folder / "case.json"
    if not known.exists():
        seconds = searched(arguments_of(work, seed, root, quick), folder)
        result = SearchResult(**fields_of_saved(folder / "study"))
        rival, kept = chosen(result)
        promised = result.standing.gain(rival) if rival else None
        speeds, busy = pair(folder, result, rival, 3.0 if quick else PAIR_S) if rival else ([(), ()], 0.0)
        case = Case(
            work.name,
            seed,
            kept,
            rival and rival.number,
            ", ".join(short_words(rival.configuration, result.baseline.configuration)) if rival else "",
            bool(rival and rival.confirmed),
            promised and (promised.value, promised.low, promised.high),
            (speeds[0], speeds[1]),
            busy,
            seconds,
        )
        write_json(known, asdict(case))
    case = Case(**read_json(known))
    print(f"{work.model}, seed {seed}: {row(case)}", flush=True)
    return case


def kept_word(promise: Interval, measured: float) -> str:
    """Word for a measured speed-up in the promised interval, above it or below it."""
    return "above" if measured > promise.high else "below" if measured < promise.low else "yes"


def row(case: Case) -> str:
    promise, measured = case.promise, case.measured
    if promise is None or measured is None:
        return f"| {case.work} | {case.seed} | yours; nothing else ran | - | - | - |"
    answer = f"yours; next best {case.change}" if case.kept else case.change
    cells = [f"{each:.2f}x ({range_text(each)})" for each in (promise, measured)]
    return f"| {case.work} | {case.seed} | {answer} | {cells[0]} | {cells[1]} | {kept_word(promise, measured)} |"


def table(cases: Sequence[Case]) -> list[str]:
    """What is counted, a row for each search, and how often the promise held."""
    answers = [case for case in cases if not case.kept]
    kept = [case for case in cases if case.kept and case.measured]
    lines = [
        "Promised is the speed-up over the user's settings that a search shows, with its 95 % interval. Measured is the speed-up "
        "of plain scripts that train both in turns. *Inside*: the promised interval holds the measured speed-up. A search that "
        "keeps the user's settings promises nothing: its row shows the next best trial, and is counted by itself.",
        "",
        "| workload | seed | answer | promised | measured | inside |",
        "|---|---|---|---|---|---|",
        *map(row, cases),
        "",
    ]
    errors = [float(case.promise / case.measured) - 1 for case in answers if case.promise and case.measured]
    places = [kept_word(case.promise, case.measured) for case in answers if case.promise and case.measured]
    faster = sum(bool(case.measured and case.measured > 1) for case in answers)
    surely = sum(bool(case.measured and case.measured.low > 1) for case in answers)
    if answers:
        lines += [
            f"**The interval holds the measured speed-up in {places.count('yes')} of {len(answers)} searches.** "
            f"This lies above the interval in {places.count('above')} and below in {places.count('below')}. "
            f"The promised speed-up differs from the measured one by {median(errors):+.1%} (median), in size by "
            f"{median(map(abs, errors)):.1%}. The answer was faster than the user's settings in {faster} of {len(answers)}, "
            f"in {surely} of these by its whole interval.",
            "",
        ]
    same = sum(bool(case.measured and case.measured <= 1 + SAME_SPEED) for case in kept)
    missed = [case.measured for case in kept if case.measured and case.measured > 1 + SAME_SPEED]
    nothing = sum(case.kept and not case.measured for case in cases)
    lines += [
        f"{len(kept) + nothing} of {len(cases)} searches kept the user's settings. The next best was no more than "
        f"{SAME_SPEED:.0%} faster in {same} of {len(kept)}"
        + (f", and {', '.join(f'{each:.2f}x' for each in sorted(missed))} as fast in the others" if missed else "")
        + (f"; in {nothing} nothing else ran" if nothing else "")
        + ".",
        "",
        f"A search: `autotune search MODEL {' '.join(limits_of(SEARCH))} --device cpu --no-history` with another seed each "
        f"time; it took {median(case.search_s for case in cases):.0f} s (median). A pair: {TURNS} turns of each script, of "
        f"{PAIR_S / TURNS:g} s and a few steps that do not count; the measured interval is that of the turns' quotients. A "
        f"script that stood still used at most {max(case.busy for case in cases):.1%} of a core.",
    ]
    return lines


def begun(description: str | None, **arguments: Mapping[str, Any]) -> tuple[argparse.Namespace, Path]:
    """(options of a program, the folder of its results, where the machine is read): FOLDER, --quick and these arguments."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    for name, facts in arguments.items():
        parser.add_argument(f"--{name}", **facts)
    options = parser.parse_args()
    root: Path = options.folder.resolve()
    root.mkdir(parents=True, exist_ok=True)
    # Fills the cache: else each model's first search would read the machine in its own time.
    if not (root / "doctor.json").exists():
        doctor = [sys.executable, "-m", "autotune", "doctor", "--device", "cpu", "--json"]
        done = subprocess.run(
            doctor, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment(root), check=True
        )
        (root / "doctor.json").write_bytes(done.stdout)
    return options, root


def main() -> None:
    options, root = begun(__doc__, searches={"type": int, "default": 20})
    works = WORKS[:1] if options.quick else WORKS
    searches = 1 if options.quick else options.searches
    cases = [case_of(works[at % len(works)], at // len(works), root, options.quick) for at in range(searches)]
    cases.sort(key=lambda case: ([work.name for work in WORKS].index(case.work), case.seed))
    place = root if options.quick else ROOT / "reports"
    write_table(place / "promised.md", "Promised and measured speed-up", table(cases))


if __name__ == "__main__":
    main()

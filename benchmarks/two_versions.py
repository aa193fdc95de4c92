"""Two checkouts of this project, live: their searches in turns, and plain scripts that train with what they answered.

python benchmarks/two_versions.py FOLDER --checkouts NAME=PATH NAME=PATH: for each repetition, model and time limit one
`autotune search` with the code of each checkout, in alternating order, each in processes of its own and with a copy of a cache
that knows this machine and no model. Then benchmarks/plain_training.py, which imports no autotune, trains with the user's
settings and with both answers, in rounds. Every search and every round is kept in FOLDER/runs.jsonl at once: the same command
continues where it was stopped. Needs an idle machine for hours. `--report FILE`: where the page goes. `--seconds N`: nothing new
is started after N seconds (0: the page alone).
"""

import argparse
import json
import math
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, NamedTuple

from machine import write_table
from peers import BENCHMARKS, DEADLINE_S, ROOT, read, run, write
from promised import WORKS, prepared_texts, texts_file
from replay import markdown

YOURS = "yours"
MODELS = ("bert-mini", "vit-mini", "gpt2-mini")
LIMITS = (60, 120, 300, None)
ROUNDS, ROUND_S = 4, 8.0
"""Plain trainings of each setting; seconds of timed steps with the user's settings, about: the others train as many steps."""

LONGEST_S = 3600
"""After so long a search without a time limit is given up."""

Arguments = tuple[Mapping[str, Any], Mapping[str, Any]]
"""(training arguments, model arguments)."""


class Case(NamedTuple):
    """limit: of time, in seconds."""

    model: str
    limit: int | None
    repetition: int

    @property
    def name(self) -> str:
        return f"{self.model}-{self.limit or 'none'}-{self.repetition}"


@dataclass(frozen=True)
class Search:
    """code: name of the checkout. seconds: wall clock of the command. rounds: that were measured beside the trials.

    told: what `autotune search --json` printed; empty without an answer, then `said` says why.
    """

    case: Case
    code: str
    revision: str
    seconds: float
    rounds: int
    said: str
    told: Mapping[str, Any]

    @property
    def changes(self) -> bool:
        """Whether it recommends other settings than the user's."""
        return bool(self.told) and self.told["best"]["number"] != 0

    @property
    def settings(self) -> str:
        """`32 x 1, precision bf16`: the sizes, and what else differs from the user's settings."""
        if not self.changes:
            return YOURS if self.told else self.said
        best, baseline = self.told["best"], self.told["baseline"]
        sizes = f"{best['micro_batch_size']} x {best['gradient_accumulation_steps']}"
        others = [f"{name} {value}" for name, value in best["settings"].items() if value != baseline["settings"][name]]
        return ", ".join([sizes, *others])


@dataclass(frozen=True)
class Round:
    """One plain training of each setting. speeds: samples / second by code, and of `yours`; without what failed."""

    case: Case
    speeds: Mapping[str, float]


def known(path: Path) -> tuple[list[Search], list[Round]]:
    """What earlier runs have kept."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    rows = [line | {"case": Case(*line["case"])} for line in lines]
    return [Search(**row) for row in rows if "told" in row], [Round(**row) for row in rows if "speeds" in row]


def work_left(cases: Sequence[tuple[Case, int]], checkouts: Mapping[str, Path], root: Path) -> Iterator[Search | Round]:
    """Each search and round that is not kept yet, measured when it is asked for. cases: with which code is first."""
    searches, rounds = known(root / "runs.jsonl")
    for case, first in cases:
        found = {search.code: search for search in searches if search.case == case}
        for code in list(checkouts)[:: -1 if first else 1]:
            if code not in found:
                found[code] = searched(code, checkouts[code], case, root)
                yield found[code]
        answers = [found[code] for code in checkouts if found[code].told]
        most = ROUNDS if any(search.changes for search in answers) else min(1, len(answers))
        for number in range(sum(one.case == case for one in rounds), most):
            yield trained(answers, number, root)


def searched(code: str, checkout: Path, case: Case, root: Path) -> Search:
    """Search as a user does on a machine that is known, with a model that is not."""
    work = next(work for work in WORKS if work.model == case.model)
    command = ["-m", "autotune", "search", work.model, *work.options, "--device", "cpu", "--seed", str(case.repetition)]
    if work.texts:
        command += ["--dataset", str(texts_file(root / "texts.jsonl"))]
    if case.limit:
        command += ["--timeout", f"{case.limit}s"]
    folder = root / code / case.name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(read_machine(checkout, root / code), folder / "cache")
    command += ["--no-history", "--json", "--output-dir", str(folder), "--study-name", "study"]
    begun = time.monotonic()
    output, said = run(command, folder, case.limit + DEADLINE_S if case.limit else LONGEST_S, checkout)
    seconds = time.monotonic() - begun
    describe = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    revision = subprocess.run(describe, check=True, capture_output=True, text=True).stdout.strip()
    rounds = len(list(folder.glob("study/probes/*/confirmation-*/measurement.json")))
    told = {} if said else json.loads(output)
    if not (told.get("best") and told.get("baseline")):
        said, told = said or told["headline"], {}
    return Search(case, code, revision, seconds, rounds, said, told)


def read_machine(checkout: Path, folder: Path) -> Path:
    """A cache of what the checkout's code, and no other, has read of this machine."""
    if not (folder / "doctor.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        where, said = run(["-c", "import autotune; print(autotune.__file__)"], folder, DEADLINE_S, checkout)
        assert not said, said
        assert Path(where.strip()).is_relative_to(checkout), f"{where.strip()} is not of {checkout}"
        told, said = run(["-m", "autotune", "doctor", "--device", "cpu", "--json"], folder, DEADLINE_S, checkout)
        assert not said, said
        write(folder / "doctor.json", json.loads(told))
    return folder / "cache"


def trained(answers: Sequence[Search], number: int, root: Path) -> Round:
    """One plain training of each setting; of equal ones once."""
    first = answers[0]
    asked = {YOURS: arguments_of(first, False)}
    asked |= {search.code: arguments_of(search, search.changes) for search in answers}
    equal = {name: next(other for other in asked if asked[other] == asked[name]) for name in asked}
    names = list(dict.fromkeys(equal.values()))
    turn = number % len(names)
    got = {name: plain_speed(first, name, asked[name], number, root) for name in names[turn:] + names[:turn]}
    return Round(first.case, {name: speed for name in asked if (speed := got[equal[name]]) is not None})


def arguments_of(search: Search, is_answer: bool) -> Arguments:
    """Those of its answer, or of a user who sets the batch alone."""
    told = search.told
    if not is_answer:
        size, accumulation = (told["baseline"][name] for name in ("micro_batch_size", "gradient_accumulation_steps"))
        sizes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulation}
        return sizes | {"use_cpu": True}, {}
    others = [told[name] for name in ("environment_variables", "data_arguments", "adapter", "torch_switches")]
    assert not any(others), "a plain script knows arguments alone"
    return told["training_arguments"], told["model_arguments"]


def plain_speed(search: Search, name: str, arguments: Arguments, number: int, root: Path) -> float | None:
    """Samples / second, None where it failed. search: of whose model and data; each round takes the samples in another order."""
    folder, study = root / "plain" / search.case.name / name, root / search.code / search.case.name
    if not (folder / "request.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        request = read(study / "study" / "request.json")
        if texts := prepared_texts(request["workload"]["data"], study / "cache"):
            write(folder / "texts.json", texts)
        write(folder / "request.json", request)
    write(folder / "best_training_arguments.json", {**arguments[0], "seed": number})
    write(folder / "best_model_arguments.json", arguments[1])
    baseline, allowed = search.told["baseline"], search.told["allowed_bytes"]
    batch = baseline["micro_batch_size"] * baseline["gradient_accumulation_steps"]
    steps = max(10, round(ROUND_S * baseline["samples_per_second"] / batch))
    script = [str(BENCHMARKS / "plain_training.py"), str(folder), str(allowed), "1e9", str(steps)]
    output, said = run(script, folder, DEADLINE_S)
    if said:
        print(f"{search.case.name}, {name}: {said}", flush=True)
        return None
    got = json.loads(output.splitlines()[-1])
    assert got["global_batch_size"] == batch
    assert not got["imports_autotune"]
    return float(got["samples_per_second"])


def times_as_fast(search: Search, other: str, rounds: Sequence[Round]) -> float | None:
    """The answer's speed over that of another code's answer or of `yours` in plain trainings; None where one was not trained."""
    speeds = [one.speeds for one in rounds if one.case == search.case and {search.code, other} <= set(one.speeds)]
    return median(each[search.code] / each[other] for each in speeds) if speeds else None


def kept(search: Search, rounds: Sequence[Round]) -> bool | None:
    """Whether the promised interval holds the speed-up of plain trainings; None where nothing was promised or trained."""
    low, high = (search.told.get(f"speedup_{end}") for end in ("low", "high"))
    got = times_as_fast(search, YOURS, rounds)
    return None if low is None or got is None else low <= got <= (math.inf if high is None else high)


def text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def span(told: Mapping[str, Any], name: str, form: str) -> str:
    """`1.94 to 2.76`: an interval of `autotune search --json`."""
    low, high = (told.get(f"{name}_{end}") for end in ("low", "high"))
    return "-" if low is None else f"{low:{form}} to {text(high, form)}"


def row(search: Search, rounds: Sequence[Round]) -> list[str]:
    told, case, held = search.told, search.case, kept(search, rounds)
    speeds = [one.speeds[search.code] for one in rounds if one.case == case and search.code in one.speeds]
    gain = times_as_fast(search, YOURS, rounds)
    return [
        *(case.model, limit_text(case.limit), str(case.repetition + 1), search.code, f"{search.seconds:.0f}"),
        *(f"{told.get('trials', 0)} + {search.rounds}", search.settings),
        *(text(median(speeds) if speeds else None, ".1f"), text(gain, ".2f")),
        *(span(told.get("best", {}), "samples_per_second", ".1f"), span(told, "speedup", ".2f")),
        "-" if held is None else "yes" if held else "**no**",
    ]


def limit_text(limit: int | None) -> str:
    return f"{limit} s" if limit else "none"


def summary(searches: Sequence[Search], rounds: Sequence[Round], codes: Sequence[str]) -> list[list[str]]:
    """A row for each limit and code, and for all limits."""
    limits = sorted({search.case.limit for search in searches}, key=lambda limit: limit or math.inf)
    groups = [(limit_text(limit), [limit]) for limit in limits] + [("all", limits)] * (len(limits) > 1)
    rows = []
    for (name, among), (code, other) in product(groups, (codes, codes[::-1])):
        ours = [search for search in searches if search.code == code and search.case.limit in among]
        gains, ratios = (
            [times for search in ours if (times := times_as_fast(search, than, rounds))] for than in (YOURS, other)
        )
        held = [held for search in ours if (held := kept(search, rounds)) is not None]
        trials, seconds, again = (
            f"{median(values):.0f}" if values else "-"
            for values in zip(*((one.told.get("trials", 0), one.seconds, one.rounds) for one in ours), strict=True)
        )
        rows.append(
            [
                *(name, code, str(len(ours)), str(sum(not search.told for search in ours))),
                text(median(gains) if gains else None, ".2f"),
                f"{text(geometric_mean(ratios) if ratios else None, '.3f')} ({len(ratios)})",
                f"{sum(held)} of {len(held)}",
                *(str(sum(bool(one.told) and not one.changes for one in ours)), seconds, f"{trials} + {again}"),
            ]
        )
    return rows


NOTES = f"""\
Each search is `autotune search MODEL --device cpu --no-history` with this `--timeout`. Both codes have the same seed and are
first in turns. They know the machine's rates and nothing of the model. Seconds: wall clock of the whole command. Measured:
trials + rounds that measure some of them again.

Re-run: one plain training script, which knows neither code, trained with the user's settings and both answers in {ROUNDS} rounds,
each a process, over the same samples. Speeds, and ratios of speeds in one round, are medians of the rounds. Equal settings are
trained once: their ratio is 1. Over the other: geometric mean of the re-run speed over that of the other code's answer, and of
how many pairs. A promise is kept if the search's 95 % interval of the speed-up holds the re-run one, which has an error of its
own. A search that keeps the user's settings promises nothing."""
BY_LIMIT = [
    *("limit", "code", "searches", "failed", "speed-up re-run, median", "over the other", "promises kept"),
    *("user's settings kept", "seconds, median", "measured, median"),
]
EACH = [
    *("model", "limit", "repetition", "code", "seconds", "measured", "answer", "samples/s re-run", "speed-up re-run"),
    *("samples/s promised", "speed-up promised", "promise kept"),
]


def page(searches: Sequence[Search], rounds: Sequence[Round], codes: Sequence[str]) -> list[str]:
    """What is counted, and both tables."""
    revisions = {code: sorted({search.revision for search in searches if search.code == code}) for code in codes}
    ordered = sorted(searches, key=lambda one: (one.case.model, one.case.limit or math.inf, one.case[2], one.code))
    return [
        "; ".join(f"{code}: {', '.join(several)}" for code, several in revisions.items()) + ".",
        *("", *NOTES.splitlines(), "", "## By time limit", "", *markdown(BY_LIMIT, summary(searches, rounds, codes))),
        *("", "## Each search", "", *markdown(EACH, [row(search, rounds) for search in ordered])),
    ]


def checkout_of(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    return name, Path(path).resolve(strict=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--checkouts", nargs=2, type=checkout_of, required=True, metavar="NAME=PATH")
    parser.add_argument("--models", nargs="+", choices=[work.model for work in WORKS], default=MODELS)
    parser.add_argument("--limits", nargs="+", type=lambda text: None if text == "none" else int(text), default=LIMITS)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--report", type=Path, default=ROOT / "reports" / "two_versions.md")
    options, begun = parser.parse_args(), time.monotonic()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # `run` ends what it has started
    root, codes = options.folder.resolve(), [name for name, _ in options.checkouts]
    root.mkdir(parents=True, exist_ok=True)
    every = product(range(options.repetitions), enumerate(options.models), enumerate(options.limits))
    cases = [(Case(model, limit, again), (again + i + j) % 2) for again, (i, model), (j, limit) in every]
    left = work_left(cases, dict(options.checkouts), root)
    while time.monotonic() - begun < options.seconds and (done := next(left, None)):
        with (root / "runs.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(done)) + "\n")
        said = f"{done.code}: {done.seconds:.0f} s, {done.settings}" if isinstance(done, Search) else done.speeds
        print(f"{done.case.name}, {said}", flush=True)
    write_table(options.report, "Two versions, live", page(*known(root / "runs.jsonl"), codes))


if __name__ == "__main__":
    main()

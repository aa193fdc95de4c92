"""Answers on workloads that no recorded table has: searches as a user makes them, each against a brute force by plain scripts.

python benchmarks/unseen.py FOLDER [--only NAME ...] [--quick]: for each of WORKS `autotune search` in a process of its own; then
plain scripts (benchmarks/plain_training.py, which imports no autotune) train the brute force under the same memory limit, one
after the other: the user's settings and the answer, every micro-batch size x checkpointing x precision, the fastest of these with
every other optimizer and number of workers, and the rest in an order drawn by a seed, until MOST have fitted or the time is over.
At last the fastest, the answer and the user's settings train in turns: one script trains a few steps, the others stand still.
Every search, training and set of turns is kept in FOLDER at once: the same command continues where it was stopped. Needs an idle
machine and 20 GiB of memory for about twelve minutes a workload (a search of two to six, a brute force of at most six, turns of
two to four), an hour and a half in all; writes reports/unseen.md. --only: these workloads alone, into FOLDER/unseen.md. --quick:
a tiny workload with three configurations, into FOLDER/unseen.md: to see it run.
"""

import json
import os
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import IO, Any

import numpy as np
from fidelity import ROOT, TrainingFailed
from machine import write_table
from PIL import Image
from promised import (
    Data,
    begun,
    kept_word,
    prepared_texts,
    searched,
    side,
    texts_file,
    trained,
    turn_steps,
)

from autotune.commands.save import fields_of_saved
from autotune.core import Configuration, Interval, read_json, write_json
from autotune.core.interval import quotient_interval
from autotune.report.trial_text import range_text, short_words
from autotune.space.file import open_space
from autotune.space.settings.micro_batch_size import divisors
from autotune.study.result import SearchResult

MOST, BRUTE_S = 60, 330.0
"""Configurations of a brute force that fit, and its seconds, after which no more are drawn."""

UNTIMED, STEPS, SECONDS = 1, 30, 3.0
"""For each of its trainings: first steps that do not count, most steps that do, and their seconds (at least two steps)."""

TEXT_STEPS = 6
"""Steps of a training on texts of all lengths, always as many, so that all train on the same samples."""

TURNS, TURN_S = 6, 3.0
OPTIMIZERS, WORKERS = ("adamw_torch_fused", "adamw_torch", "adafactor"), (0, 2)
BEST = 3
"""Configurations of a brute force that are trained in turns."""


@dataclass(frozen=True)
class Work:
    """A workload. model: fields of its config. options: of its search. data: "texts", "images", or random samples."""

    name: str
    model: Mapping[str, Any]
    options: tuple[str, ...]
    data: str = ""


def config(model_type: str, layers: int, width: int, heads: int, **fields: Any) -> dict[str, Any]:
    """Fields of a model's config, its inner width by default four times its width."""
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    return {"model_type": model_type, **sizes, "intermediate_size": 4 * width, **fields}


TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BART = {f"{part}_{name}": n for part in ("encoder", "decoder") for name, n in (("layers", 3), ("attention_heads", 7))}
WORKS = [
    Work(
        "llama",
        config("llama", 4, 256, 8, num_key_value_heads=4, intermediate_size=688, vocab_size=8000, **TOKENS),
        ("-b", "32", "--sequence-length", "256", "--memory-limit", "900MiB"),
    ),
    Work("bert", config("bert", 5, 192, 6, vocab_size=6000, **TOKENS), ("-b", "64", "--sequence-length", "128")),
    Work("vit", config("vit", 5, 160, 5, image_size=128, patch_size=16, num_labels=10), ("-b", "64"), "images"),
    Work(
        "bart",
        {"model_type": "bart", "vocab_size": 10000, "d_model": 224, "encoder_ffn_dim": 896, "decoder_ffn_dim": 896}
        | {"max_position_embeddings": 256, "decoder_start_token_id": 2, **BART, **TOKENS},
        ("-b", "32", "--sequence-length", "48", "--task", "seq2seq-lm"),
    ),
    Work(
        "gpt2-124m",
        {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, **TOKENS},
        ("-b", "8", "--sequence-length", "64"),
    ),
    Work("bert-110m", config("bert", 12, 768, 12, vocab_size=30522, **TOKENS), ("-b", "12", "--sequence-length", "48")),
    Work(
        "bert-texts",
        config("bert", 3, 320, 5, vocab_size=6000, **TOKENS),
        ("-b", "32", "--sequence-length", "192", "--task", "sequence-classification"),
        "texts",
    ),
    Work(
        "llama-texts",
        config("llama", 3, 224, 7, num_key_value_heads=7, intermediate_size=600, vocab_size=5000, **TOKENS),
        ("-b", "24", "--sequence-length", "160", "--task", "causal-lm"),
        "texts",
    ),
]
QUICK = Work("quick", config("bert", 1, 64, 4, vocab_size=2000, **TOKENS), ("-b", "4", "--sequence-length", "16"))


@dataclass(frozen=True)
class Case:
    """A search and its brute force.

    yours, answer: configurations, by what differs from the user's settings. promised: the speed-up and its 95 % interval; None if
    the user's settings were kept. probes_s: seconds of the trials' first probes. remeasured: further measurements. other_size:
    number of the first trial of another micro-batch size. tried, fitted: configurations of the brute force. speeds: configuration
    -> samples / second of each turn. outside: those that the search could not propose. busy: processor seconds a second of the
    scripts that stood still, at most.
    """

    work: str
    yours: str
    answer: str
    promised: tuple[float, float, float] | None
    search_s: float
    probes_s: float
    trials: int
    remeasured: int
    out_of_memory: int
    other_size: int | None
    tried: int
    fitted: int
    speeds: Mapping[str, Sequence[float]]
    outside: Sequence[str]
    busy: float

    @property
    def promise(self) -> Interval | None:
        return Interval(*self.promised) if self.promised else None

    @property
    def fastest(self) -> str:
        return max(self.speeds, key=lambda name: median(self.speeds[name]))

    @property
    def fastest_in_space(self) -> str:
        return max(self.speeds.keys() - {*self.outside}, key=lambda name: median(self.speeds[name]))

    def against(self, other: str) -> Interval | None:
        """Speed of the answer divided by another's; None if one of them did not fit."""
        speeds = self.speeds
        return quotient_interval(speeds[self.answer], speeds[other]) if {self.answer, other} <= {*speeds} else None


@dataclass(frozen=True)
class Row:
    """A training of a brute force. speed: samples / second; None if it failed, and why. seconds: of all of it."""

    configuration: Configuration
    speed: float | None
    seconds: float
    why: str = ""


def arguments_of(work: Work, root: Path, quick: bool) -> list[str]:
    """Arguments of a workload's search."""
    model = root / "models" / f"{work.name}.json"
    model.parent.mkdir(exist_ok=True)
    write_json(model, dict(work.model))
    arguments = [str(model), *work.options, *(("--n-trials", "3", "--timeout", "3m") if quick else ())]
    match work.data:
        case "texts":
            arguments += ["--dataset", str(texts_file(root / "texts.jsonl"))]
        case "images":
            arguments += ["--dataset", str(images(root / "images"))]
    return arguments


def images(folder: Path, count: int = 512) -> Path:
    """JPEGs of ten classes that take 2 ms to decode and resize: clouds of colour with the grain of a photograph."""
    for number in range(count):
        file = folder / f"class-{number % 10}" / f"{number:04}.jpg"
        if file.exists():
            continue
        drawn = np.random.default_rng(number)
        coarse = Image.fromarray(drawn.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((540, 400), Image.Resampling.BICUBIC), dtype=np.float32)
        grain = drawn.normal(0.0, 6.0, smooth.shape[:2])[..., None]
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8)).save(file, quality=90)
    return folder


def cells_of(result: SearchResult) -> list[Configuration]:
    """Every micro-batch size, checkpointing and precision, with the first optimizer and without workers."""
    sizes = divisors(result.request.global_batch_size)
    return [
        changed(result, micro_batch_size=size, checkpointing=checkpointing, precision=precision)
        for checkpointing, precision, size in product(("none", "full"), ("bf16", "fp32"), sizes)
    ]


def changed(result: SearchResult, **values: Any) -> Configuration:
    """The user's settings with these values, the first optimizer and no workers."""
    first = {"optimizer": OPTIMIZERS[0], "workers": WORKERS[0]}
    settings = {**result.baseline.configuration.values, **first, **values}
    return Configuration.exact(result.request.global_batch_size, settings.pop("micro_batch_size"), settings)


def others_of(result: SearchResult, rows: Sequence[Row]) -> list[Configuration]:
    """The cells with every other optimizer and number of workers: the fastest cells' first, the rest in an order drawn."""
    cells = cells_of(result)
    measured = {row.configuration: row.speed for row in rows}
    fastest = sorted(cells, key=lambda cell: -(measured[cell] or 0.0))[:BEST]
    near, rest = (
        [
            changed(result, **cell.values | {"optimizer": optimizer, "workers": workers})
            for cell in some
            for optimizer, workers in product(OPTIMIZERS, WORKERS)
        ]
        for some in (fastest, cells)
    )
    random.Random(0).shuffle(rest)
    return [*near, *rest]


class Forked:
    """Plain scripts, one after the other, each forked from a process that has loaded torch and transformers."""

    def __init__(self, log: IO[str]) -> None:
        self._log, pipe = log, subprocess.PIPE
        command = [sys.executable, str(ROOT / "benchmarks" / "plain_training.py")]
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True)

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def __call__(self, folder: Path, limit: int, seconds: float, steps: int) -> tuple[float | None, str]:
        """(samples / second, or None if it failed; the last line of its log)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        start, speed = self._log.seek(0, os.SEEK_END), None
        self._process.stdin.write(json.dumps([str(folder), limit, seconds, steps, 0, UNTIMED]) + "\n")
        self._process.stdin.flush()
        while not (line := self._process.stdout.readline()).strip().isdigit():
            assert line, "the process that forks has ended"
            if line.startswith('{"samples_per_second"'):
                training = json.loads(line)
                assert not training["imports_autotune"]
                speed = training["samples_per_second"]
        self._log.seek(start)
        lines = [line.strip() for line in self._log if line.strip()]
        return speed, lines[-1][:200] if lines else ""


def brute_force(result: SearchResult, folder: Path, data: Data, quick: bool) -> list[Row]:
    """Trainings of a brute force, those known from an earlier run read from their file."""
    path = folder / "brute.jsonl"
    read = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    rows = [Row(Configuration.from_dict(row.pop("configuration")), **row) for row in read]
    length = (1e6, TEXT_STEPS) if isinstance(data, dict) else (SECONDS, STEPS)

    def train(configuration: Configuration) -> None:
        if all(row.configuration != configuration for row in rows):
            begun = time.monotonic()
            place = side(folder / "brute", result, configuration, data)
            speed, last_line = forked(place, result.allowed_bytes, *length)
            rows.append(Row(configuration, speed, time.monotonic() - begun, "" if speed else last_line))
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(rows[-1]) | {"configuration": configuration.to_dict()}) + "\n")
            print(f"{configuration}: {speed and round(speed, 1)} {rows[-1].why}", flush=True)

    with (folder / "brute.log").open("a+") as log, Forked(log) as forked:
        first = dict.fromkeys([yours(result), result.best.configuration, *cells_of(result)])
        for configuration in [*first][:3] if quick else first:
            train(configuration)
        for configuration in [] if quick else others_of(result, rows):
            if sum(bool(row.speed) for row in rows) < MOST and sum(row.seconds for row in rows) < BRUTE_S:
                train(configuration)
    return rows


def yours(result: SearchResult) -> Configuration:
    """The user's settings or, if they do not fit, the least change that does."""
    return (result.compared_trial or result.baseline).configuration


def in_turns(
    result: SearchResult, folder: Path, rows: Sequence[Row], data: Data, turn_s: float
) -> tuple[dict[Configuration, Any], float]:
    """(samples / second of each turn of the user's settings, the answer and the fastest; how busy was what stood still)."""
    ranked = sorted((row for row in rows if row.speed), key=lambda row: -(row.speed or 0.0))
    proposed = [row for row in ranked if not is_outside(row.configuration)]
    speeds = {row.configuration: row.speed for row in ranked}
    wanted = [yours(result), result.best.configuration]
    wanted += [row.configuration for row in (*proposed[:BEST], *ranked[:1])]
    sides = {folder / "turns" / str(at): each for at, each in enumerate(dict.fromkeys(wanted)) if each in speeds}
    for place, configuration in sides.items():
        side(place, result, configuration, data)
    while True:
        slowest_s = result.request.global_batch_size / min(speeds[each] or 0.0 for each in sides.values())
        steps, skipped = turn_steps(sides.values(), slowest_s, turn_s)
        try:
            every, busy = trained([*sides], result, steps, skipped, TURNS)
        except TrainingFailed as failed:  # memory ran out later than in the brute force: the others begin again
            print(f"{sides.pop(failed.args[0])}: does not fit", flush=True)
        else:
            return dict(zip(sides.values(), every, strict=True)), busy


def is_outside(configuration: Configuration) -> bool:
    """True if a search by default does not propose it: its optimizer has another rule than AdamW."""
    return configuration.values["optimizer"] not in open_space("default").values["optimizer"]


def case_of(work: Work, root: Path, quick: bool) -> Case:
    """A search, its brute force and the turns, from the folder where they are kept."""
    folder = root / work.name
    path = folder / "case.json"
    if not path.exists():
        seconds = searched(arguments_of(work, root, quick), folder)
        result = SearchResult(**fields_of_saved(folder / "study"))
        data = root / "images" if work.data == "images" else prepared_texts(result.workload.data, root / "cache")
        rows = brute_force(result, folder, data, quick)
        speeds, busy = in_turns(result, folder, rows, data, 0.5 if quick else TURN_S)
        user, promised = yours(result), result.measured_speedup if result.changes_settings else None

        def text(configuration: Configuration) -> str:
            return ", ".join(short_words(configuration, user))

        size, trials = user.micro_batch_size, result.trials
        others = [trial.number for trial in trials if trial.configuration.micro_batch_size != size]
        case = Case(
            work=work.name,
            yours=text(user),
            answer=text(result.best.configuration),
            promised=promised and (promised.value, promised.low, promised.high),
            search_s=seconds,
            probes_s=sum(trial.measurement.probe_seconds for trial in trials),
            trials=len(trials),
            remeasured=sum(len(trial.confirmations) for trial in trials),
            out_of_memory=sum(trial.lacked_memory for trial in trials),
            other_size=min(others, default=None),
            tried=len(rows),
            fitted=sum(bool(row.speed) for row in rows),
            speeds={text(configuration): each for configuration, each in speeds.items()},
            outside=[text(configuration) for configuration in speeds if is_outside(configuration)],
            busy=busy,
        )
        write_json(path, asdict(case))
    case = Case(**read_json(path))
    print(f"{answer_row(case)}\n{search_row(case)}", flush=True)
    return case


def answer_row(case: Case) -> str:
    def share(other: str) -> str:
        quotient = case.against(other)
        if quotient is None:
            return "did not fit"
        return "1" if other == case.answer else f"{quotient:.3f} ({quotient.low:.3f} to {quotient.high:.3f})"

    measured = case.against(case.yours)
    promised = f"{case.promise:.2f}x ({range_text(case.promise)})" if case.promise else "-"
    speedup = f"{measured:.2f}x ({range_text(measured)})" if measured and case.promise else "-"
    fastest = case.fastest if case.fastest == case.fastest_in_space else f"{case.fastest_in_space}; {case.fastest}"
    cells = [case.work, case.answer, fastest, share(case.fastest_in_space), share(case.fastest)]
    cells += [promised, speedup, inside_word(case) or "-"]
    return f"| {' | '.join(cells)} |"


def inside_word(case: Case) -> str:
    """Word for a promise that was kept or not; empty if the search promised nothing."""
    measured = case.against(case.yours)
    return "" if case.promise is None else kept_word(case.promise, measured) if measured else "did not fit"


def search_row(case: Case) -> str:
    other = "never" if case.other_size is None else str(case.other_size)
    cells = [case.work, f"{case.search_s:.0f}", f"{case.search_s / case.probes_s:.1f}", case.trials, case.remeasured]
    cells += [case.out_of_memory, other, f"{case.fitted} of {case.tried}"]
    return f"| {' | '.join(map(str, cells))} |"


def table(cases: Sequence[Case]) -> list[str]:
    shares = [float(case.against(case.fastest_in_space) or 0.0) for case in cases]
    promises = [word for case in cases if (word := inside_word(case))]
    close = [sum(share >= 1 - loss for share in shares) for loss in (0.01, 0.03)]
    return [
        "| workload | answer | fastest known (in the space; of all) | answer / fastest in the space "
        "| answer / fastest | promised | measured | inside |",
        "|---|---|---|---|---|---|---|---|",
        *map(answer_row, cases),
        "",
        f"**The answer has {median(shares):.1%} of the speed of the fastest known configuration that the search could propose "
        f"(median), {min(shares):.1%} at the worst**; it is within 1 % in {close[0]} and within 3 % in {close[1]} of "
        f"{len(cases)}. The promised interval holds the measured speed-up in {promises.count('yes')} of {len(promises)}; "
        f"{len(cases) - len(promises)} searches kept the user's settings.",
        "",
        "| workload | seconds of the search | over its trials' own | trials | further measurements | out of memory "
        "| first trial of another micro-batch size | brute force: fitted |",
        "|---|---|---|---|---|---|---|---|",
        *map(search_row, cases),
        "",
        "A search: `autotune search MODEL --device cpu --no-history` with each workload's options; its trials' own seconds are "
        f"those of their first probes. Brute force: plain scripts of {STEPS} steps or {SECONDS:g} s at most, of {TEXT_STEPS} "
        f"steps on texts, each a process of its own. Its {BEST} fastest, the answer and the user's settings (or the least change "
        f"of them that fits) trained in {TURNS} turns of about {TURN_S:g} s and a few steps that do not count; intervals "
        "are those of the turns' quotients. In the space: with AdamW; Adafactor follows another rule and is tried by a search "
        "only if it is named. The fastest of several that are equally fast is the luckiest: 0.99 can be noise. Scripts that "
        "stood still used at most "
        f"{max(case.busy for case in cases):.1%} of a core.",
        "",
        *(f"- {work.name}: {describe(work)}." for case in cases for work in (*WORKS, QUICK) if work.name == case.work),
    ]


def describe(work: Work) -> str:
    """`vit, images: num_hidden_layers 5, hidden_size 160; -b 64`."""
    fields = ", ".join(f"{name} {value}" for name, value in work.model.items() if name not in ("model_type", *TOKENS))
    return f"{work.model['model_type']}, {work.data or 'random samples'}: {fields}; `{' '.join(work.options)}`"


def main() -> None:
    options, root = begun(__doc__, only={"nargs": "+", "choices": [work.name for work in WORKS], "default": []})
    cases, failed = list[Case](), list[str]()
    for work in [QUICK] if options.quick else [work for work in WORKS if work.name in (options.only or [work.name])]:
        try:
            cases.append(case_of(work, root, options.quick))
        except Exception:  # the others do not wait for it
            traceback.print_exc()
            failed.append(work.name)
    if cases:
        place = root if options.quick or options.only or failed else ROOT / "reports"
        write_table(place / "unseen.md", "Answers on workloads that no table has", table(cases))
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}. Run the same command again to resume.")


if __name__ == "__main__":
    main()

"""What people use today against ours: the same work under the same memory limit, judged by one plain script.

python benchmarks/peers.py FOLDER [TASK ...] [--quick]: each finder of finders.py runs once, in a process of its own; then
benchmarks/plain_training.py, which knows none of them, trains every configuration found, in interleaved rounds. What each found
and each round are kept in FOLDER at once: the same command goes on where it was stopped. Needs an idle machine for
about fifteen minutes a task; writes reports/peers.md. TASK: random-tokens, classified-texts, causal-texts, images or lora; all
by default. --quick: a few steps of each, smaller, into FOLDER/peers.md: to see it run.
"""

import contextlib
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from machine import write_table
from peer_table import DEFAULTS, NOTES, PEERS, Finding, Judged, section
from PIL import Image

BENCHMARKS = Path(__file__).parent
ROOT = BENCHMARKS.parent
sys.path.insert(0, str(ROOT))
MIB = 2**20
DEADLINE_S = 900


@dataclass(frozen=True)
class Work:
    """The task, by its name on the command line.

    data, samples: "texts" or "images", and how many of them; by default random tokens. space, fix: of `autotune search`.
    adapter: fields of PEFT's `LoraConfig`. trials, search_s, steps: see finders.Task. rounds: of seconds, over data of one
    epoch, is how it is judged.
    """

    name: str
    subject: str
    model: str
    kind: str
    sequence_length: int | None
    global_batch_size: int
    limit_mib: int
    data: str = ""
    samples: int = 0
    space: str = "default"
    fix: Mapping[str, Any] = field(default_factory=dict)
    adapter: Mapping[str, Any] = field(default_factory=dict)
    trials: int = 20
    search_s: int = 150
    steps: int = 8
    rounds: int = 3
    seconds: int = 8

    @property
    def title(self) -> str:
        length = f"{self.sequence_length} tokens, " if self.sequence_length else ""
        return f"{self.model}, {self.subject}: a global batch of {self.global_batch_size}, {length}{self.limit_mib} MiB"


WORKS = [
    Work("random-tokens", "random tokens", "gpt2-mini", "causal-lm", 96, 48, 600),
    Work(
        "classified-texts",
        "texts of all lengths",
        "bert-mini",
        "sequence-classification",
        512,
        48,
        1400,
        data="texts",
        samples=480,
    ),
    Work(
        "causal-texts",
        "causal language model of texts of all lengths",
        "llama-mini",
        "causal-lm",
        256,
        32,
        1800,
        data="texts",
        samples=480,
    ),
    Work(
        "images",
        "photographs decoded as they are loaded",
        "vit-mini",
        "image-classification",
        None,
        32,
        400,
        data="images",
        samples=480,
    ),
    Work(
        "lora",
        "LoRA of rank 16, random tokens",
        "llama-mini",
        "causal-lm",
        128,
        32,
        600,
        space="lora",
        fix={"lora": 16, "lora_targets": "all_linear"},
        adapter={"r": 16, "lora_alpha": 32, "target_modules": "all-linear", "task_type": "CAUSAL_LM"},
    ),
]
QUICK = [
    replace(
        work,
        sequence_length=work.sequence_length and 32,
        global_batch_size=8,
        samples=work.samples and 32,
        trials=2,
        search_s=60,
        steps=4,
        rounds=1,
        seconds=1,
    )
    for work in WORKS
]


def prepare(work: Work, folder: Path) -> None:
    """What finders.py and plain_training.py read."""
    from autotune.workload.model.config import read_config

    folder.mkdir(parents=True)
    config = read_config(work.model, trust_remote_code=False)[0].to_dict()
    told = {"task": work.kind, "sequence_length": work.sequence_length, "model_config": config}
    write(folder / "request.json", {"workload": told})
    write(folder / "best_model_arguments.json", {})
    if work.adapter:
        write(folder / "best_adapter.json", work.adapter)
    task = {name: getattr(work, name) for name in ("model", "kind", "sequence_length", "global_batch_size", "samples")}
    task |= {name: getattr(work, name) for name in ("space", "fix", "trials", "search_s", "steps")}
    write(folder / "task.json", task | {"limit_bytes": work.limit_mib * MIB})
    if work.data == "texts":
        write(folder / "texts.json", texts(work))
    if work.data == "images":
        (folder / "images").symlink_to(images(folder.parent / "images", work.samples))


def texts(work: Work) -> dict[str, list[Any]]:
    """Paragraphs of Python's documentation, four bytes a token as byte-pair vocabularies have them.

    The label: is it a sentence? Those of a causal model are the tokens.
    """
    sys.path.insert(0, str(ROOT / "tests" / "data"))
    from python_topics import paragraphs

    every = paragraphs()
    kept = every[:: len(every) // work.samples][: work.samples]
    ids = [tokens(text)[: work.sequence_length] for text in kept]
    return {"input_ids": ids, "labels": ids if work.kind == "causal-lm" else [int(text[-1] == ".") for text in kept]}


def images(folder: Path, count: int) -> Path:
    """The folder, with as many JPEGs of ten classes, drawn once: clouds of colour with the grain of a photograph."""
    if not folder.exists():
        part, drawn = folder.with_suffix(".part"), np.random.default_rng(7)
        shutil.rmtree(part, ignore_errors=True)
        for number in range(count):
            coarse = Image.fromarray(drawn.integers(0, 256, (12, 16, 3), dtype=np.uint8))
            smooth = np.asarray(coarse.resize((1024, 768), Image.Resampling.BICUBIC), dtype=np.float32)
            grain = drawn.normal(0.0, 6.0, smooth.shape[:2])[..., None]
            file = part / f"class-{number % 10}" / f"{number:04}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8)).save(file, quality=90)
        part.rename(folder)
    return folder


def tokens(text: str) -> list[int]:
    whole = text.encode()
    return [zlib.crc32(whole[at : at + 4]) % 8000 + 3 for at in range(0, len(whole), 4)]


def write(path: Path, told: Any) -> None:
    """Whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(told, indent=1))
    part.replace(path)


def run(script: list[str], folder: Path, deadline_s: float, checkout: Path = ROOT) -> tuple[str, str]:
    """Standard output, and what went wrong in one line ("": nothing); ends all that the script started.

    checkout: whose code it imports.
    """
    environment = os.environ | {
        "PYTHONPATH": f"{checkout}:{checkout / 'tests'}",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    with open(folder / "log.txt", "a+") as log:
        start = log.tell()
        begun = subprocess.Popen(
            [sys.executable, *script],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            cwd=checkout,
            start_new_session=True,
        )
        try:
            output = begun.communicate(timeout=deadline_s)[0]
            ended = f"exit code {begun.returncode}" if begun.returncode else ""
        except subprocess.TimeoutExpired:
            output, ended = "", f"not over after {deadline_s:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(begun.pid, signal.SIGKILL)
        begun.wait()
        log.seek(start)
        lines = [line.strip() for line in log if line.strip()]
    return output, f"{ended}: {lines[-1][:200]}" if ended and lines else ended


def find(work: Work, name: str, folder: Path) -> Finding:
    """What a peer found, from the folder where it is known."""
    known = folder / "finding.json"
    if known.exists():
        return Finding(**json.loads(known.read_text()))
    if folder.exists():
        shutil.rmtree(folder)
    prepare(work, folder)
    if name == DEFAULTS:
        size = max(size for size in range(1, 9) if work.global_batch_size % size == 0)
        sizes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": work.global_batch_size // size}
        finding = Finding(name, sizes | {"use_cpu": True}, {}, 0, 0, 0.0)
    else:
        clock = time.monotonic()
        said = run([str(BENCHMARKS / "finders.py"), name, str(folder)], folder, DEADLINE_S)[1]
        seconds = time.monotonic() - clock
        told = folder / "attempts.jsonl"
        lines = [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []
        begun, done = (sum(word in line for line in lines) for word in ("begun", "done"))
        finding = Finding(
            name,
            read(folder / "found.json"),
            read(folder / "best_model_arguments.json") or {},
            begun,
            begun - done,
            round(seconds, 1),
            said,
            read(folder / "promised.json"),
        )
    write(known, vars(finding))
    return finding


def read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def judge(work: Work, findings: list[Finding], folder: Path) -> dict[str, Judged]:
    """By the name of each peer that found something, what the plain script got; equal findings are trained once.

    Equal is what the table says in the same words: an answer may spell out the defaults that another leaves out.
    """
    asked = {finding.name: finding.configuration for finding in findings}
    first = {fields: name for name, fields in reversed(asked.items())}
    names = [name for name in asked if first[asked[name]] == name]
    names = [finding.name for finding in findings if finding.arguments and finding.name in names]
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for at in range(work.rounds):
        turn = at % len(names)
        for name in names[turn:] + names[:turn]:
            place = folder / name / f"round-{at}.json"
            if not place.exists():
                one = next(finding for finding in findings if finding.name == name)
                write(folder / name / "best_training_arguments.json", {**(one.arguments or {}), "seed": at})
                script = [str(ROOT / "benchmarks" / "plain_training.py"), str(folder / name)]
                epoch = ["1e9", str(work.samples // one.global_batch_size)] if work.samples else [str(work.seconds)]
                output, said = run([*script, str(work.limit_mib * MIB), *epoch], folder / name, DEADLINE_S)
                got = {"said": said} if said else json.loads(output.splitlines()[-1])
                write(place, {key: value for key, value in got.items() if key != "step_times_s"})
            rounds[name].append(json.loads(place.read_text()))
            print(f"round {at + 1}, {name}: {rounds[name][-1]}", flush=True)
    assert not any(item.get("imports_autotune") for every in rounds.values() for item in every)
    return {finding.name: Judged(rounds[first[asked[finding.name]]]) for finding in findings if finding.arguments}


def main() -> None:
    quick = "--quick" in sys.argv
    folder, *names = (word for word in sys.argv[1:] if not word.startswith("-"))
    works = QUICK if quick else WORKS
    if unknown := set(names) - {work.name for work in works}:
        sys.exit(f"There is no task {', '.join(sorted(unknown))}: name {', '.join(work.name for work in works)}.")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("accelerate", "lightning", "peft"))
    lines: list[str] = []
    for work in (work for work in works if work.name in (names or [work.name])):
        place = Path(folder).resolve() / work.name
        findings = []
        for name in PEERS:
            findings.append(find(work, name, place / name))
            print(findings[-1], flush=True)
        lines += [*section(work.title, work.global_batch_size, findings, judge(work, findings, place)), ""]
    lines += [*NOTES.splitlines(), "", f"Also {versions}."]
    write_table((Path(folder) if quick else ROOT / "reports") / "peers.md", "What people use today, and ours", lines)


if __name__ == "__main__":
    main()

"""What people use today against ours: the same work under the same memory limit, judged by one plain script.

python benchmarks/peers.py FOLDER [MODEL] [--quick]: each finder of finders.py runs once, in a process of its own; then
benchmarks/plain_training.py, which knows none of them, trains every configuration found, in interleaved rounds. What each found
and each round are kept in FOLDER at once: the same command goes on where it was stopped. Needs an idle machine for
about twenty minutes a task; writes reports/peers.md. MODEL: the task of this model alone. --quick: a few steps of a tiny
task, into FOLDER/peers.md: to see it run.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import write_table
from peer_table import DEFAULTS, NOTES, PEERS, Finding, Judged, section

BENCHMARKS = Path(__file__).parent
ROOT = BENCHMARKS.parent
sys.path.insert(0, str(ROOT))
MIB = 2**20
DEADLINE_S = 900


@dataclass(frozen=True)
class Work:
    """The task. trials, steps: see finders.Task. rounds: of seconds, over texts of one epoch, is how it is judged."""

    name: str
    model: str
    kind: str
    sequence_length: int
    global_batch_size: int
    limit_mib: int
    trials: int = 20
    steps: int = 8
    rounds: int = 3
    seconds: int = 12
    texts: bool = False

    @property
    def title(self) -> str:
        return (
            f"{self.name}: a global batch of {self.global_batch_size}, {self.sequence_length} tokens, "
            f"{self.limit_mib} MiB"
        )


WORKS = [
    Work("gpt2-mini, random tokens", "gpt2-mini", "causal-lm", 96, 48, 600),
    Work("bert-mini, texts of all lengths", "bert-mini", "sequence-classification", 512, 48, 1400, 10, texts=True),
]
QUICK = [Work("bert-mini, random tokens", "bert-mini", "masked-lm", 32, 8, 200, 2, 4, 1, 2)]


def prepare(work: Work, folder: Path) -> None:
    """What finders.py and plain_training.py read."""
    from autotune.workload.model.config import read_config

    folder.mkdir(parents=True)
    config = read_config(work.model, trust_remote_code=False)[0].to_dict()
    told = {"task": work.kind, "sequence_length": work.sequence_length, "model_config": config}
    write(folder / "request.json", {"workload": told})
    write(folder / "best_model_arguments.json", {})
    task = {name: getattr(work, name) for name in ("model", "kind", "sequence_length", "global_batch_size")}
    task |= {"limit_bytes": work.limit_mib * MIB, "trials": work.trials, "steps": work.steps}
    write(folder / "task.json", task)
    if work.texts:
        write(folder / "texts.json", texts(work))


def texts(work: Work) -> dict[str, list[Any]]:
    """Paragraphs of Python's documentation, four bytes a token as byte-pair vocabularies have them; is it a sentence?

    As many as whole global batches hold, so that no step of an epoch is shorter.
    """
    sys.path.insert(0, str(ROOT / "tests" / "data"))
    from python_topics import paragraphs

    every = paragraphs()
    kept = every[: len(every) // work.global_batch_size * work.global_batch_size]
    return {
        "input_ids": [tokens(trial)[: work.sequence_length] for trial in kept],
        "labels": [int(trial[-1] == ".") for trial in kept],
    }


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
    """By the name of each peer that found something, what the plain script got; equal findings are trained once."""
    asked = {
        finding.name: json.dumps([finding.arguments, finding.model_arguments], sort_keys=True) for finding in findings
    }
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
                write(folder / name / "best_training_arguments.json", one.arguments)
                script = [str(ROOT / "benchmarks" / "plain_training.py"), str(folder / name)]
                samples = len((read(folder / name / "texts.json") or {"labels": []})["labels"])
                epoch = ["1e9", str(samples // one.global_batch_size)] if samples else [str(work.seconds)]
                output, said = run([*script, str(work.limit_mib * MIB), *epoch], folder / name, DEADLINE_S)
                got = {"said": said} if said else json.loads(output.splitlines()[-1])
                write(place, {key: value for key, value in got.items() if key != "step_times_s"})
            rounds[name].append(json.loads(place.read_text()))
            print(f"round {at + 1}, {name}: {rounds[name][-1]}", flush=True)
    assert not any(item.get("imports_autotune") for every in rounds.values() for item in every)
    return {finding.name: Judged(rounds[first[asked[finding.name]]]) for finding in findings if finding.arguments}


def main() -> None:
    quick = "--quick" in sys.argv
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    folder, models = Path(words[0]).resolve(), words[1:]
    lines: list[str] = []
    for work in QUICK if quick else [work for work in WORKS if work.model in (models or [work.model])]:
        place = folder / f"{work.model}-{work.kind}"
        findings = []
        for name in PEERS:
            findings.append(find(work, name, place / name))
            print(findings[-1], flush=True)
        lines += [*section(work.title, work.global_batch_size, findings, judge(work, findings, place)), ""]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("accelerate", "lightning"))
    lines += [*NOTES.splitlines(), "", f"Also {versions}."]
    write_table((folder if quick else ROOT / "reports") / "peers.md", "What people use today, and ours", lines)


if __name__ == "__main__":
    main()

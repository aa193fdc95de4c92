"""Programs that know nothing of autotune, and their commands."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from autotune.commands.result import TuningResult
from tests.hurry import hurried
from tests.probe.processes import becomes_true, bounded

PROGRAM = '''
import sys, time
sys.modules.update(dict.fromkeys(("bitsandbytes", "peft", "sklearn", "torchao")))  # a start takes half the time
import torch
import transformers
from transformers import HfArgumentParser, Trainer, TrainingArguments


class Sums(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, place):
        tokens = (torch.arange(8) + place) % 64
        return {{"input_ids": tokens, "labels": tokens}}


class Slow(Trainer):
    """A micro-step takes the same time whatever its size: the fewest are fastest."""

    def compute_loss(self, *args, **kwargs):
        time.sleep(0.02)
        return super().compute_loss(*args, **kwargs)


{before}
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
config = transformers.GPT2Config(
    vocab_size=64, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=1
)
transformers.set_seed(args.seed)
trainer = Slow(model=transformers.GPT2LMHeadModel(config), args=args, train_dataset=Sums())
{trained}
'''

TRAINED = """
trainer.train()
print("trained", trainer.state.global_step, args.per_device_train_batch_size, args.gradient_accumulation_steps)
trainer.train()
trainer.save_model("saved")
"""
"""Trains twice, so that what is left over of the first training shows, and saves."""

SIZES = ("--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "4")
FLAGS = (
    *("--output_dir", "out", "--max_steps", "3", "--use_cpu", "True"),
    *("--save_strategy", "no", "--report_to", "none", "--disable_tqdm", "True"),
)

SPACE = "parameters:\n  micro_batch_size: [1, 4]\n"

ONLY = ("--search-space", "space.yaml", "--no-history")
"""Options of a search of two configurations, of which the second is surely faster."""


def program(folder: Path, trained: str = TRAINED, before: str = "", name: str = "train.py") -> Path:
    """A program in this folder, beside a search space. before: code in front of its arguments; trained: after its Trainer."""
    (folder / "space.yaml").write_text(SPACE, encoding="utf-8")
    path = folder / name
    path.write_text(PROGRAM.format(before=before, trained=trained), encoding="utf-8")
    return path


def autotune_run(
    folder: Path,
    *options: str,
    command: list[str] | None = None,
    flags: tuple[str, ...] = (*SIZES, *FLAGS),
    typed: str = "",
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """`autotune run OPTIONS -- COMMAND FLAGS` in this folder; by default of its train.py. typed: its standard input."""
    words = [*(command or [sys.executable, "train.py"]), *flags]
    return started(folder, [sys.executable, "-m", "autotune", "run", *options, "--", *words], typed, **variables)


def started(folder: Path, words: list[str], typed: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """The command in this folder, to its end."""
    environment = hurried() | {"CUDA_VISIBLE_DEVICES": ""} | variables
    return subprocess.run(
        words, cwd=folder, env=environment, input=typed, capture_output=True, text=True, timeout=400, check=False
    )


def stopped(folder: Path, number: signal.Signals, trial: int, *options: str) -> str:
    """Standard error of a search that gets this signal once this trial is measured, and leaves no process."""
    words = [sys.executable, "-m", "autotune", "run", *ONLY, *options, "--", sys.executable, "train.py", *SIZES, *FLAGS]
    path = folder / "errors.txt"
    with (
        path.open("w+") as errors,
        bounded(
            subprocess.Popen(words, cwd=folder, env=hurried(), stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        ) as process,
    ):
        measured = lambda: [*folder.glob(f"reports/*/probes/{trial:04d}/measurement.json")]  # noqa: E731
        assert becomes_true(lambda: bool(measured() or process.poll() is not None), 200)
        assert process.poll() is None, path.read_text()
        process.send_signal(number)
        code = process.wait(100)
    assert code == (-9 if number == signal.SIGKILL else 128 + number), path.read_text()
    assert becomes_true(lambda: not left(folder), 20)
    return path.read_text()


def left(folder: Path) -> list[psutil.Process]:
    """Processes that work in this folder or below."""
    processes = []
    for process in psutil.process_iter(["cwd", "status"]):
        inside = Path(process.info["cwd"] or "/").is_relative_to(folder)
        if inside and process.info["status"] != psutil.STATUS_ZOMBIE:
            processes.append(process)
    return processes


def measurements(folder: Path) -> dict[Path, str]:
    """The stored measurements of this folder's searches, by their files."""
    return {path: path.read_text() for path in folder.glob("reports/*/probes/*/measurement.json")}


def study(folder: Path) -> TuningResult:
    """The only study of this folder."""
    (path,) = (folder / "reports").iterdir()
    return TuningResult.load(path)


def answered(result: TuningResult) -> tuple[int, int]:
    """Micro-batch size and accumulation steps of the answer."""
    best = result.best.configuration
    return best.micro_batch_size, best.gradient_accumulation_steps


def has_cores(count: int) -> bool:
    """True if this process may use so many cores."""
    return len(os.sched_getaffinity(0)) >= count

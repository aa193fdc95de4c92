"""Loaders that wait and loaders that work: which number of workers a search picks, and which an exhaustive run finds best.

python benchmarks/loaders.py: two searches of a tiny model whose data takes its time, one sleeping 20 ms a sample,
one burning processor time; then every number of workers trained by a plain Trainer in interleaved rounds. About five
minutes on an idle machine; writes reports/loaders.md.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import write_table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import autotune  # noqa: E402

GLOBAL_BATCH, TOKENS = 8, 32
WORKERS = (0, 1, 2, 4)
SLEEP_S, BURN_S = 0.020, 0.008
ROUNDS, STEPS, UNTIMED = 3, 25, 5


def sleeping() -> None:
    """As a loader that waits for a disk or the network."""
    time.sleep(SLEEP_S)


def burning() -> None:
    """As a loader that decodes or augments: processor time, which the training wants too."""
    until = time.thread_time() + BURN_S
    while time.thread_time() < until:
        pass


class Slow(torch.utils.data.Dataset):
    """Random tokens, each sample after its delay."""

    def __init__(self, kind: str, samples: int = 4096) -> None:
        self.kind, self.samples = kind, samples
        self.ids = torch.randint(1, 500, (512, TOKENS), generator=torch.Generator().manual_seed(7))

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        {"sleeping": sleeping, "burning": burning}[self.kind]()
        ids = self.ids[index % len(self.ids)]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def make_model() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=4, n_embd=128, vocab_size=512, n_positions=64))


def plain(kind: str, workers: int) -> float:
    """Samples / second of a plain Trainer in a process of its own (see `train`)."""
    command = [sys.executable, __file__, "train", kind, str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.strip().splitlines()[-1])


def train(kind: str, workers: int) -> None:
    """A plain training; prints its samples / second."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=GLOBAL_BATCH,
            max_steps=STEPS + UNTIMED,
            dataloader_num_workers=workers,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        Trainer(model=make_model(), args=arguments, train_dataset=Slow(kind), callbacks=[Clock()]).train()
    print(GLOBAL_BATCH * (STEPS - 1) / (ends[-1] - ends[UNTIMED]))


def searched(kind: str, folder: str) -> autotune.TuningResult:
    """A search over the number of workers alone."""
    fixed = {
        "precision": "fp32",
        "optimizer": "adamw_torch_fused",
        "checkpointing": "none",
        "micro_batch_size": GLOBAL_BATCH,
    }
    from transformers import Trainer, TrainingArguments

    def build(args: Any) -> Any:
        return Trainer(model=make_model(), args=args, train_dataset=Slow(kind))

    arguments = TrainingArguments(folder, per_device_train_batch_size=GLOBAL_BATCH, use_cpu=True, report_to="none")
    return autotune.tune(
        build,
        arguments,
        sequence_length=TOKENS,
        fix=fixed,
        only={"workers": list(WORKERS)},
        sampler="brute-force",
        n_trials=len(WORKERS),
        study_name=kind,
        output_dir=folder,
    )


def main() -> None:
    rows = [
        "| loader | workers | search: samples/s | data wait | plain Trainer, median (lowest to highest round) |",
        "|---|---|---|---|---|",
    ]
    said = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("sleeping", "burning"):
            result = searched(kind, folder)
            got: dict[int, list[float]] = {workers: [] for workers in WORKERS}
            for one_round in range(ROUNDS):
                for workers in WORKERS[one_round:] + WORKERS[:one_round]:
                    got[workers].append(plain(kind, workers))
            best = max(WORKERS, key=lambda workers: statistics.median(got[workers]))
            chosen = result.best.configuration.values["workers"]
            for trial in sorted(result.trials, key=lambda one: int(one.configuration.values["workers"])):
                workers = int(trial.configuration.values["workers"])
                final = trial.final
                wait = f"{final.data_wait_share:.0%}{' (input-bound)' if final.input_bound else ''}"
                marks = " (chosen)" if workers == chosen else ""
                plainly = f"{statistics.median(got[workers]):.1f} ({min(got[workers]):.1f} to {max(got[workers]):.1f})"
                rows.append(f"| {kind} | {workers}{marks} | {trial.samples_per_second:.1f} | {wait} | {plainly} |")
            said.append(f"{kind}: the search chose {chosen}, the exhaustive run's best is {best}.")
    rows += ["", " ".join(said)]
    rows += [
        "",
        f"Sleeping: {SLEEP_S * 1000:.0f} ms a sample; burning: {BURN_S * 1000:.0f} ms of processor time a sample.",
    ]
    write_table(ROOT / "reports" / "loaders.md", "Loaders that wait, loaders that work", rows)


if __name__ == "__main__":
    train(sys.argv[2], int(sys.argv[3])) if sys.argv[1:2] == ["train"] else main()

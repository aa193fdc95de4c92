"""A whole search on two ranks of a CPU: exact, confirmed, rehearsed, and an answer that says how to start it."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import autotune
from autotune.cli.app import app
from autotune.commands.result import TuningResult
from autotune.commands.verify.run import verify
from autotune.core import InvalidRequest
from autotune.core.errors import NothingFits
from tests.commands.run.programs import has_cores
from tests.hurry import hurried, hurry

WORDS = (
    "--global-batch-size 8 --device cpu --search-space multi-gpu --sequence-length 8 --n-trials 2 --no-history --quiet"
)
FIXED = ("data_parallel_size=2", "precision=fp32", "checkpointing=none", "workers=0", "optimizer=adamw_torch_fused")


@pytest.fixture(scope="module")
def searched(all_cores: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[TuningResult, str]:
    """The search of the command line, and what it printed."""
    folder = tmp_path_factory.mktemp("reports")
    arguments = folder / "arguments.json"
    arguments.write_text('{"per_device_train_batch_size": 1}')  # of which 4 at once are surely faster
    words = ["search", "bert-mini", *WORDS.split(), *(f"--fix={item}" for item in FIXED), f"--args={arguments}"]
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch)
        done = CliRunner().invoke(app, [*words, "--only=micro_batch_size=1,4", f"--output-dir={folder / 'reports'}"])
    assert done.exit_code == 0, done.output
    return TuningResult.load(next((folder / "reports").iterdir())), done.output


@pytest.mark.nightly
def test_a_search_on_two_ranks_is_exact_and_confirmed(searched: tuple[TuningResult, str]) -> None:
    result, _ = searched
    assert result.best.confirmed
    assert {trial.configuration.data_parallel_size for trial in result.trials} == {2}
    for trial in result.trials:
        assert trial.configuration.global_batch_size == 8
        assert trial.measurement.settings == trial.configuration.values
        assert {2 * step.samples for step in trial.measurement.composed_steps} == {8}
        assert trial.peak_bytes


@pytest.mark.nightly
def test_its_losses_and_its_sanity_check_are_those_of_all_ranks(searched: tuple[TuningResult, str]) -> None:
    result, _ = searched
    assert result.sanity_check is not None
    assert not result.sanity_check.problems
    assert result.sanity_check.checkpoint_bytes
    assert result.numerics is not None
    assert result.numerics.references or result.numerics.problem


@pytest.mark.nightly
def test_the_answer_says_how_its_ranks_are_started(searched: tuple[TuningResult, str]) -> None:
    result, _ = searched
    assert result.folder is not None
    threads = max(1, result.environment.threads // 2)
    line = f"OMP_NUM_THREADS={threads} torchrun --nproc-per-node 2 your_script.py"
    assert line in (result.folder / "summary.md").read_text()
    told = json.loads((result.folder / "result.json").read_text())["launch"]
    assert told == [
        line,
        f"OMP_NUM_THREADS={threads} accelerate launch --multi_gpu --num_processes 2 your_script.py",
    ]
    assert (result.to_dict()["processes"], result.to_dict()["launch"]) == (2, told)
    fields = result.to_dict()["training_arguments"]
    assert (fields["ddp_backend"], fields["use_cpu"]) == ("gloo", True)
    sizes = fields["per_device_train_batch_size"] * fields["gradient_accumulation_steps"]
    assert sizes * result.setup.processes == 8


@pytest.mark.nightly
def test_verify_says_that_it_starts_one_process_only(searched: tuple[TuningResult, str]) -> None:
    assert searched[0].folder is not None
    if not searched[0].changes_settings:  # it may have found nothing faster
        assert verify(searched[0].folder, 4).is_same
        return
    with pytest.raises(InvalidRequest, match="trains on 2 ranks") as refused:
        verify(searched[0].folder, 4)
    assert "torchrun --nproc-per-node 2" in str(refused.value)


@pytest.mark.nightly
def test_nothing_fits_on_two_ranks_where_each_has_too_little(all_cores: None, tmp_path: Path) -> None:
    """The limit is each rank's own."""
    fixed = dict(item.split("=") for item in FIXED)
    with pytest.raises(NothingFits):
        autotune.search(
            "bert-mini",
            8,
            device="cpu",
            sequence_length=64,
            fix={**fixed, "micro_batch_size": 4},
            memory_limit="110MiB",
            n_trials=1,
            no_history=True,
            output_dir=str(tmp_path),
        )
    (folder,) = tmp_path.iterdir()
    (trial,) = TuningResult.load(folder).trials
    assert trial.measurement.outcome == "out_of_memory"
    assert trial.measurement.reason.startswith("rank ")


OF_A_USER = """
import os, sys, time
import torch, transformers
import autotune

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(8, 4)

    def forward(self, values=None, labels=None):
        time.sleep(0.05)
        logits = self.head(values)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, place):
        return {"values": torch.arange(8.0) + place, "labels": place % 4}

if __name__ == "__main__":
    args = transformers.TrainingArguments(
        "out", use_cpu=True, per_device_train_batch_size=1, gradient_accumulation_steps=4, max_steps=24, save_strategy="no",
        report_to="none", disable_tqdm=True)
    trainer = transformers.Trainer(model=Net(), args=args, train_dataset=Numbers())
    if "RANK" in os.environ:
        result = autotune.TuningResult.load("reports/mine")
        trainer = result.apply(trainer)
        trainer.add_callback(autotune.PromiseCallback(result))
        trainer.train()
        sizes = trainer.args.per_device_train_batch_size, trainer.args.gradient_accumulation_steps, trainer.args.world_size
        print("trained", *sizes, trainer.state.global_step, float(next(trainer.model.parameters()).sum()))
    else:
        autotune.tune(
            trainer, space="multi-gpu", fix={"data_parallel_size": 2, "precision": "fp32", "workers": 0},
            only={"micro_batch_size": [1, 2]}, n_trials=2, study_name="mine", no_history=True)
"""
"""Searches, and started on several ranks trains with what was found."""


@pytest.mark.nightly
def test_a_trainer_of_the_user_is_searched_for_on_two_ranks_and_trains_with_the_printed_line(
    all_cores: None, tmp_path: Path
) -> None:
    if not has_cores(2):
        pytest.skip("two ranks take two cores")
    (tmp_path / "your_script.py").write_text(OF_A_USER)

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, cwd=tmp_path, env=hurried(), capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done

    run(sys.executable, "your_script.py")
    result = TuningResult.load(tmp_path / "reports" / "mine")
    best = result.best.configuration
    assert (best.micro_batch_size, best.gradient_accumulation_steps, best.data_parallel_size) == (2, 2, 2)
    for line in result.to_dict()["launch"]:
        variables, _, command = line.partition(" ")
        launcher, *words = shlex.split(command)
        done = run("env", variables, str(Path(sys.executable).parent / launcher), *words)
        trained = [printed.split() for printed in done.stdout.splitlines() if printed.startswith("trained")]
        assert [printed[1:5] for printed in trained] == [["2", "2", "2", "24"]] * 2
        assert trained[0] == trained[1], "both ranks have the same weights"
        assert done.stderr.count("autotune: the training ran ") == 1, "the first rank alone says it"
        assert "NotApplied" not in done.stderr

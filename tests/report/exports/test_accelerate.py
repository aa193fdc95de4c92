"""accelerate's file is read by accelerate itself, and the loop does what the answer says, launched for real."""

import ast
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from transformers import Trainer, TrainingArguments

from autotune.probe.process.ranks import free_port
from autotune.report.exports import Answer, exports
from autotune.report.exports.answer import without
from tests.report.exports.answers import EVERY, FULL, ON_A_GPU, answer, as_known
from tests.trainers import installed

DRIVE = Path(__file__).with_name("drive.py")
TYPES = {
    "plain": "NO",
    "two ranks": "MULTI_GPU",
    "two ranks of a CPU": "MULTI_CPU",
    "sharded": "FSDP",
    "deepspeed": "DEEPSPEED",
}


def written(folder: Path, of: Answer) -> Path:
    for name, text in exports(of).items():
        (folder / name).write_text(text)
    return folder


# What accelerate reads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVERY)
def test_accelerate_reads_its_file(kind: str, tmp_path: Path) -> None:
    of = EVERY[kind]
    path = written(tmp_path, of) / "accelerate_config.yaml"
    ours, read = yaml.safe_load(path.read_text()), load_config_from_file(str(path)).to_dict()
    assert {name: read[name] for name in ours} == ours
    assert (ours["distributed_type"], ours["num_processes"]) == (TYPES.get(kind, "NO"), of.ranks)
    assert ours["use_cpu"] is of.is_cpu
    assert ours.get("mixed_precision") == (None if kind == "deepspeed" else of.mixed_precision)


def launched(folder: Path) -> Any:
    """What `accelerate launch` makes of the file."""
    words = ["--config_file", str(folder / "accelerate_config.yaml"), "script.py"]
    return _validate_launch_command(launch_command_parser().parse_args(words))[0]


def test_compilation_sharding_and_deepspeed_are_what_accelerate_launch_takes_over(tmp_path: Path) -> None:
    assert launched(written(tmp_path, EVERY["plain"])).dynamo_backend == "no"
    read = launched(written(tmp_path, EVERY["on a GPU"]))
    assert (read.dynamo_backend, read.dynamo_mode) == ("INDUCTOR", "max-autotune")
    assert not read.dynamo_use_regional_compilation
    regional = answer(FULL | ON_A_GPU, process_environment={"ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "true"})
    assert launched(written(tmp_path, regional)).dynamo_use_regional_compilation is True
    read = launched(written(tmp_path, EVERY["sharded"]))
    assert read.use_fsdp
    assert (int(read.fsdp_version), read.fsdp_transformer_layer_cls_to_wrap) == (2, "Block")
    read = launched(written(tmp_path, EVERY["deepspeed"]))
    assert read.use_deepspeed
    assert (read.deepspeed_config_file, read.zero3_init_flag) == ("ds_config.json", True)


# The loop -------------------------------------------------------------------------------------------------------


def seen_by(folder: Path, command: list[str], ranks: int = 1) -> list[dict[str, Any]]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    set_first = {"OMP_NUM_THREADS": "1", "MASTER_PORT": str(free_port()), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=folder, env=variables | set_first, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"seen-{rank}.json").read_text()) for rank in range(ranks)]


def accelerate_launch(folder: Path) -> list[str]:
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "accelerate_config.yaml"]
    return [*launch, str(DRIVE), str(folder)]


@pytest.mark.slow
@pytest.mark.nightly
def test_the_loop_launched_by_accelerate_trains_as_the_answer_says(tmp_path: Path) -> None:
    """24 samples, 2 epochs, 4 x 3 a step: 4 steps of 3 micro-batches."""
    (seen,) = seen_by(tmp_path, accelerate_launch(written(tmp_path, answer(as_known(FULL)))))
    assert seen["micro_batches"] == [4] * 12
    assert seen["optimizers"] == ["torch.optim.sgd.SGD"] * 4
    assert seen["decay"] == [0.1, 0.0]
    assert seen["rates"][0] == 0.0, "the first of two warm-up steps"
    assert (seen["dtype"], seen["autocast"]) == ("torch.bfloat16", True)
    assert seen["layer_runs"] == 2 * 12, "each layer runs again in the backward"
    assert seen["finite"]


@pytest.mark.nightly
def test_two_ranks_share_each_step(tmp_path: Path) -> None:
    """48 samples, 2 epochs, 4 x 3 x 2 a step: 4 steps, each rank 3 micro-batches in each."""
    of = EVERY["two ranks of a CPU"]
    folder = written(tmp_path, of)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    torchrun += ["--master-port", str(free_port())]
    both = seen_by(folder, [*torchrun, str(DRIVE), str(folder)], ranks=2)
    for seen in both:
        assert seen["micro_batches"] == [4] * 12
        assert len(seen["optimizers"]) == 4
        assert seen["autocast"]


@pytest.mark.nightly
def test_with_another_number_of_ranks_the_loop_refuses(tmp_path: Path) -> None:
    """accelerate starts one process where its file says MULTI_CPU and there is no MPI: half the batch."""
    folder = written(tmp_path, EVERY["two ranks of a CPU"])
    variables = os.environ | {"OMP_NUM_THREADS": "1", "MASTER_PORT": str(free_port())}
    done = subprocess.run(
        accelerate_launch(folder), cwd=folder, env=variables, capture_output=True, text=True, timeout=300
    )
    assert done.returncode != 0
    assert "1 rank(s) instead of 2: the batch would not be 24." in done.stderr


def test_the_loop_is_python_and_holds_the_answer() -> None:
    for of in EVERY.values():
        tree = ast.parse(exports(of)["accelerate_loop.py"])
        constants = {
            node.targets[0].id: ast.literal_eval(node.value)  # type: ignore[attr-defined]
            for node in tree.body
            if isinstance(node, ast.Assign) and node.targets[0].id.isupper()  # type: ignore[attr-defined]
        }
        assert constants["RANKS"] == of.ranks
        assert constants["MODEL_ARGUMENTS"] == of.setup.model_arguments
        assert constants["TRAINING_ARGUMENTS"] == without(of.fields, ("deepspeed", "fsdp", "fsdp_config"))


def test_what_the_loop_leaves_out_of_the_accelerator_s_own_arguments_is_a_comment() -> None:
    config = {"non_blocking": True, "split_batches": True, "even_batches": True, "dispatch_batches": None}
    loop = exports(answer({"accelerator_config": config}))["accelerate_loop.py"]
    left_out = [line.partition(": ")[2] for line in loop.splitlines() if line.startswith("# Not done by this loop")]
    assert left_out == ["accelerator_config split_batches = True"]
    assert "DataLoaderConfiguration(non_blocking=True)" in loop
    loop = exports(answer({"accelerator_config": "accelerator.json"}))["accelerate_loop.py"]
    assert "# Not done by this loop, as the Trainer would: accelerator_config = 'accelerator.json'" in loop


def test_the_start_line_can_be_pasted_into_a_shell() -> None:
    of = answer(process_environment={"ODD": "two words; and more"})
    line = exports(of)["accelerate_config.yaml"].splitlines()[0].removeprefix("# ")
    assert shlex.split(line)[:2] == ["OMP_NUM_THREADS=1", "ODD=two words; and more"]


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_bnb_8bit"])
def test_the_loop_s_optimizer_is_the_trainer_s(optim: str, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(exports(answer({"optim": optim}))["accelerate_loop.py"].partition("if __name__")[0], names)
    arguments = TrainingArguments(output_dir=str(tmp_path), **installed(names["TRAINING_ARGUMENTS"]))
    model = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 4))
    assert type(names["make_optimizer"](model, arguments)) is Trainer.get_optimizer_cls_and_kwargs(arguments, model)[0]

"""The answer in commands and config files of people: what their own parsers read is what was measured."""

import dataclasses
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import HfArgumentParser, TrainingArguments

from autotune.commands.apply.run import in_command, in_file
from autotune.commands.result import TuningResult
from autotune.core import Trial, Value
from autotune.core.errors import NothingFits, SearchFailed
from tests import makers
from tests.makers import refusal_of, trial
from tests.report.exports.keys import AXOLOTL, LLAMA_FACTORY
from tests.trainers import CHECKPOINTING, installed

BY_ITS_OLDER_NAME = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")

TRL_FILE = """\
# the team's recipe
model_name_or_path: gpt2  # small
dataset_name: trl-lib/Capybara
max_length: 512
per_device_train_batch_size: 8   # fits
gradient_accumulation_steps: 6
gradient_checkpointing: true
bf16: false
learning_rate: 2.0e-4
"""
AXOLOTL_FILE = """\
base_model: NousResearch/Llama-3.2-1B
datasets:
  - path: tatsu-lab/alpaca   # instructions
    type: alpaca

sequence_len: 2048
micro_batch_size: 8
gradient_accumulation_steps: 6
optimizer: adamw_torch_fused
bf16: auto
tf32: false
gradient_checkpointing: true
flash_attention: true
"""
LLAMA_FACTORY_FILE = """\
### model
model_name_or_path: Qwen/Qwen3-4B
### method
stage: sft
do_train: true
finetuning_type: lora
flash_attn: fa2
### train
per_device_train_batch_size: 8
gradient_accumulation_steps: 6
bf16: true
"""


def found(before: dict[str, Value] | None = None, facts: dict[str, Any] | None = None, **after: Value) -> TuningResult:
    """A search from 8 x 6 with checkpointing to 16 x 3 without; before, after: other settings of either."""
    yours = makers.configuration(8, **{"checkpointing": "full", **(before or {})})
    best = makers.configuration(16, **{"precision": "bf16", **after})
    trials = [trial(0, 10.0, of=yours, confirmed=10.0), trial(1, 20.0, of=best, confirmed=20.0)]
    return makers.result(trials, **(facts or {}))


def parsed(command: str, program: str = "train.py") -> TrainingArguments:
    words = shlex.split(command)
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(words[words.index(program) + 1 :])
    assert isinstance(arguments, TrainingArguments)
    return arguments


def test_a_script_s_flags_are_those_of_the_answer(tmp_path: Path) -> None:
    result = found(workers=2)
    words = f"python train.py --output_dir '{tmp_path}/a b' --per_device_train_batch_size=8 --learning_rate 3e-4"
    applied = in_command(result, shlex.split(f"{words} --gradient_accumulation_steps 6 --use_cpu"))
    assert applied.command.startswith(f"{words}".replace("=8", "=16"))
    arguments = parsed(applied.command)
    for name, value in installed(result.best_setup.training_arguments).items():
        assert getattr(arguments, name) == value or not (value or getattr(arguments, name)), name
    assert arguments.output_dir == f"{tmp_path}/a b"
    assert arguments.learning_rate == 3e-4
    assert not applied.files


@pytest.mark.parametrize(
    "words", [["bash", "-c", "python train.py --bf16 False"], ["sh", "train.sh"], ["make", "train"]]
)
def test_a_shell_s_command_stays_and_the_flags_are_to_be_added_by_hand(words: list[str]) -> None:
    applied = in_command(found(), words)
    assert applied.command == shlex.join(words)
    assert applied.by_hand[0].startswith("add to the Python command that it starts: --")
    assert "--per_device_train_batch_size 16" in applied.by_hand[0]
    assert not applied.values
    assert in_command(found(), ["sh", "train.sh", "--bf16"]).command.startswith("sh train.sh --bf16 --gradient")


def test_a_script_that_reads_no_flags_is_changed_by_hand_but_for_those_that_it_is_given() -> None:
    applied = in_command(found(), ["python", "train.py", "--bf16", "False"], reads_flags=False)
    assert applied.command == "python train.py --bf16 True"
    assert {"per_device_train_batch_size = 16", "gradient_accumulation_steps = 3"} <= {*applied.by_hand}


@BY_ITS_OLDER_NAME
def test_checkpointing_under_its_older_name_is_switched_off_under_that_name(tmp_path: Path) -> None:
    words = f"python train.py --output_dir {shlex.quote(str(tmp_path))} --use_cpu --gradient_checkpointing"
    applied = in_command(found(), shlex.split(words))
    assert "--gradient_checkpointing False" in applied.command
    assert "activation_checkpointing" not in applied.command
    assert not parsed(applied.command).gradient_checkpointing


def test_a_value_that_goes_back_to_the_default_leaves_the_command() -> None:
    result = found({"checkpointing": "none", "workers": 2, "prefetch_factor": 4}, workers=0)
    assert result.best_setup.training_arguments.get("dataloader_prefetch_factor") is None
    words = "python train.py --dataloader_prefetch_factor 4 --dataloader_num_workers=2"
    assert "prefetch" not in in_command(result, words.split()).command


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_a_config_file_of_a_script_is_copied_and_named_in_the_command(tmp_path: Path, suffix: str) -> None:
    fields = {"output_dir": str(tmp_path), "use_cpu": True, "per_device_train_batch_size": 8, "learning_rate": 3e-4}
    fields[CHECKPOINTING] = True
    path = tmp_path / f"c.{suffix}"
    path.write_text(json.dumps(fields) if suffix == "json" else yaml.safe_dump(fields))
    applied = in_command(found(), ["python", "train.py", f"c.{suffix}"], tmp_path)
    applied.write()
    assert applied.command == f"python train.py c.tuned.{suffix}"
    parser, copy = HfArgumentParser(TrainingArguments), str(tmp_path / f"c.tuned.{suffix}")
    (arguments,) = parser.parse_json_file(copy) if suffix == "json" else parser.parse_yaml_file(copy)
    assert (arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps) == (16, 3)
    assert (arguments.bf16, getattr(arguments, CHECKPOINTING), arguments.learning_rate) == (True, False, 3e-4)
    assert path.read_text() == (json.dumps(fields) if suffix == "json" else yaml.safe_dump(fields))


@BY_ITS_OLDER_NAME
def test_trl_s_own_parser_reads_the_answer(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    (tmp_path / "sft.yaml").write_text(TRL_FILE + f"output_dir: {tmp_path}\nuse_cpu: true\n")
    command = "trl sft --config sft.yaml --gradient_accumulation_steps=6"
    applied = in_command(found(), command.split(), tmp_path)
    applied.write()
    assert applied.command == "trl sft --config sft.tuned.yaml --gradient_accumulation_steps=3"
    text = (tmp_path / "sft.tuned.yaml").read_text()
    assert "# the team's recipe\nmodel_name_or_path: gpt2  # small\n" in text
    assert "per_device_train_batch_size: 16   # fits\n" in text
    parser = trl.TrlParser((trl.ScriptArguments, trl.SFTConfig, trl.ModelConfig))
    words = ["--config", str(tmp_path / "sft.tuned.yaml"), *shlex.split(applied.command)[4:]]
    arguments = parser.parse_args_and_config(words)[1]
    assert (arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps) == (16, 3)
    assert (arguments.bf16, arguments.gradient_checkpointing, arguments.max_length) == (True, False, 512)


def with_attention(result: TuningResult, attention: str) -> TuningResult:
    return makers.with_setup(result, model_arguments={"dtype": "float32", "attn_implementation": attention})


def test_an_axolotl_file_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "c.yml").write_text(AXOLOTL_FILE)
    applied = in_command(with_attention(found(optimizer="sgd"), "sdpa"), ["axolotl", "train", "c.yml"], tmp_path)
    assert applied.command == "axolotl train c.tuned.yml"
    (text,) = applied.files.values()
    read, before = yaml.safe_load(text), yaml.safe_load(AXOLOTL_FILE)
    assert {key for key in before | read if before.get(key) != read.get(key)} == {
        *("micro_batch_size", "gradient_accumulation_steps", "optimizer", "bf16"),
        *("gradient_checkpointing", "flash_attention", "attn_implementation"),
    }
    assert (read["micro_batch_size"], read["optimizer"], read["attn_implementation"]) == (16, "sgd", "sdpa")
    assert "flash_attention" not in read
    assert set(read) - set(before) <= AXOLOTL
    assert "  - path: tatsu-lab/alpaca   # instructions\n" in text


def test_without_the_kernels_of_liger_an_axolotl_file_keeps_its_other_plugins(tmp_path: Path) -> None:
    liger, other = "axolotl.integrations.liger.LigerPlugin", "axolotl.integrations.spectrum.SpectrumPlugin"
    result = found({"liger": "kernels_and_loss"}, liger="none")
    for plugins, left in (([liger, other], [other]), ([liger], None)):
        written = f"{AXOLOTL_FILE}plugins: {json.dumps(plugins)}\nliger_rope: true\n"
        (tmp_path / "c.yml").write_text(written)
        in_file(result, tmp_path / "c.yml").write()
        tuned = yaml.safe_load((tmp_path / "c.tuned.yml").read_text())
        assert tuned.get("plugins") == left
        assert "liger_rope" not in tuned


def test_a_llama_factory_file_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(LLAMA_FACTORY_FILE)
    words = ["llamafactory-cli", "train", "c.yaml", "gradient_accumulation_steps=6"]
    applied = in_command(with_attention(found(), "sdpa"), words, tmp_path)
    assert applied.command == "llamafactory-cli train c.tuned.yaml gradient_accumulation_steps=3"
    (text,) = applied.files.values()
    read = yaml.safe_load(text)
    assert (read["per_device_train_batch_size"], read["flash_attn"]) == (16, "sdpa")
    assert read["disable_gradient_checkpointing"] is True
    assert read["finetuning_type"] == "lora", "the adapter is the user's own"
    assert set(read) <= LLAMA_FACTORY | set(yaml.safe_load(LLAMA_FACTORY_FILE))
    assert text.startswith("### model\n")


def test_ranks_and_the_launcher_s_precision_are_set_by_hand_and_variables_in_front() -> None:
    result = makers.with_setup(found(), processes=4, process_environment={"OMP_NUM_THREADS": "2", "A": "x y"})
    words = "env OMP_NUM_THREADS=8 accelerate launch --mixed_precision fp16 --num_processes 2 train.py"
    applied = in_command(result, words.split())
    assert applied.by_hand == ("--mixed_precision bf16", "start 4 processes, one a device")
    assert applied.command.startswith("env OMP_NUM_THREADS=2 A='x y' accelerate launch --mixed_precision fp16 ")
    command = in_command(result, ["env", "-u", "B", "torchrun", "--nproc-per-node", "2", "train.py"]).command
    assert command.startswith("OMP_NUM_THREADS=2 A='x y' env -u B torchrun --nproc-per-node 2 train.py ")


def test_files_of_accelerate_and_deepspeed_are_changed_by_hand(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 8}')
    (tmp_path / "acc.yaml").write_text("compute_environment: LOCAL_MACHINE\nmixed_precision: 'no'\n")
    for name in ("ds.json", "acc.yaml"):
        applied = in_file(found(), tmp_path / name)
        assert not applied.files
        assert "per_device_train_batch_size: 8 -> 16" in applied.by_hand
    words = "accelerate launch --config_file acc.yaml train.py --deepspeed ds.json"
    applied = in_command(found(), words.split(), tmp_path)
    assert applied.by_hand[-2:] == (
        "acc.yaml: num_processes: 1, mixed_precision: bf16",
        "ds.json: train_micro_batch_size_per_gpu: 16, gradient_accumulation_steps: 3, unless they are auto",
    )


def test_what_has_no_key_is_listed(tmp_path: Path) -> None:
    result = makers.with_setup(
        found(),
        switches={"enable_flash_sdp": False},
        model_arguments={"dtype": "float32", "attn_implementation": "eager"},
    )
    applied = in_command(result, ["python", "train.py"])
    assert applied.by_hand == ('attn_implementation = "eager"', "torch.backends.cuda.enable_flash_sdp(False)")
    assert "By hand, as no key or flag says it:" in applied.lines


def test_a_python_file_gets_lines_to_paste(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    applied = in_file(found(), tmp_path / "train.py")
    assert "per_device_train_batch_size=16," in applied.python
    assert not applied.files


def test_nothing_changes_where_the_user_s_settings_are_kept(tmp_path: Path) -> None:
    kept = makers.result([trial(0, 10.0, confirmed=10.0)])
    applied = in_command(kept, ["python", "a b.py"])
    assert (applied.command, applied.is_kept) == ("python 'a b.py'", True)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "mine.yaml").write_text(TRL_FILE)
    for name in ("train.py", "mine.yaml"):
        assert in_file(kept, tmp_path / name).lines == ["Your settings stay as they are: nothing to change."]


@pytest.mark.parametrize("name", ["none.yaml", "none.py", "broken.yaml", "fifo.yaml", "fifo.py", "folder.yaml"])
def test_a_file_that_cannot_be_read_is_refused_whatever_the_answer_is(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    os.mkfifo(tmp_path / "fifo.py")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "broken.yaml").write_text("a: [1")
    for answer in (makers.result([trial(0, 10.0, confirmed=10.0)]), found()):
        assert name in refusal_of(lambda answer=answer: in_file(answer, tmp_path / name))  # type: ignore[misc]


def test_without_an_answer_the_settings_do_not_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(TRL_FILE)
    of = makers.configuration()
    for trials, kind in (([], SearchFailed), ([Trial(0, of, makers.out_of_memory(of))], NothingFits)):
        unanswered = dataclasses.replace(found(), trials=trials)
        for apply in (lambda r: in_file(r, tmp_path / "mine.yaml"), lambda r: in_command(r, ["python", "train.py"])):
            with pytest.raises(kind):
                apply(unanswered)


def test_what_the_file_has_at_another_value_than_both_sides_follows_the_answer_and_all_else_stays(
    tmp_path: Path,
) -> None:
    """A file that is not the one that was searched for."""
    text = "per_device_train_batch_size: 2\noptim: adafactor\nlearning_rate: 7.0e-5\nfp16: true\nauto_find_batch_size: true\n"
    (tmp_path / "c.yaml").write_text(text)
    (new,) = in_file(found(), tmp_path / "c.yaml").files.values()
    read = yaml.safe_load(new)
    assert (read["per_device_train_batch_size"], read["optim"]) == (16, "adamw_torch_fused")
    assert (read["learning_rate"], read["fp16"], read["bf16"]) == (7e-5, False, True)
    assert "auto_find_batch_size" not in read


@pytest.mark.parametrize("text", ["[1, 2]", '{"image": 1}', '{"train_batch_size": 8}', "{"])
def test_a_script_s_own_file_of_another_kind_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "data.json").write_text(text)
    applied = in_command(found(), ["python", "train.py", "data.json"], tmp_path)
    assert applied.command.startswith("python train.py data.json --")
    assert not applied.files


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("image: nginx\nreplicas: 3\n")
    assert "no key of" in refusal_of(lambda: in_file(found(), tmp_path / "c.yaml"))

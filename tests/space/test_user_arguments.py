"""The user's own arguments as fields: what differs from `TrainingArguments` as it is declared, of any class."""

from pathlib import Path

import pytest
from transformers import TrainingArguments

from autotune.core.note import Note, NoteKind
from autotune.space.user_arguments import fields_of, left_out, read_user_arguments


def test_arguments_are_told_as_fields_that_differ_without_folders_and_secrets(tmp_path: Path) -> None:
    told = {"learning_rate": 3e-4, "hub_token": "secret", "lr_scheduler_type": "cosine", "report_to": "none"}
    fields, left = fields_of(TrainingArguments(str(tmp_path), gradient_accumulation_steps=2, use_cpu=True, **told))
    assert fields["learning_rate"] == 3e-4
    assert fields["lr_scheduler_type"] == "cosine"
    assert fields["gradient_accumulation_steps"] == 2
    assert not {"hub_token", "output_dir", "use_cpu"} & fields.keys()
    assert (left, left_out(left)) == ([], [])


def test_what_the_arguments_filled_in_themselves_is_not_told(tmp_path: Path) -> None:
    meant = {
        "activation_checkpointing",
        "gradient_checkpointing",
        "dataloader_pin_memory",
    }  # other defaults of subclasses; of use_cpu
    fields, _ = fields_of(TrainingArguments(str(tmp_path), use_cpu=True, learning_rate=1e-3))
    assert fields.keys() - meant == {"learning_rate"}
    config = {"split_batches": True}
    fields, _ = fields_of(
        TrainingArguments(str(tmp_path), use_cpu=True, accelerator_config=config, debug="underflow_overflow")
    )
    assert fields["accelerator_config"]["split_batches"] is True
    assert fields["debug"] == ["underflow_overflow"]


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_what_a_class_of_its_own_has_by_default_is_told_and_what_only_it_has_is_not(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    args = trl.SFTConfig(output_dir=str(tmp_path), use_cpu=True, max_length=32, bf16=True)
    fields, _ = fields_of(args)
    assert fields["learning_rate"] == 2e-5  # SFTConfig's own default
    assert fields["bf16"] is True  # likewise
    assert "max_length" not in fields
    assert "bf16" not in fields_of(trl.SFTConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False))[0]


def test_what_is_no_plain_data_is_named(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), use_cpu=True, lr_scheduler_kwargs={"rule": print}, report_to="none")
    fields, left = fields_of(args)
    assert "lr_scheduler_kwargs" not in fields
    assert left_out(left) == [Note(NoteKind.NOT_PLAIN, detail="lr_scheduler_kwargs")]


def test_the_object_its_fields_and_a_file_say_the_same(tmp_path: Path) -> None:
    given = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, weight_decay=0.1, learning_rate=3e-4)
    file = tmp_path / "mine.yaml"
    file.write_text("weight_decay: 0.1\nlearning_rate: 3e-4\n")
    fields = {"weight_decay": 0.1, "learning_rate": 3e-4}
    for value in (given, fields, file, str(file)):
        of = read_user_arguments(value)
        assert of.fields.items() >= fields.items()
        assert of.source == (str(file) if value in (file, str(file)) else "Your training arguments")
    assert read_user_arguments(args=None).fields == {}


def test_what_belongs_to_the_user_s_run_stays_beside_the_fields(tmp_path: Path) -> None:
    path = tmp_path / "arguments.yaml"
    path.write_text("{learning_rate: 1.0e-3, output_dir: here, run_name: mine, use_cpu: true, hub_token: hf_secret}")
    of = read_user_arguments(args=path)
    assert of.fields == {"learning_rate": 1e-3}
    assert of.user == {"output_dir": "here", "run_name": "mine", "hub_token": "hf_secret"}
    assert "hf_secret" not in repr(of)
    given = TrainingArguments(str(tmp_path), use_cpu=True, run_name="before")
    of = read_user_arguments(args=given)
    given.run_name = "after"
    assert of.user.run_name == "before"
    assert read_user_arguments(args=None).user == {}

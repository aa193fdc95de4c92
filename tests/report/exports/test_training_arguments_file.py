"""best_training_arguments.json and .yaml hold one answer, and transformers' and TRL's parsers read it from either."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import HfArgumentParser, TrainingArguments
from trl import TrlParser

from autotune.commands.result import TuningResult
from autotune.core.request import tuning_request
from autotune.report.exports import exports
from autotune.report.exports.commented_yaml import commented_yaml
from autotune.space.file import read_yaml
from tests.makers import FIELDS, cpu, result
from tests.report.exports.answers import EVERY
from tests.trainers import installed

pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing:FutureWarning")

ROOT = Path(__file__).parents[3]
JSON, YAML = "best_training_arguments.json", "best_training_arguments.yaml"
ASKED: dict[str, Any] = {
    "learning_rate": 5e-05,
    "weight_decay": 0.1 + 0.2,
    "adam_epsilon": 1e-08,
    "lr_scheduler_type": "cosine_with_min_lr",
    "lr_scheduler_kwargs": {"min_lr": 1e-06},
    "eval_strategy": "no",
    "optim_args": "1e-3",
    "label_names": ["yes", "off", "0x1F", "é: #"],
    "max_steps": 7,
}
"""What a user had set: values that a careless file turns into others."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a search that began with these arguments."""
    facts = {"environment": cpu(training_argument_fields=(*installed(dict.fromkeys(FIELDS)), *ASKED))}
    return result(request=tuning_request("gpt2-mini", 48, args=ASKED), **facts).save(tmp_path_factory.mktemp("study"))


def test_every_field_that_a_parser_reads_is_ours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)  # an output folder of their own
    ours = TuningResult.load(folder).setup.training_arguments
    assert {name: ours[name] for name in ASKED} == ASKED
    assert ours["per_device_train_batch_size"] * ours["gradient_accumulation_steps"] == 48
    parser = HfArgumentParser((TrainingArguments,))
    for read in (
        parser.parse_json_file(str(folder / JSON)),
        parser.parse_yaml_file(str(folder / YAML)),
        TrlParser((TrainingArguments,)).parse_args_and_config(["--config", str(folder / YAML)]),
    ):
        assert {name: getattr(read[0], name) for name in ours} == ours


def test_both_files_hold_what_was_found(folder: Path) -> None:
    ours = TuningResult.load(folder).setup.training_arguments
    text = (folder / YAML).read_text()
    assert json.loads((folder / JSON).read_text()) == ours
    assert (yaml.safe_load(text), read_yaml(text)) == (ours, ours)
    for line in (
        "learning_rate: 5.0e-05",
        "eval_strategy: 'no'",
        "optim_args: '1e-3'",
        "tf32: null",
    ):
        assert f"\n{line}\n" in text


def test_both_versions_of_yaml_read_every_file_alike() -> None:
    for of in EVERY.values():
        files = exports(of)
        for name, text in files.items():
            if name.endswith(".yaml"):
                assert yaml.safe_load(text) == read_yaml(text), name
        assert yaml.safe_load(files[YAML]) == of.setup.training_arguments


def test_any_value_is_read_as_it_was_by_both_versions_of_yaml() -> None:
    words = (
        "no off on Yes NO y n true null ~ - = << ' \" é 5e-05 1e5 +1. .5 012 0o17 0x1F 1_000 1:30 2001-01-01 .inf .NaN"
    )
    values: list[Any] = [*words.split(), "", " ", "# x", "a: b", "a\nb", 5e-05, 1e22, 5e-324, -0.0, 0.1 + 0.2, 2**60]
    for value in (*values, True, False, None, [], {}, [["no"], {"no": "no", "1": 1.0}]):
        text = commented_yaml(["a comment"], {"value": value})
        for read in (yaml.safe_load(text), read_yaml(text)):
            assert repr(read) == repr({"value": value})

"""What is asked for, and every refusal that needs neither model, data nor device."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from autotune.core.errors import InvalidRequest
from autotune.core.request import TuningRequest, tuning_request


def request(global_batch_size: Any = 48, **options: Any) -> TuningRequest:
    return tuning_request(options.pop("model", "gpt2-mini"), global_batch_size, **options)


def refusal(*args: Any, **options: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        request(*args, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.advice or re.search(";|must be", caught.value.message), "a refusal says what to do"
    assert caught.value.exit_code == 2
    return message


def test_people_s_spellings_become_plain_values() -> None:
    parsed = request(
        memory_limit="600MiB",
        headroom="10%",
        timeout="10m",
        probe_timeout=90,
        fix=["precision=bf16", "pin-memory = true"],
        only="optimizer=adamw_torch, sgd",
        n_trials=5,
    )
    assert parsed.memory_limit_bytes == 600 * 2**20
    assert parsed.headroom == pytest.approx(0.1)
    assert (parsed.timeout_s, parsed.probe_timeout_s) == (600, 90)
    assert parsed.fix == {"precision": "bf16", "pin_memory": "true"}
    assert parsed.only == {"optimizer": ("adamw_torch", "sgd")}
    assert parsed.n_trials == 5


def test_mappings_and_lists_are_taken_as_the_command_line_s_words_are() -> None:
    parsed = request(fix={"workers": 2}, only={"precision": ["fp32", "bf16"], "optimizer": "sgd"})
    assert parsed.fix == {"workers": 2}
    assert parsed.only == {"precision": ("fp32", "bf16"), "optimizer": ("sgd",)}


@pytest.mark.parametrize("size", [0, -1, -48, "48", "many", 48.0, True, None, 2**20 + 1, 10**30])
def test_a_global_batch_size_is_a_whole_number_of_a_size_that_can_be_meant(size: Any) -> None:
    assert "global batch size" in refusal(size)


@pytest.mark.parametrize("model", ["", "  ", None, 7, "a\0b"])
def test_a_model_must_be_named(model: Any) -> None:
    assert "model" in refusal(model=model)


@pytest.mark.parametrize(
    "name",
    ["a/b", "..", "", "/abs", "a\\b", "x" * 121, "ü" * 61, ".hidden", "two\nlines", "a\0b", "\udc80"],
)
def test_a_study_s_name_cannot_leave_its_folder(name: str) -> None:
    assert "name" in refusal(study_name=name)


@pytest.mark.parametrize(
    "option", ["output_dir", "dataset", "dataset_split", "text_column", "label_column", "tokenizer"]
)
@pytest.mark.parametrize("name", ["", "  ", "a\0b"])
def test_a_name_that_is_empty_is_refused_by_its_option(option: str, name: str) -> None:
    assert f"{option}=" in refusal(**{option: name})


@pytest.mark.parametrize(
    ("option", "word", "meant"),
    [("task", "causal_lm", "causal-lm"), ("task", 5, "causal-lm"), ("sampler", "tpa", "tpe")],
)
def test_an_unknown_word_is_refused_with_the_nearest_right_one(option: str, word: Any, meant: str) -> None:
    message = refusal(**{option: word})
    assert option in message
    assert meant in message


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:-1", "tpu", "", "cpu:0", "CUDA", None, 0])
def test_an_unknown_device_is_refused(device: Any) -> None:
    assert "device" in refusal(device=device)


@pytest.mark.parametrize("option", ["n_trials", "sequence_length"])
@pytest.mark.parametrize("number", [0, -1, "20", 2.5])
def test_counts_are_whole_numbers_from_one(option: str, number: Any) -> None:
    assert option.replace("_", " ") in refusal(**{option: number}).replace("-", " ")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("headroom", "100%"),
        ("headroom", None),
        ("memory_limit", "lots"),
        ("timeout", "0"),
        ("probe_timeout", "soon"),
        ("margin", -1),
    ],
)
def test_a_value_that_cannot_be_read_is_refused_by_its_option(option: str, value: Any) -> None:
    assert option.replace("_", " ") in refusal(**{option: value})


@pytest.mark.parametrize("seed", [-1, 2**32, "0", None, 1.5])
def test_a_seed_is_one_that_the_samplers_take(seed: Any) -> None:
    assert "seed" in refusal(seed=seed)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (None, ()),
        ("none", ()),
        ("wandb", ("wandb",)),
        ("wandb, mlflow,wandb", ("wandb", "mlflow")),
        (["tensorboard", "trackio,mlflow"], ("tensorboard", "trackio", "mlflow")),
    ],
)
def test_loggers_are_named_once_each_in_any_spelling(given: Any, meant: tuple[str, ...]) -> None:
    parsed = request(report_to=given)
    assert parsed.report_to == meant
    assert TuningRequest.from_dict(json.loads(json.dumps(parsed.to_dict()))) == parsed


def test_an_unknown_logger_is_refused_and_none_stands_alone() -> None:
    assert "Did you mean 'mlflow'?" in refusal(report_to="mlfow")
    assert "says none and wandb" in refusal(report_to=["none", "wandb"])


def test_the_user_s_own_training_arguments_choose_no_logger() -> None:
    assert request(training_args={"report_to": "wandb"}).report_to == ()


def test_fix_and_only_cannot_speak_of_one_setting() -> None:
    assert "precision" in refusal(fix=["precision=bf16"], only=["precision=bf16,fp32"])


@pytest.mark.parametrize("option", ["fix", "only"])
def test_a_setting_is_given_once(option: str) -> None:
    assert "twice" in refusal(**{option: ["precision=bf16", "precision=fp32"]})
    assert request(**{option: ["precision=bf16", "precision=bf16"]})


@pytest.mark.parametrize("option", ["fix", "only"])
@pytest.mark.parametrize("text", ["precision", "=bf16", "precision=", "precision= ", ""])
def test_an_assignment_has_a_name_and_a_value(option: str, text: str) -> None:
    assert f"{option}=" in refusal(**{option: [text]})


@pytest.mark.parametrize("given", [["precision=,"], {"precision": []}, {"precision": " , "}])
def test_a_choice_has_at_least_one_value(given: Any) -> None:
    assert "precision" in refusal(only=given)


@pytest.mark.parametrize("column", ["text_column", "label_column", "tokenizer", "dataset_split"])
def test_a_column_needs_a_dataset(column: str) -> None:
    assert "dataset=" in refusal(**{column: "review"})
    assert request(**{column: "review"}, dataset="reviews.csv")


@pytest.mark.parametrize(("option", "meant"), [("n_trails", "n_trials"), ("memory_limits", "memory_limit")])
def test_an_unknown_option_is_refused_with_the_nearest_one(option: str, meant: str) -> None:
    assert f"'{meant}'" in refusal(**{option: 5})


@pytest.mark.parametrize("option", ["memory_limit_bytes", "timeout_s", "probe_timeout_s"])
def test_an_option_is_known_by_its_public_name_only(option: str) -> None:
    assert option.removesuffix("_bytes").removesuffix("_s") in refusal(**{option: 600})


def test_paths_are_taken_where_names_are(tmp_path: Path) -> None:
    parsed = request(
        model=tmp_path, output_dir=tmp_path, dataset=tmp_path / "a.txt", tokenizer=tmp_path, space=tmp_path
    )
    assert parsed.output_dir == parsed.model == parsed.tokenizer == parsed.space == str(tmp_path)
    assert TuningRequest.from_dict(json.loads(json.dumps(parsed.to_dict()))) == parsed


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gpt2-mini", "gpt2-mini-causal-lm-gb48-cuda0"),
        ("org/Model-7B", "org-Model-7B-causal-lm-gb48-cuda0"),
        ("../../up", "up-causal-lm-gb48-cuda0"),
        ("äöü", "model-causal-lm-gb48-cuda0"),
    ],
)
def test_a_study_without_a_name_is_called_after_what_it_asks(model: str, name: str) -> None:
    assert request(model=model).name_of_study("causal-lm", "cuda:0") == name


def test_local_models_are_called_by_their_last_name(tmp_path: Path) -> None:
    (tmp_path / "llama-3.1").mkdir()
    (tmp_path / "small.json").write_text("{}")
    names = [request(model=str(tmp_path / item)).name_of_study("t", "cpu") for item in ("llama-3.1", "small.json")]
    assert names == ["llama-3.1-t-gb48-cpu", "small-t-gb48-cpu"]

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


def refusal(**options: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        request(**options)
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


def test_a_set_of_values_is_the_same_request_in_every_process() -> None:
    """Python orders a set of texts by hashes that differ from process to process."""
    words = [f"word{number}" for number in range(9)]
    for several in (set(words), frozenset(words)):
        assert request(only={"optimizer": several}).only == {"optimizer": tuple(words)}


REFUSED: dict[str, list[tuple[str, Any]]] = {
    "global_batch_size": [("global_batch_size", size) for size in (0, -48, "48", 48.0, True, None, 2**20 + 1, 10**30)],
    "model": [("model", name) for name in ("", "  ", None, 7, "a\0b")],
    # A study's name cannot leave its folder.
    "name": [
        ("study_name", name)
        for name in ("a/b", "..", "", "/abs", "a\\b", "x" * 121, "ü" * 61, ".hidden", "two\nlines", "a\0b", "\udc80")
    ],
    "output_dir": [("output_dir", name) for name in ("", "  ", "a\0b")],
    "takes text, not NoneType": [(option, None) for option in ("output_dir", "space", "dataset_split")],
    "takes text, not list": [(option, ["a"]) for option in ("dataset", "tokenizer", "text_column", "study_name")],
    "dataset": [
        ("dataset", ""),
        *((option, "review") for option in ("text_column", "label_column", "tokenizer", "dataset_split")),
    ],
    "tokenizer": [("tokenizer", "")],
    "task": [("task", 5)],
    "causal-lm": [("task", "causal_lm")],
    "tpe": [("sampler", "tpa")],
    "device": [("device", name) for name in ("gpu", "cuda:", "cuda:x", "cuda:-1", "", "cpu:0", "CUDA", None, 0)],
    "n_trials": [("n_trials", number) for number in (0, "20", 2.5)],
    "sequence_length": [("sequence_length", -1)],
    "headroom": [("headroom", "100%"), ("headroom", None)],
    "memory_limit": [("memory_limit", "lots")],
    "timeout": [("timeout", "0"), ("timeout_s", 600)],
    "probe_timeout": [("probe_timeout", "soon")],
    "margin": [("margin", -1)],
    "seed": [("seed", seed) for seed in (-1, 2**32, "0", None, 1.5)],
    "'mlflow'": [("report_to", "mlfow")],
    "says none and wandb": [("report_to", ["none", "wandb"])],
    "twice": [(option, ["precision=bf16", "precision=fp32"]) for option in ("fix", "only")],
    "fix": [("fix", [text]) for text in ("precision", "=bf16", "precision= ", "")],
    "only": [("only", ["precision"])],
    "precision": [("only", ["precision=,"]), ("only", {"precision": []}), ("only", {"precision": " , "})],
    "'n_trials'": [("n_trails", 5)],
    "'memory_limit'": [("memory_limits", 5), ("memory_limit_bytes", 600)],
}
"""What the refusal says -> option and value."""


@pytest.mark.parametrize(("text", "option", "value"), [(text, *row) for text, rows in REFUSED.items() for row in rows])
def test_what_cannot_be_meant_is_refused_by_its_option(text: str, option: str, value: Any) -> None:
    assert text in refusal(**{option: value})


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


def test_the_user_s_own_training_arguments_choose_no_logger() -> None:
    assert request(args={"report_to": "wandb"}).report_to == ()


def test_fix_and_only_cannot_speak_of_one_setting() -> None:
    assert "precision" in refusal(fix=["precision=bf16"], only=["precision=bf16,fp32"])


@pytest.mark.parametrize("option", ["fix", "only"])
def test_a_setting_may_be_repeated_with_the_same_value(option: str) -> None:
    assert request(**{option: ["precision=bf16", "precision=bf16"]})


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

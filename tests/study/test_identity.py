"""What makes a study itself: of a caller's own model also what no config says."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.core import write_json
from autotune.core.errors import StudyMismatch
from autotune.core.request import tuning_request
from autotune.study.identity import study_identity
from autotune.study.store import REQUEST, check_identity
from tests import makers


def identity_of(**facts: Any) -> Any:
    return study_identity(tuning_request("gpt2-mini", 8), makers.cpu(), makers.workload(**facts), makers.space())


@pytest.mark.parametrize(
    ("facts", "place"),
    [
        ({"gradient_bytes": 100}, "gradient_bytes"),
        ({"attention": "sdpa"}, "attention"),
        ({"own_layers": "0123"}, "layers"),
    ],
)
def test_a_model_of_one_s_own_is_another_where_its_config_is_the_same(facts: dict[str, Any], place: str) -> None:
    plain, other = identity_of(user_objects=True), identity_of(user_objects=True, **facts)
    assert plain["own_model"][place] != other["own_model"][place]
    assert plain["model_config"] == other["model_config"]


def test_a_named_model_is_known_by_its_config() -> None:
    assert "own_model" not in identity_of()
    assert identity_of() == identity_of(gradient_bytes=100, attention="sdpa")


@pytest.mark.parametrize("option", ["text_column", "label_column", "tokenizer"])
def test_other_samples_of_the_same_data_are_another_question(tmp_path: Path, option: str) -> None:
    asked = [
        tuning_request("gpt2-mini", 8, dataset="reviews.csv", **given)
        for given in ({}, {option: "short"}, {option: "long"})
    ]
    facts = makers.cpu(), makers.workload(data_identity="reviews.csv"), makers.space()
    plain, short, long = (study_identity(request, *facts) for request in asked)
    write_json(tmp_path / REQUEST, {"identity": short})
    check_identity(tmp_path, short)
    for other, value in ((plain, None), (long, "long")):
        with pytest.raises(StudyMismatch) as caught:
            check_identity(tmp_path, other)
        assert caught.value.message.endswith(f": --{option.replace('_', '-')} was short, is now {value}.")


def test_a_tokenizer_s_folder_is_not_shown() -> None:
    request = tuning_request("gpt2-mini", 8, dataset="reviews.csv", tokenizer="/home/ann/mine")
    identity = study_identity(request, makers.cpu(), makers.workload(), makers.space())
    assert identity["tokenizer"] == "…/mine"


def test_where_a_config_came_from_is_not_the_model() -> None:
    config = {"model_type": "gpt2", "n_layer": 2}
    moved = {**config, "_name_or_path": "elsewhere", "transformers_version": "6.0"}
    assert identity_of(model_config=config) == identity_of(model_config=moved)


def test_a_file_that_the_arguments_name_counts_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "accelerator.json"
    request = tuning_request("gpt2-mini", 8, args={"accelerator_config": str(file), "deepspeed": "{" + "x" * 300})
    known = []
    for text in ("{}", '{"non_blocking": true}', "{}"):
        file.write_text(text)
        known.append(study_identity(request, makers.cpu(), makers.workload(), makers.space()))
    assert known[0] == known[2] != known[1]
    assert str(tmp_path) not in str(known[0]["argument_files"])
    assert "argument_files" not in identity_of()


def test_it_is_as_it_will_be_read_from_its_file() -> None:
    known = identity_of(user_objects=True, own_parts="parts")
    assert json.loads(json.dumps(known)) == known

"""Local configs, looked at without transformers."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.core.errors import InvalidRequest
from autotune.workload.model.files import check_config, check_model, config_file

LLAMA = {"model_type": "llama", "vocab_size": 64, "hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2}


# Others: tests/bad_inputs.py.
@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"n_layer": True}, "n_layer: True"),
        ({"n_layer": -1}, "n_layer: -1"),
        ({"model_type": 5}, "model_type"),
        ({"text_config": {"hidden_size": 0}}, r"text_config\.hidden_size: 0"),
    ],
)
def test_fields_that_cannot_be_are_named(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequest, match=name):
        check_config("small", LLAMA | fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"head_dim": None, "image_size": [224, 224]},
        {"type_vocab_size": 0, "pad_token_id": -1, "sliding_window": 0, "num_experts": 0, "max_relative_positions": -1},
        {"num_attention_heads": 4, "num_key_value_heads": 1},
        {"pad_token_id": 63, "eos_token_id": 9999},
    ],
)
def test_what_only_looks_wrong_is_a_config(fields: dict[str, Any]) -> None:
    check_config("small", LLAMA | fields)


def test_a_local_model_is_its_folder_or_its_config_and_another_name_is_the_hub_s(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert config_file(str(tmp_path)) == config_file(str(tmp_path / "config.json")) == tmp_path / "config.json"
    assert config_file("nobody/nothing") is None
    check_model(str(tmp_path))
    check_model("gpt2-mini")
    for name in ("x" * 5000, str(tmp_path / "none"), "./none", "none.json"):
        with pytest.raises(InvalidRequest):
            check_model(name)

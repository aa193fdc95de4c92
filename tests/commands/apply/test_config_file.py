"""A config file is edited key by key: order, comments, quotes and all other values stay."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.commands.apply.config_file import patched, read_config
from autotune.core import InvalidRequest
from tests.makers import refusal_of

TEXT = """\
# of the team
model_name_or_path: "gpt2"   # a small one
per_device_train_batch_size: 8  # as it fits
optim:
gradient_checkpointing_kwargs:
  use_reentrant: true
  # deep inside

# schedule
learning_rate: 2e-4
bf16: 'false'
report_to: [none]
"""


def written(folder: Path, text: str, name: str = "config.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_only_the_values_change(tmp_path: Path) -> None:
    values = {"per_device_train_batch_size": 16, "optim": "sgd", "bf16": True, "tf32": False}
    new = patched(written(tmp_path, TEXT), values)
    changed = (
        TEXT.replace("size: 8 ", "size: 16 ").replace("optim:\n", "optim: sgd\n").replace("'false'", "true")
        + "# added by autotune\ntf32: false\n"
    )
    assert new == changed


def test_a_nested_value_is_replaced_and_the_comment_after_it_stays(tmp_path: Path) -> None:
    new = patched(written(tmp_path, TEXT), {"gradient_checkpointing_kwargs": {"use_reentrant": False}})
    assert "gradient_checkpointing_kwargs:\n  {use_reentrant: false}\n  # deep inside\n\n# schedule\n" in new


@pytest.mark.parametrize("key", ["per_device_train_batch_size", "optim", "gradient_checkpointing_kwargs", "report_to"])
def test_a_key_is_removed_with_its_line(tmp_path: Path, key: str) -> None:
    new = patched(written(tmp_path, TEXT), {}, [key])
    assert yaml.safe_load(new) == {name: value for name, value in yaml.safe_load(TEXT).items() if name != key}
    assert "# schedule" in new


@pytest.mark.parametrize("text", ["a: &x 1\nb: *x\n", "{a: 1}\n"])
def test_a_file_that_would_change_elsewhere_is_refused_with_what_to_set(tmp_path: Path, text: str) -> None:
    assert "a: 3, new: 4" in refusal_of(lambda: patched(written(tmp_path, text), {"a": 3, "new": 4}))


@pytest.mark.parametrize("indent", [2, 4, None])
def test_json_keeps_its_order_and_its_indent(tmp_path: Path, indent: int | None) -> None:
    import json

    before: dict[str, Any] = {"b": "ä", "a": {"c": [1, 2]}, "fp16": True}
    text = json.dumps(before, indent=indent, ensure_ascii=False) + "\n"
    new = patched(written(tmp_path, text, "c.json"), {"a": 2, "d": None}, ["fp16"])
    assert new == json.dumps({"b": "ä", "a": 2, "d": None}, indent=indent, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("text", ["- 1\n", "just words", "a: [", "", "1: 2\n"])
def test_what_holds_no_keys_is_refused(tmp_path: Path, text: str) -> None:
    refusal_of(lambda: read_config(written(tmp_path, text)))


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    refusal_of(lambda: read_config(tmp_path / "none.yaml"))
    (tmp_path / "image.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidRequest):
        read_config(tmp_path / "image.yaml")

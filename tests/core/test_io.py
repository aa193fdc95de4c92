"""JSON that anybody may have written."""

import pytest

from autotune.core.io import parse_json
from autotune.space.file import read_yaml


def test_json_is_read_and_what_is_none_is_a_value_error() -> None:
    assert parse_json('{"a": [1, null]}') == {"a": [1, None]}
    for text in ("", "{", "nope", "[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000):
        with pytest.raises(ValueError, match=r"\w"):
            parse_json(text)


def test_what_is_nested_too_deeply_is_said_to_be() -> None:
    import yaml

    with pytest.raises(ValueError, match="deeply"):
        parse_json("[" * 100_000 + "]" * 100_000)
    for text in ("[" * 100_000 + "]" * 100_000, "- " * 20_000 + "1", "{a: " * 20_000 + "1" + "}" * 20_000):
        with pytest.raises(yaml.YAMLError, match="deeply"):
            read_yaml(text)
    assert read_yaml("[" * 50 + "]" * 50)

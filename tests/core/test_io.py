"""JSON files that anybody may have written, and dataclasses as plain data."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from autotune.core import Configuration, Environment, Outcome, Serializable, Step, Workload
from autotune.core.io import Unreadable, file_end, parse_json, read_json, read_record, write_json, write_whole
from autotune.space.file import read_yaml
from tests.makers import completed, configuration, gpu, step, workload


@dataclass(frozen=True)
class Everything(Serializable):
    name: str
    outcome: Outcome | None = None
    steps: tuple[Step, ...] = ()
    by_number: Mapping[int, Step] = field(default_factory=dict)
    choices: Mapping[str, tuple[str | int | bool, ...]] = field(default_factory=dict)
    rates: tuple[float, ...] = ()
    configuration: Configuration | None = None


def test_a_dataclass_goes_through_json_and_back() -> None:
    whole = Everything(
        "a", Outcome.CRASHED, (step(1.0),), {7: step(2.0)}, {"workers": (0, "2", True)}, (1.5,), configuration(8)
    )
    for value in (whole, Everything("b")):
        assert Everything.from_dict(json.loads(json.dumps(value.to_dict()))) == value


def test_unknown_keys_are_ignored_and_numbers_read_from_text() -> None:
    read = Everything.from_dict({"name": "a", "colour": "green", "rates": ["inf", 2]})
    assert read == Everything("a", rates=(float("inf"), 2))


@pytest.mark.parametrize(
    "data",
    [
        *({}, [], [1, 2], None, {"name": "a", "outcome": "fine"}, {"name": "a", "steps": [3]}),
        *(
            {"name": 1},
            {"name": "a", "rates": [True]},
            {"name": "a", "steps": [step(1.0).to_dict() | {"samples": "8"}]},
        ),
    ],
)
def test_other_data_is_an_error_that_readers_expect(data: object) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Everything.from_dict(data)  # type: ignore[arg-type]


def test_missing_fields_have_their_defaults() -> None:
    for noun, required in ((completed(), {"outcome", "steps"}), (workload(), {"name", "task"})):
        data = {name: value for name, value in noun.to_dict().items() if name in required}
        assert type(noun).from_dict(data) == type(noun)(**{name: getattr(noun, name) for name in required})
    assert Environment.from_dict(json.loads(json.dumps(gpu().to_dict()))).compute_capability == (9, 0)
    assert Workload.from_dict({"name": "a", "task": "b", "longest": [1]}).longest == (1,)


def test_json_and_yaml_are_read_and_what_is_none_or_nested_too_deeply_is_an_error() -> None:
    assert parse_json('{"a": [1, null]}') == {"a": [1, None]}
    for text in ("", "{", "nope"):
        with pytest.raises(ValueError, match=r"\w"):
            parse_json(text)
    for text in ("[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000):
        with pytest.raises(ValueError, match="deeply"):
            parse_json(text)
    for text in ("[" * 100_000 + "]" * 100_000, "- " * 20_000 + "1", "{a: " * 20_000 + "1" + "}" * 20_000):
        with pytest.raises(ValueError, match="deeply"):
            read_yaml(text)
    assert read_yaml("[" * 50 + "]" * 50)


@pytest.mark.parametrize("read", [read_json, read_record, lambda path: file_end(path, 10)])
def test_what_is_no_regular_file_is_refused_at_once(read: Callable[[Path], object], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero")):
        with pytest.raises((OSError, Unreadable), match="not a regular file"):
            read(path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_record_holds_no_number_that_json_does_not_have(number: str, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(f'{{"headroom": {number}}}')
    with pytest.raises(Unreadable, match="incomplete"):
        read_record(tmp_path / "record.json")


def test_bytes_of_a_path_that_are_no_utf_8_are_written_as_escapes(tmp_path: Path) -> None:
    path = os.fsdecode(b"d\xff/x")
    write_whole(tmp_path / "text", path)
    assert (tmp_path / "text").read_bytes() == b"d\\udcff/x"
    write_json(tmp_path / "json", path)
    assert os.fsencode(read_json(tmp_path / "json")) == b"d\xff/x"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_nothing_is_left_half_written_on_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / f".order.json.{os.getpid()}").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_json(tmp_path / "order.json", {"kind": "probe"})
    assert list(tmp_path.iterdir()) == []

"""What refers to a Trainer, for another one: copied as far as it leads there, shared in all else."""

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest

from autotune.core.errors import InvalidRequest
from autotune.workload.rebinding import rebound


class Owner:
    """In the place of a Trainer."""

    def __init__(self, name: str) -> None:
        self.name = name

    def called(self) -> str:
        return self.name


OLD, NEW = Owner("old"), Owner("new")
GLOBAL: Any = OLD
STEP = 0


def over(value: Any, **refused: Any) -> Any:
    return rebound(value, [(OLD, NEW)], refused)


def reads_global() -> tuple[str, int]:
    return GLOBAL.called(), STEP


def calls_helper() -> tuple[str, int]:
    return reads_global()


def assigns_global() -> str:
    global STEP
    STEP += 1
    return str(GLOBAL.called())


def test_what_does_not_lead_to_it_is_the_same_object() -> None:
    rows = [1, {"a": object()}]
    assert over(rows) is rows
    assert over(pytest.raises) is pytest.raises
    assert over(NEW) is NEW
    assert over([rows, OLD])[0] is rows


def test_methods_partials_and_containers_lead_to_the_new_one() -> None:
    class Keeping:
        def __init__(self, owner: Any) -> None:
            self.owners, self.rest = {"one": (owner,)}, [1]

    kept = Keeping(OLD)
    copied = over(kept)
    assert copied.owners == {"one": (NEW,)}
    assert copied.rest is kept.rest
    assert kept.owners == {"one": (OLD,)}, "the one that was given is as it was"
    assert over(OLD.called)() == "new"
    assert over(functools.partial(lambda owner, *, other: (owner.name, other()), OLD, other=OLD.called))() == (
        "new",
        "new",
    )
    assert over([OLD, [OLD]]) == [NEW, [NEW]]


def test_functions_share_the_variables_that_do_not_lead_there() -> None:
    owner, count = OLD, 0

    def counting(default: Any = OLD, *, named: Any = OLD) -> tuple[str, ...]:
        nonlocal count
        count += 1
        return owner.name, default.name, named.name

    def around() -> tuple[str, ...]:
        return counting()

    assert over(around)() == ("new", "new", "new")
    assert around() == ("old", "old", "old")
    assert count == 2


def test_a_function_that_calls_itself_calls_the_copy() -> None:
    def down(steps: int) -> list[str]:
        return [OLDER.name, *(down(steps - 1) if steps else ())]

    OLDER = OLD
    assert over(down)(2) == ["new", "new", "new"]


def test_globals_are_read_when_the_function_runs() -> None:
    global STEP
    copied = over(calls_helper)
    for STEP in (3, 4):
        assert copied() == ("new", STEP)
        assert calls_helper() == ("old", STEP)


def test_a_function_that_assigns_globals_cannot_have_others() -> None:
    with pytest.raises(InvalidRequest, match=r"assigns_global.*assigns globals and reads the Trainer from one"):
        over(assigns_global)


class Reader:
    def __call__(self) -> Any:
        return GLOBAL.called()


def test_a_class_that_reads_it_from_a_global_is_refused_with_its_objects_where_that_counts() -> None:
    reader = Reader()
    with pytest.raises(InvalidRequest, match="Reader, an object of which"):
        over(reader)
    assert rebound(reader, [(OLD, NEW)]) is reader, "as a callback of a script does"


def test_a_part_that_the_new_one_has_of_its_own_is_refused() -> None:
    part = object()
    keep: Callable[[], Any] = lambda: part  # noqa: E731
    with pytest.raises(InvalidRequest, match="refers to its accelerator"):
        over(keep, accelerator=part)


def test_a_copied_function_looks_like_the_one_that_was_given() -> None:
    owner = OLD

    def named() -> Any:
        """What it does."""
        return owner

    named.mark = 1  # type: ignore[attr-defined]
    copied = over(named)
    assert isinstance(copied, types.FunctionType)
    for attribute in ("__name__", "__qualname__", "__module__", "__doc__", "mark"):
        assert getattr(copied, attribute) == getattr(named, attribute)

"""Values that are compared by what they hold."""

import functools
from typing import Any

import torch

from autotune.workload.references import Comparison


class Slots:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


def test_values_are_the_same_by_what_they_hold() -> None:
    def adding(number: int) -> Any:
        return lambda value: value + number

    same = Comparison([]).same
    for ours, other in (
        ([torch.ones(2)], [torch.ones(2)]),
        (adding(1), adding(1)),
        (functools.partial(print, 1), functools.partial(print, 1)),
        (Slots([1]), Slots([1])),
    ):
        assert same(ours, other)
    for ours, other in (
        (torch.ones(2), torch.ones(3)),
        (adding(1), adding(2)),
        (Slots(1), Slots(2)),
        ([1], (1,)),
        ({1}, {2}),
    ):
        assert not same(ours, other)
    old, new = object(), Slots(1)
    assert Comparison([(old, new)]).same([old], [new])
    assert Comparison([]).differing({"a": 1, "b": 2}, {"b": 3, "c": 1}) == ["a", "b", "c"]

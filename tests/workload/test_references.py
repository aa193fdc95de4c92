"""What a value leads to, and values that are compared by what they hold."""

import functools
from collections import deque
from typing import Any

import torch

from autotune.workload.references import Comparison, leads_to

TARGET: Any = object()


def reads() -> Any:
    return TARGET


class Reader:
    def __call__(self) -> Any:
        return reads()


class Slots:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


def test_functions_containers_slots_and_classes_lead_to_what_they_hold() -> None:
    target = TARGET
    for value in (
        reads,
        lambda: target,
        [{"a": (target,)}],
        deque([target]),
        functools.partial(print, target),
        Reader(),
        Slots(target),
    ):
        assert leads_to(value, TARGET)
    for value in (print, [1, "a"], torch.nn.Linear, Slots(1)):
        assert not leads_to(value, TARGET)
    rows = [target]
    assert not leads_to({"rows": rows}, TARGET, [rows])


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
    old, new = Reader(), Slots(1)
    assert Comparison([(old, new)]).same([old], [new])
    assert Comparison([]).differing({"a": 1, "b": 2}, {"b": 3, "c": 1}) == ["a", "b", "c"]

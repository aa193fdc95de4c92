"""Which queued search starts next: on devices that it may have, in order, and wide ones are not starved by narrow ones."""

from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.service.devices import JOIN, Waiting, choose

CARDS = {f"cuda:{index}@a": "H100" for index in range(4)} | {f"cuda:{index}@b": "L4" for index in range(2)}


def search(
    devices: Any = 1, seconds: float | None = None, name: Any = None, room: float = inf, card: str = ""
) -> Waiting:
    return Waiting({"device": "cuda", "devices": devices, "card": card}, room, lambda: seconds, name)


def chosen(*arguments: Any) -> tuple[Any, list[str]]:
    found = choose(*arguments)
    return (None, []) if found is None else (found[0].row, found[1].split(JOIN))


searches = st.builds(
    search,
    devices=st.sampled_from([1, 1, 2, 3, 4, "all"]),
    seconds=st.none() | st.floats(1, 1000),
    name=st.uuids(),
    room=st.sampled_from([inf, inf, 0, 1, 2]),
    card=st.sampled_from(["", "h100", "L4"]),
)
some_free = st.sets(st.sampled_from([*CARDS]))


@settings(max_examples=300, deadline=None)
@given(st.lists(searches, max_size=8), some_free, st.data())
def test_a_search_gets_free_and_alike_devices_as_many_as_it_wants_and_may_have(
    queue: list[Waiting], free: set[str], data: Any
) -> None:
    ends = {name: data.draw(st.none() | st.floats(1, 1000)) for name in {*CARDS} - free}
    found = choose(queue, CARDS, free, ends)
    if found is None:
        return
    waiting, names = found[0], found[1].split(JOIN)
    assert {*names} <= free
    assert len({*names}) == len(names) <= waiting.room
    (card,) = {CARDS[name] for name in names}
    wanted = waiting.wanted["devices"]
    assert len(names) == (len([1 for other in CARDS.values() if other == card]) if wanted == "all" else wanted)
    assert waiting.wanted["card"].casefold() in card.casefold()


@settings(max_examples=300, deadline=None)
@given(st.lists(searches, min_size=1, max_size=8), some_free)
def test_the_first_starts_if_its_devices_are_free(queue: list[Waiting], free: set[str]) -> None:
    name, _ = chosen([queue[0]], CARDS, free)
    assert name is None or chosen(queue, CARDS, free)[0] == name


@pytest.mark.parametrize(
    ("seconds", "name"),
    [(9.0, "narrow"), (10.0, "narrow"), (11.0, None), (None, None)],
)
def test_a_narrow_search_passes_a_wide_one_only_if_it_is_expected_to_end_before_that_can_start(
    seconds: float | None, name: str | None
) -> None:
    free, ends = {"cuda:0@a", "cuda:1@a"}, {"cuda:2@a": 10.0, "cuda:3@a": 500.0}
    queue = [search(3, name="wide", card="H100"), search(1, seconds, "narrow", card="H100")]
    assert chosen(queue, CARDS, free, ends)[0] == name
    assert chosen(queue, CARDS, free) == (None, []), "nothing overtakes on devices of unknown ends"
    others = [*queue[:1], search(1, None, "elsewhere", card="L4")]
    assert chosen(others, CARDS, free | {"cuda:0@b"}, ends) == ("elsewhere", ["cuda:0@b"])


def test_who_has_used_up_its_limits_holds_nothing_back() -> None:
    queue = [search(4, name="limited", room=0), search(1, name="other")]
    assert chosen(queue, CARDS, {"cuda:0@a"})[0] == "other"

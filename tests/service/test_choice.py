"""Which queued search starts next: on devices that it may have, in order, and wide ones are not starved by narrow ones."""

from dataclasses import dataclass, field
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
def test_the_first_starts_if_its_devices_are_free_and_nothing_overtakes_it_on_devices_of_unknown_ends(
    queue: list[Waiting], free: set[str]
) -> None:
    name, _ = chosen([queue[0]], CARDS, free)
    if name is not None:
        assert chosen(queue, CARDS, free)[0] == name
    else:
        of_one_card = [search(1, 5.0, "later", card="H100")]
        wide = search(4, name="wide", card="H100")
        if not {each for each in CARDS if CARDS[each] == "H100"} <= free:
            assert chosen([wide, *of_one_card], CARDS, free) == (None, [])


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
    others = [*queue[:1], search(1, None, "elsewhere", card="L4")]
    assert chosen(others, CARDS, free | {"cuda:0@b"}, ends) == ("elsewhere", ["cuda:0@b"])


def test_who_has_used_up_its_limits_holds_nothing_back() -> None:
    queue = [search(4, name="limited", room=0), search(1, name="other")]
    assert chosen(queue, CARDS, {"cuda:0@a"})[0] == "other"


@dataclass
class Cluster:
    """Virtual time: searches arrive, run for as long as is said, and are started as `choose` says."""

    now: float = 0.0
    running: dict[str, float] = field(default_factory=dict)  # device -> its end
    queue: list[Waiting] = field(default_factory=list)
    started: dict[Any, float] = field(default_factory=dict)

    def start(self) -> None:
        while True:
            free = {*CARDS} - {*self.running}
            found = choose(self.queue, CARDS, free, {name: end - self.now for name, end in self.running.items()})
            if found is None:
                return
            self.queue.remove(found[0])
            self.started[found[0].row] = self.now
            self.running |= dict.fromkeys(found[1].split(JOIN), self.now + (found[0].length() or 0.0))

    def step(self) -> None:
        """To the next end."""
        self.now = min(self.running.values(), default=self.now + 1)
        self.running = {name: end for name, end in self.running.items() if end > self.now}
        self.start()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1, 100), min_size=30, max_size=60), st.integers(2, 4))
def test_with_right_lengths_a_wide_search_starts_as_if_nothing_came_after_it_however_much_comes(
    lengths: list[float], width: int
) -> None:
    before, after = lengths[:6], lengths[6:]

    def wide_start(later: list[float]) -> float:
        cluster = Cluster(
            queue=[search(1, seconds, ("before", index), card="H100") for index, seconds in enumerate(before)]
        )
        cluster.queue.append(search(width, 50.0, "wide", card="H100"))
        coming = [search(1, seconds, ("after", index), card="H100") for index, seconds in enumerate(later)]
        cluster.start()
        while "wide" not in cluster.started:
            cluster.queue += coming[:2]
            coming = coming[2:]
            cluster.start()
            cluster.step()
        return cluster.started["wide"]

    assert wide_start(after) == pytest.approx(wide_start([]))

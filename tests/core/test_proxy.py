"""An object and its proxy, which code cannot tell apart."""

import pickle
from collections.abc import Iterator, Sized

import pytest

from autotune.core.proxy import Proxy


class Numbers:
    """Three numbers."""

    epoch = 0

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2, 3])

    def __len__(self) -> int:
        return 3


class Twice(Proxy):
    """Each number, twice as large."""

    def __iter__(self) -> Iterator[int]:
        return (2 * number for number in self._proxied[0])


def test_a_proxy_is_its_object_apart_from_its_own_methods() -> None:
    numbers = Numbers()
    twice = Twice(numbers)
    assert isinstance(twice, Numbers)
    assert (list(twice), len(twice), twice.epoch) == ([2, 4, 6], 3, 0)
    twice.epoch = 5
    assert numbers.epoch == 5
    del twice.epoch
    assert numbers.epoch == 0
    assert list(pickle.loads(pickle.dumps(twice))) == [2, 4, 6]


def test_what_an_object_has_not_its_proxy_has_not_either() -> None:
    proxy = Proxy(iter(()))
    assert not isinstance(proxy, Sized)
    with pytest.raises(AttributeError, match="batch_size"):
        proxy.batch_size  # noqa: B018

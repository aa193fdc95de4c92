"""Without the extra, an executor of a Ray cluster is refused with how to install it."""

import sys

import pytest

from autotune.core import InvalidRequest
from autotune.executors.ray import connected


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidRequest, match=r"hf-autotune\[ray\]"), connected("head:6379"):
        pass

"""Where compiled code is kept: for all first probes together, and apart for each configuration's rounds, by all ranks."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from torch._inductor.runtime.cache_dir_utils import cache_dir, triton_cache_dir

from autotune.probe.device.compile import CACHE, KERNELS, keep_compiled
from autotune.probe.order import Order
from tests.makers import cpu
from tests.probe.probes import configuration, make_order


@pytest.fixture(autouse=True)
def as_in_the_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both variables are the user's own, as in the image; no rank."""
    monkeypatch.setenv(CACHE, str(tmp_path / "theirs"))
    monkeypatch.setenv(KERNELS, str(tmp_path / "their kernels"))
    monkeypatch.delenv("RANK", raising=False)


def within(scratch: Path, order: Order, patch: pytest.MonkeyPatch) -> Path:
    """The folder that a child with this scratch folder keeps its graphs in, once its kernels were found to lie below it."""
    scratch.mkdir(parents=True, exist_ok=True)
    patch.setattr(tempfile, "tempdir", str(scratch))
    keep_compiled(order)
    place = Path(cache_dir())
    assert Path(triton_cache_dir(0)).is_relative_to(place)
    return place


def test_graphs_and_kernels_lie_where_later_probes_of_the_same_host_find_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = make_order(tmp_path / "order", cpu())
    host = tmp_path / "host"
    first = within(host / "probe-a", order, monkeypatch)
    assert first.parent == host
    (Path(triton_cache_dir(0)) / "made").mkdir(parents=True)
    other = within(host / "probe-b", replace(order, configuration=configuration(4)), monkeypatch)
    assert (other, (other / "triton" / "made").exists()) == (first, True), "probes share what they compile"
    cold = within(host / "probe-c", replace(order, confirmation=1), monkeypatch)
    assert (cold != first, (cold / "triton").exists()) == (True, False), "a first round compiles as a first run does"
    (Path(triton_cache_dir(0)) / "made").mkdir(parents=True)
    for later in (replace(order, confirmation=2), replace(order, kind="sanity_check")):
        warm = within(host / "probe-d", later, monkeypatch)
        assert (warm, (warm / "triton" / "made").exists()) == (cold, True)
    again = within(host / "probe-e", replace(order, confirmation=1), monkeypatch)
    assert (again, (again / "triton").exists()) == (cold, False)


def test_every_rank_finds_what_the_others_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = replace(make_order(tmp_path / "order", cpu()), confirmation=1)
    first = within(tmp_path / "host" / "probe-a", order, monkeypatch)
    monkeypatch.setenv("RANK", "1")
    assert within(tmp_path / "host" / "probe-a" / "rank-1", order, monkeypatch) == first
    assert os.environ[KERNELS] == str(first / "triton")

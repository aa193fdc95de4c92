"""Where compiled code is kept: for one configuration, by all its probes and ranks, and for nothing else."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from torch._inductor.runtime.cache_dir_utils import cache_dir, triton_cache_dir

from autotune.probe.device.compile import CACHE, KERNELS, keep_compiled
from autotune.probe.order import Order
from tests.makers import cpu
from tests.probe.probes import make_order


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
    first = within(tmp_path / "host" / "probe-a", order, monkeypatch)
    assert first.parent == tmp_path / "host"
    (Path(triton_cache_dir(0)) / "made").mkdir(parents=True)
    warm = within(tmp_path / "host" / "probe-b", replace(order, confirmation=1), monkeypatch)
    assert (warm, (warm / "triton" / "made").exists()) == (first, True)
    again = within(tmp_path / "host" / "probe-c", order, monkeypatch)
    assert (again, (again / "triton").exists()) == (first, False), "a trial's own probe compiles as a first run does"


def test_every_rank_finds_what_the_others_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = replace(make_order(tmp_path / "order", cpu()), confirmation=1)
    first = within(tmp_path / "host" / "probe-a", order, monkeypatch)
    monkeypatch.setenv("RANK", "1")
    assert within(tmp_path / "host" / "probe-a" / "rank-1", order, monkeypatch) == first
    assert os.environ[KERNELS] == str(first / "triton")

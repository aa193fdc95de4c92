"""What a running training shows of the process that it runs in: TF32 by whichever interface torch has."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.probe.train import read_back


class Clashing(SimpleNamespace):
    """As torch from 2.9 on, where its two interfaces disagree: the older one refuses to answer."""

    @property
    def allow_tf32(self) -> bool:
        raise RuntimeError("you have used a mix of the legacy and new APIs")


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A torch whose device is awake, with backends to fill in."""
    made = SimpleNamespace(cuda=SimpleNamespace(), cudnn=SimpleNamespace())
    awake = SimpleNamespace(is_initialized=lambda: True, get_device_capability=lambda: (9, 0))
    monkeypatch.setattr(read_back, "torch", SimpleNamespace(backends=made, cuda=awake))
    return made


def test_an_allocator_without_blocks_of_its_own_shows_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("Calling snapshot with backend:cudaMallocAsync is not meaningful.")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", refuse)
    assert read_back._allocator() == {}
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"allocator_settings": {"expandable_segments": True}})
    assert read_back._allocator() == {"expandable_segments": True}


@pytest.mark.parametrize(
    ("matmul", "on"),
    [
        (SimpleNamespace(fp32_precision="tf32", allow_tf32=False), True),
        (SimpleNamespace(fp32_precision="ieee", allow_tf32=True), False),
        (SimpleNamespace(fp32_precision="none", allow_tf32=True), True),
        (SimpleNamespace(allow_tf32=True), True),
        (SimpleNamespace(), False),
        (Clashing(fp32_precision="tf32"), True),
        (Clashing(fp32_precision="none"), False),
    ],
)
def test_tf32_is_read_by_whichever_interface_torch_has(backends: SimpleNamespace, matmul: Any, on: bool) -> None:
    backends.cuda.matmul = matmul
    assert read_back._tf32() is on


def test_a_card_without_tf32_computes_in_none_whatever_is_set(
    backends: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends.cuda.matmul = SimpleNamespace(fp32_precision="tf32")
    monkeypatch.setattr(read_back.torch.cuda, "get_device_capability", lambda: (7, 0))
    assert read_back._tf32() is False


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="this torch has the older interface only")
@pytest.mark.parametrize(("asked", "on"), [("ieee", False), ("tf32", True)])
def test_what_training_arguments_switch_is_read_of_this_torch(
    fresh_float32_precision: None, asked: str, on: bool
) -> None:
    torch.backends.fp32_precision = asked
    assert read_back._tf32() is on

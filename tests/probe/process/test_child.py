"""The GPUs that a child sees."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.core import Workload
from autotune.probe.order import Order
from autotune.probe.process.child import WITHOUT_CARDS, cards_seen
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.queries import traced
from autotune.workload.model.build import plain_config
from autotune.workload.model.config import read_config
from tests.makers import configuration, cpu, gpu
from tests.workload.model.test_build import own_model

CARD = gpu(device_uuids=("GPU-0123", "GPU-1", "GPU-2"))
TWO_RANKS = configuration(2, 4, data_parallel_size=2)


@pytest.mark.parametrize(
    ("kind", "fields", "objects", "expected"),
    [
        ("probe", {"environment": CARD}, b"", "GPU-0123"),
        ("rates", {"environment": CARD}, b"", "GPU-0123"),
        ("probe", {"environment": CARD, "configuration": TWO_RANKS}, b"", "GPU-0123,GPU-1"),
        ("verification", {"environment": CARD, "configuration": TWO_RANKS}, b"", "GPU-0123"),
        ("probe", {"environment": gpu(device_uuid="")}, b"", None),
        ("probe", {"environment": cpu()}, b"", None),
        ("capabilities", {"request": {"device_uuid": "GPU-7"}}, b"", "GPU-7"),
        ("capabilities", {"request": {"device": "cpu"}}, b"", None),
        ("trace", {}, b"", ""),
        ("prepare", {"request": {"request": {"trust_remote_code": False}}}, b"", ""),
        ("prepare", {"request": {"request": {"trust_remote_code": True}}}, b"", None),
        ("prepare", {"request": {"request": {"trust_remote_code": False}}}, b"pickled", None),
    ],
)
def test_a_child_sees_the_cards_that_its_order_trains_on(
    kind: str, fields: dict[str, Any], objects: bytes, expected: str | None
) -> None:
    order = Order(kind=kind, folder="", deadline_s=1.0, **fields)
    assert cards_seen(order, objects).get("CUDA_VISIBLE_DEVICES") == expected


@pytest.mark.nightly
def test_a_trace_finds_no_card_and_does_not_ask_the_driver(
    host: ProbeHost, workload_of: Callable[..., Workload], tmp_path: Path
) -> None:
    """The code of a model writes down what the process that traces it would show torch."""
    folder, seen = own_model(tmp_path / "own_model"), Path(f"/dev/shm/{os.getpid()}")  # a trial may write there
    (code,) = folder.glob("*.py")
    names = ", ".join(map(repr, WITHOUT_CARDS))
    code.write_text(
        f"import os, pathlib\npathlib.Path({str(seen)!r}).write_text(repr([os.environ.get(n) for n in ({names})]))\n"
        + code.read_text()
    )
    config, source = read_config(str(folder), True)
    workload = replace(
        workload_of("bert-mini", sequence_length=16),
        task="causal-lm",
        source=source,
        model_config=plain_config(config),
        trust_remote_code=True,
    )
    seen.unlink()
    traced(host, workload, gpu(), [configuration(2, 4)], {})
    assert seen.read_text() == repr([*WITHOUT_CARDS.values()])
    seen.unlink()

"""The GPUs that a child sees."""

from typing import Any

import pytest

from autotune.probe.order import Order
from autotune.probe.process.child import cards_seen
from tests.makers import configuration, cpu, gpu

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

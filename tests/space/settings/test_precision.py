"""Precision."""

import pytest

from autotune.space.settings import Context
from autotune.space.settings.precision import SETTING
from autotune.space.settings.zero import zero_config
from autotune.space.setup import model_arguments
from tests.makers import configuration, cpu, gpu, workload
from tests.space.settings.fakes import DeepSpeedEngine, observed


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        ("fp32", {"fp16": False, "bf16": False, "tf32": False}),
        ("tf32", {"fp16": False, "bf16": False, "tf32": True}),
        ("fp16", {"fp16": True, "bf16": False, "tf32": None}),
        ("bf16", {"fp16": False, "bf16": True, "tf32": None}),
        ("bf16_weights", {"fp16": False, "bf16": False, "tf32": None}),
        ("bf16_frozen", {"fp16": False, "bf16": True, "tf32": None}),
    ],
)
def test_one_precision_is_on_and_the_others_are_off(value: str, fields: dict[str, bool | None]) -> None:
    assert SETTING.apply(value, gpu()).training_arguments == fields


def test_the_user_s_own_is_the_one_that_is_on() -> None:
    assert SETTING.from_user(Context(cpu(), workload())) == "fp32"
    assert SETTING.from_user(Context(cpu(), workload(), {"bf16": True})) == "bf16"
    assert SETTING.from_user(Context(cpu(), workload(), {"bf16": True, "tf32": True})) == "bf16"
    assert SETTING.from_user(Context(cpu(), workload(), {"tf32": True})) == "tf32"
    assert SETTING.from_user(Context(cpu(), workload(), {"bf16": False})) == "fp32"


@pytest.mark.parametrize(
    ("shown", "value"),
    [
        ({}, "fp32"),
        ({"tf32": True}, "tf32"),
        ({"autocast": True, "linear_dtype": "bfloat16"}, "bf16"),
        ({"autocast": True, "linear_dtype": "bfloat16", "tf32": True}, "bf16"),
        ({"autocast": True, "linear_dtype": "float16"}, "fp16"),
        ({"linear_dtype": "bfloat16"}, "bf16_weights"),
        ({"autocast": True, "linear_dtype": "bfloat16", "frozen_dtypes": {"float32"}}, "bf16"),
        ({"autocast": True, "linear_dtype": "bfloat16", "frozen_dtypes": {"bfloat16"}}, "bf16_frozen"),
        ({"autocast": True, "linear_dtype": "bfloat16", "frozen_dtypes": {"bfloat16", "uint8"}}, "bf16_frozen"),
    ],
)
def test_it_is_read_back_by_its_effect(shown: dict[str, object], value: str) -> None:
    assert SETTING.read_back(observed(**shown)) == value


@pytest.mark.parametrize(
    ("asked", "linear_dtype", "value"),
    [
        ("bf16", "bfloat16", "bf16"),
        ("fp16", "float16", "fp16"),
        ("fp32", "float32", "fp32"),
        ("fp32", "bfloat16", "bf16_weights"),
        ("bf16", "float32", "fp32"),
        ("fp16", "bfloat16", "bf16_weights"),
    ],
)
def test_deepspeed_s_engine_casts_the_model_itself_and_has_no_autocast(
    asked: str, linear_dtype: str, value: str
) -> None:
    config = zero_config("3_offload_all") | {name: {"enabled": name == asked} for name in ("bf16", "fp16")}
    shown = observed(linear_dtype=linear_dtype)
    shown.trainer.model_wrapped = DeepSpeedEngine(config)
    assert SETTING.read_back(shown) == value


@pytest.mark.parametrize(
    "shown",
    [
        {"autocast": True},
        {"linear_dtype": "float16"},
        {"linear_dtype": "float64"},
        {"linear_dtype": ""},
    ],
)
def test_an_effect_that_is_none_of_the_values_is_named(shown: dict[str, object]) -> None:
    assert SETTING.read_back(observed(**shown)) not in SETTING.values


def test_it_is_unavailable_as_the_device_showed() -> None:
    assert SETTING.unavailable("bf16", Context(cpu(), workload())) is None
    assert SETTING.unavailable("fp16", Context(cpu(), workload())) == "trains in fp32 on a CPU"
    assert "not tried" in (SETTING.unavailable("fp8", Context(cpu(), workload())) or "")


def test_it_has_no_order_of_hunger() -> None:
    assert not SETTING.needs_at_least_as_much("fp32", "bf16")
    assert not SETTING.needs_at_least_as_much("bf16", "fp32")


def test_weights_in_16_bits_are_an_argument_of_the_model_and_no_other_value_is() -> None:
    for value in SETTING.values:
        told = model_arguments(configuration(8, 8, precision=value), gpu())
        assert told["dtype"] == ("bfloat16" if value in ("bf16_weights", "bf16_frozen") else "float32")
    assert SETTING.differs("bf16_weights")
    assert not SETTING.differs("bf16")


def test_a_callers_own_model_keeps_its_weights() -> None:
    works = gpu(precisions=dict.fromkeys(SETTING.values))
    assert SETTING.unavailable("bf16_weights", Context(works, workload())) is None
    own = workload(user_objects=True)
    assert all(
        "model_init" in (SETTING.unavailable(one, Context(works, own)) or "") for one in ("bf16_weights", "bf16_frozen")
    )
    of_16_bits = workload(user_objects=True, weights_dtype="bfloat16")
    usable = {value for value in SETTING.values if SETTING.unavailable(value, Context(works, of_16_bits)) is None}
    assert usable == {"bf16", "bf16_weights"}


def test_frozen_weights_in_16_bits_need_an_adapter_and_learn_as_autocast_does() -> None:
    rule = SETTING.forbidden["lora"]
    assert rule("bf16_frozen", "none")
    assert rule("bf16_frozen", "16") is None
    assert rule("bf16", "none") is None
    assert SETTING.learns_alike("bf16_frozen", "bf16")
    assert not SETTING.learns_alike("bf16_frozen", "bf16_weights")

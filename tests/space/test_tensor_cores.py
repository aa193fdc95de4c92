"""Which multiples suit a device, and what is said of a model's sizes that are none."""

from pathlib import Path
from typing import Any

import pytest

from autotune.probe.order import Order
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.queries import known_rates
from autotune.space.settings.micro_batch_size import tiled
from autotune.space.tensor_cores import OutputLayer, advice, multiple, output_layer
from tests.makers import cpu, gpu

GPT2 = {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_head": 12}
FORMATS = ("fp32", "bf16")


@pytest.mark.parametrize(
    ("capability", "precisions", "expected"),
    [
        ((9, 0), FORMATS, 64),
        ((8, 0), ("bf16_weights",), 64),
        ((7, 0), FORMATS, 8),
        ((6, 1), FORMATS, 1),
        ((9, 0), ("fp32", "tf32"), 1),
    ],
)
def test_the_multiple_follows_from_the_card_and_the_number_format(
    capability: tuple[int, int], precisions: tuple[str, ...], expected: int
) -> None:
    assert multiple(gpu(compute_capability=capability), precisions) == expected
    assert multiple(cpu(), precisions) == 1


@pytest.mark.parametrize(
    ("target", "tile", "sizes"),
    [
        (256, 64, (64, 128, 256)),
        (96, 64, (32, 96)),
        (12, 64, (1, 2, 3, 4, 6, 12)),
    ],
)
def test_sizes_are_of_the_largest_tile_that_divides_the_global_batch(
    target: int, tile: int, sizes: tuple[int, ...]
) -> None:
    assert tiled(target, tile) == sizes


def test_a_vocabulary_that_leaves_tiles_half_empty_is_to_be_padded() -> None:
    (said,) = advice(GPT2, gpu(), FORMATS)
    assert said.startswith("vocab_size 50257 is no multiple of 64: padding it to 50304")
    assert "pad_to_multiple_of=64" in said
    (older,) = advice(GPT2, gpu(compute_capability=(7, 5)), FORMATS)
    assert older.startswith("vocab_size 50257 is no multiple of 8: padding it to 50264")


def test_the_worth_of_padding_is_what_was_measured() -> None:
    layer = output_layer(GPT2, "causal-lm", gpu(), ("fp32", "bf16_weights"))
    assert layer == OutputLayer(768, 50257, 50304, "bf16")
    assert layer is not None
    rates = dict(zip(layer.products, (300.0, 450.0), strict=True))
    assert "50304 instead of 50257" in layer.worth(rates, None, 1024)
    assert "1.50x as fast" in layer.worth(rates, None, 1024)
    # 6 x 768 x 50257 x 1024 of 0.876 TFLOP
    assert layer.worth(rates, 0.876e12, 1024).endswith("they are 27% of the model's arithmetic")


@pytest.mark.parametrize(
    ("config", "task", "precisions"),
    [
        ({**GPT2, "vocab_size": 50304}, "causal-lm", FORMATS),
        (GPT2, "sequence-classification", FORMATS),
        (GPT2, "causal-lm", ("fp32",)),
        ({}, "causal-lm", FORMATS),
    ],
)
def test_nothing_is_said_or_measured_where_nothing_is_to_be_padded(
    config: Any, task: str, precisions: tuple[str, ...]
) -> None:
    assert output_layer(config, task, gpu(), precisions) is None
    if task == "causal-lm":
        assert advice(config, gpu(), precisions) == ()
    assert output_layer(GPT2, "causal-lm", cpu(), FORMATS) is None
    assert advice(GPT2, cpu(), FORMATS) == ()


def test_the_output_layer_s_products_are_measured_for_real_and_only_once(
    host: ProbeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU: a vocabulary four times as large takes longer."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    orders: list[Order] = []
    attempt = host.attempt
    monkeypatch.setattr(host, "attempt", lambda order: orders.append(order) or attempt(order))
    layer = OutputLayer(width=64, size=2048, padded=8192, precision="fp32")
    device = cpu(optimizers={}, precisions={"fp32": None})
    rates = known_rates(host, device, layer=layer)
    small, large = layer.products
    assert rates.keys() == {"fp32", small, large}
    assert rates[small] > rates[large] > 0
    assert known_rates(host, device, layer=layer) == rates
    assert known_rates(host, device).keys() == {"fp32"}
    assert len(orders) == 1, "with the device's rates, and from then on from the cache"


def test_widths_and_heads_are_named_too_and_those_of_the_text_inside() -> None:
    odd = {"vocab_size": 64, "hidden_size": 100, "num_attention_heads": 5, "intermediate_size": 401}
    said = advice({"text_config": odd}, gpu(), FORMATS)
    assert [item.split(":")[0] for item in said] == [
        "hidden_size 100 is no multiple of 64",
        "intermediate_size 401 is no multiple of 64",
        "heads of 20 values are no multiple of 8",
    ]

"""Weights in four bits on CUDA: a model is made there that would not fit whole."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.core import Environment, Outcome, Workload
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.queries import read_device
from autotune.workload.model.build import build_model
from tests.probe.probes import QUICK, configuration, make_order, measured

pytestmark = pytest.mark.gpu

LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 128,
}


@pytest.mark.parametrize("is_local", [False, True], ids=["random", "local"])
def test_a_model_in_four_bits_is_never_whole_on_the_card(
    host: ProbeHost, workload_of: Callable[..., Workload], tmp_path: Path, is_local: bool
) -> None:
    from transformers import AutoConfig

    cuda: Environment = read_device("cuda")
    if reason := cuda.quantizations.get("nf4", "nf4 was not tried on this device"):
        pytest.skip(reason)
    AutoConfig.for_model("llama", vocab_size=1024, **LARGE).save_pretrained(tmp_path / "model")
    workload = workload_of(str(tmp_path / "model"), sequence_length=32, task="causal-lm")
    assert workload.parameter_bytes > 2**30
    asked = configuration(2, pin_memory=True, lora="8", quantization="nf4")
    fields: dict[str, Any] = {"workload": workload, "timing": QUICK, "deadline_s": 240.0}
    if is_local:
        build_model(workload).save_pretrained(tmp_path / "model")
        fields |= {"workload": replace(workload, weights=str(tmp_path / "model")), "confirmation": 1}
    order = make_order(tmp_path, cuda, asked=asked, **fields)
    measurement = measured(host, order)
    assert measurement.outcome is Outcome.COMPLETED, measurement.reason
    assert measurement.stage_peak_bytes["build"] < 0.4 * workload.parameter_bytes
    assert measurement.peak_reserved_bytes is not None
    assert measurement.peak_reserved_bytes < 0.5 * workload.parameter_bytes

"""Layers: what is read from a model's outline."""

from pathlib import Path

from autotune.probe.trace.layers import units_of
from autotune.workload.model.build import model_outline
from autotune.workload.model.config import read_config
from tests.workload.model.test_build import own_model


def test_a_model_that_does_not_name_its_embeddings_has_units_all_the_same(tmp_path: Path) -> None:
    config, _ = read_config(str(own_model(tmp_path / "own_model")), True)
    units = units_of(model_outline(config, "causal-lm", trust_remote_code=True))
    assert units == {"layer": 120, "outside": 0, "all": 120, "width": 0}

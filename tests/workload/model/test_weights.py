"""Where a model's own weights are found, and that they are what is built."""

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from transformers import AutoConfig

from autotune.core.note import Note, NoteKind
from autotune.core.request import tuning_request
from autotune.core.workload import Workload
from autotune.workload.model.build import build_model
from autotune.workload.model.weights import local_weights, weights_folder
from autotune.workload.read import prepare

SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}


def saved(folder: Path, model_type: str = "llama") -> Workload:
    """The workload of a tiny model whose weights were saved in this folder."""
    AutoConfig.for_model(model_type, **SMALL).save_pretrained(folder)
    workload = prepare(tuning_request(str(folder), 4, sequence_length=8), folder / "cache")
    assert workload.weights == ""
    torch.manual_seed(3)
    build_model(workload).save_pretrained(folder)
    return prepare(tuning_request(str(folder), 4, sequence_length=8), folder / "cache")


def weight(model: torch.nn.Module) -> torch.Tensor:
    return next(model.parameters()).detach()


def test_a_folders_weights_are_found_and_built(tmp_path: Path) -> None:
    workload = saved(tmp_path)
    assert workload.weights == str(tmp_path)
    assert Note(NoteKind.RANDOM_WEIGHTS) in workload.notes, "probes are measured with random ones all the same"
    torch.manual_seed(3)
    as_saved = weight(build_model(workload))
    torch.manual_seed(4)
    assert not torch.equal(weight(build_model(workload)), as_saved)
    model = build_model(workload, weights=workload.weights)
    assert torch.equal(weight(model), as_saved)
    assert model.training
    assert local_weights(str(tmp_path / "config.json")) == "", "the file of the config alone"
    build_model(workload).to(torch.bfloat16).save_pretrained(tmp_path)
    model = build_model(workload, weights=workload.weights)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_head_that_the_weights_lack_is_random(tmp_path: Path) -> None:
    saved(tmp_path, "bert")
    request = tuning_request(str(tmp_path), 4, task="sequence-classification", sequence_length=8)
    workload = prepare(request, tmp_path / "cache")
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        models.append(build_model(workload, weights=workload.weights))
    one, two = models
    assert torch.equal(weight(one), weight(two))
    assert not torch.equal(one.classifier.weight, two.classifier.weight)


def test_a_model_in_the_hubs_local_cache_is_found_and_opened_without_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = saved(tmp_path / "saved")
    cache = tmp_path / "hub"
    repository = cache / "models--someone--something"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    (repository / "snapshots").mkdir()
    (tmp_path / "saved").rename(repository / "snapshots" / "abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    assert local_weights("someone/something") == "someone/something"
    assert weights_folder("someone/something") == str(repository / "snapshots" / "abc")
    build_model(workload, weights="someone/something")
    (repository / "snapshots" / "abc" / "model.safetensors").unlink()
    assert local_weights("someone/something") == ""


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_shards_are_weights_where_all_are_there(tmp_path: Path, kind: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / f"{kind}.index.json").write_text(json.dumps({"weight_map": {"a": "one", "b": "two", "c": "one"}}))
    for name, found in (("one", ""), ("two", str(tmp_path))):
        (tmp_path / name).write_bytes(b"")
        assert local_weights(str(tmp_path)) == found


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "\x00"])
def test_a_damaged_index_names_no_weights(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    assert local_weights(str(tmp_path)) == ""

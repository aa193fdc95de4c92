"""Reading configs, choosing tasks and building models: real ones, small, without a network."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from autotune.core import InvalidRequest, Workload
from autotune.workload.model.build import (
    attentions,
    auto_class,
    build_model,
    choose_task,
    count_parameters,
    model_outline,
    plain_config,
    supports_checkpointing,
)
from autotune.workload.model.builtin import BUILT_IN
from autotune.workload.model.config import longest_sequence, read_config
from tests.makers import refusal_of

REMOTE_CODE = """
import torch
from transformers import PretrainedConfig, PreTrainedModel

class OwnConfig(PretrainedConfig):
    model_type = "nobodys-own"
    def __init__(self, width=8, vocab_size=50, **kwargs):
        self.width, self.vocab_size = width, vocab_size
        super().__init__(**kwargs)

class OwnModel(PreTrainedModel):
    config_class = OwnConfig
    def __init__(self, config):
        super().__init__(config)
        self.embed = torch.nn.Embedding(config.vocab_size, config.width)
        self.post_init()
    def forward(self, input_ids, labels=None, attention_mask=None):
        return {"loss": self.embed(input_ids).mean()}
"""


def workload_of(name: str, task: str | None = None) -> Workload:
    config, source = read_config(name, False)
    return Workload(name=name, task=choose_task(config, task), source=source, model_config=plain_config(config))


def refusal(name: str, trust_remote_code: bool = False) -> str:
    """The one line with which a model's name is refused."""
    return refusal_of(lambda: read_config(name, trust_remote_code))


def saved(folder: Path, **values: object) -> Path:
    """A folder with a config.json of these values."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


def own_model(folder: Path) -> Path:
    code = {"AutoConfig": "own_code.OwnConfig", "AutoModelForCausalLM": "own_code.OwnModel"}
    saved(folder, model_type="nobodys-own", width=4, vocab_size=30, auto_map=code)
    (folder / "own_code.py").write_text(REMOTE_CODE, encoding="utf-8")
    return folder


MILLIONS = {"bert-base": 110, "bert-large": 335, "gpt2": 124, "t5-small": 60.5, "t5-base": 223, "vit-base": 86.6}
MILLIONS |= {"llama-1b": 1236, "llama-8b": 8030}


@pytest.mark.parametrize(("name", "millions"), MILLIONS.items())
def test_a_real_shape_has_the_parameters_of_the_real_model(name: str, millions: float) -> None:
    config, _ = read_config(name, False)
    parameters, size = count_parameters(model_outline(config, choose_task(config, None)))
    assert parameters / 1e6 == pytest.approx(millions, rel=0.01)
    assert size == 4 * parameters


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name.endswith("-mini")])
def test_a_mini_model_is_built_from_its_plain_config_alone(name: str) -> None:
    workload = Workload.from_dict(json.loads(json.dumps(workload_of(name).to_dict())))
    model = build_model(workload)
    assert type(model).__name__ in str(auto_class(workload.task)._model_mapping[type(model.config)])
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert max(parameter.std().item() for parameter in model.parameters() if parameter.ndim > 1) > 0.01
    assert count_parameters(model) == count_parameters(model_outline(model.config, workload.task))


def test_a_config_that_switches_checkpointing_on_is_built_with_it_off(tmp_path: Path) -> None:
    config, _ = read_config("bert-mini", False)
    values = plain_config(config)
    folder = saved(tmp_path / "model", **values, gradient_checkpointing=True)
    model = build_model(workload_of(str(folder)))
    assert supports_checkpointing(model)
    assert not any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def test_flash_attention_is_there_with_its_package_also_where_no_gpu_is_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models are read in a process that sees no GPU, before the device is looked at."""
    outline = model_outline(read_config("bert-mini", False)[0], "masked-lm")
    missing = attentions(outline)
    assert (missing["sdpa"], missing["flash_attention_3"]) == (None, "flash-attn-3 is not installed")
    installed = tmp_path / "flash_attn_3-3.0.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-attn-3\nVersion: 3.0.0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert attentions(outline) == missing | {"flash_attention_3": None}


def test_a_folder_and_its_json_are_opened_alike_and_again_from_their_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    AutoConfig.for_model("bert", hidden_size=48, num_attention_heads=4).save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    for name in ("model", "./model", "model/config.json", str(tmp_path / "model")):
        config, source = read_config(name, False)
        assert config.hidden_size == 48
        assert Path(source).is_absolute()
        assert read_config(source, False)[0].hidden_size == 48


def test_a_config_names_its_task_by_its_architecture(tmp_path: Path) -> None:
    for architecture, task in (
        ("BertForSequenceClassification", "sequence-classification"),
        ("BertLMHeadModel", "causal-lm"),
        ("BertModel", "masked-lm"),
    ):
        config, _ = read_config(
            str(saved(tmp_path / architecture, model_type="bert", architectures=[architecture])), False
        )
        assert choose_task(config, None) == task


@pytest.mark.parametrize(
    ("model_type", "task"),
    [("roberta", "masked-lm"), ("bart", "seq2seq-lm"), ("llama", "causal-lm"), ("resnet", "image-classification")],
)
def test_a_model_type_has_the_task_it_is_usually_trained_for(model_type: str, task: str) -> None:
    assert choose_task(AutoConfig.for_model(model_type), None) == task


@pytest.mark.parametrize(
    ("model_type", "values", "longest"),
    [
        ("gpt2", {"n_positions": 1024}, 1024),
        ("roberta", {"max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ("led", {"max_encoder_position_embeddings": 4096, "max_decoder_position_embeddings": 1024}, 1024),
        ("t5", {"n_positions": 512}, None),
        ("vit", {}, None),
    ],
)
def test_the_longest_sequence_is_what_the_positions_allow(
    model_type: str, values: dict[str, int], longest: int | None
) -> None:
    assert longest_sequence(AutoConfig.for_model(model_type, **values)) == longest


def test_a_config_or_a_model_that_transformers_refuses_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = saved(tmp_path / "dropout", model_type="bert", hidden_dropout_prob="much")
    assert "cannot be used" in refusal(str(folder))
    config, _ = read_config(
        str(saved(tmp_path / "model", model_type="bert", hidden_size=50, num_attention_heads=12)), False
    )
    with pytest.raises(InvalidRequest, match=r"cannot be built from its config: .*50") as caught:
        model_outline(config, "masked-lm")
    assert "\n" not in str(caught.value)


def test_code_of_its_own_needs_trust_and_then_runs(tmp_path: Path) -> None:
    folder = own_model(tmp_path / "own_model")
    assert "trust" in refusal(str(folder))
    config, source = read_config(str(folder), True)
    assert config.width == 4
    task = choose_task(config, None)
    assert task == "causal-lm"
    config.width = 6
    workload = Workload(name="own", task=task, source=source, model_config=plain_config(config), trust_remote_code=True)
    model = build_model(Workload.from_dict(json.loads(json.dumps(workload.to_dict()))))
    assert model.embed.weight.shape == (30, 6)
    assert count_parameters(model_outline(config, task, True))[0] == 180


def test_a_model_in_the_hubs_local_cache_opens_without_a_network(tmp_path: Path) -> None:
    repository = tmp_path / "models--somebody--small"
    commit = "0" * 40
    saved(repository / "snapshots" / commit, model_type="gpt2", n_layer=3)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit, encoding="utf-8")
    code = (
        "from autotune.workload.model.config import read_config\n"
        "config, source = read_config('somebody/small', False)\n"
        "assert (config.n_layer, source) == (3, 'somebody/small')\n"
        "try:\n    read_config('somebody/other', False)\n"
        "except Exception as error:\n    print(error)\n"
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    assert "hub cannot be reached" in done.stdout

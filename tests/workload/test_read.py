"""From a request to the workload that every probe gets."""

import json
import random
import time
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from transformers import AutoConfig

from autotune.core import Workload
from autotune.core.note import Note, NoteKind
from autotune.core.request import tuning_request
from autotune.workload.data.sampling import QUANTILES
from autotune.workload.model import user_objects
from autotune.workload.model.builtin import BUILT_IN
from autotune.workload.model.pickling import sent
from autotune.workload.model.user_objects import user_workload
from autotune.workload.read import prepare
from tests.makers import refusal_of
from tests.workload.data.test_collate import a_step


def prepared(cache: Path, model: str, **options: Any) -> Workload:
    return prepare(tuning_request(model, options.pop("global_batch_size", 4), **options), cache)


def refusal(cache: Path, model: str, **options: Any) -> str:
    return refusal_of(lambda: prepared(cache, model, **options))


@pytest.mark.parametrize("name", [*(name for name in BUILT_IN if name.endswith("-mini")), "llama-8b"])
def test_a_built_in_model_becomes_a_workload_that_survives_json(name: str, tmp_path: Path) -> None:
    workload = prepared(tmp_path, name)
    again = Workload.from_dict(json.loads(json.dumps(workload.to_dict())))
    assert again == workload
    assert workload.name == workload.source == name
    assert workload.task == BUILT_IN[name].task
    assert workload.parameter_bytes == 4 * workload.parameters > 0
    assert 0 < workload.linear_parameters < workload.parameters
    assert (workload.supports_checkpointing, workload.data_identity, workload.longest) == (True, "synthetic", ())
    assert workload.lengths == ()
    assert Note(NoteKind.RANDOM_WEIGHTS) in workload.notes
    assert not list(tmp_path.iterdir()), "random samples leave nothing on disk"


def test_the_default_sequence_is_512_tokens_or_what_the_model_takes(tmp_path: Path) -> None:
    AutoConfig.for_model("bert", max_position_embeddings=128).save_pretrained(tmp_path / "short")
    assert prepared(tmp_path, "gpt2-mini").sequence_length == 512
    assert prepared(tmp_path, "t5-mini").sequence_length == 512
    assert prepared(tmp_path, str(tmp_path / "short")).sequence_length == 128
    assert prepared(tmp_path, "vit-mini").sequence_length is None


def test_a_sequence_longer_than_the_model_takes_is_refused_with_both_numbers(tmp_path: Path) -> None:
    assert "513 tokens is longer than the 512" in refusal(tmp_path, "bert-mini", sequence_length=513)
    assert prepared(tmp_path, "bert-mini", sequence_length=512).sequence_length == 512
    assert prepared(tmp_path, "t5-mini", sequence_length=4096).sequence_length == 4096


def test_a_model_that_reads_something_else_is_refused(tmp_path: Path) -> None:
    AutoConfig.for_model("imagegpt", n_layer=1, n_embd=16, n_head=2).save_pretrained(tmp_path / "clusters")
    assert "reads input_ids" in refusal(tmp_path, str(tmp_path / "clusters"))


def test_tokens_that_a_task_needs_are_set(tmp_path: Path) -> None:
    t5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 64}
    AutoConfig.for_model("t5", decoder_start_token_id=None, **t5).save_pretrained(tmp_path / "t5")
    workload = prepared(tmp_path, str(tmp_path / "t5"), sequence_length=8)
    assert workload.model_config["decoder_start_token_id"] == 0
    a_step(workload)
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    AutoConfig.for_model("llama", vocab_size=100, **small).save_pretrained(tmp_path / "llama")
    workload = prepared(tmp_path, str(tmp_path / "llama"), task="sequence-classification", sequence_length=8)
    assert workload.model_config["pad_token_id"] == 2
    assert any("pad_token_id set to 2" in note.text for note in workload.notes)
    assert workload.architecture == "LlamaForSequenceClassification"
    a_step(workload)


def test_a_model_that_is_quantised_is_trained_as_if_it_were_not_and_that_is_said(tmp_path: Path) -> None:
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model("llama", vocab_size=64, **small)
    config.quantization_config = {"quant_method": "gptq", "bits": 4}
    config.save_pretrained(tmp_path / "quantised")
    (tmp_path / "quantised" / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    workload = prepared(tmp_path, str(tmp_path / "quantised"), sequence_length=8)
    assert Note(NoteKind.UNQUANTIZED) in workload.notes
    assert workload.weights == "", "they are not the weights of what is trained"


def test_an_encoder_trained_as_a_causal_model_does_not_look_ahead(tmp_path: Path) -> None:
    workload = prepared(tmp_path, "bert-mini", task="causal-lm", sequence_length=16)
    assert workload.model_config["is_decoder"] is True
    assert Note(NoteKind.DECODER) in workload.notes
    a_step(workload)


def test_data_tells_the_workload_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("".join(f"line number {number}\n" for number in range(19)) + "word " * 30)
    workload = prepared(tmp_path / "cache", "gpt2-mini", dataset=str(tmp_path / "lines.txt"), sequence_length=16)
    assert workload.samples == 20
    assert Path(workload.data).parent == tmp_path / "cache"
    assert workload.data_identity.startswith("lines.txt, ")
    assert str(tmp_path) not in workload.data_identity
    assert "split train" in workload.data_identity
    assert "trained on the data" in workload.text_source
    assert workload.longest == (19,)
    assert len(workload.lengths) == QUANTILES
    assert workload.lengths[-1] == 1.0
    assert workload.lengths == tuple(sorted(workload.lengths))
    assert Workload.from_dict(json.loads(json.dumps(workload.to_dict()))) == workload
    a_step(workload)


# A caller's own dataset -----------------------------------------------------------------------------------------


class Slow(torch.utils.data.Dataset):
    """Samples that take a while, each larger than the one before."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(0.01)
        return {"x": [0] * (index + 1)}


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self) -> Any:
        yield from ({"x": [0] * number} for number in range(10**9))


def own_workload(dataset: Any) -> Workload:
    objects = {"model_init": lambda: torch.nn.Linear(2, 2), "train_dataset": dataset}
    return user_workload(tuning_request("mine", 4), sent(objects))


@pytest.mark.parametrize(
    ("large", "small"),
    [(np.ones((9, 2)), np.ones((2, 2))), ([0] * 9, [0] * 3), ({"inner": torch.ones(9)}, {"inner": torch.ones(2)})],
)
def test_the_largest_sample_of_a_caller_s_own_dataset_is_found(large: Any, small: Any) -> None:
    samples = [{"x": small, "labels": 1} for _ in range(12)]
    assert own_workload(samples).longest == own_workload(samples).lengths == ()
    samples[7] = {"x": large, "labels": 1}
    workload = own_workload(samples)
    assert workload.longest == (7,)
    assert workload.lengths[-1] == 1.0
    assert workload.lengths[0] < 1.0
    assert workload.samples == 12
    assert workload.user_objects
    assert own_workload(datasets.Dataset.from_dict({"x": [[0], [0] * 5, [0], [0]]})).longest == (1,)


def test_a_caller_s_own_dataset_is_looked_through_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_objects, "LOOK_S", 0.2)
    (place,) = own_workload(Slow()).longest
    assert 0 < place < 1000


class Drawn(torch.utils.data.Dataset):
    """Samples that are drawn anew at each look, as by a random crop."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": [random.random()] * (index + 1)}


def test_data_that_looks_another_in_each_process_is_the_same_data() -> None:
    assert own_workload(Drawn()).data_identity == own_workload(Drawn()).data_identity
    rows = [{"x": [1.0] * number} for number in range(1, 5)]
    assert own_workload(rows).data_identity != own_workload([*reversed(rows)]).data_identity


def test_a_stream_has_no_largest_sample() -> None:
    workload = own_workload(Endless())
    assert (workload.longest, workload.samples) == ((), 0)

"""Two models are told apart by what no config says, and one model is known again."""

from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
import pytest
import torch

from autotune.workload.model.sent_model import layers_digest
from tests.trainers import CHECKPOINTING, bert, built


def wider(model: Any) -> None:
    model.classifier = torch.nn.Linear(16, 3)


def other_kind(model: Any) -> None:
    model.bert.encoder.layer[0].intermediate.intermediate_act_fn = torch.nn.ReLU()


def patched(model: Any) -> None:
    own = model.bert.forward
    model.bert.forward = lambda *args, **kwargs: own(*args, **kwargs)


def hooked(model: Any) -> None:
    model.bert.register_forward_pre_hook(lambda *_: None)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "embeddings frozen": lambda model: model.bert.embeddings.requires_grad_(False),
    "query frozen": lambda model: model.bert.encoder.layer[0].attention.self.query.requires_grad_(False),
    "attention": lambda model: model.set_attn_implementation("eager"),
    "dtype": lambda model: model.classifier.to(torch.bfloat16),
    "shape": wider,
    "kind": other_kind,
    "patch": patched,
    "hook": hooked,
}


def test_every_change_makes_another_model_of_it() -> None:
    models = {name: bert() for name in CHANGES}
    for name, change in CHANGES.items():
        change(models[name])
    digests = {name: layers_digest(model) for name, model in models.items()}
    assert len({*digests.values(), layers_digest(bert())}) == len(CHANGES) + 1, digests


@pytest.mark.parametrize("name", CHANGES)
def test_a_model_that_was_sent_is_known_again(name: str) -> None:
    model = bert()
    CHANGES[name](model)
    assert layers_digest(cloudpickle.loads(cloudpickle.dumps(model))) == layers_digest(model)


@pytest.mark.parametrize("fields", [{"bf16": True}, {CHECKPOINTING: True}])
def test_a_training_in_between_makes_no_other_model(fields: dict[str, Any], tmp_path: Any) -> None:
    model = bert()
    before = layers_digest(model)
    built(tmp_path, model=model, fields={"max_steps": 1, **fields}).train()
    assert layers_digest(model) == before


def test_what_a_library_hangs_on_a_model_to_train_it_is_none_of_its_own() -> None:
    model = bert()
    before = layers_digest(model)
    model.enable_input_require_grads()
    assert layers_digest(model) == before
    model.bert.register_forward_hook(partial(print))
    assert layers_digest(model) != before

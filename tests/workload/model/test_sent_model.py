"""Which models travel without their weights, and that what is made of these is the same but for the weights."""

import types
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer

from autotune.workload.model.pickling import sent
from autotune.workload.model.sent_model import without_weights
from autotune.workload.model.user_objects import UserObjects

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def bert(**more: Any) -> Any:
    return BertForSequenceClassification(BertConfig(**SIZES, vocab_size=64, **more))


def made(model: Any, trainer_class: type = Trainer) -> Any:
    """The model that a trial gets, sent without its weights."""
    model_init, reason = without_weights(model, trainer_class)
    assert model_init is not None, reason
    user = UserObjects.opened(sent({"model_init": model_init}))
    assert all(weight.is_meta for weight in user.outline().parameters())
    return user.model()


def test_a_plain_model_is_the_same_with_other_weights() -> None:
    model = bert(num_labels=5).to(torch.bfloat16)
    model.resize_token_embeddings(80)
    model.bert.embeddings.requires_grad_(False)
    again = made(model)
    shapes = [(name, item.shape, item.dtype, item.requires_grad) for name, item in model.named_parameters()]
    assert [(name, item.shape, item.dtype, item.requires_grad) for name, item in again.named_parameters()] == shapes
    assert not torch.equal(again.classifier.weight, model.classifier.weight)
    assert again.classifier.weight.float().std() > 0
    assert all(torch.equal(mine, other) for mine, other in zip(model.buffers(), again.buffers(), strict=True))


def replaced(model: Any) -> Any:
    model.classifier = torch.nn.Sequential(torch.nn.Linear(16, 2))
    return model


def mixed(model: Any) -> Any:
    model.classifier.to(torch.bfloat16)
    return model


def adapted(model: Any) -> Any:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"]))


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks for it
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (replaced, "changed after"),
        (mixed, "several dtypes"),
        (adapted, "not one of transformers"),
        (lambda model: torch.nn.Sequential(model), "not one of transformers"),
    ],
)
def test_any_other_model_keeps_its_weights_and_the_reason_is_told(change: Any, reason: str) -> None:
    model_init, why = without_weights(change(bert()), Trainer)
    assert model_init is None
    assert reason in why


def test_what_was_set_on_the_model_goes_along() -> None:
    model = bert()
    inner, tied = model.bert.encoder.layer[0], model.bert.encoder.layer[1].output.dense
    inner.output.dropout.p, model.my_flag, model.classifier.weight.is_special = 0.4, "set", True
    inner.forward = types.MethodType(lambda self, *args, **kwargs: type(self).forward(self, *args, **kwargs), inner)
    tied.register_forward_hook(lambda module, given, result: 2 * result)
    model.register_buffer("class_weights", torch.ones(2))
    model.loss_function = len
    again = made(model)
    layer = again.bert.encoder.layer[0]
    assert (layer.output.dropout.p, again.dropout.p, again.my_flag) == (0.4, model.dropout.p, "set")
    assert layer.forward.__self__ is layer
    assert len(again.bert.encoder.layer[1].output.dense._forward_hooks) == 1
    assert again.classifier.weight.is_special
    assert torch.equal(again.class_weights, torch.ones(2))
    assert again.loss_function is len

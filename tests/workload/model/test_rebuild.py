"""Which models travel as class and config, and that what is made of these is the same but for its weights."""

import functools
import types
from typing import Any

import cloudpickle
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel, Trainer

from autotune.space.settings.checkpointing import enabled_on
from autotune.workload.model.pickling import sent
from autotune.workload.model.rebuild import (
    CONFIG,
    ITSELF,
    MODEL_INIT,
    Prebuilt,
    arguments_needed,
    called,
    made_by,
    rebuilt,
    takes_trial,
)
from autotune.workload.model.user_objects import UserObjects

SIZES = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def bert(**more: Any) -> Any:
    return BertForSequenceClassification(BertConfig(**SIZES, **more))


def test_a_plain_model_is_rebuilt_alike_with_other_weights() -> None:
    model = bert(num_labels=5).to(torch.bfloat16)
    model.resize_token_embeddings(80)
    model.bert.embeddings.requires_grad_(False)
    made, reason = rebuilt(model, Trainer)
    assert (reason, len(cloudpickle.dumps(made)) < 10_000) == ("", True)
    assert made is not None
    again = cloudpickle.loads(cloudpickle.dumps(made))()
    shapes = [(name, item.shape, item.dtype, item.requires_grad) for name, item in model.named_parameters()]
    assert [(name, item.shape, item.dtype, item.requires_grad) for name, item in again.named_parameters()] == shapes
    assert not torch.equal(again.classifier.weight, model.classifier.weight)
    assert [made_by(item) for item in (bert, made, Prebuilt(model))] == [MODEL_INIT, CONFIG, ITSELF]
    assert again.training


def replaced(model: Any) -> Any:
    model.classifier = torch.nn.Sequential(torch.nn.Linear(16, 2))
    return model


def patched(model: Any) -> Any:
    inner = model.bert.forward
    model.bert.forward = lambda *args, **kwargs: inner(*args, **kwargs)
    return model


def with_another_loss(model: Any) -> Any:
    model.loss_function = lambda *_, **__: None
    return model


def hooked(model: Any) -> Any:
    model.bert.register_forward_hook(lambda *_: None)
    return model


def mixed(model: Any) -> Any:
    model.classifier.to(torch.bfloat16)
    return model


def set_on(model: Any, value: Any) -> Any:
    model.bert._extra = value
    return model


def with_buffer(model: Any) -> Any:
    model.register_buffer("class_weights", torch.ones(2))
    return model


def marked(model: Any) -> Any:
    model.classifier.weight.is_special = True
    return model


def adapted(model: Any) -> Any:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"]))


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks for it
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (replaced, "changed after"),
        (patched, "forward of one of its layers"),
        (with_another_loss, "its loss function was set"),
        (hooked, "hooks"),
        (mixed, "several dtypes"),
        (with_buffer, "changed after"),
        (marked, "classifier.weight was set"),
        *((functools.partial(set_on, value=value), "bert._extra was set") for value in ([1], torch.ones(1), len, {})),
        (lambda model: setattr(model, "train", types.MethodType(type(model).train, model)) or model, "train was set"),
        (adapted, "not a PreTrainedModel"),
        (lambda model: torch.nn.Sequential(model), "not a PreTrainedModel"),
    ],
)
def test_any_other_model_is_not_rebuilt_and_the_reason_is_said(change: Any, reason: str) -> None:
    made, said = rebuilt(change(bert()), Trainer)
    assert made is None
    assert reason in said


def test_numbers_of_layers_that_were_changed_are_changed_in_the_rebuilt_model_too() -> None:
    model = bert()
    model.bert.encoder.layer[0].output.dropout.p = 0.4
    model.my_flag = "set"
    made, _ = rebuilt(model, Trainer)
    assert made is not None
    again = cloudpickle.loads(cloudpickle.dumps(made))()
    assert again.bert.encoder.layer[0].output.dropout.p == 0.4
    assert again.dropout.p == model.dropout.p != 0.4
    assert again.my_flag == "set"


@pytest.mark.skipif(
    not hasattr(PreTrainedModel, "activation_checkpointing_enable"),
    reason="this transformers checkpoints all layers or none",
)
def test_layers_that_forget_forget_in_the_rebuilt_model_too() -> None:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32}
    model = ViTForImageClassification(ViTConfig(**sizes, image_size=8, patch_size=4))
    model.activation_checkpointing_enable(every_n_layers=2)
    made, reason = rebuilt(model, Trainer)
    assert made is not None, reason
    assert enabled_on(made()) == enabled_on(made.on("meta")) == "every_2nd"


def test_what_the_trainer_s_own_package_patched_is_patched_again_there() -> None:
    utils = pytest.importorskip("trl.trainer.utils")
    trl = pytest.importorskip("trl")
    from transformers import Qwen2Config, Qwen2ForCausalLM

    small = {name: value for name, value in SIZES.items() if name != "num_attention_heads"}
    model = Qwen2ForCausalLM(Qwen2Config(**small, num_attention_heads=2, num_key_value_heads=2))
    utils.add_fused_lm_head(model)
    assert rebuilt(model, trl.SFTTrainer)[1] == ""
    assert "forward" in rebuilt(model, Trainer)[1]


class Net(torch.nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(width, 1)


class Sized(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(width, 1)


def model_init(trial: Any) -> Net:
    return Net()


@pytest.mark.parametrize(
    ("given", "name", "trial", "needed"),
    [
        (Net, "Net", False, []),
        (Sized, "Sized", False, ["width"]),
        (functools.partial(Sized, 3), "Sized", False, []),
        (functools.partial(Sized), "Sized", False, ["width"]),
        (model_init, "model_init", True, []),
        (lambda: Net(), "model", False, []),
        (lambda trial, width: Net(width), "model", True, ["width"]),
    ],
)
def test_what_makes_a_model_has_a_name_and_says_what_it_needs(
    given: Any, name: str, trial: bool, needed: list[str]
) -> None:
    assert (called(given), takes_trial(given), arguments_needed(given)) == (name, trial, needed)


@pytest.mark.parametrize("given", [Net, functools.partial(Sized, 3), model_init])
def test_a_class_a_partial_and_an_object_that_is_called_make_models_where_probes_run(given: Any) -> None:
    user = UserObjects.opened(sent({"model_init": given, "train_dataset": [1]}))
    assert isinstance(user.model().layer, torch.nn.Linear)
    assert user.model() is not user.model()

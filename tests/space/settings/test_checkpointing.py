"""Activation checkpointing."""

from functools import partial
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from autotune.core import Configuration
from autotune.space.settings import Context
from autotune.space.settings.checkpointing import SETTING, VALUES, field_name, switch_off
from autotune.space.setup import training_setup
from tests.makers import FIELDS, configuration, cpu, gpu, workload
from tests.space.settings.fakes import observed

OLDER = cpu(
    training_argument_fields=tuple(name for name in FIELDS if name != "activation_checkpointing"),
    checkpointing_options=(),
)
KEYWORDS = {"use_reentrant": False}


class GradientCheckpointingLayer(torch.nn.Linear):
    """As transformers' class of that name: a layer with a flag."""

    def __init__(self, on: bool) -> None:
        super().__init__(2, 2)
        self.gradient_checkpointing = on


def checkpoint(*_: Any, **__: Any) -> None:
    """As torch's function of that name."""


def checkpoint_func(*_: Any, **__: Any) -> None:
    """As transformers' function that keeps activations on the host."""


def layers(*flags: bool, function: Any = checkpoint, **keywords: Any) -> torch.nn.Module:
    model = torch.nn.Sequential(*(GradientCheckpointingLayer(flag) for flag in flags))
    for layer in model:
        layer._gradient_checkpointing_func = partial(function, **{**KEYWORDS, **keywords})  # type: ignore[assignment]
    return model


def shown(model: torch.nn.Module, **options: Any) -> Any:
    told = observed(model=model)
    told.trainer.args.activation_checkpointing_kwargs = options
    return SETTING.read_back(told)


def test_it_is_called_as_this_transformers_calls_it() -> None:
    assert field_name(cpu()) == "activation_checkpointing"
    assert field_name(OLDER) == "gradient_checkpointing"
    assert SETTING.apply("full", cpu()).training_arguments == {
        "activation_checkpointing": True,
        "activation_checkpointing_kwargs": KEYWORDS,
    }
    assert SETTING.apply("full_reentrant", OLDER).training_arguments == {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
    }


@pytest.mark.parametrize("own", ["every_2nd", "every_3rd", "offload", "full_reentrant"])
def test_each_value_is_itself_whatever_the_user_s_own_is(own: str) -> None:
    base = {**SETTING.apply(own, cpu()).training_arguments}
    base["activation_checkpointing_kwargs"] |= {"preserve_rng_state": False}
    for value in VALUES[1:]:
        fields = training_setup(configuration(8, 8, checkpointing=value), cpu(), base).training_arguments
        assert SETTING.from_user(Context(cpu(), workload(), fields)) == value
        assert fields["activation_checkpointing_kwargs"]["preserve_rng_state"] is False


def test_where_it_is_not_searched_the_user_s_own_stays_under_either_name() -> None:
    size = Configuration.exact(8, 8, {"workers": 0})
    older = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
    newer = {name.replace("gradient", "activation"): value for name, value in older.items()}
    for own in (older, newer, older | newer, {**older, **dict.fromkeys(newer)}):
        fields = training_setup(size, cpu(), own).training_arguments
        assert {name: value for name, value in fields.items() if "checkpointing" in name} == newer
    fields = training_setup(size, cpu(), older | {"activation_checkpointing": False}).training_arguments
    assert fields["activation_checkpointing"] is False
    assert training_setup(size, OLDER, older).training_arguments.items() >= older.items()


@pytest.mark.parametrize("name", ["activation_checkpointing", "gradient_checkpointing"])
def test_the_user_s_own_is_read_under_both_names(name: str) -> None:
    def value(**fields: Any) -> str:
        return str(SETTING.from_user(Context(cpu(), workload(), {name: True, **fields})))

    assert (value(), value(**{name: False})) == ("full", "none")
    for options, own in (
        ({"use_reentrant": True}, "full_reentrant"),
        ({"every_n_layers": 3}, "every_3rd"),
        ({"preserve_rng_state": False}, "full"),
    ):
        assert value(**{f"{name}_kwargs": options}) == own
    assert SETTING.from_user(Context(cpu(), workload())) == "none"


@pytest.mark.parametrize("options", [{"every_n_layers": 7}, {"every_n_layers": 2, "offload": True}, "use_reentrant"])
def test_options_of_the_user_s_own_that_are_no_value_are_refused(options: Any) -> None:
    with pytest.raises(ValueError, match=r"not (one of|a table)"):
        SETTING.from_user(
            Context(cpu(), workload(), {"activation_checkpointing": True, "activation_checkpointing_kwargs": options})
        )


def test_it_is_read_back_from_the_layers_that_forget() -> None:
    assert shown(layers(False, False)) == "none"
    assert shown(layers(True, True, True)) == "full"
    assert shown(layers(True, True), use_reentrant=True) == "full", "what is called counts, not what was asked for"
    assert shown(layers(True, True, use_reentrant=True)) == "full_reentrant"
    assert shown(layers(True, False, True), every_n_layers=2) == "every_2nd"
    assert shown(layers(True, False, False, True), every_n_layers=3) == "every_3rd"
    assert shown(layers(True, True, True), every_n_layers=2) == "3 of 3 layers"
    assert shown(layers(True, False, True)) == "2 of 3 layers"
    assert shown(layers(True, True, function=checkpoint_func), offload=True) == "offload"
    assert shown(layers(True, True), offload=True) == "full"


def test_it_is_unavailable_where_the_model_does_not_support_it() -> None:
    for value in VALUES:
        reason = str(SETTING.unavailable(value, Context(gpu(), workload(supports_checkpointing=False))))
        assert ("does not support" in reason) == (value != "none")
        assert SETTING.unavailable(value, Context(gpu(), workload(supports_checkpointing=None))) is None


def test_options_that_this_transformers_does_not_know_are_unavailable() -> None:
    for value, option in (("every_2nd", "every_n_layers"), ("every_3rd", "every_n_layers"), ("offload", "offload")):
        assert option in str(SETTING.unavailable(value, Context(OLDER, workload())))
    assert SETTING.unavailable("full_reentrant", Context(OLDER, workload())) is None
    assert "host" in str(SETTING.unavailable("offload", Context(cpu(), workload())))


def test_the_fewer_layers_forget_the_hungrier_a_training_is() -> None:
    order = ["none", "every_3rd", "every_2nd", "full"]
    for at, one in enumerate(order):
        assert all(SETTING.costs.needs_at_least_as_much(one, other) for other in order[at:])
        assert not any(SETTING.costs.needs_at_least_as_much(one, other) for other in order[:at])
    for other in ("offload", "full_reentrant"):
        assert not SETTING.costs.needs_at_least_as_much("full", other)
        assert not SETTING.costs.needs_at_least_as_much(other, "full")
    assert SETTING.costs.work("full", {}).arithmetic == pytest.approx(4 / 3)
    assert SETTING.costs.work("every_3rd", {}).arithmetic == pytest.approx(1 + 1 / 9)


def gpt2() -> Any:
    sizes = {"vocab_size": 64, "n_positions": 8, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=1))


def adapted(model: Any) -> Any:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))


def hooks_of(model: torch.nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_model_that_was_switched_on_by_hand_is_switched_off_below_its_adapter_too(wrapped: bool) -> None:
    model = gpt2()
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()  # again, as PEFT and TRL do: transformers forgets the first hook
    whole = adapted(model) if wrapped else model
    kept = model.lm_head.register_forward_hook(lambda *_: None)
    assert SETTING.read_back(observed(model=whole)) != "none"
    assert hooks_of(whole) >= 3
    switch_off(whole)
    assert SETTING.read_back(observed(model=whole)) == "none"
    assert not model.is_gradient_checkpointing
    assert hooks_of(whole) == 1, "the user's own hook stays"
    kept.remove()
    embedded = model.get_input_embeddings()(torch.tensor([[1, 2]]))
    assert embedded.requires_grad is not wrapped, "frozen embeddings let nothing through any more"


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_hooks_that_only_checkpointing_needs_leave_an_adapter_that_never_was_checkpointed() -> None:
    model = adapted(gpt2())
    model.enable_input_require_grads()  # TRL's constructor, long before the training switches checkpointing on
    switch_off(model)
    assert hooks_of(model) == 0


def test_a_model_without_checkpointing_keeps_what_the_user_hooked_to_it() -> None:
    model = gpt2()
    model.enable_input_require_grads()
    switch_off(model)
    assert hooks_of(model) == 1


def test_what_was_switched_on_by_hand_is_the_user_s_own_where_the_arguments_say_nothing() -> None:
    by_hand = workload(checkpointing="every_2nd")
    assert SETTING.from_user(Context(cpu(), by_hand)) == "every_2nd"
    assert SETTING.from_user(Context(cpu(), by_hand, {"gradient_checkpointing": True})) == "full", (
        "the Trainer switches it on anew"
    )
    with pytest.raises(ValueError, match="2 of 5 layers"):
        SETTING.from_user(Context(cpu(), workload(checkpointing="2 of 5 layers")))

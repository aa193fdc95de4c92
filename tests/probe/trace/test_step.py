"""Traces on tensors without storage are what a real training on the CPU allocates, and know any number of layers."""

import dataclasses
import gc
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig

from autotune.core import Workload
from autotune.core.note import Note
from autotune.memory.envelope import peak_lines
from autotune.memory.trace import FIRST, FURTHER, MemoryTrace, between, repeated
from autotune.probe.trace.layers import Repeats, find_repeats
from autotune.probe.trace.step import Subject, _weights, trace_step
from autotune.space.settings import SETTINGS
from autotune.workload.model.build import choose_task, config_of, model_outline, plain_config
from autotune.workload.read import _fit_task
from tests.makers import cpu

QUICK = ("fp32", "checkpointed in bf16")
"""Ways of training where each takes a second or more."""

SMALL = {"vocab_size": 160, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
SMALL |= {"num_hidden_layers": 6, "max_position_embeddings": 64}
SMALL |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {"vocab_size": 160, "n_embd": 32, "n_head": 4, "n_layer": 6, "n_positions": 64, "bos_token_id": 1}
T5 = {"vocab_size": 160, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "num_layers": 6, "num_decoder_layers": 5}
BART = {"vocab_size": 160, "d_model": 32, "encoder_layers": 6, "decoder_layers": 5, "encoder_attention_heads": 4}
BART |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64}
VIT = {"hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32}
MODELS: dict[str, dict[str, Any]] = {
    "bert": SMALL,
    "gpt2": {**GPT2, "eos_token_id": 2},
    "llama": {**SMALL, "num_key_value_heads": 2},
    "gemma": {**SMALL, "num_key_value_heads": 2, "head_dim": 8},
    "t5": {**T5, "pad_token_id": 0, "decoder_start_token_id": 0},
    "bart": {**BART, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2},
    "vit": {**VIT, "patch_size": 8, "num_labels": 5},
    "mixtral": {**SMALL, "num_key_value_heads": 2, "num_local_experts": 4},
}
WAYS = {
    "fp32": {},
    "bf16": {"bf16": True},
    "checkpointed": {"activation_checkpointing": True},
    "checkpointed in bf16": {"bf16": True, "activation_checkpointing": True},
}


LIKE_ANOTHER = ("gpt2", "gemma", "bart", "vit", "mixtral")
"""Models whose layers are nearly those of another one here."""


def workload_of(name: str, task: str | None = None, **more: Any) -> Workload:
    """The workload of 24 tokens that such a config makes."""
    config = AutoConfig.for_model(name, **{**MODELS[name], **more})
    task = choose_task(config, task)
    _fit_task(config, task)
    tokens = None if task == "image-classification" else 24
    return Workload(name=name, task=task, model_config=plain_config(config), sequence_length=tokens)


def subject_of(workload: Workload) -> Subject:
    return Subject(workload, (2, 3), on_cuda=False)


def real_batch(subject: Subject, size: int) -> dict[str, Any]:
    return {name: torch.stack([item] * size) for name, item in subject.sample.items()}


def fake_trace(subject: Subject, asked: dict[str, Any], size: int = 2, layers: int | None = None) -> MemoryTrace:
    """The trace without storage."""
    return MemoryTrace.from_dict(subject._tape(asked, size, layers))


def real_trace(subject: Subject, asked: dict[str, Any], config: Any = None) -> MemoryTrace:
    """The trace of a step of two samples on real tensors."""
    batch = real_batch(subject, 2)
    return MemoryTrace.from_dict(trace_step(subject.workload, config or subject.config, batch, asked, Repeats()))


def peaks(tape: MemoryTrace) -> dict[str, float]:
    """Phase -> the most bytes that lived."""
    return {phase: max(sum(line.bytes_at(2)) for line in lines) for phase, lines in peak_lines(tape).items()}


def quick(*names: str) -> list[Any]:
    """These as parameters; those like another one are nightly."""
    return [pytest.param(name, marks=pytest.mark.nightly) if name in LIKE_ANOTHER else name for name in names]


@pytest.mark.parametrize("name", quick(*MODELS))
def test_a_trace_without_storage_has_the_bytes_of_a_real_training_on_the_cpu(name: str) -> None:
    if name == "bart" and transformers.__version__.startswith("5.17."):
        pytest.skip("this transformers looks at a number that it draws for each layer: it cannot be traced")
    subject = subject_of(workload_of(name))
    config = subject.repeats.config(subject.config, 2)
    for way in WAYS if name == "bert" else QUICK:
        asked = {"training_arguments": WAYS[way]}
        fake = peaks(fake_trace(subject, asked, layers=2))
        for phase, most in peaks(real_trace(subject, asked, config)).items():
            # torch's shape function for a layer norm of bfloat16 with float32 weights gives its statistics 16 bits, the
            # CPU's kernel writes 32: two numbers a token.
            allowed = 0 if way in ("fp32", "checkpointed") else 3 * 2 * 2 * 24 * 2
            assert abs(fake[phase] - most) <= allowed, way


@pytest.mark.parametrize(
    "workload",
    [
        *(workload_of("gpt2", "sequence-classification"), workload_of("mixtral")),
        pytest.param(workload_of("bert", "question-answering"), marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_a_step_of_few_layers_without_storage_has_the_bytes_of_one_of_all_layers(workload: Workload) -> None:
    subject, asked, notes = subject_of(workload), {"training_arguments": {}}, list[Note]()
    told = subject.step(asked, notes)
    assert notes == []
    few = MemoryTrace.from_dict(told["tapes"][2])
    fake = few if told["whole"] else repeated(few, subject.repeats.counts)
    real = real_trace(subject, asked)
    # Experts go another way without storage: where each one's tokens end, a number of 4 bytes, is held a moment longer.
    ends = 4 * subject.config.num_hidden_layers * getattr(subject.config, "num_experts", 0)
    for phase, most in peaks(real).items():
        assert abs(peaks(fake)[phase] - most) <= ends


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")  # torch 2.11 does so of every profile
def test_the_tracker_sees_what_torch_s_profiler_says_was_allocated() -> None:
    subject = subject_of(workload_of("t5", attn_implementation="eager"))
    asked = {"training_arguments": {}, "model_arguments": {"attn_implementation": "eager"}}
    tracked = real_trace(subject, asked)
    gc.collect()
    seen = profiled_peaks(subject, real_batch(subject, 2), asked)
    told = max(peaks(tracked).values())
    assert abs(seen - told) / told < 0.01


def profiled_peaks(subject: Subject, batch: dict[str, Any], asked: dict[str, Any]) -> int:
    """The most bytes that torch's allocator gave out above those before the first micro-step."""
    from autotune.workload.model.build import build_model

    model = build_model(subject.workload, subject.config, model_arguments=asked["model_arguments"])
    model.config.use_cache = False

    def loss() -> Any:
        return model(**batch)["loss"]

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        for _ in range(2):
            (loss() / 2).backward()
    live = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            most = max(most, live)
    return most


@pytest.mark.parametrize(
    "name", ["llama", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("bert", "gpt2", "t5", "bart"))]
)
def test_few_layers_with_the_middle_one_repeated_are_the_whole_model(name: str) -> None:
    subject = subject_of(workload_of(name))
    assert subject.repeats.places
    asked = {"training_arguments": WAYS["checkpointed in bf16"]}
    told = subject.step(asked, [])
    assert not told["whole"]
    long = repeated(MemoryTrace.from_dict(told["tapes"][2]), subject.repeats.counts)
    whole = fake_trace(subject, asked)
    assert long.tensors == whole.tensors
    assert list(long.events(FIRST)) == list(whole.events(FIRST))
    assert list(long.events(FURTHER)) == list(whole.events(FURTHER))


def test_two_micro_batch_sizes_tell_every_larger_one() -> None:
    subject = subject_of(workload_of("llama"))
    for way in QUICK:
        asked = {"training_arguments": WAYS[way]}
        line = between(fake_trace(subject, asked, 2, 2), 2, fake_trace(subject, asked, 3, 2), 3)
        assert line is not None
        seven = peak_lines(fake_trace(subject, asked, 7, 2))
        for phase, lines in peak_lines(line).items():
            assert max(sum(line.bytes_at(7)) for line in lines) == max(sum(line.bytes_at(7)) for line in seven[phase])


def test_a_number_that_only_happens_to_be_the_same_is_not_taken_for_layers() -> None:
    workload = workload_of("bert", num_attention_heads=8, num_hidden_layers=8, hidden_size=64)
    config = config_of(workload)
    found = find_repeats(config, model_outline(config, workload.task), workload.task)
    assert [name for _, name in found.fields] == ["num_hidden_layers"]


def test_layers_of_different_kinds_are_traced_all() -> None:
    config = AutoConfig.for_model("gemma3_text", **{**MODELS["gemma"], "sliding_window": 8, "num_hidden_layers": 12})
    workload = Workload(name="gemma3", task="causal-lm", model_config=plain_config(config), sequence_length=24)
    assert subject_of(workload).repeats == Repeats()


def test_what_cannot_be_traced_says_why() -> None:
    subject = subject_of(workload_of("bert"))
    told = subject.step({"training_arguments": {}, "model_arguments": {"attn_implementation": "none such"}}, [])
    assert "none such" in told["error"]


def test_a_config_that_has_checkpointing_on_is_traced_without_it_where_nobody_asks() -> None:
    plain = workload_of("bert")
    checkpointed = dataclasses.replace(plain, model_config={**plain.model_config, "gradient_checkpointing": True})
    first, second = (
        fake_trace(subject_of(item), {"training_arguments": {}}, layers=2) for item in (plain, checkpointed)
    )
    assert peaks(first) == peaks(second)


def asked_for(**settings: str) -> dict[str, Any]:
    """Training and model arguments of these settings' values, as an order of this kind has them."""
    effects = [SETTINGS[name].apply(value, cpu()) for name, value in settings.items()]
    asked: dict[str, Any] = {"training_arguments": {}, "model_arguments": {}}
    for effect in effects:
        asked["training_arguments"] |= effect.training_arguments
        asked["model_arguments"] |= effect.model_arguments
    return asked


@pytest.mark.parametrize("value", ["every_2nd", pytest.param("full_reentrant", marks=pytest.mark.nightly)])
def test_a_part_of_the_layers_that_forgets_has_the_bytes_of_a_real_training(value: str) -> None:
    subject, asked = subject_of(workload_of("llama")), asked_for(checkpointing=value, precision="fp32")
    told = subject.step(asked, [])
    fake = fake_trace(subject, asked)
    real = real_trace(subject, asked)
    assert peaks(fake) == peaks(real)
    assert told["whole"] or value == "full_reentrant", "layers that are not alike stand for no others"


def test_what_waits_in_the_hosts_memory_is_none_of_the_devices() -> None:
    subject = subject_of(workload_of("bert"))
    layers, held = 3, 4 * 2 * 24 * 32
    full, offload = (
        peaks(fake_trace(subject, asked_for(checkpointing=value), layers=layers)) for value in ("full", "offload")
    )
    assert offload[FIRST] <= full[FIRST]
    assert offload[FURTHER] == full[FURTHER] - (layers - 1) * held, "all but the input of the layer that goes back"


def test_weights_in_16_bits_have_the_bytes_of_a_real_training() -> None:
    subject, asked = subject_of(workload_of("bert")), asked_for(precision="bf16_weights", checkpointing="none")
    told = subject.step(asked, [])
    whole = subject.step(asked_for(precision="fp32", checkpointing="none"), [])
    assert 2 * sum(told["weights"]) < 1.1 * sum(_weights(subject.outline))
    assert "weights" not in whole
    fake, real = peaks(fake_trace(subject, asked)), peaks(real_trace(subject, asked))
    in_fp32 = peaks(fake_trace(subject, asked_for(precision="fp32")))
    for phase, most in real.items():
        assert fake[phase] == most
        assert 1.3 * most < in_fp32[phase]


def test_an_order_of_this_kind_answers_with_steps_and_updates(tmp_path: Path) -> None:
    from autotune.probe.order import Order
    from autotune.probe.trace import step

    request = {
        "steps": [{"training_arguments": {}}],
        "updates": [{"optim": name} for name in ("adamw_torch", "sgd", "nothing")],
        "on_cuda": False,
    }
    workload = workload_of("bert")
    answer = step.run(
        Order(kind="trace", folder=str(tmp_path), deadline_s=60, workload=workload, request=request), b"", tmp_path
    )
    assert set(answer["steps"][0]["tapes"]) == {1, 2, 3}
    assert [("tape" in item) for item in answer["updates"]] == [True, True, False]
    assert sum(answer["weights"]) > 4 * 32 * 160
    units = answer["units"]
    assert 0 < units["layer"] < units["all"]
    assert units["outside"] >= 32 * units["width"] > 0

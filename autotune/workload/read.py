"""Workload of a request: its model and data, as every probe of the study gets them."""

from pathlib import Path
from typing import Any

from autotune.core import InvalidRequest, TuningRequest, Workload
from autotune.core.note import Note, NoteKind
from autotune.core.paths import cache_folder, named
from autotune.workload.arguments import check_arguments
from autotune.workload.data.prepare import PreparedData, prepare_data
from autotune.workload.data.sampling import collating
from autotune.workload.model.adapters import adapter_targets, linear_layers
from autotune.workload.model.build import (
    attentions,
    choose_task,
    count_parameters,
    experts,
    model_outline,
    plain_config,
    supports_checkpointing,
)
from autotune.workload.model.config import longest_sequence, read_config, token_id
from autotune.workload.model.liger import made_for
from autotune.workload.model.user_objects import user_workload
from autotune.workload.model.weights import local_weights

DEFAULT_SEQUENCE_LENGTH = 512
SHORTEST_SEQUENCE_LENGTH = 2
"""A causal model predicts the next token: after a single token nothing is left to predict."""


def read_workload(request: TuningRequest, cache: Path, objects: bytes = b"") -> Workload:
    """The workload of a request; objects: the caller's, pickled. Raises InvalidRequest, StorageFailed."""
    check_arguments(request.training_args)
    return user_workload(request, objects) if objects else prepare(request, cache)


def prepare(request: TuningRequest, cache: Path) -> Workload:
    """The workload of a request, its data prepared below the cache. Raises InvalidRequest, StorageFailed."""
    config, source = read_config(request.model, request.trust_remote_code)
    task = choose_task(config, request.task)
    length = _sequence_length(request, config, task)
    notes = [Note(NoteKind.RANDOM_WEIGHTS)]
    notes += _fit_task(config, task)
    _check_input(model_outline(config, task, request.trust_remote_code), config, task)
    if request.tokenizer is not None and task == "image-classification":
        raise InvalidRequest("A model of images reads no text, but --tokenizer is given.", "Leave --tokenizer out.")
    if is_quantized := bool(getattr(config, "quantization_config", None)):
        notes.append(Note(NoteKind.UNQUANTIZED))
    data = prepare_data(request, config, task, length, cache) if request.dataset is not None else None
    if data:
        notes += [*data.notes, *_fit_data(config, data)]
    model = model_outline(config, task, request.trust_remote_code)
    parameters, parameter_bytes = count_parameters(model)
    expert, expert_reasons = experts(model)
    return Workload(
        name=named(request.model),
        task=task,
        source=source,
        model_config=plain_config(config),
        trust_remote_code=request.trust_remote_code,
        architecture=type(model).__name__,
        sequence_length=length,
        parameters=parameters,
        parameter_bytes=parameter_bytes,
        gradient_bytes=parameter_bytes,
        linear_parameters=sum(layer.weight.numel() for _, layer in linear_layers(model)),
        supports_checkpointing=supports_checkpointing(model),
        attention=str(getattr(model.config, "_attn_implementation", None) or "eager"),
        attentions=attentions(model),
        liger=made_for(config),
        expert=expert,
        experts=expert_reasons,
        adapter_targets=adapter_targets(model),
        collating=collating(task, bool(data and data.longest), model),
        data=_below_cache(data.folder) if data else "",
        data_identity=data.identity if data else "synthetic",
        text_source=data.text_source if data else "",
        samples=data.samples if data else 0,
        longest=data.longest if data else (),
        lengths=tuple(round(tokens / (length or 1), 4) for tokens in data.lengths) if data else (),
        weights="" if is_quantized else local_weights(request.model),
        notes=tuple(notes),
    )


def _below_cache(folder: str) -> str:
    """The folder's place below the cache, which every child knows: report folders name no path of the machine."""
    place, cache = Path(folder), cache_folder()
    return str(place.relative_to(cache)) if place.is_relative_to(cache) else folder


def _sequence_length(request: TuningRequest, config: Any, task: str) -> int | None:
    """Tokens of the longest sample: as requested, else 512 or the most the model takes; None for images."""
    length = request.sequence_length
    if task == "image-classification":
        if length is not None:
            raise InvalidRequest(
                f"A model of images has no sequence length, but {length} was requested.", "Leave --sequence-length out."
            )
        return None
    longest = longest_sequence(config)
    if length is None:
        return min(DEFAULT_SEQUENCE_LENGTH, longest or DEFAULT_SEQUENCE_LENGTH)
    if longest is not None and length > longest:
        raise InvalidRequest(
            f"A sequence of {length} tokens is longer than the {longest} that {request.model} takes.",
            f"Use --sequence-length {longest} or less.",
        )
    if length < SHORTEST_SEQUENCE_LENGTH:
        raise InvalidRequest(
            f"A sequence of {length} token leaves nothing to learn.", f"Use at least {SHORTEST_SEQUENCE_LENGTH}."
        )
    return length


def _check_input(model: Any, config: Any, task: str) -> None:
    """Raises InvalidRequest for a model that reads something else than the task's text or images, such as sound."""
    wanted = "pixel_values" if task == "image-classification" else "input_ids"
    if model.main_input_name != wanted:
        raise InvalidRequest(
            f"The model type {config.model_type} reads {model.main_input_name}, which autotune cannot provide for {task}.",
            "Choose a model of text (input_ids) or images (pixel_values).",
        )


def _fit_task(config: Any, task: str) -> list[Note]:
    """Set fields that the task needs and the config leaves open; returns notes on it."""
    notes = []
    is_encoder = not config.is_encoder_decoder and choose_task(config, None) == "masked-lm"
    if task == "causal-lm" and is_encoder and getattr(config, "is_decoder", None) is False:
        config.is_decoder = True
        notes.append(Note(NoteKind.DECODER))
    classifies = task == "sequence-classification"
    if (classifies or config.is_encoder_decoder) and token_id(config, "pad_token_id") is None:
        _set_token(config, "pad_token_id", token_id(config, "eos_token_id") or 0)
        reason = "classification needs one" if classifies else "the decoder's input is shifted with it"
        notes.append(Note(NoteKind.PAD_TOKEN, {"token": config.pad_token_id}, reason))
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        start = token_id(config, "bos_token_id")
        _set_token(config, "decoder_start_token_id", start or token_id(config, "pad_token_id") or 0)
        notes.append(Note(NoteKind.START_TOKEN, {"token": config.decoder_start_token_id}))
    return notes


def _fit_data(config: Any, data: PreparedData) -> list[Note]:
    """Set fields that the data needs; returns notes on changes that people would notice."""
    notes = []
    if data.num_labels is not None:
        config.num_labels = data.num_labels
        notes.append(Note(NoteKind.LABELS, {"labels": data.num_labels}))
    if data.problem_type is not None:
        config.problem_type = data.problem_type
    for name, number in data.special_ids:
        own = getattr(config, name, None)
        among_several = isinstance(own, (list, tuple)) and number in own
        if hasattr(config, name) and own != number and not among_several:
            _set_token(config, name, number)
    return notes


def _set_token(config: Any, name: str, number: int) -> None:
    """Sets a token id on the config and on the config of text inside it, from which the model reads it."""
    setattr(config, name, number)
    part = getattr(config, "text_config", None)
    if hasattr(part, "model_type"):
        setattr(part, name, number)

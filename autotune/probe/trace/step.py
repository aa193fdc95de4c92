"""Trace of a training step on tensors without storage: what it would allocate and free."""

import contextlib
import copy
import inspect
import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from accelerate.utils import convert_outputs_to_fp32
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from transformers import masking_utils, modeling_utils
from transformers.initialization import no_init_weights
from transformers.integrations import moe

from autotune.core import Workload
from autotune.core.failures import from_exception
from autotune.core.note import Note, NoteKind
from autotune.memory.trace import FIRST, FURTHER, TRACED_LAYERS, MemoryTrace, NotPeriodic, repeated
from autotune.probe.order import Order
from autotune.probe.trace import cuda_kernels
from autotune.probe.trace.flops import count_arithmetic
from autotune.probe.trace.layers import Repeats, find_repeats, units_of
from autotune.probe.trace.optimizer import trace_update
from autotune.probe.trace.tracker import Tracker, layers_noted, micro_step
from autotune.space.settings.checkpointing import OPTIONS, options_of
from autotune.workload.data.synthetic import SyntheticSamples
from autotune.workload.model import build
from autotune.workload.model.adapters import adapted

FLOAT32 = "float32"
"""The default dtype of weights."""

NOT_IN_TIME = {"error": "there was no time to trace it"}
"""The answer for a step that was not traced in time."""

SIZES = (1, 2, 3)
"""Micro-batch sizes that are traced: 1 by itself (it is copied less), 2 and 3 for a line through both."""


def run(order: Order, _: bytes, scratch: Path) -> dict[str, Any]:
    """Tapes of the requested steps and updates, as plain data.

    request: `steps`: a list of {"training_arguments", "model_arguments", "adapter"}; `updates`: a list of training arguments
    that name an optimizer, with the weights' `dtype` and the `adapter` among them;
    `on_cuda`: whether kernels are CUDA's. Optional: `seconds` after which no further step is traced.
    The answer: `weights` and `batch` (bytes of each tensor, of one sample), `counts` (layers of each repeated list),
    `units`: fields of `Units`,
    `arithmetic` (see `count_arithmetic`, or None) of a training of all weights, `sample_flops`: adapter, as sorted JSON (empty:
    none) -> fields of `SampleFlops`, for none and those in the request's `adapters`,
    `steps` and `updates` in the order asked, each {"tapes": {size: tape}} or {"tape"} or {"error"}; a step whose
    weights are not float32 has its own `weights`; `notes`.
    """
    assert order.workload is not None
    request, started = order.request, time.monotonic()
    on_cuda = bool(request["on_cuda"])
    subject = Subject(order.workload, SIZES, on_cuda)
    notes: list[Note] = []
    until = started + request.get("seconds", math.inf)
    steps = [subject.step(step, notes) if time.monotonic() < until else dict(NOT_IN_TIME) for step in request["steps"]]
    updates = [
        trace_update(subject.of_dtype(fields.get("dtype")), fields, scratch, foreach=on_cuda)
        for fields in request["updates"]
    ]
    notes += [Note(NoteKind.STATES, detail=update.pop("states_of")) for update in updates if "states_of" in update]
    adapters = {json.dumps(adapter, sort_keys=True): adapter for adapter in request.get("adapters", ()) if adapter}
    counted = {key: _arithmetic(subject, adapter, notes) for key, adapter in {"": {}, **adapters}.items()}
    return {
        "weights": _weights(subject.outline),
        "batch": [_bytes(tensor) for tensor in subject.sample.values()],
        "counts": list(subject.repeats.counts),
        "units": units_of(subject.outline),
        "steps": steps,
        "updates": updates,
        "notes": [note.to_dict() for note in {str(note): note for note in notes}.values()],
        "arithmetic": {name: counted[""][name] for name in ("flops", "kernels")} if counted[""] else None,
        "sample_flops": {
            key: {"whole": count["flops"], "half": count["half"]} for key, count in counted.items() if count
        },
        "seconds": time.monotonic() - started,
    }


def _arithmetic(subject: "Subject", adapter: Mapping[str, Any], notes: list[Note]) -> dict[str, Any] | None:
    """See `count_arithmetic`; None if it cannot be counted.

    `half`: flops of a sample of half the length, if the data has different lengths.
    """
    workload, length = subject.workload, subject.workload.sequence_length
    try:
        with _values_guessed(subject.padded):

            def counted(sample: Mapping[str, Any]) -> dict[str, float]:
                tensors = {name: torch.as_tensor(value) for name, value in sample.items()}
                return count_arithmetic(workload, copy.deepcopy(subject.config), tensors, subject.repeats, adapter)

            half = None
            if workload.longest and length:
                half = counted(SyntheticSamples(subject.config, workload.task, length // 2, 1, seed=0)[0])["flops"]
            return counted(subject.sample) | {"half": half}
    except Exception as error:
        notes.append(Note(NoteKind.NOT_COUNTED, detail=from_exception(error, "forward").reason))
        return None


class Subject:
    """A workload to trace, with its config and the layers that repeat."""

    def __init__(self, workload: Workload, sizes: tuple[int, ...], on_cuda: bool) -> None:
        self.workload, self.sizes, self.on_cuda = workload, sizes, on_cuda
        self.padded = bool(workload.data)  # masks hide something
        self.config = config = build.config_of(workload)
        self.outline = build.model_outline(config, workload.task, workload.trust_remote_code)
        self.repeats = find_repeats(config, self.outline, workload.task, workload.trust_remote_code)
        samples = SyntheticSamples(config, workload.task, workload.sequence_length, 1, seed=0)
        self.sample: dict[str, Any] = samples[0]
        self._layers = list(TRACED_LAYERS) if self.repeats.places else []
        self._checked = False

    def step(self, fields: Mapping[str, Any], notes: list[Note]) -> dict[str, Any]:
        """{"tapes": {micro-batch size: tape}, "whole": no layer stands for others}, or {"error": why}.

        Where weights are not float32, or an adapter has some of its own, also `weights`: bytes of each.
        """
        if reason := _untraceable(fields):
            return {"error": reason}
        dtype, adapter = fields.get("model_arguments", {}).get("dtype", FLOAT32), fields.get("adapter") or {}
        if dtype == FLOAT32 and not adapter:
            return self._step(fields, notes)
        try:
            whole = adapted(copy.deepcopy(self.of_dtype(dtype)), adapter)
        except Exception as error:
            return {"error": from_exception(error, "build").reason}
        return {**self._step(fields, notes), "weights": _weights(whole)}

    def of_dtype(self, dtype: str | None) -> Any:
        """The model without storage, with weights of this dtype."""
        if dtype in (None, FLOAT32):
            return self.outline
        return build.model_outline(self.config, self.workload.task, self.workload.trust_remote_code, str(dtype))

    def _step(self, fields: Mapping[str, Any], notes: list[Note]) -> dict[str, Any]:
        why = ""
        alike = options_of(fields["training_arguments"]).get("every_n_layers", 1) == 1
        try:
            while self._layers and alike:
                try:
                    return self._short(fields, self._layers[0])
                except NotPeriodic as error:
                    why, self._checked = str(error), False
                    del self._layers[0]
            if why:
                notes.append(Note(NoteKind.ALL_LAYERS, detail=why))
            return {"tapes": {size: self._tape(fields, size) for size in self.sizes}, "whole": True}
        except Exception as error:
            return {"error": from_exception(error, "forward").reason}

    def _short(self, fields: Mapping[str, Any], layers: int) -> dict[str, Any]:
        """Tapes of n layers, checked once against a tape of one more; raises NotPeriodic."""
        tapes = {size: self._tape(fields, size, layers) for size in self.sizes}
        size = self.sizes[-1]
        repeated(MemoryTrace.from_dict(tapes[size]), self.repeats.counts)
        if not self._checked:
            again = [layers + 1] * len(self.repeats.counts)
            longer, true = (
                repeated(MemoryTrace.from_dict(tapes[size]), again),
                MemoryTrace.from_dict(self._tape(fields, size, again[0])),
            )
            events = ([segment.events for segment in trace.segments] for trace in (longer, true))
            if longer.tensors != true.tensors or next(events) != next(events):
                raise NotPeriodic(f"{layers + 1} layers are not {layers} with one repeated")
            self._checked = True
        return {"tapes": tapes, "whole": False}

    def _tape(self, fields: Mapping[str, Any], size: int, layers: int | None = None) -> dict[str, Any]:
        """The tape of two micro-steps of this micro-batch size, on tensors without storage."""
        config = self.repeats.config(self.config, layers) if layers else self.config
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with fake, _values_guessed(self.padded), cuda_kernels.cuda_ways(self.on_cuda):
            batch = {name: torch.empty((size, *row.shape), dtype=row.dtype) for name, row in self.sample.items()}
            return trace_step(self.workload, config, batch, fields, self.repeats if layers else Repeats())


def trace_step(
    workload: Workload, config: Any, batch: Mapping[str, Any], fields: Mapping[str, Any], repeats: Repeats
) -> dict[str, Any]:
    """The tape, as plain data, of a first and a further micro-step on this batch; real tensors or fake ones.

    fields: {"training_arguments", "model_arguments", "adapter"} as the settings set them.
    """
    arguments = dict(fields["training_arguments"])
    own = fields.get("model_arguments", {})
    first = next(iter(batch.values()))
    fake = isinstance(first, FakeTensor)
    with no_init_weights() if fake else contextlib.nullcontext():  # some look at the values they draw
        model = build.build_model(workload, copy.deepcopy(config), device=first.device.type, model_arguments=own)
    model.tie_weights()
    lists = repeats.lists(model)
    model = adapted(model, fields.get("adapter") or {})
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = bool(arguments.get("use_cache", False))
    if arguments.get("activation_checkpointing") or arguments.get("gradient_checkpointing"):
        _checkpoint(model, arguments)
    halves = torch.float16 if arguments.get("fp16") else torch.bfloat16 if arguments.get("bf16") else None
    forward = model.forward
    if halves is not None:  # as `Accelerator.prepare_model` wraps it
        forward = convert_outputs_to_fp32(torch.autocast(first.device.type, dtype=halves)(forward))
    model.forward = forward
    parameters = list(model.parameters())
    with Tracker(iter([*parameters, *model.buffers(), *batch.values()])) as tracker:
        with layers_noted(tracker, lists):
            for phase in (FIRST, FURTHER):
                micro_step(tracker, phase, lambda: model(**_accepted(forward, batch)), parameters)
        return dict(tracker.to_dict())


def _untraceable(fields: Mapping[str, Any]) -> str:
    """Reason why this step cannot be traced; empty if it can."""
    if fields.get("model_arguments", {}).get("quantization_config"):
        return "kernels of four-bit weights cannot be traced without storage"
    if fields["training_arguments"].get("deepspeed"):
        return "what DeepSpeed keeps where is not traced"
    return ""


def _accepted(forward: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    """The Trainer drops columns that the model does not take."""
    parameters = inspect.signature(inspect.unwrap(forward)).parameters
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: column for name, column in batch.items() if takes_all or name in parameters}


def _checkpoint(model: Any, arguments: Mapping[str, Any]) -> None:
    more = options_of(arguments)
    own = {name: more.pop(name) for name in OPTIONS if name in more}
    # Its name until transformers 5.17; models outside of transformers keep it.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable(more or None, **own)


class _ExpertsProduct(torch.autograd.Function):  # type: ignore[misc]
    """The tensors of the experts' products, (tokens, inputs) x (experts, inputs, outputs) -> (tokens, outputs).

    transformers' function asks in its backward pass for the places at which each expert's tokens end, until 5.23.
    """

    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(tokens, weight, ends)
        return tokens.new_empty(tokens.shape[0], weight.shape[2])

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        tokens, weight, _ = ctx.saved_tensors
        return torch.zeros_like(tokens), torch.zeros_like(weight), None


def _experts_product(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> Any:
    """Replacement of transformers' `_grouped_mm`."""
    return _ExpertsProduct.apply(input.to(weight.dtype), weight, offs)


@contextlib.contextmanager
def _values_guessed(padded: bool) -> Iterator[None]:
    """Decide for models what they decide by values or addresses, which tensors without storage do not have.

    Masks of ones are dropped, as models do. Experts' products make the tensors of the implementation for all dtypes.
    """
    patches: list[tuple[Any, str, Any]] = [(moe, "_grouped_mm", _experts_product)]
    for name in ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa") if not padded else ():
        patches.append((masking_utils, name, _without_mask(getattr(masking_utils, name, None))))
    patches.append((modeling_utils, "save_on_cpu", HeldElsewhere))
    with contextlib.ExitStack() as stack:
        for module, name, new in patches:
            if hasattr(module, name):
                stack.enter_context(mock.patch.object(module, name, new))
        yield


class HeldElsewhere(torch.autograd.graph.saved_tensors_hooks):  # type: ignore[misc]
    """Activations offloaded to the host's memory until the backward needs them."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__(lambda tensor: (tensor.shape, tensor.dtype), lambda held: torch.empty(held[0], dtype=held[1]))


def _without_mask(ignore: Any) -> Any:
    def judge(_: Any, *args: Any, **kwargs: Any) -> Any:
        return ignore(None, *args, **kwargs)

    return judge


def _weights(model: Any) -> list[int]:
    """Bytes of each parameter and buffer."""
    return [_bytes(tensor) for tensor in [*model.parameters(), *model.buffers()]]


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())

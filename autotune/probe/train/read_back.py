"""Read-back of settings from a running Trainer: most of them are set inside `train()`."""

import contextlib
import os
from pathlib import Path
from typing import Any

import torch

from autotune.probe.device.compile import graphs_compiled
from autotune.probe.order import TrainingOrder
from autotune.space.settings import MICRO, SETTINGS, Observed, precision
from autotune.space.settings.compile import backend_of
from autotune.space.settings.setting import joined


class Misconfigured(Exception):
    """The training cannot run as requested, or takes other samples; `settings` are those that it shows."""

    def __init__(self, message: str, settings: dict[str, Any]) -> None:
        super().__init__(message)
        self.settings = settings


class _Seen(Exception):
    """Ends a forward of which enough layers were seen."""


class ReadBack:
    """Reads the output dtype and autocast of the linear and convolution layers in the first step."""

    def __init__(self, order: TrainingOrder, trainer: Any) -> None:
        from transformers.pytorch_utils import Conv1D

        self._order, self._trainer = order, trainer
        self._layers: dict[tuple[str, bool], None] = {}
        self._looks_ahead = False
        device = "cpu" if order.environment.is_cpu else "cuda"
        hooks = self._hooks = list[Any]()

        def left(_module: Any, _inputs: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor):
                layer = (str(output.dtype).removeprefix("torch."), torch.is_autocast_enabled(device))
                self._layers[layer] = None
                if self._looks_ahead and self._shows_precision(*layer):
                    raise _Seen

        kinds = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, Conv1D)
        # The output of quantized weights has the dtype of the input: the other layers show autocast.
        modules = trainer.model.modules()
        watched = [module for module in modules if isinstance(module, kinds) and module.weight.is_floating_point()]
        hooks += [module.register_forward_hook(left) for module in watched]

    def look_ahead(self, model: Any = None, inputs: Any = None, *_: Any) -> None:
        """Run the forward of a model that will be compiled; call before the first micro-step.

        It ends at the first layer that shows the requested precision. A hook would be compiled with the model, as a graph break.
        """
        if backend_of(self._trainer) in ("", "no"):
            return
        self._looks_ahead = True
        # The training will meet the same error.
        with contextlib.suppress(Exception), torch.no_grad(), torch.compiler.set_stance("force_eager"):
            inputs = self._trainer._prepare_inputs(dict(inputs))
            with self._trainer.compute_loss_context_manager():
                self._trainer.compute_loss(model, inputs)
        self._looks_ahead = False
        self._remove_hooks()

    def settings(self, samples: int | None, micro_steps: int | None = None) -> dict[str, Any]:
        """Setting -> value that the training shows, or the values of its layers. samples, micro_steps: in a step, if counted.

        Raises Misconfigured if the number of samples is not the requested one; values are judged beside the baseline's
        (`study.measure.as_requested`).
        """
        self._remove_hooks()
        facts = {
            "threads": torch.get_num_threads(),
            "started_with": started_with(),
            "libraries": libraries(),
            "allocator": _allocator(),
            "graphs": graphs_compiled(),
            "sdpa_kernels": _sdpa_kernels(),
        }
        observed = [self._observed(*layer, **facts) for layer in self._layers or [("", False)]]
        shown = {
            name: joined([SETTINGS[name].read_back(each) for each in observed])
            for name in self._order.configuration.values
        }
        run = self._order.accumulation_steps_run
        if micro_steps is not None and micro_steps != run:
            reason = f"a step took {micro_steps} micro-batches instead of {run}: set gradient_accumulation_steps before train()"
            raise Misconfigured(reason, shown)
        expected = self._order.configuration.micro_batch_size * run
        if samples and samples != expected:
            shown[MICRO] = samples / run
            raise Misconfigured(f"a step took {samples} samples instead of {expected}", shown)
        return shown

    def _observed(self, dtype: str, autocast: bool, **facts: Any) -> Observed:
        frozen = _frozen_dtypes(self._order, self._trainer.model)
        return Observed(self._trainer, dtype, autocast, _tf32(), frozen_dtypes=frozen, **facts)

    def _shows_precision(self, dtype: str, autocast: bool) -> bool:
        shown = precision.SETTING.read_back(self._observed(dtype, autocast))
        return self._order.configuration.values.get(precision.SETTING.name, shown) == shown

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()


def started_with() -> dict[str, str]:
    """Variables that this process, or the one it was forked from, was started with."""
    pairs = Path("/proc/self/environ").read_bytes().split(b"\0")
    return {name: value for name, _, value in (os.fsdecode(pair).partition("=") for pair in pairs) if name}


def libraries() -> frozenset[str]:
    """Names of the library files that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return frozenset(Path(path).name for line in lines if ".so" in (path := line.partition("/")[2]))


def _allocator() -> dict[str, Any]:
    """Settings of the device's allocator; empty on a CPU, or if it shows none (`backend:cudaMallocAsync`)."""
    with contextlib.suppress(RuntimeError):
        if torch.cuda.is_initialized():
            return dict(torch.cuda.memory._snapshot().get("allocator_settings", {}))
    return {}


def _tf32() -> bool:
    """True if float32 matrix products run in TF32, by whichever interface this torch has.

    Convolutions are not read: torch 2.9 to 2.12 leave them in TF32 if training arguments switch it off
    (pytorch/pytorch#179445), in a probe as in every real run.
    """
    if torch.cuda.is_initialized() and torch.cuda.get_device_capability() < (8, 0):  # what is set has no effect there
        return False
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)
    if precision in ("tf32", "ieee"):
        return bool(precision == "tf32")
    with contextlib.suppress(RuntimeError):
        return bool(getattr(matmul, "allow_tf32", False))
    return False


def _frozen_dtypes(order: TrainingOrder, model: Any) -> frozenset[str]:
    if order.workload.user_objects:
        return frozenset()
    return frozenset(
        str(weight.dtype).removeprefix("torch.") for weight in model.parameters() if not weight.requires_grad
    )


def _sdpa_kernels() -> frozenset[str]:
    """Kernels that torch may use."""
    names = {"flash": "flash", "efficient": "mem_efficient", "cudnn": "cudnn", "math": "math"}
    return frozenset(kernel for kernel, name in names.items() if getattr(torch.backends.cuda, f"{name}_sdp_enabled")())

"""Read-back of settings from a running Trainer: most of them are set inside `train()`."""

import contextlib
import os
from pathlib import Path
from typing import Any

import torch

from autotune.probe.device.compile import graphs_compiled
from autotune.probe.order import Order
from autotune.space.settings import SETTINGS, Observed
from autotune.space.settings.compile import backend_of


class Misconfigured(Exception):
    """The running training shows other settings than were asked for; `settings` are those that it shows."""

    def __init__(self, message: str, settings: dict[str, Any]) -> None:
        super().__init__(message)
        self.settings = settings


class _Seen(Exception):
    """The first layer was seen: the rest of the forward is not needed."""


class ReadBack:
    """Watches the first linear or convolution layer of the first micro-step: which dtype leaves it, is autocast on."""

    def __init__(self, order: Order, trainer: Any) -> None:
        from transformers.pytorch_utils import Conv1D

        self._order, self._trainer = order, trainer
        self._linear: tuple[str, bool] | None = None
        self._looks_ahead = False
        device = "cpu" if order.environment is None or order.environment.is_cpu else "cuda"
        hooks = self._hooks = list[Any]()

        def left(_module: Any, _inputs: Any, output: Any) -> None:
            if self._linear is None and isinstance(output, torch.Tensor):
                self._linear = (str(output.dtype).removeprefix("torch."), torch.is_autocast_enabled(device))
                for hook in hooks:
                    hook.remove()
                if self._looks_ahead:
                    raise _Seen

        kinds = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, Conv1D)
        # Weights packed in fewer bits give back whatever dtype came in: the layers beside them show autocast.
        modules = trainer.model.modules()
        watched = [module for module in modules if isinstance(module, kinds) and module.weight.is_floating_point()]
        hooks += [module.register_forward_hook(left) for module in watched]

    def look_ahead(self, model: Any = None, inputs: Any = None, *_: Any) -> None:
        """Of a model that will be compiled: run its forward as it is, up to that first layer; call before the first micro-step.

        A hook inside what is compiled would be compiled with it, and stay there as a break in its graph.
        """
        if backend_of(self._trainer) in ("", "no"):
            return
        self._looks_ahead = True
        # Whatever it is, the training will meet it again.
        with contextlib.suppress(Exception), torch.no_grad(), torch.compiler.set_stance("force_eager"):
            inputs = self._trainer._prepare_inputs(dict(inputs))
            with self._trainer.compute_loss_context_manager():
                self._trainer.compute_loss(model, inputs)
        self._looks_ahead = False
        for hook in self._hooks:
            hook.remove()

    def settings(self, samples: int | None) -> dict[str, Any]:
        """Setting -> value as the training shows it; samples: counted in a step, None where they cannot be counted.

        Raises Misconfigured where a value or the number of samples is not what was asked for.
        """
        assert self._order.configuration is not None
        dtype, autocast = self._linear or ("float32", False)
        observed = Observed(
            self._trainer,
            dtype,
            autocast,
            _tf32(),
            torch.get_num_threads(),
            started_with(),
            libraries(),
            _allocator(),
            graphs_compiled(),
            _sdpa_kernels(),
            _frozen_dtypes(self._order, self._trainer.model),
        )
        requested = self._order.configuration.values
        shown = {name: SETTINGS[name].read_back(observed) for name in requested}
        differing = [name for name, value in requested.items() if shown[name] is not None and shown[name] != value]
        if differing:
            raise Misconfigured(
                ", ".join(f"{name} {requested[name]} became {shown[name]}" for name in differing), shown
            )
        expected = self._order.configuration.micro_batch_size * self._order.accumulation_steps_run
        if samples and samples != expected:
            shown["micro_batch_size"] = samples / self._order.accumulation_steps_run
            raise Misconfigured(f"a step took {samples} samples instead of {expected}", shown)
        return shown


def started_with() -> dict[str, str]:
    """The variables that this process, or the one that it was forked from, was started with; not those set since."""
    pairs = Path("/proc/self/environ").read_bytes().split(b"\0")
    return {name: value for name, _, value in (os.fsdecode(pair).partition("=") for pair in pairs) if name}


def libraries() -> frozenset[str]:
    """Names of the library files that this process has in its memory."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return frozenset(Path(path).name for line in lines if ".so" in (path := line.partition("/")[2]))


def _allocator() -> dict[str, Any]:
    """The settings of the device's allocator, as it tells them; empty on a CPU or where it does not."""
    if not torch.cuda.is_initialized():
        return {}
    settings: dict[str, Any] = torch.cuda.memory._snapshot().get("allocator_settings", {})
    return settings


def _tf32() -> bool:
    """Whether float32 products of matrices run in TF32.

    Convolutions are not asked: they take TF32 by themselves, and torch 2.9 to 2.12 leave them so where training arguments
    switch it off (pytorch/pytorch#179445), in a probe as in every real run.
    """
    return _in_tf32(torch.backends.cuda.matmul)


def _in_tf32(backend: Any) -> bool:
    """By whichever interface this torch reads it."""
    precision = getattr(backend, "fp32_precision", None)
    if precision in ("tf32", "ieee"):
        return bool(precision == "tf32")
    with contextlib.suppress(RuntimeError):
        return bool(getattr(backend, "allow_tf32", False))
    return False


def _frozen_dtypes(order: Order, model: Any) -> frozenset[str]:
    if order.workload is None or order.workload.user_objects:
        return frozenset()
    return frozenset(
        str(weight.dtype).removeprefix("torch.") for weight in model.parameters() if not weight.requires_grad
    )


def _sdpa_kernels() -> frozenset[str]:
    """Those that torch may use."""
    of = torch.backends.cuda
    allowed = {
        "flash": of.flash_sdp_enabled(),
        "efficient": of.mem_efficient_sdp_enabled(),
        "cudnn": of.cudnn_sdp_enabled(),
        "math": of.math_sdp_enabled(),
    }
    return frozenset(kernel for kernel, may in allowed.items() if may)

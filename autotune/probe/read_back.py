"""Reads back from a running Trainer what it was asked for: most of it is set inside `train()`."""

import contextlib
from typing import Any

import torch

from autotune.levers import LEVERS, Observed
from autotune.probe.order import Order


class Misconfigured(Exception):
    """The running training shows other settings than were asked for; `settings` are those that it shows."""

    def __init__(self, said: str, settings: dict[str, Any]) -> None:
        super().__init__(said)
        self.settings = settings


class ReadBack:
    """Watches the first linear or convolution layer of the first micro-step: which dtype leaves it, is autocast on."""

    def __init__(self, order: Order, trainer: Any) -> None:
        from transformers.pytorch_utils import Conv1D

        self._order, self._trainer = order, trainer
        self._linear: tuple[str, bool] | None = None
        device = "cpu" if order.environment is None or order.environment.is_cpu else "cuda"
        hooks: list[Any] = []

        def left(_module: Any, _inputs: Any, output: Any) -> None:
            if self._linear is None and isinstance(output, torch.Tensor):
                self._linear = (str(output.dtype).removeprefix("torch."), torch.is_autocast_enabled(device))
                for hook in hooks:
                    hook.remove()

        kinds = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, Conv1D)
        # Weights packed in fewer bits give back whatever dtype came in: the layers beside them show autocast.
        watched = [one for one in trainer.model.modules() if isinstance(one, kinds) and one.weight.is_floating_point()]
        hooks += [one.register_forward_hook(left) for one in watched]

    def settings(self, samples: int | None) -> dict[str, Any]:
        """Lever -> value as the training shows it; samples: counted in a step, None where they cannot be counted.

        Raises Misconfigured where a value or the number of samples is not what was asked for.
        """
        assert self._order.configuration is not None
        dtype, autocast = self._linear or ("float32", False)
        observed = Observed(self._trainer, dtype, autocast, _tf32(), torch.get_num_threads())
        asked = self._order.configuration.values
        shown = {name: LEVERS[name].read_back(observed) for name in asked}
        differing = [name for name, value in asked.items() if shown[name] is not None and shown[name] != value]
        if differing:
            raise Misconfigured(", ".join(f"{name} {asked[name]} became {shown[name]}" for name in differing), shown)
        expected = self._order.configuration.micro_batch_size * self._order.accumulation_steps_run
        if samples and samples != expected:
            shown["micro_batch_size"] = samples / self._order.accumulation_steps_run
            raise Misconfigured(f"a step took {samples} samples instead of {expected}", shown)
        return shown


def _tf32() -> bool:
    """Whether float32 matrix products run in TF32, by whichever interface this torch reads it."""
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)
    if precision in ("tf32", "ieee"):
        return bool(precision == "tf32")
    with contextlib.suppress(RuntimeError):
        return bool(matmul.allow_tf32)
    return False

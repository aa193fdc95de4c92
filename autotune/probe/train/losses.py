"""Trains a configuration for a few steps, on the same samples as every other one, and brings back its losses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, set_seed

from autotune.core.loss_curves import Curve
from autotune.probe.order import TrainingOrder
from autotune.probe.train.memory_limit import memory_of
from autotune.probe.train.run import arguments_of, open_optimizers_library, take_variables, trainer_of
from autotune.workload.model.user_objects import UserObjects

DATA_SEED = 0
"""Seed of the samples' order, and of random samples themselves."""

FEW_SAMPLES = 8
"""Random samples that are trained on when there is no data: from ever new ones nothing could be learnt, and an optimizer
that does nothing would look as good as any."""


def run(order: TrainingOrder, objects: bytes, scratch: Path) -> dict[str, Any]:
    """Train `order.request["steps"]` optimizer steps from `order.request["seed"]`: a Curve as plain data.

    The seed is that of random weights and of dropout; the model's own weights are used where they are local. Of one
    seed, every configuration of a global batch size sees the same samples in each step. Raises what the training
    meets, and RuntimeError where it ends before its last step.
    """
    steps, seed = order.request["steps"], order.request["seed"]
    memory = memory_of(order)
    try:
        take_variables(order)
        arguments = arguments_of(order, objects, scratch, steps, seed=seed, data_seed=_data_seed(order))
        open_optimizers_library(arguments)
        memory.hold()
        set_seed(seed)  # the model is built before the Trainer would do it
        trainer = trainer_of(order, UserObjects.opened(objects), arguments, weights=True)
        if not (order.workload.data or order.workload.user_objects):
            trainer.train_dataset = Repeated(trainer.train_dataset)
        watched = Watched(trainer)
        trainer.train()
        curve = watched.curve()
    finally:
        memory.release()
    if len(curve.losses) < steps:
        raise RuntimeError(f"the training ended after {len(curve.losses)} of {steps} steps")
    return curve.to_dict()


def _data_seed(order: TrainingOrder) -> int:
    """The same for every seed, but where the weights may be the same too: without dropout only the order is left to vary."""
    varied = order.workload.weights or order.workload.user_objects
    return int(order.request["seed"]) if varied else DATA_SEED


class Repeated(torch.utils.data.Dataset):  # type: ignore[misc]
    """As many samples as it is made from, but the first few of them over and over."""

    def __init__(self, samples: Any) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Any:
        return self._samples[index % FEW_SAMPLES]


class Watched(TrainerCallback):  # type: ignore[misc]
    """Sums what `training_step` returns over a step's micro-steps: each is already divided by their number, or by the
    tokens of the whole step. The losses stay on the device until the end, so that nothing waits for it."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._losses: list[torch.Tensor] = []
        self._step: torch.Tensor | None = None
        self._skipped = 0
        trainer.training_step = self._around(trainer.training_step)
        trainer.add_callback(self)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if self._step is not None:  # else a caller's own Trainer goes another way, and the curve stays too short
            self._losses.append(self._step)
            self._step = None
        self._skipped += bool(getattr(self._trainer.accelerator, "optimizer_step_was_skipped", False))

    def curve(self) -> Curve:
        """Every step's loss; waits for the device."""
        losses = torch.stack(self._losses).tolist() if self._losses else []
        return Curve(tuple(losses), self._skipped)

    def _around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def micro_step(*args: Any, **kwargs: Any) -> Any:
            loss = step(*args, **kwargs)
            part = loss.detach().float().mean()
            self._step = part if self._step is None else self._step + part
            return loss

        return micro_step

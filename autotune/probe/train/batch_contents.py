"""Contents of the micro-batches of the user's data, whatever size was asked for: rows that reach the model."""

import contextlib
import math
import time
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from transformers import set_seed

from autotune.core import Outcome
from autotune.core.configuration import RANKS
from autotune.core.failures import Failure
from autotune.core.kept import ALIKE, Held, KeptKind, KeptSetting
from autotune.probe.order import TrainingOrder
from autotune.probe.train.batch_stats import count, first_tensor
from autotune.space.settings import MICRO
from autotune.space.settings.compile import backend_of
from autotune.space.settings.micro_batch_size import divisors, steps_of

LOOK_S = 3.0
"""Seconds for looking at batches of other sizes."""

LOOK_SAMPLES = 64
"""Samples to look at, if the data have as many: a collator that leaves some out shows it in tens of them."""

LARGER = 4
"""Largest size to look at, in sizes of the user's."""


class Reached:
    """Counts the rows and values of micro-batches, and those of them with which the model is called in their forward.

    A model that will be compiled is not watched: a hook would be compiled with it, as a graph break.
    """

    def __init__(self, trainer: Any) -> None:
        self._batch, self._model = [0, 0], [0, 0]
        self._is_counting = False
        is_compiled = backend_of(trainer) not in ("", "no")
        self._hook = None if is_compiled else trainer.model.register_forward_pre_hook(self._called, with_kwargs=True)

    def begin(self, batch: Any) -> None:
        """The forward of this micro-batch begins."""
        tensor = first_tensor(batch)
        self._is_counting = tensor is not None
        if tensor is not None:
            self._batch = [self._batch[0] + len(tensor), self._batch[1] + tensor.numel()]

    def end(self) -> None:
        """The forward has ended: a backward may run parts of it again."""
        self._is_counting = False

    def close(self) -> None:
        """Watch no longer."""
        self.end()
        if self._hook is not None:
            self._hook.remove()

    @property
    def shares(self) -> tuple[float, float]:
        """Shares of the batches' (rows, values) that reached the model, at most 1; 1 if the model itself is not called."""
        pairs = zip(self._model, self._batch, strict=True)
        rows, values = (min(1.0, model / batch) if model and batch else 1.0 for model, batch in pairs)
        return rows, values

    def _called(self, _module: Any, args: Any, kwargs: Any) -> None:
        tensor = first_tensor((args, kwargs)) if self._is_counting else None
        if tensor is not None:
            self._model = [self._model[0] + len(tensor), self._model[1] + tensor.numel()]


def looked_at(
    order: TrainingOrder, trainer: Any, held: Held, shares: tuple[float, float]
) -> tuple[Held, tuple[KeptSetting, ...]]:
    """(`held` with what is to be counted, the settings of the batch if the user's loader decides them).

    held, shares: of the training that has ended. Batches of other sizes are made by the Trainer, of the same samples, and one of
    them is passed through the model. Never raises: what cannot be looked at is as it was asked for.
    """
    scales: bool | None = None
    kept: tuple[KeptSetting, ...] = ()
    with contextlib.suppress(Exception):
        scales = _scales(order, trainer, held, shares)
    fields = order.training_arguments  # of the Trainer's own loader the space has such sizes left out
    if scales is not False and fields.get("max_steps", -1) <= 0 and not fields.get("dataloader_drop_last"):
        with contextlib.suppress(Exception):
            kept = _of_steps(order, trainer)
    counts_rows = scales is False or (scales is True and 1 / ALIKE <= held.rows <= ALIKE)
    return replace(held, counts_rows=counts_rows), kept_batch(order, held) if scales is False else kept


def other_rows(order: TrainingOrder, held: Held) -> tuple[tuple[KeptSetting, ...], Failure]:
    """(settings of the batch, failure) of a trial whose micro-batches hold something else than the first trial's show."""
    size = order.configuration.micro_batch_size
    figures = {"size": size, "rows": held.rows * size, "wanted": order.held.rows * size if order.held else math.nan}
    reason = f"a micro-batch of {size} held {figures['rows']:.4g} rows instead of {figures['wanted']:.4g}"
    return _of_batch(order, KeptKind.ROWS, figures), Failure(Outcome.MISCONFIGURED, reason)


def kept_batch(order: TrainingOrder, held: Held) -> tuple[KeptSetting, ...]:
    """The settings of the batch, as the user's loader decides it in the first trial."""
    of = order.configuration
    rows = held.rows * of.micro_batch_size
    step_rows = rows * of.gradient_accumulation_steps * of.data_parallel_size
    figures = {"rows": round(rows, 1), "step_rows": round(step_rows, 1)}
    return _of_batch(order, KeptKind.LOADER, figures)


def _of_batch(order: TrainingOrder, kind: KeptKind, figures: dict[str, float]) -> tuple[KeptSetting, ...]:
    values = order.configuration.values
    return tuple(KeptSetting(kind, figures, setting=name) for name in (MICRO, RANKS) if name in values)


def _of_steps(order: TrainingOrder, trainer: Any) -> tuple[KeptSetting, ...]:
    """The settings of the batch if the user's epochs have other optimizer steps with another size."""
    of, own = order.configuration, order.configuration.micro_batch_size
    of_rank, epochs = of.global_batch_size // of.data_parallel_size, order.training_arguments.get("num_train_epochs", 3)
    sizes = [size for size in divisors(of_rank) if size <= LARGER * own]
    steps = {
        size: steps_of(epochs, len(_loader(trainer, size)), of_rank // size) for size in {sizes[0], own, sizes[-1]}
    }
    size = next((size for size in steps if steps[size] != steps[own]), own)
    figures = {"steps": float(steps[size]), "size": float(size), "own": float(steps[own])}
    return (KeptSetting(KeptKind.STEPS, figures, setting=MICRO),) if size != own else ()


def _scales(order: TrainingOrder, trainer: Any, held: Held, shares: tuple[float, float]) -> bool | None:
    """True if batches of other sizes hold as much for each sample that is asked for as the training's; None if unknown."""
    of = order.configuration
    own, until = of.micro_batch_size, time.monotonic() + LOOK_S
    sizes = [size for size in divisors(of.global_batch_size // of.data_parallel_size) if size <= LARGER * own]
    others = [size for size in sizes if size != own] or [2 * own]
    samples = max(*sizes, min(LOOK_SAMPLES, order.workload.samples or LOOK_SAMPLES))
    as_asked = _held(trainer, own, samples, until)
    if as_asked is None:
        return None
    if not held.is_like(Held(as_asked.rows * shares[0], as_asked.values * shares[1])):
        return False  # what a batch is changes inside `train()`
    looks = [_held(trainer, size, samples, until) for size in {others[0], others[-1]}]
    if any(look is not None and not look.is_like(as_asked) for look in looks):
        return False
    near = sorted(others, key=lambda size: (size > own, abs(size - own)))[:2]
    reached = next((other for size in near if (other := _reached(trainer, size))), None)
    if reached and not Held(*reached).is_like(Held(*shares)):
        return False
    return True if any(looks) or reached else None


def _loader(trainer: Any, size: int) -> Any:
    """A new loader of the Trainer with this micro-batch size, which begins with the same samples for each size."""
    args = trainer.args
    if args.dataloader_num_workers:
        vars(args).update(
            dataloader_num_workers=0, dataloader_prefetch_factor=None, dataloader_persistent_workers=False
        )
    args.gradient_accumulation_steps = max(
        1, args.per_device_train_batch_size * args.gradient_accumulation_steps // size
    )
    args.per_device_train_batch_size = trainer._train_batch_size = size
    set_seed(args.seed)
    return getattr(trainer.get_train_dataloader, "once", trainer.get_train_dataloader)()


def _held(trainer: Any, size: int, samples: int, until: float) -> Held | None:
    """Contents of batches of this size for each of the n samples that are asked for, or None if that is not seen."""
    seen, wanted = list[tuple[float, int]](), max(1, samples // size)
    with contextlib.suppress(Exception):
        for batch in islice(_loader(trainer, size), wanted):
            counted = count([batch])
            seen.append((float(counted.samples), counted.values))
            if time.monotonic() > until:
                break
        else:
            if 1 < len(seen) < wanted:  # the data's last batch is a short one
                seen.pop()
    rows, values = (sum(each) / (len(seen) * size) for each in zip(*seen, strict=True)) if seen else (0.0, 0.0)
    return Held(rows, values) if rows else None


def _reached(trainer: Any, size: int) -> tuple[float, float] | None:
    """The shares of a batch of this size that reach the model; None if its forward fails."""
    reached = Reached(trainer)
    try:
        batch = trainer._prepare_inputs(next(iter(_loader(trainer, size))))
        reached.begin(batch)
        with torch.no_grad(), trainer.compute_loss_context_manager():
            trainer.compute_loss(trainer.model_wrapped, batch)
        return reached.shares
    except Exception:
        return None
    finally:
        reached.close()

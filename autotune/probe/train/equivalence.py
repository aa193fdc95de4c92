"""Checks that the baseline's training stays the same with another micro-batch size and with other loader workers.

rows of a batch --collate--> 8 rows, and twice their four quarters: is the loss of all a weighted mean of those of the parts?
a micro-batch, as the only one of a step and as one of several: is its gradient divided by their number?
two workers of the stream: do their first samples differ?

Nothing is trained: each loss is the one that `training_step` gives to `backward`.
"""

import contextlib
import copy
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import BatchNorm1d, BatchNorm2d, BatchNorm3d, Dropout, SyncBatchNorm
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import set_seed

from autotune.core.configuration import RANKS
from autotune.core.kept import KeptKind, KeptSetting
from autotune.core.proxy import Proxy
from autotune.probe.order import TrainingOrder
from autotune.space.settings import MICRO
from autotune.space.settings.micro_batch_size import GENERATION
from autotune.space.settings.workers import SETTING as OF_WORKERS

WORKERS = OF_WORKERS.name

LEAST_ROWS, MOST_ROWS = 8, 32
"""Rows whose loss is compared with those of their parts: contrastive losses of 32 rows and of 8 differ by log 4."""

PARTS, DIVISIONS = 4, 4
"""Parts of the rows, and how often these are divided anew: by chance the loss of all may lie between those of the parts."""

SAME_LOSS = 0.02
"""Share of the loss by which that of all rows may lie outside those of its parts. Padding, rounding in bf16 and the balance of
experts move it by less than 0.5 %, random weights in a contrastive loss by 20 % (1024 rows) to 67 % (8 rows)."""

SAME_OUTPUTS = 0.05
"""Share of the model's outputs by which they may differ with the rows around them: bf16 and other kernels make 1 %."""

SAME_GRADIENT = 0.1
"""Share by which a gradient may depend on the number of micro-steps. Losses that are added up make it as many times as large;
the loss for balanced experts, which is added up too, 7 % larger (8 micro-steps, coefficient 0.02)."""

LEAST_LOSS = 1e-6
"""Loss below which all is rounding."""

STREAM_SAMPLES = 16
"""First samples of each worker: until two of one worker differ, nothing is known."""

BATCH_NORMS = (BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm)

SCALE_FREE = ("adam", "adema", "adafactor", "adadelta", "adagrad", "rmsprop", "lion", "lamb", "muon", "apollo")
"""Parts of the names of optimizers whose updates do not depend on the scale of the gradients."""


def look(order: TrainingOrder, trainer: Any, seconds: float) -> tuple[KeptSetting, ...]:
    """Settings that keep the user's value, as with another one it would be another training.

    trainer: has trained, and is not used afterwards. Never raises: a loss that cannot be seen is taken to be a mean, a stream
    that cannot be read by workers keeps their number.
    """
    until, configuration = time.monotonic() + seconds, order.configuration
    kept: list[tuple[KeptSetting, str]] = []
    with contextlib.suppress(Exception):
        if layers := batch_norms(trainer.model):
            kept.append((KeptSetting(KeptKind.BATCH_NORM, {"layers": layers}), MICRO))
        loader = torch_loader(trainer) if order.ranks == 1 else None
        stream, rows = stream_of(loader), list[Any]()
        if stream is not None:
            reason, rows = seen_by_workers(loader, stream, seconds / 4, int(configuration.values.get(WORKERS, 0)))
            kept += [(reason, WORKERS)] if reason else []
        elif loader is not None:
            rows = rows_of(loader, max(LEAST_ROWS, min(configuration.micro_batch_size, MOST_ROWS)))
        if rows and not hasattr(trainer.args, GENERATION):  # else a batch is made by the model
            losses = Losses(trainer, until - time.monotonic())
            kept += [(reason, name) for reason in of_loss(order, losses, loader, rows) for name in (MICRO, RANKS)]
    return tuple(replace(reason, setting=name) for reason, name in kept if name in configuration.values)


def seen_by_workers(loader: Any, stream: Any, seconds: float, own: int) -> tuple[KeptSetting | None, list[Any]]:
    """(reason to keep the number of workers, the stream's first samples). own: the user's number of workers."""
    try:
        samples = first_samples(loader, seconds)
    except Exception as error:
        last = str(error).strip().splitlines()[-1:]  # above it a worker's traceback
        return KeptSetting(KeptKind.UNSEEN, detail=last[0] if last else type(error).__name__), []
    shards = getattr(stream, "num_shards", None) or (1 if samples[0] and not samples[1] else math.inf)
    if are_shared(samples) is False:  # one worker does what none does
        return KeptSetting(KeptKind.REPEATED, {"most": 1} if own <= 1 else {}), samples[0]
    return (KeptSetting(KeptKind.SHARDS, {"most": shards}) if shards < math.inf else None), samples[0]


def of_loss(order: TrainingOrder, losses: "Losses", loader: Any, rows: list[Any]) -> Iterator[KeptSetting]:
    """Reasons to keep the micro-batch size and accumulation."""
    configuration, seen = order.configuration, None
    rows, growth = rows[: len(rows) // PARTS * PARTS], math.nan
    steps = max(PARTS, configuration.gradient_accumulation_steps)
    for is_training in (False, True):  # what normalises by the micro-batch may do so in training alone
        losses.set_mode(is_training)
        with contextlib.suppress(Exception):
            if math.isnan(growth):
                growth = losses.growth(_collated(loader, rows[: configuration.micro_batch_size]), steps)
            seen = seen or losses.by_size(loader, rows)
    is_sum = seen is not None and seen.is_sum
    if seen is not None and not is_sum:
        figures = {"rows": len(rows), "part_rows": len(rows) // PARTS, "of_all": seen.of_all, "of_parts": seen.of_parts}
        yield KeptSetting(KeptKind.MIXED if seen.is_mixed else KeptKind.BATCH, figures)
    scale = growth / steps if is_sum else growth
    if abs(scale - 1) > SAME_GRADIENT and (losses.is_clipped or not losses.is_scale_free):
        detail = "are those of a sum over the micro-batch" if is_sum else "are added up over accumulated micro-steps"
        yield KeptSetting(KeptKind.SCALE if losses.is_scale_free else KeptKind.GRADIENTS, detail=detail)


def batch_norms(model: Any) -> int:
    """Number of modules that normalise by the statistics of a micro-batch while this model trains."""
    modules = (module for module in model.modules() if isinstance(module, BATCH_NORMS))
    return sum(module.training or module.running_mean is None for module in modules)


def is_scale_free(optimizer: Any) -> bool:
    """True if this optimizer is known to make the same updates of gradients that are all k times as large."""
    optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate's holds it
    name = type(optimizer).__name__.lower()
    return any(known in name for known in SCALE_FREE) and "lomo" not in name


# The stream ---------------------------------------------------------------------------------------------------------


def torch_loader(trainer: Any) -> Any:
    """The torch DataLoader in the Trainer's, or None."""
    loader = trainer.get_train_dataloader()
    inner = getattr(loader, "base_dataloader", loader)  # accelerate's iterates another one
    return inner if isinstance(inner, DataLoader) else None


def stream_of(loader: Any) -> Any:
    """The user's iterable dataset; None if the dataset is none."""
    dataset: Any = getattr(loader, "dataset", None)
    while issubclass(type(dataset), Proxy):
        dataset = dataset._proxied[0]
    return dataset if isinstance(dataset, IterableDataset) else None


def first_samples(loader: Any, seconds: float) -> list[list[Any]]:
    """The first samples of the loader's stream in each of two workers. Raises RuntimeError if they take too long.

    The workers are torch's own: whatever they are started with and told, and what they do outside, is as in a training.
    """
    samples: list[list[Any]] = [[], []]
    two = DataLoader(
        stream_of(loader),
        batch_size=None,
        num_workers=2,
        collate_fn=_of_worker,
        timeout=seconds,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
    )
    until = time.monotonic() + seconds
    for worker, sample in islice(two, 2 * STREAM_SAMPLES):
        samples[worker].append(sample)
        if time.monotonic() > until:
            break
    return samples


def _of_worker(sample: Any) -> tuple[int, Any]:
    worker = get_worker_info()
    return (worker.id if worker else 0), sample


def are_shared(samples: list[list[Any]]) -> bool | None:
    """True if two workers divide the stream between them, False if both yield the same; None if that cannot be told."""
    first, second = ([*map(content, of_worker)] for of_worker in samples)
    same = [one == other for one, other in zip(first, second, strict=False)]
    if not same:
        return None
    if not all(same):
        return True
    return False if len({*first}) > 1 else None


def content(sample: Any) -> Any:
    """A value that two samples share if they hold the same."""
    if isinstance(sample, torch.Tensor):
        plain = sample.detach().cpu().flatten().view(torch.uint8).numpy()
        return str(sample.dtype), sample.shape, plain.tobytes()
    if isinstance(sample, np.ndarray):
        return str(sample.dtype), sample.shape, sample.tobytes()
    if isinstance(sample, Mapping):
        return tuple((name, content(value)) for name, value in sample.items())
    if isinstance(sample, (list, tuple)):
        return tuple(map(content, sample))
    return sample.tobytes() if hasattr(sample, "tobytes") else repr(sample)  # images, plain values


# The loss -----------------------------------------------------------------------------------------------------------


class Losses:
    """Losses of a Trainer whose training has ended, and which is not used afterwards. seconds: for all of them."""

    def __init__(self, trainer: Any, seconds: float) -> None:
        self._trainer, self._until = trainer, time.monotonic() + seconds
        self._given: list[torch.Tensor] = []
        self.is_scale_free, self.is_clipped = is_scale_free(trainer.optimizer), bool(trainer.args.max_grad_norm)
        trainer.accelerator.backward = lambda loss, **_: self._given.append(loss)
        self._outputs: Any = None
        trainer.model.register_forward_hook(self._keep_outputs)
        trainer.model.train = lambda mode=True: trainer.model  # else `training_step` would let it drop out
        self.set_mode(False)

    def set_mode(self, is_training: bool) -> None:
        """Evaluation, or training without dropout and the statistics of BatchNorm."""
        for module in self._trainer.model.modules():
            module.training = is_training and not isinstance(module, (*BATCH_NORMS, Dropout))

    def loss(self, batch: Any, steps: int = 1, seed: int = 0) -> float:
        """Loss that is backpropagated for a micro-batch that is one of `steps` equal ones of a step; NaN if nothing is.

        Raises TimeoutError after the given seconds, and whatever the user's code raises.
        """
        if time.monotonic() > self._until:
            raise TimeoutError
        trainer = self._trainer
        batches = [copy.copy(batch) for _ in range(steps)]
        batches, items = trainer.get_batch_samples(iter(batches), steps, trainer.args.device)
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps = steps
        self._given.clear()
        set_seed(seed)
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            trainer.training_step(trainer.model, batches[0], items)
        return math.fsum(map(float, self._given)) if self._given else math.nan

    def growth(self, batch: Any, steps: int) -> float:
        """Gradient of a step of `steps` equal micro-batches / that of a step of one; NaN if the loss is 0 or random."""
        alone, one_of, again = self.loss(batch), self.loss(batch, steps), self.loss(batch)
        return steps * one_of / alone if abs(alone) > LEAST_LOSS and _close(alone, again) else math.nan

    def by_size(self, loader: Any, rows: Sequence[Any]) -> "SizedLoss | None":
        """The losses of all rows and of their PARTS, if that of all is no weighted mean of the parts'; None if it is, or random.

        A mean over samples, tokens or weighted classes lies between the least and the largest of the parts, however the rows
        are divided, and the model's outputs for a row are the same in each.
        """
        whole, order = _collated(loader, rows), [*range(len(rows))]
        # Tokens to mask are drawn anew each time: then the parts are cut out of the whole, with its padding.
        is_drawn = content(whole) != content(_collated(loader, rows, seed=1))

        def of_part(places: Sequence[int]) -> tuple[float, bool]:
            chosen = [rows[place] for place in places]
            loss = self.loss(_part(whole, places, len(rows)) if is_drawn else _collated(loader, chosen))
            return loss, is_mixed(outputs, self._outputs, places)

        of_all, outputs = self.loss(whole), self._outputs
        if not _close(of_all, self.loss(whole, seed=1)) or is_mixed(outputs, self._outputs, order, 0.1 * SAME_OUTPUTS):
            return None
        for _ in range(DIVISIONS):
            parts = [of_part(order[part::PARTS]) for part in range(PARTS)]
            losses = [loss for loss, _ in parts if math.isfinite(loss)]
            mixed = any(mixes for _, mixes in parts)
            if losses and (mixed or not is_mean(of_all, losses)):
                is_sum = len(losses) == PARTS and _close(of_all, sum(losses))
                return SizedLoss(of_all, fmean(losses), is_sum and not mixed, mixed)
            random.Random(0).shuffle(order)
        return None

    def _keep_outputs(self, _module: Any, _inputs: Any, outputs: Any) -> None:
        values = (
            outputs.values() if isinstance(outputs, Mapping) else outputs if isinstance(outputs, tuple) else [outputs]
        )
        self._outputs = next((each for each in values if isinstance(each, torch.Tensor) and each.dim() > 1), None)


class SizedLoss(NamedTuple):
    """Loss of all rows, and mean loss of their parts. is_sum: it is that of the parts' losses. is_mixed: outputs differ, too."""

    of_all: float
    of_parts: float
    is_sum: bool
    is_mixed: bool


def is_mixed(outputs: Any, of_part: Any, places: Sequence[int], share: float = SAME_OUTPUTS) -> bool:
    """True if the model's outputs for the rows at these places depend on the rows that are with them."""
    if outputs is None or of_part is None or of_part.shape != (len(places), *outputs.shape[1:]):
        return False  # padded otherwise, or of other rows
    together, apart = outputs[list(places)].float(), of_part.float()
    return bool((together - apart).norm() > share * together.norm())


def _close(loss: float, other: float) -> bool:
    return math.isclose(loss, other, rel_tol=0.1 * SAME_LOSS)


def is_mean(loss: float, of_parts: Sequence[float]) -> bool:
    """True if this can be a weighted mean of these."""
    slack = SAME_LOSS * max(map(abs, [loss, *of_parts]))
    return min(of_parts) - slack <= loss <= max(of_parts) + slack


def rows_of(loader: Any, size: int) -> list[Any]:
    """Rows of the loader's first batches, `size` or fewer."""
    places = list(islice(chain.from_iterable(loader.batch_sampler), size))
    fetch = getattr(loader.dataset, "__getitems__", None)
    return list(fetch(places) if fetch else map(loader.dataset.__getitem__, places))


def _collated(loader: Any, rows: Sequence[Any], seed: int = 0) -> Any:
    set_seed(seed)
    return loader.collate_fn(copy.deepcopy(list(rows)))  # some collators take labels out of the rows


def _part(batch: Any, places: Sequence[int], rows: int) -> Any:
    """These rows of a batch. Raises ValueError unless each of its tensors and lists has as many as the batch."""
    if isinstance(batch, Mapping):
        return {name: _part(value, places, rows) for name, value in batch.items()}
    if not isinstance(batch, (torch.Tensor, list)):
        return batch
    if len(batch) != rows:
        raise ValueError
    return batch[list(places)] if isinstance(batch, torch.Tensor) else [batch[place] for place in places]

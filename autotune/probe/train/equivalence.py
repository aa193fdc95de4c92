"""Whether the baseline's training stays the same with another micro-batch size and with other loader workers.

rows of a batch --collate--> 8 rows, and twice their four quarters: is the loss of all a weighted mean of those of the parts?
a micro-batch, as the only one of a step and as one of several: is its gradient divided by their number?
two workers of the stream: do their first samples differ?

Nothing is trained: each loss is the one that `training_step` gives to `backward`.
"""

import copy
import math
import random
import time
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch.nn import BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import set_seed

LEAST_ROWS, MOST_ROWS = 8, 32
"""Rows whose loss is compared with those of their parts: contrastive losses of 32 rows and of 8 differ by log 4."""

PARTS, DIVISIONS = 4, 4
"""Parts of the rows, and how often these are divided anew: by chance the loss of all may lie between those of the parts."""

SAME_LOSS = 0.02
"""Share of the loss by which that of all rows may lie outside those of its parts. Padding, rounding in bf16 and the balance of
experts move it by less than 0.5 %, random weights in a contrastive loss by 20 % (1024 rows) to 67 % (8 rows)."""

SAME_GRADIENT = 0.1
"""Share by which a gradient may depend on the number of micro-steps. Losses that are added up make it as many times as large;
the loss for balanced experts, which is added up too, 7 % larger (8 micro-steps, coefficient 0.02)."""

LEAST_LOSS = 1e-6
"""Below it a loss is rounding."""

STREAM_SAMPLES = 16
"""First samples of each worker: until two of one worker differ, nothing is known."""

BATCH_NORMS = (BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm)

SCALE_FREE = ("adam", "adema", "adafactor", "adadelta", "adagrad", "rmsprop", "lion", "lamb", "muon", "apollo")
"""Parts of the names of optimizers whose updates do not depend on the scale of the gradients."""


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
    """The torch DataLoader in the Trainer's; None if there is none."""
    loader = trainer.get_train_dataloader()
    inner = getattr(loader, "base_dataloader", loader)  # accelerate's iterates another one
    return inner if isinstance(inner, DataLoader) else None


def stream_of(loader: Any) -> Any:
    """The user's iterable dataset; None if the dataset is none."""
    dataset = loader.dataset
    while type(dataset).__module__.startswith("autotune."):
        dataset = dataset.dataset
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
        trainer.accelerator.backward = lambda loss, **_: self._given.append(loss)
        model = trainer.model
        model.eval()
        model.train = lambda mode=True: model  # `training_step` would let it drop out

    def loss(self, batch: Any, steps: int = 1, seed: int = 0) -> float:
        """What is backpropagated for a micro-batch that is one of `steps` equal ones of a step; NaN if nothing is.

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
        with torch.no_grad():
            trainer.training_step(trainer.model, batches[0], items)
        return math.fsum(map(float, self._given)) if self._given else math.nan

    def growth(self, batch: Any, steps: int) -> float:
        """Gradient of a step of `steps` equal micro-batches / that of a step of one; NaN if the loss is 0 or random."""
        alone, one_of, again = self.loss(batch), self.loss(batch, steps), self.loss(batch)
        return steps * one_of / alone if abs(alone) > LEAST_LOSS and _close(alone, again) else math.nan

    def by_size(self, loader: Any, rows: Sequence[Any]) -> tuple[float, float, bool] | None:
        """(loss of all rows, mean loss of their PARTS, whether it is a sum) if that of all is no weighted mean of the parts'.

        A mean over samples, tokens or weighted classes lies between the least and the largest of the parts, however the rows
        are divided. None if it does, and if the loss is random.
        """
        whole, order = _collated(loader, rows), [*range(len(rows))]
        # Tokens to mask are drawn anew each time: then the parts are cut out of the whole, with its padding.
        is_drawn = content(whole) != content(_collated(loader, rows, seed=1))

        def of_part(places: Sequence[int]) -> float:
            chosen = [rows[place] for place in places]
            return self.loss(_part(whole, places, len(rows)) if is_drawn else _collated(loader, chosen))

        of_all = self.loss(whole)
        if not _close(of_all, self.loss(whole, seed=1)):
            return None
        for _ in range(DIVISIONS):
            losses = [of_part(order[part::PARTS]) for part in range(PARTS)]
            finite = [loss for loss in losses if math.isfinite(loss)]
            if finite and not is_mean(of_all, finite):
                return of_all, fmean(finite), _close(of_all, sum(losses))
            random.Random(0).shuffle(order)
        return None


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

"""Sanity check of the winner: training until the optimizer has its state, one evaluation batch, one checkpoint.

steps on the worst batch --> evaluation of 512, 256, 128 ... samples until one fits --> a checkpoint, which is removed

The evaluation is the user's: `evaluate()` of a few rows of the evaluation set, with metrics and callbacks. Without such a set, or
if it cannot be sent, it is of training samples, which shows no more than the memory of a batch.

All inside `train()`, as in a real run: there the step's batches are still held, and weights keep their dtype.
"""

import bisect
import contextlib
import ctypes
import gc
import math
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence, Sized
from importlib import import_module
from itertools import accumulate, cycle, islice
from pathlib import Path
from typing import Any, cast

import psutil
import torch
from transformers import TrainerCallback
from transformers.trainer_utils import has_length

from autotune.core import Outcome, failures
from autotune.core.sanity import EVALUATION, SAVING, TRAINING, SanityCheck, SanityProblem
from autotune.probe.order import TrainingOrder
from autotune.probe.train.control import TrialControl
from autotune.probe.train.memory_limit import DeviceMemory, HostMemory, memory_of
from autotune.probe.train.run import prepared_trainer
from autotune.probe.train.worst_batch import feed, worst_batch
from autotune.workload.data.rows import length_of, parts_of, rows_of
from autotune.workload.hub import first_line
from autotune.workload.model.pickling import evaluation_of
from autotune.workload.model.user_objects import sizes

STEPS, MOST_STEPS = 2, 8
"""Optimizer steps, and steps at most: fp16's loss scaling skips the first ones."""

_M_MMAP_THRESHOLD = -3  # of <malloc.h>

MOST_BATCHES = 8
"""Batches of a set's few rows at most; an evaluation that goes on reads other rows."""

MOST_CHECKPOINT_BYTES = 5 * 10**9
MOST_DISK_SHARE = 0.5
DISK_BYTES_S = 200e6
"""A checkpoint that would be larger, take more of the free disk, or at this speed longer than there is time, is not tried."""


def run(order: TrainingOrder, objects: bytes, scratch: Path) -> dict[str, Any]:
    """A `SanityCheck` as plain data; failures of training, evaluation and checkpoint are its problems."""
    memory = memory_of(order)

    def build() -> Any:
        trainer = prepared_trainer(order, objects, scratch, memory, MOST_STEPS)
        try:
            evaluation = evaluation_of(objects, trainer)
        except Exception as error:  # whatever an object's unpickling raises
            evaluation = f"{type(error).__name__}: {error}"
        if isinstance(evaluation, str):
            trainer.why_no_evaluation = evaluation
        else:
            vars(trainer).update(evaluation)
        return trainer

    return checked(order, memory, scratch, build)


def checked(
    order: TrainingOrder,
    memory: HostMemory | DeviceMemory,
    scratch: Path,
    build: Callable[[], Any],
    train: Callable[[Any], Any] = lambda trainer: trainer.train(),
) -> dict[str, Any]:
    """The same of a Trainer that `build` makes and `train` trains. scratch: holds its output folder."""
    check = SanityCallback(order, memory, scratch)
    try:
        trainer = build()
        memory.enter(TRAINING)
        if worst := worst_batch(order, trainer):
            feed(trainer, worst, MOST_STEPS)
        check.trainer = trainer
        accumulation = order.configuration.gradient_accumulation_steps
        TrialControl(trainer, check, MOST_STEPS, accumulation, goes_on=True)
        train(trainer)
        if check.part == TRAINING:
            check.note(failures.Failure(Outcome.CRASHED, "the training ended before its steps were taken"))
    except Exception as error:
        memory.release()  # first: writing the answer takes memory
        traceback.print_exc()
        check.note(failures.from_exception(error, check.part))
    finally:
        memory.release()
        shutil.rmtree(scratch / "output", ignore_errors=True)
    return check.result().to_dict()


class _OtherRows(Exception):
    """Ends an evaluation that goes on after the rows that it was given."""


class SanityCallback(TrainerCallback):  # type: ignore[misc]
    """Lets a Trainer take its steps, then evaluate, save and stop. part: what it does now. trainer: set before `train()`."""

    trainer: Any

    def __init__(self, order: TrainingOrder, memory: HostMemory | DeviceMemory, scratch: Path) -> None:
        self.part = TRAINING
        self._order, self._memory, self._scratch = order, memory, scratch
        self._cuda = not order.environment.is_cpu
        self._started = time.perf_counter()
        self._steps = self._steps_taken = 0
        self._sizes: list[int] = []
        self._weights: list[int] = []
        self._batches_left = 0
        self._problems: list[SanityProblem] = []
        self._results: dict[str, Any] = {}  # fields of SanityCheck

    def note(self, failure: failures.Failure) -> None:
        """Add the failure of the current part."""
        self._problems.append(SanityProblem(self.part, failure.outcome, failure.reason))

    def result(self) -> SanityCheck:
        peaks = self._memory.peaks().get("stage_peak_bytes", {})
        stages = {TRAINING: TRAINING, EVALUATION: _stage(self._results.get("eval_batch_size")), SAVING: SAVING}
        return SanityCheck(
            eval_batches_tried=tuple(self._sizes),
            peak_bytes={part: peaks[stage] for part, stage in stages.items() if stage in peaks},
            problems=tuple(self._problems),
            **self._results,
        )

    def on_step_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
        self._steps += 1
        self._steps_taken += not getattr(self.trainer.accelerator, "optimizer_step_was_skipped", False)
        if self._steps_taken < STEPS and self._steps < MOST_STEPS:
            return
        self.part = EVALUATION
        self._evaluate()
        self.part = SAVING
        left_s = self._order.deadline_s - (self._now() - self._started)
        skipped = too_large(checkpoint_size(self.trainer), shutil.disk_usage(self._scratch).free, left_s)
        self._results["checkpoint_skipped"] = skipped
        control.should_save = not skipped
        control.should_training_stop = True
        self._memory.enter("" if skipped else SAVING)
        self._begun = self._now()

    def on_save(self, args: Any, _state: Any, _control: Any, **_: Any) -> None:
        self._results["checkpoint_seconds"] = self._now() - self._begun
        self._memory.enter("")
        files = [path for path in Path(args.output_dir).rglob("*") if path.is_file()]
        self._results["checkpoint_bytes"] = sum(path.stat().st_size for path in files)

    def on_prediction_step(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        self._batches_left -= 1
        if self.part == EVALUATION and self._batches_left < 0:
            raise _OtherRows

    def _evaluate(self) -> None:
        """One batch, half as large after each out-of-memory."""
        # Persistent workers of the first attempt would serve the next ones too, with its batch size.
        self.trainer.args.dataloader_persistent_workers = False
        if not self._cuda:
            free_large_blocks_at_once()
        size, trainer = int(self.trainer.args.per_device_eval_batch_size), self.trainer
        self._eval_dataset = trainer.eval_dataset
        if self._eval_dataset is not None and trainer.compute_metrics is not None:
            trainer.compute_metrics = self._weighing(trainer.compute_metrics)
        elif self._eval_dataset is None and self._order.workload.user_objects:
            why = getattr(trainer, "why_no_evaluation", "your Trainer has no eval_dataset")
            self._results["evaluation_unchecked"] = why
        while failure := self._evaluation_failure(size):
            gc.collect()
            if self._cuda:
                torch.cuda.empty_cache()
            if failure.outcome is not Outcome.OUT_OF_MEMORY or size == 1:
                self.note(failure)
                break
            size //= 2

    def _evaluation_failure(self, size: int) -> failures.Failure | None:
        """Evaluate n samples: the failure, or None."""
        self._sizes.append(size)
        self.trainer.args.per_device_eval_batch_size = size
        self._memory.enter(_stage(size))
        trainer, own, samples = self.trainer, self._eval_dataset, list[Any]()
        try:
            if own is None:
                samples = [eval_samples(self._order, trainer.train_dataset, size)]
            else:
                named = own if isinstance(own, Mapping) else {"": own}
                trainer.eval_dataset = {name: some_rows(each, size) for name, each in named.items()}
                samples = [*trainer.eval_dataset.values()]
                if named is not own:
                    (trainer.eval_dataset,) = samples
            if not all(map(len, samples)):
                return failures.Failure(Outcome.UNSUPPORTED, "the data gives no samples to evaluate")
            self._batches_left, begun = MOST_BATCHES * len(samples), self._now()
            trainer.evaluate(**({"eval_dataset": samples[0]} if own is None else {}))
            self._results |= {"eval_batch_size": size, "eval_seconds": self._now() - begun}
            self._foretell_outputs(size)
            return None
        except Exception as error:
            if isinstance(error, AttributeError) and any(error.obj is each for each in samples):
                self._results["evaluation_unchecked"] = (
                    f"it reads more than rows: {error}"  # the user's data may well have it
                )
            elif isinstance(error, _OtherRows):
                self._results["evaluation_unchecked"] = "it reads other rows than those of its eval_dataset"
            traceback.clear_frames(error.__traceback__)  # they hold memory that the next attempt needs
            failure = failures.from_exception(error, EVALUATION)
            print(f"evaluation of {size} samples: {failure.reason}", flush=True)
            is_unchecked = self._results.get("evaluation_unchecked") and failure.outcome is not Outcome.OUT_OF_MEMORY
            return None if is_unchecked else failure
        finally:
            self._memory.enter("")

    def _weighing(self, metrics: Callable[..., Any]) -> Callable[..., Any]:
        """These metrics; notes the bytes of what they get, unless they get it batch by batch.

        If they fail, that is no failure of the evaluation: they may need all of its rows.
        """

        def weighed(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.trainer.args.batch_eval_metrics:
                self._weights.append(sum(map(nested_bytes, (outputs.predictions, outputs.label_ids, outputs.inputs))))
            try:
                return metrics(outputs, *args, **kwargs)
            except Exception as error:
                few = f"its compute_metrics failed on a few rows: {type(error).__name__}: {first_line(error)}"
                self._results["evaluation_unchecked"] = few
                raise

        return weighed

    def _foretell_outputs(self, size: int) -> None:
        """Note what an evaluation of all rows keeps for the metrics, and how much memory is left for it."""
        args, own = self.trainer.args, self._eval_dataset
        sets = own.values() if isinstance(own, Mapping) else (own,)
        rows = max((len(each) for each in sets if has_length(each)), default=0)
        heaviest, self._weights = max(self._weights, default=0), []
        if not heaviest or rows <= size:
            return
        copies = (
            2 if args.eval_do_concat_batches else 1
        )  # those of each batch are joined with the ones before, to new tensors
        needed, host_bytes = copies * heaviest * rows // size, psutil.virtual_memory().available
        is_on_device = self._cuda and args.eval_accumulation_steps is None
        left = host_bytes
        if is_on_device or not self._cuda:
            peak = self._memory.peaks().get("stage_peak_bytes", {}).get(_stage(size), 0)
            left = (self._order.allowed_bytes or self._order.environment.total_memory_bytes) - peak
        helps = is_on_device and needed < host_bytes
        self._results |= {"outputs_bytes": needed, "outputs_left_bytes": max(0, left), "accumulation_helps": helps}

    def _now(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


def _stage(size: int | None) -> str:
    return f"{EVALUATION} of {size}"


def free_large_blocks_at_once() -> None:
    """Make glibc's malloc return each block of at least 128 KiB when it is freed, for the rest of this process.

    Otherwise it keeps ever larger ones, which the next attempt would lack (`man 3 mallopt`, M_MMAP_THRESHOLD).
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 128 * 1024)


def some_rows(dataset: Any, count: int) -> Sized:
    """Rows of an evaluation set at most: the longest as far as it is known, and others spread over the set; a stream's first."""
    if rows_of(dataset) is None:
        return _samples(dataset, (), count)
    read, total = sizes(dataset), len(dataset)
    places = [index * total // count for index in range(count)] if total > count else [*range(total)]
    if read and (longest := read.index(max(read))) not in places:
        places[0] = longest
    return _samples(dataset, places, len(places))


def nested_bytes(arrays: Any) -> int:
    """Bytes of arrays in lists, tuples and dictionaries."""
    if isinstance(arrays, Mapping):
        arrays = tuple(arrays.values())
    return sum(map(nested_bytes, arrays)) if isinstance(arrays, (list, tuple)) else getattr(arrays, "nbytes", 0)


def eval_samples(order: TrainingOrder, dataset: Any, count: int) -> Sized:
    """`count` samples of the training data, the longest if these are known, repeated if there are too few.

    Of iterable data the first ones, fewer if it has no more. Of data of `datasets` a Dataset, whose columns Trainers read.
    """
    longest = order.workload.longest
    if isinstance(dataset, Mapping) and not any(part is dataset for part in parts_of(dataset)):
        # Of one of several datasets, as a batch is: of the one with the longest sample.
        begins = [0, *accumulate(length_of(part) or 0 for part in dataset.values())]
        at = max(bisect.bisect(begins[:-1], next(iter(longest), 0)) - 1, 0)
        name = [*dataset][at]
        samples: Any = _samples(dataset[name], [place - begins[at] for place in longest], count)
        return cast(Any, type(dataset))({name: samples})  # type: ignore[no-any-return]
    return _samples(dataset, longest, count)


def _samples(dataset: Any, longest: Sequence[int], count: int) -> Sized:
    if (rows := rows_of(dataset)) is None or not hasattr(dataset, "__getitem__"):
        rows = list(islice(iter(dataset), count))
        if type(dataset).__module__.startswith("datasets."):
            with contextlib.suppress(Exception):  # whatever Arrow has no type for
                return cast(Sized, import_module("datasets").Dataset.from_list(rows))
        return cast(Sized, rows)
    places = list(islice(cycle(longest or range(len(dataset))), count))
    if hasattr(dataset, "select"):
        return cast(Sized, dataset.select(places))
    subset: Sized = torch.utils.data.Subset(dataset, places)
    return subset


def checkpoint_size(trainer: Any) -> int:
    """Bytes of a checkpoint at least: the weights, of adapters (PEFT) alone, and the optimizer's state if it is saved too."""
    is_adapted = hasattr(trainer.model, "peft_config")
    held = [weight for weight in trainer.model.parameters() if weight.requires_grad or not is_adapted]
    if not trainer.args.save_only_model:
        held += [value for state in trainer.optimizer.state.values() for value in state.values()]
    return sum(tensor.numel() * tensor.element_size() for tensor in held if isinstance(tensor, torch.Tensor))


def too_large(size: int, free: int, left_s: float = math.inf) -> str:
    """Reason why a checkpoint of `size` bytes is not tried; empty if it is.

    free: bytes on the disk. left_s: seconds that are left.
    """
    if size > MOST_CHECKPOINT_BYTES:
        return f"{_gigabytes(size)} would be more than {_gigabytes(MOST_CHECKPOINT_BYTES)}"
    if size > MOST_DISK_SHARE * free:
        return f"{_gigabytes(size)} would be more than half of the {_gigabytes(free)} that the disk has free"
    if size > DISK_BYTES_S * left_s:
        return f"{_gigabytes(size)} may take longer than the {left_s:.0f} s that are left"
    return ""


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB"

"""Sanity check of the winner: training until the optimizer has its state, one evaluation batch, one checkpoint.

steps on the worst batch --> evaluation of 512, 256, 128 ... samples until one fits --> a checkpoint, and it is removed

Both happen inside `train()`, as in a real run: there the step's batches are still held, and weights keep their dtype.
"""

import contextlib
import ctypes
import gc
import shutil
import time
import traceback
from collections.abc import Sized
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from autotune.core import Outcome, failures
from autotune.core.sanity import EVALUATION, SAVING, TRAINING, Problem, SanityCheck
from autotune.probe.order import Order
from autotune.probe.train.memory_limit import DeviceMemory, HostMemory, memory_of
from autotune.probe.train.run import prepared_trainer
from autotune.probe.train.worst_batch import feed, worst_batch

STEPS, MOST_STEPS = 2, 8
"""Optimizer steps that were really taken, and steps at the most: fp16's loss scaling leaves out the first ones."""

_M_MMAP_THRESHOLD = -3  # of <malloc.h>

MOST_CHECKPOINT_BYTES = 5 * 10**9
MOST_DISK_SHARE = 0.5
"""A checkpoint that would be larger, or take more of the free disk, is not tried."""


def run(order: Order, objects: bytes, scratch: Path) -> dict[str, Any]:
    """A `SanityCheck` as plain data; what a training, an evaluation or a checkpoint can meet is told in it."""
    memory = memory_of(order)
    rehearser = Rehearser(order, memory, scratch)
    try:
        trainer = prepared_trainer(order, objects, scratch, memory, MOST_STEPS)
        memory.enter(TRAINING)
        if worst := worst_batch(order, trainer):
            feed(trainer, worst, MOST_STEPS)
        rehearser.attach(trainer)
        trainer.train()
        if rehearser.part == TRAINING:
            rehearser.note(failures.Failure(Outcome.CRASHED, "the training ended before its steps were taken"))
    except Exception as error:
        memory.release()  # first: even telling what happened takes memory
        traceback.print_exc()
        rehearser.note(failures.from_exception(error, rehearser.part))
    finally:
        memory.release()
        shutil.rmtree(scratch / "output", ignore_errors=True)
    return rehearser.rehearsal().to_dict()


class Rehearser(TrainerCallback):  # type: ignore[misc]
    """Lets a Trainer take its steps, then evaluate, save and stop. part: what is being done now."""

    def __init__(self, order: Order, memory: HostMemory | DeviceMemory, scratch: Path) -> None:
        assert order.environment is not None
        self.part = TRAINING
        self._order, self._memory, self._scratch = order, memory, scratch
        self._cuda = not order.environment.is_cpu
        self._steps_taken = 0
        self._tried: list[int] = []
        self._fitted: int | None = None
        self._skipped = ""
        self._saved_bytes: int | None = None
        self._seconds: dict[str, float] = {}
        self._problems: list[Problem] = []

    def attach(self, trainer: Any) -> None:
        """Call before `train()`."""
        self._trainer = trainer
        trainer.add_callback(self)

    def note(self, failure: failures.Failure) -> None:
        """This part failed so."""
        self._problems.append(Problem(self.part, failure.outcome, failure.reason))

    def rehearsal(self) -> SanityCheck:
        stages = self._memory.peaks().get("stage_peak_bytes", {})
        stage_of = {TRAINING: TRAINING, EVALUATION: _stage(self._fitted), SAVING: SAVING}
        return SanityCheck(
            eval_batch_size=self._fitted,
            eval_batches_tried=tuple(self._tried),
            eval_seconds=self._seconds.get(EVALUATION),
            checkpoint_bytes=self._saved_bytes,
            checkpoint_seconds=self._seconds.get(SAVING),
            checkpoint_skipped=self._skipped,
            peak_bytes={part: stages[stage] for part, stage in stage_of.items() if stage in stages},
            problems=tuple(self._problems),
        )

    # What the Trainer calls ---------------------------------------------------------------------------------

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        self._steps_taken += not getattr(self._trainer.accelerator, "optimizer_step_was_skipped", False)
        if self._steps_taken < STEPS and state.global_step < state.max_steps:
            return
        self.part = EVALUATION
        self._evaluate()
        self.part = SAVING
        self._skipped = too_large(checkpoint_size(self._trainer), shutil.disk_usage(self._scratch).free)
        control.should_save = not self._skipped
        control.should_training_stop = True
        self._memory.enter(SAVING if control.should_save else "")
        self._begun = self._now()

    def on_save(self, args: Any, _state: Any, _control: Any, **_: Any) -> None:
        self._seconds[SAVING] = self._now() - self._begun
        self._memory.enter("")
        files = [path for path in Path(args.output_dir).rglob("*") if path.is_file()]
        self._saved_bytes = sum(path.stat().st_size for path in files)

    # Inside -------------------------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        """One batch, half as large after each out-of-memory."""
        # Kept, the workers of the first try would serve the next ones too, with its batch size.
        self._trainer.args.dataloader_persistent_workers = False
        if not self._cuda:
            give_large_blocks_back()
        size = int(self._trainer.args.per_device_eval_batch_size)  # the user's own or the default: the answer keeps it
        while failure := self._one_batch(size):
            gc.collect()
            if self._cuda:
                torch.cuda.empty_cache()
            if failure.outcome is not Outcome.OUT_OF_MEMORY or size == 1:
                self.note(failure)
                break
            size //= 2

    def _one_batch(self, size: int) -> failures.Failure | None:
        """Evaluate as many samples as the Trainer does by default; the failure where it met one."""
        self._tried.append(size)
        self._trainer.args.per_device_eval_batch_size = size
        self._memory.enter(_stage(size))
        try:
            samples = eval_samples(self._order, self._trainer.train_dataset, size)
            if not len(samples):
                return failures.Failure(Outcome.UNSUPPORTED, "the training data gives no samples to evaluate")
            begun = self._now()
            self._trainer.evaluate(eval_dataset=samples)
            self._seconds[EVALUATION] = self._now() - begun
            self._fitted = size
            return None
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # they hold what the next try needs
            failure = failures.from_exception(error, EVALUATION)
            print(f"evaluation of {size} samples: {failure.reason}", flush=True)
            return failure
        finally:
            self._memory.enter("")

    def _now(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


def _stage(size: int | None) -> str:
    return f"{EVALUATION} of {size}"


def give_large_blocks_back() -> None:
    """Make glibc's malloc give each block of at least 128 KiB back when it is freed, for the rest of this process.

    By itself it keeps ever larger ones, and what a failed try left there the next one has not. A threshold that is set
    stays: `man 3 mallopt`, M_MMAP_THRESHOLD.
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library has none
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 128 * 1024)


def eval_samples(order: Order, dataset: Any, count: int) -> Sized:
    """So many samples of the training data, the longest where they are known, over and over where there are too few.

    Of data that can only be run through the first ones, fewer or none where it has no more.
    """
    assert order.workload is not None
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        return list(islice(iter(dataset), count))
    places = order.workload.longest or range(len(dataset))
    subset: Sized = torch.utils.data.Subset(
        dataset, [places[index % len(places)] for index in range(count if places else 0)]
    )
    return subset


def checkpoint_size(trainer: Any) -> int:
    """Bytes that a checkpoint will hold at the least: the weights, and the optimizer's state where it is saved too."""
    held = list(trainer.model.parameters())
    if not trainer.args.save_only_model:
        held += [value for state in trainer.optimizer.state.values() for value in state.values()]
    return sum(tensor.numel() * tensor.element_size() for tensor in held if isinstance(tensor, torch.Tensor))


def too_large(size: int, free: int) -> str:
    """Why a checkpoint of this size is not tried where so much of the disk is free, both in bytes; empty where it is."""
    if size > MOST_CHECKPOINT_BYTES:
        return f"{_gigabytes(size)} would be more than {_gigabytes(MOST_CHECKPOINT_BYTES)}"
    if size > MOST_DISK_SHARE * free:
        return f"{_gigabytes(size)} would be more than half of the {_gigabytes(free)} that the disk has free"
    return ""


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB"

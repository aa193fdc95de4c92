"""One order carried out: model, batches and the real Trainer, in a process that may die of it."""

import contextlib
import os
import resource
import traceback
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from autotune.measurement import Measurement, Outcome
from autotune.probe import data, failures, models
from autotune.probe.order import Order
from autotune.probe.stopwatch import Misconfigured, NonFiniteLoss, Stopwatch
from autotune.probe.user_objects import UserObjects

# All that a probe adds to the arguments it recommends. None of these fields changes how fast a step is: they end the
# training soon, and keep it from saving, evaluating, logging, reporting and resuming.
PROBE_FIELDS: dict[str, Any] = {
    "save_strategy": "no",
    "eval_strategy": "no",
    "logging_strategy": "no",
    "logging_first_step": False,
    "report_to": "none",
    "disable_tqdm": True,
    "push_to_hub": False,
    "resume_from_checkpoint": None,
    "load_best_model_at_end": False,
    "eval_on_start": False,
    "auto_find_batch_size": False,
    "skip_memory_metrics": True,
    "enable_jit_checkpoint": False,
}
PLATEAU_SCHEDULERS = ("reduce_lr_on_plateau", "greedy")
"""Learning-rate schedules that need evaluations; a probe has none and keeps the rate constant."""


def run(order: Order, objects: bytes, started: float, scratch: Path) -> Measurement:
    """Train as ordered and bring back what was met. started: monotonic clock at this process's first line, seconds.

    Never raises for what a training can meet; a bug in autotune itself does raise.
    """
    assert order.configuration is not None
    assert order.environment is not None
    assert order.workload is not None
    watch = Stopwatch(order)
    memory = DeviceMemory(order) if not order.environment.is_cpu else HostMemory(order)
    failure = failures.Failure(Outcome.COMPLETED, "")
    held = None
    try:
        os.environ.update(order.process_environment)
        arguments = _arguments(order, scratch)
        _open_optimizers_library(arguments)
        memory.hold()
        trainer = _trainer(order, UserObjects.opened(objects), arguments)
        watch.attach(trainer)
        trainer.train()
        if not watch.finite:
            raise NonFiniteLoss("the loss became NaN or infinite")
        if not watch.steps:
            failure = failures.Failure(Outcome.CRASHED, "the training ended without a timed step", watch.stage)
    except Misconfigured as error:
        failure = failures.Failure(Outcome.MISCONFIGURED, str(error))
    except NonFiniteLoss as error:
        failure = failures.Failure(Outcome.NON_FINITE_LOSS, str(error), "forward")
    except Exception as error:
        memory.release()  # first: even reading what is held takes memory
        held = memory.held()
        traceback.print_exc()
        failure = failures.from_exception(error, watch.stage)
    memory.release()
    return Measurement(
        failure.outcome,
        reason=failure.reason,
        where=failure.where,
        accumulation_steps=order.configuration.gradient_accumulation_steps,
        accumulation_steps_run=order.accumulation_steps_run,
        data_parallel_size=order.configuration.data_parallel_size,
        steps=tuple(watch.steps),
        untimed_steps=len(watch.untimed),
        ended_early=watch.ended_early,
        allowed_bytes=order.allowed_bytes,
        context_bytes=order.environment.context_bytes,
        held_bytes=held,
        refused_bytes=failure.refused_bytes,
        micro_batch_bytes=watch.micro_batch_bytes,
        settings=watch.settings,
        asked=order.configuration.values,
        seconds_to_first_line=started - order.sent_at,
        observed_doubts=watch.doubts() if failure.outcome is Outcome.COMPLETED else (),
        **memory.peaks(),
    )


def _arguments(order: Order, scratch: Path) -> TrainingArguments:
    """The arguments that the answer will hold, and what a probe adds."""
    fields = dict(order.training_arguments)
    fields["gradient_accumulation_steps"] = order.accumulation_steps_run
    fields["max_steps"] = order.timing.untimed_most + order.timing.timed_most
    if str(getattr(fields.get("lr_scheduler_type"), "value", fields.get("lr_scheduler_type"))) in PLATEAU_SCHEDULERS:
        fields["lr_scheduler_type"] = "constant"
        fields.pop("lr_scheduler_kwargs", None)
    known = set(order.environment.training_argument_fields) if order.environment else set()
    fields |= {name: value for name, value in PROBE_FIELDS.items() if name in known}
    return TrainingArguments(output_dir=str(scratch / "output"), **fields)


def _open_optimizers_library(arguments: TrainingArguments) -> None:
    """Import it (bitsandbytes) before memory is limited: it counts, but half an import fails or hangs in any way."""
    with contextlib.suppress(Exception):  # the Trainer will meet it again
        Trainer.get_optimizer_cls_and_kwargs(arguments)


def _trainer(order: Order, user: UserObjects, arguments: TrainingArguments) -> Any:
    """The real Trainer on real batches."""
    assert order.configuration is not None
    assert order.workload is not None
    samples = order.configuration.micro_batch_size * order.accumulation_steps_run * (arguments.max_steps + 1)
    if order.workload.user_objects:
        model, parts = user.model(), user.parts(samples)
    else:
        arguments_of_model = {name: value for name, value in order.model_arguments.items() if name != "dtype"}
        # Made where it is trained: random values for billions of weights take minutes on a CPU.
        device = "cpu" if arguments.use_cpu else "cuda"
        model = models.build_model(order.workload, device=device, model_arguments=arguments_of_model)
        dataset, collator, processing = data.training_data(order.workload, samples, arguments.seed)
        parts = {"train_dataset": dataset, "data_collator": collator, "processing_class": processing}
    kind = user.trainer_class or Trainer
    return kind(model=model, args=arguments, **parts)


class HostMemory:
    """A CPU's memory: RLIMIT_DATA above what the process has at the start; the peak is that of resident memory."""

    def __init__(self, order: Order) -> None:
        self._allowed = order.allowed_bytes
        self._before = resource.getrlimit(resource.RLIMIT_DATA)
        self._resident, self._files = _status("VmRSS"), _status("RssFile")
        self._data = _status("VmData")

    def hold(self) -> None:
        """Refuse this process more than allowed_bytes beyond what it has now; loader workers are not limited."""
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins here
        if self._allowed is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (self._data + self._allowed, self._before[1]))
            os.register_at_fork(after_in_child=self.release)

    def held(self) -> int:
        """Bytes of data beyond the start."""
        return max(0, _status("VmData") - self._data)

    def release(self) -> None:
        """Lift the limit, so that an answer can be written."""
        resource.setrlimit(resource.RLIMIT_DATA, self._before)

    def peaks(self) -> dict[str, Any]:
        return {
            "peak_device_bytes": max(0, _status("VmHWM") - self._resident),
            "peak_file_bytes": max(0, _status("RssFile") - self._files),
        }


def _status(name: str) -> int:
    """A size from /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


class DeviceMemory:
    """A GPU's memory: the allocator is held to a fraction of the card, its context counted."""

    def __init__(self, order: Order) -> None:
        assert order.environment is not None
        self._order, self._environment = order, order.environment
        if self._environment.device_uuid:
            os.environ["CUDA_VISIBLE_DEVICES"] = self._environment.device_uuid

    def hold(self) -> None:
        """Refuse the allocator more than allowed_bytes less the context."""
        torch.cuda.init()
        if self._order.allowed_bytes is not None:
            share = (self._order.allowed_bytes - self._environment.context_bytes) / self._environment.total_memory_bytes
            torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, share)))
        torch.cuda.reset_peak_memory_stats()

    def held(self) -> int | None:
        with contextlib.suppress(RuntimeError):
            return int(torch.cuda.memory_reserved()) + self._environment.context_bytes
        return None

    def release(self) -> None:
        """Nothing to lift: the answer needs no device memory."""

    def peaks(self) -> dict[str, Any]:
        with contextlib.suppress(RuntimeError):
            reserved = int(torch.cuda.max_memory_reserved())
            return {
                "peak_allocated_bytes": int(torch.cuda.max_memory_allocated()),
                "peak_reserved_bytes": reserved,
                "peak_device_bytes": reserved + self._environment.context_bytes,
            }
        return {}

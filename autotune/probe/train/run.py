"""Training of a probe: model, batches and the real Trainer, in a process that may die of it."""

import contextlib
import math
import multiprocessing
import os
import random
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import SchedulerType, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import has_length

from autotune.core import InvalidRequest, Measurement, Outcome, failures
from autotune.core.kept import KeptSetting
from autotune.probe.device.clock import clock_of
from autotune.probe.device.compile import keep_compiled
from autotune.probe.device.machine import MachineMonitor
from autotune.probe.order import STAGE, Timing, TrainingOrder, timings
from autotune.probe.process.ranks import LastStep, free_port, this_rank
from autotune.probe.train.batch_contents import looked_at, other_rows
from autotune.probe.train.callbacks import drop_callbacks, why_unfit
from autotune.probe.train.control import TrialControl, keep_rate
from autotune.probe.train.equivalence import look
from autotune.probe.train.fields import is_sharded, probe_fields, round_fields
from autotune.probe.train.memory_limit import DeviceMemory, HostMemory, memory_of
from autotune.probe.train.read_back import Misconfigured
from autotune.probe.train.timer import Stopwatch
from autotune.probe.train.worst_batch import WORST_STEPS, tokens_per_sample, worst_batch
from autotune.space.settings import checkpointing, precision
from autotune.space.settings.threads import VARIABLE as THREADS
from autotune.space.variables import ALLOCATOR, OLDER_ALLOCATOR
from autotune.workload import extract
from autotune.workload.data import collate, sampling
from autotune.workload.model import adapters, build
from autotune.workload.model.user_objects import UserObjects, arguments_class

SAME_ORDER_STEPS = 64
"""Steps for which there are random samples at least: of another number others would be drawn."""

SHORTEST_STEP_S = 0.005
"""Seconds of a GPU's step at least, for enough samples and steps: launching the kernels of a model of a few layers takes as
long."""

PORT, OF_TORCHRUN = "MASTER_PORT", "TORCHELASTIC_RUN_ID"
"""Variables of the port where a training's ranks meet, and of processes for which torchrun listens there."""

LOOK_S, LOOK_SHARE = 60.0, 0.5
"""Seconds for looking at the user's loss and stream, and share of the time that a probe has left, at most."""

LAYOUT_BLOCKS = 64
"""Blocks that shift a probe's heap, at most: 1 MiB on average, each too small for a mapping of its own."""


def run(order: TrainingOrder, objects: bytes, started: float, scratch: Path) -> Measurement:
    """The Measurement of a probe. started: monotonic clock at this process's first line, seconds.

    Never raises for what a training raises.
    """
    layout = heap_layout(f"{order.number} {order.confirmation}")
    memory = memory_of(order)

    def build() -> Any:
        return prepared_trainer(order, objects, scratch, memory, most_steps(order), **round_fields(order))

    measurement = measured(order, memory, started, build)
    del layout
    return measurement


def measured(
    order: TrainingOrder,
    memory: HostMemory | DeviceMemory,
    started: float,
    build: Callable[[], Any],
    train: Callable[[Any], Any] = lambda trainer: trainer.train(),
) -> Measurement:
    """The Measurement of a training. build: makes the Trainer, train: trains it. The rest is as in `run`."""
    monitor = MachineMonitor(order.environment)
    watch = Stopwatch(order, memory, clock_of(order.environment), monitor, LastStep.of_this_process())
    failure = failures.Failure(Outcome.COMPLETED, "")
    held_bytes, control, left_out = None, None, dict[str, str]()
    kept: tuple[KeptSetting, ...] = ()
    print(STAGE.format(watch.stages.now), flush=True)
    try:
        trainer = build()
        watch.pace.tokens_per_sample = tokens_per_sample(order, trainer)
        watch.attach(trainer, worst_batch(order, trainer))
        accumulation = order.configuration.gradient_accumulation_steps
        control = TrialControl(trainer, watch, most_steps(order), accumulation)
        train(trainer)
        left_out = control.left_out
        failure = watch.failure() or failure
    except Misconfigured as error:
        watch.settings = error.settings
        failure = failures.Failure(Outcome.MISCONFIGURED, str(error))
    except Exception as error:
        memory.release()  # first: even reading what is held takes memory
        held_bytes = memory.held()
        traceback.print_exc()
        failure = failures.from_exception(error, watch.stages.now)
        left_out = getattr(error, "left_out", {})  # of a CallbackFailed
    memory.release()
    peaks, held, steps = memory.peaks(), watch.held, watch.pace.steps
    if failure.outcome is Outcome.COMPLETED and held is not None and not order.confirmation:
        if order.held is None and order.ranks == 1:
            held, kept = looked_at(order, trainer, held, watch.shares)
            steps = watch.counting_rows() if held.counts_rows else steps
        elif order.held is not None and not held.is_like(order.held):
            kept, failure = other_rows(order, held)
    measurement = Measurement(
        failure.outcome,
        reason=failure.reason,
        where=failure.where,
        accumulation_steps=order.configuration.gradient_accumulation_steps,
        accumulation_steps_run=order.accumulation_steps_run,
        data_parallel_size=order.configuration.data_parallel_size,
        steps=tuple(steps),
        untimed_steps=watch.untimed_steps,
        compile_s=watch.pace.compile_s,
        losses=watch.losses if order.confirmation and runs_whole_steps(order) else (),
        recompiled_graphs=watch.pace.recompiled_graphs,
        whole_fetch_s=watch.pace.whole_fetch_s,
        ended_early=watch.pace.ended_early,
        allowed_bytes=order.allowed_bytes,
        context_bytes=order.environment.context_bytes,
        held_bytes=held_bytes,
        refused_bytes=failure.refused_bytes,
        tokens_per_sample=watch.pace.tokens_per_sample,
        micro_batch_bytes=watch.micro_batch_bytes,
        worst_batch=watch.worst_batch,
        skipped_steps=watch.skipped_steps,
        joules=watch.monitor.joules,
        system_state=watch.monitor.facts(),
        settings=watch.settings,
        held=held,
        kept=kept,
        asked=order.configuration.values,
        left_out=left_out,
        callbacks_s=control.callbacks_s if control and order.environment.is_cpu else 0.0,
        seconds_to_first_line=started - order.sent_at,
        observed_warnings=watch.monitor.warnings() if failure.outcome is Outcome.COMPLETED else (),
        **peaks,
    )
    is_first = order.speed_to_reach is None and not order.confirmation
    if measurement.outcome is Outcome.COMPLETED and is_first:  # last, as it may leave a device in any state
        seconds = min(LOOK_S, LOOK_SHARE * (started + order.deadline_s - time.monotonic()))
        measurement = replace(measurement, kept=(*measurement.kept, *look(order, trainer, seconds)))
    return measurement


def heap_layout(seed: str | None = None) -> list[bytearray]:
    """Random small blocks, to be held while a probe trains. seed: None for other blocks at each call.

    All children of one host inherit the same heap, and on a CPU its layout decides on page faults: rounds that agreed
    within 5 % were off by 25 % from those of another host. So each measurement has a random layout (Mytkowicz et al.,
    Producing Wrong Data Without Doing Anything Obviously Wrong, 2009).
    """
    rng = random.Random(seed)
    return [bytearray(rng.randrange(1 << 10, 1 << 16)) for _ in range(rng.randrange(LAYOUT_BLOCKS))]


def runs_whole_steps(order: TrainingOrder) -> bool:
    """True if all micro-steps of a step are run: only then do its samples, and so its losses, not depend on their size."""
    return order.accumulation_steps_run == order.configuration.gradient_accumulation_steps


def most_steps(order: TrainingOrder) -> int:
    """Optimizer steps of the probe at most.

    In a confirmation round as many for all on this device, as of another number of samples others would be drawn.
    """
    of_round = [timings(order.environment.is_cpu)[1]] if order.confirmation else []
    return WORST_STEPS + max(map(_steps_of, [order.timing, *of_round]))


def _steps_of(timing: Timing) -> int:
    untimed = max(timing.untimed_most, math.ceil(timing.untimed_seconds_most / SHORTEST_STEP_S))
    return untimed + max(timing.timed_most, math.ceil(timing.timed_seconds_least / SHORTEST_STEP_S))


def arguments_of(order: TrainingOrder, objects: bytes, scratch: Path, **more: Any) -> TrainingArguments:
    """The recommended arguments, with PROBE_FIELDS and further fields, of the user's own class if any."""
    kind, user_fields = arguments_class(objects)
    fields = probe_fields(order) | {"gradient_accumulation_steps": order.accumulation_steps_run} | more
    return extract.arguments(kind, {"output_dir": str(scratch / "output"), **user_fields, **fields})


def prepared_trainer(
    order: TrainingOrder, objects: bytes, scratch: Path, memory: HostMemory | DeviceMemory, steps: int, **fields: Any
) -> Any:
    """The Trainer of an order with samples for n steps; sets variables, and limits memory before the model is built.

    fields: further training arguments.
    """
    keep_compiled(order)
    take_variables(order)
    arguments = arguments_of(order, objects, scratch, **fields)
    open_optimizers_library(arguments)
    memory.hold()
    if order.confirmation:  # weights of its own in each round, the same for every rival
        set_seed(arguments.data_seed)
    user = UserObjects.opened(objects, arguments)
    multiprocessing.set_start_method("fork", force=True)  # nothing of the user's has to be sent to loader workers
    return trainer_of(order, user, arguments, steps, bool(order.confirmation))


def take_variables(order: TrainingOrder) -> None:
    """Set the variables and switches of the configuration.

    OpenMP's threads and the device allocator are set in torch: a fork no longer reads their variables. A single process that
    meets nobody (DeepSpeed's) has a port of its own: others on this machine may be measured now.
    """
    os.environ.update(order.process_environment)
    if PORT in order.process_environment and OF_TORCHRUN not in os.environ:
        os.environ[PORT] = str(free_port())
    for name in (OLDER_ALLOCATOR, ALLOCATOR):
        if (settings := order.process_environment.get(name)) and not order.environment.is_cpu:
            # All settings at once: unnamed ones fall back to their defaults.
            newer = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
            (newer or torch.cuda.memory._set_allocator_settings)(settings)
    for name, allowed in order.switches.items():
        getattr(torch.backends.cuda, name)(allowed)
    if threads := order.process_environment.get(THREADS):
        torch.set_num_threads(int(threads))


def open_optimizers_library(arguments: TrainingArguments) -> None:
    """Import it (bitsandbytes) before memory is limited: half an import fails in any way, or hangs."""
    with contextlib.suppress(Exception):  # the Trainer will raise it again
        Trainer.get_optimizer_cls_and_kwargs(arguments)


def trainer_of(
    order: TrainingOrder, user: UserObjects, arguments: TrainingArguments, steps: int, weights: bool = False
) -> Any:
    """The real Trainer with samples for n steps. weights: load the model's own if they are local.

    Raises Misconfigured if a class of the user's does not train with these arguments.
    """
    if user.build is not None:
        return as_ordered(order, _built(order, user, arguments), steps)
    if order.workload.user_objects:
        model, parts = user.model(), user.parts()
    else:
        # Random values for billions of weights take minutes on a CPU.
        model = build.build_model(
            order.workload,
            device="cpu" if arguments.use_cpu else "cuda",
            model_arguments=order.model_arguments,
            weights=order.workload.weights if weights else "",
            sharding_rank=this_rank() if is_sharded(order) else None,
        )
        model = adapters.adapted(model, order.adapter)
        seed = arguments.seed if arguments.data_seed is None else arguments.data_seed
        # As many in every configuration: all draw the same samples in the same order.
        samples = order.configuration.global_batch_size * max(SAME_ORDER_STEPS, steps + 1)
        # Few different ones: of ever new random samples nothing is learned.
        pool = order.configuration.global_batch_size if order.confirmation else None
        dataset, collator, processing = collate.training_data(order.workload, samples, seed, pool)
        parts = {"train_dataset": dataset, "data_collator": collator, "processing_class": processing}
    if arguments.max_steps <= 0 and not has_length(parts.get("train_dataset")):
        arguments.max_steps = steps
    vars(arguments).update(user.on_arguments)
    parts |= {"model": model, "args": arguments}
    try:
        kind = user.trainer_class
        trainer = extract.built_again(kind, parts) if kind else Trainer(**parts)
    except InvalidRequest as error:
        raise Misconfigured(str(error), {}) from error
    trainer.own_optimizer = user.own_optimizer
    precision.unwrap(trainer.model)
    for callback in user.callbacks:
        trainer.add_callback(callback)
    return as_ordered(order, trainer, steps)


def _built(order: TrainingOrder, user: UserObjects, arguments: TrainingArguments) -> Any:
    """The Trainer that the user's function builds, without callbacks that are not for probes."""
    try:
        trainer = user.trainer(arguments)
    except InvalidRequest as error:
        raise Misconfigured(str(error), {}) from error
    trainer.own_optimizer = order.workload.own_optimizer
    return for_probe(trainer)


def for_probe(trainer: Any) -> Any:
    """The user's Trainer without callbacks that probes do not run; its model is made already."""
    for callback in filter(why_unfit, extract.user_callbacks(trainer)):
        trainer.remove_callback(callback)
    trainer.model_init = None
    return trainer


def as_ordered(order: TrainingOrder, trainer: Any, steps: int) -> Any:
    """The Trainer with what its arguments do not say.

    Checkpointing off on its model, no trackers and no callbacks that failed before, batches as ordered, enough of them for n
    steps, and in a confirmation round a rate that can be compared.
    """
    arguments = trainer.args
    if scheduler := order.training_arguments.get("lr_scheduler_type"):
        arguments.lr_scheduler_type = SchedulerType(scheduler)
    if order.confirmation:
        keep_rate(trainer)
    if order.configuration.values.get(checkpointing.SETTING.name) == "none" and not order.workload.built:
        checkpointing.switch_off(trainer.model)
    drop_callbacks(trainer, order.without)
    trainer.data_collator = collate.collated_as_asked(trainer.data_collator, order.data_arguments)
    sampling.spread_steps(trainer)
    once = order.configuration.gradient_accumulation_steps  # of the step that fetches them all
    sampling.repeat_batches(trainer, (steps + 1) * arguments.gradient_accumulation_steps + once)
    return trainer

"""Training of a probe: model, batches and the real Trainer, in a process that may die of it."""

import contextlib
import math
import os
import random
import traceback
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments, set_seed

from autotune.core import InvalidRequest, Measurement, Outcome, failures
from autotune.probe.device.clock import clock_of
from autotune.probe.device.compile import keep_compiled
from autotune.probe.device.machine import MachineMonitor
from autotune.probe.order import Timing, TrainingOrder, timings
from autotune.probe.process.ranks import LastStep
from autotune.probe.train.callbacks import add_callbacks, drop_trackers
from autotune.probe.train.memory_limit import DeviceMemory, HostMemory, memory_of
from autotune.probe.train.read_back import Misconfigured
from autotune.probe.train.timer import Stopwatch
from autotune.probe.train.worst_batch import WORST_STEPS, tokens_per_sample, worst_batch
from autotune.space.settings import checkpointing, precision
from autotune.space.settings.quantization import FIELD as FOUR_BITS
from autotune.space.settings.threads import VARIABLE as THREADS
from autotune.space.variables import ALLOCATOR, OLDER_ALLOCATOR
from autotune.workload import extract
from autotune.workload.data import collate, sampling
from autotune.workload.model import adapters, build
from autotune.workload.model.user_objects import UserObjects, arguments_class

# Added by a probe to the arguments that it recommends; none changes the speed of a step. No saving, evaluating, logging,
# reporting or resuming.
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
DEFAULT_SEED = 42
"""`TrainingArguments.seed` if nobody sets it."""

WARMUP_STEPS = 3
"""Steps of a confirmation round in which the learning rate rises, if the user's training has a warmup."""

SAME_ORDER_STEPS = 64
"""Steps for which there are random samples at least: of another number others would be drawn."""

SHORTEST_STEP_S = 0.005
"""Seconds of a GPU's step at least, for enough samples and steps: launching the kernels of a model of a few layers takes as
long."""

LAYOUT_BLOCKS = 64
"""Blocks that shift a probe's heap, at most: 1 MiB on average, each too small for a mapping of its own."""

PLATEAU_SCHEDULERS = ("reduce_lr_on_plateau", "greedy")
"""Learning-rate schedules that need evaluations; a probe has none and keeps the rate constant."""


def run(order: TrainingOrder, objects: bytes, started: float, scratch: Path) -> Measurement:
    """The Measurement of a probe. started: monotonic clock at this process's first line, seconds.

    Never raises for what a training raises.
    """
    layout = heap_layout(f"{order.number} {order.confirmation}")
    memory = memory_of(order)
    surroundings = MachineMonitor(order.environment)
    watch = Stopwatch(order, memory, clock_of(order.environment), surroundings, LastStep.of_this_process())
    failure = failures.Failure(Outcome.COMPLETED, "")
    held = None
    try:
        trainer = prepared_trainer(order, objects, scratch, memory, most_steps(order), **round_fields(order))
        watch.tokens_per_sample = tokens_per_sample(order, trainer)
        watch.attach(trainer, worst_batch(order, trainer))
        trainer.train()
        failure = watch.failure() or failure
    except Misconfigured as error:
        watch.settings = error.settings
        failure = failures.Failure(Outcome.MISCONFIGURED, str(error))
    except Exception as error:
        memory.release()  # first: even reading what is held takes memory
        held = memory.held()
        traceback.print_exc()
        failure = failures.from_exception(error, watch.stage)
    memory.release()
    del layout
    return Measurement(
        failure.outcome,
        reason=failure.reason,
        where=failure.where,
        accumulation_steps=order.configuration.gradient_accumulation_steps,
        accumulation_steps_run=order.accumulation_steps_run,
        data_parallel_size=order.configuration.data_parallel_size,
        steps=tuple(watch.steps),
        untimed_steps=watch.untimed_steps,
        compile_s=watch.compile_s,
        losses=watch.losses if order.confirmation and runs_whole_steps(order) else (),
        recompiled_graphs=watch.recompiled_graphs,
        whole_fetch_s=watch.whole_fetch_s,
        ended_early=watch.ended_early,
        allowed_bytes=order.allowed_bytes,
        context_bytes=order.environment.context_bytes,
        held_bytes=held,
        refused_bytes=failure.refused_bytes,
        tokens_per_sample=watch.tokens_per_sample,
        micro_batch_bytes=watch.micro_batch_bytes,
        worst_batch=watch.worst_batch,
        skipped_steps=watch.skipped_steps,
        joules=watch.surroundings.joules,
        surroundings=watch.surroundings.facts(),
        settings=watch.settings,
        asked=order.configuration.values,
        seconds_to_first_line=started - order.sent_at,
        observed_warnings=watch.surroundings.warnings() if failure.outcome is Outcome.COMPLETED else (),
        **memory.peaks(),
    )


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
    untimed_s = max(timing.untimed_seconds, timing.untimed_seconds_most)
    untimed = max(timing.untimed_most, math.ceil(untimed_s / SHORTEST_STEP_S))
    return untimed + max(timing.timed_most, math.ceil(timing.timed_seconds_least / SHORTEST_STEP_S))


def round_fields(order: TrainingOrder) -> dict[str, Any]:
    """The training arguments that a confirmation round has of its own, the same for every trial; none for a probe.

    Each round draws the samples in another order: rounds on the same few samples would agree with each other, and not with
    the rest of the data. The learning rate does not decay, so that trials that take another number of steps can be compared
    by their losses, and a long warmup is a short one, or nothing would be learned in these steps.
    """
    if not order.confirmation:
        return {}
    fields = order.training_arguments
    warmup = bool(fields.get("warmup_steps") or fields.get("warmup_ratio"))
    return {
        "data_seed": data_seed(order, order.confirmation),
        "lr_scheduler_type": "constant_with_warmup",
        "lr_scheduler_kwargs": None,
        "warmup_steps": WARMUP_STEPS * warmup,
        **({"warmup_ratio": None} if "warmup_ratio" in fields else {}),
    }


def data_seed(order: TrainingOrder, round_number: int) -> int:
    """The seed of the samples' order in this round, the same for all that run in it."""
    fields = order.training_arguments
    return int(fields.get("data_seed", fields.get("seed", DEFAULT_SEED)) or DEFAULT_SEED) + round_number


def arguments_of(order: TrainingOrder, objects: bytes, scratch: Path, steps: int, **more: Any) -> TrainingArguments:
    """The recommended arguments for so many steps, with PROBE_FIELDS and further fields, of the user's own class if any."""
    kind, user_fields = arguments_class(objects)
    fields = dict(order.training_arguments)
    if str(getattr(fields.get("lr_scheduler_type"), "value", fields.get("lr_scheduler_type"))) in PLATEAU_SCHEDULERS:
        fields["lr_scheduler_type"] = "constant"
        fields.pop("lr_scheduler_kwargs", None)
    names = order.environment.training_argument_fields
    fields |= {name: value for name, value in PROBE_FIELDS.items() if name in names}
    fields |= {"gradient_accumulation_steps": order.accumulation_steps_run, "max_steps": steps} | more
    return extract.arguments(kind, {"output_dir": str(scratch / "output"), **user_fields, **fields})


def prepared_trainer(
    order: TrainingOrder, objects: bytes, scratch: Path, memory: HostMemory | DeviceMemory, steps: int, **fields: Any
) -> Any:
    """The Trainer of an order for so many steps; sets variables, and limits memory before the model is built.

    fields: further training arguments.
    """
    take_variables(order)
    arguments = arguments_of(order, objects, scratch, steps, **fields)
    open_optimizers_library(arguments)
    memory.hold()
    if order.confirmation:  # weights of its own in each round, the same for every rival
        set_seed(arguments.data_seed)
    return trainer_of(order, UserObjects.opened(objects, arguments), arguments, weights=bool(order.confirmation))


def take_variables(order: TrainingOrder) -> None:
    """Set the variables and switches of the configuration.

    OpenMP's threads and the device allocator are set in torch: a fork no longer reads their variables.
    """
    keep_compiled(order)
    os.environ.update(order.process_environment)
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


def trainer_of(order: TrainingOrder, user: UserObjects, arguments: TrainingArguments, weights: bool = False) -> Any:
    """The real Trainer with samples for `arguments.max_steps`. weights: load the model's own if they are local.

    Raises Misconfigured if a class of the user's does not train with these arguments.
    """
    if order.workload.user_objects:
        model, parts = user.model(), user.parts()
    else:
        # On the training's device: random values for billions of weights take minutes on a CPU. But FSDP shards from
        # the host, except weights in four bits.
        shards = bool(arguments.fsdp) and not order.model_arguments.get(FOUR_BITS)
        device = "cpu" if arguments.use_cpu or shards else "cuda"
        local = order.workload.weights if weights else ""
        model = build.build_model(order.workload, device=device, model_arguments=order.model_arguments, weights=local)
        model = adapters.adapted(model, order.adapter)
        seed = arguments.seed if arguments.data_seed is None else arguments.data_seed
        # As many in every configuration: all draw the same samples in the same order.
        samples = order.configuration.global_batch_size * max(SAME_ORDER_STEPS, arguments.max_steps + 1)
        # Few different ones: of ever new random samples nothing is learned.
        pool = order.configuration.global_batch_size if order.confirmation else None
        dataset, collator, processing = collate.training_data(order.workload, samples, seed, pool)
        parts = {"train_dataset": dataset, "data_collator": collator, "processing_class": processing}
    kind = user.trainer_class or Trainer
    parts |= {"model": model, "args": arguments}
    if user.prepared:
        vars(arguments).update(user.set_later.of_arguments)
        try:
            trainer = extract.built_again(kind, parts, user.new)
        except InvalidRequest as error:
            raise Misconfigured(str(error), {}) from error
        user.set_later.give(trainer)
    else:
        trainer = kind(**parts)
    trainer.own_optimizer = user.own_optimizer
    precision.unwrap(trainer.model)
    if order.configuration.values.get(checkpointing.SETTING.name) == "none":
        checkpointing.switch_off(trainer.model)
    add_callbacks(trainer, user.callbacks)
    drop_trackers(trainer)
    trainer.data_collator = collate.collated_as_asked(trainer.data_collator, order.data_arguments)
    sampling.spread_steps(trainer)
    once = order.configuration.gradient_accumulation_steps  # of the step that fetches them all
    sampling.repeat_batches(trainer, (arguments.max_steps + 1) * arguments.gradient_accumulation_steps + once)
    return trainer

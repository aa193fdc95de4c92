"""A trial in the user's program: the training that is reached is measured as a probe's is, and the program ended."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, cast

from autotune.commands.run.exchange import Instructions, wait_for_end
from autotune.core import failures
from autotune.core.io import read_json, write_json
from autotune.probe.order import ORDER, Order, TrainingOrder, answer_name
from autotune.probe.process.ranks import this_rank
from autotune.probe.train import sanity
from autotune.probe.train.memory_limit import memory_of
from autotune.probe.train.run import (
    as_ordered,
    for_probe,
    heap_layout,
    measured,
    most_steps,
    open_optimizers_library,
    take_variables,
)

_begun: dict[str, Any] = {}


def begin(instructions: Instructions, started: float) -> None:
    """Read the order, and begin to count memory: before model and data are built. started: of this process, monotonic."""
    folder = Path(instructions.order)
    order = cast("TrainingOrder", Order.from_dict(read_json(folder / ORDER), folder))
    take_variables(order)
    _begun.update(order=order, memory=memory_of(order), started=started)


def carry_out(trainer: Any, train: Callable[..., Any], instructions: Instructions) -> NoReturn:
    """Train this Trainer by its original method for the order's steps, answer and wait for the end."""
    order, memory = _begun["order"], _begun["memory"]
    layout = heap_layout(f"{order.number} {order.confirmation}")

    def build() -> Any:
        open_optimizers_library(trainer.args)
        memory.hold()
        trainer.own_optimizer = order.workload.own_optimizer
        steps = most_steps(order) if order.kind == "probe" else sanity.MOST_STEPS
        return as_ordered(order, for_probe(trainer), steps)

    if order.kind == "probe":
        answer = measured(order, memory, _begun["started"], build, train).to_dict()
    else:
        try:
            scratch = Path(trainer.args.output_dir).parent
            answer = {"value": sanity.checked(order, memory, scratch, build, train)}
        except Exception as error:
            traceback.print_exc()
            failure = failures.from_exception(error, order.kind)
            answer = {"outcome": failure.outcome.value, "reason": failure.reason, "where": failure.where}
    del layout
    write_json(Path(order.folder) / answer_name(this_rank()), answer)
    wait_for_end(instructions.parent)

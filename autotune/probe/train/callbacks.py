"""Callbacks carried from one Trainer to another, without trackers in probes."""

from collections.abc import Collection
from typing import Any

from autotune.workload.references import function_of

NEEDS_EVALUATION = ("EarlyStoppingCallback",)
"""Callbacks, and their subclasses, that refuse a training without evaluation, as probes are, and cost nothing in a step."""


def take_callbacks(trainer: Any, source: Any) -> None:
    """Give a Trainer the callbacks of another one of its class, in their order, and no others.

    Of a class that the Trainer has itself its own callback stays: it may hold the Trainer.
    """
    defaults = list(trainer.callback_handler.callbacks)
    callbacks = []
    for callback in source.callback_handler.callbacks:
        match = next((other for other in defaults if type(other) is type(callback)), None)
        if match is not None:
            defaults.remove(match)
        callbacks.append(callback if match is None else match)
    trainer.callback_handler.callbacks = callbacks


def is_tracker(callback: Any) -> bool:
    """True if it logs to a tracker (W&B, MLflow, TensorBoard, ...): a callback of transformers, or a subclass; or to a study."""
    from transformers.integrations import INTEGRATION_TO_CALLBACK

    from autotune.probe.train.promise import PromiseCallback

    return isinstance(callback, (PromiseCallback, *INTEGRATION_TO_CALLBACK.values()))


def drop_callbacks(trainer: Any, names: Collection[str] = ()) -> None:
    """Take trackers, the Trainer's own progress bars and callbacks of classes of these names off a Trainer."""
    from transformers import PrinterCallback, ProgressCallback

    for callback in tuple(trainer.callback_handler.callbacks):
        kind = type(callback)
        if is_tracker(callback) or kind in (PrinterCallback, ProgressCallback) or kind.__name__ in names:
            trainer.remove_callback(callback)


def why_unfit(callback: Any) -> str:
    """Reason why probes do not run it; else empty."""
    if any(kind.__name__ in NEEDS_EVALUATION for kind in type(callback).__mro__):
        return "it needs evaluations"
    if is_tracker(callback):
        return "it would log every probe as a run"
    functions = (function_of(member) for kind in type(callback).__mro__ for member in vars(kind).values())
    names = {name for function in functions if (code := getattr(function, "__code__", None)) for name in code.co_names}
    return "it evaluates" if names & {"evaluate", "predict"} else ""

"""autotune: the fastest training configuration that fits, found by measurement."""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune import errors as errors
    from autotune.commands.compare.run import compare
    from autotune.commands.estimate.run import estimate
    from autotune.commands.explain.run import explain
    from autotune.commands.guide.run import guide
    from autotune.commands.result import TuningResult
    from autotune.commands.search import search
    from autotune.commands.tune import tune
    from autotune.commands.verify.run import verify
    from autotune.core.version import __version__ as __version__
    from autotune.probe.train.promise import PromiseCallback
    from autotune.sampler.physics import PhysicsSampler
    from autotune.service.client import connect

__all__ = [
    "PhysicsSampler",
    "PromiseCallback",
    "TuningResult",
    "compare",
    "connect",
    "estimate",
    "explain",
    "guide",
    "search",
    "tune",
    "verify",
]

_MODULES = {
    "search": "autotune.commands.search",
    "tune": "autotune.commands.tune",
    "compare": "autotune.commands.compare.run",
    "connect": "autotune.service.client",
    "estimate": "autotune.commands.estimate.run",
    "explain": "autotune.commands.explain.run",
    "guide": "autotune.commands.guide.run",
    "TuningResult": "autotune.commands.result",
    "verify": "autotune.commands.verify.run",
    "PhysicsSampler": "autotune.sampler.physics",
    "PromiseCallback": "autotune.probe.train.promise",
    "__version__": "autotune.core.version",
}

ANYWHERE = ("compare", "connect", "TuningResult", "__version__")
"""Names that start no training, and work on any system."""


def __getattr__(name: str) -> Any:
    """Load torch, optuna and pandas only when something of theirs is first used.

    Raises ImportError, one line, for what needs Linux on another system.
    """
    from importlib import import_module

    if name == "errors":
        return import_module("autotune.errors")
    if name not in _MODULES:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    if sys.platform != "linux" and name not in ANYWHERE:
        raise ImportError(import_module("autotune.core.errors").NEEDS_LINUX)
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

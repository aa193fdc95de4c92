"""autotune: the fastest training configuration that fits, found by measurement."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.comparison import compare
    from autotune.explain import explanation
    from autotune.forecast import estimate
    from autotune.guide import run_guide
    from autotune.own_trainer import tune
    from autotune.result import TuningResult
    from autotune.verify import verify_study
    from autotune.workflow import search

__version__ = "0.1.0"
__all__ = ["TuningResult", "compare", "estimate", "explanation", "run_guide", "search", "tune", "verify_study"]

_ROOMS = {
    "search": "autotune.workflow",
    "tune": "autotune.own_trainer",
    "compare": "autotune.comparison",
    "estimate": "autotune.forecast",
    "explanation": "autotune.explain",
    "run_guide": "autotune.guide",
    "TuningResult": "autotune.result",
    "verify_study": "autotune.verify",
}


def __getattr__(name: str) -> Any:
    """Load torch, optuna and pandas only when something of theirs is first used."""
    if name not in _ROOMS:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_ROOMS[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

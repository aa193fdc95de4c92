"""Start-up hook of a command of `autotune run`, whose PYTHONPATH begins with this folder; imports nothing that takes time."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing takes ten milliseconds
if TYPE_CHECKING:
    from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))
MESSAGES = os.environ.get("AUTOTUNE_RUN", FOLDER)
WATCHED = {"transformers.training_args": "watch_arguments", "transformers.trainer": "watch_trainer"}
"""Module -> function of the hook that gets it once it is imported."""


class _Finder:
    """Finds the watched modules as all others do, and lets the hook have them."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name not in WATCHED:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find and finder is not _Finder else None
            if spec is not None and spec.loader is not None:
                _watch(spec.loader, WATCHED[name])
                return spec
        return None


def _watch(loader: Any, function: str) -> None:
    execute = loader.exec_module

    def executed(module: Any) -> None:
        execute(module)
        try:
            from autotune.commands.run import hook
        except ImportError as error:
            if os.path.isdir(MESSAGES):  # else autotune has ended
                with open(os.path.join(MESSAGES, "not_installed"), "w", encoding="utf-8") as file:
                    file.write(f"{sys.executable}: {error}")
        else:
            getattr(hook, function)(module)

    loader.exec_module = executed


def _refuse_writes() -> None:
    try:
        from autotune.probe.process.guard import refuse_in_python
    except ImportError:  # another Python
        return
    refuse_in_python()


def _next() -> None:
    """Run the sitecustomize that this one hides."""
    sys.path[:] = [path for path in sys.path if path != FOLDER]
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    if own is not None:
        sys.modules.setdefault("sitecustomize", own)


if os.path.isfile(os.path.join(MESSAGES, "Instructions.json")):
    sys.meta_path.insert(0, _Finder)
if "AUTOTUNE_READ_ONLY" in os.environ:
    _refuse_writes()
_next()

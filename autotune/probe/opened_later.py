"""Libraries that must not be opened in the host: they stand in its module table and open where they are first used."""

import importlib
import importlib.util
import sys
import types
from typing import Any

WAKES_CUDA = ("bitsandbytes", "torchao")
"""Libraries that initialise CUDA when they are imported, which others (peft, by way of transformers) do."""


def open_later(name: str) -> None:
    """Let `import name` succeed and run the library's code only when something in it is used: in a child."""
    spec = importlib.util.find_spec(name) if name not in sys.modules else None
    if spec is not None:
        sys.modules[name] = _OpenedLater(name)
        sys.modules[name].__spec__, sys.modules[name].__file__ = spec, spec.origin


class _OpenedLater(types.ModuleType):
    """What `import name` gave to others in the host; a child's own imports no longer meet it."""

    def __getattr__(self, attribute: str) -> Any:
        # Some look for names like __warningregistry__ in every module there is.
        if attribute.startswith("__") and attribute not in ("__path__", "__version__", "__all__"):
            raise AttributeError(attribute)
        forget_opened_later()
        opened = importlib.import_module(self.__name__)
        self.__dict__.update(opened.__dict__)
        return getattr(opened, attribute)


def forget_opened_later() -> None:
    """Let the next `import` open these libraries."""
    for name in WAKES_CUDA:
        if isinstance(sys.modules.get(name), _OpenedLater):
            del sys.modules[name]
